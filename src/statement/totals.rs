//! The sums of a statement beside its models, and what they close with.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::Deserialize;

use crate::ledger::{TransferEntry, TransferType};
use crate::money::Money;
use crate::usage::{RollupSums, UsageOverflow};

/// The sums of a time. None is negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct StatementTotals {
    #[serde(rename = "payments_nano")]
    pub(crate) payments: Money,
    #[serde(rename = "grants_nano")]
    pub(crate) grants: Money,
    #[serde(rename = "refunds_nano")]
    pub(crate) refunds: Money,
    #[serde(rename = "expiries_nano")]
    pub(crate) expiries: Money,
    #[serde(rename = "charges_nano")]
    pub(crate) charges: Money,
    /// What was given back of charges, also of those of earlier months.
    #[serde(rename = "corrections_nano")]
    pub(crate) corrections: Money,
    /// The part of the charges that the account could not pay.
    #[serde(rename = "written_off_nano")]
    pub(crate) written_off: Money,
    /// The part of the corrections that the account had not paid.
    #[serde(rename = "corrections_not_paid_nano")]
    pub(crate) corrections_not_paid: Money,
}

/// Why there is no statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StatementFault {
    /// A sum does not fit.
    #[error("the sums of the statement are out of range")]
    Overflow,
    /// The books do not agree.
    #[error("{0}")]
    Differs(String),
}

impl From<UsageOverflow> for StatementFault {
    fn from(_: UsageOverflow) -> StatementFault {
        StatementFault::Overflow
    }
}

impl StatementTotals {
    /// The names of the sums, in the order of [`StatementTotals::values`].
    pub(crate) const NAMES: [&'static str; 8] = [
        "payments",
        "grants",
        "refunds",
        "expiries",
        "charges",
        "corrections",
        "written_off",
        "corrections_not_paid",
    ];

    /// Returns the sums.
    pub(crate) fn values(&self) -> [Money; 8] {
        [
            self.payments,
            self.grants,
            self.refunds,
            self.expiries,
            self.charges,
            self.corrections,
            self.written_off,
            self.corrections_not_paid,
        ]
    }

    fn of_values(values: [Money; 8]) -> StatementTotals {
        let [payments, grants, refunds, expiries, charges, corrections, written_off, not_paid] =
            values;
        StatementTotals {
            payments,
            grants,
            refunds,
            expiries,
            charges,
            corrections,
            written_off,
            corrections_not_paid: not_paid,
        }
    }

    /// Adds what a transfer moved. Corrections are lines of the journal, so they are left out here,
    /// and a refund that still waits has moved nothing.
    pub(crate) fn add_transfer(&mut self, transfer: &TransferEntry) -> Result<(), StatementFault> {
        let sum = match transfer.kind {
            TransferType::Payment => &mut self.payments,
            TransferType::Grant => &mut self.grants,
            TransferType::Refund => &mut self.refunds,
            TransferType::Correction => return Ok(()),
        };
        *sum = add(*sum, transfer.moved.unwrap_or_default())?;
        Ok(())
    }

    /// Adds the sums of a row of a roll-up.
    pub(crate) fn add_usage(&mut self, sums: &RollupSums) -> Result<(), StatementFault> {
        self.expiries = add(self.expiries, sums.expired)?;
        self.charges = add(self.charges, sums.charged)?;
        self.corrections = add(self.corrections, sums.corrected)?;
        self.written_off = add(self.written_off, sums.written_off)?;
        self.corrections_not_paid = add(self.corrections_not_paid, sums.corrected_written_off)?;
        Ok(())
    }

    /// Returns what is in these sums and not in `before`, which they contain.
    pub(crate) fn since(
        &self,
        before: &StatementTotals,
    ) -> Result<StatementTotals, StatementFault> {
        let mut values = self.values();
        let known = StatementTotals::NAMES.iter().zip(before.values());
        for (value, (name, known)) in values.iter_mut().zip(known) {
            *value = value.checked_sub(known).map_err(|_| {
                StatementFault::Differs(format!(
                    "{name}: the statements of earlier months tell {} nano-USD, and the books have \
                     {}",
                    known.nano(),
                    value.nano()
                ))
            })?;
        }
        Ok(StatementTotals::of_values(values))
    }

    /// Returns what an account closes with that opened with `opening` (both in nano-USD).
    pub(crate) fn closing(&self, opening: i64) -> Result<i64, StatementFault> {
        let [more, less] = [
            [self.payments, self.grants, self.corrections, self.written_off],
            [self.refunds, self.expiries, self.charges, self.corrections_not_paid],
        ]
        .map(|parts| parts.iter().map(|part| i128::from(part.nano())).sum::<i128>());
        i64::try_from(i128::from(opening) + more - less).map_err(|_| StatementFault::Overflow)
    }
}

fn add(sum: Money, more: Money) -> Result<Money, StatementFault> {
    sum.checked_add(more).map_err(|_| StatementFault::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::account::Balances;

    fn of(values: [i64; 8]) -> StatementTotals {
        let money = |nano| Money::from_nano(nano).expect("money");
        StatementTotals::of_values(values.map(money))
    }

    /// `A + H` is `C + W - P`.
    #[test]
    fn an_account_closes_with_what_is_available_and_held() {
        let money = |nano| Money::from_nano(nano).expect("money");
        for (values, closing) in [
            ([0; 8], 0),
            ([100, 0, 0, 0, 0, 0, 0, 0], 100),
            ([100, 50, 20, 10, 0, 0, 0, 0], 120),
            ([100, 0, 0, 0, 60, 0, 0, 0], 40),
            ([100, 0, 0, 0, 130, 0, 30, 0], 0),
            ([100, 0, 0, 0, 130, 50, 30, 30], 20),
            ([100, 7, 5, 3, 130, 50, 40, 30], 29),
        ] {
            let totals = of(values);
            assert_eq!(totals.closing(0), Ok(closing), "{values:?}");
            let [payments, grants, refunds, expired, charged, corrected, off, not_paid] = values;
            let balances = Balances {
                credit: money(payments + grants - refunds - expired),
                available: money(closing),
                held: Money::ZERO,
                posted: money(charged - corrected),
                written_off: money(off - not_paid),
            };
            assert!(balances.is_balanced(), "{values:?}");
            assert_eq!(totals.closing(7), Ok(closing + 7));
        }
    }

    #[test]
    fn sums_that_do_not_fit_or_shrink_are_refused() {
        let most = of([i64::MAX, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(most.closing(1), Err(StatementFault::Overflow));
        let less = of([1, 0, 0, 0, 0, 0, 0, 0]);
        let why = less.since(&most).expect_err("refused").to_string();
        assert!(why.starts_with("payments: ") && why.contains("have 1"), "{why}");
        assert_eq!(most.since(&most), Ok(StatementTotals::default()));
    }
}
