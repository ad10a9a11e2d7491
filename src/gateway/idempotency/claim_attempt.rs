//! Claims the key of a call that may be a repeat: in the memories of all processes, in the store,
//! and in the journal, in this order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::proxy::Session;

use super::source::{IdempotencySource, KEY_TTL_MS};
use super::{completion, journal_search, replay};
use crate::clock::{monotonic_ms, unix_ms};
use crate::dialect::Endpoint;
use crate::gateway::api_error::{
    ApiError, CapacityError, IdempotencyError, ServerError, UpstreamError,
};
use crate::gateway::budgets::tenants::Tenant;
use crate::gateway::context::RequestContext;
use crate::gateway::local_response::LocalResponse;
use crate::gateway::request::body::RequestBody as Body;
use crate::gateway::response::writer;
use crate::gateway::state::Gateway;
use crate::idempotency::AttemptLookup;
use crate::idempotency::{
    AttemptId, ClaimMode, ClaimResult, FleetAnswer, IdempotencyKey, RaceSide, StoredReply,
};
use crate::ledger::{AccountName, Operation, Outcome};
use crate::metrics::METRICS;
use crate::money::Money;

/// How often a retry polls for the end of the first call: the time since the retry arrived, divided
/// by [`POLL_INTERVAL_DIVISOR`], between the shortest and the longest interval.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(250);
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(2);
const POLL_INTERVAL_DIVISOR: u32 = 20;
/// How long the journal is searched for a first attempt that no process remembers.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The status in the access log if the client disconnected while its retry waited.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Whether a call must be made or needs no further work.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::gateway) enum ClaimOutcome {
    /// The call is not a repeat, and must be made.
    New,
    /// The client got the reply to an earlier call, or has disconnected.
    Answered,
}

/// An attempt to claim a key, which may wait for the call that holds the key.
pub(super) struct ClaimAttempt<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) account: &'a AccountName,
    pub(super) tenant: &'a Arc<Tenant>,
    pub(super) key: &'a mut IdempotencyKey,
    pub(super) source: &'a IdempotencySource,
    /// What the attempts of the call have in common.
    pub(super) id: &'a AttemptId,
    pub(super) endpoint: Endpoint,
    pub(super) has_waited: bool,
    /// Whether the call's file was dropped because other uploads waited for its memory. Such a call
    /// can only be answered by a replay.
    pub(super) file_dropped: bool,
}

/// What the memories of all processes say about the first attempt of a call.
enum Search {
    /// The first attempt runs, or not all processes have answered.
    Wait,
    /// The reply is in the memory of this process.
    Found(StoredReply),
    /// If any process knows the attempt, it is in the store. Otherwise it may be in the journal.
    InStore(Gaps),
}

/// What the memories lack in which an attempt was not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gaps {
    /// A process has forgotten attempts of the account to make room.
    has_forgotten: bool,
    /// A process has ended without writing its attempts to the store.
    has_lost: bool,
}

