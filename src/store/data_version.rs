//! The version of what a store contains. A program refuses a store that a later program has changed
//! in a way that it would misread: going back would cost money.

/// The version that this program writes, and the latest that it can read. It is raised only by a
/// change that programs before it would misread.
pub(super) const DATA_VERSION: u32 = 1;

/// Returns why a store with data of this version cannot be used; `None` if it can.
pub(super) fn version_fault(found: u32) -> Option<String> {
    (found > DATA_VERSION).then(|| {
        format!(
            "a later version of tollgate has written it: its data have version {found}, and this \
             program reads up to {DATA_VERSION}. Use that version, or restore a backup from before"
        )
    })
}
