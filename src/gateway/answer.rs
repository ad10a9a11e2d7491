//! The answer on its way: what was read goes through the body phase and out to the client, and on
//! to the end for the sake of the usage when the client has gone.

use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::poll;
use http::header::CONTENT_LENGTH;
use pingora_core::ErrorType;
use pingora_core::protocols::http::client::HttpSession as Upstream;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_http::ResponseHeader;
use pingora_proxy::{ProxyHttp, Session};
use tokio::time::{Sleep, sleep};

use super::Gateway;
use super::answer_budget::{FREE_BYTES, NoAnswerRoom};
use super::exchange::{RelayedCall, RequestContext};
use super::failure;
use super::growth::{self, CHECKPOINT_EVERY};
use super::refusal::ApiError;
use super::{close, repeat, reply, upstream};
use crate::dialect::relay::{BUFFERED_BYTES_MAX, Relay, RelayError, RelayProgress};

mod client;

use client::{Downstream, OutputChunks, WRITE_BYTES};

/// After its end an answer's connection is waited for so long, to be used again.
const TAIL_WAIT: Duration = Duration::from_secs(1);

/// Passes a good answer on.
pub(super) async fn relay(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    mut vendor: Box<UpstreamResponse>,
    peer: &HttpPeer,
    mut head: Box<ResponseHeader>,
) -> Result<(), ApiError> {
    let call = exchange.admitted().map(|a| &a.call);
    let stream = call.is_some_and(|call| call.stream);
    if !call.is_some_and(|call| upstream::readable(&head, call)) {
        upstream::note_lost_answer(exchange, failure::UNREADABLE);
        vendor.up.shutdown().await;
        return Err(ApiError::Broken(RelayError::Malformed));
    }
    gateway.response_filter(session, &mut head, exchange).await.map_err(|_| ApiError::Internal)?;
    let told = vendor.up.response_header().and_then(told_length);
    let is_old = session.req_header().version == http::Version::HTTP_10;
    let permit = exchange.relaying().map(|r| std::mem::take(&mut r.answer_permit));
    let mut client = Downstream {
        head: Some(head),
        gone: None,
        stream,
        collected: (is_old && !stream).then(OutputChunks::default),
        patience: gateway.timeouts.client_write,
        patience_in_all: gateway.timeouts.total,
        waited: Duration::ZERO,
        permit: permit.unwrap_or_default(),
        budget: &gateway.answers,
    };
    let deadline = exchange.arrived + gateway.timeouts.total;
    let mut notes = CheckpointTimer::of(stream);
    let mut refused = make_room(gateway, exchange, &mut client, told).await.err();
    loop {
        let read = match refused.take() {
            Some(why) => UpstreamRead::Failed(why),
            None => notes.beside(gateway, exchange, vendor.read()).await,
        };
        let is_late = client.gone.is_none() && !lacks_room(&read) && Instant::now() >= deadline;
        let read = match client.gone {
            None if is_late => UpstreamRead::Failed(RelayError::Stalled),
            Some(gone) if !gone.patient(vendor.read_bytes, gateway.timeouts.drain) => {
                UpstreamRead::Failed(RelayError::Abandoned)
            }
            _ => read,
        };
        let out = passed(gateway, session, exchange, &mut vendor, read).await?;
        let out = covered(gateway, session, exchange, &mut client, out).await?;
        repeat::add(exchange, &out.0);
        let progress = exchange.relaying().map(|r| r.relay.progress().clone());
        match progress {
            Some(RelayProgress::Open) => {
                let is_held = out.len() == 0;
                client.pass(session, out, false, vendor.read_bytes).await;
                // What was taken before the call was made stays for what is still to come.
                if !is_held || client.gone.is_some() {
                    client.permit.shrink_to(held(exchange) + client.held());
                }
            }
            Some(RelayProgress::Complete) => {
                upstream::note_success(exchange, true);
                settle(gateway, exchange, &client).await;
                last(gateway, session, exchange, &mut client, (out, true), &vendor).await;
                Box::pin(tail(gateway, vendor, peer)).await;
                break;
            }
            Some(RelayProgress::Failed(why)) => {
                vendor.up.shutdown().await;
                note_break(exchange, &why, stream, is_late);
                broken(gateway, session, exchange, &mut client, (why, out), &vendor).await?;
                break;
            }
            None => return Err(ApiError::Internal),
        }
    }
    leave(session, exchange, &client).await;
    Ok(())
}

