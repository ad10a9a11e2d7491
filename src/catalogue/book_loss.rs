//! Finds out whether a price is below the cost of a model, for any unit that is billed.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::book::AccountPrice;
use super::fee::FeeRule;
use super::model::Model;
use crate::money::factor::PriceFactor;
use crate::money::price::{Price, TokenPrice, TokenRates};
use crate::money::{Money, Rate, VideoResolution};

/// Returns the unit for which a price is below a cost; `None` if it is below for no unit. A unit
/// without a known cost is never below.
///
/// A charge is the sum of its units at their rates, rounded up. So if no rate is below, no charge
/// is.
#[must_use]
pub(super) fn find_loss(price: AccountPrice<'_>, cost: &Price) -> Option<String> {
    let factor = price.factor().unwrap_or(PriceFactor::ONE);
    let is_below =
        |rate: Rate, cost: Rate| factor.is_below(u128::from(rate.nano()), u128::from(cost.nano()));
    match (price.price(), cost) {
        (Price::Tokens(tokens), Price::Tokens(cost)) => find_token_loss(tokens, cost, is_below),
        (
            Price::Image { tokens, reservation },
            Price::Image { tokens: token_cost, reservation: image_cost },
        ) => {
            if factor.is_below(nano(*reservation), nano(*image_cost)) {
                return Some("an image".to_owned());
            }
            // The vendor's bill is both the price and the cost.
            let is_billed = price.price().is_vendor_billed() && cost.is_vendor_billed();
            if is_billed && factor.is_below(1, 1) {
                return Some("what the vendor bills".to_owned());
            }
            find_token_loss(tokens, token_cost, is_below)
        }
        (Price::Speech(rate), Price::Speech(cost)) => {
            is_below(*rate, *cost).then(|| "a character".to_owned())
        }
        (Price::Video(rates), Price::Video(costs)) => find_video_loss(rates, costs, is_below),
        _ => None,
    }
}

/// Returns the unit for which a fee for a tool of the model's vendor is below its cost; `None` if
/// none is. A fee without a known cost is never below. `price` is that of the model, whose factor
/// the fees have as well.
#[must_use]
pub(super) fn find_fee_loss(price: AccountPrice<'_>, model: &Model) -> Option<String> {
    let factor = price.factor().unwrap_or(PriceFactor::ONE);
    let is_lost =
        |fee: &&FeeRule| fee.cost.is_some_and(|cost| factor.is_below(nano(fee.price), nano(cost)));
    let lost = model.fees().find(is_lost);
    lost.map(|fee| format!("a use of {}", fee.name))
}

fn nano(amount: Money) -> u128 {
    u128::from(amount.nano().unsigned_abs())
}

fn find_video_loss(
    rates: &[(VideoResolution, Rate)],
    costs: &[(VideoResolution, Rate)],
    is_below: impl Fn(Rate, Rate) -> bool,
) -> Option<String> {
    let lost = rates.iter().find(|(sold, rate)| {
        costs.iter().any(|(resolution, cost)| resolution == sold && is_below(*rate, *cost))
    });
    lost.map(|(resolution, _)| format!("a second of {}", resolution.name()))
}

/// Compares the rates wherever either of the two price lists changes: above each tier, and from
/// each day on.
fn find_token_loss(
    price: &TokenPrice,
    cost: &TokenPrice,
    is_below: impl Fn(Rate, Rate) -> bool,
) -> Option<String> {
    let both = [price, cost];
    let tiers = both.iter().flat_map(|list| &list.input_tiers);
    let beyond = tiers.map(|(over, _)| over.saturating_add(1));
    let sizes: Vec<u64> = [0].into_iter().chain(beyond).collect();
    let dated = both.iter().flat_map(|list| &list.dated_rates).map(|(since, _)| *since);
    for at in [i64::MIN].into_iter().chain(dated) {
        for input in &sizes {
            let (sold, bought) = (price.rates_for(*input, at), cost.rates_for(*input, at));
            if let Some(unit) = find_rate_loss(&sold, &bought, &is_below) {
                return Some(unit.to_owned());
            }
        }
    }
    None
}

