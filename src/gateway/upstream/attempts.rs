//! The proxy loop: tries the routes of a call, over connections of `upstream_pool`. It owns the
//! call, and a value for each attempt.
//!
//! pingora's own loop cannot replay a request body above 64 KiB, cannot fall back on a status and
//! keep the vendor's error, and cannot read on after the client has disconnected.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};

use super::answer::{UpstreamResponse, VendorHead};
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::payload::RequestPayload;
use crate::dialect::relay::RelayError;
use crate::dialect::vendor_error::VendorError;
use crate::gateway::api_error::{ApiError, AttemptFailure, ScopeError, ServerError, UpstreamError};
use crate::gateway::budgets::overload::reject;
use crate::gateway::context::{
    AdmittedCall, BodyTransform, RequestContext, RouteAttempt, RouteQueue,
};
use crate::gateway::request::scope_check;
use crate::gateway::response::begin::begin_relay;
use crate::gateway::response::head::{build_head, vendor_request_id};
use crate::gateway::state::Gateway;
use crate::gateway::upstream::routes::VendorRoute;
use crate::gateway::upstream::{failure, outcome};
use crate::gateway::{call_trace, response, settlement, upstream};

/// At most this many characters of a connection error are logged.
const CONNECT_ERROR_CHARS_MAX: usize = 300;
/// A large request body is kept for another attempt for at least this long, even if other uploads
/// wait for its memory.
const LARGE_BODY_RETENTION: Duration = Duration::from_secs(3);
/// Timeout of one write of a large request body, unless the timeout `stall` is shorter.
const LARGE_BODY_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// At most this many bytes of a vendor's error body are read.
const ERROR_BODY_BYTES_MAX: usize = 64 << 10;
/// A vendor's error body is read for at most this long.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// If a request cannot be written, the vendor may have answered before it had read all of it. The
/// gateway waits this long for that response.
const EARLY_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// A reused connection that was closed while it was idle fails within this time, and the request is
/// sent again. A later failure is not taken for such a closed connection.
const STALE_RETRY_WINDOW: Duration = Duration::from_secs(2);

/// Tries routes until one answers, and relays its response to the client. Afterwards the hold of
/// the call is settled or voided.
///
/// # Errors
/// The error that the client is to get, if no part of a response was sent yet.
pub(crate) async fn try_routes(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    mut admitted: Box<AdmittedCall>,
) -> Result<(), ApiError> {
    let answer = match find_answer(gateway, session, ctx, &mut admitted).await {
        Ok(answer) => answer,
        Err(refusal) => {
            settlement::void_hold(gateway, admitted.priced.funding);
            return Err(refusal);
        }
    };
    let RouteAnswer { attempt, vendor, head, vendor_request_id } = answer;
    let (relaying, peer) = begin_relay(ctx, *admitted, attempt, vendor_request_id);
    response::relay_response(gateway, session, ctx, relaying, vendor, &peer, head).await
}

/// The answer of a route, which can be relayed.
struct RouteAnswer {
    attempt: RouteAttempt,
    vendor: Box<UpstreamResponse>,
    /// The response head for the client.
    head: Box<ResponseHeader>,
    /// The vendor's id of the request; `None` if the vendor sent none.
    vendor_request_id: Option<String>,
}

