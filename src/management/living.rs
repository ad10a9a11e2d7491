//! Whether an account is there, and not deleted.

use super::error::{ManagementError, no_such_account};
use crate::ledger::{AccountName, Ledger};

/// Returns why an account is not found: it is deleted, or was never there.
pub(super) async fn missing_account(ledger: &dyn Ledger, name: &AccountName) -> ManagementError {
    match ledger.account_deletion(name).await {
        Ok(Some(_)) => account_deleted(name),
        Ok(None) => no_such_account(name),
        Err(why) => why.into(),
    }
}

/// Checks that an account is there, and is not deleted.
pub(super) async fn require_living(
    ledger: &dyn Ledger,
    name: &AccountName,
) -> Result<(), ManagementError> {
    let is_there = ledger.balances(name).await?.is_some();
    if is_there && ledger.account_deletion(name).await?.is_none() {
        return Ok(());
    }
    Err(missing_account(ledger, name).await)
}

/// Returns the error that an account is deleted, so that nothing of it is changed.
pub(super) fn account_deleted(name: &AccountName) -> ManagementError {
    let message = format!("account '{name}' is deleted: it has its books, and nothing is changed");
    ManagementError::Conflict { code: "account_deleted", message }
}
