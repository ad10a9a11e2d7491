//! Video jobs: each is accepted once, sent to a vendor once and settled once, whatever process dies
//! in between.
//!
//! A job is in the store together with its hold. A worker of any gateway may claim it. The stage of
//! the job alone decides the next step, and each stage is saved before the step that it announces.
//! So a worker that takes a job over from a dead one knows what may have happened.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::files::bodies::{BodyKind, BodyName};
use crate::ledger::{AccountName, Unavailable};
use crate::money::price::Quote;
use crate::money::{BilledUnits, Money, UsageBasis, VideoResolution};

pub mod api_json;
pub mod schedule;
pub mod transitions;
pub mod video_client;
pub mod worker;

/// A video that was asked for. The store keeps it as JSON and never looks inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// `video_<uuid>`, which sorts by age; also the id of its hold and of its journal line.
    pub id: String,
    /// Whose it is.
    pub account: AccountName,
    /// The beginning of the key that asked for it.
    pub key_prefix: String,
    /// The model.
    pub model: String,
    /// The vendor's token.
    pub vendor: String,
    /// Its length.
    pub seconds: u64,
    /// What it is sold as.
    pub resolution: VideoResolution,
    /// `<width>x<height>`.
    pub size: String,
    /// When it was asked for, in unix ms.
    pub created_ms: i64,
    /// What is held for it: the price of its seconds.
    pub held: Money,
    /// The price list that says so.
    pub price_version: String,
    /// The body for the vendor, if it is too large for the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_apart: Option<VendorBody>,
    /// How much of it is done, in percent, as far as the vendor told.
    pub progress: u8,
    /// How far it is.
    pub stage: JobStage,
}

/// A body that is kept in the object store, under its job's account and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorBody {
    /// How many bytes it has.
    pub bytes: u64,
    /// When it is over, in unix seconds.
    pub expires_s: u64,
}

impl Job {
    /// Where its body for the vendor is, if that is kept apart, and how many bytes it has.
    #[must_use]
    pub(crate) fn external_body(&self) -> Option<(BodyName, u64)> {
        let VendorBody { bytes, expires_s } = self.body_apart?;
        let (account, id) = (self.account.to_string(), self.id.clone());
        Some((BodyName { kind: BodyKind::Request, account, expires_s, id }, bytes))
    }

    /// What its client sees of its stage.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        match &self.stage {
            JobStage::Queued { .. } | JobStage::Submitting { .. } => JobStatus::Queued,
            JobStage::Running(_) | JobStage::Settling { .. } => JobStatus::InProgress,
            JobStage::Ended { outcome: JobOutcome::Completed { .. }, .. } => JobStatus::Completed,
            JobStage::Ended { outcome: JobOutcome::Failed { .. }, .. } => JobStatus::Failed,
        }
    }

    /// Whether it is under way.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.stage, JobStage::Ended { .. })
    }
}

/// The stages of a job, in order. Each is saved before what it announces is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStage {
    /// No vendor has heard of it.
    Queued {
        /// How many times no route took it.
        refused: u32,
    },
    /// It is being sent to a vendor. Whoever finds it so after its node died cannot know whether
    /// the vendor has it, and never sends it again.
    Submitting {
        /// The route.
        route: String,
        /// How many times no route took it before.
        refused: u32,
    },
    /// The vendor has it.
    Running(RunningJob),
    /// Its outcome is decided, and is on its way into the ledger.
    Settling {
        /// The outcome.
        outcome: JobOutcome,
        /// When it was decided, in unix ms.
        at_ms: i64,
    },
    /// It is over, and kept for a while.
    Ended {
        /// How it ended.
        outcome: JobOutcome,
        /// When, in unix ms.
        at_ms: i64,
    },
}

/// A job that a vendor works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningJob {
    /// The route that leads to it.
    pub route: String,
    /// How many routes did not take it first.
    #[serde(default)]
    pub depth: u32,
    /// The vendor's id of it.
    pub vendor_id: String,
    /// When the vendor was found to have made it, in unix ms: only our copy is missing.
    #[serde(default)]
    pub made_ms: Option<i64>,
    /// How many questions about it had no answer, in a row.
    #[serde(default)]
    pub silent: u32,
    /// How many times the vendor knew nothing of it, in a row.
    #[serde(default)]
    pub lost: u32,
    /// How many times its file could not be copied.
    #[serde(default)]
    pub uncopied: u32,
}

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// The video is there.
    Completed {
        /// The route that served.
        route: String,
        /// How many routes did not take it first.
        #[serde(default)]
        depth: u32,
        /// The vendor's id of it.
        vendor_id: String,
        /// What it cost.
        charge: Money,
        /// The units of the journal.
        usage: BilledUnits,
        /// Where they come from.
        basis: UsageBasis,
    },
    /// It is not, and costs nothing.
    Failed {
        /// Why.
        code: JobFailCode,
        /// The same for people, never empty.
        message: String,
    },
}

/// Why a job failed (spec, video job).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobFailCode {
    /// The vendor's safety rules.
    ModerationBlocked,
    /// The vendor did not produce it.
    VendorFailed,
    /// It took too long.
    TimedOut,
    /// It was made, but could not be handed over.
    Undelivered,
}

