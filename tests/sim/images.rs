//! Images: made and edited by two vendors who agree on little but the addresses.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::asked::Asked;
use super::crc::crc32;
use super::faults::Fault;
use super::record::SentFile;
use super::refusal::Refusal;
use super::said::Said;
use super::vendor::Vendor;

mod ticks;
mod tokens;

#[cfg(test)]
mod tests;

/// A red dot.
const DOT: [u8; 69] = [
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x02, 0x00, 0x00, 0x00, 0x90, 0x77, 0x53,
    0xde, 0x00, 0x00, 0x00, 0x0c, 0x49, 0x44, 0x41, 0x54, 0x78, 0xda, 0x63, 0x38, 0x21, 0x22, 0x02,
    0x00, 0x02, 0x98, 0x00, 0xf1, 0x99, 0xb6, 0x74, 0xbc, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e,
    0x44, 0xae, 0x42, 0x60, 0x82,
];
/// The length, the kind and the checksum of a chunk of a PNG.
const CHUNK_FRAME: usize = 12;

/// Makes images, or tells why not.
pub(super) fn answer(asked: &Asked) -> Result<Said, Refusal> {
    if asked.vendor == Vendor::D { ticks::answer(asked) } else { tokens::answer(asked) }
}

/// The image of a data URI, as the vendor who takes them reads it; none of an address elsewhere.
pub(super) fn source(url: &str) -> Result<Option<SentFile>, Refusal> {
    ticks::source(url)
}

/// A PNG of so many bytes; the smallest has 69 and the next 81.
pub(crate) fn picture(length: usize) -> Vec<u8> {
    let Some(padding) = length.checked_sub(DOT.len() + CHUNK_FRAME) else {
        return DOT.to_vec();
    };
    let (image, end) = DOT.split_at(DOT.len() - CHUNK_FRAME);
    // A chunk of a kind that nobody has to know.
    let kind = b"paDd";
    let content = vec![b'.'; padding];
    let content_length = u32::try_from(padding).expect("an image is smaller than 4 GiB");
    let mut picture = Vec::with_capacity(length);
    picture.extend_from_slice(image);
    picture.extend_from_slice(&content_length.to_be_bytes());
    picture.extend_from_slice(kind);
    picture.extend_from_slice(&content);
    picture.extend_from_slice(&crc32(&[kind, &content]).to_be_bytes());
    picture.extend_from_slice(end);
    picture
}

/// The picture of a reply in base64.
fn encoded_picture(asked: &Asked) -> String {
    let length = asked.faults.number(Fault::ImageBytes).unwrap_or_default();
    STANDARD.encode(picture(usize::try_from(length).expect("an address space of 64 bits")))
}

/// What is remembered of a file.
fn sent_file(part: &str, name: Option<&str>, content_type: &str, bytes: &[u8]) -> SentFile {
    let digest = Sha256::digest(bytes);
    SentFile {
        part: part.to_owned(),
        name: name.map(str::to_owned),
        content_type: content_type.to_owned(),
        len: bytes.len(),
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
