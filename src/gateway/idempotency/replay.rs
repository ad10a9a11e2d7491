//! A reply that was kept, sent once more.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use http::{HeaderName, HeaderValue};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::external_body;
use crate::files::FileReadError;
use crate::gateway::api_error::{ApiError, ServerError};
use crate::gateway::context::RequestContext;
use crate::gateway::response::{head, writer};
use crate::gateway::state::Gateway;
use crate::gateway::videos::shared::ID_PREFIX;
use crate::idempotency::{PIECE_BYTES, StoredReply};
use crate::ledger::AccountName;

/// A store gives a piece of a body within this.
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a kept reply again, piece by piece; `false` if it is not there.
///
/// # Errors
/// The store does not answer.
pub(super) async fn send_stored_reply(
    from: (&Gateway, &AccountName),
    session: &mut Session,
    ctx: &mut RequestContext,
    stored: &StoredReply,
) -> Result<bool, ApiError> {
    let Some(mut body) =
        ReplayBody::open(from, stored).await.map_err(|()| ServerError::LedgerUnavailable)?
    else {
        return Ok(false);
    };
    let first = match body.bytes_left {
        0 => Some(Bytes::new()),
        _ => body.next().await.map_err(|()| ServerError::LedgerUnavailable)?,
    };
    let Some(first) = first else { return Ok(false) };
    ctx.leave_pool();
    ctx.access_log.status = stored.head.status();
    ctx.access_log.time_to_first_byte = Some(ctx.arrived.elapsed());
    let head = build_head(ctx, stored, body.bytes_left).map_err(|_| ServerError::Internal)?;
    if write_reply(from.0.timeouts.client_write, session, head, body, first).await.is_none() {
        writer::abort_response(session, ctx).await;
        ctx.access_log.client_disconnected = true;
    }
    Ok(true)
}

/// The body of a reply, read piece by piece.
struct ReplayBody<'a> {
    from: (&'a Gateway, &'a AccountName),
    owner: &'a str,
    source: ReplaySource,
    /// How many bytes the client lacks.
    bytes_left: u64,
}

/// Where a body is.
enum ReplaySource {
    /// In the ledger's store, of which this piece comes next.
    Store(u32),
    /// In the object store.
    Object(BoxStream<'static, Result<Bytes, FileReadError>>),
}

impl<'a> ReplayBody<'a> {
    /// `None` if it is not there, as far as that is known before it is read.
    async fn open(
        from: (&'a Gateway, &'a AccountName),
        stored: &'a StoredReply,
    ) -> Result<Option<ReplayBody<'a>>, ()> {
        let owner = &stored.owner;
        let Some(body) = stored.head.apart else {
            return Ok(Some(ReplayBody {
                from,
                owner,
                source: ReplaySource::Store(0),
                bytes_left: stored.bytes,
            }));
        };
        let name = external_body::body_name(from.1, owner, body);
        let opening = from.0.body_files.read(&name, body.bytes);
        match tokio::time::timeout(PIECE_TIMEOUT, opening).await {
            Ok(Ok(pieces)) => {
                let source = ReplaySource::Object(pieces);
                Ok(Some(ReplayBody { from, owner, source, bytes_left: body.bytes }))
            }
            Ok(Err(FileReadError::Missing)) => Ok(None),
            failed => {
                let failed = failed.map(|opened| opened.map(drop));
                log::warn!(
                    event = "reply_read_failed", owner, failed:?;
                    "stored reply open failed"
                );
                Err(())
            }
        }
    }

    /// The next piece; `None` if it is not there.
    async fn next(&mut self) -> Result<Option<Bytes>, ()> {
        let (gateway, account) = self.from;
        let reading = async {
            match &mut self.source {
                ReplaySource::Store(number) => {
                    let piece = gateway.reply_store.read_piece(account, self.owner, *number).await;
                    *number += 1;
                    let piece = piece.map_err(|why| why.to_string())?;
                    Ok(piece.filter(|piece| piece.len() <= PIECE_BYTES))
                }
                ReplaySource::Object(pieces) => {
                    pieces.next().await.transpose().map_err(|why| why.to_string())
                }
            }
        };
        match tokio::time::timeout(PIECE_TIMEOUT, reading).await {
            Ok(Ok(piece)) => Ok(piece),
            failed => {
                log::warn!(
                    event = "reply_read_failed", owner = self.owner, failed:?;
                    "stored reply read failed"
                );
                Err(())
            }
        }
    }
}

fn build_head(
    ctx: &RequestContext,
    stored: &StoredReply,
    bytes: u64,
) -> pingora::Result<ResponseHeader> {
    let mut head = ResponseHeader::build_no_case(stored.head.status(), Some(12))?;
    for (name, value) in &stored.head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            head.insert_header(name, value)?;
        }
    }
    head.insert_header("content-length", bytes)?;
    head::add_request_id(&mut head, ctx)?;
    head.insert_header("idempotent-replayed", "true")?;
    head.insert_header("x-original-request-id", original_request_id(&stored.owner))?;
    Ok(head)
}

/// The request that a hold was made for.
fn original_request_id(owner: &str) -> &str {
    owner.strip_prefix(ID_PREFIX).unwrap_or(owner)
}

/// `None` if the client has gone, or the rest of the body.
async fn write_reply(
    write_timeout: Duration,
    session: &mut Session,
    head: ResponseHeader,
    mut body: ReplayBody<'_>,
    first: Bytes,
) -> Option<()> {
    let down = &mut session.downstream_session;
    let writing = down.write_response_header(Box::new(head));
    tokio::time::timeout(write_timeout, writing).await.ok()?.ok()?;
    let mut next = first;
    loop {
        body.bytes_left = body.bytes_left.checked_sub(next.len() as u64)?;
        let is_last = body.bytes_left == 0;
        let writing = down.write_response_body(next, is_last);
        tokio::time::timeout(write_timeout, writing).await.ok()?.ok()?;
        if is_last {
            return Some(());
        }
        next = body.next().await.ok()??;
    }
}
