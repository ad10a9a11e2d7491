//! The proxy loop: calls the phases in pingora's order, over connections of `upstream_pool`.
//!
//! pingora's loop can neither replay a body above 64 KiB, nor fall back on a status and keep the
//! vendor's error, nor read on after the client has gone. The day it can, this file goes and
//! `request_filter` returns `Ok(false)`; the phases stay as they are.

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
use crate::gateway::api_error::{ApiError, AttemptFailure, ServerError, UpstreamError};
use crate::gateway::budgets::overload::reject;
use crate::gateway::context::{AdmittedCall, BodyTransform, RequestContext};
use crate::gateway::state::Gateway;
use crate::gateway::upstream::{failure, outcome};
use crate::gateway::{response, upstream};

/// So much of why a connection failed goes into the log.
const CONNECT_ERROR_CHARS_MAX: usize = 300;
/// A large body is kept for another attempt at least this long, even if others need its room.
const LARGE_BODY_RETENTION: Duration = Duration::from_secs(3);
/// The write timeout of a large body.
const LARGE_BODY_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes read of a vendor's error.
const ERROR_BODY_BYTES_MAX: usize = 64 << 10;
/// And for so long, at most.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// A vendor that stops reading early may have answered already; so long is waited for that answer.
const EARLY_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// A connection that was closed while it was idle says so within this.
const STALE_RETRY_WINDOW: Duration = Duration::from_secs(2);

