//! Letting a call in: its model is known and sold here, its fields have a price, money is held.

use std::sync::Arc;

use super::exchange::{AdmittedCall, BodyTransform, PricedModel, RequestContext, RequestStage};
use super::funds::{self, Funding};
use super::given::ReferencedContext;
use super::intake::RequestBody;
use super::known_keys::KnownCaller;
use super::refusal::ApiError;
use super::{Gateway, given, thinking};
use crate::catalogue::vendor::TextApi;
use crate::catalogue::{Catalogue, Model};
use crate::dialect::Endpoint;
use crate::dialect::call::{ModelCall, RequestKind};
use crate::dialect::json::JsonPatch;
use crate::dialect::payload::RequestPayload;
use crate::dialect::translate::request::{Translation, TranslationContext};
use crate::money::price::Quote;

/// Admits a call: afterwards its money is held.
///
/// # Errors
/// Everything that can be wrong with it before a vendor hears of it.
pub async fn admit(
    gateway: &Gateway,
    exchange: &mut RequestContext,
    caller: KnownCaller,
    taken: RequestBody,
    endpoint: Endpoint,
) -> Result<(), ApiError> {
    let catalogue = gateway.catalogue.load();
    let model = model(&catalogue, &taken.opened.model, endpoint)?;
    exchange.record.model = Some(model.clone());
    let call = ModelCall::parse(taken.opened, endpoint).map_err(ApiError::Call)?;
    screen(&model, &call, endpoint)?;
    let vendor = &model.vendor.name;
    let translation = translation(&caller, &model, &call, endpoint)?;
    let Some(line) = gateway.routes.of(vendor) else {
        return Err(ApiError::NoRoute(format!("no route to {vendor} is set up")));
    };
    // A call that continues a tool loop may turn out longer: the least is held until that is known.
    let is_continued = |t: &Translation| model.thinking && !t.tool_loop_ids().is_empty();
    let continued = translation.as_ref().is_some_and(is_continued);
    let at = exchange.arrived_ms / 1_000;
    let earlier = match &call.kind {
        RequestKind::Responses(ask) => {
            given::check(gateway, &caller.key.account, &ask.references).await?
        }
        _ => ReferencedContext::default(),
    };
    let mut untried = line.plan(exchange.record.account.as_ref(), exchange.arrived_ms);
    // Another one may lead to another account of ours, where the vendor keeps nothing of it. One
    // that is not there any more may have another name now.
    let pinned = untried.iter().any(|r| Some(&r.name) == earlier.route.as_ref());
    untried.retain(|r| !pinned || Some(&r.name) == earlier.route.as_ref());
    let mut quote = funds::quote(&model, &call, earlier.tokens, at)?;
    let wanted = quote.as_ref().map(|quote| quote.wanted).unwrap_or_default();
    if let Some(quote) = quote.as_mut().filter(|_| continued) {
        quote.wanted = quote.least;
    }
    // What is made should find room, and be read.
    let answer_permit = gateway.answers.admit(&caller.tenant, endpoint)?;
    let funds = fund(gateway, &exchange.id, caller, quote).await?;
    let way = match (&translation, model.vendor.text_api) {
        (Some(translation), _) => {
            BodyTransform::Translated { body: translation.build_call(), thinking: None }
        }
        (None, TextApi::Messages) => BodyTransform::Unchanged,
        (None, TextApi::Chat) => BodyTransform::Spliced,
    };
    let input_tokens = call.estimated_input_tokens().saturating_add(earlier.tokens);
    let input_tokens = model.context_length.map_or(input_tokens, |most| input_tokens.min(most));
    let price_version = catalogue.version.clone();
    exchange.stage = RequestStage::Admitted(Box::new(AdmittedCall {
        call,
        way,
        funds,
        terms: PricedModel { model, price_version, at, endpoint, input_tokens, wanted },
        room: taken.room,
        weight: taken.weight,
        answer_permit,
        untried: untried.into(),
        pinned,
        route: None,
        lane: None,
        crowded: false,
        body: RequestPayload::default(),
        failed: Vec::new(),
        block: None,
    }));
    if let Some(translation) = translation.filter(|_| continued) {
        thinking::restore(gateway, exchange, translation).await;
    }
    Ok(())
}

/// Holds what a call may come to, unless that is nothing.
async fn fund(
    gateway: &Gateway,
    id: &str,
    caller: KnownCaller,
    quote: Option<Quote>,
) -> Result<Funding, ApiError> {
    let Some(quote) = quote else { return Ok(Funding::Free) };
    Ok(gateway.hold(&caller.key, id, quote).await?)
}

/// The call in the vendor's format, if that is another one.
fn translation(
    caller: &KnownCaller,
    model: &Model,
    call: &ModelCall,
    endpoint: Endpoint,
) -> Result<Option<Translation>, ApiError> {
    if (model.vendor.text_api, endpoint) != (TextApi::Messages, Endpoint::Chat) {
        return Ok(None);
    }
    let mut draft = JsonPatch::new(&call.document);
    model.rewrite(endpoint, &mut draft);
    let account = caller.key.account.as_str();
    let json_schema = model.supports_json_schema;
    let manner = TranslationContext { model: &call.model, account, json_schema };
    Translation::parse_chat(&call.document, &draft, manner).map(Some).map_err(ApiError::Call)
}

/// Refuses what has no price.
pub(super) fn screen(model: &Model, call: &ModelCall, endpoint: Endpoint) -> Result<(), ApiError> {
    match model
        .vendor
        .field_policy(endpoint)
        .and_then(|s| s.find_refusal(&call.document, &model.price))
    {
        Some(refusal) => Err(ApiError::Unpriced(refusal.clone())),
        None => Ok(()),
    }
}

/// The model asked for, if it is sold on the endpoint.
pub(super) fn model(
    catalogue: &Catalogue,
    asked: &str,
    endpoint: Endpoint,
) -> Result<Arc<Model>, ApiError> {
    let Some(model) = catalogue.find(asked) else {
        let closest = catalogue.closest_model_id(asked, Some(endpoint)).map(str::to_owned);
        return Err(ApiError::NoModel { asked: asked.to_owned(), closest });
    };
    let sold_on = model.endpoints();
    if !sold_on.contains(&endpoint) {
        let right = sold_on.first().copied().unwrap_or(Endpoint::Chat);
        return Err(ApiError::WrongEndpoint { model: model.id.clone(), right });
    }
    Ok(model.clone())
}
