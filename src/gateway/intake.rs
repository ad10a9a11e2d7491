//! Taking a request in: whose key it is, and its body, bounded in size and time.

use bytes::{Bytes, BytesMut};
use http::Version;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use pingora_core::ErrorType;
use pingora_proxy::Session;
use tokio::time::Instant;

use super::Gateway;
use super::bodies::BodyRate;
use super::concurrency::grow_or_evict;
use super::known_keys::KnownCaller;
use super::load::{shed, shed_tenant};
use super::refusal::{ApiError, ErrorFormat};
use super::slow_bodies::BodyWatch;
use super::tenant_budget::{BudgetPermit, OverBudget, Resource};
use super::uploads::{self, UploadPermit};
use super::{funds, repeat};
use crate::catalogue::ModelKind;
use crate::dialect::call::ParsedBody;
use crate::dialect::{CallError, Endpoint};
use crate::ledger::KeyHash;

/// Before more than this is read of a body, its account's balance is looked at.
const UNPAID_BYTES_MAX: usize = 256 << 10;
const ACCOUNT_BODIES: &str = "too many bytes of requests of this account are in memory";
/// Bodies whose length is not told begin with room for so many bytes.
const BODY_BYTES_FIRST: usize = 4 << 10;

/// A body that was taken in.
pub struct RequestBody {
    /// What it says.
    pub opened: ParsedBody,
    /// The room that it takes up, if it is an upload.
    pub room: Option<UploadPermit>,
    /// The memory that it takes up, if it is none.
    pub weight: Option<BudgetPermit>,
}

/// Takes in the body of a call.
///
/// # Errors
/// It is compressed, too large, unsound, or did not come whole and in time.
pub async fn take(
    gateway: &Gateway,
    session: &mut Session,
    caller: &KnownCaller,
    endpoint: Endpoint,
) -> Result<RequestBody, ApiError> {
    let payer = PayingAccount::of(caller, session, endpoint);
    // Boxed: few calls are uploads, and what all of them are made of would grow by it.
    match endpoint {
        Endpoint::ImageEdits => return Box::pin(uploads::edit(gateway, session, payer)).await,
        Endpoint::Videos if is_form(session) => {
            return Box::pin(uploads::video(gateway, session, payer)).await;
        }
        _ => {}
    }
    let (body, weight) = body(gateway, session, payer).await?;
    let opened = if endpoint == Endpoint::Moderations {
        ParsedBody::parse(body, gateway.catalogue.load().default_model(ModelKind::Moderation))
    } else {
        ParsedBody::parse(body, None)
    };
    let opened = opened.map_err(ApiError::Call)?;
    Ok(RequestBody { opened, room: None, weight: Some(weight) })
}

