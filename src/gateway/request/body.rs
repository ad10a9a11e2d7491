//! Checks a request body (its headers, its size, the balance of its account), and reads it in
//! pieces.

use bytes::Bytes;
use http::Version;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use pingora::ErrorType;
use pingora::proxy::Session;

use crate::dialect::call::ParsedBody;
use crate::dialect::{CallError, Endpoint};
use crate::gateway::api_error::{ApiError, RequestError};
use crate::gateway::budgets::overload::reject;
use crate::gateway::budgets::tenants::BudgetPermit;
use crate::gateway::budgets::uploads::UploadPermit;
use crate::gateway::idempotency::source::may_be_repeat;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::settlement::holds;
use crate::gateway::state::Gateway;

/// The account's balance is checked before more than this many bytes of a body are read.
const BALANCE_CHECK_BYTES_MIN: usize = 256 << 10;

/// A request body that has been read.
pub(crate) struct RequestBody {
    /// The parsed body.
    pub parsed: ParsedBody,
    /// The upload memory that it uses, if it is an upload.
    pub upload_permit: Option<UploadPermit>,
    /// The body memory that it uses, if it is not an upload.
    pub budget_permit: Option<BudgetPermit>,
}

/// The account that pays for a request.
pub(crate) struct PayingAccount<'a> {
    pub(crate) caller: &'a AuthenticatedCaller,
    /// Whether the account's balance still has to be checked if the body is large.
    needs_balance_check: bool,
}

impl PayingAccount<'_> {
    /// Creates the payer of a request. Its balance is not checked if the request may be a retry,
    /// because a retry of a paid call needs no money, or if the endpoint is free.
    pub(crate) fn new<'a>(
        caller: &'a AuthenticatedCaller,
        session: &Session,
        endpoint: Endpoint,
    ) -> PayingAccount<'a> {
        let needs_balance_check = !endpoint.is_free() && !may_be_repeat(session);
        PayingAccount { caller, needs_balance_check }
    }

    /// Checks the account's balance, once, as soon as `bytes` of the body are more than
    /// [`BALANCE_CHECK_BYTES_MIN`].
    ///
    /// # Errors
    /// The account has no available credit, and no holds from which credit may become available.
    pub(crate) async fn check_balance(
        &mut self,
        gateway: &Gateway,
        bytes: usize,
    ) -> Result<(), ApiError> {
        if self.needs_balance_check && bytes > BALANCE_CHECK_BYTES_MIN {
            self.needs_balance_check = false;
            Box::pin(holds::check_balance(gateway, &self.caller.key.account)).await?;
        }
        Ok(())
    }
}

/// Counts and refuses a body that was evicted to free memory for others.
pub(crate) fn reject_evicted() -> ApiError {
    reject("evicted");
    ApiError::Request(RequestError::BodyTimeout)
}

/// Counts and refuses a body that arrived too slowly.
pub(crate) fn reject_slow_body() -> ApiError {
    reject("body");
    ApiError::Request(RequestError::BodyTimeout)
}

/// Checks the body's headers and sends `100 Continue` if the client waits for it. Returns the
/// content-length, if there is one.
///
/// # Errors
/// The body is compressed or longer than `bytes_max`, `content-type` appears twice, or the body is
/// large and its account has no balance.
pub(crate) async fn accept_body_headers(
    gateway: &Gateway,
    session: &mut Session,
    payer: &mut PayingAccount<'_>,
    bytes_max: usize,
) -> Result<Option<usize>, ApiError> {
    let head = session.req_header();
    let is_plain = |v: &http::HeaderValue| v.as_bytes().eq_ignore_ascii_case(b"identity");
    if !head.headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Err(RequestError::UnsupportedEncoding.into());
    }
    if head.headers.get_all(CONTENT_TYPE).iter().nth(1).is_some() {
        // A vendor that uses the other header would parse the body differently.
        return Err(CallError::invalid("content-type", "one header").into());
    }
    // HTTP/1.0 has no interim (1xx) responses.
    let expects = head.version != Version::HTTP_10 && head.headers.contains_key(EXPECT);
    let content_length: Option<usize> =
        session.get_header(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if content_length.is_some_and(|length| length > bytes_max) {
        return Err(RequestError::BodyTooLarge(bytes_max).into());
    }
    payer.check_balance(gateway, content_length.unwrap_or_default()).await?;
    if expects {
        // Writing this response before the body is read must not close the connection afterwards,
        // so the keep-alive setting is restored.
        let keepalive = session.downstream_session.get_keepalive();
        session.write_continue_response().await.map_err(|_| RequestError::BodyIncomplete)?;
        session.set_keepalive(keepalive);
    }
    Ok(content_length)
}

/// Reads the body piece by piece, up to `bytes_max` bytes.
pub(crate) fn body_pieces(session: &mut Session, bytes_max: usize) -> BodyPieces<'_> {
    BodyPieces { session, bytes_left: bytes_max, bytes_max }
}

/// Reads a request body piece by piece, up to a limit.
pub(crate) struct BodyPieces<'a> {
    session: &'a mut Session,
    bytes_left: usize,
    bytes_max: usize,
}

impl BodyPieces<'_> {
    /// Returns the next piece of the body; `None` at the end.
    ///
    /// # Errors
    /// The body has more than `bytes_max` bytes, arrives too slowly, or ends early.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let read = self.session.downstream_session.read_request_body().await;
        let piece = read.map_err(|why| match why.etype() {
            ErrorType::ReadTimedout => reject_slow_body(),
            _ => ApiError::Request(RequestError::BodyIncomplete),
        })?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        self.bytes_left = self
            .bytes_left
            .checked_sub(length)
            .ok_or(RequestError::BodyTooLarge(self.bytes_max))?;
        Ok(piece)
    }
}
