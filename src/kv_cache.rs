//! The account cache: small values, called entries, with a time to live, which every gateway of a
//! fleet can read. The store may lose an entry at any time, so billing does not depend on any
//! entry.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;
use bytes::Bytes;

use crate::ledger::{AccountName, Unavailable};

/// The most bytes of one entry.
pub const ENTRY_BYTES_MAX: usize = 256 << 10;
/// The most bytes of a name.
pub const NAME_BYTES_MAX: usize = 512;
/// Once a lookup has found this many bytes, the remaining names are not looked up.
pub const LOOKUP_BYTES_MAX: usize = 8 << 20;
/// The most entries of the namespace `Other` of an account, in a store that limits their number.
/// Those that expire first are evicted.
pub const OTHER_ENTRIES_MAX: usize = 1_000;
/// The most entries of the namespace `Ids` of an account. Ids are small and live long.
pub const IDS_MAX: usize = 50_000;
/// How the name of an entry begins that remembers a vendor id.
pub const ID_PREFIX: &str = "given:";

/// A group of an account's entries, in which entries evict only each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Namespace {
    /// Vendor ids that an account was given.
    Ids,
    /// Everything else.
    Other,
}

impl Namespace {
    /// Returns the namespace of an entry with this name.
    #[must_use]
    pub(crate) fn of(name: &str) -> Namespace {
        if name.starts_with(ID_PREFIX) { Namespace::Ids } else { Namespace::Other }
    }

    /// Returns how many entries of an account the namespace may have.
    #[must_use]
    pub(crate) fn entries_max(self) -> usize {
        match self {
            Namespace::Ids => IDS_MAX,
            Namespace::Other => OTHER_ENTRIES_MAX,
        }
    }
}

/// Why an entry is not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheRefusal {
    /// The entry has more than [`ENTRY_BYTES_MAX`], or its name more than [`NAME_BYTES_MAX`].
    #[error("the entry or its name is too large")]
    TooLarge,
    /// The store does not answer, or has no room.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// The store of entries. An account need not be open to have some; an entry is found only under the
/// account that stored it.
#[async_trait]
pub trait AccountCache: Send + Sync {
    /// Stores an entry of an account under each of `names`, for `life_ms`; entries that had these
    /// names are replaced. The entry can be read as soon as this returns; it is not synced to disk
    /// before.
    async fn put(
        &self,
        account: &AccountName,
        names: &[String],
        entry: Bytes,
        life_ms: u64,
    ) -> Result<(), CacheRefusal>;
    /// Returns the entries of these names that have not expired, in the same order. Beyond
    /// [`LOOKUP_BYTES_MAX`] the remaining names give `None`.
    async fn get_many(
        &self,
        account: &AccountName,
        names: &[String],
    ) -> Result<Vec<Option<Bytes>>, Unavailable>;
}

/// Checks that an entry and its names are not too large.
///
/// # Errors
/// [`CacheRefusal::TooLarge`].
pub(crate) fn check_size(names: &[String], entry: &[u8]) -> Result<(), CacheRefusal> {
    let too_long = |name: &String| name.len() > NAME_BYTES_MAX;
    if entry.len() > ENTRY_BYTES_MAX || names.iter().any(too_long) {
        return Err(CacheRefusal::TooLarge);
    }
    Ok(())
}
