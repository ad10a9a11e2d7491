//! The proxy loop: calls the phases in pingora's order, over connections of `upstream_pool`.
//!
//! pingora's own loop cannot replay a request body above 64 KiB, cannot fall back on a status and
//! keep the vendor's error, and cannot read on after the client has disconnected. If pingora learns
//! all three, delete this file and let `request_filter` return `Ok(false)`; the phases stay as they
//! are.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::client::HttpSession as Upstream;
use pingora::proxy::{ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};

use super::answer::UpstreamResponse;
use crate::dialect::call::RequestKind;
use crate::dialect::payload::RequestPayload;
use crate::dialect::vendor_error::VendorError;
use crate::gateway::api_error::{ApiError, AttemptFailure, ScopeError, ServerError, UpstreamError};
use crate::gateway::budgets::overload::reject;
use crate::gateway::context::{AdmittedCall, BodyTransform, RequestContext};
use crate::gateway::request::scope_check;
use crate::gateway::state::Gateway;
use crate::gateway::upstream::{failure, outcome};
use crate::gateway::{response, upstream};

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

/// Tries routes until one answers, and relays its response to the client.
///
/// # Errors
/// The error that the client is to get, if no part of a response was sent yet.
pub(crate) async fn try_routes(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<(), ApiError> {
    loop {
        // No vendor begins anything for an account that is suspended, also not in another's place.
        if let Some(account) = &ctx.access_log.account {
            scope_check::check_suspension(&gateway.suspended, account, ctx.suspensions_seen)?;
        }
        let late = ctx.arrived.elapsed() > gateway.timeouts.total;
        let next = if late { None } else { gateway.upstream_peer(session, ctx).await.ok() };
        let Some(peer) = next else {
            return Err(exhausted_error(ctx));
        };
        let began = Instant::now();
        let attempt = attempt_unless_suspended(gateway, session, ctx, &peer).await;
        ctx.vendor_time += began.elapsed();
        let mut vendor = match attempt {
            Ok(vendor) => vendor,
            Err(AttemptError::Retryable(reason, failure)) => {
                outcome::record_route_failure(ctx, reason, &failure);
                continue;
            }
            Err(AttemptError::ResponseTimeout) => {
                outcome::record_lost_answer(ctx, failure::NO_RESPONSE);
                return Err(UpstreamError::Timeout.into());
            }
            Err(AttemptError::Suspended) => {
                outcome::record_lost_attempt(ctx);
                return Err(ScopeError::Suspended.into());
            }
            Err(AttemptError::Internal) => return Err(ServerError::Internal.into()),
        };
        let head = vendor.connection.response_header().and_then(upstream::relevant_headers);
        let head = head.ok_or(ServerError::Internal)?;
        let status = head.status.as_u16();
        // A 206 (partial content) does not answer a request for the whole response.
        if !head.status.is_success() || status == 206 {
            // Boxed: otherwise the future of every streamed response would include its state.
            match Box::pin(handle_error_status(gateway, ctx, vendor, &peer, &head)).await {
                Some(refusal) => return Err(refusal),
                None => continue,
            }
        }
        vendor.connection.set_read_timeout(Some(gateway.timeouts.stall));
        if let Some(reason) = Box::pin(detect_no_work(ctx, &mut vendor, &head)).await {
            vendor.connection.shutdown().await;
            let failure =
                AttemptFailure { status: Some(status), retry_after: None, may_be_billed: false };
            outcome::record_route_failure(ctx, reason, &failure);
            continue;
        }
        return response::relay_response(gateway, session, ctx, vendor, &peer, head).await;
    }
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
    /// The gateway could not build the request head.
    Internal,
}

impl AttemptError {
    fn retryable(reason: &'static str, work_begun: bool) -> AttemptError {
        AttemptError::Retryable(
            reason,
            AttemptFailure { status: None, retry_after: None, may_be_billed: work_begun },
        )
    }
}

/// Attempts a route. That of a stream is given up if its account is suspended meanwhile, as the
/// stream would be: a vendor may take minutes before it says a word.
async fn attempt_unless_suspended(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    peer: &HttpPeer,
) -> Result<Box<UpstreamResponse>, AttemptError> {
    let is_stream = ctx.admitted().is_some_and(|admitted| admitted.priced.call.stream);
    let watched = if is_stream { ctx.access_log.account.clone() } else { None };
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
        attempt = attempt_route(gateway, session, ctx, peer) => attempt,
        () = suspension => Err(AttemptError::Suspended),
    }
}

async fn attempt_route(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    peer: &HttpPeer,
) -> Result<Box<UpstreamResponse>, AttemptError> {
    // The vendor may just have closed a connection of the pool. Then the route is tried once more.
    let mut may_retry = true;
    loop {
        let admitted = ctx.admitted().ok_or(AttemptError::Internal)?;
        let route = &admitted.attempt.as_ref().ok_or(AttemptError::Internal)?.route;
        let head = upstream::prepared_request_head(&admitted.priced, route);
        let mut head = head.map_err(|_| AttemptError::Internal)?;
        let is_large = admitted.permits.upload.is_some();
        let filled = gateway.upstream_request_filter(session, &mut head, ctx).await;
        filled.map_err(|_| AttemptError::Internal)?;
        let began = Instant::now();
        let (mut up, reused) = match gateway.upstream_pool.connect(peer).await {
            Ok(connected) => connected,
            Err(_) if std::mem::take(&mut may_retry) && peer.is_tls() => continue,
            Err(why) => return Err(record_connect_failure(ctx, &why)),
        };
        up.set_read_timeout(Some(gateway.timeouts.answer));
        let most = if is_large { LARGE_BODY_WRITE_TIMEOUT } else { Duration::MAX };
        up.set_write_timeout(Some(gateway.timeouts.stall.min(most)));
        match send_and_read_head(gateway, &mut up, head, ctx).await {
            Ok(sent_whole) => return Ok(Box::new(UpstreamResponse::new(up, sent_whole))),
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
                outcome::record_resend(ctx);
            }
        }
    }
}

