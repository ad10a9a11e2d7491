//! Authenticates a request and reads its body, within limits of size and time.

use bytes::{Bytes, BytesMut};
use http::Version;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use pingora_core::ErrorType;
use pingora_proxy::Session;
use tokio::time::Instant;

use super::Gateway;
use super::api_error::{ApiError, AuthError, ErrorFormat, RequestError, ServerError};
use super::body_budget::BodyRate;
use super::concurrency::grow_or_evict;
use super::key_cache::AuthenticatedCaller;
use super::overload::{reject, reject_tenant};
use super::slow_bodies::BodyWatch;
use super::tenant_budget::{BudgetPermit, OverBudget, Resource};
use super::uploads::{self, UploadPermit};
use super::{holds, idempotency};
use crate::catalogue::ModelKind;
use crate::dialect::call::ParsedBody;
use crate::dialect::{CallError, Endpoint};
use crate::ledger::KeyHash;

/// The account's balance is checked before more than this many bytes of a body are read.
const BALANCE_CHECK_BYTES_MIN: usize = 256 << 10;
const ACCOUNT_BODIES_MESSAGE: &str = "too many bytes of requests of this account are in memory";
/// Initial buffer capacity for a body without a content-length.
const BODY_CAPACITY_INITIAL: usize = 4 << 10;

/// A request body that has been read.
pub struct RequestBody {
    /// The parsed body.
    pub parsed: ParsedBody,
    /// The upload memory that it uses, if it is an upload.
    pub upload_permit: Option<UploadPermit>,
    /// The body memory that it uses, if it is not an upload.
    pub budget_permit: Option<BudgetPermit>,
}

/// Takes in the body of a call.
///
/// # Errors
/// It is compressed, too large, unsound, or did not come whole and in time.
pub async fn read_body(
    gateway: &Gateway,
    session: &mut Session,
    caller: &AuthenticatedCaller,
    endpoint: Endpoint,
) -> Result<RequestBody, ApiError> {
    let payer = PayingAccount::new(caller, session, endpoint);
    // Boxed: few calls are uploads, and what all of them are made of would grow by it.
    match endpoint {
        Endpoint::ImageEdits => {
            return Box::pin(uploads::read_image_edit(gateway, session, payer)).await;
        }
        Endpoint::Videos if is_multipart_form(session) => {
            return Box::pin(uploads::read_video(gateway, session, payer)).await;
        }
        _ => {}
    }
    let (body, permit) = read_json_body(gateway, session, payer).await?;
    let opened = if endpoint == Endpoint::Moderations {
        ParsedBody::parse(body, gateway.catalogue.load().default_model(ModelKind::Moderation))
    } else {
        ParsedBody::parse(body, None)
    };
    let opened = opened?;
    Ok(RequestBody { parsed: opened, upload_permit: None, budget_permit: Some(permit) })
}

