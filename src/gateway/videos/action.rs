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
    /// Asks something of jobs that there are.
    Jobs(JobAction),
    /// Downloads the file itself.
    Download(FileLink),
}

/// What a request asks of the video jobs that its account has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobAction {
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
}

/// What a signed URL of a file names. It needs no API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileLink {
    /// The id of the job.
    pub(crate) id: String,
    /// The token that authorises the download.
    pub(crate) token: String,
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
        let jobs = |wanted| Ok(Some(VideoAction::Jobs(wanted)));
        if rest.is_empty() {
            return match head.method {
                Method::POST => Ok(Some(VideoAction::Create)),
                Method::GET => jobs(JobAction::List(query.to_owned())),
                _ => Err(RequestError::MethodNotAllowed("GET, POST").into()),
            };
        }
        let Some(rest) = rest.strip_prefix('/') else { return Ok(None) };
        let mut parts = rest.splitn(2, '/');
        let Some(id) = parts.next().and_then(percent_decode) else { return Ok(None) };
        match (parts.next(), &head.method) {
            (None, &Method::DELETE) => jobs(JobAction::Delete(id)),
            (None, &Method::GET) => jobs(JobAction::Get(id)),
            (None, _) => Err(RequestError::MethodNotAllowed("GET, DELETE").into()),
            (Some("content"), _) => {
                let variant = query_value(query, "variant");
                get(VideoAction::Jobs(JobAction::Content { id, variant }))
            }
            (Some("file"), _) => {
                let token = query_value(query, "token").unwrap_or_default();
                get(VideoAction::Download(FileLink { id, token }))
            }
            _ => Ok(None),
        }
    }
}
