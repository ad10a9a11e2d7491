//! A reply that was kept, sent once more.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use http::{HeaderName, HeaderValue};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use super::super::{passage, reply};
use super::apart;
use crate::files::FileReadError;
use crate::gateway::Gateway;
use crate::gateway::exchange::RequestContext;
use crate::gateway::refusal::ApiError;
use crate::idempotency::{PIECE_BYTES, StoredReply};
use crate::ledger::AccountName;

/// A store gives a piece of a body within this.
const PIECE_WAIT: Duration = Duration::from_secs(5);

/// Sends a reply to whoever asks for it again, piece by piece; `false` if it is not there.
///
/// # Errors
/// The store does not answer.
pub(super) async fn send(
    from: (&Gateway, &AccountName),
    session: &mut Session,
    exchange: &mut RequestContext,
    kept: &StoredReply,
) -> Result<bool, ApiError> {
    let Some(mut body) = ReplayBody::open(from, kept).await.map_err(|()| ApiError::NoLedger)?
    else {
        return Ok(false);
    };
    let first = match body.left {
        0 => Some(Bytes::new()),
        _ => body.next().await.map_err(|()| ApiError::NoLedger)?,
    };
    let Some(first) = first else { return Ok(false) };
    exchange.leave_pool();
    exchange.record.status = kept.head.status();
    exchange.record.first_byte = Some(exchange.arrived.elapsed());
    let head = head(exchange, kept, body.left).map_err(|_| ApiError::Internal)?;
    if write(from.0.timeouts.client_write, session, head, (body, first)).await.is_none() {
        reply::cut(session, exchange).await;
        exchange.record.client_gone = true;
    }
    Ok(true)
}

/// The body of a reply, read piece by piece.
struct ReplayBody<'a> {
    from: (&'a Gateway, &'a AccountName),
    owner: &'a str,
    place: ReplayPosition,
    /// How many bytes the client lacks.
    left: u64,
}

/// Where a body is.
enum ReplayPosition {
    /// In the ledger's store, of which this piece comes next.
    Store(u32),
    /// In the object store.
    Object(BoxStream<'static, Result<Bytes, FileReadError>>),
}

impl<'a> ReplayBody<'a> {
    /// `None` if it is not there, as far as that is known before it is read.
    async fn open(
        from: (&'a Gateway, &'a AccountName),
        kept: &'a StoredReply,
    ) -> Result<Option<ReplayBody<'a>>, ()> {
        let owner = &kept.owner;
        let Some(body) = kept.head.apart else {
            return Ok(Some(ReplayBody {
                from,
                owner,
                place: ReplayPosition::Store(0),
                left: kept.bytes,
            }));
        };
        let name = apart::name(from.1, owner, body);
        let opening = from.0.bodies_apart.read(&name, body.bytes);
        match tokio::time::timeout(PIECE_WAIT, opening).await {
            Ok(Ok(pieces)) => {
                let place = ReplayPosition::Object(pieces);
                Ok(Some(ReplayBody { from, owner, place, left: body.bytes }))
            }
            Ok(Err(FileReadError::Missing)) => Ok(None),
            failed => {
                let failed = failed.map(|opened| opened.map(drop));
                log::warn!(
                    event = "reply_read_failed", owner, failed:?;
                    "reply body cannot be read"
                );
                Err(())
            }
        }
    }

    /// The next piece; `None` if it is not there.
    async fn next(&mut self) -> Result<Option<Bytes>, ()> {
        let (gateway, account) = self.from;
        let reading = async {
            match &mut self.place {
                ReplayPosition::Store(number) => {
                    let piece = gateway.repeats.read_piece(account, self.owner, *number).await;
                    *number += 1;
                    let piece = piece.map_err(|why| why.to_string())?;
                    Ok(piece.filter(|piece| piece.len() <= PIECE_BYTES))
                }
                ReplayPosition::Object(pieces) => {
                    pieces.next().await.transpose().map_err(|why| why.to_string())
                }
            }
        };
        match tokio::time::timeout(PIECE_WAIT, reading).await {
            Ok(Ok(piece)) => Ok(piece),
            failed => {
                log::warn!(
                    event = "reply_read_failed", owner = self.owner, failed:?;
                    "a reply cannot be read"
                );
                Err(())
            }
        }
    }
}

fn head(
    exchange: &RequestContext,
    kept: &StoredReply,
    bytes: u64,
) -> pingora_core::Result<ResponseHeader> {
    let mut head = ResponseHeader::build_no_case(kept.head.status(), Some(12))?;
    for (name, value) in &kept.head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            head.insert_header(name, value)?;
        }
    }
    head.insert_header("content-length", bytes)?;
    passage::identify(&mut head, exchange)?;
    head.insert_header("idempotent-replayed", "true")?;
    head.insert_header("x-original-request-id", original(&kept.owner))?;
    Ok(head)
}

/// The request that a hold was made for.
fn original(owner: &str) -> &str {
    owner.strip_prefix(super::super::videos::ID_START).unwrap_or(owner)
}

/// `None` if the client has gone, or the rest of the body.
async fn write(
    patience: Duration,
    session: &mut Session,
    head: ResponseHeader,
    (mut body, first): (ReplayBody<'_>, Bytes),
) -> Option<()> {
    let down = &mut session.downstream_session;
    let writing = down.write_response_header(Box::new(head));
    tokio::time::timeout(patience, writing).await.ok()?.ok()?;
    let mut next = first;
    loop {
        body.left = body.left.checked_sub(next.len() as u64)?;
        let is_last = body.left == 0;
        let writing = down.write_response_body(next, is_last);
        tokio::time::timeout(patience, writing).await.ok()?.ok()?;
        if is_last {
            return Some(());
        }
        next = body.next().await.ok()??;
    }
}
