//! The folder of a process in the outbox: its segments, and a lock that the process holds as long
//! as it lives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::segment_files::SegmentFiles;
use crate::permissions;

/// A folder whose creation was begun and is older than this will never get an owner, and is
/// deleted.
const UNFINISHED_AGE_MAX: Duration = Duration::from_secs(60);
/// The prefix of the name of a folder whose creation has not finished.
const UNFINISHED_PREFIX: &str = ".begun-";
const LOCK_FILE: &str = "lock";
/// The file with the id of the store that the entries of a folder are for.
pub(super) const STORE_ID_FILE: &str = "store";
/// The name of the file of [`SegmentDir::ack_note_path`].
pub(super) const ACK_NOTE_FILE: &str = "noted.log";

/// What the records in a segment are about. Versions of this program that only know hold ends
/// ignore the files of the other kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// Settlements and voids.
    HoldEnds,
    /// Calls that run under an idempotency key.
    Calls,
    /// Video jobs.
    Jobs,
    /// Ends of calls whose holds were made out of an allotment. They are in folders of their own.
    AllotmentEnds,
}

impl SegmentKind {
    pub(super) fn extension(self) -> &'static str {
        match self {
            SegmentKind::HoldEnds => "log",
            SegmentKind::Calls => "calls",
            SegmentKind::Jobs => "jobs",
            SegmentKind::AllotmentEnds => "ends",
        }
    }
}

/// A folder whose lock this process holds.
pub(super) struct SegmentDir {
    pub(super) path: PathBuf,
    lock: File,
}

impl SegmentDir {
    /// Creates and locks a folder with a new name.
    pub(super) fn create(root: &Path) -> io::Result<SegmentDir> {
        SegmentDir::create_named(root, &uuid::Uuid::now_v7().to_string())
    }

    /// Creates and locks a folder. It gets its final name last, so that no other process adopts it
    /// before it is locked.
    fn create_named(root: &Path, name: &str) -> io::Result<SegmentDir> {
        let begun = root.join(format!("{UNFINISHED_PREFIX}{name}"));
        permissions::make_folder(root)?;
        permissions::make_folder(&begun)?;
        let lock =
            try_lock_dir(&begun)?.ok_or_else(|| io::Error::other("somebody else has its lock"))?;
        let folder = root.join(name);
        fs::rename(&begun, &folder)?;
        for kept in [&folder, root] {
            File::open(kept)?.sync_all()?;
        }
        Ok(SegmentDir { path: folder, lock })
    }

    /// Locks and returns the folders of processes that have ended.
    pub(super) fn lock_orphans(root: &Path) -> io::Result<Vec<SegmentDir>> {
        let mut orphans = Vec::new();
        for found in fs::read_dir(root)? {
            let found = found?;
            let folder = found.path();
            let is_begun = found.file_name().to_string_lossy().starts_with(UNFINISHED_PREFIX);
            if !found.file_type()?.is_dir() || (is_begun && !is_old(&folder)) {
                continue;
            }
            match try_lock_dir(&folder) {
                Ok(Some(lock)) if is_begun => {
                    drop(lock);
                    let _ = fs::remove_dir_all(&folder);
                }
                Ok(Some(lock)) => orphans.push(SegmentDir { path: folder, lock }),
                Ok(None) => {}
                // Its last owner has removed the folder meanwhile.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Err(why) => return Err(why),
            }
        }
        Ok(orphans)
    }

    /// Whether another process lives that has a folder here.
    pub(super) fn has_live_peer(&self) -> io::Result<bool> {
        let Some(root) = self.path.parent() else { return Ok(false) };
        Ok(find_live_dir(root, Some(&self.path))?.is_some())
    }

