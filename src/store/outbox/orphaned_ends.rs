//! The logs of ends that ended processes left. The process that adopts such a folder tells the
//! store the ends in it, and then removes it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::end_record::{self, AllotmentEnds};
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files;
use crate::ledger::AccountName;
use crate::ledger::prepaid::records::AllotmentId;

/// Ends by account and allotment, and the number of the torn lines beside them.
pub(in crate::store) type EndsByAllotment =
    (BTreeMap<(AccountName, AllotmentId), AllotmentEnds>, usize);

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

    /// Reads all ends, and counts the lines that are torn. A torn last line is normal: its call's
    /// caller has no answer. The store may have some of the ends already.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(in crate::store) fn read(&self) -> io::Result<EndsByAllotment> {
        let (mut allotments, mut torn) = (BTreeMap::<_, AllotmentEnds>::new(), 0);
        for file in self.dir.list_segments(SegmentKind::AllotmentEnds)? {
            let (ends, torn_here) = end_record::parse_ends(&segment_files::read_written(&file)?);
            torn += torn_here;
            for end in ends {
                let key = (end.account.clone(), end.allotment.clone());
                allotments.entry(key).or_default().add(end);
            }
        }
        Ok((allotments, torn))
    }

    /// Removes the segments and the folder, once the store has all ends durably. What cannot be
    /// removed is adopted again later.
    pub(in crate::store) fn remove(self) {
        let is_gone = |file: &PathBuf| fs::remove_file(file).is_ok();
        let files = self.dir.list_segments(SegmentKind::AllotmentEnds);
        // The folder of a segment that stays keeps the id of its store.
        if files.is_ok_and(|files| files.iter().filter(|file| !is_gone(file)).count() == 0) {
            self.dir.remove();
        }
    }
}