fn find_rate_loss(
    sold: &TokenRates,
    bought: &TokenRates,
    is_below: impl Fn(Rate, Rate) -> bool,
) -> Option<&'static str> {
    let written = |rates: &TokenRates| rates.cache_write.unwrap_or(rates.input);
    let hour = |rates: &TokenRates| rates.cache_write_1h.unwrap_or(written(rates));
    let read = |rates: &TokenRates| rates.cache_read.unwrap_or(rates.input);
    let units = [
        ("an input token", sold.input, bought.input),
        ("an output token", sold.output, bought.output),
        ("a token read from the cache", read(sold), read(bought)),
        ("a token written to the cache", written(sold), written(bought)),
        ("a token cached for an hour", hour(sold), hour(bought)),
    ];
    units.into_iter().find(|(_, rate, cost)| is_below(*rate, *cost)).map(|(unit, ..)| unit)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn rates(input: u32, output: u32) -> TokenRates {
        TokenRates {
            input: Rate::from_nano(input),
            output: Rate::from_nano(output),
            ..TokenRates::default()
        }
    }

    fn flat(input: u32, output: u32) -> TokenPrice {
        TokenPrice { base: rates(input, output), ..TokenPrice::default() }
    }

    fn cached(plain: u32, [read, write, hour]: [u32; 3]) -> TokenPrice {
        let base = TokenRates {
            cache_read: Some(Rate::from_nano(read)),
            cache_write: Some(Rate::from_nano(write)),
            cache_write_1h: Some(Rate::from_nano(hour)),
            ..rates(plain, plain)
        };
        TokenPrice { base, ..TokenPrice::default() }
    }

    fn above(tier: u64, then: TokenRates) -> TokenPrice {
        TokenPrice { input_tiers: vec![(tier, then)], ..flat(100, 100) }
    }

    fn from(day: i64, then: TokenRates) -> TokenPrice {
        TokenPrice { dated_rates: vec![(day, then)], ..flat(100, 100) }
    }

    fn image(input: u32, reservation: i64) -> Price {
        let reservation = Money::from_nano(reservation).expect("money");
        Price::Image { tokens: flat(input, input), reservation }
    }

    fn video(rates: &[(VideoResolution, u32)]) -> Price {
        Price::Video(rates.iter().map(|(r, nano)| (*r, Rate::from_nano(*nano))).collect())
    }

    const HD: VideoResolution = VideoResolution::P720;
    const SD: VideoResolution = VideoResolution::P480;

    /// What is below cost at a factor of 0.8.
    #[rstest]
    #[case::exactly_cost(Price::Tokens(flat(100, 50)), Price::Tokens(flat(80, 40)), None)]
    #[case::input(
        Price::Tokens(flat(100, 50)),
        Price::Tokens(flat(81, 40)),
        Some("an input token")
    )]
    #[case::output(
        Price::Tokens(flat(100, 50)),
        Price::Tokens(flat(80, 41)),
        Some("an output token")
    )]
    #[case::reading(
        Price::Tokens(cached(100, [10, 100, 100])),
        Price::Tokens(cached(80, [9, 80, 80])),
        Some("a token read from the cache")
    )]
    #[case::writing_that_costs_more_than_the_listed_input(
        Price::Tokens(flat(100, 100)),
        Price::Tokens(TokenPrice {
            base: TokenRates { cache_write: Some(Rate::from_nano(100)), ..rates(80, 80) },
            ..TokenPrice::default()
        }),
        Some("a token written to the cache")
    )]
    #[case::an_hour(
        Price::Tokens(cached(100, [100, 100, 100])),
        Price::Tokens(cached(80, [80, 80, 81])),
        Some("a token cached for an hour")
    )]
    #[case::a_tier_of_the_cost(
        Price::Tokens(flat(100, 100)),
        Price::Tokens(TokenPrice { base: rates(80, 80), ..above(9, rates(81, 80)) }),
        Some("an input token")
    )]
    #[case::a_tier_of_the_price(
        Price::Tokens(above(9, rates(100, 99))),
        Price::Tokens(flat(80, 80)),
        Some("an output token")
    )]
    #[case::tiers_that_begin_apart(
        Price::Tokens(above(20, rates(200, 200))),
        Price::Tokens(TokenPrice { base: rates(80, 80), ..above(9, rates(160, 160)) }),
        Some("an input token")
    )]
    #[case::tiers_that_begin_together(
        Price::Tokens(above(9, rates(200, 200))),
        Price::Tokens(TokenPrice { base: rates(80, 80), ..above(9, rates(160, 160)) }),
        None
    )]
    #[case::a_day_of_the_cost(
        Price::Tokens(flat(100, 100)),
        Price::Tokens(TokenPrice { base: rates(80, 80), ..from(5, rates(80, 81)) }),
        Some("an output token")
    )]
    #[case::characters(
        Price::Speech(Rate::from_nano(100)),
        Price::Speech(Rate::from_nano(81)),
        Some("a character")
    )]
    #[case::image_tokens(image(100, 100), image(81, 80), Some("an input token"))]
    #[case::images(image(100, 100), image(80, 81), Some("an image"))]
    #[case::an_image_that_the_vendor_bills(
        image(0, 100),
        image(0, 80),
        Some("what the vendor bills")
    )]
    #[case::seconds(video(&[(SD, 100), (HD, 100)]), video(&[(HD, 81)]), Some("a second of 720p"))]
    #[case::seconds_without_a_cost(video(&[(SD, 100), (HD, 101)]), video(&[(HD, 80)]), None)]
    #[case::free(Price::Free, Price::Free, None)]
    fn a_price_is_below_cost_for(
        #[case] price: Price,
        #[case] cost: Price,
        #[case] expected: Option<&str>,
    ) {
        let factor = PriceFactor::parse("0.8").expect("a factor");
        let scaled = AccountPrice::with_factor(&price, factor);
        assert_eq!(find_loss(scaled, &cost).as_deref(), expected);
        assert_eq!(find_loss(AccountPrice::list(&price), &price), None, "nothing is below itself");
    }
}
