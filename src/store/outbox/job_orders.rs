//! Video jobs, written down before a server that may forget them: each when it was placed, before
//! its client hears of that, and once more when a vendor has it, before the server does. A run of
//! the server that lacks a job gets it again.
//!
//! What a client waits for is synced as the ends of holds are, a moment later; that a vendor has a
//! job, before anything else is done.

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

/// See the module.
pub(super) struct JobOrders(Mutex<JobOrdersState>);

struct JobOrdersState {
    writer: SegmentWriter,
    /// Claims of jobs that vendors have and of which the server does not know that yet, by their
    /// ids: their revisions, and the files that they are in.
    unsaved: HashMap<String, (u64, u64)>,
}

/// What a line says.
#[derive(Debug, Clone)]
pub(in crate::store) enum OrderRecord {
    /// A job was placed.
    Placed(Box<NewJob>),
    /// A vendor has it, which is to be saved.
    Accepted(Box<JobClaim>, ClaimUpdate),
    /// Its client has deleted it.
    Deleted(AccountName, String),
}

/// The same as JSON has it.
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
    Taken {
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
    /// Writes down that a job was placed; gives the file, which is to be synced.
    ///
    /// # Errors
    /// It could not be written.
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

    /// Writes down that a vendor has a job; blocks until it is on disk. The same again is not
    /// written again.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn record_accepted(
        &self,
        claim: &JobClaim,
        next: ClaimUpdate,
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<()> {
        let JobClaim { job, deleted, revision } = claim;
        let mut state = self.lock_state();
        if state.unsaved.get(&job.id).is_some_and(|(known, _)| known == revision) {
            return Ok(());
        }
        let (deleted, revision, due_ms) = (*deleted, *revision, next.due_ms);
        let written = OrderLine::Taken { job: Cow::Borrowed(job), deleted, revision, due_ms };
        let (number, file) = state.writer.write(&record::encode_line(&written, None), dir)?;
        state.unsaved.insert(job.id.clone(), (revision, number));
        drop(state);
        file.sync_data()
    }

    /// Writes down that a client has deleted a job; gives the file, which is to be synced.
    ///
    /// # Errors
    /// It could not be written.
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

    /// The server has saved that a vendor accepted the job, or another worker has claimed it.
    pub(super) fn mark_saved(&self, job: &str) {
        self.lock_state().unsaved.remove(job);
    }

    /// What is to be done now and then: a file ends, old ones go. Files are made and removed beside
    /// the lock.
    pub(super) fn maintain(&self, dir: &SegmentDir, is_over: impl Fn(Instant) -> bool) {
        let spare_number = self.lock_state().writer.missing_spare_number();
        let spare = spare_number
            .map(|number| segment_files::create_segment(dir, SegmentKind::Jobs, number, None));
        let mut state = self.lock_state();
        let needed: HashSet<u64> = state.unsaved.values().map(|(_, number)| *number).collect();
        let rest = state.writer.plan_cleanup(spare.and_then(Result::ok), &needed, is_over);
        drop(state);
        rest.finish(dir);
    }

    /// What is written may be needed again from now on, since the server may forget again.
    pub(super) fn restart_retention(&self) {
        self.lock_state().writer.restart_retention();
    }

    /// Goes on in new files, since the folder is gone.
    pub(super) fn reset_files(&self) {
        self.lock_state().writer.reset();
    }

    /// Cuts the file that is written to what was written, since no more will be.
    pub(super) fn trim(&self) {
        self.lock_state().writer.trim();
    }

    fn lock_state(&self) -> MutexGuard<'_, JobOrdersState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a file says of jobs, in the order in which it happened. That a job is known is for whoever
/// asks to find out.
pub(super) fn read_orders(file: &Path) -> io::Result<Vec<OrderRecord>> {
    let said = segment_files::read_written(file)?;
    let noted = record::checked_lines(&said).flatten().filter_map(|said| {
        Some(match serde_json::from_slice(said).ok()? {
            OrderLine::Placed { job, body, key, wanted, least, lease_ms } => {
                let (job, key) = (job.into_owned(), key.map(Cow::into_owned));
                let (body, quote) = (body.into_owned().into(), Quote { wanted, least });
                // It was accepted, however many there are by now.
                let open_max = u32::MAX;
                let order = NewJob { job, body, key, quote, lease_ms, open_max };
                OrderRecord::Placed(Box::new(order))
            }
            OrderLine::Taken { job, deleted, revision, due_ms } => {
                let claim = JobClaim { job: job.into_owned(), deleted, revision };
                OrderRecord::Accepted(Box::new(claim), ClaimUpdate { due_ms, forget_body: true })
            }
            OrderLine::Deleted { account, id } => {
                OrderRecord::Deleted(AccountName::parse(&account)?, id.into_owned())
            }
        })
    });
    Ok(noted.collect())
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
            model: "lmd-imagine-video".to_owned(),
            vendor: "vendor_d".to_owned(),
            seconds: 4,
            resolution: VideoResolution::P720,
            size: "1280x720".to_owned(),
            created_ms: 1_000,
            held,
            price_version: "p".to_owned(),
            body_apart: None,
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
            lease_ms: 7,
            open_max: 3,
        };
        orders.record_placed(&order, || dir.clone()).expect("a write");
        let running = RunningJob {
            route: "r0".to_owned(),
            depth: 0,
            vendor_id: "v1".to_owned(),
            made_ms: None,
            silent: 0,
            lost: 0,
            uncopied: 0,
        };
        let claim = JobClaim { job: job(JobStage::Running(running)), deleted: false, revision: 3 };
        let next = ClaimUpdate { due_ms: Some(50), forget_body: true };
        for _ in 0..2 {
            orders.record_accepted(&claim, next, || dir.clone()).expect("a write");
        }
        orders.record_deleted(&placed.account, "video_x", || dir.clone()).expect("a write");
        let noted = read_orders(&dir.segment_path(SegmentKind::Jobs, 1)).expect("a file");
        let [
            OrderRecord::Placed(first),
            OrderRecord::Accepted(second, then),
            OrderRecord::Deleted(_, id),
        ] = &noted[..]
        else {
            panic!("{noted:?}");
        };
        assert_eq!((&first.job, &first.body[..]), (&placed, body.as_bytes()));
        assert_eq!((first.key.as_deref(), first.lease_ms), (Some("k"), 7));
        assert_eq!((&**second, *then, &**id), (&claim, next, "video_x"));

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
