//! The `[store]` section of the configuration.

use std::path::Path;

use super::tls::StoreTls;

/// The `[store]` section, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSection {
    /// `sqlite:PATH`, `redis://…`, `rediss://…`, `redis-cluster://…` or `redis-sentinel://…/NAME`.
    pub url: String,
    /// Whether the gateway runs even on a Redis that may lose or evict what it has acknowledged.
    pub allow_volatile: bool,
    /// The folder of the outbox of a shared store, where a gateway records settlements and voids
    /// before it sends them to the store.
    pub outbox: String,
    /// The most bytes of replies, cache entries and bodies for vendors that the store keeps, for
    /// all accounts together.
    pub kept_bytes_max: u64,
    /// Whether this process borrows money of busy accounts and makes the holds of their calls in
    /// memory. Only an embedded store lends.
    pub allotments: bool,
    /// The certificates for the TLS connection of a `rediss…://` address.
    pub tls: StoreTls,
}

impl Default for StoreSection {
    fn default() -> StoreSection {
        StoreSection {
            url: "sqlite:var/tollgate.db".to_owned(),
            allow_volatile: false,
            outbox: "var/outbox".to_owned(),
            kept_bytes_max: 256 << 20,
            allotments: true,
            tls: StoreTls::default(),
        }
    }
}

/// The schemes that the address of a store may have.
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
    /// Whether the store is embedded in this process, and not a server.
    #[must_use]
    pub(crate) fn is_embedded(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    /// Returns the path of the database of an embedded store; `None` for a server.
    #[must_use]
    pub(crate) fn database(&self) -> Option<&Path> {
        self.url.strip_prefix("sqlite:").map(Path::new)
    }
}

/// Returns the name of the kind of store in metrics.
#[must_use]
pub(crate) fn kind_label(section: &StoreSection) -> &'static str {
    if section.is_embedded() { "sqlite" } else { "redis" }
}
