//! Whatever head is taken, another parser ends it in the same place and reads the same from it, and
//! pingora asks for the same path; and it does not matter in which pieces it comes.

use httparse::{EMPTY_HEADER, Header, Request, Status};
use pingora::http::RequestHeader;
use tollgate::gateway::edge::head::{self, FIELDS_MAX, HeadError};

pub(crate) fn run(data: &[u8]) {
    let Some((size, data)) = data.split_first() else { return };
    let size = usize::from(*size).max(1);
    check_bytes(data, size);
    // So that what makes a head whole need not be found.
    let ends = b" HTTP/1.1\r\nHost: a\r\n\r\n";
    check_bytes(&[b"POST ", data, ends].concat(), size);
    check_bytes(&[b"POST / HTTP/1.1\r\n", data, b"\r\nHost: a\r\n\r\n"].concat(), size);
    check_bytes(&[b"POST / HTTP/1.1\r\nHost: a\r\n", data, b"\r\n\r\n"].concat(), size);
}

fn check_bytes(bytes: &[u8], size: usize) {
    let _ = head::request_path(bytes);
    let whole = head::find_end(bytes, 0);
    match (find_end_in_pieces(bytes, size), whole) {
        (Ok(pieces), Ok(whole)) => assert_eq!(pieces, whole),
        // A fault may be found before the end, or hide behind it.
        (Err(_), Ok(Some(end))) => assert!(head::check_head(&bytes[..end]).is_err()),
        (pieces, whole) => assert_eq!(pieces.is_err(), whole.is_err()),
    }
    let Ok(Some(end)) = whole else { return };
    if head::check_head(&bytes[..end]).is_ok() {
        compare_with_httparse(bytes, end);
    }
}

fn find_end_in_pieces(bytes: &[u8], size: usize) -> Result<Option<usize>, HeadError> {
    let mut scanned = 0;
    for piece in bytes.chunks(size) {
        let found = head::find_end(&bytes[..scanned + piece.len()], scanned)?;
        if found.is_some() {
            return Ok(found);
        }
        scanned += piece.len();
    }
    Ok(None)
}

fn compare_with_httparse(bytes: &[u8], end: usize) {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut request = Request::new(&mut fields);
    let parsed = request.parse(bytes);
    assert_eq!(parsed, Ok(Status::Complete(end)), "{}", bytes.escape_ascii());
    let (method, target) = (request.method.expect("a method"), request.path.expect("a target"));
    let words = format!("{method} {target} HTTP/1.{}\r\n", request.version.expect("a version"));
    assert!(bytes.starts_with(words.as_bytes()), "{words}");

    // Between the first line and the empty one stands a field a line and nothing else.
    let lines: Vec<_> =
        bytes[words.len()..end - 2].split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), request.headers.len());
    for (line, Header { name, value }) in lines.into_iter().zip(request.headers.iter()) {
        let (found, rest) = line.split_at(name.len());
        assert_eq!(found, name.as_bytes());
        assert!(rest.starts_with(b":") && rest.ends_with(b"\r\n"));
        assert_eq!(rest[1..].trim_ascii(), value.trim_ascii());
    }

    let values_of = |name: &str| -> Vec<&[u8]> {
        let named = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value).collect()
    };
    let (lengths, codings) = (values_of("content-length"), values_of("transfer-encoding"));
    match (&lengths[..], &codings[..]) {
        ([], []) => {}
        ([length], []) => {
            let length = std::str::from_utf8(length).expect("digits");
            assert_eq!(length.parse::<u64>().expect("a number").to_string(), length);
        }
        ([], [coding]) => {
            assert!(coding.eq_ignore_ascii_case(b"chunked") && request.version == Some(1));
        }
        _ => panic!("{} has both, or one twice", bytes.escape_ascii()),
    }
    assert!(
        values_of("host").len() == 1
            || (values_of("host").is_empty() && request.version == Some(0))
    );

    let sent = RequestHeader::build(method, target.as_bytes(), None).expect("a target");
    let path = head::request_path(&bytes[..end]);
    assert_eq!(sent.uri.path(), if path.is_empty() { "/" } else { &path });
}
