//! Relays a response: each chunk is metered and goes to the client. If the client disconnects, the
//! rest is still read, because the usage is reported at its end.

use std::time::{Duration, Instant};

use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;

use super::api_error::{ApiError, UpstreamError};
use super::context::{RelayedCall, RequestContext};
use super::state::Gateway;
use super::upstream::answer::{UpstreamRead, UpstreamResponse, release_connection};
use super::{idempotency, settlement};
use crate::dialect::relay::{BUFFERED_BYTES_MAX, Relay, RelayError, RelayProgress};
use crate::gateway::budgets::answers::{AnswerBudgetExceeded, UNCOUNTED_BYTES_MAX};
use crate::gateway::settlement::stream_holds;
use crate::gateway::upstream::{failure, outcome};

pub(crate) mod begin;
pub(crate) mod download;
mod downstream;
pub(crate) mod head;
mod stream_watch;
pub(crate) mod writer;

use downstream::{Downstream, OutputChunks, WRITE_CHUNK_BYTES};
use stream_watch::StreamWatch;

/// After this many chunks that were ready, a response lets others have their turn: a vendor that
/// sends quickly would keep new calls waiting for tens of milliseconds.
const CHUNKS_PER_TURN: usize = 16;

/// Relays a successful response to the client, and settles the call.
///
/// # Errors
/// The error that the client is to get: the response broke before any part of it was sent.
pub(super) async fn relay_response(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    mut relaying: Box<RelayedCall>,
    mut vendor: Box<UpstreamResponse>,
    peer: &HttpPeer,
    head: Box<ResponseHeader>,
) -> Result<(), ApiError> {
    let is_stream = relaying.is_stream;
    ctx.access_log.is_stream = is_stream;
    idempotency::record_head(ctx, &head);
    // No more than this is read of one.
    let length = vendor.framing.length.map(|bytes| bytes.min(BUFFERED_BYTES_MAX));
    let is_http10 = session.req_header().version == http::Version::HTTP_10;
    let mut client = Downstream {
        head: Some(head),
        disconnected: None,
        is_stream,
        http10_buffer: (is_http10 && !is_stream).then(OutputChunks::default),
        write_timeout: gateway.timeouts.client_write,
        total_timeout: gateway.timeouts.total,
        write_time: Duration::ZERO,
        permit: std::mem::take(&mut relaying.answer_permit),
        budget: &gateway.answer_budget,
    };
    let deadline = ctx.arrived + gateway.timeouts.total;
    let mut watch = StreamWatch::begin(gateway, ctx, is_stream);
    let mut refused =
        reserve_whole_body(gateway, ctx, &mut relaying, &mut client, length).await.err();
    loop {
        let (read, ended) = match refused.take() {
            Some(why) => (UpstreamRead::Failed(why), Instant::now()),
            None => watch.await_read(gateway, ctx, &mut relaying, vendor.read_chunk()).await,
        };
        let is_late = ended >= deadline;
        let (read, is_late) = limit_time(gateway, &client, is_late, read, vendor.read_bytes);
        let begins = is_stream && client.head.is_some();
        let call = &mut *relaying;
        let out = collect_output(gateway, ctx, call, &mut vendor, read, begins, &mut watch).await;
        let out = reserve_memory(gateway, ctx, &mut relaying, &mut client, out).await;
        idempotency::record_body(ctx, &out.0);
        match relaying.relay.progress().clone() {
            RelayProgress::Open => {
                let is_held = out.len() == 0;
                client.send_output(session, out, false, vendor.read_bytes).await;
                // As long as nothing is passed on, the memory that was reserved at admission stays
                // reserved.
                if !is_held || client.disconnected.is_some() {
                    let buffered = relaying.relay.buffered_bytes() + client.buffered_bytes();
                    client.permit.shrink_to(buffered);
                }
            }
            RelayProgress::Complete => {
                outcome::record_success(ctx, &relaying.route, true);
                settle_boxed(gateway, ctx, relaying, &client).await;
                tell_charge(ctx, &mut client);
                write_final(gateway, session, ctx, &mut client, out, true, &vendor).await;
                Box::pin(release_connection(gateway, vendor, peer)).await;
                break;
            }
            RelayProgress::Failed(why) => {
                vendor.connection.shutdown().await;
                record_break(ctx, &relaying, &why, is_late);
                let broken = BrokenOutput { why, out };
                end_broken(gateway, session, ctx, relaying, &mut client, broken, &vendor).await?;
                break;
            }
        }
    }
    finish_downstream(session, ctx, &client).await;
    Ok(())
}

