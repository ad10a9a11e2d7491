//! Corrections: a part of a charge is given back, by a line of its own in the journal.

use serde_json::Value;

use super::charges::{JournalReach, StoreJournal};
use super::context::ManagementContext;
use super::error::ManagementError;
use super::payments::{Transfer, audited, refused, used_before};
use crate::ledger::journal_search::{SearchBounds, is_before_request, search_from_time};
use crate::ledger::{
    AccountName, EntryKind, JournalEntry, Ledger, Operation, Outcome, Unavailable,
};
use crate::money::Money;
use crate::store::OpenStore;

/// No call and no video is charged later than this after its id was made.
const CALL_LIFE_MS: i64 = 26 * 60 * 60 * 1_000;
/// A search reads this many pages of a journal, at most: of a store, about five seconds of reading.
const PAGES_MAX: usize = 500;
/// At most this many payments, grants, refunds and corrections are read for those of a request.
const TRANSFERS_MAX: u32 = 100_000;
/// A request has at most this many charges: a second one comes after a hold that has expired.
const CHARGES_MAX: usize = 64;

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
        let lines = find_request_lines(context.store, account, request).await?;
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
            // It was found, so the line has left the store.
            Outcome::UnknownCharge => Err(archived_charge(request)),
            Outcome::Conflict => Err(used_before(format!(
                "the id '{tx}' was used before, for another payment, refund or correction"
            ))),
            other => Err(refused(account, &other)),
        }
    };
    context.change(&change, correcting).await
}

/// Finds the account that was charged for a request. All accounts are searched: what the store has
/// of them, and only then the archive.
pub(crate) async fn find_charged_account(
    store: &OpenStore,
    request: &str,
) -> Result<AccountName, ManagementError> {
    let accounts = store.ledger.list_accounts().await?;
    for account in &accounts {
        if !find_lines(store, account, request, JournalReach::Store).await?.is_empty() {
            return Ok(account.clone());
        }
    }
    for account in &accounts {
        if may_be_archived(store, account, request).await?
            && !find_lines(store, account, request, JournalReach::Archive).await?.is_empty()
        {
            return Ok(account.clone());
        }
    }
    Err(no_such_charge(request))
}

/// Finds the entries of an account's journal that are about a request, oldest first, also those
/// that have left the store. An id without a time is not found. The archive is read only if the
/// charge may be there, so it need not answer for a call of the last days.
pub(crate) async fn find_request_lines(
    store: &OpenStore,
    account: &AccountName,
    request: &str,
) -> Result<Vec<JournalEntry>, Unavailable> {
    let stored = find_lines(store, account, request, JournalReach::Store).await?;
    let has_charge = stored.iter().any(|entry| entry.kind == EntryKind::Charge);
    if has_charge || !may_be_archived(store, account, request).await? {
        return Ok(stored);
    }
    find_lines(store, account, request, JournalReach::Archive).await
}

/// Whether lines about a request may have left the store: none that is there is older.
async fn may_be_archived(
    store: &OpenStore,
    account: &AccountName,
    request: &str,
) -> Result<bool, Unavailable> {
    let first = store.ledger.read_journal(account, 0, 1).await?.into_iter().next();
    Ok(match first {
        Some(first) => first.seq > 1 && !is_before_request(&first, request),
        None => store.ledger.journal_length(account).await? > 0,
    })
}

async fn find_lines(
    store: &OpenStore,
    account: &AccountName,
    request: &str,
    reach: JournalReach,
) -> Result<Vec<JournalEntry>, Unavailable> {
    let journal = StoreJournal { store, account, reach };
    let bounds = SearchBounds { call_life_ms: CALL_LIFE_MS, pages_max: PAGES_MAX };
    let mut found = Vec::new();
    let collect = |page: Vec<JournalEntry>| {
        found.extend(page.into_iter().filter(|entry| is_about(entry, request)));
        Ok(())
    };
    search_from_time(&journal, request, bounds, collect).await?;
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

/// Returns the error that a charge cannot be corrected any more.
fn archived_charge(request: &str) -> ManagementError {
    let message = format!(
        "the charge of the request '{request}' is in the archive, and is not corrected any more: \
         give credit back by a grant"
    );
    ManagementError::Conflict { code: "charge_archived", message }
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
}
