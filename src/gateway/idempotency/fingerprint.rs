//! The digest by which the content of a call is known again.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::dialect::call::ParsedBody;

/// Above this many bytes a body is hashed on a thread for blocking work.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// Stands before the headers, where no length could be meant.
const HEADERS_SEPARATOR: &[u8; 8] = b"\0headers";

/// The digest of a body, or of the fields and the file of a form: how a form is cut into parts is
/// another matter each time. Headers that the vendor is told belong to it.
pub(super) async fn fingerprint_call(
    opened: &ParsedBody,
    headers: &[(String, Vec<u8>)],
) -> [u8; 32] {
    let mut pieces = vec![opened.document.body().clone()];
    if let Some(file) = &opened.file {
        // With its length, so that nothing can be on either side of the border.
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
    // It does not fail but while the process ends.
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
