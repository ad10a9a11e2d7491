//! The router: maps method and path to an operation, and answers the model listing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use pingora_http::RequestHeader;
use serde_json::{Value as Json, json};

use super::api_error::{AdmissionError, ApiError, ErrorFormat, RequestError};
use super::videos;
use crate::catalogue::{Catalogue, Model, ModelKind};
use crate::dialect::{CallError, Endpoint};

const MODELS_PATH: &str = "/v1/models";
/// A listing is made anew after this time.
const LISTING_TTL: Duration = Duration::from_secs(1);

/// The endpoints that vendors answer at once.
const SYNCHRONOUS_ENDPOINTS: [Endpoint; 8] = [
    Endpoint::Chat,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Images,
    Endpoint::ImageEdits,
    Endpoint::Speech,
    Endpoint::Embeddings,
    Endpoint::Moderations,
];

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiOperation {
    /// A call to an endpoint.
    Endpoint(Endpoint),
    /// The model listing, as far as it is asked for.
    Models(ModelFilter),
    /// One model.
    Model(String),
    /// Video jobs.
    Video(videos::VideoAction),
}

impl ApiOperation {
    /// Its short name in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ApiOperation::Endpoint(endpoint) => endpoint.name(),
            ApiOperation::Models(_) | ApiOperation::Model(_) => "models",
            ApiOperation::Video(_) => Endpoint::Videos.name(),
        }
    }

    /// Whether it costs nothing and needs no store.
    #[must_use]
    pub fn is_free(&self) -> bool {
        match self {
            ApiOperation::Endpoint(endpoint) => *endpoint == Endpoint::Moderations,
            ApiOperation::Models(_) | ApiOperation::Model(_) => true,
            ApiOperation::Video(_) => false,
        }
    }
}

/// The error format for the clients of a path, whether the path exists or not.
#[must_use]
pub fn error_format(path: &str) -> ErrorFormat {
    let ours = path.strip_prefix("/v1").filter(|rest| rest.starts_with("/v1/")).unwrap_or(path);
    let rest = ours.strip_prefix(Endpoint::Messages.path());
    let messages = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if messages { ErrorFormat::Messages } else { ErrorFormat::Chat }
}

/// Reads the method and the path. Paths are compared byte by byte; nothing is normalised.
///
/// # Errors
/// No such path, or another method.
pub fn match_operation(head: &RequestHeader) -> Result<ApiOperation, ApiError> {
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
    if let Some(wanted) = videos::VideoAction::from_request(head)? {
        return Ok(ApiOperation::Video(wanted));
    }
    Err(RequestError::UnknownPath(path.to_owned()).into())
}

pub(super) fn require_method(
    head: &RequestHeader,
    method: &Method,
    name: &'static str,
) -> Result<(), ApiError> {
    if head.method == *method { Ok(()) } else { Err(RequestError::MethodNotAllowed(name).into()) }
}

/// An id out of a path: clients escape the slash in it. `None` if it is no text.
pub(super) fn percent_decode(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok().filter(|id| !id.is_empty())
}

/// Which models are wanted of the listing: those of any of these types and owners, where any is
/// named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelFilter {
    types: Vec<ModelKind>,
    owners: Vec<String>,
}

impl ModelFilter {
    /// Reads a query. What it says beside `type` and `owned_by` means nothing here.
    fn parse_query(query: &str) -> Result<ModelFilter, ApiError> {
        let mut filter = ModelFilter::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = percent_decode(value);
            match name {
                "type" => {
                    let known =
                        ModelKind::ALL.into_iter().find(|k| Some(k.name()) == text.as_deref());
                    let kinds = ModelKind::ALL.map(ModelKind::name).join(", ");
                    filter.types.push(known.ok_or_else(|| invalid_choice("type", &kinds))?);
                }
                "owned_by" => filter.owners.push(text.unwrap_or_default()),
                _ => {}
            }
        }
        Ok(filter)
    }

    fn matches(&self, model: &Model) -> bool {
        let of_type = self.types.is_empty() || self.types.contains(&model.kind);
        of_type && (self.owners.is_empty() || self.owners.contains(&model.vendor.name))
    }
}

fn invalid_choice(field: &str, known: &str) -> ApiError {
    CallError::invalid(field, &format!("one of {known}")).into()
}

/// The listing of all models, cached and shared: concurrent requests get the same bytes, so a
/// response that a client does not read costs no copy.
#[derive(Default)]
pub struct ModelListing {
    cached: Mutex<Option<CachedListing>>,
}

struct CachedListing {
    catalogue: Arc<Catalogue>,
    created: Instant,
    body: Bytes,
}

impl ModelListing {
    /// The listing of the models that are wanted at a moment (unix seconds), as the body of an
    /// answer.
    ///
    /// # Errors
    /// See [`models_json`].
    pub fn response_body(
        &self,
        catalogue: &Arc<Catalogue>,
        filter: &ModelFilter,
        at: i64,
    ) -> Result<Bytes, ApiError> {
        if *filter != ModelFilter::default() {
            return models_json(catalogue, filter, at).map(Bytes::from);
        }
        let mut last = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |last: &&CachedListing| {
            Arc::ptr_eq(&last.catalogue, catalogue) && last.created.elapsed() < LISTING_TTL
        };
        if let Some(last) = last.as_ref().filter(is_good) {
            return Ok(last.body.clone());
        }
        let body = Bytes::from(models_json(catalogue, filter, at)?);
        let (catalogue, made) = (catalogue.clone(), Instant::now());
        *last = Some(CachedListing { catalogue, created: made, body: body.clone() });
        Ok(body)
    }
}

/// The listing of the models that are wanted with the prices of the moment `at` (unix seconds), as
/// the body of an answer. One shape serves clients of both text formats.
///
/// # Errors
/// An owner is wanted that owns nothing here.
pub fn models_json(
    catalogue: &Catalogue,
    filter: &ModelFilter,
    at: i64,
) -> Result<String, ApiError> {
    let all = catalogue.models();
    if filter.owners.iter().any(|owner| all.iter().all(|m| m.vendor.name != *owner)) {
        let mut owners: Vec<&str> = all.iter().map(|m| &*m.vendor.name).collect();
        owners.dedup();
        return Err(invalid_choice("owned_by", &owners.join(", ")));
    }
    let data: Vec<_> = all.iter().filter(|m| filter.matches(m)).map(|m| m.listing(at)).collect();
    let id = |entry: Option<&Json>| entry.map_or(Json::Null, |entry| entry["id"].clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    let list = json!({
        "object": "list",
        "data": data,
        "has_more": false,
        "first_id": first_id,
        "last_id": last_id,
    });
    Ok(list.to_string())
}

/// The listing of one model with the prices of the moment `at` (unix seconds).
///
/// # Errors
/// No such model; the refusal names the closest one.
pub fn model_json(catalogue: &Catalogue, id: &str, at: i64) -> Result<String, ApiError> {
    let Some(model) = catalogue.find(id) else {
        let closest = catalogue.closest_model_id(id, None).map(str::to_owned);
        return Err(AdmissionError::ModelNotFound { asked: id.to_owned(), closest }.into());
    };
    Ok(model.listing(at).to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{ModelFilter, ModelListing, percent_decode};
    use crate::catalogue::Catalogue;

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
        let body = |catalogue| {
            listing.response_body(catalogue, &ModelFilter::default(), 0).expect("a listing")
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