/// Tries routes until one answers.
///
/// # Errors
/// No route answers, a vendor refuses the call, or the account was suspended. Nothing was sent to
/// the client.
async fn find_answer(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    admitted: &mut AdmittedCall,
) -> Result<RouteAnswer, ApiError> {
    loop {
        // No vendor begins anything for an account that is suspended, also not in another's place.
        if let Some(account) = &ctx.access_log.account {
            scope_check::check_suspension(&gateway.suspended, account, ctx.suspensions_seen)?;
        }
        if ctx.arrived.elapsed() > gateway.timeouts.total {
            return Err(exhausted_error(&admitted.routes));
        }
        let Some(mut attempt) = upstream::select_route(&gateway.timeouts, ctx, admitted) else {
            return Err(exhausted_error(&admitted.routes));
        };
        let began = Instant::now();
        let answered =
            attempt_unless_suspended(gateway, session, ctx, admitted, &mut attempt, began).await;
        ctx.vendor_time += began.elapsed();
        let vendor = match answered {
            Ok(vendor) => vendor,
            Err(AttemptError::Retryable(reason, failure)) => {
                outcome::record_route_failure(ctx, admitted, &attempt.route, reason, &failure);
                continue;
            }
            Err(AttemptError::ResponseTimeout) => {
                outcome::record_lost_answer(ctx, &attempt.route, failure::NO_RESPONSE);
                return Err(UpstreamError::Timeout.into());
            }
            Err(AttemptError::Suspended) => {
                outcome::record_lost_attempt(&attempt.route);
                call_trace::end_attempt(ctx, Some("suspended"));
                return Err(ScopeError::Suspended.into());
            }
            Err(AttemptError::InvalidHead(why)) => {
                let (request_id, route) = (ctx.id.as_str(), attempt.route.name.as_str());
                log::error!(
                    event = "upstream_head_invalid", request_id, route, error:% = why;
                    "request head for a vendor cannot be built"
                );
                return Err(ServerError::RouteMisconfigured.into());
            }
        };
        // Boxed: otherwise the future of every streamed response would include its state.
        let waiting = Instant::now();
        let accepted =
            Box::pin(accept_answer(gateway, session, ctx, admitted, attempt, vendor)).await;
        ctx.vendor_time += waiting.elapsed();
        if let Some(answer) = accepted? {
            return Ok(answer);
        }
    }
}

/// Looks whether a response is an answer that can be relayed. `None` if it is a failure of the
/// route, after which the next route is tried.
///
/// # Errors
/// The response refuses the call, or cannot be read although the vendor may have done the work.
async fn accept_answer(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    admitted: &mut AdmittedCall,
    attempt: RouteAttempt,
    vendor: VendorAnswer,
) -> Result<Option<RouteAnswer>, ApiError> {
    let VendorAnswer { response: mut vendor, mut head } = vendor;
    let status = head.status.as_u16();
    call_trace::note_status(ctx, status);
    // A 206 (partial content) does not answer a request for the whole response.
    if !head.status.is_success() || status == 206 {
        // Boxed: few calls come here, and the state of every call would grow by this one.
        let refusal =
            Box::pin(handle_error_status(gateway, ctx, admitted, &attempt, vendor, &head)).await;
        return refusal.map_or(Ok(None), Err);
    }
    vendor.connection.set_read_timeout(Some(gateway.timeouts.stall));
    if let Some(reason) = detect_no_work(&admitted.priced.call, &mut vendor, &head).await {
        vendor.connection.shutdown().await;
        let failure =
            AttemptFailure { status: Some(status), retry_after: None, may_be_billed: false };
        outcome::record_route_failure(ctx, admitted, &attempt.route, reason, &failure);
        return Ok(None);
    }
    if !upstream::is_readable(&head, &admitted.priced.call) {
        outcome::record_lost_answer(ctx, &attempt.route, failure::UNREADABLE);
        vendor.connection.shutdown().await;
        return Err(UpstreamError::RelayFailed(RelayError::Malformed).into());
    }
    let vendor_request_id = vendor_request_id(&head);
    *head = build_head(session, ctx, &admitted.priced, &head);
    Ok(Some(RouteAnswer { attempt, vendor, head, vendor_request_id }))
}

/// A vendor's response, with the headers of its head that the gateway reads.
struct VendorAnswer {
    response: Box<UpstreamResponse>,
    head: Box<ResponseHeader>,
}

