//! The router: maps method and path to an operation, and answers the model listing.

use http::Method;
use pingora::http::RequestHeader;

use crate::dialect::Endpoint;
use crate::gateway::account_api::query::{
    AccountQuery, CHARGES_PATH, COMPLETIONS_PATH, COSTS_PATH, CREDITS_PATH, GENERATION_PATH,
    KEY_PATH, USAGE_PATH,
};
use crate::gateway::api_error::{ApiError, ErrorFormat, RequestError};
use crate::gateway::request::models::ModelFilter;
use crate::gateway::request::scope_check;
use crate::gateway::request::target::{percent_decode, require_method};
use crate::gateway::videos::action::{FileLink, JobAction, VideoAction};

/// What every path begins with.
const VERSION: &str = "/v1";

const MODELS_PATH: &str = "/v1/models";

/// The endpoints whose answer is the response to the same request, without a job.
const SYNCHRONOUS_ENDPOINTS: [Endpoint; 11] = [
    Endpoint::Chat,
    Endpoint::Responses,
    Endpoint::ResponsesCompact,
    Endpoint::Messages,
    Endpoint::Images,
    Endpoint::ImageEdits,
    Endpoint::Speech,
    Endpoint::Embeddings,
    Endpoint::Moderations,
    Endpoint::MessagesCountTokens,
    Endpoint::ResponsesInputTokens,
];

/// What a request asks for, by whether it needs an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RoutedRequest {
    /// An operation for the account of an API key.
    Operation(ApiOperation),
    /// The file of a signed URL.
    Download(FileLink),
}

/// The operation that a request asks for with an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ApiOperation {
    /// A call to an endpoint.
    Endpoint(Endpoint),
    /// The listing of the models that the filter selects.
    Models(ModelFilter),
    /// The listing of the model with this id.
    Model(String),
    /// The creation of a video job.
    CreateVideo,
    /// The video jobs that there are.
    Videos(JobAction),
    /// What the account has used.
    Account(AccountQuery),
}

impl RoutedRequest {
    /// Returns the short name of what is asked for in metrics.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            RoutedRequest::Operation(operation) => operation.name(),
            RoutedRequest::Download(_) => Endpoint::Videos.name(),
        }
    }
}

impl ApiOperation {
    /// Returns the short name of the operation in metrics.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            ApiOperation::Endpoint(endpoint) => endpoint.name(),
            ApiOperation::Models(_) | ApiOperation::Model(_) => scope_check::MODELS,
            ApiOperation::CreateVideo | ApiOperation::Videos(_) => Endpoint::Videos.name(),
            ApiOperation::Account(_) => scope_check::ACCOUNT,
        }
    }

    /// Returns the names of the operation in the scopes of keys, its own first; `None` if every key
    /// may ask for it.
    #[must_use]
    pub(crate) fn scope_names(&self) -> Option<[&'static str; 2]> {
        match self {
            ApiOperation::Endpoint(endpoint) => Some(scope_check::scope_names(*endpoint)),
            ApiOperation::Models(_)
            | ApiOperation::Model(_)
            | ApiOperation::CreateVideo
            | ApiOperation::Videos(_) => Some([self.name(); 2]),
            // A key may always be asked about itself.
            ApiOperation::Account(_) => None,
        }
    }

    /// Whether the operation costs nothing and needs no store.
    #[must_use]
    pub(crate) fn is_free(&self) -> bool {
        match self {
            ApiOperation::Endpoint(endpoint) => endpoint.is_free(),
            ApiOperation::Models(_) | ApiOperation::Model(_) => true,
            ApiOperation::CreateVideo | ApiOperation::Videos(_) | ApiOperation::Account(_) => false,
        }
    }
}

/// Returns the error format that clients of a path expect. The path need not exist.
#[must_use]
pub(crate) fn error_format(path: &str) -> ErrorFormat {
    // A client with a wrong base address sends '/v1' twice, or not at all.
    let rest =
        without_version(without_version(path)).strip_prefix(Endpoint::Messages.vendor_path());
    let messages = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if messages { ErrorFormat::Messages } else { ErrorFormat::Chat }
}

/// Returns what a method and a path ask for. Paths are compared byte by byte; nothing is
/// normalised.
///
/// # Errors
/// The path does not exist, does not allow the method, or has an invalid query.
pub(crate) fn match_request(head: &RequestHeader) -> Result<RoutedRequest, ApiError> {
    let operation = match VideoAction::from_request(head)? {
        None => match_operation(head)?,
        Some(VideoAction::Create) => ApiOperation::CreateVideo,
        Some(VideoAction::Jobs(wanted)) => ApiOperation::Videos(wanted),
        Some(VideoAction::Download(link)) => return Ok(RoutedRequest::Download(link)),
    };
    Ok(RoutedRequest::Operation(operation))
}