/// Notes how the client's side ended.
async fn leave(session: &mut Session, exchange: &mut RequestContext, client: &Downstream<'_>) {
    exchange.record.client_gone = client.gone.is_some();
    exchange.client_time += client.waited;
    if client.gone.is_some() {
        reply::cut(session, exchange).await;
    }
}

/// Counts an answer that broke against its route, as far as that did it.
fn note_break(exchange: &mut RequestContext, why: &RelayError, stream: bool, is_late: bool) {
    match failure::of_answer(why, stream) {
        // How long an answer is its call decides.
        Some(reason) if !is_late => upstream::note_lost_answer(exchange, reason),
        _ if !why.is_gateway_side() || *why == RelayError::NoBufferSpace => {
            upstream::note_loss(exchange)
        }
        _ => {}
    }
}

/// Ends an answer that broke: with an error in its place, or in its midst.
async fn broken(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    client: &mut Downstream<'_>,
    (why, out): (RelayError, OutputChunks),
    vendor: &UpstreamResponse,
) -> Result<(), ApiError> {
    let input = |r: &mut RelayedCall| r.relay.billable_usage(r.terms.input_tokens);
    let due = exchange.relaying().and_then(input);
    if client.head.is_some() && due.is_none() {
        return Err(ApiError::Broken(why));
    }
    if client.head.is_some() && why == RelayError::SlowReader {
        settle(gateway, exchange, client).await;
        repeat::spoil(exchange);
        repeat::promise(gateway, exchange).await;
        repeat::close(gateway, exchange, false).await;
        return Err(ApiError::Broken(why));
    }
    exchange.record.code = Some(why.to_string());
    let tells = exchange.relaying().is_some_and(|r| r.relay.reports_errors_inline());
    settle(gateway, exchange, client).await;
    last(gateway, session, exchange, client, (out, tells), vendor).await;
    if !tells && client.gone.is_none() {
        reply::cut(session, exchange).await;
    }
    Ok(())
}

/// Ends the money side. Boxed: a stream would carry the room for it all the time.
async fn settle(gateway: &Gateway, exchange: &mut RequestContext, client: &Downstream<'_>) {
    Box::pin(close::settle(gateway, exchange, client.gone.is_some())).await;
}

/// What the client is to see of what was read, and of what is there already: that goes out in the
/// same write.
async fn passed(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    vendor: &mut UpstreamResponse,
    read: UpstreamRead,
) -> Result<OutputChunks, ApiError> {
    let mut out = filter(gateway, session, exchange, read)?;
    let before = held(exchange);
    // Nor is more read at once of what is held.
    while out.len() + held(exchange).saturating_sub(before) < WRITE_BYTES && open(exchange) {
        let Some(read) = vendor.read_ready().await else { break };
        out.append(filter(gateway, session, exchange, read)?);
    }
    if open(exchange)
        && let Some(why) = growth::cover(gateway, exchange).await
    {
        // What nothing covers is not passed on.
        out = filter(gateway, session, exchange, UpstreamRead::Failed(why))?;
    }
    Ok(out)
}

/// What was read, once what is held of the answer has its room; else why it ends.
async fn covered(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    client: &mut Downstream<'_>,
    out: OutputChunks,
) -> Result<OutputChunks, ApiError> {
    let given = if client.gone.is_some() { 0 } else { out.len() };
    let bytes = held(exchange) + client.held() + given;
    // What is complete was held as a whole before.
    if bytes <= FREE_BYTES || !open(exchange) {
        return Ok(out);
    }
    let tenant = exchange.tenant.clone();
    let covering = Box::pin(client.permit.cover(&gateway.answers, tenant.as_ref(), bytes)).await;
    if let Err(no_room) = covering {
        // Who has gone pays for what is not waited for.
        let why = if client.gone.is_some() { RelayError::Abandoned } else { no_room.into() };
        return filter(gateway, session, exchange, UpstreamRead::Failed(why));
    }
    Ok(out)
}

