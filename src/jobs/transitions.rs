//! The state machine of a job: pure steps from stage to stage, with the time as an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::schedule::JobSchedule;
use super::{Job, JobClaim, JobFailCode, JobOutcome, JobStage, RunningJob};
use crate::dialect::videos::VideoProgress;
use crate::money::{BilledUnits, Money, UsageBasis};

/// After this many "not found" replies in a row the vendor is taken to have lost the job.
const NOT_FOUND_MAX: u32 = 24;
/// A job whose time is over is given up after this many polls without an answer.
const NO_ANSWER_MAX: u32 = 6;
/// If the vendor could not be asked at all, a job is given up after this much more time, in ms.
const UNPOLLED_MS_MAX: i64 = 12 * 60 * 60 * 1_000;
/// The highest progress, in percent, of a video that is not finished.
const PROGRESS_MAX: u8 = 99;

/// The next step of a worker with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobStep {
    /// Saves this outcome without asking a vendor.
    Decide(JobOutcome),
    /// Sends the job to a vendor.
    Submit,
    /// Asks the vendor about the job, and copies the file if it is finished.
    Poll(RunningJob),
    /// Writes the outcome to the ledger.
    Settle(JobOutcome),
    /// Deletes the file; the rest of the job is due again after this many ms.
    DeleteFile(u64),
    /// Deletes the job and its file.
    Remove,
    /// Waits this many ms until the job is due again.
    Wait(u64),
}

/// What follows for a job from the vendor's answer to a poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobTransition {
    /// The video is not finished: the vendor is polled again after the usual interval.
    PollAgain,
    /// The video is finished: its file is copied, and then the job ends with the outcome.
    Copy {
        /// The URL of the file at the vendor.
        url: String,
        /// The outcome, once the file is copied.
        outcome: JobOutcome,
    },
    /// The job ends with this outcome.
    Finished(JobOutcome),
}

impl JobOutcome {
    /// Makes a failure. An empty message is replaced by the default message of the code.
    #[must_use]
    pub fn failed(code: JobFailCode, message: &str) -> JobOutcome {
        let message = if message.is_empty() { code.default_message() } else { message };
        JobOutcome::Failed { code, message: message.to_owned() }
    }
}

impl JobFailCode {
    /// Returns the meaning of the code, for people.
    #[must_use]
    pub(crate) fn default_message(self) -> &'static str {
        match self {
            JobFailCode::ModerationBlocked => "the vendor's safety rules do not allow this video",
            JobFailCode::VendorFailed => "the vendor did not produce the video",
            JobFailCode::TimedOut => "the video was not finished in time",
            JobFailCode::Undelivered => "the video was made, but could not be handed over",
        }
    }

    /// Returns the name that is used in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobFailCode::ModerationBlocked => "moderation_blocked",
            JobFailCode::VendorFailed => "vendor_failed",
            JobFailCode::TimedOut => "timed_out",
            JobFailCode::Undelivered => "undelivered",
        }
    }
}

impl JobClaim {
    /// Returns the next step of the job at the time `now_ms` (unix ms).
    #[must_use]
    pub(crate) fn next_step(&self, schedule: &JobSchedule, now_ms: i64) -> JobStep {
        let job = &self.job;
        let age_ms = now_ms.saturating_sub(job.created_ms);
        let late = age_ms >= to_i64(schedule.timeout_ms);
        let failed = |code, message| JobStep::Decide(JobOutcome::failed(code, message));
        match &job.stage {
            JobStage::Queued { .. } if self.deleted => {
                failed(JobFailCode::VendorFailed, "deleted before a vendor had it")
            }
            JobStage::Queued { .. } if late => failed(JobFailCode::TimedOut, ""),
            // The vendor would hardly finish the video in the time that is left, and would bill it
            // all the same.
            JobStage::Queued { .. } if !self.is_worth_submitting(schedule, now_ms) => {
                let left = to_i64(schedule.timeout_ms).saturating_sub(age_ms);
                JobStep::Wait(u64::try_from(left).unwrap_or(0))
            }
            JobStage::Queued { .. } => JobStep::Submit,
            JobStage::Submitting { .. } => failed(
                JobFailCode::VendorFailed,
                "it is not known whether the vendor received it, so it is not sent again",
            ),
            JobStage::Running(running) => JobStep::Poll(running.clone()),
            JobStage::Settling { outcome, .. } => JobStep::Settle(outcome.clone()),
            JobStage::Ended { at_ms, .. } => match retention_left_ms(*at_ms, schedule, now_ms) {
                0 => JobStep::Remove,
                left if self.deleted => JobStep::DeleteFile(left),
                left => JobStep::Wait(left),
            },
        }
    }
}

