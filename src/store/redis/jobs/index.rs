//! The index of all jobs, in its own slot: when each job is to be checked next, and how many jobs
//! have which status.
//!
//! The truth about a job is its record in its account's slot. No command can change the record and
//! the index together. Therefore:
//! - An index entry is added before its job is placed. A minute later (`RECHECK_AFTER_MS`) the
//!   entry is checked, even if the process that placed the job died before it could update the
//!   index. The job is placed within half of that time (`WRITE_DEADLINE_MS`) or not at all, so a
//!   check that finds no job cannot drop an entry whose job is placed later. In the same way a
//!   check is scheduled before a job is made due sooner than the index shows (by a deletion).
//! - After a script has changed a record, the index is updated with the record's version. Updates
//!   may arrive in any order: the one with the newest version counts. If an update never arrives
//!   (the process died, or the server did not answer), the index keeps its earlier check time. Then
//!   a worker checks the job, finds that it is not due, and updates the index.
//! - A check that finds no job drops the entry, but only if the entry has not changed since the
//!   check read it. The entry of a removed job stays for a while, so that a late update does not
//!   bring the job back. If a job was not placed after all, the process that added its entry
//!   removes the entry at once, unless another process has added it again since.
//! - The counts by status follow the updates, so they are wrong between a crash and the next check.

use super::super::scripts::{ScriptCall, ScriptSelector};
use super::super::shared_store::RedisStore;
use crate::jobs::JobStatus;
use crate::ledger::{AccountName, Unavailable};

/// A job whose entry was added, or whose check was scheduled, is checked after this time, in ms.
pub(super) const RECHECK_AFTER_MS: u64 = 60_000;
/// The placing or change of a job for which a check was scheduled is made within this time, in ms,
/// or not at all. The rest of `RECHECK_AFTER_MS` allows for clocks that differ between the nodes of
/// a cluster.
const WRITE_DEADLINE_MS: u64 = 30_000;

const DUE_KEY: &str = "tollgate:{:videos}:due";
const VERSIONS_KEY: &str = "tollgate:{:videos}:versions";

/// Returns the key of the set of jobs with this status. No account's name contains a colon, so no
/// account shares this hash tag.
pub(super) fn status_key(status: JobStatus) -> String {
    format!("tollgate:{{:videos}}:{}", status.name())
}

/// Returns the member of the index that stands for a job.
pub(super) fn index_member(account: &AccountName, id: &str) -> String {
    format!("{account} {id}")
}

/// An index entry that is due: its job is to be checked now.
pub(super) struct DueEntry {
    pub(super) member: String,
    /// The time of the check, in unix ms, as the server writes it.
    due_score: String,
}

impl DueEntry {
    /// Returns the account and the id of the job; `None` if the member names no job.
    pub(super) fn job(&self) -> Option<(AccountName, &str)> {
        let (account, id) = self.member.split_once(' ')?;
        Some((AccountName::parse(account)?, id))
    }
}

/// A scheduled check of a job that is about to be placed or made due sooner.
pub(super) struct IndexUpdate {
    /// The time in unix ms, by the server's clock, after which the job must not be changed any
    /// more.
    pub(super) deadline: String,
    /// The entry, if it was added for this job and may be removed again; else `None`.
    entry: Option<DueEntry>,
}

fn index_call(member: &str) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(DUE_KEY).key(VERSIONS_KEY);
    for status in JobStatus::ALL {
        call.key(status_key(status));
    }
    call.arg(member);
    call
}

impl RedisStore {
    /// Adds the entry of a job that is about to be placed.
    pub(super) async fn index_add(&self, member: &str) -> Result<IndexUpdate, Unavailable> {
        self.begin_index_update(|s| &s.index.add, member).await
    }

    /// Schedules a check of a job that is about to be made due sooner.
    pub(super) async fn schedule_recheck(&self, member: &str) -> Result<IndexUpdate, Unavailable> {
        self.begin_index_update(|s| &s.index.schedule_recheck, member).await
    }

    async fn begin_index_update(
        &self,
        pick: ScriptSelector,
        member: &str,
    ) -> Result<IndexUpdate, Unavailable> {
        let mut call = index_call(member);
        call.arg(RECHECK_AFTER_MS).arg(WRITE_DEADLINE_MS);
        let mut reply = self.run_script(&call, pick).await?.into_iter();
        let deadline = reply.next().unwrap_or_default();
        // The time is empty if the entry existed before; then this process must not remove it.
        let seen = reply.next().filter(|seen| !seen.is_empty());
        let entry = seen.map(|seen| DueEntry { member: member.to_owned(), due_score: seen });
        Ok(IndexUpdate { deadline, entry })
    }

    /// Removes the entry of a job that was not placed after all, if this process added the entry.
    pub(super) async fn cancel_index_add(&self, scheduled: IndexUpdate) {
        if let Some(entry) = scheduled.entry {
            self.remove_index_entry(&entry).await;
        }
    }

    /// Updates the index with the reply of a script on a job's record. The reply begins with the
    /// result, the record's version, the time of the next check and the status.
    pub(super) async fn update_index(&self, member: &str, reply: &[String]) {
        let mut call = index_call(member);
        reply.iter().skip(1).take(3).for_each(|part| {
            call.arg(part);
        });
        self.run_index_script(&call, |s| &s.index.update).await;
    }

    /// Takes jobs whose records were deleted out of the index, as after their removal. What fails
    /// is repaired by the check of the entry, which finds no job.
    pub(in crate::store::redis) async fn forget_jobs(&self, account: &AccountName, ids: &[String]) {
        let Ok(now) = self.server_time().await else { return };
        // Later than any version of the record, which follows the clock in µs.
        let version = now.saturating_add(1).saturating_mul(1_000).to_string();
        let check_at = now.saturating_add_unsigned(RECHECK_AFTER_MS).to_string();
        for id in ids {
            let removed = "removed".to_owned();
            let reply = [removed.clone(), version.clone(), check_at.clone(), removed];
            self.update_index(&index_member(account, id), &reply).await;
        }
    }

    /// Removes an entry, unless it has changed since it was read.
    pub(super) async fn remove_index_entry(&self, entry: &DueEntry) {
        let mut call = index_call(&entry.member);
        call.arg(&entry.due_score);
        self.run_index_script(&call, |s| &s.index.remove).await;
    }

    /// Runs a script that updates the index. A failure is only logged: the next check repairs it.
    async fn run_index_script(&self, call: &ScriptCall, pick: ScriptSelector) {
        if let Err(why) = self.run_script(call, pick).await {
            log::warn!(
                event = "video_index_update_failed", error:% = why;
                "video job index update failed"
            );
        }
    }

    /// Returns at most `limit` entries that are due, the longest due first.
    pub(super) async fn due_entries(&self, limit: usize) -> Result<Vec<DueEntry>, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(DUE_KEY).arg(limit);
        let reply = self.run_read_script(&call, |s| &s.index.due).await?;
        let entry = |pair: &[String]| match pair {
            [member, seen] => Some(DueEntry { member: member.clone(), due_score: seen.clone() }),
            _ => None,
        };
        Ok(reply.chunks(2).filter_map(entry).collect())
    }
}