/// Makes room for an answer that is held as a whole, once its length is told and before any of it
/// is read: many that each have a part of their room would wait for each other.
async fn make_room(
    gateway: &Gateway,
    exchange: &mut RequestContext,
    client: &mut Downstream<'_>,
    told: Option<usize>,
) -> Result<(), RelayError> {
    let is_held = exchange.relaying().is_some_and(|r| matches!(r.relay, Relay::Buffered(_)));
    let Some(bytes) = told.filter(|bytes| is_held && *bytes > FREE_BYTES) else { return Ok(()) };
    if let Some(relaying) = exchange.relaying() {
        relaying.relay.set_expected_length(bytes);
    }
    let tenant = exchange.tenant.clone();
    let covering = client.permit.cover(&gateway.answers, tenant.as_ref(), bytes);
    Box::pin(covering).await.map_err(RelayError::from)
}

fn lacks_room(read: &UpstreamRead) -> bool {
    matches!(read, UpstreamRead::Failed(RelayError::SlowReader | RelayError::NoBufferSpace))
}

/// The length that a vendor tells of an answer, up to what is read of one.
fn told_length(head: &ResponseHeader) -> Option<usize> {
    let told = head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse::<usize>().ok()?;
    Some(told.min(BUFFERED_BYTES_MAX))
}

impl From<NoAnswerRoom> for RelayError {
    fn from(no_room: NoAnswerRoom) -> RelayError {
        if no_room.is_own_doing { RelayError::SlowReader } else { RelayError::NoBufferSpace }
    }
}

/// How much of an answer is held that was not given out.
fn held(exchange: &mut RequestContext) -> usize {
    exchange.relaying().map_or(0, |relaying| relaying.relay.buffered_bytes())
}

/// Passes the last bytes on of an answer whose money side is over. What they are worth to whoever
/// asks again is known by then.
async fn last(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    client: &mut Downstream<'_>,
    (out, end): (OutputChunks, bool),
    vendor: &UpstreamResponse,
) {
    let broke = exchange.record.code.is_some();
    if broke && !(client.stream && end) {
        repeat::spoil(exchange);
    }
    repeat::promise(gateway, exchange).await;
    client.pass(session, out, end, vendor.read_bytes).await;
    drop(std::mem::take(&mut client.permit));
    if client.gone.is_none() {
        repeat::look_after(session, exchange).await;
    }
    repeat::close(gateway, exchange, client.gone.is_some()).await;
}

fn open(exchange: &mut RequestContext) -> bool {
    exchange.relaying().is_some_and(|r| *r.relay.progress() == RelayProgress::Open)
}

/// Notes in the ledger of what a stream has cost so far.
struct CheckpointTimer(Option<std::pin::Pin<Box<Sleep>>>);

impl CheckpointTimer {
    /// Only of a stream the client has anything before it ends.
    fn of(stream: bool) -> CheckpointTimer {
        CheckpointTimer(stream.then(|| Box::pin(sleep(CHECKPOINT_EVERY))))
    }

    /// Takes them while something else is waited for, be it for long.
    async fn beside(
        &mut self,
        gateway: &Gateway,
        exchange: &mut RequestContext,
        reading: impl Future<Output = UpstreamRead>,
    ) -> UpstreamRead {
        let began = Instant::now();
        let mut reading = std::pin::pin!(reading);
        let read = loop {
            let Some(due) = &mut self.0 else { break reading.await };
            tokio::select! {
                biased;
                () = due.as_mut() => {
                    growth::checkpoint(gateway, exchange).await;
                    due.as_mut().reset(tokio::time::Instant::now() + CHECKPOINT_EVERY);
                }
                read = &mut reading => break read,
            }
        };
        exchange.vendor_time += began.elapsed();
        read
    }
}

