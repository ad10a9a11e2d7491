//! Creates a video job: the call is accepted like any other, and its hold is placed together with
//! the job.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::proxy::Session;

use super::body;
use super::shared::job_id;
use crate::backoff::Backoff;
use crate::catalogue::{AccountPrice, Model, PriceBook};
use crate::clock::unix_ms;
use crate::dialect::call::RequestKind;
use crate::dialect::json::{JsonDocument, JsonPatch};
use crate::dialect::videos::VideoRequest;
use crate::dialect::{Endpoint, videos};
use crate::gateway::api_error::{ApiError, IdempotencyError, ServerError, VideoError};
use crate::gateway::call_rates::CallRates;
use crate::gateway::context::RequestContext;
use crate::gateway::idempotency::source::read_key_digest;
use crate::gateway::local_response::LocalResponse;
use crate::gateway::request::admission::{self, AcceptedCall};
use crate::gateway::request::body::RequestBody;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::settlement::holds;
use crate::gateway::settlement::quote::{QuoteContext, price_video, quote_call};
use crate::gateway::settlement::token_estimate::estimate_call_tokens;
use crate::gateway::state::Gateway;
use crate::jobs::booked_price::BookedPrice;
use crate::jobs::{Job, JobQueue, JobStage, NewJob, PlaceResult};
use crate::ledger::{AccountName, HoldRefused, RateAsk, Unavailable};
use crate::money::price::Quote;
use crate::money::{BilledUnits, Money};

/// How long an embedded store may take to create a job. It answers only after the job is synced to
/// disk, and cannot be unreachable as a remote store can.
pub(in crate::gateway) const EMBEDDED_STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates a job: afterwards it is in the queue, and its money is held.
///
/// # Errors
/// The call or its idempotency key is refused, the account cannot pay, it has too many open jobs,
/// or a store does not answer.
pub(in crate::gateway) async fn create_job(
    gateway: &Gateway,
    session: &Session,
    ctx: &mut RequestContext,
    caller: AuthenticatedCaller,
    request_body: RequestBody,
) -> Result<LocalResponse, ApiError> {
    let parsed = request_body.parsed;
    let accepted = admission::accept_call(gateway, ctx, &caller, parsed, Endpoint::Videos)?;
    let AcceptedCall { call, model, requested_model, price_version, priced_at, .. } = accepted;
    let AcceptedCall { book, plans, .. } = accepted;
    let RequestKind::Video { request, file } = &call.kind else {
        // A body of the endpoint of videos was parsed, which makes a request of this kind.
        let request_id = ctx.id.as_str();
        log::error!(event = "video_request_of_other_kind", request_id; "no request for a video");
        return Err(ServerError::Internal.into());
    };
    let quote_context = QuoteContext {
        endpoint: Endpoint::Videos,
        priced_at,
        earlier_input_tokens: 0,
        output_estimate: None,
        text_tokens_max: None,
        book: book.as_deref(),
        fees: Money::ZERO,
    };
    let cost = quote_call(&model, &call, quote_context)?.full;
    let quote = Quote::exactly(cost);
    let tokens = || estimate_call_tokens(&model, &call, quote_context);
    let asks = plans.asks(&caller.key, &model, tokens);
    let schedule = &gateway.videos.schedule;
    let VideoRequest { seconds, resolution, .. } = *request;
    let units = BilledUnits::Video { seconds, resolution, ticks: None };
    let job = Job {
        requested_model: requested_model.as_deref().map(str::to_owned),
        price_version: price_version.to_string(),
        booked: book
            .as_deref()
            .map(|book| booked_price(&model, book, request, priced_at))
            .transpose()?,
        cost: model.cost.as_ref().and_then(|cost| cost.cost(units, priced_at).ok()),
        ..new_job(ctx, &caller, &model, request, quote.wanted)
    };
    let whole = rewrite_body(&model, videos::build_body(&call.document, request, file.as_ref()))?;
    // Checked first, so that no body is written while no hold can be placed.
    let admitting =
        gateway.with_ledger_timeout("video_place", gateway.ledger.accepts_holds()).await;
    admitting.map_err(|_| ServerError::LedgerUnavailable)?;
    let (job, body) = body::store_body(gateway, job, whole).await?;
    let order = NewJob {
        body,
        key: read_key_digest(session)?,
        quote,
        rates: asks.clone(),
        lease_ms: schedule.hold_lease_ms(),
        open_max: schedule.open_max,
        job: job.clone(),
    };
    let placed = place_job(gateway, order).await.map_err(|_| ServerError::LedgerUnavailable)?;
    if !matches!(placed, PlaceResult::New(_)) {
        body::delete_body(gateway, &job).await;
    }
    let reply = answer_placed(gateway, ctx, job, placed, asks).await?;
    gateway.videos.worker_wakeup.notify_one();
    Ok(reply)
}

