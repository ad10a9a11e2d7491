//! All pages and forms with their handlers.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use super::admit::admit;
use super::error::PageError;
use super::state::Console;
use super::{
    accounts, assets, audit, charges, customer, jobs, keys, models, routes, sign_in, today,
};

/// Builds the router.
pub(crate) fn build(console: Console) -> Router {
    Router::new()
        .route("/assets/{name}", get(assets::show))
        .route("/sign-in", get(sign_in::show).post(sign_in::by_token))
        .route("/link/{secret}", get(sign_in::by_link))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/sign-out-everywhere", post(sign_in::sign_out_everywhere))
        .route("/", get(today::show))
        .route("/accounts", get(accounts::list).post(accounts::create))
        .route("/accounts/{name}", get(accounts::show))
        .route("/accounts/{name}/payments", post(accounts::pay))
        .route("/accounts/{name}/keys", post(accounts::issue_key))
        .route("/accounts/{name}/budgets", post(accounts::set_budgets))
        .route("/accounts/{name}/suspension", post(accounts::set_suspension))
        .route("/keys/{prefix}/revocation", post(keys::revoke))
        .route("/my", get(customer::show_balance))
        .route("/my/usage", get(customer::show_usage))
        .route("/my/usage.csv", get(customer::send_usage))
        .route("/my/charges", get(customer::list_charges))
        .route("/my/prices", get(customer::show_prices))
        .route("/charges", get(charges::list))
        .route("/charges/{account}/{seq}", get(charges::show))
        .route("/models", get(models::show))
        .route("/routes", get(routes::show))
        .route("/jobs", get(jobs::list))
        .route("/audit", get(audit::show))
        .fallback(async || PageError::not_found("There is no such page."))
        .layer(from_fn_with_state(console.clone(), admit))
        .with_state(console)
}
