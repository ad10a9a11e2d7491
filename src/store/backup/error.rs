//! Why a backup was not made or not restored.

use std::io;
use std::path::{Path, PathBuf};

/// Why a backup was not made or not restored. Each message names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupError {
    #[error("{}: {why}", .path.display())]
    File { path: PathBuf, why: io::Error },
    /// The database cannot be copied.
    #[error("{}: {what}", .path.display())]
    Database { path: PathBuf, what: String },
    /// The copy of the database is not sound.
    #[error(
        "no backup was made, because the copy of {} is not sound: {what}. Keep the files: stop the \
         gateway and copy them with cp",
        .path.display()
    )]
    Unsound { path: PathBuf, what: String },
    #[error(
        "{} is there already, and a backup overwrites nothing: give the backup another name",
        .0.display()
    )]
    BackupExists(PathBuf),
    #[error("{} would be among the store's own files: name another file", .0.display())]
    OwnPlace(PathBuf),
    #[error("there is no folder {}: make it first", .0.display())]
    NoFolder(PathBuf),
    /// The file is no backup, or it was changed.
    #[error(
        "{} cannot be restored, and nothing was changed: {what}. Use another backup",
        .path.display()
    )]
    Damaged { path: PathBuf, what: String },
    /// The file is of a later version of tollgate.
    #[error("{}: {what}", .path.display())]
    LaterVersion { path: PathBuf, what: String },
    #[error(
        "a gateway runs on {} (it has the lock of {}): stop it first",
        .database.display(), .folder.display()
    )]
    GatewayRuns { database: PathBuf, folder: PathBuf },
    #[error(
        "{} is there already, and a restore overwrites nothing: move it away first, with all of \
         {}. Leave the folders {}-outbox and {}-allotments where they are: they may have charges \
         that the backup lacks",
        .database.display(), list(.found), .database.display(), .database.display()
    )]
    DatabaseExists { database: PathBuf, found: Vec<PathBuf> },
    #[error(
        "{} belongs to user {owner}, and this process is root: restore as the user of the gateway",
        .folder.display()
    )]
    OtherUser { folder: PathBuf, owner: u32 },
    #[error("another restore is under way in {}", .0.display())]
    RestoreRuns(PathBuf),
}

impl BackupError {
    /// Returns a function that makes an error of an I/O error of a file or folder.
    pub(super) fn of_file(path: &Path) -> impl Fn(io::Error) -> BackupError {
        move |why| BackupError::File { path: path.to_owned(), why }
    }

    /// Returns a function that makes the error that a backup is damaged.
    pub(super) fn damaged<W: ToString>(path: &Path) -> impl Fn(W) -> BackupError {
        move |what| BackupError::Damaged { path: path.to_owned(), what: what.to_string() }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_be_moved_away_is_named() {
        let found = ["t.db", "t.db-wal"].map(PathBuf::from).into();
        let error = BackupError::DatabaseExists { database: "t.db".into(), found };
        let told = "t.db is there already, and a restore overwrites nothing: move it away first, \
                    with all of t.db, t.db-wal. Leave the folders t.db-outbox and \
                    t.db-allotments where they are: they may have charges that the backup lacks";
        assert_eq!(error.to_string(), told);
    }
}
