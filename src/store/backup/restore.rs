//! Restores a backup to the place of a store that is gone.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::archive::read_archive;
use super::durable_files::{
    StagingFolder, folder_of, hidden_beside, lock_folder, publish, sync_folder,
};
use super::error::BackupError;
use super::manifest::{BackupManifest, BackupPart, PartName};
use super::placement::{place_logs, staged_name};
use super::summary::{BackupSummary, RestoreSummary};
use crate::permissions;
use crate::store::data_version::version_fault;
use crate::store::outbox::EmbeddedLog;
use crate::store::sqlite::{check_copy, file_identity_of, side_file};

/// The beginning of every SQLite database, and where its header has `user_version`.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;
const USER_VERSION_AT: usize = 60;
/// A file is copied at most this often to get an identity that no log knows.
const IDENTITIES_MAX: usize = 64;

/// Restores the backup in the file `from` as the store in the file `database`, which must not
/// exist.
///
/// The logs come to their places first and the database last. So if this is interrupted, there is
/// no store, no gateway starts, and a repetition does all of it. The logs that are there stay.
///
/// # Errors
/// Says what is wrong with which file. There is no database then.
pub(crate) fn restore_backup(from: &Path, database: &Path) -> Result<RestoreSummary, BackupError> {
    check_place(database)?;
    check_user(database)?;
    let manifest = read_archive(from, |part, content| verify_part(from, part, content))?;
    if let Some(what) = version_fault(manifest.data_version) {
        return Err(BackupError::LaterVersion { path: from.to_owned(), what });
    }
    let folder = folder_of(database);
    permissions::make_shared_folder(folder).map_err(BackupError::of_file(folder))?;
    let lock = lock_folder(folder).map_err(BackupError::of_file(folder))?;
    let Some(_lock) = lock else { return Err(BackupError::RestoreRuns(folder.to_owned())) };
    // Another restore may have ended, and a gateway begun, while the archive was read.
    check_place(database)?;
    let staging = hidden_beside(database, "restore");
    let staging = StagingFolder::create(staging.clone()).map_err(BackupError::of_file(&staging))?;
    unpack(from, &manifest, &staging)?;
    let copy = staging.file(staged_name(0));
    let checked = check_copy(&copy).map_err(BackupError::damaged(from))?;
    if checked.store_id != manifest.store_id {
        return Err(BackupError::damaged(from)("its database is of another store"));
    }
    let mut folders_kept = 0;
    for log in EmbeddedLog::ALL {
        let root = log.root(database);
        folders_kept += log.count_folders(database).map_err(BackupError::of_file(&root))?;
    }
    place_logs(&manifest, &staging, database).map_err(BackupError::of_file(folder))?;
    // After the logs: those of the backup may name a database that was lost before it was made.
    let copy = with_new_identity(copy, database, &staging).map_err(BackupError::of_file(folder))?;
    sync_folder(folder).map_err(BackupError::of_file(folder))?;
    publish(&copy, database).map_err(|why| match why.kind() {
        ErrorKind::AlreadyExists => database_exists(database, vec![database.to_owned()]),
        _ => BackupError::of_file(database)(why),
    })?;
    let backup = BackupSummary::new(&manifest, checked.accounts);
    Ok(RestoreSummary { backup, folders_kept })
}

/// Checks that no gateway runs on the store, and that there is none of its files.
fn check_place(database: &Path) -> Result<(), BackupError> {
    for log in EmbeddedLog::ALL {
        let root = log.root(database);
        if let Some(folder) = log.find_live(database).map_err(BackupError::of_file(&root))? {
            return Err(BackupError::GatewayRuns { database: database.to_owned(), folder });
        }
    }
    let files = ["", "-wal", "-shm", "-journal"].map(|ending| side_file(database, ending));
    let found: Vec<PathBuf> =
        files.into_iter().filter(|file| file.symlink_metadata().is_ok()).collect();
    if found.is_empty() { Ok(()) } else { Err(database_exists(database, found)) }
}