/// Runs what was read through the body phase.
fn filter(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    read: UpstreamRead,
) -> Result<OutputChunks, ApiError> {
    let (mut body, end) = match read {
        UpstreamRead::Piece(piece) => (Some(piece), false),
        UpstreamRead::End => (None, true),
        UpstreamRead::Failed(why) => {
            let told = exchange.relaying().and_then(|r| r.relay.fail(why));
            return Ok(OutputChunks(told.into_iter().collect()));
        }
    };
    let filtered = gateway.response_body_filter(session, &mut body, end, exchange);
    filtered.map_err(|_| ApiError::Internal)?;
    if !open(exchange) {
        // The end of an answer may be an error in the vendor's words.
        let redact = |bytes: Bytes| match &exchange.record.route {
            Some(route) => route.redacted(bytes),
            None => bytes,
        };
        body = body.map(redact);
    }
    Ok(OutputChunks(body.into_iter().collect()))
}

/// The vendor's side of an answer.
pub(super) struct UpstreamResponse {
    /// The connection.
    pub(super) up: Upstream,
    /// Whether it has all of the request.
    pub(super) sent_whole: bool,
    /// Whether all of it was read.
    ended: bool,
    read_bytes: u64,
    /// What was read ahead.
    ahead: Option<UpstreamRead>,
}

/// What came of a read.
enum UpstreamRead {
    Piece(Bytes),
    End,
    Failed(RelayError),
}

impl UpstreamResponse {
    pub(super) fn new(up: Upstream, sent_whole: bool) -> UpstreamResponse {
        UpstreamResponse { up, sent_whole, ended: false, read_bytes: 0, ahead: None }
    }

    /// Looks at how the body begins, which is read again; `None` if it is empty.
    pub(super) async fn look_ahead(&mut self) -> Option<&[u8]> {
        let mut read = self.read().await;
        while matches!(&read, UpstreamRead::Piece(piece) if piece.is_empty()) {
            read = self.read().await;
        }
        match self.ahead.insert(read) {
            UpstreamRead::Piece(piece) => Some(piece),
            UpstreamRead::End => None,
            UpstreamRead::Failed(_) => Some(&[]),
        }
    }

    async fn read(&mut self) -> UpstreamRead {
        if let Some(read) = self.ahead.take() {
            return read;
        }
        let read = self.up.read_response_body().await;
        self.count(read)
    }

    /// What is there without waiting. A read that would wait is dropped, which loses nothing.
    async fn read_ready(&mut self) -> Option<UpstreamRead> {
        if let Some(read) = self.ahead.take() {
            return Some(read);
        }
        let read = match poll!(Box::pin(self.up.read_response_body())) {
            Poll::Ready(read) => read,
            Poll::Pending => return None,
        };
        Some(self.count(read))
    }

    fn count(&mut self, read: pingora_core::Result<Option<Bytes>>) -> UpstreamRead {
        match read {
            Ok(Some(piece)) => {
                self.read_bytes += piece.len() as u64;
                UpstreamRead::Piece(piece)
            }
            Ok(None) => {
                self.ended = true;
                UpstreamRead::End
            }
            Err(why) if *why.etype() == ErrorType::ReadTimedout => {
                UpstreamRead::Failed(RelayError::Stalled)
            }
            Err(_) => UpstreamRead::Failed(RelayError::Truncated),
        }
    }
}

/// After its last event a stream's connection can be used again as soon as it says that it has
/// ended; that is not waited for in the way of the client.
async fn tail(gateway: &Gateway, mut vendor: Box<UpstreamResponse>, peer: &HttpPeer) {
    let more = !vendor.ended
        && matches!(
            vendor.read_ready().await,
            Some(UpstreamRead::Piece(_) | UpstreamRead::Failed(_))
        );
    // Bytes after the end are nothing that anybody asked for.
    if more || !vendor.sent_whole {
        vendor.up.shutdown().await;
        return;
    }
    if vendor.ended {
        gateway.dial.release(vendor.up, peer).await;
        return;
    }
    let (dial, peer) = (gateway.dial.clone(), peer.clone());
    tokio::spawn(async move {
        match tokio::time::timeout(TAIL_WAIT, vendor.read()).await {
            Ok(UpstreamRead::End) => dial.release(vendor.up, &peer).await,
            _ => vendor.up.shutdown().await,
        }
    });
}
