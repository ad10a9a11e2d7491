//! The beginning of a relay: the vendor's head becomes ours, and an admitted call becomes a relayed
//! one.

use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorType};

use super::head::{build_head, relay_mode, vendor_request_id};
use crate::dialect::relay::Relay;
use crate::gateway::context::{
    AdmittedCall, PricedCall, RelayedCall, RequestContext, RequestStage,
};
use crate::gateway::idempotency;
use crate::gateway::settlement::stream_budget::StreamBudget;
use crate::gateway::settlement::usage_bounds;
use crate::gateway::upstream::outcome;

/// Begins the relay of a vendor's response: the vendor's head becomes ours, of which nothing goes
/// on but the content type.
pub(crate) fn begin_relay(
    session: &mut Session,
    exchange: &mut RequestContext,
    head: &mut ResponseHeader,
) -> pingora::Result<()> {
    let (admitted, attempt) =
        exchange.take_attempt().ok_or_else(|| Error::new(ErrorType::InternalError))?;
    let AdmittedCall { priced, permits, .. } = admitted;
    outcome::record_success(exchange, false);
    exchange.access_log.status = 200;
    exchange.access_log.time_to_first_byte = Some(exchange.arrived.elapsed());
    let vendor_request_id = vendor_request_id(head);
    let ours = build_head(session, exchange, &priced, head);
    let bounds = usage_bounds::bounds_for_call(&priced.call, &priced.pricing);
    let relay = Relay::new(relay_mode(exchange, &priced), priced.call.stream).with_bounds(bounds);
    let PricedCall { call, funding, pricing, .. } = priced;
    let stream_budget = StreamBudget::for_call(&call, &funding, pricing.full_hold);
    exchange.stage = RequestStage::Relaying(Box::new(RelayedCall {
        funding,
        pricing,
        route: attempt.route,
        slot: attempt.slot,
        fallback_depth: exchange.access_log.fallback_depth,
        upload_permit: permits.upload,
        answer_permit: permits.answer,
        vendor_request_id,
        relay,
        stream_budget,
    }));
    *head = ours?;
    idempotency::record_head(exchange, head);
    Ok(())
}
