//! Caches the API keys that were looked up in the ledger. A record is used for a second at most
//! while the ledger answers. Which keys were valid is kept for hours, for free endpoints while the
//! ledger is unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use moka::sync::Cache;

use crate::gateway::budgets::tenants::{Tenant, TenantId, TenantTable};
use crate::ledger::{KeyHash, KeyRecord, KeyScope};

/// A record is used for this time without a question, so a key that was revoked, disabled or
/// restricted works no longer than that as it did.
const KEY_TTL: Duration = Duration::from_secs(1);
/// From this age of a record on one request looks the key up again, while others use the record. So
/// a key in use costs one lookup in this time, and hardly any request waits for one.
const KEY_REFRESH_AGE: Duration = Duration::from_millis(700);
/// A record is used for this time while the ledger does not answer.
const UNANSWERED_KEY_TTL: Duration = Duration::from_secs(10);
/// After a lookup that the ledger did not answer, the record is used for this time before the next
/// one.
const UNANSWERED_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Keys that do not exist are looked up again after this time.
const UNKNOWN_KEY_TTL: Duration = Duration::from_secs(1);
/// While the ledger is unavailable, a key may use free endpoints if the ledger confirmed that it
/// was valid at most this long ago.
const GOOD_KEY_TTL: Duration = Duration::from_hours(12);
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
}

impl AuthenticatedCaller {
    /// Returns the scope of the key; `None` if it restricts nothing.
    #[must_use]
    pub(crate) fn restrictions(&self) -> Option<&KeyScope> {
        self.is_restricted.then(|| &self.key.scope)
    }
}

/// A caller as the ledger knew it at a moment.
#[derive(Debug)]
struct CachedCaller {
    caller: AuthenticatedCaller,
    /// When the ledger was asked.
    asked_at: Instant,
    /// When the key is looked up again.
    refresh_at: Instant,
    /// From here on no request uses the record without asking.
    usable_until: Instant,
    /// Whether a request looks the key up again.
    is_refreshing: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct ApiKeyCache {
    callers: Cache<KeyHash, Arc<CachedCaller>>,
    /// Keys that do not exist, so that guessing does not reach the ledger each time.
    unknown: Cache<KeyHash, ()>,
    good: Cache<KeyHash, Arc<KeyRecord>>,
    tenants: Arc<TenantTable>,
}

impl ApiKeyCache {
    /// Creates an empty cache. `tenants` is the table in which the callers' accounts are tenants.
    #[must_use]
    pub(crate) fn new(tenants: &Arc<TenantTable>) -> ApiKeyCache {
        ApiKeyCache {
            callers: Cache::builder()
                .max_capacity(KEYS_MAX)
                .time_to_live(UNANSWERED_KEY_TTL)
                .build(),
            unknown: Cache::builder().max_capacity(KEYS_MAX).time_to_live(UNKNOWN_KEY_TTL).build(),
            good: Cache::builder().max_capacity(KEYS_MAX).time_to_live(GOOD_KEY_TTL).build(),
            tenants: tenants.clone(),
        }
    }

    /// Returns the caller with a key as it was looked up recently, even if the key is revoked.
    /// `None` if the request has to look the key up: nobody did, or that was too long ago, or this
    /// is the one request that does it for the others.
    #[must_use]
    pub(crate) fn caller(&self, hash: &KeyHash, now: Instant) -> Option<AuthenticatedCaller> {
        let cached = self.callers.get(hash)?;
        let is_usable = now < cached.refresh_at
            || (now < cached.usable_until && cached.is_refreshing.swap(true, Ordering::Relaxed));
        is_usable.then(|| cached.caller.clone())
    }

    /// Whether a recent lookup in the ledger did not find the key.
    #[must_use]
    pub(crate) fn is_unknown(&self, hash: &KeyHash) -> bool {
        self.unknown.contains_key(hash)
    }

    /// Notes that the ledger did not answer. Returns the caller with a key that was looked up not
    /// long ago.
    #[must_use]
    pub(crate) fn caller_unanswered(
        &self,
        hash: KeyHash,
        now: Instant,
    ) -> Option<AuthenticatedCaller> {
        let cached = self.callers.get(&hash)?;
        let (caller, asked_at) = (cached.caller.clone(), cached.asked_at);
        let end = asked_at + UNANSWERED_KEY_TTL;
        if now >= end {
            return None;
        }
        let refresh_at = end.min(now + UNANSWERED_RETRY_PAUSE);
        let (usable_until, is_refreshing) = (end, AtomicBool::new(false));
        let kept = CachedCaller {
            caller: caller.clone(),
            asked_at,
            refresh_at,
            usable_until,
            is_refreshing,
        };
        self.callers.insert(hash, Arc::new(kept));
        Some(caller)
    }

    /// Returns the caller with a key that was valid when it was last looked up in the ledger.
    #[must_use]
    pub(crate) fn caller_known_good(&self, hash: &KeyHash) -> Option<AuthenticatedCaller> {
        self.good.get(hash).map(|key| self.make_caller(key))
    }

