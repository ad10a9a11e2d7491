//! Payments and refunds, and the list of what came into an account and went back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::accounts::require_account;
use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::{ManagementError, no_such_account};
use super::living::account_deleted;
use super::webhooks::{tell_balance, tell_payment};
use crate::ledger::{AccountName, Ledger, Operation, Outcome, TransferEntry, Unavailable};
use crate::money::Money;

/// The most characters of an id that a caller gives a payment, a grant, a refund or a correction.
const ID_CHARS_MAX: usize = 255;
/// The most characters of a reason.
const REASON_CHARS_MAX: usize = 500;
/// How often a refund is asked for again that waits for money that is lent.
const TAKE_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long at most. The store ends the wait itself, earlier.
const TAKE_TIMEOUT: Duration = Duration::from_secs(90);

/// A payment, a grant, a refund or a correction that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    pub(crate) account: AccountName,
    /// The id, which makes a repeat harmless.
    pub(crate) tx: String,
    pub(crate) amount: Money,
    /// Why; empty if nobody has said so.
    pub(crate) reason: String,
}

/// What came of a refund.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refund {
    /// The amount that was paid back.
    pub(crate) taken: Money,
    /// The amount that the account did not have.
    pub(crate) uncovered: Money,
}

/// Checks the id of a payment, a grant, a refund or a correction.
pub(crate) fn parse_transfer_id(text: &str) -> Result<String, ManagementError> {
    let is_id =
        (1..=ID_CHARS_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    let message =
        || format!("an id must have 1 to {ID_CHARS_MAX} characters, and no control characters");
    if is_id {
        return Ok(text.to_owned());
    }
    Err(ManagementError::Invalid { field: "id", message: message() })
}

/// Checks a reason.
pub(crate) fn parse_reason(text: &str) -> Result<String, ManagementError> {
    if text.chars().count() <= REASON_CHARS_MAX && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    let message = format!(
        "a reason must have at most {REASON_CHARS_MAX} characters, and no control characters"
    );
    Err(ManagementError::Invalid { field: "reason", message })
}

/// Adds a payment to an account. A payment that was added before, under the same id, is no error.
pub(crate) async fn add_payment(
    context: ManagementContext<'_>,
    payment: &Transfer,
) -> Result<(), ManagementError> {
    let Transfer { account, tx, amount, .. } = payment;
    let change = audited(payment, "credit.add");
    // It may run again until it is durable: what the first run has added is still new.
    let is_new = AtomicBool::new(false);
    let adding = async || {
        if submit_payment(context.ledger(), account, tx, *amount).await? {
            is_new.store(true, Ordering::Relaxed);
        }
        Ok(())
    };
    context.change(&change, adding).await?;
    if is_new.into_inner() {
        tell_payment(context.store, account, tx, *amount).await;
    }
    Ok(())
}

/// Pays credit back. Money that is lent to gateways is waited for.
pub(crate) async fn refund(
    context: ManagementContext<'_>,
    refund: &Transfer,
) -> Result<Refund, ManagementError> {
    let change = audited(refund, "credit.take");
    let taking = async || submit_refund(context.ledger(), refund).await;
    let taken = context.change(&change, taking).await?;
    tell_balance(context.store, &refund.account).await;
    Ok(taken)
}

/// Returns what came into an account and went back, oldest first, without the first `skipped`.
pub(crate) async fn list_transfers(
    ledger: &dyn Ledger,
    account: &AccountName,
    skipped: u64,
    limit: u32,
) -> Result<Vec<TransferEntry>, ManagementError> {
    require_account(ledger, account).await?;
    Ok(ledger.list_transfers(account, skipped, limit).await?)
}

/// Submits a payment. The same again changes nothing. Returns whether it is new.
pub(crate) async fn submit_payment(
    ledger: &dyn Ledger,
    name: &AccountName,
    tx: &str,
    amount: Money,
) -> Result<bool, ManagementError> {
    let op = Operation::Credit { tx: tx.to_owned(), amount };
    match ledger.submit(name, op).await? {
        Outcome::Done => Ok(true),
        Outcome::AlreadyDone => Ok(false),
        Outcome::Conflict => {
            Err(used_before(format!("payment '{tx}' was taken before, with another amount")))
        }
        other => Err(refused(name, &other)),
    }
}

async fn submit_refund(ledger: &dyn Ledger, refund: &Transfer) -> Result<Refund, ManagementError> {
    let Transfer { account, tx, amount, reason } = refund;
    let end = Instant::now() + TAKE_TIMEOUT;
    while Instant::now() < end {
        let op = Operation::Take { tx: tx.clone(), amount: *amount, reason: reason.clone() };
        match ledger.submit(account, op).await? {
            Outcome::Taken { taken, uncovered } => return Ok(Refund { taken, uncovered }),
            Outcome::Wait => tokio::time::sleep(TAKE_RETRY_INTERVAL).await,
            Outcome::Conflict => {
                return Err(used_before(format!(
                    "the id '{tx}' was used before, for another payment or refund"
                )));
            }
            other => return Err(refused(account, &other)),
        }
    }
    let why = "the refund waits for money that gateways have borrowed; ask for it again";
    Err(Unavailable(why.to_owned()).into())
}

/// Returns the error that an id was used before.
pub(crate) fn used_before(message: String) -> ManagementError {
    ManagementError::Conflict { code: "id_reused", message }
}

/// Returns the error of an outcome that ends any transfer.
pub(crate) fn refused(account: &AccountName, outcome: &Outcome) -> ManagementError {
    match outcome {
        Outcome::NoAccount => no_such_account(account),
        Outcome::AccountDeleted => account_deleted(account),
        Outcome::OutOfRange => ManagementError::Invalid {
            field: "amount_usd",
            message: "the balance would be too large".to_owned(),
        },
        other => ManagementError::UnexpectedAnswer(format!("{other:?}")),
    }
}

/// Returns a transfer as the audit trail records it.
pub(crate) fn audited(transfer: &Transfer, action: &'static str) -> AuditedChange {
    AuditedChange {
        action,
        account: Some(transfer.account.clone()),
        payment: Some(transfer.tx.clone()),
        amount: Some(transfer.amount),
        reason: (!transfer.reason.is_empty()).then(|| transfer.reason.clone()),
        ..AuditedChange::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_and_a_reason_are_short_texts() {
        for text in ["", "a\nb", &"a".repeat(ID_CHARS_MAX + 1)] {
            assert!(parse_transfer_id(text).is_err(), "{text:?}");
        }
        assert_eq!(parse_transfer_id("tx-1").expect("an id"), "tx-1");
        assert!(parse_reason("").is_ok() && parse_reason("a\tb").is_err());
        assert!(parse_reason(&"é".repeat(REASON_CHARS_MAX)).is_ok());
        assert!(parse_reason(&"é".repeat(REASON_CHARS_MAX + 1)).is_err());
    }
}
