//! Relays a response: each chunk goes through the body filter and to the client. If the client
//! disconnects, the rest is still read, because the usage is reported at its end.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use pingora::http::ResponseHeader;
use pingora::proxy::{ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};

use super::api_error::{ApiError, ServerError, UpstreamError};
use super::context::RequestContext;
use super::state::Gateway;
use super::upstream::answer::{UpstreamRead, UpstreamResponse, release_connection};
use super::{idempotency, settlement, upstream};
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
pub(super) async fn relay_response(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    mut vendor: Box<UpstreamResponse>,
    peer: &HttpPeer,
    mut head: Box<ResponseHeader>,
) -> Result<(), ApiError> {
    let call = ctx.admitted().map(|admitted| &admitted.priced.call);
    let stream = call.is_some_and(|call| call.stream);
    if !call.is_some_and(|call| upstream::is_readable(&head, call)) {
        outcome::record_lost_answer(ctx, failure::UNREADABLE);
        vendor.connection.shutdown().await;
        return Err(UpstreamError::RelayFailed(RelayError::Malformed).into());
    }
    gateway.response_filter(session, &mut head, ctx).await.map_err(|_| ServerError::Internal)?;
    let length = vendor.connection.response_header().and_then(content_length);
    let is_http10 = session.req_header().version == http::Version::HTTP_10;
    let permit = ctx.relaying().map(|r| std::mem::take(&mut r.answer_permit));
    let mut client = Downstream {
        head: Some(head),
        disconnected: None,
        is_stream: stream,
        http10_buffer: (is_http10 && !stream).then(OutputChunks::default),
        write_timeout: gateway.timeouts.client_write,
        total_timeout: gateway.timeouts.total,
        write_time: Duration::ZERO,
        permit: permit.unwrap_or_default(),
        budget: &gateway.answer_budget,
    };
    let deadline = ctx.arrived + gateway.timeouts.total;
    let mut watch = StreamWatch::begin(gateway, ctx, stream);
    let mut refused = reserve_whole_body(gateway, ctx, &mut client, length).await.err();
    loop {
        let read = match refused.take() {
            Some(why) => UpstreamRead::Failed(why),
            None => watch.await_read(gateway, ctx, vendor.read_chunk()).await,
        };
        let (read, is_late) = limit_time(gateway, &client, deadline, read, vendor.read_bytes);
        let begins = client.is_stream && client.head.is_some();
        let out =
            collect_output(gateway, session, ctx, &mut vendor, read, begins, &mut watch).await?;
        let out = reserve_memory(gateway, session, ctx, &mut client, out).await?;
        idempotency::record_body(ctx, &out.0);
        let progress = ctx.relaying().map(|r| r.relay.progress().clone());
        match progress {
            Some(RelayProgress::Open) => {
                let is_held = out.len() == 0;
                client.send_output(session, out, false, vendor.read_bytes).await;
                // As long as nothing is passed on, the memory that was reserved at admission stays
                // reserved.
                if !is_held || client.disconnected.is_some() {
                    client.permit.shrink_to(buffered_bytes(ctx) + client.buffered_bytes());
                }
            }
            Some(RelayProgress::Complete) => {
                outcome::record_success(ctx, true);
                settle_boxed(gateway, ctx, &client).await;
                write_final(gateway, session, ctx, &mut client, out, true, &vendor).await;
                Box::pin(release_connection(gateway, vendor, peer)).await;
                break;
            }
            Some(RelayProgress::Failed(why)) => {
                vendor.connection.shutdown().await;
                record_break(ctx, &why, stream, is_late);
                end_broken(gateway, session, ctx, &mut client, why, out, &vendor).await?;
                break;
            }
            None => return Err(ServerError::Internal.into()),
        }
    }
    finish_downstream(session, ctx, &client).await;
    Ok(())
}

/// Replaces a read with a failure if the response has passed its deadline, or if the client has
/// disconnected and the rest need not be read. Returns the read, and whether the deadline had
/// passed.
fn limit_time(
    gateway: &Gateway,
    client: &Downstream<'_>,
    deadline: Instant,
    read: UpstreamRead,
    read_bytes: u64,
) -> (UpstreamRead, bool) {
    match client.disconnected {
        None if !is_over_budget(&read) && Instant::now() >= deadline => {
            (UpstreamRead::Failed(RelayError::Stalled), true)
        }
        Some(gone) if !gone.should_drain(read_bytes, gateway.timeouts.drain) => {
            (UpstreamRead::Failed(RelayError::Abandoned), false)
        }
        _ => (read, false),
    }
}

