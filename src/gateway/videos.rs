//! Video jobs as clients use them: asked for, looked at, fetched, deleted. The worker makes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use tokio::sync::{Notify, OnceCell};

use super::api_error::{
    AdmissionError, ApiError, AuthError, RequestError, ServerError, UpstreamError, VideoError,
};
use super::context::{RequestContext, unix_ms};
use super::key_cache::AuthenticatedCaller;
use super::local_response::LocalResponse;
use super::request_body::RequestBody;
use super::router::{percent_decode, require_method};
use super::tenant_budget::TenantId;
use super::{Gateway, admit, download, holds, idempotency};
use crate::catalogue::Model;
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::json::{JsonDocument, JsonPatch};
use crate::dialect::{CallError, Endpoint, videos};
use crate::files::signed_url::{self, UrlSigner};
use crate::files::{self, VideoFiles};
use crate::jobs::api_json::deleted_json;
use crate::jobs::schedule::JobSchedule;
use crate::jobs::{Job, JobOutcome, JobPage, JobQueue, JobStage, JobStatus, NewJob, PlaceResult};
use crate::ledger::{AccountName, Unavailable};

mod body;

/// How the id of a job begins.
pub(super) const ID_PREFIX: &str = "video_";
/// Jobs on a page of the list.
const PAGE_JOBS_DEFAULT: usize = 20;
const PAGE_JOBS_MAX: usize = 100;
/// An address of a file is good for so long.
const FILE_URL_TTL: Duration = Duration::from_secs(600);
/// One of ours for so much less, in ms: no node takes one that is good for longer than ten minutes
/// by its own clock, and clocks differ.
const CLOCK_SKEW_MAX_MS: i64 = 30_000;
/// The object store answers within this.
const OBJECT_STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// An embedded store waits for its disk before a job counts, and cannot be away.
const EMBEDDED_STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything about video jobs that a request needs.
pub struct VideoService {
    /// Where jobs wait.
    pub queue: Arc<dyn JobQueue>,
    /// Where finished videos are kept.
    pub files: Arc<VideoFiles>,
    /// The address under which clients reach the gateway, where that is set.
    pub public_base: Option<String>,
    /// When what happens.
    pub schedule: JobSchedule,
    /// Tells this process' worker that there is something new.
    pub worker_wakeup: Arc<Notify>,
    /// The secrets of addresses; `None` where only the store has it.
    url_secrets: Vec<Option<[u8; 32]>>,
    url_signer: OnceCell<UrlSigner>,
}

/// What a request wants of video jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VideoAction {
    /// A new job.
    Create,
    /// A page of them, as this query says.
    List(String),
    /// One, as it is.
    Get(String),
    /// One less.
    Delete(String),
    /// The way to the file of one.
    Content {
        /// The job.
        id: String,
        /// What of it, if that is said.
        variant: Option<String>,
    },
    /// The file itself, for whoever has an address of ours.
    File {
        /// The job.
        id: String,
        /// What makes the address good.
        token: String,
    },
}

impl VideoAction {
    /// Reads the method and the path below `/v1/videos`; `None` if there is no such path.
    ///
    /// # Errors
    /// Another method.
    pub(super) fn from_request(head: &RequestHeader) -> Result<Option<VideoAction>, ApiError> {
        let Some(rest) = head.uri.path().strip_prefix(Endpoint::Videos.path()) else {
            return Ok(None);
        };
        let query = head.uri.query().unwrap_or_default();
        let get = |wanted| require_method(head, &Method::GET, "GET").map(|()| Some(wanted));
        if rest.is_empty() {
            return match head.method {
                Method::POST => Ok(Some(VideoAction::Create)),
                Method::GET => Ok(Some(VideoAction::List(query.to_owned()))),
                _ => Err(RequestError::MethodNotAllowed("GET, POST").into()),
            };
        }
        let Some(rest) = rest.strip_prefix('/') else { return Ok(None) };
        let mut parts = rest.splitn(2, '/');
        let Some(id) = parts.next().and_then(percent_decode) else { return Ok(None) };
        match (parts.next(), &head.method) {
            (None, &Method::DELETE) => Ok(Some(VideoAction::Delete(id))),
            (None, &Method::GET) => Ok(Some(VideoAction::Get(id))),
            (None, _) => Err(RequestError::MethodNotAllowed("GET, DELETE").into()),
            (Some("content"), _) => {
                get(VideoAction::Content { id, variant: query_value(query, "variant") })
            }
            (Some("file"), _) => {
                let token = query_value(query, "token").unwrap_or_default();
                get(VideoAction::File { id, token })
            }
            _ => Ok(None),
        }
    }
}

