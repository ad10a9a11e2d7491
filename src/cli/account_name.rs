//! Names of accounts on the command line.

use crate::ledger::AccountName;
use crate::management::error;

/// Parses the name of an account.
pub(super) fn parse_account(text: &str) -> anyhow::Result<AccountName> {
    Ok(error::parse_account(text)?)
}