fn is_multipart_form(session: &Session) -> bool {
    let kind = session.get_header(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media_type = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("multipart/form-data")
}

/// Finds the account of a request's API key. For free endpoints, while the ledger is unavailable, a
/// key is accepted that was valid some time ago.
///
/// # Errors
/// No key, an unknown or revoked one, or no answer from the ledger.
pub async fn authenticate(
    gateway: &Gateway,
    session: &Session,
    error_format: ErrorFormat,
    is_free: bool,
) -> Result<AuthenticatedCaller, ApiError> {
    let hash = read_api_key(session, error_format)?;
    let caller = match gateway.key_cache.caller(&hash) {
        Some(caller) => caller,
        None => look_up_key(gateway, hash, is_free).await?,
    };
    if caller.key.revoked_at.is_some() {
        return Err(AuthError::RevokedKey.into());
    }
    Ok(caller)
}

async fn look_up_key(
    gateway: &Gateway,
    hash: KeyHash,
    is_free: bool,
) -> Result<AuthenticatedCaller, ApiError> {
    let keys = &gateway.key_cache;
    if keys.is_unknown(&hash) {
        return Err(AuthError::UnknownKey.into());
    }
    match gateway.with_ledger_timeout("key", gateway.ledger.find_key(hash)).await {
        Ok(found) => keys.remember(hash, found).ok_or(AuthError::UnknownKey.into()),
        Err(_) if is_free => {
            keys.caller_known_good(&hash).ok_or(ServerError::LedgerUnavailable.into())
        }
        Err(_) => Err(ServerError::LedgerUnavailable.into()),
    }
}

/// Reads the API key from either header that official clients use. If both are present, the key
/// that has our shape is used (a client may have a vendor's key in its environment too), else the
/// one of the header that the API format defines.
fn read_api_key(session: &Session, error_format: ErrorFormat) -> Result<KeyHash, ApiError> {
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
    keys.peek().ok_or(AuthError::MissingKey)?;
    keys.find_map(KeyHash::of_well_formed).ok_or(AuthError::UnknownKey.into())
}

/// Reads the whole body.
async fn read_json_body(
    gateway: &Gateway,
    session: &mut Session,
    mut payer: PayingAccount<'_>,
) -> Result<(Bytes, BudgetPermit), ApiError> {
    let bytes_max = gateway.limits.json_bytes_max;
    let began = Instant::now();
    let content_length = accept_body_headers(gateway, session, &mut payer, bytes_max).await?;
    let mut rate = BodyRate::new(&gateway.limits, &gateway.timeouts);
    let mut permit = gateway.body_budget.permit(&payer.caller.tenant);
    let mut watch = BodyWatch::new(&gateway.slow_bodies, Resource::BodyBytes);
    let mut body = BytesMut::new();
    let mut next = body_pieces(session, bytes_max);
    loop {
        let deadline = began + rate.deadline();
        let piece = tokio::select! {
            biased;
            piece = tokio::time::timeout_at(deadline, next.next()) => piece.map_err(|_| reject_slow_body())??,
            () = watch.wait_for_eviction() => return Err(reject_evicted()),
        };
        let Some(piece) = piece else { break };
        let grown = grow_or_evict(&mut permit, piece.len(), &gateway.slow_bodies).await;
        grown.map_err(over_budget_error)?;
        if body.is_empty() {
            if content_length == Some(piece.len()) {
                return Ok((piece, permit));
            }
            body.reserve(content_length.unwrap_or(BODY_CAPACITY_INITIAL).max(piece.len()));
        }
        body.extend_from_slice(&piece);
        payer.check_balance(gateway, body.len()).await?;
        rate.record(body.len(), began.elapsed());
        watch.record(body.len());
    }
    Ok((body.freeze(), permit))
}

fn over_budget_error(over: OverBudget) -> ApiError {
    match over {
        OverBudget::Pool => reject("bodies"),
        OverBudget::Tenant => reject_tenant("account_bodies", ACCOUNT_BODIES_MESSAGE),
    }
}

/// The account that pays for a request.
pub(super) struct PayingAccount<'a> {
    pub(super) caller: &'a AuthenticatedCaller,
    /// Whether the account's balance still has to be looked at if the body is large.
    needs_balance_check: bool,
}

impl PayingAccount<'_> {
    /// A retry of a paid call needs no money, and moderations are free.
    fn new<'a>(
        caller: &'a AuthenticatedCaller,
        session: &Session,
        endpoint: Endpoint,
    ) -> PayingAccount<'a> {
        let may_be_free = endpoint == Endpoint::Moderations || idempotency::may_be_repeat(session);
        PayingAccount { caller, needs_balance_check: !may_be_free }
    }

    /// Refuses a body that is large by now if its account has nothing to pay with.
    ///
    /// # Errors
    /// Nothing is available, and nothing held that may come back.
    pub(super) async fn check_balance(
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
pub(super) fn reject_evicted() -> ApiError {
    reject("evicted");
    ApiError::Request(RequestError::BodyTimeout)
}

/// A body that came too slowly.
pub(super) fn reject_slow_body() -> ApiError {
    reject("body");
    ApiError::Request(RequestError::BodyTimeout)
}

/// Checks the body's headers and sends `100 Continue` if the client waits for it. Returns the
/// content-length, if there is one.
///
/// # Errors
/// It is compressed, longer than the most, or large and nothing there to pay with.
pub(super) async fn accept_body_headers(
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
        // Whoever reads the other one reads another body.
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
        // To say so before the body has been read must not close the connection.
        let keepalive = session.downstream_session.get_keepalive();
        session.write_continue_response().await.map_err(|_| RequestError::BodyIncomplete)?;
        session.set_keepalive(keepalive);
    }
    Ok(content_length)
}

/// Reads the body piece by piece, up to `bytes_max` bytes.
pub(super) fn body_pieces(session: &mut Session, bytes_max: usize) -> BodyPieces<'_> {
    BodyPieces { session, bytes_left: bytes_max, bytes_max }
}

/// Reads a request body piece by piece, up to a limit.
pub(super) struct BodyPieces<'a> {
    session: &'a mut Session,
    bytes_left: usize,
    bytes_max: usize,
}

impl BodyPieces<'_> {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The body has more than the most, or does not come whole.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
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
