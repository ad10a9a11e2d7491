//! Where the ledger lives: embedded in this process, or shared by a fleet.

use std::sync::Arc;

use crate::ledger::{Ledger, Unavailable};

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
pub fn lazy(section: &StoreSection) -> Result<Arc<dyn Ledger>, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) => Ok(Arc::new(sqlite::Sqlite::open(path.as_ref())?)),
        None => Ok(Arc::new(redis::Redis::new(section.clone()))),
    }
}

/// Opens a store.
///
/// # Errors
/// [`Unavailable`] if a file cannot be opened, an address cannot be read, or a Redis is set up in
/// a way that would lose money.
pub async fn open(section: &StoreSection) -> Result<Arc<dyn Ledger>, Unavailable> {
    match section.url.strip_prefix("sqlite:") {
        Some(path) => Ok(Arc::new(sqlite::Sqlite::open(path.as_ref())?)),
        None => Ok(Arc::new(redis::Redis::open(section).await?)),
    }
}
