//! Handles repeats of paid calls. Under an idempotency key a call is made once; and when an
//! official client retries by itself, it gets the first reply instead of paying twice.
//!
//! A call claims its idempotency key before anything is looked up or held for it. After settlement
//! the reply is stored under the key if the call was charged; otherwise the key is released. If a
//! call ends in any other way, its claim expires, and the ledger tells whether the call was
//! charged.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora::proxy::Session;

use super::api_error::{ApiError, CapacityError, IdempotencyError, ServerError, UpstreamError};
use super::context::RequestContext;
use super::local_response::LocalResponse;
use super::state::Gateway;
use super::upstream;
use super::videos::shared::job_id;
use crate::clock::unix_ms;
use crate::dialect::Endpoint;
use crate::gateway::budgets::tenants::TenantId;
use crate::gateway::request::body::RequestBody as Body;
use crate::gateway::response::writer;
use crate::idempotency::{ClaimMode, ClaimResult, IdempotencyKey, StoredReply};
use crate::ledger::{AccountName, Operation, Outcome};
use crate::metrics::METRICS;
use crate::money::Money;

pub(crate) mod call;
mod completion;
mod external_body;
mod fingerprint;
pub(super) mod recorder;
pub(crate) mod refused_attempts;
mod replay;
pub(super) mod source;

pub(super) use completion::{
    await_claim, detect_undelivered, finish_claim, record_head, store_before_last_byte,
    store_local_reply,
};

use call::{DELIVERED_BYTES_MAX, IdempotentCall};
use recorder::ReplyRecorder;
use source::IdempotencySource;

/// How often a retry polls for the end of the first call: the time since the retry arrived, divided
/// by [`POLL_INTERVAL_DIVISOR`], between the shortest and the longest interval.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(250);
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(2);
const POLL_INTERVAL_DIVISOR: u32 = 20;
/// The status in the access log if the client disconnected while its retry waited.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Whether a call must be made or needs no further work.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    /// The call is not a repeat, and must be made.
    New,
    /// The client got the reply to an earlier call, or has disconnected.
    Answered,
}

/// Claims the idempotency key of a call, or replays the reply stored under it.
///
/// # Errors
/// The key can neither be claimed nor its reply be replayed, or the store does not answer.
pub(super) async fn claim_or_replay(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut RequestContext,
    account: &AccountName,
    mut source: IdempotencySource,
    endpoint: Endpoint,
    body: &mut Body,
) -> Result<ClaimOutcome, ApiError> {
    let headers = upstream::forwarded_headers(gateway, session, &body.parsed.model, endpoint);
    let content = fingerprint::fingerprint_call(&body.parsed, &headers).await;
    let name = source.claim_name(endpoint, &content);
    if source == IdempotencySource::Retry && gateway.refused_attempts.take(account, &name) {
        source = IdempotencySource::FirstAttempt;
    }
    // The hold of the call has the same id.
    let owner = if endpoint == Endpoint::Videos { job_id(&ctx.id) } else { ctx.id.clone() };
    let key = IdempotencyKey { name, content, owner, life_ms: source.ttl_ms() };
    let mut background_claim = None;
    if source == IdempotencySource::FirstAttempt {
        background_claim = Some(completion::claim_in_background(gateway, account, &key));
    } else {
        let (has_waited, file_dropped) = (false, false);
        let mut attempt = ClaimAttempt {
            gateway,
            account,
            key: &key,
            source: &source,
            endpoint,
            has_waited,
            file_dropped,
        };
        if attempt.run(session, ctx, body).await? == ClaimOutcome::Answered {
            return Ok(ClaimOutcome::Answered);
        }
    }
    let lease = gateway.leases.keep_alive(key.lease_entry(account));
    let id = || TenantId::Account(account.clone());
    let tenant = ctx.tenant.clone().unwrap_or_else(|| gateway.tenants.tenant(id()));
    ctx.idempotent_call = Some(Box::new(IdempotentCall {
        account: account.clone(),
        key,
        is_keyed: matches!(source, IdempotencySource::Keyed(_)),
        delivered_bytes_max: match endpoint {
            // An image is expensive, and too large for the usual limit.
            Endpoint::Images | Endpoint::ImageEdits => usize::MAX,
            _ => DELIVERED_BYTES_MAX,
        },
        is_undelivered: false,
        background_claim,
        recorder: ReplyRecorder::new(
            gateway.limits.reply_bytes_max,
            gateway.reply_budget.permit(&tenant),
        ),
        lease,
    }));
    Ok(ClaimOutcome::New)
}

