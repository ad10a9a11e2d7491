//! How much may be lent of what is left.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::money::Money;

/// Nothing is lent of an amount below this many quotes of the call that asks.
pub const QUOTES_MIN: i64 = 64;
/// At most one part in so many of what is left is lent.
const PARTS: i64 = 4;
/// What may be lent of what is left: a quarter of what is above [`QUOTES_MIN`] quotes, shared with
/// the `others` that have an allotment; `None` below that many quotes.
#[must_use]
pub fn lendable(left: Money, quote: Money, others: u32) -> Option<Money> {
    let part = lendable_part(left.nano(), quote.nano(), others)?;
    Money::from_nano(part).ok()
}

/// The same of any units.
pub(crate) fn lendable_part(left: i64, quote: i64, others: u32) -> Option<i64> {
    let floor = quote.checked_mul(QUOTES_MIN)?;
    let above = left.checked_sub(floor).filter(|above| *above >= 0)?;
    Some(above / PARTS.saturating_mul(i64::from(others.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_lent_of_what_is_above_the_floor_and_nothing_below_it() {
        let nano = |n| Money::from_nano(n).expect("money");
        let lend = |left, quote, others| lendable(nano(left), nano(quote), others).map(Money::nano);
        assert_eq!(lend(6_399, 100, 0), None);
        assert_eq!((lend(6_400, 100, 0), lend(6_403, 100, 1)), (Some(0), Some(0)));
        assert_eq!((lend(6_800, 100, 0), lend(6_800, 100, 1)), (Some(100), Some(100)));
        assert_eq!((lend(6_800, 100, 2), lend(6_800, 100, 100)), (Some(50), Some(1)));
        assert_eq!((lend(6_800, 0, 0), lend(0, 0, 0)), (Some(1_700), Some(0)));
        assert_eq!(lend(i64::MAX, i64::MAX, 0), None);
    }
}
