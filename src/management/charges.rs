//! The journal of an account, as people read it.

use serde_json::{Map, Value, json};

use crate::ledger::journal_search::{JournalReader, count_before};
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

/// The number of entries that a search reads at a time.
const SEARCH_PAGE_LINES: u32 = 1_000;
/// A search reads at most this many pages. Then it tells where it can go on.
const SEARCH_PAGES_MAX: u32 = 20;

/// What entries are looked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EntrySearch<'a> {
    /// The beginning of a key.
    pub(crate) key: Option<&'a str>,
    /// The id of a vendor's reply, or that by which the vendor names the request.
    pub(crate) reply: Option<&'a str>,
    /// Entries with smaller numbers than this; all if it is `None`.
    pub(crate) before: Option<u64>,
}

/// Entries that were found.
#[derive(Debug)]
pub(crate) struct FoundEntries {
    /// Newest first.
    pub(crate) entries: Vec<JournalEntry>,
    /// The `before` with which the search goes on; `None` if there is nothing more.
    pub(crate) next: Option<u64>,
}

/// Finds at most `limit` entries, the newest first, also those that have left the store. One search
/// reads a bounded number of them.
///
/// # Errors
/// [`Unavailable`] if the store or the archive does not answer.
pub(crate) async fn find_newest(
    store: &OpenStore,
    account: &AccountName,
    search: EntrySearch<'_>,
    limit: usize,
) -> Result<FoundEntries, Unavailable> {
    let last = store.ledger.journal_length(account).await?;
    let mut end = search.before.map_or(last, |before| before.saturating_sub(1).min(last));
    let is_filtered = search.key.is_some() || search.reply.is_some();
    let page_lines = u32::try_from(limit).unwrap_or(SEARCH_PAGE_LINES).min(SEARCH_PAGE_LINES);
    let page_lines = if is_filtered { SEARCH_PAGE_LINES } else { page_lines };
    let mut entries = Vec::new();
    for _ in 0..SEARCH_PAGES_MAX {
        let begin = end.saturating_sub(page_lines.into());
        let read = read_range(store, account, begin, end).await?;
        for entry in read.into_iter().rev().filter(|entry| search.is_for(entry)) {
            let seq = entry.seq;
            entries.push(entry);
            if entries.len() == limit {
                return Ok(FoundEntries { entries, next: (seq > 1).then_some(seq) });
            }
        }
        end = begin;
        if begin == 0 {
            return Ok(FoundEntries { entries, next: None });
        }
    }
    Ok(FoundEntries { entries, next: Some(end.saturating_add(1)) })
}

/// Reads the entries after one number up to another one.
async fn read_range(
    store: &OpenStore,
    account: &AccountName,
    begin: u64,
    end: u64,
) -> Result<Vec<JournalEntry>, Unavailable> {
    let mut entries: Vec<JournalEntry> = Vec::new();
    let mut after = begin;
    // A page of the archive may end before what was asked for.
    while after < end {
        let count = u32::try_from(end - after).unwrap_or(SEARCH_PAGE_LINES);
        let more = read_entries(store, account, after, count).await?.entries;
        let Some(last) = more.last() else { break };
        after = last.seq;
        entries.extend(more.into_iter().filter(|entry| entry.seq <= end));
    }
    Ok(entries)
}

/// Returns how many entries are older than a time (unix ms).
///
/// # Errors
/// [`Unavailable`] if the store or the archive does not answer.
pub(crate) async fn count_older(
    store: &OpenStore,
    account: &AccountName,
    time_ms: i64,
) -> Result<u64, Unavailable> {
    count_before(&StoreJournal { store, account, reach: JournalReach::Archive }, time_ms).await
}

/// How far back a journal is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalReach {
    /// What the store has. In place of lines that have left it, the first ones there are read.
    Store,
    /// All lines, also those that have left the store.
    Archive,
}

/// The journal of an account.
pub(super) struct StoreJournal<'a> {
    pub(super) store: &'a OpenStore,
    pub(super) account: &'a AccountName,
    pub(super) reach: JournalReach,
}

impl JournalReader for StoreJournal<'_> {
    type Error = Unavailable;

    async fn length(&self) -> Result<u64, Unavailable> {
        self.store.ledger.journal_length(self.account).await
    }

    async fn read(&self, after: u64, limit: u32) -> Result<Vec<JournalEntry>, Unavailable> {
        if self.reach == JournalReach::Store {
            return self.store.ledger.read_journal(self.account, after, limit).await;
        }
        // As many as there are: fewer say that the journal has ended.
        let end = after.saturating_add(limit.into()).min(self.length().await?);
        read_range(self.store, self.account, after, end).await
    }
}

impl EntrySearch<'_> {
    fn is_for(&self, entry: &JournalEntry) -> bool {
        // Few lines have the text at all.
        let has = |text: Option<&str>| text.is_none_or(|text| entry.line.contains(text));
        if !has(self.key) || !has(self.reply) {
            return false;
        }
        let line = serde_json::from_str::<Value>(&entry.line).unwrap_or_default();
        let is = |name: &str, text: &str| line[name] == text;
        self.key.is_none_or(|key| is("key_prefix", key))
            && self.reply.is_none_or(|id| is("reply_id", id) || is("vendor_request_id", id))
    }
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
