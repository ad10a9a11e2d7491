//! How an idempotency claim ends: completed with a reply, without one, or released.
//!
//! The client does not wait for the store: the operations are started in the order in which they
//! must be done, and continue in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use tokio::sync::oneshot;

use super::call::{Claim, DELIVERED_BYTES_MAX, IdempotentCall, StoredClaim};
use super::external_body;
use super::recorder::ReplyRecorder;
use crate::backoff::Backoff;
use crate::clock::monotonic_ms;
use crate::gateway::context::{MODEL_HEADER, RequestContext};
use crate::gateway::in_flight::InFlight;
use crate::gateway::local_response::LocalResponse as Answer;
use crate::gateway::spawn::poll_then_spawn;
use crate::gateway::state::Gateway;
use crate::idempotency::FirstAttempt;
use crate::idempotency::{
    ClaimMode, INLINE_BYTES_MAX, IdempotencyKey, ReplyHead, ReplyParts, ReplyStore,
};
use crate::ledger::AccountName;

/// If the client has not acknowledged the whole response (in TCP) within this time, it counts as
/// disconnected.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(2);
const DELIVERY_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The kernel's number for a TCP connection that both sides have open.
const TCP_ESTABLISHED: u8 = 1;
/// The delay before an operation is tried again on a store that cannot be reached; it doubles from
/// the shortest to the longest.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// An operation is tried again for at most this long, and the reply is kept in memory for the first
/// [`REPLY_RETENTION`] of it. After that the claim is left to expire, and a repeat gets the error
/// that the reply is lost.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const REPLY_RETENTION: Duration = Duration::from_secs(10);

/// The outcome of a call with a key is written a second time after this delay, when the server has
/// written the first one to its disk.
const CONFIRM_DELAY: Duration = Duration::from_millis(2_500);

/// The headers that are stored with a reply. All others are made anew for each call.
const STORED_HEADERS: [&str; 2] = ["content-type", "cache-control"];
const STORED_HEADER_PREFIXES: [&str; 2] = ["x-gateway-", "x-service-"];

/// Claims a key in the background while the call goes on, even if another call holds the key. The
/// receiver closes when the attempt is over. The completion of the call writes the claim once more.
pub(super) fn claim_in_background(
    gateway: &Gateway,
    account: &AccountName,
    key: &IdempotencyKey,
) -> oneshot::Receiver<()> {
    let (reply_store, account, key) = (gateway.reply_store.clone(), account.clone(), key.clone());
    let lease_ms = gateway.timeouts.lease_ms();
    let (done, is_done) = oneshot::channel();
    poll_then_spawn(async move {
        if let Err(why) = reply_store.claim_key(&account, &key, &ClaimMode::Replace, lease_ms).await
        {
            log::warn!(
                event = "idempotency_register_failed", owner = key.owner, error:% = why;
                "idempotency claim not registered"
            );
        }
        drop(done);
    });
    is_done
}

/// Waits for the background claim of a call, which was started before the hold was placed. If the
/// claim is not made in time, the call goes on without it.
pub(in crate::gateway) async fn await_claim(gateway: &Gateway, ctx: &mut RequestContext) {
    let Some(call) = &mut ctx.idempotent_call else { return };
    let Claim::Stored(claim) = &mut call.claim else { return };
    let Some(background) = &mut claim.background else { return };
    if tokio::time::timeout(gateway.timeouts.ledger, background).await.is_ok() {
        claim.background = None;
    }
}

/// Records the head of a call's reply, with the headers that are stored.
pub(in crate::gateway) fn record_head(ctx: &mut RequestContext, head: &ResponseHeader) {
    let Some(call) = &mut ctx.idempotent_call else { return };
    let belongs = |name: &str| {
        STORED_HEADERS.contains(&name)
            || STORED_HEADER_PREFIXES.iter().any(|start| name.starts_with(start))
    };
    let kept = head.headers.iter().filter(|(name, _)| belongs(name.as_str()));
    let text = |value: &http::HeaderValue| value.to_str().map(str::to_owned).ok();
    let headers = kept.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)));
    call.recorder.set_head(ReplyHead::new(head.status.as_u16(), headers.collect()));
}

/// Completes the claim of a call with a key before the last bytes go to the client, so that a
/// client that has received them finds the reply under the key.
pub(in crate::gateway) async fn store_before_last_byte(
    gateway: &Gateway,
    ctx: &mut RequestContext,
) {
    let charged = ctx.access_log.charge.is_some();
    if let Some(call) = ctx.idempotent_call.take_if(|call| call.is_keyed()) {
        call.complete(gateway, charged, true);
    }
}

