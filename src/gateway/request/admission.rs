//! Admits a call: checks that its model is sold here and that its fields have a price, and places
//! the hold.

use std::sync::Arc;

use crate::catalogue::fee::CallFees;
use crate::catalogue::vendor::TextApi;
use crate::catalogue::{AccountPrice, Catalogue, Model, PriceBook};
use crate::dialect::Endpoint;
use crate::dialect::call::{ModelCall, ParsedBody};
use crate::dialect::json::JsonPatch;
use crate::dialect::translate::request::{Translation, TranslationContext};
use crate::gateway::api_error::{AdmissionError, ApiError, UpstreamError};
use crate::gateway::context::{
    AdmittedCall, BodyTransform, CallPermits, PricedCall, PricedModel, RequestContext, RouteQueue,
};
use crate::gateway::request::body::RequestBody;
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::request::rates::CallerPlans;
use crate::gateway::request::{books, reasoning_cache, scope_check, vendor_ids};
use crate::gateway::settlement::holds::{self, FundedCall, NewHold};
use crate::gateway::settlement::quote::{self, QuoteContext, field_too_large};
use crate::gateway::state::Gateway;
use crate::gateway::upstream::routes::VendorRouteSet;

/// A call that may be sold: its model is sold on the endpoint, its fields have a price, and its
/// vendor has routes.
pub(crate) struct AcceptedCall<'a> {
    pub(crate) call: ModelCall,
    pub(crate) model: Arc<Model>,
    /// The price book of the account; `None` if it pays the list price, or the call is free.
    pub(crate) book: Option<Arc<PriceBook>>,
    /// The name by which the client asked for the model, if that is not the model's id.
    pub(crate) requested_model: Option<Arc<str>>,
    pub(crate) price_version: Arc<str>,
    /// The time whose prices apply, in unix seconds.
    pub(crate) priced_at: i64,
    pub(crate) routes: &'a VendorRouteSet,
    /// The fees for tools that the vendor runs.
    pub(crate) fees: CallFees,
    /// The plans that limit the call.
    pub(crate) plans: CallerPlans,
}

/// Parses a call, and finds its model and the routes to its vendor. Every call that costs anything
/// begins with this function, also a video job.
///
/// # Errors
/// The model is not sold on the endpoint, or the key is not for it; the call is wrong or has a
/// field without a price; the account's plan or price book is unknown; or no route to the vendor is
/// set up.
pub(crate) fn accept_call<'a>(
    gateway: &'a Gateway,
    ctx: &mut RequestContext,
    caller: &AuthenticatedCaller,
    parsed: ParsedBody,
    endpoint: Endpoint,
) -> Result<AcceptedCall<'a>, ApiError> {
    let catalogue = gateway.catalogue.load();
    let model = find_model(&catalogue, &parsed.model, endpoint)?;
    scope_check::check_model(caller, &model)?;
    let plans = CallerPlans::find(&catalogue.plans, &caller.key)?;
    plans.check_model(&model)?;
    ctx.access_log.model = Some(model.clone());
    let requested_model = (parsed.model != model.id).then(|| Arc::from(parsed.model.as_str()));
    ctx.access_log.requested_model.clone_from(&requested_model);
    let mut call = ModelCall::parse(parsed, endpoint)?;
    check_field_policy(&model, &call, endpoint)?;
    let is_free = quote::is_free(&model, &call);
    let book = if is_free { None } else { books::find_book(&catalogue.books, &caller.key)? };
    let factor = AccountPrice::new(&model, book.as_deref()).factor();
    let fees = model.vendor.find_fees(endpoint, &call.document, factor)?;
    if !fees.is_empty() {
        call.add_tool_reads(fees.rereads_max(), fees.input_tokens_max());
    }
    let vendor = &model.vendor.name;
    let Some(routes) = gateway.routes.for_vendor(vendor) else {
        return Err(UpstreamError::NoRoute(format!("no route to {vendor} is set up")).into());
    };
    let price_version = catalogue.version.clone();
    let priced_at = ctx.arrived_ms / 1_000;
    Ok(AcceptedCall {
        call,
        model,
        book,
        requested_model,
        price_version,
        priced_at,
        routes,
        fees,
        plans,
    })
}

