//! Log lines and metrics for jobs that fail or are skipped.

use crate::jobs::video_client::VideoRoute;
use crate::jobs::{Job, JobStage, RunningJob};
use crate::metrics::METRICS;

/// Counts and logs a job that the vendor may bill although no account pays for it.
pub(super) fn log_possible_loss(job: &Job, why: &str) {
    let route = match &job.stage {
        JobStage::Submitting { route, .. } | JobStage::Running(RunningJob { route, .. }) => route,
        _ => "",
    };
    METRICS.lost_attempts.with_label_values(&[job.vendor.as_str(), route]).inc();
    log::error!(
        event = "video_unpaid", job = job.id, route, error = why;
        "video failed after the vendor may have billed it"
    );
}

/// Counts and logs a route that did not accept a job.
pub(super) fn log_skipped(route: &VideoRoute, job: &str, reason: &str) {
    let (vendor, route) = (&route.vendor, &route.name);
    METRICS.fallbacks.with_label_values(&[vendor.as_str(), route, reason]).inc();
    log::warn!(
        event = "upstream_attempt_failed", job, vendor, route, reason;
        "upstream attempt failed"
    );
}

/// Logs a submission of which it is unknown whether the vendor received it.
pub(super) fn log_unanswered(route: &VideoRoute, job: &str, why: &str) {
    log::error!(
        event = "video_submit_unknown", job, route = route.name, error = why;
        "video submission outcome unknown"
    );
}
