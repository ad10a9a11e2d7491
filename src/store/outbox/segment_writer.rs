//! Segments whose first file is created only when the first line is written.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::fsync_thread::FsyncThread;
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files::{self, SegmentFiles};

/// Writes the lines of one kind into segments.
pub(super) struct SegmentWriter {
    kind: SegmentKind,
    files: Option<SegmentFiles>,
    /// Syncs the folder when a segment is created in it; `None` if the lines need not survive a
    /// power cut.
    syncer: Option<Arc<FsyncThread>>,
}

/// File operations that are done after the lock was released.
pub(super) struct DeferredWork {
    kind: SegmentKind,
    to_trim: Vec<(Arc<File>, u64)>,
    to_remove: Vec<u64>,
}

impl SegmentWriter {
    pub(super) fn new(kind: SegmentKind) -> SegmentWriter {
        SegmentWriter { kind, files: None, syncer: None }
    }

    /// Creates a writer whose segments are synced by `syncer`, if there is one: it syncs the folder
    /// here, and the caller requests the sync of what was written.
    pub(super) fn with_syncer(
        kind: SegmentKind,
        syncer: Option<Arc<FsyncThread>>,
    ) -> SegmentWriter {
        SegmentWriter { kind, files: None, syncer }
    }

    /// Appends bytes to the current segment. Returns the number of the segment and its file.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<(u64, Arc<File>)> {
        let files = match &mut self.files {
            Some(files) => {
                if files.is_full(bytes.len()) && !files.rotate() {
                    let (next, syncer) = (files.number() + 1, self.syncer.as_deref());
                    // Without a next segment, the current one grows.
                    if let Ok(next) = segment_files::create_segment(&dir(), self.kind, next, syncer)
                    {
                        files.continue_in(next);
                    }
                }
                files
            }
            none => none.insert(SegmentFiles::new(segment_files::create_segment(
                &dir(),
                self.kind,
                1,
                self.syncer.as_deref(),
            )?)),
        };
        let file = files.write(bytes)?.clone();
        Ok((files.number(), file))
    }

    /// Forgets the current files. The next line begins new ones, in the folder that is given with
    /// it.
    pub(super) fn reset(&mut self) {
        self.files = None;
    }

    /// Checks that the lock file of the folder and the current segment are still there, and were
    /// not replaced.
    ///
    /// # Errors
    /// Says which file is missing or was replaced.
    pub(super) fn check_intact(&self, dir: &SegmentDir) -> io::Result<()> {
        dir.check_intact(self.kind, self.files.as_ref())
    }

    /// Goes on in a new segment of `dir`, since the current one was deleted or replaced. The other
    /// segments stay.
    ///
    /// # Errors
    /// The segment cannot be created; then the next line goes where the last one went.
    pub(super) fn replace_current(&mut self, dir: &SegmentDir) -> io::Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let number = files.number() + 1;
        // It is the spare if it exists, and nothing was written into that.
        match fs::remove_file(dir.segment_path(self.kind, number)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let syncer = self.syncer.as_deref();
        files.continue_in(segment_files::create_segment(dir, self.kind, number, syncer)?);
        Ok(())
    }

    /// Returns the numbers of the segments into which nothing was written.
    pub(super) fn unused(&self) -> Range<u64> {
        self.files.as_ref().map_or(1..2, SegmentFiles::unused)
    }

    /// Returns the number of the spare file to create; `None` if there is a spare already, or
    /// nothing was written.
    pub(super) fn missing_spare_number(&self) -> Option<u64> {
        self.files.as_ref().and_then(SegmentFiles::missing_spare_number)
    }

    /// Ends a segment that is old enough, and plans the truncation of ended segments and the
    /// removal of expired ones. `needed` are the numbers of segments that must stay.
    pub(super) fn plan_cleanup(
        &mut self,
        spare: Option<Arc<File>>,
        needed: &HashSet<u64>,
        is_retention_over: impl Fn(Instant) -> bool,
    ) -> DeferredWork {
        let mut rest = DeferredWork { kind: self.kind, to_trim: Vec::new(), to_remove: Vec::new() };
        let Some(files) = &mut self.files else { return rest };
        if let Some(spare) = spare {
            files.set_spare(spare);
        }
        if files.is_old() {
            files.rotate();
        }
        rest.to_trim = files.take_untrimmed();
        rest.to_remove = files.remove_expired(needed, is_retention_over);
        rest
    }

    /// Starts the retention of all ended segments anew.
    pub(super) fn restart_retention(&mut self) {
        if let Some(files) = &mut self.files {
            files.restart_retention();
        }
    }

    /// Truncates the current segment to the bytes that were written.
    pub(super) fn trim(&self) {
        if let Some(files) = &self.files {
            files.trim_current();
        }
    }

    /// Ends the current segment and continues in the spare; `false` if there is none.
    pub(super) fn rotate(&mut self) -> bool {
        self.files.as_mut().is_some_and(SegmentFiles::rotate)
    }

    /// Continues in a file that is none of the folder's.
    #[cfg(test)]
    pub(super) fn continue_in(&mut self, file: File) {
        let file = Arc::new(file);
        match &mut self.files {
            Some(files) => files.continue_in(file),
            none => *none = Some(SegmentFiles::new(file)),
        }
    }
}

impl DeferredWork {
    /// Truncates the ended segments and removes the expired ones.
    pub(super) fn finish(self, dir: &SegmentDir) {
        self.to_trim.iter().for_each(|(file, bytes)| segment_files::truncate_to(file, *bytes));
        for number in self.to_remove {
            // A file that cannot be removed is found by the process that adopts the folder.
            let _ = std::fs::remove_file(dir.segment_path(self.kind, number));
        }
    }
}
