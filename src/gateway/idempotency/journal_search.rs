//! Searches the journal for a charge of a call whose gateway has died.

use std::sync::Arc;

use serde::Deserialize;

use crate::clock::unix_ms;
use crate::gateway::api_error::{ApiError, ServerError};
use crate::gateway::budgets::tenants::Tenant;
use crate::gateway::state::Gateway;
use crate::idempotency::AttemptId;
use crate::idempotency::{ATTEMPT_TTL_MS, encode_digest};
use crate::ledger::{AccountName, JournalEntry};

/// At most this many journals are searched at the same time, and of an account only one.
pub(in crate::gateway) const JOURNAL_SEARCHES_MAX: usize = 4;
/// The number of entries that are read at a time.
const PAGE_ENTRIES: u32 = 500;
/// At most this many pages are read. Of an account with more charges in ten minutes, the call is
/// taken for one that was charged.
const PAGES_MAX: u32 = 1_000;

/// What the search reads of a journal line.
#[derive(Deserialize)]
struct AttemptLine<'a> {
    request_id: &'a str,
    endpoint: &'a str,
    retry_digest: Option<&'a str>,
}

/// Whether an attempt of a call was charged within the time for which attempts are remembered.
///
/// # Errors
/// The ledger does not answer.
pub(super) async fn was_charged(
    gateway: &Gateway,
    tenant: &Arc<Tenant>,
    account: &AccountName,
    id: &AttemptId,
) -> Result<bool, ApiError> {
    let digest = encode_digest(&id.content);
    let is_of_call = |line: &AttemptLine<'_>| {
        line.endpoint == id.endpoint && line.retry_digest == Some(digest.as_str())
    };
    has_line(gateway, tenant, account, &digest, is_of_call).await
}

/// Whether the call with the id `request_id` was charged within that time.
///
/// # Errors
/// The ledger does not answer.
pub(super) async fn was_request_charged(
    gateway: &Gateway,
    tenant: &Arc<Tenant>,
    account: &AccountName,
    request_id: &str,
) -> Result<bool, ApiError> {
    let is_of_request = |line: &AttemptLine<'_>| line.request_id == request_id;
    has_line(gateway, tenant, account, request_id, is_of_request).await
}

/// Whether the journal has a recent line with the text `part` that `is_wanted` accepts.
async fn has_line(
    gateway: &Gateway,
    tenant: &Arc<Tenant>,
    account: &AccountName,
    part: &str,
    is_wanted: impl Fn(&AttemptLine<'_>) -> bool,
) -> Result<bool, ApiError> {
    // Both semaphores are never closed.
    let _own = tenant.count_turn().acquire_owned().await.ok();
    let _turn = gateway.journal_searches.clone().acquire_owned().await.ok();
    let since = unix_ms().saturating_sub_unsigned(ATTEMPT_TTL_MS);
    let length = gateway.ledger.journal_length(account);
    let mut last = gateway
        .with_ledger_timeout("journal", length)
        .await
        .map_err(|_| ServerError::LedgerUnavailable)?;
    for _ in 0..PAGES_MAX {
        let first = last.saturating_sub(u64::from(PAGE_ENTRIES));
        let count = u32::try_from(last - first).unwrap_or(PAGE_ENTRIES);
        let page = gateway.ledger.read_journal(account, first, count);
        let page = gateway
            .with_ledger_timeout("journal", page)
            .await
            .map_err(|_| ServerError::LedgerUnavailable)?;
        let lines = page.iter().filter(|entry| entry.line.contains(part));
        if lines.filter_map(|entry| parse_line(&entry.line)).any(|line| is_wanted(&line)) {
            return Ok(true);
        }
        // Entries are in the order in which calls ended. Some came late, from the outbox of a
        // process that was away.
        if first == 0 || begins_later(&page, first) || are_all_before(&page, since) {
            return Ok(false);
        }
        last = first;
    }
    Ok(true)
}

/// Whether the entries right after number `first` have left the store: they are in the archive, so
/// they are days old.
fn begins_later(page: &[JournalEntry], first: u64) -> bool {
    page.first().is_none_or(|entry| entry.seq > first.saturating_add(1))
}

/// Whether all entries whose times can be read are older than a time, and there is one.
fn are_all_before(page: &[JournalEntry], since: i64) -> bool {
    let time = |entry: &JournalEntry| serde_json::from_str::<LineTime>(&entry.line).ok();
    let mut times = page.iter().filter_map(time).map(|line| line.at).peekable();
    times.peek().is_some() && times.all(|at| at < since)
}

/// The time of a line, of a charge, a correction or an expiry.
#[derive(Deserialize)]
struct LineTime {
    at: i64,
}

fn parse_line(line: &str) -> Option<AttemptLine<'_>> {
    serde_json::from_str(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::EntryKind;
    use crate::money::Money;

    #[test]
    fn a_page_of_corrections_ended_the_search_for_a_charge() {
        let entry = |line: &str| JournalEntry {
            seq: 1,
            kind: EntryKind::Correction,
            amount: Money::ZERO,
            written_off: Money::ZERO,
            line: line.to_owned(),
        };
        let corrections = [9, 10].map(|at| entry(&format!(r#"{{"corrects":"r","at":{at}}}"#)));
        assert!(!are_all_before(&corrections, 10), "one is young");
        assert!(are_all_before(&corrections, 11));
        assert!(!are_all_before(&[entry("no JSON")], 11), "nothing tells their times");
    }

    #[test]
    fn a_line_names_the_content_of_its_call() {
        let digest = encode_digest(&[255; 32]);
        assert_eq!(digest, format!("{}8", "_".repeat(42)));
        let text = format!(
            r#"{{"request_id":"r","at":7,"endpoint":"chat","retry_digest":"{digest}","more":[1]}}"#
        );
        let line = parse_line(&text).expect("a line");
        assert_eq!((line.endpoint, line.retry_digest), ("chat", Some(&*digest)));
        assert!(parse_line(r#"{"expired":"7/promotion","at":7}"#).is_none(), "it is no call");
        let without = parse_line(r#"{"request_id":"r","at":7,"endpoint":"chat"}"#).expect("a line");
        assert_eq!(without.retry_digest, None);
    }
}
