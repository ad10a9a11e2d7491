//! The names of calls, with an outbox before them: whoever takes over from a process that died
//! lets the names lapse that it had, at once.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::settlement_log::SettlementLog;
use crate::idempotency::{ClaimMode, ClaimResult, IdempotencyKey, ReplyParts, ReplyStore};
use crate::ledger::{AccountName, Unavailable};

/// See the module.
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

    /// What takes a name whoever has it is an ordinary call: it asks for no more than that a try
    /// after it finds it, and is not written down.
    async fn claim_key(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        taking: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        if *taking != ClaimMode::Replace {
            self.log.record_call_start(account, naming);
        }
        let taken = self.store.claim_key(account, naming, taking, lease_ms).await;
        // Without an answer it may have been taken; then it is given back.
        if taken.as_ref().is_ok_and(|taken| *taken != ClaimResult::Claimed) {
            self.log.calls.record_end(account, &naming.name, &naming.owner);
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
        naming: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let done = self.store.complete(account, naming, reply).await?;
        self.log.calls.record_end(account, &naming.name, &naming.owner);
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
