//! The factor of a price book: an exact fraction of the list price.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Money, MoneyError, Rate};

/// The most decimals of a factor.
const DECIMALS_MAX: usize = 6;
/// The largest factor.
const FACTOR_MAX: u64 = 100;
/// The decimals of an amount in USD: one nano-USD is the smallest.
const NANO_DECIMALS: usize = 9;

/// Why a text is no factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a factor is a decimal number above 0 and up to {FACTOR_MAX}, with at most {DECIMALS_MAX} \
     decimals, such as \"0.85\""
)]
pub struct FactorError;

/// A positive decimal number, as the ratio of two integers. It is parsed and applied exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PriceFactor {
    numerator: u64,
    /// The number of decimals: the denominator is this power of ten.
    decimals: u8,
}

impl PriceFactor {
    /// The factor that changes nothing.
    pub const ONE: PriceFactor = PriceFactor { numerator: 1, decimals: 0 };

    /// Parses a decimal number such as `0.85`.
    ///
    /// # Errors
    /// [`FactorError`] if the text is no plain decimal number above 0 and up to 100, or has more
    /// than six decimals.
    pub fn parse(text: &str) -> Result<PriceFactor, FactorError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_short = (1..=3).contains(&whole.len()) && fraction.len() <= DECIMALS_MAX;
        if !is_short || !is_digits(whole) || !is_digits(fraction) || text.ends_with('.') {
            return Err(FactorError);
        }
        let fraction = fraction.trim_end_matches('0');
        let decimals = u8::try_from(fraction.len()).map_err(|_| FactorError)?;
        let numerator: u64 = format!("{whole}{fraction}").parse().map_err(|_| FactorError)?;
        let factor = PriceFactor { numerator, decimals };
        let most = FACTOR_MAX.saturating_mul(factor.denominator());
        if numerator == 0 || numerator > most { Err(FactorError) } else { Ok(factor) }
    }

    /// Returns the amount times the factor, rounded up to the nano-USD. It never falls when the
    /// amount rises, so that a hold which covers an amount covers it by this factor as well.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] above 9.2 billion USD.
    pub(crate) fn apply(self, amount: Money) -> Result<Money, MoneyError> {
        let scaled = self.scale(u128::from(amount.nano().unsigned_abs()))?;
        let nano = scaled.div_ceil(u128::from(self.denominator()));
        let nano = i64::try_from(nano).map_err(|_| MoneyError::OutOfRange)?;
        Money::from_nano(nano)
    }

    /// Whether a rate times the factor is less than another rate.
    pub(crate) fn is_below(self, rate: u128, other: u128) -> bool {
        let scaled = self.scale(rate).unwrap_or(u128::MAX);
        scaled < other.saturating_mul(u128::from(self.denominator()))
    }

    /// Returns a rate times the factor in USD per unit, as an exact decimal: `0.0000000042`.
    #[must_use]
    pub(crate) fn rate_usd_string(self, rate: Rate) -> String {
        self.usd_string(u64::from(rate.nano()), 0)
    }

    /// Returns an amount times the factor in USD, as an exact decimal with two decimals at least.
    #[must_use]
    pub(crate) fn amount_usd_string(self, amount: Money) -> String {
        self.usd_string(amount.nano().unsigned_abs(), 2)
    }

    fn usd_string(self, nano: u64, decimals_min: usize) -> String {
        let decimals = NANO_DECIMALS.saturating_add(usize::from(self.decimals));
        // Both have less than 64 bits, so that the product always fits.
        let scaled = u128::from(nano).saturating_mul(u128::from(self.numerator));
        write_decimal(scaled, decimals, decimals_min)
    }

    fn scale(self, nano: u128) -> Result<u128, MoneyError> {
        nano.checked_mul(u128::from(self.numerator)).ok_or(MoneyError::OutOfRange)
    }

    fn denominator(self) -> u64 {
        10_u64.saturating_pow(u32::from(self.decimals))
    }
}

/// Writes a whole number whose last digits are decimals. Zeros at the end are left out, but for the
/// first `decimals_min` decimals.
fn write_decimal(number: u128, decimals: usize, decimals_min: usize) -> String {
    let digits = format!("{number:0>width$}", width = decimals.saturating_add(1));
    let (whole, fraction) = digits.split_at(digits.len().saturating_sub(decimals));
    let kept = fraction.trim_end_matches('0').len().max(decimals_min).min(fraction.len());
    let (fraction, _) = fraction.split_at(kept);
    if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") }
}

impl fmt::Display for PriceFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write_decimal(u128::from(self.numerator), usize::from(self.decimals), 0))
    }
}

