//! Tests which heads are accepted, and for which reasons others are refused.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// Returns the length of a valid head, `None` if the head is incomplete, or why it is refused.
fn read(head: &[u8]) -> Result<Option<usize>, HeadError> {
    let Some(end) = find_end(head, 0)? else { return Ok(None) };
    check_head(&head[..end]).map(|()| Some(end))
}

#[rstest]
#[case::short("GET / HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::post("POST /v1/x HTTP/1.1\r\nhost: a.test:8080\r\ncontent-length: 12\r\n\r\n")]
#[case::empty_body("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")]
#[case::chunks("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n")]
#[case::space_about_a_value("GET / HTTP/1.1\r\nHost:\t a \t\r\nX:\r\nY: \r\n\r\n")]
#[case::no_space("GET / HTTP/1.1\r\nHost:a\r\nX:b:c\r\n\r\n")]
#[case::odd_name("GET / HTTP/1.1\r\nHost: a\r\n!#$%&'*+-.^_`|~09azAZ: x\r\n\r\n")]
#[case::foreign_letters("GET / HTTP/1.1\r\nHost: a\r\nX: \u{e9}\u{4e16}\r\n\r\n")]
#[case::address("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n")]
#[case::address_alone("GET / HTTP/1.1\r\nHost: [fe80::1.2.3.4]\r\n\r\n")]
#[case::underscore("GET / HTTP/1.1\r\nHost: a_b:1\r\n\r\n")]
#[case::absolute("GET http://a:80/v1?x=1 HTTP/1.1\r\nHost: a:80\r\n\r\n")]
#[case::absolute_without_path("GET HTTPS://a HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::of_the_server("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::old("GET / HTTP/1.0\r\n\r\n")]
#[case::old_with_host("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")]
#[case::target("GET /a-._~!$&'()*+,;=%41:@/?[] HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::two_slashes("GET //a/b HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::expects("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n\r\n")]
#[case::other_version_offered(
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
)]
fn what_is_sound_is_taken(#[case] head: &str) {
    assert_eq!(read(head.as_bytes()), Ok(Some(head.len())));
    let more = format!("{head}GET / HTTP");
    assert_eq!(read(more.as_bytes()), Ok(Some(head.len())));
}

/// Returns the head of a WebSocket handshake with this request line.
fn handshake(first: &str) -> String {
    let lines = "Host: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13";
    format!("{first}\r\n{lines}\r\n\r\n")
}

#[rstest]
#[case::plain("GET /v1/responses HTTP/1.1", HeadError::WebSocketRefused)]
#[case::query("GET /v1/responses?a=b HTTP/1.1", HeadError::WebSocketRefused)]
#[case::absolute("GET http://a/v1/responses HTTP/1.1", HeadError::WebSocketRefused)]
#[case::another_method("POST /v1/responses HTTP/1.1", HeadError::UnsupportedUpgrade)]
#[case::another_path("GET /v1/realtime HTTP/1.1", HeadError::UnsupportedUpgrade)]
#[case::below("GET /v1/responses/ HTTP/1.1", HeadError::UnsupportedUpgrade)]
#[case::old("GET /v1/responses HTTP/1.0", HeadError::UnsupportedUpgrade)]
#[case::another_host("GET http://b/v1/responses HTTP/1.1", HeadError::MultipleHosts)]
fn a_websocket_for_responses_has_an_answer_of_its_own(
    #[case] first: &str,
    #[case] fault: HeadError,
) {
    assert_eq!(read(handshake(first).as_bytes()), Err(fault));
}

#[test]
fn a_websocket_beside_another_fault_is_that_fault() {
    let head = handshake("GET /v1/responses HTTP/1.1");
    for line in ["Content-Length: 01", "Upgrade: TLS/1.2", "Upgrade: websocket, h2c"] {
        let head = head.replace("Connection", &format!("{line}\r\nConnection"));
        let fault = read(head.as_bytes()).expect_err("a fault");
        assert_ne!(fault, HeadError::WebSocketRefused, "{line}");
    }
}

/// Returns a head with this line after its `host` field.
fn with(line: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n")
}

