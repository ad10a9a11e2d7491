//! Idempotency keys in Redis. The record of each key, and beside it the body of the reply, are
//! under the hash tag of their account. The server drops both when they expire.

use async_trait::async_trait;
use bytes::Bytes;

use super::keys::AccountKeys;
use super::run_gate::Requirement;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::hex::to_hex;
use crate::idempotency::{
    ClaimMode, ClaimResult, IdempotencyKey, PIECE_BYTES, REPLIES_BYTES_MAX, RUNNING_TTL_LEASES,
    ReplyParts, ReplyStore, StoredReply,
};
use crate::ledger::{AccountName, Unavailable};

/// Bodies of at most this many bytes are sent together with the end of their call.
const SHORT_BODY_BYTES_MAX: usize = 64 << 10;
/// A body that was written, but whose call is not ended, expires after this time, in ms.
const UNFINISHED_BODY_TTL_MS: u64 = 10 * 60 * 1_000;
/// Longer times to live are cut to this, in ms: a script adds them to its clock, in a double.
const TTL_MS_MAX: u64 = 1 << 52;

impl RedisStore {
    /// Writes a body in pieces of `PIECE_BYTES`, so that other commands can run in between.
    async fn write_body(&self, key: &str, body: &Bytes) -> Result<(), Unavailable> {
        let command = redis::cmd("STRLEN").arg(key).to_owned();
        let written: u64 = self.connection().await?.query(&command).await?;
        if written == body.len() as u64 {
            // The body was written before, but the server's reply was lost. A client may be reading
            // the body already, so it is not written again.
            return Ok(());
        }
        for (number, piece) in body.chunks(PIECE_BYTES).enumerate() {
            let write = if number == 0 {
                redis::cmd("SET")
                    .arg(key)
                    .arg(piece)
                    .arg("PX")
                    .arg(UNFINISHED_BODY_TTL_MS)
                    .to_owned()
            } else {
                let offset = number * PIECE_BYTES;
                redis::cmd("SETRANGE").arg(key).arg(offset).arg(piece).to_owned()
            };
            let _: redis::Value = self.connection().await?.query(&write).await?;
        }
        Ok(())
    }
}

fn running_ttl_ms(lease_ms: u64) -> u64 {
    lease_ms.saturating_mul(RUNNING_TTL_LEASES).min(TTL_MS_MAX)
}

fn unexpected_reply(reply: &[String]) -> Unavailable {
    Unavailable(format!("unexpected answer: {reply:?}"))
}

fn parse_claim_result(reply: &[String]) -> Result<ClaimResult, Unavailable> {
    let parts: Vec<&str> = reply.iter().map(String::as_str).collect();
    Ok(match parts.as_slice() {
        ["mine"] => ClaimResult::Claimed,
        ["running"] => ClaimResult::Running,
        ["lapsed", owner] => ClaimResult::Expired { owner: (*owner).to_owned() },
        ["not_kept", owner] => ClaimResult::ReplyNotStored { owner: (*owner).to_owned() },
        ["other_content"] => ClaimResult::ContentMismatch,
        ["replied", owner, head, bytes] => {
            let unreadable = |why: String| Unavailable(format!("a reply cannot be read: {why}"));
            ClaimResult::Replied(StoredReply {
                owner: (*owner).to_owned(),
                head: serde_json::from_str(head).map_err(|why| unreadable(why.to_string()))?,
                bytes: bytes.parse().map_err(|_| unreadable((*bytes).to_owned()))?,
                body: None,
            })
        }
        other => return Err(Unavailable(format!("unexpected answer: {other:?}"))),
    })
}

#[async_trait]
impl ReplyStore for RedisStore {
    fn is_durable_at_once(&self) -> bool {
        false
    }

    async fn claim_key(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        mode: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        let (mode, from, needs) = match mode {
            ClaimMode::IfFree => ("free", "", Requirement::RecoveredRun),
            ClaimMode::TakeOver(owner) => ("from", owner.as_str(), Requirement::RecoveredRun),
            ClaimMode::Restore => ("free", "", Requirement::KnownRun),
            ClaimMode::Replace => ("anew", "", Requirement::KnownRun),
        };
        let ttl_ms = key.life_ms.max(running_ttl_ms(lease_ms)).min(TTL_MS_MAX);
        let record = AccountKeys::of(account).idempotency_claim(&key.name);
        let mut call = ScriptCall::default();
        call.key(record);
        call.arg(to_hex(&key.content)).arg(&key.owner).arg(lease_ms.min(TTL_MS_MAX));
        call.arg(ttl_ms).arg(mode).arg(from);
        parse_claim_result(&self.run_script_if(needs, &call, |s| &s.idempotency.claim).await?)
    }

    async fn renew_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
        lease_ms: u64,
    ) -> Result<bool, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(AccountKeys::of(account).idempotency_claim(name));
        call.arg(owner).arg(lease_ms.min(TTL_MS_MAX)).arg(running_ttl_ms(lease_ms));
        Ok(self.run_script(&call, |s| &s.idempotency.renew).await? == ["done"])
    }

    async fn complete(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let keys = AccountKeys::of(account);
        let body_key = keys.reply_body(&key.owner);
        let has_room =
            |reply: &ReplyParts| reply.body.is_empty() || self.has_room(reply.body.len());
        let (head, body) = match reply.filter(has_room) {
            Some(ReplyParts { head, body }) => (serde_json::to_string(&head).ok(), body),
            None => (None, Bytes::new()),
        };
        if body.len() > SHORT_BODY_BYTES_MAX {
            self.write_body(&body_key, &body).await?;
        }
        let mut call = ScriptCall::default();
        call.key(keys.idempotency_claim(&key.name)).key(body_key);
        for replies_key in keys.replies() {
            call.key(replies_key);
        }
        call.key(keys.tag());
        call.arg(to_hex(&key.content)).arg(&key.owner).arg(key.life_ms.min(TTL_MS_MAX));
        call.arg(head.unwrap_or_default()).arg(body.len()).arg(REPLIES_BYTES_MAX);
        if body.len() <= SHORT_BODY_BYTES_MAX {
            call.arg(&body[..]);
        }
        let outcome = self.run_script(&call, |s| &s.idempotency.complete).await?;
        match outcome.first().map(String::as_str) {
            Some("done") => {
                outcome.get(1).iter().for_each(|bytes| self.record_kept_bytes(account, bytes));
                Ok(true)
            }
            Some("gone") => Ok(false),
            _ => Err(unexpected_reply(&outcome)),
        }
    }

    async fn release_key(
        &self,
        account: &AccountName,
        name: &str,
        owner: &str,
    ) -> Result<(), Unavailable> {
        let mut call = ScriptCall::default();
        call.key(AccountKeys::of(account).idempotency_claim(name)).arg(owner);
        self.run_script(&call, |s| &s.idempotency.release).await.map(|_| ())
    }

    async fn read_piece(
        &self,
        account: &AccountName,
        owner: &str,
        piece: u32,
    ) -> Result<Option<Bytes>, Unavailable> {
        let start = u64::from(piece) * PIECE_BYTES as u64;
        let mut read = redis::cmd("GETRANGE");
        read.arg(AccountKeys::of(account).reply_body(owner)).arg(start);
        read.arg(start + PIECE_BYTES as u64 - 1);
        let bytes: Vec<u8> = self.connection().await?.query(&read).await?;
        // A body that is missing cannot be told from the end of a body.
        Ok((!bytes.is_empty()).then(|| Bytes::from(bytes)))
    }
}
