//! The words for what is refused before a request is one.

use super::{ApiError, INVALID, SERVER};
use crate::gateway::edge::head::{FIELDS_MAX, HeadError};

impl ApiError {
    /// Status, type, code and message of what is wrong with how a request comes.
    pub(super) fn at_the_edge(&self) -> (u16, &'static str, &'static str, String) {
        match self {
            ApiError::BodySlow => {
                (408, INVALID, "request_timeout", "the body came too slowly".to_owned())
            }
            ApiError::HeadSlow => (
                408,
                INVALID,
                "request_timeout",
                "the head of the request took too long".to_owned(),
            ),
            ApiError::HeadTooLarge(most) => (
                431,
                INVALID,
                "headers_too_large",
                format!("the head of a request may have {most} bytes at most"),
            ),
            ApiError::Head(fault) => {
                let (status, code, message) = fault.plain();
                (status, INVALID, code, message)
            }
            ApiError::Overloaded => {
                (503, SERVER, "overloaded", "there is too much to do at the moment".to_owned())
            }
            ApiError::TooManyRequests(message) => {
                (429, "rate_limit_error", "rate_limit_exceeded", (*message).to_owned())
            }
            _ => self.of_videos(),
        }
    }
}

impl HeadError {
    /// The field at fault, if it is a certain one.
    pub(super) fn field(self) -> Option<&'static str> {
        match self {
            HeadError::NoHost | HeadError::Hosts | HeadError::Host => Some("host"),
            HeadError::Lengths | HeadError::Length => Some("content-length"),
            HeadError::Coding => Some("transfer-encoding"),
            HeadError::Expectation => Some("expect"),
            HeadError::Upgrade => Some("upgrade"),
            _ => None,
        }
    }

    fn plain(self) -> (u16, &'static str, String) {
        let (status, code, message) = match self {
            HeadError::Connect => (405, "method_not_allowed", "this is no proxy; use GET or POST"),
            HeadError::Expectation => {
                (417, "expectation_failed", "nothing but '100-continue' can be expected")
            }
            HeadError::Upgrade => (
                400,
                "upgrade_refused",
                "the connection cannot be upgraded; streams come as server-sent events",
            ),
            HeadError::Fields => {
                let message = format!("the head of a request may have {FIELDS_MAX} fields at most");
                return (431, "headers_too_large", message);
            }
            _ => (400, "bad_request", self.wrong()),
        };
        (status, code, message.to_owned())
    }

    fn wrong(self) -> &'static str {
        match self {
            HeadError::Line => "a line of the head does not end with CR LF",
            HeadError::Start => {
                "the request does not begin with a line such as 'POST /v1 HTTP/1.1'"
            }
            HeadError::Version => "only HTTP/1.1 and HTTP/1.0 are spoken here, and HTTP/2 over TLS",
            HeadError::Target => {
                "the target must be a path, or an address with the host of this server"
            }
            HeadError::NoHost => "there is no host field",
            HeadError::Hosts => "there is more than one host",
            HeadError::Host => "the host is no name and no address",
            HeadError::Name => "a field has no name, or one with other characters than a token's",
            HeadError::Space => "there is space between the name of a field and its colon",
            HeadError::Folded => "a field goes on in the next line",
            HeadError::Value => "a field has control characters in it",
            HeadError::Lengths => "the length of the body is told more than once",
            HeadError::Length => "the length of the body is no plain number",
            HeadError::Coding => {
                "the transfer encoding may only be 'chunked', once, and in HTTP/1.1"
            }
            HeadError::Chunks => "the body is to come in chunks, but does not begin with one",
            HeadError::Connect
            | HeadError::Expectation
            | HeadError::Upgrade
            | HeadError::Fields => "",
        }
    }
}
