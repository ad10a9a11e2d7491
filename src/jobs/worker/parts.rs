//! What a worker is made of, and what it decides after a step.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, Semaphore};

use crate::catalogue::Catalogue;
use crate::files::VideoFiles;
use crate::files::bodies::BodyFiles;
use crate::jobs::JobQueue;
use crate::jobs::schedule::JobSchedule;
use crate::jobs::video_client::VideoClient;
use crate::ledger::Ledger;

/// Of the jobs that a worker has, so many are sent to a vendor at a time, and so many have their
/// file copied.
const SUBMISSIONS_MAX: usize = 16;
const COPIES_MAX: usize = 8;

/// What a worker is made of.
pub(crate) struct JobWorker {
    /// Where jobs wait.
    pub queue: Arc<dyn JobQueue>,
    /// The money.
    pub ledger: Arc<dyn Ledger>,
    /// What metrics call the kind of its store.
    pub store_name: &'static str,
    /// Where finished videos are kept.
    pub files: Arc<VideoFiles>,
    /// Where long bodies for vendors wait.
    pub bodies: Arc<BodyFiles>,
    /// What is for sale, and how vendors are spoken to.
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    /// The vendors.
    pub video_client: VideoClient,
    /// When what happens.
    pub schedule: JobSchedule,
    /// Rung when there is something new.
    pub wakeup: Arc<Notify>,
    /// Whether it works on nothing, and will not.
    pub idle: Arc<AtomicBool>,
    /// For steps that take memory.
    pub capacity: WorkerCapacity,
}

/// Room for steps that take memory: a body for a vendor has some MB, and so has a piece of a file.
pub(crate) struct WorkerCapacity {
    pub(super) submissions: Semaphore,
    pub(super) copies: Semaphore,
    /// Whether files could not be kept lately.
    pub(super) is_file_store_down: AtomicBool,
}

impl Default for WorkerCapacity {
    fn default() -> WorkerCapacity {
        let (submissions, copies) = (SUBMISSIONS_MAX, COPIES_MAX);
        WorkerCapacity {
            submissions: Semaphore::new(submissions),
            copies: Semaphore::new(copies),
            is_file_store_down: AtomicBool::new(false),
        }
    }
}

/// Whether there is more to do for a claim now.
pub(super) enum NextTurn {
    Continue,
    Release,
}