/// Detects from the TCP state whether the client received the response, unless the reply is stored
/// in any case. Most clients that gave up have just closed their end of the connection.
pub(in crate::gateway) async fn detect_undelivered(session: &Session, ctx: &mut RequestContext) {
    let Some(call) = ctx.idempotent_call.as_mut().filter(|call| !call.keeps_delivered_reply())
    else {
        return;
    };
    let began = Instant::now();
    call.is_undelivered = loop {
        let digest = session.digest().and_then(|digest| digest.socket_digest.as_ref());
        let Some(tcp) = digest.and_then(|digest| digest.tcp_info()) else { break true };
        let is_open = tcp.tcpi_state == TCP_ESTABLISHED;
        let is_there = tcp.tcpi_unacked == 0 && tcp.tcpi_notsent_bytes == 0;
        if is_there || !is_open || began.elapsed() > DELIVERY_TIMEOUT {
            break !(is_there && is_open);
        }
        tokio::time::sleep(DELIVERY_POLL_INTERVAL).await;
    };
    ctx.client_time += began.elapsed();
}

/// Completes the claim of a call that the gateway answered itself, with that reply.
pub(in crate::gateway) async fn store_local_reply(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    reply: &Answer,
) {
    let Some(mut call) = ctx.idempotent_call.take() else { return };
    let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let model_id = ctx.access_log.aliased_model_id();
    headers.extend(model_id.map(|id| (MODEL_HEADER.as_str().to_owned(), id.to_owned())));
    call.recorder.set_head(ReplyHead::new(reply.status, headers));
    call.recorder.push(&reply.body);
    call.complete(gateway, true, true);
}

/// Completes or releases the claim that a call still has, after its hold was settled or voided.
pub(in crate::gateway) async fn finish_claim(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    client_gone: bool,
) {
    let Some(call) = ctx.idempotent_call.take() else { return };
    let wanted =
        call.is_keyed() || call.is_undelivered || client_gone || call.keeps_delivered_reply();
    call.complete(gateway, ctx.access_log.charge.is_some(), wanted);
}

/// Releases a claim in the background.
pub(super) fn release_claim(gateway: &Gateway, account: &AccountName, key: &IdempotencyKey) {
    let (reply_store, account, key) = (gateway.reply_store.clone(), account.clone(), key.clone());
    poll_then_spawn(async move {
        retry_until_stored(&*reply_store, &account, &key, &mut ClaimEnding::Released).await;
    });
}

impl IdempotentCall {
    /// Whether the reply is stored even if the client received it.
    fn keeps_delivered_reply(&self) -> bool {
        self.recorder.bytes() <= self.delivered_bytes_max
    }

    /// Completes the claim of a charged call, with its reply if that is wanted. The claim of a call
    /// that was not charged is released. Writes to the store go on in the background.
    fn complete(mut self: Box<Self>, gateway: &Gateway, charged: bool, wanted: bool) {
        let reply = if charged && wanted { self.recorder.complete_reply() } else { None };
        let is_keyed = self.is_keyed();
        let IdempotentCall { account, claim, recorder, .. } = *self;
        match claim {
            Claim::InMemory(attempt) => {
                let ending = AttemptEnding { account, attempt, charged, reply };
                ending.complete(gateway, recorder);
            }
            Claim::Stored(claim) => {
                let ending =
                    if charged { ClaimEnding::Charged(reply) } else { ClaimEnding::Released };
                let confirm = is_keyed && charged;
                complete_stored(gateway, account, claim, recorder, ending, confirm);
            }
        }
    }
}

/// Completes a claim in the store, in the background. With `confirm`, its outcome is written once
/// more where the store may lose what it acknowledged.
fn complete_stored(
    gateway: &Gateway,
    account: AccountName,
    claim: StoredClaim,
    recorder: ReplyRecorder,
    mut ending: ClaimEnding,
    confirm: bool,
) {
    let reply_store = gateway.reply_store.clone();
    let bodies = gateway.body_files.clone();
    let in_flight_guard = gateway.settlements.begin();
    poll_then_spawn(async move {
        let StoredClaim { key, background, lease } = claim;
        if let Some(background) = background {
            // The channel closes without a message.
            let _ = background.await;
        }
        if let ClaimEnding::Charged(reply) = &mut ending {
            *reply = external_body::store_long_body(&bodies, &account, &key, reply.take()).await;
        }
        let is_known = retry_until_stored(&*reply_store, &account, &key, &mut ending).await;
        if let ClaimEnding::Charged(Some(reply)) = &ending
            && !is_known
        {
            external_body::delete_body(&bodies, &account, &key, reply).await;
        }
        // Until here the lease renewed the claim, and the recorder counted the bytes of the reply.
        drop((lease, recorder, in_flight_guard));
        if confirm && !reply_store.is_durable_at_once() {
            confirm_after_fsync(&*reply_store, &account, &key, ending).await;
        }
    });
}