impl JobClaim {
    /// Whether a queued job is still to be sent at the time `now_ms` (unix ms): it was not deleted,
    /// and less than three quarters of its time have passed.
    #[must_use]
    pub(crate) fn is_worth_submitting(&self, schedule: &JobSchedule, now_ms: i64) -> bool {
        let age_ms = now_ms.saturating_sub(self.job.created_ms);
        !self.deleted && age_ms < to_i64(schedule.timeout_ms / 4 * 3)
    }

    /// Returns the failure of a running job whose time is over at `now_ms` (unix ms); `None` while
    /// it has time left. The time is over only after a poll (`was_polled`) that the vendor
    /// answered, or after several polls without an answer: so a video that was finished while no
    /// worker ran is still found. Otherwise 12 h more are allowed. A video that the vendor has made
    /// gets the whole timeout once more, for the copy.
    #[must_use]
    pub(crate) fn overdue_outcome(
        &self,
        schedule: &JobSchedule,
        now_ms: i64,
        was_polled: bool,
    ) -> Option<JobOutcome> {
        let JobStage::Running(running) = &self.job.stage else { return None };
        let (since_ms, code) = match running.finished_ms {
            Some(finished_ms) => (finished_ms, JobFailCode::Undelivered),
            None => (self.job.created_ms, JobFailCode::TimedOut),
        };
        let is_poll_conclusive = was_polled
            && (running.unanswered_polls == 0 || running.unanswered_polls >= NO_ANSWER_MAX);
        let extra_ms = if is_poll_conclusive { 0 } else { UNPOLLED_MS_MAX };
        let most_ms = to_i64(schedule.timeout_ms).saturating_add(extra_ms);
        (now_ms.saturating_sub(since_ms) >= most_ms).then(|| JobOutcome::failed(code, ""))
    }

    /// Returns how long (ms) a running job waits for its next poll: `wanted_ms`, but not beyond the
    /// end of the job's time if that is still ahead.
    #[must_use]
    pub(crate) fn capped_wait_ms(
        &self,
        schedule: &JobSchedule,
        now_ms: i64,
        wanted_ms: u64,
    ) -> u64 {
        let end_ms = self.job.created_ms.saturating_add(to_i64(schedule.timeout_ms));
        match u64::try_from(end_ms.saturating_sub(now_ms)) {
            Ok(left_ms) if left_ms > 0 => wanted_ms.min(left_ms),
            _ => wanted_ms,
        }
    }
}

impl Job {
    /// Sets the stage to `Submitting` over this route.
    pub(crate) fn mark_submitting(&mut self, route: &str) {
        let refused = self.refusal_count();
        self.stage = JobStage::Submitting { route: route.to_owned(), refused };
    }

    /// Sets the stage back to `Queued`: no route accepted the job, and no vendor has begun any
    /// work. Returns how many times this has happened.
    pub(crate) fn requeue(&mut self) -> u32 {
        let refused = self.refusal_count().saturating_add(1);
        self.stage = JobStage::Queued { refused };
        refused
    }

    /// Whether the job ended so long ago, at `now_ms` (unix ms), that it is hidden from its client.
    /// Only a worker still sees it, to delete it.
    #[must_use]
    pub(crate) fn is_expired(&self, schedule: &JobSchedule, now_ms: i64) -> bool {
        match self.stage {
            JobStage::Ended { at_ms, .. } => retention_left_ms(at_ms, schedule, now_ms) == 0,
            _ => false,
        }
    }

    /// Whether a vendor may bill the job although it ends with this failure: the video was made, or
    /// may have been.
    #[must_use]
    pub(crate) fn may_be_billed(&self, outcome: &JobOutcome) -> bool {
        let JobOutcome::Failed { code, .. } = outcome else { return false };
        match &self.stage {
            JobStage::Submitting { .. } => *code == JobFailCode::VendorFailed,
            JobStage::Running(running) => {
                let finished_or_not_found =
                    running.finished_ms.is_some() || running.not_found_polls > 0;
                *code != JobFailCode::VendorFailed || finished_or_not_found
            }
            _ => false,
        }
    }

    fn refusal_count(&self) -> u32 {
        match self.stage {
            JobStage::Queued { refused } | JobStage::Submitting { refused, .. } => refused,
            _ => 0,
        }
    }

