//! What a page says when a request is not served.

use axum::http::StatusCode;

use crate::admin_api::error::AdminError;
use crate::ledger::Unavailable;
use crate::management::error::ManagementError;

/// Why a page is not shown, or a change was not made.
#[derive(Debug, Clone)]
pub(super) struct PageError {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl PageError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> PageError {
        PageError { status, message: message.into() }
    }

    /// Returns the error that a field of a form or a parameter is wrong.
    pub(super) fn invalid(message: impl Into<String>) -> PageError {
        PageError::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the error that there is no such page or thing.
    pub(super) fn not_found(message: impl Into<String>) -> PageError {
        PageError::new(StatusCode::NOT_FOUND, message)
    }
}

/// What is said of a store that does not answer. Why is for the log: it names machines.
const STORE_AWAY: &str = "The store does not answer at the moment. Try again soon. If this was a \
                          form, look first whether it has taken effect.";

impl From<AdminError> for PageError {
    fn from(why: AdminError) -> PageError {
        if why.status().is_server_error() {
            log::warn!(event = "console_request_failed", error = why.message(); "page not shown");
            return PageError::new(why.status(), STORE_AWAY);
        }
        PageError::new(why.status(), why.message())
    }
}

impl From<ManagementError> for PageError {
    fn from(why: ManagementError) -> PageError {
        AdminError::from(why).into()
    }
}

impl From<Unavailable> for PageError {
    fn from(why: Unavailable) -> PageError {
        AdminError::from(why).into()
    }
}