/// What a client sees of a job's stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// No vendor has begun.
    Queued,
    /// A vendor has.
    InProgress,
    /// The video is there.
    Completed,
    /// It will not be.
    Failed,
}

impl JobStatus {
    /// All of them.
    pub const ALL: [JobStatus; 4] =
        [JobStatus::Queued, JobStatus::InProgress, JobStatus::Completed, JobStatus::Failed];

    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobStatus::Queued => "queued",
            JobStatus::InProgress => "in_progress",
            JobStatus::Completed => "completed",
            JobStatus::Failed => "failed",
        }
    }
}

/// A job that is to be placed, with what belongs to it.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// The job, queued.
    pub job: Job,
    /// The body for the vendor, kept until the vendor has it; empty if it is kept apart.
    pub body: Bytes,
    /// The digest of the client's idempotency key.
    pub key: Option<String>,
    /// What to hold.
    pub quote: Quote,
    /// The hold's lease, in ms.
    pub lease_ms: u64,
    /// So many jobs of the account may be under way, at most.
    pub open_max: u32,
}

/// What came of an order. Only of [`PlaceResult::New`] anything is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceResult {
    /// The job is in the queue and its money held.
    New,
    /// The idempotency key was used before, for this job.
    AlreadyPlaced(Box<Job>),
    /// The same, but the job was deleted since.
    Deleted,
    /// So much is available, which is not enough.
    Insufficient(Money),
    /// Too many jobs of the account are under way.
    TooManyOpen,
    /// There is no such account.
    NoAccount,
}

/// A job that a worker has for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobClaim {
    /// The job as it is.
    pub job: Job,
    /// Whether its client deleted it.
    pub deleted: bool,
    /// Grows with every claim and every save; a save with an old one is refused.
    pub revision: u64,
}

/// What to do with a claim when it is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimUpdate {
    /// When the job is due again, in ms from now. `None` keeps the claim as it is.
    pub due_ms: Option<u64>,
    /// Whether the body for the vendor may be forgotten.
    pub forget_body: bool,
}

/// A page of an account's jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPage {
    /// The job after which it begins.
    pub after: Option<String>,
    /// So many, at most.
    pub limit: usize,
    /// Whether the oldest come first.
    pub ascending: bool,
}

/// What a page has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Whether there are more behind them.
    pub has_more: bool,
}

/// Where jobs wait. What one account has there no other finds. A job that its client deleted is
/// found by its worker only.
#[async_trait]
pub trait JobQueue: Send + Sync {
    /// Whether the queue is a part of this process: it cannot be away, and waits for its disk.
    fn is_embedded(&self) -> bool;
    /// Holds money and puts a job into the queue, both or neither, unless its idempotency key was
    /// used before. The job is due at once.
    async fn place_job(&self, order: NewJob) -> Result<PlaceResult, Unavailable>;
    /// A job of an account.
    async fn find_job(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable>;
    /// A page of an account's jobs, by id; `None` if the job after which it begins is not there.
    async fn list_jobs(
        &self,
        account: &AccountName,
        page: JobPage,
    ) -> Result<Option<JobList>, Unavailable>;
    /// Hides a job from its client, and makes it due at once. Gives the job as it is; `None` if
    /// there is none, or it was hidden before. Its idempotency key stays used.
    async fn delete_job(&self, account: &AccountName, id: &str)
    -> Result<Option<Job>, Unavailable>;
    /// Claims jobs that are due and unclaimed, for `lease_ms`, at most `count_max`, the longest
    /// due first. The clock is the store's.
    async fn claim_due(&self, lease_ms: u64, limit: usize) -> Result<Vec<JobClaim>, Unavailable>;
    /// Keeps a claim for so long (ms) from now. `false` if it is no longer one.
    async fn renew_claim(&self, claim: &JobClaim, lease_ms: u64) -> Result<bool, Unavailable>;
    /// The body for the vendor.
    async fn read_body(&self, claim: &JobClaim) -> Result<Option<Bytes>, Unavailable>;
    /// Saves a claim's job, on disk where the store can, and counts its revision up. `false` if it
    /// is no longer a claim; then nothing is saved.
    async fn save_claim(
        &self,
        claim: &mut JobClaim,
        next: ClaimUpdate,
    ) -> Result<bool, Unavailable>;
    /// Waits until everything saved so far would survive a power cut of the store's machine, as far
    /// as the store can tell.
    async fn await_durable(&self) -> Result<(), Unavailable> {
        // An embedded store has saved when it says so.
        Ok(())
    }
    /// Forgets a claim's job for good, with its body and its idempotency key. `false` if it is no
    /// longer a claim.
    async fn remove_job(&self, claim: &JobClaim) -> Result<bool, Unavailable>;
    /// How many jobs there are of each status, those that were deleted among them.
    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, Unavailable>;
    /// The fleet's secret: the candidate, if there was none.
    async fn get_or_set_secret(&self, candidate: [u8; 32]) -> Result<[u8; 32], Unavailable>;
}
