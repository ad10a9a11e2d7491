//! What both stores share about jobs: their JSON form, and the check for a repeated order.

use crate::jobs::{Job, NewJob};
use crate::ledger::Unavailable;

/// Encodes a job as JSON, as both stores keep it.
pub(super) fn serialize_job(job: &Job) -> Result<String, Unavailable> {
    serde_json::to_string(job)
        .map_err(|why| Unavailable(format!("{} cannot be kept: {why}", job.id)))
}

/// Parses the JSON of a job that a store has kept.
pub(super) fn parse_job(text: &str) -> Result<Job, Unavailable> {
    serde_json::from_str(text).map_err(|why| Unavailable(format!("a job cannot be read: {why}")))
}

/// Parses the job of a claim. A job that cannot be parsed does not stop the others: it is logged,
/// and no worker gets it until its lease expires.
pub(super) fn parse_claimed_job(text: &str) -> Option<Job> {
    let job = parse_job(text);
    if let Err(why) = &job {
        log::error!(event = "video_job_unreadable", error:% = why; "video job cannot be parsed");
    }
    job.ok()
}

/// Checks that an order is the one that created `job`, whose progress and stage may have changed
/// since. `key` is the key that the store has with the job.
///
/// # Errors
/// [`Unavailable`] if it is another order: no two jobs may have the same id.
pub(super) fn check_same_order(
    order: &NewJob,
    job: Job,
    key: Option<&str>,
) -> Result<(), Unavailable> {
    let (progress, stage) = (order.job.progress, order.job.stage.clone());
    // A gateway that does not know these fields yet saves the job without them.
    let (requested_model, trace) = (order.job.requested_model.clone(), order.job.trace.clone());
    let same = Job { requested_model, trace, progress, stage, ..job };
    if same == order.job && key == order.key.as_deref() {
        return Ok(());
    }
    Err(id_already_used(&order.job.id))
}

/// Returns the error for an id that is taken by another job or hold.
pub(super) fn id_already_used(id: &str) -> Unavailable {
    Unavailable(format!("{id} was used before, for something else"))
}
