//! The driver: calls the phases in pingora's order, over pingora's own connector.
//!
//! pingora's loop can neither replay a body above 64 KiB, nor fall back on a status and keep the
//! vendor's error, nor read on after the client has gone. The day it can, this file goes and
//! `request_filter` returns `Ok(false)`; the phases stay as they are.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora_core::ErrorType;
use pingora_core::protocols::http::client::HttpSession as Upstream;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{ProxyHttp, Session};

use super::Gateway;
use super::exchange::{Exchange, Stage};
use super::refusal::{Block, Refusal};
use super::{close, upstream};
use crate::dialect::relay::{Break, Progress};
use crate::dialect::vendor_error::VendorError;

/// One write covers so many bytes, at most, so that the write timeout is a minimum rate.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// Of a vendor's error so many bytes are read, at most.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// And for so long, at most.
const ERROR_WAIT: Duration = Duration::from_secs(2);
/// A vendor that stops reading early may have answered already; so long is waited for that answer.
const EARLY_ANSWER_WAIT: Duration = Duration::from_millis(500);
/// After its end an answer's connection is waited for so long, to be used again.
const TAIL_WAIT: Duration = Duration::from_secs(1);

/// Tries routes until one answers, and passes the answer on.
///
/// # Errors
/// The refusal that the client is to see, if nothing was passed on yet.
pub(super) async fn run(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut Exchange,
) -> Result<(), Refusal> {
    loop {
        let Ok(peer) = gateway.upstream_peer(session, exchange).await else {
            return Err(exhausted(exchange));
        };
        let began = Instant::now();
        let attempt = attempt(gateway, session, exchange, &peer).await;
        exchange.vendor_time += began.elapsed();
        let mut answered = match attempt {
            Ok(answered) => answered,
            Err(Attempt::Blocked(reason, block)) => {
                upstream::note_block(exchange, reason, &block);
                continue;
            }
            Err(Attempt::Silent) => return Err(Refusal::NoAnswer),
            Err(Attempt::Internal) => return Err(Refusal::Internal),
        };
        let head = answered.response_header().cloned().ok_or(Refusal::Internal)?;
        let status = head.status.as_u16();
        let blocked = exchange.admitted().is_some_and(|a| a.terms.model.vendor.blocked.has(status));
        if blocked {
            let retry_after = upstream::retry_after(&head);
            // A server error may come after the work was done; the other blocks come instead of it.
            let work_begun = matches!(status, 408 | 500..=599) && !matches!(status, 503 | 529);
            drop(error_body(gateway, answered, &peer).await);
            let block = Block { status: Some(status), retry_after, work_begun };
            upstream::note_block(exchange, status_reason(status), &block);
            continue;
        }
        if !head.status.is_success() {
            let body = error_body(gateway, answered, &peer).await;
            return Err(refused_by_vendor(status, &body));
        }
        answered.set_read_timeout(Some(gateway.timeouts.stall));
        return relay(gateway, session, exchange, answered, &peer, head).await;
    }
}

/// Why an attempt gave no answer.
enum Attempt {
    /// Nothing of an answer came: the next route may be tried.
    Blocked(&'static str, Block),
    /// The vendor took the call and did not answer in time: it may have done the work.
    Silent,
    /// The head could not be written.
    Internal,
}

impl Attempt {
    fn blocked(reason: &'static str, work_begun: bool) -> Attempt {
        Attempt::Blocked(reason, Block { status: None, retry_after: None, work_begun })
    }
}

async fn attempt(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut Exchange,
    peer: &HttpPeer,
) -> Result<Upstream, Attempt> {
    let mut head = upstream::bare_head(exchange).ok_or(Attempt::Internal)?;
    let filled = gateway.upstream_request_filter(session, &mut head, exchange).await;
    filled.map_err(|_| Attempt::Internal)?;
    let body = exchange.admitted().map(|a| a.body.clone()).unwrap_or_default();
    loop {
        let connected = gateway.connector.get_http_session(peer).await;
        let Ok((mut up, reused)) = connected else {
            if let Some(route) = exchange.admitted().and_then(|a| a.route.as_ref()) {
                route.rotate();
            }
            return Err(Attempt::blocked("connect", false));
        };
        up.set_read_timeout(Some(gateway.timeouts.answer));
        up.set_write_timeout(Some(gateway.timeouts.stall));
        match exchange_heads(&mut up, &head, &body).await {
            Ok(()) => return Ok(up),
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                up.shutdown().await;
                return Err(Attempt::Silent);
            }
            Err(why) => {
                up.shutdown().await;
                // A connection that was kept open may have been closed just now: once more, anew.
                if !reused {
                    log::info!(request_id = exchange.id, why:% = why; "no answer");
                    return Err(Attempt::blocked("reset", true));
                }
            }
        }
    }
}

