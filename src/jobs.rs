//! Video jobs: each is accepted once, sent to a vendor once and settled once, whichever process
//! dies in between.
//!
//! A job is in the store together with its hold. A worker of any gateway may claim it. The stage of
//! the job alone decides the next step, and each stage is saved before the step that it announces.
//! So a worker that takes a job over from a dead one can tell from the stage what may have
//! happened.

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::booked_price::BookedPrice;
pub use self::listed_job::{JobCursor, JobFilter, JobListing, ListedJob};
use crate::files::bodies::{BodyKind, BodyName};
use crate::ledger::{AccountName, KeyId, RateAsk, RateId, RateReading, Unavailable, WindowId};
use crate::money::price::Quote;
use crate::money::{BilledUnits, Money, UsageBasis, VideoResolution};

pub mod api_json;
pub mod booked_price;
pub mod listed_job;
pub mod schedule;
pub mod transitions;
pub mod video_client;
pub mod worker;

/// A video job. The store keeps it as JSON and does not interpret it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// `video_<uuid>`, which sorts by age; also the id of its hold and of its journal line.
    pub id: String,
    /// The account that ordered the video.
    pub account: AccountName,
    /// The beginning of the API key with which the video was ordered.
    pub key_prefix: String,
    /// The id of the API key; `None` in a job of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    /// The id of the model.
    pub model: String,
    /// The name by which the client asked for the model, if that is not the model's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_model: Option<String>,
    /// The token of the vendor, such as `vendor_a`.
    pub vendor: String,
    /// The length of the video, in seconds.
    pub seconds: u64,
    /// The resolution by which the video is priced.
    pub resolution: VideoResolution,
    /// The size in pixels, as `<width>x<height>`.
    pub size: String,
    /// When the job was created, in unix ms.
    pub created_ms: i64,
    /// The money held for the job: what its account pays for the seconds.
    pub held: Money,
    /// The version of the prices from which `held` was computed.
    pub price_version: String,
    /// The price book of the job; `None` if `held` is the price on the price list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booked: Option<BookedPrice>,
    /// What the vendor charges for the seconds, if the rules know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// Where the body for the vendor is, if it is too large for the store and is kept in a file.
    #[serde(default, rename = "body_apart", skip_serializing_if = "Option::is_none")]
    pub external_body: Option<VendorBody>,
    /// The span of the request that created the job, as a `traceparent`; `None` if that is not
    /// traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The progress in percent, as the vendor last reported it.
    pub progress: u8,
    /// The stage that the job has reached.
    pub stage: JobStage,
}

/// A request body that is kept in the object store, under its job's account and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorBody {
    /// The size of the body, in bytes.
    pub bytes: u64,
    /// When the body may be deleted, in unix seconds.
    pub expires_s: u64,
}

impl Job {
    /// Returns the name and the size in bytes of the body for the vendor, if that is kept in the
    /// object store; `None` if the body is in the queue.
    #[must_use]
    pub(crate) fn external_body(&self) -> Option<(BodyName, u64)> {
        let body = self.external_body?;
        Some((self.body_name(body), body.bytes))
    }

    /// Returns the name of a body for the vendor in the object store.
    #[must_use]
    pub(crate) fn body_name(&self, body: VendorBody) -> BodyName {
        let (account, id) = (self.account.to_string(), self.id.clone());
        BodyName { kind: BodyKind::Request, account, expires_s: body.expires_s, id }
    }

    /// Returns the status that the client is shown.
    #[must_use]
    pub fn status(&self) -> JobStatus {
        match &self.stage {
            JobStage::Queued { .. } | JobStage::Submitting { .. } => JobStatus::Queued,
            JobStage::Running(_) | JobStage::Settling { .. } => JobStatus::InProgress,
            JobStage::Ended { outcome: JobOutcome::Completed { .. }, .. } => JobStatus::Completed,
            JobStage::Ended { outcome: JobOutcome::Failed { .. }, .. } => JobStatus::Failed,
        }
    }

    /// Whether the job has not ended yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.stage, JobStage::Ended { .. })
    }
}