#[rstest]
#[case::two_lengths("Content-Length: 1\r\nContent-Length: 1", HeadError::ConflictingLengths)]
#[case::length_then_chunks(
    "Content-Length: 1\r\nTransfer-Encoding: chunked",
    HeadError::ConflictingLengths
)]
#[case::chunks_then_length(
    "Transfer-Encoding: chunked\r\nContent-Length: 1",
    HeadError::ConflictingLengths
)]
#[case::list_of_lengths("Content-Length: 1, 1", HeadError::BadContentLength)]
#[case::no_length("Content-Length:", HeadError::BadContentLength)]
#[case::plus("Content-Length: +1", HeadError::BadContentLength)]
#[case::minus("Content-Length: -1", HeadError::BadContentLength)]
#[case::hexadecimal("Content-Length: 0x1", HeadError::BadContentLength)]
#[case::leading_zero("Content-Length: 01", HeadError::BadContentLength)]
#[case::two_zeros("Content-Length: 00", HeadError::BadContentLength)]
#[case::space_inside("Content-Length: 1 1", HeadError::BadContentLength)]
#[case::fraction("Content-Length: 1.0", HeadError::BadContentLength)]
#[case::endless("Content-Length: 1000000000000000", HeadError::BadContentLength)]
#[case::other_digits("Content-Length: \u{661}", HeadError::BadContentLength)]
#[case::two_encodings(
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    HeadError::BadTransferEncoding
)]
#[case::compressed("Transfer-Encoding: gzip, chunked", HeadError::BadTransferEncoding)]
#[case::chunked_first("Transfer-Encoding: chunked, identity", HeadError::BadTransferEncoding)]
#[case::identity("Transfer-Encoding: identity", HeadError::BadTransferEncoding)]
#[case::quoted("Transfer-Encoding: \"chunked\"", HeadError::BadTransferEncoding)]
#[case::parameter("Transfer-Encoding: chunked;a=b", HeadError::BadTransferEncoding)]
#[case::comma("Transfer-Encoding: chunked,", HeadError::BadTransferEncoding)]
#[case::no_encoding("Transfer-Encoding:", HeadError::BadTransferEncoding)]
#[case::letter("Transfer-Encoding: chunke", HeadError::BadTransferEncoding)]
#[case::space_before_colon("Content-Length : 1", HeadError::BadFieldName)]
#[case::tab_before_colon("Transfer-Encoding\t: chunked", HeadError::BadFieldName)]
#[case::space_in_name("Content Length: 1", HeadError::BadFieldName)]
#[case::no_colon("Content-Length", HeadError::BadFieldName)]
#[case::no_name(": a", HeadError::BadFieldName)]
#[case::quoted_name("\"a\": b", HeadError::BadFieldName)]
#[case::foreign_name("\u{e9}: b", HeadError::BadFieldName)]
#[case::zero_in_name("Host\0: b", HeadError::BadFieldName)]
#[case::folded("X: a\r\n b", HeadError::BadFieldName)]
#[case::folded_by_tab("X: a\r\n\tContent-Length: 1", HeadError::BadFieldName)]
#[case::folded_at_once(" X: a", HeadError::BadFieldName)]
#[case::bare_lf("X: a\nContent-Length: 1", HeadError::BadLineEnding)]
#[case::bare_cr("X: a\rContent-Length: 1", HeadError::ControlInValue)]
#[case::zero("X: a\0b", HeadError::ControlInValue)]
#[case::bell("X: a\u{7}b", HeadError::ControlInValue)]
#[case::deleted("X: a\u{7f}b", HeadError::ControlInValue)]
#[case::vertical_tab("Transfer-Encoding: \u{b}chunked", HeadError::ControlInValue)]
#[case::another_host("Host: b", HeadError::MultipleHosts)]
#[case::the_same_host("hOST: a", HeadError::MultipleHosts)]
#[case::wonders("Expect: wonders", HeadError::UnsupportedExpectation)]
#[case::websocket("Connection: Upgrade\r\nUpgrade: websocket", HeadError::UnsupportedUpgrade)]
#[case::either("Upgrade: h2c, websocket", HeadError::UnsupportedUpgrade)]
#[case::upgrade_to_nothing("Upgrade:", HeadError::UnsupportedUpgrade)]
fn what_could_be_read_in_two_ways_is_refused(#[case] line: &str, #[case] fault: HeadError) {
    assert_eq!(read(with(line).as_bytes()), Err(fault));
}

