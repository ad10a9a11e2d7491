//! Reads the headers by which a call may be a repeat: an idempotency key, or a count of retries.

use std::borrow::Cow;

use pingora::proxy::Session;

use super::fingerprint;
use crate::dialect::{CallError, Endpoint};
use crate::gateway::api_error::ApiError;
use crate::hex::to_hex;
use crate::idempotency::ATTEMPT_TTL_MS;
use crate::idempotency::{AttemptId, IdempotencyKey};

/// The header with the idempotency key: calls under the same key are made once.
pub(in crate::gateway) const KEY_HEADER: &str = "idempotency-key";

pub(in crate::gateway) const KEY_BYTES_MAX: usize = 255;

/// The header in which official clients count their earlier attempts of a call.
pub(in crate::gateway) const RETRY_COUNT_HEADER: &str = "x-stainless-retry-count";

/// How long a key and its reply are stored, in ms. Attempts without a key are remembered for
/// [`ATTEMPT_TTL_MS`].
pub(super) const KEY_TTL_MS: u64 = 24 * 60 * 60 * 1_000;

/// How a call says that it may be repeated, or is a repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) enum IdempotencySource {
    /// The call has an idempotency key with this digest.
    Keyed(String),
    /// The call has no key and a retry count of 0: it is not a repeat, but the client may retry it.
    FirstAttempt,
    /// The call has no key and a higher retry count: the client got no answer to an earlier
    /// attempt.
    Retry,
}

impl IdempotencySource {
    /// Reads the headers of a call. `None` if there is neither a key nor a retry count, if the
    /// endpoint is free, or if the key is one of a video.
    ///
    /// # Errors
    /// There is more than one key, or the key is malformed.
    pub(in crate::gateway) fn from_headers(
        session: &Session,
        endpoint: Endpoint,
    ) -> Result<Option<IdempotencySource>, ApiError> {
        if endpoint.is_free() {
            return Ok(None);
        }
        if let Some(key) = read_key_digest(session)? {
            // The key of a video is stored with its job, and valid as long as the job exists.
            return Ok((endpoint != Endpoint::Videos).then_some(IdempotencySource::Keyed(key)));
        }
        let count = session.get_header(RETRY_COUNT_HEADER).and_then(|count| count.to_str().ok());
        Ok(match count.and_then(|count| count.parse::<u64>().ok()) {
            None => None,
            Some(0) => Some(IdempotencySource::FirstAttempt),
            Some(_) => Some(IdempotencySource::Retry),
        })
    }

    /// Returns the key of a call in the store. `owner` is the id of the call.
    pub(super) fn key(
        &self,
        endpoint: Endpoint,
        content: [u8; 32],
        owner: String,
    ) -> IdempotencyKey {
        match self {
            IdempotencySource::Keyed(key) => {
                let name = format!("key:{}:{key}", endpoint.name());
                IdempotencyKey { name, content, owner, life_ms: KEY_TTL_MS }
            }
            IdempotencySource::FirstAttempt | IdempotencySource::Retry => {
                attempt_id(endpoint, content).key(owner, ATTEMPT_TTL_MS)
            }
        }
    }
}

/// Returns what the attempts of a call have in common.
pub(super) fn attempt_id(endpoint: Endpoint, content: [u8; 32]) -> AttemptId {
    AttemptId { endpoint: Cow::Borrowed(endpoint.name()), content }
}

/// Whether a call may be a repeat: it has a key, or a retry count other than 0.
pub(in crate::gateway) fn may_be_repeat(session: &Session) -> bool {
    let retries = session.get_header(RETRY_COUNT_HEADER).map(http::HeaderValue::as_bytes);
    session.get_header(KEY_HEADER).is_some() || retries.is_some_and(|count| count != b"0")
}

/// Returns the digest of the idempotency key, in hexadecimal; `None` if there is no key.
///
/// # Errors
/// There is more than one key, or the key is malformed.
pub(in crate::gateway) fn read_key_digest(session: &Session) -> Result<Option<String>, ApiError> {
    let mut keys = session.req_header().headers.get_all(KEY_HEADER).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let key = key.as_bytes();
    let sound = keys.next().is_none()
        && (1..=KEY_BYTES_MAX).contains(&key.len())
        && key.iter().all(u8::is_ascii_graphic);
    if !sound {
        let expected = "one header of 1 to 255 visible ASCII characters";
        return Err(CallError::invalid("Idempotency-Key", expected).into());
    }
    Ok(Some(to_hex(&fingerprint::digest_text(key))))
}
