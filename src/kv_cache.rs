//! The account cache: small values, called entries, with a time to live, which every gateway of a
//! fleet finds. The store may lose an entry at any time, so nothing that counts depends on one.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;
use bytes::Bytes;

use crate::ledger::{AccountName, Unavailable};

/// The most bytes of one entry.
pub const ENTRY_BYTES_MAX: usize = 256 << 10;
/// The most bytes of a name.
pub const NAME_BYTES_MAX: usize = 512;
/// Once so many bytes are found, the entries that are left are not looked up any more.
pub const LOOKUP_BYTES_MAX: usize = 8 << 20;
/// Where a store bounds the entries of an account by number, so many live in a namespace, at most;
/// those that expire first make room.
pub const NOTES_MAX: usize = 1_000;
/// The same for ids, which are small and live long.
pub const IDS_MAX: usize = 50_000;
/// How the name of an entry begins that remembers an id.
pub const ID_PREFIX: &str = "given:";

/// Entries that make room for each other, but not for those of another namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Namespace {
    /// Ids that an account was given.
    Ids,
    /// Everything else.
    Other,
}

impl Namespace {
    /// Where an entry of this name is.
    #[must_use]
    pub(crate) fn of(name: &str) -> Namespace {
        if name.starts_with(ID_PREFIX) { Namespace::Ids } else { Namespace::Other }
    }

    /// So many entries of an account are on it, at most.
    #[must_use]
    pub(crate) fn entries_max(self) -> usize {
        match self {
            Namespace::Ids => IDS_MAX,
            Namespace::Other => NOTES_MAX,
        }
    }
}

/// Why an entry is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheRefusal {
    /// It has more than [`ENTRY_BYTES_MAX`], or its name more than [`NAME_BYTES_MAX`].
    #[error("the note or its name is too large")]
    TooLarge,
    /// The store does not answer, or has no room.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Where entries are kept. An account need not be open to have some; what one account keeps no
/// other finds.
#[async_trait]
pub trait AccountCache: Send + Sync {
    /// Keeps an entry of an account's under names for so long (ms); what had these names before is
    /// replaced. It is found as soon as this has returned, and does not wait for any disk.
    async fn put(
        &self,
        account: &AccountName,
        names: &[String],
        entry: Bytes,
        life_ms: u64,
    ) -> Result<(), CacheRefusal>;
    /// The entries of these names that still live, in the same order. After [`LOOKUP_BYTES_MAX`]
    /// the rest counts as not there.
    async fn get_many(
        &self,
        account: &AccountName,
        names: &[String],
    ) -> Result<Vec<Option<Bytes>>, Unavailable>;
}

/// Whether an entry may be kept at all.
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
