//! What keeps a store while a process serves: leases are renewed, the store is asked how it is, and
//! what a shared one may have lost is made up for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::Opened;
use super::outbox::Shared;
use super::redis::Redis;
use crate::ledger::lease::{Entry, Kept};
use crate::ledger::{Leases, Ledger, Operation, Unavailable};
use crate::repeats::Repeats;

mod fleet;

use fleet::Fleet;

/// An embedded store is asked how it is so often; a shared one more often.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A store that does not answer within this is away.
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// Leases that could not be renewed are tried again after so long.
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// So many leases are renewed at a time.
const TOGETHER: usize = 128;

/// See the module.
pub struct Upkeep {
    ledger: Arc<dyn Ledger>,
    repeats: Arc<dyn Repeats>,
    leases: Leases,
    lease: Duration,
    answers: Answers,
    fleet: Option<Fleet>,
}

/// Since when the store has answered each time it was asked.
#[derive(Default)]
struct Answers(Mutex<Option<Instant>>);

impl Answers {
    fn answered(&self) {
        self.since().get_or_insert_with(Instant::now);
    }

    fn began_again(&self) {
        *self.since() = None;
    }

    fn for_at_least(&self, span: Duration) -> bool {
        self.since().is_some_and(|since| since.elapsed() >= span)
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upkeep {
    pub(super) fn embedded(store: &Opened, leases: Leases, lease: Duration) -> Upkeep {
        let (ledger, repeats) = (store.ledger.clone(), store.repeats.clone());
        Upkeep { ledger, repeats, leases, lease, answers: Answers::default(), fleet: None }
    }

    pub(super) fn shared(
        redis: Redis,
        store: &Opened,
        shared: Shared,
        (leases, lease): (Leases, Duration),
    ) -> Upkeep {
        let kept = (leases.clone(), store.repeats.clone(), lease);
        let fleet = Fleet::new(redis, shared, kept);
        Upkeep { fleet: Some(fleet), ..Upkeep::embedded(store, leases, lease) }
    }

    /// Keeps the store for as long as this is polled.
    pub async fn run(&self) {
        let watching = async {
            match &self.fleet {
                Some(fleet) => fleet.watch(&self.answers).await,
                None => self.probe().await,
            }
        };
        let tidying = async {
            if let Some(fleet) = &self.fleet {
                fleet.tidy().await;
            }
        };
        tokio::join!(watching, tidying, self.renew());
    }

    /// Whether holds whose lease ran out may be ended: only where those who have a lease had all of
    /// its time to renew it, and those who ended one to say so.
    #[must_use]
    pub fn may_sweep(&self) -> bool {
        let is_settled = self.fleet.as_ref().is_none_or(|fleet| fleet.has_lasted(self.lease));
        is_settled && self.answers.for_at_least(self.lease)
    }

    /// Whether the end of a hold is safe on this machine before the store has acknowledged it.
    #[must_use]
    pub fn writes_down(&self) -> bool {
        self.fleet.as_ref().is_some_and(Fleet::writes_down)
    }

    /// Writes what there is to write before the process leaves.
    pub fn leave(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.leave();
        }
    }

    /// Asks an embedded store how it is.
    async fn probe(&self) {
        loop {
            match timeout(PROBE_WAIT, self.ledger.ping()).await {
                Ok(Ok(())) => self.answers.answered(),
                _ => self.answers.began_again(),
            }
            sleep(PROBE_EVERY).await;
        }
    }

    /// Renews what is kept alive, four times in each lease.
    async fn renew(&self) {
        let every = self.lease / 4;
        let mut wait = every;
        loop {
            sleep(wait).await;
            wait = match self.renew_all().await {
                Ok(()) => every,
                Err(why) => {
                    log::warn!(why:% = why; "leases are not renewed");
                    RENEW_AGAIN.min(every)
                }
            };
        }
    }

    async fn renew_all(&self) -> Result<(), Unavailable> {
        for few in self.leases.all().chunks(TOGETHER) {
            for renewed in join_all(few.iter().map(|entry| self.renew_one(entry))).await {
                renewed?;
            }
        }
        Ok(())
    }

    /// Renews a lease. What is not there any more is nobody's concern here.
    async fn renew_one(&self, Entry { account, id, kept }: &Entry) -> Result<(), Unavailable> {
        let lease_ms = millis(self.lease);
        match kept {
            Kept::Hold { .. } => {
                let op = Operation::Renew { id: id.clone(), lease_ms };
                self.ledger.apply(account, op).await?;
            }
            Kept::Name { owner, .. } => {
                self.repeats.renew(account, id, owner, lease_ms).await?;
            }
        }
        Ok(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
