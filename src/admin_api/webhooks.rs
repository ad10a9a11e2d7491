//! `/admin/v1/webhooks`: the endpoints of webhooks, and their messages.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::amounts::{parse_account_name, parse_usd};
use super::error::AdminError;
use super::extract::{JsonBody, JsonReply, PathName, QueryParameters};
use super::idempotency::IssuedSecret;
use super::page::{AdminPage, PageParameters, PageRange};
use super::state::AdminApi;
use crate::clock::unix_ms;
use crate::management::actor::Actor;
use crate::management::context::ManagementContext;
use crate::management::field_patch::FieldPatch;
use crate::management::webhooks::{
    self, EndpointPatch, NewEndpoint, OVERLAP_S, OVERLAP_S_MAX, find_endpoint,
};
use crate::money::Money;
use crate::webhooks::RowPlace;
use crate::webhooks::endpoint::WebhookEndpoint;
use crate::webhooks::message::WebhookMessage;

/// The parameters of the list of endpoints.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WebhookParameters {
    /// The name of an account, whose endpoints are listed. If it is missing, all are.
    account: Option<String>,
    /// The `next` of the page before.
    after: Option<String>,
    /// The most rows of the page, from 1 to 1000; 100 if it is missing.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// An endpoint that is to be added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookBody {
    /// The account whose events it is told. If it is missing, it is the operators' and is told of
    /// all accounts and of the routes.
    account: Option<String>,
    /// Its address, with https and on a public host.
    #[schema(example = "https://hooks.example.com/tollgate")]
    url: String,
    /// The events that it is told: `balance.low`, `key.budget`, `payment.received`,
    /// `video.completed`, `video.failed`, and `route.down` for one of the operators.
    events: Vec<String>,
    /// `balance.low` is told if less than this is available, in USD.
    #[schema(example = "5.00")]
    low_balance_usd: Option<String>,
}

/// What is changed of an endpoint. What is missing stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookPatchBody {
    /// Its address.
    url: Option<String>,
    /// The events that it is told.
    events: Option<Vec<String>>,
    /// `balance.low` is told if less than this is available, in USD; null if it is not told.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    low_balance_usd: FieldPatch<String>,
    /// Whether messages are sent. One that has answered with status 410 is switched off.
    enabled: Option<bool>,
}

/// How a secret is replaced.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookRotationBody {
    /// How long messages are signed by the old secret too, in seconds; a day if it is missing.
    #[schema(minimum = 0, maximum = 2_592_000)]
    overlap_s: Option<u32>,
}

/// A message that is sent again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResendBody {
    /// The id of the message.
    #[schema(example = "msg_5f2d1c0b9a8e7d6c5b4a39281706f5e4")]
    message: String,
}

/// An endpoint, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WebhookReply {
    /// The id.
    #[schema(example = "we_019ace0b7c6f7d0c8e1a2b3c4d5e6f70")]
    id: String,
    /// The account whose it is; null if it is the operators'.
    account: Option<String>,
    /// Its address.
    url: String,
    /// The events that it is told.
    events: Vec<String>,
    /// `balance.low` is told if less than this is available, in nano-USD; null if it is not told.
    low_balance_nano: Option<i64>,
    /// The same in USD.
    low_balance_usd: Option<String>,
    /// Whether messages are sent.
    enabled: bool,
    /// Why none are sent; null if they are.
    disabled_reason: Option<String>,
    /// When it was added, in unix ms.
    created_at: i64,
    /// Until when messages are signed by the secret before this one too, in unix ms; null if they
    /// are not.
    old_secret_until: Option<i64>,
}

/// An endpoint with its new secret, which no other reply shows.
#[derive(Serialize, ToSchema)]
pub(super) struct IssuedWebhookReply {
    /// The secret by which messages are signed, `whsec_` and base64.
    secret: String,
    #[serde(flatten)]
    shown: WebhookReply,
}

/// What was removed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RemovedWebhookReply {
    /// The id.
    id: String,
    /// Always true.
    removed: bool,
}