/// Why an attempt got no response.
enum AttemptError {
    /// No part of a response arrived, so the next route may be tried. The text is the reason.
    Retryable(&'static str, AttemptFailure),
    /// The vendor accepted the request and did not answer in time. It may have done the work, so no
    /// other route is tried.
    ResponseTimeout,
    /// The account of a stream was suspended before the vendor answered.
    Suspended,
    /// The rules, the routes or the vendor's key have something that no request head can have.
    InvalidHead(Box<Error>),
}

impl AttemptError {
    fn retryable(reason: &'static str, work_begun: bool) -> AttemptError {
        AttemptError::Retryable(
            reason,
            AttemptFailure { status: None, retry_after: None, may_be_billed: work_begun },
        )
    }
}

/// Makes an attempt that began at `began`. That of a stream is given up if its account is suspended
/// meanwhile, as the stream would be: a vendor may take minutes before it says a word.
async fn attempt_unless_suspended(
    gateway: &Gateway,
    session: &Session,
    ctx: &RequestContext,
    admitted: &mut AdmittedCall,
    attempt: &mut RouteAttempt,
    began: Instant,
) -> Result<VendorAnswer, AttemptError> {
    let watched = if admitted.priced.call.stream { ctx.access_log.account.clone() } else { None };
    let seen = ctx.suspensions_seen;
    let suspension = async move {
        match watched {
            Some(account) => {
                let mut watch = gateway.suspended.watch_since(seen);
                watch.await_suspension(&account).await;
            }
            None => std::future::pending::<()>().await,
        }
    };
    tokio::select! {
        biased;
        answered = attempt_route(gateway, session, ctx, admitted, attempt, began) => answered,
        () = suspension => Err(AttemptError::Suspended),
    }
}

async fn attempt_route(
    gateway: &Gateway,
    session: &Session,
    ctx: &RequestContext,
    admitted: &mut AdmittedCall,
    attempt: &mut RouteAttempt,
    began: Instant,
) -> Result<VendorAnswer, AttemptError> {
    // The vendor may just have closed a connection of the pool. Then the route is tried once more.
    let mut may_retry = true;
    loop {
        let priced = &admitted.priced;
        let head = upstream::build_request_head(gateway, session, ctx, priced, attempt);
        let head = head.map_err(AttemptError::InvalidHead)?;
        let is_large = admitted.permits.upload.is_some();
        let (mut up, reused) = match gateway.upstream_pool.connect(&attempt.peer).await {
            Ok(connected) => connected,
            Err(_) if std::mem::take(&mut may_retry) && attempt.peer.is_tls() => continue,
            Err(why) => return Err(record_connect_failure(ctx, &attempt.route, &why)),
        };
        let most = if is_large { LARGE_BODY_WRITE_TIMEOUT } else { Duration::MAX };
        up.set_write_timeout(Some(gateway.timeouts.stall.min(most)));
        match send_and_read_head(gateway, &mut up, head, admitted, attempt).await {
            Ok((head, sent_whole)) => {
                let response = Box::new(UpstreamResponse::new(up, head.framing, sent_whole));
                return Ok(VendorAnswer { response, head: head.fields });
            }
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                up.shutdown().await;
                return Err(AttemptError::ResponseTimeout);
            }
            Err(why) => {
                up.shutdown().await;
                // A vendor that had the request for longer may have done the work.
                let is_stale = reused
                    && began.elapsed() < STALE_RETRY_WINDOW
                    && !failure::is_stream_reset_by_vendor(&why);
                if !(is_stale && std::mem::take(&mut may_retry)) {
                    // Only the type of the error is logged: its context may quote the vendor, and
                    // so contain our key.
                    let why = why.etype().as_str();
                    let request_id = ctx.id.as_str();
                    log::info!(
                        event = "upstream_no_response", request_id, error = why;
                        "upstream closed without a response"
                    );
                    return Err(AttemptError::retryable(failure::RESET, true));
                }
                // It is unknown whether the vendor read the request.
                outcome::record_resend(&mut admitted.routes, &attempt.route);
            }
        }
    }
}