/// Tries routes until one answers, and passes the answer on.
///
/// # Errors
/// The refusal that the client is to see, if nothing was passed on yet.
pub(crate) async fn try_routes(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<(), ApiError> {
    loop {
        let late = ctx.arrived.elapsed() > gateway.timeouts.total;
        let next = if late { None } else { gateway.upstream_peer(session, ctx).await.ok() };
        let Some(peer) = next else {
            return Err(exhausted_error(ctx));
        };
        let began = Instant::now();
        let attempt = attempt_route(gateway, session, ctx, &peer).await;
        ctx.vendor_time += began.elapsed();
        let mut vendor = match attempt {
            Ok(vendor) => vendor,
            Err(AttemptError::Retryable(reason, block)) => {
                outcome::record_route_failure(ctx, reason, &block);
                continue;
            }
            Err(AttemptError::ResponseTimeout) => {
                outcome::record_lost_answer(ctx, failure::NO_RESPONSE);
                return Err(UpstreamError::Timeout.into());
            }
            Err(AttemptError::Internal) => return Err(ServerError::Internal.into()),
        };
        let head = vendor.connection.response_header().and_then(upstream::relevant_headers);
        let head = head.ok_or(ServerError::Internal)?;
        let status = head.status.as_u16();
        // A part is no answer to a call that asked for all.
        if !head.status.is_success() || status == 206 {
            // Boxed: an answer that streams would carry the room for it all the time.
            match Box::pin(handle_error_status(gateway, ctx, vendor, &peer, &head)).await {
                Some(refusal) => return Err(refusal),
                None => continue,
            }
        }
        vendor.connection.set_read_timeout(Some(gateway.timeouts.stall));
        if let Some(reason) = Box::pin(detect_no_work(ctx, &mut vendor, &head)).await {
            vendor.connection.shutdown().await;
            let block =
                AttemptFailure { status: Some(status), retry_after: None, may_be_billed: false };
            outcome::record_route_failure(ctx, reason, &block);
            continue;
        }
        return response::relay_response(gateway, session, ctx, vendor, &peer, head).await;
    }
}

/// Why an attempt gave no answer.
enum AttemptError {
    /// Nothing of an answer came: the next route may be tried.
    Retryable(&'static str, AttemptFailure),
    /// The vendor took the call and did not answer in time: it may have done the work.
    ResponseTimeout,
    /// The head could not be written.
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

async fn attempt_route(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    peer: &HttpPeer,
) -> Result<Box<UpstreamResponse>, AttemptError> {
    // A connection that was kept open may have been closed just now: once more, anew.
    let mut may_retry = true;
    loop {
        let admitted = ctx.admitted().ok_or(AttemptError::Internal)?;
        let route = &admitted.attempt.as_ref().ok_or(AttemptError::Internal)?.route;
        let head = upstream::empty_request_head(&admitted.priced, route);
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
                // Whoever has worked on the call for longer may have done it.
                let is_stale = reused
                    && began.elapsed() < STALE_RETRY_WINDOW
                    && !failure::has_reset_stream(&why);
                if !(is_stale && std::mem::take(&mut may_retry)) {
                    // What is around the error may be the vendor's words, and in them our key.
                    let why = why.etype().as_str();
                    let request_id = ctx.id.as_str();
                    log::info!(
                        event = "upstream_no_response", request_id, why;
                        "upstream closed without a response"
                    );
                    return Err(AttemptError::retryable(failure::RESET, true));
                }
                // Nobody knows whether it was read.
                outcome::record_resend(ctx);
            }
        }
    }
}

/// Notes that no connection could be made; the next one goes to another address, if there is one.
fn record_connect_failure(ctx: &mut RequestContext, why: &Error) -> AttemptError {
    let reason = failure::reason_for_connect(why);
    if let Some(route) = &ctx.access_log.route {
        route.rotate_address();
        let (vendor, name) = (&route.vendor, &route.name);
        let why: String = why.to_string().chars().take(CONNECT_ERROR_CHARS_MAX).collect();
        log::warn!(
            event = "upstream_connect_failed", request_id = ctx.id, vendor, route = name,
            reason, why:?; "upstream connect failed"
        );
    }
    AttemptError::retryable(reason, false)
}

/// Sends a request, and reads the head of its answer. Tells whether all of it was sent: what was
/// not would be read as the beginning of the next request.
async fn send_and_read_head(
    gateway: &Gateway,
    up: &mut Upstream,
    head: RequestHeader,
    ctx: &mut RequestContext,
) -> pingora::Result<bool> {
    let attempt = ctx.admitted().and_then(|admitted| admitted.attempt.as_ref());
    let body = attempt.map(|attempt| attempt.body.clone()).unwrap_or_default();
    if let Err(why) = write_request(up, head, &body).await {
        // Some vendors answer before they have read everything, and close.
        return match tokio::time::timeout(EARLY_RESPONSE_TIMEOUT, read_response_head(up)).await {
            Ok(Ok(())) => Ok(false),
            _ => Err(why),
        };
    }
    drop(body);
    // As a whole: a vendor that lets its head trickle in has not answered either.
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
            // It works on it. Another route would need the body again, but others need its room.
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

/// Reads a short error, and gives the connection back. Tells whether that is all of it: a vendor
/// that repeats a client's words may have many.
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

/// Every route failed, or there was none to try.
fn exhausted_error(ctx: &mut RequestContext) -> ApiError {
    let routes = ctx.admitted().map(|admitted| &admitted.routes);
    match routes.map(|routes| (routes.last_failure.clone(), routes.skipped_full_route)) {
        Some((Some(block), _)) => UpstreamError::AllRoutesFailed(block).into(),
        Some((None, true)) => reject("routes"),
        _ => UpstreamError::NoRoute("no route to the vendor can be used at the moment".to_owned())
            .into(),
    }
}

/// Reads a status that is no answer: a block, after which the next route is tried, or else what the
/// client is to hear.
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
    let block = if rules.matches_status(status) {
        // A server error may come after the work was done; the other blocks come instead of it.
        let work_begun = matches!(status, 408 | 500..=599) && !matches!(status, 503 | 529);
        AttemptFailure { status: Some(status), retry_after, may_be_billed: work_begun }
    } else if rules.matches_body(status, &body) {
        // As if it had said so by its status: it does not take our key or our money.
        AttemptFailure { status: Some(402), retry_after: None, may_be_billed: false }
    } else if is_client_error(status, &error, is_cut) {
        if matches!(admitted.priced.body_transform, BodyTransform::Translate { .. }) {
            // The types of the other format mean nothing to a chat client.
            let error = VendorError { kind: None, ..error };
            return Some(UpstreamError::Refused { status, error }.into());
        }
        return Some(UpstreamError::Refused { status, error }.into());
    } else if status < 300 {
        outcome::record_lost_answer(ctx, failure::reason_for_status(status));
        let block = AttemptFailure { status: Some(status), retry_after: None, may_be_billed: true };
        return Some(UpstreamError::AllRoutesFailed(block).into());
    } else {
        // A redirect, or the server is not the vendor or does not know the path.
        AttemptFailure { status: Some(status), retry_after, may_be_billed: false }
    };
    let reason = failure::reason_for_status(block.status.unwrap_or(status));
    outcome::record_route_failure(ctx, reason, &block);
    None
}

/// Whether a status blames the call, in words of the vendor's: a page says that whoever wrote it
/// does not know the vendor's interface.
fn is_client_error(status: u16, error: &VendorError, is_cut: bool) -> bool {
    let says_why = error.message.is_some() || error.code.is_some() || is_cut;
    status == 413 || (matches!(status, 400 | 404 | 422) && says_why)
}

/// Why an answer proves that no work was done, if it does.
async fn detect_no_work(
    ctx: &mut RequestContext,
    vendor: &mut UpstreamResponse,
    head: &ResponseHeader,
) -> Option<&'static str> {
    let call = &ctx.admitted()?.priced.call;
    if upstream::is_html_page(head) {
        return Some(failure::HTML);
    }
    let is_sound = matches!(call.kind, RequestKind::Speech { .. });
    // A stream begins when its first event does, and its beginning is not waited for here.
    if call.stream {
        return upstream::has_no_body(vendor.connection.response_header()?)
            .then_some(failure::EMPTY);
    }
    let is_framed = upstream::is_framed(vendor.connection.response_header()?);
    match vendor.peek_body().await {
        None => is_framed.then_some(failure::EMPTY),
        Some(start) => {
            let is_page = !is_sound && start.trim_ascii_start().starts_with(b"<");
            is_page.then_some(failure::HTML)
        }
    }
}
