//! The version of the data of a file, which only rises.

use rusqlite::Connection;

pub(super) use super::super::data_version::{
    ARCHIVE_VERSION, DELETION_VERSION, LOTS_VERSION, SLICES_VERSION, TRANSFERS_VERSION,
};

/// Raises the version of the data, so that no version of the program opens the store that would
/// misread it.
pub(super) fn raise(c: &Connection, least: u32) -> rusqlite::Result<()> {
    let version = "user_version";
    let found: u32 = c.pragma_query_value(None, version, |row| row.get(0))?;
    if found >= least {
        return Ok(());
    }
    c.pragma_update(None, version, least)
}