/// How a first attempt in memory ends.
struct AttemptEnding {
    account: AccountName,
    attempt: FirstAttempt,
    charged: bool,
    reply: Option<ReplyParts>,
}

impl AttemptEnding {
    /// Ends the attempt in memory, after a long body was written to the object store; and in the
    /// store, if the store has it.
    fn complete(self, gateway: &Gateway, recorder: ReplyRecorder) {
        let is_long = |reply: &ReplyParts| reply.body.len() > INLINE_BYTES_MAX;
        if !self.reply.as_ref().is_some_and(is_long) {
            self.end(gateway.reply_store.clone(), &gateway.settlements);
            return;
        }
        let (bodies, reply_store) = (gateway.body_files.clone(), gateway.reply_store.clone());
        let (settlements, in_flight_guard) =
            (gateway.settlements.clone(), gateway.settlements.begin());
        let mut ending = self;
        poll_then_spawn(async move {
            let key = ending.attempt.key();
            let account = &ending.account;
            ending.reply =
                external_body::store_long_body(&bodies, account, &key, ending.reply.take()).await;
            ending.end(reply_store, &settlements);
            drop((recorder, in_flight_guard));
        });
    }

    fn end(self, reply_store: Arc<dyn ReplyStore>, settlements: &InFlight) {
        let AttemptEnding { account, attempt, charged, reply } = self;
        let make_key = attempt.key_later();
        let (promoted, mut ending) = if charged {
            let Some((promoted, reply)) = attempt.complete(reply, monotonic_ms()) else { return };
            (promoted, ClaimEnding::Charged(reply))
        } else {
            let Some(promoted) = attempt.release() else { return };
            (promoted, ClaimEnding::Released)
        };
        let (key, in_flight_guard) = (make_key(), settlements.begin());
        poll_then_spawn(async move {
            let lease = promoted.await_claim().await;
            retry_until_stored(&*reply_store, &account, &key, &mut ending).await;
            drop((lease, in_flight_guard));
        });
    }
}

/// How a claim ends.
enum ClaimEnding {
    Released,
    /// The key stands for a charged call from now on; `None` if its reply is not stored.
    Charged(Option<ReplyParts>),
}

/// Writes the outcome once more: a server may lose the last second of acknowledged writes. The
/// second write changes nothing if the first one is there.
async fn confirm_after_fsync(
    reply_store: &dyn ReplyStore,
    account: &AccountName,
    key: &IdempotencyKey,
    mut ending: ClaimEnding,
) {
    if let ClaimEnding::Charged(reply) = &mut ending {
        // A long reply is not kept in memory for this, because only the key must not be lost.
        *reply = reply.take().filter(|reply| reply.body.len() <= DELIVERED_BYTES_MAX);
    }
    tokio::time::sleep(CONFIRM_DELAY).await;
    retry_until_stored(reply_store, account, key, &mut ending).await;
}

/// Completes or releases a claim, and tries again until the store acknowledges it or
/// [`RETRY_TIMEOUT`] has passed. Returns whether the key stands for this call now.
async fn retry_until_stored(
    reply_store: &dyn ReplyStore,
    account: &AccountName,
    key: &IdempotencyKey,
    end: &mut ClaimEnding,
) -> bool {
    let (began, mut backoff) = (Instant::now(), Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX));
    loop {
        let IdempotencyKey { name, owner, .. } = key;
        let done = match end {
            ClaimEnding::Released => {
                reply_store.release_key(account, name, owner).await.map(|()| false)
            }
            ClaimEnding::Charged(reply) => reply_store.complete(account, key, reply.clone()).await,
        };
        let why = match done {
            Ok(is_known) => return is_known,
            Err(why) => why,
        };
        if began.elapsed() > RETRY_TIMEOUT {
            log::error!(
                event = "idempotency_update_failed", owner, error:% = why;
                "idempotency record update abandoned, claim left to expire"
            );
            return false;
        }
        log::warn!(
            event = "idempotency_retry", owner, error:% = why;
            "idempotency record update failed, retrying"
        );
        if let ClaimEnding::Charged(reply) = end
            && began.elapsed() > REPLY_RETENTION
        {
            *reply = None;
        }
        backoff.wait().await;
    }
}
