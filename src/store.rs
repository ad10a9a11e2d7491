//! The stores of the ledger, the account cache, the job queue and the replies: SQLite, embedded in
//! the process, or Redis, shared by a fleet.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::ledger::{Leases, Unavailable};

mod cache_lookup;
mod job_records;
pub mod maintenance;
mod open_store;
mod outbox;
pub mod redis;
mod section;
pub mod sqlite;
mod tls;

pub use open_store::DurabilityScope;
pub use open_store::OpenStore;
pub use section::StoreSection;
pub(crate) use section::{URL_SCHEMES, kind_label};
pub use tls::{StoreTls, StoreTlsFiles};

use maintenance::Maintenance;
use outbox::{Outbox, OutboxQueue, OutboxReplies, SettlementLog};
use redis::{RedisStore, RunGate};
use sqlite::SqliteStore;

/// A store as a process that serves has it.
pub struct ServingStore {
    /// For requests.
    pub requests: OpenStore,
    /// For what goes on beside them.
    pub background: OpenStore,
    /// For video jobs.
    pub worker: OpenStore,
    /// What keeps it.
    pub maintenance: Maintenance,
}

/// Opens a store for a process that serves. An embedded one is shared; to a server, each part has
/// connections on its own runtime, made when it is first asked. No hold is made before the upkeep
/// runs; `leases` are what it keeps alive, each for so long.
///
/// # Errors
/// [`Unavailable`] if a file is not there or cannot be opened.
pub fn open_for_serving(
    section: &StoreSection,
    leases: Leases,
    lease: Duration,
) -> Result<ServingStore, Unavailable> {
    if let Some(path) = section.url.strip_prefix("sqlite:") {
        let (path, store) = (Path::new(path), Arc::new(open_embedded(section, path.as_ref())?));
        let log = Arc::new(SettlementLog::open_for_embedded(path)?);
        let outbox = || Outbox::new(store.clone(), log.clone());
        let opened =
            OpenStore { ledger: Arc::new(outbox()), ..OpenStore::from_embedded(store.clone()) };
        let maintenance = Maintenance::embedded(outbox(), &opened, leases, lease);
        let [mut requests, background, worker] = [opened.clone(), opened.clone(), opened];
        requests.reply_store = Arc::new(OutboxReplies::new(requests.reply_store, log));
        return Ok(ServingStore { requests, background, worker, maintenance });
    }
    let outbox_writable = Arc::new(AtomicBool::new(true));
    let log = Arc::new(SettlementLog::open_for_shared(section, outbox_writable.clone())?);
    let run_gate = Arc::new(RunGate::new(outbox_writable));
    let gated_store = || Arc::new(RedisStore::with_run_gate(section.clone(), run_gate.clone()));
    let outbox = || Outbox::new(gated_store(), log.clone());
    let opened = || {
        let money = gated_store();
        let ledger = Arc::new(Outbox::new(money.clone(), log.clone()));
        let queue = gated_store();
        let server = OpenStore::from_server(ledger, money, queue.clone(), gated_store());
        OpenStore { queue: Arc::new(OutboxQueue::new(queue, log.clone())), ..server }
    };
    let [mut requests, background, worker] = [opened(), opened(), opened()];
    let maintenance = Maintenance::shared(outbox(), run_gate, &background, leases, lease);
    requests.reply_store = Arc::new(OutboxReplies::new(requests.reply_store, log));
    Ok(ServingStore { requests, background, worker, maintenance })
}

/// Opens a store that is used on one runtime: a shared one connects when it is first asked.
///
/// # Errors
/// [`Unavailable`] if a file cannot be opened.
pub fn open_lazily(section: &StoreSection) -> Result<OpenStore, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) => {
            Ok(OpenStore::from_embedded(Arc::new(open_embedded(section, path.as_ref())?)))
        }
        None => Ok(open_ungated(RedisStore::new(section.clone()))),
    }
}

/// What became of a store that was to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreCreation {
    /// It is new.
    New,
    /// It was there before, and nothing of it changed.
    AlreadyExists,
    /// A server needs none to be made; this one is set up as it has to be.
    NotNeeded,
}

/// Makes a new store, unless there is one. Nothing else ever does: a file that is missing was
/// deleted, or is elsewhere, and an empty one in its place would hide that.
///
/// # Errors
/// As with [`open`], and where a file is something else.
pub async fn create(section: &StoreSection) -> Result<StoreCreation, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) if SqliteStore::create(path.as_ref())? => Ok(StoreCreation::New),
        Some(path) => SqliteStore::open(path.as_ref()).map(|_| StoreCreation::AlreadyExists),
        None => RedisStore::open(section).await.map(|_| StoreCreation::NotNeeded),
    }
}

/// Opens a store.
///
/// # Errors
/// [`Unavailable`] if a file is not there or cannot be opened, an address cannot be read, or a
/// Redis is set up in a way that would lose money.
pub async fn open(section: &StoreSection) -> Result<OpenStore, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) => {
            Ok(OpenStore::from_embedded(Arc::new(open_embedded(section, path.as_ref())?)))
        }
        None => Ok(open_ungated(RedisStore::open(section).await?)),
    }
}

fn open_embedded(section: &StoreSection, path: &Path) -> Result<SqliteStore, Unavailable> {
    Ok(SqliteStore::open(path)?.with_kept_bytes_max(section.kept_bytes_max))
}

/// A server for a command: it serves no calls, so it needs no recovery after a restart.
fn open_ungated(ledger: RedisStore) -> OpenStore {
    let ledger = Arc::new(ledger);
    let [queue, reply_store] = [(); 2].map(|()| Arc::new(ledger.separate_connection()));
    OpenStore::from_server(ledger.clone(), ledger, queue, reply_store)
}
