//! The segment files that a process writes its outbox into, one after another.
//!
//! A segment is created with its full length, filled with zeros: a write that makes a file longer
//! would wait while an fsync of the file is running. The next segment, called the spare, is created
//! before it is needed.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fsync_thread::FsyncThread;
use super::segment_dir::{SegmentDir, SegmentKind};
use crate::failpoints::failpoint;
use crate::metrics::METRICS;

/// The size of a segment in bytes. A segment ends when it is full, or when it is older than
/// `SEGMENT_AGE_MAX`.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
const SEGMENT_AGE_MAX: Duration = Duration::from_secs(60);
/// The search for the last written byte of a file reads blocks of this many bytes.
const SCAN_BLOCK_BYTES: usize = 64 << 10;
/// A block of nothing but zeros.
static ZEROS: [u8; SCAN_BLOCK_BYTES] = [0; SCAN_BLOCK_BYTES];

/// The current segment, the spare, and the segments that have ended.
pub(super) struct SegmentFiles {
    file: Arc<File>,
    number: u64,
    bytes: u64,
    opened_at: Instant,
    spare: Option<Arc<File>>,
    closed: Vec<ClosedSegment>,
}

/// A segment that has ended. It is removed when nothing in it is needed any more.
struct ClosedSegment {
    number: u64,
    /// The file and its written length in bytes, until the file is truncated to that length.
    untrimmed: Option<(Arc<File>, u64)>,
    /// The earliest time from which no entry of the segment may have been pending. Its retention
    /// counts from here.
    unneeded_since: Instant,
}

impl SegmentFiles {
    /// Begins with `file` as segment number 1.
    pub(super) fn new(file: Arc<File>) -> SegmentFiles {
        SegmentFiles {
            file,
            number: 1,
            bytes: 0,
            opened_at: Instant::now(),
            spare: None,
            closed: Vec::new(),
        }
    }

    /// Returns the number of the current segment.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the current segment.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether `more` further bytes do not fit into the current segment.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.bytes + more as u64 > SEGMENT_BYTES_MAX
    }

    /// Returns the numbers of the segments into which nothing was written: the current one if it is
    /// empty, and the spare.
    pub(super) fn unused(&self) -> std::ops::Range<u64> {
        self.number + u64::from(self.bytes > 0)..self.number + 2
    }

    /// Whether the current segment is not empty and has reached its maximum age.
    pub(super) fn is_old(&self) -> bool {
        self.bytes > 0 && self.opened_at.elapsed() > SEGMENT_AGE_MAX
    }

    /// Returns the number of the spare file to create; `None` if there is a spare already, or the
    /// current segment is empty.
    pub(super) fn missing_spare_number(&self) -> Option<u64> {
        (self.bytes > 0 && self.spare.is_none()).then_some(self.number + 1)
    }

    /// Sets the spare, unless there is one already.
    pub(super) fn set_spare(&mut self, spare: Arc<File>) {
        self.spare.get_or_insert(spare);
    }

    /// Ends the current segment and continues in `next`, whatever the spare is.
    pub(super) fn continue_in(&mut self, next: Arc<File>) {
        self.spare = Some(next);
        self.rotate();
    }

    /// Appends bytes to the current segment. After a failed write, the next write overwrites the
    /// part that was written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<&Arc<File>> {
        self.file.write_all_at(bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(&self.file)
    }

    /// Ends the current segment and continues in the spare. Without a spare, the current segment
    /// stays and this returns `false`.
    pub(super) fn rotate(&mut self) -> bool {
        let Some(next) = self.spare.take() else { return false };
        let file = std::mem::replace(&mut self.file, next);
        let (untrimmed, unneeded_since) = (Some((file, self.bytes)), Instant::now());
        self.closed.push(ClosedSegment { number: self.number, untrimmed, unneeded_since });
        self.number += 1;
        (self.bytes, self.opened_at) = (0, Instant::now());
        true
    }

    /// Returns the files that have ended and were not truncated yet, each with the length in bytes
    /// to truncate it to.
    pub(super) fn take_untrimmed(&mut self) -> Vec<(Arc<File>, u64)> {
        self.closed.iter_mut().filter_map(|past| past.untrimmed.take()).collect()
    }

    /// Restarts the retention of all closed segments, as if their entries were just acknowledged.
    pub(super) fn restart_retention(&mut self) {
        let now = Instant::now();
        self.closed.iter_mut().for_each(|past| past.unneeded_since = now);
    }

    /// Drops the segments without a pending entry whose retention is over; returns their numbers.
    pub(super) fn remove_expired(
        &mut self,
        needed: &HashSet<u64>,
        is_retention_over: impl Fn(Instant) -> bool,
    ) -> Vec<u64> {
        let now = Instant::now();
        let waiting = self.closed.iter_mut().filter(|past| needed.contains(&past.number));
        waiting.for_each(|past| past.unneeded_since = now);
        let is_done = |past: &mut ClosedSegment| {
            !needed.contains(&past.number) && is_retention_over(past.unneeded_since)
        };
        self.closed.extract_if(.., is_done).map(|past| past.number).collect()
    }

    /// Truncates the current segment to the bytes that were written, since nothing more will be.
    pub(super) fn trim_current(&self) {
        truncate_to(&self.file, self.bytes);
    }
}

/// Truncates a preallocated file to its written length.
pub(super) fn truncate_to(file: &File, bytes: u64) {
    // The zeros are sparse and do not even take up disk space, so a failure does no harm.
    let _ = file.set_len(bytes);
}