    /// Sets the stage to `Running`. `depth` is how many routes refused the job before.
    pub(crate) fn mark_running(&mut self, route: &str, depth: u32, vendor_id: String) {
        let route = route.to_owned();
        let running = RunningJob {
            route,
            depth,
            vendor_id,
            finished_ms: None,
            unanswered_polls: 0,
            not_found_polls: 0,
            copy_failures: 0,
        };
        self.stage = JobStage::Running(running);
    }

    /// Sets the stage to `Settling` with this outcome.
    pub(crate) fn mark_settling(&mut self, outcome: JobOutcome, now_ms: i64) {
        self.stage = JobStage::Settling { outcome, at_ms: now_ms };
    }

    /// Sets the stage to `Ended` once the ledger has the outcome. The end is the time when the
    /// outcome was decided, not when it was settled.
    pub(crate) fn mark_ended(&mut self) {
        if let JobStage::Settling { outcome, at_ms } = &self.stage {
            self.stage = JobStage::Ended { outcome: outcome.clone(), at_ms: *at_ms };
        }
    }

    /// Counts a poll that the vendor did not answer.
    pub(crate) fn record_no_answer(&mut self) {
        if let JobStage::Running(running) = &mut self.stage {
            running.unanswered_polls = running.unanswered_polls.saturating_add(1);
        }
    }

    /// Applies the vendor's answer to a poll at `now_ms` (unix ms). `None` means that the vendor
    /// does not know the job.
    pub(crate) fn apply_progress(
        &mut self,
        polled: Option<VideoProgress>,
        now_ms: i64,
    ) -> JobTransition {
        let (held, seconds, resolution) = (self.held, self.seconds, self.resolution);
        let booked = self.booked.as_ref();
        let JobStage::Running(running) = &mut self.stage else { return JobTransition::PollAgain };
        running.unanswered_polls = 0;
        let Some(polled) = polled else {
            running.not_found_polls += 1;
            if running.not_found_polls < NOT_FOUND_MAX {
                return JobTransition::PollAgain;
            }
            let message = "the vendor does not know the video any more";
            return JobTransition::Finished(JobOutcome::failed(JobFailCode::VendorFailed, message));
        };
        running.not_found_polls = 0;
        match polled {
            VideoProgress::Pending { progress } => {
                let progress = progress.unwrap_or(0).min(PROGRESS_MAX);
                self.progress = self.progress.max(progress);
                JobTransition::PollAgain
            }
            VideoProgress::Done { url, ticks } => {
                running.finished_ms.get_or_insert(now_ms);
                let billed = ticks.and_then(|ticks| {
                    let bill = Money::from_ticks(ticks).ok()?;
                    let charge = booked.map_or(Ok(bill), |booked| booked.charge(bill, held));
                    Some((ticks, charge.ok()?))
                });
                let outcome = JobOutcome::Completed {
                    route: running.route.clone(),
                    depth: running.depth,
                    vendor_id: running.vendor_id.clone(),
                    charge: billed.map_or(held, |(_, charge)| charge),
                    usage: BilledUnits::Video {
                        seconds,
                        resolution,
                        ticks: billed.map(|(t, _)| t),
                    },
                    basis: if billed.is_some() { UsageBasis::Reported } else { UsageBasis::Fixed },
                };
                self.progress = PROGRESS_MAX;
                JobTransition::Copy { url, outcome }
            }
            VideoProgress::Blocked { message } => JobTransition::Finished(JobOutcome::failed(
                JobFailCode::ModerationBlocked,
                &message,
            )),
            VideoProgress::Failed { .. } if running.finished_ms.is_some() => {
                JobTransition::Finished(JobOutcome::failed(JobFailCode::Undelivered, ""))
            }
            VideoProgress::Failed { message } => {
                JobTransition::Finished(JobOutcome::failed(JobFailCode::VendorFailed, &message))
            }
            VideoProgress::NoFile { message } => {
                JobTransition::Finished(JobOutcome::failed(JobFailCode::Undelivered, &message))
            }
        }
    }

    /// Counts a failed copy of the file. Returns the number of failures; `None` if no more copies
    /// are tried.
    pub(crate) fn record_copy_failure(&mut self, schedule: &JobSchedule) -> Option<u32> {
        let JobStage::Running(running) = &mut self.stage else { return None };
        running.copy_failures += 1;
        (running.copy_failures < schedule.copies_max).then_some(running.copy_failures)
    }
}

