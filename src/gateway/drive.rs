//! The driver: calls the phases in pingora's order, over pingora's own connector.
//!
//! pingora's loop can neither replay a body above 64 KiB, nor fall back on a status and keep the
//! vendor's error, nor read on after the client has gone. The day it can, this file goes and
//! `request_filter` returns `Ok(false)`; the phases stay as they are.

use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::poll;
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
/// A connection that was closed while it was idle says so within this.
const STALE_WAIT: Duration = Duration::from_secs(2);
/// After the client has gone so many bytes are read on, at most.
const DRAIN_BYTES_MAX: u64 = 64 << 20;
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
        let late = exchange.arrived.elapsed() > gateway.timeouts.total;
        let next = if late { None } else { gateway.upstream_peer(session, exchange).await.ok() };
        let Some(peer) = next else {
            return Err(exhausted(exchange));
        };
        let began = Instant::now();
        let attempt = attempt(gateway, session, exchange, &peer).await;
        exchange.vendor_time += began.elapsed();
        let (mut answered, sent_whole) = match attempt {
            Ok(answered) => answered,
            Err(Attempt::Blocked(reason, block)) => {
                upstream::note_block(exchange, reason, &block);
                continue;
            }
            Err(Attempt::Silent) => {
                upstream::note_silence(exchange);
                return Err(Refusal::NoAnswer);
            }
            Err(Attempt::Internal) => return Err(Refusal::Internal),
        };
        let head = answered.response_header().cloned().ok_or(Refusal::Internal)?;
        let status = head.status.as_u16();
        let blocked = exchange.admitted().is_some_and(|a| a.terms.model.vendor.blocked.has(status));
        if blocked {
            let retry_after = upstream::retry_after(&head);
            // A server error may come after the work was done; the other blocks come instead of it.
            let work_begun = matches!(status, 408 | 500..=599) && !matches!(status, 503 | 529);
            drop(error_body(gateway, answered, sent_whole, &peer).await);
            let block = Block { status: Some(status), retry_after, work_begun };
            upstream::note_block(exchange, status_reason(status), &block);
            continue;
        }
        if !head.status.is_success() {
            let body = error_body(gateway, answered, sent_whole, &peer).await;
            return Err(refused_by_vendor(status, &body));
        }
        answered.set_read_timeout(Some(gateway.timeouts.stall));
        let vendor = Vendor { up: answered, sent_whole, ended: false, read_bytes: 0 };
        return relay(gateway, session, exchange, vendor, &peer, head).await;
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
) -> Result<(Upstream, bool), Attempt> {
    let mut head = upstream::bare_head(exchange).ok_or(Attempt::Internal)?;
    let filled = gateway.upstream_request_filter(session, &mut head, exchange).await;
    filled.map_err(|_| Attempt::Internal)?;
    let body = exchange.admitted().map(|a| a.body.clone()).unwrap_or_default();
    // A connection that was kept open may have been closed just now: once more, anew.
    let mut again = true;
    loop {
        let began = Instant::now();
        let connected = gateway.connector.get_http_session(peer).await;
        let Ok((mut up, reused)) = connected else {
            if std::mem::take(&mut again) && peer.is_tls() {
                continue;
            }
            if let Some(route) = exchange.admitted().and_then(|a| a.route.as_ref()) {
                route.rotate();
            }
            return Err(Attempt::blocked("connect", false));
        };
        up.set_read_timeout(Some(gateway.timeouts.answer));
        up.set_write_timeout(Some(gateway.timeouts.stall));
        match exchange_heads(&mut up, &head, &body).await {
            Ok(sent_whole) => return Ok((up, sent_whole)),
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                up.shutdown().await;
                return Err(Attempt::Silent);
            }
            Err(why) => {
                up.shutdown().await;
                // Whoever has worked on the call for longer may have done it.
                let stale = reused && began.elapsed() < STALE_WAIT;
                if !(stale && std::mem::take(&mut again)) {
                    log::info!(request_id = exchange.id, why:% = why; "no answer");
                    return Err(Attempt::blocked("reset", true));
                }
            }
        }
    }
}

