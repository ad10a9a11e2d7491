//! The logs of ends that ended processes left. The process that adopts such a folder tells the
//! store the ends in it, and then removes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::end_files::EndFiles;
use super::segment_dir::{SegmentDir, SegmentKind};
use crate::failpoints::failpoint;

/// The folder of a process that has ended, with the ends that it left. As long as this value lives,
/// no other process adopts the folder.
pub(in crate::store) struct OrphanedEnds {
    dir: SegmentDir,
    run: String,
}

impl OrphanedEnds {
    /// Locks and returns the folders of ended processes under `root`; none if `root` does not
    /// exist.
    ///
    /// # Errors
    /// A folder cannot be read or locked.
    pub(in crate::store) fn lock_all(root: &Path) -> io::Result<Vec<OrphanedEnds>> {
        let dirs = match SegmentDir::lock_orphans(root) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Vec::new(),
            dirs => dirs?,
        };
        let named =
            dirs.into_iter().map(|dir| Ok(OrphanedEnds { run: dir.name()?.to_owned(), dir }));
        named.collect()
    }

    /// Returns the path of the folder.
    pub(in crate::store) fn path(&self) -> &Path {
        &self.dir.path
    }

    /// Returns the name of the folder, which the ids of the allotments of its process contain.
    pub(in crate::store) fn run(&self) -> &str {
        &self.run
    }

    /// Returns the id of the store that the ends are for; `None` if no id was written.
    ///
    /// # Errors
    /// The id cannot be read, so it is unknown which store the ends are for.
    pub(in crate::store) fn store_id(&self) -> io::Result<Option<String>> {
        self.dir.store_id()
    }

    /// Returns the segments. The store may have some of the ends in them already.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(in crate::store) fn files(&self) -> io::Result<EndFiles> {
        let segments = self.dir.list_segments(SegmentKind::AllotmentEnds)?;
        Ok(EndFiles { segments, in_memory: Vec::new() })
    }

    /// Removes the segments and the folder, once the store has all ends durably. What cannot be
    /// removed is adopted again later.
    pub(in crate::store) fn remove(self) {
        let is_gone = |file: &PathBuf| {
            let removed = fs::remove_file(file);
            failpoint!("dead_segment_removed");
            removed.is_ok()
        };
        let files = self.dir.list_segments(SegmentKind::AllotmentEnds);
        // The folder of a segment that stays keeps the id of its store.
        if files.is_ok_and(|files| files.iter().filter(|file| !is_gone(file)).count() == 0) {
            self.dir.remove();
        }
    }
}
