//! Keeps what the gateway knows of keys and their accounts up to date, and tells the ledger when
//! keys were used.

use std::sync::Arc;
use std::time::Duration;

use crate::gateway::key_uses::KeyUses;
use crate::gateway::request::key_cache::ApiKeyCache;
use crate::gateway::state::Gateway;
use crate::gateway::suspended_accounts::SuspendedAccounts;
use crate::ledger::{Ledger, Unavailable};

/// How often it is asked whether a key or the settings of an account have changed.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often the ledger is told when keys were used.
const KEY_USE_INTERVAL: Duration = Duration::from_secs(60);

/// What the gateway knows of keys and their accounts.
pub(super) struct KeyUpkeep {
    cache: Arc<ApiKeyCache>,
    uses: Arc<KeyUses>,
    suspended: Arc<SuspendedAccounts>,
}

impl KeyUpkeep {
    /// Returns what a gateway knows, which it shares.
    #[must_use]
    pub(super) fn of(gateway: &Gateway) -> KeyUpkeep {
        KeyUpkeep {
            cache: gateway.key_cache.clone(),
            uses: gateway.key_uses.clone(),
            suspended: gateway.suspended.clone(),
        }
    }

    /// Looks for keys that were revoked or changed, and for accounts that were suspended or
    /// resumed. While the ledger does not answer, keys are used as they are cached, which ends by
    /// itself, and streams run on. The ledger gets `timeout` for each answer.
    pub(super) async fn watch(&self, ledger: &dyn Ledger, timeout: Duration) {
        // The revision of which the suspended accounts are known.
        let mut known = None;
        loop {
            if let Ok(Ok(revision)) = tokio::time::timeout(timeout, ledger.key_revision()).await {
                // A key that is looked up after a change must not meet the accounts of before it.
                if known != Some(revision)
                    && read_suspended(ledger, timeout, &self.suspended).await.is_ok()
                {
                    known = Some(revision);
                }
                self.cache.note_revision(revision);
            }
            tokio::time::sleep(KEY_POLL_INTERVAL).await;
        }
    }

    /// Tells the ledger once a minute when keys were used.
    pub(super) async fn tell_uses_periodically(&self, ledger: &dyn Ledger, timeout: Duration) {
        loop {
            tokio::time::sleep(KEY_USE_INTERVAL).await;
            self.tell_uses(ledger, timeout).await;
        }
    }

    /// Tells the ledger when keys were used. It gets `timeout` for each answer.
    pub(super) async fn tell_uses(&self, ledger: &dyn Ledger, timeout: Duration) {
        if let Err(why) = self.uses.flush(ledger, timeout).await {
            log::warn!(event = "key_uses_not_noted", error:% = why; "last uses of keys not noted");
        }
    }
}

/// Reads which accounts are suspended.
async fn read_suspended(
    ledger: &dyn Ledger,
    timeout: Duration,
    suspended: &SuspendedAccounts,
) -> Result<(), Unavailable> {
    let answer = tokio::time::timeout(timeout, ledger.list_suspended()).await;
    let accounts = answer.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned())))?;
    suspended.replace(accounts.into_iter().collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::key::ApiKey;
    use crate::ledger::{
        AccountName, AccountSettings, KeyHash, KeyRecord, KeyScope, Replaced, Replacement,
    };
    use crate::store::sqlite::SqliteStore;

    const WAIT: Duration = Duration::from_secs(30);

    async fn store_with_account(folder: &std::path::Path) -> (SqliteStore, AccountName) {
        let path = folder.join("t.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let ledger = SqliteStore::open(&path).expect("a store");
        let account = AccountName::parse("a").expect("a name");
        ledger.open_account(&account).await.expect("an account");
        (ledger, account)
    }

    #[tokio::test]
    async fn accounts_that_are_suspended_and_resumed_are_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ledger, account) = store_with_account(folder.path()).await;
        let suspended = SuspendedAccounts::default();
        for is_suspended in [false, true, false] {
            let settings =
                AccountSettings { suspended: is_suspended, ..AccountSettings::default() };
            let before = ledger.account_settings(&account).await.expect("settings");
            let before = before.expect("an account");
            let change = Replacement { before, after: settings };
            let replaced = ledger.set_account_settings(&account, change).await;
            assert_eq!(replaced, Ok(Replaced::Done));
            read_suspended(&ledger, WAIT, &suspended).await.expect("an answer");
            assert_eq!(suspended.contains_since(&account, u64::MAX), is_suspended);
        }
    }

    #[tokio::test]
    async fn the_ledger_is_told_of_more_keys_than_one_batch_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ledger, account) = store_with_account(folder.path()).await;
        let key = ApiKey::from_random([7; 32]);
        let record = KeyRecord::new(&key, account, 1, KeyScope::default());
        ledger.add_key(key.hash(), record).await.expect("a key");
        let uses = KeyUses::default();
        assert!(uses.note(key.hash(), 120));
        // Nobody knows these, as if their keys were deleted since.
        assert!((0..2_500).all(|number| uses.note(KeyHash::of(&number.to_string()), 60)));
        let last_used = async || {
            let found = ledger.find_key(key.hash()).await.expect("an answer");
            found.expect("a key").last_used_at
        };
        assert_eq!(last_used().await, None);
        uses.flush(&ledger, WAIT).await.expect("an answer");
        assert_eq!(last_used().await, Some(120));
        assert!(uses.note(key.hash(), 60));
        uses.flush(&ledger, WAIT).await.expect("an answer");
        assert_eq!(last_used().await, Some(120), "it does not go back");
    }
}
