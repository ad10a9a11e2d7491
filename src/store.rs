//! Where the ledger, the notes, the jobs and the replies live: embedded in this process, or shared
//! by a fleet.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::join_all;

use crate::idempotency::ReplyStore;
use crate::jobs::JobQueue;
use crate::kv_cache::AccountCache;
use crate::ledger::{Leases, Ledger, Unavailable};

mod clock;
mod job_records;
pub mod maintenance;
mod note_lookup;
mod outbox;
pub mod redis;
mod section;
pub mod sqlite;
mod tls;

use maintenance::Maintenance;
use outbox::{Outbox, OutboxQueue, OutboxReplies, SettlementLog};
use redis::{RedisStore, RunGate};
pub use section::{StoreSection, URL_SCHEMES, kind_label};
use sqlite::SqliteStore;
pub use tls::{StoreTls, StoreTlsFiles};

/// A store that is open.
#[derive(Clone)]
pub struct OpenStore {
    /// The money.
    pub ledger: Arc<dyn Ledger>,
    /// Cached entries with a lifetime. On a server they use a connection of their own, so money
    /// never waits behind a long entry.
    pub account_cache: Arc<dyn AccountCache>,
    /// The queue of video jobs. On a server it uses a connection of its own too, since a job's body
    /// is even longer.
    pub queue: Arc<dyn JobQueue>,
    /// Idempotency keys and replies. They use a connection of their own as well: a key is looked up
    /// before money is held, and must not wait behind a cache entry.
    pub reply_store: Arc<dyn ReplyStore>,
    /// Waits until an acknowledged write is durable.
    pub durability: DurabilityScope,
    /// The connections to a server; none for an embedded store.
    connections: Vec<Arc<RedisStore>>,
}

/// Makes a write durable that the caller could not repeat.
#[derive(Clone)]
pub struct DurabilityScope(Option<Arc<RedisStore>>);

impl DurabilityScope {
    /// Writes, and waits until the write is durable. It may run `write` more than once, so the
    /// write must be idempotent.
    ///
    /// # Errors
    /// Those of the write; [`Unavailable`] if it is not known to be kept.
    pub async fn write<T, E: From<Unavailable>>(
        &self,
        write: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.0 {
            // An embedded store has written when it says so.
            None => write().await,
            Some(redis) => redis.write_durably(write).await,
        }
    }
}

impl OpenStore {
    fn from_embedded<S: Ledger + AccountCache + JobQueue + ReplyStore + 'static>(
        store: Arc<S>,
    ) -> OpenStore {
        OpenStore {
            ledger: store.clone(),
            account_cache: store.clone(),
            queue: store.clone(),
            reply_store: store,
            durability: DurabilityScope(None),
            connections: Vec::new(),
        }
    }

    /// A server, of which money and jobs are asked through these connections.
    fn from_server(
        (ledger, money): (Arc<dyn Ledger>, Arc<RedisStore>),
        [queue, reply_store]: [Arc<RedisStore>; 2],
    ) -> OpenStore {
        let account_cache = Arc::new(money.separate_connection());
        OpenStore {
            ledger,
            durability: DurabilityScope(Some(money.clone())),
            connections: vec![money, queue.clone(), account_cache.clone(), reply_store.clone()],
            queue,
            account_cache,
            reply_store,
        }
    }

    /// Connects, so that the first caller need not wait for it. A connection that fails is made
    /// again by the next caller that needs it.
    pub async fn connect(&self) {
        for failed in join_all(self.connections.iter().map(|c| c.connect())).await {
            if let Err(why) = failed {
                log::warn!(
                    event = "store_connect_failed", why:% = why;
                    "store connect failed"
                );
            }
        }
    }
}

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
        let maintenance = Maintenance::embedded(outbox(), &opened, (leases, lease));
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
        let server = OpenStore::from_server((ledger, money), [queue.clone(), gated_store()]);
        OpenStore { queue: Arc::new(OutboxQueue::new(queue, log.clone())), ..server }
    };
    let [mut requests, background, worker] = [opened(), opened(), opened()];
    let maintenance = Maintenance::shared((outbox(), run_gate), &background, (leases, lease));
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
    let others = [(); 2].map(|()| Arc::new(ledger.separate_connection()));
    OpenStore::from_server((ledger.clone(), ledger), others)
}