/// Checks that what is restored will belong to the user of the gateway, when root restores: the
/// gateway refuses files of another user, and adopts no logs beside one that it cannot read. The
/// logs that are there are the gateway's; without them, the folder tells its user.
fn check_user(database: &Path) -> Result<(), BackupError> {
    let roots = EmbeddedLog::ALL.map(|log| log.root(database));
    let folder = folder_of(database).to_owned();
    let known = roots.into_iter().chain([folder]).find_map(|folder| {
        let owner = fs::metadata(&folder).ok()?.uid();
        Some((folder, owner))
    });
    match known {
        Some((folder, owner)) if geteuid().is_root() && owner != 0 => {
            Err(BackupError::OtherUser { folder, owner })
        }
        _ => Ok(()),
    }
}

fn database_exists(database: &Path, found: Vec<PathBuf>) -> BackupError {
    BackupError::DatabaseExists { database: database.to_owned(), found }
}

/// Reads a part to its end, so that its digest can be compared. It checks the version of the
/// database.
fn verify_part(from: &Path, part: &BackupPart, content: &mut dyn Read) -> Result<(), BackupError> {
    if part.name == PartName::Database {
        let mut header = [0; HEADER_BYTES];
        content.read_exact(&mut header).map_err(unreadable(from, part))?;
        if !header.starts_with(SQLITE_MAGIC) {
            return Err(BackupError::damaged(from)(format!("{} is no database", part.name)));
        }
        let mut version = [0; 4];
        version.copy_from_slice(&header[USER_VERSION_AT..USER_VERSION_AT + 4]);
        if let Some(what) = version_fault(u32::from_be_bytes(version)) {
            return Err(BackupError::LaterVersion { path: from.to_owned(), what });
        }
    }
    io::copy(content, &mut io::sink()).map_err(unreadable(from, part))?;
    Ok(())
}

fn unreadable(from: &Path, part: &BackupPart) -> impl Fn(io::Error) -> BackupError {
    let name = part.name.to_string();
    move |why| BackupError::damaged(from)(format!("{name} cannot be read: {why}"))
}

/// Writes the parts into the staging folder, and syncs them to disk. Their digests are compared
/// again.
fn unpack(
    from: &Path,
    verified: &BackupManifest,
    staging: &StagingFolder,
) -> Result<(), BackupError> {
    let mut number = 0;
    let manifest = read_archive(from, |_, content| {
        let path = staging.file(staged_name(number));
        number += 1;
        let written = permissions::create_file(&path).and_then(|mut file| {
            io::copy(content, &mut file)?;
            file.sync_all()
        });
        written.map_err(BackupError::of_file(&path))
    })?;
    if manifest == *verified {
        return Ok(());
    }
    Err(BackupError::damaged(from)("it was changed while it was read"))
}

/// Returns a copy of the database whose identity no log knows.
///
/// The logs that are there say which entries a database has acknowledged, and they name it by
/// device and inode. The lost database may have had the inode that the restored one got; then what
/// it had acknowledged since the backup would be passed over, and lost.
fn with_new_identity(
    mut copy: PathBuf,
    database: &Path,
    staging: &StagingFolder,
) -> io::Result<PathBuf> {
    for number in 0..IDENTITIES_MAX {
        let identity = file_identity_of(&copy)?;
        if !EmbeddedLog::Settlements.names_database(database, &identity)? {
            return Ok(copy);
        }
        let next = staging.file(format!("database-{number}"));
        // The former copy stays meanwhile and keeps its inode.
        fs::copy(&copy, &next)?;
        File::open(&next)?.sync_all()?;
        copy = next;
    }
    Err(io::Error::other("each new file has the inode of a database that was lost; try again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_with_the_inode_of_the_lost_one_would_have_lost_charges() {
        let top = tempfile::tempdir().expect("a folder");
        let database = top.path().join("t.db");
        let staging = StagingFolder::create(top.path().join("staging")).expect("a folder");
        let copy = staging.file("part-0");
        fs::write(&copy, "x").expect("a file");
        let same = with_new_identity(copy.clone(), &database, &staging).expect("a file");
        assert_eq!(same, copy, "no log knows it");
        let folder = EmbeddedLog::Settlements.root(&database).join("a");
        fs::create_dir_all(&folder).expect("a folder");
        let identity = file_identity_of(&copy).expect("an identity");
        fs::write(folder.join("noted.log"), format!("{{\"by\":\"{identity}\"}}")).expect("a note");
        let other = with_new_identity(copy.clone(), &database, &staging).expect("a file");
        assert_ne!(file_identity_of(&other).expect("an identity"), identity);
        assert_eq!(fs::read_to_string(&other).expect("a file"), "x");
    }
}
