//! Reads a rules file whose tables have names: that of the plans, and that of the price books.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::toml_reader::{self, ConfigError, SpannedValue, TableReader};

/// The most tables of a file.
pub(super) const TABLES_MAX: usize = 1_000;

/// Whether a file of the rules has this name.
#[must_use]
pub(super) fn has_name(file: &str, name: &str) -> bool {
    file.rsplit('/').next() == Some(name)
}

/// Returns the tables `[KEY.NAME]` of a file by their names, and adds every fault to `faults`.
/// `what` is how several of them are called.
pub(super) fn parse(
    file: &str,
    text: &str,
    key: &'static str,
    what: &str,
    faults: &mut Vec<ConfigError>,
) -> Vec<(String, SpannedValue)> {
    let (root, syntax) = toml_reader::parse(file, text);
    faults.extend(syntax);
    let mut table = TableReader::open(root, faults);
    let rows = table.members(key, faults);
    table.finish(faults);
    if let Some((_, node)) = rows.get(TABLES_MAX) {
        let fault = format!("a file has at most {TABLES_MAX} {what}, not {}", rows.len());
        faults.push(node.location.error(fault));
    }
    rows
}
