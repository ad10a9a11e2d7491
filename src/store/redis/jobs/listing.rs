//! The list of video jobs, for operators. Each step reads a bounded number of records.

use super::super::super::job_records::parse_claimed_job;
use super::super::keys::AccountKeys;
use super::super::shared_store::RedisStore;
use super::super::sweep::ACCOUNTS_PER_SCAN;
use crate::jobs::{JobCursor, JobFilter, JobListing, JobStatus, ListedJob};
use crate::ledger::{AccountName, Ledger, Unavailable};

/// The records of about this many jobs are read at a time.
const JOBS_AT_A_TIME: usize = 256;
/// At most about this many jobs are looked at for a part of a list.
const LOOKED_AT_MAX: usize = 10_000;

/// A text that comes after the ids of all jobs.
const AFTER_ALL_IDS: &str = "~";

/// The jobs of a part of a list while they are collected.
struct CollectedJobs<'a> {
    filter: &'a JobFilter,
    jobs: Vec<ListedJob>,
    /// At most one more than are wanted: it tells that there are more.
    most: usize,
    looked_at: usize,
}

impl CollectedJobs<'_> {
    /// Adds a job of a record, if there is room and it is listed.
    fn add(&mut self, job: Option<&String>, deleted: bool) {
        // What cannot be read is logged, and does not keep the others from being listed.
        let Some(job) = job.and_then(|job| parse_claimed_job(job)) else { return };
        if self.jobs.len() < self.most && self.filter.lists(job.status(), deleted) {
            self.jobs.push(ListedJob { job, deleted });
        }
    }

    fn is_full(&self) -> bool {
        self.jobs.len() >= self.most
    }

    fn into_listing(mut self, stopped_at: Option<JobCursor>) -> JobListing {
        let is_more = self.is_full();
        if is_more {
            self.jobs.pop();
        }
        let last = self.jobs.last().filter(|_| is_more).map(|listed| JobCursor {
            account: listed.job.account.clone(),
            id: listed.job.id.clone(),
        });
        JobListing { jobs: self.jobs, next: last.or(stopped_at) }
    }
}

impl RedisStore {
    /// Returns a part of the list of jobs.
    pub(super) async fn read_jobs(
        &self,
        filter: &JobFilter,
        after: Option<&JobCursor>,
        limit: usize,
    ) -> Result<JobListing, Unavailable> {
        let most = limit.saturating_add(1);
        let mut found = CollectedJobs { filter, jobs: Vec::new(), most, looked_at: 0 };
        if let Some(account) = &filter.account {
            let stopped_at = self.read_jobs_of(account, after, &mut found).await?;
            return Ok(found.into_listing(stopped_at));
        }
        let mut names = self.list_accounts().await?;
        names.retain(|name| after.is_none_or(|after| *name >= after.account));
        for names in names.chunks(ACCOUNTS_PER_SCAN as usize) {
            let commands = names.iter().map(|name| {
                let keys = AccountKeys::of(name);
                redis::cmd("EXISTS").arg(keys.videos()).arg(keys.videos_open()).to_owned()
            });
            let counts: Vec<u64> = self.connection().await?.query_each(commands.collect()).await?;
            for (name, _) in names.iter().zip(counts).filter(|(_, count)| *count > 0) {
                let stopped_at = self.read_jobs_of(name, after, &mut found).await?;
                if found.is_full() || stopped_at.is_some() {
                    return Ok(found.into_listing(stopped_at));
                }
                if found.looked_at >= LOOKED_AT_MAX {
                    let id = AFTER_ALL_IDS.to_owned();
                    return Ok(found.into_listing(Some(JobCursor { account: name.clone(), id })));
                }
            }
        }
        Ok(found.into_listing(None))
    }

    /// Adds the jobs of an account that come after a cursor, until there are enough. Returns where
    /// it has stopped because it has looked at too many.
    async fn read_jobs_of(
        &self,
        name: &AccountName,
        after: Option<&JobCursor>,
        found: &mut CollectedJobs<'_>,
    ) -> Result<Option<JobCursor>, Unavailable> {
        let begin = JobCursor { account: name.clone(), id: String::new() };
        let mut cursor = after.map_or(&begin, |after| after.max(&begin)).clone();
        if cursor.account != *name {
            return Ok(None);
        }
        let keys = AccountKeys::of(name);
        // An account has few open jobs. The list lacks those that their client deleted.
        let mut open: Vec<String> =
            self.connection().await?.query(redis::cmd("SMEMBERS").arg(keys.videos_open())).await?;
        open.sort_unstable();
        let wants_open =
            matches!(found.filter.status, Some(JobStatus::Queued | JobStatus::InProgress));
        loop {
            let mut ids: Vec<String> = Vec::new();
            if !wants_open {
                let mut range = redis::cmd("ZRANGEBYLEX");
                range.arg(keys.videos()).arg(format!("({}", cursor.id)).arg("+");
                range.arg("LIMIT").arg(0).arg(JOBS_AT_A_TIME);
                ids = self.connection().await?.query(&range).await?;
            }
            let end = ids.last().filter(|_| ids.len() >= JOBS_AT_A_TIME).cloned();
            let is_here =
                |id: &&String| **id > cursor.id && end.as_ref().is_none_or(|end| **id <= *end);
            ids.extend(open.iter().filter(is_here).cloned());
            ids.sort_unstable();
            ids.dedup();
            self.add_jobs(&keys, &ids, found).await?;
            let Some(end) = end else { return Ok(None) };
            cursor.id = end;
            if found.is_full() {
                return Ok(None);
            }
            if found.looked_at >= LOOKED_AT_MAX {
                return Ok(Some(cursor));
            }
        }
    }

    async fn add_jobs(
        &self,
        keys: &AccountKeys,
        ids: &[String],
        found: &mut CollectedJobs<'_>,
    ) -> Result<(), Unavailable> {
        let commands = ids.iter().map(|id| {
            let mut get = redis::cmd("HMGET");
            get.arg(keys.video(id)).arg(&["job", "deleted"]);
            get
        });
        let records: Vec<(Option<String>, Option<bool>)> =
            self.connection().await?.query_each(commands.collect()).await?;
        for (job, deleted) in &records {
            found.add(job.as_ref(), deleted.unwrap_or_default());
        }
        found.looked_at = found.looked_at.saturating_add(ids.len());
        Ok(())
    }
}
