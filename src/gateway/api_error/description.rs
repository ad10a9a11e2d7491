//! The table of errors: status, type, code, field, message, and whether a retry makes sense. Every
//! match is exhaustive, so that an error without a row does not compile. A row is made by one of
//! three functions, each of which says whether the call may be tried again.

use std::borrow::Cow;

use super::budgets::{budget_exceeded_code, budget_exceeded_message};
use super::{
    AdmissionError, ApiError, ApiKeyError, CapacityError, IdempotencyError, RequestError,
    ServerError, VideoError,
};
use crate::gateway::edge::head::{FIELDS_MAX, HeadError};

pub(super) const INVALID_REQUEST: &str = "invalid_request_error";
pub(super) const PERMISSION: &str = "permission_error";
pub(super) const RATE_LIMIT: &str = "rate_limit_error";
pub(super) const SERVER_ERROR: &str = "server_error";

/// The `retry-after` in seconds if a vendor, the gateway or the ledger has no capacity at the
/// moment.
pub(super) const RETRY_AFTER_S: u64 = 1;
/// The `retry-after` in seconds if too many videos are under way, each of which takes minutes.
const RETRY_AFTER_VIDEO_S: u64 = 30;

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
    /// The same in ms, where it is known as exactly.
    pub(super) retry_after_ms: Option<u64>,
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

/// Makes a row for a failure that may be gone when the same call comes again.
pub(super) fn retryable<'a>(
    status: u16,
    kind: &'a str,
    code: &'a str,
    message: impl Into<Cow<'a, str>>,
) -> ErrorDescription<'a> {
    ErrorDescription { forbids_retry: false, ..permanent(status, kind, code, message) }
}

/// Makes a row for a failure that no retry cures, or whose retry could be charged twice.
pub(super) fn permanent<'a>(
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
        retry_after_ms: None,
        forbids_retry: true,
        allow: None,
        messages_status: None,
        messages_kind: None,
        details: None,
    }
}

/// Makes a row for a call that is wrong: it would be refused again.
pub(super) fn invalid<'a>(
    status: u16,
    code: &'a str,
    message: impl Into<Cow<'a, str>>,
) -> ErrorDescription<'a> {
    permanent(status, INVALID_REQUEST, code, message)
}

impl<'a> ErrorDescription<'a> {
    fn at(self, param: &'a str) -> ErrorDescription<'a> {
        ErrorDescription { param: Some(param), ..self }
    }

    /// Tells the client when to try again.
    pub(super) fn retry_after(self, seconds: u64) -> ErrorDescription<'a> {
        ErrorDescription { retry_after_s: Some(seconds), ..self }
    }
}

impl ApiError {
    pub(super) fn describe(&self) -> ErrorDescription<'_> {
        match self {
            ApiError::Auth(error) => error.describe(),
            ApiError::Scope(error) => error.describe(),
            ApiError::Request(error) => error.describe(),
            ApiError::Admission(error) => error.describe(),
            ApiError::Video(error) => error.describe(),
            ApiError::Account(error) => error.describe(),
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
            ApiKeyError::Revoked => {
                permanent(403, PERMISSION, "key_revoked", "the key was revoked")
            }
        }
    }
}

impl RequestError {
    fn describe(&self) -> ErrorDescription<'_> {
        match self {
            RequestError::UnknownPath(path) => {
                invalid(404, "not_found", unknown_path_message(path))
            }
            RequestError::MissingVersion(path) => {
                invalid(404, "not_found", missing_version_message(path))
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
                retryable(400, INVALID_REQUEST, "incomplete_body", "the body did not arrive whole")
            }
            RequestError::BodyTimeout => {
                retryable(408, INVALID_REQUEST, "request_timeout", "the body came too slowly")
            }
            RequestError::InvalidHead(error) => error.describe(),
            RequestError::HeadTooLarge(most) => invalid(
                431,
                "headers_too_large",
                format!("the head of a request may have {most} bytes at most"),
            ),
            RequestError::HeadTimeout => {
                let message = "the head of the request took too long";
                retryable(408, INVALID_REQUEST, "request_timeout", message)
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
            HeadError::WebSocketRefused => {
                let message = "there is no WebSocket on this path; send POST, with \"stream\": \
                               true for server-sent events";
                invalid(426, "upgrade_required", message).at("upgrade")
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
                let what = "names no object that this account received recently";
                let message = format!("'{field}' {what}");
                invalid(404, "not_found", message).at(field)
            }
            AdmissionError::UnpricedField(refused) => {
                let (path, value, rule) = (&refused.path, &refused.value, &refused.rule);
                let message = format!("{path} {value} is not available: {}", rule.reason);
                let error = invalid(400, "unsupported_parameter", message).at(path);
                ErrorDescription { details: rule.details.as_deref(), ..error }
            }
            AdmissionError::RateLimited(refusal) => refusal.describe(),
            AdmissionError::CreditInUse { least, available, held } => retryable(
                429,
                RATE_LIMIT,
                "credit_in_use",
                format!(
                    "the call needs {least} USD at least, {available} USD are available, and \
                     {held} USD are held for calls under way; try again when one has ended"
                ),
            )
            .retry_after(RETRY_AFTER_S),
            AdmissionError::InsufficientBalance { least, available } => permanent(
                402,
                "insufficient_credits",
                "insufficient_credits",
                format!("the call needs {least} USD at least, {available} USD are available"),
            ),
            AdmissionError::BudgetExceeded { window, least, left } => permanent(
                402,
                "insufficient_credits",
                budget_exceeded_code(window.owner),
                budget_exceeded_message(*window, *least, *left),
            ),
            AdmissionError::BudgetInUse { least, left } => retryable(
                429,
                RATE_LIMIT,
                "credit_in_use",
                format!(
                    "the call needs {least} USD at least, and the budgets of the key and the \
                     account leave {left} USD while other calls are under way; try again when one \
                     has ended"
                ),
            )
            .retry_after(RETRY_AFTER_S),
        }
    }
}