/// Replaces a read with a failure if it ended after the deadline of the response (`is_late`), or if
/// the client has disconnected and the rest need not be read. Returns the read, and whether it
/// failed because of the deadline.
fn limit_time(
    gateway: &Gateway,
    client: &Downstream<'_>,
    is_late: bool,
    read: UpstreamRead,
    read_bytes: u64,
) -> (UpstreamRead, bool) {
    match client.disconnected {
        None if is_late && !is_over_budget(&read) => {
            (UpstreamRead::Failed(RelayError::Stalled), true)
        }
        Some(gone) if !gone.should_drain(read_bytes, gateway.timeouts.drain) => {
            (UpstreamRead::Failed(RelayError::Abandoned), false)
        }
        _ => (read, false),
    }
}

/// Records whether the client disconnected and how long it took; if it did, aborts the response.
async fn finish_downstream(
    session: &mut Session,
    ctx: &mut RequestContext,
    client: &Downstream<'_>,
) {
    ctx.access_log.client_disconnected = client.disconnected.is_some();
    ctx.client_time += client.write_time;
    if client.disconnected.is_some() {
        writer::abort_response(session, ctx).await;
    }
}

/// Records a broken response as a failure of its route, if the route is to blame.
fn record_break(ctx: &mut RequestContext, relaying: &RelayedCall, why: &RelayError, is_late: bool) {
    let route = &relaying.route;
    match failure::reason_for_answer(why, relaying.is_stream) {
        // A late response is no fault of the route: the call decides how long it takes.
        Some(reason) if !is_late => outcome::record_lost_answer(ctx, route, reason),
        _ if !why.is_gateway_side() || *why == RelayError::NoBufferSpace => {
            outcome::record_lost_attempt(route);
        }
        _ => {}
    }
}

/// Why a response broke, and the last output for the client, such as an error event.
struct BrokenOutput {
    why: RelayError,
    out: OutputChunks,
}

/// Ends a response that broke. If nothing was sent to the client yet, and nothing is charged or the
/// client was too slow, the client gets an error response. Otherwise the stream ends with an error
/// event, or the response is aborted.
async fn end_broken(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    relaying: Box<RelayedCall>,
    client: &mut Downstream<'_>,
    broken: BrokenOutput,
    vendor: &UpstreamResponse,
) -> Result<(), ApiError> {
    let BrokenOutput { why, out } = broken;
    if client.head.is_some() && relaying.billable_usage().is_none() {
        settlement::void_hold(gateway, relaying.funding);
        return Err(UpstreamError::RelayFailed(why).into());
    }
    if client.head.is_some() && why == RelayError::SlowReader {
        settle_boxed(gateway, ctx, relaying, client).await;
        idempotency::discard_recording(ctx);
        idempotency::store_before_last_byte(gateway, ctx).await;
        idempotency::finish_claim(gateway, ctx, false).await;
        return Err(UpstreamError::RelayFailed(why).into());
    }
    ctx.access_log.error_code = Some(why.to_string());
    let reports_error_inline = relaying.relay.reports_errors_inline();
    settle_boxed(gateway, ctx, relaying, client).await;
    write_final(gateway, session, ctx, client, out, reports_error_inline, vendor).await;
    if !reports_error_inline && client.disconnected.is_none() {
        writer::abort_response(session, ctx).await;
    }
    Ok(())
}

/// Adds the charge to the head of a settled answer, and to its recording, unless the head was sent
/// before: that of a stream, or of a long answer that is passed on in parts.
fn tell_charge(ctx: &mut RequestContext, client: &mut Downstream<'_>) {
    let Some(charge) = ctx.access_log.charge.filter(|_| !client.is_stream) else { return };
    let Some(head) = &mut client.head else { return };
    // The answer is sent without the charge rather than not at all.
    if head::add_charge(head, charge).is_ok() {
        idempotency::record_header(ctx, &head::CHARGED, charge.nano());
    }
}

/// Settles or voids the hold. Boxed: otherwise the future of every streamed response would include
/// its state.
async fn settle_boxed(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    relaying: Box<RelayedCall>,
    client: &Downstream<'_>,
) {
    let is_gone = client.disconnected.is_some();
    Box::pin(settlement::settle_call(gateway, ctx, relaying, is_gone)).await;
}

