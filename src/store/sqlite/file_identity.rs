//! Checks whether the files at the paths of the store are still those that this process has open.
//!
//! A file that was deleted or replaced goes on accepting writes, and no process finds them again.
//! It would not be safe either to continue when the file is moved back: another process may have
//! written it meanwhile under another name, with a write-ahead log of its own. So a store that was
//! lost once stays lost for this process; settlements and voids wait in the outbox for the next
//! process.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The suffixes of the files that SQLite keeps beside its file: the write-ahead log, and the index
/// of the log.
const SIDE_FILE_SUFFIXES: [&str; 2] = ["-wal", "-shm"];

/// The paths and identities of the file of a store and of the files beside it, when they were
/// opened.
pub(super) struct OpenFiles {
    /// The file of the store comes first.
    files: Vec<(PathBuf, FileId)>,
}

/// The identity of a file, independent of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the file that is at a path now.
    pub(super) fn of(path: &Path) -> io::Result<FileId> {
        let about = fs::metadata(path)?;
        Ok(FileId { device: about.dev(), inode: about.ino() })
    }

    /// Returns the identity as text, which tells the file from other files at its path.
    pub(super) fn name(self) -> String {
        let FileId { device, inode } = self;
        format!("file-{device:x}-{inode:x}")
    }
}

impl OpenFiles {
    /// Records the files of a store that was just opened. `opened` is the file that was at the path
    /// before.
    ///
    /// # Errors
    /// A file is missing, or the file of the store was replaced since.
    pub(super) fn capture(path: &Path, opened: FileId) -> io::Result<OpenFiles> {
        let mut files = vec![(path.to_owned(), FileId::of(path)?)];
        if files[0].1 != opened {
            return Err(io::Error::other("it was replaced while it was opened"));
        }
        for ending in SIDE_FILE_SUFFIXES {
            let beside = side_file(path, ending);
            let id = FileId::of(&beside)?;
            files.push((beside, id));
        }
        Ok(OpenFiles { files })
    }

    /// Returns the identity of the store's file as text, which tells it from other files at its
    /// path.
    pub(super) fn identity(&self) -> String {
        self.files[0].1.name()
    }

    /// Returns a message if one of the files was deleted or replaced; `None` if all are the same.
    pub(super) fn find_lost(&self) -> Option<String> {
        self.files.iter().find_map(|(path, id)| {
            let what = match FileId::of(path) {
                Ok(now) if now == *id => return None,
                Ok(_) => "replaced",
                Err(why)
                    if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                {
                    "deleted"
                }
                // After any other error, the file may still be there.
                Err(_) => return None,
            };
            let path = path.display();
            Some(format!("{path} was {what} while it was open: restart on a store that is whole"))
        })
    }
}

/// Returns the path of a file that SQLite keeps beside the store's file.
pub(in crate::store) fn side_file(path: &Path, ending: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(ending);
    beside.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_missed_and_none_that_is_the_same() {
        for lost in ["", "-wal", "-shm"] {
            for is_replaced in [false, true] {
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().join("t.db");
                for ending in ["", "-wal", "-shm"] {
                    fs::write(side_file(&path, ending), "x").expect("a file");
                }
                let opened = FileId::of(&path).expect("a file");
                let files = OpenFiles::capture(&path, opened).expect("files");
                assert_eq!(files.find_lost(), None);
                let (lost, other) = (side_file(&path, lost), folder.path().join("other"));
                fs::write(&lost, "more").expect("a write");
                assert_eq!(files.find_lost(), None, "it is still the same file");
                if is_replaced {
                    fs::write(&other, "x").expect("a file");
                    fs::rename(&other, &lost).expect("another file");
                } else {
                    fs::rename(&lost, &other).expect("no file");
                }
                let message = files.find_lost().expect("it is noticed");
                let what = if is_replaced { "replaced" } else { "deleted" };
                assert!(
                    message.contains(what) && message.starts_with(&*lost.to_string_lossy()),
                    "{message}"
                );
            }
        }
    }
}
