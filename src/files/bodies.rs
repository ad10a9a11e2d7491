//! Bodies that are too large for the ledger's store: replies that are kept for idempotent repeats,
//! and request bodies for the vendors of videos.
//!
//! Each body is an object of its own. Its name contains its account and the time when it expires,
//! so a sweep can tell from the names alone what to delete, whichever process died in between. Each
//! sweep counts the bytes from the store's own list, so no count can drift; the bytes that this
//! process writes between two sweeps are added.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, ObjectMeta, ObjectStoreExt};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::error::FileReadError;
use super::names::ROOT_FOLDER;
use super::{VideoFiles, folder};

pub(crate) use super::names::{BodyKind, BodyName};

/// At most this many bodies are written at a time.
const WRITES_MAX: usize = 16;
/// A body that is not written within this time is not kept.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a body is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyStoreRefusal {
    /// The body would exceed the limit of its account or of all accounts.
    #[error("there is no room for it")]
    NoRoom,
    /// The store does not answer or refuses the body.
    #[error(transparent)]
    Store(#[from] FileReadError),
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BodySweepReport {
    /// The bytes of the bodies that are left.
    pub bytes: u64,
    /// The number of expired bodies that were deleted.
    pub expired: u64,
    /// The bytes of replies that were deleted to make room.
    pub evicted_bytes: u64,
}

/// A number of bytes, by account and in total.
#[derive(Debug, Clone, Default)]
struct AccountBytes {
    total: u64,
    by_account: HashMap<String, u64>,
}

impl AccountBytes {
    fn add(&mut self, account: &str, bytes: u64) {
        self.total += bytes;
        *self.by_account.entry(account.to_owned()).or_default() += bytes;
    }

    fn subtract(&mut self, account: &str, bytes: u64) {
        self.total = self.total.saturating_sub(bytes);
        if let Some(sum) = self.by_account.get_mut(account) {
            *sum = sum.saturating_sub(bytes);
            if *sum == 0 {
                self.by_account.remove(account);
            }
        }
    }

    /// Returns these bytes less those of `others`.
    fn minus(&self, others: &AccountBytes) -> AccountBytes {
        let mut left = self.clone();
        others.by_account.iter().for_each(|(account, bytes)| left.subtract(account, *bytes));
        left
    }

    fn bytes_of(&self, account: &str) -> u64 {
        self.by_account.get(account).copied().unwrap_or_default()
    }
}

/// The replies of each account with their sizes in bytes, ordered by the time when they expire.
type ReplyExpiries = HashMap<String, BTreeMap<(u64, String), u64>>;

/// The known bytes in the store.
#[derive(Debug, Default)]
struct KnownBodies {
    /// The bytes that the last sweep listed.
    listed: AccountBytes,
    /// The bytes that were written since that sweep began, or were being written then.
    fresh: AccountBytes,
    /// The bytes that are being written now.
    writing: AccountBytes,
    /// The bodies that were refused for lack of room.
    refused: RefusedBodies,
}

/// The size in bytes of the largest bodies that were refused since the last sweep.
#[derive(Debug, Default)]
struct RefusedBodies {
    /// Refused because of the limit of all accounts.
    total: u64,
    /// Refused because of the limit of their account.
    by_account: HashMap<String, u64>,
}

impl KnownBodies {
    fn total(&self) -> u64 {
        self.listed.total + self.fresh.total
    }

    fn bytes_of(&self, account: &str) -> u64 {
        self.listed.bytes_of(account) + self.fresh.bytes_of(account)
    }
}

/// The most bytes of bodies that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyStoreLimits {
    /// For all accounts together.
    pub total: u64,
    /// For one account.
    pub account: u64,
}

#[derive(Debug)]
pub(crate) struct BodyFiles {
    files: Arc<VideoFiles>,
    limits: BodyStoreLimits,
    known: Mutex<KnownBodies>,
    writes: Semaphore,
    /// Notified when there is little room left, so that a sweep runs early.
    pub low_space: Notify,
}