/// Returns how long a job that ended at `ended_ms` is still kept, in ms.
fn retention_left_ms(ended_ms: i64, schedule: &JobSchedule, now_ms: i64) -> u64 {
    let until = ended_ms.saturating_add(to_i64(schedule.keep_ms));
    u64::try_from(until.saturating_sub(now_ms)).unwrap_or(0)
}

fn to_i64(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::JobStatus;
    use crate::ledger::AccountName;
    use crate::money::VideoResolution;
    use proptest::prelude::*;
    use rstest::rstest;

    const MINUTE: i64 = 60_000;
    const DAY: i64 = 24 * 60 * MINUTE;

    fn job() -> Job {
        Job {
            id: "video_019a0000-0000-7000-8000-000000000000".to_owned(),
            account: AccountName::parse("alice").expect("a name"),
            key_prefix: "sk-abc".to_owned(),
            key_id: None,
            model: "lmd-imagine-video".to_owned(),
            requested_model: None,
            vendor: "vendor_d".to_owned(),
            seconds: 4,
            resolution: VideoResolution::P720,
            size: "1280x720".to_owned(),
            created_ms: 1_000,
            held: Money::from_nano(280_000_000).expect("money"),
            price_version: "p".to_owned(),
            booked: None,
            cost: None,
            external_body: None,
            trace: None,
            progress: 0,
            stage: JobStage::Queued { refused: 0 },
        }
    }

    fn running() -> Job {
        let mut job = job();
        job.mark_submitting("main");
        job.mark_running("main", 1, "v1".to_owned());
        job
    }

    fn claim(job: Job, deleted: bool) -> JobClaim {
        JobClaim { job, deleted, revision: 1 }
    }

    fn done(ticks: Option<u64>) -> VideoProgress {
        VideoProgress::Done { url: "https://v.test/a.mp4".to_owned(), ticks }
    }

    fn failed(code: JobFailCode) -> JobOutcome {
        JobOutcome::failed(code, "why")
    }

    fn code(step: &JobStep) -> Option<JobFailCode> {
        match step {
            JobStep::Decide(JobOutcome::Failed { code, message }) if !message.is_empty() => {
                Some(*code)
            }
            _ => None,
        }
    }

    #[test]
    fn a_job_that_goes_well_goes_through_every_stage_once() {
        let schedule = JobSchedule::default();
        let mut claim = claim(job(), false);
        let next = |claim: &JobClaim| claim.next_step(&schedule, 2_000);
        assert_eq!(next(&claim), JobStep::Submit);
        claim.job.mark_submitting("main");
        assert_eq!(claim.job.status(), JobStatus::Queued);
        claim.job.mark_running("main", 0, "v1".to_owned());
        assert_eq!(claim.job.status(), JobStatus::InProgress);
        assert!(matches!(next(&claim), JobStep::Poll(_)));
        assert_eq!(
            claim.job.apply_progress(Some(VideoProgress::Pending { progress: Some(40) }), 0),
            JobTransition::PollAgain
        );
        assert_eq!(
            claim.job.apply_progress(Some(VideoProgress::Pending { progress: Some(30) }), 0),
            JobTransition::PollAgain
        );
        assert_eq!(claim.job.progress, 40, "progress does not go back");
        let JobTransition::Copy { url, outcome } =
            claim.job.apply_progress(Some(done(Some(2_900_000_001))), 0)
        else {
            panic!("it is done")
        };
        assert_eq!(url, "https://v.test/a.mp4");
        let JobOutcome::Completed { charge, basis, .. } = &outcome else { panic!("completed") };
        assert_eq!((charge.nano(), *basis), (290_000_001, UsageBasis::Reported));
        claim.job.mark_settling(outcome.clone(), 7_000);
        assert_eq!(claim.job.status(), JobStatus::InProgress, "not before it is paid");
        assert_eq!(next(&claim), JobStep::Settle(outcome));
        claim.job.mark_ended();
        assert_eq!(claim.job.status(), JobStatus::Completed);
        assert_eq!(claim.next_step(&schedule, 7_000), JobStep::Wait(7 * 24 * 60 * 60 * 1_000));
        assert_eq!(claim.next_step(&schedule, 7_000 + 7 * DAY), JobStep::Remove);
    }

    #[test]
    fn without_a_bill_the_price_of_its_seconds_is_charged() {
        let JobTransition::Copy { outcome, .. } = running().apply_progress(Some(done(None)), 0)
        else {
            panic!("it is done")
        };
        let expected = JobOutcome::Completed {
            route: "main".to_owned(),
            depth: 1,
            vendor_id: "v1".to_owned(),
            charge: Money::from_nano(280_000_000).expect("money"),
            usage: BilledUnits::Video {
                seconds: 4,
                resolution: VideoResolution::P720,
                ticks: None,
            },
            basis: UsageBasis::Fixed,
        };
        assert_eq!(outcome, expected);
    }

    /// A worker that finds a job in the stage `Submitting` must not send it again, whatever else is
    /// true.
    #[test]
    fn what_may_have_been_sent_is_never_sent_again() {
        let mut job = job();
        job.mark_submitting("main");
        for (deleted, now) in [(false, 1_000), (true, 1_000), (false, 99 * DAY)] {
            let step = claim(job.clone(), deleted).next_step(&JobSchedule::default(), now);
            assert_eq!(code(&step), Some(JobFailCode::VendorFailed));
        }
    }

    #[rstest]
    #[case::queued_in_time(job(), 20 * MINUTE + 999, None)]
    #[case::queued_too_long(job(), 20 * MINUTE + 1_000, Some(JobFailCode::TimedOut))]
    fn a_job_has_twenty_minutes(
        #[case] job: Job,
        #[case] now: i64,
        #[case] expected: Option<JobFailCode>,
    ) {
        assert_eq!(code(&claim(job, false).next_step(&JobSchedule::default(), now)), expected);
    }

    #[rstest]
    #[case::in_time(None, 0, true, 20 * MINUTE + 999, None)]
    #[case::too_long(None, 0, true, 20 * MINUTE + 1_000, Some(JobFailCode::TimedOut))]
    #[case::nobody_asked(None, 0, false, 99 * MINUTE, None)]
    #[case::nobody_can_ask(None, 0, false, DAY, Some(JobFailCode::TimedOut))]
    #[case::no_answer_yet(None, 5, true, 99 * MINUTE, None)]
    #[case::no_answer_at_all(None, 6, true, 99 * MINUTE, Some(JobFailCode::TimedOut))]
    #[case::found_made_late(Some(DAY), 0, true, DAY + 20 * MINUTE - 1, None)]
    #[case::never_copied(Some(DAY), 0, true, DAY + 20 * MINUTE, Some(JobFailCode::Undelivered))]
    fn a_job_that_runs_is_asked_for_once_more_and_then_is_over(
        #[case] finished_ms: Option<i64>,
        #[case] unanswered: u32,
        #[case] was_polled: bool,
        #[case] now: i64,
        #[case] expected: Option<JobFailCode>,
    ) {
        let mut job = running();
        if let Some(finished_ms) = finished_ms {
            let _ = job.apply_progress(Some(done(None)), finished_ms);
        }
        (0..unanswered).for_each(|_| job.record_no_answer());
        let claim = claim(job, false);
        assert!(matches!(claim.next_step(&JobSchedule::default(), now), JobStep::Poll(_)));
        let overdue =
            claim.overdue_outcome(&JobSchedule::default(), now, was_polled).map(JobStep::Decide);
        assert_eq!(overdue.as_ref().and_then(code), expected);
    }

    #[test]
    fn no_pause_passes_the_end_of_a_job() {
        let pause =
            |now| claim(running(), false).capped_wait_ms(&JobSchedule::default(), now, 300_000);
        assert_eq!([2_000, 19 * MINUTE, DAY].map(pause), [300_000, 61_000, 300_000]);
    }

    #[test]
    fn what_a_vendor_may_bill_is_told_apart() {
        let billed = |job: &Job, code| job.may_be_billed(&failed(code));
        let mut job = job();
        assert!(!billed(&job, JobFailCode::VendorFailed));
        job.mark_submitting("main");
        assert!(billed(&job, JobFailCode::VendorFailed));
        job.mark_running("main", 0, "v1".to_owned());
        assert!(!billed(&job, JobFailCode::VendorFailed));
        assert!(
            billed(&job, JobFailCode::TimedOut) && billed(&job, JobFailCode::ModerationBlocked)
        );
        let _ = job.apply_progress(Some(done(None)), 0);
        assert!(billed(&job, JobFailCode::VendorFailed));
        let given_up =
            job.apply_progress(Some(VideoProgress::Failed { message: "gone".to_owned() }), 0);
        assert_eq!(
            given_up,
            JobTransition::Finished(JobOutcome::failed(JobFailCode::Undelivered, ""))
        );
    }

    #[test]
    fn nothing_is_sent_that_could_not_be_finished_in_time() {
        let step = |now| claim(job(), false).next_step(&JobSchedule::default(), now);
        assert_eq!(step(15 * MINUTE + 999), JobStep::Submit);
        assert_eq!(step(15 * MINUTE + 1_000), JobStep::Wait(300_000));
    }

    #[test]
    fn what_was_deleted_before_it_was_sent_is_not_sent() {
        let step = claim(job(), true).next_step(&JobSchedule::default(), 2_000);
        assert_eq!(code(&step), Some(JobFailCode::VendorFailed));
        let step = claim(running(), true).next_step(&JobSchedule::default(), 2_000);
        assert!(matches!(step, JobStep::Poll(_)), "the vendor bills it");
    }

    #[test]
    fn a_deleted_job_loses_its_file_at_once_and_the_rest_in_the_end() {
        let mut job = running();
        job.mark_settling(failed(JobFailCode::VendorFailed), 5_000);
        job.mark_ended();
        let claim = claim(job, true);
        assert_eq!(
            claim.next_step(&JobSchedule::default(), 6_000),
            JobStep::DeleteFile(604_799_000)
        );
        assert_eq!(claim.next_step(&JobSchedule::default(), 5_000 + 7 * DAY), JobStep::Remove);
    }

    #[rstest]
    #[case::blocked(
        VideoProgress::Blocked { message: "no".to_owned() },
        JobFailCode::ModerationBlocked
    )]
    #[case::failed(VideoProgress::Failed { message: "no".to_owned() }, JobFailCode::VendorFailed)]
    fn what_the_vendor_does_not_make_costs_nothing(
        #[case] polled: VideoProgress,
        #[case] expected: JobFailCode,
    ) {
        let JobTransition::Finished(JobOutcome::Failed { code, message }) =
            running().apply_progress(Some(polled), 0)
        else {
            panic!("it failed")
        };
        assert_eq!((code, message.as_str()), (expected, "no"));
    }

    #[test]
    fn a_vendor_may_lose_sight_of_a_job_for_a_while() {
        let mut job = running();
        for _ in 0..2 {
            for _ in 1..NOT_FOUND_MAX {
                assert_eq!(job.apply_progress(None, 0), JobTransition::PollAgain);
            }
            assert_eq!(
                job.apply_progress(Some(VideoProgress::Pending { progress: None }), 0),
                JobTransition::PollAgain
            );
        }
        let last = (0..NOT_FOUND_MAX).map(|_| job.apply_progress(None, 0)).last();
        assert!(matches!(last, Some(JobTransition::Finished(JobOutcome::Failed { .. }))));
    }

    #[test]
    fn a_copy_is_tried_so_many_times() {
        let schedule = JobSchedule { copies_max: 3, ..JobSchedule::default() };
        let mut job = running();
        assert_eq!([1, 2, 3].map(|_| job.record_copy_failure(&schedule)), [Some(1), Some(2), None]);
    }

    #[test]
    fn refusals_are_counted_over_all_tries() {
        let mut job = job();
        job.mark_submitting("one");
        assert_eq!(job.requeue(), 1);
        job.mark_submitting("two");
        assert_eq!(job.requeue(), 2);
    }

    proptest! {
        #[test]
        fn a_job_reads_back_from_the_store(
            seconds in 1..=15u64,
            progress in 0..=99u8,
            made in any::<bool>(),
            charge in 0..=i64::MAX,
            stage in 0..5,
        ) {
            let mut job = running();
            (job.seconds, job.progress) = (seconds, progress);
            job.held = Money::from_nano(charge).expect("money");
            match stage {
                0 => job.stage = JobStage::Queued { refused: 3 },
                1 => job.mark_submitting("other"),
                2 => {
                    let pending = VideoProgress::Pending { progress: None };
            let polled = if made { done(None) } else { pending };
                    let _ = job.apply_progress(Some(polled), 5);
                }
                _ => {
                    let turn = job.apply_progress(Some(done(Some(1))), 0);
                    let JobTransition::Copy { outcome, .. } = turn else { panic!("it is done") };
                    job.mark_settling(outcome, 77);
                    if stage == 4 { job.mark_ended(); }
                }
            }
            let text = serde_json::to_string(&job).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<Job>(&text).expect("a job"), job);
        }
    }
}
