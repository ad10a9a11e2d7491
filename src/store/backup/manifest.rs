//! The manifest of a backup: what the file has, and of which store.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::store::outbox::EmbeddedLog;

/// The format that this program writes and reads.
pub(super) const FORMAT: u32 = 1;
/// The name of the database in a backup.
const DATABASE: &str = "tollgate.db";
/// The numbers of hexadecimal digits of a digest and of an id.
const DIGEST_DIGITS: usize = 64;
const ID_DIGITS: usize = 32;

/// The manifest of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupManifest {
    /// The version of the format.
    pub(super) format: u32,
    /// The id of the backup, which no other one has.
    pub(super) id: String,
    /// The version of tollgate that made it.
    pub(super) tollgate: String,
    /// The version of the data of the store.
    pub(super) data_version: u32,
    pub(super) store_id: String,
    /// When it was begun, in UTC: what came before is in it.
    pub(super) made_at: String,
    /// The database, and then the files of the logs.
    pub(super) parts: Vec<BackupPart>,
}

/// A file in a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupPart {
    pub(super) name: PartName,
    pub(super) bytes: u64,
    /// In hexadecimal digits.
    pub(super) sha256: String,
}

/// The name of a part. There are no others than these, so that no part leads anywhere else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) enum PartName {
    Database,
    Log {
        log: EmbeddedLog,
        /// The folder of a process.
        folder: String,
        file: String,
    },
}

/// The only field that manifests of all formats have.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl BackupManifest {
    /// Encodes the manifest.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // Serialization of these types cannot fail.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(super) fn parse(json: &[u8]) -> Result<BackupManifest, String> {
        let wrong = |why: serde_json::Error| format!("its manifest cannot be read: {why}");
        let FormatOnly { format } = serde_json::from_slice(json).map_err(wrong)?;
        if format != FORMAT {
            let known = format!("this program reads format {FORMAT}");
            return Err(format!("its manifest has format {format}, and {known}"));
        }
        let manifest: BackupManifest = serde_json::from_slice(json).map_err(wrong)?;
        match manifest.find_fault() {
            Some(fault) => Err(format!("its manifest is wrong: {fault}")),
            None => Ok(manifest),
        }
    }

    fn find_fault(&self) -> Option<String> {
        if !is_hex(&self.id, ID_DIGITS) {
            return Some("the id of the backup is malformed".to_owned());
        }
        if self.parts.first().is_none_or(|first| first.name != PartName::Database) {
            return Some(format!("{DATABASE} is not its first part"));
        }
        let mut names = BTreeSet::new();
        for BackupPart { name, sha256, .. } in &self.parts {
            if !names.insert(name) {
                return Some(format!("{name} is there twice"));
            }
            if !is_hex(sha256, DIGEST_DIGITS) {
                return Some(format!("{name} has no digest"));
            }
        }
        None
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == digits && text.bytes().all(is_digit)
}

impl PartName {
    fn parse(text: &str) -> Option<PartName> {
        if text == DATABASE {
            return Some(PartName::Database);
        }
        let mut names = text.split('/');
        let (log, folder, file) = (names.next()?, names.next()?, names.next()?);
        let log = EmbeddedLog::ALL.into_iter().find(|known| known.name() == log)?;
        let is_sound = EmbeddedLog::is_folder_name(folder) && log.is_file_name(file);
        let (folder, file) = (folder.to_owned(), file.to_owned());
        (is_sound && names.next().is_none()).then_some(PartName::Log { log, folder, file })
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Database => f.write_str(DATABASE),
            PartName::Log { log, folder, file } => write!(f, "{}/{folder}/{file}", log.name()),
        }
    }
}

impl TryFrom<String> for PartName {
    type Error = String;

    fn try_from(text: String) -> Result<PartName, String> {
        PartName::parse(&text).ok_or_else(|| format!("'{text}' is no part of a backup"))
    }
}

impl From<PartName> for String {
    fn from(name: PartName) -> String {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> BackupManifest {
        let part = |name: &str| BackupPart {
            name: PartName::parse(name).expect("a part"),
            bytes: 7,
            sha256: "0a".repeat(32),
        };
        BackupManifest {
            format: FORMAT,
            id: "0f".repeat(16),
            tollgate: "1.2.3".to_owned(),
            data_version: 1,
            store_id: "s".to_owned(),
            made_at: "2026-11-23T21:00:00Z".to_owned(),
            parts: ["tollgate.db", "outbox/a-1/00000001.log", "allotments/a-1/store"]
                .map(part)
                .into(),
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let manifest = manifest();
        assert_eq!(BackupManifest::parse(&manifest.to_json()), Ok(manifest));
    }

    #[test]
    fn a_part_that_leads_elsewhere_is_none() {
        for text in [
            "../x",
            "/etc/passwd",
            "outbox/../x",
            "outbox/a/../../x",
            "outbox/a/00000001.log/x",
            "outbox//00000001.log",
            "outbox/a/lock",
            "outbox/a/00000001.ends",
            "allotments/a/00000001.log",
            "other/a/store",
            "outbox/.begun-a/store",
            "tollgate.db-wal",
            "",
        ] {
            assert_eq!(PartName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_manifest_with_a_fault_is_refused() {
        let sound = serde_json::to_value(manifest()).expect("JSON");
        let parts = sound["parts"].as_array().expect("parts").clone();
        for (member, value, told) in [
            ("format", json!(2), "format 2, and this program reads format 1"),
            ("id", json!("../x"), "the id of the backup is malformed"),
            ("more", json!(1), "unknown field `more`"),
            ("parts", json!([]), "tollgate.db is not its first part"),
            ("parts", json!([parts[1], parts[0]]), "tollgate.db is not its first part"),
            ("parts", json!([parts[0], parts[0]]), "tollgate.db is there twice"),
            (
                "parts",
                json!([{ "name": "tollgate.db", "bytes": 1, "sha256": "" }]),
                "tollgate.db has no digest",
            ),
            (
                "parts",
                json!([{ "name": "../x", "bytes": 1, "sha256": "" }]),
                "'../x' is no part of a backup",
            ),
        ] {
            let mut changed = sound.clone();
            changed[member] = value;
            let why = BackupManifest::parse(changed.to_string().as_bytes()).expect_err(told);
            assert!(why.contains(told), "{told}: {why}");
        }
    }
}