/// A message to an endpoint.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WebhookMessageReply {
    /// The id, which the receiver gets as `webhook-id`.
    id: String,
    /// The event.
    #[schema(example = "balance.low")]
    event: String,
    /// The account that it is about; null if it is about none.
    account: Option<String>,
    /// `pending`, `delivered` or `given_up`.
    #[schema(example = "delivered")]
    state: &'static str,
    /// How often it was tried.
    tries: u32,
    /// When it is sent next, in unix ms; null if it is not.
    next_try_at: Option<i64>,
    /// When it was last tried, in unix ms; null if it was not.
    last_try_at: Option<i64>,
    /// The status with which the receiver answered then; null if none came.
    last_status: Option<u16>,
    /// Why it was not accepted then; null if it was.
    last_error: Option<String>,
    /// When the event was noted, in unix ms.
    created_at: i64,
    /// What is sent: JSON with `type`, `timestamp` and `data`.
    body: String,
}

type Issued = (StatusCode, Extension<IssuedSecret>, JsonReply<IssuedWebhookReply>);

impl WebhookReply {
    fn new(endpoint: &WebhookEndpoint) -> WebhookReply {
        WebhookReply {
            id: endpoint.id.clone(),
            account: endpoint.account.as_ref().map(ToString::to_string),
            url: endpoint.url.clone(),
            events: endpoint.events.clone(),
            low_balance_nano: endpoint.low_balance.map(Money::nano),
            low_balance_usd: endpoint.low_balance.map(|low| low.to_string()),
            enabled: endpoint.disabled.is_none(),
            disabled_reason: endpoint.disabled.clone(),
            created_at: endpoint.created_at,
            old_secret_until: endpoint.old_secret_until(unix_ms()),
        }
    }
}

impl WebhookMessageReply {
    fn new(message: &WebhookMessage) -> WebhookMessageReply {
        let last = message.last.as_ref();
        WebhookMessageReply {
            id: message.id().to_owned(),
            event: message.event.clone(),
            account: message.account.clone(),
            state: message.state.name(),
            tries: message.tries,
            next_try_at: message.next_try_at(),
            last_try_at: last.map(|last| last.at),
            last_status: last.and_then(|last| last.status),
            last_error: last.and_then(|last| last.error.clone()),
            created_at: message.created_at(),
            body: message.body.clone(),
        }
    }
}

/// Lists endpoints, newest first.
#[utoipa::path(
    get,
    path = "/admin/v1/webhooks",
    tag = "webhooks",
    operation_id = "listWebhooks",
    params(WebhookParameters),
    responses((status = 200, description = "Endpoints.", body = AdminPage<WebhookReply>))
)]
pub(super) async fn list_webhooks(
    State(api): State<AdminApi>,
    QueryParameters(query): QueryParameters<WebhookParameters>,
) -> Result<JsonReply<AdminPage<WebhookReply>>, AdminError> {
    let range = PageRange::parse(query.after, query.limit.as_deref())?;
    let before = parse_place(&range)?;
    if let Some(account) = query.account {
        let account = parse_account_name("account", &account)?;
        let all = webhooks::list_of_owner(&api.store, Some(&account)).await?;
        let data = all.iter().map(WebhookReply::new).collect();
        return Ok(JsonReply(AdminPage { data, has_more: false, next: None }));
    }
    let limit = range.limit.saturating_add(1);
    let all = webhooks::list_all(&api.store, before.as_ref(), limit).await?;
    let rows = all.iter().map(WebhookReply::new).collect();
    let cursor = |row: &WebhookReply| place_text(row.created_at, &row.id);
    Ok(JsonReply(AdminPage::new(rows, range.limit, cursor)))
}