/// Logs that no connection could be made, and makes the next one use another address of the route,
/// if there is one.
fn record_connect_failure(ctx: &RequestContext, route: &VendorRoute, why: &Error) -> AttemptError {
    let reason = failure::reason_for_connect(why);
    route.rotate_address();
    let (vendor, name) = (&route.vendor, &route.name);
    let why: String = why.to_string().chars().take(CONNECT_ERROR_CHARS_MAX).collect();
    log::warn!(
        event = "upstream_connect_failed", request_id = ctx.id, vendor, route = name,
        reason, error:? = why; "upstream connect failed"
    );
    AttemptError::retryable(reason, false)
}

/// Sends a request, and reads the head of the response. Also returns whether the whole request was
/// sent: otherwise the connection cannot be reused, because the vendor would not know where the
/// next request begins.
async fn send_and_read_head(
    gateway: &Gateway,
    up: &mut Upstream,
    head: RequestHeader,
    admitted: &mut AdmittedCall,
    attempt: &mut RouteAttempt,
) -> pingora::Result<(VendorHead, bool)> {
    if let Err(why) = write_request(up, head, &attempt.body).await {
        // Nothing answers a head that HTTP/2 did not send, and pingora panics if it is asked for
        // that answer.
        if up.as_http2().is_some_and(|stream| stream.request_header().is_none()) {
            return Err(why);
        }
        // Some vendors answer before they have read the whole request, and then close the
        // connection.
        return match tokio::time::timeout(EARLY_RESPONSE_TIMEOUT, VendorHead::read(up)).await {
            Ok(Ok(head)) => Ok((head, false)),
            _ => Err(why),
        };
    }
    // The timeout is for the whole head: a vendor that sends its head byte by byte has not answered
    // either.
    let reading = async {
        let read = tokio::time::timeout(gateway.timeouts.answer, VendorHead::read(up)).await;
        read.unwrap_or_else(|_| Error::e_explain(ErrorType::ReadTimedout, "no head in time"))
    };
    if admitted.permits.upload.is_none() {
        return reading.await.map(|head| (head, true));
    }
    let mut reading = std::pin::pin!(reading);
    loop {
        match tokio::time::timeout(LARGE_BODY_RETENTION, &mut reading).await {
            Ok(read) => return read.map(|head| (head, true)),
            // The vendor works on the request. Another route would need the body again, but other
            // uploads wait for its memory.
            Err(_) if gateway.upload_budget.has_waiters() => admitted.drop_body(attempt),
            Err(_) => {}
        }
    }
}

async fn write_request(
    up: &mut Upstream,
    head: RequestHeader,
    body: &RequestPayload,
) -> pingora::Result<()> {
    up.write_request_header(Box::new(head)).await?;
    for piece in body.chunks() {
        up.write_request_body(piece, false).await?;
    }
    up.finish_request_body().await
}

/// Reads an error body within the limits of size and time, and returns the connection to the pool
/// or closes it. Returns the bytes, and whether they are the whole body: an error that quotes the
/// request may be long.
async fn read_error_body(
    gateway: &Gateway,
    vendor: Box<UpstreamResponse>,
    peer: &HttpPeer,
) -> (Vec<u8>, bool) {
    let UpstreamResponse { connection: mut up, request_sent: sent_whole, .. } = *vendor;
    let mut body = Vec::new();
    let reading = async {
        while let Ok(Some(piece)) = up.read_response_body().await {
            let left = ERROR_BODY_BYTES_MAX - body.len();
            body.extend_from_slice(&piece[..piece.len().min(left)]);
            if piece.len() > left {
                return false;
            }
        }
        true
    };
    let whole = tokio::time::timeout(ERROR_BODY_TIMEOUT, reading).await.unwrap_or(false);
    if whole && sent_whole && up.response_done() {
        gateway.upstream_pool.release(up, peer).await;
    } else {
        up.shutdown().await;
    }
    (body, whole)
}

