//! The precautions that every command takes first: files that it writes are not for other users,
//! and its memory (keys of vendors, bodies of customers) is not written to a file when it crashes.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::permissions;

/// Restricts new files to this user and disables core dumps.
pub(super) fn harden() {
    permissions::restrict_new_files();
    // This cannot fail: a process may always lower its own limits.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    // A core dump handler ignores that limit. This also keeps other processes of the same user from
    // reading this one's memory.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn a_crash_leaves_no_memory_behind_and_files_are_ours_alone() {
        harden();
        let core = getrlimit(Resource::Core);
        assert_eq!((core.current, core.maximum), (Some(0), Some(0)));
        assert_eq!(dumpable_behavior().expect("told"), DumpableBehavior::NotDumpable);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("x");
        std::fs::write(&file, "x").expect("written");
        assert_eq!(std::fs::metadata(&file).expect("there").mode() & 0o777, 0o600);
    }
}
