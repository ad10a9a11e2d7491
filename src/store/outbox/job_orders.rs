//! Records of video jobs in the outbox of a server that may lose writes. A job is recorded when it
//! is placed, before its client gets the response, and again when a vendor has accepted it, before
//! the server is told. A run of the server that lacks a job gets it again from these records.
//!
//! A record for which a client waits is synced a moment later, as hold ends are. The record that a
//! vendor has accepted a job is synced before anything else is done.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_writer::SegmentWriter;
use super::{record, segment_files};
use crate::jobs::{ClaimUpdate, Job, JobClaim, NewJob};
use crate::ledger::AccountName;
use crate::money::Money;
use crate::money::price::Quote;

/// The records of video jobs that this process has written.
pub(super) struct JobOrders(Mutex<JobOrdersState>);

struct JobOrdersState {
    writer: SegmentWriter,
    /// Claims of jobs that a vendor has accepted, while the server has not saved that yet. By job
    /// id: the revision of the claim, and the number of the file that has its record.
    unsaved: HashMap<String, (u64, u64)>,
}

/// A record of a video job, which is the content of one line.
#[derive(Debug, Clone)]
pub(in crate::store) enum OrderRecord {
    /// A job was placed.
    Placed(Box<NewJob>),
    /// A vendor has accepted the job, and the claim is to be saved in the server.
    Accepted(Box<JobClaim>, ClaimUpdate),
    /// The client has deleted the job: the account and the id of the job.
    Deleted(AccountName, String),
}

/// The JSON form of an [`OrderRecord`].
#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum OrderLine<'a> {
    Placed {
        job: Cow<'a, Job>,
        body: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Cow<'a, str>>,
        wanted: Money,
        least: Money,
        lease_ms: u64,
    },
    #[serde(rename = "taken")]
    Accepted {
        job: Cow<'a, Job>,
        deleted: bool,
        revision: u64,
        due_ms: Option<u64>,
    },
    Deleted {
        account: Cow<'a, str>,
        id: Cow<'a, str>,
    },
}

impl Default for JobOrders {
    fn default() -> JobOrders {
        let (writer, unsaved) = (SegmentWriter::new(SegmentKind::Jobs), HashMap::new());
        JobOrders(Mutex::new(JobOrdersState { writer, unsaved }))
    }
}

