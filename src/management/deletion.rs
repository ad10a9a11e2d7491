//! The deletion of accounts: the mark, after which nothing comes into an account, and the erasure
//! of what it has beside its books.

use std::time::Duration;

use super::audit::AuditedChange;
use super::context::ManagementContext;
use super::error::{ManagementError, no_such_account};
use crate::files::VideoFiles;
use crate::ledger::account::Balances;
use crate::ledger::prepaid::records::is_refundable;
use crate::ledger::{AccountName, AccountRemains, DeletionMark, OpenLot, Unavailable};
use crate::money::Money;

/// All gateways heed a change of an account within this time. Nothing is erased before that, so
/// that few calls write anything after it.
const HEEDED_AFTER: Duration = Duration::from_millis(1_500);

/// An account that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeletedAccount {
    /// When it was deleted, in unix seconds.
    pub(crate) at: i64,
    /// Whether it was deleted before, so that only what was left was erased now.
    pub(crate) was_deleted: bool,
}

/// Deletes an account that has nothing left, and erases what it has beside its books. Of an account
/// that is deleted already, what is left is erased. `files` are those of the gateway; `None` if it
/// has none.
pub(crate) async fn delete_account(
    context: ManagementContext<'_>,
    files: &VideoFiles,
    name: &AccountName,
) -> Result<DeletedAccount, ManagementError> {
    let change = AuditedChange {
        action: "account.delete",
        account: Some(name.clone()),
        ..AuditedChange::default()
    };
    let deleting = async || {
        let deleted = mark_deleted(context, name).await?;
        tokio::time::sleep(HEEDED_AFTER).await;
        files.erase_account(name.as_str()).await.map_err(|why| files_left(name, &why))?;
        let erasing = async || context.store.eraser.erase_account(name).await;
        context.store.durability.write::<_, Unavailable>(erasing).await?;
        Ok(deleted)
    };
    context.record(&change, deleting).await
}

/// Marks an account as deleted. That is durable when this returns, before anything is erased.
async fn mark_deleted(
    context: ManagementContext<'_>,
    name: &AccountName,
) -> Result<DeletedAccount, ManagementError> {
    let (ledger, eraser) = (context.ledger(), &*context.store.eraser);
    let known = ledger.account_deletion(name).await?;
    let marking = async || eraser.mark_deleted(name).await;
    match context.store.durability.write::<_, Unavailable>(marking).await? {
        // It may be that an attempt of this run has marked it, before the store came up again.
        DeletionMark::Deleted(at) | DeletionMark::AlreadyDeleted(at) => {
            // A gateway of an older version does not know that it is deleted, and takes payments.
            let balances = ledger.balances(name).await?.unwrap_or_default();
            let Balances { available, held, .. } = balances;
            if available > Money::ZERO || held > Money::ZERO {
                let remains = AccountRemains { available, held, ..AccountRemains::default() };
                let lots = ledger.list_lots(name).await?;
                return Err(not_empty(name, &remains, &balances, &lots));
            }
            Ok(DeletedAccount { at, was_deleted: known.is_some() })
        }
        DeletionMark::NoAccount => Err(no_such_account(name)),
        DeletionMark::NotEmpty(remains) => {
            let shown = ledger.balances(name).await?.unwrap_or_default();
            Err(not_empty(name, &remains, &shown, &ledger.list_lots(name).await?))
        }
    }
}

/// Returns the error that an account has something left. `remains` is what has hindered the
/// deletion, and `shown` what people are shown of it, where what gateways have borrowed and no call
/// needs is available.
fn not_empty(
    name: &AccountName,
    remains: &AccountRemains,
    shown: &Balances,
    lots: &[OpenLot],
) -> ManagementError {
    let (mut available, mut held) = (shown.available, shown.held);
    if available == Money::ZERO && held == Money::ZERO {
        (available, held) = (remains.available, remains.held);
    }
    let granted = lots.iter().filter(|open| !is_refundable(open.id));
    let refundable = granted.fold(available, |left, open| left.saturating_sub(open.lot.available));
    let granted = available.saturating_sub(refundable);
    let (mut left, mut advice) = (Vec::new(), Vec::new());
    if refundable > Money::ZERO {
        left.push(format!("{refundable} USD available"));
        advice.push(format!("pay it back with `tollgate credit take {name} {refundable} --id TX`"));
    }
    if granted > Money::ZERO {
        left.push(format!("{granted} USD of granted credit"));
        advice.push("wait until the granted credit has expired".to_owned());
    }
    if held > Money::ZERO {
        left.push(format!("{held} USD held"));
    }
    let calls = remains.open_holds.saturating_sub(remains.open_jobs);
    if calls > 0 {
        left.push(format!("{calls} calls that run"));
    }
    if remains.open_jobs > 0 {
        left.push(format!("{} video jobs that have not ended", remains.open_jobs));
    }
    if held > Money::ZERO || calls > 0 || remains.open_jobs > 0 {
        advice.push("wait until its calls and video jobs have ended".to_owned());
    }
    let (left, advice) = (left.join(", "), advice.join(", and "));
    let message = format!("account '{name}' is not deleted, since it has {left}: {advice}");
    ManagementError::Conflict { code: "account_not_empty", message }
}

/// Returns the error that the files of a deleted account are not erased yet.
fn files_left(name: &AccountName, why: &dyn std::fmt::Display) -> ManagementError {
    let message = format!(
        "account '{name}' is deleted, but not all of it is erased yet: {why}; delete it again"
    );
    ManagementError::NotReady { code: "files_unavailable", message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{CreditLot, CreditSource, LotId, NEVER_EXPIRES};

    fn usd(text: &str) -> Money {
        Money::parse_usd(text).expect("an amount")
    }

    #[test]
    fn what_hinders_a_deletion_is_told_with_what_to_do() {
        let name = AccountName::parse("acme").expect("a name");
        let lot = |source, available| OpenLot {
            id: LotId { expires_at: NEVER_EXPIRES, source },
            lot: CreditLot { available: usd(available), held: Money::ZERO },
        };
        let shown = Balances { available: usd("3"), held: usd("1"), ..Balances::default() };
        let remains =
            AccountRemains { open_holds: 3, open_jobs: 2, held: usd("1"), ..Default::default() };
        let lots = [lot(CreditSource::Voucher, "0.50"), lot(CreditSource::Paid, "0.25")];
        let told = not_empty(&name, &remains, &shown, &lots).to_string();
        assert_eq!(
            told,
            "account 'acme' is not deleted, since it has 2.50 USD available, 0.50 USD of granted \
             credit, 1.00 USD held, 1 calls that run, 2 video jobs that have not ended: pay it \
             back with `tollgate credit take acme 2.50 --id TX`, and wait until the granted credit \
             has expired, and wait until its calls and video jobs have ended"
        );
        let remains = AccountRemains { available: usd("7"), ..Default::default() };
        let told = not_empty(&name, &remains, &Balances::default(), &[]).to_string();
        assert!(told.contains("it has 7.00 USD available: pay it back with"), "{told}");
    }
}
