//! What a request does with video jobs, by its method and path.

use http::Method;
use pingora::http::RequestHeader;

use crate::dialect::Endpoint;
use crate::gateway::api_error::{ApiError, RequestError};
use crate::gateway::request::target::{percent_decode, query_value, require_method};

/// What a request does with video jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VideoAction {
    /// Creates a job.
    Create,
    /// Lists a page of the account's jobs; the value is the query string.
    List(String),
    /// Returns the job with this id.
    Get(String),
    /// Deletes the job with this id.
    Delete(String),
    /// Redirects to the file of a job.
    Content {
        /// The id of the job.
        id: String,
        /// The kind of file that the query asks for, if it names one.
        variant: Option<String>,
    },
    /// Sends the file itself to the bearer of a signed URL.
    File {
        /// The id of the job.
        id: String,
        /// The token that authorises the download.
        token: String,
    },
}

impl VideoAction {
    /// Parses the method and the path below `/v1/videos`; `None` if there is no such path.
    ///
    /// # Errors
    /// The path exists, but not with this method.
    pub(in crate::gateway) fn from_request(
        head: &RequestHeader,
    ) -> Result<Option<VideoAction>, ApiError> {
        let Some(rest) = head.uri.path().strip_prefix(Endpoint::Videos.path()) else {
            return Ok(None);
        };
        let query = head.uri.query().unwrap_or_default();
        let get = |wanted| require_method(head, &Method::GET, "GET").map(|()| Some(wanted));
        if rest.is_empty() {
            return match head.method {
                Method::POST => Ok(Some(VideoAction::Create)),
                Method::GET => Ok(Some(VideoAction::List(query.to_owned()))),
                _ => Err(RequestError::MethodNotAllowed("GET, POST").into()),
            };
        }
        let Some(rest) = rest.strip_prefix('/') else { return Ok(None) };
        let mut parts = rest.splitn(2, '/');
        let Some(id) = parts.next().and_then(percent_decode) else { return Ok(None) };
        match (parts.next(), &head.method) {
            (None, &Method::DELETE) => Ok(Some(VideoAction::Delete(id))),
            (None, &Method::GET) => Ok(Some(VideoAction::Get(id))),
            (None, _) => Err(RequestError::MethodNotAllowed("GET, DELETE").into()),
            (Some("content"), _) => {
                get(VideoAction::Content { id, variant: query_value(query, "variant") })
            }
            (Some("file"), _) => {
                let token = query_value(query, "token").unwrap_or_default();
                get(VideoAction::File { id, token })
            }
            _ => Ok(None),
        }
    }
}
