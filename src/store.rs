//! The stores of the ledger, the account cache, the job queue, the replies and the operators:
//! SQLite, embedded in the process, or Redis, shared by a fleet.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::idempotency::{FirstAttempts, Fleet};
use crate::ledger::{Leases, Unavailable};

mod allotments;
pub(crate) mod backup;
mod cache_lookup;
mod data_version;
mod job_records;
mod key_of_id;
mod lent_money;
pub mod maintenance;
mod open_store;
mod operator_changes;
mod outbox;
pub mod redis;
mod section;
pub mod sqlite;
mod tls;

pub use open_store::DurabilityScope;
pub use open_store::OpenStore;
pub use section::StoreSection;
pub(crate) use section::{URL_SCHEMES, kind_label};
pub use tls::{StoreTls, StoreTlsFiles, TlsFault};

use allotments::{AllotmentBook, AllotmentLedger, AllotmentUpkeep, SharedLender};
use maintenance::{EmbeddedFleet, Maintenance};
use outbox::{EndLog, Outbox, OutboxQueue, OutboxReplies, SettlementLog, SupersededCheck};
use redis::{RedisFleet, RedisStore, RunGate, UsageMarks};
use sqlite::SqliteStore;

/// The store of a process that serves requests, opened once for each part of the process.
pub struct ServingStore {
    /// The store that requests use.
    pub requests: OpenStore,
    /// The store that background tasks use.
    pub background: OpenStore,
    /// The store that the worker of video jobs uses.
    pub worker: OpenStore,
    /// The processes that share the store.
    pub fleet: Arc<dyn Fleet>,
    /// The background task that has to run while the store is used.
    pub maintenance: Maintenance,
}

/// The times of the holds of calls.
#[derive(Debug, Clone, Copy)]
pub struct HoldTimes {
    /// How long a hold lives without renewal.
    pub lease: Duration,
    /// How long a caller waits for a hold.
    pub timeout: Duration,
}

impl HoldTimes {
    /// Returns how long an operation is repeated whose money is lent: its caller should get the
    /// answer.
    fn lent_wait(self) -> Duration {
        self.timeout * 4 / 5
    }
}

/// Opens a store for a process that serves requests. All parts share an embedded store. To a
/// server, each part has its own connections on its own runtime, which are made when they are first
/// used. A server accepts no hold before [`ServingStore::maintenance`] runs. `leases` are the
/// leases that it renews, each for the lease of `times`, and `attempts` the first attempts of calls
/// that it gives to other processes.
///
/// # Errors
/// [`Unavailable`] if a file does not exist or cannot be opened.
pub fn open_for_serving(
    section: &StoreSection,
    leases: Leases,
    attempts: FirstAttempts,
    times: HoldTimes,
) -> Result<ServingStore, Unavailable> {
    let lease = times.lease;
    if let Some(path) = section.database() {
        let store = open_embedded(section, path)?;
        let store = Arc::new(store.with_lent_wait(times.lent_wait()));
        let log = Arc::new(SettlementLog::open_for_embedded(path)?);
        let outbox = || Outbox::new(store.clone(), log.clone());
        let book =
            Arc::new(AllotmentBook::new(EndLog::open_for_embedded(path)?, leases.clone(), lease));
        let ledger = Arc::new(AllotmentLedger::new(outbox(), book.clone(), times.lent_wait()));
        let upkeep = AllotmentUpkeep::new(book, store.clone(), section.allotments);
        let opened = OpenStore { ledger, ..OpenStore::from_embedded(store.clone()) };
        let (reply_store, renewed) = (opened.reply_store.clone(), leases.clone());
        let fleet = EmbeddedFleet::new(log.clone(), attempts, renewed, reply_store, lease);
        let fleet = Arc::new(fleet);
        let maintenance =
            Maintenance::embedded(outbox(), upkeep, &opened, leases, lease, fleet.clone());
        let [mut requests, background, worker] = [opened.clone(), opened.clone(), opened];
        requests.reply_store = Arc::new(OutboxReplies::new(requests.reply_store, log));
        return Ok(ServingStore { requests, background, worker, fleet, maintenance });
    }
    open_shared(section, leases, attempts, times)
}

