//! The index of all jobs, in a slot of its own: when to look at which, and how many are how far.
//!
//! The truth is each job's record, in its account's slot; no command changes both at once. So:
//! - A job is announced before it is placed: a minute later it is looked at, whether whoever placed
//!   it has lived to note it here or not. It is placed within half of that or not at all, so nobody
//!   who looks in vain can drop an entry whose job comes later. The same before a job is made due
//!   sooner than the index knows (a deletion).
//! - What a script did to a record is noted here after it, with the record's version: whichever
//!   note comes last, the newest counts. If it never comes (its node died, the server did not
//!   answer) the index says what it said before, which is sooner: somebody looks, finds that the
//!   job is not due, and notes when it is.
//! - An entry is dropped by who looks at it in vain, but only as it was when it became due. That of
//!   a removed job stays for a while, so that no note that comes late brings the job back. One that
//!   came to nothing is taken back at once by who announced it first, unless it was announced again
//!   since.
//! - Counts follow the notes, and are wrong between a crash and the next look.

use super::super::scripts::{ScriptCall, ScriptSelector};
use super::super::shared_store::RedisStore;
use crate::jobs::JobStatus;
use crate::ledger::{AccountName, Unavailable};

/// An announced job is checked after this time, in ms.
pub(super) const RECHECK_AFTER_MS: u64 = 60_000;
/// An announced change is made within this time, in ms, or not at all. The remaining time allows
/// for clocks that differ between the nodes of a cluster.
const WRITE_DEADLINE_MS: u64 = 30_000;

const DUE_KEY: &str = "tollgate:{:videos}:due";
const VERSIONS_KEY: &str = "tollgate:{:videos}:versions";

/// Where the jobs of a status are. No account's name has a colon, so none shares the hash tag.
pub(super) fn status_key(status: JobStatus) -> String {
    format!("tollgate:{{:videos}}:{}", status.name())
}

/// How the index names a job.
pub(super) fn index_member(account: &AccountName, id: &str) -> String {
    format!("{account} {id}")
}

/// A job whose time to be looked at has come.
pub(super) struct DueEntry {
    pub(super) member: String,
    /// When it became so, as the server writes it.
    due_score: String,
}

impl DueEntry {
    /// The job that it is about; `None` if it is about none.
    pub(super) fn job(&self) -> Option<(AccountName, &str)> {
        let (account, id) = self.member.split_once(' ')?;
        Some((AccountName::parse(account)?, id))
    }
}

/// A job that is about to be placed, or made due sooner.
pub(super) struct IndexUpdate {
    /// When it is too late for that, by the server's clock.
    pub(super) deadline: String,
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
    /// Before a job is placed.
    pub(super) async fn index_add(&self, member: &str) -> Result<IndexUpdate, Unavailable> {
        self.begin_index_update(|s| &s.index.announce, member).await
    }

    /// Before a job is made due sooner.
    pub(super) async fn index_expedite(&self, member: &str) -> Result<IndexUpdate, Unavailable> {
        self.begin_index_update(|s| &s.index.hasten, member).await
    }

    async fn begin_index_update(
        &self,
        pick: ScriptSelector,
        member: &str,
    ) -> Result<IndexUpdate, Unavailable> {
        let mut call = index_call(member);
        call.arg(RECHECK_AFTER_MS).arg(WRITE_DEADLINE_MS);
        let mut words = self.run_script(&call, pick).await?.into_iter();
        let deadline = words.next().unwrap_or_default();
        // Nothing of one that was there before.
        let seen = words.next().filter(|seen| !seen.is_empty());
        let entry = seen.map(|seen| DueEntry { member: member.to_owned(), due_score: seen });
        Ok(IndexUpdate { deadline, entry })
    }

    /// Removes the entry of a job that was announced and then not placed.
    pub(super) async fn cancel_index_add(&self, announced: IndexUpdate) {
        if let Some(entry) = announced.entry {
            self.remove_index_entry(&entry).await;
        }
    }

    /// Notes what a record's script told: after a word the version, when to look next, the status.
    pub(super) async fn update_index(&self, member: &str, reply: &[String]) {
        let mut call = index_call(member);
        reply.iter().skip(1).take(3).for_each(|word| {
            call.arg(word);
        });
        self.run_index_script(&call, |s| &s.index.note).await;
    }

    /// Forgets an entry, if it still is as it was.
    pub(super) async fn remove_index_entry(&self, entry: &DueEntry) {
        let mut call = index_call(&entry.member);
        call.arg(&entry.due_score);
        self.run_index_script(&call, |s| &s.index.drop).await;
    }

    /// Runs a script that updates the index. A failure is only logged: the next check repairs it.
    async fn run_index_script(&self, call: &ScriptCall, pick: ScriptSelector) {
        if let Err(why) = self.run_script(call, pick).await {
            log::warn!(
                event = "video_index_update_failed", why:% = why;
                "video job index update failed"
            );
        }
    }

    /// Entries that are due, the longest due first.
    pub(super) async fn due_entries(&self, limit: usize) -> Result<Vec<DueEntry>, Unavailable> {
        let mut call = ScriptCall::default();
        call.key(DUE_KEY).arg(limit);
        let words = self.run_read_script(&call, |s| &s.index.due).await?;
        let entry = |pair: &[String]| match pair {
            [member, seen] => Some(DueEntry { member: member.clone(), due_score: seen.clone() }),
            _ => None,
        };
        Ok(words.chunks(2).filter_map(entry).collect())
    }
}
