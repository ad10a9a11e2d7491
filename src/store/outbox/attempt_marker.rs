//! A file beside the folders of an outbox which says that a process has first attempts in its
//! memory that are not in the store. The process holds a lock on the file as long as it lives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

const EXTENSION: &str = "attempts";
/// The prefix of the name of a file that is not locked yet.
const UNFINISHED_PREFIX: &str = ".begun-";

/// The marker of this process. The file is removed when this is dropped.
#[derive(Debug)]
pub(in crate::store) struct AttemptMarker {
    path: PathBuf,
    _lock: File,
}

/// The markers of the other processes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct OtherMarkers {
    /// Whether a process that lives has a marker.
    pub(in crate::store) is_any_held: bool,
    /// The markers of processes that have ended without removing them.
    pub(in crate::store) left: Vec<PathBuf>,
}

impl AttemptMarker {
    /// Creates the marker of this process, which is locked before others see it.
    pub(in crate::store) fn create(root: &Path) -> io::Result<AttemptMarker> {
        let name = uuid::Uuid::now_v7().to_string();
        let begun = root.join(format!("{UNFINISHED_PREFIX}{name}.{EXTENSION}"));
        let lock = OpenOptions::new().write(true).create_new(true).open(&begun)?;
        lock.lock()?;
        let path = root.join(name).with_extension(EXTENSION);
        fs::rename(&begun, &path)?;
        Ok(AttemptMarker { path, _lock: lock })
    }

    /// Looks for the markers of other processes. `own` is that of this process.
    pub(in crate::store) fn find_others(
        root: &Path,
        own: Option<&AttemptMarker>,
    ) -> io::Result<OtherMarkers> {
        let mut others = OtherMarkers::default();
        for found in fs::read_dir(root)? {
            let path = found?.path();
            let is_marker = path.extension().is_some_and(|ending| ending == EXTENSION);
            if !is_marker || own.is_some_and(|own| own.path == path) {
                continue;
            }
            match File::open(&path).map(|file| file.try_lock_shared()) {
                Ok(Ok(())) => others.left.push(path),
                Ok(Err(TryLockError::WouldBlock)) => others.is_any_held = true,
                // Its owner has removed it meanwhile.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(TryLockError::Error(why))) | Err(why) => return Err(why),
            }
        }
        Ok(others)
    }
}

impl Drop for AttemptMarker {
    fn drop(&mut self) {
        // A file that stays is taken for that of a process that has ended.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_held_as_long_as_its_process_lives() {
        fn look(root: &Path, own: Option<&AttemptMarker>) -> OtherMarkers {
            AttemptMarker::find_others(root, own).expect("a look")
        }
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let marker = AttemptMarker::create(root).expect("a marker");
        assert_eq!(look(root, Some(&marker)), OtherMarkers::default());
        assert_eq!(look(root, None), OtherMarkers { is_any_held: true, left: Vec::new() });
        let path = marker.path.clone();
        drop(marker);
        assert_eq!(look(root, None), OtherMarkers::default());
        fs::write(&path, "").expect("what a crash leaves");
        assert_eq!(look(root, None), OtherMarkers { is_any_held: false, left: vec![path] });
    }
}
