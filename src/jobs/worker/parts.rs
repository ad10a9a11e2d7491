//! The fields of the worker, and its decision after a step.

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
use crate::traces::tracer::Tracer;
use crate::webhooks::WebhookStore;

/// At most this many jobs of one worker are being sent to a vendor, and at most this many files are
/// being copied, at a time.
const SUBMISSIONS_MAX: usize = 16;
const COPIES_MAX: usize = 8;

/// A worker that takes video jobs through their stages.
pub(crate) struct JobWorker {
    /// The queue of jobs.
    pub queue: Arc<dyn JobQueue>,
    /// The ledger with the holds of the jobs.
    pub ledger: Arc<dyn Ledger>,
    /// Where the ends of jobs are noted for webhooks.
    pub webhooks: Arc<dyn WebhookStore>,
    /// The name that metrics use for the kind of the store.
    pub store_name: &'static str,
    /// The store of finished videos.
    pub files: Arc<VideoFiles>,
    /// The store of large request bodies for vendors.
    pub bodies: Arc<BodyFiles>,
    /// The models on sale, and the rules for their vendors.
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    /// The HTTP client for vendors.
    pub video_client: VideoClient,
    /// The intervals and time limits of jobs.
    pub schedule: JobSchedule,
    /// Notified when there is a new or changed job.
    pub wakeup: Arc<Notify>,
    /// Whether the worker has no job in work and claims none.
    pub idle: Arc<AtomicBool>,
    /// Limits of the steps that need memory.
    pub capacity: WorkerCapacity,
    /// Takes traces; `None` if nothing is traced.
    pub tracer: Option<Arc<Tracer>>,
}

/// Limits of the steps that need memory: a body for a vendor has some MB, and so has a piece of a
/// file.
pub(crate) struct WorkerCapacity {
    pub(super) submissions: Semaphore,
    pub(super) copies: Semaphore,
    /// Whether the last attempt to write files failed.
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

/// What the worker does with a claim after a step: the next step, or leave the job.
pub(super) enum NextStep {
    Continue,
    Release,
}
