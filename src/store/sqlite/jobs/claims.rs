//! What a worker does with jobs: it claims them, renews and saves its claims, and removes jobs.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::super::super::job_records::parse_claimed_job;
use super::add_ms;
use super::status::status_number;
use crate::clock::unix_ms;
use crate::jobs::{ClaimUpdate, JobClaim, JobStatus};
use crate::ledger::AccountName;

/// The part of a claim that the table needs.
pub(super) struct ClaimRow {
    account: AccountName,
    id: String,
    revision: i64,
    /// Whether the worker knows that the client deleted the job.
    knows_deleted: bool,
}

impl ClaimRow {
    pub(super) fn of(claim: &JobClaim) -> ClaimRow {
        ClaimRow {
            account: claim.job.account.clone(),
            id: claim.job.id.clone(),
            // No revision that was given out is larger than `i64::MAX`.
            revision: i64::try_from(claim.revision).unwrap_or(i64::MAX),
            knows_deleted: claim.deleted,
        }
    }

    /// Returns whether the job is deleted by now, if exactly this save was done before and its
    /// response was lost; `None` if it was not done.
    fn find_same_save(&self, c: &Connection, job: &str) -> rusqlite::Result<Option<bool>> {
        let mut select = c.prepare_cached(
            "SELECT deleted FROM video
             WHERE account = (SELECT id FROM account WHERE name = ?) AND id = ?
             AND saved_from = ? AND job = ?",
        )?;
        let values = params![self.account.as_str(), self.id, self.revision, job];
        select.query_row(values, |row| row.get(0)).optional()
    }

    /// Returns the row of the job, and whether the job is deleted by now; `None` if the claim was
    /// lost.
    fn find_row(&self, c: &Connection) -> rusqlite::Result<Option<(i64, bool)>> {
        let mut select = c.prepare_cached(
            "SELECT row, deleted FROM video
             WHERE account = (SELECT id FROM account WHERE name = ?) AND id = ?
             AND revision = ? AND lease_until > 0",
        )?;
        let values = params![self.account.as_str(), self.id, self.revision];
        select.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()
    }
}

pub(super) fn claim_due(
    c: &Connection,
    lease_ms: u64,
    limit: usize,
) -> rusqlite::Result<Vec<JobClaim>> {
    let now = unix_ms();
    let mut select = c.prepare_cached(
        "SELECT row FROM video WHERE max(due, lease_until) <= ?
         ORDER BY max(due, lease_until), id LIMIT ?",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let due: Vec<i64> =
        select.query_map([now, limit], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut update = c.prepare_cached(
        "UPDATE video SET lease_until = ?, revision = revision + 1, saved_from = NULL WHERE row = ?
         RETURNING job, deleted, revision",
    )?;
    let mut claims = Vec::new();
    for row in due {
        let claimed = update.query_row(params![add_ms(now, lease_ms).max(1), row], |row| {
            Ok((row.get::<_, String>(0)?, row.get(1)?, row.get::<_, i64>(2)?.unsigned_abs()))
        });
        let (job, deleted, revision) = claimed?;
        claims.extend(parse_claimed_job(&job).map(|job| JobClaim { job, deleted, revision }));
    }
    Ok(claims)
}

pub(super) fn renew(c: &Connection, claim: &ClaimRow, lease_ms: u64) -> rusqlite::Result<bool> {
    let Some((row, _)) = claim.find_row(c)? else { return Ok(false) };
    let mut update = c.prepare_cached("UPDATE video SET lease_until = ? WHERE row = ?")?;
    update.execute([add_ms(unix_ms(), lease_ms).max(1), row])?;
    Ok(true)
}

pub(super) fn read_body(c: &Connection, claim: &ClaimRow) -> rusqlite::Result<Option<Bytes>> {
    let mut select = c.prepare_cached(
        "SELECT body FROM video_body JOIN video ON video.row = video_body.video
         WHERE account = (SELECT id FROM account WHERE name = ?) AND id = ?",
    )?;
    let body = select.query_row(params![claim.account.as_str(), claim.id], |row| row.get(0));
    Ok(body.optional()?.map(|body: Vec<u8>| Bytes::from(body)))
}

/// Saves a claim. Returns whether the job is deleted; `None` if the claim was lost.
pub(super) fn save(
    c: &Connection,
    claim: &ClaimRow,
    job: &str,
    status: JobStatus,
    update: ClaimUpdate,
) -> rusqlite::Result<Option<bool>> {
    let Some((row, deleted)) = claim.find_row(c)? else { return claim.find_same_save(c, job) };
    let mut statement = c.prepare_cached(
        "UPDATE video SET job = ?, status = ?, saved_from = revision, revision = revision + 1
         WHERE row = ?",
    )?;
    statement.execute(params![job, status_number(status), row])?;
    if let Some(due_ms) = update.due_ms {
        // A worker that did not know of the deletion chose a time for a video that is still wanted;
        // a deleted job is due at once.
        let due_ms = if deleted && !claim.knows_deleted { 0 } else { due_ms };
        let mut statement =
            c.prepare_cached("UPDATE video SET due = ?, lease_until = 0 WHERE row = ?")?;
        statement.execute([add_ms(unix_ms(), due_ms), row])?;
    }
    if update.forget_body {
        c.prepare_cached("DELETE FROM video_body WHERE video = ?")?.execute([row])?;
    }
    Ok(Some(deleted))
}

pub(super) fn remove(c: &Connection, claim: &ClaimRow) -> rusqlite::Result<bool> {
    let Some((row, _)) = claim.find_row(c)? else { return Ok(false) };
    c.prepare_cached("DELETE FROM video_body WHERE video = ?")?.execute([row])?;
    c.prepare_cached("DELETE FROM video WHERE row = ?")?.execute([row])?;
    Ok(true)
}
