//! Sends a file that the gateway stores, or a byte range of it.

use futures_util::StreamExt as _;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE,
};
use http::{HeaderValue, StatusCode};
use pingora::proxy::Session;

use crate::files::range::{self, ByteRange};
use crate::files::{FileReadError, VideoFiles};
use crate::gateway::api_error::{ApiError, ServerError, VideoError};
use crate::gateway::context::RequestContext;
use crate::gateway::local_response::LocalResponse;
use crate::gateway::response::{head, writer};
use crate::gateway::response_head::ResponseHead;

const VIDEO: HeaderValue = HeaderValue::from_static("video/mp4");
const NO_STORE: HeaderValue = HeaderValue::from_static("private, no-store");

/// Sends a file, or the part of it that the `range` header asks for.
///
/// # Errors
/// The file does not exist or cannot be opened. A transfer that breaks aborts the response instead.
pub(crate) async fn send_file(
    files: &VideoFiles,
    name: &str,
    session: &mut Session,
    ctx: &mut RequestContext,
) -> Result<(), ApiError> {
    let unreadable = |why| match why {
        FileReadError::Missing => ApiError::Video(VideoError::NotFound),
        why @ FileReadError::Unavailable(_) => {
            log::error!(event = "file_read_failed", name, error:% = why; "video file open failed");
            ServerError::FilesUnavailable.into()
        }
    };
    let length = files.length(name).await.map_err(unreadable)?.ok_or(VideoError::NotFound)?;
    // The condition of an `if-range` header cannot be checked, so such a request gets the whole
    // file.
    let asked = session.get_header(RANGE).and_then(|range| range.to_str().ok());
    let asked = asked.filter(|_| session.get_header("if-range").is_none());
    let part = match range::resolve_range(asked, length) {
        ByteRange::Whole => None,
        ByteRange::Part(part) => Some(part),
        ByteRange::Unsatisfiable => {
            let none = LocalResponse { status: 416, ..LocalResponse::ok(String::new()) };
            let none = none.with_header("content-range", &format!("bytes */{length}"));
            let none = none.with_header("x-should-retry", &"false");
            writer::send_response(session, ctx, none).await;
            return Ok(());
        }
    };
    let status = if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let range = part.clone().unwrap_or(0..length);
    let mut pieces = files.read_range(name, range.clone()).await.map_err(unreadable)?;
    let sending = async {
        let mut head = ResponseHead::new(status, 12);
        head.insert(CONTENT_TYPE, VIDEO);
        head.insert(CONTENT_LENGTH, range.end - range.start);
        head.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        head.insert(CACHE_CONTROL, NO_STORE);
        if part.is_some() {
            let (first, last) = (range.start, range.end.saturating_sub(1));
            head.insert_text(CONTENT_RANGE, format!("bytes {first}-{last}/{length}"));
        }
        head::add_request_id(&mut head, ctx);
        ctx.cors.add_headers(&mut head);
        let down = &mut session.downstream_session;
        down.write_response_header(Box::new(head.build())).await?;
        let mut left = range.end - range.start;
        while let Some(piece) = pieces.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(why) => {
                    log::error!(
                        event = "file_read_failed", name, error:% = why;
                        "video file read failed"
                    );
                    return Ok(false);
                }
            };
            left = left.saturating_sub(piece.len() as u64);
            down.write_response_body(piece, left == 0).await?;
        }
        Ok(left == 0)
    };
    let sent: pingora::Result<bool> = sending.await;
    ctx.record_status(status.as_u16());
    if !matches!(sent, Ok(true)) {
        writer::abort_response(session, ctx).await;
        ctx.access_log.client_disconnected = sent.is_err();
    }
    Ok(())
}
