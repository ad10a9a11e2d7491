//! The names of calls, with an outbox before them: whoever takes over from a process that died
//! lets the names lapse that it had, at once.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::log::SettlementLog;
use crate::ledger::{AccountName, Unavailable};
use crate::repeats::{ClaimMode, ClaimResult, IdempotencyKey, ReplyParts, ReplyStore};

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
    /// What takes a name whoever has it is an ordinary call: it asks for no more than that a try
    /// after it finds it, and is not written down.
    async fn take(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        taking: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        if *taking != ClaimMode::Anew {
            self.log.call_begins(account, naming);
        }
        let taken = self.store.take(account, naming, taking, lease_ms).await;
        // Without an answer it may have been taken; then it is given back.
        if taken.as_ref().is_ok_and(|taken| *taken != ClaimResult::Mine) {
            self.log.calls.end(account, &naming.name, &naming.owner);
        }
        taken
    }

    async fn renew(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable> {
        self.store.renew(account, name, owner, lease_ms).await
    }

    async fn end(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let done = self.store.end(account, naming, reply).await?;
        self.log.calls.end(account, &naming.name, &naming.owner);
        Ok(done)
    }

    async fn free(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable> {
        self.store.free(account, name, owner).await?;
        self.log.calls.end(account, name, owner);
        Ok(())
    }

    async fn piece(
        &self,
        account: &AccountName,
        owner: &str,
        piece: u32,
    ) -> Result<Option<Bytes>, Unavailable> {
        self.store.piece(account, owner, piece).await
    }
}
