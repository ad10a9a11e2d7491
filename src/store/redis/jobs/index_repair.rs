//! Finds jobs that the index has lost. The index's server may fall back to an older state by
//! itself, for example when a cluster's node dies before its replica has everything.
//!
//! From time to time a call that claims jobs also scans some accounts and schedules a check of
//! their open jobs, which brings the index in line with the records.

use futures_util::future::join_all;

use super::super::keys::AccountKeys;
use super::super::shared_store::RedisStore;
use super::index;
use crate::ledger::{AccountName, Unavailable};

/// About how many accounts one step scans (SSCAN's COUNT).
const ACCOUNTS_PER_STEP: u32 = 1_000;
/// At most this many jobs are scheduled for a check at a time.
const JOBS_BATCH: usize = 200;

impl RedisStore {
    /// Scans the next accounts for lost jobs, unless the last scan was too recent.
    pub(super) async fn repair_index(&self) {
        let Some(cursor) = self.index_repair.next_scan_cursor() else { return };
        match self.repair_index_from(cursor).await {
            Ok(next) => self.index_repair.set_cursor(next),
            Err(why) => log::warn!(
                event = "video_index_scan_failed", error:% = why;
                "video job index scan failed"
            ),
        }
    }

    async fn repair_index_from(&self, cursor: u64) -> Result<u64, Unavailable> {
        let (next, names) = self.scan_accounts(cursor, ACCOUNTS_PER_STEP).await?;
        // If an account cannot be read now, the other accounts are still scanned.
        let open = join_all(names.into_iter().map(|name| self.open_job_members(name))).await;
        let members: Vec<String> = open.into_iter().flatten().flatten().collect();
        for batch in members.chunks(JOBS_BATCH) {
            let scheduled =
                join_all(batch.iter().map(|member| self.schedule_recheck(member))).await;
            scheduled.into_iter().try_for_each(|one| one.map(|_| ()))?;
        }
        Ok(next)
    }

    /// Returns the members of the index that stand for an account's open jobs.
    async fn open_job_members(&self, name: AccountName) -> Result<Vec<String>, Unavailable> {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(AccountKeys::of(&name).videos_open());
        let ids: Vec<String> = self.connection().await?.query(&members).await?;
        Ok(ids.iter().map(|id| index::index_member(&name, id)).collect())
    }
}
