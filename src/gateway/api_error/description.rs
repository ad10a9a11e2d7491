//! The table of errors: status, type, code, field, message, and whether a retry makes sense. Every
//! match is exhaustive, so that an error without a row does not compile.

use std::borrow::Cow;

use super::{
    AdmissionError, ApiError, ApiKeyError, AttemptFailure, CapacityError, IdempotencyError,
    RequestError, ServerError, UpstreamError, VideoError,
};
use crate::dialect::relay::RelayError;
use crate::gateway::edge::head::{FIELDS_MAX, HeadError};

const INVALID_REQUEST: &str = "invalid_request_error";
const PERMISSION: &str = "permission_error";
const RATE_LIMIT: &str = "rate_limit_error";
const SERVER_ERROR: &str = "server_error";

/// The `retry-after` in seconds if a vendor, the gateway or the ledger has no capacity at the
/// moment.
const RETRY_AFTER_S: u64 = 1;
/// The `retry-after` in seconds if too many videos are under way, each of which takes minutes.
const RETRY_AFTER_VIDEO_S: u64 = 30;
/// The longest `retry-after` in seconds that is sent. The official client libraries do not retry
/// after a longer wait.
const RETRY_AFTER_S_MAX: u64 = 60;

/// The content of an error response.
pub(super) struct ErrorDescription<'a> {
    pub(super) status: u16,
    /// The `type` member in the chat format.
    pub(super) kind: &'a str,
    pub(super) code: &'a str,
    pub(super) message: Cow<'a, str>,
    /// The request field at fault.
    pub(super) param: Option<&'a str>,
    pub(super) retry_after_s: Option<u64>,
    /// Whether the client must not retry, since a retry would be refused again or be charged twice.
    pub(super) forbids_retry: bool,
    /// The methods that the path allows.
    pub(super) allow: Option<&'static str>,
    /// The status in the messages format, where it differs.
    pub(super) messages_status: Option<u16>,
    /// The type in the messages format, where it does not follow from the status.
    pub(super) messages_kind: Option<&'a str>,
    /// The `details` member of the messages format, as JSON.
    pub(super) details: Option<&'a str>,
}

/// Makes a row of the table that has no optional values.
fn row<'a>(
    status: u16,
    kind: &'a str,
    code: &'a str,
    message: impl Into<Cow<'a, str>>,
) -> ErrorDescription<'a> {
    ErrorDescription {
        status,
        kind,
        code,
        message: message.into(),
        param: None,
        retry_after_s: None,
        forbids_retry: false,
        allow: None,
        messages_status: None,
        messages_kind: None,
        details: None,
    }
}

fn invalid<'a>(
    status: u16,
    code: &'a str,
    message: impl Into<Cow<'a, str>>,
) -> ErrorDescription<'a> {
    row(status, INVALID_REQUEST, code, message)
}

impl<'a> ErrorDescription<'a> {
    fn at(self, param: &'a str) -> ErrorDescription<'a> {
        ErrorDescription { param: Some(param), ..self }
    }

    fn retry_after(self, seconds: u64) -> ErrorDescription<'a> {
        ErrorDescription { retry_after_s: Some(seconds), ..self }
    }

    fn no_retry(self) -> ErrorDescription<'a> {
        ErrorDescription { forbids_retry: true, ..self }
    }
}

impl ApiError {
    pub(super) fn describe(&self) -> ErrorDescription<'_> {
        match self {
            ApiError::Auth(error) => error.describe(),
            ApiError::Request(error) => error.describe(),
            ApiError::Admission(error) => error.describe(),
            ApiError::Video(error) => error.describe(),
            ApiError::Idempotency(error) => error.describe(),
            ApiError::Capacity(error) => error.describe(),
            ApiError::Upstream(error) => error.describe(),
            ApiError::Server(error) => error.describe(),
        }
    }
}