impl VideoService {
    /// Puts it together.
    #[must_use]
    pub fn new(
        queue: Arc<dyn JobQueue>,
        files: Arc<VideoFiles>,
        public_base: Option<String>,
        schedule: JobSchedule,
        url_secrets: Vec<Option<[u8; 32]>>,
    ) -> VideoService {
        let (worker_wakeup, url_signer) = (Arc::default(), OnceCell::new());
        VideoService { queue, files, public_base, schedule, worker_wakeup, url_secrets, url_signer }
    }

    /// What seals addresses. The fleet shares its secrets.
    async fn url_signer(&self) -> Result<&UrlSigner, Unavailable> {
        let found = self.url_signer.get_or_try_init(|| async {
            let newest = self.url_secret(0).await?;
            let other = match self.url_secrets.len() {
                0 | 1 => None,
                _ => Some(self.url_secret(1).await?),
            };
            Ok(UrlSigner::new(newest, other))
        });
        found.await
    }

    /// A secret of addresses: as it is configured, else the store's.
    async fn url_secret(&self, rank: usize) -> Result<[u8; 32], Unavailable> {
        if let Some(Some(secret)) = self.url_secrets.get(rank) {
            return Ok(*secret);
        }
        let mut candidate = [0; 32];
        getrandom::fill(&mut candidate).map_err(|why| Unavailable(why.to_string()))?;
        self.queue.get_or_set_secret(candidate).await
    }

    /// The job, if it is there and its time has not come.
    async fn find_job(&self, account: &AccountName, id: &str) -> Result<Option<Job>, Unavailable> {
        if !is_job_id(id) {
            return Ok(None);
        }
        let found = self.queue.find_job(account, id).await?;
        Ok(found.filter(|job| !job.is_expired(&self.schedule, unix_ms())))
    }
}

fn file_name(job: &Job) -> String {
    files::video_name(job.account.as_str(), &job.id)
}

/// Answers what a request wants of an account's jobs.
///
/// # Errors
/// There is no such job, it cannot be had, or the store does not answer.
pub(super) async fn handle_request(
    gateway: &Gateway,
    account: &AccountName,
    wanted: VideoAction,
) -> Result<LocalResponse, ApiError> {
    let videos = &gateway.videos;
    let schedule = &videos.schedule;
    match wanted {
        VideoAction::List(query) => {
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
        VideoAction::Get(id) => {
            let job = require_job(gateway, account, &id).await?;
            // The name is that of clients, which wait so long before they ask again.
            Ok(LocalResponse::ok(job.to_api_json(schedule))
                .with_header("openai-poll-after-ms", &schedule.poll_ms))
        }
        VideoAction::Delete(id) => {
            if !is_job_id(&id) {
                return Err(VideoError::NotFound.into());
            }
            let hidden = gateway
                .with_ledger_timeout("video_delete", videos.queue.delete_job(account, &id))
                .await;
            let job =
                hidden.map_err(|_| ServerError::LedgerUnavailable)?.ok_or(VideoError::NotFound)?;
            if job.is_expired(schedule, unix_ms()) {
                return Err(VideoError::NotFound.into());
            }
            // What this does not delete the worker will.
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
        VideoAction::Content { id, variant } => {
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
        // These have roads of their own.
        VideoAction::Create | VideoAction::File { .. } => Err(ServerError::Internal.into()),
    }
}

async fn require_job(gateway: &Gateway, account: &AccountName, id: &str) -> Result<Job, ApiError> {
    let found =
        gateway.with_ledger_timeout("video_find", gateway.videos.find_job(account, id)).await;
    found.map_err(|_| ServerError::LedgerUnavailable)?.ok_or(VideoError::NotFound.into())
}

/// Where the file of a job can be had for a while: at the object store itself, or here.
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
            return Err(ServerError::Internal.into());
        }
    }
    let seal_of = gateway.with_ledger_timeout("secret", videos.url_signer()).await;
    let made_by = seal_of.map_err(|_| ServerError::LedgerUnavailable)?;
    let end_ms = unix_ms().saturating_add(signed_url::TOKEN_TTL_MAX_MS - CLOCK_SKEW_MAX_MS);
    let token = made_by.make_token(job.account.as_str(), &job.id, end_ms);
    let token = token.map_err(|_| ServerError::Internal)?;
    let base = videos.public_base.as_deref().unwrap_or_default();
    Ok(format!("{base}{}/{}/file?token={token}", Endpoint::Videos.path(), job.id))
}

