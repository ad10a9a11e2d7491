//! Names of calls in records of their own, under their account's hash tag, and the bodies of
//! replies beside them. The server drops both when their time has come.

use async_trait::async_trait;
use bytes::Bytes;

use super::keys::AccountKeys;
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::hex::to_hex;
use crate::idempotency::{
    ClaimMode, ClaimResult, IdempotencyKey, PIECE_BYTES, REPLIES_BYTES_MAX, RUNNING_TTL_LEASES,
    ReplyParts, ReplyStore, StoredReply,
};
use crate::ledger::{AccountName, Unavailable};

/// Bodies up to this come along with the end of their call.
const SHORT_BODY_BYTES_MAX: usize = 64 << 10;
/// What was written of a body whose call does not end goes after so long, in ms.
const UNFINISHED_BODY_TTL_MS: u64 = 10 * 60 * 1_000;
/// No life is longer, in ms: a script adds it to its clock, in a double.
const TTL_MS_MAX: u64 = 1 << 52;

impl RedisStore {
    /// Writes a body, piece by piece: each time others get their turn in between.
    async fn write_body(&self, key: &str, body: &Bytes) -> Result<(), Unavailable> {
        let asked = redis::cmd("STRLEN").arg(key).to_owned();
        let written: u64 = self.connection().await?.query(&asked).await?;
        if written == body.len() as u64 {
            // An answer was lost. Somebody may be reading it by now.
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
    let words: Vec<&str> = reply.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        ["mine"] => ClaimResult::Claimed,
        ["running"] => ClaimResult::Running,
        ["lapsed", owner] => ClaimResult::Expired { owner: (*owner).to_owned() },
        ["not_kept"] => ClaimResult::ReplyNotStored,
        ["other_content"] => ClaimResult::ContentMismatch,
        ["replied", owner, head, bytes] => {
            let unreadable = |why: String| Unavailable(format!("a reply cannot be read: {why}"));
            ClaimResult::Replied(StoredReply {
                owner: (*owner).to_owned(),
                head: serde_json::from_str(head).map_err(|why| unreadable(why.to_string()))?,
                bytes: bytes.parse().map_err(|_| unreadable((*bytes).to_owned()))?,
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
        naming: &IdempotencyKey,
        taking: &ClaimMode,
        lease_ms: u64,
    ) -> Result<ClaimResult, Unavailable> {
        let (taking, from) = match taking {
            ClaimMode::IfFree => ("free", ""),
            ClaimMode::TakeOver(owner) => ("from", owner.as_str()),
            ClaimMode::Replace => ("anew", ""),
        };
        let life_ms = naming.life_ms.max(running_ttl_ms(lease_ms)).min(TTL_MS_MAX);
        let record = AccountKeys::of(account).idempotency_claim(&naming.name);
        let mut call = ScriptCall::default();
        call.key(record);
        call.arg(to_hex(&naming.content)).arg(&naming.owner).arg(lease_ms.min(TTL_MS_MAX));
        call.arg(life_ms).arg(taking).arg(from);
        parse_claim_result(&self.run_script(&call, |s| &s.idempotency.take).await?)
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
        naming: &IdempotencyKey,
        reply: Option<ReplyParts>,
    ) -> Result<bool, Unavailable> {
        let keys = AccountKeys::of(account);
        let body_key = keys.reply_body(&naming.owner);
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
        call.key(keys.idempotency_claim(&naming.name)).key(body_key);
        for key in keys.replies() {
            call.key(key);
        }
        call.key(keys.tag());
        call.arg(to_hex(&naming.content)).arg(&naming.owner).arg(naming.life_ms.min(TTL_MS_MAX));
        call.arg(head.unwrap_or_default()).arg(body.len()).arg(REPLIES_BYTES_MAX);
        if body.len() <= SHORT_BODY_BYTES_MAX {
            call.arg(&body[..]);
        }
        let outcome = self.run_script(&call, |s| &s.idempotency.end).await?;
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
        self.run_script(&call, |s| &s.idempotency.free).await.map(|_| ())
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
        // What is not there is no different from an end.
        Ok((!bytes.is_empty()).then(|| Bytes::from(bytes)))
    }
}