/// The stages of a job, in order. Each is saved before the step that it announces is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStage {
    /// The job was not sent to a vendor yet, or every route refused it.
    Queued {
        /// How many times no route accepted the job.
        refused: u32,
    },
    /// The job is being sent to a vendor. A worker that finds a job in this stage after the node of
    /// the last worker died cannot know whether the vendor received it, and never sends it again.
    Submitting {
        /// The name of the route.
        route: String,
        /// How many times no route accepted the job before.
        refused: u32,
    },
    /// The vendor has accepted the job.
    Running(RunningJob),
    /// The outcome is decided and is being written to the ledger.
    Settling {
        /// The outcome that is being written.
        outcome: JobOutcome,
        /// When it was decided, in unix ms.
        at_ms: i64,
    },
    /// The job has ended. It is kept for [`JobSchedule::keep_ms`](schedule::JobSchedule::keep_ms).
    Ended {
        /// How it ended.
        outcome: JobOutcome,
        /// When the outcome was decided, in unix ms.
        at_ms: i64,
    },
}

/// A job that a vendor works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningJob {
    /// The name of the route over which the job was sent.
    pub route: String,
    /// How many routes refused the job before this one.
    #[serde(default)]
    pub depth: u32,
    /// The vendor's id of the job.
    pub vendor_id: String,
    /// When the vendor was first seen to have finished the video, in unix ms. Since then only the
    /// gateway's copy is missing.
    #[serde(default, rename = "made_ms")]
    pub finished_ms: Option<i64>,
    /// How many polls in a row got no answer.
    #[serde(default, rename = "silent")]
    pub unanswered_polls: u32,
    /// How many polls in a row the vendor answered with "not found".
    #[serde(default, rename = "lost")]
    pub not_found_polls: u32,
    /// How many attempts to copy the file failed.
    #[serde(default, rename = "uncopied")]
    pub copy_failures: u32,
}

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    /// The video was made and copied.
    Completed {
        /// The name of the route that served the job.
        route: String,
        /// How many routes refused the job before this one.
        #[serde(default)]
        depth: u32,
        /// The vendor's id of the job.
        vendor_id: String,
        /// The charge.
        charge: Money,
        /// The units that the journal line gets.
        usage: BilledUnits,
        /// Where the units come from.
        basis: UsageBasis,
    },
    /// The job failed and costs nothing.
    Failed {
        /// The reason of the failure.
        code: JobFailCode,
        /// The reason as a text for people; never empty.
        message: String,
    },
}

/// Why a job failed (spec, video job).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobFailCode {
    /// The safety rules of the vendor forbid the video.
    ModerationBlocked,
    /// The vendor did not produce it.
    VendorFailed,
    /// The video was not finished in time.
    TimedOut,
    /// The video was made, but could not be copied from the vendor.
    Undelivered,
}

/// The status of a job as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// No vendor has begun work on the video.
    Queued,
    /// A vendor works on the video, or the result is being copied or settled.
    InProgress,
    /// The video can be downloaded.
    Completed,
    /// The video will not be made.
    Failed,
}

impl JobStatus {
    /// All statuses.
    pub const ALL: [JobStatus; 4] =
        [JobStatus::Queued, JobStatus::InProgress, JobStatus::Completed, JobStatus::Failed];

    /// Returns the name that is used in JSON.
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

/// A job that is to be placed in the queue, with its body, its idempotency key and its hold.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// The job, in the stage `Queued`.
    pub job: Job,
    /// The body for the vendor, kept until the vendor has accepted it; empty if it is kept in the
    /// object store.
    pub body: Bytes,
    /// The digest of the client's idempotency key; `None` if the client sent none.
    pub key: Option<String>,
    /// The amount to hold.
    pub quote: Quote,
    /// What the job takes of rate limits.
    pub rates: Vec<RateAsk>,
    /// The lease of the hold, in ms.
    pub lease_ms: u64,
    /// At most this many jobs of the account may be open.
    pub open_max: u32,
}

/// The result of placing a job. Only [`PlaceResult::New`] stores anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceResult {
    /// The job is in the queue and its money is held; the value is what each rate limit of the job
    /// has left.
    New(Vec<RateReading>),
    /// The idempotency key was used before, for this job.
    AlreadyPlaced(Box<Job>),
    /// The idempotency key was used before, and the job of that time was deleted since.
    Deleted,
    /// The idempotency key was used before, for a job that was charged and that the store has lost.
    Lost,
    /// The account has this amount available, which is not enough.
    Insufficient(Money),
    /// A budget does not allow the job until its window ends.
    BudgetExceeded {
        /// The window.
        window: WindowId,
        /// What the limit leaves once nothing is held.
        left: Money,
    },
    /// The part of a budget that the job needs is held for calls that run; the value is what can be
    /// held now.
    BudgetInUse(Money),
    /// A rate limit does not allow the job now.
    RateLimited {
        /// The limit.
        id: RateId,
        /// When to try again, in ms from now; `None` if that is not known.
        retry_after_ms: Option<i64>,
        /// What each rate limit that was asked for has left.
        rates: Vec<RateReading>,
    },
    /// The account already has the maximum of open jobs.
    TooManyOpen,
    /// There is no such account.
    NoAccount,
}