/// Opens a server for a process that serves requests.
fn open_shared(
    section: &StoreSection,
    leases: Leases,
    attempts: FirstAttempts,
    times: HoldTimes,
) -> Result<ServingStore, Unavailable> {
    let (lease, lent_wait) = (times.lease, times.lent_wait());
    let outbox_writable = Arc::new(AtomicBool::new(true));
    let log = Arc::new(SettlementLog::open_for_shared(section, outbox_writable.clone())?);
    log.calls.set_adopted();
    let book =
        Arc::new(AllotmentBook::new(EndLog::open_for_shared(section)?, leases.clone(), lease));
    let run_gate = Arc::new(RunGate::new(outbox_writable));
    let usage_marks = Arc::<UsageMarks>::default();
    let gated_store = || {
        let store = RedisStore::with_run_gate(section.clone(), run_gate.clone());
        let store = store.with_usage_marks(usage_marks.clone());
        Arc::new(store.with_lent_wait(lent_wait))
    };
    let outbox = || Outbox::new(gated_store(), log.clone());
    let opened = || {
        let money = gated_store();
        let outbox = Outbox::new(money.clone(), log.clone());
        let ledger = Arc::new(AllotmentLedger::new(outbox, book.clone(), lent_wait));
        let queue = gated_store();
        let server = OpenStore::from_server(ledger, money, queue.clone(), gated_store());
        OpenStore { queue: Arc::new(OutboxQueue::new(queue, log.clone())), ..server }
    };
    let [mut requests, background, worker] = [opened(), opened(), opened()];
    let (reply_store, renewed) = (background.reply_store.clone(), leases.clone());
    let fleet =
        RedisFleet::new(gated_store(), attempts, renewed, reply_store.clone(), lease, book.clone());
    let fleet = Arc::new(fleet);
    let superseded = SupersededCheck { reply_store, fleet: fleet.clone() };
    // The log is new, so nobody has set this.
    let _ = log.superseded.set(superseded.clone());
    let told = outbox();
    let lender = SharedLender::new(told.store.clone(), run_gate.clone(), superseded);
    let upkeep = AllotmentUpkeep::new(book, lender, section.allotments);
    let maintenance =
        Maintenance::shared(told, upkeep, run_gate, &background, leases, lease, fleet.clone());
    requests.reply_store = Arc::new(OutboxReplies::new(requests.reply_store, log));
    Ok(ServingStore { requests, background, worker, fleet, maintenance })
}

/// Opens a store that is used on one runtime. A shared store connects when it is first used.
///
/// # Errors
/// [`Unavailable`] if a file cannot be opened.
pub fn open_lazily(section: &StoreSection) -> Result<OpenStore, Unavailable> {
    match section.database() {
        Some(path) => Ok(OpenStore::from_embedded(Arc::new(open_embedded(section, path)?))),
        None => Ok(open_ungated(RedisStore::new(section.clone()))),
    }
}

/// The result of [`create`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreCreation {
    /// The store was created.
    New,
    /// The store existed before, and nothing in it was changed.
    AlreadyExists,
    /// The store is a server, in which nothing has to be created. It can be reached and its
    /// settings are safe.
    NotNeeded,
}

/// Creates a store, unless it exists. No other function creates one: a missing file was deleted or
/// is elsewhere, and an empty one in its place would hide that.
///
/// # Errors
/// The same as [`open`], and [`Unavailable`] if the file is not a store.
pub async fn create(section: &StoreSection) -> Result<StoreCreation, Unavailable> {
    match section.database() {
        Some(path) if SqliteStore::create(path)? => Ok(StoreCreation::New),
        Some(path) => SqliteStore::open(path).map(|_| StoreCreation::AlreadyExists),
        None => RedisStore::open(section).await.map(|_| StoreCreation::NotNeeded),
    }
}

/// Opens a store. The settings of a server are checked first.
///
/// # Errors
/// [`Unavailable`] if a file does not exist or cannot be opened, an address cannot be parsed, or a
/// Redis is configured in a way that would lose money.
pub async fn open(section: &StoreSection) -> Result<OpenStore, Unavailable> {
    match section.database() {
        Some(path) => Ok(OpenStore::from_embedded(Arc::new(open_embedded(section, path)?))),
        None => Ok(open_ungated(RedisStore::open(section).await?)),
    }
}

fn open_embedded(section: &StoreSection, path: &Path) -> Result<SqliteStore, Unavailable> {
    Ok(SqliteStore::open(path)?.with_kept_bytes_max(section.kept_bytes_max))
}

/// Opens a server for a command: a command serves no calls, so it needs no recovery after a restart
/// of the server.
fn open_ungated(ledger: RedisStore) -> OpenStore {
    let ledger = Arc::new(ledger);
    let [queue, reply_store] = [(); 2].map(|()| Arc::new(ledger.separate_connection()));
    OpenStore::from_server(ledger.clone(), ledger, queue, reply_store)
}
