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

impl From<AdminError> for PageError {
    fn from(why: AdminError) -> PageError {
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
        let message = format!("The store does not answer ({why}). Nothing is lost: try again.");
        PageError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}