    /// Returns the name of the folder.
    pub(super) fn name(&self) -> io::Result<&str> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.ok_or_else(|| io::Error::other(format!("{} has no name", self.path.display())))
    }

    /// Makes the folder anew under the same name, if it was deleted; or locks it again, if only its
    /// lock file was deleted or replaced. The segments that are still in it stay.
    ///
    /// # Errors
    /// The folder cannot be made or locked, or another process has its lock.
    pub(super) fn restore(&self) -> io::Result<SegmentDir> {
        if !self.path.try_exists()? {
            let root = self.path.parent().ok_or_else(|| io::Error::other("it has no root"))?;
            return SegmentDir::create_named(root, self.name()?);
        }
        let taken = || io::Error::other(format!("{} has another owner", self.path.display()));
        let lock = try_lock_dir(&self.path)?.ok_or_else(taken)?;
        Ok(SegmentDir { path: self.path.clone(), lock })
    }

    /// Checks that the lock file and the current segment of a kind are still at their paths, and
    /// were not replaced. Without `files` there is no segment yet.
    ///
    /// # Errors
    /// Says which file is missing or was replaced.
    pub(super) fn check_intact(
        &self,
        kind: SegmentKind,
        files: Option<&SegmentFiles>,
    ) -> io::Result<()> {
        self.check_lock()?;
        let current = files.map(|files| (self.segment_path(kind, files.number()), files.file()));
        current.map_or(Ok(()), |(path, open)| check_file(&path, open))
    }

    /// Checks that the lock file is still at its path, and was not replaced.
    ///
    /// # Errors
    /// As [`SegmentDir::check_intact`].
    pub(super) fn check_lock(&self) -> io::Result<()> {
        check_file(&self.path.join(LOCK_FILE), &self.lock)
    }

    /// Returns the paths of the segments of a kind, oldest first. The note of
    /// [`SegmentDir::ack_note_path`] counts as the last segment of hold ends. A missing folder has
    /// no segments.
    pub(super) fn list_segments(&self, kind: SegmentKind) -> io::Result<Vec<PathBuf>> {
        let found = match fs::read_dir(&self.path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found?,
        };
        let mut files = Vec::new();
        for file in found {
            let path = file?.path();
            if path.extension().is_some_and(|ending| ending == kind.extension()) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Returns the path of the segment with this number.
    pub(super) fn segment_path(&self, kind: SegmentKind, number: u64) -> PathBuf {
        self.path.join(format!("{number:08}.{}", kind.extension()))
    }

    /// Returns the path of the note which says what the store has acknowledged. Its name sorts
    /// after all segments of hold ends, so a replay, which begins with the last file, reads it
    /// first.
    pub(super) fn ack_note_path(&self) -> PathBuf {
        self.path.join(ACK_NOTE_FILE)
    }

    /// Returns the id of the store that the entries are for; `None` if no id was written.
    ///
    /// # Errors
    /// The id cannot be read, so it is unknown which store the entries are for.
    pub(super) fn store_id(&self) -> io::Result<Option<String>> {
        read_store_id(&self.path)
    }

    /// Writes the id of the store that the entries are for, and syncs it to disk.
    pub(super) fn write_store_id(&self, id: &str) -> io::Result<()> {
        fs::write(self.path.join(STORE_ID_FILE), id)?;
        File::open(self.path.join(STORE_ID_FILE))?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    /// Removes the note of [`SegmentDir::ack_note_path`], and syncs the folder to disk.
    pub(super) fn remove_ack_note(&self) -> io::Result<()> {
        match fs::remove_file(self.ack_note_path()) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        File::open(&self.path)?.sync_all()
    }

    /// Removes the folder, after its segments were removed.
    pub(super) fn remove(self) {
        // If there are other files in the folder, it stays and is adopted again later.
        let _ = fs::remove_file(self.path.join(STORE_ID_FILE));
        let _ = fs::remove_file(self.path.join(LOCK_FILE));
        let _ = fs::remove_dir(&self.path);
    }
}

/// Returns the folder of a process that lives; `None` if there is none. The folder `own` is passed
/// over.
pub(super) fn find_live_dir(root: &Path, own: Option<&Path>) -> io::Result<Option<PathBuf>> {
    for found in fs::read_dir(root)? {
        let found = found?;
        let dir = found.path();
        if !found.file_type()?.is_dir() || own.is_some_and(|own| own == dir) {
            continue;
        }
        match File::open(dir.join(LOCK_FILE)).map(|lock| lock.try_lock_shared()) {
            Ok(Err(TryLockError::WouldBlock)) => return Ok(Some(dir)),
            Ok(Ok(())) => {}
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Ok(Err(TryLockError::Error(why))) | Err(why) => return Err(why),
        }
    }
    Ok(None)
}

/// Reads the id of the store that the entries of a folder are for; `None` if no id was written.
pub(super) fn read_store_id(dir: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(dir.join(STORE_ID_FILE)) {
        Ok(id) => Ok(Some(id)),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

/// Locks a folder; `None` if another process has the lock.
fn try_lock_dir(dir: &Path) -> io::Result<Option<File>> {
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).open(dir.join(LOCK_FILE))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(why)) => Err(why),
    }
}

/// Checks that an open file is the one at `path`.
fn check_file(path: &Path, open: &File) -> io::Result<()> {
    let missing = |why: io::Error| io::Error::new(why.kind(), format!("{}: {why}", path.display()));
    let (there, open) = (fs::metadata(path).map_err(missing)?, open.metadata()?);
    if (there.dev(), there.ino()) == (open.dev(), open.ino()) {
        return Ok(());
    }
    Err(io::Error::other(format!("{} was replaced", path.display())))
}

fn is_old(folder: &Path) -> bool {
    let made = fs::metadata(folder).and_then(|about| about.modified());
    made.ok().and_then(|made| made.elapsed().ok()).is_some_and(|age| age > UNFINISHED_AGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_adopted_once_and_only_when_its_owner_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        let own = SegmentDir::create(root.path()).expect("a folder");
        fs::write(own.segment_path(SegmentKind::HoldEnds, 1), "x").expect("a file");
        assert_eq!(SegmentDir::lock_orphans(root.path()).expect("a look").len(), 0);
        let folder = own.path.clone();
        drop(own);
        let adopted = SegmentDir::lock_orphans(root.path()).expect("a look");
        assert_eq!((adopted.len(), &adopted[0].path), (1, &folder));
        assert_eq!(
            adopted[0].list_segments(SegmentKind::HoldEnds).expect("files"),
            [folder.join("00000001.log")]
        );
        assert_eq!(
            SegmentDir::lock_orphans(root.path()).expect("a look").len(),
            0,
            "it has an owner again"
        );
    }

    #[test]
    fn one_that_is_being_made_is_nobodys() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir(root.path().join(format!("{UNFINISHED_PREFIX}x"))).expect("a folder");
        assert_eq!(SegmentDir::lock_orphans(root.path()).expect("a look").len(), 0);
        assert!(root.path().join(format!("{UNFINISHED_PREFIX}x")).exists());
    }

    #[test]
    fn one_that_is_empty_goes_away() {
        let root = tempfile::tempdir().expect("a folder");
        let own = SegmentDir::create(root.path()).expect("a folder");
        own.remove();
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 0);
    }
}
