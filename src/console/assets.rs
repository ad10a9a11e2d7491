//! The files that pages name. A file's address changes with its content, so browsers keep it.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The stylesheet.
const STYLE: &str = include_str!("style.css");
/// Its address. The number is that of the version of its content.
pub(super) const STYLE_PATH: &str = "/assets/style-2.css";

/// Serves a file.
pub(super) async fn show(Path(name): Path<String>) -> Response {
    if STYLE_PATH.strip_prefix("/assets/") != Some(&name) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let kind = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    let kept = (header::CACHE_CONTROL, "public, max-age=31536000, immutable");
    ([kind, kept], STYLE).into_response()
}
