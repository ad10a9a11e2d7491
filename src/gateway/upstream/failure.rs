//! Why a route failed, in the few words of the log, the metrics and `/readyz`.

use pingora::{Error, ErrorType};

use crate::dialect::relay::RelayError;

/// The head of an answer is that of something else, or its body is compressed.
pub(crate) const UNREADABLE: &str = "unreadable";
/// The vendor took a call and did not answer in time.
pub(crate) const NO_RESPONSE: &str = "silent";
/// It broke before the first byte of an answer.
pub(crate) const RESET: &str = "reset";
/// An answer without a body.
pub(crate) const EMPTY: &str = "empty";
/// A page for people.
pub(crate) const HTML: &str = "html";
/// Its name has no address.
pub(crate) const DNS: &str = "dns";

/// How vendors name what is wrong with a call.
const INVALID_REQUEST_KIND: &str = "invalid_request_error";

/// Why a status is no answer.
#[must_use]
pub(crate) fn reason_for_status(status: u16) -> &'static str {
    match status {
        300..=399 => "redirect",
        401..=403 => "auth",
        408 => "timeout",
        429 => "rate_limit",
        503 | 529 => "overloaded",
        _ => "status",
    }
}

/// Why an answer is lost; `None` where the vendor is not to blame.
#[must_use]
pub(crate) fn reason_for_answer(why: &RelayError, is_stream: bool) -> Option<&'static str> {
    match why {
        RelayError::Truncated => Some("cut"),
        RelayError::Malformed => Some("garbage"),
        RelayError::Stalled => Some("stalled"),
        // What is wrong with a call, be it found late, says nothing of the route.
        RelayError::Vendor(error)
            if is_stream && error.kind.as_deref() == Some(INVALID_REQUEST_KIND) =>
        {
            None
        }
        RelayError::Vendor(_) => Some("error"),
        // How long an answer is its call decides.
        RelayError::TooLarge
        | RelayError::Abandoned
        | RelayError::SlowReader
        | RelayError::InsufficientCredits
        | RelayError::LedgerUnavailable
        | RelayError::NoBufferSpace
        | RelayError::ContentFiltered => None,
    }
}

/// Why a connection could not be made. Of TLS only the text of an error tells.
#[must_use]
pub(crate) fn reason_for_connect(why: &Error) -> &'static str {
    match why.etype() {
        ErrorType::ConnectRefused => "connect_refused",
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout => "connect_timeout",
        _ => reason_for_handshake(&why.to_string()),
    }
}

/// Whether the vendor ended the stream of a call over a connection that goes on: it has read the
/// call, unless it says that it has not (RFC 9113, section 8.7).
#[must_use]
pub(crate) fn has_reset_stream(why: &Error) -> bool {
    let reset = why.root_cause().downcast_ref::<h2::Error>();
    reset.is_some_and(|why| {
        why.is_reset() && why.is_remote() && why.reason() != Some(h2::Reason::REFUSED_STREAM)
    })
}

fn reason_for_handshake(text: &str) -> &'static str {
    // Names of hosts may be any words.
    let text = text.rsplit_once(", SNI: ").map_or(text, |(said, _)| said).to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["not valid for name", "notvalidforname"]) {
        "tls_wrong_name"
    } else if says(&["unknownissuer", "unknown issuer", "causedasendentity"]) {
        "tls_unknown_ca"
    } else if says(&["expired", "notvalidyet", "not valid yet"]) {
        "tls_expired"
    } else if says(&["reset by peer", "unexpected eof", "handshake eof", "broken pipe"]) {
        "connect_reset"
    } else if says(&["tls", "certificate"]) {
        "tls"
    } else {
        "connect"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        "TLS connect() failed: invalid peer certificate: UnknownIssuer, SNI: expired.test",
        "tls_unknown_ca"
    )]
    #[case(
        "TLS connect() failed: certificate not valid for name \"a\"; only for expired, SNI: a",
        "tls_wrong_name"
    )]
    #[case("invalid peer certificate: certificate expired: now is 1, SNI: a", "tls_expired")]
    #[case("TLS connect() failed: tls handshake eof, SNI: a", "connect_reset")]
    #[case("TLS connect() failed: received fatal alert: BadCertificate, SNI: a", "tls")]
    #[case("no buffer space", "connect")]
    fn a_failed_connection_has_a_reason(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(reason_for_handshake(text), expected);
    }
}
