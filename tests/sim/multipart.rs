//! Forms of several parts, read as strictly as their definition allows.

use memchr::memmem;

/// No part has more headers.
const HEADERS_MAX: usize = 16;
const BOUNDARY_BYTES_MAX: usize = 70;

/// A part of a form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub(super) name: String,
    /// How the sender calls it; parts with such a name are files.
    pub(super) filename: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) body: &'a [u8],
}

/// The parts of a body with this content type; the error tells what is wrong with it.
pub(super) fn parts<'a>(content_type: &str, body: &'a [u8]) -> Result<Vec<Part<'a>>, String> {
    let (media, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !media.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(format!("'{content_type}' is no form of several parts"));
    }
    let boundary = parameter(parameters, "boundary").filter(|boundary| !boundary.is_empty());
    let boundary = boundary.ok_or("the content type names no boundary")?;
    if boundary.len() > BOUNDARY_BYTES_MAX {
        return Err("the boundary is too long".to_owned());
    }
    let delimiter = format!("\r\n--{boundary}");
    let finder = memmem::Finder::new(delimiter.as_bytes());
    // The first delimiter needs no line before it.
    let mut rest = match body.strip_prefix(&delimiter.as_bytes()[2..]) {
        Some(rest) => rest,
        None => after(body, finder.find(body), delimiter.len())?,
    };
    let mut parts = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let inside = rest[padding..].strip_prefix(b"\r\n");
        let inside =
            inside.ok_or("a boundary is followed by something else than its line's end")?;
        let end = finder.find(inside);
        rest = after(inside, end, delimiter.len())?;
        parts.push(part(&inside[..end.unwrap_or_default()])?);
    }
}

fn after(bytes: &[u8], found: Option<usize>, length: usize) -> Result<&[u8], String> {
    let at = found.ok_or("the form ends before its last boundary")?;
    Ok(&bytes[at + length..])
}

fn part(bytes: &[u8]) -> Result<Part<'_>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let Ok(httparse::Status::Complete((length, headers))) =
        httparse::parse_headers(bytes, &mut headers)
    else {
        return Err("the headers of a part are unreadable".to_owned());
    };
    let header = |name: &str| {
        let found = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let disposition = header("content-disposition").ok_or("a part has no content-disposition")?;
    let (kind, parameters) = disposition.split_once(';').unwrap_or((disposition, ""));
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(format!("a part is disposed as '{disposition}'"));
    }
    let name = parameter(parameters, "name").filter(|name| !name.is_empty());
    Ok(Part {
        name: name.ok_or("a part has no name")?,
        filename: parameter(parameters, "filename"),
        content_type: header("content-type").map(str::to_owned),
        body: &bytes[length..],
    })
}

/// One of the parameters after the first `;` of a header.
fn parameter(mut rest: &str, wanted: &str) -> Option<String> {
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after.trim_start())?;
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after.trim_start().strip_prefix(';')?;
    }
}

/// A value, quoted or not, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            _ => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "multipart/form-data; charset=utf-8; boundary=\"a b\"";

    fn part<'a>(name: &str, file: Option<&str>, media: Option<&str>, body: &'a str) -> Part<'a> {
        Part {
            name: name.to_owned(),
            filename: file.map(str::to_owned),
            content_type: media.map(str::to_owned),
            body: body.as_bytes(),
        }
    }

    #[test]
    fn forms_are_read() {
        let plain = "--a b\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n1\r\n--a b--\r\n";
        assert_eq!(parts(FORM, plain.as_bytes()), Ok(vec![part("n", None, None, "1")]));
        let wild = "preamble\r\n--a b \t\r\ncontent-type: image/png\r\ncontent-disposition: \
            form-data; name=\"im\\\"age[]\"; filename=\"a;b=c.png\"\r\n\r\n\r\n--a\r\n\r\n--a b\r\n\
            Content-Disposition: form-data; filename=; name=x\r\n\r\n\r\n--a b--epilogue";
        let read = parts(FORM, wild.as_bytes());
        let image = part("im\"age[]", Some("a;b=c.png"), Some("image/png"), "\r\n--a\r\n");
        assert_eq!(read, Ok(vec![image, part("x", Some(""), None, "")]));
        assert_eq!(parts("multipart/form-data; boundary=x", b"--x--"), Ok(Vec::new()));
    }

    #[test]
    fn broken_forms_are_refused() {
        let head = "content-disposition: form-data; name=\"n\"";
        for (content_type, body, why) in [
            ("application/json", "--x--".to_owned(), "no form of several parts"),
            ("multipart/form-data", "--x--".to_owned(), "names no boundary"),
            ("multipart/form-data; boundary=x", String::new(), "before its last boundary"),
            (
                "multipart/form-data; boundary=x",
                format!("--x\r\n{head}\r\n\r\n1"),
                "before its last",
            ),
            (
                "multipart/form-data; boundary=x",
                format!("--xy\r\n{head}\r\n\r\n1\r\n--x--"),
                "else",
            ),
            (
                "multipart/form-data; boundary=x",
                "--x\r\n\r\n1\r\n--x--".to_owned(),
                "no content-disp",
            ),
            (
                "multipart/form-data; boundary=x",
                format!("--x\r\n{head}\r\n1\r\n--x--"),
                "unreadable",
            ),
            (
                "multipart/form-data; boundary=x",
                "--x\r\ncontent-disposition: form-data\r\n\r\n1\r\n--x--".to_owned(),
                "no name",
            ),
        ] {
            let error = parts(content_type, body.as_bytes()).expect_err("a broken form");
            assert!(error.contains(why), "{body:?}: {error}");
        }
    }
}
