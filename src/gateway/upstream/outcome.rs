//! Records the outcome of an attempt in the health of its route, the metrics and the log.

use crate::gateway::api_error::AttemptFailure;
use crate::gateway::call_trace;
use crate::gateway::context::{AdmittedCall, BodyTransform, RequestContext, RouteQueue};
use crate::gateway::upstream::failure;
use crate::gateway::upstream::health::HealthFailure;
use crate::gateway::upstream::routes::VendorRoute;
use crate::metrics::METRICS;

/// Records that the route of an attempt failed, so that the next one can be tried.
pub(crate) fn record_route_failure(
    ctx: &mut RequestContext,
    admitted: &mut AdmittedCall,
    route: &VendorRoute,
    reason: &'static str,
    failure: &AttemptFailure,
) {
    let AdmittedCall { priced, routes, .. } = admitted;
    // A body that is passed through unchanged may ask for something that our account at the vendor
    // lacks, or make the vendor repeat words that count as a failure of the route. Such a failure
    // says nothing about the calls of other accounts.
    let unpaid_or_denied = matches!(failure.status, Some(402 | 403));
    let is_caused_by_client =
        unpaid_or_denied && matches!(priced.body_transform, BodyTransform::PassThrough);
    if !is_caused_by_client {
        let health_failure =
            HealthFailure { reason, is_lost: false, retry_after: failure.retry_after };
        route.record_failure(ctx.access_log.account.as_ref(), health_failure);
    }
    let labels = [route.vendor.as_str(), route.name.as_str()];
    METRICS.fallbacks.with_label_values(&[labels[0], labels[1], reason]).inc();
    if failure.may_be_billed {
        METRICS.lost_attempts.with_label_values(&labels).inc();
    }
    let (vendor, name) = (&route.vendor, &route.name);
    log::warn!(
        event = "upstream_attempt_failed", request_id = ctx.id, vendor, route = name, reason;
        "upstream attempt failed"
    );
    call_trace::end_attempt(ctx, Some(reason));
    routes.failed.push(route.preference);
    let was_billable_before = routes.last_failure.as_ref().is_some_and(|last| last.may_be_billed);
    routes.last_failure = Some(AttemptFailure {
        may_be_billed: failure.may_be_billed || was_billable_before,
        ..failure.clone()
    });
}

/// Records that a route is at its limit of calls in flight, so that the next one can be tried.
pub(crate) fn record_route_full(routes: &mut RouteQueue, route: &VendorRoute) {
    METRICS.fallbacks.with_label_values(&[&route.vendor, &route.name, "full"]).inc();
    routes.failed.push(route.preference);
    routes.skipped_full_route = true;
}

/// Records that a route's host name has no address, so that the next route can be tried.
pub(crate) fn record_unresolved(routes: &mut RouteQueue, route: &VendorRoute) {
    METRICS.fallbacks.with_label_values(&[&route.vendor, &route.name, failure::DNS]).inc();
    routes.failed.push(route.preference);
}

/// Records that an attempt was given up after the vendor may have begun work that it bills.
pub(crate) fn record_lost_attempt(route: &VendorRoute) {
    METRICS.lost_attempts.with_label_values(&[&route.vendor, &route.name]).inc();
}

/// Records that a reused connection broke after the request was sent on it, and that the request is
/// sent again: the vendor may do the work twice.
pub(crate) fn record_resend(routes: &mut RouteQueue, route: &VendorRoute) {
    record_lost_attempt(route);
    let status = routes.last_failure.as_ref().and_then(|failure| failure.status);
    routes.last_failure = Some(AttemptFailure { status, retry_after: None, may_be_billed: true });
}

/// Records that the response of a route was lost after the vendor may have done the work. This call
/// tries no further route, but the next calls may try other routes first.
pub(crate) fn record_lost_answer(
    ctx: &mut RequestContext,
    route: &VendorRoute,
    reason: &'static str,
) {
    record_lost_attempt(route);
    call_trace::end_attempt(ctx, Some(reason));
    let health_failure = HealthFailure { reason, is_lost: true, retry_after: None };
    route.record_failure(ctx.access_log.account.as_ref(), health_failure);
    let (vendor, name) = (&route.vendor, &route.name);
    log::warn!(
        event = "upstream_response_lost", request_id = ctx.id, vendor, route = name, reason;
        "upstream response lost"
    );
}

/// Records that the vendor answered: with the whole response if `is_whole`, otherwise with its
/// head.
pub(crate) fn record_success(ctx: &RequestContext, route: &VendorRoute, is_whole: bool) {
    route.health.record_success(ctx.access_log.account.as_ref(), is_whole, ctx.arrived_ms);
}
