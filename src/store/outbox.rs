//! The outbox: whatever ends a hold is written down on this machine before it is sent to the shared
//! store, and sent again until the store has it, and once more when the store may have lost it.
//!
//! So neither an outage of the store, nor its fall back to an older state, nor the death of this
//! process loses a charge: the next process on the machine adopts what this one left. Sending
//! something twice changes nothing, since every operation carries its hold's id.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use sha2::{Digest, Sha256};

use super::StoreSection;
use super::redis::{Guard, Redis};
use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, Answer, Entry, KeyHash, KeyRecord, Ledger, Operation, Swept, Unavailable,
};

mod log;
mod record;
mod replay;
mod shelf;
mod sync;

use log::{Key, Log};
pub(super) use replay::Replay;

/// What the store has not acknowledged for so long is sent again, so many at a time.
const AGAIN: Duration = Duration::from_secs(5);
const AGAIN_MAX: usize = 256;

/// What all connections of a process share: its outbox, and what it knows of the store's run.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) guard: Arc<Guard>,
    log: Arc<Log>,
}

impl Shared {
    /// Opens the outbox of a store. What is left of another store stays apart, since its holds are
    /// not this one's.
    pub(super) fn open(section: &StoreSection) -> Result<Shared, Unavailable> {
        let sound = Arc::new(AtomicBool::new(true));
        let root = PathBuf::from(&section.outbox).join(place_of(&section.url));
        let log = Arc::new(Log::open(&root, sound.clone())?);
        Ok(Shared { guard: Arc::new(Guard::new(sound)), log })
    }

    /// Writes what there is to write before the process leaves.
    pub(super) fn flush(&self) {
        self.log.flush();
    }

    /// What is to be done now and then; blocks for a moment.
    pub(super) fn tidy(&self) {
        self.log.tidy();
    }

    /// Sends again what nobody has acknowledged for a while: whoever sent it first may be gone.
    pub(super) async fn insist(&self, redis: &Redis) {
        let again = self.log.waiting(AGAIN, AGAIN_MAX).into_iter().map(|(key, op)| async move {
            // It is tried again if that fails.
            let _ = self.send(redis, &key, &op).await;
        });
        join_all(again).await;
    }

    /// Sends what was entered.
    async fn send(&self, redis: &Redis, key: &Key, op: &Operation) -> Result<Answer, Unavailable> {
        let (answer, run) = redis.apply_guarded(&self.guard, key.account(), op).await?;
        // A run that is over may have forgotten it by now: then it waits, and goes out again.
        if let Some(run) = run.filter(|run| self.guard.is_now(run)) {
            self.log.acked(key, &run.run);
        }
        Ok(answer)
    }
}

/// Where the outbox of a store is: what its address says but for users and passwords.
fn place_of(url: &str) -> String {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let digest = Sha256::digest(host.trim_end_matches('/'));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The shared store's ledger, with an outbox before it.
pub(super) struct Outbox {
    redis: Redis,
    shared: Shared,
}

impl Outbox {
    pub(super) fn new(redis: Redis, shared: Shared) -> Outbox {
        Outbox { redis, shared }
    }
}

#[async_trait]
impl Ledger for Outbox {
    async fn open(&self, account: &AccountName) -> Result<bool, Unavailable> {
        self.redis.open(account).await
    }

    async fn apply(&self, account: &AccountName, op: Operation) -> Result<Answer, Unavailable> {
        if !matches!(op, Operation::Settle { .. } | Operation::Void { .. }) {
            return self.redis.apply(account, op).await;
        }
        let op = Arc::new(op);
        let key = self.shared.log.enter(account, &op);
        self.shared.send(&self.redis, &key, &op).await
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        self.redis.balances(account).await
    }

    async fn accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.redis.accounts().await
    }

    async fn journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<Entry>, Unavailable> {
        self.redis.journal(account, seq, limit).await
    }

    async fn expire(&self) -> Result<Swept, Unavailable> {
        self.redis.expire().await
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        self.redis.add_key(hash, record).await
    }

    async fn key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        self.redis.key(hash).await
    }

    async fn keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        self.redis.keys(account).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        self.redis.revoke_key(prefix, at).await
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        self.redis.ping().await?;
        self.shared.guard.is_open()
    }
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn a_store_keeps_its_place_when_its_password_changes() {
        let place = place_of("redis://me:secret@host:6379/1");
        for same in ["redis://host:6379/1", "rediss://you:p@ss@host:6379/1/"] {
            assert_eq!(place_of(same), place, "{same}");
        }
        for other in ["redis://host:6379/2", "redis://host:6380/1", "redis-cluster://host:6379"] {
            assert_ne!(place_of(other), place, "{other}");
        }
        assert!(place.bytes().all(|b| b.is_ascii_hexdigit()) && place.len() == 16);
    }
}
