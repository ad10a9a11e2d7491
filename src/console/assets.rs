//! The files that pages name. A file's address has a digest of its content, so browsers may keep it
//! for ever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::hex::to_hex;

/// The number of bytes of a digest that an address has.
const DIGEST_BYTES: usize = 8;

/// A file that pages name.
pub(super) struct Asset {
    /// The path of its address.
    pub(super) path: String,
    kind: &'static str,
    content: &'static str,
}

/// The stylesheet.
pub(super) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("style", "css", "text/css; charset=utf-8", include_str!("style.css"))
});
/// The script of the first page.
pub(super) static LIVE_SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("live", "js", "text/javascript; charset=utf-8", include_str!("live.js"))
});

impl Asset {
    fn new(name: &str, ending: &str, kind: &'static str, content: &'static str) -> Asset {
        let digest = to_hex(&Sha256::digest(content)[..DIGEST_BYTES]);
        Asset { path: format!("/assets/{name}-{digest}.{ending}"), kind, content }
    }
}

/// Serves a file.
pub(super) async fn show(Path(name): Path<String>) -> Response {
    let assets: [&Asset; 2] = [&STYLE, &LIVE_SCRIPT];
    let named = assets.into_iter().find(|asset| asset.path.strip_prefix("/assets/") == Some(&name));
    let Some(asset) = named else { return StatusCode::NOT_FOUND.into_response() };
    let kind = (header::CONTENT_TYPE, asset.kind);
    let kept = (header::CACHE_CONTROL, "public, max-age=31536000, immutable");
    ([kind, kept], asset.content).into_response()
}
