//! Caches the API keys that were looked up in the ledger, until one is revoked or changed. Which of
//! them were valid is kept for hours, for free endpoints while the ledger is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use moka::sync::Cache;

use crate::fast_map::HashKeys;
use crate::gateway::budgets::tenants::{Tenant, TenantId, TenantTable};
use crate::gateway::key_uses::{KeyUses, minute_of};
use crate::ledger::{KeyHash, KeyRecord, KeyScope};

/// Keys are looked up again after this time, even if no change of a key was noticed.
const KEY_TTL: Duration = Duration::from_secs(10);
/// Keys that do not exist are looked up again after this time.
const UNKNOWN_KEY_TTL: Duration = Duration::from_secs(1);
/// While the ledger is unavailable, a key may use free endpoints if the ledger confirmed that it
/// was valid at most this long ago.
const VALID_KEY_TTL: Duration = Duration::from_hours(12);
/// Each of the caches holds at most this many keys.
const KEYS_MAX: u64 = 100_000;

/// The caller of an authenticated request.
#[derive(Debug, Clone)]
pub(crate) struct AuthenticatedCaller {
    /// The record of the API key, which names the account that owns it.
    pub key: Arc<KeyRecord>,
    /// The account as a tenant: its use of the gateway's shared resources.
    pub tenant: Arc<Tenant>,
    /// Whether the scope of the key restricts anything.
    is_restricted: bool,
    /// The beginning of the last minute in which a use of the key was noted, in unix seconds.
    noted_minute: Arc<AtomicI64>,
}

impl AuthenticatedCaller {
    /// Returns the scope of the key; `None` if it restricts nothing.
    #[must_use]
    pub(crate) fn restrictions(&self) -> Option<&KeyScope> {
        self.is_restricted.then(|| &self.key.scope)
    }

