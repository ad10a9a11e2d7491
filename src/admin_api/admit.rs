//! The way of every request: its route, its operator, its body and its idempotency key are checked,
//! and then its handler runs to its end, also if its client goes.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;

use super::access::{RouteMatch, RouteRule, find_rule};
use super::client_address::ClientAddress;
use super::error::AdminError;
use super::extract::BODY_BYTES_MAX;
use super::idempotency::{self, RequestClaim};
use super::state::AdminApi;
use crate::management::actor::{Actor, OperatorCaller};
use crate::management::key_search::now_s;
use crate::operators::{Role, TokenHash};

/// A body must have come within this time.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// A body that is too large is read to its end up to this many bytes: a client that still writes
/// when the connection closes may never see the answer.
const DISCARDED_BYTES_MAX: usize = 1 << 20;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Serves a request.
pub(super) async fn admit(State(api): State<AdminApi>, request: Request, next: Next) -> Response {
    let id = uuid::Uuid::now_v7().to_string();
    let served = serve(&api, request, next, &id).await;
    let mut response = served.unwrap_or_else(AdminError::into_response);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.extend(HeaderValue::from_str(&id).ok().map(|id| (REQUEST_ID, id)));
    response
}

async fn serve(
    api: &AdminApi,
    request: Request,
    next: Next,
    id: &str,
) -> Result<Response, AdminError> {
    let (mut parts, body) = request.into_parts();
    let rule = route_of(&parts)?;
    let Some(least) = rule.role else {
        // What needs no token may take no place of those who have one.
        return Ok(next.run(Request::from_parts(parts, Body::empty())).await);
    };
    let caller = authorize(api, &parts, least, id).await?;
    let body = read_body(&parts, body).await?;
    check_unused(&rule, &parts, &body)?;
    let permit = api.running.clone().try_acquire_owned();
    let busy = |_| AdminError::busy("too_many_requests", "too many requests run at a time here");
    let permit = permit.map_err(busy)?;
    let in_flight = api.in_flight.begin();
    let mut claimed = None;
    if parts.method == Method::POST {
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let content = idempotency::content_digest("POST", target, &body);
        match idempotency::claim(api, &caller.name, &parts.headers, content).await? {
            RequestClaim::Unnamed => {}
            RequestClaim::Claimed(request) => claimed = Some(request),
            RequestClaim::Replayed(response) => return Ok(response),
        }
    }
    parts.extensions.insert(Actor::Operator(caller));
    let request = Request::from_parts(parts, Body::from(body));
    let api = api.clone();
    // A change that has begun is finished, recorded and answered, whether its client waits or not.
    let running = tokio::spawn(async move {
        let response = next.run(request).await;
        let response = match claimed {
            Some(request) => request.finish(&api, response, rule.is_repeatable).await,
            None => response,
        };
        drop((permit, in_flight));
        response
    });
    running.await.map_err(|_| AdminError::internal("something went wrong here"))
}

/// Refuses a query or a body of a request that has none: whoever sent it meant something by it.
fn check_unused(rule: &RouteRule, parts: &Parts, body: &Bytes) -> Result<(), AdminError> {
    let has_query = parts.uri.query().is_some_and(|query| !query.is_empty());
    if has_query && !rule.has_query() {
        let message = format!("{} {} takes no query parameters", parts.method, rule.path);
        return Err(AdminError::invalid("query", message));
    }
    if !body.is_empty() && matches!(parts.method, Method::GET | Method::HEAD | Method::DELETE) {
        let message = format!("{} {} takes no body", parts.method, rule.path);
        return Err(AdminError::invalid("body", message));
    }
    Ok(())
}

/// Finds the rule of the route that a request has.
fn route_of(parts: &Parts) -> Result<RouteRule, AdminError> {
    let Some(path) = parts.extensions.get::<MatchedPath>() else {
        let message = format!(
            "there is no path '{}'; /admin/v1/openapi.json lists all paths",
            parts.uri.path()
        );
        return Err(AdminError::new(StatusCode::NOT_FOUND, "unknown_path", message).about("path"));
    };
    match find_rule(&parts.method, path.as_str()) {
        RouteMatch::Found(rule) => Ok(rule),
        RouteMatch::OtherMethods(methods) => {
            let message =
                format!("'{}' does not take {}: it takes {methods}", path.as_str(), parts.method);
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let error = AdminError::new(status, "method_not_allowed", message).about("method");
            match HeaderValue::from_str(&methods) {
                Ok(methods) => Err(error.with_header(header::ALLOW, methods)),
                Err(_) => Err(error),
            }
        }
    }
}

/// Finds the operator of a request, who must have a role.
async fn authorize(
    api: &AdminApi,
    parts: &Parts,
    least: Role,
    request_id: &str,
) -> Result<OperatorCaller, AdminError> {
    let value = parts.headers.get(header::AUTHORIZATION);
    let Some(value) = value else {
        let what = "give the token of an operator, as in 'authorization: Bearer sk-tg-op-...'";
        return Err(AdminError::unauthorized("missing_token", what));
    };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let unknown = || {
        let what = "no operator has this token: it must be 'Bearer sk-tg-op-' and 64 digits, as \
                    `tollgate operator add` has shown it";
        AdminError::unauthorized("invalid_token", what)
    };
    let hash = token.and_then(TokenHash::of).ok_or_else(unknown)?;
    let operator = api.store.operators.find_operator(hash).await?.ok_or_else(unknown)?;
    if operator.is_expired(now_s()) {
        let what = "the token has expired: an owner can rotate it";
        return Err(AdminError::unauthorized("token_expired", what));
    }
    if operator.role < least {
        let message = format!(
            "'{}' has the role '{}'; {} {} needs the role '{}'",
            operator.name,
            operator.role.name(),
            parts.method,
            parts.uri.path(),
            least.name()
        );
        return Err(AdminError::new(StatusCode::FORBIDDEN, "role_not_allowed", message));
    }
    let address = parts.extensions.get::<ClientAddress>();
    Ok(OperatorCaller {
        name: operator.name,
        role: operator.role,
        address: address.map_or(IpAddr::from([0, 0, 0, 0]), |address| address.shown),
        request_id: request_id.to_owned(),
    })
}

/// Reads a body within its bounds.
pub(crate) async fn read_body(parts: &Parts, body: Body) -> Result<Bytes, AdminError> {
    let too_large = || {
        let message = format!("a body has at most {BODY_BYTES_MAX} bytes here");
        AdminError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).about("body")
    };
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > DISCARDED_BYTES_MAX) {
        return Err(too_large());
    }
    let reading = async {
        let (mut chunks, mut read, mut length) = (body.into_data_stream(), Vec::new(), 0_usize);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| AdminError::invalid("body", "the body ended early"))?;
            length = length.saturating_add(chunk.len());
            if length <= BODY_BYTES_MAX {
                read.extend_from_slice(&chunk);
            } else if length > DISCARDED_BYTES_MAX {
                break;
            }
        }
        if length > BODY_BYTES_MAX { Err(too_large()) } else { Ok(Bytes::from(read)) }
    };
    let slow = |_| {
        let message = "the body came too slowly";
        AdminError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message).about("body")
    };
    tokio::time::timeout(BODY_TIMEOUT, reading).await.map_err(slow)?
}
