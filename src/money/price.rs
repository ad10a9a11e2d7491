//! A model's price: what a call costs, and what to hold before it is made.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::{BilledUnits, Money, MoneyError, Rate, TokenUsage, VideoResolution};

/// The token rates at one level of a price list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenRates {
    /// Per input token.
    pub input: Rate,
    /// Per output token.
    pub output: Rate,
    /// Per input token read from a prompt cache; the input rate if none is listed.
    pub cache_read: Option<Rate>,
    /// Per input token written to a prompt cache; the input rate if none is listed.
    pub cache_write: Option<Rate>,
    /// Per input token written to a prompt cache for an hour; the `cache_write` rate if none is
    /// listed.
    pub cache_write_1h: Option<Rate>,
}

impl TokenRates {
    fn cost(&self, tokens: TokenUsage) -> Result<Money, MoneyError> {
        // If a vendor reports more cached tokens than input tokens, only the input total is
        // charged.
        let read = tokens.cache_read.min(tokens.input);
        let write = tokens.cache_write.min(tokens.input - read);
        let plain = tokens.input - read - write;
        let hour = tokens.cache_write_1h.min(write);
        let written = self.cache_write.unwrap_or(self.input);
        self.input
            .checked_mul(plain)?
            .checked_add(self.cache_read.unwrap_or(self.input).checked_mul(read)?)?
            .checked_add(written.checked_mul(write - hour)?)?
            .checked_add(self.cache_write_1h.unwrap_or(written).checked_mul(hour)?)?
            .checked_add(self.output.checked_mul(tokens.output)?)
    }
}

/// Prices of a model that is sold by tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenPrice {
    /// The rates where no dated rate and no tier applies.
    pub base: TokenRates,
    /// The rates for the whole request, with the number of input tokens above which they apply,
    /// ascending.
    pub input_tiers: Vec<(u64, TokenRates)>,
    /// The base rates that apply from a time on (unix seconds, UTC), ascending.
    pub dated_rates: Vec<(i64, TokenRates)>,
}

impl TokenPrice {
    /// Returns the exact cost of `tokens` at the price of the time `at` (unix seconds).
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if it does not fit.
    pub(crate) fn cost(&self, tokens: TokenUsage, at: i64) -> Result<Money, MoneyError> {
        self.rates_for(tokens.input, at).cost(tokens)
    }

    /// Returns the rates of a request with a number of input tokens, at the time `at` (unix
    /// seconds).
    #[must_use]
    pub(crate) fn rates_for(&self, input_tokens: u64, at: i64) -> TokenRates {
        let tier = self.input_tiers.iter().rev().find(|(over, _)| input_tokens > *over);
        tier.map_or_else(|| self.base_rates_at(at), |(_, rates)| *rates)
    }

    /// Returns what to hold for a call of at most `input` tokens in and `output` tokens out.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if it does not fit.
    pub(crate) fn quote(&self, input: u64, output: u64, at: i64) -> Result<Quote, MoneyError> {
        let dearest = |output| {
            let tokens = TokenUsage { input, output, ..TokenUsage::default() };
            let tiers = self.input_tiers.iter().filter(|(over, _)| input > *over).map(|(_, r)| *r);
            // The input is an upper bound, so the call may still end in a lower tier.
            tiers
                .chain([self.base_rates_at(at)])
                .try_fold(Money::ZERO, |most, rates| Ok(most.max(rates.cost_max(tokens)?)))
        };
        Ok(Quote { wanted: dearest(output)?, least: dearest(output.min(1))? })
    }

    /// Whether every level has a rate for tokens that are cached for an hour.
    #[must_use]
    pub(crate) fn has_cache_write_1h(&self) -> bool {
        let above = self.input_tiers.iter().map(|(_, rates)| rates);
        let from = self.dated_rates.iter().map(|(_, rates)| rates);
        [&self.base].into_iter().chain(above).chain(from).all(|r| r.cache_write_1h.is_some())
    }

    /// Returns the rates at the time `at` (unix seconds) for requests to which no input tier
    /// applies.
    #[must_use]
    pub(crate) fn base_rates_at(&self, at: i64) -> TokenRates {
        let dated = self.dated_rates.iter().rev().find(|(since, _)| at >= *since);
        dated.map_or(self.base, |(_, rates)| *rates)
    }
}

impl TokenRates {
    /// Returns the cost if every input token were of the most expensive kind.
    fn cost_max(&self, tokens: TokenUsage) -> Result<Money, MoneyError> {
        let input = [Some(self.input), self.cache_read, self.cache_write, self.cache_write_1h];
        let dearest = input.into_iter().flatten().max().unwrap_or_default();
        dearest.checked_mul(tokens.input)?.checked_add(self.output.checked_mul(tokens.output)?)
    }
}

