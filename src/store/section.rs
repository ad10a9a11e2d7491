//! The `[store]` section of the configuration.

use super::tls::StoreTls;

/// The `[store]` section, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSection {
    /// `sqlite:PATH`, `redis://…`, `rediss://…`, `redis-cluster://…` or `redis-sentinel://…/NAME`.
    pub url: String,
    /// Run even on a Redis that may lose or drop what was acknowledged.
    pub allow_volatile: bool,
    /// The folder where a gateway writes down how holds end before it tells a shared store.
    pub outbox: String,
    /// Bytes of replies, cache entries and bodies for vendors that the store keeps, at most, of all
    /// accounts together.
    pub kept_bytes_max: u64,
    /// With what a `rediss…://` is spoken to.
    pub tls: StoreTls,
}

impl Default for StoreSection {
    fn default() -> StoreSection {
        StoreSection {
            url: "sqlite:var/tollgate.db".to_owned(),
            allow_volatile: false,
            outbox: "var/outbox".to_owned(),
            kept_bytes_max: 256 << 20,
            tls: StoreTls::default(),
        }
    }
}

/// The schemes a store's address may have.
pub(crate) const URL_SCHEMES: [&str; 7] = [
    "sqlite:",
    "redis://",
    "rediss://",
    "redis-cluster://",
    "rediss-cluster://",
    "redis-sentinel://",
    "rediss-sentinel://",
];

impl StoreSection {
    /// Whether the store is a part of this process, and no server.
    #[must_use]
    pub(crate) fn is_embedded(&self) -> bool {
        self.url.starts_with("sqlite:")
    }
}

/// The name of a store in metrics.
#[must_use]
pub(crate) fn kind_label(section: &StoreSection) -> &'static str {
    if section.is_embedded() { "sqlite" } else { "redis" }
}
