//! Files and folders that only their owner can open.
//!
//! The data of tollgate is money, and what customers sent. So its own folders and files have no
//! permissions for groups or others. One that has such permissions loses them, with a warning. One
//! that belongs to another user is refused, because its owner could change it; only root may use
//! it, since commands can run as root beside a gateway that has its own user.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::{geteuid, umask};

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The permission bits of group and others.
const GROUP_AND_OTHERS: u32 = 0o077;
const GROUP_AND_OTHERS_WRITE: u32 = 0o022;
/// In a folder with this bit, users can delete only their own files.
const STICKY_BIT: u32 = 0o1000;

/// Sets the umask, so that files which this process makes from now on are for its user alone.
pub(crate) fn restrict_new_files() {
    umask(Mode::from_raw_mode(GROUP_AND_OTHERS));
}

/// Makes a folder that only this user can open, and the missing folders above it.
///
/// # Errors
/// The folder cannot be made or its mode cannot be changed, or it belongs to another user.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    make_folders(path)?;
    restrict(path, &File::open(path)?, FOLDER_MODE)
}

/// Makes a folder, and the missing ones above it, in which other users may have files too. The mode
/// of a folder that exists is not changed; a warning is logged if others could delete the gateway's
/// files in it.
///
/// # Errors
/// The folder cannot be made.
pub(crate) fn make_shared_folder(path: &Path) -> io::Result<()> {
    make_folders(path)?;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let mode = fs::metadata(path)?.mode();
    if mode & GROUP_AND_OTHERS_WRITE != 0 && mode & STICKY_BIT == 0 {
        let (path, mode) = (path.display(), format!("{:04o}", mode & 0o7777));
        log::warn!(
            event = "folder_writable_by_others", path:%, mode;
            "other users can replace what is kept in this folder"
        );
    }
    Ok(())
}

/// Makes a folder that no other user can enter, for sockets. The mode of a folder that exists is
/// not changed, since the folder may have other uses too.
///
/// # Errors
/// The folder cannot be made, belongs to another user, or is open to others.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    make_folders(path)?;
    check_private_folder(path)
}