    /// Caches the result of looking up a key in the ledger, which was asked at `asked_at`. Returns
    /// the caller; `None` if there is no such key.
    #[must_use]
    pub(crate) fn remember(
        &self,
        hash: KeyHash,
        found: Option<KeyRecord>,
        asked_at: Instant,
    ) -> Option<AuthenticatedCaller> {
        let Some(record) = found else {
            self.good.invalidate(&hash);
            self.callers.invalidate(&hash);
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
        let cached = CachedCaller {
            caller: caller.clone(),
            asked_at,
            refresh_at: asked_at + KEY_REFRESH_AGE,
            usable_until: asked_at + KEY_TTL,
            is_refreshing: AtomicBool::new(false),
        };
        self.callers.insert(hash, Arc::new(cached));
        Some(caller)
    }

    fn make_caller(&self, key: Arc<KeyRecord>) -> AuthenticatedCaller {
        let tenant = self.tenants.tenant(TenantId::Account(key.account.clone()));
        let is_restricted = key.scope.is_restricting();
        AuthenticatedCaller { key, tenant, is_restricted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{AccountName, KeyId};

    fn record(revoked_at: Option<i64>) -> KeyRecord {
        let account = AccountName::parse("acme").expect("a name");
        let (id, prefix) = (KeyId(1), "sk".to_owned());
        KeyRecord { id, account, prefix, created_at: 1, revoked_at, scope: KeyScope::default() }
    }

    fn hash(text: &str) -> KeyHash {
        KeyHash::of(text)
    }

    #[test]
    fn only_keys_that_were_good_when_last_looked_up_are_known_good() {
        let keys = ApiKeyCache::new(&Arc::default());
        let [good, other] = ["one", "other"].map(hash);
        assert!(keys.caller_known_good(&good).is_none(), "it was never looked up");
        assert!(keys.remember(good, Some(record(None)), Instant::now()).is_some());
        assert!(keys.caller_known_good(&good).is_some());
        assert!(keys.caller_known_good(&other).is_none());
        assert!(keys.remember(good, Some(record(Some(2))), Instant::now()).is_some());
        assert!(keys.caller_known_good(&good).is_none(), "it was revoked");
        assert!(keys.remember(good, Some(record(None)), Instant::now()).is_some());
        assert!(keys.remember(good, None, Instant::now()).is_none());
        assert!(keys.caller_known_good(&good).is_none(), "there is none any more");
        assert!(keys.is_unknown(&good));
    }

    #[test]
    fn keys_of_one_account_are_one_tenant() {
        let keys = ApiKeyCache::new(&Arc::default());
        let one = keys.remember(hash("one"), Some(record(None)), Instant::now()).expect("a caller");
        let other =
            keys.remember(hash("other"), Some(record(None)), Instant::now()).expect("a caller");
        let again = keys.caller_known_good(&hash("one")).expect("a caller");
        assert!(Arc::ptr_eq(&one.tenant, &other.tenant) && Arc::ptr_eq(&one.tenant, &again.tenant));
    }

    #[test]
    fn a_key_in_use_is_looked_up_by_one_request_while_others_go_on() {
        let keys = ApiKeyCache::new(&Arc::default());
        let (key, asked) = (hash("one"), Instant::now());
        assert!(keys.caller(&key, asked).is_none());
        assert!(keys.remember(key, Some(record(None)), asked).is_some());
        let is_used = |ms: u64| keys.caller(&key, asked + Duration::from_millis(ms)).is_some();
        assert_eq!([is_used(0), is_used(699)], [true, true]);
        assert_eq!([is_used(700), is_used(700), is_used(999)], [false, true, true]);
        assert_eq!([is_used(1_000), is_used(1_000)], [false, false], "it is too old for all");
        let again = asked + Duration::from_secs(1);
        assert!(keys.remember(key, Some(record(Some(2))), again).is_some());
        assert_eq!([is_used(1_000), is_used(1_699), is_used(1_700)], [true, true, false]);
        assert!(keys.remember(key, None, again).is_none());
        assert!(!is_used(1_000), "it is there no more");
    }

    #[test]
    fn while_the_ledger_does_not_answer_a_record_is_used_for_ten_seconds() {
        let keys = ApiKeyCache::new(&Arc::default());
        let (key, asked) = (hash("one"), Instant::now());
        let at = |ms: u64| asked + Duration::from_millis(ms);
        assert!(keys.caller_unanswered(key, asked).is_none(), "nothing is known of it");
        assert!(keys.remember(key, Some(record(None)), asked).is_some());
        let is_used = |ms: u64| keys.caller(&key, at(ms)).is_some();
        assert!(!is_used(1_500));
        assert!(keys.caller_unanswered(key, at(1_500)).is_some());
        assert_eq!([is_used(1_500), is_used(2_499)], [true, true], "nobody asks meanwhile");
        assert_eq!([is_used(2_500), is_used(2_500), is_used(9_999)], [false, true, true]);
        assert!(keys.caller_unanswered(key, at(9_500)).is_some());
        assert_eq!([is_used(9_999), is_used(10_000)], [true, false]);
        assert!(keys.caller_unanswered(key, at(10_000)).is_none());
    }

    #[test]
    fn only_what_restricts_a_key_is_looked_at_by_each_request() {
        let keys = ApiKeyCache::new(&Arc::default());
        let remember = |scope: KeyScope| {
            let record = KeyRecord { scope, ..record(None) };
            keys.remember(hash("one"), Some(record), Instant::now()).expect("a caller")
        };
        let named = KeyScope { name: Some("ci".to_owned()), ..KeyScope::default() };
        assert_eq!(remember(named).restrictions(), None);
        let disabled = KeyScope { disabled: true, ..KeyScope::default() };
        assert_eq!(remember(disabled.clone()).restrictions(), Some(&disabled));
        let free = keys.caller_known_good(&hash("one")).expect("a caller");
        assert_eq!(free.restrictions(), Some(&disabled), "free endpoints heed it as well");
    }
}
