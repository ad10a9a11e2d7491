//! Makes the files and the manifest of a day and a bucket out of the lines of its accounts.

use super::columns::{ArchivedLine, PartWriter};
use super::fault::ArchiveFault;
use super::line::{LineDigest, LineSums};
use super::manifest::{
    Manifest, ManifestAccount, ManifestPart, ManifestPiece, PreviousManifest, sha256_of,
};
use super::places::DayFolder;
use crate::ledger::AccountName;
use crate::usage::PostedEntry;

/// The number of lines of a row group.
pub(super) const GROUP_LINES: usize = 8_192;
/// A file has at most this many lines, some 10 MB.
const PART_LINES: u64 = 65_536;
/// A file that has this many bytes of lines gets no further row group.
const PART_TEXT_BYTES_MAX: u64 = 128 << 20;
/// A row group that has this many bytes of lines gets no further line.
const GROUP_TEXT_BYTES_MAX: u64 = 32 << 20;

/// A file that has to be written.
pub(super) struct FinishedPart {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// The lines of an account so far.
struct OpenAccount {
    name: AccountName,
    first_seq: u64,
    last_seq: u64,
    previous_digest: LineDigest,
    digest: LineDigest,
    sums: LineSums,
    pieces: Vec<ManifestPiece>,
}

/// The file that is being written.
struct OpenPart {
    writer: PartWriter,
    lines: u64,
    text_bytes: u64,
}

/// A day and a bucket that are being written. Lines come account by account, each account's in the
/// order of their numbers.
pub(super) struct DayWriter {
    part: Option<OpenPart>,
    group: Vec<ArchivedLine>,
    group_bytes: u64,
    parts: Vec<ManifestPart>,
    account: Option<OpenAccount>,
    accounts: Vec<ManifestAccount>,
}

impl DayWriter {
    pub(super) fn new() -> DayWriter {
        DayWriter {
            part: None,
            group: Vec::new(),
            group_bytes: 0,
            parts: Vec::new(),
            account: None,
            accounts: Vec::new(),
        }
    }

    /// Begins with the lines of another account. `digest` is that of its lines in the archive.
    pub(super) fn begin_account(&mut self, name: &AccountName, after: u64, digest: LineDigest) {
        self.end_account();
        self.account = Some(OpenAccount {
            name: name.clone(),
            first_seq: after.saturating_add(1),
            last_seq: after,
            previous_digest: digest.clone(),
            digest,
            sums: LineSums::default(),
            pieces: Vec::new(),
        });
    }

    fn end_account(&mut self) {
        let Some(account) = self.account.take() else { return };
        if account.pieces.is_empty() {
            return;
        }
        self.accounts.push(ManifestAccount {
            account: account.name.to_string(),
            first_seq: account.first_seq,
            last_seq: account.last_seq,
            previous_digest: account.previous_digest.as_str().to_owned(),
            digest: account.digest.as_str().to_owned(),
            charged_nano: account.sums.charged,
            corrected_nano: account.sums.corrected,
            expired_nano: account.sums.expired,
            written_off_nano: account.sums.written_off,
            corrected_written_off_nano: account.sums.corrected_written_off,
            pieces: account.pieces,
        });
    }

    /// Adds a line of the account. Returns a file if one is finished.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if the line does not follow the one before.
    pub(super) fn push(
        &mut self,
        posted: PostedEntry,
    ) -> Result<Option<FinishedPart>, ArchiveFault> {
        let first_row = self.part.as_ref().map_or(0, |part| part.lines);
        let first_row = first_row.saturating_add(self.group.len() as u64);
        let part = self.parts.len();
        let Some(account) = &mut self.account else {
            return Err(ArchiveFault::Differs("a line has no account".to_owned()));
        };
        let seq = posted.entry.seq;
        if seq != account.last_seq.saturating_add(1) {
            let after = account.last_seq;
            let what = format!("account '{}': line {seq} comes after {after}", account.name);
            return Err(ArchiveFault::Differs(what));
        }
        account.last_seq = seq;
        account.sums.add(&posted)?;
        account.digest = account.digest.chained(&posted);
        let digest = account.digest.as_str().to_owned();
        match account.pieces.last_mut().filter(|piece| piece.part == part) {
            Some(piece) => {
                piece.last_seq = seq;
                piece.digest = digest;
            }
            None => account.pieces.push(ManifestPiece {
                part,
                first_row,
                first_seq: seq,
                last_seq: seq,
                digest,
            }),
        }
        self.group_bytes = self.group_bytes.saturating_add(posted.entry.line.len() as u64);
        self.group.push(ArchivedLine { account: account.name.clone(), posted });
        if self.group.len() < GROUP_LINES && self.group_bytes < GROUP_TEXT_BYTES_MAX {
            return Ok(None);
        }
        self.write_group()?;
        let is_full = self
            .part
            .as_ref()
            .is_some_and(|part| part.lines >= PART_LINES || part.text_bytes >= PART_TEXT_BYTES_MAX);
        if is_full { self.finish_part() } else { Ok(None) }
    }

    fn write_group(&mut self) -> Result<(), ArchiveFault> {
        if self.group.is_empty() {
            return Ok(());
        }
        let mut part = match self.part.take() {
            Some(part) => part,
            None => OpenPart { writer: PartWriter::new()?, lines: 0, text_bytes: 0 },
        };
        part.writer.write_group(&self.group)?;
        part.lines = part.lines.saturating_add(self.group.len() as u64);
        part.text_bytes = part.text_bytes.saturating_add(self.group_bytes);
        self.group.clear();
        self.group_bytes = 0;
        self.part = Some(part);
        Ok(())
    }

    fn finish_part(&mut self) -> Result<Option<FinishedPart>, ArchiveFault> {
        self.write_group()?;
        let Some(part) = self.part.take() else { return Ok(None) };
        let bytes = part.writer.finish()?;
        let sha256 = sha256_of(&bytes);
        let digits = sha256.get(..16).unwrap_or_default();
        // Named by its content, so that two processes never write one name with other bytes.
        let name = format!("part-{:05}-{digits}.parquet", self.parts.len());
        self.parts.push(ManifestPart {
            file: name.clone(),
            bytes: bytes.len() as u64,
            lines: part.lines,
            sha256,
        });
        Ok(Some(FinishedPart { name, bytes }))
    }

    /// Finishes the last file. Call it once, and then [`DayWriter::into_manifest`].
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] with what the Parquet library says.
    pub(super) fn finish(&mut self) -> Result<Option<FinishedPart>, ArchiveFault> {
        self.end_account();
        self.finish_part()
    }

    /// Returns the manifest.
    pub(super) fn into_manifest(
        self,
        folder: &DayFolder,
        previous: Option<PreviousManifest>,
    ) -> Manifest {
        let DayFolder { day, bucket } = folder;
        Manifest::new(day.clone(), *bucket, previous, self.parts, self.accounts)
    }
}
