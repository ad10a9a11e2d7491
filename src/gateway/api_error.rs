//! All API errors of the gateway, and how each is sent to the client.

use std::time::Duration;

use super::edge::head;
use super::local_response::LocalResponse;
use crate::catalogue::field_policy;
use crate::dialect::relay::RelayError;
use crate::dialect::vendor_error::{VendorError, chat_error_body, messages_error_body};
use crate::dialect::{CallError, Endpoint};
use crate::money::Money;

mod edge_errors;
mod error_text;

/// Clients are told to come back after so long when a vendor or the ledger is overloaded.
const RETRY_AFTER_S: u64 = 1;
/// And when too many videos are under way, each of which takes minutes.
const RETRY_AFTER_VIDEO_S: u64 = 30;
/// Official clients give up on a longer wait than this.
const RETRY_AFTER_S_MAX: u64 = 60;

/// The API format in which a client gets its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    /// The chat format, and all that share its errors.
    Chat,
    /// The messages format.
    Messages,
}

/// Why a call is not served.
#[derive(Debug, Clone)]
pub enum ApiError {
    /// No key came with it.
    MissingKey,
    /// The key is none of ours.
    UnknownKey,
    /// The key was revoked.
    RevokedKey,
    /// No such path.
    UnknownPath(String),
    /// The path is right, the method is not.
    MethodNotAllowed(&'static str),
    /// The body is compressed.
    UnsupportedEncoding,
    /// The body is too large; so many bytes are the most.
    BodyTooLarge(usize),
    /// The file of a field is too large; so many bytes are the most.
    FileTooLarge(&'static str, usize),
    /// Too many large bodies came at once.
    TooManyUploads,
    /// So many videos of the account are under way, and more may not be.
    TooManyVideos(u32),
    /// No such video, as far as this client is concerned.
    VideoNotFound,
    /// The video is not finished.
    VideoNotReady,
    /// The video asked for under this idempotency key was deleted.
    VideoDeleted,
    /// The idempotency key was used for a call with other content.
    IdempotencyKeyReused,
    /// The call of the idempotency key still runs.
    IdempotencyKeyInUse,
    /// The call was made and paid for, but its reply is not kept.
    ReplyNotKept,
    /// The call was paid for, but nobody has its reply.
    ReplyLost,
    /// The body did not come whole.
    BodyIncomplete,
    /// The body came too slowly.
    BodyTimeout,
    /// Something is wrong with the head of the request.
    InvalidHead(head::HeadError),
    /// The head is too large; so many bytes are the most.
    HeadTooLarge(usize),
    /// The head came too slowly.
    HeadTimeout,
    /// There is too much to do at the moment.
    Overloaded,
    /// The account or the address has too much under way; of what, this says.
    TooManyRequests(&'static str),
    /// Something is wrong with the call.
    InvalidCall(CallError),
    /// No such model; this one comes closest.
    ModelNotFound {
        /// What was asked for.
        asked: String,
        /// The closest known id.
        closest: Option<String>,
    },
    /// The model is sold on another endpoint.
    WrongEndpoint {
        /// The model.
        model: String,
        /// Where it is sold.
        right: Endpoint,
    },
    /// An id that this account was never given, in this field.
    IdNotOwned(String),
    /// A field that has no price.
    UnpricedField(field_policy::FieldRefusal),
    /// The balance does not cover the call.
    Insufficient {
        /// What it needs, at least.
        least: Money,
        /// What there is.
        available: Money,
    },
    /// The ledger cannot be reached.
    LedgerUnavailable,
    /// The vendor has no route that could be used.
    NoRoute(String),
    /// The vendor refused the call for a reason of the client's.
    VendorRefused {
        /// The vendor's status: 400, 404, 413, 422 and the like.
        status: u16,
        /// What it said.
        error: VendorError,
    },
    /// All routes are blocked; this is the last one's reason.
    AllRoutesFailed(AttemptFailure),
    /// The vendor took the call and did not answer in time.
    VendorTimeout,
    /// The account's unread responses use all the memory that it may have.
    AnswersUnread,
    /// The vendor's answer broke before anything of it was passed on.
    RelayFailed(RelayError),
    /// Something of ours went wrong.
    Internal,
}

/// Why a route did not serve.
#[derive(Debug, Clone)]
pub struct AttemptFailure {
    /// The vendor's status; `None` if it gave no answer at all.
    pub status: Option<u16>,
    /// When it wants to be asked again.
    pub retry_after: Option<Duration>,
    /// Whether any attempt may have begun paid work.
    pub may_be_billed: bool,
}

struct ErrorBody<'a> {
    status: u16,
    kind: &'a str,
    code: &'a str,
    param: Option<&'a str>,
    message: String,
}

impl ApiError {
    /// The reply to a client of a tongue.
    #[must_use]
    pub fn to_response(&self, error_format: ErrorFormat, request_id: &str) -> LocalResponse {
        let error_body = self.error_body();
        let (status, body) = match error_format {
            ErrorFormat::Chat => (
                error_body.status,
                chat_error_body(
                    error_body.kind,
                    error_body.code,
                    error_body.param,
                    &error_body.message,
                ),
            ),
            ErrorFormat::Messages => {
                let status = self.messages_status(error_body.status);
                let kind = self.messages_kind(status);
                let details = match self {
                    ApiError::UnpricedField(rule) => rule.details.as_deref(),
                    ApiError::VendorRefused { error, .. } => error.details.as_deref(),
                    _ => None,
                };
                (status, messages_error_body(kind, &error_body.message, details, request_id))
            }
        };
        let mut headers = Vec::new();
        if let ApiError::MethodNotAllowed(right) = self {
            headers.push(("allow", (*right).to_owned()));
        }
        headers.extend(self.retry_after().map(|seconds| ("retry-after", seconds.to_string())));
        if self.forbids_retry() {
            headers.push(("x-should-retry", "false".to_owned()));
        }
        LocalResponse { status, code: error_body.code.to_owned(), body: body.into(), headers }
    }

    /// The messages dialect has a status of its own for a vendor that is overloaded.
    fn messages_status(&self, status: u16) -> u16 {
        match self {
            ApiError::AllRoutesFailed(block) if block.is_overloaded() => 529,
            _ => status,
        }
    }

    fn messages_kind(&self, status: u16) -> &str {
        match self {
            ApiError::VendorRefused { error: VendorError { kind: Some(kind), .. }, .. } => kind,
            _ => match status {
                401 => "authentication_error",
                402 => "billing_error",
                403 => "permission_error",
                404 => "not_found_error",
                413 => "request_too_large",
                429 => "rate_limit_error",
                504 => "timeout_error",
                529 => "overloaded_error",
                400..=499 => "invalid_request_error",
                _ => "api_error",
            },
        }
    }

    fn error_body(&self) -> ErrorBody<'_> {
        match self {
            ApiError::InvalidCall(fault) => ErrorBody {
                status: 400,
                kind: INVALID_REQUEST,
                code: fault.code,
                param: fault.param.as_deref(),
                message: fault.message.clone(),
            },
            ApiError::VendorRefused { status, error } => ErrorBody {
                status: *status,
                kind: error.kind.as_deref().unwrap_or(INVALID_REQUEST),
                code: error.code.as_deref().unwrap_or("vendor_refused"),
                param: error.param.as_deref(),
                message: error
                    .message
                    .clone()
                    .unwrap_or_else(|| format!("the vendor answered {status} without a reason")),
            },
            _ => {
                let (status, kind, code, message) = self.describe();
                ErrorBody { status, kind, code, param: self.param(), message }
            }
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::ModelNotFound { .. } | ApiError::WrongEndpoint { .. } => Some("model"),
            ApiError::UnpricedField(rule) => Some(&rule.field),
            ApiError::IdNotOwned(field) => Some(field),
            ApiError::FileTooLarge(field, _) => Some(field),
            ApiError::VideoDeleted | ApiError::IdempotencyKeyReused => Some("Idempotency-Key"),
            ApiError::InvalidHead(fault) => fault.field(),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            ApiError::LedgerUnavailable
            | ApiError::TooManyUploads
            | ApiError::IdempotencyKeyInUse
            | ApiError::Overloaded
            | ApiError::AnswersUnread
            | ApiError::TooManyRequests(_)
            | ApiError::RelayFailed(RelayError::NoBufferSpace) => Some(RETRY_AFTER_S),
            ApiError::TooManyVideos(_) => Some(RETRY_AFTER_VIDEO_S),
            ApiError::AllRoutesFailed(block) if block.is_overloaded() => {
                let asked = block.retry_after.map_or(RETRY_AFTER_S, |d| d.as_secs());
                Some(asked.clamp(1, RETRY_AFTER_S_MAX))
            }
            _ => None,
        }
    }

    fn forbids_retry(&self) -> bool {
        match self {
            // Nothing was charged, and there may be room by then.
            ApiError::RelayFailed(RelayError::NoBufferSpace) => false,
            ApiError::VendorTimeout
            | ApiError::RelayFailed(_)
            | ApiError::NoRoute(_)
            | ApiError::IdempotencyKeyReused
            | ApiError::ReplyNotKept
            | ApiError::ReplyLost => true,
            ApiError::AllRoutesFailed(block) => {
                block.may_be_billed || block.is_vendor_account_error()
            }
            _ => false,
        }
    }
}

const INVALID_REQUEST: &str = "invalid_request_error";
const SERVER_ERROR: &str = "server_error";

impl AttemptFailure {
    fn is_overloaded(&self) -> bool {
        matches!(self.status, Some(429 | 503 | 529))
    }

    /// The vendor does not take our key or our money.
    fn is_vendor_account_error(&self) -> bool {
        matches!(self.status, Some(401..=403))
    }
}
