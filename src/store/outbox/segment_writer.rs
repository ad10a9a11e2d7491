//! Files of lines that are made when the first of them is written.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files::{self, SegmentFiles};

/// See the module.
pub(super) struct SegmentWriter {
    kind: SegmentKind,
    files: Option<SegmentFiles>,
}

/// What is to be done beside the lock.
pub(super) struct DeferredWork {
    kind: SegmentKind,
    to_trim: Vec<(Arc<File>, u64)>,
    to_remove: Vec<u64>,
}

impl SegmentWriter {
    pub(super) fn new(kind: SegmentKind) -> SegmentWriter {
        SegmentWriter { kind, files: None }
    }

    /// Writes to the end; tells the number of the file, and which it is.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<(u64, Arc<File>)> {
        let files = match &mut self.files {
            Some(files) => {
                if files.is_full(bytes.len()) && !files.rotate() {
                    let next = files.number() + 1;
                    files.set_spare(segment_files::create_segment(&dir(), self.kind, next, None)?);
                    files.rotate();
                }
                files
            }
            none => none.insert(SegmentFiles::new(segment_files::create_segment(
                &dir(),
                self.kind,
                1,
                None,
            )?)),
        };
        let file = files.write(bytes)?.clone();
        Ok((files.number(), file))
    }

    /// Goes on in new files, wherever the next line is written.
    pub(super) fn reset(&mut self) {
        self.files = None;
    }

    /// The number of the spare file to create; `None` if there is one already.
    pub(super) fn missing_spare_number(&self) -> Option<u64> {
        self.files.as_ref().and_then(SegmentFiles::missing_spare_number)
    }

    /// Ends a file that is old, and finds those that nobody needs.
    pub(super) fn plan_cleanup(
        &mut self,
        spare: Option<Arc<File>>,
        needed: &HashSet<u64>,
        is_over: impl Fn(Instant) -> bool,
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
        rest.to_remove = files.remove_expired(needed, is_over);
        rest
    }

    /// What they hold may be needed for as long as if it were new.
    pub(super) fn restart_retention(&mut self) {
        if let Some(files) = &mut self.files {
            files.restart_retention();
        }
    }

    /// Cuts the one that is written to what was written.
    pub(super) fn trim(&self) {
        if let Some(files) = &self.files {
            files.trim_current();
        }
    }

    #[cfg(test)]
    pub(super) fn rotate(&mut self) -> bool {
        self.files.as_mut().is_some_and(SegmentFiles::rotate)
    }
}

impl DeferredWork {
    /// Cuts what ended, and removes what is done with.
    pub(super) fn finish(self, dir: &SegmentDir) {
        self.to_trim.iter().for_each(|(file, bytes)| segment_files::truncate_to(file, *bytes));
        for number in self.to_remove {
            // One that stays is found by the next owner of the folder.
            let _ = std::fs::remove_file(dir.segment_path(self.kind, number));
        }
    }
}