    /// Notes that the key with this digest is used at the time `now` (unix seconds). A minute that
    /// is noted already costs one atomic load.
    pub(crate) fn note_use(&self, uses: &KeyUses, hash: KeyHash, now: i64) {
        let minute = minute_of(now);
        // If there is no room in `uses`, the next call tries again.
        if self.noted_minute.load(Ordering::Relaxed) < minute && uses.note(hash, minute) {
            self.noted_minute.store(minute, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(crate) struct ApiKeyCache {
    callers: Cache<KeyHash, AuthenticatedCaller, HashKeys>,
    /// Keys that do not exist, so that guessing does not reach the ledger each time.
    unknown: Cache<KeyHash, ()>,
    /// Keys that were valid when last looked up, for free endpoints while the ledger is
    /// unavailable.
    valid: Cache<KeyHash, Arc<KeyRecord>>,
    tenants: Arc<TenantTable>,
    /// The last revision of all keys that was read.
    revision: AtomicU64,
}

impl ApiKeyCache {
    /// Creates an empty cache. `tenants` is the table in which the callers' accounts are tenants.
    #[must_use]
    pub(crate) fn new(tenants: &Arc<TenantTable>) -> ApiKeyCache {
        let callers = Cache::builder().max_capacity(KEYS_MAX).time_to_live(KEY_TTL);
        ApiKeyCache {
            callers: callers.build_with_hasher(HashKeys::default()),
            unknown: Cache::builder().max_capacity(KEYS_MAX).time_to_live(UNKNOWN_KEY_TTL).build(),
            valid: Cache::builder().max_capacity(KEYS_MAX).time_to_live(VALID_KEY_TTL).build(),
            tenants: tenants.clone(),
            revision: AtomicU64::new(0),
        }
    }

    /// Returns the caller with a key that was looked up recently, even if the key is revoked.
    #[must_use]
    pub(crate) fn caller(&self, hash: &KeyHash) -> Option<AuthenticatedCaller> {
        self.callers.get(hash)
    }

    /// Returns the last revision of all keys that was read. It goes with a lookup that begins now.
    #[must_use]
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    /// Notes the revision of all keys. If it has changed, every key is looked up again.
    pub(crate) fn note_revision(&self, revision: u64) {
        if self.revision.swap(revision, Ordering::SeqCst) != revision {
            self.callers.invalidate_all();
        }
    }

    /// Whether a recent lookup in the ledger did not find the key.
    #[must_use]
    pub(crate) fn is_unknown(&self, hash: &KeyHash) -> bool {
        self.unknown.contains_key(hash)
    }

    /// Returns the caller with a key that was valid when it was last looked up in the ledger.
    #[must_use]
    pub(crate) fn last_valid_caller(&self, hash: &KeyHash) -> Option<AuthenticatedCaller> {
        self.valid.get(hash).map(|key| self.make_caller(key))
    }

    /// Caches what a lookup of a key in the ledger found. `revision` is the one that
    /// [`Self::revision`] gave before the lookup began. Returns the caller; `None` if there is no
    /// such key.
    #[must_use]
    pub(crate) fn remember(
        &self,
        hash: KeyHash,
        found: Option<KeyRecord>,
        revision: u64,
    ) -> Option<AuthenticatedCaller> {
        let Some(record) = found else {
            self.valid.invalidate(&hash);
            self.callers.invalidate(&hash);
            self.unknown.insert(hash, ());
            return None;
        };
        let key = Arc::new(record);
        if key.revoked_at.is_some() {
            self.valid.invalidate(&hash);
        } else {
            self.valid.insert(hash, key.clone());
        }
        let caller = self.make_caller(key);
        self.callers.insert(hash, caller.clone());
        // What was read may be from before a change that was noticed meanwhile.
        if self.revision() != revision {
            self.callers.invalidate(&hash);
        }
        Some(caller)
    }

    fn make_caller(&self, key: Arc<KeyRecord>) -> AuthenticatedCaller {
        let tenant = self.tenants.tenant(TenantId::Account(key.account.clone()));
        let is_restricted = key.scope.is_restricting();
        // The store need not be told again of what it knows.
        let noted_minute = Arc::new(AtomicI64::new(key.last_used_at.unwrap_or(i64::MIN)));
        AuthenticatedCaller { key, tenant, is_restricted, noted_minute }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::AccountName;
    use crate::ledger::key::ApiKey;

    fn record(revoked_at: Option<i64>) -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        let record = KeyRecord::new(&ApiKey::from_random([1; 32]), account, 1, KeyScope::default());
        KeyRecord { revoked_at, ..record }
    }

    fn hash(text: &str) -> KeyHash {
        KeyHash::of(text)
    }

    #[test]
    fn only_a_key_that_was_valid_when_last_looked_up_has_a_last_valid_caller() {
        let keys = ApiKeyCache::new(&Arc::default());
        let [valid, other] = ["one", "other"].map(hash);
        assert!(keys.last_valid_caller(&valid).is_none(), "it was never looked up");
        assert!(keys.remember(valid, Some(record(None)), 0).is_some());
        assert!(keys.last_valid_caller(&valid).is_some());
        assert!(keys.last_valid_caller(&other).is_none());
        assert!(keys.remember(valid, Some(record(Some(2))), 0).is_some());
        assert!(keys.last_valid_caller(&valid).is_none(), "it was revoked");
        assert!(keys.remember(valid, Some(record(None)), 0).is_some());
        assert!(keys.remember(valid, None, 0).is_none());
        assert!(keys.last_valid_caller(&valid).is_none(), "there is none any more");
        assert!(keys.is_unknown(&valid));
    }

    #[test]
    fn keys_of_one_account_are_one_tenant() {
        let keys = ApiKeyCache::new(&Arc::default());
        let one = keys.remember(hash("one"), Some(record(None)), 0).expect("a caller");
        let other = keys.remember(hash("other"), Some(record(None)), 0).expect("a caller");
        let again = keys.last_valid_caller(&hash("one")).expect("a caller");
        assert!(Arc::ptr_eq(&one.tenant, &other.tenant) && Arc::ptr_eq(&one.tenant, &again.tenant));
    }

    #[test]
    fn every_key_is_looked_up_again_after_one_has_changed() {
        let keys = ApiKeyCache::new(&Arc::default());
        let key = hash("one");
        let revision = keys.revision();
        assert!(keys.remember(key, Some(record(None)), revision).is_some());
        keys.note_revision(revision);
        assert!(keys.caller(&key).is_some(), "nothing has changed");
        keys.note_revision(revision + 1);
        assert!(keys.caller(&key).is_none());
        // A lookup that began before the change may have read the key as it was.
        assert!(keys.remember(key, Some(record(None)), revision).is_some());
        assert!(keys.caller(&key).is_none());
        assert!(keys.remember(key, Some(record(Some(2))), keys.revision()).is_some());
        assert!(keys.caller(&key).is_some_and(|caller| caller.key.revoked_at == Some(2)));
    }

    #[test]
    fn a_key_is_noted_once_a_minute_and_not_if_the_store_knows_it() {
        let (keys, uses) = (ApiKeyCache::new(&Arc::default()), KeyUses::default());
        let key = hash("one");
        let record = KeyRecord { last_used_at: Some(120), ..record(None) };
        let caller = keys.remember(key, Some(record), 0).expect("a caller");
        for (now, noted) in [(130, i64::MIN), (181, 180), (239, 180), (240, 240), (181, 240)] {
            caller.note_use(&uses, key, now);
            let known = uses.last_use(key).unwrap_or(i64::MIN);
            assert_eq!(known, noted, "{now}");
        }
        let again = keys.caller(&key).expect("a caller");
        assert!(Arc::ptr_eq(&caller.noted_minute, &again.noted_minute), "all calls share it");
    }

    #[test]
    fn only_what_restricts_a_key_is_looked_at_by_each_request() {
        let keys = ApiKeyCache::new(&Arc::default());
        let remember = |scope: KeyScope| {
            let record = KeyRecord { scope, ..record(None) };
            keys.remember(hash("one"), Some(record), 0).expect("a caller")
        };
        let named = KeyScope { name: Some("ci".to_owned()), ..KeyScope::default() };
        assert_eq!(remember(named).restrictions(), None);
        let disabled = KeyScope { disabled: true, ..KeyScope::default() };
        assert_eq!(remember(disabled.clone()).restrictions(), Some(&disabled));
        let free = keys.last_valid_caller(&hash("one")).expect("a caller");
        assert_eq!(free.restrictions(), Some(&disabled), "free endpoints heed it as well");
    }
}
