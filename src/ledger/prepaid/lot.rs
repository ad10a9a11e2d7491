//! Credit in lots: where it came from, and when it expires.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use crate::money::{Money, MoneyError};

/// An account has at most this many open lots, so that every operation looks at few records.
pub const OPEN_LOTS_MAX: usize = 16;
/// The expiry of credit that never expires.
pub const NEVER_EXPIRES: i64 = i64::MAX;

/// Where credit came from. Of lots that expire together, they are drawn in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CreditSource {
    /// A gift of the operator.
    Promotion,
    /// A voucher that was redeemed.
    Voucher,
    /// A payment. Only this credit is paid back.
    Paid,
}

/// The name of a lot. Credit with the same expiry and source is one lot; the order of names is the
/// order in which lots are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LotId {
    /// When the credit expires, in unix ms; [`NEVER_EXPIRES`] if it does not.
    pub expires_at: i64,
    /// Where it came from.
    pub source: CreditSource,
}

impl LotId {
    /// The lot of payments.
    pub const PAID: LotId = LotId { expires_at: NEVER_EXPIRES, source: CreditSource::Paid };

    /// Whether the lot has expired at `now` (unix ms).
    #[must_use]
    pub fn is_expired(self, now: i64) -> bool {
        self.expires_at < NEVER_EXPIRES && self.expires_at <= now
    }
}

/// What is left of a lot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreditLot {
    /// The part that is free to hold.
    pub available: Money,
    /// The part that holds and allotments have drawn and not yet ended.
    pub held: Money,
}

impl CreditLot {
    /// Whether nothing is left of the lot.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == CreditLot::default()
    }
}

/// An open lot of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLot {
    /// Its name.
    pub id: LotId,
    /// What is left of it.
    pub lot: CreditLot,
}

/// Amounts of lots: what a hold has drawn, or what a charge was paid with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LotAmounts(BTreeMap<LotId, Money>);

impl LotAmounts {
    /// Returns the lots and their amounts, in the order in which lots are drawn.
    #[must_use = "it only reads"]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (LotId, Money)> + '_ {
        self.0.iter().map(|(lot, amount)| (*lot, *amount))
    }

    /// Returns the sum.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] on overflow.
    pub fn total(&self) -> Result<Money, MoneyError> {
        self.0.values().try_fold(Money::ZERO, |sum, amount| sum.checked_add(*amount))
    }

    /// Adds an amount of a lot.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] on overflow.
    pub fn add(&mut self, lot: LotId, amount: Money) -> Result<(), MoneyError> {
        if amount > Money::ZERO {
            let sum = self.0.entry(lot).or_default();
            *sum = sum.checked_add(amount)?;
        }
        Ok(())
    }

    /// Adds all amounts of another one.
    pub(crate) fn merge(&mut self, other: &LotAmounts) -> Result<(), MoneyError> {
        other.iter().try_for_each(|(lot, amount)| self.add(lot, amount))
    }

    /// Takes the amounts of another one out, as far as they are there.
    pub(crate) fn subtract(&mut self, other: &LotAmounts) {
        for (lot, amount) in other.iter() {
            let there = self.0.entry(lot).or_default();
            *there = there.saturating_sub(amount);
        }
        self.0.retain(|_, amount| *amount > Money::ZERO);
    }

    /// Takes up to `amount` out, from the lots that are drawn first.
    pub(crate) fn split_first(&mut self, amount: Money) -> Result<LotAmounts, MoneyError> {
        let order: Vec<LotId> = self.0.keys().copied().collect();
        self.split_in_order(amount, &order)
    }

    /// Takes up to `amount` out, from the lots that are drawn last. What stays is what would be
    /// there if less had been drawn.
    pub(crate) fn split_last(&mut self, amount: Money) -> Result<LotAmounts, MoneyError> {
        let order: Vec<LotId> = self.0.keys().rev().copied().collect();
        self.split_in_order(amount, &order)
    }

    /// Takes all amounts of lots out that have expired at `now` (unix ms).
    pub(crate) fn split_expired(&mut self, now: i64) -> Result<LotAmounts, MoneyError> {
        let mut expired = LotAmounts::default();
        for (lot, amount) in self.0.iter().filter(|(lot, _)| lot.is_expired(now)) {
            expired.add(*lot, *amount)?;
        }
        self.subtract(&expired);
        Ok(expired)
    }

    fn split_in_order(&mut self, amount: Money, order: &[LotId]) -> Result<LotAmounts, MoneyError> {
        let (mut taken, mut missing) = (LotAmounts::default(), amount);
        for lot in order {
            let Some(there) = self.0.get_mut(lot) else { continue };
            let part = missing.min(*there);
            *there = there.checked_sub(part)?;
            missing = missing.checked_sub(part)?;
            taken.add(*lot, part)?;
        }
        self.0.retain(|_, amount| *amount > Money::ZERO);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(n: i64) -> Money {
        Money::from_nano(n).expect("money")
    }

    fn lot(expires_at: i64, source: CreditSource) -> LotId {
        LotId { expires_at, source }
    }

    #[test]
    fn the_earliest_expiry_is_drawn_first_and_gifts_before_payments() {
        let mut lots = [
            LotId::PAID,
            lot(9, CreditSource::Paid),
            lot(9, CreditSource::Promotion),
            lot(3, CreditSource::Voucher),
            lot(NEVER_EXPIRES, CreditSource::Promotion),
        ];
        lots.sort_unstable();
        assert_eq!(lots.map(|l| l.expires_at), [3, 9, 9, NEVER_EXPIRES, NEVER_EXPIRES]);
        assert_eq!((lots[1].source, lots[4]), (CreditSource::Promotion, LotId::PAID));
    }

    #[test]
    fn a_part_comes_from_one_end_and_the_rest_stays() {
        let early = lot(3, CreditSource::Promotion);
        let mut amounts = LotAmounts::default();
        amounts.add(LotId::PAID, nano(10)).expect("a sum");
        amounts.add(early, nano(5)).expect("a sum");
        amounts.add(early, nano(0)).expect("a sum");
        let mut other = amounts.clone();
        let first = amounts.split_first(nano(7)).expect("a part");
        assert_eq!(first.iter().collect::<Vec<_>>(), [(early, nano(5)), (LotId::PAID, nano(2))]);
        assert_eq!(amounts.iter().collect::<Vec<_>>(), [(LotId::PAID, nano(8))]);
        let last = other.split_last(nano(7)).expect("a part");
        assert_eq!(last.iter().collect::<Vec<_>>(), [(LotId::PAID, nano(7))]);
        assert_eq!(other.total(), Ok(nano(8)));
        let all = other.split_last(nano(100)).expect("a part");
        assert_eq!((all.total(), other.total()), (Ok(nano(8)), Ok(nano(0))));
    }
}
