//! Repeats of paid calls. Under an idempotency key the same call is made once; and when an official
//! client tries again by itself, it gets what it had asked for, instead of paying for it twice.
//!
//! A call takes its name before anything is looked up or held for it. When its money side is over
//! the name keeps the reply, if it was charged, and else is free again. A call that ends in any
//! other way lets its name lapse, and the ledger tells what became of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora_proxy::Session;
use tokio::sync::oneshot;

use super::exchange::{RequestContext, unix_ms};
use super::intake::RequestBody as Body;
use super::refusal::ApiError;
use super::tenant_budget::TenantId;
use super::{Gateway, upstream, videos};
use crate::dialect::{CallError, Endpoint};
use crate::idempotency::{ClaimMode, ClaimResult, IdempotencyKey, StoredReply};
use crate::ledger::{AccountName, Lease, Operation, Outcome};
use crate::metrics::METRICS;
use crate::money::Money;

mod apart;
mod collected;
mod content;
mod ending;
mod replay;

use collected::ReplyRecorder;
pub(super) use collected::budget;
pub(super) use ending::{answered, begin, close, look_after, named, promise};

/// The name under which clients ask for something once, however often they ask.
const KEY: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 255;
/// How often a client has tried before, as official ones tell.
const RETRIES: &str = "x-stainless-retry-count";
/// Names and replies are remembered for so long: of keys, and of calls without one.
const KEY_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
const RETRY_LIFE: Duration = Duration::from_secs(10 * 60);
/// See [`Repeat::got_bytes_max`].
const GOT_BYTES_MAX: usize = 64 << 10;
/// Whoever waits for the end of a call looks so often, and less often the longer it takes: a part
/// of the time that it has waited, up to the most.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(250);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);
const LOOK_PART: u32 = 20;
/// What the log has for a client that did not wait.
const CLIENT_LEFT: u16 = 499;

/// How a call says what it may be a repeat of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdempotencySource {
    /// It has a key, whose digest this is.
    Keyed(String),
    /// It has none; it is no repeat, but may be repeated.
    First,
    /// It is what a client that got no answer does next.
    Again,
}

/// The name of a call that is under way, and its reply as far as the client was given it.
#[derive(Debug)]
pub struct IdempotentCall {
    account: AccountName,
    naming: IdempotencyKey,
    is_keyed: bool,
    /// Up to so many bytes the reply is kept though its client has got it, as far as anybody can
    /// tell: a line may have failed behind our back.
    got_bytes_max: usize,
    /// Whether the client has not got all of it.
    missed: bool,
    /// Ends when the name was taken, where nobody has waited for that yet.
    taken: Option<oneshot::Receiver<()>>,
    reply: ReplyRecorder,
    lease: Lease,
}

/// What becomes of a call that may be a repeat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is none, and is made.
    New,
    /// It was answered.
    Answered,
}

impl IdempotencySource {
    /// Reads the headers of a call; `None` if they say nothing.
    ///
    /// # Errors
    /// There is more than one key, or none that could be one.
    pub(super) fn read(
        session: &Session,
        endpoint: Endpoint,
    ) -> Result<Option<IdempotencySource>, ApiError> {
        if endpoint == Endpoint::Moderations {
            return Ok(None);
        }
        if let Some(key) = key(session)? {
            // A video's key leads to its job, for as long as that is there.
            return Ok((endpoint != Endpoint::Videos).then_some(IdempotencySource::Keyed(key)));
        }
        let count = session.get_header(RETRIES).and_then(|count| count.to_str().ok());
        Ok(match count.and_then(|count| count.parse::<u64>().ok()) {
            None => None,
            Some(0) => Some(IdempotencySource::First),
            Some(_) => Some(IdempotencySource::Again),
        })
    }

    fn name(&self, endpoint: Endpoint, content: &[u8; 32]) -> String {
        let endpoint = endpoint.name();
        match self {
            IdempotencySource::Keyed(key) => format!("key:{endpoint}:{key}"),
            IdempotencySource::First | IdempotencySource::Again => {
                format!("retry:{endpoint}:{}", content::hex(content))
            }
        }
    }

