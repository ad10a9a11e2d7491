//! The reasons for which a route fails, as short labels for the log, the metrics and `/readyz`.

use pingora::{Error, ErrorType};

use crate::dialect::relay::RelayError;

/// The response has an unexpected content type, or its body is compressed.
pub(crate) const UNREADABLE: &str = "unreadable";
/// The vendor accepted the request and did not answer in time.
pub(crate) const NO_RESPONSE: &str = "silent";
/// The connection broke before the first byte of a response.
pub(crate) const RESET: &str = "reset";
/// The response has no body.
pub(crate) const EMPTY: &str = "empty";
/// The response is an HTML page.
pub(crate) const HTML: &str = "html";
/// The host name of the route has no resolved address.
pub(crate) const DNS: &str = "dns";

/// The kind of a vendor's error that blames the request.
const INVALID_REQUEST_KIND: &str = "invalid_request_error";

/// Returns the reason for a status that is not a usable answer.
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

/// Returns why a response was lost after it had begun. `None` if the vendor is not to blame.
#[must_use]
pub(crate) fn reason_for_answer(why: &RelayError, is_stream: bool) -> Option<&'static str> {
    match why {
        RelayError::Truncated => Some("cut"),
        RelayError::Malformed => Some("garbage"),
        RelayError::Stalled => Some("stalled"),
        // An error in the request says nothing about the route, even if the vendor reports it only
        // after the stream has begun.
        RelayError::Vendor(error)
            if is_stream && error.kind.as_deref() == Some(INVALID_REQUEST_KIND) =>
        {
            None
        }
        RelayError::Vendor(_) => Some("error"),
        // A response that is too long is not the route's fault: the call decides how long it is.
        RelayError::TooLarge
        | RelayError::Abandoned
        | RelayError::SlowReader
        | RelayError::InsufficientCredits
        | RelayError::AccountSuspended
        | RelayError::LedgerUnavailable
        | RelayError::NoBufferSpace
        | RelayError::ContentFiltered
        // So does every route of the vendor whose rules say otherwise.
        | RelayError::ImageAddress => None,
    }
}

/// Returns why a connection could not be made. TLS errors can only be told apart by their text.
#[must_use]
pub(crate) fn reason_for_connect(why: &Error) -> &'static str {
    match why.etype() {
        ErrorType::ConnectRefused => "connect_refused",
        ErrorType::ConnectTimedout | ErrorType::TLSHandshakeTimedout => "connect_timeout",
        _ => reason_for_handshake(&why.to_string()),
    }
}

/// Whether the vendor reset the HTTP/2 stream of a request with another code than `REFUSED_STREAM`.
/// The connection stays open, and the vendor has read the request; `REFUSED_STREAM` says that it
/// has not (RFC 9113, section 8.7).
#[must_use]
pub(crate) fn is_stream_reset_by_vendor(why: &Error) -> bool {
    let reset = why.root_cause().downcast_ref::<h2::Error>();
    reset.is_some_and(|why| {
        why.is_reset() && why.is_remote() && why.reason() != Some(h2::Reason::REFUSED_STREAM)
    })
}

fn reason_for_handshake(text: &str) -> &'static str {
    // The host name is cut off, because it may contain any of the words below.
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