/// Sends the file of a job to whoever has an address of it that is good.
///
/// # Errors
/// The address is not good, or the job and its file are gone.
pub(super) async fn send_file(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    (id, token): (&str, &str),
) -> Result<(), ApiError> {
    let videos = &gateway.videos;
    let url_signer = gateway
        .with_ledger_timeout("secret", videos.url_signer())
        .await
        .map_err(|_| ServerError::LedgerUnavailable)?;
    let account = url_signer.verify(id, token, unix_ms()).ok_or(VideoError::NotFound)?;
    let account = AccountName::parse(&account).ok_or(VideoError::NotFound)?;
    exchange.access_log.account = Some(account.clone());
    let tenant = gateway.tenants.tenant(TenantId::Account(account.clone()));
    gateway.count_for_account(exchange, &tenant)?;
    let job = require_job(gateway, &account, id).await?;
    if job.status() != JobStatus::Completed {
        return Err(VideoError::NotFound.into());
    }
    download::send_file(&videos.files, &file_name(&job), session, exchange).await
}

/// The id of the job that a request asks for.
pub(super) fn job_id(exchange: &RequestContext) -> String {
    format!("{ID_PREFIX}{}", exchange.id)
}

/// Takes a new job in: afterwards it is in the queue, and its money held.
///
/// # Errors
/// Everything that can be wrong with it.
pub(super) async fn create_job(
    gateway: &Gateway,
    session: &Session,
    exchange: &mut RequestContext,
    caller: AuthenticatedCaller,
    request_body: RequestBody,
) -> Result<LocalResponse, ApiError> {
    let catalogue = gateway.catalogue.load();
    let model = admit::find_model(&catalogue, &request_body.parsed.model, Endpoint::Videos)?;
    exchange.access_log.model = Some(model.clone());
    let call = ModelCall::parse(request_body.parsed, Endpoint::Videos)?;
    admit::check_field_policy(&model, &call, Endpoint::Videos)?;
    let RequestKind::Video { ask, file } = &call.kind else {
        return Err(ServerError::Internal.into());
    };
    let vendor = &model.vendor.name;
    if gateway.routes.for_vendor(vendor).is_none() {
        return Err(UpstreamError::NoRoute(format!("no route to {vendor} is set up")).into());
    }
    let at = exchange.arrived_ms / 1_000;
    let quote = holds::quote_call(&model, &call, 0, at)?.ok_or(ServerError::Internal)?;
    let schedule = &gateway.videos.schedule;
    let account = &caller.key.account;
    let job = Job {
        id: job_id(exchange),
        account: account.clone(),
        key_prefix: caller.key.prefix.clone(),
        model: model.id.clone(),
        vendor: vendor.clone(),
        seconds: ask.seconds,
        resolution: ask.resolution,
        size: ask.size.clone(),
        created_ms: exchange.arrived_ms,
        held: quote.wanted,
        price_version: catalogue.version.to_string(),
        body_apart: None,
        progress: 0,
        stage: JobStage::Queued { refused: 0 },
    };
    let whole = rewrite_body(&model, videos::build_body(&call.document, ask, file.as_ref()))?;
    // While nothing can be placed nothing is kept for it.
    let admitting =
        gateway.with_ledger_timeout("video_place", gateway.ledger.accepts_holds()).await;
    admitting.map_err(|_| ServerError::LedgerUnavailable)?;
    let (job, body) = body::store_body(gateway, job, whole).await?;
    let new_job = NewJob {
        body,
        key: idempotency::read_key_digest(session)?,
        quote,
        lease_ms: schedule.hold_lease_ms(),
        open_max: schedule.open_max,
        job: job.clone(),
    };
    let placed = place_job(gateway, new_job).await.map_err(|_| ServerError::LedgerUnavailable)?;
    if placed != PlaceResult::New {
        body::delete_body(gateway, &job).await;
    }
    let view = match placed {
        PlaceResult::New => job.to_api_json(schedule),
        PlaceResult::AlreadyPlaced(first) if first.is_expired(schedule, unix_ms()) => {
            return Err(VideoError::Deleted.into());
        }
        PlaceResult::AlreadyPlaced(first) => first.to_api_json(schedule),
        PlaceResult::Deleted => return Err(VideoError::Deleted.into()),
        PlaceResult::Insufficient(available) => {
            return Err(
                AdmissionError::InsufficientBalance { least: quote.least, available }.into()
            );
        }
        PlaceResult::TooManyOpen => return Err(VideoError::TooManyOpen(schedule.open_max).into()),
        PlaceResult::NoAccount => return Err(AuthError::UnknownKey.into()),
    };
    gateway.videos.worker_wakeup.notify_one();
    Ok(LocalResponse::ok(view))
}

