//! The words for what is refused before a request is one.

use super::{INVALID, Refusal, SERVER};
use crate::gateway::edge::head::{FIELDS_MAX, Fault};

impl Refusal {
    /// Status, type, code and message of what is wrong with how a request comes.
    pub(super) fn at_the_edge(&self) -> (u16, &'static str, &'static str, String) {
        match self {
            Refusal::BodySlow => {
                (408, INVALID, "request_timeout", "the body came too slowly".to_owned())
            }
            Refusal::HeadSlow => (
                408,
                INVALID,
                "request_timeout",
                "the head of the request took too long".to_owned(),
            ),
            Refusal::HeadTooLarge(most) => (
                431,
                INVALID,
                "headers_too_large",
                format!("the head of a request may have {most} bytes at most"),
            ),
            Refusal::Head(fault) => {
                let (status, code, message) = fault.plain();
                (status, INVALID, code, message)
            }
            Refusal::Overloaded => {
                (503, SERVER, "overloaded", "there is too much to do at the moment".to_owned())
            }
            Refusal::TooManyRequests(message) => {
                (429, "rate_limit_error", "rate_limit_exceeded", (*message).to_owned())
            }
            _ => self.of_videos(),
        }
    }
}

impl Fault {
    /// The field at fault, if it is a certain one.
    pub(super) fn field(self) -> Option<&'static str> {
        match self {
            Fault::NoHost | Fault::Hosts | Fault::Host => Some("host"),
            Fault::Lengths | Fault::Length => Some("content-length"),
            Fault::Coding => Some("transfer-encoding"),
            Fault::Expectation => Some("expect"),
            Fault::Upgrade => Some("upgrade"),
            _ => None,
        }
    }

    fn plain(self) -> (u16, &'static str, String) {
        let (status, code, message) = match self {
            Fault::Connect => (405, "method_not_allowed", "this is no proxy; use GET or POST"),
            Fault::Expectation => {
                (417, "expectation_failed", "nothing but '100-continue' can be expected")
            }
            Fault::Upgrade => (
                400,
                "upgrade_refused",
                "the connection cannot be upgraded; streams come as server-sent events",
            ),
            Fault::Fields => {
                let message = format!("the head of a request may have {FIELDS_MAX} fields at most");
                return (431, "headers_too_large", message);
            }
            _ => (400, "bad_request", self.wrong()),
        };
        (status, code, message.to_owned())
    }

    fn wrong(self) -> &'static str {
        match self {
            Fault::Line => "a line of the head does not end with CR LF",
            Fault::Start => "the request does not begin with a line such as 'POST /v1 HTTP/1.1'",
            Fault::Version => "only HTTP/1.1 and HTTP/1.0 are spoken here, and HTTP/2 over TLS",
            Fault::Target => {
                "the target must be a path, or an address with the host of this server"
            }
            Fault::NoHost => "there is no host field",
            Fault::Hosts => "there is more than one host",
            Fault::Host => "the host is no name and no address",
            Fault::Name => "a field has no name, or one with other characters than a token's",
            Fault::Space => "there is space between the name of a field and its colon",
            Fault::Folded => "a field goes on in the next line",
            Fault::Value => "a field has control characters in it",
            Fault::Lengths => "the length of the body is told more than once",
            Fault::Length => "the length of the body is no plain number",
            Fault::Coding => "the transfer encoding may only be 'chunked', once, and in HTTP/1.1",
            Fault::Chunks => "the body is to come in chunks, but does not begin with one",
            Fault::Connect | Fault::Expectation | Fault::Upgrade | Fault::Fields => "",
        }
    }
}
