//! The arithmetic of a charge, step by step, as the price list of its version has it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::catalogue::{AccountPrice, Catalogue};
use crate::ledger::{BookName, JournalLine};
use crate::money::factor::PriceFactor;
use crate::money::price::{Price, TokenRates};
use crate::money::{BilledUnits, Money, Rate, TokenUsage};

/// A number of units, what one costs, and what all of them cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) what: &'static str,
    pub(super) count: u64,
    /// What one unit costs, in nano-USD; `None` if the vendor's bill is the price.
    pub(super) each_nano: Option<i64>,
    pub(super) amount: Money,
}

/// How an amount came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arithmetic {
    pub(super) steps: Vec<Step>,
    /// The sum of the steps and the fees.
    pub(super) sum: Money,
    /// What the sum is multiplied by; `None` if nothing is.
    pub(super) factor: Option<PriceFactor>,
    /// The product, rounded up to the nano-USD.
    pub(super) amount: Money,
}

/// Returns how the amount of a line came about; `None` if the prices of its version are no longer
/// in force, so that nobody can tell.
pub(super) fn explain(
    line: &JournalLine<'_>,
    charged: Money,
    catalogue: &Catalogue,
) -> Option<Arithmetic> {
    if *line.price_version != *catalogue.version {
        return None;
    }
    let model = catalogue.find(&line.model)?;
    let book = match &line.book {
        Some(name) => Some(catalogue.books.find(&BookName::parse(name)?)?),
        None => None,
    };
    let price = AccountPrice::new(model, book.map(|book| &**book));
    // A price that changes at a date is that of the moment of the request, which may be before the
    // line by the length of the call: so both sides of the date are tried.
    let after_s = line.at / 1_000;
    let before_s = after_s.saturating_sub(CALL_S_MAX);
    [after_s, before_s].into_iter().find_map(|at| {
        let steps = steps_of(price.price(), line.usage, at)?;
        let fees = line.fees.iter().try_fold(Money::ZERO, |sum, fee| sum.checked_add(fee.amount));
        let sum = steps.iter().try_fold(fees.ok()?, |sum, step| sum.checked_add(step.amount));
        let (sum, factor) = (sum.ok()?, price.factor());
        let amount = price.apply_factor(sum).ok()?;
        (amount == charged).then_some(Arithmetic { steps, sum, factor, amount })
    })
}

/// A call takes at most this long, in seconds: one hour.
const CALL_S_MAX: i64 = 3_600;

fn steps_of(price: &Price, units: BilledUnits, at: i64) -> Option<Vec<Step>> {
    match (price, units) {
        (Price::Tokens(price) | Price::Image { tokens: price, .. }, BilledUnits::Tokens(used)) => {
            token_steps(price.rates_for(used.input, at), used)
        }
        (Price::Image { reservation, .. }, BilledUnits::Images { images }) => {
            let amount = reservation.checked_mul(images).ok()?;
            let each_nano = Some(reservation.nano());
            Some(vec![Step { what: "images", count: images, each_nano, amount }])
        }
        (Price::Image { .. }, BilledUnits::BilledImages { images, ticks }) => {
            let amount = Money::from_ticks(ticks).ok()?;
            Some(vec![Step { what: "images, as billed", count: images, each_nano: None, amount }])
        }
        (Price::Speech(rate), BilledUnits::Characters { characters }) => {
            Some(vec![step("characters", characters, *rate)?])
        }
        (Price::Video(_), BilledUnits::Video { seconds, ticks: Some(ticks), .. }) => {
            let amount = Money::from_ticks(ticks).ok()?;
            let what = "seconds of video, as billed";
            Some(vec![Step { what, count: seconds, each_nano: None, amount }])
        }
        (Price::Video(rates), BilledUnits::Video { seconds, resolution, ticks: None }) => {
            let (_, rate) = rates.iter().find(|(sold, _)| *sold == resolution)?;
            Some(vec![step("seconds of video", seconds, *rate)?])
        }
        (Price::Free, _) => Some(Vec::new()),
        _ => None,
    }
}

