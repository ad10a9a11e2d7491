//! Bodies that are too large for the ledger's store: replies that may be asked for again, and what
//! a video's vendor is to be sent.
//!
//! Each is an object of its own. Its name says whose it is and when it is over, so a sweep knows
//! from the names alone what has to go, whatever died in between. How many bytes there are is read
//! from the store's own list by each sweep, so no count can drift; what this process writes between
//! two sweeps is added to it.

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

/// So many bodies are written at a time.
const WRITES_MAX: usize = 16;
/// A body that is not written within this is not kept.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a body is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyStoreRefusal {
    /// The account has, or all have, as much as there may be.
    #[error("there is no room for it")]
    NoRoom,
    /// The store does not take it.
    #[error(transparent)]
    Store(#[from] FileReadError),
}

/// What a sweep found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BodySweepReport {
    /// How many bytes are left.
    pub bytes: u64,
    /// How many bodies were over.
    pub expired: u64,
    /// How many bytes of replies were dropped to make room.
    pub evicted_bytes: u64,
}

/// Bytes by account.
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

    /// What is left of them once others are taken away.
    fn minus(&self, others: &AccountBytes) -> AccountBytes {
        let mut left = self.clone();
        others.by_account.iter().for_each(|(account, bytes)| left.subtract(account, *bytes));
        left
    }

    fn bytes_of(&self, account: &str) -> u64 {
        self.by_account.get(account).copied().unwrap_or_default()
    }
}

/// The replies of each account, the first to be over first, and how many bytes each has.
type ReplyExpiries = HashMap<String, BTreeMap<(u64, String), u64>>;

/// What is known of the bytes that are kept.
#[derive(Debug, Default)]
struct KnownBodies {
    /// What the last sweep found.
    listed: AccountBytes,
    /// What was written since it began, and what was being written then.
    fresh: AccountBytes,
    /// What is being written.
    writing: AccountBytes,
    /// For what there was no room.
    refused: RefusedBodies,
}

/// The largest bodies that were refused since the last sweep.
#[derive(Debug, Default)]
struct RefusedBodies {
    /// Since all accounts have too much.
    total: u64,
    /// Since their own account has.
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

/// How many bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyStoreLimits {
    /// Of all accounts together.
    pub total: u64,
    /// Of one account.
    pub account: u64,
}

#[derive(Debug)]
pub(crate) struct BodyFiles {
    files: Arc<VideoFiles>,
    limits: BodyStoreLimits,
    known: Mutex<KnownBodies>,
    writes: Semaphore,
    /// Rung when there is little room left.
    pub low_space: Notify,
}

impl BodyFiles {
    /// Those of an object store.
    #[must_use]
    pub(crate) fn new(files: Arc<VideoFiles>, limits: BodyStoreLimits) -> BodyFiles {
        let (known, low_space) = (Mutex::default(), Notify::new());
        BodyFiles { files, limits, known, writes: Semaphore::new(WRITES_MAX), low_space }
    }

    /// Writes a body. It is there whole when this returns, or not at all.
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
        // It is never closed.
        let _permit = self.writes.acquire().await;
        let path = self.files.object_path(&name.path())?;
        self.files.object_store().put(&path, body.into()).await?;
        Ok(())
    }

    /// Counts what is about to be written, if there is room for it.
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

    /// Reads a body of `length` bytes, in pieces.
    ///
    /// # Errors
    /// [`FileReadError::Missing`] if it is not there, or not whole.
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

    /// Deletes a body. What is not there is fine.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not do it; a sweep will, in its time.
    pub(crate) async fn delete(&self, name: &BodyName, bytes: u64) -> Result<(), FileReadError> {
        let deleting = timeout(WRITE_TIMEOUT, self.files.delete(&name.path())).await;
        deleting.unwrap_or_else(|_| Err(store_timeout_error()))?;
        let mut known = self.lock_known();
        if known.fresh.bytes_of(&name.account) >= bytes {
            known.fresh.subtract(&name.account, bytes);
        } else {
            known.listed.subtract(&name.account, bytes);
        }
        Ok(())
    }

    /// Deletes what is over; and where there is little room, replies of the account that has little
    /// left, or of those who keep most, the first to be over first. Counts what is left.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not list or delete; the next one does the
    /// rest.
    pub(crate) async fn sweep(&self, now_s: u64) -> Result<BodySweepReport, FileReadError> {
        // What is written by now will be listed; until it is, it is counted as it was.
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
            // What has another name is not ours.
            let Some(name) = self.parse_name(&location) else { continue };
            if name.expires_s <= now_s {
                match self.files.delete(&name.path()).await {
                    Ok(()) => {
                        swept.expired += 1;
                        continue;
                    }
                    // It counts for as long as it is there.
                    Err(why) => log::warn!(
                        event = "object_delete_failed", why:% = why;
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

    /// Drops replies until what is kept is within bounds; tells how many bytes.
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
                // What else it has is needed.
                let account = account.clone();
                replies.remove(&account);
            }
        }
        Ok(before - sums.total)
    }

    /// Drops the first of an account's replies; `false` if it has none.
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

/// Above this replies are dropped, so that there is room until the next sweep.
fn low_water_mark(limit: u64) -> u64 {
    limit - limit / 8
}

/// How much may stay, so that there is room for what was wanted too.
fn eviction_target(limit: u64, wanted: u64) -> u64 {
    low_water_mark(limit).min(limit.saturating_sub(wanted))
}

fn store_timeout_error() -> FileReadError {
    FileReadError::Unavailable("the object store did not answer in time".to_owned())
}

#[cfg(test)]
mod tests;
