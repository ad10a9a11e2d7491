//! The errors of the API, in the shape of those of `/v1`.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::ledger::Unavailable;
use crate::management::error::ManagementError;

const INVALID_REQUEST: &str = "invalid_request_error";
const PERMISSION: &str = "permission_error";
const SERVER_ERROR: &str = "server_error";

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AdminErrorReply {
    pub(super) error: AdminErrorDetail,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AdminErrorDetail {
    /// What went wrong and what would be right, for people.
    message: String,
    /// The kind of the error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    #[schema(example = "invalid_request_error")]
    kind: &'static str,
    /// The name of the field, the parameter or the header that is wrong; null if none is.
    param: Option<String>,
    /// The error, for programs.
    #[schema(example = "invalid_value")]
    code: String,
}

/// Why a request of an operator is not served.
#[derive(Debug)]
pub(crate) struct AdminError {
    status: StatusCode,
    detail: Box<AdminErrorDetail>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl AdminError {
    pub(super) fn new(
        status: StatusCode,
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> AdminError {
        let kind = match status.as_u16() {
            403 => PERMISSION,
            500.. => SERVER_ERROR,
            _ => INVALID_REQUEST,
        };
        let (message, code) = (message.into(), code.into());
        let detail = Box::new(AdminErrorDetail { message, kind, param: None, code });
        AdminError { status, detail, header: None }
    }

    /// Returns the status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns what went wrong and what would be right, for people.
    pub(crate) fn message(&self) -> &str {
        &self.detail.message
    }

    /// Returns the error that a field, a parameter or a header is wrong.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> AdminError {
        let error = AdminError::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        error.about(param)
    }

    /// Names the field, the parameter or the header that is wrong.
    pub(super) fn about(mut self, param: impl Into<String>) -> AdminError {
        self.detail.param = Some(param.into());
        self
    }

    /// Adds a header to the response.
    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> AdminError {
        self.header = Some((name, value));
        self
    }

    /// Returns the error that a request without a valid token gets.
    pub(super) fn unauthorized(code: &str, message: &str) -> AdminError {
        AdminError::new(StatusCode::UNAUTHORIZED, code, message)
            .about("authorization")
            .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// Returns the error that something failed here.
    pub(super) fn internal(message: &str) -> AdminError {
        AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// Returns the error that a request can be tried again in a moment.
    pub(super) fn busy(code: &str, message: impl Into<String>) -> AdminError {
        AdminError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }
}

impl From<ManagementError> for AdminError {
    fn from(why: ManagementError) -> AdminError {
        let message = why.to_string();
        match why {
            ManagementError::NotFound { what, .. } => {
                AdminError::new(StatusCode::NOT_FOUND, format!("{what}_not_found"), message)
                    .about(what)
            }
            ManagementError::AlreadyExists { what, .. } => {
                AdminError::new(StatusCode::CONFLICT, format!("{what}_exists"), message)
                    .about("name")
            }
            ManagementError::Invalid { field, .. } => AdminError::invalid(field, message),
            ManagementError::Conflict { code, .. } => {
                AdminError::new(StatusCode::CONFLICT, code, message)
            }
            ManagementError::NotReady { code, .. } => AdminError::busy(code, message),
            ManagementError::BooksDiffer(_) => {
                AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "books_differ", message)
            }
            ManagementError::Audit(_) => AdminError::busy("audit_unavailable", message),
            ManagementError::Unavailable(why) => why.into(),
            ManagementError::Unfinished { .. }
            | ManagementError::NoRandomBits(_)
            | ManagementError::UnexpectedAnswer(_) => AdminError::internal(&message),
        }
    }
}

impl From<Unavailable> for AdminError {
    fn from(why: Unavailable) -> AdminError {
        let message = format!("{why}; ask again: ids and idempotency keys make repeats harmless");
        AdminError::busy("store_unavailable", message)
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let body = AdminErrorReply { error: *self.detail };
        let mut response = (self.status, super::extract::JsonReply(body)).into_response();
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
