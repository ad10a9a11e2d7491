//! What every command does before it touches anything: nothing it writes is for other users, and
//! nothing it has in memory (keys of vendors, bodies of customers) ends up in a file when it dies.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::permissions;

/// See the module.
pub(super) fn harden() {
    permissions::restrict_new_files();
    // Nobody can be kept from lowering a limit of his own.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = setrlimit(Resource::Core, none);
    // A handler of dumps is not asked for that limit. This also keeps other processes of the same
    // user from reading this one's memory.
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
