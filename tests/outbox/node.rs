//! A process that serves, as far as money goes, within the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::task::AbortHandle;
use tollgate::idempotency::FirstAttempts;
use tollgate::ledger::{AccountName, HoldRequest, Leases, Ledger, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::maintenance::Maintenance;
use tollgate::store::{self, HoldTimes, StoreSection};

use super::PATIENCE;
use crate::ledger::script::now;
use crate::ledger::subject::at;

const LEASE: Duration = Duration::from_secs(60);
pub(super) const TIMES: HoldTimes = HoldTimes { lease: LEASE, timeout: Duration::from_secs(10) };

/// A process that serves, as far as money goes, and whose upkeep a test can stop.
pub(super) struct Node {
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) upkeep: Arc<Maintenance>,
    pub(super) leases: Leases,
    pub(super) running: AbortHandle,
}

impl Node {
    pub(super) async fn start(url: &str, outbox: &TempDir) -> Node {
        let outbox = outbox.path().display().to_string();
        let section = StoreSection { outbox, ..at(url.to_owned()) };
        let leases = Leases::default();
        let attempts = FirstAttempts::default();
        let serving = store::open_for_serving(&section, leases.clone(), attempts, TIMES);
        let serving = serving.expect("it opens");
        let upkeep = Arc::new(serving.maintenance);
        let running = keep(&upkeep);
        let node = Node { ledger: serving.requests.ledger, upkeep, leases, running };
        node.lets_in().await;
        node
    }

    /// Waits until it sells.
    pub(super) async fn lets_in(&self) {
        let end = Instant::now() + PATIENCE;
        while let Err(why) = self.ledger.ping().await {
            assert!(Instant::now() < end, "{why}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it sells nothing, for a reason that says this.
    pub(super) async fn refuses(&self, account: &AccountName, reason: &str) {
        let end = Instant::now() + PATIENCE;
        for number in 0.. {
            let id = format!("{reason}{number}");
            match self.ledger.submit(account, hold(&id)).await {
                Err(why) if why.0.contains(reason) => return,
                Ok(Outcome::Held(_)) => {
                    let _ = self.ledger.submit(account, Operation::Void { id }).await;
                }
                _ => {}
            }
            assert!(Instant::now() < end, "it goes on selling");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sells, as soon as it has noticed the run and is done with it.
    pub(super) async fn holds(&self, account: &AccountName, id: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.ledger.submit(account, hold(id)).await {
                Ok(answer) => return assert_eq!(answer, Outcome::Held(nano(10))),
                Err(why) => assert!(Instant::now() < end, "{why}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(super) fn keep(upkeep: &Arc<Maintenance>) -> AbortHandle {
    let upkeep = Arc::clone(upkeep);
    tokio::spawn(async move { upkeep.run().await }).abort_handle()
}

pub(super) fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

pub(super) fn hold(id: &str) -> Operation {
    let lease_ms = u64::try_from(LEASE.as_millis()).expect("small");
    let (id, wanted) = (id.to_owned(), nano(10));
    Operation::Hold { id, wanted, least: wanted, lease_ms, key: None, rates: Vec::new() }
}

/// The request of [`hold`], made at a time (unix ms).
pub(super) fn origin_at(at: i64) -> HoldRequest {
    HoldRequest { wanted: nano(10), least: nano(10), at, key: None }
}

pub(super) fn settle(id: &str) -> Operation {
    let (id, line, origin) = (id.to_owned(), "{}".to_owned(), Some(origin_at(now())));
    Operation::Settle { id, charge: nano(7), line, origin, tokens: None }
}

pub(super) async fn funded(ledger: &dyn Ledger) -> AccountName {
    funded_as(ledger, "runs").await
}

/// An account of that name, with a hundred.
pub(super) async fn funded_as(ledger: &dyn Ledger, name: &str) -> AccountName {
    let account = AccountName::parse(name).expect("a name");
    ledger.open_account(&account).await.expect("open");
    let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(100) };
    assert_eq!(ledger.submit(&account, credit).await, Ok(Outcome::Done));
    account
}
