//! Where the ledger, the notes, the jobs and the replies live: embedded in this process, or shared
//! by a fleet.

use std::sync::Arc;

use crate::jobs::Queue;
use crate::ledger::{Ledger, Unavailable};
use crate::notes::Notes;
use crate::repeats::Repeats;

mod jobs;
mod lookup;
pub mod redis;
pub mod sqlite;

/// The `[store]` section, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSection {
    /// `sqlite:PATH`, `redis://…`, `rediss://…`, `redis-cluster://…` or `redis-sentinel://…/NAME`.
    pub url: String,
    /// Run even on a Redis that may lose or drop what was acknowledged.
    pub allow_volatile: bool,
}

/// A store that is open.
#[derive(Clone)]
pub struct Opened {
    /// The money.
    pub ledger: Arc<dyn Ledger>,
    /// What is kept for a while. To a server it has a connection of its own: money never waits
    /// behind a long note.
    pub notes: Arc<dyn Notes>,
    /// Where video jobs wait. To a server it has a connection of its own too, since what belongs to
    /// a job is longer still.
    pub queue: Arc<dyn Queue>,
    /// Names of calls, and replies. They have a connection of their own as well: a name is asked
    /// for before money is held, and must not wait behind a note.
    pub repeats: Arc<dyn Repeats>,
}

impl Opened {
    fn of<S: Ledger + Notes + Queue + Repeats + 'static>(store: S) -> Opened {
        let store = Arc::new(store);
        Opened { ledger: store.clone(), notes: store.clone(), queue: store.clone(), repeats: store }
    }
}

/// The schemes a store's address may have.
pub const SCHEMES: [&str; 7] = [
    "sqlite:",
    "redis://",
    "rediss://",
    "redis-cluster://",
    "rediss-cluster://",
    "redis-sentinel://",
    "rediss-sentinel://",
];

/// The name of a store in metrics.
#[must_use]
pub fn name(section: &StoreSection) -> &'static str {
    if section.url.starts_with("sqlite:") { "sqlite" } else { "redis" }
}

/// Opens a store that is used on one runtime: a shared one connects when it is first asked.
///
/// # Errors
/// [`Unavailable`] if a file cannot be opened.
pub fn lazy(section: &StoreSection) -> Result<Opened, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) => Ok(Opened::of(sqlite::Sqlite::open(path.as_ref())?)),
        None => Ok(Opened {
            ledger: Arc::new(redis::Redis::new(section.clone())),
            notes: Arc::new(redis::Redis::new(section.clone())),
            queue: Arc::new(redis::Redis::new(section.clone())),
            repeats: Arc::new(redis::Redis::new(section.clone())),
        }),
    }
}

/// Opens a store.
///
/// # Errors
/// [`Unavailable`] if a file cannot be opened, an address cannot be read, or a Redis is set up in
/// a way that would lose money.
pub async fn open(section: &StoreSection) -> Result<Opened, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) => Ok(Opened::of(sqlite::Sqlite::open(path.as_ref())?)),
        None => Ok(Opened {
            ledger: Arc::new(redis::Redis::open(section).await?),
            notes: Arc::new(redis::Redis::new(section.clone())),
            queue: Arc::new(redis::Redis::new(section.clone())),
            repeats: Arc::new(redis::Redis::new(section.clone())),
        }),
    }
}
