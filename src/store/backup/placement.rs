//! Puts the logs of a backup where the next gateway finds them as those of processes that have
//! ended, beside the logs that are there.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::durable_files::{StagingFolder, remove_folder, sync_folder};
use super::manifest::{BackupManifest, PartName};
use crate::permissions;
use crate::store::outbox::EmbeddedLog;

/// A file of a log, in the staging folder.
struct StagedFile<'a> {
    /// The index of its part, which is its name in the staging folder.
    part: usize,
    file: &'a str,
}

/// The files of each folder of a log.
type StagedFolders<'a> = BTreeMap<&'a str, Vec<StagedFile<'a>>>;

/// Returns the name of the file that has the content of a part in the staging folder.
pub(super) fn staged_name(part: usize) -> String {
    format!("part-{part}")
}

/// Puts the logs of a backup beside the database. A repetition puts the same files at the same
/// places, so that an interrupted restore leaves nothing twice.
///
/// # Errors
/// A file or folder cannot be made.
pub(super) fn place_logs(
    manifest: &BackupManifest,
    staging: &StagingFolder,
    database: &Path,
) -> io::Result<()> {
    for log in EmbeddedLog::ALL {
        let (root, folders) = (log.root(database), folders_of(manifest, log));
        if folders.is_empty() {
            continue;
        }
        permissions::make_folder(&root)?;
        for (number, (folder, files)) in folders.iter().enumerate() {
            match log {
                EmbeddedLog::Settlements => {
                    let folder = root.join(format!("restored-{}-{number:04}", manifest.id));
                    place_folder(files, staging, &folder)?;
                }
                EmbeddedLog::Ends => {
                    place_ends(files, staging, &root.join(folder), &manifest.id)?;
                }
            }
        }
        sync_folder(&root)?;
    }
    Ok(())
}

fn folders_of(manifest: &BackupManifest, wanted: EmbeddedLog) -> StagedFolders<'_> {
    let mut folders = StagedFolders::new();
    for (part, named) in manifest.parts.iter().enumerate() {
        if let PartName::Log { log, folder, file } = &named.name
            && *log == wanted
        {
            folders.entry(folder).or_default().push(StagedFile { part, file });
        }
    }
    folders
}

/// Puts the settlements of a process into a folder of their own. The folder of that process may be
/// there with later ones; the store passes over those that both have.
fn place_folder(
    files: &[StagedFile<'_>],
    staging: &StagingFolder,
    folder: &Path,
) -> io::Result<()> {
    if files.iter().all(|staged| staged.file == EmbeddedLog::STORE_ID_FILE) {
        return Ok(());
    }
    let begun = staging.file("folder");
    permissions::make_folder(&begun)?;
    for StagedFile { part, file } in files {
        fs::rename(staging.file(staged_name(*part)), begun.join(file))?;
    }
    sync_folder(&begun)?;
    remove_folder(folder)?;
    fs::rename(begun, folder)
}

/// Puts the ends of a process into the folder with its name, which the ids of its allotments
/// contain. If that folder is there, its own segments stay: they have the ends since the backup,
/// and the backup may have ends that the lost database had, and whose segments are gone.
fn place_ends(
    files: &[StagedFile<'_>],
    staging: &StagingFolder,
    folder: &Path,
    backup: &str,
) -> io::Result<()> {
    permissions::make_folder(folder)?;
    for (number, StagedFile { part, file }) in files.iter().enumerate() {
        let staged = staging.file(staged_name(*part));
        if *file != EmbeddedLog::STORE_ID_FILE {
            fs::rename(staged, folder.join(format!("{number:08}-{backup}.ends")))?;
        } else if !folder.join(file).try_exists()? {
            fs::rename(staged, folder.join(file))?;
        }
    }
    sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{BackupPart, FORMAT};
    use super::*;

    fn manifest(names: &[&str]) -> BackupManifest {
        let part = |name: &&str| BackupPart {
            name: PartName::try_from((*name).to_owned()).expect("a part"),
            bytes: 1,
            sha256: String::new(),
        };
        BackupManifest {
            format: FORMAT,
            id: "b".repeat(32),
            tollgate: String::new(),
            data_version: 1,
            store_id: "s".to_owned(),
            made_at: String::new(),
            parts: names.iter().map(part).collect(),
        }
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let found = fs::read_dir(folder).expect("a folder");
        let name = |file: io::Result<fs::DirEntry>| {
            file.expect("a file").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = found.map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn logs_are_put_beside_those_that_are_there_and_only_once() {
        let top = tempfile::tempdir().expect("a folder");
        let database = top.path().join("t.db");
        let manifest = manifest(&[
            "tollgate.db",
            "outbox/a/00000001.log",
            "outbox/a/store",
            "outbox/b/store",
            "allotments/c/00000003.ends",
            "allotments/c/store",
            "allotments/d/store",
        ]);
        let (outbox, ends) =
            (EmbeddedLog::Settlements.root(&database), EmbeddedLog::Ends.root(&database));
        for folder in [outbox.join("a"), ends.join("c")] {
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("store"), "lost").expect("a file");
        }
        fs::write(ends.join("c/00000003.ends"), "lost").expect("a file");
        let id = "b".repeat(32);
        let restored = format!("restored-{id}-0000");
        for _ in 0..2 {
            let staging = StagingFolder::create(top.path().join("staging")).expect("a folder");
            for part in 0..manifest.parts.len() {
                fs::write(staging.file(staged_name(part)), "backup").expect("a file");
            }
            place_logs(&manifest, &staging, &database).expect("placed");
            assert_eq!(names_in(&outbox), ["a", restored.as_str()]);
            assert_eq!(names_in(&outbox.join("a")), ["store"]);
            assert_eq!(names_in(&outbox.join(&restored)), ["00000001.log", "store"]);
            assert_eq!(names_in(&ends), ["c", "d"]);
            let own = format!("00000000-{id}.ends");
            assert_eq!(names_in(&ends.join("c")), [own.as_str(), "00000003.ends", "store"]);
            assert_eq!(names_in(&ends.join("d")), ["store"]);
            let text = |path| fs::read_to_string(ends.join(path)).expect("a file");
            assert_eq!(text("c/00000003.ends".to_owned()), "lost");
            assert_eq!(text(format!("c/{own}")), "backup");
            assert_eq!(text("c/store".to_owned()), "lost");
        }
    }
}
