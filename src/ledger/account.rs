//! The balances of an account.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::money::Money;

/// The balances of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Balances {
    /// C: the sum of all payments, without what was paid back.
    pub credit: Money,
    /// A: the part that is free to hold.
    pub available: Money,
    /// H: the part that is set aside for running calls.
    pub held: Money,
    /// P: the sum of all charges, without what was given back of them.
    pub posted: Money,
    /// W: the part of the charges that the account could not pay: the operator's loss.
    pub written_off: Money,
}

impl Balances {
    /// Whether `C + W = A + H + P`.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let sum = |parts: &[Money]| parts.iter().map(|m| i128::from(m.nano())).sum::<i128>();
        sum(&[self.credit, self.written_off]) == sum(&[self.available, self.held, self.posted])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("not negative")
    }

    #[test]
    fn balances_add_up_only_if_nothing_is_missing_and_nothing_too_much() {
        let [credit, available, held, posted, written_off] = [100, 20, 30, 60, 10].map(nano);
        let sound = Balances { credit, available, held, posted, written_off };
        assert!(sound.is_balanced() && Balances::default().is_balanced());
        for wrong in [99, 101, 0, i64::MAX].map(nano) {
            assert!(!Balances { credit: wrong, ..sound }.is_balanced());
            assert!(!Balances { available: wrong, ..sound }.is_balanced());
            assert!(!Balances { held: wrong, ..sound }.is_balanced());
            assert!(!Balances { posted: wrong, ..sound }.is_balanced());
            assert!(!Balances { written_off: wrong, ..sound }.is_balanced());
        }
        // Sums that do not fit into one amount are still computed correctly.
        let most = nano(i64::MAX);
        let large = Balances { credit: most, available: most, posted: most, ..Balances::default() };
        assert!(!large.is_balanced());
        assert!(Balances { written_off: most, ..large }.is_balanced());
    }
}