/// How a model is sold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Price {
    /// By tokens.
    Tokens(TokenPrice),
    /// By tokens, with a fixed sum reserved for each image.
    Image {
        /// The token prices.
        tokens: TokenPrice,
        /// The amount that must be available before an image is ordered.
        reservation: Money,
    },
    /// By second of video, for each resolution on offer, in the order of the rules.
    Video(Vec<(VideoResolution, Rate)>),
    /// Per character of the input text.
    Speech(Rate),
    /// Free of charge.
    Free,
}

impl Price {
    /// Returns the exact cost of a call at the price of the time `at` (unix seconds).
    ///
    /// # Errors
    /// [`MoneyError::WrongUnits`] if the model is not sold by such units,
    /// [`MoneyError::OutOfRange`] if the cost does not fit.
    pub(crate) fn cost(&self, units: BilledUnits, at: i64) -> Result<Money, MoneyError> {
        match (self, units) {
            (Price::Tokens(price), BilledUnits::Tokens(used)) => price.cost(used, at),
            (Price::Image { tokens, .. }, BilledUnits::Tokens(used))
                if !self.is_vendor_billed() =>
            {
                tokens.cost(used, at)
            }
            (Price::Image { .. }, BilledUnits::BilledImages { ticks, .. })
                if self.is_vendor_billed() =>
            {
                Money::from_ticks(ticks)
            }
            (Price::Image { reservation, .. }, BilledUnits::Images { images }) => {
                reservation.checked_mul(images)
            }
            (Price::Speech(rate), BilledUnits::Characters { characters }) => {
                rate.checked_mul(characters)
            }
            (Price::Video(rates), BilledUnits::Video { seconds, resolution, ticks }) => {
                let sold = rates.iter().find(|(r, _)| *r == resolution);
                let (_, rate) = sold.ok_or(MoneyError::WrongUnits)?;
                ticks.map_or_else(|| rate.checked_mul(seconds), Money::from_ticks)
            }
            _ => Err(MoneyError::WrongUnits),
        }
    }

    /// Whether the vendor's bill is the price. This is so for images whose token rates are all
    /// zero.
    #[must_use]
    pub(crate) fn is_vendor_billed(&self) -> bool {
        matches!(self, Price::Image { tokens, .. } if *tokens == TokenPrice::default())
    }
}

/// The amounts to hold for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    /// The amount that covers the call at its largest.
    pub wanted: Money,
    /// The amount that covers the input and the first output token. If less is available, the call
    /// is refused.
    pub least: Money,
}

