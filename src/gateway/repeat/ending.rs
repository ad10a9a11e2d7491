//! How a call gives its name back: with its reply, without one, or free for the next.
//!
//! None of this keeps the client waiting: it is begun in the order in which it has to be done, and
//! goes on in the background.

use std::time::{Duration, Instant};

use bytes::Bytes;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use tokio::sync::oneshot;

use super::super::close::in_background;
use super::{Gateway, Repeat, has_left};
use crate::gateway::exchange::Exchange;
use crate::gateway::reply::Reply as Answer;
use crate::ledger::AccountName;
use crate::repeats::{Head, Naming, Repeats, Reply, Taking};

/// A reply that its client has got, as far as anybody can tell, is kept all the same if it is no
/// longer than this: a line may have failed behind our back.
const GOT_BYTES_MAX: usize = 64 << 10;
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

/// Takes a name whoever has it. No call waits for that: nobody can refuse it, and the end of the
/// call says it once more. Tells when it is done, as far as it can be.
pub(super) async fn take_anew(
    gateway: &Gateway,
    account: &AccountName,
    naming: &Naming,
) -> oneshot::Receiver<()> {
    let (repeats, account, naming) = (gateway.repeats.clone(), account.clone(), naming.clone());
    let lease_ms = gateway.timeouts.lease_ms();
    let (done, is_done) = oneshot::channel();
    in_background(async move {
        if let Err(why) = repeats.take(&account, &naming, &Taking::Anew, lease_ms).await {
            log::warn!(owner = naming.owner, why:% = why; "a call has no name yet");
        }
        drop(done);
    })
    .await;
    is_done
}

/// Notes the head of a call's reply.
pub(in crate::gateway) fn begin(exchange: &mut Exchange, head: &ResponseHeader) {
    let Some(repeat) = &mut exchange.repeat else { return };
    let belongs = |name: &str| {
        KEPT_HEADERS.contains(&name) || KEPT_PREFIXES.iter().any(|start| name.starts_with(start))
    };
    let kept = head.headers.iter().filter(|(name, _)| belongs(name.as_str()));
    let text = |value: &http::HeaderValue| value.to_str().map(str::to_owned).ok();
    let headers = kept.filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)));
    repeat.reply.begin(Head { status: head.status.as_u16(), headers: headers.collect() });
}

/// What has to be done before the last bytes go to the client, so that whoever has them finds the
/// reply under its key; and so that a client is noticed which has gone without a word.
pub(in crate::gateway) async fn promise(
    gateway: &Gateway,
    session: &mut Session,
    exchange: &mut Exchange,
) {
    let charged = exchange.record.charge.is_some();
    let Some(mut repeat) = exchange.repeat.take() else { return };
    if repeat.is_keyed {
        return repeat.end(gateway, charged, true).await;
    }
    repeat.missed = repeat.reply.bytes() > GOT_BYTES_MAX && has_left(session).await;
    exchange.repeat = Some(repeat);
}

/// Ends the name of a call that was answered by ourselves.
pub(in crate::gateway) async fn answered(
    gateway: &Gateway,
    exchange: &mut Exchange,
    reply: &Answer,
) {
    let Some(mut repeat) = exchange.repeat.take() else { return };
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    repeat.reply.begin(Head { status: reply.status, headers });
    repeat.reply.add(&Bytes::from(reply.body.clone()));
    repeat.end(gateway, true, true).await;
}

/// Ends whatever name a call still has: its money side is over.
pub(in crate::gateway) async fn close(gateway: &Gateway, exchange: &mut Exchange, gone: bool) {
    let Some(repeat) = exchange.repeat.take() else { return };
    let wanted = repeat.is_keyed || repeat.missed || gone || repeat.reply.bytes() <= GOT_BYTES_MAX;
    repeat.end(gateway, exchange.record.charge.is_some(), wanted).await;
}

/// Gives a name free in the background.
pub(super) async fn free(gateway: &Gateway, account: &AccountName, naming: &Naming) {
    let (repeats, account, naming) = (gateway.repeats.clone(), account.clone(), naming.clone());
    in_background(async move {
        insist(&*repeats, (&account, &naming), &mut Ending::Free).await;
    })
    .await;
}

impl Repeat {
    /// Only what was charged is kept.
    async fn end(mut self: Box<Self>, gateway: &Gateway, charged: bool, wanted: bool) {
        let mut ending = match charged {
            true if wanted => Ending::Charged(self.reply.reply()),
            true => Ending::Charged(None),
            false => Ending::Free,
        };
        let (repeats, store) = (gateway.repeats.clone(), gateway.store_name);
        let busy = gateway.busy.enter();
        in_background(async move {
            let Repeat { account, naming, is_keyed, reply, taken, lease, .. } = *self;
            if let Some(taken) = taken {
                // It ends without a word.
                let _ = taken.await;
            }
            insist(&*repeats, (&account, &naming), &mut ending).await;
            // Until then the name was kept alive, and what was collected was counted.
            drop((lease, reply, busy));
            if is_keyed && charged && store != "sqlite" {
                say_again(&*repeats, (&account, &naming), ending).await;
            }
        })
        .await;
    }
}

/// What becomes of a name.
enum Ending {
    Free,
    /// It stands for a call that was charged, with its reply if that is kept.
    Charged(Option<Reply>),
}

/// A server may lose the last second of what it acknowledged. What it has by then is not changed.
async fn say_again(repeats: &dyn Repeats, named: (&AccountName, &Naming), mut ending: Ending) {
    if let Ending::Charged(reply) = &mut ending {
        // A long one is not kept in memory for that: the name is what must not be forgotten.
        *reply = reply.take().filter(|reply| reply.body.len() <= GOT_BYTES_MAX);
    }
    tokio::time::sleep(AGAIN_AFTER).await;
    insist(repeats, named, &mut ending).await;
}

/// Ends a name until the store has said that it did, but not for ever.
async fn insist(
    repeats: &dyn Repeats,
    (account, naming): (&AccountName, &Naming),
    end: &mut Ending,
) {
    let (began, mut wait) = (Instant::now(), RETRY_WAIT_MIN);
    loop {
        let Naming { name, owner, .. } = naming;
        let done = match end {
            Ending::Free => repeats.free(account, name, owner).await,
            Ending::Charged(reply) => repeats.end(account, naming, reply.clone()).await.map(|_| ()),
        };
        let Err(why) = done else { return };
        if began.elapsed() > RETRY_TIME {
            log::error!(owner, why:% = why; "the name of a call was left to lapse");
            return;
        }
        log::warn!(owner, why:% = why; "the store of names will be asked again");
        if let Ending::Charged(reply) = end
            && began.elapsed() > REPLY_TIME
        {
            *reply = None;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_WAIT_MAX);
    }
}