/// Sends a request, and reads the head of its answer.
async fn exchange_heads(
    up: &mut Upstream,
    head: &RequestHeader,
    body: &[Bytes],
) -> pingora_core::Result<()> {
    if let Err(why) = send(up, head, body).await {
        // Some vendors answer before they have read everything, and close.
        return match tokio::time::timeout(EARLY_ANSWER_WAIT, read_head(up)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(why),
        };
    }
    read_head(up).await
}

async fn send(up: &mut Upstream, head: &RequestHeader, body: &[Bytes]) -> pingora_core::Result<()> {
    up.write_request_header(Box::new(head.clone())).await?;
    for piece in body {
        let mut rest = piece.clone();
        while !rest.is_empty() {
            let next = rest.split_to(rest.len().min(WRITE_BYTES_MAX));
            up.write_request_body(next, false).await?;
        }
    }
    up.finish_request_body().await
}

async fn read_head(up: &mut Upstream) -> pingora_core::Result<()> {
    loop {
        up.read_response_header().await?;
        if !up.response_header().is_some_and(|head| head.status.is_informational()) {
            return Ok(());
        }
    }
}

/// Reads a short error, and gives the connection back.
async fn error_body(gateway: &Gateway, mut up: Upstream, peer: &HttpPeer) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        while let Ok(Some(piece)) = up.read_response_body().await {
            if body.len() + piece.len() > ERROR_BYTES_MAX {
                return false;
            }
            body.extend_from_slice(&piece);
        }
        true
    };
    let whole = tokio::time::timeout(ERROR_WAIT, reading).await.unwrap_or(false);
    if whole && up.response_done() {
        gateway.connector.release_http_session(up, peer, peer.options.idle_timeout).await;
    } else {
        up.shutdown().await;
    }
    body
}

/// Passes a good answer on.
async fn relay(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut Exchange,
    mut up: Upstream,
    peer: &HttpPeer,
    mut head: ResponseHeader,
) -> Result<(), Refusal> {
    let stream = exchange.admitted().is_some_and(|a| a.call.stream);
    if !upstream::readable(&head, stream) {
        up.shutdown().await;
        return Err(Refusal::Broken(Break::Garbage));
    }
    gateway.response_filter(session, &mut head, exchange).await.map_err(|_| Refusal::Internal)?;
    let mut client = Client { head: Some(head), gone_since: None };
    let deadline = Instant::now() + gateway.timeouts.total;
    loop {
        let began = Instant::now();
        let read = up.read_response_body().await;
        let now = Instant::now();
        exchange.vendor_time += now - began;
        let (mut body, end, failed) = match read {
            Ok(Some(piece)) => (Some(piece), false, None),
            Ok(None) => (None, true, None),
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                (None, false, Some(Break::Stalled))
            }
            Err(_) => (None, false, Some(Break::Cut)),
        };
        let patience = client.gone_since.map_or(deadline, |gone| gone + gateway.timeouts.drain);
        let failed = failed.or((now > patience).then_some(Break::Stalled));
        if let Some(why) = failed {
            body = exchange.relaying().and_then(|r| r.relay.fail(why));
        } else if gateway.response_body_filter(session, &mut body, end, exchange).is_err() {
            return Err(Refusal::Internal);
        }
        let progress = exchange.relaying().map(|r| r.relay.progress().clone());
        match progress {
            Some(Progress::Open) => client.pass(session, body, false).await,
            Some(Progress::Complete) => {
                close::settle(gateway, exchange, client.gone_since.is_some()).await;
                client.pass(session, body, true).await;
                tail(gateway, up, peer, end).await;
                break;
            }
            Some(Progress::Broken(why)) => {
                up.shutdown().await;
                if client.head.is_some() {
                    return Err(Refusal::Broken(why));
                }
                exchange.record.code = Some(why.to_string());
                close::settle(gateway, exchange, client.gone_since.is_some()).await;
                client.pass(session, body, true).await;
                break;
            }
            None => return Err(Refusal::Internal),
        }
    }
    exchange.record.client_gone = client.gone_since.is_some();
    Ok(())
}

