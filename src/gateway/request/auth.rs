//! Finds the account of a request's API key.

use http::header::AUTHORIZATION;
use pingora::proxy::Session;

use crate::gateway::api_error::{ApiError, ApiKeyError, ErrorFormat, ServerError};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::state::Gateway;
use crate::ledger::KeyHash;

/// Finds the account of a request's API key, and notes that the key is used at the time `now`
/// (unix seconds). While the ledger is unavailable, a key is accepted that was valid some seconds
/// ago, and by free endpoints one that was valid some hours ago.
///
/// # Errors
/// The request has no key, the key is unknown or revoked, or the ledger does not answer.
pub(crate) async fn authenticate(
    gateway: &Gateway,
    session: &Session,
    error_format: ErrorFormat,
    is_free: bool,
    now: i64,
) -> Result<AuthenticatedCaller, ApiError> {
    let hash = read_api_key(session, error_format)?;
    let caller = match gateway.key_cache.caller(&hash) {
        Some(caller) => caller,
        None => look_up_key(gateway, hash, is_free).await?,
    };
    if caller.key.revoked_at.is_some() {
        return Err(ApiKeyError::Revoked.into());
    }
    caller.note_use(&gateway.key_uses, hash, now);
    Ok(caller)
}

pub(crate) async fn look_up_key(
    gateway: &Gateway,
    hash: KeyHash,
    is_free: bool,
) -> Result<AuthenticatedCaller, ApiError> {
    let keys = &gateway.key_cache;
    if keys.is_unknown(&hash) {
        return Err(ApiKeyError::Unknown.into());
    }
    let revision = keys.revision();
    match gateway.with_ledger_timeout("key", gateway.ledger.find_key(hash)).await {
        Ok(found) => keys.remember(hash, found, revision).ok_or(ApiKeyError::Unknown.into()),
        Err(_) if is_free => {
            keys.last_valid_caller(&hash).ok_or(ServerError::LedgerUnavailable.into())
        }
        Err(_) => Err(ServerError::LedgerUnavailable.into()),
    }
}

/// Reads the API key from the two headers that official clients use, and returns its digest. If
/// both are present, the key in the format of this gateway is used, because a client may have a
/// vendor's key in its environment too. If both keys have that format, the key in the header that
/// the API format defines is used.
pub(crate) fn read_api_key(
    session: &Session,
    error_format: ErrorFormat,
) -> Result<KeyHash, ApiError> {
    let bearer = session.get_header(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = || session.get_header("x-api-key")?.to_str().ok().map(str::trim);
    let keys = match error_format {
        ErrorFormat::Chat => [bearer, plain()],
        ErrorFormat::Messages => [plain(), bearer],
    };
    let mut keys = keys.into_iter().flatten().filter(|key| !key.is_empty()).peekable();
    keys.peek().ok_or(ApiKeyError::Missing)?;
    keys.find_map(KeyHash::of_well_formed).ok_or(ApiKeyError::Unknown.into())
}
