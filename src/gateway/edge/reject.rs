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

/// A client that sends before it listens is read from for so long, so that it gets to hear why: a
/// connection that is closed with bytes unread takes back what was written to it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// And so many bytes.
const DRAIN_BYTES_MAX: usize = 256 << 10;
/// The answer has to be taken within this.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Tells a client why it is not served, and closes the connection.
pub(super) async fn send_error(mut stream: Stream, refusal: &ApiError, error_format: ErrorFormat) {
    let mut ctx = RequestContext::begin();
    ctx.error_format = error_format;
    ctx.client_address = peer_ip(&*stream);
    let response = error_response(refusal, &mut ctx);
    let telling = async {
        stream.write_all(response.as_bytes()).await?;
        stream.flush().await?;
        AsyncWriteExt::shutdown(&mut stream).await
    };
    ctx.access_log.client_disconnected =
        !matches!(timeout(WRITE_TIMEOUT, telling).await, Ok(Ok(())));
    settlement::log_request(&ctx);
    if ctx.access_log.client_disconnected {
        return;
    }
    let listening = async {
        let (mut buffer, mut left) = ([0; 4 << 10], DRAIN_BYTES_MAX);
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            match left.checked_sub(count) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // Whoever sends for longer has to do without the answer.
    let _ = timeout(DRAIN_TIMEOUT, listening).await;
}

/// The same without waiting for anything: there are too many of them.
pub(super) fn try_send_error(mut stream: Stream, refusal: &ApiError) {
    let response = error_response(refusal, &mut RequestContext::begin());
    let telling = async {
        stream.write_all(response.as_bytes()).await?;
        stream.flush().await?;
        AsyncWriteExt::shutdown(&mut stream).await?;
        stream.read(&mut [0; 4 << 10]).await
    };
    // If it cannot be written at once, it is not sent.
    let _ = telling.now_or_never();
}

/// The answer as it goes over the wire.
fn error_response(refusal: &ApiError, ctx: &mut RequestContext) -> String {
    let reply = refusal.to_response(ctx.error_format, &ctx.id);
    ctx.access_log.status = reply.status;
    ctx.access_log.error_code = Some(reply.code);
    ctx.access_log.time_to_first_byte = Some(ctx.arrived.elapsed());
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_REQUEST);
    let mut response = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    let mut field = |name: &str, value: &str| {
        // A String takes everything.
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
