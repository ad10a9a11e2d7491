//! Files and folders that are only seen when they are complete and on disk.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::permissions;

/// A folder for files that are not complete yet. It is removed when this is dropped.
pub(super) struct StagingFolder {
    path: PathBuf,
}

impl StagingFolder {
    /// Makes the folder anew. What an interrupted process left in it is removed.
    pub(super) fn create(path: PathBuf) -> io::Result<StagingFolder> {
        remove_folder(&path)?;
        permissions::make_folder(&path)?;
        Ok(StagingFolder { path })
    }

    /// Returns the path of a file in it.
    pub(super) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        // Its name says what it is, so an operator can remove what stays.
        let _ = remove_folder(&self.path);
    }
}

/// Returns the folder that a file is in.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the path of a hidden file or folder beside a file, whose name begins with that of the
/// file.
pub(super) fn hidden_beside(file: &Path, ending: &str) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    folder_of(file).join(format!(".{name}.{ending}"))
}

/// Removes a folder with all that is in it, if it exists.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

/// Syncs a folder to disk, so that the names in it outlive a power cut.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Locks a folder against another process that does the same; `None` if one has the lock.
pub(super) fn lock_folder(folder: &Path) -> io::Result<Option<File>> {
    let lock = File::open(folder)?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(why)) => Err(why),
    }
}

/// Gives a file its name, and syncs the folder. A file that has the name already is not replaced.
///
/// # Errors
/// `AlreadyExists` if there is such a file.
pub(super) fn publish(file: &Path, name: &Path) -> io::Result<()> {
    match renameat_with(CWD, file, CWD, name, RenameFlags::NOREPLACE) {
        // Some file systems cannot do both in one step.
        Err(Errno::INVAL | Errno::NOSYS) => {
            if name.symlink_metadata().is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(file, name)?;
        }
        renamed => renamed?,
    }
    sync_folder(folder_of(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_never_replaced_by_one_that_is_published() {
        let folder = tempfile::tempdir().expect("a folder");
        let (new, name) = (folder.path().join("new"), folder.path().join("name"));
        fs::write(&new, "first").expect("a file");
        publish(&new, &name).expect("published");
        fs::write(&new, "second").expect("a file");
        let why = publish(&new, &name).expect_err("it exists");
        assert_eq!(why.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&name).expect("a file"), "first");
        assert!(new.exists());
    }

    #[test]
    fn what_was_left_is_removed_and_nothing_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = hidden_beside(&folder.path().join("t.db"), "restore");
        assert_eq!(path, folder.path().join(".t.db.restore"));
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("old"), "x").expect("a file");
        let staging = StagingFolder::create(path.clone()).expect("a folder");
        assert!(!staging.file("old").exists());
        drop(staging);
        assert!(!path.exists());
    }

    #[test]
    fn the_folder_of_a_bare_name_is_the_present_one() {
        assert_eq!(folder_of(Path::new("t.db")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/t.db")), Path::new("a"));
    }

    #[test]
    fn a_folder_is_locked_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = lock_folder(folder.path()).expect("a look");
        assert!(lock.is_some());
        assert!(lock_folder(folder.path()).expect("a look").is_none());
        drop(lock);
        assert!(lock_folder(folder.path()).expect("a look").is_some());
    }
}
