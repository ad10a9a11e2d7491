//! Reads what requests have in their paths, queries and bodies, and writes replies. What is not
//! known is refused, and named.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::AdminError;

/// The most bytes of a body.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
const JSON: &str = "application/json";

/// A body in JSON.
pub(super) struct JsonBody<T>(pub(super) T);

/// A reply in JSON.
pub(super) struct JsonReply<T>(pub(super) T);

/// The parameters of a query.
pub(super) struct QueryParameters<T>(pub(super) T);

/// The name in a path.
pub(super) struct PathName(pub(super) String);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = AdminError;

    async fn from_request(request: Request, _: &S) -> Result<JsonBody<T>, AdminError> {
        let (parts, body) = request.into_parts();
        // The body has been read before, within its bounds.
        let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
        let body = body.map_err(|_| AdminError::invalid("body", "the body cannot be read"))?;
        if parts.uri.query().is_some_and(|query| !query.is_empty()) {
            return Err(AdminError::invalid("query", "this request takes no query parameters"));
        }
        if body.is_empty() {
            // A body whose members may all be missing may be missing itself.
            let empty = serde_json::from_slice(b"{}");
            let needed = |_| AdminError::invalid("body", "this request needs a body, in JSON");
            return empty.map(JsonBody).map_err(needed);
        }
        check_content_type(&parts.headers)?;
        let mut reader = serde_json::Deserializer::from_slice(&body);
        let parsed = serde_path_to_error::deserialize(&mut reader);
        let parsed = parsed.map_err(|why| {
            let path = why.path().to_string();
            body_error(&path, why.inner())
        })?;
        reader.end().map_err(|why| body_error(".", &why))?;
        Ok(JsonBody(parsed))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = AdminError;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> Result<QueryParameters<T>, AdminError> {
        let query = parts.uri.query().unwrap_or_default();
        let parsed = serde_urlencoded::from_str::<T>(query);
        parsed.map(QueryParameters).map_err(|why| {
            let message = why.to_string();
            AdminError::invalid(named_field(&message).unwrap_or("query"), message.clone())
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = AdminError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathName, AdminError> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = name.map_err(|why| AdminError::invalid("path", why.to_string()))?;
        Ok(PathName(name))
    }
}

impl<T: Serialize> IntoResponse for JsonReply<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, JSON)], Body::from(body)).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), AdminError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let given = given.unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(JSON) {
        return Ok(());
    }
    let message = format!("'{given}' is no type of a body here: send {JSON}");
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(AdminError::new(status, "unsupported_media_type", message).about("content-type"))
}

fn body_error(path: &str, why: &serde_json::Error) -> AdminError {
    let message = why.to_string();
    if why.is_syntax() || why.is_eof() {
        let message = format!("the body is no JSON: {message}");
        return AdminError::new(StatusCode::BAD_REQUEST, "invalid_json", message).about("body");
    }
    let field = match (path, named_field(&message)) {
        (".", Some(field)) => field.to_owned(),
        (".", None) => "body".to_owned(),
        // The path of an unknown field ends with the field itself.
        (path, _) => path.to_owned(),
    };
    AdminError::invalid(field.clone(), format!("'{field}': {message}"))
}

/// Returns the name of the field that a message of the reader names first.
fn named_field(message: &str) -> Option<&str> {
    let names_field = ["unknown field `", "missing field `", "duplicate field `"];
    let after = names_field.into_iter().find_map(|start| message.strip_prefix(start))?;
    after.split_once('`').map(|(field, _)| field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_that_is_wrong_is_named() {
        assert_eq!(named_field("unknown field `nmae`, expected `name`"), Some("nmae"));
        assert_eq!(named_field("missing field `name` at line 1 column 2"), Some("name"));
        assert_eq!(named_field("invalid type: integer `5`, expected a string"), None);
    }
}
