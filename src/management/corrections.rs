//! Corrections: a part of a charge is given back, by a line of its own in the journal.

use serde_json::Value;

use super::context::ManagementContext;
use super::error::ManagementError;
use super::payments::{Transfer, audited, refused, used_before};
use crate::ledger::{
    AccountName, EntryKind, JournalEntry, Ledger, Operation, Outcome, Unavailable,
};
use crate::money::Money;

/// The length of a UUID as text.
const UUID_CHARS: usize = 36;
/// A search begins this long before the time in the id of the request: clocks differ.
const CLOCK_SKEW_MS: i64 = 60_000;
/// No call and no video is charged later than this after its id was made.
const CALL_LIFE_MS: i64 = 26 * 60 * 60 * 1_000;
/// A search reads this many entries of a journal, at most: about five seconds of reading.
const SEARCHED_MAX: usize = 500_000;
/// The number of entries whose times tell together where a place of the journal is: a few may have
/// come late.
const PROBE_SIZE: u32 = 16;
/// At most this many payments, grants, refunds and corrections are read for those of a request.
const TRANSFERS_MAX: u32 = 100_000;
/// A request has at most this many charges: a second one comes after a hold that has expired.
const CHARGES_MAX: usize = 64;
/// The number of entries that are read at a time.
const PAGE_SIZE: u32 = 1_000;

/// Gives back a part of the charge of a request. Returns the amount that was given back, which is
/// at most what is left of the charge.
pub(crate) async fn correct_charge(
    context: ManagementContext<'_>,
    request: &str,
    correction: &Transfer,
) -> Result<Money, ManagementError> {
    let ledger = context.ledger();
    let Transfer { account, tx, amount, reason } = correction;
    let mut change = audited(correction, "charge.correct");
    change.request = Some(request.to_owned());
    let correcting = async || {
        let lines = find_request_lines(ledger, account, request).await?;
        let charges = lines.iter().filter(|entry| entry.kind == EntryKind::Charge);
        let found: Vec<u64> = charges.map(|entry| entry.seq).take(CHARGES_MAX).collect();
        if found.is_empty() {
            return Err(no_such_charge(request));
        }
        let op = Operation::Correct {
            tx: tx.clone(),
            request: request.to_owned(),
            found,
            amount: *amount,
            reason: reason.clone(),
        };
        match ledger.submit(account, op).await? {
            Outcome::Corrected(given) => Ok(given),
            Outcome::UnknownCharge => Err(no_such_charge(request)),
            Outcome::Conflict => Err(used_before(format!(
                "the id '{tx}' was used before, for another payment, refund or correction"
            ))),
            other => Err(refused(account, &other)),
        }
    };
    context.change(&change, correcting).await
}

/// Finds the account that was charged for a request. All accounts are searched.
pub(crate) async fn find_charged_account(
    ledger: &dyn Ledger,
    request: &str,
) -> Result<AccountName, ManagementError> {
    for account in ledger.list_accounts().await? {
        if !find_request_lines(ledger, &account, request).await?.is_empty() {
            return Ok(account);
        }
    }
    Err(no_such_charge(request))
}

/// Finds the entries of an account's journal that are about a request, oldest first.
///
/// The id of a request begins with its time, and the journal is roughly ordered by time. So the
/// search begins a little before that time. An id without a time is not found.
pub(crate) async fn find_request_lines(
    ledger: &dyn Ledger,
    account: &AccountName,
    request: &str,
) -> Result<Vec<JournalEntry>, Unavailable> {
    let Some(time_ms) = time_of_request(request) else { return Ok(Vec::new()) };
    let mut after = find_first_at(ledger, account, time_ms - CLOCK_SKEW_MS).await?;
    let (mut found, mut searched) = (Vec::new(), 0);
    while searched < SEARCHED_MAX {
        let page = ledger.read_journal(account, after, PAGE_SIZE).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        searched += page.len();
        let is_over = have_all(&page, |at| at > time_ms.saturating_add(CALL_LIFE_MS));
        found.extend(page.into_iter().filter(|entry| is_about(entry, request)));
        if is_over {
            break;
        }
    }
    Ok(found)
}

