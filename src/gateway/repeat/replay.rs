//! A reply that was kept, sent once more.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

use super::super::{passage, reply};
use crate::gateway::Gateway;
use crate::gateway::exchange::Exchange;
use crate::gateway::refusal::Refusal;
use crate::ledger::AccountName;
use crate::repeats::{Kept, PIECE_BYTES};

/// A store gives a piece of a body within this.
const PIECE_WAIT: Duration = Duration::from_secs(5);

/// Sends a reply to whoever asks for it again, piece by piece; `false` if it is not there.
///
/// # Errors
/// The store does not answer.
pub(super) async fn send(
    from: (&Gateway, &AccountName),
    session: &mut Session,
    exchange: &mut Exchange,
    kept: &Kept,
) -> Result<bool, Refusal> {
    let first = match kept.bytes {
        0 => Some(Bytes::new()),
        _ => piece(from, kept, 0).await.map_err(|()| Refusal::NoLedger)?,
    };
    let Some(first) = first else { return Ok(false) };
    exchange.record.status = kept.head.status;
    exchange.record.first_byte = Some(exchange.arrived.elapsed());
    let head = head(exchange, kept).map_err(|_| Refusal::Internal)?;
    if write(from, session, head, (kept, first)).await.is_none() {
        reply::cut(session, exchange).await;
        exchange.record.client_gone = true;
    }
    Ok(true)
}

async fn piece(
    (gateway, account): (&Gateway, &AccountName),
    kept: &Kept,
    number: u32,
) -> Result<Option<Bytes>, ()> {
    let reading = gateway.repeats.piece(account, &kept.owner, number);
    match tokio::time::timeout(PIECE_WAIT, reading).await {
        Ok(Ok(piece)) => Ok(piece),
        failed => {
            log::warn!(owner = kept.owner, failed:?; "a reply cannot be read");
            Err(())
        }
    }
}

fn head(exchange: &Exchange, kept: &Kept) -> pingora_core::Result<ResponseHeader> {
    let mut head = ResponseHeader::build_no_case(kept.head.status, Some(12))?;
    for (name, value) in &kept.head.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            head.insert_header(name, value)?;
        }
    }
    head.insert_header("content-length", kept.bytes)?;
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
    from: (&Gateway, &AccountName),
    session: &mut Session,
    head: ResponseHeader,
    (kept, first): (&Kept, Bytes),
) -> Option<()> {
    let patience = from.0.timeouts.client_write;
    let down = &mut session.downstream_session;
    let writing = down.write_response_header(Box::new(head));
    tokio::time::timeout(patience, writing).await.ok()?.ok()?;
    let mut next = first;
    let mut left = kept.bytes;
    for number in 1.. {
        left = left.checked_sub(next.len() as u64)?;
        let writing = down.write_response_body(next, left == 0);
        tokio::time::timeout(patience, writing).await.ok()?.ok()?;
        if left == 0 {
            break;
        }
        next = piece(from, kept, number).await.ok()?.filter(|piece| piece.len() <= PIECE_BYTES)?;
    }
    Some(())
}