/// Adds an endpoint. The reply shows its secret this once.
#[utoipa::path(
    post,
    path = "/admin/v1/webhooks",
    tag = "webhooks",
    operation_id = "createWebhook",
    request_body = WebhookBody,
    responses((status = 201, description = "The endpoint, its secret.", body = IssuedWebhookReply))
)]
pub(super) async fn create_webhook(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<WebhookBody>,
) -> Result<Issued, AdminError> {
    let parse = |text: String| parse_account_name("account", &text);
    let parse_low = |text: String| parse_usd("low_balance_usd", &text);
    let new = NewEndpoint {
        account: body.account.map(parse).transpose()?,
        url: body.url,
        events: body.events,
        low_balance: body.low_balance_usd.map(parse_low).transpose()?,
    };
    let allow_private = api.webhooks.allow_private;
    let adding = async move |context: ManagementContext<'_>| {
        Ok(webhooks::add_endpoint(context, new, allow_private).await?)
    };
    Ok(issued_reply(&api.change(actor, adding).await?))
}

/// Shows an endpoint.
#[utoipa::path(
    get,
    path = "/admin/v1/webhooks/{id}",
    tag = "webhooks",
    operation_id = "getWebhook",
    params(("id" = String, Path, description = "The id of the endpoint.")),
    responses((status = 200, description = "The endpoint.", body = WebhookReply))
)]
pub(super) async fn show_webhook(
    State(api): State<AdminApi>,
    PathName(id): PathName,
) -> Result<JsonReply<WebhookReply>, AdminError> {
    let endpoint = find_endpoint(&api.store, &id).await?;
    Ok(JsonReply(WebhookReply::new(&endpoint)))
}

/// Changes an endpoint.
#[utoipa::path(
    patch,
    path = "/admin/v1/webhooks/{id}",
    tag = "webhooks",
    operation_id = "updateWebhook",
    params(("id" = String, Path, description = "The id of the endpoint.")),
    request_body = WebhookPatchBody,
    responses((status = 200, description = "The endpoint.", body = WebhookReply))
)]
pub(super) async fn update_webhook(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(id): PathName,
    JsonBody(body): JsonBody<WebhookPatchBody>,
) -> Result<JsonReply<WebhookReply>, AdminError> {
    let parse_low = |text: String| parse_usd("low_balance_usd", &text);
    let patch = EndpointPatch {
        url: body.url,
        events: body.events,
        low_balance: body.low_balance_usd.try_map(parse_low)?,
        enabled: body.enabled,
    };
    let allow_private = api.webhooks.allow_private;
    let changing = async move |context: ManagementContext<'_>| {
        Ok(webhooks::set_endpoint(context, &id, patch, allow_private).await?)
    };
    Ok(JsonReply(WebhookReply::new(&api.change(actor, changing).await?)))
}

/// Removes an endpoint, and its messages.
#[utoipa::path(
    delete,
    path = "/admin/v1/webhooks/{id}",
    tag = "webhooks",
    operation_id = "removeWebhook",
    params(("id" = String, Path, description = "The id of the endpoint.")),
    responses((status = 200, description = "What was removed.", body = RemovedWebhookReply))
)]
pub(super) async fn remove_webhook(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(id): PathName,
) -> Result<JsonReply<RemovedWebhookReply>, AdminError> {
    let removing = async move |context: ManagementContext<'_>| {
        webhooks::remove_endpoint(context, &id).await?;
        Ok(RemovedWebhookReply { id, removed: true })
    };
    Ok(JsonReply(api.change(actor, removing).await?))
}

/// Gives an endpoint another secret, which the reply shows this once. For a while messages are
/// signed by the old one too.
#[utoipa::path(
    post,
    path = "/admin/v1/webhooks/{id}/rotate",
    tag = "webhooks",
    operation_id = "rotateWebhook",
    params(("id" = String, Path, description = "The id of the endpoint.")),
    request_body = WebhookRotationBody,
    responses((status = 201, description = "The endpoint, its secret.", body = IssuedWebhookReply))
)]
pub(super) async fn rotate_webhook(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(id): PathName,
    JsonBody(body): JsonBody<WebhookRotationBody>,
) -> Result<Issued, AdminError> {
    let overlap = body.overlap_s.unwrap_or(OVERLAP_S);
    if overlap > OVERLAP_S_MAX {
        let message = format!("{overlap} is too long: give 0 to {OVERLAP_S_MAX} seconds");
        return Err(AdminError::invalid("overlap_s", message));
    }
    let rotating = async move |context: ManagementContext<'_>| {
        Ok(webhooks::rotate_secret(context, &id, overlap).await?)
    };
    Ok(issued_reply(&api.change(actor, rotating).await?))
}

