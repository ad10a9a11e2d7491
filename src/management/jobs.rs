//! Video jobs of all accounts, as operators see them.

use super::accounts::require_account;
use super::error::ManagementError;
use crate::jobs::{
    Job, JobCursor, JobFilter, JobOutcome, JobStage, JobStatus, ListedJob, RunningJob,
};
use crate::money::Money;
use crate::store::OpenStore;

/// What people are told of a video job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JobView {
    pub(crate) job: Job,
    /// Whether its client deleted it.
    pub(crate) deleted: bool,
    /// `queued`, `submitting`, `running`, `settling` or `ended`.
    pub(crate) stage: &'static str,
    /// What is held for the job; nothing once it has ended.
    pub(crate) held: Money,
    /// What the job has cost; `None` before it has ended.
    pub(crate) charged: Option<Money>,
    /// The route over which it was sent, or is being sent; `None` if there is none.
    pub(crate) route: Option<String>,
    /// The vendor's id of the job.
    pub(crate) vendor_id: Option<String>,
    /// When its outcome was decided, in unix ms.
    pub(crate) ended_at: Option<i64>,
    /// How often no route accepted it, as long as it is not with a vendor.
    pub(crate) refused: u32,
    /// What went wrong lately while a vendor works on it.
    pub(crate) troubles: PollTroubles,
    /// Why it failed: the code, and the reason for people.
    pub(crate) error: Option<(&'static str, String)>,
}

/// What went wrong with a job in a row, while a vendor works on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PollTroubles {
    /// How many polls got no answer.
    pub(crate) unanswered: u32,
    /// How many polls the vendor answered with "not found".
    pub(crate) not_found: u32,
    /// How many attempts to copy the file failed.
    pub(crate) uncopied: u32,
}

/// A part of the list of jobs.
pub(crate) struct JobsPart {
    pub(crate) jobs: Vec<JobView>,
    /// Where the next part begins; `None` if this is the last one.
    pub(crate) next: Option<JobCursor>,
}

impl JobView {
    fn new(ListedJob { job, deleted }: ListedJob) -> JobView {
        let held = if job.is_open() { job.held } else { Money::ZERO };
        let mut view = JobView {
            stage: "queued",
            deleted,
            held,
            charged: None,
            route: None,
            vendor_id: None,
            ended_at: None,
            refused: 0,
            troubles: PollTroubles::default(),
            error: None,
            job,
        };
        match view.job.stage.clone() {
            JobStage::Queued { refused } => view.refused = refused,
            JobStage::Submitting { route, refused } => {
                (view.stage, view.refused, view.route) = ("submitting", refused, Some(route));
            }
            JobStage::Running(running) => view.tell_running(running),
            JobStage::Settling { outcome, at_ms } => {
                view.stage = "settling";
                view.tell_outcome(outcome, at_ms);
                // It is not in the books yet.
                view.charged = None;
            }
            JobStage::Ended { outcome, at_ms } => {
                view.stage = "ended";
                view.tell_outcome(outcome, at_ms);
            }
        }
        view
    }

    fn tell_running(&mut self, running: RunningJob) {
        self.stage = "running";
        (self.route, self.vendor_id) = (Some(running.route), Some(running.vendor_id));
        self.troubles = PollTroubles {
            unanswered: running.unanswered_polls,
            not_found: running.not_found_polls,
            uncopied: running.copy_failures,
        };
    }

    fn tell_outcome(&mut self, outcome: JobOutcome, at_ms: i64) {
        self.ended_at = Some(at_ms);
        match outcome {
            JobOutcome::Completed { route, vendor_id, charge, .. } => {
                (self.route, self.vendor_id) = (Some(route), Some(vendor_id));
                self.charged = Some(charge);
            }
            JobOutcome::Failed { code, message } => {
                self.charged = Some(Money::ZERO);
                self.error = Some((code.name(), message));
            }
        }
    }
}

