//! Signing in by an identity provider: the browser is sent there, and comes back with a code.
//!
//! What the provider has to send back is in a cookie of the browser; the gateway keeps nothing
//! before the sign-in has succeeded.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use self::attempt::{SignInAttempt, forgotten_cookie};
use self::failure::{SignInFailure, error_code};
use self::provider::IdentityProvider;
use super::access::OIDC_PATH;
use super::error::PageError;
use super::forms::PageQuery;
use super::sign_in::{begin_session, is_look_ahead, with_cookie};
use super::state::Console;
use crate::management::random::random_bits;
use crate::sessions::Principal;

mod attempt;
mod claims;
mod failure;
pub(crate) mod provider;
mod provider_http;

/// The path to which the provider sends browsers back.
pub(crate) const CALLBACK_PATH: &str = "/sign-in/callback";

/// What the provider sends back. Providers add more, which is not looked at.
#[derive(Deserialize)]
pub(super) struct CallbackQuery {
    code: Option<String>,
    state: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Sends the browser to the provider.
pub(super) async fn begin(
    State(console): State<Console>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let provider = provider_of(&console)?;
    if is_look_ahead(&method, &headers) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    // The provider sends back to one host, and the cookie is for the host that has set it.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if host.is_some_and(|host| !console.address.is_host_of_links(host)) {
        return Ok(Redirect::to(&console.address.link(OIDC_PATH)).into_response());
    }
    let attempt = SignInAttempt::from_random(random_bits()?, random_bits()?, random_bits()?);
    let address = provider.authorization_address(&attempt).await.map_err(|why| {
        provider.log_failure(&why);
        why.page()
    })?;
    with_cookie(Redirect::to(&address), &attempt.cookie(&console.address))
}

/// Signs in who comes back from the provider. Whatever becomes of it, the attempt has ended.
pub(super) async fn finish(
    State(console): State<Console>,
    method: Method,
    headers: HeaderMap,
    PageQuery(query): PageQuery<CallbackQuery>,
) -> Result<Response, PageError> {
    let provider = provider_of(&console)?;
    if is_look_ahead(&method, &headers) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let begun = match find_identity(&console, provider, &headers, query).await {
        Ok(principal) => begin_session(&console, &principal).await,
        Err(why) => {
            provider.log_failure(&why);
            Err(why.page())
        }
    };
    let mut response = begun.unwrap_or_else(IntoResponse::into_response);
    let forgotten = HeaderValue::from_str(&forgotten_cookie(&console.address));
    let forgotten = forgotten.map_err(|why| PageError::invalid(why.to_string()))?;
    response.headers_mut().append(header::SET_COOKIE, forgotten);
    Ok(response)
}

fn provider_of(console: &Console) -> Result<&IdentityProvider, PageError> {
    let unknown = || PageError::not_found("This console knows no identity provider.");
    console.oidc.as_deref().ok_or_else(unknown)
}

/// Finds out who comes back. Nothing of the address counts before its state is that of the browser.
async fn find_identity(
    console: &Console,
    provider: &IdentityProvider,
    headers: &HeaderMap,
    query: CallbackQuery,
) -> Result<Principal, SignInFailure> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut texts = cookies.filter_map(|cookies| cookies.to_str().ok());
    let attempt = texts.find_map(|cookies| SignInAttempt::find(&console.address, cookies));
    let state = query.state.unwrap_or_default();
    let attempt = attempt.filter(|attempt| attempt.has_state(&state));
    let attempt = attempt.ok_or(SignInFailure::NotBegun)?;
    if query.iss.is_some_and(|issuer| !provider.is_issuer(&issuer)) {
        return Err(SignInFailure::SentBack("the answer is of another provider".to_owned()));
    }
    match (query.error, query.code) {
        (Some(error), _) => Err(SignInFailure::SentBack(error_code(&error))),
        (None, Some(code)) => provider.identity(&attempt, code).await,
        (None, None) => Err(SignInFailure::SentBack("there is no code in the answer".to_owned())),
    }
}
