//! The store of idempotency keys and replies with an outbox: each call is recorded before it claims
//! its key, so that the process which adopts the outbox of a dead process can expire its keys at
//! once.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::settlement_log::SettlementLog;
use crate::idempotency::{ClaimMode, ClaimResult, IdempotencyKey, ReplyParts, ReplyStore};
use crate::ledger::{AccountName, Unavailable};

/// A reply store with an outbox in which the calls that claim keys are recorded.
pub(in crate::store) struct OutboxReplies {
    store: Arc<dyn ReplyStore>,
    log: Arc<SettlementLog>,
}

impl OutboxReplies {
    pub(in crate::store) fn new(
        store: Arc<dyn ReplyStore>,
        log: Arc<SettlementLog>,
    ) -> OutboxReplies {
        OutboxReplies { store, log }
    }
}

#[async_trait]
impl ReplyStore for OutboxReplies {
    fn is_durable_at_once(&self) -> bool {
        self.store.is_durable_at_once()
    }

    /// Records the call before it claims its key, except with `ClaimMode::Replace`: that is an
    /// ordinary call, which only needs a later retry to find its key.
    async fn claim_key(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        mode: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        if matches!(mode, ClaimMode::IfFree | ClaimMode::TakeOver(_)) {
            self.log.calls.wait_for_adoption().await?;
        }
        if *mode != ClaimMode::Replace {
            self.log.record_call_start(account, key);
        }
        let taken = self.store.claim_key(account, key, mode, lease_ms).await;
        // After an error the key may have been claimed all the same. The record then stays until
        // the key is released.
        if taken.as_ref().is_ok_and(|taken| *taken != ClaimResult::Claimed) {
            self.log.calls.record_end(account, &key.name, &key.owner);
        }
        taken
    }

    async fn renew_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable> {
        self.store.renew_key(account, name, owner, lease_ms).await
    }

    async fn complete(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let done = self.store.complete(account, key, reply).await?;
        self.log.calls.record_end(account, &key.name, &key.owner);
        Ok(done)
    }

    async fn release_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable> {
        self.store.release_key(account, name, owner).await?;
        self.log.calls.record_end(account, name, owner);
        Ok(())
    }

    async fn read_piece(
        &self,
        account: &AccountName,
        owner: &str,
        piece: u32,
    ) -> Result<Option<Bytes>, Unavailable> {
        self.store.read_piece(account, owner, piece).await
    }
}
