//! Computes the digest by which a call with the same content is recognised.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::dialect::call::ParsedBody;

/// Above this many bytes a body is hashed on a thread for blocking work.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// Precedes the headers in the bytes that are hashed. It cannot be confused with one of the lengths
/// there, because as a length it would be impossibly large.
const HEADERS_SEPARATOR: &[u8; 8] = b"\0headers";

/// Returns the digest of a body, or of the fields and the file of a form, because the boundaries of
/// the form differ in every repeat. The headers that are forwarded to the vendor are included.
pub(super) async fn fingerprint_call(
    opened: &ParsedBody,
    headers: &[(String, Vec<u8>)],
) -> [u8; 32] {
    let mut pieces = vec![opened.document.body().clone()];
    if let Some(file) = &opened.file {
        // The length of the fields is hashed as well, so that no byte can move between the fields
        // and the file.
        pieces.push(Bytes::copy_from_slice(&(pieces[0].len() as u64).to_be_bytes()));
        pieces.push(Bytes::from(format!("{} {}", file.media_type, file.length)));
        pieces.extend(file.content.iter().cloned());
    }
    if !headers.is_empty() {
        pieces.push(Bytes::from_static(HEADERS_SEPARATOR));
    }
    for part in headers.iter().flat_map(|(name, value)| [name.as_bytes(), value]) {
        pieces.push(Bytes::copy_from_slice(&(part.len() as u64).to_be_bytes()));
        pieces.push(Bytes::copy_from_slice(part));
    }
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    if bytes <= INLINE_BYTES_MAX {
        return sha256(&pieces);
    }
    let digesting = tokio::task::spawn_blocking({
        let pieces = pieces.clone();
        move || sha256(&pieces)
    });
    // The task fails only while the process ends.
    digesting.await.unwrap_or_else(|_| sha256(&pieces))
}

pub(super) fn digest_text(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn sha256(pieces: &[Bytes]) -> [u8; 32] {
    let mut digest = Sha256::new();
    pieces.iter().for_each(|piece| digest.update(piece));
    digest.finalize().into()
}
