//! The files of an archive: in a folder or a bucket of its own, written once and never changed.

use bytes::Bytes;
use futures_util::stream::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, PutMode, PutOptions};

use super::VideoFiles;
use super::config::parse_location;
use super::error::FileReadError;
use super::folder;

/// The forms that the address of an archive may have.
const URL_FORMS: &str = "an archive is in \"file:PATH\" or \"s3://BUCKET/PREFIX\"";

/// The files of an archive. Names are paths with slashes.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveFiles(VideoFiles);

impl ArchiveFiles {
    /// Whether an address is one of a folder or a bucket.
    pub(crate) fn is_address(url: &str) -> bool {
        parse_location(url).is_some()
    }

    /// Opens an archive, as [`VideoFiles::open`] opens the store of videos.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the folder cannot be created or the environment cannot be
    /// read.
    pub(crate) fn open(url: &str) -> Result<ArchiveFiles, FileReadError> {
        let location = parse_location(url);
        let location = location.ok_or_else(|| FileReadError::Unavailable(URL_FORMS.to_owned()))?;
        VideoFiles::open_location(location, folder::open_plain).map(ArchiveFiles)
    }

    /// Writes a file, unless there is one of that name. Returns whether it was written.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not take it.
    pub(crate) async fn create(&self, name: &str, bytes: Bytes) -> Result<bool, FileReadError> {
        let path = self.0.object_path(name)?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.0.object_store().put_opts(&path, bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    /// Reads a file; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not answer, or if the file is larger than
    /// `bytes_max`.
    pub(crate) async fn read(
        &self,
        name: &str,
        bytes_max: u64,
    ) -> Result<Option<Bytes>, FileReadError> {
        let path = self.0.object_path(name)?;
        let found = match self.0.object_store().get_opts(&path, GetOptions::default()).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let size = found.meta.size;
        if size > bytes_max {
            let message = format!("{name} has {size} bytes; at most {bytes_max} are read");
            return Err(FileReadError::Unavailable(message));
        }
        Ok(Some(found.bytes().await?))
    }

    /// Returns the names of all files.
    ///
    /// # Errors
    /// [`FileReadError::Unavailable`] if the store does not answer.
    pub(crate) async fn list(&self) -> Result<Vec<String>, FileReadError> {
        let prefix = self.0.prefix.trim_end_matches('/');
        let folder = (!prefix.is_empty()).then(|| Path::from(prefix));
        let mut listed = self.0.object_store().list(folder.as_ref());
        let mut names = Vec::new();
        while let Some(meta) = listed.next().await {
            let location = meta?.location;
            names.extend(location.as_ref().strip_prefix(&self.0.prefix).map(str::to_owned));
        }
        Ok(names)
    }
}
