//! Makes a backup of a store, whether a gateway runs on it or not.

use std::ffi::OsStr;
use std::path::{self, Path, PathBuf};
use std::{fs, io};

use super::archive::{digest_file, write_archive};
use super::durable_files::{StagingFolder, folder_of, hidden_beside, publish};
use super::error::BackupError;
use super::manifest::{BackupManifest, BackupPart, FORMAT, PartName};
use super::summary::BackupSummary;
use crate::clock;
use crate::permissions;
use crate::store::outbox::{EmbeddedLog, LogFile};
use crate::store::sqlite::{CheckedCopy, SnapshotSource, check_copy};

/// The parts of a backup, and the files that have their contents.
#[derive(Default)]
struct CopiedParts {
    parts: Vec<BackupPart>,
    contents: Vec<PathBuf>,
}

/// Makes a backup of the store in the file `database`, and of the logs beside it, in the new file
/// `to`.
///
/// The logs are copied first, and the database after them. This loses nothing that was answered
/// before:
///
/// - The end of a call is a line of a log before its answer goes out. A line is only removed when
///   the database has what it says, durably.
/// - So a call that was answered before this began either has its line in the copy of the logs, or
///   its line was removed before it could be copied. Then the database had its charge by that time,
///   and the copy of the database, which is made later, has it too.
/// - In the other order, a charge could come to the database after its copy was made, and its line
///   be removed before the copy of the logs: the backup would have neither.
///
/// A charge that is in both is not made twice. The next gateway sends the line to the database,
/// which passes over the ends of calls that it knows by their ids, and those of allotments by their
/// numbers.
///
/// # Errors
/// Says which file cannot be read or written. There is no backup then.
pub(crate) fn create_backup(database: &Path, to: &Path) -> Result<BackupSummary, BackupError> {
    let database_error = |what| BackupError::Database { path: database.to_owned(), what };
    if to.symlink_metadata().is_ok() {
        return Err(BackupError::BackupExists(to.to_owned()));
    }
    if is_own_place(database, to).map_err(BackupError::of_file(to))? {
        return Err(BackupError::OwnPlace(to.to_owned()));
    }
    if !folder_of(to).is_dir() {
        return Err(BackupError::NoFolder(folder_of(to).to_owned()));
    }
    // The time is taken first: payments that are made during the copy are entered again, too.
    let made_at = clock::timestamp().to_string();
    let source = SnapshotSource::open(database).map_err(database_error)?;
    let id = uuid::Uuid::new_v4().simple().to_string();
    let staging = hidden_beside(to, &format!("begun-{id}"));
    let staging = StagingFolder::create(staging.clone()).map_err(BackupError::of_file(&staging))?;
    let logs = copy_logs(database, source.store_id(), &staging)?;
    let (CheckedCopy { store_id, data_version, accounts }, copy) =
        copy_database(&source, database, &staging)?;
    let manifest = BackupManifest {
        format: FORMAT,
        id,
        tollgate: env!("CARGO_PKG_VERSION").to_owned(),
        data_version,
        store_id,
        made_at,
        parts: [copy.parts, logs.parts].concat(),
    };
    let archive = staging.file("archive");
    write_archive(&archive, &manifest, &[copy.contents, logs.contents].concat())?;
    publish(&archive, to).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => BackupError::BackupExists(to.to_owned()),
        _ => BackupError::of_file(to)(why),
    })?;
    Ok(BackupSummary::new(&manifest, accounts))
}

/// Whether a file is one of the store's own, or would be: one beside the database whose name begins
/// with that of the database and a hyphen, or one in a log.
fn is_own_place(database: &Path, file: &Path) -> io::Result<bool> {
    let (database, file) = (path::absolute(database)?, path::absolute(file)?);
    let own = database.file_name().map(|name| [name.as_encoded_bytes(), b"-"].concat());
    let begins_so = |name: &OsStr| own.is_some_and(|own| name.as_encoded_bytes().starts_with(&own));
    let is_in_log = EmbeddedLog::ALL.iter().any(|log| file.starts_with(log.root(&database)));
    Ok(is_in_log || file.parent() == database.parent() && file.file_name().is_some_and(begins_so))
}

/// Copies the files of the logs.
fn copy_logs(
    database: &Path,
    store_id: &str,
    staging: &StagingFolder,
) -> Result<CopiedParts, BackupError> {
    let mut copied = CopiedParts::default();
    for log in EmbeddedLog::ALL {
        let root = log.root(database);
        log.read_files(database, store_id, |LogFile { folder, name, content }| {
            let path = staging.file(format!("log-{}", copied.parts.len()));
            fs::write(&path, content)?;
            let (bytes, sha256) = digest_file(&path)?;
            let name = PartName::Log { log, folder, file: name };
            copied.parts.push(BackupPart { name, bytes, sha256 });
            copied.contents.push(path);
            Ok(())
        })
        .map_err(BackupError::of_file(&root))?;
    }
    Ok(copied)
}

/// Copies the database, and checks the copy.
fn copy_database(
    source: &SnapshotSource,
    database: &Path,
    staging: &StagingFolder,
) -> Result<(CheckedCopy, CopiedParts), BackupError> {
    let path = staging.file("database");
    permissions::make_file(&path).map_err(BackupError::of_file(&path))?;
    let copied = source.copy_to(&path);
    // The message may be about either file: SQLite says that a disk is full, and not which one.
    let told = |what| format!("copied to {}: {what}", path.display());
    copied.map_err(|what| BackupError::Database { path: database.to_owned(), what: told(what) })?;
    let unsound = |what| BackupError::Unsound { path: database.to_owned(), what };
    let checked = check_copy(&path).map_err(unsound)?;
    let (bytes, sha256) = digest_file(&path).map_err(BackupError::of_file(&path))?;
    let parts = vec![BackupPart { name: PartName::Database, bytes, sha256 }];
    Ok((checked, CopiedParts { parts, contents: vec![path] }))
}