impl ApiKeyError {
    fn describe(self) -> ErrorDescription<'static> {
        match self {
            ApiKeyError::Missing => invalid(
                401,
                "missing_api_key",
                "send your key as 'authorization: Bearer KEY' or as 'x-api-key: KEY'",
            ),
            ApiKeyError::Unknown => invalid(401, "invalid_api_key", "the key is not known"),
            ApiKeyError::Revoked => row(403, PERMISSION, "key_revoked", "the key was revoked"),
        }
    }
}

impl RequestError {
    fn describe(&self) -> ErrorDescription<'_> {
        match self {
            RequestError::UnknownPath(path) => {
                invalid(404, "not_found", unknown_path_message(path))
            }
            RequestError::MethodNotAllowed(expected) => ErrorDescription {
                allow: Some(expected),
                ..invalid(405, "method_not_allowed", format!("use {expected} on this path"))
            },
            RequestError::UnsupportedEncoding => {
                invalid(415, "unsupported_encoding", "send the body without content-encoding")
            }
            RequestError::BodyTooLarge(most) => {
                invalid(413, "request_too_large", format!("the body may have {most} bytes at most"))
            }
            RequestError::FileTooLarge(field, most) => {
                let message = format!("the image may have {most} bytes at most");
                invalid(413, "request_too_large", message).at(field)
            }
            RequestError::BodyIncomplete => {
                invalid(400, "incomplete_body", "the body did not arrive whole")
            }
            RequestError::BodyTimeout => {
                invalid(408, "request_timeout", "the body came too slowly")
            }
            RequestError::InvalidHead(error) => error.describe(),
            RequestError::HeadTooLarge(most) => invalid(
                431,
                "headers_too_large",
                format!("the head of a request may have {most} bytes at most"),
            ),
            RequestError::HeadTimeout => {
                invalid(408, "request_timeout", "the head of the request took too long")
            }
        }
    }
}

impl HeadError {
    fn describe(self) -> ErrorDescription<'static> {
        let bad = |message: &'static str| invalid(400, "bad_request", message);
        match self {
            HeadError::BadLineEnding => bad("a line of the head does not end with CR LF"),
            HeadError::BadRequestLine => {
                bad("the request does not begin with a line such as 'POST /v1 HTTP/1.1'")
            }
            HeadError::UnsupportedVersion => {
                bad("only HTTP/1.1 and HTTP/1.0 are spoken here, and HTTP/2 over TLS")
            }
            HeadError::BadTarget => {
                bad("the target must be a path, or an address with the host of this server")
            }
            HeadError::ConnectMethod => {
                invalid(405, "method_not_allowed", "this is no proxy; use GET or POST")
            }
            HeadError::MissingHost => bad("there is no host field").at("host"),
            HeadError::MultipleHosts => bad("there is more than one host").at("host"),
            HeadError::BadHost => bad("the host is no name and no address").at("host"),
            HeadError::BadFieldName => bad(
                "a field has no name, a space in its name, or a name that goes on in the next line",
            ),
            HeadError::ControlInValue => bad("a field has control characters in it"),
            HeadError::ConflictingLengths => {
                bad("the length of the body is told more than once").at("content-length")
            }
            HeadError::BadContentLength => {
                bad("the length of the body is no plain number").at("content-length")
            }
            HeadError::BadTransferEncoding => {
                bad("the transfer encoding may only be 'chunked', once, and in HTTP/1.1")
                    .at("transfer-encoding")
            }
            HeadError::UnsupportedExpectation => {
                let message = "nothing but '100-continue' can be expected";
                invalid(417, "expectation_failed", message).at("expect")
            }
            HeadError::UnsupportedUpgrade => {
                let message =
                    "the connection cannot be upgraded; streams come as server-sent events";
                invalid(400, "upgrade_refused", message).at("upgrade")
            }
            HeadError::TooManyFields => invalid(
                431,
                "headers_too_large",
                format!("the head of a request may have {FIELDS_MAX} fields at most"),
            ),
        }
    }
}