impl ClaimAttempt<'_> {
    /// Claims the key, or replays the reply stored under it.
    ///
    /// # Errors
    /// As for [`claim_or_replay`](super::claim_or_replay).
    pub(super) async fn run(
        mut self,
        session: &mut Session,
        ctx: &mut RequestContext,
        body: &mut Body,
    ) -> Result<ClaimOutcome, ApiError> {
        let (mut mode, mut question, mut gaps) = (ClaimMode::IfFree, None, None);
        loop {
            if gaps.is_none() {
                match self.search_memories(ctx, &mut question).await? {
                    Search::Found(reply) => return self.replay(session, ctx, &reply).await,
                    Search::InStore(found) => gaps = Some(found),
                    Search::Wait => {
                        if !self.wait_before_poll(session, ctx, body).await? {
                            return Ok(record_disconnect(ctx));
                        }
                        continue;
                    }
                }
                if gaps.is_some_and(|gaps| gaps.has_lost) {
                    // A process that comes back later finds out that the call was made again.
                    self.key.life_ms = KEY_TTL_MS;
                }
            }
            match self.claim(&mode).await? {
                ClaimResult::Claimed if self.file_dropped => {
                    completion::release_claim(self.gateway, self.account, self.key);
                    return Err(CapacityError::TooManyUploads.into());
                }
                ClaimResult::Claimed => {
                    if let Some(gaps) = gaps {
                        self.refuse_charged(ctx, gaps).await?;
                    }
                    return Ok(ClaimOutcome::New);
                }
                ClaimResult::Replied(kept) => return self.replay(session, ctx, &kept).await,
                ClaimResult::ReplyNotStored { .. } => {
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
                        return Ok(record_disconnect(ctx));
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

    /// Looks for the first attempt of a retry in the memory of this process, and then in those of
    /// the others. Calls with an idempotency key, and those for videos, are only in the store.
    async fn search_memories(
        &self,
        ctx: &mut RequestContext,
        question: &mut Option<u64>,
    ) -> Result<Search, ApiError> {
        if *self.source != IdempotencySource::Retry || self.endpoint == Endpoint::Videos {
            let (has_forgotten, has_lost) = (false, false);
            return Ok(Search::InStore(Gaps { has_forgotten, has_lost }));
        }
        let ClaimAttempt { gateway, account, id, .. } = self;
        let has_forgotten = match gateway.first_attempts.find(account, id, monotonic_ms()) {
            AttemptLookup::Running => return Ok(Search::Wait),
            AttemptLookup::Replied(reply) => return Ok(Search::Found(reply)),
            AttemptLookup::ReplyNotStored => {
                return Err(self.count_refusal(ctx, IdempotencyError::ReplyNotKept));
            }
            AttemptLookup::Unknown { forgotten } => forgotten,
        };
        let asked = gateway.fleet.find_attempt(account, id, question);
        match gateway.with_ledger_timeout("repeat", asked).await {
            Ok(FleetAnswer::Waiting) => Ok(Search::Wait),
            Ok(FleetAnswer::AllAnswered) => {
                Ok(Search::InStore(Gaps { has_forgotten, has_lost: false }))
            }
            Ok(FleetAnswer::SomeForgotten) => {
                Ok(Search::InStore(Gaps { has_forgotten: true, has_lost: false }))
            }
            Ok(FleetAnswer::SomeLost) => {
                Ok(Search::InStore(Gaps { has_forgotten, has_lost: true }))
            }
            Ok(FleetAnswer::Busy) => Err(self.count_refusal(ctx, IdempotencyError::KeyInUse)),
            Err(_) => Err(ServerError::LedgerUnavailable.into()),
        }
    }

    /// Fails if the journal has a charge of a first attempt that no process remembers.
    async fn refuse_charged(
        &self,
        ctx: &mut RequestContext,
        Gaps { has_forgotten, has_lost }: Gaps,
    ) -> Result<(), ApiError> {
        if !has_forgotten && !has_lost {
            return Ok(());
        }
        let ClaimAttempt { gateway, account, tenant, key, id, .. } = self;
        let _lease = gateway.leases.keep_alive(key.lease_entry(account));
        let searching = async {
            let was_charged = journal_search::was_charged(gateway, tenant, account, id).await?;
            Ok(was_charged || has_lost && !self.wins_race().await?)
        };
        let searched = tokio::time::timeout(SEARCH_TIMEOUT, searching).await;
        match searched.unwrap_or_else(|_| Err(ServerError::LedgerUnavailable.into())) {
            Ok(false) => Ok(()),
            Ok(true) => {
                completion::release_claim(gateway, account, key);
                // What was forgotten is more than what died with another process.
                Err(self.count_refusal(
                    ctx,
                    if has_forgotten {
                        IdempotencyError::ReplyNotKept
                    } else {
                        IdempotencyError::ReplyLost
                    },
                ))
            }
            Err(why) => {
                completion::release_claim(gateway, account, key);
                Err(why)
            }
        }
    }

    /// Enters the retry as a call of its own, so that the charge of the first attempt, which a
    /// process may have that is away, is not made later. `false` if that charge was made just now.
    async fn wins_race(&self) -> Result<bool, ApiError> {
        let ClaimAttempt { gateway, account, key, id, .. } = self;
        let (race, mut mode) = (id.race_key(RaceSide::Retry, key.owner.clone()), ClaimMode::IfFree);
        loop {
            let claim = gateway.reply_store.claim_key(account, &race, &mode, 0);
            match gateway.with_ledger_timeout("repeat", claim).await {
                Ok(ClaimResult::ContentMismatch) => return Ok(false),
                // An earlier retry came to nothing. The entry names the one whose charge counts.
                Ok(ClaimResult::Expired { owner }) => mode = ClaimMode::TakeOver(owner),
                Ok(_) => return Ok(true),
                Err(_) => return Err(ServerError::LedgerUnavailable.into()),
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
            Ok(Outcome::Voided) if self.has_posted_in_memory(owner).await? => {
                Err(self.count_refusal(ctx, IdempotencyError::ReplyLost))
            }
            Ok(Outcome::Voided) => Ok(()),
            Ok(Outcome::AlreadyPosted(_)) => {
                Err(self.count_refusal(ctx, IdempotencyError::ReplyLost))
            }
            Ok(other) => {
                log::error!(
                    event = "hold_void_failed", owner, answer:? = other;
                    "voiding the hold of a lapsed call failed"
                );
                Err(ServerError::HoldConflict.into())
            }
            Err(_) => Err(ServerError::LedgerUnavailable.into()),
        }
    }

    /// Whether a call without an idempotency key was charged whose hold was in the memory of its
    /// process. The store does not know such a hold by its id; the void of it keeps a charge out
    /// from then on, so the journal has the charge or never will.
    async fn has_posted_in_memory(&self, owner: &str) -> Result<bool, ApiError> {
        let ClaimAttempt { gateway, account, tenant, source, .. } = self;
        if **source != IdempotencySource::Retry {
            return Ok(false);
        }
        let search = journal_search::was_request_charged(gateway, tenant, account, owner);
        let searched = tokio::time::timeout(SEARCH_TIMEOUT, search).await;
        searched.unwrap_or_else(|_| Err(ServerError::LedgerUnavailable.into()))
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
        let hold = Operation::Hold {
            id: id.clone(),
            wanted: nothing,
            least: nothing,
            lease_ms,
            key: None,
            rates: Vec::new(),
        };
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

fn record_disconnect(ctx: &mut RequestContext) -> ClaimOutcome {
    ctx.access_log.status = CLIENT_CLOSED_REQUEST;
    ctx.access_log.client_disconnected = true;
    ClaimOutcome::Answered
}