/// Records response bytes of a call for replay, whether the client is still connected or not.
pub(super) fn record_body(ctx: &mut RequestContext, bytes: &[Bytes]) {
    if let Some(call) = &mut ctx.idempotent_call {
        bytes.iter().for_each(|piece| call.recorder.push(piece));
    }
}

/// Remembers that a call without a key was refused with an error after which clients try again.
pub(super) fn record_refusal(gateway: &Gateway, ctx: &RequestContext, refusal: &ApiError) {
    let Some(call) = ctx.idempotent_call.as_ref().filter(|call| !call.is_keyed) else { return };
    if ctx.access_log.charge.is_none() && refusal.invites_retry() {
        gateway.refused_attempts.add(&call.account, &call.key.name);
    }
}

/// Discards the recorded reply: it was cut off, which its bytes do not show.
pub(super) fn discard_recording(ctx: &mut RequestContext) {
    if let Some(call) = &mut ctx.idempotent_call {
        call.recorder.discard();
    }
}

/// An attempt to claim a key, which may wait for the call that holds the key.
struct ClaimAttempt<'a> {
    gateway: &'a Gateway,
    account: &'a AccountName,
    key: &'a IdempotencyKey,
    source: &'a IdempotencySource,
    endpoint: Endpoint,
    has_waited: bool,
    /// Whether the call's file was dropped because other uploads waited for its memory. Such a call
    /// can only be answered by a replay.
    file_dropped: bool,
}