impl BodyFiles {
    /// Makes the store of bodies in an object store.
    #[must_use]
    pub(crate) fn new(files: Arc<VideoFiles>, limits: BodyStoreLimits) -> BodyFiles {
        let (known, low_space) = (Mutex::default(), Notify::new());
        BodyFiles { files, limits, known, writes: Semaphore::new(WRITES_MAX), low_space }
    }

    /// Writes a body. After this returns, either the whole body is stored or none of it.
    ///
    /// # Errors
    /// See [`BodyStoreRefusal`].
    pub(crate) async fn write(&self, name: &BodyName, body: Bytes) -> Result<(), BodyStoreRefusal> {
        let bytes = body.len() as u64;
        self.reserve(&name.account, bytes)?;
        let written = timeout(WRITE_TIMEOUT, self.put_object(name, body)).await;
        let written = written.unwrap_or_else(|_| Err(store_timeout_error()));
        let mut known = self.lock_known();
        known.writing.subtract(&name.account, bytes);
        if written.is_err() {
            known.fresh.subtract(&name.account, bytes);
        }
        drop(known);
        Ok(written?)
    }

    async fn put_object(&self, name: &BodyName, body: Bytes) -> Result<(), FileReadError> {
        // The semaphore is never closed, so this cannot fail.
        let _permit = self.writes.acquire().await;
        let path = self.files.object_path(&name.path())?;
        self.files.object_store().put(&path, body.into()).await?;
        Ok(())
    }

    /// Counts the bytes of a body that is about to be written, if there is room for it.
    fn reserve(&self, account: &str, bytes: u64) -> Result<(), BodyStoreRefusal> {
        let mut known = self.lock_known();
        let total = known.total().saturating_add(bytes);
        let own = known.bytes_of(account).saturating_add(bytes);
        if total > low_water_mark(self.limits.total) || own > low_water_mark(self.limits.account) {
            self.low_space.notify_one();
        }
        if own > self.limits.account {
            let refused = known.refused.by_account.entry(account.to_owned()).or_default();
            *refused = bytes.max(*refused);
            return Err(BodyStoreRefusal::NoRoom);
        }
        if total > self.limits.total {
            known.refused.total = known.refused.total.max(bytes);
            return Err(BodyStoreRefusal::NoRoom);
        }
        known.fresh.add(account, bytes);
        known.writing.add(account, bytes);
        Ok(())
    }

