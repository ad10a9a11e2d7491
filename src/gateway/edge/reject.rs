//! Error responses that are sent before a pingora session exists.

use std::fmt::Write;
use std::time::Duration;

use futures_util::FutureExt;
use http::StatusCode;
use pingora::protocols::Stream;
use pingora::protocols::http::date::get_cached_date;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::limits::peer_ip;
use crate::gateway::api_error::{ApiError, ErrorFormat};
use crate::gateway::context::RequestContext;
use crate::gateway::settlement;

/// After an error response, the remaining bytes of the client are read and discarded for at most
/// this time. Otherwise a client that is still sending might never see the response: closing a
/// connection with unread bytes resets it, and the client loses what was written to it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// About this many bytes are read and discarded, at most.
const DRAIN_BYTES_MAX: usize = 256 << 10;
/// The client must accept the error response within this time.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends an error response, logs the request, and closes the connection.
pub(super) async fn send_error(mut stream: Stream, refusal: &ApiError, error_format: ErrorFormat) {
    let mut ctx = RequestContext::begin();
    ctx.error_format = error_format;
    ctx.client_address = peer_ip(&*stream);
    let response = error_response(refusal, &mut ctx);
    let write_response = async {
        stream.write_all(response.as_bytes()).await?;
        stream.flush().await?;
        AsyncWriteExt::shutdown(&mut stream).await
    };
    ctx.access_log.client_disconnected =
        !matches!(timeout(WRITE_TIMEOUT, write_response).await, Ok(Ok(())));
    settlement::log_request(&ctx);
    if ctx.access_log.client_disconnected {
        return;
    }
    let drain_client = async {
        let (mut buffer, mut left) = ([0; 4 << 10], DRAIN_BYTES_MAX);
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            match left.checked_sub(count) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // A client that sends for longer may lose the response.
    let _ = timeout(DRAIN_TIMEOUT, drain_client).await;
}

/// Sends an error response only if that is possible without waiting, and closes the connection. It
/// is used when there are too many connections, so each refusal must be cheap.
pub(super) fn try_send_error(mut stream: Stream, refusal: &ApiError) {
    let response = error_response(refusal, &mut RequestContext::begin());
    let write_response = async {
        stream.write_all(response.as_bytes()).await?;
        stream.flush().await?;
        AsyncWriteExt::shutdown(&mut stream).await?;
        stream.read(&mut [0; 4 << 10]).await
    };
    // If it cannot be written at once, it is not sent.
    let _ = write_response.now_or_never();
}

/// Formats the error as a complete HTTP/1.1 response, and records it for the access log.
fn error_response(refusal: &ApiError, ctx: &mut RequestContext) -> String {
    let reply = refusal.to_response(ctx.error_format, &ctx.id);
    ctx.record_status(reply.status);
    ctx.access_log.error_code = Some(reply.code);
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    let mut field = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = write!(response, "{name}: {value}\r\n");
    };
    field("date", get_cached_date().to_str().unwrap_or_default());
    field("content-type", "application/json");
    field("content-length", &reply.body.len().to_string());
    field("x-request-id", &ctx.id);
    if ctx.error_format == ErrorFormat::Messages {
        field("request-id", &ctx.id);
    }
    for (name, value) in &reply.headers {
        field(name, value);
    }
    response + "\r\n" + &String::from_utf8_lossy(&reply.body)
}
