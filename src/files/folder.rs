//! Files in a folder of this node, and the clean-up after processes that died.
//!
//! A file is written beside its final path, as `NAME#1` or the next number that is free, synced,
//! and renamed. If its process is killed, the partly written file stays: it is never read, but it
//! uses disk space.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path as FilePath;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use super::error::FileReadError;
use super::names::{BodyKind, ROOT_FOLDER};
use crate::permissions;

/// The length of the pieces in which a file is read, in bytes.
const PIECE_BYTES: u64 = 128 << 10;
/// At most this many partly written copies of one file are looked for.
const STAGED_MAX: u32 = 32;
/// A partly written file that was not changed for this long is not being written any more.
const STALE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Opens a folder, which is created if it does not exist, and deletes old partly written files.
pub(super) fn open(path: &str) -> Result<LocalFileSystem, FileReadError> {
    let store = open_plain(path)?;
    permissions::make_folder(&FilePath::new(path).join(ROOT_FOLDER))
        .map_err(|why| folder_error(path, &why))?;
    if let Err(why) = sweep(FilePath::new(path), SystemTime::now()) {
        log::warn!(
            event = "file_sweep_failed", path, error:% = why;
            "unfinished file sweep failed"
        );
    }
    Ok(store)
}

/// Opens a folder, which is created if it does not exist.
pub(super) fn open_plain(path: &str) -> Result<LocalFileSystem, FileReadError> {
    permissions::make_folder(path.as_ref()).map_err(|why| folder_error(path, &why))?;
    Ok(LocalFileSystem::new_with_prefix(path)?.with_fsync(true))
}

fn folder_error(path: &str, why: &io::Error) -> FileReadError {
    FileReadError::Unavailable(format!("{path}: {why}"))
}

/// Deletes the partly written copies of a file.
pub(super) async fn delete_staged(
    store: &LocalFileSystem,
    path: &Path,
) -> Result<(), FileReadError> {
    let place = store.path_to_filesystem(path)?;
    run_blocking(move || {
        for number in 1..=STAGED_MAX {
            let mut staged = place.clone().into_os_string();
            staged.push(format!("#{number}"));
            ignore_not_found(fs::remove_file(staged))?;
        }
        Ok(())
    })
    .await
}

/// Deletes a folder with all that is in it, also what is partly written. One that does not exist is
/// no error.
pub(super) async fn delete_folder(
    store: &LocalFileSystem,
    path: &Path,
) -> Result<(), FileReadError> {
    let place = store.path_to_filesystem(path)?;
    run_blocking(move || ignore_not_found(fs::remove_dir_all(place)).map(drop)).await
}

/// Reads a range of an open file.
pub(super) fn read_range(
    file: File,
    range: Range<u64>,
) -> impl Stream<Item = Result<Bytes, FileReadError>> + Send + 'static {
    stream::try_unfold((file, range), |(mut file, mut range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let read = run_blocking(move || {
            let wanted = (range.end - range.start).min(PIECE_BYTES);
            let mut piece = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
            file.seek(SeekFrom::Start(range.start))?;
            (&mut file).take(wanted).read_to_end(&mut piece)?;
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            range.start += piece.len() as u64;
            Ok((Bytes::from(piece), (file, range)))
        });
        read.await.map(Some)
    })
}

/// Deletes the partly written files of killed processes in the folders of all accounts.
fn sweep(root: &FilePath, now: SystemTime) -> io::Result<()> {
    let bodies = BodyKind::ALL.map(|kind| root.join(ROOT_FOLDER).join(kind.folder()));
    bodies.iter().try_for_each(|folder| sweep_accounts(folder, now))?;
    sweep_accounts(&root.join("videos"), now)
}

fn sweep_accounts(folder: &FilePath, now: SystemTime) -> io::Result<()> {
    let Some(accounts) = ignore_not_found(fs::read_dir(folder))? else { return Ok(()) };
    for account in accounts {
        let account = account?;
        if !account.file_type()?.is_dir() {
            continue;
        }
        for entry in fs::read_dir(account.path())? {
            let entry = entry?;
            if !is_staged(&entry.file_name().to_string_lossy()) {
                continue;
            }
            // The file may be gone: another node may have renamed it just now.
            let Some(meta) = ignore_not_found(entry.metadata())? else { continue };
            if now.duration_since(meta.modified()?).is_ok_and(|age| age > STALE_AFTER) {
                ignore_not_found(fs::remove_file(entry.path()))?;
            }
        }
    }
    Ok(())
}

fn is_staged(file: &str) -> bool {
    let number = file.rsplit_once('#').map_or("", |(_, number)| number);
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// Turns the error that a file does not exist into `None`.
fn ignore_not_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, FileReadError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|why| FileReadError::Unavailable(why.to_string()))?;
    done.map_err(|why| FileReadError::Unavailable(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_what_is_unfinished_and_old_and_nothing_else() {
        let root = tempfile::tempdir().expect("a folder");
        let account = root.path().join("videos/a");
        fs::create_dir_all(&account).expect("made");
        fs::write(root.path().join("videos/no_folder"), "x").expect("written");
        for file in ["v.mp4", "v.mp4#1", "v.mp4#12", "v.mp4#", "v.mp4#1a", "new.mp4#1"] {
            fs::write(account.join(file), "x").expect("written");
        }
        let now = SystemTime::now();
        let yesterday = now - STALE_AFTER - Duration::from_secs(1);
        for file in ["v.mp4", "v.mp4#1", "v.mp4#12", "v.mp4#", "v.mp4#1a"] {
            let file = File::options().write(true).open(account.join(file)).expect("open");
            file.set_modified(yesterday).expect("set");
        }
        open(root.path().to_str().expect("a text")).expect("opened");
        let mut left: Vec<_> = fs::read_dir(&account)
            .expect("read")
            .map(|entry| entry.expect("read").file_name().into_string().expect("a text"))
            .collect();
        left.sort();
        assert_eq!(left, ["new.mp4#1", "v.mp4", "v.mp4#", "v.mp4#1a"]);
    }

    #[tokio::test]
    async fn a_file_that_was_cut_meanwhile_is_an_error_and_no_endless_stream() {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, b"abc").expect("written");
        let pieces: Vec<_> = futures_util::StreamExt::collect(read_range(file, 1..10)).await;
        assert_eq!(pieces[0], Ok(Bytes::from_static(b"bc")));
        assert!(matches!(pieces[1..], [Err(FileReadError::Unavailable(_))]), "{pieces:?}");
    }
}
