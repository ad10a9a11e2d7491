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

use super::{Files, FilesError, escaped, folder};

/// Before all names.
pub(super) const TOP: &str = "bodies";
/// So many bodies are written at a time.
const WRITES_MAX: usize = 16;
/// A body that is not written within this is not kept.
const WRITE_WAIT: Duration = Duration::from_secs(10);

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BodyKind {
    /// A reply, which may go when there is no room.
    Reply,
    /// What a vendor is to be sent: it stays until its time is over.
    Request,
}

impl BodyKind {
    pub(super) const ALL: [BodyKind; 2] = [BodyKind::Reply, BodyKind::Request];

    /// Its folder.
    pub(super) fn folder(self) -> &'static str {
        match self {
            BodyKind::Reply => "replies",
            BodyKind::Request => "requests",
        }
    }
}

/// The name of a body.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BodyName {
    /// What it is.
    pub kind: BodyKind,
    /// The name of the account that it belongs to.
    pub account: String,
    /// When it is over, in unix seconds.
    pub expires_s: u64,
    /// The id of its call or job.
    pub id: String,
}

impl BodyName {
    fn path(&self) -> String {
        let BodyName { kind, account, expires_s, id } = self;
        format!("{TOP}/{}/{}/{expires_s}-{id}", kind.folder(), escaped(account))
    }

    /// Reads a path; `None` if it is none of these.
    fn of(path: &str) -> Option<BodyName> {
        let mut parts = path.strip_prefix(TOP)?.strip_prefix('/')?.split('/');
        let (kind, account, name) = (parts.next()?, parts.next()?, parts.next()?);
        let kind = BodyKind::ALL.into_iter().find(|known| known.folder() == kind)?;
        let (expires_s, id) = name.split_once('-')?;
        let account = account.strip_prefix('=').unwrap_or(account).to_owned();
        let name =
            BodyName { kind, account, expires_s: expires_s.parse().ok()?, id: id.to_owned() };
        (parts.next().is_none() && name.path() == path).then_some(name)
    }
}

/// Why a body is not kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyRefused {
    /// The account has, or all have, as much as there may be.
    #[error("there is no room for it")]
    NoRoom,
    /// The store does not take it.
    #[error(transparent)]
    Store(#[from] FilesError),
}

/// What a sweep found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BodiesSwept {
    /// How many bytes are left.
    pub bytes: u64,
    /// How many bodies were over.
    pub expired: u64,
    /// How many bytes of replies were dropped to make room.
    pub evicted_bytes: u64,
}

/// Bytes by account.
#[derive(Debug, Clone, Default)]
struct Sums {
    total: u64,
    by_account: HashMap<String, u64>,
}

impl Sums {
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

    fn of(&self, account: &str) -> u64 {
        self.by_account.get(account).copied().unwrap_or_default()
    }
}

/// What is known of the bytes that are kept.
#[derive(Debug, Default)]
struct Known {
    /// What the last sweep found.
    listed: Sums,
    /// What was written since it began, and what was being written then.
    fresh: Sums,
    /// What is being written.
    writing: Sums,
    /// The largest body for which there was no room among all.
    refused: u64,
}

impl Known {
    fn total(&self) -> u64 {
        self.listed.total + self.fresh.total
    }

    fn of(&self, account: &str) -> u64 {
        self.listed.of(account) + self.fresh.of(account)
    }
}

/// How many bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    /// Of all accounts together.
    pub total: u64,
    /// Of one account.
    pub account: u64,
}

/// See the module.
#[derive(Debug)]
pub struct BodyFiles {
    files: Arc<Files>,
    limits: BodyLimits,
    known: Mutex<Known>,
    writes: Semaphore,
    /// Rung when there is little room left.
    pub crowded: Notify,
}

impl BodyFiles {
    /// Those of an object store.
    #[must_use]
    pub fn new(files: Arc<Files>, limits: BodyLimits) -> BodyFiles {
        let (known, crowded) = (Mutex::default(), Notify::new());
        BodyFiles { files, limits, known, writes: Semaphore::new(WRITES_MAX), crowded }
    }

    /// Writes a body. It is there whole when this returns, or not at all.
    ///
    /// # Errors
    /// See [`BodyRefused`].
    pub async fn write(&self, name: &BodyName, body: Bytes) -> Result<(), BodyRefused> {
        let bytes = body.len() as u64;
        self.reserve(&name.account, bytes)?;
        let written = timeout(WRITE_WAIT, self.put(name, body)).await;
        let written = written.unwrap_or_else(|_| Err(late()));
        let mut known = self.known();
        known.writing.subtract(&name.account, bytes);
        if written.is_err() {
            known.fresh.subtract(&name.account, bytes);
        }
        drop(known);
        Ok(written?)
    }

    async fn put(&self, name: &BodyName, body: Bytes) -> Result<(), FilesError> {
        // It is never closed.
        let _permit = self.writes.acquire().await;
        let path = self.files.path(&name.path())?;
        self.files.store().put(&path, body.into()).await?;
        Ok(())
    }

