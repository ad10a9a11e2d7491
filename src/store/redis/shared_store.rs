//! The handle on the shared store, which connects when it is first used.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore};

use super::super::section::StoreSection;
use super::config_check;
use super::connection::RedisConnection;
use super::forgotten::JOURNAL_SEARCHES_MAX;
use super::kept_counts::KeptBytes;
use super::repair_cursor::IndexRepair;
use super::run_gate::RunGate;
use super::scripts::Scripts;
use super::topology::Topology;
use super::usage_marks::UsageMarks;
use crate::ledger::Unavailable;

type ConnectFuture<'a> =
    Pin<Box<dyn Future<Output = Result<RedisConnection, Unavailable>> + Send + 'a>>;

/// The shared store. It connects when it is first used, so that its connection lives on the
/// runtime that uses it.
pub struct RedisStore {
    pub(super) section: StoreSection,
    pub(super) connected: Arc<OnceCell<RedisConnection>>,
    pub(super) scripts: Arc<Scripts>,
    /// Bounds how many journals are searched at the same time.
    pub(super) journal_searches: Arc<Semaphore>,
    pub(super) index_repair: IndexRepair,
    pub(super) kept_bytes: Arc<KeptBytes>,
    /// The addresses of the servers, shared by all connections of a serving process.
    pub(in crate::store) topology: Arc<Topology>,
    /// If set, money is moved only as the gate allows.
    pub(super) run_gate: Option<Arc<RunGate>>,
    /// How long an operation is repeated whose money is lent.
    pub(super) lent_wait: Duration,
    /// The accounts that may have lines that are not in the sums of usage.
    pub(super) usage_marks: Arc<UsageMarks>,
}

impl RedisStore {
    /// Makes a store that is not connected yet.
    #[must_use]
    pub(crate) fn new(section: StoreSection) -> RedisStore {
        let kept_bytes = Arc::new(KeptBytes::new(section.kept_bytes_max));
        RedisStore {
            section,
            connected: Arc::default(),
            scripts: Scripts::unstamped(),
            journal_searches: Arc::new(Semaphore::new(JOURNAL_SEARCHES_MAX)),
            index_repair: IndexRepair::default(),
            kept_bytes,
            topology: Arc::default(),
            run_gate: None,
            lent_wait: Duration::ZERO,
            usage_marks: Arc::default(),
        }
    }

    /// Sets how long an operation is repeated whose money is lent.
    #[must_use]
    pub(in crate::store) fn with_lent_wait(mut self, lent_wait: Duration) -> RedisStore {
        self.lent_wait = lent_wait;
        self
    }

    /// Sets the marks of accounts, which all connections of a process share.
    #[must_use]
    pub(in crate::store) fn with_usage_marks(self, usage_marks: Arc<UsageMarks>) -> RedisStore {
        RedisStore { usage_marks, ..self }
    }

    /// Returns another handle on the same connection, for background tasks.
    pub(super) fn clone_handle(&self) -> RedisStore {
        RedisStore {
            section: self.section.clone(),
            connected: self.connected.clone(),
            scripts: self.scripts.clone(),
            journal_searches: self.journal_searches.clone(),
            index_repair: IndexRepair::default(),
            kept_bytes: self.kept_bytes.clone(),
            topology: self.topology.clone(),
            run_gate: self.run_gate.clone(),
            lent_wait: self.lent_wait,
            usage_marks: self.usage_marks.clone(),
        }
    }

    /// Makes a store that is not connected yet and that moves money only as its run gate allows.
    pub(in crate::store) fn with_run_gate(section: StoreSection, gate: Arc<RunGate>) -> RedisStore {
        let topology = gate.topology.clone();
        RedisStore { run_gate: Some(gate), topology, ..RedisStore::new(section) }
    }

    /// Makes a store with its own connection to the same servers, for operations that move no
    /// money.
    pub(in crate::store) fn separate_connection(&self) -> RedisStore {
        RedisStore {
            topology: self.topology.clone(),
            usage_marks: self.usage_marks.clone(),
            ..RedisStore::new(self.section.clone())
        }
    }

    /// Connects, and refuses a server that may lose or drop acknowledged writes.
    ///
    /// # Errors
    /// [`Unavailable`] if the server cannot be reached or is refused. The text contains the reason.
    pub async fn open(section: &StoreSection) -> Result<RedisStore, Unavailable> {
        let redis = RedisStore::new(section.clone());
        redis.connection().await?;
        Ok(redis)
    }

    /// Connects, unless the store is connected already.
    pub(in crate::store) async fn connect(&self) -> Result<(), Unavailable> {
        self.connection().await.map(drop)
    }

    /// Returns the connection, which is opened on first use. Connecting continues even if the first
    /// caller stops waiting: otherwise a server with a slow handshake would never be connected to.
    pub(super) async fn connection(&self) -> Result<&RedisConnection, Unavailable> {
        if self.connected.get().is_none() {
            let (section, connected) = (self.section.clone(), self.connected.clone());
            let topology = self.topology.clone();
            let opening = tokio::spawn(async move {
                let connecting = || connect_and_check(&section, topology);
                connected.get_or_try_init(connecting).await.map(|_| ())
            });
            opening.await.map_err(|why| Unavailable(why.to_string()))??;
        }
        self.connected.get().ok_or_else(|| Unavailable("not connected".to_owned()))
    }
}

/// Connects, checks the server's version and settings, and loads the scripts.
async fn connect_and_check(
    section: &StoreSection,
    topology: Arc<Topology>,
) -> Result<RedisConnection, Unavailable> {
    // The future is boxed to hide its type: the library's futures are nested too deeply for the
    // compiler.
    let opening: ConnectFuture<'_> = Box::pin(RedisConnection::open(section, topology));
    let connection = opening.await?;
    config_check::check_server(&connection, section.allow_volatile).await?;
    connection.load_scripts(&Scripts::unstamped().all()).await?;
    Ok(connection)
}