/// Sends a message that says nothing, to see whether it arrives.
#[utoipa::path(
    post,
    path = "/admin/v1/webhooks/{id}/test",
    tag = "webhooks",
    operation_id = "testWebhook",
    params(("id" = String, Path, description = "The id of the endpoint.")),
    responses((status = 201, description = "The message.", body = WebhookMessageReply))
)]
pub(super) async fn test_webhook(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(id): PathName,
) -> Result<(StatusCode, JsonReply<WebhookMessageReply>), AdminError> {
    let sending =
        async move |context: ManagementContext<'_>| Ok(webhooks::send_test(context, &id).await?);
    let message = api.change(actor, sending).await?;
    Ok((StatusCode::CREATED, JsonReply(WebhookMessageReply::new(&message))))
}

/// Sends a message again, with the same id.
#[utoipa::path(
    post,
    path = "/admin/v1/webhooks/{id}/resend",
    tag = "webhooks",
    operation_id = "resendWebhookMessage",
    params(("id" = String, Path, description = "The id of the endpoint.")),
    request_body = ResendBody,
    responses((status = 200, description = "The message.", body = WebhookMessageReply))
)]
pub(super) async fn resend_message(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(id): PathName,
    JsonBody(body): JsonBody<ResendBody>,
) -> Result<JsonReply<WebhookMessageReply>, AdminError> {
    let sending = async move |context: ManagementContext<'_>| {
        Ok(webhooks::send_again(context, &id, &body.message).await?)
    };
    Ok(JsonReply(WebhookMessageReply::new(&api.change(actor, sending).await?)))
}

/// Lists the messages of an endpoint, newest first: at most the last 500, for 30 days.
#[utoipa::path(
    get,
    path = "/admin/v1/webhooks/{id}/messages",
    tag = "webhooks",
    operation_id = "listWebhookMessages",
    params(("id" = String, Path, description = "The id of the endpoint."), PageParameters),
    responses((status = 200, description = "Messages.", body = AdminPage<WebhookMessageReply>))
)]
pub(super) async fn list_messages(
    State(api): State<AdminApi>,
    PathName(id): PathName,
    QueryParameters(query): QueryParameters<PageParameters>,
) -> Result<JsonReply<AdminPage<WebhookMessageReply>>, AdminError> {
    let range = query.parse()?;
    let before = parse_place(&range)?;
    let endpoint = find_endpoint(&api.store, &id).await?;
    let limit = range.limit.saturating_add(1);
    let all = webhooks::list_messages(&api.store, &endpoint, before.as_ref(), limit).await?;
    let rows = all.iter().map(WebhookMessageReply::new).collect();
    let cursor = |row: &WebhookMessageReply| place_text(row.created_at, &row.id);
    Ok(JsonReply(AdminPage::new(rows, range.limit, cursor)))
}

fn parse_place(range: &PageRange) -> Result<Option<RowPlace>, AdminError> {
    let Some(text) = &range.after else { return Ok(None) };
    RowPlace::parse(text).map(Some).ok_or_else(|| range.unknown_cursor())
}

fn place_text(created_at: i64, id: &str) -> String {
    RowPlace { created_at, id: id.to_owned() }.to_string()
}

fn issued_reply(endpoint: &WebhookEndpoint) -> Issued {
    let secret = endpoint.secret.reveal().to_owned();
    let reply = IssuedWebhookReply { secret, shown: WebhookReply::new(endpoint) };
    let issued = IssuedSecret { prefix: endpoint.id.clone() };
    (StatusCode::CREATED, Extension(issued), JsonReply(reply))
}
