//! Reads the body of a call, within limits of size, time and memory.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use pingora::proxy::Session;
use tokio::time::Instant;

use crate::catalogue::ModelKind;
use crate::dialect::Endpoint;
use crate::dialect::call::ParsedBody;
use crate::gateway::api_error::ApiError;
use crate::gateway::budgets::bodies::BodyRate;
use crate::gateway::budgets::concurrency::grow_or_evict;
use crate::gateway::budgets::overload::{reject, reject_tenant};
use crate::gateway::budgets::slow_bodies::BodyWatch;
use crate::gateway::budgets::tenants::{BudgetPermit, OverBudget, Resource};
use crate::gateway::deadline::await_until;
use crate::gateway::request::body::{
    PayingAccount, RequestBody, accept_body_headers, body_pieces, reject_evicted, reject_slow_body,
};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::uploads;
use crate::gateway::state::Gateway;

pub(crate) const ACCOUNT_BODIES_MESSAGE: &str =
    "too many bytes of requests of this account are in memory";

/// Initial buffer capacity for a body without a content-length.
pub(crate) const BODY_CAPACITY_INITIAL: usize = 4 << 10;

/// Reads and parses the body of a call.
///
/// # Errors
/// The body is compressed, too large or invalid, it did not arrive completely and in time, the
/// account has no balance, or there was no memory for it.
pub(crate) async fn read_body(
    gateway: &Gateway,
    session: &mut Session,
    caller: &AuthenticatedCaller,
    endpoint: Endpoint,
) -> Result<RequestBody, ApiError> {
    let payer = PayingAccount::new(caller, session, endpoint);
    // Boxed: few calls are uploads, and the future of every call would grow by the size of these.
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

pub(crate) fn is_multipart_form(session: &Session) -> bool {
    let kind = session.get_header(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media_type = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("multipart/form-data")
}

/// Reads a whole body that is not an upload. Its bytes count against the body budget.
pub(crate) async fn read_json_body(
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
        let piece = {
            let reading = pin!(next.next());
            tokio::select! {
                biased;
                piece = await_until(deadline, reading) => piece.ok_or_else(reject_slow_body)??,
                () = watch.wait_for_eviction() => return Err(reject_evicted()),
            }
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

pub(crate) fn over_budget_error(over: OverBudget) -> ApiError {
    match over {
        OverBudget::Pool => reject("bodies"),
        OverBudget::Tenant => reject_tenant("account_bodies", ACCOUNT_BODIES_MESSAGE),
    }
}
