//! Copies of finished videos, in a store of our own.

use std::sync::atomic::Ordering;

use super::{FILE_BYTES_MAX, JobClaim, JobWorker};
use crate::files::{self, FileReadError, FileWriteError};
use crate::jobs::studio::{FetchError, VideoRoute};

/// Why a video was not copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// It was not had from the vendor.
    #[error("{0}")]
    Vendor(String),
    /// It could not be kept.
    #[error("our own store: {0}")]
    Store(FileReadError),
}

impl From<FetchError> for CopyError {
    fn from(fault: FetchError) -> CopyError {
        CopyError::Vendor(fault.to_string())
    }
}

impl From<FileWriteError<FetchError>> for CopyError {
    fn from(fault: FileWriteError<FetchError>) -> CopyError {
        match fault {
            FileWriteError::Store(fault) => CopyError::Store(fault),
            FileWriteError::Source(fault) => fault.into(),
            other => CopyError::Vendor(other.to_string()),
        }
    }
}

impl JobWorker {
    /// Whether files can be kept.
    pub(super) async fn can_keep(&self) -> bool {
        let ready = self.files.ready().await;
        if let Err(why) = &ready {
            log::error!(
                event = "file_store_unavailable", why:% = why;
                "finished videos cannot be kept, so none are made here"
            );
        }
        self.room.unkept.store(ready.is_err(), Ordering::Relaxed);
        ready.is_ok()
    }

    pub(super) async fn copy(
        &self,
        outlet: &VideoRoute,
        url: &str,
        claim: &JobClaim,
    ) -> Result<(), CopyError> {
        let pieces = self.studio.fetch(outlet, url).await?;
        let name = files::name(claim.job.account.as_str(), &claim.job.id);
        let written = self.files.write(&name, pieces, FILE_BYTES_MAX).await;
        if let Err(FileWriteError::Store(_)) = &written {
            self.room.unkept.store(true, Ordering::Relaxed);
        }
        written.map_err(CopyError::from).map(|_| ())
    }

    pub(super) async fn drop_file(&self, claim: &JobClaim) -> anyhow::Result<()> {
        let name = files::name(claim.job.account.as_str(), &claim.job.id);
        Ok(self.files.delete(&name).await?)
    }
}
