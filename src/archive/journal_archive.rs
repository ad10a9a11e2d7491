//! Reads and writes the files of the archive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::fault::ArchiveFault;
use super::line::LineDigest;
use super::manifest::{Manifest, ManifestAccount, ManifestPart, ManifestPiece, sha256_of};
use super::part_file::PartFile;
use super::places::{DayFolder, bucket_of};
use super::{ArchiveStore, ArchivedDay};
use crate::files::ArchiveFiles;
use crate::ledger::AccountName;
use crate::usage::PostedEntry;

/// A manifest has at most this many bytes: about 500 a piece.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// A file of lines has at most this many bytes.
const PART_BYTES_MAX: u64 = 256 << 20;
/// At most this many pages of lines are read at a time, each with one file in memory.
const READS_MAX: usize = 4;

/// The archive of the journals of one store, in a folder or a bucket of its own.
#[derive(Clone)]
pub struct JournalArchive {
    pub(super) files: ArchiveFiles,
    reads: Arc<Semaphore>,
    /// The lines that were read last: most often the next page of an account is in them, too.
    last_read: Arc<Mutex<Option<ReadLines>>>,
}

/// Lines of an account that follow each other.
#[derive(Clone)]
struct ReadLines {
    account: AccountName,
    lines: Arc<Vec<PostedEntry>>,
}

/// A manifest that was read, with its digest.
pub(super) struct ReadManifest {
    pub(super) manifest: Manifest,
    pub(super) sha256: String,
}

impl JournalArchive {
    /// Opens an archive: `file:PATH`, which is created if it does not exist, or
    /// `s3://BUCKET/PREFIX`. No request is sent to a bucket yet.
    ///
    /// # Errors
    /// [`ArchiveFault::Unavailable`] if the folder cannot be created or the environment cannot be
    /// read.
    pub fn open(url: &str) -> Result<JournalArchive, ArchiveFault> {
        let files = ArchiveFiles::open(url)?;
        let reads = Arc::new(Semaphore::new(READS_MAX));
        Ok(JournalArchive { files, reads, last_read: Arc::default() })
    }

    /// Reads the manifest of a day and a bucket; `None` if there is none.
    pub(super) async fn read_manifest(
        &self,
        folder: &DayFolder,
    ) -> Result<Option<ReadManifest>, ArchiveFault> {
        let bytes = self.files.read(&folder.manifest(), MANIFEST_BYTES_MAX).await?;
        let Some(bytes) = bytes else { return Ok(None) };
        let manifest = Manifest::parse(&bytes, &folder.day, folder.bucket)?;
        Ok(Some(ReadManifest { manifest, sha256: sha256_of(&bytes) }))
    }

    /// Reads a file that a manifest names.
    pub(super) async fn read_part(
        &self,
        folder: &DayFolder,
        part: &ManifestPart,
    ) -> Result<PartFile, ArchiveFault> {
        let name = folder.file(&part.file);
        let bytes = self.files.read(&name, PART_BYTES_MAX).await?;
        let missing = || ArchiveFault::Differs(format!("there is no file {name}"));
        let bytes = bytes.ok_or_else(missing)?;
        PartFile::open(bytes, part)
    }

    /// Reads lines of an account after number `seq`, oldest first, at most `limit`: those of one
    /// day and one file. Each line is one that the archive has a digest of, and the last digest of
    /// a day is the one that the store has noted.
    ///
    /// # Errors
    /// [`ArchiveFault`] if the archive does not answer, or lacks what the store has noted.
    pub(super) async fn read_lines(
        &self,
        store: &dyn ArchiveStore,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<PostedEntry>, ArchiveFault> {
        let known = self.lock_last_read().clone();
        let known = known.filter(|read| read.account == *account).map(|read| read.lines);
        let known = known.map(|lines| page_of(&lines, seq, limit)).unwrap_or_default();
        if !known.is_empty() {
            return Ok(known);
        }
        let _turn = self.reads.acquire().await;
        let noted = store.list_archived_days(account, seq, 1).await?;
        let Some(noted) = noted.first() else { return Ok(Vec::new()) };
        let lines = Arc::new(self.read_piece_after(account, noted, seq).await?);
        let page = page_of(&lines, seq, limit);
        *self.lock_last_read() = Some(ReadLines { account: account.clone(), lines });
        Ok(page)
    }

    /// Reads the piece of a day in which the line after number `seq` is.
    async fn read_piece_after(
        &self,
        account: &AccountName,
        noted: &ArchivedDay,
        seq: u64,
    ) -> Result<Vec<PostedEntry>, ArchiveFault> {
        let folder = folder_of(account, noted)?;
        let fault = |what: &str| {
            ArchiveFault::Differs(format!("account '{account}', {}: {what}", folder.day))
        };
        let read = self.read_manifest(&folder).await?;
        let manifest = read.ok_or_else(|| fault("there is no manifest"))?.manifest;
        let found = manifest.account(account).ok_or_else(|| fault("the manifest lacks it"))?;
        if found.digest != noted.digest || found.last_seq != noted.last_seq {
            return Err(fault("the manifest does not have the lines that the store has noted"));
        }
        let at = found.pieces.partition_point(|piece| piece.last_seq <= seq);
        let before = match at.checked_sub(1).and_then(|before| found.pieces.get(before)) {
            Some(piece) => &piece.digest,
            None => &found.previous_digest,
        };
        let before = LineDigest::of_text(before);
        let place = found
            .pieces
            .get(at)
            .and_then(|piece| Some((piece.clone(), manifest.parts.get(piece.part)?)));
        let (piece, part) = place.ok_or_else(|| fault("the manifest lacks a file"))?;
        let file = self.read_part(&folder, part).await?;
        read_piece(file, found.clone(), piece, before).await
    }

    fn lock_last_read(&self) -> MutexGuard<'_, Option<ReadLines>> {
        self.last_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the lines after number `seq` that follow it without a gap, at most `limit`.
fn page_of(lines: &[PostedEntry], seq: u64, limit: u32) -> Vec<PostedEntry> {
    let first = lines.partition_point(|line| line.entry.seq <= seq);
    let follows = lines.get(first).is_some_and(|line| line.entry.seq == seq.saturating_add(1));
    let limit = if follows { usize::try_from(limit).unwrap_or(usize::MAX) } else { 0 };
    lines.iter().skip(first).take(limit).cloned().collect()
}

/// Decodes a piece beside the tasks of the runtime.
async fn read_piece(
    mut file: PartFile,
    account: ManifestAccount,
    piece: ManifestPiece,
    before: LineDigest,
) -> Result<Vec<PostedEntry>, ArchiveFault> {
    let reading = tokio::task::spawn_blocking(move || file.read_piece(&account, &piece, &before));
    reading.await.map_err(|why| ArchiveFault::Unavailable(why.to_string()))?
}

/// Returns the folder of an archived day of an account.
pub(super) fn folder_of(
    account: &AccountName,
    day: &ArchivedDay,
) -> Result<DayFolder, ArchiveFault> {
    let out_of_range = || ArchiveFault::Differs(format!("{} is no day", day.day));
    DayFolder::new(day.day, bucket_of(account)).ok_or_else(out_of_range)
}
