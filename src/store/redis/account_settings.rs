//! The settings of accounts in Redis, and when API keys were last used.
//!
//! Settings are a field of the hash of their account. The names of suspended accounts are in an
//! index, which is in another slot of a cluster. The index may name an account that is not
//! suspended any more, so the account is asked.

use futures_util::future::try_join_all;

use super::super::data_version::RESTRICTIONS_VERSION;
use super::key_records;
use super::keys::AccountKeys;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use super::stored_settings::{StoredSettings, find_suspended, read_text, unreadable};
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, KeyHash, Replaced, Replacement, Unavailable,
};

/// The key of the hash of the suspended accounts: of each name, the number of the change that
/// suspended it.
const SUSPENDED_KEY: &str = "tollgate:suspended";
/// So many uses of keys are sent at a time, so that no call waits long behind them.
const USES_AT_A_TIME: usize = 128;
/// The number of a change that is not made yet. It is less than that of any change.
pub(super) const NO_CHANGE: &str = "0";

impl RedisStore {
    /// Replaces what an operator has set of an account. Settings that cannot be read are not
    /// replaced: what they restrict is not known.
    ///
    /// Before the settings stand, the version of the data is raised and the keys of the account are
    /// moved, so that no version that knows no settings lets them do more. A key that is added
    /// meanwhile is moved afterwards.
    pub(super) async fn write_settings(
        &self,
        account: &AccountName,
        change: &Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable> {
        if self.read_deletion(account).await?.is_some() {
            return Ok(Replaced::Unknown);
        }
        let connection = self.connection().await?;
        let text = read_text(connection, &AccountKeys::of(account).account()).await?;
        let Some(stored) = self.read_settings(account).await? else {
            return Ok(Replaced::Unknown);
        };
        // What is stored already is written once more: an earlier attempt may have ended halfway.
        if change.compare(&stored) == Some(Replaced::Changed) {
            return Ok(Replaced::Changed);
        }
        let settings = &change.after;
        let is_set = *settings != AccountSettings::default();
        if is_set {
            self.raise_version(RESTRICTIONS_VERSION).await?;
            key_records::restrict_keys(connection, account, BudgetOwner::Account).await?;
        }
        // An account is in the index before it is suspended, so that none is missing there if this
        // ends halfway.
        if settings.suspended {
            self.index_suspended(account, NO_CHANGE, true).await?;
        }
        let mut set = ScriptCall::default();
        set.key(AccountKeys::of(account).account());
        // The script compares the text, which was read first: it changes with the settings.
        set.arg(text.unwrap_or_default());
        set.arg(if is_set { settings.to_json() } else { String::new() });
        let reply = self.run_script(&set, |s| &s.access.set_settings).await?;
        let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
        let change = match reply[..] {
            ["done", change] => change,
            ["changed"] => return Ok(Replaced::Changed),
            ["no_account"] => return Ok(Replaced::Unknown),
            _ => return Err(Unavailable(format!("unexpected answer: {reply:?}"))),
        };
        self.index_suspended(account, change, settings.suspended).await?;
        if is_set {
            key_records::restrict_keys(connection, account, BudgetOwner::Account).await?;
        }
        key_records::raise_revision(connection).await?;
        Ok(Replaced::Done)
    }

    /// Puts an account into the index of suspended accounts, or takes it out, unless a later change
    /// of its settings has done so before.
    pub(super) async fn index_suspended(
        &self,
        account: &AccountName,
        change: &str,
        is_suspended: bool,
    ) -> Result<(), Unavailable> {
        let mut index = ScriptCall::default();
        index.key(SUSPENDED_KEY).arg(account.as_str()).arg(change);
        index.arg(if is_suspended { "1" } else { "0" });
        self.run_script(&index, |s| &s.access.index_suspended).await.map(drop)
    }

    /// Returns what is set of an account; `None` if there is no such account.
    pub(super) async fn read_settings(
        &self,
        account: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable> {
        let account_key = AccountKeys::of(account).account();
        match StoredSettings::read(self.connection().await?, &account_key).await? {
            StoredSettings::Known(settings) => Ok(Some(settings)),
            StoredSettings::Unreadable if self.read_deletion(account).await?.is_some() => {
                Ok(Some(AccountSettings::of_deleted()))
            }
            StoredSettings::Unreadable => Err(unreadable(account)),
            StoredSettings::NoAccount => {
                self.confirm_absence(&account_key).await?;
                Ok(None)
            }
        }
    }

    /// Returns the accounts that are suspended, in order.
    pub(super) async fn read_suspended(&self) -> Result<Vec<AccountName>, Unavailable> {
        let connection = self.connection().await?;
        let names: Vec<String> = connection.query(redis::cmd("HKEYS").arg(SUSPENDED_KEY)).await?;
        let mut accounts: Vec<_> = names.iter().filter_map(|n| AccountName::parse(n)).collect();
        accounts.sort();
        let account_keys: Vec<_> = accounts.iter().map(|a| AccountKeys::of(a).account()).collect();
        let suspended = find_suspended(connection, &account_keys).await?;
        let of_all = accounts.into_iter().zip(suspended);
        Ok(of_all.filter_map(|(account, is_suspended)| is_suspended.then_some(account)).collect())
    }

    /// Notes when keys were last used, in unix seconds.
    pub(super) async fn write_key_uses(&self, uses: &[(KeyHash, i64)]) -> Result<(), Unavailable> {
        for uses in uses.chunks(USES_AT_A_TIME) {
            let noting = uses.iter().copied().map(|(hash, at)| self.write_key_use(hash, at));
            try_join_all(noting).await?;
        }
        Ok(())
    }

    /// Notes when a key was last used. The place of unrestricted keys comes first: a record that is
    /// moved meanwhile takes the time with it, or is in the other place already.
    async fn write_key_use(&self, hash: KeyHash, at: i64) -> Result<(), Unavailable> {
        for record in key_records::record_keys(&hash.hex()) {
            let mut note = ScriptCall::default();
            note.key(record).arg(at);
            self.run_script(&note, |s| &s.access.note_use).await?;
        }
        Ok(())
    }
}
