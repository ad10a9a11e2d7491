//! Keeps the body for a video's vendor until the job is submitted. A large one, with an image in
//! it, is kept in the object store instead of the ledger's store.

use bytes::Bytes;

use crate::gateway::api_error::{ApiError, CapacityError};
use crate::gateway::state::Gateway;
use crate::idempotency::INLINE_BYTES_MAX;
use crate::jobs::{Job, VendorBody};

/// Writes a large body to the object store. Returns the job, with a note where the body is, and the
/// body that remains to be stored with the job: empty if it was written, else the whole.
///
/// # Errors
/// The body cannot be written. No job was created and no money was held yet.
pub(super) async fn store_body(
    gateway: &Gateway,
    mut job: Job,
    body: Bytes,
) -> Result<(Job, Bytes), ApiError> {
    if body.len() <= INLINE_BYTES_MAX {
        return Ok((job, body));
    }
    let bytes = body.len() as u64;
    let created_ms = job.created_ms.unsigned_abs();
    let expires_s =
        created_ms.saturating_add(gateway.videos.schedule.hold_lease_ms()).div_ceil(1_000);
    let stored = VendorBody { bytes, expires_s };
    job.external_body = Some(stored);
    if let Err(why) = gateway.body_files.write(&job.body_name(stored), body).await {
        log::warn!(
            event = "video_body_store_failed", job = job.id, error:% = why;
            "video request body not stored"
        );
        return Err(CapacityError::Overloaded.into());
    }
    Ok((job, Bytes::new()))
}

/// Deletes the stored body of a job that was not created after all.
pub(super) async fn delete_body(gateway: &Gateway, job: &Job) {
    let Some((name, bytes)) = job.external_body() else { return };
    if let Err(why) = gateway.body_files.delete(&name, bytes).await {
        log::warn!(
            event = "video_body_delete_failed", job = job.id, error:% = why;
            "video request body delete failed, left to the sweep"
        );
    }
}
