//! What the gateway says when it says no.

use super::{ApiError, AttemptFailure, INVALID, SERVER};
use crate::catalogue::field_policy;
use crate::dialect::relay::RelayError;

impl ApiError {
    /// Status, type, code and message of everything that is ours to say.
    pub(super) fn plain(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::NoKey => (
                401,
                INVALID,
                "missing_api_key",
                text("send your key as 'authorization: Bearer KEY' or as 'x-api-key: KEY'"),
            ),
            ApiError::BadKey => (401, INVALID, "invalid_api_key", text("the key is not known")),
            ApiError::RevokedKey => {
                (403, "permission_error", "key_revoked", text("the key was revoked"))
            }
            ApiError::NoPath(path) => (404, INVALID, "not_found", no_path(path)),
            ApiError::WrongMethod(right) => {
                (405, INVALID, "method_not_allowed", format!("use {right} on this path"))
            }
            ApiError::Encoded => (
                415,
                INVALID,
                "unsupported_encoding",
                text("send the body without content-encoding"),
            ),
            ApiError::TooLarge(most) => (
                413,
                INVALID,
                "request_too_large",
                format!("the body may have {most} bytes at most"),
            ),
            ApiError::FileTooLarge(_, most) => (
                413,
                INVALID,
                "request_too_large",
                format!("the image may have {most} bytes at most"),
            ),
            ApiError::BodyBroken => {
                (400, INVALID, "incomplete_body", text("the body did not arrive whole"))
            }
            ApiError::NoModel { asked, closest } => {
                (404, INVALID, "model_not_found", no_model(asked, closest.as_deref()))
            }
            ApiError::WrongEndpoint { model, right } => {
                let path = right.path();
                (400, INVALID, "wrong_endpoint", format!("model '{model}' is served on {path}"))
            }
            ApiError::NotGiven(field) => (
                404,
                INVALID,
                "not_found",
                format!("'{field}' names nothing that this account was given lately"),
            ),
            ApiError::Unpriced(field_policy::FieldRefusal { field, reason: because, .. }) => (
                400,
                INVALID,
                "unsupported_parameter",
                format!("field '{field}' is not available: {because}"),
            ),
            ApiError::Insufficient { least, available } => (
                402,
                "insufficient_credits",
                "insufficient_credits",
                format!("the call needs {least} USD at least, {available} USD are available"),
            ),
            ApiError::Broken(RelayError::ContentFiltered) => {
                (400, INVALID, "content_policy_violation", RelayError::ContentFiltered.to_string())
            }
            _ => self.at_the_edge(),
        }
    }

    /// The same of what only videos are refused for.
    pub(super) fn of_videos(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::TooManyVideos(most) => (
                429,
                "rate_limit_error",
                "too_many_videos",
                format!("{most} videos are under way, which is the most; wait for one to end"),
            ),
            ApiError::NoVideo => {
                (404, INVALID, "not_found", text("there is no such video, or not any more"))
            }
            ApiError::VideoNotReady => {
                (400, INVALID, "video_not_ready", text("the video is not finished; ask again"))
            }
            ApiError::VideoDeleted => {
                (404, INVALID, "not_found", text("the video of this idempotency key was deleted"))
            }
            _ => self.of_repeats(),
        }
    }

    /// The same of what only calls are refused for that repeat others.
    fn of_repeats(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::KeyReused => (
                422,
                INVALID,
                "idempotency_key_reused",
                text("the idempotency key was used before, for a call of other content"),
            ),
            ApiError::KeyInUse => (
                409,
                INVALID,
                "idempotency_key_in_use",
                text("the first call of this kind still runs; ask again"),
            ),
            ApiError::ReplyNotKept => (
                409,
                INVALID,
                "reply_not_kept",
                text("the call was made before and paid for; its reply is not kept"),
            ),
            ApiError::ReplyLost => (
                409,
                INVALID,
                "reply_lost",
                text("the call was made before and paid for; its reply was lost"),
            ),
            _ => self.ours(),
        }
    }

    /// The same of what is no fault of the client's.
    fn ours(&self) -> (u16, &'static str, &'static str, String) {
        let text = str::to_owned;
        match self {
            ApiError::Crowded => {
                (503, SERVER, "overloaded", text("too many images are being sent at the moment"))
            }
            ApiError::NoLedger => (
                503,
                SERVER,
                "ledger_unavailable",
                text("balances cannot be checked at the moment"),
            ),
            ApiError::NoRoute(why) => (503, SERVER, "no_route", why.clone()),
            ApiError::Blocked(block) => block.plain(),
            ApiError::NoAnswer => {
                (504, SERVER, "upstream_timeout", text("the vendor did not answer in time"))
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
            ApiError::Broken(why @ RelayError::NoBufferSpace) => {
                (503, SERVER, "overloaded", why.to_string())
            }
            ApiError::Broken(why @ RelayError::SlowReader) => {
                (502, SERVER, "answers_unread", why.to_string())
            }
            ApiError::Broken(why) => (502, SERVER, "upstream_error", why.to_string()),
            _ => (500, SERVER, "internal_error", text("something went wrong here")),
        }
    }
}

impl AttemptFailure {
    fn plain(&self) -> (u16, &'static str, &'static str, String) {
        match self.status {
            Some(408) => {
                (504, SERVER, "upstream_timeout", "the vendor did not answer in time".to_owned())
            }
            _ if self.overloaded() => {
                (503, SERVER, "upstream_overloaded", "the vendor is overloaded".to_owned())
            }
            Some(_) => (502, SERVER, "upstream_error", "the vendor failed".to_owned()),
            None => (502, SERVER, "upstream_error", "the vendor could not be reached".to_owned()),
        }
    }
}

fn no_path(path: &str) -> String {
    let shown: String = path.chars().take(80).collect();
    if path.starts_with("/v1/v1/") {
        format!("no such path: {shown}. Leave '/v1' out of your client's base address")
    } else {
        format!("no such path: {shown}")
    }
}

fn no_model(asked: &str, closest: Option<&str>) -> String {
    let asked: String = asked.chars().take(80).collect();
    match closest {
        Some(closest) => format!("model '{asked}' not found; closest: '{closest}'"),
        None => format!("model '{asked}' not found"),
    }
}
