//! Charges of processes that have ended, which a retry has superseded.

use super::record::SettlementEntry;
use crate::idempotency::{ATTEMPT_TTL_MS, ClaimMode, ClaimResult, ReplyStore, attempt_of_line};
use crate::ledger::{Operation, Unavailable};

/// Returns the void of a charge that must not be made any more: the process of the call ended
/// before the store had the charge, and meanwhile a retry was made as a call of its own. If that
/// is not so, no retry will be from now on: it finds the claim of the dead call.
pub(super) async fn void_of(
    reply_store: &dyn ReplyStore,
    entry: &SettlementEntry,
) -> Result<Option<Operation>, Unavailable> {
    let Operation::Settle { id, line, .. } = &entry.op else { return Ok(None) };
    let attempt = serde_json::from_str(line).ok().as_ref().and_then(attempt_of_line);
    let Some(attempt) = attempt else { return Ok(None) };
    let key = attempt.key(id.clone(), ATTEMPT_TTL_MS);
    // The lease of 0 ms expires at once; then the ledger tells how the call ended.
    let claiming = reply_store.claim_key(&entry.account, &key, &ClaimMode::IfFree, 0);
    let is_own = match claiming.await? {
        ClaimResult::Claimed => true,
        ClaimResult::Expired { owner } | ClaimResult::ReplyNotStored { owner } => owner == *id,
        ClaimResult::Replied(reply) => reply.owner == *id,
        ClaimResult::Running | ClaimResult::ContentMismatch => false,
    };
    if is_own {
        return Ok(None);
    }
    log::warn!(
        event = "attempt_superseded", request_id = id.as_str();
        "call not charged; a retry was made after its process had ended"
    );
    Ok(Some(Operation::Void { id: id.clone() }))
}