impl Quote {
    /// Makes a quote whose two amounts are equal.
    #[must_use]
    pub fn exactly(amount: Money) -> Quote {
        Quote { wanted: amount, least: amount }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const JANUARY_2027: i64 = 1_798_761_600;

    fn rates(input: u32, output: u32) -> TokenRates {
        TokenRates { input: Rate(input), output: Rate(output), ..TokenRates::default() }
    }

    fn tokens(input: u64, output: u64) -> TokenUsage {
        TokenUsage { input, output, ..TokenUsage::default() }
    }

    /// lmb-5.5 of the price list: 5/30, above 272K input 10/45.
    fn tiered() -> TokenPrice {
        TokenPrice {
            base: rates(5_000, 30_000),
            input_tiers: vec![(272_000, rates(10_000, 45_000))],
            dated_rates: vec![],
        }
    }

    /// lmc-3.7-flash of the price list: 0.75/3.75, from 2027-01-01 1.5/7.5.
    fn dated() -> TokenPrice {
        TokenPrice {
            base: rates(750, 3_750),
            input_tiers: vec![],
            dated_rates: vec![(JANUARY_2027, rates(1_500, 7_500))],
        }
    }

    #[rstest]
    #[case::nothing(0, 0, 0)]
    #[case::plain(11, 2, 11 * 5_000 + 2 * 30_000)]
    #[case::at_the_threshold(272_000, 1, 272_000 * 5_000 + 30_000)]
    #[case::above_it_all_is_dearer(272_001, 1, 272_001 * 10_000 + 45_000)]
    fn tiers_reprice_the_whole_request(#[case] input: u64, #[case] output: u64, #[case] nano: i64) {
        assert_eq!(tiered().cost(tokens(input, output), 0).map(Money::nano), Ok(nano));
    }

    #[rstest]
    #[case::the_second_before(JANUARY_2027 - 1, 750 + 3_750)]
    #[case::the_second(JANUARY_2027, 1_500 + 7_500)]
    fn dates_switch_at_midnight_utc(#[case] at: i64, #[case] nano: i64) {
        assert_eq!(dated().cost(tokens(1, 1), at).map(Money::nano), Ok(nano));
    }

    #[test]
    fn cached_tokens_cost_input_unless_listed() {
        let cached =
            TokenUsage { input: 100, cache_read: 60, cache_write: 30, ..TokenUsage::default() };
        assert_eq!(tiered().cost(cached, 0).map(Money::nano), Ok(500_000));
        let listed = TokenRates {
            cache_read: Some(Rate(500)),
            cache_write: Some(Rate(6_250)),
            ..rates(5_000, 30_000)
        };
        let price = TokenPrice { base: listed, ..TokenPrice::default() };
        assert_eq!(price.cost(cached, 0).map(Money::nano), Ok(10 * 5_000 + 60 * 500 + 30 * 6_250));
        let absurd =
            TokenUsage { input: 10, cache_read: 60, cache_write: 30, ..TokenUsage::default() };
        assert_eq!(price.cost(absurd, 0).map(Money::nano), Ok(10 * 500));
    }

    /// The vendor charges twice the input rate for an hour, whatever a shorter cache lifetime
    /// costs.
    #[test]
    fn what_is_cached_for_an_hour_was_charged_as_any_other_write() {
        let hour = TokenUsage {
            input: 100,
            cache_read: 20,
            cache_write: 70,
            cache_write_1h: 40,
            ..TokenUsage::default()
        };
        let of = |cache_write: Option<u32>, cache_write_1h: Option<u32>| {
            let [cache_write, cache_write_1h] = [cache_write, cache_write_1h].map(|r| r.map(Rate));
            let base = TokenRates { cache_write, cache_write_1h, ..rates(5_000, 30_000) };
            let price = TokenPrice { base, ..TokenPrice::default() };
            (price.cost(hour, 0).map(Money::nano), price.has_cache_write_1h())
        };
        assert_eq!(of(None, None), (Ok(100 * 5_000), false));
        assert_eq!(of(Some(6_250), None), (Ok(30 * 5_000 + 70 * 6_250), false));
        let all = 30 * 5_000 + 30 * 6_250 + 40 * 10_000;
        assert_eq!(of(Some(6_250), Some(10_000)), (Ok(all), true));
        assert_eq!(of(None, Some(10_000)), (Ok(60 * 5_000 + 40 * 10_000), true));
        let more =
            TokenUsage { input: 9, cache_write: 7, cache_write_1h: 8, ..TokenUsage::default() };
        let base = TokenRates { cache_write_1h: Some(Rate(10_000)), ..rates(5_000, 30_000) };
        let price = TokenPrice { base, ..TokenPrice::default() };
        assert_eq!(price.cost(more, 0).map(Money::nano), Ok(2 * 5_000 + 7 * 10_000));
        assert_eq!(price.quote(9, 0, 0).map(|q| q.wanted.nano()), Ok(9 * 10_000));
        let tier = TokenPrice { input_tiers: vec![(5, rates(1, 1))], ..price };
        assert!(!tier.has_cache_write_1h(), "a tier without it is sold below what it costs");
    }

    #[test]
    fn a_quote_covers_what_the_call_can_cost() {
        let quote = tiered().quote(1_000, 50, 0).expect("fits");
        assert_eq!(quote.wanted.nano(), 1_000 * 5_000 + 50 * 30_000);
        assert_eq!(quote.least.nano(), 1_000 * 5_000 + 30_000);
        let long = tiered().quote(300_000, 50, 0).expect("fits");
        assert_eq!(long.wanted.nano(), 300_000 * 10_000 + 50 * 45_000);
        assert_eq!(long.least.nano(), 300_000 * 10_000 + 45_000);
        let at_the_threshold = tiered().quote(272_000, 50, 0).expect("fits");
        assert_eq!(at_the_threshold.wanted.nano(), 272_000 * 5_000 + 50 * 30_000);
    }

    #[test]
    fn a_quote_is_of_the_prices_of_its_moment_and_of_the_dearest_kind_of_input() {
        let of = |input: i64, output: i64, tokens: i64| {
            let [wanted, least] = [tokens, tokens.min(1)].map(|n| Money(input + n * output));
            Ok(Quote { wanted, least })
        };
        assert_eq!(dated().quote(2, 3, JANUARY_2027 - 1), of(2 * 750, 3_750, 3));
        assert_eq!(dated().quote(2, 3, JANUARY_2027), of(2 * 1_500, 7_500, 3));
        assert_eq!(dated().quote(2, 0, 0), of(2 * 750, 3_750, 0));
        for (cache_read, cache_write, dearest) in [
            (None, Some(6_250), 6_250),
            (Some(7_000), Some(6_250), 7_000),
            (Some(500), None, 5_000),
        ] {
            let [cache_read, cache_write] = [cache_read, cache_write].map(|nano| nano.map(Rate));
            let base = TokenRates { cache_read, cache_write, ..rates(5_000, 30_000) };
            let price = TokenPrice { base, ..TokenPrice::default() };
            assert_eq!(price.quote(2, 3, 0), of(2 * dearest, 30_000, 3));
        }
        assert_eq!(tiered().quote(u64::MAX, 1, 0), Err(MoneyError::OutOfRange));
        assert_eq!(tiered().quote(1, u64::MAX, 0), Err(MoneyError::OutOfRange));
        assert_eq!(Quote::exactly(Money(7)), Quote { wanted: Money(7), least: Money(7) });
    }

    #[test]
    fn an_absurd_number_of_tokens_is_an_error_and_no_small_sum() {
        let absurd = tiered().cost(tokens(u64::MAX, 0), 0);
        assert_eq!(absurd, Err(MoneyError::OutOfRange));
    }

    fn image(input: u32, output: u32) -> Price {
        let tokens = TokenPrice { base: rates(input, output), ..TokenPrice::default() };
        Price::Image { tokens, reservation: Money(280_000_000) }
    }

    /// lmd-imagine-video of the price list.
    fn videos() -> Price {
        let rates = [(VideoResolution::P480, 50_000_000), (VideoResolution::P720, 70_000_000)];
        Price::Video(rates.map(|(resolution, nano)| (resolution, Rate(nano))).to_vec())
    }

    fn video(seconds: u64, resolution: VideoResolution, ticks: Option<u64>) -> BilledUnits {
        BilledUnits::Video { seconds, resolution, ticks }
    }

    /// Each model costs its list price for its own units, and refuses all other units.
    #[rstest]
    #[case::image_by_tokens(
        image(5_000, 30_000),
        BilledUnits::Tokens(tokens(50, 4_160)),
        Ok(125_050_000)
    )]
    #[case::image_of_a_bill(
        image(0, 0),
        BilledUnits::BilledImages { images: 1, ticks: 220_000_001 },
        Ok(22_000_001)
    )]
    #[case::bill_where_tokens_count(
        image(5_000, 30_000),
        BilledUnits::BilledImages { images: 1, ticks: 5 },
        Err(MoneyError::WrongUnits)
    )]
    #[case::tokens_where_the_bill_counts(
        image(0, 0),
        BilledUnits::Tokens(tokens(50, 50)),
        Err(MoneyError::WrongUnits)
    )]
    #[case::nothing_is_known(image(0, 0), BilledUnits::Images { images: 1 }, Ok(280_000_000))]
    #[case::hello(
        Price::Speech(Rate(15_000)),
        BilledUnits::Characters { characters: 5 },
        Ok(75_000)
    )]
    #[case::speech_by_tokens(
        Price::Speech(Rate(15_000)),
        BilledUnits::Tokens(tokens(1, 1)),
        Err(MoneyError::WrongUnits)
    )]
    #[case::video(videos(), video(4, VideoResolution::P720, None), Ok(280_000_000))]
    #[case::longest_video(videos(), video(15, VideoResolution::P480, None), Ok(750_000_000))]
    #[case::video_of_a_bill(
        videos(),
        video(4, VideoResolution::P720, Some(2_900_000_001)),
        Ok(290_000_001)
    )]
    #[case::video_not_made(
        videos(),
        video(4, VideoResolution::P1080, Some(5)),
        Err(MoneyError::WrongUnits)
    )]
    #[case::video_by_tokens(
        videos(),
        BilledUnits::Tokens(tokens(1, 1)),
        Err(MoneyError::WrongUnits)
    )]
    #[case::free(Price::Free, BilledUnits::Tokens(tokens(1, 1)), Err(MoneyError::WrongUnits))]
    #[case::tokens(Price::Tokens(tiered()), BilledUnits::Tokens(tokens(11, 2)), Ok(115_000))]
    fn a_price_is_for_units_of_its_kind(
        #[case] price: Price,
        #[case] units: BilledUnits,
        #[case] nano: Result<i64, MoneyError>,
    ) {
        assert_eq!(price.cost(units, 0).map(Money::nano), nano);
    }
}
