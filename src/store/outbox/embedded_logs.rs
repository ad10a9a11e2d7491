//! The logs of an embedded store, which lie beside its file: their folders, and how they are read
//! without their locks, while the processes that own them write.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::segment_dir::{self, ACK_NOTE_FILE, STORE_ID_FILE, SegmentKind};
use super::segment_files;

/// The end of the name of a folder with logs of ends. A version of the program that does not know
/// allotments finds nothing of its own there.
pub(super) const ENDS_SUFFIX: &str = "-allotments";
/// The longest name of a folder or file of a log that is copied.
const NAME_BYTES_MAX: usize = 64;

/// A log of an embedded store. It has a folder for each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) enum EmbeddedLog {
    /// Hold ends, and the calls that run under an idempotency key.
    Settlements,
    /// Ends of calls whose holds were made out of an allotment.
    Ends,
}

/// A file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct LogFile {
    /// The name of the folder of its process.
    pub(in crate::store) folder: String,
    pub(in crate::store) name: String,
    /// What was written into it, without preallocated zeros.
    pub(in crate::store) content: Vec<u8>,
}

impl EmbeddedLog {
    pub(in crate::store) const ALL: [EmbeddedLog; 2] =
        [EmbeddedLog::Settlements, EmbeddedLog::Ends];

    /// The name of the file that has the id of the store.
    pub(in crate::store) const STORE_ID_FILE: &str = STORE_ID_FILE;

    /// Returns the folder of the log of the store in the file `database`.
    pub(in crate::store) fn root(self, database: &Path) -> PathBuf {
        let mut root = database.as_os_str().to_owned();
        root.push(match self {
            EmbeddedLog::Settlements => "-outbox",
            EmbeddedLog::Ends => ENDS_SUFFIX,
        });
        root.into()
    }

