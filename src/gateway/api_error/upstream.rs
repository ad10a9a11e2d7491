//! The rows of the table of errors for failures of vendors.

use std::borrow::Cow;

use super::description::{
    ErrorDescription, INVALID_REQUEST, PERMISSION, RETRY_AFTER_S, SERVER_ERROR, invalid, permanent,
    retryable,
};
use super::{AttemptFailure, UpstreamError};
use crate::dialect::relay::RelayError;

/// The longest `retry-after` in seconds that is sent. The official client libraries do not retry
/// after a longer wait.
const RETRY_AFTER_S_MAX: u64 = 60;

impl UpstreamError {
    pub(super) fn describe(&self) -> ErrorDescription<'_> {
        match self {
            UpstreamError::NoRoute(why) => permanent(503, SERVER_ERROR, "no_route", why),
            UpstreamError::Refused { status, error } => ErrorDescription {
                param: error.param.as_deref(),
                messages_kind: error.kind.as_deref(),
                details: error.details.as_deref(),
                // The vendor refused what the call says, and would do so again.
                ..permanent(
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
                let message = "the vendor did not answer in time";
                permanent(504, SERVER_ERROR, "upstream_timeout", message)
            }
            UpstreamError::RelayFailed(why) => describe_relay_error(why),
        }
    }
}

fn describe_relay_error(why: &RelayError) -> ErrorDescription<'static> {
    let message = why.to_string();
    match why {
        RelayError::ContentFiltered => invalid(400, "content_policy_violation", message),
        // Nothing was passed on, as if the account had been suspended before the call.
        RelayError::AccountSuspended => permanent(403, PERMISSION, "account_suspended", message),
        // Nothing was charged, and there may be room by then.
        RelayError::NoBufferSpace => {
            retryable(503, SERVER_ERROR, "overloaded", message).retry_after(RETRY_AFTER_S)
        }
        RelayError::SlowReader => permanent(502, SERVER_ERROR, "answers_unread", message),
        RelayError::Truncated
        | RelayError::Malformed
        | RelayError::TooLarge
        | RelayError::Stalled
        | RelayError::Abandoned
        | RelayError::InsufficientCredits
        | RelayError::LedgerUnavailable
        | RelayError::ImageAddress
        | RelayError::Vendor(_) => permanent(502, SERVER_ERROR, "upstream_error", message),
    }
}

impl AttemptFailure {
    fn describe(&self) -> ErrorDescription<'static> {
        let failed = |message| retryable(502, SERVER_ERROR, "upstream_error", message);
        let error = match self.status {
            Some(408) => retryable(
                504,
                SERVER_ERROR,
                "upstream_timeout",
                "the vendor did not answer in time",
            ),
            _ if self.is_overloaded() => {
                let asked = self.retry_after.map_or(RETRY_AFTER_S, |d| d.as_secs());
                let error =
                    retryable(503, SERVER_ERROR, "upstream_overloaded", "the vendor is overloaded")
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
