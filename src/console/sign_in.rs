//! Signing in by a link or a token, and signing out.

use std::net::IpAddr;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::admit::find_viewer;
use super::cookie::{SESSION_S, ended_cookie, marked, session_cookie};
use super::customer_limits::TOO_MANY_SIGN_INS;
use super::error::PageError;
use super::forms::FormBody;
use super::oidc::provider::IdentityProvider;
use super::page::Page;
use super::state::{Console, SignedIn};
use super::views::sign_in as view;
use crate::admin_api::client_address::ClientAddress;
use crate::clock::unix_ms;
use crate::gateway::request::scope_check::sees_account;
use crate::ledger::KeyHash;
use crate::management::key_search::{has_ended, now_s};
use crate::management::random::random_bits;
use crate::operators::TokenHash;
use crate::sessions::{Principal, SessionSecret};
use crate::usage::PeriodKind;

/// How browsers and their extensions say that nobody has asked for a page yet.
const PREFETCH_HEADERS: [&str; 3] = ["sec-purpose", "purpose", "x-moz"];

/// The token of an operator, or the key of an account.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenForm {
    token: String,
}

/// Shows the form for a token.
pub(super) async fn show(
    State(console): State<Console>,
    signed_in: Option<Extension<SignedIn>>,
) -> Response {
    if signed_in.is_some() {
        return Redirect::to("/").into_response();
    }
    draw(&console, None).into_response()
}

fn draw(console: &Console, fault: Option<&str>) -> Page {
    let provider = console.oidc.as_deref().map(IdentityProvider::host);
    Page::new("Sign in", "", view::draw(fault, provider, console.is_for_customers))
}

/// Signs in by a token.
pub(super) async fn by_token(
    State(console): State<Console>,
    address: Option<Extension<ClientAddress>>,
    FormBody(form): FormBody<TokenForm>,
) -> Result<Response, PageError> {
    let principal = if let Some(hash) = TokenHash::of(&form.token) {
        find_operator(&console, hash).await?
    } else {
        let address = address.and_then(|Extension(address)| address.client());
        find_account(&console, &form.token, address).await?
    };
    let Some(principal) = principal else {
        let refused = draw(&console, Some(view::TOKEN_REFUSED));
        return Ok((StatusCode::FORBIDDEN, refused).into_response());
    };
    // A key of an account is for programs that read: it must not become one that spends.
    let is_reader = matches!(principal, Principal::Account(_));
    if let Principal::Account(account) = &principal
        && !console.limits.sign_ins.take(account, PeriodKind::Day.start_of(unix_ms()))
    {
        return Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, TOO_MANY_SIGN_INS));
    }
    begin_session_as(&console, &principal, is_reader).await
}

async fn find_operator(console: &Console, hash: TokenHash) -> Result<Option<Principal>, PageError> {
    let known = console.api.store.operators.find_operator(hash).await?;
    let alive = known.filter(|operator| !operator.is_expired(now_s()));
    Ok(alive.map(|operator| Principal::Operator(operator.name)))
}

/// Finds the account of a key that may see all of it.
async fn find_account(
    console: &Console,
    key: &str,
    address: Option<IpAddr>,
) -> Result<Option<Principal>, PageError> {
    let Some(hash) = KeyHash::of_well_formed(key) else { return Ok(None) };
    let Some(record) = console.api.store.ledger.find_key(hash).await? else { return Ok(None) };
    let scope = &record.scope;
    let works = !has_ended(&record, now_s()) && !scope.disabled && scope.allows_address(address);
    let may = works && sees_account(scope);
    Ok(may.then_some(Principal::Account(record.account)))
}

/// Signs in by a link, which works once. Whoever only looks ahead does not use it up.
pub(super) async fn by_link(
    State(console): State<Console>,
    method: Method,
    headers: HeaderMap,
    Path(secret): Path<String>,
) -> Result<Response, PageError> {
    if is_look_ahead(&method, &headers) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    if let Some(principal) = use_link(&console, &secret).await? {
        return begin_session(&console, &principal).await;
    }
    let content = view::draw_used_link(console.is_for_customers);
    let page = Page::new("This link does not work any more", "", content);
    Ok((StatusCode::FORBIDDEN, page).into_response())
}

/// Uses a link up. Returns who signs in; `None` if it was used, is too old, or is for somebody who
/// is not known any more.
async fn use_link(console: &Console, secret: &str) -> Result<Option<Principal>, PageError> {
    let Some(hash) = SessionSecret::parse(secret) else { return Ok(None) };
    let sessions = &console.api.store.sessions;
    // To use a link up is a durable write, and strangers may ask for any: it is looked up first.
    let Some(principal) = sessions.find_link(hash).await? else { return Ok(None) };
    check_is_for(console, &principal)?;
    let Some(principal) = sessions.use_link(hash).await? else { return Ok(None) };
    Ok(find_viewer(console, &principal).await?.map(|_| principal))
}

/// Whether a request only looks ahead, and nobody has asked for the page yet.
pub(super) fn is_look_ahead(method: &Method, headers: &HeaderMap) -> bool {
    *method != Method::GET || PREFETCH_HEADERS.iter().any(|name| headers.contains_key(*name))
}

/// Refuses an operator at the address for customers.
fn check_is_for(console: &Console, principal: &Principal) -> Result<(), PageError> {
    match principal {
        Principal::Account(_) => Ok(()),
        _ if !console.is_for_customers => Ok(()),
        _ => Err(PageError::new(StatusCode::FORBIDDEN, "This address is for customers.")),
    }
}

/// Begins a session.
pub(super) async fn begin_session(
    console: &Console,
    principal: &Principal,
) -> Result<Response, PageError> {
    begin_session_as(console, principal, false).await
}

async fn begin_session_as(
    console: &Console,
    principal: &Principal,
    is_reader: bool,
) -> Result<Response, PageError> {
    check_is_for(console, principal)?;
    let secret = SessionSecret::from_random(marked(random_bits()?, is_reader));
    let sessions = &console.api.store.sessions;
    sessions.add_session(secret.hash(), principal, SESSION_S.saturating_mul(1_000)).await?;
    let who = principal.to_string();
    log::info!(event = "console_signed_in", who; "signed in to the console");
    with_cookie(Redirect::to("/"), &session_cookie(&console.address, secret.reveal()))
}

/// Ends the session of this browser.
pub(super) async fn sign_out(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Result<Response, PageError> {
    console.api.store.sessions.end_session(signed_in.session).await?;
    with_cookie(Redirect::to("/sign-in"), &ended_cookie(&console.address))
}

/// Ends all sessions of who asks, in all browsers.
pub(super) async fn sign_out_everywhere(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Result<Response, PageError> {
    console.api.store.sessions.end_sessions_of(&signed_in.principal).await?;
    with_cookie(Redirect::to("/sign-in"), &ended_cookie(&console.address))
}

/// Returns a redirect that sets a cookie.
pub(super) fn with_cookie(redirect: Redirect, cookie: &str) -> Result<Response, PageError> {
    let value = HeaderValue::from_str(cookie).map_err(|why| PageError::invalid(why.to_string()))?;
    let mut response = redirect.into_response();
    response.headers_mut().insert(header::SET_COOKIE, value);
    Ok(response)
}
