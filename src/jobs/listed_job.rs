//! Jobs as operators list them: those of one account or of all, also jobs that their clients
//! deleted while a vendor works on them.

use std::fmt;
use std::str::FromStr;

use super::{Job, JobStatus};
use crate::ledger::AccountName;

/// Which jobs are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// The account; `None` for all accounts.
    pub account: Option<AccountName>,
    /// The status; `None` for every status.
    pub status: Option<JobStatus>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJob {
    /// The job.
    pub job: Job,
    /// Whether its client deleted it. Such a job is listed until it has ended.
    pub deleted: bool,
}

/// A part of a list of jobs, which are ordered by account and id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobListing {
    /// The jobs.
    pub jobs: Vec<ListedJob>,
    /// Where the next part begins; `None` if this is the last one. A part with fewer jobs than were
    /// asked for may have a next one: a store looks at a bounded number of jobs.
    pub next: Option<JobCursor>,
}

/// The place of a job in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobCursor {
    /// The account.
    pub account: AccountName,
    /// The id of the job.
    pub id: String,
}

/// A text is not that of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no cursor of a job")]
pub struct JobCursorError;

impl JobFilter {
    /// Whether a job is listed that has this status and that its client deleted, or not.
    #[must_use]
    pub(crate) fn lists(&self, status: JobStatus, deleted: bool) -> bool {
        let is_open = matches!(status, JobStatus::Queued | JobStatus::InProgress);
        self.status.is_none_or(|wanted| wanted == status) && (is_open || !deleted)
    }
}

impl fmt::Display for JobCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No name of an account has a colon.
        write!(f, "{}:{}", self.account, self.id)
    }
}

impl FromStr for JobCursor {
    type Err = JobCursorError;

    fn from_str(text: &str) -> Result<JobCursor, JobCursorError> {
        let (account, id) = text.split_once(':').ok_or(JobCursorError)?;
        let account = AccountName::parse(account).ok_or(JobCursorError)?;
        Ok(JobCursor { account, id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_job_is_listed_until_it_has_ended() {
        let all = JobFilter::default();
        let failed = JobFilter { status: Some(JobStatus::Failed), ..JobFilter::default() };
        for (status, kept, deleted, as_failed) in [
            (JobStatus::Queued, true, true, false),
            (JobStatus::InProgress, true, true, false),
            (JobStatus::Completed, true, false, false),
            (JobStatus::Failed, true, false, true),
        ] {
            assert_eq!(all.lists(status, false), kept, "{status:?}");
            assert_eq!(all.lists(status, true), deleted, "{status:?}");
            assert_eq!(failed.lists(status, false), as_failed, "{status:?}");
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let account = AccountName::parse("acme").expect("a name");
        let cursor = JobCursor { account, id: "video_1".to_owned() };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for text in ["", "video_1", ":video_1", "a b:video_1"] {
            assert_eq!(text.parse::<JobCursor>(), Err(JobCursorError), "{text}");
        }
    }
}