impl AdmissionError {
    fn describe(&self) -> ErrorDescription<'_> {
        match self {
            AdmissionError::InvalidCall(error) => ErrorDescription {
                param: error.param.as_deref(),
                ..invalid(400, error.code, &error.message)
            },
            AdmissionError::ModelNotFound { asked, closest } => {
                let message = model_not_found_message(asked, closest.as_deref());
                invalid(404, "model_not_found", message).at("model")
            }
            AdmissionError::WrongEndpoint { model, expected } => {
                let message = format!("model '{model}' is served on {}", expected.path());
                invalid(400, "wrong_endpoint", message).at("model")
            }
            AdmissionError::IdNotOwned(field) => {
                let message = format!("'{field}' names nothing that this account was given lately");
                invalid(404, "not_found", message).at(field)
            }
            AdmissionError::UnpricedField(refusal) => {
                let (field, reason) = (&refusal.field, &refusal.reason);
                let message = format!("field '{field}' is not available: {reason}");
                let error = invalid(400, "unsupported_parameter", message).at(field);
                ErrorDescription { details: refusal.details.as_deref(), ..error }
            }
            AdmissionError::InsufficientBalance { least, available } => row(
                402,
                "insufficient_credits",
                "insufficient_credits",
                format!("the call needs {least} USD at least, {available} USD are available"),
            ),
        }
    }
}

impl VideoError {
    fn describe(self) -> ErrorDescription<'static> {
        match self {
            VideoError::TooManyOpen(most) => row(
                429,
                RATE_LIMIT,
                "too_many_videos",
                format!("{most} videos are under way, which is the most; wait for one to end"),
            )
            .retry_after(RETRY_AFTER_VIDEO_S),
            VideoError::NotFound => {
                invalid(404, "not_found", "there is no such video, or not any more")
            }
            VideoError::NotReady => {
                invalid(400, "video_not_ready", "the video is not finished; ask again")
            }
            VideoError::Deleted => {
                invalid(404, "not_found", "the video of this idempotency key was deleted")
                    .at("Idempotency-Key")
            }
        }
    }
}

impl IdempotencyError {
    fn describe(self) -> ErrorDescription<'static> {
        match self {
            IdempotencyError::KeyReused => invalid(
                422,
                "idempotency_key_reused",
                "the idempotency key was used before, for a call of other content",
            )
            .at("Idempotency-Key")
            .no_retry(),
            IdempotencyError::KeyInUse => invalid(
                409,
                "idempotency_key_in_use",
                "the first call of this kind still runs; ask again",
            )
            .retry_after(RETRY_AFTER_S),
            IdempotencyError::ReplyNotKept => invalid(
                409,
                "reply_not_kept",
                "the call was made before and paid for; its reply is not kept",
            )
            .no_retry(),
            IdempotencyError::ReplyLost => invalid(
                409,
                "reply_lost",
                "the call was made before and paid for; its reply was lost",
            )
            .no_retry(),
        }
    }
}

impl CapacityError {
    fn describe(self) -> ErrorDescription<'static> {
        let error = match self {
            CapacityError::Overloaded => {
                row(503, SERVER_ERROR, "overloaded", "there is too much to do at the moment")
            }
            CapacityError::TooManyUploads => {
                row(503, SERVER_ERROR, "overloaded", "too many images are being sent at the moment")
            }
            CapacityError::TooManyRequests(message) => {
                row(429, RATE_LIMIT, "rate_limit_exceeded", message)
            }
            CapacityError::AnswersUnread => row(
                429,
                RATE_LIMIT,
                "answers_unread",
                "answers of this account that are under way, or were not read yet, take \
                 all the memory it may have; read them first",
            ),
        };
        error.retry_after(RETRY_AFTER_S)
    }
}

