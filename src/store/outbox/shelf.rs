//! A process' folder in the outbox: files of lines, and a lock that it has for as long as it lives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files::SegmentFiles;
use crate::permissions;

/// A shelf that was begun and has no owner after so long never gets one.
const BEGUN_MAX: Duration = Duration::from_secs(60);
/// How the name of a shelf begins that is not ready.
const BEGUN: &str = ".begun-";
const LOCK: &str = "lock";
const STORE: &str = "store";

/// What the lines of a file are about. Versions that know only the ends of holds pass the other
/// files over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// How holds end.
    Ends,
    /// Calls that run under a name.
    Calls,
    /// Video jobs.
    Jobs,
}

impl SegmentKind {
    fn ending(self) -> &'static str {
        match self {
            SegmentKind::Ends => "log",
            SegmentKind::Calls => "calls",
            SegmentKind::Jobs => "jobs",
        }
    }
}

/// A folder that is ours.
pub(super) struct SegmentDir {
    pub(super) folder: PathBuf,
    lock: File,
}

impl SegmentDir {
    /// Makes one. It gets its name when it is locked, so nobody takes it for another's before.
    pub(super) fn make(root: &Path) -> io::Result<SegmentDir> {
        let name = uuid::Uuid::now_v7().to_string();
        let begun = root.join(format!("{BEGUN}{name}"));
        permissions::make_folder(root)?;
        permissions::make_folder(&begun)?;
        let lock = locked(&begun)?.ok_or_else(|| io::Error::other("somebody else has its lock"))?;
        let folder = root.join(name);
        fs::rename(&begun, &folder)?;
        for kept in [&folder, root] {
            File::open(kept)?.sync_all()?;
        }
        Ok(SegmentDir { folder, lock })
    }

    /// Shelves of processes that have ended; they are ours now.
    pub(super) fn orphans(root: &Path) -> io::Result<Vec<SegmentDir>> {
        let mut orphans = Vec::new();
        for found in fs::read_dir(root)? {
            let found = found?;
            let folder = found.path();
            let is_begun = found.file_name().to_string_lossy().starts_with(BEGUN);
            if !found.file_type()?.is_dir() || (is_begun && !is_old(&folder)) {
                continue;
            }
            match locked(&folder) {
                Ok(Some(lock)) if is_begun => {
                    drop(lock);
                    let _ = fs::remove_dir_all(&folder);
                }
                Ok(Some(lock)) => orphans.push(SegmentDir { folder, lock }),
                Ok(None) => {}
                // Whoever had it before has removed it just now.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(why),
            }
        }
        Ok(orphans)
    }

    /// Whether the folder has its lock, and the file that is written into it, where they belong.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn is_whole(&self, files: &SegmentFiles) -> io::Result<()> {
        let written = self.file(SegmentKind::Ends, files.number());
        for (path, open) in [(self.folder.join(LOCK), &self.lock), (written, files.file())] {
            let (there, open) = (fs::metadata(&path)?, open.metadata()?);
            if (there.dev(), there.ino()) != (open.dev(), open.ino()) {
                return Err(io::Error::other(format!("{} was replaced", path.display())));
            }
        }
        Ok(())
    }

    /// Its files of such lines, oldest first.
    pub(super) fn files(&self, lines: SegmentKind) -> io::Result<Vec<PathBuf>> {
        let found = match fs::read_dir(&self.folder) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found?,
        };
        let mut files = Vec::new();
        for file in found {
            let path = file?.path();
            if path.extension().is_some_and(|ending| ending == lines.ending()) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Where its file of that number is.
    pub(super) fn file(&self, lines: SegmentKind, number: u64) -> PathBuf {
        self.folder.join(format!("{number:08}.{}", lines.ending()))
    }

    /// Where it is noted what of it the store has; the last of its files, by name.
    pub(super) fn notes(&self) -> PathBuf {
        self.folder.join("noted.log")
    }

    /// Which store its entries are for, if that was noted.
    ///
    /// # Errors
    /// It cannot be read, so nobody knows.
    pub(super) fn store_id(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(self.folder.join(STORE)) {
            Ok(id) => Ok(Some(id)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Notes which store its entries are for, for good.
    pub(super) fn note_store(&self, id: &str) -> io::Result<()> {
        fs::write(self.folder.join(STORE), id)?;
        File::open(self.folder.join(STORE))?.sync_all()?;
        File::open(&self.folder)?.sync_all()
    }

    /// Takes back what was noted, for good.
    pub(super) fn forget_notes(&self) -> io::Result<()> {
        match fs::remove_file(self.notes()) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        File::open(&self.folder)?.sync_all()
    }

    /// Removes it; its files are gone.
    pub(super) fn remove(self) {
        // Whatever is still in there keeps the folder, and somebody finds it again.
        let _ = fs::remove_file(self.folder.join(STORE));
        let _ = fs::remove_file(self.folder.join(LOCK));
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The lock of a folder; `None` if somebody has it.
fn locked(folder: &Path) -> io::Result<Option<File>> {
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(why)) => Err(why),
    }
}

fn is_old(folder: &Path) -> bool {
    let made = fs::metadata(folder).and_then(|about| about.modified());
    made.ok().and_then(|made| made.elapsed().ok()).is_some_and(|age| age > BEGUN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shelf_is_adopted_once_and_only_when_its_owner_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        let own = SegmentDir::make(root.path()).expect("a shelf");
        fs::write(own.file(SegmentKind::Ends, 1), "x").expect("a file");
        assert_eq!(SegmentDir::orphans(root.path()).expect("a look").len(), 0);
        let folder = own.folder.clone();
        drop(own);
        let adopted = SegmentDir::orphans(root.path()).expect("a look");
        assert_eq!((adopted.len(), &adopted[0].folder), (1, &folder));
        assert_eq!(
            adopted[0].files(SegmentKind::Ends).expect("files"),
            [folder.join("00000001.log")]
        );
        assert_eq!(
            SegmentDir::orphans(root.path()).expect("a look").len(),
            0,
            "it has an owner again"
        );
    }

    #[test]
    fn one_that_is_being_made_is_nobodys() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join(format!("{BEGUN}x"))).expect("a folder");
        assert_eq!(SegmentDir::orphans(root.path()).expect("a look").len(), 0);
        assert!(root.path().join(format!("{BEGUN}x")).exists());
    }

    #[test]
    fn one_that_is_empty_goes_away() {
        let root = tempfile::tempdir().expect("a folder");
        let own = SegmentDir::make(root.path()).expect("a shelf");
        own.remove();
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 0);
    }
}
