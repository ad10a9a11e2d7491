//! The way of every request for a page: its host, its session, its right to the page and the token
//! of its form are checked, its handler runs to its end, and what it answers becomes a page.

use std::net::IpAddr;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::access::{Audience, PageMatch, PageRule, find_rule, is_for_operators};
use super::cookie::{find_secret, form_token, is_reader};
use super::error::PageError;
use super::form_table::{FieldKind, FormRule, find_form};
use super::forms::{CONFIRMED_FIELD, SentFields, TOKEN_FIELD};
use super::page::{Page, draw_error};
use super::state::{Console, SignedIn, Viewer};
use super::views::form::FilledForm;
use crate::admin_api::admit::read_body;
use crate::admin_api::amounts::parse_moved_usd;
use crate::admin_api::client_address::ClientAddress;
use crate::management::key_search::now_s;
use crate::sessions::{Principal, SessionSecret};

const FORM_TYPE: &str = "application/x-www-form-urlencoded";
const FETCH_SITE: &str = "sec-fetch-site";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The headers of every response. A referrer is sent to our own pages alone; without any, browsers
/// would send no origin with a form either.
const SECURITY_HEADERS: [(&str, &str); 8] = [
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
         connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ("cache-control", "no-store"),
];
/// Browsers use TLS alone for this host from now on, for half a year.
const STRICT_TRANSPORT: &str = "max-age=15552000";

/// Serves a request.
pub(super) async fn admit(
    State(console): State<Console>,
    request: Request,
    next: Next,
) -> Response {
    let mut asked = AskedPage::new(request.uri().path());
    let is_served_here = is_host_known(&console, request.headers());
    let served = if is_served_here {
        serve(&console, request, next, &mut asked).await
    } else {
        let message = "This console has another address.";
        Err(PageError::new(StatusCode::MISDIRECTED_REQUEST, message))
    };
    let response = served.unwrap_or_else(IntoResponse::into_response);
    let mut response = drawn(response, &asked);
    let is_secure = console.address.is_secure();
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        let (name, value) = (HeaderName::from_static(name), HeaderValue::from_static(value));
        // What never changes says for itself how long it may be kept.
        headers.entry(name).or_insert(value);
    }
    if is_secure {
        let value = HeaderValue::from_static(STRICT_TRANSPORT);
        headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
    }
    headers.extend(HeaderValue::from_str(&asked.id).ok().map(|id| (REQUEST_ID, id)));
    response
}

/// What is known of a request, for the page that answers it.
struct AskedPage {
    /// The id of the request.
    id: String,
    path: String,
    signed_in: Option<SignedIn>,
    /// The form that was sent, once it is known to be ours.
    form: Option<SentForm>,
}

/// A form of the table, with what was sent.
struct SentForm {
    rule: &'static FormRule,
    fields: SentFields,
}

impl AskedPage {
    fn new(path: &str) -> AskedPage {
        let id = uuid::Uuid::now_v7().to_string();
        AskedPage { id, path: path.to_owned(), signed_in: None, form: None }
    }

    /// Returns the form that was sent, as it is drawn again.
    fn filled(&self) -> Option<FilledForm<'_>> {
        let SentForm { rule, fields } = self.form.as_ref()?;
        let form_token = &*self.signed_in.as_ref()?.form_token;
        Some(FilledForm { rule, action: &self.path, form_token, fields })
    }
}

/// Checks the amounts of a form, before its sender is asked whether they are meant.
fn check_amounts(rule: &FormRule, fields: &SentFields) -> Result<(), PageError> {
    let mut amounts = rule.fields.iter().filter(|field| field.kind == FieldKind::Amount);
    amounts.try_for_each(|field| Ok(parse_moved_usd(fields.value_of(field.name)).map(drop)?))
}

/// Whether a form can be sent again with other values: what was refused has changed nothing.
fn is_correctable(error: &PageError) -> bool {
    error.status.is_client_error() && error.status != StatusCode::FORBIDDEN
}

