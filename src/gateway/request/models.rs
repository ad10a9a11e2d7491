//! The model listing of the API.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value as Json, json};

use crate::catalogue::{Catalogue, Model, ModelKind, PriceBook};
use crate::dialect::CallError;
use crate::gateway::api_error::{AdmissionError, ApiError};
use crate::gateway::request::rates::ModelAccess;
use crate::gateway::request::target::percent_decode;

/// A cached listing is built again after this time.
pub(crate) const LISTING_TTL: Duration = Duration::from_secs(1);

/// Selects models of the listing: those with one of these types and one of these owners. An empty
/// list selects all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ModelFilter {
    types: Vec<ModelKind>,
    owners: Vec<String>,
}

impl ModelFilter {
    /// Parses a URL query. Parameters other than `type` and `owned_by` are ignored.
    pub(crate) fn parse_query(query: &str) -> Result<ModelFilter, ApiError> {
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

pub(crate) fn invalid_choice(field: &str, known: &str) -> ApiError {
    CallError::invalid(field, &format!("one of {known}")).into()
}

/// The listing of all models, cached and shared: concurrent requests get the same bytes, so a
/// response that a client does not read costs no copy.
#[derive(Default)]
pub(crate) struct ModelListing {
    cached: Mutex<Option<CachedListing>>,
}

pub(crate) struct CachedListing {
    catalogue: Arc<Catalogue>,
    created: Instant,
    body: Bytes,
}

impl ModelListing {
    /// Returns the listing of the models that the filter selects and the caller may use, as a
    /// response body, with the prices of the moment `at` (unix seconds). Only the listing of all
    /// models at list prices is cached.
    ///
    /// # Errors
    /// See [`models_json`].
    pub(crate) fn response_body(
        &self,
        catalogue: &Arc<Catalogue>,
        filter: &ModelFilter,
        access: &ModelAccess<'_>,
        at: i64,
    ) -> Result<Bytes, ApiError> {
        if *filter != ModelFilter::default() || !access.is_open() {
            return models_json(catalogue, filter, access, at).map(Bytes::from);
        }
        let mut last = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |last: &&CachedListing| {
            Arc::ptr_eq(&last.catalogue, catalogue) && last.created.elapsed() < LISTING_TTL
        };
        if let Some(last) = last.as_ref().filter(is_good) {
            return Ok(last.body.clone());
        }
        let body = Bytes::from(models_json(catalogue, filter, access, at)?);
        let (catalogue, made) = (catalogue.clone(), Instant::now());
        *last = Some(CachedListing { catalogue, created: made, body: body.clone() });
        Ok(body)
    }
}

/// Builds the listing of the models that the filter selects and the caller may use as a response
/// body, with the prices of the moment `at` (unix seconds). Clients of both text formats
/// can read this one format.
///
/// # Errors
/// The filter names an owner that has no models here.
pub(crate) fn models_json(
    catalogue: &Catalogue,
    filter: &ModelFilter,
    access: &ModelAccess<'_>,
    at: i64,
) -> Result<String, ApiError> {
    let all = catalogue.models();
    if filter.owners.iter().any(|owner| all.iter().all(|m| m.vendor.name != *owner)) {
        let mut owners: Vec<&str> = all.iter().map(|m| &*m.vendor.name).collect();
        owners.dedup();
        return Err(invalid_choice("owned_by", &owners.join(", ")));
    }
    let wanted = catalogue.names().filter(|(_, m)| filter.matches(m) && access.allows(m));
    let data: Vec<_> = wanted.map(|(name, model)| model.listing(name, at, access.book)).collect();
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

/// Builds the listing of one model, under its id or an alias, with the prices of the moment `at`
/// (unix seconds) in a price book.
///
/// # Errors
/// There is no such model; the error names the one with the most similar name.
pub(crate) fn model_json(
    catalogue: &Catalogue,
    name: &str,
    book: Option<&PriceBook>,
    at: i64,
) -> Result<String, ApiError> {
    let Some(model) = catalogue.find(name) else {
        let closest = catalogue.closest_name(name, None).map(str::to_owned);
        return Err(AdmissionError::ModelNotFound { asked: name.to_owned(), closest }.into());
    };
    Ok(model.listing(name, at, book).to_string())
}
