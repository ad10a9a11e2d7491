//! When keys were last used, until the ledger is told of it.
//!
//! A call writes nothing: its key is noted here once a minute, and a task tells the ledger of all
//! keys together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ledger::{KeyHash, Ledger, Unavailable};

/// At most this many keys are kept. A further key is noted once these are told.
const KEYS_MAX: usize = 100_000;
/// The ledger is told of at most this many keys at a time.
const BATCH_KEYS_MAX: usize = 1_000;
/// The length of a minute, in seconds.
const MINUTE_S: i64 = 60;

/// Returns the minute of a time, as the unix seconds at which it begins.
#[must_use]
pub(crate) fn minute_of(now_s: i64) -> i64 {
    now_s.saturating_sub(now_s.rem_euclid(MINUTE_S))
}

/// The last uses of keys that the ledger does not know yet, each as the unix seconds at which its
/// minute begins.
#[derive(Debug, Default)]
pub(crate) struct KeyUses(Mutex<HashMap<KeyHash, i64>>);

impl KeyUses {
    /// Notes that a key is used in the minute that begins at `minute_s` (unix seconds). `false` if
    /// there is no room for it now.
    #[must_use]
    pub(crate) fn note(&self, hash: KeyHash, minute_s: i64) -> bool {
        let mut uses = self.lock();
        if uses.len() >= KEYS_MAX && !uses.contains_key(&hash) {
            return false;
        }
        let last = uses.entry(hash).or_insert(minute_s);
        *last = minute_s.max(*last);
        true
    }

    /// Tells the ledger of all uses. It gets `timeout` for each batch of them.
    ///
    /// # Errors
    /// The ledger does not answer. What it was not told is kept for the next time.
    pub(crate) async fn flush(
        &self,
        ledger: &dyn Ledger,
        timeout: Duration,
    ) -> Result<(), Unavailable> {
        // Calls go on meanwhile, so there may always be something new.
        for _ in 0..=KEYS_MAX / BATCH_KEYS_MAX {
            let batch = self.next_batch();
            if batch.is_empty() {
                break;
            }
            let noted = tokio::time::timeout(timeout, ledger.note_key_uses(batch.clone())).await;
            noted.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned())))?;
            self.forget(&batch);
        }
        Ok(())
    }

    /// Returns uses of which the ledger is to be told. They stay here until that is done: the task
    /// may end in between.
    fn next_batch(&self) -> Vec<(KeyHash, i64)> {
        self.lock().iter().take(BATCH_KEYS_MAX).map(|(hash, at)| (*hash, *at)).collect()
    }

    /// Forgets what the ledger was told, but not what was used again since.
    fn forget(&self, told: &[(KeyHash, i64)]) {
        let mut uses = self.lock();
        for (hash, at) in told {
            if uses.get(hash) == Some(at) {
                uses.remove(hash);
            }
        }
    }

    /// Returns the last use of a key that is kept here.
    #[cfg(test)]
    pub(crate) fn last_use(&self, hash: KeyHash) -> Option<i64> {
        self.lock().get(&hash).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> KeyHash {
        KeyHash::of(&number.to_string())
    }

    #[test]
    fn a_time_belongs_to_the_minute_that_has_begun() {
        assert_eq!([0, 59, 60, 121].map(minute_of), [0, 0, 60, 120]);
        assert_eq!((minute_of(-1), minute_of(i64::MIN)), (-60, i64::MIN));
    }

    #[test]
    fn what_was_used_again_while_the_ledger_was_told_is_told_again() {
        let uses = KeyUses::default();
        assert!(uses.note(hash(1), 60) && uses.note(hash(2), 60));
        let told = uses.next_batch();
        assert_eq!(told.len(), 2);
        assert!(uses.note(hash(1), 120) && uses.note(hash(1), 60), "it never goes back");
        uses.forget(&told);
        assert_eq!(uses.next_batch(), [(hash(1), 120)]);
        uses.forget(&[(hash(1), 120), (hash(3), 60)]);
        assert!(uses.next_batch().is_empty());
    }

    #[test]
    fn there_is_room_for_so_many_keys_and_a_batch_has_a_part_of_them() {
        let uses = KeyUses::default();
        assert!((0..KEYS_MAX).all(|number| uses.note(hash(number), 60)));
        assert!(!uses.note(hash(KEYS_MAX), 60), "there is no room for another one");
        assert!(uses.note(hash(0), 120), "a known one needs none");
        let batch = uses.next_batch();
        assert_eq!(batch.len(), BATCH_KEYS_MAX);
        uses.forget(&batch);
        assert!(uses.note(hash(KEYS_MAX), 60));
    }
}