/// Sends a request, and reads the head of its answer. Tells whether all of it was sent: what was
/// not would be read as the beginning of the next request.
async fn exchange_heads(
    up: &mut Upstream,
    head: &RequestHeader,
    body: &[Bytes],
) -> pingora_core::Result<bool> {
    if let Err(why) = send(up, head, body).await {
        // Some vendors answer before they have read everything, and close.
        return match tokio::time::timeout(EARLY_ANSWER_WAIT, read_head(up)).await {
            Ok(Ok(())) => Ok(false),
            _ => Err(why),
        };
    }
    read_head(up).await.map(|()| true)
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
async fn error_body(
    gateway: &Gateway,
    mut up: Upstream,
    sent_whole: bool,
    peer: &HttpPeer,
) -> Vec<u8> {
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
    if whole && sent_whole && up.response_done() {
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
    mut vendor: Vendor,
    peer: &HttpPeer,
    mut head: ResponseHeader,
) -> Result<(), Refusal> {
    let stream = exchange.admitted().is_some_and(|a| a.call.stream);
    if !upstream::readable(&head, stream) {
        upstream::note_loss(exchange);
        vendor.up.shutdown().await;
        return Err(Refusal::Broken(Break::Garbage));
    }
    gateway.response_filter(session, &mut head, exchange).await.map_err(|_| Refusal::Internal)?;
    let patience = gateway.timeouts.client_write;
    let mut client = Client { head: Some(head), gone: None, patience };
    let deadline = exchange.arrived + gateway.timeouts.total;
    loop {
        let began = Instant::now();
        let read = vendor.read().await;
        exchange.vendor_time += began.elapsed();
        let patient = match client.gone {
            None => Instant::now() < deadline,
            Some(gone) => gone.patient(&vendor, gateway.timeouts.drain),
        };
        let read = if patient { read } else { Read::Failed(Break::Stalled) };
        let mut out = filter(gateway, session, exchange, read)?;
        // What is there already goes out in the same write.
        while out.len() < WRITE_BYTES_MAX && open(exchange) {
            let Some(read) = vendor.read_ready().await else { break };
            out.append(filter(gateway, session, exchange, read)?);
        }
        let progress = exchange.relaying().map(|r| r.relay.progress().clone());
        match progress {
            Some(Progress::Open) => client.pass(session, out, false, &vendor).await,
            Some(Progress::Complete) => {
                close::settle(gateway, exchange, client.gone.is_some()).await;
                client.pass(session, out, true, &vendor).await;
                tail(gateway, vendor, peer).await;
                break;
            }
            Some(Progress::Broken(why)) => {
                vendor.up.shutdown().await;
                upstream::note_loss(exchange);
                if client.head.is_some() {
                    return Err(Refusal::Broken(why));
                }
                exchange.record.code = Some(why.to_string());
                close::settle(gateway, exchange, client.gone.is_some()).await;
                client.pass(session, out, true, &vendor).await;
                break;
            }
            None => return Err(Refusal::Internal),
        }
    }
    exchange.record.client_gone = client.gone.is_some();
    Ok(())
}

fn open(exchange: &mut Exchange) -> bool {
    exchange.relaying().is_some_and(|r| *r.relay.progress() == Progress::Open)
}

/// Runs what was read through the body phase.
fn filter(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut Exchange,
    read: Read,
) -> Result<Out, Refusal> {
    let (mut body, end) = match read {
        Read::Piece(piece) => (Some(piece), false),
        Read::End => (None, true),
        Read::Failed(why) => {
            let told = exchange.relaying().and_then(|r| r.relay.fail(why));
            return Ok(Out(told.into_iter().collect()));
        }
    };
    let filtered = gateway.response_body_filter(session, &mut body, end, exchange);
    filtered.map_err(|_| Refusal::Internal)?;
    Ok(Out(body.into_iter().collect()))
}

/// Bytes for the client.
struct Out(Vec<Bytes>);

impl Out {
    fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn append(&mut self, mut more: Out) {
        self.0.append(&mut more.0);
    }

    fn join(mut self) -> Option<Bytes> {
        if self.0.len() <= 1 {
            return self.0.pop();
        }
        let mut joined = BytesMut::with_capacity(self.len());
        self.0.iter().for_each(|piece| joined.extend_from_slice(piece));
        Some(joined.freeze())
    }
}

/// The vendor's side of an answer.
struct Vendor {
    up: Upstream,
    /// Whether it has all of the request.
    sent_whole: bool,
    /// Whether all of it was read.
    ended: bool,
    read_bytes: u64,
}

/// What came of a read.
enum Read {
    Piece(Bytes),
    End,
    Failed(Break),
}

impl Vendor {
    async fn read(&mut self) -> Read {
        let read = self.up.read_response_body().await;
        self.count(read)
    }

    /// What is there without waiting. A read that would wait is dropped, which loses nothing.
    async fn read_ready(&mut self) -> Option<Read> {
        let read = match poll!(Box::pin(self.up.read_response_body())) {
            Poll::Ready(read) => read,
            Poll::Pending => return None,
        };
        Some(self.count(read))
    }

    fn count(&mut self, read: pingora_core::Result<Option<Bytes>>) -> Read {
        match read {
            Ok(Some(piece)) => {
                self.read_bytes += piece.len() as u64;
                Read::Piece(piece)
            }
            Ok(None) => {
                self.ended = true;
                Read::End
            }
            Err(why) if *why.etype() == ErrorType::ReadTimedout => Read::Failed(Break::Stalled),
            Err(_) => Read::Failed(Break::Cut),
        }
    }
}

/// When a client went, and how far the answer was.
#[derive(Clone, Copy)]
struct Gone {
    at: Instant,
    read_bytes: u64,
}

impl Gone {
    /// Whether to read on, for the sake of the usage at the end.
    fn patient(self, vendor: &Vendor, drain: Duration) -> bool {
        let beyond = vendor.read_bytes.saturating_sub(self.read_bytes);
        self.at.elapsed() < drain && beyond < DRAIN_BYTES_MAX
    }
}

/// The client's side of an answer. Once it has gone, nothing is written any more.
struct Client {
    /// The head, until the first bytes go out.
    head: Option<ResponseHeader>,
    gone: Option<Gone>,
    /// For one write.
    patience: Duration,
}

impl Client {
    async fn pass(&mut self, session: &mut Session, out: Out, end: bool, vendor: &Vendor) {
        let body = out.join();
        if self.gone.is_some() || (body.is_none() && !end) {
            return;
        }
        let writing = tokio::time::timeout(self.patience, self.write(session, body, end));
        if !matches!(writing.await, Ok(Ok(()))) {
            session.set_keepalive(None);
            self.gone = Some(Gone { at: Instant::now(), read_bytes: vendor.read_bytes });
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
async fn tail(gateway: &Gateway, mut vendor: Vendor, peer: &HttpPeer) {
    let idle = peer.options.idle_timeout;
    let more = !vendor.ended
        && matches!(vendor.read_ready().await, Some(Read::Piece(_) | Read::Failed(_)));
    // Bytes after the end are nothing that anybody asked for.
    if more || !vendor.sent_whole {
        vendor.up.shutdown().await;
        return;
    }
    if vendor.ended {
        gateway.connector.release_http_session(vendor.up, peer, idle).await;
        return;
    }
    let (connector, peer) = (gateway.connector.clone(), peer.clone());
    tokio::spawn(async move {
        match tokio::time::timeout(TAIL_WAIT, vendor.read()).await {
            Ok(Read::End) => connector.release_http_session(vendor.up, &peer, idle).await,
            _ => vendor.up.shutdown().await,
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
        400 | 404 | 413 | 422 => Refusal::Vendor { status, error: VendorError::read(body) },
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
