//! The worker: claims jobs that are due, takes each a step further, and saves that.
//!
//! A claim is a lease, renewed while the worker waits for somebody. What a job is about to do is
//! saved before it is done, and a save by somebody who is no longer the claim's owner is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::life::{JobStep, JobTransition};
use super::schedule::JobSchedule;
use super::studio::{PollOutcome, SubmitOutcome, VideoClient};
use super::{ClaimUpdate, JobClaim, JobFailCode, JobOutcome, JobQueue, RunningJob};
use crate::catalogue::{Catalogue, Vendor};
use crate::dialect::json::draft::quoted;
use crate::dialect::json::{JsonDocument, JsonPatch};
use crate::files::VideoFiles;
use crate::files::bodies::BodyFiles;
use crate::ledger::{Ledger, Unavailable};
use crate::metrics::METRICS;

/// Due jobs are looked for ten times as often as a vendor is asked, but not more or less often than
/// this, in ms; and whenever the bell rings.
const LOOK_MS_MIN: u64 = 20;
const LOOK_MS_MAX: u64 = 500;
/// Where files cannot be kept, that is tried again after so long.
const FILES_WAIT: Duration = Duration::from_secs(5);
/// Jobs that one worker has at a time.
const JOBS_MAX: usize = 64;
/// Of these, so many are sent to a vendor at a time, and so many have their file copied.
const SUBMISSIONS_MAX: usize = 16;
const COPIES_MAX: usize = 8;
/// Jobs of each status are counted half as often as a vendor is asked, at least so often, in ms.
const COUNT_MS_MAX: u64 = 10_000;
/// A store that does not answer is asked again after so long, doubling up to the most, for so long
/// in all.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_millis(500);
/// A claim that could not be renewed is tried to be after so long.
const AGAIN: Duration = Duration::from_millis(250);
/// In thirds of a lease: who has heard nothing of its claim for so long gives it up.
const DEAF_MAX: u32 = 9;
/// When the store is back, those who have jobs come before those who look for some, by so long.
const AFTER_YOU: Duration = Duration::from_secs(3);
const RETRY_TIME: Duration = Duration::from_secs(300);
/// A job whose route or vendor is not set up here is left to others for so long, in ms.
const ELSEWHERE_MS: u64 = 15_000;
/// A job for which there is no room is left to others for so long, in ms.
const CROWDED_MS: u64 = 1_000;
/// The largest video that is copied: the longest has some tens of MB.
const FILE_BYTES_MAX: u64 = 1 << 30;

mod body;
mod copy;
mod settle;
mod tell;

use body::BodyLocation;
use copy::CopyError;
use settle::until_done;
use tell::{mourn, passed_by, unanswered};

/// What a worker is made of.
pub struct JobWorker {
    /// Where jobs wait.
    pub queue: Arc<dyn JobQueue>,
    /// The money.
    pub ledger: Arc<dyn Ledger>,
    /// Where finished videos are kept.
    pub files: Arc<VideoFiles>,
    /// Where long bodies for vendors wait.
    pub bodies: Arc<BodyFiles>,
    /// What is for sale, and how vendors are spoken to.
    pub catalogue: Arc<ArcSwap<Catalogue>>,
    /// The vendors.
    pub studio: VideoClient,
    /// When what happens.
    pub schedule: JobSchedule,
    /// Rung when there is something new.
    pub bell: Arc<Notify>,
    /// Whether it works on nothing, and will not.
    pub idle: Arc<AtomicBool>,
    /// For steps that take memory.
    pub room: WorkerMemory,
}

/// Room for steps that take memory: a body for a vendor has some MB, and so has a piece of a file.
pub struct WorkerMemory {
    submissions: Semaphore,
    copies: Semaphore,
    /// Whether files could not be kept lately.
    unkept: AtomicBool,
}

impl Default for WorkerMemory {
    fn default() -> WorkerMemory {
        let (submissions, copies) = (SUBMISSIONS_MAX, COPIES_MAX);
        WorkerMemory {
            submissions: Semaphore::new(submissions),
            copies: Semaphore::new(copies),
            unkept: AtomicBool::new(false),
        }
    }
}

/// Whether there is more to do for a claim now.
enum NextTurn {
    On,
    Away,
}

