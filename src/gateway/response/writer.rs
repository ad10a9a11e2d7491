//! Sends responses that the gateway makes itself.

use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use pingora::proxy::Session;
use pingora::{ErrorType, OrErr, Result};

use crate::gateway::api_error::{ApiError, CapacityError, RequestError};
use crate::gateway::context::RequestContext;
use crate::gateway::local_response::LocalResponse;
use crate::gateway::response::head;
use crate::gateway::response_head::ResponseHead;

/// At most this many bytes of a refused body are read and discarded, so that a client that sends
/// its body before it reads receives the error.
pub(crate) const DRAIN_BYTES_MAX: usize = 64 << 20;

/// A refused body is read and discarded for at most this long.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The same limit in bytes if the client was slow or the gateway is overloaded.
/// [`DRAIN_TIMEOUT_SHORT`] is the limit of time then.
pub(crate) const DRAIN_BYTES_MAX_SHORT: usize = 1 << 20;

pub(crate) const DRAIN_TIMEOUT_SHORT: Duration = Duration::from_secs(1);

/// Default timeout for writing one of the gateway's own responses to the client.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The same timeout for a client that still sends its body over HTTP/2, because what it sends
/// occupies memory meanwhile; and for a client that is refused because of overload or before its
/// account is known.
pub(crate) const REFUSAL_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a response. If the client does not take it in time, the response is aborted.
pub(crate) async fn send_response(
    session: &mut Session,
    ctx: &mut RequestContext,
    reply: LocalResponse,
) {
    ctx.leave_pool();
    ctx.record_status(reply.status);
    if reply.status >= 400 {
        ctx.access_log.error_code = Some(reply.code.clone());
    }
    let down = &mut session.downstream_session;
    let is_hurried = ctx.tenant.is_none() || matches!(reply.status, 429 | 503);
    let timeout = match down.get_write_timeout().unwrap_or(WRITE_TIMEOUT) {
        wait if is_hurried || down.is_http2() && !down.is_body_done() => {
            wait.min(REFUSAL_WRITE_TIMEOUT)
        }
        wait => wait,
    };
    let written = tokio::time::timeout(timeout, write_response(session, ctx, reply)).await;
    if !matches!(written, Ok(Ok(()))) {
        abort_response(session, ctx).await;
        ctx.access_log.client_disconnected = true;
    }
}

/// Aborts a response, so that the client sees that it is incomplete. pingora would end it with a
/// last chunk or `END_STREAM`, as if it were complete.
pub(crate) async fn abort_response(session: &mut Session, ctx: &mut RequestContext) {
    session.set_keepalive(None);
    ctx.is_aborted = true;
    if session.downstream_session.is_http2() {
        // Otherwise the end of the stream would wait for the client to take the bytes in flight.
        session.downstream_session.shutdown().await;
    }
}

/// Reads and discards what a refused client still sends, within the limits for the refusal.
pub(crate) async fn drain_request(session: &mut Session, refusal: &ApiError) {
    let (most, wait) = match refusal {
        ApiError::Request(RequestError::BodyTimeout)
        | ApiError::Capacity(CapacityError::Overloaded | CapacityError::TooManyRequests(_)) => {
            (DRAIN_BYTES_MAX_SHORT, DRAIN_TIMEOUT_SHORT)
        }
        _ => (DRAIN_BYTES_MAX, DRAIN_TIMEOUT),
    };
    let reading = async {
        let mut left = most;
        while let Ok(Some(piece)) = session.downstream_session.read_request_body().await {
            match left.checked_sub(piece.len()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // A client that sends for longer may not receive the response.
    let _ = tokio::time::timeout(wait, reading).await;
}

pub(crate) async fn write_response(
    session: &mut Session,
    ctx: &RequestContext,
    reply: LocalResponse,
) -> Result<()> {
    let body = reply.body;
    let status = StatusCode::from_u16(reply.status);
    let status = status.or_err(ErrorType::InvalidHTTPHeader, "no such status")?;
    let mut head = ResponseHead::new(status, 12 + ctx.rate_headers.len_max());
    if !body.is_empty() {
        head.insert(CONTENT_TYPE, head::JSON);
    }
    // A 204 (no content) has no length either.
    if reply.status != 204 {
        head.insert(CONTENT_LENGTH, body.len());
    }
    head::add_request_id(&mut head, ctx);
    ctx.rate_headers.write_into(&mut head);
    for (name, value) in reply.headers {
        head.insert_text(name, value);
    }
    if ctx.access_log.route.is_some() {
        head.insert(head::FALLBACK_DEPTH, ctx.access_log.fallback_depth);
    }
    head::add_model_id(&mut head, ctx);
    ctx.cors.add_headers(&mut head);
    let down = &mut session.downstream_session;
    down.write_response_header(Box::new(head.build())).await?;
    down.write_response_body(body, true).await
}