impl ClaimAttempt<'_> {
    async fn run(
        &mut self,
        session: &mut Session,
        ctx: &mut RequestContext,
        body: &mut Body,
    ) -> Result<ClaimOutcome, ApiError> {
        let mut mode = ClaimMode::IfFree;
        loop {
            match self.claim(&mode).await? {
                ClaimResult::Claimed if self.file_dropped => {
                    completion::release_claim(self.gateway, self.account, self.key);
                    return Err(CapacityError::TooManyUploads.into());
                }
                ClaimResult::Claimed => return Ok(ClaimOutcome::New),
                ClaimResult::Replied(kept) => return self.replay(session, ctx, &kept).await,
                ClaimResult::ReplyNotStored => {
                    return Err(self.count_refusal(ctx, IdempotencyError::ReplyNotKept));
                }
                ClaimResult::ContentMismatch => {
                    return Err(self.count_refusal(ctx, IdempotencyError::KeyReused));
                }
                ClaimResult::Running if *self.source != IdempotencySource::Retry => {
                    return Err(self.count_refusal(ctx, IdempotencyError::KeyInUse));
                }
                ClaimResult::Running => {
                    if !self.wait_before_poll(session, ctx, body).await? {
                        ctx.access_log.status = CLIENT_CLOSED_REQUEST;
                        ctx.access_log.client_disconnected = true;
                        return Ok(ClaimOutcome::Answered);
                    }
                }
                ClaimResult::Expired { owner } if self.endpoint == Endpoint::Videos => {
                    if let Some(reply) = self.find_expired_job(&owner).await? {
                        self.count_outcome(ctx, self.outcome());
                        writer::send_response(session, ctx, reply).await;
                        return Ok(ClaimOutcome::Answered);
                    }
                    mode = ClaimMode::TakeOver(owner);
                }
                ClaimResult::Expired { owner } => {
                    self.void_expired_hold(ctx, &owner).await?;
                    mode = ClaimMode::TakeOver(owner);
                }
            }
        }
    }

    async fn claim(&self, mode: &ClaimMode) -> Result<ClaimResult, ApiError> {
        let ClaimAttempt { gateway, account, key, .. } = self;
        let lease_ms = gateway.timeouts.lease_ms();
        let claim = gateway.reply_store.claim_key(account, key, mode, lease_ms);
        match gateway.with_ledger_timeout("repeat", claim).await {
            Ok(taken) => Ok(taken),
            Err(why) => {
                log::warn!(
                    event = "idempotency_lookup_failed", owner = key.owner, error:% = why;
                    "idempotency claim failed"
                );
                // The store may have made the claim nevertheless.
                completion::release_claim(gateway, account, key);
                Err(ServerError::LedgerUnavailable.into())
            }
        }
    }

    /// Voids the hold of a call whose claim has expired, so that it cannot be charged any more.
    /// Fails if it was charged already.
    async fn void_expired_hold(
        &self,
        ctx: &mut RequestContext,
        owner: &str,
    ) -> Result<(), ApiError> {
        let voiding = Operation::Void { id: owner.to_owned() };
        let voiding = self.gateway.ledger.submit(self.account, voiding);
        match self.gateway.with_ledger_timeout("void", voiding).await {
            Ok(Outcome::Voided) => Ok(()),
            Ok(Outcome::AlreadyPosted(_)) => {
                Err(self.count_refusal(ctx, IdempotencyError::ReplyLost))
            }
            Ok(other) => {
                log::error!(
                    event = "hold_void_failed", owner, answer:? = other;
                    "voiding the hold of a lapsed call failed"
                );
                Err(ServerError::Internal.into())
            }
            Err(_) => Err(ServerError::LedgerUnavailable.into()),
        }
    }

    /// Returns the reply with the video job of a call whose claim has expired. If there is no job,
    /// the id of the call's hold is used up by an empty hold, so that a call that was only delayed
    /// cannot place the job as well.
    async fn find_expired_job(&self, id: &str) -> Result<Option<LocalResponse>, ApiError> {
        if let Some(reply) = self.find_job(id).await? {
            return Ok(Some(reply));
        }
        let (id, nothing) = (id.to_owned(), Money::ZERO);
        let lease_ms = self.gateway.timeouts.lease_ms();
        let hold = Operation::Hold { id: id.clone(), wanted: nothing, least: nothing, lease_ms };
        let holding = self.gateway.ledger.submit(self.account, hold);
        match self.gateway.with_ledger_timeout("hold", holding).await {
            Ok(Outcome::Held(_)) => {
                let voiding = self.gateway.ledger.submit(self.account, Operation::Void { id });
                // If the void fails, the empty hold expires without a charge.
                let _ = self.gateway.with_ledger_timeout("void", voiding).await;
                Ok(None)
            }
            // The hold exists: the job was placed just now, or has ended.
            Ok(_) => self.find_job(&id).await,
            Err(_) => Err(ServerError::LedgerUnavailable.into()),
        }
    }

    /// Returns the reply to the order of a video job; `None` if there is no such job or it has
    /// expired.
    async fn find_job(&self, id: &str) -> Result<Option<LocalResponse>, ApiError> {
        let videos = &self.gateway.videos;
        let finding = videos.queue.find_job(self.account, id);
        let job = self.gateway.with_ledger_timeout("video_find", finding).await;
        let job = job.map_err(|_| ServerError::LedgerUnavailable)?;
        let job = job.filter(|job| !job.is_expired(&videos.schedule, unix_ms()));
        Ok(job.map(|job| LocalResponse::ok(job.to_api_json(&videos.schedule))))
    }

    /// Waits until the running call is to be polled again; `false` if the client has disconnected.
    async fn wait_before_poll(
        &mut self,
        session: &mut Session,
        ctx: &mut RequestContext,
        body: &mut Body,
    ) -> Result<bool, ApiError> {
        self.has_waited = true;
        if ctx.arrived.elapsed() >= self.gateway.timeouts.total {
            return Err(UpstreamError::Timeout.into());
        }
        if session.is_process_shutting_down() {
            return Err(self.count_refusal(ctx, IdempotencyError::KeyInUse));
        }
        // The file is needed only if the running call ends without a charge.
        if self.gateway.upload_budget.has_waiters() && body.parsed.file.take().is_some() {
            self.file_dropped = true;
            body.upload_permit = None;
        }
        let began = Instant::now();
        let pause = ctx.arrived.elapsed() / POLL_INTERVAL_DIVISOR;
        let stays = tokio::select! {
            () = tokio::time::sleep(pause.clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)) => true,
            _ = session.downstream_session.read_body_or_idle(true) => false,
        };
        ctx.vendor_time += began.elapsed();
        if !stays {
            session.set_keepalive(None);
        }
        Ok(stays)
    }

    async fn replay(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        kept: &StoredReply,
    ) -> Result<ClaimOutcome, ApiError> {
        // A stored head is not replayed without its body.
        if !replay::send_stored_reply(self.gateway, self.account, session, ctx, kept).await? {
            return Err(self.count_refusal(ctx, IdempotencyError::ReplyNotKept));
        }
        self.count_outcome(ctx, self.outcome());
        Ok(ClaimOutcome::Answered)
    }

    fn outcome(&self) -> &'static str {
        if self.has_waited { "joined" } else { "replayed" }
    }

    fn count_refusal(&self, ctx: &mut RequestContext, why: IdempotencyError) -> ApiError {
        let outcome = match why {
            IdempotencyError::KeyReused => "mismatch",
            IdempotencyError::KeyInUse => "in_use",
            IdempotencyError::ReplyNotKept => "not_kept",
            IdempotencyError::ReplyLost => "lost",
        };
        self.count_outcome(ctx, outcome);
        why.into()
    }

    fn count_outcome(&self, ctx: &mut RequestContext, outcome: &'static str) {
        ctx.access_log.repeat_outcome = outcome;
        METRICS.replays.with_label_values(&[self.endpoint.name(), outcome]).inc();
    }
}
