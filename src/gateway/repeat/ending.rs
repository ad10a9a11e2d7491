//! How a call gives its name back: with its reply, without one, or free for the next.
//!
//! None of this keeps the client waiting: it is begun in the order in which it has to be done, and
//! goes on in the background.

use std::time::{Duration, Instant};

use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use tokio::sync::oneshot;

use super::super::close::in_background;
use super::{GOT_BYTES_MAX, Gateway, IdempotentCall, apart};
use crate::gateway::exchange::RequestContext;
use crate::gateway::reply::LocalResponse as Answer;
use crate::idempotency::{ClaimMode, IdempotencyKey, ReplyHead, ReplyParts, ReplyStore};
use crate::ledger::AccountName;

/// The system has heard within this that a client has an answer; else the client counts as gone.
const HEARD_WAIT: Duration = Duration::from_secs(2);
const HEARD_LOOK_EVERY: Duration = Duration::from_millis(5);
/// How the kernel calls a connection that both sides have open.
const ESTABLISHED: u8 = 1;
/// A store that cannot be reached is asked again after so long, doubling up to the most.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);
/// And for so long, of which the reply is kept in memory for a part. Then the name lapses, and
/// whoever asks for it is told that the reply is lost.
const RETRY_TIME: Duration = Duration::from_secs(60);
const REPLY_TIME: Duration = Duration::from_secs(10);

/// The end of a call with a key is said to a server once more after so long, when it has on disk
/// what it was told before.
const AGAIN_AFTER: Duration = Duration::from_millis(2_500);

/// Headers that belong to a reply; each call has the others for itself.
const KEPT_HEADERS: [&str; 2] = ["content-type", "cache-control"];
const KEPT_PREFIXES: [&str; 2] = ["x-gateway-", "x-service-"];

/// Takes a name whoever has it, while the call goes on: nobody can refuse it. Tells when it is
/// done, as far as it can be; the end of the call says it once more.
pub(super) async fn take_anew(
    gateway: &Gateway,
    account: &AccountName,
    naming: &IdempotencyKey,
) -> oneshot::Receiver<()> {
    let (repeats, account, naming) = (gateway.repeats.clone(), account.clone(), naming.clone());
    let lease_ms = gateway.timeouts.lease_ms();
    let (done, is_done) = oneshot::channel();
    in_background(async move {
        if let Err(why) = repeats.claim_key(&account, &naming, &ClaimMode::Replace, lease_ms).await
        {
            log::warn!(
                event = "idempotency_register_failed", owner = naming.owner, why:% = why;
                "a call has no name yet"
            );
        }
        drop(done);
    })
    .await;
    is_done
}

/// Waits until a call has its name, which was asked for before its money. Without a name in time it
/// goes on all the same.
pub(in crate::gateway) async fn named(gateway: &Gateway, exchange: &mut RequestContext) {
    let Some(repeat) = &mut exchange.repeat else { return };
    let Some(taken) = &mut repeat.taken else { return };
    if tokio::time::timeout(gateway.timeouts.ledger, taken).await.is_ok() {
        repeat.taken = None;
    }
}

/// Notes the head of a call's reply.
pub(in crate::gateway) fn begin(exchange: &mut RequestContext, head: &ResponseHeader) {
    let Some(repeat) = &mut exchange.repeat else { return };
    let belongs = |name: &str| {
        KEPT_HEADERS.contains(&name) || KEPT_PREFIXES.iter().any(|start| name.starts_with(start))
    };
    let kept = head.headers.iter().filter(|(name, _)| belongs(name.as_str()));
    let text = |value: &http::HeaderValue| value.to_str().map(str::to_owned).ok();
    let headers = kept.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)));
    repeat.reply.begin(ReplyHead::new(head.status.as_u16(), headers.collect()));
}

/// Ends the name of a call with a key, before the last bytes go to the client: whoever has them
/// finds the reply.
pub(in crate::gateway) async fn promise(gateway: &Gateway, exchange: &mut RequestContext) {
    let charged = exchange.record.charge.is_some();
    if let Some(repeat) = exchange.repeat.take_if(|repeat| repeat.is_keyed) {
        repeat.end(gateway, charged, true).await;
    }
}

/// Sees whether a client gets what was written for it, where that matters: most of those that gave
/// up have closed their end without a word.
pub(in crate::gateway) async fn look_after(session: &Session, exchange: &mut RequestContext) {
    let Some(repeat) = exchange.repeat.as_mut().filter(|repeat| !repeat.is_short()) else { return };
    let began = Instant::now();
    repeat.missed = loop {
        let digest = session.digest().and_then(|digest| digest.socket_digest.as_ref());
        let Some(line) = digest.and_then(|digest| digest.tcp_info()) else { break true };
        let is_open = line.tcpi_state == ESTABLISHED;
        let is_there = line.tcpi_unacked == 0 && line.tcpi_notsent_bytes == 0;
        if is_there || !is_open || began.elapsed() > HEARD_WAIT {
            break !(is_there && is_open);
        }
        tokio::time::sleep(HEARD_LOOK_EVERY).await;
    };
    exchange.client_time += began.elapsed();
}

