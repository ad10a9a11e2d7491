//! The worker: claims jobs that are due, takes each a step further, and saves the result.
//!
//! A claim is a lease, which is renewed while the worker waits for a vendor or a store. Each step
//! is saved before it is done, and a save by a worker that no longer owns the claim is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::transitions::{JobStep, JobTransition};
use super::video_client::{PollOutcome, SubmitOutcome};
use super::{ClaimUpdate, JobClaim, JobFailCode, JobOutcome, RunningJob};
use crate::backoff::Backoff;
use crate::catalogue::Vendor;
use crate::clock::unix_ms;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonPatch};
use crate::ledger::Unavailable;
use crate::metrics::METRICS;

/// Bounds of the interval between two searches for due jobs, in ms. The interval is a tenth of the
/// poll interval; `wakeup` starts a search at once.
const CLAIM_INTERVAL_MS_MIN: u64 = 20;
const CLAIM_INTERVAL_MS_MAX: u64 = 500;
/// If files cannot be written, that is tried again after this time.
const FILE_STORE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// At most this many jobs are in work at one worker at a time.
const JOBS_MAX: usize = 64;
/// The longest interval between two counts of the jobs by status, in ms. The interval is twice the
/// poll interval if that is shorter.
const COUNT_INTERVAL_MS_MAX: u64 = 10_000;
/// The pause before a failed renewal of a claim is tried again.
const RENEW_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// In thirds of a lease: a worker that could not renew its claim for this long gives it up.
const RENEW_MISSES_MAX: u32 = 9;
/// After an outage, workers renew the claims they have for this long before they claim new jobs.
const RENEW_HEAD_START: Duration = Duration::from_secs(3);
/// A job whose route or vendor is not configured at this gateway is due again after this many ms,
/// so that another worker may claim it.
const UNKNOWN_ROUTE_RETRY_MS: u64 = 15_000;
/// A job for which this worker has no capacity is due again after this many ms, so that another
/// worker may claim it.
const NO_CAPACITY_RETRY_MS: u64 = 1_000;

mod alerts;
mod body;
mod copy;
mod parts;
mod retry;
mod settle;
mod suspension;
mod trace;
mod webhooks;

pub(crate) use parts::{JobWorker, WorkerCapacity};

use alerts::{log_possible_loss, log_skipped, log_unanswered};
use body::BodyLocation;
use copy::CopyError;
use parts::NextStep;
use retry::{RETRY_TIME_MAX, RETRY_WAIT_MAX, RETRY_WAIT_MIN, retry_until_done};