/// Returns the error for a call for which every route failed, or no route could be tried.
fn exhausted_error(routes: &RouteQueue) -> ApiError {
    match &routes.last_failure {
        Some(failure) => UpstreamError::AllRoutesFailed(failure.clone()).into(),
        None if routes.skipped_full_route => reject("routes"),
        None => {
            let why = "no route to the vendor can be used at the moment";
            UpstreamError::NoRoute(why.to_owned()).into()
        }
    }
}

/// Handles a status that is not a usable answer. Returns the error for the client, or `None` if it
/// is a failure of the route, after which the next route is tried.
async fn handle_error_status(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    admitted: &mut AdmittedCall,
    attempt: &RouteAttempt,
    vendor: Box<UpstreamResponse>,
    head: &ResponseHeader,
) -> Option<ApiError> {
    let status = head.status.as_u16();
    let retry_after = upstream::retry_after(head);
    let (body, whole) = read_error_body(gateway, vendor, &attempt.peer).await;
    let body = Bytes::from(body);
    let is_cut = !whole && matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    let body = attempt.route.redact(body);
    let rules = &admitted.priced.pricing.model.vendor.failover;
    let error = VendorError::parse(&body);
    let failure = if rules.matches_status(status) {
        // A server error may come after the work was done; the other statuses mean that it was not.
        let work_begun = matches!(status, 408 | 500..=599) && !matches!(status, 503 | 529);
        AttemptFailure { status: Some(status), retry_after, may_be_billed: work_begun }
    } else if rules.matches_body(status, &body) {
        // Treated as status 402: the body says that the vendor does not accept our key or payment.
        AttemptFailure { status: Some(402), retry_after: None, may_be_billed: false }
    } else if is_client_error(status, &error, is_cut) {
        if matches!(admitted.priced.body_transform, BodyTransform::Translate { .. }) {
            // A chat client does not know the error types of the vendor's format.
            let error = VendorError { kind: None, ..error };
            return Some(UpstreamError::Refused { status, error }.into());
        }
        return Some(UpstreamError::Refused { status, error }.into());
    } else if status < 300 {
        outcome::record_lost_answer(ctx, &attempt.route, failure::reason_for_status(status));
        let failure =
            AttemptFailure { status: Some(status), retry_after: None, may_be_billed: true };
        return Some(UpstreamError::AllRoutesFailed(failure).into());
    } else {
        // A redirect, or the server is not the vendor or does not know the path.
        AttemptFailure { status: Some(status), retry_after, may_be_billed: false }
    };
    let reason = failure::reason_for_status(failure.status.unwrap_or(status));
    outcome::record_route_failure(ctx, admitted, &attempt.route, reason, &failure);
    None
}

/// Whether the vendor refused the request itself: by status 413, or by 400, 404 or 422 with an
/// error in the vendor's format or the beginning of JSON that was cut off. Another body, such as an
/// HTML page, comes from a server that does not speak the vendor's API.
fn is_client_error(status: u16, error: &VendorError, is_cut: bool) -> bool {
    let says_why = error.message.is_some() || error.code.is_some() || is_cut;
    status == 413 || (matches!(status, 400 | 404 | 422) && says_why)
}

/// Returns the reason if a response proves that the vendor did no work, because its body is empty
/// or an HTML page; otherwise `None`.
async fn detect_no_work(
    call: &ModelCall,
    vendor: &mut UpstreamResponse,
    head: &ResponseHeader,
) -> Option<&'static str> {
    if upstream::is_html_page(head) {
        return Some(failure::HTML);
    }
    let is_audio = matches!(call.kind, RequestKind::Speech { .. });
    // The body of a stream begins with its first event, which may come late, so it is not awaited
    // here.
    if call.stream {
        return vendor.framing.is_empty.then_some(failure::EMPTY);
    }
    let has_end = vendor.framing.has_end;
    match vendor.peek_body().await {
        None => has_end.then_some(failure::EMPTY),
        Some(start) => {
            let is_page = !is_audio && start.trim_ascii_start().starts_with(b"<");
            is_page.then_some(failure::HTML)
        }
    }
}
