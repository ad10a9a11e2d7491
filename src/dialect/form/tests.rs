//! Forms as clients write them, forms that can be read in two ways, and forms cut anywhere.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const LIMITS: FormLimits = FormLimits { parts_max: 16, text_bytes_max: 4_096, file_bytes_max: 100 };
const TYPE: &str = "multipart/form-data; boundary=XX";

fn read_in(content_type: &str, body: &[u8], size: usize) -> Result<Form, FormError> {
    let mut reader = FormReader::new(content_type, LIMITS)?;
    for piece in body.chunks(size) {
        reader.push(Bytes::copy_from_slice(piece))?;
    }
    reader.finish()
}

/// Describes the parts as strings that can be compared, however the content is sliced.
fn describe_parts(form: &Form) -> Vec<String> {
    let describe_part = |part: &FormPart| match &part.content {
        PartContent::Text(text) => format!("{}={text}", part.name),
        PartContent::File(file) => {
            let content = file.content.concat();
            assert_eq!(content.len(), file.length);
            let (name, kind) = (file.name.as_deref(), file.content_type.as_deref());
            let (name, kind) = (name.unwrap_or("?"), kind.unwrap_or("?"));
            format!("{}={name} {kind} {}", part.name, content.escape_ascii())
        }
    };
    form.parts.iter().map(describe_part).collect()
}

#[rstest]
#[case::browser(
    "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
    "------WebKitFormBoundary7MA4YWxkTrZu0gW\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\
     \r\na \"cat\"\r\nsits\r\n------WebKitFormBoundary7MA4YWxkTrZu0gW\r\nContent-Disposition: \
     form-data; name=\"image\"; filename=\"a%22b.png\"\r\nContent-Type: image/png\r\n\r\n\
     \x01\r\n--\r\n------WebKitFormBoundary7MA4YWxkTrZu0gW--\r\n",
    &["prompt=a \"cat\"\r\nsits", "image=a\"b.png image/png \\x01\\r\\n--"],
)]
#[case::httpx_and_requests(
    "multipart/form-data; boundary=0b1e2d3c4f5a69788796a5b4c3d2e1f0",
    "--0b1e2d3c4f5a69788796a5b4c3d2e1f0\r\nContent-Disposition: form-data; name=\"image[]\"; \
     filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\nx\r\n\
     --0b1e2d3c4f5a69788796a5b4c3d2e1f0\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n1\r\n\
     --0b1e2d3c4f5a69788796a5b4c3d2e1f0--\r\n",
    &["image[]=a.png image/png x", "n=1"],
)]
#[case::undici(
    "multipart/form-data; boundary=----formdata-undici-012345678901",
    "------formdata-undici-012345678901\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n1\r\n\
     ------formdata-undici-012345678901\r\nContent-Disposition: form-data; name=\"image\"; \
     filename=\"a.png\"\r\nContent-Type: application/octet-stream\r\n\r\nx\r\n\
     ------formdata-undici-012345678901--\r\n",
    &["n=1", "image=a.png application/octet-stream x"],
)]
#[case::node_form_data_and_curl(
    "multipart/form-data; boundary=--------------------------515890814546601021194782",
    "----------------------------515890814546601021194782\r\nContent-Disposition: form-data; \
     name=\"image\"; filename=\"a\\\"b.png\"\r\nContent-Type: image/png\r\n\r\n\r\n\
     ----------------------------515890814546601021194782--\r\n",
    &["image=a\"b.png image/png "],
)]
#[case::dotnet(
    "multipart/form-data; boundary=\"a1b2-c3d4\"",
    "--a1b2-c3d4\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; \
     name=prompt\r\n\r\né\r\n--a1b2-c3d4\r\nContent-Disposition: form-data; name=image; \
     filename=\"=?utf-8?B?w6kucG5n?=\"; filename*=utf-8''%C3%A9.png\r\n\r\nx\r\n--a1b2-c3d4--\r\n",
    &["prompt=é", "image=é.png ? x"],
)]
#[case::java(
    "multipart/form-data; boundary=\"----=_Part_1 2:3(4)/5?,'+.6\"; charset=ISO-8859-1",
    "------=_Part_1 2:3(4)/5?,'+.6\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\
     Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n\
     Content-Length: 3\r\nX-Other: a\r\n\r\ncat\r\n------=_Part_1 2:3(4)/5?,'+.6--",
    &["prompt=cat"],
)]
#[case::line_break_before_and_space_after(
    "Multipart/Form-Data;boundary=XX;",
    "\r\n--XX\r\ncontent-disposition:form-data;name=a\r\n\r\n\r\n--XX--\r\n \t\r\n",
    &["a="],
)]
#[case::file_that_nobody_chose(
    TYPE,
    "--XX\r\nContent-Disposition: form-data; name=\"image\"; filename=\"\"\r\nContent-Type: \
     application/octet-stream\r\n\r\n\r\n--XX--",
    &["image= application/octet-stream "],
)]
#[case::name_in_another_charset(
    TYPE,
    "--XX\r\nContent-Disposition: form-data; name=\"f\"; filename*=latin1''%e9\r\nContent-Type:\r\n\
     \r\n\r\n--XX--",
    &["f=? ? "],
)]
#[case::nothing_but_its_end(TYPE, "--XX--\r\n", &[])]
#[case::nearly_boundaries(
    TYPE,
    "--XX\r\nContent-Disposition: form-data; name=\"f\"; filename=\"\"\r\n\r\n--XX\r\r\n-\r\n\r\n\
     --X\r\n--\rX--XX\n--X\n\n\r\n--XX--",
    &["f= ? --XX\\r\\r\\n-\\r\\n\\r\\n--X\\r\\n--\\rX--XX\\n--X\\n\\n"],
)]
#[case::boundary_of_dashes(
    "multipart/form-data; boundary=--",
    "----\r\nContent-Disposition: form-data; name=\"f\"; filename=\"\"\r\n\r\n-----\r\n---\r\r\n\
     ------",
    &["f= ? -----\\r\\n---\\r"],
)]
fn what_clients_write_is_read(
    #[case] content_type: &str,
    #[case] body: &str,
    #[case] expected: &[&str],
) {
    for size in [1, 2, 3, 7, 64, body.len()] {
        let read = read_in(content_type, body.as_bytes(), size).expect("a sound form");
        assert_eq!(describe_parts(&read), expected, "in pieces of {size}");
    }
}

