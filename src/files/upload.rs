//! The upload of a file to the store, in parts. The file does not appear before the last part is
//! stored.

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, MultipartUpload, ObjectStore, PutMultipartOptions, PutOptions, PutPayloadMut,
};

use super::error::{FileReadError, FileWriteError};

/// The size in bytes of each part but the last, and so the memory that an upload needs. Buckets
/// require at least 5 MiB, and some of them equal sizes.
pub(super) const PART_BYTES: usize = 8 << 20;
/// The size in bytes of the blocks in which a part is buffered.
const BLOCK_BYTES: usize = 256 << 10;

/// A file that is being written. If it is dropped before it is finished, its parts are deleted.
pub(super) struct FileUpload<'a> {
    store: &'a dyn ObjectStore,
    path: Path,
    attributes: Attributes,
    /// The upload in parts; `None` until the file is larger than one part.
    parts: Option<Box<dyn MultipartUpload>>,
    /// The bytes of the part that was not sent yet.
    buffer: PutPayloadMut,
}

impl<'a> FileUpload<'a> {
    pub(super) fn new(store: &'a dyn ObjectStore, path: Path, attributes: Attributes) -> Self {
        let buffer = PutPayloadMut::new().with_block_size(BLOCK_BYTES);
        FileUpload { store, path, attributes, parts: None, buffer }
    }

    /// Writes all pieces, and returns their total length in bytes.
    pub(super) async fn write_all<E>(
        &mut self,
        pieces: impl Stream<Item = Result<Bytes, E>> + Send,
        bytes_max: u64,
    ) -> Result<u64, FileWriteError<E>> {
        let mut pieces = std::pin::pin!(pieces);
        let mut length = 0_u64;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(FileWriteError::Source)?;
            length = length.saturating_add(piece.len() as u64);
            if length > bytes_max {
                return Err(FileWriteError::TooLarge);
            }
            self.append(piece).await?;
        }
        if length == 0 { Err(FileWriteError::Empty) } else { Ok(length) }
    }

    async fn append(&mut self, mut piece: Bytes) -> Result<(), FileReadError> {
        while !piece.is_empty() {
            let room = PART_BYTES - self.buffer.content_length();
            self.buffer.extend_from_slice(&piece.split_to(room.min(piece.len())));
            if self.buffer.content_length() == PART_BYTES {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    /// Sends the buffered bytes as a part.
    async fn send_part(&mut self) -> Result<(), FileReadError> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            none => {
                let attributes = self.attributes.clone();
                let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
                none.insert(self.store.put_multipart_opts(&self.path, options).await?)
            }
        };
        let fresh = PutPayloadMut::new().with_block_size(BLOCK_BYTES);
        let part = std::mem::replace(&mut self.buffer, fresh);
        Ok(parts.put_part(part.freeze()).await?)
    }

    /// Completes the upload: the file appears under its name.
    pub(super) async fn finish(mut self) -> Result<(), FileReadError> {
        let finished = self.complete().await;
        if finished.is_err() {
            self.abort().await;
        } else {
            self.parts = None;
        }
        finished
    }

    async fn complete(&mut self) -> Result<(), FileReadError> {
        if self.parts.is_none() {
            let attributes = self.attributes.clone();
            let options = PutOptions { attributes, ..PutOptions::default() };
            let whole = std::mem::take(&mut self.buffer).freeze();
            self.store.put_opts(&self.path, whole, options).await?;
            return Ok(());
        }
        if !self.buffer.is_empty() {
            self.send_part().await?;
        }
        if let Some(parts) = &mut self.parts {
            parts.complete().await?;
        }
        Ok(())
    }

    /// Cancels the upload and deletes the parts that were sent.
    pub(super) async fn abort(mut self) {
        if let Some(parts) = self.parts.take() {
            abort_parts(parts).await;
        }
    }
}

impl Drop for FileUpload<'_> {
    fn drop(&mut self) {
        // A bucket keeps the parts of an upload, and bills for them, until the upload is cancelled.
        if let Some(parts) = self.parts.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(abort_parts(parts));
        }
    }
}

async fn abort_parts(mut parts: Box<dyn MultipartUpload>) {
    if let Err(why) = parts.abort().await {
        log::warn!(
            event = "file_upload_abort_failed", error:% = why;
            "multipart upload abort failed"
        );
    }
}