/// Draws what a handler has answered around the frame that all pages have.
fn drawn(mut response: Response, asked: &AskedPage) -> Response {
    let signed_in = asked.signed_in.as_ref();
    let parts = response.extensions_mut();
    let text = match (parts.remove::<Page>(), parts.remove::<PageError>(), asked.filled()) {
        (Some(page), ..) => page.draw(signed_in),
        (None, Some(error), Some(form)) if is_correctable(&error) => {
            let content = form.draw_refused(&error.message);
            Page::new(form.rule.title, "", content).draw(signed_in)
        }
        (None, Some(error), _) => draw_error(&error, signed_in),
        (None, None, _) => return response,
    };
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    // The length is that of the empty body so far.
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response.map(|_| Body::from(text))
}

async fn serve(
    console: &Console,
    request: Request,
    next: Next,
    asked: &mut AskedPage,
) -> Result<Response, PageError> {
    let (mut parts, body) = request.into_parts();
    let rule = route_of(console, &parts)?;
    if rule.audience == Audience::Anyone && rule.path.starts_with("/assets/") {
        return Ok(next.run(Request::from_parts(parts, Body::empty())).await);
    }
    // A body may take its time: what is still coming takes no place of a request that runs.
    let sent = match parts.method {
        Method::POST => Some(read_form(console, &parts, body).await),
        _ => None,
    };
    let permit = console.api.running.clone().try_acquire_owned().map_err(|_| {
        let message = "Too many pages are asked for at this moment: try again.";
        PageError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    asked.signed_in = find_session(console, &parts, &asked.id).await?;
    let customer = match asked.signed_in.as_ref().map(|signed_in| &signed_in.viewer) {
        Some(Viewer::Customer(account)) => {
            Some(console.limits.requests.take(account).ok_or_else(|| {
                let message = "You ask for too many pages at this moment: try again.";
                PageError::new(StatusCode::TOO_MANY_REQUESTS, message)
            })?)
        }
        _ => None,
    };
    if let Some(response) = check_audience(&rule, asked.signed_in.as_ref())? {
        return Ok(response);
    }
    if let Some(sent) = sent {
        let mut fields = sent?;
        check_token(&mut fields, asked.signed_in.as_ref())?;
        let is_confirmed = fields.take(CONFIRMED_FIELD).is_some();
        let form = find_form(rule.path);
        asked.form = form.map(|rule| SentForm { rule, fields: fields.clone() });
        if !is_confirmed
            && let Some(form) = asked.filled().filter(|form| !form.rule.question.is_empty())
        {
            check_amounts(form.rule, form.fields)?;
            return Ok(Page::new(form.rule.title, "", form.draw_question()).into_response());
        }
        parts.extensions.insert(fields);
    }
    if let Some(signed_in) = asked.signed_in.clone() {
        parts.extensions.insert(signed_in);
    }
    let request = Request::from_parts(parts, Body::empty());
    let in_flight = console.api.in_flight.begin();
    // A change that has begun is finished and recorded, whether the browser waits or not.
    let running = tokio::spawn(async move {
        let response = next.run(request).await;
        drop((permit, customer, in_flight));
        response
    });
    running.await.map_err(|_| {
        PageError::new(StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong here.")
    })
}

fn is_host_known(console: &Console, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    hosts.next().is_none() && host.is_some_and(|host| console.address.is_host(host))
}

fn route_of(console: &Console, parts: &Parts) -> Result<PageRule, PageError> {
    let unknown = || PageError::not_found("There is no such page.");
    let path = parts.extensions.get::<MatchedPath>().ok_or_else(unknown)?;
    if console.is_for_customers && is_for_operators(path.as_str()) {
        return Err(unknown());
    }
    match find_rule(&parts.method, path.as_str()) {
        PageMatch::Found(rule) => Ok(rule),
        PageMatch::OtherMethods(methods) => {
            let message = format!("This address takes {methods}, and not {}.", parts.method);
            Err(PageError::new(StatusCode::METHOD_NOT_ALLOWED, message))
        }
    }
}

/// Finds who has sent a request; `None` if nobody has signed in.
async fn find_session(
    console: &Console,
    parts: &Parts,
    id: &str,
) -> Result<Option<SignedIn>, PageError> {
    let cookies = parts.headers.get_all(header::COOKIE).iter();
    let mut texts = cookies.filter_map(|cookies| cookies.to_str().ok());
    let secret = texts.find_map(|cookies| find_secret(&console.address, cookies));
    let Some(secret) = secret else { return Ok(None) };
    let Some(session) = SessionSecret::parse(secret) else { return Ok(None) };
    let Some(found) = console.api.store.sessions.find_session(session).await? else {
        return Ok(None);
    };
    let Some(viewer) = find_viewer(console, &found.principal).await? else { return Ok(None) };
    if console.is_for_customers && viewer.role().is_some() {
        return Ok(None);
    }
    let address = parts.extensions.get::<ClientAddress>();
    Ok(Some(SignedIn {
        viewer,
        principal: found.principal,
        session,
        form_token: form_token(secret),
        is_reader: is_reader(secret),
        address: address.map_or(IpAddr::from([0, 0, 0, 0]), |address| address.shown),
        request_id: id.to_owned(),
    }))
}

/// Returns what a principal is at this moment: an operator may have been removed, or may have
/// another role than at the sign-in.
pub(super) async fn find_viewer(
    console: &Console,
    principal: &Principal,
) -> Result<Option<Viewer>, PageError> {
    match principal {
        // Where there is no provider any more, nobody is known to one.
        Principal::Identity { name, role } => {
            Ok(console.oidc.is_some().then(|| Viewer::Operator { name: name.clone(), role: *role }))
        }
        Principal::Operator(name) => {
            let operators = console.api.store.operators.list_operators().await?;
            let known = operators.into_iter().find(|known| known.name == *name);
            let alive = known.filter(|operator| !operator.is_expired(now_s()));
            Ok(alive.map(|known| Viewer::Operator { name: known.name, role: known.role }))
        }
        Principal::Account(account) => {
            let known = console.api.store.ledger.balances(account).await?;
            Ok(known.map(|_| Viewer::Customer(account.clone())))
        }
    }
}

/// Checks that a page is for who asks. Returns where a browser is sent that has not signed in.
fn check_audience(
    page: &PageRule,
    signed_in: Option<&SignedIn>,
) -> Result<Option<Response>, PageError> {
    let refused = |message: &str| Err(PageError::new(StatusCode::FORBIDDEN, message));
    if page.audience == Audience::Anyone {
        return Ok(None);
    }
    let Some(signed_in) = signed_in else {
        if page.method == "GET" {
            return Ok(Some(Redirect::to("/sign-in").into_response()));
        }
        return refused(
            "You are not signed in, or no longer: nothing was changed. Sign in, and send the form \
             once more.",
        );
    };
    if page.audience == Audience::Customer && page.method == "POST" && signed_in.is_reader {
        return refused(
            "You have signed in with a key, which reads only. Ask the operator for a link, by \
             which you may change things.",
        );
    }
    match (page.audience, signed_in.viewer.role()) {
        (Audience::Anyone | Audience::SignedIn, _) | (Audience::Customer, None) => Ok(None),
        (Audience::Operator(least), Some(role)) if role >= least => Ok(None),
        (Audience::Operator(least), Some(role)) => {
            let (role, least) = (role.name(), least.name());
            refused(&format!("You have the role '{role}'. This needs the role '{least}'."))
        }
        (Audience::Operator(_), None) => refused("This page is for operators."),
        (Audience::Customer, Some(_)) => refused("This page is for customers."),
    }
}

/// Reads a form that a page of the console has sent.
async fn read_form(console: &Console, parts: &Parts, body: Body) -> Result<SentFields, PageError> {
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let is_ours = match (text("origin"), text(FETCH_SITE)) {
        (Some(origin), _) => console.address.is_origin(origin),
        (None, Some(site)) => site == "same-origin",
        // Only something that is no browser sends neither.
        (None, None) => true,
    };
    if !is_ours {
        let message = "Another site has sent this form. Nothing was changed.";
        return Err(PageError::new(StatusCode::FORBIDDEN, message));
    }
    let kind = text("content-type").unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(FORM_TYPE) {
        let message = format!("A form is sent as {FORM_TYPE}.");
        return Err(PageError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    SentFields::parse(&read_body(parts, body).await?)
}

/// Checks that a page of this session has sent a form.
fn check_token(fields: &mut SentFields, signed_in: Option<&SignedIn>) -> Result<(), PageError> {
    let token = fields.take(TOKEN_FIELD);
    let expected = signed_in.map(|signed_in| signed_in.form_token.as_str());
    if expected.is_none() || token.as_deref() == expected {
        return Ok(());
    }
    let message = "The form is of another session. Go back, reload the page, and try again. \
                   Nothing was changed.";
    Err(PageError::new(StatusCode::FORBIDDEN, message))
}
