//! Whatever body in chunks is taken, another parser ends it in the same place; and it does not
//! matter in which pieces it comes.
#![no_main]

use httparse::{EMPTY_HEADER, InvalidChunkSize, Status};
use libfuzzer_sys::fuzz_target;
use tollgate::gateway::edge::chunks::{Chunks, Unsound};

/// More than fit into what is taken beside data.
const FIELDS_MAX: usize = 4 << 10;

fuzz_target!(|data: &[u8]| {
    let Some((size, data)) = data.split_first() else { return };
    let size = usize::from(*size).max(1);
    read(data, size);
    // So that data of a length that fits need not be found.
    let chunk = format!("{:x};a\r\n", data.len());
    read(&[chunk.as_bytes(), data, b"\r\n0\r\n", data, b"\r\n\r\n0\r\n\r\n"].concat(), size);
});

fn read(body: &[u8], size: usize) {
    let whole = follow(body, usize::MAX);
    assert_eq!(whole, follow(body, size));
    let Ok(is_over) = whole else { return };
    match theirs(body) {
        Some(end) => {
            assert!(is_over, "{}", body.escape_ascii());
            assert_eq!(follow(&body[..end], 1), Ok(true));
            assert_eq!(follow(&body[..end - 1], 1), Ok(false));
        }
        None => assert!(!is_over, "{}", body.escape_ascii()),
    }
}

fn follow(body: &[u8], size: usize) -> Result<bool, Unsound> {
    let mut chunks = Chunks::default();
    for piece in body.chunks(size.min(body.len().max(1))) {
        chunks.read(piece)?;
    }
    Ok(chunks.is_over())
}

/// Where another parser ends what we take; `None` if the end is not there.
fn theirs(body: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let read: Result<_, InvalidChunkSize> = httparse::parse_chunk_size(&body[at..]);
        let Status::Complete((line, size)) = read.expect("the size of a chunk") else {
            return None;
        };
        at += line;
        if size == 0 {
            break;
        }
        let end = usize::try_from(size).ok()?.checked_add(at)?;
        let after = body.get(end..)?;
        assert!(b"\r\n".starts_with(&after[..after.len().min(2)]), "{}", body.escape_ascii());
        at = end + 2;
        body.get(at..)?;
    }
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(&body[at..], &mut fields).expect("fields") {
        Status::Complete((length, _)) => Some(at + length),
        Status::Partial => None,
    }
}