impl JobWorker {
    /// Works until it is told to stop, and then ends what it has begun.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        // Nothing is sent to a vendor that could not be kept when it comes.
        while !self.can_keep().await {
            tokio::select! {
                () = sleep(FILES_WAIT) => {}
                _ = stop.changed() => return,
            }
        }
        self.idle.store(false, Ordering::SeqCst);
        let look_every = (self.schedule.poll_ms / 10).clamp(LOOK_MS_MIN, LOOK_MS_MAX);
        let look_every = Duration::from_millis(look_every);
        let count_every = self.schedule.poll_ms.saturating_mul(2).min(COUNT_MS_MAX);
        let count_every = Duration::from_millis(count_every);
        let mut working = JoinSet::new();
        let mut counted: Option<Instant> = None;
        while !*stop.borrow_and_update() {
            while working.try_join_next().is_some() {}
            let room = JOBS_MAX - working.len();
            let claiming = self.queue.claim(self.schedule.lease_ms, room);
            let claims = if room == 0 { Ok(Vec::new()) } else { claiming.await };
            let (mut pause, mut full) = (look_every, room == 0);
            match claims {
                Ok(claims) => {
                    full |= claims.len() == room;
                    claims.into_iter().for_each(|claim| {
                        working.spawn(self.clone().work(claim));
                    });
                }
                Err(why) => {
                    log::warn!(event = "video_claim_failed", why:% = why; "no jobs");
                    while !*stop.borrow() && !self.count().await {
                        sleep(RETRY_WAIT_MAX).await;
                    }
                    pause = AFTER_YOU;
                }
            }
            if counted.is_none_or(|when| when.elapsed() >= count_every) {
                counted = Some(Instant::now());
                let _ = self.count().await;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.bell.notified(), if pause == look_every => {}
                Some(_) = working.join_next(), if full => {}
                _ = stop.changed() => {}
            }
        }
        while working.join_next().await.is_some() {}
        self.idle.store(true, Ordering::SeqCst);
    }

    /// Counts the jobs; tells whether the store answers.
    async fn count(&self) -> bool {
        let counts = self.queue.counts().await;
        if let Err(why) = &counts {
            log::warn!(event = "video_count_failed", why:% = why; "jobs not counted");
        }
        for (status, jobs) in counts.iter().flatten() {
            let gauge = METRICS.video_jobs.with_label_values(&[status.name()]);
            gauge.set(i64::try_from(*jobs).unwrap_or(i64::MAX));
        }
        counts.is_ok()
    }

    /// Takes a job as far as it goes now.
    async fn work(self: Arc<Self>, mut claim: JobClaim) {
        loop {
            match self.advance(&mut claim).await {
                Ok(NextTurn::On) => {}
                Ok(NextTurn::Away) => return,
                Err(why) => {
                    // The lease runs out, and somebody takes it over.
                    log::warn!(
                        event = "video_job_abandoned", job = claim.job.id,
                        why:% = format!("{why:#}");
                        "a job was left"
                    );
                    return;
                }
            }
        }
    }

    async fn advance(&self, claim: &mut JobClaim) -> anyhow::Result<NextTurn> {
        match claim.step(&self.schedule, now_ms()) {
            JobStep::Decide(outcome) => self.decide(claim, outcome).await,
            JobStep::Submit => self.submit(claim).await,
            JobStep::Ask(running) => self.ask(claim, &running).await,
            JobStep::Settle(outcome) => self.settle(claim, &outcome).await,
            JobStep::Hide(left) => {
                self.drop_file(claim).await?;
                self.save(claim, Some(left)).await
            }
            JobStep::Forget => {
                self.drop_file(claim).await?;
                self.queue.remove(claim).await?;
                Ok(NextTurn::Away)
            }
            JobStep::Wait(left) => self.save(claim, Some(left)).await,
        }
    }

    /// Sends a job over the first route that takes it.
    async fn submit(&self, claim: &mut JobClaim) -> anyhow::Result<NextTurn> {
        let Some(vendor) = self.vendor(&claim.job.vendor) else {
            return self.save(claim, Some(ELSEWHERE_MS)).await;
        };
        let Ok(_room) = self.room.submissions.try_acquire() else {
            return self.save(claim, Some(CROWDED_MS)).await;
        };
        // What could not be kept when it comes is not bought.
        if self.room.unkept.load(Ordering::Relaxed) && !self.can_keep().await {
            return self.save(claim, Some(self.schedule.pause_ms(1))).await;
        }
        let body = match self.vendor_body(claim).await? {
            BodyLocation::Here(body) => body,
            BodyLocation::Elsewhere => return self.save(claim, Some(ELSEWHERE_MS)).await,
        };
        let document = JsonDocument::parse(body).context("the body cannot be read")?;
        let (mut wait, mut busy, mut depth) = (Duration::ZERO, false, 0);
        let vendor_token = claim.job.vendor.clone();
        for outlet in self.studio.outlets(&vendor_token) {
            claim.job.submit(&outlet.name);
            if let NextTurn::Away = self.save(claim, None).await? {
                return Ok(NextTurn::Away);
            }
            // A store that forgot this would have it sent twice.
            let persisted = self.kept(claim, until_done(|| self.queue.persist())).await?;
            let pause_ms = persisted.err().map(|why| self.put_off(&claim.job.id, &why));
            // Others may have taken long: it is sent only while it is wanted, and by nobody else.
            if !until_done(|| self.queue.renew(claim, self.schedule.lease_ms)).await? {
                bail!("another worker has the job by now");
            }
            if pause_ms.is_some() || !claim.is_wanted(&self.schedule, now_ms()) {
                claim.job.back();
                return self.save(claim, pause_ms).await;
            }
            let mut draft = JsonPatch::new(&document);
            draft.set("model", quoted(&outlet.upstream(&claim.job.model)));
            let body = draft.finish().concat().into();
            let reason = match self.kept(claim, self.studio.submit(outlet, &vendor, body)).await? {
                SubmitOutcome::Taken(vendor_id) => {
                    claim.job.run(&outlet.name, depth, vendor_id);
                    return self.keep(claim, Some(self.poll_ms()), true).await;
                }
                SubmitOutcome::Refused(refused) => {
                    let blocked = refused.is_blocked.then_some(JobFailCode::ModerationBlocked);
                    let code = blocked.unwrap_or(JobFailCode::VendorFailed);
                    claim.job.back();
                    return self.decide(claim, JobOutcome::failed(code, &refused.message)).await;
                }
                SubmitOutcome::Unknown(why) => {
                    unanswered(outlet, &claim.job.id, &why);
                    let message = "the vendor's answer did not come, so it is not sent again";
                    let outcome = JobOutcome::failed(JobFailCode::VendorFailed, message);
                    return self.decide(claim, outcome).await;
                }
                SubmitOutcome::Busy(after) => {
                    busy = true;
                    wait = wait.max(after.unwrap_or_default());
                    "busy".to_owned()
                }
                SubmitOutcome::Denied(status) => status.as_u16().to_string(),
            };
            passed_by(outlet, &claim.job.id, &reason);
            depth += 1;
        }
        let refused = claim.job.back();
        if depth > 0 && !busy {
            let message = "the vendor does not serve the gateway at the moment";
            return self
                .decide(claim, JobOutcome::failed(JobFailCode::VendorFailed, message))
                .await;
        }
        let pause = self.schedule.pause_ms(refused);
        self.save(claim, Some(pause.max(ms(wait)))).await
    }

    /// How long a job waits that is not on disk yet.
    fn put_off(&self, job: &str, why: &Unavailable) -> u64 {
        log::error!(
            event = "video_persist_failed", job, why:% = why;
            "the job is not on disk, so it is not sent yet"
        );
        self.schedule.pause_ms(1)
    }

    /// Asks the vendor about a job, and copies the video if it is done.
    async fn ask(&self, claim: &mut JobClaim, running: &RunningJob) -> anyhow::Result<NextTurn> {
        let vendor = self.vendor(&claim.job.vendor);
        let outlet = self.studio.outlet(&claim.job.vendor, &running.route);
        let (Some(vendor), Some(outlet)) = (vendor, outlet) else {
            let (job, route) = (&claim.job.id, &running.route);
            log::warn!(
                event = "video_route_unknown", job, route;
                "this process does not know the job's route"
            );
            return self.later(claim, ELSEWHERE_MS, false).await;
        };
        if running.made_ms.is_some() && self.room.copies.available_permits() == 0 {
            return self.later(claim, CROWDED_MS, false).await;
        }
        let asking = self.studio.ask(outlet, &vendor, &running.vendor_id);
        let turn = match self.kept(claim, asking).await? {
            PollOutcome::Said(polled) => claim.job.told(Some(polled), now_ms()),
            PollOutcome::NoSuch => claim.job.told(None, now_ms()),
            PollOutcome::Nothing(wait) => {
                claim.job.unanswered();
                let wait = ms(wait.unwrap_or_default()).max(self.poll_ms());
                return self.later(claim, wait, true).await;
            }
        };
        let (url, outcome) = match turn {
            JobTransition::Later => return self.later(claim, self.poll_ms(), true).await,
            JobTransition::Over(outcome) => return self.decide(claim, outcome).await,
            JobTransition::Copy { url, outcome } => (url, outcome),
        };
        // From here on it has more time, whoever copies it.
        if let NextTurn::Away = self.save(claim, None).await? {
            return Ok(NextTurn::Away);
        }
        if claim.deleted {
            return self.decide(claim, outcome).await;
        }
        let Ok(_room) = self.room.copies.try_acquire() else {
            return self.later(claim, CROWDED_MS, false).await;
        };
        let Err(why) = self.kept(claim, self.copy(outlet, &url, claim)).await? else {
            return self.decide(claim, outcome).await;
        };
        log::warn!(
            event = "video_copy_failed", job = claim.job.id, why:% = why;
            "a video was not copied"
        );
        // The vendor's file is given up after some tries; our own store has its time to come back.
        if matches!(why, CopyError::Store(_)) {
            return self.later(claim, self.schedule.pause_ms(2), true).await;
        }
        if let Some(failures) = claim.job.uncopied(&self.schedule) {
            return self.later(claim, self.schedule.pause_ms(failures), true).await;
        }
        self.decide(claim, JobOutcome::failed(JobFailCode::Undelivered, "")).await
    }

    /// Comes back to a job that a vendor has after so long (ms), unless its time is over. `asked`
    /// is whether the vendor was.
    async fn later(
        &self,
        claim: &mut JobClaim,
        due_ms: u64,
        asked: bool,
    ) -> anyhow::Result<NextTurn> {
        let now_ms = now_ms();
        if let Some(outcome) = claim.overdue(&self.schedule, now_ms, asked) {
            return self.decide(claim, outcome).await;
        }
        let due_ms = claim.pause_ms(&self.schedule, now_ms, due_ms);
        self.save(claim, Some(due_ms)).await
    }

    async fn decide(&self, claim: &mut JobClaim, outcome: JobOutcome) -> anyhow::Result<NextTurn> {
        let before = claim.job.clone();
        claim.job.decide(outcome.clone(), now_ms());
        let go = self.keep(claim, None, true).await?;
        if let (NextTurn::On, JobOutcome::Failed { message, .. }) = (&go, &outcome)
            && before.may_be_billed(&outcome)
        {
            mourn(&before, message);
        }
        Ok(go)
    }

    async fn save(&self, claim: &mut JobClaim, due_ms: Option<u64>) -> anyhow::Result<NextTurn> {
        self.keep(claim, due_ms, false).await
    }

    /// Saves a claim, for as long as that takes: what has happened must not be forgotten.
    async fn keep(
        &self,
        claim: &mut JobClaim,
        due_ms: Option<u64>,
        forget_body: bool,
    ) -> anyhow::Result<NextTurn> {
        let next = ClaimUpdate { due_ms, forget_body };
        let (began, mut wait) = (Instant::now(), RETRY_WAIT_MIN);
        let saved = loop {
            match self.queue.save(claim, next).await {
                Ok(saved) => break saved,
                Err(why) if began.elapsed() > RETRY_TIME => return Err(why.into()),
                Err(why) => log::warn!(
                    event = "video_save_retry", job = claim.job.id, why:% = why;
                    "it will be saved again"
                ),
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_WAIT_MAX);
        };
        if !saved {
            log::warn!(
                event = "video_claim_lost", job = claim.job.id;
                "another worker has the job by now"
            );
        } else if forget_body {
            self.forget_body(claim).await;
        }
        Ok(if saved && due_ms.is_none() { NextTurn::On } else { NextTurn::Away })
    }

    /// Keeps the claim while something is waited for.
    async fn kept<T>(
        &self,
        claim: &JobClaim,
        waited: impl Future<Output = T>,
    ) -> anyhow::Result<T> {
        let lease_ms = self.schedule.lease_ms;
        let renewing = async {
            let every = Duration::from_millis(lease_ms / 3);
            let (mut pause, mut heard) = (every, Instant::now());
            // Who hears nothing for so long has to let go: what it says may be heard all the same.
            while heard.elapsed() < every * DEAF_MAX {
                sleep(pause).await;
                match timeout(every, self.queue.renew(claim, lease_ms)).await {
                    Ok(Ok(false)) => return,
                    Ok(Ok(true)) => (pause, heard) = (every, Instant::now()),
                    _ => {
                        log::warn!(
                            event = "video_claim_renewal_failed", job = claim.job.id;
                            "not renewed"
                        );
                        pause = AGAIN.min(every);
                    }
                }
            }
        };
        tokio::select! {
            done = waited => Ok(done),
            () = renewing => bail!("another worker has the job by now"),
        }
    }

    /// How a vendor is spoken to, as its rules say.
    fn vendor(&self, token: &str) -> Option<Arc<Vendor>> {
        let catalogue = self.catalogue.load();
        let model = catalogue.models().iter().find(|model| model.vendor.token == token);
        model.map(|model| model.vendor.clone())
    }

    /// When to ask again, in ms: not all jobs at the same moment.
    fn poll_ms(&self) -> u64 {
        let spread = self.schedule.poll_ms / 5;
        let random = getrandom::u32().map_or(0, u64::from);
        self.schedule.poll_ms - spread / 2 + random % (spread + 1)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Now, in unix ms.
fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_millis()).ok()).unwrap_or_default()
}
