//! Checks what the scope of an API key allows. Nothing is checked where a scope restricts nothing.

use std::net::IpAddr;

use crate::catalogue::Model;
use crate::dialect::Endpoint;
use crate::gateway::api_error::{ApiError, ScopeError};
use crate::gateway::request::key_cache::AuthenticatedCaller;
use crate::gateway::suspended_accounts::SuspendedAccounts;
use crate::ledger::{AccountName, KeyScope};

/// The name of the listing of models in scopes, and in metrics.
pub(crate) const MODELS: &str = "models";

/// The name in scopes of what the account has used. A key without it sees what it has used itself.
pub(crate) const ACCOUNT: &str = "account";

/// Returns the names of all endpoints that a scope may have.
#[must_use]
pub(crate) fn known_endpoints() -> Vec<&'static str> {
    Endpoint::ALL.map(Endpoint::name).into_iter().chain([MODELS, ACCOUNT]).collect()
}

/// Returns the names of an endpoint in scopes. One that serves another one, as a count of tokens
/// does, is allowed with it.
#[must_use]
pub(crate) fn scope_names(endpoint: Endpoint) -> [&'static str; 2] {
    [endpoint.name(), endpoint.rules_endpoint().name()]
}

/// Whether a key with this scope sees what all keys of its account have used. A key for all
/// endpoints does not: it may be in many hands.
#[must_use]
pub(crate) fn sees_account(scope: &KeyScope) -> bool {
    scope.endpoints.iter().any(|name| name == ACCOUNT)
}

/// Checks everything that is known of a request before its body is read, at the time `now` (unix
/// seconds). `endpoint` has the names of what is asked for; `None` if every key may ask for it.
///
/// # Errors
/// The account is suspended; or the key has expired, is disabled, or must not be used from the
/// address or for the endpoint.
pub(crate) fn check_request(
    caller: &AuthenticatedCaller,
    endpoint: Option<[&'static str; 2]>,
    address: Option<IpAddr>,
    now: i64,
) -> Result<(), ApiError> {
    if caller.key.account_settings.suspended {
        return Err(ScopeError::Suspended.into());
    }
    let Some(scope) = caller.restrictions() else { return Ok(()) };
    if let Some(at) = scope.expires_at.filter(|_| scope.is_expired(now)) {
        return Err(ScopeError::Expired(at).into());
    }
    if scope.disabled {
        return Err(ScopeError::Disabled.into());
    }
    // Whoever is elsewhere, maybe with a stolen key, does not learn what it is for.
    if !scope.allows_address(address) {
        return Err(ScopeError::AddressNotAllowed(address).into());
    }
    if let Some(names) = endpoint.filter(|names| !scope.allows_endpoint(names)) {
        let ([endpoint, _], allowed) = (names, scope.endpoints.clone());
        return Err(ScopeError::EndpointNotAllowed { endpoint, allowed }.into());
    }
    Ok(())
}

/// Checks once more that the account of a call is not suspended, after its body was read: that may
/// have taken a minute. `suspensions_seen` is the number of changes before its key was looked up.
///
/// # Errors
/// The account is suspended.
pub(crate) fn check_suspension(
    suspended: &SuspendedAccounts,
    account: &AccountName,
    suspensions_seen: u64,
) -> Result<(), ApiError> {
    if suspended.contains_since(account, suspensions_seen) {
        return Err(ScopeError::Suspended.into());
    }
    Ok(())
}

/// Checks the model of a call, which is known once its body was read.
///
/// # Errors
/// The key may not use the model.
pub(crate) fn check_model(caller: &AuthenticatedCaller, model: &Model) -> Result<(), ApiError> {
    match caller.restrictions() {
        Some(scope) if !scope.allows_model(&model.id) => {
            let (model, allowed) = (model.id.clone(), scope.models.clone());
            Err(ScopeError::ModelNotAllowed { model, allowed }.into())
        }
        _ => Ok(()),
    }
}

/// Whether a key with this scope may use a model on any endpoint.
#[must_use]
pub(crate) fn is_listed(scope: &KeyScope, model: &Model) -> bool {
    let is_usable = |endpoint: Endpoint| scope.allows_endpoint(&scope_names(endpoint));
    scope.allows_model(&model.id) && model.endpoints().into_iter().any(is_usable)
}
