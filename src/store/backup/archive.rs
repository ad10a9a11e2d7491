//! The file of a backup: a tar archive that begins with the manifest and its digest, and has the
//! parts that the manifest names, in their order.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IntoInnerError, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Archive, Builder, Entries, Entry, EntryType, Header};

use super::error::BackupError;
use super::manifest::{BackupManifest, BackupPart};
use crate::hex::to_hex;
use crate::permissions;

const MANIFEST: &str = "manifest.json";
/// The digest of the manifest, as `sha256sum -c` reads it.
const MANIFEST_DIGEST: &str = "manifest.sha256";
/// A manifest is at most this long. A part takes about 200 bytes of it.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
const PART_MODE: u32 = 0o600;

/// Counts and digests what is read.
struct DigestReader<R> {
    content: R,
    digest: Sha256,
    bytes: u64,
}

impl<R: Read> DigestReader<R> {
    fn new(content: R) -> DigestReader<R> {
        DigestReader { content, digest: Sha256::new(), bytes: 0 }
    }

    /// Returns the number of bytes that were read, and their digest.
    fn finish(self) -> (u64, String) {
        let digest: [u8; 32] = self.digest.finalize().into();
        (self.bytes, to_hex(&digest))
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(into)?;
        self.digest.update(&into[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// Returns the length and the digest of a file.
pub(super) fn digest_file(path: &Path) -> io::Result<(u64, String)> {
    let mut content = DigestReader::new(File::open(path)?);
    io::copy(&mut content, &mut io::sink())?;
    Ok(content.finish())
}

/// Writes an archive to a new file, and syncs it to disk. Each part of the manifest has its content
/// in the file of the same index.
pub(super) fn write_archive(
    to: &Path,
    manifest: &BackupManifest,
    contents: &[PathBuf],
) -> Result<(), BackupError> {
    let file_error = BackupError::of_file(to);
    let file = permissions::create_file(to).map_err(&file_error)?;
    let mut archive = Builder::new(BufWriter::new(file));
    let json = manifest.to_json();
    let digest = digest_line(&json);
    for (name, content) in [(MANIFEST, &json[..]), (MANIFEST_DIGEST, digest.as_bytes())] {
        append(&mut archive, name, content.len() as u64, content).map_err(&file_error)?;
    }
    for (part, path) in manifest.parts.iter().zip(contents) {
        let content = File::open(path).map_err(BackupError::of_file(path))?;
        let (name, content) = (part.name.to_string(), content.take(part.bytes));
        append(&mut archive, &name, part.bytes, content).map_err(&file_error)?;
    }
    let buffered = archive.into_inner().map_err(&file_error)?;
    let file = buffered.into_inner().map_err(IntoInnerError::into_error).map_err(&file_error)?;
    file.sync_all().map_err(&file_error)
}

fn append(
    archive: &mut Builder<impl Write>,
    name: &str,
    bytes: u64,
    content: impl Read,
) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_path(name)?;
    header.set_entry_type(EntryType::Regular);
    header.set_mode(PART_MODE);
    header.set_size(bytes);
    header.set_cksum();
    archive.append(&header, content)
}

fn digest_line(json: &[u8]) -> String {
    let digest: [u8; 32] = Sha256::digest(json).into();
    format!("{}  {MANIFEST}\n", to_hex(&digest))
}

/// Reads an archive, and hands the content of each part to `take`, which reads all of it. After
/// that, its length and digest are compared with those of the manifest.
///
/// # Errors
/// The file has other parts than its manifest names, a part differs, or the error of `take`.
pub(super) fn read_archive(
    path: &Path,
    mut take: impl FnMut(&BackupPart, &mut dyn Read) -> Result<(), BackupError>,
) -> Result<BackupManifest, BackupError> {
    let file = File::open(path).map_err(BackupError::of_file(path))?;
    let mut archive = Archive::new(BufReader::new(file));
    // Raw entries: an entry that gives another one a longer name or a link is one that the manifest
    // does not name.
    let entries = archive.entries().map_err(BackupError::of_file(path))?;
    let mut entries = entries.raw(true);
    let manifest = read_manifest(&mut entries).map_err(BackupError::damaged(path))?;
    for part in &manifest.parts {
        let name = part.name.to_string();
        let entry = next_entry(&mut entries, &name).map_err(BackupError::damaged(path))?;
        let mut content = DigestReader::new(entry);
        take(part, &mut content)?;
        if content.finish() != (part.bytes, part.sha256.clone()) {
            let what = format!("{name} is damaged: its length or digest differs from the manifest");
            return Err(BackupError::damaged(path)(what));
        }
    }
    if entries.next().is_some() {
        let what = "it has more behind the parts that its manifest names";
        return Err(BackupError::damaged(path)(what));
    }
    Ok(manifest)
}

fn read_manifest<'a, R: Read + 'a>(entries: &mut Entries<'a, R>) -> Result<BackupManifest, String> {
    let json = read_whole(entries, MANIFEST)?;
    let digest = read_whole(entries, MANIFEST_DIGEST)?;
    if digest != digest_line(&json).as_bytes() {
        let what = format!("{MANIFEST} is damaged, or {MANIFEST_DIGEST} is damaged");
        return Err(format!("{what}: the digests differ"));
    }
    BackupManifest::parse(&json)
}

fn read_whole<'a, R: Read + 'a>(
    entries: &mut Entries<'a, R>,
    name: &str,
) -> Result<Vec<u8>, String> {
    let entry = next_entry(entries, name)?;
    let mut content = Vec::new();
    let read = entry.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut content);
    read.map_err(|why| format!("{name}: {why}"))?;
    if content.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(format!("{name} has more than {MANIFEST_BYTES_MAX} bytes"));
    }
    Ok(content)
}

/// Returns the next entry, which must be a plain file with this name.
fn next_entry<'a, R: Read + 'a>(
    entries: &mut Entries<'a, R>,
    name: &str,
) -> Result<Entry<'a, R>, String> {
    let entry = entries.next().ok_or_else(|| format!("{name} is missing"))?;
    let entry = entry.map_err(|why| format!("{name} cannot be read: {why}"))?;
    let is_file = entry.header().entry_type() == EntryType::Regular;
    if !is_file || *entry.path_bytes() != *name.as_bytes() {
        let found = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        return Err(format!("it has {found:?} in the place of the file {name}"));
    }
    Ok(entry)
}
