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

/// Returns the text by which a journal line names the content of a call: base64.
pub(crate) fn encode_digest(content: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(content)
}

/// Returns what a journal line says of the attempts of its call; `None` if the client of the call
/// does not attempt it again by itself.
pub(crate) fn attempt_of_line(line: &JournalLine) -> Option<AttemptId> {
    let content = URL_SAFE_NO_PAD.decode(line.retry_digest.as_ref()?).ok()?;
    let endpoint = Cow::Owned(line.endpoint.clone());
    Some(AttemptId { endpoint, content: content.try_into().ok()? })
}

/// Returns the name under which the store has the attempts of a call.
pub(crate) fn retry_name(endpoint: &str, content: &[u8; 32]) -> String {
    ["retry:", endpoint, ":", &to_hex(content)].concat()
}
