//! The client's side of video jobs: create, list, look up, download, delete. `jobs::worker` makes
//! the videos.

use std::time::Duration;

use pingora::proxy::Session;

use super::api_error::{ApiError, ServerError, VideoError};
use super::context::RequestContext;
use super::local_response::LocalResponse;
use super::state::Gateway;
use crate::clock::unix_ms;
use crate::dialect::{CallError, Endpoint};
use crate::files;
use crate::files::signed_url;
use crate::gateway::budgets::tenants::TenantId;
use crate::gateway::request::target::query_value;
use crate::gateway::response::download;
use crate::jobs::api_json::deleted_json;
use crate::jobs::{Job, JobOutcome, JobPage, JobStage, JobStatus};
use crate::ledger::AccountName;

pub(crate) mod action;
mod body;
pub(super) mod create;
pub(crate) mod shared;

use action::{FileLink, JobAction};
use shared::is_job_id;

/// How many jobs a page of the list has if the client names no limit.
const PAGE_JOBS_DEFAULT: usize = 20;
const PAGE_JOBS_MAX: usize = 100;
/// How long a URL signed by the object store is valid.
const FILE_URL_TTL: Duration = Duration::from_secs(600);
/// A URL signed by the gateway is valid for this many ms less than the longest lifetime of a token:
/// every node refuses a token that is valid for longer than ten minutes by the node's own clock,
/// and the clocks of nodes differ.
const CLOCK_SKEW_MAX_MS: i64 = 30_000;
/// How long the gateway waits for the object store.
const OBJECT_STORE_TIMEOUT: Duration = Duration::from_secs(5);

fn file_name(job: &Job) -> String {
    files::video_name(job.account.as_str(), &job.id)
}

/// Answers a request for the video jobs of an account.
///
/// # Errors
/// There is no such job, its video cannot be returned, or the store does not answer.
pub(super) async fn handle_request(
    gateway: &Gateway,
    account: &AccountName,
    wanted: JobAction,
) -> Result<LocalResponse, ApiError> {
    let videos = &gateway.videos;
    let schedule = &videos.schedule;
    match wanted {
        JobAction::List(query) => {
            let page = parse_page(&query)?;
            if page.after.as_deref().is_some_and(|id| !is_job_id(id)) {
                return Err(VideoError::NotFound.into());
            }
            let listed = gateway
                .with_ledger_timeout("video_list", videos.queue.list_jobs(account, page))
                .await;
            let mut listed =
                listed.map_err(|_| ServerError::LedgerUnavailable)?.ok_or(VideoError::NotFound)?;
            listed.jobs.retain(|job| !job.is_expired(schedule, unix_ms()));
            Ok(LocalResponse::ok(listed.to_api_json(schedule)))
        }
        JobAction::Get(id) => {
            let job = require_job(gateway, account, &id).await?;
            // Client libraries read this header, under this name, and wait that many ms before they
            // ask again.
            Ok(LocalResponse::ok(job.to_api_json(schedule))
                .with_header("openai-poll-after-ms", &schedule.poll_ms))
        }
        JobAction::Delete(id) => {
            if !is_job_id(&id) {
                return Err(VideoError::NotFound.into());
            }
            let deleted = gateway
                .with_ledger_timeout("video_delete", videos.queue.delete_job(account, &id))
                .await;
            let job =
                deleted.map_err(|_| ServerError::LedgerUnavailable)?.ok_or(VideoError::NotFound)?;
            if job.is_expired(schedule, unix_ms()) {
                return Err(VideoError::NotFound.into());
            }
            // If this fails, the worker deletes the file later.
            if job.status() == JobStatus::Completed {
                let name = file_name(&job);
                let deleting =
                    tokio::time::timeout(OBJECT_STORE_TIMEOUT, videos.files.delete(&name)).await;
                if !matches!(deleting, Ok(Ok(()))) {
                    log::warn!(
                        event = "file_delete_failed", job = id, deleting:?;
                        "video file delete failed, the worker will retry"
                    );
                }
            }
            videos.worker_wakeup.notify_one();
            Ok(LocalResponse::ok(deleted_json(&id)))
        }
        JobAction::Content { id, variant } => {
            if variant.is_some_and(|variant| variant != "video") {
                return Err(invalid_field("variant", "video: nothing else is made"));
            }
            let job = require_job(gateway, account, &id).await?;
            let JobStage::Ended { outcome, .. } = &job.stage else {
                return Err(VideoError::NotReady.into());
            };
            if matches!(outcome, JobOutcome::Failed { .. }) {
                return Err(VideoError::NotFound.into());
            }
            let location = file_url(gateway, &job).await?;
            let reply = LocalResponse { status: 302, ..LocalResponse::ok(String::new()) };
            Ok(reply.with_header("location", &location).with_header("cache-control", &"no-store"))
        }
    }
}

