//! The lines of a statement as rows of FOCUS 1.2, an open specification of costs and usage
//! (<https://focus.finops.org>): a row for each day, key, model, endpoint and version of the price.
//!
//! | what | `ChargeCategory` | `BilledCost` |
//! |---|---|---|
//! | charges | `Usage` | what was charged and could be paid |
//! | corrections | `Adjustment` | less than 0: what was given back of what had been paid |
//! | grants | `Credit` | less than 0 |
//! | granted credit that has expired | `Credit` | more than 0 |
//!
//! Payments and refunds are no costs, so they have no rows. The billed costs of a statement add up
//! to its opening with payments, less refunds and the closing.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::books::{ModelSums, add_sums};
use super::document::Statement;
use super::focus_record::FocusRecord;
use super::lines::LineRange;
use super::totals::{StatementFault, StatementTotals};
use super::view::StatementView;
use crate::ledger::KeyId;
use crate::money::Money;
use crate::usage::{PeriodKind, PostedEntry, RollupKey, RollupOwner, RollupSums, fold};

/// The members of a line that a row needs beside those that are folded.
#[derive(Debug, Default, Deserialize)]
struct ListedLine<'a> {
    #[serde(borrow, default)]
    price_version: Cow<'a, str>,
    #[serde(default)]
    list_nano: Option<Money>,
}

/// The sums of a row.
#[derive(Debug, Clone, Copy, Default)]
struct FocusSums {
    sums: RollupSums,
    /// The charges at list prices. A line tells them apart if a price book made a difference.
    list: Money,
}

/// The lines of a statement, summed up by rows.
#[derive(Debug)]
pub(crate) struct FocusLines {
    range: LineRange,
    /// By day, key, model, endpoint, and the version of the price.
    rows: BTreeMap<(RollupKey, String), FocusSums>,
}

impl FocusLines {
    pub(crate) fn new(range: LineRange) -> FocusLines {
        FocusLines { range, rows: BTreeMap::new() }
    }

    /// Takes lines; those that do not belong to the statement are left out.
    pub(crate) fn push(&mut self, entries: &[PostedEntry]) -> Result<(), StatementFault> {
        for posted in entries {
            let folded = fold(std::slice::from_ref(posted))?;
            let is_own = |key: &RollupKey| {
                key.period.kind == PeriodKind::Day && key.owner != RollupOwner::Account
            };
            let Some((key, sums)) = folded.into_iter().find(|(key, _)| is_own(key)) else {
                continue;
            };
            if !self.range.contains(posted.entry.seq, key.period.start) {
                continue;
            }
            let line: ListedLine<'_> = serde_json::from_str(&posted.entry.line).unwrap_or_default();
            let row = self.rows.entry((key, line.price_version.into_owned())).or_default();
            row.sums = row.sums.checked_add(&sums)?;
            let list = line.list_nano.unwrap_or(sums.charged);
            row.list = row.list.checked_add(list).map_err(|_| StatementFault::Overflow)?;
        }
        Ok(())
    }

    /// Compares the rows with the statement of these lines: its sums, and the calls and units of
    /// each model, since a call may cost nothing.
    pub(crate) fn compare(&self, statement: &Statement) -> Result<(), StatementFault> {
        let StatementTotals { payments, grants, refunds, .. } = statement.month_totals;
        let mut totals = StatementTotals { payments, grants, refunds, ..Default::default() };
        let mut models = ModelSums::new();
        for ((key, _), row) in &self.rows {
            totals.add_usage(&row.sums)?;
            add_sums(&mut models, &key.model, &row.sums)?;
        }
        models.retain(|_, sums| sums.calls > 0);
        let told = statement.models.iter().filter(|model| model.calls > 0);
        let told = told.map(|model| (&model.model, model.counts().map(|(_, count)| count)));
        let counts = |sums: &RollupSums| {
            let RollupSums { calls, prompt_tokens, completion_tokens, cached_tokens, .. } = *sums;
            let RollupSums { characters, images, seconds, .. } = *sums;
            [calls, prompt_tokens, completion_tokens, cached_tokens, characters, images, seconds]
        };
        if !told.eq(models.iter().map(|(model, sums)| (model, counts(sums)))) {
            let why = "the journal has other calls than the statement";
            return Err(StatementFault::Differs(why.to_owned()));
        }
        let sums = totals.values().into_iter().zip(statement.month_totals.values());
        for (name, (lines, told)) in StatementTotals::NAMES.into_iter().zip(sums) {
            if lines != told {
                let (lines, told) = (lines.nano(), told.nano());
                return Err(StatementFault::Differs(format!(
                    "{name}: the journal has {lines}, the statement {told} nano-USD"
                )));
            }
        }
        Ok(())
    }

    /// Hands out the rows of a statement, one after the other. `issuer` is the name of who sells.
    pub(crate) fn write<E>(
        &self,
        view: &StatementView,
        issuer: &str,
        mut take: impl FnMut(&FocusRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        let invoice = match &view.seal {
            Some(seal) => format!("statement-{}", seal.number),
            None => format!("{}-{}", view.statement.account, view.statement.month),
        };
        let month = FocusRecord {
            account: view.statement.account.clone(),
            issuer: issuer.to_owned(),
            invoice,
            month: (view.statement.from.clone(), view.statement.to.clone()),
            ..FocusRecord::default()
        };
        for ((key, price_version), row) in &self.rows {
            records_of(&month, key, price_version, row).iter().try_for_each(&mut take)?;
        }
        let grants = view.statement.month_totals.grants.nano();
        if grants > 0 {
            let days = month.month.clone();
            let record = FocusRecord { days, description: "granted credit".to_owned(), ..month };
            take(&record.credit(grants.saturating_neg()))?;
        }
        Ok(())
    }
}

fn records_of(
    month: &FocusRecord,
    key: &RollupKey,
    price_version: &str,
    row: &FocusSums,
) -> Vec<FocusRecord> {
    let RollupKey { period, owner, model, endpoint } = key;
    let key_id = match owner {
        RollupOwner::Key(KeyId(id)) => Some(*id),
        RollupOwner::NoKey | RollupOwner::Account => None,
    };
    let day = FocusRecord { key_id, ..month.clone() }.of_day(period.start);
    let FocusSums { sums, list } = row;
    let mut records = Vec::new();
    if sums.calls > 0 {
        let paid = sums.charged.nano().saturating_sub(sums.written_off.nano());
        let record = FocusRecord {
            description: format!("{endpoint} calls of {model}"),
            sku: Some((model.clone(), price_version.to_owned())),
            service: endpoint.clone(),
            ..day.clone()
        };
        records.push(record.usage(sums, [paid, sums.charged.nano(), list.nano()]));
    }
    if sums.corrected > Money::ZERO {
        let back = sums.corrected.nano().saturating_neg();
        let paid = back.saturating_add(sums.corrected_written_off.nano());
        let record =
            FocusRecord { description: "corrections of charges".to_owned(), ..day.clone() };
        records.push(record.adjustment([paid, back, back]));
    }
    if sums.expired > Money::ZERO {
        let description = "granted credit that has expired".to_owned();
        records.push(FocusRecord { description, ..day }.credit(sums.expired.nano()));
    }
    records
}
