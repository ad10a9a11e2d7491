//! Begins the relay of a response: turns the admitted call into a relayed one.

use pingora::upstreams::peer::HttpPeer;

use super::head::relay_mode;
use crate::dialect::relay::Relay;
use crate::dialect::tokens::InputCount;
use crate::gateway::budgets::tenants::BudgetPermit;
use crate::gateway::context::{
    AdmittedCall, CallPermits, PricedCall, RelayedCall, RequestContext, RouteAttempt,
};
use crate::gateway::settlement::stream_budget::StreamBudget;
use crate::gateway::settlement::usage_bounds;
use crate::gateway::upstream::outcome;

/// Begins the relay of the response to an attempt. Returns the relayed call, and the peer that
/// answered.
pub(crate) fn begin_relay(
    ctx: &mut RequestContext,
    admitted: AdmittedCall,
    attempt: RouteAttempt,
    vendor_request_id: Option<String>,
) -> (Box<RelayedCall>, Box<HttpPeer>) {
    let AdmittedCall { priced, permits, .. } = admitted;
    let CallPermits { upload, body, answer } = permits;
    let input_count = count_input(&priced, body);
    outcome::record_success(ctx, &attempt.route, false);
    ctx.record_status(200);
    let bounds = usage_bounds::bounds_for_call(&priced.call, &priced.pricing);
    let is_stream = priced.call.stream;
    let mut relay = Relay::new(relay_mode(ctx, &priced, &input_count), is_stream)
        .with_bounds(bounds)
        .with_tokenizer(priced.pricing.model.tokenizer);
    if !priced.pricing.fees.is_empty() {
        relay = relay.with_tools(priced.pricing.fees.tools());
    }
    let PricedCall { call, funding, pricing, output_limit, .. } = priced;
    let is_limited = output_limit.is_some();
    // Admission has held them, so they fit.
    let fees =
        pricing.fees.amount_max().and_then(|fees| pricing.account_price().apply_factor(fees));
    let fees = fees.unwrap_or_default();
    let stream_budget =
        StreamBudget::for_call(&call, &funding, pricing.full_hold, is_limited, fees);
    let relaying = RelayedCall {
        funding,
        pricing,
        route: attempt.route,
        slot: attempt.slot,
        fallback_depth: ctx.access_log.fallback_depth,
        upload_permit: upload,
        answer_permit: answer,
        vendor_request_id,
        is_stream,
        relay,
        input_count,
        stream_budget,
    };
    (Box::new(relaying), attempt.peer)
}

/// Returns the count of a call's input. That of a stream is needed while it runs, and is made now,
/// so that the body is not kept as long. A whole answer of text keeps the body, and its memory
/// permit, until the answer has ended, which is soon after its head.
fn count_input(priced: &PricedCall, body_permit: Option<BudgetPermit>) -> InputCount {
    let count = priced.pricing.input_counter(&priced.call);
    if priced.call.stream || !priced.call.is_text() {
        return count().into();
    }
    InputCount::when_needed(move || {
        let _body_permit = body_permit;
        count()
    })
}
