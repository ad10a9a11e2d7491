//! The object store: finished videos with short-lived download URLs, and `bodies` that are too
//! large for the ledger's store.
//!
//! The store is a folder, for one gateway, or a bucket, for a fleet. A file appears as a whole or
//! not at all. A bucket serves its files itself, at a presigned URL. The gateway serves the files
//! of a folder, at a URL with a token of `signed_url` that cannot be forged.

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

mod archive_files;
pub(crate) mod bodies;
mod config;
mod error;
mod folder;
mod link_secret;
mod names;
pub(crate) mod range;
pub(crate) mod signed_url;
mod upload;

pub(crate) use archive_files::ArchiveFiles;
pub(crate) use config::FilesSection;
pub(crate) use error::{FileReadError, FileWriteError};
pub(crate) use names::video_name;

use config::StorageLocation;
use upload::FileUpload;

/// The content type of every file.
const CONTENT_TYPE: &str = "video/mp4";
/// How many times a request to a bucket is repeated. One request takes at most 30 s
/// (`AWS_TIMEOUT`), of which at most 5 s for the connection (`AWS_CONNECT_TIMEOUT`).
const RETRIES_MAX: usize = 3;
/// After this time no request to a bucket is repeated.
const RETRIES_TIME_MAX: Duration = Duration::from_secs(20);

/// The store of finished videos.
#[derive(Debug, Clone)]
pub(crate) struct VideoFiles {
    storage: Arc<FileStorage>,
    /// The prefix of every name, which ends with a slash unless it is empty.
    prefix: String,
}

#[derive(Debug)]
enum FileStorage {
    Folder(LocalFileSystem),
    Bucket(AmazonS3),
}

impl VideoFiles {
    /// Opens the store. A folder is created if it does not exist, and the partly written files of
    /// killed processes are deleted; no request is sent to a bucket yet. Keys, region and endpoint
    /// of a bucket come from the environment, from the same variables that the vendor's own tools
    /// read.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the folder cannot be created or the environment cannot be
    /// read.
    pub(crate) fn open(section: &FilesSection) -> Result<VideoFiles, FileReadError> {
        let forms = || FileReadError::Unavailable(config::URL_FORMS.to_owned());
        VideoFiles::open_location(section.location().ok_or_else(forms)?, folder::open)
    }

    fn open_location(
        location: StorageLocation<'_>,
        open_folder: fn(&str) -> Result<LocalFileSystem, FileReadError>,
    ) -> Result<VideoFiles, FileReadError> {
        match location {
            StorageLocation::Folder(path) => {
                let store = open_folder(path)?;
                Ok(VideoFiles {
                    storage: Arc::new(FileStorage::Folder(store)),
                    prefix: String::new(),
                })
            }
            StorageLocation::Bucket { bucket, prefix } => {
                let store = FileStorage::Bucket(open_bucket(bucket)?);
                Ok(VideoFiles { storage: Arc::new(store), prefix })
            }
        }
    }

    /// Checks that files can be written: writes a file and deletes it.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if they cannot.
    pub(crate) async fn check_writable(&self) -> Result<(), FileReadError> {
        let path = self.object_path("ready")?;
        self.object_store().put(&path, Bytes::from_static(b"ready").into()).await?;
        self.delete("ready").await
    }

    /// Writes a file, replacing one of the same name, and returns its length in bytes. The file
    /// appears once all of it is written. If this future is dropped, the file does not appear,
    /// unless the store was just moving it to its final name.
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

    /// Deletes a file, and in a folder also the partly written copies of it that a dead process
    /// left. A file that does not exist is no error.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not delete it.
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

    /// Opens the store as [`open`](VideoFiles::open) does, but creates nothing: `None` for a folder
    /// that does not exist.
    ///
    /// # Errors
    /// Those of [`open`](VideoFiles::open).
    pub(crate) fn open_existing(
        section: &FilesSection,
    ) -> Result<Option<VideoFiles>, FileReadError> {
        match section.location() {
            Some(StorageLocation::Folder(path)) if !std::path::Path::new(path).exists() => Ok(None),
            _ => VideoFiles::open(section).map(Some),
        }
    }

    /// Deletes all files and bodies of an account. The same again deletes what is left.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not list or delete them.
    pub(crate) async fn erase_account(&self, account: &str) -> Result<(), FileReadError> {
        for folder in names::account_folders(account) {
            let path = self.object_path(&folder)?;
            let listed = self.object_store().list(Some(&path)).map(|meta| Ok(meta?.location));
            let found: Vec<Result<Path, FileReadError>> = listed.collect().await;
            for location in found {
                match self.object_store().delete(&location?).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(why) => return Err(why.into()),
                }
            }
            if let FileStorage::Folder(store) = &*self.storage {
                // It may have what is partly written.
                folder::delete_folder(store, &path).await?;
            }
        }
        Ok(())
    }

    /// Returns a URL at which the store itself serves the file to anyone, for the time `life`;
    /// `None` for a folder, which serves nothing. Whether the file exists is not checked.
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

    /// Returns the length of a file in bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not answer.
    pub(crate) async fn length(&self, name: &str) -> Result<Option<u64>, FileReadError> {
        match self.object_store().head(&self.object_path(name)?).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// Reads a range of a file, which must not be empty, in pieces of some 100 KiB. From a folder
    /// the range is read to its end even if the file is deleted meanwhile.
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

    /// Returns the attributes of a new file. A folder supports none, and refuses a file that has
    /// any.
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
    // The HTTP client panics if the process has no crypto provider. One that was installed before
    // stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES_MAX,
        retry_timeout: RETRIES_TIME_MAX,
    };
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_retry(retry)
        // Files are deleted one at a time, so by the plain delete request, which every store
        // supports.
        .with_disable_bulk_delete(true);
    Ok(builder.build()?)
}

#[cfg(test)]
mod tests;