/// Returns the operation for a method and a path that is not one of videos.
fn match_operation(head: &RequestHeader) -> Result<ApiOperation, ApiError> {
    let path = head.uri.path();
    if path == MODELS_PATH {
        require_method(head, &Method::GET, "GET")?;
        return ModelFilter::parse_query(head.uri.query().unwrap_or_default())
            .map(ApiOperation::Models);
    }
    if let Some(id) = path.strip_prefix("/v1/models/").and_then(percent_decode) {
        return require_method(head, &Method::GET, "GET").map(|()| ApiOperation::Model(id));
    }
    if let Some(endpoint) = SYNCHRONOUS_ENDPOINTS.into_iter().find(|e| e.path() == path) {
        return require_method(head, &Method::POST, "POST")
            .map(|()| ApiOperation::Endpoint(endpoint));
    }
    if let Some(query) = AccountQuery::from_request(head)? {
        return Ok(ApiOperation::Account(query));
    }
    let path = path.to_owned();
    if lacks_version(&path) {
        return Err(RequestError::MissingVersion(path).into());
    }
    Err(RequestError::UnknownPath(path).into())
}

fn without_version(path: &str) -> &str {
    path.strip_prefix(VERSION).unwrap_or(path)
}

/// Whether a path is one of the interface if '/v1' is put before it.
fn lacks_version(path: &str) -> bool {
    let of_account = [CREDITS_PATH, KEY_PATH, GENERATION_PATH, CHARGES_PATH, USAGE_PATH];
    let others = [MODELS_PATH, COSTS_PATH, COMPLETIONS_PATH].into_iter().chain(of_account);
    let paths = Endpoint::ALL.map(Endpoint::path).into_iter().chain(others);
    let mut paths = paths.filter_map(|known| known.strip_prefix(VERSION));
    // Ids of models and videos follow in their paths.
    paths.any(|known| {
        path.strip_prefix(known).is_some_and(|id| id.is_empty() || id.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::catalogue::Catalogue;
    use crate::gateway::api_error::ErrorFormat;
    use crate::gateway::request::models::ModelFilter;
    use crate::gateway::request::models::ModelListing;
    use crate::gateway::request::rates::{CallerPlans, ModelAccess};
    use crate::gateway::request::target::percent_decode;

    use super::{error_format, lacks_version};

    #[test]
    fn clients_of_messages_get_their_format_however_often_they_say_v1() {
        for (path, is_messages) in [
            ("/v1/messages", true),
            ("/v1/messages/count_tokens", true),
            ("/v1/v1/messages", true),
            ("/messages", true),
            ("/messages/count_tokens", true),
            ("/v1/messagesx", false),
            ("/v1messages", false),
            ("/v1/chat/messages", false),
            ("/v1/chat/completions", false),
        ] {
            assert_eq!(error_format(path) == ErrorFormat::Messages, is_messages, "{path}");
        }
    }

    #[test]
    fn a_path_that_lacks_only_v1_is_told_from_others() {
        for (path, lacks) in [
            ("/chat/completions", true),
            ("/responses", true),
            ("/responses/input_tokens", true),
            ("/responses/compact", true),
            ("/messages", true),
            ("/messages/count_tokens", true),
            ("/models", true),
            ("/models/lmb-5.5", true),
            ("/videos/video_1", true),
            ("/credits", true),
            ("/key", true),
            ("/generation", true),
            ("/charges", true),
            ("/keys", false),
            ("/v1/chat/completion", false),
            ("/modelsx", false),
            ("/chat", false),
            ("/", false),
        ] {
            assert_eq!(lacks_version(path), lacks, "{path}");
        }
    }

    #[test]
    fn answers_with_all_models_share_their_bytes() {
        let rules = std::fs::read_dir("lua-free-rules").expect("rules");
        let texts = rules.filter_map(|entry| {
            let path = entry.ok()?.path();
            let is_rules = path.extension().is_some_and(|ending| ending == "toml");
            is_rules.then(|| (path.display().to_string(), std::fs::read_to_string(&path)))
        });
        let sources: Vec<_> = texts.map(|(file, text)| (file, text.expect("a text"))).collect();
        let catalogue = || Arc::new(Catalogue::parse(&sources, &[]).expect("sound rules"));
        let (listing, now) = (ModelListing::default(), catalogue());
        let access = ModelAccess { scope: None, plans: &CallerPlans::default(), book: None };
        let body = |catalogue| {
            listing
                .response_body(catalogue, &ModelFilter::default(), &access, 0)
                .expect("a listing")
        };
        let first = body(&now);
        assert_eq!(first.as_ptr(), body(&now).as_ptr());
        assert_ne!(first.as_ptr(), body(&catalogue()).as_ptr(), "the rules have changed");
    }

    #[test]
    fn an_id_may_have_its_slash_escaped_or_not() {
        assert_eq!(percent_decode("orgA%2FfamA-V3.2").as_deref(), Some("orgA/famA-V3.2"));
        assert_eq!(percent_decode("orgA/famA-V3.2").as_deref(), Some("orgA/famA-V3.2"));
        assert_eq!(percent_decode("a%2"), None);
        assert_eq!(percent_decode("a%zz"), None);
        assert_eq!(percent_decode("%ff"), None);
        assert_eq!(percent_decode(""), None);
    }
}
