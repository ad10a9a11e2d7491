//! What is set of an account, as it stands in the hash of the account.

use super::connection::RedisConnection;
use super::keys::AccountKeys;
use crate::ledger::{AccountName, AccountSettings, Unavailable};

/// The field of the settings in the hash of an account.
const SETTINGS_FIELD: &str = "settings";
/// A field that the hash of every account has.
const ACCOUNT_FIELD: &str = "credit";

/// What the hash of an account has of settings.
pub(super) enum StoredSettings {
    /// There is no such account.
    NoAccount,
    /// Settings that this version cannot read. The keys of the account open nothing.
    Unreadable,
    /// These, which are the default if nothing is set.
    Known(AccountSettings),
}

impl StoredSettings {
    /// Reads the settings from the hash of an account.
    pub(super) async fn read(
        connection: &RedisConnection,
        account_key: &str,
    ) -> Result<StoredSettings, Unavailable> {
        let mut read = redis::cmd("HMGET");
        read.arg(account_key).arg(ACCOUNT_FIELD).arg(SETTINGS_FIELD);
        let (account, settings): (Option<String>, Option<String>) = connection.query(&read).await?;
        Ok(match (account, settings) {
            (None, _) => StoredSettings::NoAccount,
            (Some(_), None) => StoredSettings::Known(AccountSettings::default()),
            (Some(_), Some(text)) => AccountSettings::parse_json(&text)
                .map_or(StoredSettings::Unreadable, StoredSettings::Known),
        })
    }
}

/// Returns the settings in the hash of an account as JSON; `None` if nothing is set.
pub(super) async fn read_text(
    connection: &RedisConnection,
    account_key: &str,
) -> Result<Option<String>, Unavailable> {
    connection.query(redis::cmd("HGET").arg(account_key).arg(SETTINGS_FIELD)).await
}

/// Returns the error of settings that a later version has written.
pub(super) fn unreadable(account: &AccountName) -> Unavailable {
    Unavailable(format!("the settings of account {account} are of a later version of tollgate"))
}

/// Whether anything is set of an account.
pub(super) async fn has_settings(
    connection: &RedisConnection,
    account_key: &str,
) -> Result<bool, Unavailable> {
    connection.query(redis::cmd("HEXISTS").arg(account_key).arg(SETTINGS_FIELD)).await
}

/// Returns which of some accounts are suspended, or have settings that cannot be read.
pub(super) async fn find_suspended(
    connection: &RedisConnection,
    account_keys: &[String],
) -> Result<Vec<bool>, Unavailable> {
    let read = |key: &String| redis::cmd("HGET").arg(key).arg(SETTINGS_FIELD).to_owned();
    let texts: Vec<Option<String>> =
        connection.query_each(account_keys.iter().map(read).collect()).await?;
    let is_suspended =
        |text: &String| AccountSettings::parse_json(text).is_none_or(|settings| settings.suspended);
    Ok(texts.iter().map(|text| text.as_ref().is_some_and(is_suspended)).collect())
}

/// Whether there is an account, and it is not deleted.
pub(super) async fn is_living(
    connection: &RedisConnection,
    account: &AccountName,
) -> Result<bool, Unavailable> {
    let mut read = redis::cmd("HMGET");
    read.arg(AccountKeys::of(account).account()).arg("credit").arg("deleted_at");
    let (credit, deleted_at): (Option<String>, Option<String>) = connection.query(&read).await?;
    Ok(credit.is_some() && deleted_at.is_none())
}

/// Returns the error that an account is not there, or is deleted.
pub(super) fn no_living_account(account: &AccountName) -> Unavailable {
    Unavailable(format!("there is no account {account}, or it is deleted"))
}
