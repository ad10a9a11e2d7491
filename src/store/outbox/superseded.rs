//! Charges that a retry has superseded: their process was away for so long that others took it for
//! dead, and the retry of its client was made as a call of its own.

use std::sync::Arc;

use crate::idempotency::{ClaimMode, ClaimResult, RaceSide, ReplyStore, attempt_of_line};
use crate::ledger::{AccountName, Operation, Unavailable};
use crate::store::redis::RedisFleet;

/// Whether the charge of a line has a digest by which a retry looks for it.
const DIGEST_FIELD: &str = "\"retry_digest\"";

/// Looks for superseded charges before they are sent to a shared store.
pub(in crate::store) struct SupersededCheck {
    pub(in crate::store) reply_store: Arc<dyn ReplyStore>,
    pub(in crate::store) fleet: Arc<RedisFleet>,
}

impl SupersededCheck {
    /// Returns the void that is to be sent instead of a settlement of this process, if a retry may
    /// have been made meanwhile, and was.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn void_of_own(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Option<Operation>, Unavailable> {
        let Operation::Settle { origin, .. } = op else { return Ok(None) };
        let begun_at = origin.map_or(i64::MIN, |origin| origin.at);
        if !self.fleet.may_be_superseded(begun_at) {
            return Ok(None);
        }
        self.void_of(account, op).await
    }

    /// Returns the void that is to be sent instead of a settlement, if a retry was made as a call
    /// of its own. If not, no retry will be from now on.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn void_of(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Option<Operation>, Unavailable> {
        let Operation::Settle { id, line, .. } = op else { return Ok(None) };
        if !line.contains(DIGEST_FIELD) {
            return Ok(None);
        }
        let attempt = serde_json::from_str(line).ok().as_ref().and_then(attempt_of_line);
        let Some(attempt) = attempt else { return Ok(None) };
        let key = attempt.race_key(RaceSide::LateCharge, id.clone());
        let claimed = self.reply_store.claim_key(account, &key, &ClaimMode::IfFree, 0).await?;
        if claimed != ClaimResult::ContentMismatch {
            return Ok(None);
        }
        log::warn!(
            event = "attempt_superseded", request_id = id.as_str();
            "call not charged; a retry was made while its process was away"
        );
        Ok(Some(Operation::Void { id: id.clone() }))
    }
}
