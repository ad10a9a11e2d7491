//! The list of video jobs, for operators.

use rusqlite::{Connection, params};

use super::super::super::job_records::parse_claimed_job;
use super::status_number;
use crate::jobs::{JobCursor, JobFilter, JobListing, ListedJob};
use crate::ledger::AccountName;

/// A row of the list: the account, the id, the job as JSON, and whether its client deleted it.
type JobRow = (String, String, String, bool);

/// Returns a part of the list of jobs.
pub(super) fn list(
    c: &Connection,
    filter: &JobFilter,
    after: Option<&JobCursor>,
    limit: usize,
) -> rusqlite::Result<JobListing> {
    // The order of the tables is fixed, so that no row is sorted.
    let mut select = c.prepare_cached(
        "SELECT a.name, v.id, v.job, v.deleted
         FROM account AS a CROSS JOIN video AS v ON v.account = a.id
         WHERE (?1 IS NULL OR a.name = ?1) AND (?2 IS NULL OR v.status = ?2)
             AND (v.deleted = 0 OR v.status < 2)
             AND a.name >= ?3 AND (a.name, v.id) > (?3, ?4)
         ORDER BY a.name, v.id LIMIT ?5",
    )?;
    let asked = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
    let account = filter.account.as_ref().map(AccountName::as_str);
    let (name, id) = match after {
        Some(JobCursor { account, id }) => (account.as_str(), &**id),
        // No account has an empty name.
        None => ("", ""),
    };
    let values = params![account, filter.status.map(status_number), name, id, asked];
    let rows = select
        .query_map(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<Vec<JobRow>>>()?;
    let is_more = rows.len() > limit;
    let last = rows.iter().take(limit).last().filter(|_| is_more);
    let next = last.and_then(|(name, id, ..)| {
        Some(JobCursor { account: AccountName::parse(name)?, id: id.clone() })
    });
    let listed = |(.., job, deleted): &JobRow| {
        // What cannot be read is logged, and does not keep the others from being listed.
        parse_claimed_job(job).map(|job| ListedJob { job, deleted: *deleted })
    };
    Ok(JobListing { jobs: rows.iter().take(limit).filter_map(listed).collect(), next })
}
