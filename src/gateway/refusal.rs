//! Every way in which the gateway says no, and what it looks like to the client.

use std::time::Duration;

use super::edge::head;
use super::reply::LocalResponse;
use crate::catalogue::field_policy;
use crate::dialect::relay::RelayError;
use crate::dialect::vendor_error::{VendorError, chat_error_body, messages_error_body};
use crate::dialect::{CallError, Endpoint};
use crate::money::Money;

mod edges;
mod words;

/// Clients are told to come back after so long when a vendor or the ledger is overloaded.
const RETRY_AFTER_S: u64 = 1;
/// And when too many videos are under way, each of which takes minutes.
const RETRY_AFTER_VIDEO_S: u64 = 30;
/// Official clients give up on a longer wait than this.
const RETRY_AFTER_S_MAX: u64 = 60;

/// What a client speaks, and is refused in.
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
    NoKey,
    /// The key is none of ours.
    BadKey,
    /// The key was revoked.
    RevokedKey,
    /// No such path.
    NoPath(String),
    /// The path is right, the method is not.
    WrongMethod(&'static str),
    /// The body is compressed.
    Encoded,
    /// The body is too large; so many bytes are the most.
    TooLarge(usize),
    /// The file of a field is too large; so many bytes are the most.
    FileTooLarge(&'static str, usize),
    /// Too many large bodies came at once.
    Crowded,
    /// So many videos of the account are under way, and more may not be.
    TooManyVideos(u32),
    /// No such video, as far as this client is concerned.
    NoVideo,
    /// The video is not finished.
    VideoNotReady,
    /// The video asked for under this idempotency key was deleted.
    VideoDeleted,
    /// The idempotency key stands for a call of other content.
    KeyReused,
    /// The call of the idempotency key still runs.
    KeyInUse,
    /// The call was made and paid for, but its reply is not kept.
    ReplyNotKept,
    /// The call was paid for, but nobody has its reply.
    ReplyLost,
    /// The body did not come whole.
    BodyBroken,
    /// The body came too slowly.
    BodySlow,
    /// Something is wrong with the head of the request.
    Head(head::HeadError),
    /// The head is too large; so many bytes are the most.
    HeadTooLarge(usize),
    /// The head came too slowly.
    HeadSlow,
    /// There is too much to do at the moment.
    Overloaded,
    /// The account or the address has too much under way; of what, this says.
    TooManyRequests(&'static str),
    /// Something is wrong with the call.
    Call(CallError),
    /// No such model; this one comes closest.
    NoModel {
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
    NotGiven(String),
    /// A field that has no price.
    Unpriced(field_policy::FieldRefusal),
    /// The balance does not cover the call.
    Insufficient {
        /// What it needs, at least.
        least: Money,
        /// What there is.
        available: Money,
    },
    /// The ledger cannot be reached.
    NoLedger,
    /// The vendor has no route that could be used.
    NoRoute(String),
    /// The vendor refused the call for a reason of the client's.
    Vendor {
        /// The vendor's status: 400, 404, 413, 422 and the like.
        status: u16,
        /// What it said.
        error: VendorError,
    },
    /// All routes are blocked; this is the last one's reason.
    Blocked(AttemptFailure),
    /// The vendor took the call and did not answer in time.
    NoAnswer,
    /// The account has not read so much of its answers that there is no room for more.
    AnswersUnread,
    /// The vendor's answer broke before anything of it was passed on.
    Broken(RelayError),
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
    pub work_begun: bool,
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
    pub fn reply(&self, tongue: ErrorFormat, request_id: &str) -> LocalResponse {
        let said = self.said();
        let (status, body) = match tongue {
            ErrorFormat::Chat => {
                (said.status, chat_error_body(said.kind, said.code, said.param, &said.message))
            }
            ErrorFormat::Messages => {
                let status = self.messages_status(said.status);
                let kind = self.messages_kind(status);
                let details = match self {
                    ApiError::Unpriced(rule) => rule.details.as_deref(),
                    ApiError::Vendor { error, .. } => error.details.as_deref(),
                    _ => None,
                };
                (status, messages_error_body(kind, &said.message, details, request_id))
            }
        };
        let mut headers = Vec::new();
        if let ApiError::WrongMethod(right) = self {
            headers.push(("allow", (*right).to_owned()));
        }
        headers.extend(self.retry_after().map(|seconds| ("retry-after", seconds.to_string())));
        if self.no_retry() {
            headers.push(("x-should-retry", "false".to_owned()));
        }
        LocalResponse { status, code: said.code.to_owned(), body: body.into(), headers }
    }

    /// The messages dialect has a status of its own for a vendor that is overloaded.
    fn messages_status(&self, status: u16) -> u16 {
        match self {
            ApiError::Blocked(block) if block.overloaded() => 529,
            _ => status,
        }
    }

    fn messages_kind(&self, status: u16) -> &str {
        match self {
            ApiError::Vendor { error: VendorError { kind: Some(kind), .. }, .. } => kind,
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

    fn said(&self) -> ErrorBody<'_> {
        match self {
            ApiError::Call(fault) => ErrorBody {
                status: 400,
                kind: INVALID,
                code: fault.code,
                param: fault.param.as_deref(),
                message: fault.message.clone(),
            },
            ApiError::Vendor { status, error } => ErrorBody {
                status: *status,
                kind: error.kind.as_deref().unwrap_or(INVALID),
                code: error.code.as_deref().unwrap_or("vendor_refused"),
                param: error.param.as_deref(),
                message: error
                    .message
                    .clone()
                    .unwrap_or_else(|| format!("the vendor answered {status} without a reason")),
            },
            _ => {
                let (status, kind, code, message) = self.plain();
                ErrorBody { status, kind, code, param: self.param(), message }
            }
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::NoModel { .. } | ApiError::WrongEndpoint { .. } => Some("model"),
            ApiError::Unpriced(rule) => Some(&rule.field),
            ApiError::NotGiven(field) => Some(field),
            ApiError::FileTooLarge(field, _) => Some(field),
            ApiError::VideoDeleted | ApiError::KeyReused => Some("Idempotency-Key"),
            ApiError::Head(fault) => fault.field(),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            ApiError::NoLedger
            | ApiError::Crowded
            | ApiError::KeyInUse
            | ApiError::Overloaded
            | ApiError::AnswersUnread
            | ApiError::TooManyRequests(_)
            | ApiError::Broken(RelayError::NoBufferSpace) => Some(RETRY_AFTER_S),
            ApiError::TooManyVideos(_) => Some(RETRY_AFTER_VIDEO_S),
            ApiError::Blocked(block) if block.overloaded() => {
                let asked = block.retry_after.map_or(RETRY_AFTER_S, |d| d.as_secs());
                Some(asked.clamp(1, RETRY_AFTER_S_MAX))
            }
            _ => None,
        }
    }

    fn no_retry(&self) -> bool {
        match self {
            // Nothing was charged, and there may be room by then.
            ApiError::Broken(RelayError::NoBufferSpace) => false,
            ApiError::NoAnswer
            | ApiError::Broken(_)
            | ApiError::NoRoute(_)
            | ApiError::KeyReused
            | ApiError::ReplyNotKept
            | ApiError::ReplyLost => true,
            ApiError::Blocked(block) => block.work_begun || block.ours_to_mend(),
            _ => false,
        }
    }
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl AttemptFailure {
    fn overloaded(&self) -> bool {
        matches!(self.status, Some(429 | 503 | 529))
    }

    /// The vendor does not take our key or our money.
    fn ours_to_mend(&self) -> bool {
        matches!(self.status, Some(401..=403))
    }
}
