//! What came of an attempt: the health of its route, the metrics, the log.

use crate::gateway::api_error::AttemptFailure;
use crate::gateway::context::{
    AdmittedCall, BodyTransform, RequestContext, RequestStage, RouteAttempt, RouteQueue,
};
use crate::gateway::upstream::failure;
use crate::gateway::upstream::health::HealthFailure;
use crate::gateway::upstream::routes::VendorRoute;
use crate::metrics::METRICS;

/// Notes that the route being tried failed, so that the next one gets its turn.
pub(crate) fn record_route_failure(
    ctx: &mut RequestContext,
    reason: &'static str,
    block: &AttemptFailure,
) {
    let RequestContext { id, stage, access_log, .. } = ctx;
    let RequestStage::Admitted(admitted) = stage else { return };
    let AdmittedCall { priced, routes, attempt, .. } = &mut **admitted;
    let Some(RouteAttempt { route, .. }) = attempt.take() else { return };
    // A body that goes as it came may ask for what an account lacks, or have the vendor repeat
    // words that block; that says nothing of others' calls.
    let unpaid_or_denied = matches!(block.status, Some(402 | 403));
    let clients_doing =
        unpaid_or_denied && matches!(priced.body_transform, BodyTransform::PassThrough);
    if !clients_doing {
        let failure = HealthFailure { reason, is_lost: false, retry_after: block.retry_after };
        route.record_failure(access_log.account.as_ref(), failure);
    }
    let labels = [route.vendor.as_str(), route.name.as_str()];
    METRICS.fallbacks.with_label_values(&[labels[0], labels[1], reason]).inc();
    if block.may_be_billed {
        METRICS.lost_attempts.with_label_values(&labels).inc();
    }
    let (vendor, name) = (&route.vendor, &route.name);
    log::warn!(
        event = "route_blocked", request_id = id.as_str(), vendor, route = name, reason;
        "upstream attempt failed"
    );
    routes.failed.push(route.preference);
    let before = routes.last_failure.as_ref().is_some_and(|b| b.may_be_billed);
    routes.last_failure =
        Some(AttemptFailure { may_be_billed: block.may_be_billed || before, ..block.clone() });
}

/// Notes that a route has as many calls as it may, so that the next one gets its turn.
pub(crate) fn record_route_full(routes: &mut RouteQueue, route: &VendorRoute) {
    METRICS.fallbacks.with_label_values(&[&route.vendor, &route.name, "full"]).inc();
    routes.failed.push(route.preference);
    routes.skipped_full_route = true;
}

/// Notes that a route's name has no address, so that the next one gets its turn.
pub(crate) fn record_unresolved(routes: &mut RouteQueue, route: &VendorRoute) {
    METRICS.fallbacks.with_label_values(&[&route.vendor, &route.name, failure::DNS]).inc();
    routes.failed.push(route.preference);
}

/// Notes that an attempt was given up after the vendor may have begun paid work.
pub(crate) fn record_lost_attempt(ctx: &mut RequestContext) {
    if let Some(route) = &ctx.access_log.route {
        METRICS.lost_attempts.with_label_values(&[&route.vendor, &route.name]).inc();
    }
}

/// Notes that a kept connection broke after it had taken the call, which goes out once more: the
/// vendor may do the work twice.
pub(crate) fn record_resend(ctx: &mut RequestContext) {
    record_lost_attempt(ctx);
    let Some(routes) = ctx.admitted().map(|admitted| &mut admitted.routes) else { return };
    let status = routes.last_failure.as_ref().and_then(|block| block.status);
    routes.last_failure = Some(AttemptFailure { status, retry_after: None, may_be_billed: true });
}

/// Notes that the answer of the route being tried is lost after the vendor may have worked.
/// Nothing is tried after it in this call, but the next calls may find better routes first.
pub(crate) fn record_lost_answer(ctx: &mut RequestContext, reason: &'static str) {
    record_lost_attempt(ctx);
    let Some(route) = &ctx.access_log.route else { return };
    let failure = HealthFailure { reason, is_lost: true, retry_after: None };
    route.record_failure(ctx.access_log.account.as_ref(), failure);
    let (vendor, name) = (&route.vendor, &route.name);
    log::warn!(
        event = "upstream_response_lost", request_id = ctx.id, vendor, route = name, reason;
        "upstream response lost"
    );
}

/// Notes that an answer came; `is_whole` tells whether to its end.
pub(crate) fn record_success(ctx: &RequestContext, is_whole: bool) {
    if let Some(route) = &ctx.access_log.route {
        let account = ctx.access_log.account.as_ref();
        route.health.record_success(account, is_whole, ctx.arrived_ms);
    }
}