/// Filters the chunk that was read, and all further chunks that are ready, so that they go to the
/// client in one write. The first chunks of a stream (`begins`) do not wait for others.
async fn collect_output(
    gateway: &Gateway,
    ctx: &RequestContext,
    relaying: &mut RelayedCall,
    vendor: &mut UpstreamResponse,
    read: UpstreamRead,
    begins: bool,
    watch: &mut StreamWatch<'_>,
) -> OutputChunks {
    let mut out = push_read(relaying, read);
    let (before, mut chunks) = (relaying.relay.buffered_bytes(), 1_usize);
    // Bytes that the relay holds back count too, so that they do not grow by more at once.
    while out.len() + relaying.relay.buffered_bytes().saturating_sub(before) < WRITE_CHUNK_BYTES
        && is_open(relaying)
        && !(begins && out.len() > 0)
    {
        let Some(read) = vendor.try_read_chunk().await else { break };
        out.append(push_read(relaying, read));
        chunks += 1;
        if chunks.is_multiple_of(CHUNKS_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    if !is_open(relaying) {
        return out;
    }
    if let Some(why) = stream_holds::ensure_covered(gateway, relaying).await {
        // Output that the hold does not cover is not passed on.
        return push_read(relaying, UpstreamRead::Failed(why));
    }
    if watch.ends_by_suspension(ctx, relaying) {
        // What has come is charged, so it is passed on before the error event.
        out.append(push_read(relaying, UpstreamRead::Failed(RelayError::AccountSuspended)));
    }
    out
}

/// Reserves memory for the bytes that are buffered. Returns the output to pass on, or the error
/// event that ends the response if there is no memory in time.
async fn reserve_memory(
    gateway: &Gateway,
    ctx: &RequestContext,
    relaying: &mut RelayedCall,
    client: &mut Downstream<'_>,
    out: OutputChunks,
) -> OutputChunks {
    let given = if client.disconnected.is_some() { 0 } else { out.len() };
    let bytes = relaying.relay.buffered_bytes() + client.buffered_bytes() + given;
    // A response that is complete was buffered as a whole before, with its memory reserved.
    if bytes <= UNCOUNTED_BYTES_MAX || !is_open(relaying) {
        return out;
    }
    let tenant = ctx.tenant.clone();
    let reserved =
        Box::pin(client.permit.reserve(&gateway.answer_budget, tenant.as_ref(), bytes)).await;
    if let Err(no_room) = reserved {
        // A client that disconnected is charged, so this counts as abandoned.
        let why =
            if client.disconnected.is_some() { RelayError::Abandoned } else { no_room.into() };
        return push_read(relaying, UpstreamRead::Failed(why));
    }
    out
}

/// Reserves memory for a response that is buffered as a whole, if its length is known, before any
/// of it is read. Responses that each hold a part of what they need could deadlock.
async fn reserve_whole_body(
    gateway: &Gateway,
    ctx: &RequestContext,
    relaying: &mut RelayedCall,
    client: &mut Downstream<'_>,
    length: Option<usize>,
) -> Result<(), RelayError> {
    let is_held = matches!(relaying.relay, Relay::Buffered(_));
    let Some(bytes) = length.filter(|bytes| is_held && *bytes > UNCOUNTED_BYTES_MAX) else {
        return Ok(());
    };
    relaying.relay.set_expected_length(bytes);
    let tenant = ctx.tenant.clone();
    let reserving = client.permit.reserve(&gateway.answer_budget, tenant.as_ref(), bytes);
    Box::pin(reserving).await.map_err(RelayError::from)
}

fn is_over_budget(read: &UpstreamRead) -> bool {
    matches!(read, UpstreamRead::Failed(RelayError::SlowReader | RelayError::NoBufferSpace))
}

impl From<AnswerBudgetExceeded> for RelayError {
    fn from(no_room: AnswerBudgetExceeded) -> RelayError {
        if no_room.is_account_limit { RelayError::SlowReader } else { RelayError::NoBufferSpace }
    }
}

/// Writes the last bytes of a settled response. Before that, the recorded reply is stored or
/// discarded, so that a repeat finds it.
async fn write_final(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    client: &mut Downstream<'_>,
    out: OutputChunks,
    end: bool,
    vendor: &UpstreamResponse,
) {
    let broke = ctx.access_log.error_code.is_some();
    if broke && !(client.is_stream && end) {
        idempotency::discard_recording(ctx);
    }
    idempotency::store_before_last_byte(gateway, ctx).await;
    client.send_output(session, out, end, vendor.read_bytes).await;
    drop(std::mem::take(&mut client.permit));
    if client.disconnected.is_none() {
        idempotency::detect_undelivered(session, ctx).await;
    }
    idempotency::finish_claim(gateway, ctx, client.disconnected.is_some()).await;
}

fn is_open(relaying: &RelayedCall) -> bool {
    *relaying.relay.progress() == RelayProgress::Open
}

/// Passes a read through the relay, and returns the output for the client.
fn push_read(relaying: &mut RelayedCall, read: UpstreamRead) -> OutputChunks {
    let mut output = match read {
        UpstreamRead::Piece(piece) => relaying.relay.push(piece),
        UpstreamRead::End => relaying.relay.finish(),
        UpstreamRead::Failed(why) => {
            return OutputChunks(relaying.relay.fail(why).into_iter().collect());
        }
    };
    if !is_open(relaying) {
        // The end of a response may be an error that quotes the vendor, and so the vendor key.
        output = output.map(|bytes| relaying.route.redact(bytes));
    }
    OutputChunks(output.into_iter().collect())
}