impl VideoError {
    fn describe(self) -> ErrorDescription<'static> {
        match self {
            VideoError::TooManyOpen(most) => retryable(
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
                let message = "the video is not finished; ask again";
                retryable(400, INVALID_REQUEST, "video_not_ready", message)
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
            .at("Idempotency-Key"),
            IdempotencyError::KeyInUse => retryable(
                409,
                INVALID_REQUEST,
                "idempotency_key_in_use",
                "the first call of this kind still runs; ask again",
            )
            .retry_after(RETRY_AFTER_S),
            IdempotencyError::ReplyNotKept => invalid(
                409,
                "reply_not_kept",
                "the call was made before and paid for; its reply is not kept",
            ),
            IdempotencyError::ReplyLost => invalid(
                409,
                "reply_lost",
                "the call was made before and paid for; its reply was lost",
            ),
        }
    }
}

impl CapacityError {
    fn describe(self) -> ErrorDescription<'static> {
        let error = match self {
            CapacityError::Overloaded => {
                retryable(503, SERVER_ERROR, "overloaded", "there is too much to do at the moment")
            }
            CapacityError::TooManyUploads => retryable(
                503,
                SERVER_ERROR,
                "overloaded",
                "too many images are being sent at the moment",
            ),
            CapacityError::TooManyRequests(message) => {
                retryable(429, RATE_LIMIT, "rate_limit_exceeded", message)
            }
            CapacityError::AnswersUnread => retryable(
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

impl ServerError {
    fn describe(self) -> ErrorDescription<'static> {
        match self {
            ServerError::LedgerUnavailable => retryable(
                503,
                SERVER_ERROR,
                "ledger_unavailable",
                "balances cannot be checked at the moment",
            )
            .retry_after(RETRY_AFTER_S),
            ServerError::FilesUnavailable
            | ServerError::HoldConflict
            | ServerError::RouteMisconfigured
            | ServerError::Internal => {
                retryable(500, SERVER_ERROR, "internal_error", "something went wrong here")
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

fn missing_version_message(path: &str) -> String {
    let shown: String = path.chars().take(80).collect();
    format!(
        "no such path: {shown}; it is /v1{shown}. Your client's base address must end in '/v1', \
         unless the client adds '/v1' itself, as clients of the messages format do"
    )
}

fn model_not_found_message(asked: &str, closest: Option<&str>) -> String {
    let asked: String = asked.chars().take(80).collect();
    match closest {
        Some(closest) => format!("model '{asked}' not found; closest: '{closest}'"),
        None => format!("model '{asked}' not found"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ledger::{BudgetOwner, WindowId, WindowKind};
    use crate::money::Money;

    fn no_money() -> Money {
        Money::ZERO
    }

    /// The window of a budget that contains 2026-11-25 13:14:15.678 UTC.
    fn window(owner: BudgetOwner, kind: WindowKind) -> WindowId {
        WindowId::at(owner, kind, 1_795_612_455_678)
    }

    #[rstest]
    #[case::no_key(ApiKeyError::Missing.into(), true)]
    #[case::wrong_key(ApiKeyError::Unknown.into(), true)]
    #[case::revoked_key(ApiKeyError::Revoked.into(), true)]
    #[case::path(RequestError::UnknownPath("/".to_owned()).into(), true)]
    #[case::no_version(RequestError::MissingVersion("/models".to_owned()).into(), true)]
    #[case::method(RequestError::MethodNotAllowed("GET").into(), true)]
    #[case::packed(RequestError::UnsupportedEncoding.into(), true)]
    #[case::large(RequestError::BodyTooLarge(1).into(), true)]
    #[case::half(RequestError::BodyIncomplete.into(), false)]
    #[case::slow(RequestError::BodyTimeout.into(), false)]
    #[case::slow_head(RequestError::HeadTimeout.into(), false)]
    #[case::bad_head(HeadError::MissingHost.into(), true)]
    #[case::model(
        AdmissionError::ModelNotFound { asked: "x".to_owned(), closest: None }.into(), true
    )]
    #[case::poor(
        AdmissionError::InsufficientBalance { least: no_money(), available: no_money() }.into(),
        true
    )]
    #[case::held(
        AdmissionError::CreditInUse {
            least: no_money(), available: no_money(), held: no_money()
        }.into(),
        false
    )]
    #[case::budget_exceeded(
        AdmissionError::BudgetExceeded {
            window: window(BudgetOwner::Account, WindowKind::Day),
            least: no_money(),
            left: no_money(),
        }.into(),
        true
    )]
    #[case::budget_held(
        AdmissionError::BudgetInUse { least: no_money(), left: no_money() }.into(), false
    )]
    #[case::unfinished_video(VideoError::NotReady.into(), false)]
    #[case::lost_video(VideoError::NotFound.into(), true)]
    #[case::key_in_use(IdempotencyError::KeyInUse.into(), false)]
    #[case::key_reused(IdempotencyError::KeyReused.into(), true)]
    #[case::reply_lost(IdempotencyError::ReplyLost.into(), true)]
    #[case::full(CapacityError::Overloaded.into(), false)]
    #[case::ledger(ServerError::LedgerUnavailable.into(), false)]
    #[case::defect(ServerError::Internal.into(), false)]
    fn what_no_retry_cures_forbids_it(#[case] error: ApiError, #[case] forbids: bool) {
        let row = error.describe();
        assert_eq!(row.forbids_retry, forbids, "{}", row.code);
        assert!(!(forbids && row.retry_after_s.is_some()), "{} says both", row.code);
    }
}
