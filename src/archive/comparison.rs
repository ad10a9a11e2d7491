//! Compares what was archived with the lines of the store.

use serde::Deserialize;

use super::fault::ArchiveFault;
use super::journal_archive::JournalArchive;
use super::line::{LineDigest, LineSums};
use super::manifest::{Manifest, ManifestAccount, ManifestPiece};
use super::part_file::PartFile;
use super::places::DayFolder;
use crate::ledger::AccountName;
use crate::usage::{PeriodKind, PostedEntry, UsageStore};

/// The number of lines that are read from the store at a time.
const LINES_AT_A_TIME: u64 = 1_000;

/// Reads back the files of a day and compares them with the store, account by account.
pub(super) struct Comparison<'a> {
    archive: &'a JournalArchive,
    folder: &'a DayFolder,
    manifest: &'a Manifest,
    /// The file that was read last, with its index. Accounts come in the order of the files.
    file: Option<(usize, PartFile)>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(
        archive: &'a JournalArchive,
        folder: &'a DayFolder,
        manifest: &'a Manifest,
    ) -> Comparison<'a> {
        Comparison { archive, folder, manifest, file: None }
    }

    /// Compares the lines of an account with those of the store, one by one.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if any of them, or their sums, are not the same.
    pub(super) async fn compare(
        &mut self,
        usage: &dyn UsageStore,
        account: &AccountName,
        found: &ManifestAccount,
    ) -> Result<(), ArchiveFault> {
        let mut digest = LineDigest::of_text(&found.previous_digest);
        let mut sums = LineSums::default();
        for piece in &found.pieces {
            let lines = self.read(found, piece, &digest).await?;
            let mut rest = &lines[..];
            while let Some(first) = rest.first() {
                let limit = LINES_AT_A_TIME.min(rest.len() as u64);
                let limit = u32::try_from(limit).unwrap_or(u32::MAX);
                let after = first.entry.seq.saturating_sub(1);
                let page = usage.read_posted(account, after, limit).await?;
                if page.is_empty() || !rest.starts_with(&page) {
                    return Err(ArchiveFault::Differs(format!(
                        "account '{account}': the store has other lines from {} on",
                        first.entry.seq
                    )));
                }
                rest = rest.get(page.len()..).unwrap_or_default();
            }
            lines.iter().try_for_each(|line| sums.add(line))?;
            digest = LineDigest::of_text(&piece.digest);
        }
        if sums != found.sums() {
            return Err(ArchiveFault::Differs(format!(
                "account '{account}': the sums of the manifest are not those of its lines"
            )));
        }
        Ok(())
    }

    async fn read(
        &mut self,
        found: &ManifestAccount,
        piece: &ManifestPiece,
        before: &LineDigest,
    ) -> Result<Vec<PostedEntry>, ArchiveFault> {
        let missing = || ArchiveFault::Differs("a file is missing in a manifest".to_owned());
        let last = self.file.take().filter(|(part, _)| *part == piece.part);
        let mut file = if let Some((_, file)) = last {
            file
        } else {
            let part = self.manifest.parts.get(piece.part).ok_or_else(missing)?;
            self.archive.read_part(self.folder, part).await?
        };
        let lines = file.read_piece(found, piece, before)?;
        self.file = Some((piece.part, file));
        Ok(lines)
    }
}

/// The time of a line of which the store does not know when it was posted.
#[derive(Deserialize)]
struct LineTime {
    at: i64,
}

/// Returns the beginning of the day to which a line belongs, in unix ms.
pub(super) fn day_of_line(line: &PostedEntry) -> i64 {
    let own_time = || serde_json::from_str(&line.entry.line).ok().map(|time: LineTime| time.at);
    PeriodKind::Day.start_of(line.posted_at.or_else(own_time).unwrap_or_default())
}