    fn life_ms(&self) -> u64 {
        let life = if matches!(self, IdempotencySource::Keyed(_)) { KEY_LIFE } else { RETRY_LIFE };
        u64::try_from(life.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Whether a call says that it may have been made before.
pub(super) fn may_repeat(session: &Session) -> bool {
    let retries = session.get_header(RETRIES).map(http::HeaderValue::as_bytes);
    session.get_header(KEY).is_some() || retries.is_some_and(|count| count != b"0")
}

/// The digest of the key under which a client asks once.
///
/// # Errors
/// There is more than one, or it is none.
pub(super) fn key(session: &Session) -> Result<Option<String>, ApiError> {
    let mut keys = session.req_header().headers.get_all(KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let key = key.as_bytes();
    let sound = keys.next().is_none()
        && (1..=KEY_BYTES_MAX).contains(&key.len())
        && key.iter().all(u8::is_ascii_graphic);
    if !sound {
        let right = "one header of 1 to 255 visible ASCII characters";
        return Err(ApiError::Call(CallError::invalid("Idempotency-Key", right)));
    }
    Ok(Some(content::hex(&content::of_text(key))))
}

/// Takes the name of a call, or answers with what stands under it.
///
/// # Errors
/// What stands there is no answer.
pub(super) async fn enter(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut RequestContext,
    account: &AccountName,
    (way, endpoint): (IdempotencySource, Endpoint),
    body: &mut Body,
) -> Result<Admission, ApiError> {
    let manners = upstream::manners_of(gateway, session, (&body.opened.model, endpoint));
    let content = content::of(&body.opened, &manners).await;
    let name = way.name(endpoint, &content);
    // As its hold.
    let owner =
        if endpoint == Endpoint::Videos { videos::id(exchange) } else { exchange.id.clone() };
    let naming = IdempotencyKey { name, content, owner, life_ms: way.life_ms() };
    let mut taken = None;
    if way == IdempotencySource::First {
        taken = Some(ending::take_anew(gateway, account, &naming).await);
    } else {
        let (waited, let_go) = (false, false);
        let mut asking =
            ClaimAttempt { gateway, account, naming: &naming, way: &way, endpoint, waited, let_go };
        if asking.ask(session, exchange, body).await? == Admission::Answered {
            return Ok(Admission::Answered);
        }
    }
    let lease = gateway.leases.keep_alive(naming.lease_entry(account));
    let id = || TenantId::Account(account.clone());
    let tenant = exchange.tenant.clone().unwrap_or_else(|| gateway.tenants.tenant(id()));
    exchange.repeat = Some(Box::new(IdempotentCall {
        account: account.clone(),
        naming,
        is_keyed: matches!(way, IdempotencySource::Keyed(_)),
        got_bytes_max: match endpoint {
            // One is dear, and large.
            Endpoint::Images | Endpoint::ImageEdits => usize::MAX,
            _ => GOT_BYTES_MAX,
        },
        missed: false,
        taken,
        reply: ReplyRecorder::new(gateway.limits.reply_bytes_max, gateway.replies.permit(&tenant)),
        lease,
    }));
    Ok(Admission::New)
}

/// Adds to a call's reply what goes to its client, be the client still there or not.
pub(super) fn add(exchange: &mut RequestContext, bytes: &[Bytes]) {
    if let Some(repeat) = &mut exchange.repeat {
        bytes.iter().for_each(|piece| repeat.reply.add(piece));
    }
}

/// Forgets what there is of a reply: it broke, and its bytes do not say so.
pub(super) fn spoil(exchange: &mut RequestContext) {
    if let Some(repeat) = &mut exchange.repeat {
        repeat.reply.give_up();
    }
}

/// Somebody who asks what stands under a name.
struct ClaimAttempt<'a> {
    gateway: &'a Gateway,
    account: &'a AccountName,
    naming: &'a IdempotencyKey,
    way: &'a IdempotencySource,
    endpoint: Endpoint,
    waited: bool,
    /// Whether the call's file was dropped, to make room for others.
    let_go: bool,
}

impl ClaimAttempt<'_> {
    async fn ask(
        &mut self,
        session: &mut Session,
        exchange: &mut RequestContext,
        body: &mut Body,
    ) -> Result<Admission, ApiError> {
        let mut taking = ClaimMode::IfFree;
        loop {
            match self.take(&taking).await? {
                ClaimResult::Claimed if self.let_go => {
                    ending::free(self.gateway, self.account, self.naming).await;
                    return Err(ApiError::Crowded);
                }
                ClaimResult::Claimed => return Ok(Admission::New),
                ClaimResult::Replied(kept) => return self.replay(session, exchange, &kept).await,
                ClaimResult::ReplyNotStored => {
                    return Err(self.refused(exchange, ApiError::ReplyNotKept));
                }
                ClaimResult::ContentMismatch => {
                    return Err(self.refused(exchange, ApiError::KeyReused));
                }
                ClaimResult::Running if *self.way != IdempotencySource::Again => {
                    return Err(self.refused(exchange, ApiError::KeyInUse));
                }
                ClaimResult::Running => {
                    if !self.wait(session, exchange, body).await? {
                        exchange.record.status = CLIENT_LEFT;
                        exchange.record.client_gone = true;
                        return Ok(Admission::Answered);
                    }
                }
                ClaimResult::Expired { owner } if self.endpoint == Endpoint::Videos => {
                    if let Some(reply) = self.placed(&owner).await? {
                        self.count(exchange, self.met());
                        super::reply::send(session, exchange, reply).await;
                        return Ok(Admission::Answered);
                    }
                    taking = ClaimMode::TakeOver(owner);
                }
                ClaimResult::Expired { owner } => {
                    self.void(exchange, &owner).await?;
                    taking = ClaimMode::TakeOver(owner);
                }
            }
        }
    }

    async fn take(&self, taking: &ClaimMode) -> Result<ClaimResult, ApiError> {
        let ClaimAttempt { gateway, account, naming, .. } = self;
        let lease_ms = gateway.timeouts.lease_ms();
        let taking = gateway.repeats.claim_key(account, naming, taking, lease_ms);
        match gateway.in_time("repeat", taking).await {
            Ok(taken) => Ok(taken),
            Err(why) => {
                log::warn!(
                    event = "idempotency_lookup_failed", owner = naming.owner, why:% = why;
                    "no name"
                );
                // It may have been taken all the same.
                ending::free(gateway, account, naming).await;
                Err(ApiError::NoLedger)
            }
        }
    }

    /// Makes sure that nothing comes any more of a call that nobody keeps alive.
    async fn void(&self, exchange: &mut RequestContext, owner: &str) -> Result<(), ApiError> {
        let voiding = Operation::Void { id: owner.to_owned() };
        let voiding = self.gateway.ledger.apply(self.account, voiding);
        match self.gateway.in_time("void", voiding).await {
            Ok(Outcome::Voided) => Ok(()),
            Ok(Outcome::AlreadyPosted(_)) => Err(self.refused(exchange, ApiError::ReplyLost)),
            Ok(other) => {
                log::error!(
                    event = "hold_void_failed", owner, answer:? = other;
                    "a call that lapsed could not be ended"
                );
                Err(ApiError::Internal)
            }
            Err(_) => Err(ApiError::NoLedger),
        }
    }

    /// The answer to whoever asked for a job of a call that nobody keeps alive. If the job is not
    /// there, its hold's place is taken, so that a call that was only held up does not place it
    /// beside the next one.
    async fn placed(&self, id: &str) -> Result<Option<super::reply::LocalResponse>, ApiError> {
        if let Some(reply) = self.job(id).await? {
            return Ok(Some(reply));
        }
        let (id, nothing) = (id.to_owned(), Money::ZERO);
        let lease_ms = self.gateway.timeouts.lease_ms();
        let hold = Operation::Hold { id: id.clone(), wanted: nothing, least: nothing, lease_ms };
        let holding = self.gateway.ledger.apply(self.account, hold);
        match self.gateway.in_time("hold", holding).await {
            Ok(Outcome::Held(_)) => {
                let voiding = self.gateway.ledger.apply(self.account, Operation::Void { id });
                // Else it expires, for nothing.
                let _ = self.gateway.in_time("void", voiding).await;
                Ok(None)
            }
            // It was placed just now, or is over.
            Ok(_) => self.job(&id).await,
            Err(_) => Err(ApiError::NoLedger),
        }
    }

    /// The answer to whoever asked for a job, if it was placed.
    async fn job(&self, id: &str) -> Result<Option<super::reply::LocalResponse>, ApiError> {
        let videos = &self.gateway.videos;
        let finding = videos.queue.find_job(self.account, id);
        let job = self.gateway.in_time("video_find", finding).await;
        let job = job.map_err(|_| ApiError::NoLedger)?;
        let job = job.filter(|job| !job.is_expired(&videos.schedule, unix_ms()));
        Ok(job.map(|job| super::reply::LocalResponse::ok(job.to_api_json(&videos.schedule))))
    }

    /// Waits for a look at a call that runs; `false` if the client has gone.
    async fn wait(
        &mut self,
        session: &mut Session,
        exchange: &mut RequestContext,
        body: &mut Body,
    ) -> Result<bool, ApiError> {
        self.waited = true;
        if exchange.arrived.elapsed() >= self.gateway.timeouts.total {
            return Err(ApiError::NoAnswer);
        }
        if session.is_process_shutting_down() {
            return Err(self.refused(exchange, ApiError::KeyInUse));
        }
        // A file is not needed, unless the call that runs comes to nothing.
        if self.gateway.uploads.is_crowded() && body.opened.file.take().is_some() {
            self.let_go = true;
            body.room = None;
        }
        let began = Instant::now();
        let pause = exchange.arrived.elapsed() / LOOK_PART;
        let stays = tokio::select! {
            () = tokio::time::sleep(pause.clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)) => true,
            _ = session.downstream_session.read_body_or_idle(true) => false,
        };
        exchange.vendor_time += began.elapsed();
        if !stays {
            session.set_keepalive(None);
        }
        Ok(stays)
    }

    async fn replay(
        &self,
        session: &mut Session,
        exchange: &mut RequestContext,
        kept: &StoredReply,
    ) -> Result<Admission, ApiError> {
        // Without its body the head says nothing.
        if !replay::send((self.gateway, self.account), session, exchange, kept).await? {
            return Err(self.refused(exchange, ApiError::ReplyNotKept));
        }
        self.count(exchange, self.met());
        Ok(Admission::Answered)
    }

    fn met(&self) -> &'static str {
        if self.waited { "joined" } else { "replayed" }
    }

    fn refused(&self, exchange: &mut RequestContext, why: ApiError) -> ApiError {
        self.count(
            exchange,
            match why {
                ApiError::KeyReused => "mismatch",
                ApiError::ReplyNotKept => "not_kept",
                ApiError::ReplyLost => "lost",
                _ => "in_use",
            },
        );
        why
    }

    fn count(&self, exchange: &mut RequestContext, outcome: &'static str) {
        exchange.record.repeat = outcome;
        METRICS.repeats.with_label_values(&[self.endpoint.name(), outcome]).inc();
    }
}
