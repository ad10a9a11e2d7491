//! What the attempts of a call have in common, and how the store and the journal name it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::reply_store::IdempotencyKey;
use crate::hex::to_hex;
use crate::ledger::JournalLine;

/// How long a first attempt is remembered after its end, in ms.
pub(crate) const ATTEMPT_TTL_MS: u64 = 10 * 60 * 1_000;

/// What the attempts of a call have in common: the endpoint and the digest of the content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttemptId {
    /// The short name of the endpoint.
    pub endpoint: Cow<'static, str>,
    /// The digest of the call's content.
    pub content: [u8; 32],
}

impl AttemptId {
    /// Returns the key of an attempt in the store.
    pub(crate) fn key(&self, owner: String, life_ms: u64) -> IdempotencyKey {
        let AttemptId { endpoint, content } = self;
        let name = retry_name(endpoint, content);
        IdempotencyKey { name, content: *content, owner, life_ms }
    }
}

/// Who claims a [race key](AttemptId::race_key).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RaceSide {
    /// A retry that is made as a call of its own.
    Retry,
    /// The charge of a first attempt, which arrives late: its process was away, or has ended.
    LateCharge,
}

/// What the names of race keys begin with.
pub(crate) const RACE_PREFIX: &str = "race:";
/// How long it is remembered which side of a race came first, in ms.
const RACE_TTL_MS: u64 = 24 * 60 * 60 * 1_000;

impl AttemptId {
    /// Returns the key by which a retry and the late charge of a first attempt exclude each other:
    /// the side that claims it first goes on, and so do others of its side. The content of the key
    /// says which side that was, so the other side finds another content.
    pub(crate) fn race_key(&self, side: RaceSide, owner: String) -> IdempotencyKey {
        let name = [RACE_PREFIX, &self.endpoint, ":", &to_hex(&self.content)].concat();
        let content = [u8::from(side == RaceSide::LateCharge); 32];
        IdempotencyKey { name, content, owner, life_ms: RACE_TTL_MS }
    }
}

/// Returns the text by which a journal line names the content of a call: base64.
pub(crate) fn encode_digest(content: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(content)
}

/// Returns what a journal line says of the attempts of its call; `None` if the client of the call
/// does not attempt it again by itself.
pub(crate) fn attempt_of_line(line: &JournalLine<'_>) -> Option<AttemptId> {
    let content = URL_SAFE_NO_PAD.decode(line.retry_digest.as_deref()?).ok()?;
    let endpoint = Cow::Owned(line.endpoint.clone().into_owned());
    Some(AttemptId { endpoint, content: content.try_into().ok()? })
}

/// Returns the name under which the store has the attempts of a call.
pub(crate) fn retry_name(endpoint: &str, content: &[u8; 32]) -> String {
    ["retry:", endpoint, ":", &to_hex(content)].concat()
}