/// Returns a part of the list of jobs, which are ordered by account and id: at most `limit`, and
/// fewer also if more follow.
pub(crate) async fn list_jobs(
    store: &OpenStore,
    filter: &JobFilter,
    after: Option<&JobCursor>,
    limit: u32,
) -> Result<JobsPart, ManagementError> {
    if let Some(account) = &filter.account {
        require_account(&*store.ledger, account).await?;
    }
    let listing = store.queue.list_all_jobs(filter, after, limit as usize).await?;
    let jobs = listing.jobs.into_iter().map(JobView::new).collect();
    Ok(JobsPart { jobs, next: listing.next })
}

/// Parses the state of a job.
pub(crate) fn parse_job_state(text: &str) -> Result<JobStatus, ManagementError> {
    let known = JobStatus::ALL.into_iter().find(|status| status.name() == text);
    known.ok_or_else(|| {
        let names = JobStatus::ALL.map(JobStatus::name).join(", ");
        let message = format!("'{text}' is no state of a job: the states are {names}");
        ManagementError::Invalid { field: "state", message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::JobFailCode;
    use crate::ledger::AccountName;
    use crate::money::{BilledUnits, UsageBasis, VideoResolution};

    fn nano(nano: i64) -> Money {
        Money::from_nano(nano).expect("money")
    }

    fn view(stage: JobStage) -> JobView {
        let job = Job {
            id: "video_1".to_owned(),
            account: AccountName::parse("acme").expect("a name"),
            key_prefix: "sk-tg-01".to_owned(),
            key_id: None,
            model: "lmd-imagine-video".to_owned(),
            requested_model: None,
            vendor: "vendor_d".to_owned(),
            seconds: 4,
            resolution: VideoResolution::P720,
            size: "1280x720".to_owned(),
            created_ms: 7,
            held: nano(280),
            price_version: "p".to_owned(),
            booked: None,
            cost: None,
            external_body: None,
            trace: None,
            progress: 40,
            stage,
        };
        JobView::new(ListedJob { job, deleted: false })
    }

    #[test]
    fn a_job_tells_what_it_holds_until_it_has_ended_and_then_what_it_cost() {
        let (route, vendor_id) = ("main".to_owned(), "v-1".to_owned());
        let completed = JobOutcome::Completed {
            route: route.clone(),
            depth: 0,
            vendor_id: vendor_id.clone(),
            charge: nano(250),
            usage: BilledUnits::Images { images: 1 },
            basis: UsageBasis::Fixed,
        };
        let failed = JobOutcome::failed(JobFailCode::TimedOut, "late");
        let running = RunningJob {
            route: route.clone(),
            depth: 0,
            vendor_id: vendor_id.clone(),
            finished_ms: None,
            unanswered_polls: 2,
            not_found_polls: 1,
            copy_failures: 0,
        };
        let at_ms = 9;
        for (stage, name, held, charged, vendor) in [
            (JobStage::Queued { refused: 1 }, "queued", 280, None, None),
            (JobStage::Submitting { route, refused: 1 }, "submitting", 280, None, None),
            (JobStage::Running(running), "running", 280, None, Some("v-1")),
            (
                JobStage::Settling { outcome: completed.clone(), at_ms },
                "settling",
                280,
                None,
                Some("v-1"),
            ),
            (JobStage::Ended { outcome: completed, at_ms }, "ended", 0, Some(250), Some("v-1")),
            (JobStage::Ended { outcome: failed, at_ms }, "ended", 0, Some(0), None),
        ] {
            let told = view(stage);
            let told_charge = told.charged.map(Money::nano);
            assert_eq!((told.stage, told.held.nano(), told_charge), (name, held, charged));
            assert_eq!(told.vendor_id.as_deref(), vendor, "{name}");
            assert_eq!(told.ended_at.is_some(), ["settling", "ended"].contains(&name));
            assert_eq!(told.troubles.unanswered, if name == "running" { 2 } else { 0 });
        }
    }

    #[test]
    fn a_state_is_one_of_those_that_clients_see() {
        for status in JobStatus::ALL {
            assert_eq!(parse_job_state(status.name()).expect("a state"), status);
        }
        let told = parse_job_state("open").expect_err("no state").to_string();
        assert!(told.ends_with("the states are queued, in_progress, completed, failed"), "{told}");
    }
}
