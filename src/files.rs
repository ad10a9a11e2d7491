//! The object store: finished videos with short-lived download addresses, and `bodies` that are too
//! large for the ledger's store.
//!
//! The store is a folder, for one gateway, or a bucket, for a fleet. A file appears as a whole or
//! not at all. A bucket serves its files itself, at a presigned address. The gateway serves the
//! files of a folder, at an address with a token of `signed_url` that nobody else can make.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use http::Method;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{
    Attribute, Attributes, BackoffConfig, GetOptions, GetRange, GetResultPayload, ObjectStore,
    ObjectStoreExt, RetryConfig,
};

pub(crate) mod bodies;
mod config;
mod error;
mod folder;
mod link_secret;
mod names;
pub(crate) mod range;
pub(crate) mod signed_url;
mod upload;

pub(crate) use config::FilesSection;
pub(crate) use error::{FileReadError, FileWriteError};
pub(crate) use names::video_name;

use config::StorageLocation;
use upload::FileUpload;

/// What every file is.
const CONTENT_TYPE: &str = "video/mp4";
/// A request is tried again so often. One takes 30 s at most (`AWS_TIMEOUT`), 5 of them to connect
/// (`AWS_CONNECT_TIMEOUT`).
const RETRIES_MAX: usize = 3;
/// No request is tried again after so long.
const RETRIES_TIME_MAX: Duration = Duration::from_secs(20);

/// Where finished videos are.
#[derive(Debug, Clone)]
pub(crate) struct VideoFiles {
    storage: Arc<FileStorage>,
    /// Before every name, with a slash behind it.
    prefix: String,
}

#[derive(Debug)]
enum FileStorage {
    Folder(LocalFileSystem),
    Bucket(AmazonS3),
}

impl VideoFiles {
    /// Opens the store. A folder is made if it is not there, and rid of what killed processes left;
    /// a bucket is not asked for yet. Keys, region and endpoint of a bucket come from the
    /// environment, as the vendor's own tools read it.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the folder cannot be made or the environment not be read.
    pub(crate) fn open(section: &FilesSection) -> Result<VideoFiles, FileReadError> {
        match section.location() {
            Some(StorageLocation::Folder(path)) => {
                let store = folder::open(path)?;
                Ok(VideoFiles {
                    storage: Arc::new(FileStorage::Folder(store)),
                    prefix: String::new(),
                })
            }
            Some(StorageLocation::Bucket { bucket, prefix }) => {
                let store = FileStorage::Bucket(open_bucket(bucket)?);
                Ok(VideoFiles { storage: Arc::new(store), prefix })
            }
            None => Err(FileReadError::Unavailable(config::URL_FORMS.to_owned())),
        }
    }

    /// Whether files can be written: writes one and deletes it.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if they cannot.
    pub(crate) async fn check_writable(&self) -> Result<(), FileReadError> {
        let path = self.object_path("ready")?;
        self.object_store().put(&path, Bytes::from_static(b"ready").into()).await?;
        self.delete("ready").await
    }

    /// Writes a file, in place of one that is there, and says how long it is. It appears when all
    /// of it is written. If this future is dropped, it does not appear, unless the store was just
    /// putting it in its place.
    ///
    /// # Errors
    /// See [`FileWriteError`].
    pub(crate) async fn write<E>(
        &self,
        name: &str,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        bytes_max: u64,
    ) -> Result<u64, FileWriteError<E>> {
        let path = self.object_path(name)?;
        let mut upload = FileUpload::new(self.object_store(), path, self.attributes());
        match upload.write_all(pieces, bytes_max).await {
            Ok(length) => {
                upload.finish().await?;
                Ok(length)
            }
            Err(fault) => {
                upload.abort().await;
                Err(fault)
            }
        }
    }

    /// Deletes a file, and in a folder also what was left of one that was being written when its
    /// process died. What isn't there is fine.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not do it.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), FileReadError> {
        let path = self.object_path(name)?;
        if let FileStorage::Folder(store) = &*self.storage {
            folder::delete_staged(store, &path).await?;
        }
        match self.object_store().delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// An address at which the store itself serves the file for so long, to anyone; `None` if it
    /// serves nothing, as a folder. Whether the file is there is not asked.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if there are no keys to sign with.
    pub(crate) async fn presigned_url(
        &self,
        name: &str,
        life: Duration,
    ) -> Result<Option<String>, FileReadError> {
        let path = self.object_path(name)?;
        match &*self.storage {
            FileStorage::Folder(_) => Ok(None),
            FileStorage::Bucket(store) => {
                Ok(Some(store.signed_url(Method::GET, &path, life).await?.into()))
            }
        }
    }

    /// How long a file is; `None` if it is not there.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not say.
    pub(crate) async fn length(&self, name: &str) -> Result<Option<u64>, FileReadError> {
        match self.object_store().head(&self.object_path(name)?).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// Reads a part of a file, which must not be empty, in pieces of some 100 KiB. From a folder it
    /// is read to its end even if it is deleted meanwhile.
    ///
    /// # Errors
    /// See [`FileReadError`].
    pub(crate) async fn read_range(
        &self,
        name: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, FileReadError>>, FileReadError> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let found = match self.object_store().get_opts(&self.object_path(name)?, options).await {
            Err(object_store::Error::NotFound { .. }) => return Err(FileReadError::Missing),
            found => found?,
        };
        Ok(match found.payload {
            GetResultPayload::File(file, _) => folder::read_range(file, found.range).boxed(),
            GetResultPayload::Stream(pieces) => {
                pieces.map(|piece| piece.map_err(FileReadError::from)).boxed()
            }
        })
    }

    fn object_store(&self) -> &dyn ObjectStore {
        match &*self.storage {
            FileStorage::Folder(store) => store,
            FileStorage::Bucket(store) => store,
        }
    }

    fn object_path(&self, name: &str) -> Result<Path, FileReadError> {
        let path = Path::parse(format!("{}{name}", self.prefix));
        path.map_err(|why| FileReadError::Unavailable(why.to_string()))
    }

    /// A folder has none, and refuses to be given any.
    fn attributes(&self) -> Attributes {
        match &*self.storage {
            FileStorage::Folder(_) => Attributes::new(),
            FileStorage::Bucket(_) => {
                Attributes::from_iter([(Attribute::ContentType, CONTENT_TYPE.to_owned())])
            }
        }
    }
}

fn open_bucket(bucket: &str) -> Result<AmazonS3, FileReadError> {
    // Without one the HTTP client panics. Whoever was first stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES_MAX,
        retry_timeout: RETRIES_TIME_MAX,
    };
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_retry(retry)
        // One file at a time, so by the request that every store knows.
        .with_disable_bulk_delete(true);
    Ok(builder.build()?)
}

#[cfg(test)]
mod tests;
