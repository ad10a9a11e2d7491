//! Writes first attempts from the memory of a process to the store, where others find them.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use futures_util::future::join_all;
use tokio::sync::watch;

use super::attempt_id::AttemptId;
use super::first_attempts::FirstAttempts;
use super::reply_store::{ClaimMode, IdempotencyKey, ReplyParts, ReplyStore};
use crate::ledger::{AccountName, Lease, Leases, Unavailable};

/// At most this many attempts are written to the store at the same time.
const STORE_BATCH: usize = 64;

/// What has to be written to the store, so that other processes find an attempt.
#[derive(Debug)]
pub(crate) enum Promotion {
    /// The call runs: its key is to be claimed.
    Running(PendingClaim),
    /// The call runs, and another task claims its key, until this channel closes.
    BeingClaimed(watch::Receiver<()>),
    /// The call has ended: its key is completed with its reply, if that is kept.
    Ended(IdempotencyKey, Option<ReplyParts>),
}

/// The claim of an attempt that runs.
#[derive(Debug)]
pub(crate) struct PendingClaim {
    /// The key that is to be claimed.
    pub key: IdempotencyKey,
    pub(super) attempts: FirstAttempts,
    pub(super) account: AccountName,
    pub(super) id: AttemptId,
    pub(super) serial: u64,
    pub(super) is_made: bool,
    /// Its channel closes when this is dropped; always set before.
    pub(super) claimed: Option<watch::Sender<()>>,
}

impl PendingClaim {
    /// Records that the claim was made; `lease` renews it until the call ends. A claim that is
    /// dropped instead was not made, and is tried again.
    pub(crate) fn set_made(mut self, lease: Lease) {
        self.is_made = true;
        self.attempts.update_running(&self.account, &self.id, self.serial, |running| {
            if let Some(promoted) = &mut running.promoted {
                promoted.lease = Some(lease);
            }
        });
    }
}

impl Drop for PendingClaim {
    fn drop(&mut self) {
        if !self.is_made {
            let PendingClaim { attempts, account, id, serial, .. } = self;
            attempts.update_running(account, id, *serial, |running| running.promoted = None);
        }
        // Who waits for the claim looks at the attempt again, so the channel closes last.
        drop(self.claimed.take());
    }
}

/// Where the attempts of a process are written to.
#[derive(Clone, Copy)]
pub(crate) struct AttemptStore<'a> {
    /// The store.
    pub(crate) reply_store: &'a dyn ReplyStore,
    /// Renews the claims of calls that run.
    pub(crate) leases: &'a Leases,
    /// How long a claim lives that is not renewed, in ms. It is renewed four times in that time.
    pub(crate) lease_ms: u64,
}

/// Writes all attempts to the store, so that other processes find them. Called when no new ones are
/// kept in memory any more. An attempt that the store does not take does not stop the others.
///
/// # Errors
/// The store did not take all of them.
pub(crate) async fn store_all_attempts(
    attempts: &FirstAttempts,
    store: AttemptStore<'_>,
    now_ms: u64,
) -> Result<(), Unavailable> {
    let mut result = Ok(());
    for few in attempts.all().chunks(STORE_BATCH) {
        let storing =
            few.iter().map(|(account, id)| store_attempt(attempts, account, id, store, now_ms));
        result = join_all(storing).await.into_iter().fold(result, Result::and);
    }
    result
}

/// Writes an attempt to the store, if this process has it, so that other processes find it.
///
/// # Errors
/// The store does not answer. The attempt stays in memory.
pub(crate) async fn store_attempt(
    attempts: &FirstAttempts,
    account: &AccountName,
    id: &AttemptId,
    store: AttemptStore<'_>,
    now_ms: u64,
) -> Result<(), Unavailable> {
    let AttemptStore { reply_store, leases, lease_ms } = store;
    loop {
        match attempts.promote(account, id, now_ms) {
            None => return Ok(()),
            Some(Promotion::BeingClaimed(mut claimed)) => {
                // The channel closes without a message. The claim may not have been made.
                let _ = claimed.changed().await;
            }
            Some(Promotion::Running(pending)) => {
                let key = &pending.key;
                reply_store.claim_key(account, key, &ClaimMode::Replace, lease_ms).await?;
                let lease = leases.keep_alive(key.lease_entry(account));
                pending.set_made(lease);
                return Ok(());
            }
            Some(Promotion::Ended(key, reply)) => {
                if !reply_store.complete(account, &key, reply.clone()).await? {
                    // An earlier call with the same content has the name.
                    reply_store.claim_key(account, &key, &ClaimMode::Replace, lease_ms).await?;
                    reply_store.complete(account, &key, reply).await?;
                }
                return Ok(());
            }
        }
    }
}
