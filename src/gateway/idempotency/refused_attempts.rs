//! Remembers attempts that were refused for a while, so that their retries are new calls.
//!
//! A retry that has no idempotency key is recognised by its content. A client that asks for several
//! samples sends the same content several times on purpose. If one of these calls is refused, it
//! has no reply, and its retry must not get the reply of another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use moka::sync::Cache;

use crate::idempotency::AttemptId;
use crate::ledger::AccountName;

/// A client that honours `retry-after` has retried by then.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(15);
/// At most this many different calls are remembered.
const CALLS_MAX: u64 = 16_384;

/// How many attempts of each call were refused and not yet retried.
#[derive(Debug)]
pub(crate) struct RefusedAttempts(Cache<(AccountName, AttemptId), Arc<AtomicU32>>);

impl Default for RefusedAttempts {
    fn default() -> RefusedAttempts {
        let cache = Cache::builder().max_capacity(CALLS_MAX).time_to_live(RETRY_WAIT_MAX);
        RefusedAttempts(cache.build())
    }
}

impl RefusedAttempts {
    /// Remembers that an attempt of the call was refused.
    pub(super) fn add(&self, account: &AccountName, id: &AttemptId) {
        let count = self.0.get_with((account.clone(), id.clone()), Arc::default);
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a refused attempt of this call; `false` if there is none.
    pub(super) fn take(&self, account: &AccountName, id: &AttemptId) -> bool {
        let Some(count) = self.0.get(&(account.clone(), id.clone())) else { return false };
        let one_less = |count: u32| count.checked_sub(1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_retries_are_new_calls_as_attempts_were_refused() {
        let refused = RefusedAttempts::default();
        let [ada, bob] = ["ada", "bob"].map(|name| AccountName::parse(name).expect("a name"));
        let [call, other] =
            [1, 2].map(|digit| AttemptId { endpoint: "chat".into(), content: [digit; 32] });
        assert!(!refused.take(&ada, &call));
        (0..2).for_each(|_| refused.add(&ada, &call));
        assert!(!refused.take(&bob, &call) && !refused.take(&ada, &other));
        assert!(refused.take(&ada, &call) && refused.take(&ada, &call));
        assert!(!refused.take(&ada, &call));
    }
}