/// Logs that no connection could be made, and makes the next one use another address of the route,
/// if there is one.
fn record_connect_failure(ctx: &mut RequestContext, why: &Error) -> AttemptError {
    let reason = failure::reason_for_connect(why);
    if let Some(route) = &ctx.access_log.route {
        route.rotate_address();
        let (vendor, name) = (&route.vendor, &route.name);
        let why: String = why.to_string().chars().take(CONNECT_ERROR_CHARS_MAX).collect();
        log::warn!(
            event = "upstream_connect_failed", request_id = ctx.id, vendor, route = name,
            reason, error:? = why; "upstream connect failed"
        );
    }
    AttemptError::retryable(reason, false)
}

/// Sends a request, and reads the head of the response. Returns whether the whole request was sent:
/// otherwise the connection cannot be reused, because the vendor would not know where the next
/// request begins.
async fn send_and_read_head(
    gateway: &Gateway,
    up: &mut Upstream,
    head: RequestHeader,
    ctx: &mut RequestContext,
) -> pingora::Result<bool> {
    let attempt = ctx.admitted().and_then(|admitted| admitted.attempt.as_ref());
    let body = attempt.map(|attempt| attempt.body.clone()).unwrap_or_default();
    if let Err(why) = write_request(up, head, &body).await {
        // Some vendors answer before they have read the whole request, and then close the
        // connection.
        return match tokio::time::timeout(EARLY_RESPONSE_TIMEOUT, read_response_head(up)).await {
            Ok(Ok(())) => Ok(false),
            _ => Err(why),
        };
    }
    drop(body);
    // The timeout is for the whole head: a vendor that sends its head byte by byte has not answered
    // either.
    let reading = async {
        let read = tokio::time::timeout(gateway.timeouts.answer, read_response_head(up)).await;
        read.unwrap_or_else(|_| Error::e_explain(ErrorType::ReadTimedout, "no head in time"))
    };
    if ctx.admitted().is_none_or(|admitted| admitted.permits.upload.is_none()) {
        return reading.await.map(|()| true);
    }
    let mut reading = std::pin::pin!(reading);
    loop {
        match tokio::time::timeout(LARGE_BODY_RETENTION, &mut reading).await {
            Ok(read) => return read.map(|()| true),
            // The vendor works on the request. Another route would need the body again, but other
            // uploads wait for its memory.
            Err(_) if gateway.upload_budget.has_waiters() => {
                ctx.admitted().into_iter().for_each(AdmittedCall::drop_body);
            }
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

async fn read_response_head(up: &mut Upstream) -> pingora::Result<()> {
    loop {
        up.read_response_header().await?;
        if !up.response_header().is_some_and(|head| head.status.is_informational()) {
            return Ok(());
        }
    }
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
fn exhausted_error(ctx: &mut RequestContext) -> ApiError {
    let routes = ctx.admitted().map(|admitted| &admitted.routes);
    match routes.map(|routes| (routes.last_failure.clone(), routes.skipped_full_route)) {
        Some((Some(failure), _)) => UpstreamError::AllRoutesFailed(failure).into(),
        Some((None, true)) => reject("routes"),
        _ => UpstreamError::NoRoute("no route to the vendor can be used at the moment".to_owned())
            .into(),
    }
}

/// Handles a status that is not a usable answer. Returns the error for the client, or `None` if it
/// is a failure of the route, after which the next route is tried.
async fn handle_error_status(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    vendor: Box<UpstreamResponse>,
    peer: &HttpPeer,
    head: &ResponseHeader,
) -> Option<ApiError> {
    let status = head.status.as_u16();
    let retry_after = upstream::retry_after(head);
    let (body, whole) = read_error_body(gateway, vendor, peer).await;
    let body = Bytes::from(body);
    let is_cut = !whole && matches!(body.trim_ascii_start().first(), Some(b'{' | b'['));
    let admitted = ctx.admitted()?;
    let body = admitted.attempt.as_ref()?.route.redact(body);
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
        outcome::record_lost_answer(ctx, failure::reason_for_status(status));
        let failure =
            AttemptFailure { status: Some(status), retry_after: None, may_be_billed: true };
        return Some(UpstreamError::AllRoutesFailed(failure).into());
    } else {
        // A redirect, or the server is not the vendor or does not know the path.
        AttemptFailure { status: Some(status), retry_after, may_be_billed: false }
    };
    let reason = failure::reason_for_status(failure.status.unwrap_or(status));
    outcome::record_route_failure(ctx, reason, &failure);
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
    ctx: &mut RequestContext,
    vendor: &mut UpstreamResponse,
    head: &ResponseHeader,
) -> Option<&'static str> {
    let call = &ctx.admitted()?.priced.call;
    if upstream::is_html_page(head) {
        return Some(failure::HTML);
    }
    let is_audio = matches!(call.kind, RequestKind::Speech { .. });
    // The body of a stream begins with its first event, which may come late, so it is not awaited
    // here.
    if call.stream {
        return upstream::has_no_body(vendor.connection.response_header()?)
            .then_some(failure::EMPTY);
    }
    let is_framed = upstream::is_framed(vendor.connection.response_header()?);
    match vendor.peek_body().await {
        None => is_framed.then_some(failure::EMPTY),
        Some(start) => {
            let is_page = !is_audio && start.trim_ascii_start().starts_with(b"<");
            is_page.then_some(failure::HTML)
        }
    }
}