    /// Counts what is about to be written, if there is room for it.
    fn reserve(&self, account: &str, bytes: u64) -> Result<(), BodyRefused> {
        let mut known = self.known();
        let total = known.total().saturating_add(bytes);
        let fits = total <= self.limits.total
            && known.of(account).saturating_add(bytes) <= self.limits.account;
        if total > low_water(self.limits.total) {
            self.crowded.notify_one();
        }
        if total > self.limits.total {
            known.refused = known.refused.max(bytes);
        }
        if !fits {
            return Err(BodyRefused::NoRoom);
        }
        known.fresh.add(account, bytes);
        known.writing.add(account, bytes);
        Ok(())
    }

    /// Reads a body of so many bytes, in pieces.
    ///
    /// # Errors
    /// [`FilesError::Missing`] if it is not there, or not whole.
    pub async fn read(
        &self,
        name: &BodyName,
        bytes: u64,
    ) -> Result<BoxStream<'static, Result<Bytes, FilesError>>, FilesError> {
        let path = self.files.path(&name.path())?;
        let found = match self.files.store().get_opts(&path, GetOptions::default()).await {
            Err(object_store::Error::NotFound { .. }) => return Err(FilesError::Missing),
            found => found?,
        };
        if found.meta.size != bytes {
            return Err(FilesError::Missing);
        }
        Ok(match found.payload {
            GetResultPayload::File(file, _) => folder::read(file, 0..bytes).boxed(),
            GetResultPayload::Stream(pieces) => {
                pieces.map(|piece| piece.map_err(FilesError::from)).boxed()
            }
        })
    }

    /// Deletes a body. What is not there is fine.
    ///
    /// # Errors
    /// [`FilesError::Unavailable`] if the store does not do it; a sweep will, in its time.
    pub async fn delete(&self, name: &BodyName, bytes: u64) -> Result<(), FilesError> {
        let deleting = timeout(WRITE_WAIT, self.files.delete(&name.path())).await;
        deleting.unwrap_or_else(|_| Err(late()))?;
        let mut known = self.known();
        if known.fresh.of(&name.account) >= bytes {
            known.fresh.subtract(&name.account, bytes);
        } else {
            known.listed.subtract(&name.account, bytes);
        }
        Ok(())
    }

    /// Deletes what is over; and where there is little room, the replies of those who keep most,
    /// the first to be over first. Counts what is left.
    ///
    /// # Errors
    /// [`FilesError::Unavailable`] if the store does not list or delete; the next one does the
    /// rest.
    pub async fn sweep(&self, now_s: u64) -> Result<BodiesSwept, FilesError> {
        let refused = {
            let mut known = self.known();
            known.fresh = known.writing.clone();
            std::mem::take(&mut known.refused)
        };
        let mut swept = BodiesSwept::default();
        let (mut sums, mut replies) = (Sums::default(), HashMap::new());
        let top = self.files.path(TOP)?;
        let mut listed = self.files.store().list(Some(&top));
        while let Some(meta) = listed.next().await {
            let ObjectMeta { location, size, .. } = meta?;
            // What has another name is not ours.
            let Some(name) = self.name(&location) else { continue };
            if name.expires_s <= now_s {
                self.files.delete(&name.path()).await?;
                swept.expired += 1;
                continue;
            }
            sums.add(&name.account, size);
            if name.kind == BodyKind::Reply {
                let of_account: &mut BTreeMap<(u64, String), u64> =
                    replies.entry(name.account).or_default();
                of_account.insert((name.expires_s, name.id), size);
            }
        }
        let target = low_water(self.limits.total).min(self.limits.total.saturating_sub(refused));
        swept.evicted_bytes = self.make_room(target, &mut sums, replies).await?;
        let mut known = self.known();
        swept.bytes = sums.total;
        known.listed = sums;
        Ok(swept)
    }

    /// Drops replies, of whoever keeps most at each time; tells how many bytes.
    async fn make_room(
        &self,
        target: u64,
        sums: &mut Sums,
        mut replies: HashMap<String, BTreeMap<(u64, String), u64>>,
    ) -> Result<u64, FilesError> {
        let mut evicted = 0;
        while sums.total > target {
            let most = replies.keys().max_by_key(|account| sums.of(account)).cloned();
            let Some(account) = most else { break };
            let Some(((expires_s, id), bytes)) =
                replies.get_mut(&account).and_then(BTreeMap::pop_first)
            else {
                // What else it has is needed.
                replies.remove(&account);
                continue;
            };
            let name = BodyName { kind: BodyKind::Reply, account, expires_s, id };
            self.files.delete(&name.path()).await?;
            sums.subtract(&name.account, bytes);
            evicted += bytes;
        }
        Ok(evicted)
    }

    fn name(&self, location: &Path) -> Option<BodyName> {
        BodyName::of(location.as_ref().strip_prefix(&self.files.prefix)?)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Above this replies are dropped, so that there is room until the next sweep.
fn low_water(limit: u64) -> u64 {
    limit - limit / 8
}

fn late() -> FilesError {
    FilesError::Unavailable("the object store did not answer in time".to_owned())
}

#[cfg(test)]
mod tests;
