//! The list of video jobs, for operators.

use std::cmp::Ordering;

use rusqlite::{Connection, params};

use super::super::super::job_records::parse_claimed_job;
use super::status::status_number;
use crate::jobs::{JobCursor, JobFilter, JobListing, ListedJob};
use crate::ledger::AccountName;

/// The jobs of an account after an id. The tables are read in the order of the list, so that
/// nothing is sorted.
const OF_ACCOUNT: &str = "a.name = ?3 AND v.id > ?4";
/// The jobs of all accounts after an account; the id is empty.
const OF_LATER_ACCOUNTS: &str = "a.name > ?3 AND v.id > ?4";

/// A row of the list: the account, the id, the job as JSON, and whether its client deleted it.
type JobRow = (String, String, String, bool);

/// Returns a part of the list of jobs.
pub(super) fn list(
    c: &Connection,
    filter: &JobFilter,
    after: Option<&JobCursor>,
    limit: usize,
) -> rusqlite::Result<JobListing> {
    let begin = after.map_or(("", ""), |after| (after.account.as_str(), after.id.as_str()));
    let asked = limit.saturating_add(1);
    let rows = if let Some(account) = &filter.account {
        let account = account.as_str();
        match begin.0.cmp(account) {
            Ordering::Less => read_rows(c, OF_ACCOUNT, filter, (account, ""), asked)?,
            Ordering::Equal => read_rows(c, OF_ACCOUNT, filter, begin, asked)?,
            Ordering::Greater => Vec::new(),
        }
    } else {
        let mut rows = read_rows(c, OF_ACCOUNT, filter, begin, asked)?;
        let left = asked.saturating_sub(rows.len());
        rows.extend(read_rows(c, OF_LATER_ACCOUNTS, filter, (begin.0, ""), left)?);
        rows
    };
    let is_more = rows.len() > limit;
    let last = rows.iter().take(limit).next_back().filter(|_| is_more);
    let next = last.and_then(|(name, id, ..)| {
        Some(JobCursor { account: AccountName::parse(name)?, id: id.clone() })
    });
    let listed = |(.., job, deleted): &JobRow| {
        // What cannot be read is logged, and does not keep the others from being listed.
        parse_claimed_job(job).map(|job| ListedJob { job, deleted: *deleted })
    };
    Ok(JobListing { jobs: rows.iter().take(limit).filter_map(listed).collect(), next })
}

/// Reads rows of the list, which begins after an account and an id.
fn read_rows(
    c: &Connection,
    place: &str,
    filter: &JobFilter,
    after: (&str, &str),
    limit: usize,
) -> rusqlite::Result<Vec<JobRow>> {
    let (name, id) = after;
    let sql = format!(
        "SELECT a.name, v.id, v.job, v.deleted
         FROM account AS a CROSS JOIN video AS v ON v.account = a.id
         WHERE {place} AND (?1 IS NULL OR v.status = ?1) AND (v.deleted = 0 OR v.status < 2)
         ORDER BY a.name, v.id LIMIT ?2"
    );
    let mut select = c.prepare_cached(&sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let values = params![filter.status.map(status_number), limit, name, id];
    let rows =
        select.query_map(values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    rows.collect()
}
