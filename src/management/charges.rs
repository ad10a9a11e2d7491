//! The journal of an account, as people read it.

use serde_json::{Map, Value, json};

use crate::ledger::{AccountName, EntryKind, JournalEntry, Unavailable};
use crate::store::OpenStore;

/// Entries of a journal that follow each other.
#[derive(Debug)]
pub(crate) struct EntryPage {
    /// The entries, oldest first.
    pub(crate) entries: Vec<JournalEntry>,
    /// Whether there may be more after them. A page of the archive ends with a file of it, so it
    /// may be short although there are.
    pub(crate) has_more: bool,
}

/// Reads entries of a journal after a number, at most `limit`, also those that have left the store.
///
/// # Errors
/// [`Unavailable`] if the store or the archive does not answer.
pub(crate) async fn read_entries(
    store: &OpenStore,
    account: &AccountName,
    after: u64,
    limit: u32,
) -> Result<EntryPage, Unavailable> {
    let entries = store.ledger.read_journal(account, after, limit).await?;
    let next = after.saturating_add(1);
    if entries.first().is_none_or(|first| first.seq == next) {
        let has_more = entries.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        return Ok(EntryPage { entries, has_more });
    }
    let posted = store.usage.read_posted(account, after, limit).await?;
    let entries = posted.into_iter().map(|posted| posted.entry).collect();
    Ok(EntryPage { entries, has_more: true })
}

/// Returns an entry of a journal as JSON: its line, and the exact amounts beside it. A charge whose
/// cost is known has its margin, too.
///
/// # Errors
/// The line is no JSON.
pub(crate) fn entry_json(entry: &JournalEntry) -> serde_json::Result<Value> {
    let mut shown: Map<String, Value> = serde_json::from_str(&entry.line)?;
    shown.insert("kind".to_owned(), entry.kind.as_str().into());
    shown.insert("amount_nano".to_owned(), json!(entry.amount));
    shown.insert("written_off_nano".to_owned(), json!(entry.written_off));
    if entry.kind == EntryKind::Charge {
        // Of a charge that is above no budget it is nothing.
        shown.entry("over_budget_nano").or_insert_with(|| 0.into());
    }
    if entry.kind == EntryKind::Charge
        && let Some(cost) = shown.get("cost_nano").and_then(Value::as_i64)
    {
        // Below zero if the vendor charges more than the account.
        shown.insert("margin_nano".to_owned(), entry.amount.nano().saturating_sub(cost).into());
    }
    if let Some(id) = shown.get("key_id").and_then(Value::as_u64) {
        // Many readers of JSON lose digits of a number as long as this one.
        shown.insert("key_id".to_owned(), id.to_string().into());
    }
    Ok(Value::Object(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;

    #[test]
    fn a_line_is_told_with_its_amounts_and_its_kind() {
        let entry = |kind, line: &str| JournalEntry {
            seq: 1,
            kind,
            amount: Money::from_nano(7).expect("money"),
            written_off: Money::ZERO,
            line: line.to_owned(),
        };
        let charge = entry(EntryKind::Charge, r#"{"request_id":"r","key_id":9223372036854775807}"#);
        let expected = json!({
            "request_id": "r", "key_id": "9223372036854775807", "kind": "charge",
            "amount_nano": 7, "written_off_nano": 0, "over_budget_nano": 0,
        });
        assert_eq!(entry_json(&charge).expect("JSON"), expected);
        let with_cost = entry(EntryKind::Charge, r#"{"request_id":"r","cost_nano":9}"#);
        let told = entry_json(&with_cost).expect("JSON");
        assert_eq!((&told["cost_nano"], &told["margin_nano"]), (&json!(9), &json!(-2)));
        let correction = entry(EntryKind::Correction, r#"{"corrects":"r"}"#);
        let expected = json!({
            "corrects": "r", "kind": "correction", "amount_nano": 7, "written_off_nano": 0,
        });
        assert_eq!(entry_json(&correction).expect("JSON"), expected);
        let expiry = entry(EntryKind::Expiry, r#"{"expired":"5/promotion","at":5}"#);
        let expected = json!({
            "expired": "5/promotion", "at": 5, "kind": "expiry", "amount_nano": 7,
            "written_off_nano": 0,
        });
        assert_eq!(entry_json(&expiry).expect("JSON"), expected);
    }
}
