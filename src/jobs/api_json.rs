//! The JSON objects of video jobs in the API.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt::Write as _;

use super::schedule::JobSchedule;
use super::{Job, JobList, JobOutcome, JobStage};
use crate::dialect::json::patch::json_string;

impl Job {
    /// Returns the video job object of the API, as JSON.
    #[must_use]
    pub(crate) fn to_api_json(&self, schedule: &JobSchedule) -> String {
        let ended = match &self.stage {
            JobStage::Ended { outcome, at_ms } => Some((outcome, *at_ms)),
            _ => None,
        };
        let completed = matches!(ended, Some((JobOutcome::Completed { .. }, _)));
        let seconds_of = |ms: i64| ms.div_euclid(1_000);
        let keep_ms = i64::try_from(schedule.keep_ms).unwrap_or(i64::MAX);
        let time = |ms: Option<i64>| ms.map_or("null".to_owned(), |ms| seconds_of(ms).to_string());
        let completed_at = time(ended.map(|(_, at)| at));
        let expires_at =
            time(ended.filter(|_| completed).map(|(_, at)| at.saturating_add(keep_ms)));
        let mut view = format!(
            r#"{{"id":{},"object":"video","model":{},"status":"{}","progress":{},"seconds":"{}","size":{},"created_at":{},"completed_at":{completed_at},"expires_at":{expires_at}"#,
            json_string(&self.id),
            json_string(&self.model),
            self.status().name(),
            if completed { 100 } else { self.progress },
            self.seconds,
            json_string(&self.size),
            seconds_of(self.created_ms),
        );
        // Writing to a `String` cannot fail.
        let _ = match ended.map(|(outcome, _)| outcome) {
            None => write!(view, r#","error":null"#),
            Some(JobOutcome::Completed { charge, .. }) => write!(
                view,
                r#","error":null,"usage":{{"seconds":{},"resolution":"{}","cost_usd":{charge}}}"#,
                self.seconds,
                self.resolution.name(),
            ),
            Some(JobOutcome::Failed { code, message }) => write!(
                view,
                r#","error":{{"code":"{}","message":{}}},"usage":{{"seconds":{},"resolution":"{}","cost_usd":0}}"#,
                code.name(),
                json_string(message),
                self.seconds,
                self.resolution.name(),
            ),
        };
        view.push('}');
        view
    }
}

impl JobList {
    /// Returns the list object of the API, as JSON.
    #[must_use]
    pub(crate) fn to_api_json(&self, schedule: &JobSchedule) -> String {
        let data: Vec<String> = self.jobs.iter().map(|job| job.to_api_json(schedule)).collect();
        let id = |job: Option<&Job>| job.map_or("null".to_owned(), |job| json_string(&job.id));
        format!(
            r#"{{"object":"list","data":[{}],"first_id":{},"last_id":{},"has_more":{}}}"#,
            data.join(","),
            id(self.jobs.first()),
            id(self.jobs.last()),
            self.has_more,
        )
    }
}

/// Returns the answer to the deletion of a job, as JSON.
#[must_use]
pub(crate) fn deleted_json(id: &str) -> String {
    format!(r#"{{"id":{},"object":"video.deleted","deleted":true}}"#, json_string(id))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::jobs::JobFailCode;
    use crate::ledger::AccountName;
    use crate::money::{BilledUnits, Money, UsageBasis, VideoResolution};

    fn job(stage: JobStage) -> Job {
        Job {
            id: "video_1".to_owned(),
            account: AccountName::parse("alice").expect("a name"),
            key_prefix: "sk-abc".to_owned(),
            key_id: None,
            model: "lmd-imagine-video".to_owned(),
            requested_model: None,
            vendor: "vendor_d".to_owned(),
            seconds: 4,
            resolution: VideoResolution::P720,
            size: "1280x720".to_owned(),
            created_ms: 1_795_219_200_999,
            held: Money::from_nano(280_000_000).expect("money"),
            price_version: "p".to_owned(),
            booked: None,
            cost: None,
            external_body: None,
            trace: None,
            progress: 40,
            stage,
        }
    }

    fn seen(stage: JobStage) -> Json {
        serde_json::from_str(&job(stage).to_api_json(&JobSchedule::default())).expect("JSON")
    }

    #[test]
    fn a_job_looks_as_the_interface_says() {
        let mut expected = json!({
            "id": "video_1", "object": "video", "model": "lmd-imagine-video", "status": "queued",
            "progress": 40, "seconds": "4", "size": "1280x720", "created_at": 1_795_219_200_i64,
            "completed_at": null, "expires_at": null, "error": null,
        });
        assert_eq!(seen(JobStage::Queued { refused: 0 }), expected);
        let outcome = JobOutcome::Completed {
            route: "main".to_owned(),
            depth: 0,
            vendor_id: "v".to_owned(),
            charge: Money::from_nano(280_000_001).expect("money"),
            usage: BilledUnits::Video {
                seconds: 4,
                resolution: VideoResolution::P720,
                ticks: None,
            },
            basis: UsageBasis::Fixed,
        };
        let at_ms = 1_795_219_290_500;
        expected["status"] = json!("in_progress");
        assert_eq!(seen(JobStage::Settling { outcome: outcome.clone(), at_ms }), expected);
        expected["status"] = json!("completed");
        expected["progress"] = json!(100);
        expected["completed_at"] = json!(1_795_219_290_i64);
        expected["expires_at"] = json!(1_795_824_090_i64);
        expected["usage"] =
            json!({ "seconds": 4, "resolution": "720p", "cost_usd": 0.280_000_001 });
        assert_eq!(seen(JobStage::Ended { outcome, at_ms }), expected);
    }

    #[test]
    fn a_job_that_failed_says_why_and_costs_nothing() {
        let outcome = JobOutcome::failed(JobFailCode::TimedOut, "");
        let view = seen(JobStage::Ended { outcome, at_ms: 1_000 });
        assert_eq!(view["status"], "failed");
        let message = "the video was not finished in time";
        assert_eq!(view["error"], json!({ "code": "timed_out", "message": message }));
        assert_eq!((&view["usage"]["cost_usd"], &view["expires_at"]), (&json!(0), &Json::Null));
    }

    #[test]
    fn a_price_is_written_to_the_last_nano() {
        let outcome = JobOutcome::Completed {
            route: String::new(),
            depth: 0,
            vendor_id: String::new(),
            charge: Money::from_nano(9_007_199_254_740_993).expect("money"),
            usage: BilledUnits::Video {
                seconds: 4,
                resolution: VideoResolution::P720,
                ticks: None,
            },
            basis: UsageBasis::Reported,
        };
        let view = job(JobStage::Ended { outcome, at_ms: 0 }).to_api_json(&JobSchedule::default());
        assert!(view.contains(r#""cost_usd":9007199.254740993"#), "{view}");
    }

    #[test]
    fn a_list_names_its_first_and_last() {
        let page = |jobs| JobList { jobs, has_more: false }.to_api_json(&JobSchedule::default());
        let empty =
            r#"{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}"#;
        assert_eq!(page(vec![]), empty);
        let one: Json =
            serde_json::from_str(&page(vec![job(JobStage::Queued { refused: 0 })])).expect("JSON");
        assert_eq!((&one["first_id"], &one["last_id"]), (&json!("video_1"), &json!("video_1")));
    }
}