/// Answers with the job that was placed, or that was placed before under the same idempotency key.
///
/// # Errors
/// The job was refused, or the earlier one is gone. `asks` is what the job takes of rate limits.
async fn answer_placed(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    job: Job,
    placed: PlaceResult,
    asks: Vec<RateAsk>,
) -> Result<LocalResponse, ApiError> {
    let schedule = &gateway.videos.schedule;
    let least = job.held;
    let why = match placed {
        PlaceResult::New(readings) => {
            ctx.rates = CallRates { asks, readings };
            return Ok(LocalResponse::ok(job.to_api_json(schedule)));
        }
        PlaceResult::AlreadyPlaced(first) if !first.is_expired(schedule, unix_ms()) => {
            return Ok(LocalResponse::ok(first.to_api_json(schedule)));
        }
        PlaceResult::AlreadyPlaced(_) | PlaceResult::Deleted => {
            return Err(VideoError::Deleted.into());
        }
        PlaceResult::Lost => return Err(IdempotencyError::ReplyLost.into()),
        PlaceResult::TooManyOpen => return Err(VideoError::TooManyOpen(schedule.open_max).into()),
        PlaceResult::Insufficient(available) => HoldRefused::Insufficient { least, available },
        PlaceResult::BudgetExceeded { window, left } => {
            HoldRefused::BudgetExceeded { window, least, left }
        }
        PlaceResult::BudgetInUse(left) => HoldRefused::BudgetInUse { least, left },
        PlaceResult::RateLimited { id, retry_after_ms, rates } => {
            HoldRefused::RateLimited { id, retry_after_ms, rates }
        }
        PlaceResult::NoAccount => HoldRefused::NoAccount,
    };
    Err(holds::describe_refusal(gateway, &job.account, why, asks).await)
}

/// Makes the job of a request whose video costs `held`.
fn new_job(
    ctx: &RequestContext,
    caller: &AuthenticatedCaller,
    model: &Model,
    request: &VideoRequest,
    held: Money,
) -> Job {
    Job {
        id: job_id(&ctx.id),
        account: caller.key.account.clone(),
        key_prefix: caller.key.prefix.clone(),
        key_id: Some(caller.key.id),
        model: model.id.clone(),
        requested_model: None,
        vendor: model.vendor.name.clone(),
        seconds: request.seconds,
        resolution: request.resolution,
        size: request.size.clone(),
        created_ms: ctx.arrived_ms,
        held,
        price_version: String::new(),
        booked: None,
        cost: None,
        external_body: None,
        trace: ctx.trace.as_ref().map(|trace| trace.own.to_header()),
        progress: 0,
        stage: JobStage::Queued { refused: 0 },
    }
}

/// Returns the price of a job in a book, beside that on the price list.
///
/// # Errors
/// The price list has no price for the resolution.
fn booked_price(
    model: &Model,
    book: &PriceBook,
    request: &VideoRequest,
    priced_at: i64,
) -> Result<BookedPrice, ApiError> {
    let list = price_video(model, &model.price, request, priced_at)?;
    let factor = AccountPrice::new(model, Some(book)).factor();
    Ok(BookedPrice { book: book.name.clone(), list, factor })
}

/// Applies the rules' rewrites for the model to the body for the vendor.
pub(in crate::gateway) fn rewrite_body(model: &Model, body: Bytes) -> Result<Bytes, ApiError> {
    let document = JsonDocument::parse(body).map_err(|why| {
        // The body was written from members of one that was parsed before.
        log::error!(event = "video_body_invalid", error:% = why; "request for a video is no JSON");
        ServerError::Internal
    })?;
    let mut patch = JsonPatch::new(&document);
    model.rewrite(Endpoint::Videos, &mut patch);
    Ok(patch.finish().concat().into())
}

/// Places a job in the queue, within the ledger's timeout. After a timeout the job may exist all
/// the same: unless the client has an idempotency key with which it can repeat the call, the job is
/// then deleted.
pub(in crate::gateway) async fn place_job(
    gateway: &Gateway,
    new_job: NewJob,
) -> Result<PlaceResult, Unavailable> {
    let queue = gateway.videos.queue.clone();
    let (account, id) = (new_job.job.account.clone(), new_job.job.id.clone());
    let has_key = new_job.key.is_some();
    let placing = queue.place_job(new_job);
    let placed = if queue.is_embedded() {
        let waited = tokio::time::timeout(EMBEDDED_STORE_TIMEOUT, placing).await;
        waited.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned())))
    } else {
        gateway.with_ledger_timeout("video_place", placing).await
    };
    if let Err(why) = &placed {
        log::warn!(
            event = "video_place_failed", job = id, error:% = why;
            "placing a video job failed"
        );
        if !has_key {
            delete_unconfirmed(queue, account, id);
        }
    }
    placed
}

/// Deletes a job of which it is unknown whether the store has it, and deletes it once more after 35
/// s, when a late write has arrived or been refused.
pub(in crate::gateway) fn delete_unconfirmed(
    queue: Arc<dyn JobQueue>,
    account: AccountName,
    id: String,
) {
    const RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
    const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
    const LATE_ARRIVAL_DELAY: Duration = Duration::from_secs(35);
    tokio::spawn(async move {
        for pause in [Duration::ZERO, LATE_ARRIVAL_DELAY] {
            tokio::time::sleep(pause).await;
            let mut backoff = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
            while queue.delete_job(&account, &id).await.is_err() {
                backoff.wait().await;
            }
        }
    });
}
