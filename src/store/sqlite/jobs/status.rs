//! The numbers of the states of jobs, as rows have them.

use crate::jobs::JobStatus;

/// Returns the number that the table has for a status.
pub(super) fn status_number(status: JobStatus) -> i64 {
    match status {
        JobStatus::Queued => 0,
        JobStatus::InProgress => 1,
        JobStatus::Completed => 2,
        JobStatus::Failed => 3,
    }
}