/// Checks that no other user can enter a folder.
///
/// # Errors
/// The folder does not exist, belongs to another user, or is open to others.
pub(crate) fn check_private_folder(path: &Path) -> io::Result<()> {
    let about = fs::metadata(path)?;
    if is_open_to_others(path, about.uid(), about.mode(), geteuid().as_raw())? {
        let (path, mode) = (path.display(), about.mode() & 0o7777);
        let what = format!("{path} is open to other users (its mode is {mode:04o}, and not 0700)");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

fn make_folders(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Makes an empty file that only this user can open, unless it exists.
///
/// # Errors
/// The file cannot be made or its mode cannot be changed, or it belongs to another user.
pub(crate) fn make_file(path: &Path) -> io::Result<()> {
    let mut made = OpenOptions::new();
    let file = made.write(true).create(true).truncate(false).mode(FILE_MODE).open(path)?;
    restrict(path, &file, FILE_MODE)
}

/// Creates a file that only this user can open, to write into it.
///
/// # Errors
/// The file exists, or cannot be created.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Removes the permissions of others from a file, if it exists. The file is opened only if its mode
/// must change: closing a file releases all locks on it that this process has.
///
/// # Errors
/// The mode cannot be changed, or the file belongs to another user.
pub(crate) fn restrict_file(path: &Path) -> io::Result<()> {
    let about = match fs::metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        about => about?,
    };
    if is_open_to_others(path, about.uid(), about.mode(), geteuid().as_raw())? {
        restrict(path, &File::open(path)?, FILE_MODE)?;
    }
    Ok(())
}

/// Sets the mode of an open file or folder if others have permissions. It works on the open handle,
/// so that the file cannot be replaced by another one between the check and the change.
fn restrict(path: &Path, open: &File, wanted: u32) -> io::Result<()> {
    let about = open.metadata()?;
    if is_open_to_others(path, about.uid(), about.mode(), geteuid().as_raw())? {
        open.set_permissions(fs::Permissions::from_mode(wanted))?;
        let (path, mode) = (path.display(), format!("{:04o}", about.mode() & 0o7777));
        log::warn!(
            event = "permissions_corrected", path:%, mode;
            "this was open to other users, and is closed to them now"
        );
    }
    Ok(())
}

/// Whether others have permissions on a file or folder with this owner and mode. `own` is the user
/// of this process.
///
/// # Errors
/// The file must not be used at all: its owner is another user, who could change it.
fn is_open_to_others(path: &Path, owner: u32, mode: u32, own: u32) -> io::Result<bool> {
    if owner == own || own == 0 {
        return Ok(mode & GROUP_AND_OTHERS != 0);
    }
    let path = path.display();
    let what = format!("{path} belongs to user {owner}, and this process is user {own}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    fn open_to_all(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("ours");
    }

    #[test]
    fn what_is_made_is_ours_alone_and_what_was_open_is_closed() {
        let top = tempfile::tempdir().expect("a folder");
        let (folder, file) = (top.path().join("a/b"), top.path().join("a/b/c"));
        make_folder(&folder).expect("made");
        make_file(&file).expect("made");
        assert_eq!(
            [mode(&top.path().join("a")), mode(&folder), mode(&file)],
            [0o700, 0o700, 0o600]
        );
        fs::write(&file, "kept").expect("written");
        open_to_all(&folder);
        open_to_all(&file);
        make_folder(&folder).expect("closed");
        make_file(&file).expect("closed");
        assert_eq!([mode(&folder), mode(&file)], [0o700, 0o600]);
        assert_eq!(fs::read(&file).expect("read"), b"kept");
        open_to_all(&file);
        restrict_file(&file).expect("closed");
        assert_eq!(mode(&file), 0o600);
        restrict_file(&top.path().join("none")).expect("there is nothing to close");
        assert!(!top.path().join("none").exists());
    }

    #[test]
    fn a_file_that_exists_is_not_created_again() {
        let top = tempfile::tempdir().expect("a folder");
        let file = top.path().join("x");
        drop(create_file(&file).expect("created"));
        assert_eq!(mode(&file), 0o600);
        let why = create_file(&file).expect_err("it exists");
        assert_eq!(why.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_folder_that_is_not_ours_alone_stays_as_it_is() {
        let top = tempfile::tempdir().expect("a folder");
        open_to_all(top.path());
        make_shared_folder(top.path()).expect("it is there");
        assert_eq!(mode(top.path()), 0o777);
        make_shared_folder(&top.path().join("new")).expect("made");
        assert_eq!(mode(&top.path().join("new")), 0o700);
    }

    #[test]
    fn a_folder_for_sockets_that_is_open_is_refused_and_not_changed() {
        let top = tempfile::tempdir().expect("a folder");
        make_private_folder(&top.path().join("a/b")).expect("made");
        open_to_all(top.path());
        let why = make_private_folder(top.path()).expect_err("it is open").to_string();
        assert!(why.ends_with("is open to other users (its mode is 0777, and not 0700)"), "{why}");
        assert_eq!(mode(top.path()), 0o777);
        assert!(check_private_folder(&top.path().join("none")).is_err());
    }

    #[test]
    fn what_belongs_to_another_user_is_not_used() {
        let judge = |owner, mode, own| is_open_to_others(Path::new("x"), owner, mode, own);
        assert!(matches!(judge(1_000, 0o100_600, 1_000), Ok(false)));
        for mode in [0o100_640, 0o100_604, 0o100_620, 0o100_601, 0o040_755, 0o040_710] {
            assert!(matches!(judge(1_000, mode, 1_000), Ok(true)), "{mode:o}");
            assert!(matches!(judge(1_000, mode, 0), Ok(true)), "root mends what is another's");
        }
        for owner in [0, 1_001] {
            let why = judge(owner, 0o100_600, 1_000).expect_err("it is another's").to_string();
            assert_eq!(why, format!("x belongs to user {owner}, and this process is user 1000"));
        }
    }
}