#[rstest]
#[case::json("application/json")]
#[case::nothing("")]
#[case::no_boundary("multipart/form-data")]
#[case::another_kind("multipart/mixed; boundary=XX")]
#[case::empty("multipart/form-data; boundary=\"\"")]
#[case::two("multipart/form-data; boundary=XX; boundary=YY")]
#[case::two_in_other_letters("multipart/form-data; boundary=XX; Boundary=XX")]
#[case::two_values("multipart/form-data; boundary=XX, multipart/form-data; boundary=YY")]
#[case::in_an_extended_value("multipart/form-data; boundary=XX; boundary*=utf-8''YY")]
#[case::in_pieces("multipart/form-data; boundary=XX; boundary*0=YY")]
#[case::too_long(
    "multipart/form-data; boundary=\
    00000000001111111111222222222233333333334444444444555555555566666666667"
)]
#[case::space_at_its_end("multipart/form-data; boundary=\"XX \"")]
#[case::not_of_its_set("multipart/form-data; boundary=\"X\u{e9}\"")]
#[case::escaped("multipart/form-data; boundary=\"X\\\"\"")]
#[case::needs_quotes("multipart/form-data; boundary=X=Y")]
#[case::line_break("multipart/form-data; boundary=\"X\r\nY\"")]
#[case::another_charset("multipart/form-data; boundary=XX; charset=utf-16")]
fn a_content_type_that_is_not_one_of_a_form_is_refused(#[case] content_type: &str) {
    let fault = FormReader::new(content_type, LIMITS).expect_err("no form");
    assert!(matches!(fault, FormError::NotForm(_)), "{fault}");
    assert_eq!(CallError::from(fault).code, "invalid_form");
}

#[test]
fn a_boundary_may_be_as_long_as_the_standard_says() {
    let boundary = "0123456789".repeat(7);
    let content_type = format!("multipart/form-data; boundary={boundary}");
    assert!(read_in(&content_type, format!("--{boundary}--").as_bytes(), 9).is_ok());
}

/// Returns a form of one empty part with these headers.
fn headed(headers: &str) -> String {
    format!("--XX\r\n{headers}\r\n\r\n\r\n--XX--")
}