/// Splits tokens as the price does: cached ones are a part of the input.
fn token_steps(rates: TokenRates, used: TokenUsage) -> Option<Vec<Step>> {
    let read = used.cache_read.min(used.input);
    let write = used.cache_write.min(used.input - read);
    let hour = used.cache_write_1h.min(write);
    let written = rates.cache_write.unwrap_or(rates.input);
    let steps = [
        step("input tokens", used.input - read - write, rates.input)?,
        step("input tokens, read from a cache", read, rates.cache_read.unwrap_or(rates.input))?,
        step("input tokens, written to a cache", write - hour, written)?,
        step("input tokens, cached for an hour", hour, rates.cache_write_1h.unwrap_or(written))?,
        step("output tokens", used.output, rates.output)?,
    ];
    Some(steps.into_iter().filter(|step| step.count > 0).collect())
}

fn step(what: &'static str, count: u64, rate: Rate) -> Option<Step> {
    let amount = rate.checked_mul(count).ok()?;
    Some(Step { what, count, each_nano: Some(rate.nano().into()), amount })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::money::price::TokenPrice;

    fn rates() -> impl Strategy<Value = TokenRates> {
        let rate = || any::<u16>().prop_map(|nano| Rate::from_nano(nano.into()));
        let some = || prop::option::of(any::<u16>().prop_map(|nano| Rate::from_nano(nano.into())));
        (rate(), rate(), some(), some(), some()).prop_map(
            |(input, output, cache_read, cache_write, cache_write_1h)| TokenRates {
                input,
                output,
                cache_read,
                cache_write,
                cache_write_1h,
            },
        )
    }

    fn tokens() -> impl Strategy<Value = TokenUsage> {
        let count = || prop_oneof![Just(0_u64), 0..2_000_000_u64];
        (count(), count(), count(), count(), count()).prop_map(
            |(input, output, cache_read, cache_write, cache_write_1h)| TokenUsage {
                input,
                output,
                cache_read,
                cache_write,
                cache_write_1h,
            },
        )
    }

    fn sum_of(steps: &[Step]) -> Option<Money> {
        steps.iter().try_fold(Money::ZERO, |sum, step| sum.checked_add(step.amount)).ok()
    }

    proptest! {
        /// Also if a vendor reports more cached tokens than input.
        #[test]
        fn the_steps_of_tokens_add_up_to_their_cost(
            base in rates(), above in rates(), over in 0..2_000_000_u64, used in tokens(),
        ) {
            let input_tiers = vec![(over, above)];
            let price = TokenPrice { base, input_tiers, ..TokenPrice::default() };
            let expected = price.cost(used, 0).expect("a cost");
            let steps = steps_of(&Price::Tokens(price), BilledUnits::Tokens(used), 0);
            let steps = steps.expect("steps");
            prop_assert_eq!(sum_of(&steps), Some(expected));
            for step in steps {
                let each = step.each_nano.expect("a rate");
                let count = i64::try_from(step.count).expect("a count");
                prop_assert_eq!(step.amount.nano(), each * count);
            }
        }
    }

    #[test]
    fn all_other_units_have_the_steps_of_their_cost() {
        let reservation = Money::from_nano(40_000_000).expect("an amount");
        let image = |base| {
            let tokens = TokenPrice { base, ..TokenPrice::default() };
            Price::Image { tokens, reservation }
        };
        let second = Rate::from_nano(70_000_000);
        let resolution = crate::money::VideoResolution::ALL[0];
        let video = |ticks| BilledUnits::Video { seconds: 8, resolution, ticks };
        let sold_by_tokens = TokenRates { input: Rate::from_nano(5), ..TokenRates::default() };
        for (price, units) in [
            (Price::Speech(Rate::from_nano(15)), BilledUnits::Characters { characters: 700 }),
            (image(sold_by_tokens), BilledUnits::Images { images: 3 }),
            (image(TokenRates::default()), BilledUnits::BilledImages { images: 2, ticks: 12_345 }),
            (Price::Video(vec![(resolution, second)]), video(None)),
            (Price::Video(vec![(resolution, second)]), video(Some(98_765))),
        ] {
            let steps = steps_of(&price, units, 0).expect("steps");
            assert_eq!(sum_of(&steps), price.cost(units, 0).ok(), "{units:?}");
            assert_eq!(steps.len(), 1, "{units:?}");
        }
    }
}
