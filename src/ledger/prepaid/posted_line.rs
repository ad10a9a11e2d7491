//! Reads a line of the journal back, for an operation on a charge that was posted before.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use serde::Deserialize;

use super::lot::LotAmounts;
use super::records::{JournalRecord, RecordKind};
use super::window::{KeyId, parse_windows};
use crate::ledger::journal::{EntryKind, JournalEntry};
use crate::money::Money;

/// What a line says that the machine needs: the members of a charge and of a correction.
#[derive(Deserialize)]
struct PostedLine<'a> {
    #[serde(borrow, default)]
    request_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    corrects: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    correction: Option<Cow<'a, str>>,
    #[serde(default)]
    key_id: Option<KeyId>,
    #[serde(borrow, default)]
    windows: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    lots: Option<Cow<'a, str>>,
}

/// Returns the record of a journal entry; `None` if its line does not name a request, or cannot be
/// read. What no lot that the line names has paid came from payments. A line that names no windows
/// counts in none: it is of an older version, or of a call without budgets.
#[must_use]
pub fn read_posted(entry: &JournalEntry) -> Option<JournalRecord> {
    let line: PostedLine<'_> = serde_json::from_str(&entry.line).ok()?;
    let (kind, request) = match entry.kind {
        EntryKind::Charge => (RecordKind::Charge, line.request_id?),
        EntryKind::Correction => {
            (RecordKind::Correction(line.correction?.into_owned()), line.corrects?)
        }
        EntryKind::Expiry => return None,
    };
    let windows = line.windows.as_deref().map(parse_windows).transpose().ok()?.unwrap_or_default();
    let paid = entry.amount.saturating_sub(entry.written_off);
    let lots = LotAmounts::parse(line.lots.as_deref().unwrap_or_default(), paid).ok()?;
    Some(JournalRecord {
        seq: entry.seq,
        posted_at: 0,
        kind,
        request: request.into_owned(),
        key: line.key_id,
        amount: entry.amount,
        written_off: entry.written_off,
        over_budget: Money::ZERO,
        lots,
        windows,
        line: entry.line.clone(),
    })
}