impl JobOrders {
    /// Records that a job was placed. Returns the file, which the caller has to have synced.
    ///
    /// # Errors
    /// The record could not be written.
    pub(super) fn record_placed(
        &self,
        order: &NewJob,
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<Arc<File>> {
        let written = OrderLine::Placed {
            job: Cow::Borrowed(&order.job),
            body: std::str::from_utf8(&order.body).map_err(io::Error::other)?.into(),
            key: order.key.as_deref().map(Cow::Borrowed),
            wanted: order.quote.wanted,
            least: order.quote.least,
            lease_ms: order.lease_ms,
        };
        let line = record::encode_line(&written, None);
        self.lock_state().writer.write(&line, dir).map(|(_, file)| file)
    }

    /// Records that a vendor has accepted a job, and blocks until the record is on disk. The same
    /// claim is recorded only once.
    ///
    /// # Errors
    /// The record could not be written or synced.
    pub(super) fn record_accepted(
        &self,
        claim: &JobClaim,
        update: ClaimUpdate,
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<()> {
        let JobClaim { job, deleted, revision } = claim;
        let mut state = self.lock_state();
        if state.unsaved.get(&job.id).is_some_and(|(known, _)| known == revision) {
            return Ok(());
        }
        let (deleted, revision, due_ms) = (*deleted, *revision, update.due_ms);
        let written = OrderLine::Accepted { job: Cow::Borrowed(job), deleted, revision, due_ms };
        let (number, file) = state.writer.write(&record::encode_line(&written, None), dir)?;
        state.unsaved.insert(job.id.clone(), (revision, number));
        drop(state);
        file.sync_data()
    }

    /// Records that a client has deleted a job. Returns the file, which the caller has to have
    /// synced.
    ///
    /// # Errors
    /// The record could not be written.
    pub(super) fn record_deleted(
        &self,
        account: &AccountName,
        id: &str,
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<Arc<File>> {
        let written = OrderLine::Deleted { account: account.as_str().into(), id: id.into() };
        let line = record::encode_line(&written, None);
        self.lock_state().writer.write(&line, dir).map(|(_, file)| file)
    }

    /// Forgets the unsaved claim of a job: the server has saved that a vendor accepted the job, or
    /// another worker has claimed it. The file with the record is then no longer needed for it.
    pub(super) fn mark_saved(&self, job: &str) {
        self.lock_state().unsaved.remove(job);
    }

    /// Does the periodic work: ends a file that is old enough and removes expired ones. Files are
    /// created and removed outside the lock.
    pub(super) fn maintain(&self, dir: &SegmentDir, is_retention_over: impl Fn(Instant) -> bool) {
        let spare_number = self.lock_state().writer.missing_spare_number();
        let spare = spare_number
            .map(|number| segment_files::create_segment(dir, SegmentKind::Jobs, number, None));
        let mut state = self.lock_state();
        let needed: HashSet<u64> = state.unsaved.values().map(|(_, number)| *number).collect();
        let rest =
            state.writer.plan_cleanup(spare.and_then(Result::ok), &needed, is_retention_over);
        drop(state);
        rest.finish(dir);
    }

    /// Starts the retention of all records anew, since the new run of the server may lose the jobs
    /// again.
    pub(super) fn restart_retention(&self) {
        self.lock_state().writer.restart_retention();
    }

    /// Continues in new files, since the folder was deleted.
    pub(super) fn reset_files(&self) {
        self.lock_state().writer.reset();
    }

    /// Truncates the current file to the bytes that were written, since nothing more will be.
    pub(super) fn trim(&self) {
        self.lock_state().writer.trim();
    }

    fn lock_state(&self) -> MutexGuard<'_, JobOrdersState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the records of a file, in the order in which they were written. The caller has to find out
/// whether the store has the job already.
pub(super) fn read_orders(file: &Path) -> io::Result<Vec<OrderRecord>> {
    let content = segment_files::read_written(file)?;
    let records = record::checked_lines(&content).flatten().filter_map(|line| {
        Some(match serde_json::from_slice(line).ok()? {
            OrderLine::Placed { job, body, key, wanted, least, lease_ms } => {
                let (job, key) = (job.into_owned(), key.map(Cow::into_owned));
                let (body, quote) = (body.into_owned().into(), Quote { wanted, least });
                // The order was accepted before, so the number of open jobs no longer matters.
                let open_max = u32::MAX;
                // What the job took of rate limits is lost with the buckets.
                let rates = Vec::new();
                let order = NewJob { job, body, key, quote, rates, lease_ms, open_max };
                OrderRecord::Placed(Box::new(order))
            }
            OrderLine::Accepted { job, deleted, revision, due_ms } => {
                let claim = JobClaim { job: job.into_owned(), deleted, revision };
                OrderRecord::Accepted(Box::new(claim), ClaimUpdate { due_ms, forget_body: true })
            }
            OrderLine::Deleted { account, id } => {
                OrderRecord::Deleted(AccountName::parse(&account)?, id.into_owned())
            }
        })
    });
    Ok(records.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{JobStage, RunningJob};
    use crate::money::VideoResolution;

    fn job(stage: JobStage) -> Job {
        let held = Money::from_nano(280_000_000).expect("money");
        Job {
            id: "video_x".to_owned(),
            account: AccountName::parse("a").expect("a name"),
            key_prefix: "sk-abc".to_owned(),
            key_id: None,
            model: "lmd-imagine-video".to_owned(),
            requested_model: None,
            vendor: "vendor_d".to_owned(),
            seconds: 4,
            resolution: VideoResolution::P720,
            size: "1280x720".to_owned(),
            created_ms: 1_000,
            held,
            price_version: "p".to_owned(),
            booked: None,
            cost: None,
            external_body: None,
            trace: None,
            progress: 0,
            stage,
        }
    }

    #[test]
    fn what_is_known_of_a_job_reads_back_and_is_there_as_long_as_it_is_needed() {
        let root = tempfile::tempdir().expect("a folder");
        let dir = Arc::new(SegmentDir::create(root.path()).expect("a folder"));
        let orders = JobOrders::default();
        let placed = job(JobStage::Queued { refused: 0 });
        let (held, body) = (placed.held, "{\"prompt\":\"a\\tb\",\n\"seconds\":4}");
        let order = NewJob {
            job: placed.clone(),
            body: body.into(),
            key: Some("k".to_owned()),
            quote: Quote { wanted: held, least: held },
            rates: Vec::new(),
            lease_ms: 7,
            open_max: 3,
        };
        orders.record_placed(&order, || dir.clone()).expect("a write");
        let running = RunningJob {
            route: "r0".to_owned(),
            depth: 0,
            vendor_id: "v1".to_owned(),
            finished_ms: None,
            unanswered_polls: 0,
            not_found_polls: 0,
            copy_failures: 0,
        };
        let claim = JobClaim { job: job(JobStage::Running(running)), deleted: false, revision: 3 };
        let update = ClaimUpdate { due_ms: Some(50), forget_body: true };
        for _ in 0..2 {
            orders.record_accepted(&claim, update, || dir.clone()).expect("a write");
        }
        orders.record_deleted(&placed.account, "video_x", || dir.clone()).expect("a write");
        let records = read_orders(&dir.segment_path(SegmentKind::Jobs, 1)).expect("a file");
        let [
            OrderRecord::Placed(first),
            OrderRecord::Accepted(second, then),
            OrderRecord::Deleted(_, id),
        ] = &records[..]
        else {
            panic!("{records:?}");
        };
        assert_eq!((&first.job, &first.body[..]), (&placed, body.as_bytes()));
        assert_eq!((first.key.as_deref(), first.lease_ms), (Some("k"), 7));
        assert_eq!((&**second, *then, &**id), (&claim, update, "video_x"));

        orders.maintain(&dir, |_| true);
        assert!(orders.lock_state().writer.rotate(), "the next one was made");
        orders.maintain(&dir, |_| true);
        assert!(dir.segment_path(SegmentKind::Jobs, 1).exists(), "the server does not know it yet");
        orders.mark_saved("video_x");
        orders.maintain(&dir, |_| false);
        assert!(dir.segment_path(SegmentKind::Jobs, 1).exists(), "the server may forget it yet");
        orders.maintain(&dir, |_| true);
        assert!(!dir.segment_path(SegmentKind::Jobs, 1).exists());
    }
}