/// Ends the name of a call that was answered by ourselves.
pub(in crate::gateway) async fn answered(
    gateway: &Gateway,
    exchange: &mut RequestContext,
    reply: &Answer,
) {
    let Some(mut repeat) = exchange.repeat.take() else { return };
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    repeat.reply.begin(ReplyHead::new(reply.status, headers));
    repeat.reply.add(&reply.body);
    repeat.end(gateway, true, true).await;
}

/// Ends whatever name a call still has: its money side is over.
pub(in crate::gateway) async fn close(
    gateway: &Gateway,
    exchange: &mut RequestContext,
    gone: bool,
) {
    let Some(repeat) = exchange.repeat.take() else { return };
    let wanted = repeat.is_keyed || repeat.missed || gone || repeat.is_short();
    repeat.end(gateway, exchange.record.charge.is_some(), wanted).await;
}

/// Gives a name free in the background.
pub(super) async fn free(gateway: &Gateway, account: &AccountName, naming: &IdempotencyKey) {
    let (repeats, account, naming) = (gateway.repeats.clone(), account.clone(), naming.clone());
    in_background(async move {
        insist(&*repeats, (&account, &naming), &mut IdempotentEnding::Free).await;
    })
    .await;
}

impl IdempotentCall {
    /// Whether its reply is kept though the client has got it.
    fn is_short(&self) -> bool {
        self.reply.bytes() <= self.got_bytes_max
    }

    /// Only what was charged is kept.
    async fn end(mut self: Box<Self>, gateway: &Gateway, charged: bool, wanted: bool) {
        let mut ending = match charged {
            true if wanted => IdempotentEnding::Charged(self.reply.reply()),
            true => IdempotentEnding::Charged(None),
            false => IdempotentEnding::Free,
        };
        let (repeats, store) = (gateway.repeats.clone(), gateway.store_name);
        let bodies = gateway.bodies_apart.clone();
        let settling = gateway.settling.enter();
        in_background(async move {
            let IdempotentCall { account, naming, is_keyed, reply, taken, lease, .. } = *self;
            if let Some(taken) = taken {
                // It ends without a word.
                let _ = taken.await;
            }
            if let IdempotentEnding::Charged(reply) = &mut ending {
                *reply = apart::keep(&bodies, (&account, &naming), reply.take()).await;
            }
            let is_known = insist(&*repeats, (&account, &naming), &mut ending).await;
            if let IdempotentEnding::Charged(Some(reply)) = &ending
                && !is_known
            {
                apart::forget(&bodies, (&account, &naming), reply).await;
            }
            // Until then the name was kept alive, and what was collected was counted.
            drop((lease, reply, settling));
            if is_keyed && charged && store != "sqlite" {
                say_again(&*repeats, (&account, &naming), ending).await;
            }
        })
        .await;
    }
}

/// What becomes of a name.
enum IdempotentEnding {
    Free,
    /// It stands for a call that was charged, with its reply if that is kept.
    Charged(Option<ReplyParts>),
}

/// A server may lose the last second of what it acknowledged. What it has by then is not changed.
async fn say_again(
    repeats: &dyn ReplyStore,
    named: (&AccountName, &IdempotencyKey),
    mut ending: IdempotentEnding,
) {
    if let IdempotentEnding::Charged(reply) = &mut ending {
        // A long one is not kept in memory for that: the name is what must not be forgotten.
        *reply = reply.take().filter(|reply| reply.body.len() <= GOT_BYTES_MAX);
    }
    tokio::time::sleep(AGAIN_AFTER).await;
    insist(repeats, named, &mut ending).await;
}

/// Ends a name until the store has said that it did, but not for ever. Tells whether the name
/// stands for the call now.
async fn insist(
    repeats: &dyn ReplyStore,
    (account, naming): (&AccountName, &IdempotencyKey),
    end: &mut IdempotentEnding,
) -> bool {
    let (began, mut wait) = (Instant::now(), RETRY_WAIT_MIN);
    loop {
        let IdempotencyKey { name, owner, .. } = naming;
        let done = match end {
            IdempotentEnding::Free => {
                repeats.release_key(account, name, owner).await.map(|()| false)
            }
            IdempotentEnding::Charged(reply) => {
                repeats.complete(account, naming, reply.clone()).await
            }
        };
        let why = match done {
            Ok(is_known) => return is_known,
            Err(why) => why,
        };
        if began.elapsed() > RETRY_TIME {
            log::error!(
                event = "idempotency_update_failed", owner, why:% = why;
                "the name of a call was left to lapse"
            );
            return false;
        }
        log::warn!(
            event = "idempotency_retry", owner, why:% = why;
            "the store of names will be asked again"
        );
        if let IdempotentEnding::Charged(reply) = end
            && began.elapsed() > REPLY_TIME
        {
            *reply = None;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_WAIT_MAX);
    }
}