async fn require_job(gateway: &Gateway, account: &AccountName, id: &str) -> Result<Job, ApiError> {
    let found =
        gateway.with_ledger_timeout("video_find", gateway.videos.find_job(account, id)).await;
    found.map_err(|_| ServerError::LedgerUnavailable)?.ok_or(VideoError::NotFound.into())
}

/// Returns a URL under which the file of a job can be downloaded for a limited time, at the object
/// store or at this gateway.
async fn file_url(gateway: &Gateway, job: &Job) -> Result<String, ApiError> {
    let videos = &gateway.videos;
    let name = file_name(job);
    let signing = videos.files.presigned_url(&name, FILE_URL_TTL);
    match tokio::time::timeout(OBJECT_STORE_TIMEOUT, signing).await {
        Ok(Ok(Some(address))) => return Ok(address),
        Ok(Ok(None)) => {}
        failed => {
            log::error!(
                event = "file_address_failed", job = job.id, failed:?;
                "signing a video file URL failed"
            );
            return Err(ServerError::FilesUnavailable.into());
        }
    }
    let signer_result = gateway.with_ledger_timeout("secret", videos.url_signer()).await;
    let url_signer = signer_result.map_err(|_| ServerError::LedgerUnavailable)?;
    let end_ms = unix_ms().saturating_add(signed_url::TOKEN_TTL_MAX_MS - CLOCK_SKEW_MAX_MS);
    let token = url_signer.make_token(job.account.as_str(), &job.id, end_ms);
    let token = token.map_err(|why| {
        // The cipher takes more bytes than any id of a job has.
        log::error!(event = "file_token_failed", job = job.id, error:% = why; "no token made");
        ServerError::Internal
    })?;
    let base = videos.public_base.as_deref().unwrap_or_default();
    Ok(format!("{base}{}/{}/file?token={token}", Endpoint::Videos.path(), job.id))
}

/// Sends the file of a job to the bearer of a signed URL, if that is valid.
///
/// # Errors
/// The signed URL is not valid, or the job or its file no longer exists.
pub(super) async fn send_file(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    link: &FileLink,
) -> Result<(), ApiError> {
    let FileLink { id, token } = link;
    let videos = &gateway.videos;
    let url_signer = gateway
        .with_ledger_timeout("secret", videos.url_signer())
        .await
        .map_err(|_| ServerError::LedgerUnavailable)?;
    let account = url_signer.verify(id, token, unix_ms()).ok_or(VideoError::NotFound)?;
    let account = AccountName::parse(&account).ok_or(VideoError::NotFound)?;
    ctx.access_log.account = Some(account.clone());
    let tenant = gateway.tenants.tenant(TenantId::Account(account.clone()));
    gateway.count_for_account(ctx, &tenant)?;
    let job = require_job(gateway, &account, id).await?;
    if job.status() != JobStatus::Completed {
        return Err(VideoError::NotFound.into());
    }
    download::send_file(&videos.files, &file_name(&job), session, ctx).await
}

fn parse_page(query: &str) -> Result<JobPage, ApiError> {
    let limit = match query_value(query, "limit") {
        None => PAGE_JOBS_DEFAULT,
        Some(text) => Some(text)
            .filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|text| text.parse().ok())
            .filter(|limit| (1..=PAGE_JOBS_MAX).contains(limit))
            .ok_or_else(|| invalid_field("limit", "a whole number from 1 to 100"))?,
    };
    let ascending = match query_value(query, "order").as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(invalid_field("order", "asc or desc")),
    };
    // Some clients send an empty `after` for the first page.
    let after = query_value(query, "after").filter(|after| !after.is_empty());
    Ok(JobPage { after, limit, ascending })
}

fn invalid_field(field: &str, expected: &str) -> ApiError {
    CallError::invalid(field, expected).into()
}
