//! Idempotency keys: the same request again gets the stored reply, and changes nothing.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::AdminError;
use super::state::AdminApi;
use crate::operators::NamedRequest;

/// The header that names a request.
pub(super) const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of a reply that was stored.
const REPLAYED_HEADER: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The most characters of a key.
const KEY_CHARS_MAX: usize = 255;
/// The most bytes of a reply.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// Marks a response that has a secret in it, which is not stored.
#[derive(Debug, Clone)]
pub(super) struct IssuedSecret {
    /// The beginning of the secret.
    pub(super) prefix: String,
}

/// A request whose name is claimed.
pub(super) struct ClaimedRequest {
    /// The name of the operator.
    owner: String,
    name: String,
}

/// What comes of the name of a request.
pub(super) enum RequestClaim {
    /// The request has no name.
    Unnamed,
    /// The name is claimed now.
    Claimed(ClaimedRequest),
    /// The request was answered before.
    Replayed(Response),
}

/// A reply as the store keeps it.
#[derive(Debug, Serialize, Deserialize)]
struct StoredAnswer {
    status: u16,
    body: String,
    /// The beginning of the secret that was issued. Then there is no body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issued: Option<String>,
}

/// Returns the digest of what a request asks for.
pub(super) fn content_digest(method: &str, path: &str, body: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in [method.as_bytes(), path.as_bytes(), body] {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// Claims the name of a request, if it has one.
pub(super) async fn claim(
    api: &AdminApi,
    owner: &str,
    headers: &HeaderMap,
    content: [u8; 32],
) -> Result<RequestClaim, AdminError> {
    let Some(name) = read_key(headers)? else { return Ok(RequestClaim::Unnamed) };
    match api.store.operators.claim_request(owner, &name, content).await? {
        NamedRequest::New => {
            Ok(RequestClaim::Claimed(ClaimedRequest { owner: owner.to_owned(), name }))
        }
        NamedRequest::Running => Err(conflict(
            "idempotency_key_in_use",
            format!(
                "the first request of the idempotency key '{name}' still runs, or ended without a \
                 reply: look whether its change was made, then use another key"
            ),
        )),
        NamedRequest::OtherContent => Err(conflict(
            "idempotency_key_reused",
            format!("the idempotency key '{name}' was used for a request with other content"),
        )),
        NamedRequest::Answered(reply) => replay(&reply).map(RequestClaim::Replayed),
    }
}

impl ClaimedRequest {
    /// Stores the reply of the request, or gives its name back if it has changed nothing.
    /// `is_repeatable` says whether a request of which that is not known may be made again.
    pub(super) async fn finish(
        self,
        api: &AdminApi,
        response: Response,
        is_repeatable: bool,
    ) -> Response {
        let (parts, body) = response.into_parts();
        let Ok(body) = axum::body::to_bytes(body, REPLY_BYTES_MAX).await else {
            return Response::from_parts(parts, Body::empty());
        };
        let (ClaimedRequest { owner, name }, operators) = (self, &api.store.operators);
        let result = if parts.status.is_success() {
            let issued = parts.extensions.get::<IssuedSecret>().map(|issued| &issued.prefix);
            let text = if issued.is_some() { "".into() } else { String::from_utf8_lossy(&body) };
            let answer = StoredAnswer {
                status: parts.status.as_u16(),
                body: text.into_owned(),
                issued: issued.cloned(),
            };
            let answer = serde_json::to_string(&answer).unwrap_or_default();
            operators.answer_request(&owner, &name, &answer).await
        } else if parts.status.is_client_error() || is_repeatable {
            operators.release_request(&owner, &name).await
        } else {
            Ok(())
        };
        if let Err(why) = result {
            log::warn!(
                event = "admin_reply_not_stored", operator = owner.as_str(), error:% = why;
                "reply to an operator not stored; its repeat gets an error"
            );
        }
        Response::from_parts(parts, Body::from(body))
    }
}

fn read_key(headers: &HeaderMap) -> Result<Option<String>, AdminError> {
    let Some(value) = headers.get(KEY_HEADER) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=KEY_CHARS_MAX).contains(&key.len()));
    let Some(key) = key else {
        let message =
            format!("an idempotency key has 1 to {KEY_CHARS_MAX} characters of visible ASCII");
        return Err(AdminError::invalid(KEY_HEADER.as_str(), message));
    };
    Ok(Some(key.to_owned()))
}

fn replay(reply: &str) -> Result<Response, AdminError> {
    let stored = serde_json::from_str::<StoredAnswer>(reply);
    let Ok(StoredAnswer { status, body, issued }) = stored else {
        return Err(AdminError::internal("the stored reply of the idempotency key is broken"));
    };
    if let Some(prefix) = issued {
        let message = format!(
            "this request has issued '{prefix}' before, which was shown once: use it, or rotate it"
        );
        return Err(conflict("already_issued", message).about("prefix"));
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    Ok(response)
}

fn conflict(code: &str, message: String) -> AdminError {
    AdminError::new(StatusCode::CONFLICT, code, message).about(KEY_HEADER.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_other_content_have_other_digests() {
        let digests = [
            content_digest("POST", "/a", b"b"),
            content_digest("POST", "/ab", b""),
            content_digest("PUT", "/a", b"b"),
            content_digest("POST", "/a", b"c"),
        ];
        for (number, digest) in digests.iter().enumerate() {
            assert!(!digests[..number].contains(digest), "{number}");
        }
    }

    #[test]
    fn a_reply_with_a_secret_is_never_replayed() {
        let answer = StoredAnswer { status: 201, body: String::new(), issued: Some("sk".into()) };
        let text = serde_json::to_string(&answer).expect("JSON");
        assert!(replay(&text).is_err());
        let plain = replay(r#"{"status":201,"body":"{}"}"#).expect("a reply");
        assert_eq!(plain.status(), StatusCode::CREATED);
    }
}
