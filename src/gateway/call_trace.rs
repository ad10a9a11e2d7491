//! Fills the trace of a call, if it has one. A call that is not traced passes through all of this
//! with one look at an empty field.

use std::time::Instant;

use pingora::http::RequestHeader;
use pingora::proxy::Session;

use super::call_metrics::conventional_operation;
use super::context::{PricedCall, RelayedCall, RequestContext};
use super::request::router::ApiOperation;
use super::state::Gateway;
use crate::dialect::Endpoint;
use crate::dialect::call::RequestKind;
use crate::gateway::upstream::routes::VendorRoute;
use crate::ledger::AccountName;
use crate::money::{BilledUnits, Money, Usage};
use crate::traces::call::{TracedAttempt, TracedCall, TracedTokens};
use crate::traces::context::TRACEPARENT;
use crate::traces::tracer::{Tracer, new_span_id};

/// Begins the trace of a request whose key is known, if it is a call and is to be traced. Whoever
/// has no key could otherwise fill the operator's collector.
pub(super) fn begin(
    gateway: &Gateway,
    session: &Session,
    ctx: &mut RequestContext,
    target: &ApiOperation,
) {
    let Some(tracer) = &gateway.tracer else { return };
    let endpoint = match target {
        ApiOperation::Endpoint(endpoint) => *endpoint,
        ApiOperation::CreateVideo => Endpoint::Videos,
        // Clients ask for these every few seconds; they call no model.
        ApiOperation::Models(_)
        | ApiOperation::Model(_)
        | ApiOperation::Videos(_)
        | ApiOperation::Account(_) => return,
    };
    let Some(mut trace) = tracer.begin(&ctx.id, &session.req_header().headers) else { return };
    trace.call = Some(TracedCall::begin(endpoint.path(), ctx.arrived));
    ctx.trace = Some(trace);
}

/// Begins an attempt on a route.
pub(super) fn begin_attempt(ctx: &mut RequestContext, priced: &PricedCall, route: &VendorRoute) {
    let Some(trace) = &mut ctx.trace else { return };
    let (output_max, choices) = output_bounds(&priced.call.kind);
    trace.begin_attempt(TracedAttempt {
        is_stream: priced.call.stream,
        output_max,
        choices,
        ..TracedAttempt::begin(
            new_span_id(),
            conventional_operation(priced.pricing.endpoint.name()),
            &priced.pricing.model.id,
            route.provider(),
            &route.name,
            (&route.base.host, route.base.port),
        )
    });
}

/// Returns the limit of output tokens, if the client set one, and the number of choices.
fn output_bounds(kind: &RequestKind) -> (Option<u64>, u64) {
    match kind {
        RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
            (text.output_max, text.choices)
        }
        RequestKind::Responses(request) | RequestKind::Compaction(request) => {
            (request.output_max, 1)
        }
        RequestKind::Embeddings(_)
        | RequestKind::Speech { .. }
        | RequestKind::Image { .. }
        | RequestKind::Video { .. }
        | RequestKind::Moderation
        | RequestKind::TokenCount { .. } => (None, 1),
    }
}

/// Writes the span of the attempt into the request for the vendor. Nothing that the client sent of
/// its own trace is passed on.
pub(super) fn write_header(ctx: &RequestContext, head: &mut RequestHeader) -> pingora::Result<()> {
    let header = ctx.trace.as_ref().and_then(|trace| trace.attempt_header());
    header.map_or(Ok(()), |header| head.insert_header(TRACEPARENT, header))
}

/// Notes the status of the vendor's answer.
pub(super) fn note_status(ctx: &mut RequestContext, status: u16) {
    if let Some(trace) = &mut ctx.trace {
        trace.note_status(status);
    }
}

/// Notes that the attempt that runs has ended. `failure` is why it failed.
pub(super) fn end_attempt(ctx: &mut RequestContext, failure: Option<&'static str>) {
    if let Some(trace) = &mut ctx.trace {
        trace.end_attempt(failure);
    }
}

/// Notes what is known of an answer that has ended. An attempt whose route failed has ended before.
pub(super) fn note_answer(ctx: &mut RequestContext, relaying: &RelayedCall) {
    let Some(trace) = &mut ctx.trace else { return };
    if let Some(call) = &mut trace.call {
        call.price_version = relaying.pricing.price_version.to_string();
    }
    if let Some(attempt) = trace.attempts.last_mut() {
        attempt.reply_id = relaying.relay.reply_id().map(str::to_owned);
        attempt.vendor_request_id.clone_from(&relaying.vendor_request_id);
    }
    trace.end_attempt(None);
}

/// Ends the trace of a request, with the values of its access log line.
pub(super) fn finish(tracer: &Tracer, ctx: &mut RequestContext) {
    let Some(mut trace) = ctx.trace.take() else { return };
    let record = &ctx.access_log;
    trace.account = record.account.as_ref().map_or_else(String::new, AccountName::to_string);
    if let Some(call) = &mut trace.call {
        call.ended = Instant::now();
        call.status = record.status;
        call.error_code.clone_from(&record.error_code);
        call.is_broken = record.status < 400 && record.error_code.is_some();
        call.key_prefix = record.key.as_ref().map_or_else(String::new, |key| key.prefix.clone());
        call.model = record.model.as_ref().map_or_else(String::new, |model| model.id.clone());
        call.requested_model = record.requested_model.as_deref().map(str::to_owned);
        call.route = record.route.as_ref().map_or_else(String::new, |route| route.name.clone());
        call.depth = record.fallback_depth;
        call.is_client_gone = record.client_disconnected;
        call.repeat = record.repeat_outcome;
        call.basis = record.usage.map_or("", |usage| usage.basis.name());
        call.charged_nano = record.charge.map(Money::nano);
    }
    if let Some(attempt) = trace.attempts.last_mut() {
        attempt.tokens = record.usage.and_then(traced_tokens);
    }
    tracer.finish(trace);
}

/// Returns the tokens of a usage; `None` if it is billed by something else.
fn traced_tokens(usage: Usage) -> Option<TracedTokens> {
    let BilledUnits::Tokens(tokens) = usage.units else { return None };
    Some(TracedTokens {
        input: tokens.input,
        cache_read: tokens.cache_read,
        cache_write: tokens.cache_write,
        output: tokens.output,
    })
}
