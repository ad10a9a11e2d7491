//! A Parquet file of the archive that was read.

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::columns::{ArchivedLine, parquet_fault, read_group};
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
        let ManifestPiece { first_row, first_seq, last_seq, digest, .. } = piece;
        let last_row = first_row.saturating_add(last_seq.saturating_sub(*first_seq));
        let (mut lines, mut group_first) = (Vec::new(), 0_u64);
        for index in 0..self.reader.num_row_groups() {
            let rows = self.reader.metadata().row_group(index).num_rows();
            let next_first = group_first.saturating_add(u64::try_from(rows).unwrap_or_default());
            if *first_row < next_first && last_row >= group_first {
                let rows = (group_first..).zip(self.read_rows(index)?);
                let of_piece = rows.filter(|(row, _)| (first_row..=&last_row).contains(&row));
                lines.extend(of_piece.map(|(_, line)| line.clone()));
            }
            group_first = next_first;
        }
        check_lines(account, piece, &lines)?;
        let lines: Vec<PostedEntry> = lines.into_iter().map(|line| line.posted).collect();
        let after = lines.iter().fold(before.clone(), |digest, line| digest.chained(line));
        if after.as_str() != digest {
            return Err(ArchiveFault::Differs(format!(
                "account '{}': lines {first_seq} to {last_seq} do not have their digest",
                account.account
            )));
        }
        Ok(lines)
    }

    /// Returns the lines of a row group.
    fn read_rows(&mut self, index: usize) -> Result<&[ArchivedLine], ArchiveFault> {
        let last = self.group.take().filter(|group| group.index == index);
        let group = if let Some(group) = last {
            group
        } else {
            let group = self.reader.get_row_group(index).map_err(|why| parquet_fault(&why))?;
            RowGroup { index, lines: read_group(&*group)? }
        };
        Ok(&self.group.insert(group).lines)
    }
}

fn check_lines(
    account: &ManifestAccount,
    piece: &ManifestPiece,
    lines: &[ArchivedLine],
) -> Result<(), ArchiveFault> {
    let numbers = piece.first_seq..=piece.last_seq;
    let of_account = |line: &ArchivedLine| line.account.as_str() == account.account;
    let are_all =
        lines.iter().all(of_account) && lines.iter().map(|line| line.posted.entry.seq).eq(numbers);
    let name = &account.account;
    let fault = || ArchiveFault::Differs(format!("account '{name}': lines are not in their place"));
    are_all.then_some(()).ok_or_else(fault)
}
