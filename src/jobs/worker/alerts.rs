//! Log lines and metrics for jobs that fail or are skipped.

use crate::jobs::video_client::VideoRoute;
use crate::jobs::{Job, JobStage, RunningJob};
use crate::metrics::METRICS;

/// Tells of work that a vendor may bill and nobody pays.
pub(super) fn log_possible_loss(job: &Job, why: &str) {
    let route = match &job.stage {
        JobStage::Submitting { route, .. } | JobStage::Running(RunningJob { route, .. }) => route,
        _ => "",
    };
    METRICS.lost_attempts.with_label_values(&[job.vendor.as_str(), route]).inc();
    log::error!(
        event = "video_unpaid", job = job.id, route, why;
        "video failed after the vendor may have billed it"
    );
}

/// Tells of a route that did not take a job.
pub(super) fn log_skipped(route: &VideoRoute, job: &str, reason: &str) {
    let (vendor, route) = (&route.vendor, &route.name);
    METRICS.fallbacks.with_label_values(&[vendor.as_str(), route, reason]).inc();
    log::warn!(event = "route_blocked", job, vendor, route, reason; "upstream attempt failed");
}

/// Tells that nobody knows whether a vendor has a job.
pub(super) fn log_unanswered(route: &VideoRoute, job: &str, why: &str) {
    log::error!(
        event = "video_submit_unknown", job, route = route.name, why;
        "video submission outcome unknown"
    );
}