    /// Reads a body of `bytes` bytes, in pieces.
    ///
    /// # Errors
    /// [`FileReadError::Missing`] if it does not exist, or has another length.
    pub(crate) async fn read(
        &self,
        name: &BodyName,
        bytes: u64,
    ) -> Result<BoxStream<'static, Result<Bytes, FileReadError>>, FileReadError> {
        let path = self.files.object_path(&name.path())?;
        let found = match self.files.object_store().get_opts(&path, GetOptions::default()).await {
            Err(object_store::Error::NotFound { .. }) => return Err(FileReadError::Missing),
            found => found?,
        };
        if found.meta.size != bytes {
            return Err(FileReadError::Missing);
        }
        Ok(match found.payload {
            GetResultPayload::File(file, _) => folder::read_range(file, 0..bytes).boxed(),
            GetResultPayload::Stream(pieces) => {
                pieces.map(|piece| piece.map_err(FileReadError::from)).boxed()
            }
        })
    }

    /// Deletes a body. A body that does not exist is no error.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not delete it; a sweep deletes it when it
    /// has expired.
    pub(crate) async fn delete(&self, name: &BodyName, bytes: u64) -> Result<(), FileReadError> {
        let deleted = timeout(WRITE_TIMEOUT, self.files.delete(&name.path())).await;
        deleted.unwrap_or_else(|_| Err(store_timeout_error()))?;
        let mut known = self.lock_known();
        if known.fresh.bytes_of(&name.account) >= bytes {
            known.fresh.subtract(&name.account, bytes);
        } else {
            known.listed.subtract(&name.account, bytes);
        }
        Ok(())
    }

    /// Deletes expired bodies. If there is little room, it also deletes replies of the accounts
    /// that are near their limit, and then of the accounts that keep most; those that expire first
    /// go first. Counts the bytes that are left.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not list or delete; the next sweep
    /// continues.
    pub(crate) async fn sweep(&self, now_s: u64) -> Result<BodySweepReport, FileReadError> {
        // Bodies that are completely written by now will be in the list. Until the new count is
        // set, they are counted as before.
        let (written, refused) = {
            let mut known = self.lock_known();
            let written = known.fresh.minus(&known.writing);
            (written, std::mem::take(&mut known.refused))
        };
        let mut swept = BodySweepReport::default();
        let (mut sums, mut replies) = (AccountBytes::default(), ReplyExpiries::new());
        let top = self.files.object_path(ROOT_FOLDER)?;
        let mut listed = self.files.object_store().list(Some(&top));
        while let Some(meta) = listed.next().await {
            let ObjectMeta { location, size, .. } = meta?;
            // An object with another name is not a body of the gateway.
            let Some(name) = self.parse_name(&location) else { continue };
            if name.expires_s <= now_s {
                match self.files.delete(&name.path()).await {
                    Ok(()) => {
                        swept.expired += 1;
                        continue;
                    }
                    // A body that cannot be deleted still counts.
                    Err(why) => log::warn!(
                        event = "object_delete_failed", error:% = why;
                        "expired body not deleted"
                    ),
                }
            }
            sums.add(&name.account, size);
            if name.kind == BodyKind::Reply {
                let own = replies.entry(name.account).or_default();
                own.insert((name.expires_s, name.id), size);
            }
        }
        swept.evicted_bytes = self.evict(&refused, &mut sums, replies).await?;
        let mut known = self.lock_known();
        swept.bytes = sums.total;
        known.listed = sums;
        known.fresh = known.fresh.minus(&written);
        Ok(swept)
    }

    /// Deletes replies until the limits are kept, and returns how many bytes that were.
    async fn evict(
        &self,
        refused: &RefusedBodies,
        sums: &mut AccountBytes,
        mut replies: ReplyExpiries,
    ) -> Result<u64, FileReadError> {
        let before = sums.total;
        for (account, own) in &mut replies {
            let wanted = refused.by_account.get(account).copied().unwrap_or_default();
            let target = eviction_target(self.limits.account, wanted);
            while sums.bytes_of(account) > target && self.evict_first(account, own, sums).await? {}
        }
        let target = eviction_target(self.limits.total, refused.total);
        while sums.total > target {
            let most = replies.iter_mut().max_by_key(|(account, _)| sums.bytes_of(account));
            let Some((account, own)) = most else { break };
            if !self.evict_first(account, own, sums).await? {
                // The rest of this account's bodies are requests, which are still needed.
                let account = account.clone();
                replies.remove(&account);
            }
        }
        Ok(before - sums.total)
    }

    /// Deletes the account's reply that expires first; `false` if the account has none.
    async fn evict_first(
        &self,
        account: &str,
        replies: &mut BTreeMap<(u64, String), u64>,
        sums: &mut AccountBytes,
    ) -> Result<bool, FileReadError> {
        let Some(((expires_s, id), bytes)) = replies.pop_first() else { return Ok(false) };
        let account = account.to_owned();
        let name = BodyName { kind: BodyKind::Reply, account, expires_s, id };
        self.files.delete(&name.path()).await?;
        sums.subtract(&name.account, bytes);
        Ok(true)
    }

    fn parse_name(&self, location: &Path) -> Option<BodyName> {
        BodyName::parse(location.as_ref().strip_prefix(&self.files.prefix)?)
    }

    fn lock_known(&self) -> MutexGuard<'_, KnownBodies> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of bytes above which replies are deleted, so that there is room until the
/// next sweep.
fn low_water_mark(limit: u64) -> u64 {
    limit - limit / 8
}

/// Returns how many bytes may stay, so that the body that was refused has room as well.
fn eviction_target(limit: u64, wanted: u64) -> u64 {
    low_water_mark(limit).min(limit.saturating_sub(wanted))
}

fn store_timeout_error() -> FileReadError {
    FileReadError::Unavailable("the object store did not answer in time".to_owned())
}

#[cfg(test)]
mod tests;