/// Admits a call, and places its hold, which the admitted call owns. A free call has none.
///
/// # Errors
/// The call is invalid, not for sale, or not covered by the balance; or there is no memory for its
/// answer.
pub(crate) async fn admit_call(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    caller: AuthenticatedCaller,
    body: RequestBody,
    endpoint: Endpoint,
) -> Result<Box<AdmittedCall>, ApiError> {
    let accepted = accept_call(gateway, ctx, &caller, body.parsed, endpoint)?;
    let AcceptedCall { mut call, model, requested_model, price_version, priced_at, .. } = accepted;
    let AcceptedCall { routes, fees, plans, book, .. } = accepted;
    let mut translation = build_translation(&caller, &model, &call, endpoint)?;
    // Saved thinking may make a call that continues a tool loop longer; its hold then grows.
    let is_continued = |t: &Translation| model.thinking && !t.tool_loop_ids().is_empty();
    let continued = translation.as_ref().is_some_and(is_continued);
    let referenced_context =
        vendor_ids::check_ownership(gateway, &caller.key.account, call.references()).await?;
    let mut untried = routes.attempt_order(ctx.access_log.account.as_ref(), ctx.arrived_ms);
    // Another route may use another of our vendor accounts, where the referenced objects do not
    // exist. If the route is gone it may have been renamed, so then all routes are tried.
    let is_pinned = untried.iter().any(|r| Some(&r.name) == referenced_context.route.as_ref());
    untried.retain(|r| !is_pinned || Some(&r.name) == referenced_context.route.as_ref());
    let output_estimate = gateway.output_estimates.find(&caller.key.account, &model.id);
    let quote_context = QuoteContext {
        endpoint,
        priced_at,
        earlier_input_tokens: referenced_context.tokens,
        output_estimate: output_estimate.tokens(),
        text_tokens_max: None,
        book: book.as_deref(),
        fees: fees.amount_max().map_err(|_| field_too_large("tools"))?,
    };
    // The response needs memory, so that budget is checked before the vendor is paid.
    let answer_permit = gateway.answer_budget.admit(&caller.tenant, endpoint)?;
    let may_be_in_memory = ctx.idempotent_call.as_ref().is_none_or(|call| !call.is_claim_stored());
    let new = NewHold { id: &ctx.id, may_be_in_memory };
    let funded =
        holds::fund_call(gateway, new, &caller, &plans, &model, &call, quote_context).await?;
    let FundedCall { funding, output_limit, full_hold, rates } = funded;
    ctx.rates = rates;
    if let Some(limit) = output_limit {
        call.limit_output(limit);
        if let Some(translation) = &mut translation {
            translation.limit_output(limit);
        }
    }
    let body_transform = match (&translation, model.vendor.text_api) {
        (Some(translation), _) => {
            BodyTransform::Translate { body: translation.build_call(), reasoning: None }
        }
        (None, TextApi::Messages) => BodyTransform::PassThrough,
        (None, TextApi::Chat) => BodyTransform::Patch,
    };
    let input_tokens = call.estimated_input_tokens().saturating_add(referenced_context.tokens);
    let input_tokens = model.context_length.map_or(input_tokens, |most| input_tokens.min(most));
    let pricing = PricedModel {
        model,
        book,
        requested_model,
        price_version,
        priced_at,
        endpoint,
        input_tokens,
        full_hold,
        fees,
        output_estimate,
    };
    let mut admitted = Box::new(AdmittedCall {
        priced: PricedCall { call, body_transform, funding, pricing, output_limit },
        permits: CallPermits {
            upload: body.upload_permit,
            body: body.budget_permit,
            answer: answer_permit,
        },
        routes: RouteQueue::new(untried, is_pinned),
    });
    if let Some(translation) = translation.filter(|_| continued) {
        reasoning_cache::restore_reasoning(gateway, &mut admitted.priced, translation).await;
    }
    Ok(admitted)
}

/// Prepares the translation of a call into the vendor's format; `None` if the vendor's format is
/// the same.
fn build_translation(
    caller: &AuthenticatedCaller,
    model: &Model,
    call: &ModelCall,
    endpoint: Endpoint,
) -> Result<Option<Translation>, ApiError> {
    if (model.vendor.text_api, endpoint) != (TextApi::Messages, Endpoint::Chat) {
        return Ok(None);
    }
    let mut patch = JsonPatch::new(&call.document);
    model.rewrite(endpoint, &mut patch);
    let account = caller.key.account.as_str();
    let json_schema = model.supports_json_schema;
    let translation_context = TranslationContext { model: &call.model, account, json_schema };
    Translation::parse_chat(&call.document, &patch, translation_context)
        .map(Some)
        .map_err(ApiError::from)
}

/// Refuses a call with a field that has no price.
fn check_field_policy(model: &Model, call: &ModelCall, endpoint: Endpoint) -> Result<(), ApiError> {
    match model
        .vendor
        .field_policy(endpoint)
        .and_then(|s| s.find_refusal(&call.document, &model.price))
    {
        Some(refused) => Err(AdmissionError::UnpricedField(Box::new(refused)).into()),
        None => Ok(()),
    }
}

/// Returns the requested model, if it is sold on the endpoint.
fn find_model(
    catalogue: &Catalogue,
    asked: &str,
    endpoint: Endpoint,
) -> Result<Arc<Model>, ApiError> {
    let endpoint = endpoint.rules_endpoint();
    let Some(model) = catalogue.find(asked) else {
        let closest = catalogue.closest_name(asked, Some(endpoint)).map(str::to_owned);
        return Err(AdmissionError::ModelNotFound { asked: asked.to_owned(), closest }.into());
    };
    if !model.endpoints().contains(&endpoint) {
        return Err(AdmissionError::wrong_endpoint(model).into());
    }
    Ok(model.clone())
}
