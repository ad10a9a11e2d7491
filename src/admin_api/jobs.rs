//! `/admin/v1/jobs`: video jobs.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::amounts::parse_account_name;
use super::error::AdminError;
use super::extract::{JsonReply, QueryParameters};
use super::page::{AdminPage, PageRange};
use super::state::AdminApi;
use crate::jobs::JobFilter;
use crate::ledger::KeyId;
use crate::management::jobs::{JobView, list_jobs as read_jobs, parse_job_state};
use crate::money::Money;

/// The parameters of the list of video jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JobParameters {
    /// The name of the account. If it is missing, the list is of all accounts.
    account: Option<String>,
    /// The state of the jobs: `queued`, `in_progress`, `completed` or `failed`.
    state: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// The most rows of the page, from 1 to 1000; 100 if it is missing. A page may have fewer rows
    /// although more follow.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// A video job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobReply {
    /// The id of the job, which is also that of its hold and of its charge.
    id: String,
    /// The account.
    account: String,
    /// The id of the key with which the video was ordered; null if it is not known.
    key_id: Option<String>,
    /// The beginning of that key.
    key_prefix: String,
    /// The model.
    model: String,
    /// The vendor.
    vendor: String,
    /// The route over which the job was sent, or is being sent; null if there is none.
    route: Option<String>,
    /// The vendor's id of the job; null before the vendor has accepted it.
    vendor_job_id: Option<String>,
    /// `queued`, `in_progress`, `completed` or `failed`, as the client sees it.
    #[schema(example = "in_progress")]
    state: &'static str,
    /// `queued`, `submitting`, `running`, `settling` or `ended`.
    #[schema(example = "running")]
    stage: &'static str,
    /// Whether the client deleted the job. Such a job is listed until it has ended.
    deleted: bool,
    /// The length of the video, in seconds.
    seconds: u64,
    /// The resolution by which it is priced.
    resolution: &'static str,
    /// The size in pixels.
    size: String,
    /// The progress in percent, as the vendor last reported it.
    progress: u8,
    /// What is held for the job, in nano-USD; 0 once it has ended.
    held_nano: i64,
    /// What is held for the job, in USD.
    held_usd: String,
    /// What the job has cost, in nano-USD; null before it has ended.
    charged_nano: Option<i64>,
    /// What the job has cost, in USD; null before it has ended.
    charged_usd: Option<String>,
    /// When the job was created, in unix ms.
    created_at: i64,
    /// When its outcome was decided, in unix ms; null before that.
    ended_at: Option<i64>,
    /// How many times no route accepted the job.
    refused: u32,
    /// How many polls in a row got no answer.
    unanswered_polls: u32,
    /// How many polls in a row the vendor answered with "not found".
    not_found_polls: u32,
    /// How many attempts to copy the file failed.
    copy_failures: u32,
    /// Why the job failed; null if it has not.
    error: Option<JobErrorReply>,
}

/// Why a video job failed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobErrorReply {
    /// The reason, for programs.
    #[schema(example = "timed_out")]
    code: &'static str,
    /// The reason, for people.
    message: String,
}

impl JobReply {
    fn new(view: JobView) -> JobReply {
        let state = view.job.status().name();
        let JobView { job, charged, held, troubles, .. } = view;
        JobReply {
            id: job.id,
            account: job.account.to_string(),
            // Many readers of JSON lose digits of a number as long as this one.
            key_id: job.key_id.map(|KeyId(id)| id.to_string()),
            key_prefix: job.key_prefix,
            model: job.model,
            vendor: job.vendor,
            route: view.route,
            vendor_job_id: view.vendor_id,
            state,
            stage: view.stage,
            deleted: view.deleted,
            seconds: job.seconds,
            resolution: job.resolution.name(),
            size: job.size,
            progress: job.progress,
            held_nano: held.nano(),
            held_usd: held.to_string(),
            charged_nano: charged.map(Money::nano),
            charged_usd: charged.map(|amount| amount.to_string()),
            created_at: job.created_ms,
            ended_at: view.ended_at,
            refused: view.refused,
            unanswered_polls: troubles.unanswered,
            not_found_polls: troubles.not_found,
            copy_failures: troubles.uncopied,
            error: view.error.map(|(code, message)| JobErrorReply { code, message }),
        }
    }
}

/// Lists the video jobs of an account, or of all accounts, by account and oldest first.
#[utoipa::path(
    get,
    path = "/admin/v1/jobs",
    tag = "jobs",
    operation_id = "listJobs",
    params(JobParameters),
    responses((status = 200, description = "Video jobs.", body = AdminPage<JobReply>))
)]
pub(super) async fn list_jobs(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<JobParameters>,
) -> Result<JsonReply<AdminPage<JobReply>>, AdminError> {
    let JobParameters { account, state, after, limit } = parameters;
    let account = account.map(|name| parse_account_name("account", &name)).transpose()?;
    let status = state.map(|state| parse_job_state(&state)).transpose()?;
    let range = PageRange::parse(after, limit.as_deref())?;
    let after = range.after.as_deref().map(str::parse).transpose();
    let after = after.map_err(|_| range.unknown_cursor())?;
    let filter = JobFilter { account, status };
    let part = read_jobs(&api.store, &filter, after.as_ref(), range.limit).await?;
    let next = part.next.map(|cursor| cursor.to_string());
    let data = part.jobs.into_iter().map(JobReply::new).collect();
    Ok(JsonReply(AdminPage { data, has_more: next.is_some(), next }))
}
