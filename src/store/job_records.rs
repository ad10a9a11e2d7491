//! What both stores share about jobs: their JSON form, and the check for a repeated order.

use crate::jobs::{Job, NewJob};
use crate::ledger::Unavailable;

/// A job as it is kept.
pub(super) fn serialize_job(job: &Job) -> Result<String, Unavailable> {
    serde_json::to_string(job)
        .map_err(|why| Unavailable(format!("{} cannot be kept: {why}", job.id)))
}

/// A job that was kept.
pub(super) fn parse_job(text: &str) -> Result<Job, Unavailable> {
    serde_json::from_str(text).map_err(|why| Unavailable(format!("a job cannot be read: {why}")))
}

/// The job of a claim. One that cannot be parsed does not block the others; it is skipped until its
/// lease runs out.
pub(super) fn parse_claimed_job(text: &str) -> Option<Job> {
    let job = parse_job(text);
    if let Err(why) = &job {
        log::error!(event = "video_job_unreadable", why:% = why; "video job cannot be parsed");
    }
    job.ok()
}

/// Whether an order is the one that a job came from, however far the job is by now.
///
/// # Errors
/// [`Unavailable`] if it is another: no two jobs have the same id.
pub(super) fn check_same_order(
    order: &NewJob,
    job: Job,
    key: Option<&str>,
) -> Result<(), Unavailable> {
    let (progress, stage) = (order.job.progress, order.job.stage.clone());
    if (Job { progress, stage, ..job }) == order.job && key == order.key.as_deref() {
        return Ok(());
    }
    Err(id_already_used(&order.job.id))
}

/// An id that cannot be had.
pub(super) fn id_already_used(id: &str) -> Unavailable {
    Unavailable(format!("{id} was used before, for something else"))
}