impl Serialize for PriceFactor {
    fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
        writer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PriceFactor {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<PriceFactor, D::Error> {
        let text = String::deserialize(reader)?;
        PriceFactor::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn factor(text: &str) -> PriceFactor {
        PriceFactor::parse(text).expect("a factor")
    }

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("money")
    }

    #[rstest]
    #[case::nothing("0.85", 0, Ok(0))]
    #[case::the_smallest_amount("0.85", 1, Ok(1))]
    #[case::exact("0.85", 100, Ok(85))]
    #[case::a_part_of_a_nano_is_a_whole_one("0.85", 101, Ok(86))]
    #[case::just_below_a_whole_one("0.999999", 1_000_001, Ok(1_000_000))]
    #[case::the_smallest_factor("0.000001", 1_000_001, Ok(2))]
    #[case::one("1", 7, Ok(7))]
    #[case::one_with_zeros("1.000000", i64::MAX, Ok(i64::MAX))]
    #[case::above_one("1.2", 6, Ok(8))]
    #[case::the_largest("100", 92_233_720_368_547_758, Ok(9_223_372_036_854_775_800))]
    #[case::all_money("0.5", i64::MAX, Ok(4_611_686_018_427_387_904))]
    #[case::too_much("100", 92_233_720_368_547_759, Err(MoneyError::OutOfRange))]
    #[case::a_little_too_much("1.000001", i64::MAX, Err(MoneyError::OutOfRange))]
    fn an_amount_is_multiplied_exactly_and_rounded_up(
        #[case] text: &str,
        #[case] amount: i64,
        #[case] expected: Result<i64, MoneyError>,
    ) {
        assert_eq!(factor(text).apply(nano(amount)).map(Money::nano), expected);
    }

    #[rstest]
    fn what_is_no_factor_is_refused(
        #[values(
            "",
            "0",
            "0.0",
            "000",
            "-1",
            "+1",
            ".5",
            "1.",
            "1e2",
            "0,85",
            " 1",
            "1 ",
            "85%",
            "100.000001",
            "101",
            "1000",
            "0.0000001",
            "0.8500000",
            "1.2.3",
            "½",
            "\u{ff11}",
            "0x1"
        )]
        text: &str,
    ) {
        assert_eq!(PriceFactor::parse(text), Err(FactorError), "{text:?}");
    }

    #[test]
    fn a_factor_is_written_in_its_shortest_form_and_read_back() {
        for (text, short) in
            [("0.85", "0.85"), ("0.850", "0.85"), ("1.0", "1"), ("100", "100"), ("007.5", "7.5")]
        {
            assert_eq!(factor(text).to_string(), short);
            assert_eq!(factor(text), factor(short));
            let json = serde_json::to_string(&factor(text)).expect("JSON");
            assert_eq!(json, format!("\"{short}\""));
            assert_eq!(serde_json::from_str::<PriceFactor>(&json).expect("a factor"), factor(text));
        }
        assert!(serde_json::from_str::<PriceFactor>("\"0\"").is_err());
        assert!(serde_json::from_str::<PriceFactor>("0.85").is_err());
    }

    #[rstest]
    #[case::less_than_a_nano("0.85", 5, "0.00000000425")]
    #[case::whole_nanos("0.8", 5_000, "0.000004")]
    #[case::nothing("0.8", 0, "0")]
    #[case::whole_dollars("100", 1_000_000_000, "100")]
    fn a_rate_is_shown_exactly(#[case] text: &str, #[case] rate: u32, #[case] expected: &str) {
        assert_eq!(factor(text).rate_usd_string(Rate::from_nano(rate)), expected);
        let amount = factor(text).amount_usd_string(nano(i64::from(rate)));
        let decimals = amount.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        assert!(decimals >= 2 && amount.starts_with(expected), "{amount}");
    }

    proptest! {
        #[test]
        fn what_is_charged_is_the_least_whole_amount_that_is_not_below_the_product(
            millionths in 1_u64..=100_000_000,
            amount in prop_oneof![0..1_000_i64, 0..=i64::MAX],
            more in 0..1_000_i64,
        ) {
            let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
            let product = i128::from(amount) * i128::from(millionths);
            let applied = factor(&text).apply(nano(amount));
            let ceiling = (product + 999_999) / 1_000_000;
            match applied {
                Ok(charged) => {
                    let charged = i128::from(charged.nano());
                    prop_assert_eq!(charged, ceiling);
                    prop_assert!(charged * 1_000_000 >= product);
                    prop_assert!(charged == 0 || (charged - 1) * 1_000_000 < product);
                    let later = factor(&text).apply(nano(amount.saturating_add(more)));
                    let is_less = |later: Money| i128::from(later.nano()) < charged;
                    prop_assert!(!later.is_ok_and(is_less));
                }
                Err(_) => prop_assert!(ceiling > i128::from(i64::MAX)),
            }
            let is_below = factor(&text).is_below(u128::from(amount.unsigned_abs()), 500);
            prop_assert_eq!(is_below, product < 500_000_000);
        }
    }
}