impl UpstreamError {
    fn describe(&self) -> ErrorDescription<'_> {
        match self {
            UpstreamError::NoRoute(why) => row(503, SERVER_ERROR, "no_route", why).no_retry(),
            UpstreamError::Refused { status, error } => ErrorDescription {
                param: error.param.as_deref(),
                messages_kind: error.kind.as_deref(),
                details: error.details.as_deref(),
                ..row(
                    *status,
                    error.kind.as_deref().unwrap_or(INVALID_REQUEST),
                    error.code.as_deref().unwrap_or("vendor_refused"),
                    match &error.message {
                        Some(message) => Cow::from(message),
                        None => format!("the vendor answered {status} without a reason").into(),
                    },
                )
            },
            UpstreamError::AllRoutesFailed(failure) => failure.describe(),
            UpstreamError::Timeout => {
                row(504, SERVER_ERROR, "upstream_timeout", "the vendor did not answer in time")
                    .no_retry()
            }
            UpstreamError::RelayFailed(why) => describe_relay_error(why),
        }
    }
}

fn describe_relay_error(why: &RelayError) -> ErrorDescription<'static> {
    let message = why.to_string();
    match why {
        RelayError::ContentFiltered => invalid(400, "content_policy_violation", message).no_retry(),
        // Nothing was charged, and there may be room by then.
        RelayError::NoBufferSpace => {
            row(503, SERVER_ERROR, "overloaded", message).retry_after(RETRY_AFTER_S)
        }
        RelayError::SlowReader => row(502, SERVER_ERROR, "answers_unread", message).no_retry(),
        RelayError::Truncated
        | RelayError::Malformed
        | RelayError::TooLarge
        | RelayError::Stalled
        | RelayError::Abandoned
        | RelayError::InsufficientCredits
        | RelayError::LedgerUnavailable
        | RelayError::Vendor(_) => row(502, SERVER_ERROR, "upstream_error", message).no_retry(),
    }
}

impl AttemptFailure {
    fn describe(&self) -> ErrorDescription<'static> {
        let failed = |message| row(502, SERVER_ERROR, "upstream_error", message);
        let error = match self.status {
            Some(408) => {
                row(504, SERVER_ERROR, "upstream_timeout", "the vendor did not answer in time")
            }
            _ if self.is_overloaded() => {
                let asked = self.retry_after.map_or(RETRY_AFTER_S, |d| d.as_secs());
                let error =
                    row(503, SERVER_ERROR, "upstream_overloaded", "the vendor is overloaded")
                        .retry_after(asked.clamp(1, RETRY_AFTER_S_MAX));
                // The messages format has its own status for an overloaded vendor.
                ErrorDescription { messages_status: Some(529), ..error }
            }
            Some(_) => failed("the vendor failed"),
            None => failed("the vendor could not be reached"),
        };
        let forbids_retry = self.may_be_billed || self.is_vendor_account_error();
        ErrorDescription { forbids_retry, ..error }
    }
}

impl ServerError {
    fn describe(self) -> ErrorDescription<'static> {
        match self {
            ServerError::LedgerUnavailable => row(
                503,
                SERVER_ERROR,
                "ledger_unavailable",
                "balances cannot be checked at the moment",
            )
            .retry_after(RETRY_AFTER_S),
            ServerError::Internal => {
                row(500, SERVER_ERROR, "internal_error", "something went wrong here")
            }
        }
    }
}

fn unknown_path_message(path: &str) -> String {
    let shown: String = path.chars().take(80).collect();
    if path.starts_with("/v1/v1/") {
        format!("no such path: {shown}. Leave '/v1' out of your client's base address")
    } else {
        format!("no such path: {shown}")
    }
}

fn model_not_found_message(asked: &str, closest: Option<&str>) -> String {
    let asked: String = asked.chars().take(80).collect();
    match closest {
        Some(closest) => format!("model '{asked}' not found; closest: '{closest}'"),
        None => format!("model '{asked}' not found"),
    }
}
