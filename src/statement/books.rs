//! What the store knows of an account at one moment, of which statements are made.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::month::StatementMonth;
use super::totals::{StatementFault, StatementTotals};
use crate::ledger::TransferEntry;
use crate::money::Money;
use crate::usage::{RollupKey, RollupSums};

/// What has an earlier time than 2020-01-01 (unix ms) counts as having none: this program did not
/// exist then. Lines that cannot be read have the time 0.
pub(crate) const DATED_FROM: i64 = 1_577_836_800_000;

/// Sums of usage by model. A line without a model, such as a correction, has an empty name.
pub(crate) type ModelSums = BTreeMap<String, RollupSums>;

/// The books of an account at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatementBooks {
    /// The number of lines of the journal.
    pub(crate) lines: u64,
    /// The sums by day of all these lines, of all keys together.
    pub(crate) days: Vec<(RollupKey, RollupSums)>,
    /// Payments, grants, refunds and corrections.
    pub(crate) transfers: Vec<TransferEntry>,
}

/// The balances with which books are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BooksCredit {
    /// C.
    pub(crate) credit: Money,
    /// P.
    pub(crate) posted: Money,
    /// W.
    pub(crate) written_off: Money,
}

impl StatementBooks {
    /// Returns the sums of all that has a time before `end` (unix ms), or has no time.
    pub(crate) fn totals_before(&self, end: i64) -> Result<StatementTotals, StatementFault> {
        let mut totals = StatementTotals::default();
        for transfer in self.transfers.iter().filter(|one| one.at.is_none_or(|at| at < end)) {
            totals.add_transfer(transfer)?;
        }
        for (_, sums) in self.days.iter().filter(|(key, _)| key.period.start < end) {
            totals.add_usage(sums)?;
        }
        Ok(totals)
    }

    /// Returns what statements tell of the models, of the days that began before `end` (unix ms).
    pub(crate) fn models_before(&self, end: i64) -> Result<ModelSums, StatementFault> {
        let mut models = ModelSums::new();
        for (key, sums) in self.days.iter().filter(|(key, _)| key.period.start < end) {
            add_sums(&mut models, &key.model, &told_sums(sums))?;
        }
        Ok(models)
    }

    /// Whether an older version has stored payments without their times.
    pub(crate) fn has_undated_transfers(&self) -> bool {
        self.transfers.iter().any(|transfer| transfer.at.is_none())
    }

    /// Returns the month of the first transfer whose time is known.
    pub(crate) fn first_transfer_month(&self) -> Option<StatementMonth> {
        let transfers = self.transfers.iter().filter_map(|transfer| transfer.at);
        transfers.filter(|at| *at >= DATED_FROM).min().map(StatementMonth::containing)
    }

    /// Returns the month of the first thing whose time is known.
    pub(crate) fn first_month(&self) -> Option<StatementMonth> {
        let transfers = self.transfers.iter().filter_map(|transfer| transfer.at);
        let days = self.days.iter().map(|(key, _)| key.period.start);
        let first = transfers.chain(days).filter(|at| *at >= DATED_FROM).min();
        first.map(StatementMonth::containing)
    }

    /// Compares all of the books with the balances.
    pub(crate) fn compare(&self, balances: BooksCredit) -> Result<(), StatementFault> {
        let all = self.totals_before(i64::MAX)?;
        let sum = |parts: &[Money]| parts.iter().map(|part| i128::from(part.nano())).sum::<i128>();
        let BooksCredit { credit, posted, written_off } = balances;
        for (name, balance, more, less) in [
            ("posted", posted, sum(&[all.charges]), sum(&[all.corrections])),
            ("written off", written_off, sum(&[all.written_off]), sum(&[all.corrections_not_paid])),
            ("credit", credit, sum(&[all.payments, all.grants]), sum(&[all.refunds, all.expiries])),
        ] {
            if i128::from(balance.nano()) != more - less {
                return Err(StatementFault::Differs(format!(
                    "{name}: the balance says {} and the books {} nano-USD",
                    balance.nano(),
                    more - less
                )));
            }
        }
        Ok(())
    }
}

/// Returns the part of sums that a statement tells of each model. Of the rest it tells the sums of
/// all models.
pub(crate) fn told_sums(sums: &RollupSums) -> RollupSums {
    RollupSums {
        calls: sums.calls,
        prompt_tokens: sums.prompt_tokens,
        completion_tokens: sums.completion_tokens,
        cached_tokens: sums.cached_tokens,
        characters: sums.characters,
        images: sums.images,
        seconds: sums.seconds,
        charged: sums.charged,
        ..RollupSums::default()
    }
}

/// Adds sums of a model.
pub(crate) fn add_sums(
    models: &mut ModelSums,
    model: &str,
    sums: &RollupSums,
) -> Result<(), StatementFault> {
    let sum = models.entry(model.to_owned()).or_default();
    *sum = sum.checked_add(sums)?;
    Ok(())
}

/// Returns the sums that are in `all` and not in `told`; models of which nothing is left are left
/// out.
pub(crate) fn models_since(all: &ModelSums, told: &ModelSums) -> Result<ModelSums, StatementFault> {
    let mut rest = ModelSums::new();
    for model in all.keys().chain(told.keys()) {
        let (all, told) = (all.get(model), told.get(model));
        let mut values = all.copied().unwrap_or_default().to_values()?;
        for (value, told) in values.iter_mut().zip(told.copied().unwrap_or_default().to_values()?) {
            *value = value.saturating_sub(told);
        }
        let sums = RollupSums::of_values(values).map_err(|_| {
            StatementFault::Differs(format!(
                "model '{}': the statements of earlier months tell more than the books have",
                model.escape_debug()
            ))
        })?;
        if sums != RollupSums::default() {
            rest.insert(model.clone(), sums);
        }
    }
    Ok(rest)
}
