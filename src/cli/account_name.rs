//! Names of accounts on the command line.

use anyhow::{anyhow, bail};

use crate::ledger::AccountName;

/// Parses the name of an account.
pub(super) fn parse_account(text: &str) -> anyhow::Result<AccountName> {
    match AccountName::parse(text) {
        Some(name) => Ok(name),
        None => bail!("'{text}' is no account name: 1 to 64 letters, digits, '-', '_' and '.'"),
    }
}

/// Returns the error that no account has this name.
pub(super) fn no_such_account(name: &AccountName) -> anyhow::Error {
    anyhow!("there is no account '{name}'")
}