impl JobWorker {
    /// Works on jobs until `stop` is set, and then finishes the jobs in work.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        // No job is submitted before files can be written: a finished video could not be stored.
        while !self.check_file_store().await {
            tokio::select! {
                () = sleep(FILE_STORE_RETRY_INTERVAL) => {}
                _ = stop.changed() => return,
            }
        }
        self.idle.store(false, Ordering::SeqCst);
        let claim_interval =
            (self.schedule.poll_ms / 10).clamp(CLAIM_INTERVAL_MS_MIN, CLAIM_INTERVAL_MS_MAX);
        let claim_interval = Duration::from_millis(claim_interval);
        let count_interval = self.schedule.poll_ms.saturating_mul(2).min(COUNT_INTERVAL_MS_MAX);
        let count_interval = Duration::from_millis(count_interval);
        let mut working = JoinSet::new();
        let mut counted: Option<Instant> = None;
        while !*stop.borrow_and_update() {
            while working.try_join_next().is_some() {}
            let room = JOBS_MAX - working.len();
            let claiming = self.queue.claim_due(self.schedule.lease_ms, room);
            let claims = if room == 0 { Ok(Vec::new()) } else { claiming.await };
            let (mut after_outage, mut full) = (false, room == 0);
            match claims {
                Ok(claims) => {
                    full |= claims.len() == room;
                    claims.into_iter().for_each(|claim| {
                        working.spawn(self.clone().work_on(claim));
                    });
                }
                Err(why) => {
                    log::warn!(
                        event = "video_claim_failed", error:% = why;
                        "video job claim failed"
                    );
                    while !*stop.borrow() && !self.count_jobs().await {
                        sleep(RETRY_WAIT_MAX).await;
                    }
                    after_outage = true;
                }
            }
            if counted.is_none_or(|when| when.elapsed() >= count_interval) {
                counted = Some(Instant::now());
                let _ = self.count_jobs().await;
            }
            let pause = if after_outage { RENEW_HEAD_START } else { claim_interval };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wakeup.notified(), if !after_outage => {}
                Some(_) = working.join_next(), if full => {}
                _ = stop.changed() => {}
            }
        }
        while working.join_next().await.is_some() {}
        self.idle.store(true, Ordering::SeqCst);
    }

    /// Counts the jobs by status for the metrics. `false` if the store does not answer.
    async fn count_jobs(&self) -> bool {
        let counts = self.queue.count_by_status().await;
        if let Err(why) = &counts {
            log::warn!(event = "video_count_failed", error:% = why; "video job count failed");
        }
        for (status, jobs) in counts.iter().flatten() {
            let gauge = METRICS.video_jobs.with_label_values(&[status.name()]);
            gauge.set(i64::try_from(*jobs).unwrap_or(i64::MAX));
        }
        counts.is_ok()
    }

    /// Runs the steps of a job until it has to wait or has ended.
    async fn work_on(self: Arc<Self>, mut claim: JobClaim) {
        loop {
            match self.run_step(&mut claim).await {
                Ok(NextStep::Continue) => {}
                Ok(NextStep::Release) => return,
                Err(why) => {
                    // The lease expires, and then another worker takes the job over.
                    log::warn!(
                        event = "video_job_abandoned", job = claim.job.id,
                        error:% = format!("{why:#}");
                        "video job abandoned until its lease expires"
                    );
                    return;
                }
            }
        }
    }

    async fn run_step(&self, claim: &mut JobClaim) -> anyhow::Result<NextStep> {
        match claim.next_step(&self.schedule, unix_ms()) {
            JobStep::Decide(outcome) => self.save_outcome(claim, outcome).await,
            JobStep::Submit => self.submit_unless_suspended(claim).await,
            JobStep::Poll(running) => self.poll(claim, &running).await,
            JobStep::Settle(outcome) => self.settle(claim, &outcome).await,
            JobStep::DeleteFile(left) => {
                self.delete_file(claim).await?;
                self.save(claim, Some(left)).await
            }
            JobStep::Remove => {
                self.delete_file(claim).await?;
                self.queue.remove_job(claim).await?;
                Ok(NextStep::Release)
            }
            JobStep::Wait(left) => self.save(claim, Some(left)).await,
        }
    }

    /// Sends a job over the first route that accepts it.
    async fn submit(&self, claim: &mut JobClaim) -> anyhow::Result<NextStep> {
        let Some(vendor) = self.find_vendor(&claim.job.vendor) else {
            return self.save(claim, Some(UNKNOWN_ROUTE_RETRY_MS)).await;
        };
        let Ok(_room) = self.capacity.submissions.try_acquire() else {
            return self.save(claim, Some(NO_CAPACITY_RETRY_MS)).await;
        };
        // No video is ordered from a vendor while its file could not be stored.
        if self.capacity.is_file_store_down.load(Ordering::Relaxed)
            && !self.check_file_store().await
        {
            return self.save(claim, Some(self.schedule.retry_delay_ms(1))).await;
        }
        let body = match self.load_body(claim).await? {
            BodyLocation::Local(body) => body,
            BodyLocation::Unreachable => {
                return self.save(claim, Some(UNKNOWN_ROUTE_RETRY_MS)).await;
            }
        };
        let document = JsonDocument::parse(body).context("the body cannot be read")?;
        let (mut wait, mut busy, mut depth) = (Duration::ZERO, false, 0);
        let vendor_token = claim.job.vendor.clone();
        for route in self.video_client.routes(&vendor_token) {
            claim.job.mark_submitting(&route.name);
            if let Some(action) = self.persist_attempt(claim).await? {
                return Ok(action);
            }
            let body = with_model(&document, &route.vendor_model(&claim.job.model));
            let reason = match self.submit_traced(claim, route, &vendor, body).await? {
                SubmitOutcome::Accepted(vendor_id) => {
                    claim.job.mark_running(&route.name, depth, vendor_id);
                    return self.save_with_retry(claim, Some(self.next_poll_ms()), true).await;
                }
                SubmitOutcome::Refused(refused) => {
                    let blocked = refused.is_blocked.then_some(JobFailCode::ModerationBlocked);
                    let code = blocked.unwrap_or(JobFailCode::VendorFailed);
                    claim.job.requeue();
                    return self
                        .save_outcome(claim, JobOutcome::failed(code, &refused.message))
                        .await;
                }
                SubmitOutcome::Unknown(why) => {
                    log_unanswered(route, &claim.job.id, &why);
                    let message = "the vendor's answer did not come, so it is not sent again";
                    let outcome = JobOutcome::failed(JobFailCode::VendorFailed, message);
                    return self.save_outcome(claim, outcome).await;
                }
                SubmitOutcome::Busy(after) => {
                    busy = true;
                    wait = wait.max(after.unwrap_or_default());
                    "busy".to_owned()
                }
                SubmitOutcome::Denied(status) => status.as_u16().to_string(),
            };
            log_skipped(route, &claim.job.id, &reason);
            depth += 1;
        }
        let refused = claim.job.requeue();
        if depth > 0 && !busy {
            let message = "the vendor does not serve the gateway at the moment";
            return self
                .save_outcome(claim, JobOutcome::failed(JobFailCode::VendorFailed, message))
                .await;
        }
        let pause = self.schedule.retry_delay_ms(refused);
        self.save(claim, Some(pause.max(duration_ms(wait)))).await
    }

    /// Saves that the job is about to be sent, and waits until that is durable. `None` if the job
    /// may be sent; otherwise what happens to the job instead.
    async fn persist_attempt(&self, claim: &mut JobClaim) -> anyhow::Result<Option<NextStep>> {
        if let NextStep::Release = self.save(claim, None).await? {
            return Ok(Some(NextStep::Release));
        }
        // If the store lost this save in a crash, the job would be sent twice.
        let persisted =
            self.while_renewing(claim, retry_until_done(|| self.queue.await_durable())).await?;
        let pause_ms = persisted.err().map(|why| self.log_persist_failure(&claim.job.id, &why));
        // The waits above may have been long. The job is sent only if it is still wanted, and only
        // by the owner of the claim.
        if !retry_until_done(|| self.queue.renew_claim(claim, self.schedule.lease_ms)).await? {
            bail!("another worker has the job by now");
        }
        if pause_ms.is_some() || !claim.is_worth_submitting(&self.schedule, unix_ms()) {
            claim.job.requeue();
            return self.save(claim, pause_ms).await.map(Some);
        }
        Ok(None)
    }

    /// Logs that a job is not on disk yet. Returns how long the job waits, in ms.
    fn log_persist_failure(&self, job: &str, why: &Unavailable) -> u64 {
        log::error!(
            event = "video_persist_failed", job, error:% = why;
            "video job not persisted; submission is delayed"
        );
        self.schedule.retry_delay_ms(1)
    }

    /// Asks the vendor about a job, and copies the video if it is finished.
    async fn poll(&self, claim: &mut JobClaim, running: &RunningJob) -> anyhow::Result<NextStep> {
        let vendor = self.find_vendor(&claim.job.vendor);
        let route = self.video_client.find_route(&claim.job.vendor, &running.route);
        let (Some(vendor), Some(route)) = (vendor, route) else {
            let (job, route) = (&claim.job.id, &running.route);
            log::warn!(
                event = "video_route_unknown", job, route;
                "video job's route is not configured here"
            );
            return self.poll_later(claim, UNKNOWN_ROUTE_RETRY_MS, false).await;
        };
        if running.finished_ms.is_some() && self.capacity.copies.available_permits() == 0 {
            return self.poll_later(claim, NO_CAPACITY_RETRY_MS, false).await;
        }
        let poll_future = self.video_client.poll(route, &vendor, &running.vendor_id);
        let transition = match self.while_renewing(claim, poll_future).await? {
            PollOutcome::Progress(polled) => claim.job.apply_progress(Some(polled), unix_ms()),
            PollOutcome::NotFound => claim.job.apply_progress(None, unix_ms()),
            PollOutcome::NoAnswer(wait) => {
                claim.job.record_no_answer();
                let wait = duration_ms(wait.unwrap_or_default()).max(self.next_poll_ms());
                return self.poll_later(claim, wait, true).await;
            }
        };
        let (url, outcome) = match transition {
            JobTransition::PollAgain => {
                return self.poll_later(claim, self.next_poll_ms(), true).await;
            }
            JobTransition::Finished(outcome) => return self.save_outcome(claim, outcome).await,
            JobTransition::Copy { url, outcome } => (url, outcome),
        };
        // Once this is saved, the job has more time, no matter which worker copies the file.
        if let NextStep::Release = self.save(claim, None).await? {
            return Ok(NextStep::Release);
        }
        if claim.deleted {
            return self.save_outcome(claim, outcome).await;
        }
        let Ok(_room) = self.capacity.copies.try_acquire() else {
            return self.poll_later(claim, NO_CAPACITY_RETRY_MS, false).await;
        };
        let Err(why) = self.while_renewing(claim, self.copy_video(route, &url, claim)).await?
        else {
            return self.save_outcome(claim, outcome).await;
        };
        log::warn!(
            event = "video_copy_failed", job = claim.job.id, error:% = why;
            "video copy failed"
        );
        // A vendor's file is given up after some failed copies. A failure of the gateway's own
        // store is not counted: it may take its time to come back.
        if matches!(why, CopyError::Store(_)) {
            return self.poll_later(claim, self.schedule.retry_delay_ms(2), true).await;
        }
        if let Some(failures) = claim.job.record_copy_failure(&self.schedule) {
            return self.poll_later(claim, self.schedule.retry_delay_ms(failures), true).await;
        }
        self.save_outcome(claim, JobOutcome::failed(JobFailCode::Undelivered, "")).await
    }

    /// Saves that a running job is due again in `due_ms`, or its failure if its time is over.
    /// `was_polled` is whether the vendor was asked just now.
    async fn poll_later(
        &self,
        claim: &mut JobClaim,
        due_ms: u64,
        was_polled: bool,
    ) -> anyhow::Result<NextStep> {
        let now_ms = unix_ms();
        if let Some(outcome) = claim.overdue_outcome(&self.schedule, now_ms, was_polled) {
            return self.save_outcome(claim, outcome).await;
        }
        let due_ms = claim.capped_wait_ms(&self.schedule, now_ms, due_ms);
        self.save(claim, Some(due_ms)).await
    }

    async fn save_outcome(
        &self,
        claim: &mut JobClaim,
        outcome: JobOutcome,
    ) -> anyhow::Result<NextStep> {
        let before = claim.job.clone();
        claim.job.mark_settling(outcome.clone(), unix_ms());
        let action = self.save_with_retry(claim, None, true).await?;
        if let (NextStep::Continue, JobOutcome::Failed { message, .. }) = (&action, &outcome)
            && before.may_be_billed(&outcome)
        {
            log_possible_loss(&before, message);
        }
        Ok(action)
    }

    async fn save(&self, claim: &mut JobClaim, due_ms: Option<u64>) -> anyhow::Result<NextStep> {
        self.save_with_retry(claim, due_ms, false).await
    }

    /// Saves a claim, and retries for up to 5 minutes: what has happened must not be lost.
    async fn save_with_retry(
        &self,
        claim: &mut JobClaim,
        due_ms: Option<u64>,
        forget_body: bool,
    ) -> anyhow::Result<NextStep> {
        let update = ClaimUpdate { due_ms, forget_body };
        let (began, mut backoff) = (Instant::now(), Backoff::new(RETRY_WAIT_MIN, RETRY_WAIT_MAX));
        let saved = loop {
            match self.queue.save_claim(claim, update).await {
                Ok(saved) => break saved,
                Err(why) if began.elapsed() > RETRY_TIME_MAX => return Err(why.into()),
                Err(why) => log::warn!(
                    event = "video_save_retry", job = claim.job.id, error:% = why;
                    "video job save failed; retrying"
                ),
            }
            backoff.wait().await;
        };
        if !saved {
            log::warn!(
                event = "video_claim_lost", job = claim.job.id;
                "video job claim lost to another worker"
            );
        } else if forget_body {
            self.delete_body(claim).await;
        }
        Ok(if saved && due_ms.is_none() { NextStep::Continue } else { NextStep::Release })
    }

    /// Renews the claim while the future `waited` runs. Fails if the claim is lost or cannot be
    /// renewed.
    async fn while_renewing<T>(
        &self,
        claim: &JobClaim,
        waited: impl Future<Output = T>,
    ) -> anyhow::Result<T> {
        let lease_ms = self.schedule.lease_ms;
        let renewing = async {
            let every = Duration::from_millis(lease_ms / 3);
            let (mut pause, mut last_renewed) = (every, Instant::now());
            // A worker that gets no reply from the store for this long gives the claim up. Its
            // renewals may reach the store although the replies are lost, and would keep the job
            // from other workers.
            while last_renewed.elapsed() < every * RENEW_MISSES_MAX {
                sleep(pause).await;
                let renewed = timeout(every, self.queue.renew_claim(claim, lease_ms)).await;
                let renewed =
                    renewed.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned())));
                match renewed {
                    Ok(false) => return,
                    Ok(true) => (pause, last_renewed) = (every, Instant::now()),
                    Err(why) => {
                        log::warn!(
                            event = "video_claim_renewal_failed", job = claim.job.id, error:% = why;
                            "video job claim renewal failed"
                        );
                        pause = RENEW_RETRY_INTERVAL.min(every);
                    }
                }
            }
        };
        tokio::select! {
            done = waited => Ok(done),
            () = renewing => bail!("another worker has the job by now"),
        }
    }

    /// Returns the vendor with its rules, which describe its API; `None` if no model of it is on
    /// sale.
    fn find_vendor(&self, token: &str) -> Option<Arc<Vendor>> {
        let catalogue = self.catalogue.load();
        let model = catalogue.models().iter().find(|model| model.vendor.name == token);
        model.map(|model| model.vendor.clone())
    }

    /// Returns the time until the next poll, in ms, with a random spread so that jobs are not all
    /// polled at the same moment.
    fn next_poll_ms(&self) -> u64 {
        let spread = self.schedule.poll_ms / 5;
        let random = getrandom::u32().map_or(0, u64::from);
        self.schedule.poll_ms - spread / 2 + random % (spread + 1)
    }
}

/// Returns the body with the model's name on this route.
fn with_model(document: &JsonDocument, vendor_model: &str) -> Bytes {
    let mut patch = JsonPatch::new(document);
    patch.set("model", json_string(vendor_model));
    patch.finish().concat().into()
}

fn duration_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