/// Pushes a chunk of the vendor's body through the relay, and replaces it with the relay's output.
///
/// # Errors
/// No response is being relayed.
pub(super) fn push_body(
    ctx: &mut RequestContext,
    body: &mut Option<Bytes>,
    is_last: bool,
) -> pingora::Result<()> {
    let relaying = ctx.relaying().ok_or_else(|| Error::new(ErrorType::InternalError))?;
    *body = body.take().and_then(|bytes| relaying.relay.push(bytes));
    if is_last {
        let rest = relaying.relay.finish();
        *body = body.take().or(rest);
    }
    Ok(())
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
fn record_break(ctx: &mut RequestContext, why: &RelayError, stream: bool, is_late: bool) {
    match failure::reason_for_answer(why, stream) {
        // A late response is no fault of the route: the call decides how long it takes.
        Some(reason) if !is_late => outcome::record_lost_answer(ctx, reason),
        _ if !why.is_gateway_side() || *why == RelayError::NoBufferSpace => {
            outcome::record_lost_attempt(ctx);
        }
        _ => {}
    }
}

/// Ends a response that broke. If nothing was sent to the client yet, and nothing is charged or the
/// client was too slow, the client gets an error response. Otherwise the stream ends with an error
/// event, or the response is aborted.
async fn end_broken(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    client: &mut Downstream<'_>,
    why: RelayError,
    out: OutputChunks,
    vendor: &UpstreamResponse,
) -> Result<(), ApiError> {
    let billable_usage = ctx.relaying().and_then(|relaying| relaying.billable_usage());
    if client.head.is_some() && billable_usage.is_none() {
        return Err(UpstreamError::RelayFailed(why).into());
    }
    if client.head.is_some() && why == RelayError::SlowReader {
        settle_boxed(gateway, ctx, client).await;
        idempotency::discard_recording(ctx);
        idempotency::store_before_last_byte(gateway, ctx).await;
        idempotency::finish_claim(gateway, ctx, false).await;
        return Err(UpstreamError::RelayFailed(why).into());
    }
    ctx.access_log.error_code = Some(why.to_string());
    let reports_error_inline = ctx.relaying().is_some_and(|r| r.relay.reports_errors_inline());
    settle_boxed(gateway, ctx, client).await;
    write_final(gateway, session, ctx, client, out, reports_error_inline, vendor).await;
    if !reports_error_inline && client.disconnected.is_none() {
        writer::abort_response(session, ctx).await;
    }
    Ok(())
}

/// Settles or voids the hold. Boxed: otherwise the future of every streamed response would include
/// its state.
async fn settle_boxed(gateway: &Gateway, ctx: &mut RequestContext, client: &Downstream<'_>) {
    Box::pin(settlement::settle_call(gateway, ctx, client.disconnected.is_some())).await;
}

/// Filters the chunk that was read, and all further chunks that are ready, so that they go to the
/// client in one write. The first chunks of a stream (`begins`) do not wait for others.
async fn collect_output(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    vendor: &mut UpstreamResponse,
    read: UpstreamRead,
    begins: bool,
    watch: &mut StreamWatch<'_>,
) -> Result<OutputChunks, ApiError> {
    let mut out = run_body_filter(gateway, session, ctx, read)?;
    let (before, mut chunks) = (buffered_bytes(ctx), 1_usize);
    // Bytes that the relay holds back count too, so that they do not grow by more at once.
    while out.len() + buffered_bytes(ctx).saturating_sub(before) < WRITE_CHUNK_BYTES
        && is_open(ctx)
        && !(begins && out.len() > 0)
    {
        let Some(read) = vendor.try_read_chunk().await else { break };
        out.append(run_body_filter(gateway, session, ctx, read)?);
        chunks += 1;
        if chunks.is_multiple_of(CHUNKS_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    if !is_open(ctx) {
        return Ok(out);
    }
    if let Some(why) = stream_holds::ensure_covered(gateway, ctx).await {
        // Output that the hold does not cover is not passed on.
        return run_body_filter(gateway, session, ctx, UpstreamRead::Failed(why));
    }
    if watch.ends_by_suspension(ctx) {
        // What has come is charged, so it is passed on before the error event.
        let ended = UpstreamRead::Failed(RelayError::AccountSuspended);
        out.append(run_body_filter(gateway, session, ctx, ended)?);
    }
    Ok(out)
}

/// Reserves memory for the bytes that are buffered. Returns the output to pass on, or the error
/// event that ends the response if there is no memory in time.
async fn reserve_memory(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    client: &mut Downstream<'_>,
    out: OutputChunks,
) -> Result<OutputChunks, ApiError> {
    let given = if client.disconnected.is_some() { 0 } else { out.len() };
    let bytes = buffered_bytes(ctx) + client.buffered_bytes() + given;
    // A response that is complete was buffered as a whole before, with its memory reserved.
    if bytes <= UNCOUNTED_BYTES_MAX || !is_open(ctx) {
        return Ok(out);
    }
    let tenant = ctx.tenant.clone();
    let reserved =
        Box::pin(client.permit.reserve(&gateway.answer_budget, tenant.as_ref(), bytes)).await;
    if let Err(no_room) = reserved {
        // A client that disconnected is charged, so this counts as abandoned.
        let why =
            if client.disconnected.is_some() { RelayError::Abandoned } else { no_room.into() };
        return run_body_filter(gateway, session, ctx, UpstreamRead::Failed(why));
    }
    Ok(out)
}

/// Reserves memory for a response that is buffered as a whole, if its length is known, before any
/// of it is read. Responses that each hold a part of what they need could deadlock.
async fn reserve_whole_body(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    client: &mut Downstream<'_>,
    length: Option<usize>,
) -> Result<(), RelayError> {
    let is_held = ctx.relaying().is_some_and(|r| matches!(r.relay, Relay::Buffered(_)));
    let Some(bytes) = length.filter(|bytes| is_held && *bytes > UNCOUNTED_BYTES_MAX) else {
        return Ok(());
    };
    if let Some(relaying) = ctx.relaying() {
        relaying.relay.set_expected_length(bytes);
    }
    let tenant = ctx.tenant.clone();
    let reserving = client.permit.reserve(&gateway.answer_budget, tenant.as_ref(), bytes);
    Box::pin(reserving).await.map_err(RelayError::from)
}

fn is_over_budget(read: &UpstreamRead) -> bool {
    matches!(read, UpstreamRead::Failed(RelayError::SlowReader | RelayError::NoBufferSpace))
}

/// Returns the `content-length` of a vendor's response, but at most the bytes that are read of one.
/// `None` if it is missing or invalid.
fn content_length(head: &ResponseHeader) -> Option<usize> {
    let length = head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse::<usize>().ok()?;
    Some(length.min(BUFFERED_BYTES_MAX))
}

impl From<AnswerBudgetExceeded> for RelayError {
    fn from(no_room: AnswerBudgetExceeded) -> RelayError {
        if no_room.is_account_limit { RelayError::SlowReader } else { RelayError::NoBufferSpace }
    }
}

/// Returns how many bytes of the response the relay holds back.
fn buffered_bytes(ctx: &mut RequestContext) -> usize {
    ctx.relaying().map_or(0, |relaying| relaying.relay.buffered_bytes())
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

fn is_open(ctx: &mut RequestContext) -> bool {
    ctx.relaying().is_some_and(|r| *r.relay.progress() == RelayProgress::Open)
}

/// Passes a read through the body phase, and returns the output for the client.
fn run_body_filter(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    read: UpstreamRead,
) -> Result<OutputChunks, ApiError> {
    let (mut body, end) = match read {
        UpstreamRead::Piece(piece) => (Some(piece), false),
        UpstreamRead::End => (None, true),
        UpstreamRead::Failed(why) => {
            let error_event = ctx.relaying().and_then(|r| r.relay.fail(why));
            return Ok(OutputChunks(error_event.into_iter().collect()));
        }
    };
    let filtered = gateway.response_body_filter(session, &mut body, end, ctx);
    filtered.map_err(|_| ServerError::Internal)?;
    if !is_open(ctx) {
        // The end of a response may be an error that quotes the vendor, and so the vendor key.
        let redact = |bytes: Bytes| match &ctx.access_log.route {
            Some(route) => route.redact(bytes),
            None => bytes,
        };
        body = body.map(redact);
    }
    Ok(OutputChunks(body.into_iter().collect()))
}