#[rstest]
#[case::nothing_but_a_method("GET\r\n\r\n", HeadError::BadRequestLine)]
#[case::without_version("GET /\r\n\r\n", HeadError::BadRequestLine)]
#[case::four_words("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::UnsupportedVersion)]
#[case::two_spaces("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::tab("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::space_at_the_end("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::space_first(" GET / HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::empty_line_first("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::method("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::small_letters("GET / http/1.1\r\nHost: a\r\n\r\n", HeadError::UnsupportedVersion)]
#[case::next_version("GET / HTTP/2.0\r\nHost: a\r\n\r\n", HeadError::UnsupportedVersion)]
#[case::unknown_version("GET / HTTP/1.2\r\nHost: a\r\n\r\n", HeadError::UnsupportedVersion)]
#[case::long_version("GET / HTTP/1.10\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::preface("PRI * HTTP/2.0\r\n\r\n", HeadError::UnsupportedVersion)]
#[case::tunnel("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", HeadError::ConnectMethod)]
#[case::relative("GET a HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::query_alone("GET ?a HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::star("GET * HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::fragment("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::backslash("GET /\\a HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::foreign_target("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::zero_in_target("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::other_scheme("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::one_slash("GET http:/a/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::no_authority("GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::user("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::BadTarget)]
#[case::other_authority("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::MultipleHosts)]
#[case::without_host("GET / HTTP/1.1\r\n\r\n", HeadError::MissingHost)]
#[case::absolute_without_host("GET http://a/ HTTP/1.1\r\n\r\n", HeadError::MissingHost)]
#[case::empty_host("GET / HTTP/1.1\r\nHost:\r\n\r\n", HeadError::BadHost)]
#[case::two_in_one("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", HeadError::BadHost)]
#[case::user_in_host("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", HeadError::BadHost)]
#[case::path_in_host("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", HeadError::BadHost)]
#[case::port_of_letters("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", HeadError::BadHost)]
#[case::no_port("GET / HTTP/1.1\r\nHost: a:\r\n\r\n", HeadError::BadHost)]
#[case::open_bracket("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", HeadError::BadHost)]
#[case::bare_address("GET / HTTP/1.1\r\nHost: ::1\r\n\r\n", HeadError::BadHost)]
#[case::old_and_chunked(
    "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    HeadError::BadTransferEncoding
)]
#[case::lf_alone("GET / HTTP/1.1\nHost: a\n\n", HeadError::BadLineEnding)]
#[case::lf_at_the_end("GET / HTTP/1.1\r\nHost: a\r\n\n", HeadError::BadLineEnding)]
#[case::cr_alone("GET / HTTP/1.1\rHost: a\r\r", HeadError::BadLineEnding)]
#[case::two_crs("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", HeadError::BadRequestLine)]
#[case::another_protocol("\u{16}\u{3}\u{1}", HeadError::BadRequestLine)]
fn first_lines_and_hosts_are_read_strictly(#[case] head: &str, #[case] fault: HeadError) {
    assert_eq!(read(head.as_bytes()), Err(fault));
}

#[test]
fn fields_are_counted() {
    let head = |count: usize| with(&vec!["X: y"; count - 1].join("\r\n"));
    assert!(read(head(FIELDS_MAX).as_bytes()).is_ok());
    assert_eq!(read(head(FIELDS_MAX + 1).as_bytes()), Err(HeadError::TooManyFields));
}

#[rstest]
#[case("GET /v1/messages?a HTTP/1.1\r\nHost", "/v1/messages")]
#[case("GET http://a/v1/b?c HTTP/9\r\n", "/v1/b")]
#[case("GET /v1/m", "/v1/m")]
#[case("GET", "")]
#[case("\u{16}\u{3} \u{ff}", "\u{ff}")]
fn the_path_is_found_in_whatever_there_is(#[case] head: &str, #[case] found: &str) {
    assert_eq!(request_path(head.as_bytes()), found);
}

/// Generates heads that are almost valid, and some that are valid.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "[A-Za-z-]{1,12}:[ \t]{0,2}[ -~]{0,12}",
        "(Host|host): [a-z:.\\[\\]0-9]{1,8}",
        "Content-Length: [0-9+ ]{1,3}",
        "Transfer-Encoding: (chunked|gzip|chunked,)",
        "[ -~\t]{0,12}",
    ];
    let first = "(GET|POST|P.ST) [ -~]{1,12} HTTP/1\\.[01]";
    let ends = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r"]);
    (first, ends.clone(), prop::collection::vec((line, ends), 0..5), any::<Option<(u8, u8)>>())
        .prop_map(|(first, end, lines, spot)| {
            let mut head = format!("{first}{end}").into_bytes();
            lines.iter().for_each(|(line, end)| head.extend(format!("{line}{end}").bytes()));
            head.extend(b"\r\n");
            if let Some((at, byte)) = spot {
                let at = usize::from(at) % head.len();
                head[at] = byte;
            }
            head
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn it_does_not_matter_in_which_pieces_a_head_comes(
        head in heads(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(head.len())).collect();
        cuts.push(head.len());
        cuts.sort_unstable();
        let mut looked = 0;
        let mut found = Ok(None);
        for cut in cuts {
            found = find_end(&head[..cut], looked);
            looked = cut;
            if found != Ok(None) {
                break;
            }
        }
        match (found, find_end(&head, 0)) {
            (Ok(pieces), Ok(whole)) => prop_assert_eq!(pieces, whole),
            // A head that is read in pieces may be refused for another fault than the whole head. A
            // fault that `find_end` skips in the whole head must be found by `check_head`.
            (Err(_), Ok(Some(end))) => prop_assert!(check_head(&head[..end]).is_err()),
            (pieces, whole) => prop_assert_eq!(pieces.is_err(), whole.is_err()),
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (read(&bytes), check_head(&bytes), request_path(&bytes));
    }
}
