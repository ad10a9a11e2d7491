//! Files of lines that are made when the first of them is written.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::files::{self, SegmentFiles};
use super::shelf::{SegmentDir, SegmentKind};

/// See the module.
pub(super) struct SegmentWriter {
    lines: SegmentKind,
    files: Option<SegmentFiles>,
}

/// What is to be done beside the lock.
pub(super) struct DeferredWork {
    lines: SegmentKind,
    ended: Vec<(Arc<File>, u64)>,
    done: Vec<u64>,
}

impl SegmentWriter {
    pub(super) fn new(lines: SegmentKind) -> SegmentWriter {
        SegmentWriter { lines, files: None }
    }

    /// Writes to the end; tells the number of the file, and which it is.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        place: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<(u64, Arc<File>)> {
        let files = match &mut self.files {
            Some(files) => {
                if files.is_full(bytes.len()) && !files.turn() {
                    let next = (self.lines, files.number() + 1);
                    files.has_spare(files::begun(&place(), next, None)?);
                    files.turn();
                }
                files
            }
            none => none.insert(SegmentFiles::new(files::begun(&place(), (self.lines, 1), None)?)),
        };
        let file = files.write(bytes)?.clone();
        Ok((files.number(), file))
    }

    /// Goes on in new files, wherever the next line is written.
    pub(super) fn forget(&mut self) {
        self.files = None;
    }

    /// The number of the file that is to be made.
    pub(super) fn wants_spare(&self) -> Option<u64> {
        self.files.as_ref().and_then(SegmentFiles::wants_spare)
    }

    /// Ends a file that is old, and finds those that nobody needs.
    pub(super) fn tidy(
        &mut self,
        spare: Option<Arc<File>>,
        needed: &HashSet<u64>,
        is_over: impl Fn(Instant) -> bool,
    ) -> DeferredWork {
        let mut rest = DeferredWork { lines: self.lines, ended: Vec::new(), done: Vec::new() };
        let Some(files) = &mut self.files else { return rest };
        if let Some(spare) = spare {
            files.has_spare(spare);
        }
        if files.is_old() {
            files.turn();
        }
        rest.ended = files.ended();
        rest.done = files.done(needed, is_over);
        rest
    }

    /// What they hold may be needed for as long as if it were new.
    pub(super) fn are_needed(&mut self) {
        if let Some(files) = &mut self.files {
            files.are_needed();
        }
    }

    /// Cuts the one that is written to what was written.
    pub(super) fn trim(&self) {
        if let Some(files) = &self.files {
            files.trim();
        }
    }

    #[cfg(test)]
    pub(super) fn turn(&mut self) -> bool {
        self.files.as_mut().is_some_and(SegmentFiles::turn)
    }
}

impl DeferredWork {
    /// Cuts what ended, and removes what is done with.
    pub(super) fn finish(self, place: &SegmentDir) {
        self.ended.iter().for_each(|(file, bytes)| files::trim(file, *bytes));
        for number in self.done {
            // One that stays is found by whoever has the shelf next.
            let _ = std::fs::remove_file(place.file(self.lines, number));
        }
    }
}
