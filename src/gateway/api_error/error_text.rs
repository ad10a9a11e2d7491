//! What the gateway says when it says no.

use super::{ApiError, AttemptFailure, INVALID_REQUEST, SERVER_ERROR};
use crate::catalogue::field_policy;
use crate::dialect::relay::RelayError;

impl ApiError {
    /// Status, type, code and message of everything that is ours to say.
    pub(super) fn describe(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::MissingKey => (
                401,
                INVALID_REQUEST,
                "missing_api_key",
                text("send your key as 'authorization: Bearer KEY' or as 'x-api-key: KEY'"),
            ),
            ApiError::UnknownKey => {
                (401, INVALID_REQUEST, "invalid_api_key", text("the key is not known"))
            }
            ApiError::RevokedKey => {
                (403, "permission_error", "key_revoked", text("the key was revoked"))
            }
            ApiError::UnknownPath(path) => {
                (404, INVALID_REQUEST, "not_found", unknown_path_message(path))
            }
            ApiError::MethodNotAllowed(right) => {
                (405, INVALID_REQUEST, "method_not_allowed", format!("use {right} on this path"))
            }
            ApiError::UnsupportedEncoding => (
                415,
                INVALID_REQUEST,
                "unsupported_encoding",
                text("send the body without content-encoding"),
            ),
            ApiError::BodyTooLarge(most) => (
                413,
                INVALID_REQUEST,
                "request_too_large",
                format!("the body may have {most} bytes at most"),
            ),
            ApiError::FileTooLarge(_, most) => (
                413,
                INVALID_REQUEST,
                "request_too_large",
                format!("the image may have {most} bytes at most"),
            ),
            ApiError::BodyIncomplete => {
                (400, INVALID_REQUEST, "incomplete_body", text("the body did not arrive whole"))
            }
            ApiError::ModelNotFound { asked, closest } => (
                404,
                INVALID_REQUEST,
                "model_not_found",
                model_not_found_message(asked, closest.as_deref()),
            ),
            ApiError::WrongEndpoint { model, right } => {
                let path = right.path();
                (
                    400,
                    INVALID_REQUEST,
                    "wrong_endpoint",
                    format!("model '{model}' is served on {path}"),
                )
            }
            ApiError::IdNotOwned(field) => (
                404,
                INVALID_REQUEST,
                "not_found",
                format!("'{field}' names nothing that this account was given lately"),
            ),
            ApiError::UnpricedField(field_policy::FieldRefusal {
                field, reason: because, ..
            }) => (
                400,
                INVALID_REQUEST,
                "unsupported_parameter",
                format!("field '{field}' is not available: {because}"),
            ),
            ApiError::Insufficient { least, available } => (
                402,
                "insufficient_credits",
                "insufficient_credits",
                format!("the call needs {least} USD at least, {available} USD are available"),
            ),
            ApiError::RelayFailed(RelayError::ContentFiltered) => (
                400,
                INVALID_REQUEST,
                "content_policy_violation",
                RelayError::ContentFiltered.to_string(),
            ),
            _ => self.describe_edge(),
        }
    }

    /// The same of what only videos are refused for.
    pub(super) fn describe_video(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::TooManyVideos(most) => (
                429,
                "rate_limit_error",
                "too_many_videos",
                format!("{most} videos are under way, which is the most; wait for one to end"),
            ),
            ApiError::VideoNotFound => {
                (404, INVALID_REQUEST, "not_found", text("there is no such video, or not any more"))
            }
            ApiError::VideoNotReady => (
                400,
                INVALID_REQUEST,
                "video_not_ready",
                text("the video is not finished; ask again"),
            ),
            ApiError::VideoDeleted => (
                404,
                INVALID_REQUEST,
                "not_found",
                text("the video of this idempotency key was deleted"),
            ),
            _ => self.describe_idempotency(),
        }
    }

    /// The same of what only calls are refused for that repeat others.
    fn describe_idempotency(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::IdempotencyKeyReused => (
                422,
                INVALID_REQUEST,
                "idempotency_key_reused",
                text("the idempotency key was used before, for a call of other content"),
            ),
            ApiError::IdempotencyKeyInUse => (
                409,
                INVALID_REQUEST,
                "idempotency_key_in_use",
                text("the first call of this kind still runs; ask again"),
            ),
            ApiError::ReplyNotKept => (
                409,
                INVALID_REQUEST,
                "reply_not_kept",
                text("the call was made before and paid for; its reply is not kept"),
            ),
            ApiError::ReplyLost => (
                409,
                INVALID_REQUEST,
                "reply_lost",
                text("the call was made before and paid for; its reply was lost"),
            ),
            _ => self.describe_server_error(),
        }
    }

    /// The same of what is no fault of the client's.
    fn describe_server_error(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::TooManyUploads => (
                503,
                SERVER_ERROR,
                "overloaded",
                text("too many images are being sent at the moment"),
            ),
            ApiError::LedgerUnavailable => (
                503,
                SERVER_ERROR,
                "ledger_unavailable",
                text("balances cannot be checked at the moment"),
            ),
            ApiError::NoRoute(why) => (503, SERVER_ERROR, "no_route", why.clone()),
            ApiError::AllRoutesFailed(block) => block.describe(),
            ApiError::VendorTimeout => {
                (504, SERVER_ERROR, "upstream_timeout", text("the vendor did not answer in time"))
            }
            ApiError::AnswersUnread => (
                429,
                "rate_limit_error",
                "answers_unread",
                text(
                    "answers of this account that are under way, or were not read yet, take \
                     all the memory it may have; read them first",
                ),
            ),
            ApiError::RelayFailed(why @ RelayError::NoBufferSpace) => {
                (503, SERVER_ERROR, "overloaded", why.to_string())
            }
            ApiError::RelayFailed(why @ RelayError::SlowReader) => {
                (502, SERVER_ERROR, "answers_unread", why.to_string())
            }
            ApiError::RelayFailed(why) => (502, SERVER_ERROR, "upstream_error", why.to_string()),
            _ => (500, SERVER_ERROR, "internal_error", text("something went wrong here")),
        }
    }
}

impl AttemptFailure {
    fn describe(&self) -> (u16, &'static str, &'static str, String) {
        match self.status {
            Some(408) => (
                504,
                SERVER_ERROR,
                "upstream_timeout",
                "the vendor did not answer in time".to_owned(),
            ),
            _ if self.is_overloaded() => {
                (503, SERVER_ERROR, "upstream_overloaded", "the vendor is overloaded".to_owned())
            }
            Some(_) => (502, SERVER_ERROR, "upstream_error", "the vendor failed".to_owned()),
            None => {
                (502, SERVER_ERROR, "upstream_error", "the vendor could not be reached".to_owned())
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
