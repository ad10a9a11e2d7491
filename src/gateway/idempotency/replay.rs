//! Sends a stored reply once more.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, StatusCode};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::external_body;
use crate::files::FileReadError;
use crate::gateway::api_error::{ApiError, ServerError};
use crate::gateway::context::RequestContext;
use crate::gateway::response::{head, writer};
use crate::gateway::response_head::ResponseHead;
use crate::gateway::state::Gateway;
use crate::gateway::videos::shared::ID_PREFIX;
use crate::idempotency::{PIECE_BYTES, StoredReply};
use crate::ledger::AccountName;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const ORIGINAL_REQUEST_ID: HeaderName = HeaderName::from_static("x-original-request-id");
/// Timeout for reading one piece of a stored body.
const PIECE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a stored reply again, piece by piece; `false` if its body is missing, or if its head has
/// no status.
///
/// # Errors
/// The store does not answer.
pub(super) async fn send_stored_reply(
    gateway: &Gateway,
    account: &AccountName,
    session: &mut Session,
    ctx: &mut RequestContext,
    stored: &StoredReply,
) -> Result<bool, ApiError> {
    let Ok(status) = StatusCode::from_u16(stored.head.status()) else { return Ok(false) };
    let Some(mut body) = ReplayBody::open(gateway, account, stored)
        .await
        .map_err(|()| ServerError::LedgerUnavailable)?
    else {
        return Ok(false);
    };
    let first = match body.bytes_left {
        0 => Some(Bytes::new()),
        _ => body.next().await.map_err(|()| ServerError::LedgerUnavailable)?,
    };
    let Some(first) = first else { return Ok(false) };
    ctx.leave_pool();
    ctx.record_status(status.as_u16());
    let head = build_head(ctx, stored, status, body.bytes_left);
    if write_reply(gateway.timeouts.client_write, session, head, body, first).await.is_none() {
        writer::abort_response(session, ctx).await;
        ctx.access_log.client_disconnected = true;
    }
    Ok(true)
}

/// The body of a reply, read piece by piece.
struct ReplayBody<'a> {
    gateway: &'a Gateway,
    account: &'a AccountName,
    owner: &'a str,
    source: ReplaySource,
    /// How many bytes are still to be sent to the client.
    bytes_left: u64,
}

/// Where a body is stored.
enum ReplaySource {
    /// In the memory of this process.
    Memory(Bytes),
    /// In the ledger's store; this is the number of the next piece.
    Store(u32),
    /// In the object store.
    Object(BoxStream<'static, Result<Bytes, FileReadError>>),
}

impl<'a> ReplayBody<'a> {
    /// Opens the body of a stored reply. `None` if the body is missing, as far as that is known
    /// before it is read; an error if the object store does not answer.
    async fn open(
        gateway: &'a Gateway,
        account: &'a AccountName,
        stored: &'a StoredReply,
    ) -> Result<Option<ReplayBody<'a>>, ()> {
        let owner = &stored.owner;
        if let Some(body) = &stored.body {
            let source = ReplaySource::Memory(body.clone());
            let bytes_left = body.len() as u64;
            return Ok(Some(ReplayBody { gateway, account, owner, source, bytes_left }));
        }
        let Some(body) = stored.head.external_body else {
            return Ok(Some(ReplayBody {
                gateway,
                account,
                owner,
                source: ReplaySource::Store(0),
                bytes_left: stored.bytes,
            }));
        };
        let name = external_body::body_name(account, owner, body);
        let opening = gateway.body_files.read(&name, body.bytes);
        match tokio::time::timeout(PIECE_TIMEOUT, opening).await {
            Ok(Ok(pieces)) => {
                let source = ReplaySource::Object(pieces);
                Ok(Some(ReplayBody { gateway, account, owner, source, bytes_left: body.bytes }))
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

    /// Reads the next piece; `None` if it is missing, an error if the store does not answer.
    async fn next(&mut self) -> Result<Option<Bytes>, ()> {
        let (gateway, account) = (self.gateway, self.account);
        let reading = async {
            match &mut self.source {
                ReplaySource::Memory(body) => Ok(Some(std::mem::take(body))),
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
    status: StatusCode,
    bytes: u64,
) -> ResponseHeader {
    let mut head = ResponseHead::new(status, 12);
    for (name, value) in &stored.head.headers {
        head.insert_text(name, value);
    }
    head.insert(CONTENT_LENGTH, bytes);
    head::add_request_id(&mut head, ctx);
    head.insert(REPLAYED, HeaderValue::from_static("true"));
    head.insert_text(ORIGINAL_REQUEST_ID, original_request_id(&stored.owner));
    ctx.cors.add_headers(&mut head);
    head.build()
}

/// Returns the id of the request that a hold was made for.
fn original_request_id(owner: &str) -> &str {
    owner.strip_prefix(ID_PREFIX).unwrap_or(owner)
}

/// Writes the reply to the client. `None` if the client does not take it, or if the rest of the
/// body cannot be read.
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
