//! The list of video jobs, for operators.

use std::cmp::Ordering;

use rusqlite::{Connection, params};

use super::super::super::job_records::parse_claimed_job;
use super::status::{OPEN_STATUSES, status_number};
use crate::jobs::{JobCursor, JobFilter, JobListing, ListedJob};
use crate::ledger::AccountName;

/// The jobs of an account after an id. The tables are read in the order of the list, so that
/// nothing is sorted.
const OF_ACCOUNT: &str = "a.name = ?1 AND v.id > ?2";
/// The jobs of all accounts after an account; the id is empty.
const OF_LATER_ACCOUNTS: &str = "a.name > ?1 AND v.id > ?2";
/// At most this many jobs are looked at for a part of a list. Others wait for the reading thread.
const LOOKED_AT_MAX: u32 = 10_000;

/// The place of a row in the list: the account and the id.
type JobPlace = (String, String);

/// A row of the list: its place, the job as JSON, and whether its client deleted it.
type JobRow = (JobPlace, String, bool);

/// The rows of a part of a list while they are collected.
struct CollectedRows {
    /// The number of the status that is listed; `None` for every status.
    status: Option<i64>,
    rows: Vec<JobRow>,
    /// At most one more than are wanted: it tells that there are more.
    most: usize,
    /// How many more rows may be looked at.
    left: u32,
    /// The last row that was looked at, if there may be others.
    stopped_at: Option<JobPlace>,
}

/// Returns a part of the list of jobs.
pub(super) fn list(
    c: &Connection,
    filter: &JobFilter,
    after: Option<&JobCursor>,
    limit: usize,
) -> rusqlite::Result<JobListing> {
    let begin = after.map_or(("", ""), |after| (after.account.as_str(), after.id.as_str()));
    let (status, most) = (filter.status.map(status_number), limit.saturating_add(1));
    let (rows, stopped_at) = (Vec::new(), None);
    let mut found = CollectedRows { status, rows, most, left: LOOKED_AT_MAX, stopped_at };
    if let Some(account) = &filter.account {
        let account = account.as_str();
        match begin.0.cmp(account) {
            Ordering::Less => found.read(c, OF_ACCOUNT, (account, ""))?,
            Ordering::Equal => found.read(c, OF_ACCOUNT, begin)?,
            Ordering::Greater => {}
        }
    } else {
        found.read(c, OF_ACCOUNT, begin)?;
        found.read(c, OF_LATER_ACCOUNTS, (begin.0, ""))?;
    }
    let is_more = found.rows.len() > limit;
    let last = found.rows.iter().take(limit).next_back().filter(|_| is_more);
    let next = last.map(|(place, ..)| place).or(found.stopped_at.as_ref());
    let next = next.and_then(|(name, id)| {
        Some(JobCursor { account: AccountName::parse(name)?, id: id.clone() })
    });
    let listed = |(_, job, deleted): &JobRow| {
        // What cannot be read is logged, and does not keep the others from being listed.
        parse_claimed_job(job).map(|job| ListedJob { job, deleted: *deleted })
    };
    Ok(JobListing { jobs: found.rows.iter().take(limit).filter_map(listed).collect(), next })
}

impl CollectedRows {
    /// Adds the rows after an account and an id, unless there are enough.
    fn read(&mut self, c: &Connection, place: &str, after: (&str, &str)) -> rusqlite::Result<()> {
        let (name, id) = after;
        let sql = format!(
            "SELECT a.name, v.id, v.status, v.deleted, v.job
             FROM account AS a CROSS JOIN video AS v ON v.account = a.id
             WHERE {place} ORDER BY a.name, v.id"
        );
        let mut select = c.prepare_cached(&sql)?;
        let mut read = select.query(params![name, id])?;
        while self.rows.len() < self.most
            && self.stopped_at.is_none()
            && let Some(row) = read.next()?
        {
            let (status, deleted): (i64, bool) = (row.get(2)?, row.get(3)?);
            let is_listed = self.status.is_none_or(|wanted| wanted == status)
                && (!deleted || OPEN_STATUSES.contains(&status));
            self.left = self.left.saturating_sub(1);
            if !is_listed && self.left > 0 {
                continue;
            }
            let place: JobPlace = (row.get(0)?, row.get(1)?);
            if self.left == 0 {
                self.stopped_at = Some(place.clone());
            }
            if is_listed {
                self.rows.push((place, row.get(4)?, deleted));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{JobQueue as _, JobStatus};
    use crate::ledger::Ledger as _;
    use crate::store::sqlite::SqliteStore;

    /// A list of the few jobs that failed read all others of the store, and whoever asked for a
    /// video meanwhile waited.
    #[tokio::test]
    async fn a_list_looked_at_all_jobs_of_a_store() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let store = SqliteStore::open(&path).expect("a store");
        let account = AccountName::parse("acme").expect("a name");
        store.open_account(&account).await.expect("an account");
        let beside = Connection::open(&path).expect("the file");
        let insert = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
             INSERT INTO video (account, id, job, status, due, lease_until, revision, deleted)
             SELECT account.id, printf('video_%06d', n), '{}', 2, 0, 0, 0, 0 FROM account, n";
        beside.execute(insert, [LOOKED_AT_MAX + 50]).expect("jobs");
        for account in [None, Some(account)] {
            let filter = JobFilter { account, status: Some(JobStatus::Failed) };
            let first = store.list_all_jobs(&filter, None, 10).await.expect("a list");
            let end = format!("video_{LOOKED_AT_MAX:06}");
            assert_eq!(first.next.as_ref().map(|next| next.id.clone()), Some(end));
            assert!(first.jobs.is_empty());
            let rest = store.list_all_jobs(&filter, first.next.as_ref(), 10).await.expect("a list");
            assert_eq!(rest, JobListing::default());
        }
    }
}
