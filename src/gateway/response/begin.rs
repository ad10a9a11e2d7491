//! Begins the relay of a response: builds the head for the client, and turns the admitted call into
//! a relayed one.

use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorType};

use super::head::{build_head, relay_mode, vendor_request_id};
use crate::dialect::relay::Relay;
use crate::dialect::tokens::InputCount;
use crate::gateway::budgets::tenants::BudgetPermit;
use crate::gateway::context::{
    AdmittedCall, CallPermits, PricedCall, RelayedCall, RequestContext, RequestStage,
};
use crate::gateway::idempotency;
use crate::gateway::settlement::stream_budget::StreamBudget;
use crate::gateway::settlement::usage_bounds;
use crate::gateway::upstream::outcome;

/// Begins the relay of a vendor's response, and replaces its head with the head for the client. Of
/// the vendor's headers only the content type is forwarded.
pub(crate) fn begin_relay(
    session: &mut Session,
    ctx: &mut RequestContext,
    head: &mut ResponseHeader,
) -> pingora::Result<()> {
    let (admitted, attempt) =
        ctx.take_attempt().ok_or_else(|| Error::new(ErrorType::InternalError))?;
    let AdmittedCall { priced, permits, .. } = admitted;
    let CallPermits { upload, body, answer } = permits;
    let input_count = count_input(&priced, body);
    outcome::record_success(ctx, false);
    ctx.record_status(200);
    let vendor_request_id = vendor_request_id(head);
    let ours = build_head(session, ctx, &priced, head);
    let bounds = usage_bounds::bounds_for_call(&priced.call, &priced.pricing);
    let relay = Relay::new(relay_mode(ctx, &priced, &input_count), priced.call.stream)
        .with_bounds(bounds)
        .with_tokenizer(priced.pricing.model.tokenizer);
    let PricedCall { call, funding, pricing, output_limit, .. } = priced;
    let is_limited = output_limit.is_some();
    let stream_budget = StreamBudget::for_call(&call, &funding, pricing.full_hold, is_limited);
    ctx.stage = RequestStage::Relaying(Box::new(RelayedCall {
        funding,
        pricing,
        route: attempt.route,
        slot: attempt.slot,
        fallback_depth: ctx.access_log.fallback_depth,
        upload_permit: upload,
        answer_permit: answer,
        vendor_request_id,
        relay,
        input_count,
        stream_budget,
    }));
    *head = ours?;
    idempotency::record_head(ctx, head);
    Ok(())
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