    /// Returns the name of the log in a backup.
    pub(in crate::store) fn name(self) -> &'static str {
        match self {
            EmbeddedLog::Settlements => "outbox",
            EmbeddedLog::Ends => "allotments",
        }
    }

    fn kinds(self) -> &'static [SegmentKind] {
        match self {
            EmbeddedLog::Settlements => {
                &[SegmentKind::HoldEnds, SegmentKind::Calls, SegmentKind::Jobs]
            }
            EmbeddedLog::Ends => &[SegmentKind::AllotmentEnds],
        }
    }

    /// Whether the folder of a process may have this name. Folders that are being made have others.
    pub(in crate::store) fn is_folder_name(name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX && is_plain(name)
    }

    /// Whether this is the name of a file that a copy of the log has. Locks are not copied, nor
    /// the note of what a database has acknowledged.
    pub(in crate::store) fn is_file_name(self, name: &str) -> bool {
        if name == STORE_ID_FILE {
            return true;
        }
        let Some((stem, extension)) = name.split_once('.') else { return false };
        let is_known = self.kinds().iter().any(|kind| kind.extension() == extension);
        is_known && name.len() <= NAME_BYTES_MAX && is_plain(stem) && name != ACK_NOTE_FILE
    }

    /// Returns the folder of a process that lives; `None` if no process that serves uses the store.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub(in crate::store) fn find_live(self, database: &Path) -> io::Result<Option<PathBuf>> {
        or_default(segment_dir::find_live_dir(&self.root(database), None))
    }

    /// Reads the files of all processes of the store with the id `store_id`, whether the processes
    /// live or not, and hands each file to `take`. A file or folder that goes away meanwhile is
    /// passed over: the store has all that was in it.
    ///
    /// The newest segment of a folder is read first. So if a process writes meanwhile, each line
    /// before a copied one is copied, too.
    ///
    /// # Errors
    /// A file or folder cannot be read, or the error of `take`.
    pub(in crate::store) fn read_files(
        self,
        database: &Path,
        store_id: &str,
        mut take: impl FnMut(LogFile) -> io::Result<()>,
    ) -> io::Result<()> {
        let root = self.root(database);
        for folder in list_names(&root)?.into_iter().filter(|name| Self::is_folder_name(name)) {
            let path = root.join(&folder);
            if !path.is_dir() {
                continue;
            }
            let of_store = segment_dir::read_store_id(&path)?;
            // Its entries are for another store, which was at this path before.
            if of_store.as_deref().is_some_and(|id| id != store_id) {
                continue;
            }
            for name in list_names(&path)?.into_iter().rev() {
                if name == STORE_ID_FILE || !self.is_file_name(&name) {
                    continue;
                }
                let content = or_default(segment_files::read_written(&path.join(&name)))?;
                if !content.is_empty() {
                    take(LogFile { folder: folder.clone(), name, content })?;
                }
            }
            let name = STORE_ID_FILE.to_owned();
            take(LogFile { folder, name, content: store_id.as_bytes().to_owned() })?;
        }
        Ok(())
    }

    /// Whether the log says that the database with this identity has acknowledged something.
    ///
    /// # Errors
    /// A file or folder cannot be read.
    pub(in crate::store) fn names_database(
        self,
        database: &Path,
        identity: &str,
    ) -> io::Result<bool> {
        let (root, quoted) = (self.root(database), format!("\"{identity}\""));
        for folder in list_names(&root)? {
            let path = root.join(folder);
            if !path.is_dir() {
                continue;
            }
            for name in list_names(&path)? {
                let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
                if !self.kinds().iter().any(|kind| kind.extension() == extension) {
                    continue;
                }
                let content = or_default(segment_files::read_written(&path.join(name)))?;
                if memmem::find(&content, quoted.as_bytes()).is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns how many folders of processes there are.
    ///
    /// # Errors
    /// The folder of the log cannot be read.
    pub(in crate::store) fn count_folders(self, database: &Path) -> io::Result<usize> {
        let root = self.root(database);
        Ok(list_names(&root)?.into_iter().filter(|name| root.join(name).is_dir()).count())
    }
}

/// Whether a name has only lower-case letters, digits and hyphens, as those of this program have.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.bytes().all(is_plain)
}

/// Returns the names in a folder in their order; none if the folder does not exist. A name that is
/// no text is none of this program's.
fn list_names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let found = match fs::read_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(names),
        found => found?,
    };
    for file in found {
        names.extend(file?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Returns the default for something that does not exist.
fn or_default<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment_dir::SegmentDir;
    use super::*;

    fn read(log: EmbeddedLog, database: &Path, store_id: &str) -> Vec<(String, String, Vec<u8>)> {
        let mut files = Vec::new();
        let read = log.read_files(database, store_id, |LogFile { folder, name, content }| {
            files.push((folder, name, content));
            Ok(())
        });
        read.expect("files");
        files
    }

    #[test]
    fn the_files_of_a_process_that_lives_are_read_without_locks_and_notes() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("t.db");
        let log = EmbeddedLog::Settlements;
        assert_eq!(read(log, &database, "one"), []);
        assert_eq!(log.find_live(&database).expect("a look"), None);
        let dir = SegmentDir::create(&log.root(&database)).expect("a folder");
        dir.write_store_id("one").expect("an id");
        let write = |name: &str, content: &[u8]| {
            fs::write(dir.path.join(name), content).expect("a file");
        };
        write("00000001.log", b"a\n");
        write("00000002.log", b"b\n\0\0\0");
        write("00000003.log", &[0; 100]);
        write("00000001.calls", b"c\n");
        write("noted.log", b"d\n");
        write("unknown", b"e\n");
        let own = dir.name().expect("a name").to_owned();
        let files = [("00000002.log", "b\n"), ("00000001.log", "a\n"), ("00000001.calls", "c\n")];
        let expected = files.into_iter().chain([("store", "one")]);
        let expected = expected
            .map(|(name, content)| (own.clone(), name.to_owned(), content.as_bytes().to_owned()));
        assert_eq!(read(log, &database, "one"), expected.collect::<Vec<_>>());
        assert_eq!(read(log, &database, "another"), [], "they are another store's");
        assert_eq!(log.find_live(&database).expect("a look"), Some(dir.path.clone()));
        assert_eq!(log.count_folders(&database).expect("a look"), 1);
        drop(dir);
        assert_eq!(log.find_live(&database).expect("a look"), None);
        assert_eq!(read(log, &database, "one").len(), 4, "its owner has ended");
    }

    #[test]
    fn a_database_that_has_acknowledged_something_is_found_by_its_whole_identity() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("t.db");
        let log = EmbeddedLog::Settlements;
        let dir = SegmentDir::create(&log.root(&database)).expect("a folder");
        let names = |identity| log.names_database(&database, identity).expect("a look");
        assert!(!names("file-1-2"));
        fs::write(dir.ack_note_path(), br#"{"run":"file-1-23"}"#).expect("a note");
        assert_eq!((names("file-1-2"), names("file-1-23")), (false, true));
    }

    #[test]
    fn only_names_of_logs_are_names_of_files() {
        for name in ["00000001.log", "00000001.calls", "00000001.jobs", "store", "7-a1.log"] {
            assert!(EmbeddedLog::Settlements.is_file_name(name), "{name}");
        }
        assert!(EmbeddedLog::Ends.is_file_name("00000001.ends"));
        let long = format!("{}.log", "1".repeat(61));
        for name in
            ["", "lock", "noted.log", ".log", "1.ends", "../1.log", "a/1.log", "1.log.x", &long]
        {
            assert!(!EmbeddedLog::Settlements.is_file_name(name), "{name}");
        }
        for (name, is_one) in [("a-1", true), ("", false), ("..", false), (".begun-a", false)] {
            assert_eq!(EmbeddedLog::is_folder_name(name), is_one, "{name}");
        }
    }
}
