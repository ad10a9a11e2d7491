//! A Parquet file of the archive that was read.

use std::ops::Range;

use bytes::Bytes;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};

use super::columns::{ArchivedLine, parquet_fault, read_rows};
use super::fault::ArchiveFault;
use super::line::LineDigest;
use super::manifest::{ManifestAccount, ManifestPart, ManifestPiece, sha256_of};
use crate::usage::PostedEntry;

/// A file whose bytes are those that its manifest names.
pub(super) struct PartFile {
    reader: SerializedFileReader<Bytes>,
    /// The row group that was read last: many accounts may have their lines in it.
    group: Option<RowGroup>,
}

/// A row group that was read.
struct RowGroup {
    index: usize,
    lines: Vec<ArchivedLine>,
}

impl PartFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if it is not the one that the manifest names.
    pub(super) fn open(bytes: Bytes, part: &ManifestPart) -> Result<PartFile, ArchiveFault> {
        let fault = |what: &str| ArchiveFault::Differs(format!("{}: {what}", part.file));
        if bytes.len() as u64 != part.bytes || sha256_of(&bytes) != part.sha256 {
            return Err(fault("it does not have the bytes that were written"));
        }
        let reader = SerializedFileReader::new(bytes).map_err(|why| parquet_fault(&why))?;
        let lines = u64::try_from(reader.metadata().file_metadata().num_rows()).ok();
        if lines != Some(part.lines) {
            return Err(fault("it does not have the lines that were written"));
        }
        Ok(PartFile { reader, group: None })
    }

    /// Reads the lines of a piece of an account, which follow the digest `before`.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if they are not the lines that were written.
    pub(super) fn read_piece(
        &mut self,
        account: &ManifestAccount,
        piece: &ManifestPiece,
        before: &LineDigest,
    ) -> Result<Vec<PostedEntry>, ArchiveFault> {
        let mut lines = Vec::new();
        for (index, rows) in self.find_rows(piece) {
            lines.extend_from_slice(self.read_whole_group(index)?.get(rows).unwrap_or_default());
        }
        check_lines(account, piece, before, lines)
    }

    /// Reads the lines of a piece of an account, as [`PartFile::read_piece`] does, and hardly more
    /// of the file: of a file from which no other piece is read.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] if they are not the lines that were written.
    pub(super) fn read_single_piece(
        &self,
        account: &ManifestAccount,
        piece: &ManifestPiece,
        before: &LineDigest,
    ) -> Result<Vec<PostedEntry>, ArchiveFault> {
        let mut lines = Vec::new();
        for (index, rows) in self.find_rows(piece) {
            lines.extend(read_rows(&*self.open_group(index)?, rows)?);
        }
        check_lines(account, piece, before, lines)
    }

    /// Returns in which row groups the rows of a piece are, and which of their rows they are.
    fn find_rows(&self, piece: &ManifestPiece) -> Vec<(usize, Range<usize>)> {
        let lines = piece.last_seq.saturating_sub(piece.first_seq).saturating_add(1);
        let [mut first, end] =
            [piece.first_row, piece.first_row.saturating_add(lines)].map(row_index);
        let (mut found, mut group_first) = (Vec::new(), 0_usize);
        for (index, group) in self.reader.metadata().row_groups().iter().enumerate() {
            let group_end = group_first.saturating_add(row_index(group.num_rows()));
            if first < end.min(group_end) {
                let rows = first.saturating_sub(group_first)..end.min(group_end) - group_first;
                found.push((index, rows));
                first = group_end;
            }
            group_first = group_end;
        }
        found
    }

    fn open_group(&self, index: usize) -> Result<Box<dyn RowGroupReader + '_>, ArchiveFault> {
        self.reader.get_row_group(index).map_err(|why| parquet_fault(&why))
    }

    /// Returns the lines of a row group.
    fn read_whole_group(&mut self, index: usize) -> Result<&[ArchivedLine], ArchiveFault> {
        let last = self.group.take().filter(|group| group.index == index);
        let group = if let Some(group) = last {
            group
        } else {
            let group = self.open_group(index)?;
            let rows = 0..row_index(group.metadata().num_rows());
            RowGroup { index, lines: read_rows(&*group, rows)? }
        };
        Ok(&self.group.insert(group).lines)
    }
}

fn row_index<T>(row: T) -> usize
where
    usize: TryFrom<T>,
{
    usize::try_from(row).unwrap_or(usize::MAX)
}

/// Returns the lines of a piece if they are those that were written.
fn check_lines(
    account: &ManifestAccount,
    piece: &ManifestPiece,
    before: &LineDigest,
    lines: Vec<ArchivedLine>,
) -> Result<Vec<PostedEntry>, ArchiveFault> {
    let numbers = piece.first_seq..=piece.last_seq;
    let of_account = |line: &ArchivedLine| line.account.as_str() == account.account;
    let are_all =
        lines.iter().all(of_account) && lines.iter().map(|line| line.posted.entry.seq).eq(numbers);
    let name = &account.account;
    let fault = |what: &str| ArchiveFault::Differs(format!("account '{name}': {what}"));
    if !are_all {
        return Err(fault("lines are not in their place"));
    }
    let lines: Vec<PostedEntry> = lines.into_iter().map(|line| line.posted).collect();
    let after = lines.iter().fold(before.clone(), |digest, line| digest.chained(line));
    if after.as_str() != piece.digest {
        let ManifestPiece { first_seq, last_seq, .. } = piece;
        return Err(fault(&format!("lines {first_seq} to {last_seq} do not have their digest")));
    }
    Ok(lines)
}
