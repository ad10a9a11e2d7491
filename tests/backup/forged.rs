//! The file of a backup taken apart, changed and put together again.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};

/// An entry of the file.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) kind: EntryType,
    /// Where its bytes begin in the file.
    pub(super) begins_at: usize,
}

impl Part {
    pub(super) fn new(name: &str, bytes: &[u8]) -> Part {
        let (name, bytes) = (name.to_owned(), bytes.to_owned());
        Part { name, bytes, kind: EntryType::Regular, begins_at: 0 }
    }
}

/// All entries of a file.
pub(super) fn entries_of(file: &[u8]) -> Vec<Part> {
    let mut archive = Archive::new(file);
    let mut entries = Vec::new();
    for entry in archive.entries().expect("an archive").raw(true) {
        let mut entry = entry.expect("an entry");
        let name = String::from_utf8(entry.path_bytes().into_owned()).expect("a name");
        let begins_at = usize::try_from(entry.raw_file_position()).expect("a place");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("bytes");
        entries.push(Part { name, bytes, kind: EntryType::Regular, begins_at });
    }
    entries
}

/// The manifest of a backup and its parts.
pub(super) fn open(path: &Path) -> (Value, Vec<Part>) {
    let mut entries = entries_of(&fs::read(path).expect("a backup"));
    let names: Vec<_> = entries.iter().take(3).map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["manifest.json", "manifest.sha256", "tollgate.db"]);
    let parts = entries.split_off(2);
    (serde_json::from_slice(&entries[0].bytes).expect("a manifest"), parts)
}

fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The manifest with the names, lengths and digests of these parts.
pub(super) fn naming(manifest: &Value, parts: &[Part]) -> Value {
    let named = parts.iter().map(|Part { name, bytes, .. }| {
        json!({ "name": name, "bytes": bytes.len(), "sha256": digest_of(bytes) })
    });
    let mut manifest = manifest.clone();
    manifest["parts"] = named.collect();
    manifest
}

/// Writes a backup with this manifest, whose digest is right, and these entries behind it.
pub(super) fn write(path: &Path, manifest: &Value, parts: &[Part]) {
    let json = manifest.to_string().into_bytes();
    let digest = format!("{}  manifest.json\n", digest_of(&json));
    let mut archive = Builder::new(Vec::new());
    let first =
        [Part::new("manifest.json", &json), Part::new("manifest.sha256", digest.as_bytes())];
    for Part { name, bytes, kind, .. } in first.iter().chain(parts) {
        let mut header = Header::new_ustar();
        // The library itself refuses some of these names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o600);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        archive.append(&header, &bytes[..]).expect("appended");
    }
    fs::write(path, archive.into_inner().expect("an archive")).expect("written");
}
