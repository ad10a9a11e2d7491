//! The `[journal]` section: where the archive is, and how long lines stay in the store.

use crate::files::ArchiveFiles;
use crate::toml_reader::{ConfigError, TableReader, TomlValue};

/// How long lines stay in the store after the end of their day, in days, if the section does not
/// say otherwise: a statement of the month before, and a correction of it, needs no archive.
const DEFAULT_KEEP_DAYS: u64 = 35;
/// The least: an end of a call that comes late looks for the line of the call in the store.
const KEEP_DAYS_MIN: u64 = 3;
/// The most: a hundred years.
const KEEP_DAYS_MAX: u64 = 36_500;

/// The `[journal]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSection {
    /// Where the archive is: `file:PATH` or `s3://BUCKET/PREFIX`; `None` if lines stay in the
    /// store.
    pub archive: Option<String>,
    /// How long lines stay in the store after the end of their day, in days.
    pub keep_days: u64,
}

impl Default for JournalSection {
    fn default() -> JournalSection {
        JournalSection { archive: None, keep_days: DEFAULT_KEEP_DAYS }
    }
}

impl JournalSection {
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> JournalSection {
        let archive = parse_archive(table, faults);
        let mut keep_days = DEFAULT_KEEP_DAYS;
        if let Some((digits, at)) = table.number("keep_days", faults) {
            match digits.parse() {
                Ok(days) if (KEEP_DAYS_MIN..=KEEP_DAYS_MAX).contains(&days) => keep_days = days,
                _ => faults.push(at.error(format!(
                    "journal.keep_days must be from {KEEP_DAYS_MIN} to {KEEP_DAYS_MAX}, not \
                     {digits}"
                ))),
            }
        }
        JournalSection { archive, keep_days }
    }
}

fn parse_archive(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> Option<String> {
    let node = table.take_value("archive")?;
    match node.value {
        TomlValue::Text(url) if ArchiveFiles::is_address(&url) => Some(url),
        _ => {
            let forms = "journal.archive must be \"file:PATH\" or \"s3://BUCKET/PREFIX\"";
            faults.push(node.location.error(forms));
            None
        }
    }
}
