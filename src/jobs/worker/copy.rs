//! Copies finished videos from the vendor to the gateway's own file store.

use std::sync::atomic::Ordering;

use super::parts::JobWorker;
use crate::files::{self, FileReadError, FileWriteError};
use crate::jobs::JobClaim;
use crate::jobs::video_client::{FetchError, VideoRoute};

/// The largest video that is copied, in bytes. The longest videos have some tens of MB.
const VIDEO_BYTES_MAX: u64 = 1 << 30;

/// Why a video was not copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The file could not be fetched from the vendor.
    #[error("{0}")]
    Vendor(String),
    /// The file could not be written to the gateway's store.
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
    /// Whether files can be written. Logs the failure, and stores the result for later submissions.
    pub(super) async fn check_file_store(&self) -> bool {
        let ready = self.files.check_writable().await;
        if let Err(why) = &ready {
            log::error!(
                event = "file_store_unavailable", error:% = why;
                "file store unavailable; no video jobs are submitted"
            );
        }
        self.capacity.is_file_store_down.store(ready.is_err(), Ordering::Relaxed);
        ready.is_ok()
    }

    pub(super) async fn copy_video(
        &self,
        route: &VideoRoute,
        url: &str,
        claim: &JobClaim,
    ) -> Result<(), CopyError> {
        let pieces = self.video_client.fetch(route, url).await?;
        let name = files::video_name(claim.job.account.as_str(), &claim.job.id);
        let written = self.files.write(&name, pieces, VIDEO_BYTES_MAX).await;
        if let Err(FileWriteError::Store(_)) = &written {
            self.capacity.is_file_store_down.store(true, Ordering::Relaxed);
        }
        written.map_err(CopyError::from).map(|_| ())
    }

    pub(super) async fn delete_file(&self, claim: &JobClaim) -> anyhow::Result<()> {
        let name = files::video_name(claim.job.account.as_str(), &claim.job.id);
        Ok(self.files.delete(&name).await?)
    }
}