fn is_form(session: &Session) -> bool {
    let kind = session.get_header(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media_type = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("multipart/form-data")
}

/// Finds the account of a request's key. For what is free a key will do that was good some time
/// ago, while the ledger is away.
///
/// # Errors
/// No key, an unknown or revoked one, or no answer from the ledger.
pub async fn caller(
    gateway: &Gateway,
    session: &Session,
    tongue: ErrorFormat,
    is_free: bool,
) -> Result<KnownCaller, ApiError> {
    let hash = presented(session, tongue)?;
    let caller = match gateway.keys.caller(&hash) {
        Some(caller) => caller,
        None => look_up(gateway, hash, is_free).await?,
    };
    if caller.key.revoked_at.is_some() {
        return Err(ApiError::RevokedKey);
    }
    Ok(caller)
}

async fn look_up(gateway: &Gateway, hash: KeyHash, is_free: bool) -> Result<KnownCaller, ApiError> {
    let keys = &gateway.keys;
    if keys.is_unknown(&hash) {
        return Err(ApiError::BadKey);
    }
    match gateway.in_time("key", gateway.ledger.find_key(hash)).await {
        Ok(found) => keys.remember(hash, found).ok_or(ApiError::BadKey),
        Err(_) if is_free => keys.caller_known_good(&hash).ok_or(ApiError::NoLedger),
        Err(_) => Err(ApiError::NoLedger),
    }
}

/// The key, from either header that official clients use. Of two, the one that looks like ours
/// counts (a client may have a vendor's key in its environment too), else the format's own.
fn presented(session: &Session, tongue: ErrorFormat) -> Result<KeyHash, ApiError> {
    let bearer = session.get_header(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let plain = || session.get_header("x-api-key")?.to_str().ok().map(str::trim);
    let keys = match tongue {
        ErrorFormat::Chat => [bearer, plain()],
        ErrorFormat::Messages => [plain(), bearer],
    };
    let mut keys = keys.into_iter().flatten().filter(|key| !key.is_empty()).peekable();
    keys.peek().ok_or(ApiError::NoKey)?;
    keys.find_map(KeyHash::of_well_formed).ok_or(ApiError::BadKey)
}

/// Reads the whole body.
async fn body(
    gateway: &Gateway,
    session: &mut Session,
    mut payer: PayingAccount<'_>,
) -> Result<(Bytes, BudgetPermit), ApiError> {
    let most = gateway.limits.json_bytes_max;
    let began = Instant::now();
    let told = announced(gateway, session, &mut payer, most).await?;
    let mut pace = BodyRate::new(&gateway.limits, &gateway.timeouts);
    let mut weight = gateway.bodies.permit(&payer.caller.tenant);
    let mut watch = BodyWatch::new(&gateway.slow_bodies, Resource::BodyBytes);
    let mut body = BytesMut::new();
    let mut next = pieces(session, most);
    loop {
        let deadline = began + pace.deadline();
        let piece = tokio::select! {
            biased;
            piece = tokio::time::timeout_at(deadline, next.next()) => piece.map_err(|_| slow())??,
            () = watch.evicted() => return Err(evicted()),
        };
        let Some(piece) = piece else { break };
        let grown = grow_or_evict(&mut weight, piece.len(), &gateway.slow_bodies).await;
        grown.map_err(no_room)?;
        if body.is_empty() {
            if told == Some(piece.len()) {
                return Ok((piece, weight));
            }
            body.reserve(told.unwrap_or(BODY_BYTES_FIRST).max(piece.len()));
        }
        body.extend_from_slice(&piece);
        payer.check(gateway, body.len()).await?;
        pace.came(body.len(), began.elapsed());
        watch.record(body.len());
    }
    Ok((body.freeze(), weight))
}

fn no_room(over: OverBudget) -> ApiError {
    match over {
        OverBudget::Pool => shed("bodies"),
        OverBudget::Tenant => shed_tenant("account_bodies", ACCOUNT_BODIES),
    }
}

/// Whose money a body is about.
pub(super) struct PayingAccount<'a> {
    pub(super) caller: &'a KnownCaller,
    /// Whether the account's balance still has to be looked at if the body is large.
    is_unchecked: bool,
}

impl PayingAccount<'_> {
    /// A repeat of a call that was paid for needs no money, and of moderations none does.
    fn of<'a>(caller: &'a KnownCaller, session: &Session, endpoint: Endpoint) -> PayingAccount<'a> {
        let may_be_free = endpoint == Endpoint::Moderations || repeat::may_repeat(session);
        PayingAccount { caller, is_unchecked: !may_be_free }
    }

    /// Refuses a body that is large by now if its account has nothing to pay with.
    ///
    /// # Errors
    /// Nothing is available, and nothing held that may come back.
    pub(super) async fn check(&mut self, gateway: &Gateway, bytes: usize) -> Result<(), ApiError> {
        if self.is_unchecked && bytes > UNPAID_BYTES_MAX {
            self.is_unchecked = false;
            Box::pin(funds::check_any(gateway, &self.caller.key.account)).await?;
        }
        Ok(())
    }
}

/// A body that had to make room for others.
pub(super) fn evicted() -> ApiError {
    shed("evicted");
    ApiError::BodySlow
}

/// A body that came too slowly.
pub(super) fn slow() -> ApiError {
    shed("body");
    ApiError::BodySlow
}

/// Reads what the head says of a body, and asks for it. Gives its length, if that is told.
///
/// # Errors
/// It is compressed, longer than the most, or large and nothing there to pay with.
pub(super) async fn announced(
    gateway: &Gateway,
    session: &mut Session,
    payer: &mut PayingAccount<'_>,
    most: usize,
) -> Result<Option<usize>, ApiError> {
    let head = session.req_header();
    let is_plain = |v: &http::HeaderValue| v.as_bytes().eq_ignore_ascii_case(b"identity");
    if !head.headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Err(ApiError::Encoded);
    }
    if head.headers.get_all(CONTENT_TYPE).iter().nth(1).is_some() {
        // Whoever reads the other one reads another body.
        return Err(ApiError::Call(CallError::invalid("content-type", "one header")));
    }
    // The older version knows no answer before the answer.
    let expects = head.version != Version::HTTP_10 && head.headers.contains_key(EXPECT);
    let told: Option<usize> =
        session.get_header(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if told.is_some_and(|length| length > most) {
        return Err(ApiError::TooLarge(most));
    }
    payer.check(gateway, told.unwrap_or_default()).await?;
    if expects {
        // To say so before the body has been read must not close the connection.
        let keepalive = session.downstream_session.get_keepalive();
        session.write_continue_response().await.map_err(|_| ApiError::BodyBroken)?;
        session.set_keepalive(keepalive);
    }
    Ok(told)
}

/// The pieces of a body that may have so many bytes, at most.
pub(super) fn pieces(session: &mut Session, most: usize) -> BodyPieces<'_> {
    BodyPieces { session, left: most, most }
}

/// See [`pieces`].
pub(super) struct BodyPieces<'a> {
    session: &'a mut Session,
    left: usize,
    most: usize,
}

impl BodyPieces<'_> {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// The body has more than the most, or does not come whole.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let read = self.session.downstream_session.read_request_body().await;
        let piece = read.map_err(|why| match why.etype() {
            ErrorType::ReadTimedout => slow(),
            _ => ApiError::BodyBroken,
        })?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        self.left = self.left.checked_sub(length).ok_or(ApiError::TooLarge(self.most))?;
        Ok(piece)
    }
}