/// Returns the length of a file in bytes, without its preallocated zeros. It scans from the end,
/// since most files have no zeros left.
pub(super) fn written_length(file: &File) -> io::Result<u64> {
    let (mut end, mut block) = (file.metadata()?.len(), vec![0; SCAN_BLOCK_BYTES]);
    while end > 0 {
        let begin = end.saturating_sub(SCAN_BLOCK_BYTES as u64);
        let part = &mut block[..usize::try_from(end - begin).unwrap_or(SCAN_BLOCK_BYTES)];
        // The file may become shorter meanwhile, since its owner truncates it to what was written.
        let there = read_at(file, part, begin)?;
        // Most blocks have nothing but zeros: comparing is faster than looking at each byte.
        if part[..there] != ZEROS[..there]
            && let Some(last) = part[..there].iter().rposition(|byte| *byte != 0)
        {
            return Ok(begin + last as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// Reads until `part` is full or the file ends. Returns the number of bytes read.
fn read_at(file: &File, part: &mut [u8], begin: u64) -> io::Result<usize> {
    let mut there = 0;
    while there < part.len() {
        match file.read_at(&mut part[there..], begin + there as u64) {
            Ok(0) => break,
            Ok(more) => there += more,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(there)
}

/// Returns the bytes that were written into a file, without its preallocated zeros.
pub(super) fn read_written(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut content = vec![0; usize::try_from(written_length(&file)?).map_err(io::Error::other)?];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

/// Creates a segment with its full length. With a `syncer`, the folder that has its name is synced
/// together with its first bytes.
///
/// # Errors
/// The file cannot be created, or it exists: another thread was faster, and may have written into
/// it already.
pub(super) fn create_segment(
    dir: &SegmentDir,
    kind: SegmentKind,
    number: u64,
    syncer: Option<&FsyncThread>,
) -> io::Result<Arc<File>> {
    let path = dir.segment_path(kind, number);
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    failpoint!("ends_segment_created", if kind == SegmentKind::AllotmentEnds);
    if let Err(why) = file.set_len(SEGMENT_BYTES_MAX) {
        // So that the next attempt can create it.
        let _ = std::fs::remove_file(path);
        return Err(why);
    }
    if let Some(syncer) = syncer {
        syncer.request_sync(&Arc::new(File::open(&dir.path)?));
    }
    Ok(Arc::new(file))
}

/// Logs and counts that a segment could not be created. That another thread has created it is no
/// failure.
pub(super) fn log_create_failure(why: &io::Error) {
    if why.kind() != io::ErrorKind::AlreadyExists {
        log::error!(
            event = "outbox_file_create_failed", error:% = why;
            "outbox file create failed"
        );
        METRICS.outbox_errors.inc();
    }
}

/// Returns what was read; if that failed, logs the error and returns an empty value.
pub(super) fn or_log_error<T: Default>(path: &Path, read: io::Result<T>) -> T {
    read.unwrap_or_else(|why| {
        log::error!(
            event = "outbox_read_failed", place:? = path, error:% = why;
            "outbox read failed"
        );
        METRICS.outbox_errors.inc();
        T::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::record;
    use super::*;

    #[test]
    fn a_file_ends_where_the_last_byte_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("00000001.log");
        let block = SCAN_BLOCK_BYTES as u64;
        // The length of the file, and the offsets at which a byte is written.
        for (length, written_at) in [
            (0, vec![]),
            (1, vec![]),
            (1, vec![0]),
            (block * 3, vec![]),
            (block * 3, vec![0]),
            (block * 3, vec![block - 1]),
            (block * 3, vec![block]),
            (block * 3 + 7, vec![5, block + 5]),
            (block * 3 + 7, vec![5, block * 3 + 6]),
            (SEGMENT_BYTES_MAX, vec![7]),
        ] {
            let file = File::create(&path).expect("a file");
            file.set_len(length).expect("its length");
            for at in &written_at {
                file.write_all_at(b"x", *at).expect("a byte");
            }
            let end = written_at.last().map_or(0, |last| last + 1);
            let what = format!("{length} bytes, written at {written_at:?}");
            assert_eq!(
                written_length(&File::open(&path).expect("a file")).ok(),
                Some(end),
                "{what}"
            );
            let all = std::fs::read(&path).expect("all of it");
            let content = read_written(&path).expect("what was written");
            assert_eq!(
                (content.len() as u64, record::used_length(&all) as u64),
                (end, end),
                "{what}"
            );
            assert!(all.starts_with(&content), "{what}");
        }
    }

    #[test]
    fn a_segment_that_exists_is_not_emptied_by_who_comes_second() {
        let root = tempfile::tempdir().expect("a folder");
        let dir = SegmentDir::create(root.path()).expect("a folder");
        let create = || create_segment(&dir, SegmentKind::HoldEnds, 2, None);
        let first = create().expect("a file");
        first.write_all_at(b"x", 0).expect("a byte");
        assert_eq!(create().expect_err("it exists").kind(), io::ErrorKind::AlreadyExists);
        let path = dir.segment_path(SegmentKind::HoldEnds, 2);
        assert_eq!(read_written(&path).expect("a file"), b"x");
    }

    #[test]
    fn what_nothing_was_written_into_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = || Arc::new(File::create(folder.path().join("x")).expect("a file"));
        let mut files = SegmentFiles::new(file());
        assert_eq!(files.unused(), 1..3);
        files.write(b"x").expect("a byte");
        assert_eq!(files.unused(), 2..3);
        files.set_spare(file());
        assert!(files.rotate());
        assert_eq!(files.unused(), 2..4);
    }
}
