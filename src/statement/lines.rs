//! The lines of the journal that belong to a statement: their sums by model, and the versions of
//! the prices that they were charged at.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::books::{ModelSums, add_sums};
use super::totals::StatementFault;
use crate::ledger::EntryKind;
use crate::usage::{PeriodKind, PostedEntry, RollupOwner, fold};

/// Which lines belong to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineRange {
    /// When the month began, in unix ms.
    pub(crate) start: i64,
    /// When it ends, in unix ms; [`i64::MAX`] while it runs.
    pub(crate) end: i64,
    /// If the month before is sealed, the number of lines that the journal had then. A line that
    /// came later belongs to this month, also if its time is an earlier one.
    pub(crate) sealed_lines: Option<u64>,
    /// The number of lines that the journal has now. Later ones are left out.
    pub(crate) lines: u64,
}

/// The member of a line that a statement reads beside those that are folded.
#[derive(Debug, Default, Deserialize)]
struct PricedLine<'a> {
    #[serde(borrow, default)]
    price_version: Cow<'a, str>,
}

/// What the lines of a statement say.
#[derive(Debug)]
pub(crate) struct StatementLines {
    range: LineRange,
    /// The sums by model.
    pub(crate) models: ModelSums,
    /// The sums by model of all lines that were read, also of those of other months.
    pub(crate) all_models: ModelSums,
    /// The versions of the prices of the charges, by model.
    pub(crate) price_versions: BTreeMap<String, BTreeSet<String>>,
}

impl LineRange {
    /// Whether a line belongs to the statement that counts on a day which began at `day`.
    pub(super) fn contains(&self, seq: u64, day: i64) -> bool {
        let is_told = day < self.start && self.sealed_lines.is_none_or(|lines| seq <= lines);
        seq <= self.lines && day < self.end && !is_told
    }
}

impl StatementLines {
    pub(crate) fn new(range: LineRange) -> StatementLines {
        let (models, all_models) = (ModelSums::new(), ModelSums::new());
        StatementLines { range, models, all_models, price_versions: BTreeMap::new() }
    }

    /// Takes lines; those that do not belong to the statement are left out.
    pub(crate) fn push(&mut self, entries: &[PostedEntry]) -> Result<(), StatementFault> {
        for posted in entries {
            // The fold decides on which day and for which model a line counts.
            let rows = fold(std::slice::from_ref(posted))?;
            let is_whole_day =
                |kind, owner| kind == PeriodKind::Day && owner == RollupOwner::Account;
            let day = rows.iter().find(|(key, _)| is_whole_day(key.period.kind, key.owner));
            let Some((key, sums)) = day else { continue };
            if posted.entry.seq <= self.range.lines {
                add_sums(&mut self.all_models, &key.model, sums)?;
            }
            if !self.range.contains(posted.entry.seq, key.period.start) {
                continue;
            }
            add_sums(&mut self.models, &key.model, sums)?;
            if posted.entry.kind == EntryKind::Charge {
                let line: PricedLine<'_> =
                    serde_json::from_str(&posted.entry.line).unwrap_or_default();
                let versions = self.price_versions.entry(key.model.clone()).or_default();
                if !line.price_version.is_empty() && !versions.contains(&*line.price_version) {
                    versions.insert(line.price_version.into_owned());
                }
            }
        }
        Ok(())
    }
}
