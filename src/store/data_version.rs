//! The version of what a store contains. A program refuses a store that a later program has changed
//! in a way that it would misread: going back would cost money.

/// The version of a store without budgets and scopes of keys. A store is made with it.
pub(super) const BASE_VERSION: u32 = 1;

/// The version of a store from its first budget or scope of a key on: a program before it would not
/// heed the limits.
pub(super) const RESTRICTIONS_VERSION: u32 = 2;

/// The version of a SQLite file whose allotments have their slices in their own rows, instead of a
/// store with restrictions: a program before it would not see them.
pub(super) const SLICES_VERSION: u32 = 3;

/// The version of a store from its first refund or correction on: a program before it would take a
/// correction for a charge, and would credit a payment that has the id of a refund.
pub(super) const TRANSFERS_VERSION: u32 = 4;

/// The version of a store from its first grant on: a program before it would draw credit without
/// counting which lot it came from, and would not let it expire.
pub(super) const LOTS_VERSION: u32 = 5;

/// The version of a store from the first line on that has left a journal for the archive: a program
/// before it would take the journal for shorter than it is, and give numbers twice.
pub(super) const ARCHIVE_VERSION: u32 = 6;

/// The version of a store from its first deletion of an account on: a program before it would take
/// a payment for the account, or issue a key of it.
pub(super) const DELETION_VERSION: u32 = 7;

/// The latest version that this program can read. It is raised only by a change that programs
/// before it would misread.
pub(super) const DATA_VERSION: u32 = DELETION_VERSION;

/// Returns why a store with data of this version cannot be used; `None` if it can.
pub(super) fn version_fault(found: u32) -> Option<String> {
    (found > DATA_VERSION).then(|| {
        format!(
            "a later version of tollgate has written it: its data have version {found}, and this \
             program reads up to {DATA_VERSION}. Use that version, or restore a backup from before"
        )
    })
}
