//! The error response, in the API format of the client.

use super::description::ErrorDescription;
use super::{ApiError, ErrorFormat};
use crate::dialect::vendor_error::{chat_error_body, messages_error_body};
use crate::gateway::local_response::LocalResponse;

impl ApiError {
    /// Whether clients try again after this error, without a charge for the call that got it.
    #[must_use]
    pub(crate) fn invites_retry(&self) -> bool {
        let error = self.describe();
        matches!(error.status, 429 | 503) && !error.forbids_retry
    }

    /// Builds the error response for a client of this format.
    #[must_use]
    pub(crate) fn to_response(&self, format: ErrorFormat, request_id: &str) -> LocalResponse {
        let error = self.describe();
        let (status, body) = match format {
            ErrorFormat::Chat => {
                (error.status, chat_error_body(error.kind, error.code, error.param, &error.message))
            }
            ErrorFormat::Messages => {
                let status = error.messages_status.unwrap_or(error.status);
                let kind = error.messages_kind.unwrap_or_else(|| messages_kind(status));
                (status, messages_error_body(kind, &error.message, error.details, request_id))
            }
        };
        let headers = response_headers(&error);
        LocalResponse { status, code: error.code.to_owned(), body: body.into(), headers }
    }
}

fn response_headers(error: &ErrorDescription<'_>) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    headers.extend(error.allow.map(|methods| ("allow", methods.to_owned())));
    headers.extend(error.retry_after_s.map(|seconds| ("retry-after", seconds.to_string())));
    headers.extend(error.retry_after_ms.map(|ms| ("retry-after-ms", ms.to_string())));
    headers.extend(error.forbids_retry.then(|| ("x-should-retry", "false".to_owned())));
    headers
}

/// Returns the error type that the messages format has for a status.
fn messages_kind(status: u16) -> &'static str {
    match status {
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
    }
}
