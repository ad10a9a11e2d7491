//! All pages and forms with their handlers.

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use super::access::OIDC_PATH;
use super::admit::admit;
use super::error::PageError;
use super::state::Console;
use super::{
    accounts, assets, audit, charges, customer, jobs, key_list, keys, live, models, oidc, routes,
    sign_in, statements, today, webhooks,
};

/// Builds the router.
pub(crate) fn build(console: Console) -> Router {
    Router::new()
        .route("/assets/{name}", get(assets::show))
        .route("/sign-in", get(sign_in::show).post(sign_in::by_token))
        .route(OIDC_PATH, get(oidc::begin))
        .route(oidc::CALLBACK_PATH, get(oidc::finish))
        .route("/link/{secret}", get(sign_in::by_link))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/sign-out-everywhere", post(sign_in::sign_out_everywhere))
        .route("/", get(today::show))
        .route("/accounts", get(accounts::list).post(accounts::create))
        .route("/accounts/{name}", get(accounts::show))
        .route("/accounts/{name}/payments", post(accounts::pay))
        .route("/accounts/{name}/keys", get(key_list::list).post(keys::issue_for))
        .route("/accounts/{name}/budgets", post(accounts::set_budgets))
        .route("/accounts/{name}/suspension", post(accounts::suspend))
        .route("/accounts/{name}/resumption", post(accounts::resume))
        .route("/accounts/{name}/links", post(accounts::make_link))
        .route("/accounts/{name}/statements", get(statements::choose))
        .route("/accounts/{name}/statements/{month}", get(statements::show))
        .route("/keys/{prefix}", get(keys::show).post(keys::set))
        .route("/keys/{prefix}/rotation", post(keys::rotate))
        .route("/keys/{prefix}/revocation", post(keys::revoke))
        .route("/my", get(customer::show_balance))
        .route("/my/usage", get(customer::show_usage))
        .route("/my/usage.csv", get(customer::send_usage))
        .route("/my/charges", get(customer::list_charges))
        .route("/my/prices", get(customer::show_prices))
        .route("/my/keys", get(key_list::list_own).post(keys::issue_own))
        .route("/my/keys/{prefix}", get(keys::show).post(keys::set))
        .route("/my/keys/{prefix}/rotation", post(keys::rotate))
        .route("/my/keys/{prefix}/revocation", post(keys::revoke))
        .route("/my/charges/{seq}", get(customer::show_charge))
        .route("/my/statements", get(statements::choose_own))
        .route("/my/statements/{month}", get(statements::show_own))
        .route("/my/setup", get(customer::show_setup))
        .route("/charges", get(charges::list))
        .route("/charges/{account}/{seq}", get(charges::show))
        .route("/models", get(models::show))
        .route("/routes", get(routes::show))
        .route("/jobs", get(jobs::list))
        .route("/audit", get(audit::show))
        .route("/webhooks", get(webhooks::list).post(webhooks::add))
        .route("/webhooks/{id}", get(webhooks::show).post(webhooks::set))
        .route("/webhooks/{id}/rotation", post(webhooks::rotate))
        .route("/webhooks/{id}/test", post(webhooks::test))
        .route("/webhooks/{id}/resend", post(webhooks::resend))
        .route("/webhooks/{id}/removal", post(webhooks::remove))
        .route("/my/webhooks", get(webhooks::list).post(webhooks::add))
        .route("/my/webhooks/{id}", get(webhooks::show).post(webhooks::set))
        .route("/my/webhooks/{id}/rotation", post(webhooks::rotate))
        .route("/my/webhooks/{id}/test", post(webhooks::test))
        .route("/my/webhooks/{id}/resend", post(webhooks::resend))
        .route("/my/webhooks/{id}/removal", post(webhooks::remove))
        .route("/live", get(live::open))
        .fallback(async || PageError::not_found("There is no such page."))
        .layer(from_fn_with_state(console.clone(), admit))
        .with_state(console)
}