#[rstest]
#[case::no_name("Content-Disposition: form-data", "no name")]
#[case::no_disposition("Content-Type: text/plain", "no name")]
#[case::nothing_at_all("", "no name")]
#[case::empty_name("Content-Disposition: form-data; name=\"\"", "empty name")]
#[case::two_names("Content-Disposition: form-data; name=a; name=b", "'name' stands twice")]
#[case::two_names_alike("Content-Disposition: form-data; name=a; NAME=\"a\"", "stands twice")]
#[case::extended_name("Content-Disposition: form-data; name=a; name*=utf-8''b", "'name*'")]
#[case::file_name_in_pieces("Content-Disposition: form-data; name=a; filename*0=b", "filename*0")]
#[case::two_file_names(
    "Content-Disposition: form-data; name=a; filename=b; filename=c",
    "'filename' stands twice"
)]
#[case::quoted_extended(
    "Content-Disposition: form-data; name=a; filename*=\"utf-8''b\"",
    "in quotes"
)]
#[case::unsound_extended("Content-Disposition: form-data; name=a; filename*=b", "with a charset")]
#[case::lone_backslash("Content-Disposition: form-data; name=\"mas\\k\"", "lone backslash")]
#[case::attachment("Content-Disposition: attachment; name=a", "not form-data")]
#[case::two_dispositions(
    "Content-Disposition: form-data; name=a\r\ncontent-disposition: form-data; name=b",
    "'content-disposition' stands twice"
)]
#[case::unknown_twice("X-A: 1\r\nx-a: 1", "'x-a' stands twice")]
#[case::folded("Content-Disposition: form-data;\r\n name=a", "next line")]
#[case::space_before_the_colon("Content-Disposition : form-data; name=a", "is no header")]
#[case::no_colon("Content-Disposition", "is no header")]
#[case::lone_line_feed("X-A: 1\nContent-Disposition: form-data; name=a", "lone line feed")]
#[case::lone_return("X-A: 1\rContent-Disposition: form-data; name=a", "control character")]
#[case::zero_byte("Content-Disposition: form-data; name=\"a\0\"", "control character")]
#[case::base64(
    "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64",
    "'base64'"
)]
#[case::parts_inside(
    "Content-Disposition: form-data; name=a\r\nContent-Type: Multipart/mixed; boundary=YY",
    "parts of its own"
)]
#[case::another_charset(
    "Content-Disposition: form-data; name=a\r\nContent-Type: text/plain; charset=utf-7",
    "'utf-7'"
)]
#[case::many_headers(
    "a:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\ng:\r\nh:\r\ni:\r\n\
     j:\r\nk:\r\nl:\r\nm:\r\nn:\r\no:\r\np:\r\nq:",
    "more than 16 headers"
)]
fn headers_that_can_be_read_in_two_ways_are_refused(#[case] headers: &str, #[case] says: &str) {
    for size in [1, 5, 1_000] {
        let fault = read_in(TYPE, headed(headers).as_bytes(), size).expect_err("unsound");
        assert!(matches!(fault, FormError::Malformed { .. }), "{fault}");
        assert!(fault.to_string().contains(says), "{fault}");
    }
}

