//! `/admin/v1/models`, `plans`, `books` and `routes`: the rules in force, and the state of the
//! routes.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::error::AdminError;
use super::extract::{JsonReply, QueryParameters};
use super::page::AdminPage;
use super::state::AdminApi;
use crate::catalogue::plan::PlanLimits;
use crate::catalogue::{Plan, PriceBook};
use crate::clock::{timestamp, unix_ms};

/// No parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NoParameters {}

/// A plan of the rules.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PlanReply {
    /// The name.
    name: String,
    /// The limits of all models together.
    #[serde(flatten)]
    limits: PlanLimitsReply,
    /// Patterns of the models that the plan is for. None stand for all models.
    models: Vec<String>,
    /// Further limits of some models.
    of: Vec<NarrowerLimitsReply>,
    /// Whether the limits are only counted, and refuse nothing.
    shadow: bool,
}

/// Limits of a plan; null where there is none.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PlanLimitsReply {
    /// Requests a minute.
    requests_per_minute: Option<i64>,
    /// Tokens of input and billed output a minute.
    tokens_per_minute: Option<i64>,
    /// Calls at a time.
    calls: Option<i64>,
}

/// Limits of some models.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NarrowerLimitsReply {
    /// Patterns of the models.
    models: Vec<String>,
    /// The limits of these models together.
    #[serde(flatten)]
    limits: PlanLimitsReply,
}

/// A price book of the rules.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BookReply {
    /// The name.
    name: String,
    /// What the list price is multiplied by, as a decimal text.
    #[schema(example = "0.85")]
    factor: String,
    /// How many models have a price of their own, to which the factor does not apply.
    prices: usize,
    /// Whether the book may be below what the vendors charge.
    loss: bool,
}

/// A route to a vendor.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RouteReply {
    /// The vendor.
    vendor: String,
    /// The name of the route.
    route: String,
    /// `up`, `blocked` after failures, or `unresolved` without an address.
    #[schema(example = "up")]
    state: &'static str,
    /// Why the route is not up; empty if it is.
    reason: String,
}

impl PlanLimitsReply {
    fn new(limits: PlanLimits) -> PlanLimitsReply {
        let PlanLimits { requests_per_minute, tokens_per_minute, calls } = limits;
        PlanLimitsReply { requests_per_minute, tokens_per_minute, calls }
    }
}

impl PlanReply {
    fn new(plan: &Plan) -> PlanReply {
        let of = plan.narrower.iter().map(|narrower| NarrowerLimitsReply {
            models: narrower.models.clone(),
            limits: PlanLimitsReply::new(narrower.limits),
        });
        PlanReply {
            name: plan.name.to_string(),
            limits: PlanLimitsReply::new(plan.limits),
            models: plan.models.clone(),
            of: of.collect(),
            shadow: plan.is_shadow,
        }
    }
}

impl BookReply {
    fn new(book: &PriceBook) -> BookReply {
        BookReply {
            name: book.name.to_string(),
            factor: book.factor.to_string(),
            prices: book.own_price_count(),
            loss: book.allows_loss,
        }
    }
}

/// Lists the models that are sold, with their prices, as `/v1/models` does.
#[utoipa::path(
    get,
    path = "/admin/v1/models",
    tag = "rules",
    operation_id = "listModels",
    responses((status = 200, description = "Models.", body = AdminPage<Value>))
)]
pub(super) async fn list_models(
    State(api): State<AdminApi>,
    QueryParameters(NoParameters {}): QueryParameters<NoParameters>,
) -> Result<JsonReply<AdminPage<Value>>, AdminError> {
    let (catalogue, now) = (api.catalogue.load_full(), timestamp().as_second());
    let listed = catalogue.names().map(|(name, model)| model.listing(name, now, None));
    Ok(JsonReply(whole(listed.collect())))
}

/// Lists the plans of the rules.
#[utoipa::path(
    get,
    path = "/admin/v1/plans",
    tag = "rules",
    operation_id = "listPlans",
    responses((status = 200, description = "Plans.", body = AdminPage<PlanReply>))
)]
pub(super) async fn list_plans(
    State(api): State<AdminApi>,
    QueryParameters(NoParameters {}): QueryParameters<NoParameters>,
) -> Result<JsonReply<AdminPage<PlanReply>>, AdminError> {
    let catalogue = api.catalogue.load_full();
    Ok(JsonReply(whole(catalogue.plans.iter().map(|plan| PlanReply::new(plan)).collect())))
}

/// Lists the price books of the rules, by name.
#[utoipa::path(
    get,
    path = "/admin/v1/books",
    tag = "rules",
    operation_id = "listBooks",
    responses((status = 200, description = "Price books.", body = AdminPage<BookReply>))
)]
pub(super) async fn list_books(
    State(api): State<AdminApi>,
    QueryParameters(NoParameters {}): QueryParameters<NoParameters>,
) -> Result<JsonReply<AdminPage<BookReply>>, AdminError> {
    let catalogue = api.catalogue.load_full();
    Ok(JsonReply(whole(catalogue.books.iter().map(|book| BookReply::new(book)).collect())))
}

/// Lists the routes to the vendors, and whether each is up.
#[utoipa::path(
    get,
    path = "/admin/v1/routes",
    tag = "rules",
    operation_id = "listRoutes",
    responses((status = 200, description = "Routes.", body = AdminPage<RouteReply>))
)]
pub(super) async fn list_routes(
    State(api): State<AdminApi>,
    QueryParameters(NoParameters {}): QueryParameters<NoParameters>,
) -> Result<JsonReply<AdminPage<RouteReply>>, AdminError> {
    let now = unix_ms();
    let routes = api.routes.all().map(|route| {
        let (state, reason) = route.state_at(now);
        let (vendor, name) = (route.vendor.clone(), route.name.clone());
        RouteReply { vendor, route: name, state, reason: reason.to_owned() }
    });
    Ok(JsonReply(whole(routes.collect())))
}

/// Returns a list that always fits on one page.
fn whole<T: ToSchema>(data: Vec<T>) -> AdminPage<T> {
    AdminPage { data, has_more: false, next: None }
}