/// The body for the vendor, as the rules want it.
fn rewrite_body(model: &Model, body: Bytes) -> Result<Bytes, ApiError> {
    let document = JsonDocument::parse(body).map_err(|_| ServerError::Internal)?;
    let mut draft = JsonPatch::new(&document);
    model.rewrite(Endpoint::Videos, &mut draft);
    Ok(draft.finish().concat().into())
}

/// Places an order, within the ledger's deadline. If that passes, the job may be there all the
/// same: unless the client can ask for it again, it is taken back.
async fn place_job(gateway: &Gateway, new_job: NewJob) -> Result<PlaceResult, Unavailable> {
    let queue = gateway.videos.queue.clone();
    let (account, id) = (new_job.job.account.clone(), new_job.job.id.clone());
    let has_key = new_job.key.is_some();
    let placing = queue.place_job(new_job);
    let placed = if gateway.store_name == "sqlite" {
        let waited = tokio::time::timeout(EMBEDDED_STORE_TIMEOUT, placing).await;
        waited.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned())))
    } else {
        gateway.with_ledger_timeout("video_place", placing).await
    };
    if let Err(why) = &placed {
        log::warn!(event = "video_place_failed", job = id, why:% = why; "placing a video job failed");
        if !has_key {
            delete_unconfirmed(queue, account, id);
        }
    }
    placed
}

/// Deletes a job of which nobody knows whether it is there, and once more when whatever was on its
/// way has arrived or been refused.
fn delete_unconfirmed(queue: Arc<dyn JobQueue>, account: AccountName, id: String) {
    const RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
    const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
    const LATE_ARRIVAL_DELAY: Duration = Duration::from_secs(35);
    tokio::spawn(async move {
        for pause in [Duration::ZERO, LATE_ARRIVAL_DELAY] {
            tokio::time::sleep(pause).await;
            let mut wait = RETRY_DELAY_MIN;
            while queue.delete_job(&account, &id).await.is_err() {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_DELAY_MAX);
            }
        }
    });
}

/// Whether a text is an id of a job: no other is looked up anywhere.
fn is_job_id(text: &str) -> bool {
    let uuid = text.strip_prefix(ID_PREFIX).and_then(|rest| uuid::Uuid::try_parse(rest).ok());
    uuid.is_some_and(|uuid| text[ID_PREFIX.len()..] == uuid.to_string())
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
    // Some write an empty one for the first page.
    let after = query_value(query, "after").filter(|after| !after.is_empty());
    Ok(JobPage { after, limit, ascending })
}

/// A value of a query, decoded.
fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(percent_decode(value).unwrap_or_default())
}

fn invalid_field(field: &str, right: &str) -> ApiError {
    CallError::invalid(field, right).into()
}