/// The client's side of an answer. Once it has gone, nothing is written any more.
struct Client {
    /// The head, until the first bytes go out.
    head: Option<ResponseHeader>,
    gone_since: Option<Instant>,
}

impl Client {
    async fn pass(&mut self, session: &mut Session, body: Option<Bytes>, end: bool) {
        if self.gone_since.is_some() || (body.is_none() && !end) {
            return;
        }
        if self.write(session, body, end).await.is_err() {
            session.set_keepalive(None);
            self.gone_since = Some(Instant::now());
        }
    }

    async fn write(
        &mut self,
        session: &mut Session,
        body: Option<Bytes>,
        end: bool,
    ) -> pingora_core::Result<()> {
        let down = &mut session.downstream_session;
        if let Some(mut head) = self.head.take() {
            if end {
                // All of it is here, so its length can be told.
                head.remove_header("transfer-encoding");
                let length = body.as_ref().map_or(0, Bytes::len);
                head.insert_header("content-length", length)?;
            }
            down.write_response_header(Box::new(head)).await?;
        }
        down.write_response_body(body.unwrap_or_default(), end).await
    }
}

/// After its last event a stream's connection can be used again as soon as it says that it has
/// ended; that is not waited for in the way of the client.
async fn tail(gateway: &Gateway, mut up: Upstream, peer: &HttpPeer, ended: bool) {
    let idle = peer.options.idle_timeout;
    if ended {
        gateway.connector.release_http_session(up, peer, idle).await;
        return;
    }
    let (connector, peer) = (gateway.connector.clone(), peer.clone());
    tokio::spawn(async move {
        let rest = async {
            // Bytes after the end are nothing that anybody asked for.
            matches!(up.read_response_body().await, Ok(None))
        };
        match tokio::time::timeout(TAIL_WAIT, rest).await {
            Ok(true) => connector.release_http_session(up, &peer, idle).await,
            _ => up.shutdown().await,
        }
    });
}

/// Every route failed, or there was none to try.
fn exhausted(exchange: &mut Exchange) -> Refusal {
    match exchange.admitted().and_then(|a| a.block.clone()) {
        Some(block) => Refusal::Blocked(block),
        None => Refusal::NoRoute("no route to the vendor can be used at the moment".to_owned()),
    }
}

fn refused_by_vendor(status: u16, body: &[u8]) -> Refusal {
    match status {
        400 | 404 | 409 | 413 | 415 | 422 => {
            Refusal::Vendor { status, error: VendorError::read(body) }
        }
        _ => Refusal::Blocked(Block { status: Some(status), retry_after: None, work_begun: true }),
    }
}

fn status_reason(status: u16) -> &'static str {
    match status {
        401..=403 => "auth",
        408 => "timeout",
        429 => "rate_limit",
        503 | 529 => "overloaded",
        _ => "status",
    }
}

/// Whether the exchange still holds money.
pub(super) fn holds_money(stage: &Stage) -> bool {
    matches!(stage, Stage::Admitted(_) | Stage::Relaying(_))
}
