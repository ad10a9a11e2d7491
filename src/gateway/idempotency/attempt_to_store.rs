//! First attempts that the store has to know before a checkpoint is written for them.

use std::sync::Arc;

use super::call::Claim;
use crate::clock::monotonic_ms;
use crate::gateway::context::RequestContext;
use crate::gateway::state::Gateway;
use crate::idempotency::{AttemptId, AttemptStore, FirstAttempts, ReplyStore, store_attempt};
use crate::ledger::{AccountName, Leases, Unavailable};

/// A running first attempt that is to be written to the store.
pub(in crate::gateway) struct AttemptToStore {
    attempts: FirstAttempts,
    account: AccountName,
    id: AttemptId,
    reply_store: Arc<dyn ReplyStore>,
    leases: Leases,
    lease_ms: u64,
}

impl AttemptToStore {
    /// Writes the attempt to the store, unless it is there.
    ///
    /// # Errors
    /// The store does not answer.
    pub(in crate::gateway) async fn store(self) -> Result<(), Unavailable> {
        let AttemptToStore { attempts, account, id, reply_store, leases, lease_ms } = self;
        let store = AttemptStore { reply_store: &*reply_store, leases: &leases, lease_ms };
        store_attempt(&attempts, &account, &id, store, monotonic_ms()).await
    }
}

/// Returns the first attempt of a call, if it is only in the memory of this process. The store has
/// to have it before a checkpoint of the call: if this process dies, the checkpoint is charged, and
/// a retry has to know.
pub(in crate::gateway) fn attempt_to_store(
    gateway: &Gateway,
    ctx: &RequestContext,
) -> Option<AttemptToStore> {
    let call = ctx.idempotent_call.as_ref()?;
    let Claim::InMemory(attempt) = &call.claim else { return None };
    Some(AttemptToStore {
        attempts: gateway.first_attempts.clone(),
        account: call.account.clone(),
        id: attempt.id().clone(),
        reply_store: gateway.reply_store.clone(),
        leases: gateway.leases.clone(),
        lease_ms: gateway.timeouts.lease_ms(),
    })
}