/// Returns how much of the charge of a request was given back in all, also long after the call.
pub(crate) async fn corrected_amount(
    ledger: &dyn Ledger,
    account: &AccountName,
    request: &str,
) -> Result<Money, ManagementError> {
    let mut corrected = Money::ZERO;
    for transfer in ledger.list_transfers(account, 0, TRANSFERS_MAX).await? {
        if transfer.request.as_deref() == Some(request) {
            let sum = corrected.checked_add(transfer.moved.unwrap_or_default());
            corrected = sum.map_err(|why| ManagementError::UnexpectedAnswer(why.to_string()))?;
        }
    }
    Ok(corrected)
}

/// Returns the error that nobody was charged for a request.
pub(crate) fn no_such_charge(request: &str) -> ManagementError {
    let message = format!("there is no charge of a request '{request}'");
    ManagementError::NotFound { what: "charge", message }
}

/// Returns the number after which the entries come that are not older than a time.
async fn find_first_at(
    ledger: &dyn Ledger,
    account: &AccountName,
    time_ms: i64,
) -> Result<u64, Unavailable> {
    let (mut low, mut high) = (0, ledger.journal_length(account).await?);
    while low < high {
        let middle = low + (high - low) / 2;
        let probe = ledger.read_journal(account, middle, PROBE_SIZE).await?;
        if have_all(&probe, |at| at < time_ms) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Returns the time in the id of a request or a job, in unix ms; `None` if it has none.
fn time_of_request(request: &str) -> Option<i64> {
    let at = request.len().checked_sub(UUID_CHARS)?;
    let id = uuid::Uuid::try_parse(request.get(at..)?).ok()?;
    let (seconds, nanos) = id.get_timestamp().filter(|_| id.get_version_num() == 7)?.to_unix();
    i64::try_from(seconds).ok()?.checked_mul(1_000)?.checked_add(i64::from(nanos / 1_000_000))
}

/// Whether the times of all entries are as they should be. An entry whose time cannot be read tells
/// nothing, and no entries tell nothing.
fn have_all(entries: &[JournalEntry], is_right: impl Fn(i64) -> bool) -> bool {
    let mut times = entries.iter().filter_map(time_of_entry).peekable();
    times.peek().is_some() && times.all(is_right)
}

/// Returns the time of an entry, in unix ms.
fn time_of_entry(entry: &JournalEntry) -> Option<i64> {
    let line: Value = serde_json::from_str(&entry.line).ok()?;
    line["at"].as_i64()
}

/// Whether an entry is the charge of a request, or a correction of it.
fn is_about(entry: &JournalEntry, request: &str) -> bool {
    let member = match entry.kind {
        EntryKind::Charge => "request_id",
        EntryKind::Correction => "corrects",
        EntryKind::Expiry => return false,
    };
    entry.line.contains(request)
        && serde_json::from_str::<Value>(&entry.line).is_ok_and(|line| line[member] == request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_request_are_its_charge_and_its_corrections() {
        let entry = |kind, line: &str| JournalEntry {
            seq: 1,
            kind,
            amount: Money::ZERO,
            written_off: Money::ZERO,
            line: line.to_owned(),
        };
        for (kind, line, is_of_request) in [
            (EntryKind::Charge, r#"{"request_id":"r-1"}"#, true),
            (EntryKind::Charge, r#"{"request_id":"r-12"}"#, false),
            (EntryKind::Correction, r#"{"corrects":"r-1","correction":"c"}"#, true),
            (EntryKind::Correction, r#"{"corrects":"r-2","correction":"r-1"}"#, false),
            (EntryKind::Expiry, r#"{"expired":"5/promotion","at":5}"#, false),
        ] {
            assert_eq!(is_about(&entry(kind, line), "r-1"), is_of_request, "{line}");
        }
    }

    #[test]
    fn the_id_of_a_request_or_a_job_has_its_time() {
        let id = "019ac3a1-5e00-7000-8000-000000000000";
        let time = time_of_request(id).expect("a time");
        assert_eq!(time, 0x019a_c3a1_5e00);
        assert_eq!(time_of_request(&format!("video_{id}")), Some(time));
        for text in ["", "r", "é9ac3a1-5e00-7000-8000-000000000000", &id.replace("-7", "-4")] {
            assert_eq!(time_of_request(text), None, "{text}");
        }
    }
}
