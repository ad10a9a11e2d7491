//! Reads and writes the files of the archive.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::archive_store::{ArchiveStore, ArchivedDay};
use super::fault::ArchiveFault;
use super::line::LineDigest;
use super::manifest::{Manifest, ManifestPart, sha256_of};
use super::part_file::PartFile;
use super::places::{DayFolder, bucket_of};
use crate::files::ArchiveFiles;
use crate::ledger::AccountName;
use crate::usage::PostedEntry;

/// A manifest has at most this many bytes: about 500 a piece.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;
/// A file of lines has at most this many bytes.
const PART_BYTES_MAX: u64 = 256 << 20;
/// At most this many reads run at a time, each with one file in memory.
const READS_MAX: usize = 4;

/// At most this many reads wait for their turn.
const WAITING_MAX: usize = 256;
/// The lines that were read last are kept up to this many bytes of all accounts together.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The archive of the journals of one store, in a folder or a bucket of its own.
#[derive(Clone)]
pub struct JournalArchive {
    pub(super) files: ArchiveFiles,
    reads: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// The lines that were read last, the newest ones at the end: most often the next page of an
    /// account is in them, too.
    kept: Arc<Mutex<VecDeque<KeptLines>>>,
}

/// Lines of an account that follow each other.
#[derive(Clone)]
struct KeptLines {
    account: AccountName,
    lines: Arc<Vec<PostedEntry>>,
    bytes: usize,
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
        let [reads, waiting] = [READS_MAX, WAITING_MAX].map(|most| Arc::new(Semaphore::new(most)));
        Ok(JournalArchive { files, reads, waiting, kept: Arc::default() })
    }

    /// Lists the folders that have a manifest.
    pub(super) async fn list_manifests(&self) -> Result<BTreeSet<DayFolder>, ArchiveFault> {
        let names = self.files.list().await?;
        Ok(names.iter().filter_map(|name| DayFolder::of_manifest(name)).collect())
    }

    /// Reads the manifest of a day and a bucket; `None` if there is none.
    pub(super) async fn read_manifest(
        &self,
        folder: &DayFolder,
    ) -> Result<Option<ReadManifest>, ArchiveFault> {
        let bytes = self.files.read(&folder.manifest(), MANIFEST_BYTES_MAX).await?;
        let (Some(bytes), folder) = (bytes, folder.clone()) else { return Ok(None) };
        run_blocking(move || {
            let manifest = Manifest::parse(&bytes, &folder.day, folder.bucket)?;
            Ok(Some(ReadManifest { manifest, sha256: sha256_of(&bytes) }))
        })
        .await
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
        let (bytes, part) = (bytes.ok_or_else(missing)?, part.clone());
        run_blocking(move || PartFile::open(bytes, &part)).await
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
        let busy = |_| ArchiveFault::Unavailable("too many wait for the archive".to_owned());
        let waiting = self.waiting.try_acquire().map_err(busy)?;
        let _turn = self.reads.acquire().await;
        drop(waiting);
        if let Some(page) = self.find_kept(account, seq, limit) {
            return Ok(page);
        }
        let noted = store.list_archived_days(account, seq, 1).await?;
        let Some(noted) = noted.first() else { return Ok(Vec::new()) };
        let lines = self.read_piece_after(account, noted, seq).await?;
        let page = page_of(&lines, seq, limit);
        self.keep(account, lines);
        Ok(page)
    }

    /// Returns a page of the lines that were read last; `None` if its first line is not among them.
    fn find_kept(&self, account: &AccountName, seq: u64, limit: u32) -> Option<Vec<PostedEntry>> {
        let kept: Vec<_> = {
            let kept = self.lock_kept();
            let of_account = kept.iter().filter(|kept| kept.account == *account);
            of_account.map(|kept| kept.lines.clone()).collect()
        };
        kept.iter().map(|lines| page_of(lines, seq, limit)).find(|page| !page.is_empty())
    }

    /// Keeps lines that were read, and drops those that were read long ago.
    fn keep(&self, account: &AccountName, lines: Vec<PostedEntry>) {
        let each = |line: &PostedEntry| size_of::<PostedEntry>() + line.entry.line.capacity();
        let bytes = lines.iter().map(each).sum();
        let mut kept = self.lock_kept();
        kept.push_back(KeptLines { account: account.clone(), lines: Arc::new(lines), bytes });
        let mut sum: usize = kept.iter().map(|kept| kept.bytes).sum();
        while sum > KEPT_BYTES_MAX {
            let Some(oldest) = kept.pop_front() else { break };
            sum -= oldest.bytes;
        }
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
        let (file, found) = (self.read_part(&folder, part).await?, found.clone());
        run_blocking(move || file.read_single_piece(&found, &piece, &before)).await
    }

    fn lock_kept(&self) -> MutexGuard<'_, VecDeque<KeptLines>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the lines after number `seq` that follow it without a gap, at most `limit`.
fn page_of(lines: &[PostedEntry], seq: u64, limit: u32) -> Vec<PostedEntry> {
    let first = lines.partition_point(|line| line.entry.seq <= seq);
    let follows = lines.get(first).is_some_and(|line| line.entry.seq == seq.saturating_add(1));
    let limit = if follows { usize::try_from(limit).unwrap_or(usize::MAX) } else { 0 };
    lines.iter().skip(first).take(limit).cloned().collect()
}

/// Does work that keeps a processor busy beside the tasks of the runtime.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArchiveFault> + Send + 'static,
) -> Result<T, ArchiveFault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|why| ArchiveFault::Unavailable(why.to_string()))?
}

/// Returns the folder of an archived day of an account.
pub(super) fn folder_of(
    account: &AccountName,
    day: &ArchivedDay,
) -> Result<DayFolder, ArchiveFault> {
    let out_of_range = || ArchiveFault::Differs(format!("{} is no day", day.day));
    DayFolder::new(day.day, bucket_of(account)).ok_or_else(out_of_range)
}
