//! The numbers of the states of jobs, as rows have them.

use crate::jobs::JobStatus;

/// The numbers of the states of jobs that have not ended.
pub(super) const OPEN_STATUSES: [i64; 2] = [0, 1];

/// Returns the number that the table has for a status.
pub(super) fn status_number(status: JobStatus) -> i64 {
    match status {
        JobStatus::Queued => 0,
        JobStatus::InProgress => 1,
        JobStatus::Completed => 2,
        JobStatus::Failed => 3,
    }
}
