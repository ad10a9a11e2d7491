//! Charges that a retry has superseded: their process was away for so long that others took it for
//! dead, and the retry of its client was made as a call of its own.

use std::sync::Arc;

use crate::idempotency::{ClaimMode, ClaimResult, RaceSide, ReplyStore, attempt_of_line};
use crate::ledger::prepaid::records::CallEnd;
use crate::ledger::{AccountName, Operation, Unavailable};
use crate::store::redis::RedisFleet;

/// Whether the charge of a line has a digest by which a retry looks for it.
const DIGEST_FIELD: &str = "\"retry_digest\"";

/// Looks for superseded charges before they are sent to a shared store.
#[derive(Clone)]
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
        let is_lost = self.loses_race(account, id, line).await?;
        Ok(is_lost.then(|| Operation::Void { id: id.clone() }))
    }

    /// Whether a retry was made as a call of its own instead of a call whose hold was in memory. If
    /// not, no retry will be from now on. An own call is looked up only if a retry may have been.
    ///
    /// # Errors
    /// The store does not answer.
    pub(in crate::store) async fn is_superseded(
        &self,
        account: &AccountName,
        end: &CallEnd,
        is_own: bool,
    ) -> Result<bool, Unavailable> {
        let may_be = !is_own || self.fleet.may_be_superseded(begun_at(&end.call));
        if !may_be || end.charge.is_none() {
            return Ok(false);
        }
        self.loses_race(account, &end.call, &end.line).await
    }

    /// Enters a charge into the race with the retries of its call. Returns whether one of them has
    /// won.
    async fn loses_race(
        &self,
        account: &AccountName,
        id: &str,
        line: &str,
    ) -> Result<bool, Unavailable> {
        if !line.contains(DIGEST_FIELD) {
            return Ok(false);
        }
        let attempt = serde_json::from_str(line).ok().as_ref().and_then(attempt_of_line);
        let Some(attempt) = attempt else { return Ok(false) };
        let key = attempt.race_key(RaceSide::LateCharge, id.to_owned());
        let claimed = self.reply_store.claim_key(account, &key, &ClaimMode::Restore, 0).await?;
        if claimed != ClaimResult::ContentMismatch {
            return Ok(false);
        }
        // The call itself may be the retry.
        let key = attempt.race_key(RaceSide::Retry, id.to_owned());
        let claimed = self.reply_store.claim_key(account, &key, &ClaimMode::Restore, 0).await?;
        if claimed == ClaimResult::Claimed {
            return Ok(false);
        }
        log::warn!(
            event = "attempt_superseded", request_id = id;
            "call not charged; a retry was made while its process was away"
        );
        Ok(true)
    }
}

/// Returns when a call began, in unix ms, as its id says: a UUID of version 7.
pub(in crate::store) fn begun_at(call: &str) -> i64 {
    let timestamp = uuid::Uuid::try_parse(call).ok().and_then(|id| id.get_timestamp());
    let begun_ms = timestamp.map(|at| {
        let (seconds, nanos) = at.to_unix();
        seconds.saturating_mul(1_000).saturating_add(u64::from(nanos / 1_000_000))
    });
    begun_ms.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(i64::MIN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::clock::unix_ms;
    use crate::idempotency::{AttemptId, FirstAttempts, encode_digest};
    use crate::ledger::{Leases, Ledger};
    use crate::money::Money;
    use crate::store::StoreSection;
    use crate::store::redis::{PendingEnds, RedisStore};
    use crate::store::sqlite::SqliteStore;

    /// Has told all ends.
    struct Told;

    #[async_trait]
    impl PendingEnds for Told {
        async fn tell_ends(&self, _: &AccountName) -> Result<(), Unavailable> {
            Ok(())
        }
    }

    /// A check at a gateway that has not polled the others yet.
    fn young_gateway(reply_store: Arc<dyn ReplyStore>) -> SupersededCheck {
        let fleet = RedisFleet::new(
            Arc::new(RedisStore::new(StoreSection::default())),
            FirstAttempts::default(),
            Leases::default(),
            reply_store.clone(),
            Duration::from_secs(60),
            Arc::new(Told),
        );
        SupersededCheck { reply_store, fleet: Arc::new(fleet) }
    }

    #[tokio::test]
    async fn a_retry_that_was_made_anew_at_a_young_gateway_was_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ledger.db");
        SqliteStore::create(&path).expect("a file");
        let store = Arc::new(SqliteStore::open(&path).expect("a store"));
        let account = AccountName::parse("ada").expect("a name");
        store.open_account(&account).await.expect("an account");
        let check = young_gateway(store.clone());
        let attempt = AttemptId { endpoint: "chat".into(), content: [7; 32] };
        let line = format!(
            r#"{{"request_id":"r","at":1,"key_prefix":"k","endpoint":"chat","model":"m",
            "vendor":"v","route":"a","depth":0,"usage":{{"prompt_tokens":3,"completion_tokens":2}},
            "basis":"reported","price_version":"p",
            "retry_digest":"{}"}}"#,
            encode_digest(&attempt.content)
        );
        let end = |call: &str| CallEnd {
            charge: Some(Money::ZERO),
            line: line.clone(),
            ..CallEnd::uncharged(call)
        };
        let retry = attempt.race_key(RaceSide::Retry, "retry".to_owned());
        let entered = store.claim_key(&account, &retry, &ClaimMode::IfFree, 0).await;
        assert_eq!(entered, Ok(ClaimResult::Claimed));
        for (call, is_superseded) in [("retry", false), ("first", true), ("retry", false)] {
            let found = check.is_superseded(&account, &end(call), true).await;
            assert_eq!(found, Ok(is_superseded), "{call}");
        }
    }

    #[test]
    fn the_id_of_a_call_says_when_it_began() {
        let before = unix_ms();
        let begun = begun_at(&uuid::Uuid::now_v7().to_string());
        assert!((before..=unix_ms()).contains(&begun), "{begun} is not now");
        assert_eq!((begun_at("video_x"), begun_at("")), (i64::MIN, i64::MIN));
    }
}
