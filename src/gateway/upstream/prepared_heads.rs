//! The heads of a route's requests, prepared once for each endpoint: most of their fields are the
//! same for every call, and a copy costs less than to write them anew.

use std::sync::OnceLock;

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method};
use pingora::http::RequestHeader;

use crate::dialect::Endpoint;

/// The `user-agent` header of every request to a vendor.
const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// A compressed response could not be metered while it is relayed.
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
/// Room for the headers of a request.
const HEADERS_HINT: usize = 12;

/// Adds the headers that every request to a vendor has. Without others, it asks for JSON.
///
/// # Errors
/// The authority is invalid.
pub(super) fn add_common_headers(head: &mut RequestHeader, authority: &str) -> pingora::Result<()> {
    head.insert_header(HOST, authority)?;
    head.insert_header(ACCEPT, JSON)?;
    head.insert_header(ACCEPT_ENCODING, IDENTITY)?;
    head.insert_header(USER_AGENT, USER_AGENT_VALUE)
}

/// The prepared heads of a route.
pub(super) struct PreparedHeads([(Endpoint, OnceLock<RequestHeader>); Endpoint::ALL.len()]);

impl Default for PreparedHeads {
    fn default() -> PreparedHeads {
        PreparedHeads(Endpoint::ALL.map(|endpoint| (endpoint, OnceLock::new())))
    }
}

impl PreparedHeads {
    /// Returns the head of a request to an endpoint, with all fields that are the same for every
    /// call. Unless they are replaced, `content-type` and `accept` are those of JSON.
    ///
    /// # Errors
    /// The path or the authority is invalid.
    pub(super) fn head(
        &self,
        endpoint: Endpoint,
        base_path: &str,
        authority: &str,
    ) -> pingora::Result<RequestHeader> {
        let prepared = self.0.iter().find(|(known, _)| *known == endpoint).map(|(_, head)| head);
        if let Some(head) = prepared.and_then(OnceLock::get) {
            return Ok(head.clone());
        }
        let path = format!("{base_path}{}", endpoint.vendor_path());
        let mut head =
            RequestHeader::build_no_case(Method::POST, path.as_bytes(), Some(HEADERS_HINT))?;
        add_common_headers(&mut head, authority)?;
        head.insert_header(CONTENT_TYPE, JSON)?;
        if let Some(prepared) = prepared {
            // Another call may have prepared the same one meanwhile.
            let _ = prepared.set(head.clone());
        }
        Ok(head)
    }
}
