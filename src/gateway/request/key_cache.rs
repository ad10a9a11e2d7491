//! Keys that were looked up in the ledger: their records, for a short time, and for hours which of
//! them were good, for the time in which the ledger is away.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use crate::gateway::budgets::tenants::{Tenant, TenantId, TenantTable};
use crate::ledger::{KeyHash, KeyRecord};

/// Keys are looked up again after this time, so a revoked one works no longer than that.
const KEY_TTL: Duration = Duration::from_secs(10);
/// Keys that do not exist are looked up again after this time.
const UNKNOWN_KEY_TTL: Duration = Duration::from_secs(1);
/// While the ledger is away, a key that it called good at most this long ago gets what is free.
const GOOD_KEY_TTL: Duration = Duration::from_hours(12);
/// The number of keys that are remembered, of each kind.
const KEYS_MAX: u64 = 100_000;

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) struct AuthenticatedCaller {
    /// The record of the key: whose it is.
    pub key: Arc<KeyRecord>,
    /// What its account uses of this gateway.
    pub tenant: Arc<Tenant>,
}

#[derive(Debug)]
pub(crate) struct ApiKeyCache {
    callers: Cache<KeyHash, AuthenticatedCaller>,
    /// Keys that do not exist, so that guessing does not reach the ledger each time.
    unknown: Cache<KeyHash, ()>,
    good: Cache<KeyHash, Arc<KeyRecord>>,
    tenants: Arc<TenantTable>,
}

impl ApiKeyCache {
    /// No keys yet. What their accounts use is in the table.
    #[must_use]
    pub(crate) fn new(tenants: &Arc<TenantTable>) -> ApiKeyCache {
        let cache = |life| Cache::builder().max_capacity(KEYS_MAX).time_to_live(life);
        ApiKeyCache {
            callers: cache(KEY_TTL).build(),
            unknown: Cache::builder().max_capacity(KEYS_MAX).time_to_live(UNKNOWN_KEY_TTL).build(),
            good: Cache::builder().max_capacity(KEYS_MAX).time_to_live(GOOD_KEY_TTL).build(),
            tenants: tenants.clone(),
        }
    }

    /// The caller with a key that was looked up lately, be it revoked.
    #[must_use]
    pub(crate) fn caller(&self, hash: &KeyHash) -> Option<AuthenticatedCaller> {
        self.callers.get(hash)
    }

    /// Whether the ledger said lately that there is no such key.
    #[must_use]
    pub(crate) fn is_unknown(&self, hash: &KeyHash) -> bool {
        self.unknown.contains_key(hash)
    }

    /// The caller with a key that was good when the ledger last told.
    #[must_use]
    pub(crate) fn caller_known_good(&self, hash: &KeyHash) -> Option<AuthenticatedCaller> {
        self.good.get(hash).map(|key| self.make_caller(key))
    }

    /// Remembers what the ledger says about a key.
    #[must_use]
    pub(crate) fn remember(
        &self,
        hash: KeyHash,
        found: Option<KeyRecord>,
    ) -> Option<AuthenticatedCaller> {
        let Some(record) = found else {
            self.good.invalidate(&hash);
            self.unknown.insert(hash, ());
            return None;
        };
        let key = Arc::new(record);
        if key.revoked_at.is_some() {
            self.good.invalidate(&hash);
        } else {
            self.good.insert(hash, key.clone());
        }
        let caller = self.make_caller(key);
        self.callers.insert(hash, caller.clone());
        Some(caller)
    }

    fn make_caller(&self, key: Arc<KeyRecord>) -> AuthenticatedCaller {
        let tenant = self.tenants.tenant(TenantId::Account(key.account.clone()));
        AuthenticatedCaller { key, tenant }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::AccountName;

    fn record(revoked_at: Option<i64>) -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        KeyRecord { account, prefix: "sk".to_owned(), created_at: 1, revoked_at }
    }

    fn hash(text: &str) -> KeyHash {
        KeyHash::of(text)
    }

    #[test]
    fn only_keys_that_were_good_when_last_looked_up_are_known_good() {
        let keys = ApiKeyCache::new(&Arc::default());
        let [good, other] = ["one", "other"].map(hash);
        assert!(keys.caller_known_good(&good).is_none(), "it was never looked up");
        assert!(keys.remember(good, Some(record(None))).is_some());
        assert!(keys.caller_known_good(&good).is_some());
        assert!(keys.caller_known_good(&other).is_none());
        assert!(keys.remember(good, Some(record(Some(2)))).is_some());
        assert!(keys.caller_known_good(&good).is_none(), "it was revoked");
        assert!(keys.remember(good, Some(record(None))).is_some());
        assert!(keys.remember(good, None).is_none());
        assert!(keys.caller_known_good(&good).is_none(), "there is none any more");
        assert!(keys.is_unknown(&good));
    }

    #[test]
    fn keys_of_one_account_are_one_tenant() {
        let keys = ApiKeyCache::new(&Arc::default());
        let one = keys.remember(hash("one"), Some(record(None))).expect("a caller");
        let other = keys.remember(hash("other"), Some(record(None))).expect("a caller");
        let again = keys.caller_known_good(&hash("one")).expect("a caller");
        assert!(Arc::ptr_eq(&one.tenant, &other.tenant) && Arc::ptr_eq(&one.tenant, &again.tenant));
    }
}