#[rstest]
#[case::text_before("hi\r\n--XX--", 0, "begin with its boundary")]
#[case::line_feed_before("\n--XX--", 0, "begin with its boundary")]
#[case::two_line_breaks_before("\r\n\r\n--XX--", 2, "begin with its boundary")]
#[case::another_boundary("--XY--", 3, "begin with its boundary")]
#[case::longer_boundary("--XXX\r\n", 4, "followed by")]
#[case::space_after_the_boundary("--XX \r\n", 4, "followed by")]
#[case::line_feed_after_the_boundary("--XX\n", 4, "followed by")]
#[case::one_dash("--XX-\r\n", 5, "followed by")]
#[case::text_after("--XX--\r\nhi", 8, "after the last boundary")]
#[case::form_after("--XX--\r\n--XX--\r\n", 8, "after the last boundary")]
#[case::nothing("", 0, "before its last boundary")]
#[case::no_last_boundary("--XX\r\n", 6, "before its last boundary")]
#[case::boundary_that_ends("--XX-", 5, "before its last boundary")]
fn a_frame_that_can_be_read_in_two_ways_is_refused(
    #[case] body: &str,
    #[case] at: usize,
    #[case] says: &str,
) {
    for size in [1, 3, 100] {
        match read_in(TYPE, body.as_bytes(), size) {
            Err(FormError::Malformed { offset, what }) => {
                assert_eq!(offset, at, "{what}");
                assert!(what.contains(says), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[rstest]
#[case::line_feed("a\n--XX--")]
#[case::carriage_return("a\r--XX--")]
#[case::two_line_feeds("a\n\n--XX--")]
#[case::turned_around("a\n\r--XX--")]
fn a_boundary_after_half_a_line_break_is_refused(#[case] content: &str) {
    let body = format!("--XX\r\nContent-Disposition: form-data; name=a\r\n\r\n{content}");
    for size in 1..=body.len() {
        let fault = read_in(TYPE, body.as_bytes(), size).expect_err("unsound");
        assert!(fault.to_string().contains("after CR and LF"), "{fault}");
    }
}

fn form_of(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (disposition, content) in parts {
        let head = format!("--XX\r\nContent-Disposition: form-data; {disposition}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--XX--\r\n");
    body
}

#[rstest]
#[case::utf8("name=a", "é".as_bytes(), true)]
#[case::not_utf8("name=a", b"\xff", false)]
#[case::file("name=a; filename=b", b"\xff", true)]
#[case::not_ascii("name=a\r\nContent-Type: text/plain; charset=latin1", "é".as_bytes(), false)]
#[case::ascii("name=a\r\nContent-Type: text/plain; charset=latin1", b"e", true)]
fn a_text_reads_as_utf8_or_is_refused(
    #[case] part: &str,
    #[case] content: &[u8],
    #[case] sound: bool,
) {
    let read = read_in(TYPE, &form_of(&[(part, content)]), 10);
    assert_eq!(read.is_ok(), sound, "{read:?}");
}

#[test]
fn limits_hold_to_the_byte() {
    let file = |length: usize| form_of(&[("name=image; filename=a", &vec![b'-'; length])]);
    let too_large = FormError::FileTooLarge { name: "image".to_owned(), most: 100 };
    let text = |length: usize| {
        let text = vec![b'a'; length - 96];
        form_of(&[("name=a", &[b'a'; 96]), ("name=b", &text)])
    };
    for size in [1, 9, 10_000] {
        assert!(read_in(TYPE, &file(100), size).is_ok());
        assert_eq!(read_in(TYPE, &file(101), size).err(), Some(too_large.clone()));
        assert!(read_in(TYPE, &text(4_096), size).is_ok());
        assert_eq!(read_in(TYPE, &text(4_097), size).err(), Some(FormError::TextTooLarge(4_096)));
        assert!(read_in(TYPE, &form_of(&[("name=a", &b""[..]); 16]), size).is_ok());
        let parts =
            read_in(TYPE, &form_of(&[("name=a", &b""[..]); 17]), size).expect_err("too many");
        assert!(parts.to_string().contains("more than 16 parts"), "{parts}");
    }
    let fault = CallError::from(too_large);
    assert_eq!((fault.code, fault.param.as_deref()), ("request_too_large", Some("image")));
}

#[test]
fn the_headers_of_a_part_have_a_limit_to_the_byte() {
    let headed = |length: usize| {
        let start = "Content-Disposition: form-data; name=a\r\nX: ";
        let padding = "x".repeat(length - start.len() - "\r\n\r\n".len());
        format!("--XX\r\n{start}{padding}\r\n\r\n\r\n--XX--")
    };
    for size in [1, 1_000, 100_000] {
        assert!(read_in(TYPE, headed(8_192).as_bytes(), size).is_ok());
        let fault = read_in(TYPE, headed(8_193).as_bytes(), size).expect_err("too long");
        assert!(
            matches!(fault, FormError::Malformed { offset, .. } if offset == 6 + 8_192),
            "{fault}"
        );
    }
}

#[test]
fn a_file_too_large_is_told_before_its_end_and_ever_after() {
    let mut reader = FormReader::new(TYPE, LIMITS).expect("a form");
    let body = form_of(&[("name=image; filename=a", &[b'a'; 200])]);
    let head = body.len() - 200 - "\r\n--XX--\r\n".len();
    assert_eq!(reader.push(Bytes::copy_from_slice(&body[..head + 100])), Ok(()));
    let fault = reader.push(Bytes::from_static(b"a")).expect_err("one byte too many");
    assert_eq!(reader.push(Bytes::from_static(b"\r\n--XX--")), Err(fault.clone()));
    assert_eq!(reader.finish().err(), Some(fault));
}

#[test]
fn a_large_file_is_slices_of_its_pieces_and_tiny_pieces_are_gathered() {
    let limits = FormLimits { file_bytes_max: 1 << 20, ..LIMITS };
    let content: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
    let body = Bytes::from(form_of(&[("name=image; filename=a", &content)]));
    let spans = body.as_ptr_range();
    for (size, slices_max) in [(1 << 16, 20), (4_096, 260), (100, 17), (1, 17)] {
        let mut reader = FormReader::new(TYPE, limits).expect("a form");
        for at in (0..body.len()).step_by(size) {
            reader.push(body.slice(at..body.len().min(at + size))).expect("sound so far");
        }
        let shown = format!("{reader:?}");
        assert!(shown.len() < 2_000, "a reader shows content");
        let form = reader.finish().expect("sound");
        let PartContent::File(file) = &form.parts[0].content else { panic!("no file") };
        assert_eq!(file.content.concat(), content);
        assert!(file.content.len() <= slices_max, "{} slices", file.content.len());
        let copied = file.content.iter().filter(|s| !spans.contains(&s.as_ptr()));
        let copied: usize = copied.map(Bytes::len).sum();
        assert!(size < 4_096 || copied < 16_384, "{copied} bytes copied");
        assert!(format!("{form:?}").len() < 500, "a form shows content");
    }
}

/// Generates content that contains parts of boundaries and bytes that look like them.
fn near_boundaries() -> impl Strategy<Value = Vec<u8>> {
    let pieces = ["\r\n", "\r", "\n", "-", "--", "X", "--XX", "\r\n--X", "é"];
    let piece = proptest::sample::select(pieces.map(str::as_bytes).to_vec());
    proptest::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// Whether the content contains a boundary after CR LF, or after only one of them.
fn is_torn(content: &[u8]) -> bool {
    let content = [b"\r\n", content, b"\r\n"].concat();
    content.windows(5).any(|w| matches!(w[0], b'\r' | b'\n') && &w[1..] == b"--XX")
}

fn quoted(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

proptest! {
    #[test]
    fn a_form_reads_the_same_wherever_it_is_cut(
        files in proptest::collection::vec(("[a-z\"\\\\\r\n é]{1,8}", near_boundaries()), 0..6),
        texts in proptest::collection::vec("[a-zé\r\n-]{0,20}", 0..6),
        cuts in proptest::collection::vec(1..40usize, 1..40),
    ) {
        prop_assume!(!files.iter().any(|(_, content)| is_torn(content) || content.len() > 100));
        let (mut parts, mut expected) = (Vec::new(), Vec::new());
        for (name, content) in &files {
            parts.push((format!("name=\"{0}\"; filename=\"{0}\"", quoted(name)), &content[..]));
            expected.push(format!("{name}={name} ? {}", content.escape_ascii()));
        }
        for text in &texts {
            parts.push(("name=\"t\"".to_owned(), text.as_bytes()));
            expected.push(format!("t={text}"));
        }
        let parts: Vec<_> = parts.iter().map(|(head, content)| (&**head, *content)).collect();
        let body = Bytes::from(form_of(&parts));
        let whole = read_in(TYPE, &body, body.len());
        prop_assert_eq!(describe_parts(&whole.expect("sound")), expected.clone());
        let mut reader = FormReader::new(TYPE, LIMITS).expect("a form");
        let (mut rest, mut cuts) = (body, cuts.into_iter().cycle());
        while !rest.is_empty() {
            let size = cuts.next().unwrap_or(1).min(rest.len());
            reader.push(rest.split_to(size)).expect("sound");
        }
        prop_assert_eq!(describe_parts(&reader.finish().expect("sound")), expected);
    }

    #[test]
    fn whatever_comes_is_read_or_refused_the_same_wherever_it_is_cut(
        begins in any::<bool>(),
        garbage in near_boundaries(),
        more in proptest::collection::vec(any::<u8>(), 0..40),
        size in 1..20usize,
    ) {
        let head = &b"--XX\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\n"[..];
        let body = [if begins { head } else { b"" }, &garbage, &more, b"\r\n--XX--"].concat();
        let whole = read_in(TYPE, &body, body.len());
        let cut = read_in(TYPE, &body, size);
        prop_assert_eq!(whole.map(|form| describe_parts(&form)), cut.map(|f| describe_parts(&f)));
    }

    #[test]
    fn no_content_type_makes_a_reader_panic(content_type in "multipart/form-data;.{0,40}") {
        let _ = FormReader::new(&content_type, LIMITS);
    }

    #[test]
    fn no_headers_make_a_reader_panic(headers in "Content-Disposition: form-data;.{0,40}") {
        let _ = read_in(TYPE, headed(&headers).as_bytes(), 7);
    }
}