/// A job that a worker has claimed, for the time of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobClaim {
    /// The job in its present state.
    pub job: Job,
    /// Whether the client deleted the job.
    pub deleted: bool,
    /// A number that grows with every claim and every save. A save with an old one is refused.
    pub revision: u64,
}

/// How a claim is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimUpdate {
    /// When the job is due again, in ms from now; the save then ends the claim. `None` keeps the
    /// claim.
    pub due_ms: Option<u64>,
    /// Whether the queue may delete the body for the vendor.
    pub forget_body: bool,
}

/// A page of an account's jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPage {
    /// The id of the job after which the page begins; `None` begins with the first.
    pub after: Option<String>,
    /// At most this many jobs are on the page.
    pub limit: usize,
    /// Whether the oldest jobs come first.
    pub ascending: bool,
}

/// The jobs of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Whether more jobs follow after this page.
    pub has_more: bool,
}

/// The queue of jobs in the store. A job is found only under the account that placed it. A job that
/// its client deleted is found by workers and listed for operators only.
#[async_trait]
pub trait JobQueue: Send + Sync {
    /// Whether the queue is part of this process. Such a queue is never unreachable, and its saves
    /// wait for the disk.
    fn is_embedded(&self) -> bool;
    /// Places a job in the queue and holds its money, both or neither, unless its idempotency key
    /// was used before. The job is due at once.
    async fn place_job(&self, order: NewJob) -> Result<PlaceResult, Unavailable>;
    /// Returns a job of an account; `None` if the account has no such job.
    async fn find_job(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable>;
    /// Returns a page of an account's jobs, ordered by id; `None` if the job after which the page
    /// begins does not exist.
    async fn list_jobs(
        &self,
        account: &AccountName,
        page: JobPage,
    ) -> Result<Option<JobList>, Unavailable>;
    /// Returns at most `limit` jobs that a filter lists, ordered by account and id, those after a
    /// place of the list. Workers may change them meanwhile.
    async fn list_all_jobs(
        &self,
        filter: &JobFilter,
        after: Option<&JobCursor>,
        limit: usize,
    ) -> Result<JobListing, Unavailable>;
    /// Hides a job from its client, and makes it due at once. Returns the job; `None` if it does
    /// not exist or was hidden before. Its idempotency key stays used.
    async fn delete_job(&self, account: &AccountName, id: &str)
    -> Result<Option<Job>, Unavailable>;
    /// Claims at most `limit` jobs that are due and unclaimed, for `lease_ms`, the longest due
    /// first. The clock is the store's.
    async fn claim_due(&self, lease_ms: u64, limit: usize) -> Result<Vec<JobClaim>, Unavailable>;
    /// Extends the lease of a claim to `lease_ms` from now. `false` if the claim was lost.
    async fn renew_claim(&self, claim: &JobClaim, lease_ms: u64) -> Result<bool, Unavailable>;
    /// Returns the body for the vendor; `None` if the queue has none.
    async fn read_body(&self, claim: &JobClaim) -> Result<Option<Bytes>, Unavailable>;
    /// Saves the job of a claim, on disk where the store can, and increments its revision. `false`
    /// if the claim was lost; then nothing is saved.
    async fn save_claim(
        &self,
        claim: &mut JobClaim,
        update: ClaimUpdate,
    ) -> Result<bool, Unavailable>;
    /// Waits until everything saved up to now would survive a power failure of the store's machine,
    /// as far as the store can tell.
    async fn await_durable(&self) -> Result<(), Unavailable> {
        // An embedded store has synced to disk before it reports a save as done.
        Ok(())
    }
    /// Deletes the job of a claim for good, with its body and its idempotency key. `false` if the
    /// claim was lost.
    async fn remove_job(&self, claim: &JobClaim) -> Result<bool, Unavailable>;
    /// Returns the number of jobs of each status, including jobs that their clients deleted.
    async fn count_by_status(&self) -> Result<Vec<(JobStatus, u64)>, Unavailable>;
    /// Returns the secret that the fleet shares; stores `candidate` as the secret if there was
    /// none.
    async fn get_or_set_secret(&self, candidate: [u8; 32]) -> Result<[u8; 32], Unavailable>;
}
