//! The pages and forms of webhooks: for operators those of everybody, for a customer those of the
//! own account. Only their paths differ.

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Redirect;
use serde::Deserialize;

use super::error::PageError;
use super::forms::{FormBody, PageQuery};
use super::keys::once;
use super::page::Page;
use super::state::{Console, SignedIn, Viewer};
use super::views::webhooks::{self as view, EndpointDetail, EndpointList};
use super::webhook_forms::{EndpointForm, ResendForm, SecretRotationForm};
use crate::management::context::ManagementContext;
use crate::management::webhooks;
use crate::webhooks::RowPlace;
use crate::webhooks::endpoint::WebhookEndpoint;

/// The rows of a page.
const PAGE_ROWS: u32 = 50;

/// Where a page of a list begins.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListPlace {
    before: Option<String>,
}

impl ListPlace {
    fn parse(&self) -> Result<Option<RowPlace>, PageError> {
        let Some(text) = &self.before else { return Ok(None) };
        let wrong = || PageError::invalid("The address: before is no place in the list.");
        RowPlace::parse(text).map(Some).ok_or_else(wrong)
    }
}

/// Lists endpoints.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(place): PageQuery<ListPlace>,
) -> Result<Page, PageError> {
    let (store, before) = (&console.api.store, place.parse()?);
    let mut endpoints = match &signed_in.viewer {
        Viewer::Customer(account) => webhooks::list_of_owner(store, Some(account)).await?,
        Viewer::Operator { .. } => {
            webhooks::list_all(store, before.as_ref(), PAGE_ROWS.saturating_add(1)).await?
        }
    };
    let next = cut_page(&mut endpoints, |endpoint| endpoint.to_row().place());
    let content = view::draw_list(&EndpointList { endpoints, next }, &signed_in);
    Ok(Page::new("Webhooks", signed_in.viewer.webhooks_path(), content))
}

/// Shows an endpoint with its messages.
pub(super) async fn show(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(id): Path<String>,
    PageQuery(place): PageQuery<ListPlace>,
) -> Result<Page, PageError> {
    let (store, before) = (&console.api.store, place.parse()?);
    let endpoint = find(&console, &signed_in, &id).await?;
    let limit = PAGE_ROWS.saturating_add(1);
    let mut messages = webhooks::list_messages(store, &endpoint, before.as_ref(), limit).await?;
    let next = cut_page(&mut messages, |message| message.to_row().place());
    let content = view::draw(&EndpointDetail { endpoint, messages, next }, &signed_in);
    Ok(Page::new("Webhook", signed_in.viewer.webhooks_path(), content))
}

/// Cuts what is beyond a page, and returns where the next one begins, if there is one.
fn cut_page<T>(rows: &mut Vec<T>, place_of: impl Fn(&T) -> RowPlace) -> Option<RowPlace> {
    let most = usize::try_from(PAGE_ROWS).unwrap_or(usize::MAX);
    let has_more = rows.len() > most;
    rows.truncate(most);
    rows.last().filter(|_| has_more).map(place_of)
}

/// Finds an endpoint. To a customer there are the own ones only.
async fn find(
    console: &Console,
    signed_in: &SignedIn,
    id: &str,
) -> Result<WebhookEndpoint, PageError> {
    let found = webhooks::find_endpoint(&console.api.store, id).await?;
    match &signed_in.viewer {
        Viewer::Customer(account) if found.account.as_ref() != Some(account) => {
            Err(webhooks::no_such_endpoint(id).into())
        }
        Viewer::Operator { .. } | Viewer::Customer(_) => Ok(found),
    }
}

/// Makes a change of an endpoint.
async fn change<T: Send + 'static>(
    console: &Console,
    signed_in: &SignedIn,
    make: impl AsyncFnOnce(ManagementContext<'_>) -> Result<T, crate::admin_api::error::AdminError>
    + Send
    + 'static,
) -> Result<T, PageError> {
    match &signed_in.viewer {
        Viewer::Customer(account) => console.change_of(&account.clone(), signed_in, make).await,
        Viewer::Operator { .. } => console.change(signed_in, make).await,
    }
}

/// Adds an endpoint.
pub(super) async fn add(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    FormBody(form): FormBody<EndpointForm>,
) -> Result<Page, PageError> {
    let request = form.request.clone();
    let new = form.parse(signed_in.viewer.customer().ok())?;
    console.count_change(&signed_in)?;
    once(&console, &signed_in, &request).await?;
    let allow_private = console.api.webhooks.allow_private;
    let adding = async move |context: ManagementContext<'_>| {
        Ok(webhooks::add_endpoint(context, new, allow_private).await?)
    };
    let added = change(&console, &signed_in, adding).await?;
    Ok(secret_page(&added, &signed_in))
}

/// Changes what an endpoint is told.
pub(super) async fn set(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(id): Path<String>,
    FormBody(form): FormBody<EndpointForm>,
) -> Result<Redirect, PageError> {
    let endpoint = find(&console, &signed_in, &id).await?;
    let patch = form.parse_patch()?;
    console.count_change(&signed_in)?;
    let allow_private = console.api.webhooks.allow_private;
    let setting = async move |context: ManagementContext<'_>| {
        Ok(webhooks::set_endpoint(context, &endpoint.id, patch, allow_private).await?)
    };
    let changed = change(&console, &signed_in, setting).await?;
    Ok(to_page(&changed.id, &signed_in))
}

/// Gives an endpoint another secret.
pub(super) async fn rotate(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(id): Path<String>,
    FormBody(form): FormBody<SecretRotationForm>,
) -> Result<Page, PageError> {
    let endpoint = find(&console, &signed_in, &id).await?;
    let overlap = form.overlap_s()?;
    console.count_change(&signed_in)?;
    once(&console, &signed_in, &form.request).await?;
    let rotating = async move |context: ManagementContext<'_>| {
        Ok(webhooks::rotate_secret(context, &endpoint.id, overlap).await?)
    };
    let rotated = change(&console, &signed_in, rotating).await?;
    Ok(secret_page(&rotated, &signed_in))
}

/// Removes an endpoint.
pub(super) async fn remove(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(id): Path<String>,
) -> Result<Redirect, PageError> {
    let endpoint = find(&console, &signed_in, &id).await?;
    console.count_change(&signed_in)?;
    let removing = async move |context: ManagementContext<'_>| {
        Ok(webhooks::remove_endpoint(context, &endpoint.id).await?)
    };
    change(&console, &signed_in, removing).await?;
    Ok(Redirect::to(signed_in.viewer.webhooks_path()))
}

/// Sends a message that says nothing.
pub(super) async fn test(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(id): Path<String>,
) -> Result<Redirect, PageError> {
    let endpoint = find(&console, &signed_in, &id).await?;
    console.count_change(&signed_in)?;
    let sending = async move |context: ManagementContext<'_>| {
        webhooks::send_test(context, &endpoint.id).await?;
        Ok(endpoint.id)
    };
    let id = change(&console, &signed_in, sending).await?;
    Ok(to_page(&id, &signed_in))
}

/// Sends a message again.
pub(super) async fn resend(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(id): Path<String>,
    FormBody(form): FormBody<ResendForm>,
) -> Result<Redirect, PageError> {
    let endpoint = find(&console, &signed_in, &id).await?;
    console.count_change(&signed_in)?;
    let sending = async move |context: ManagementContext<'_>| {
        webhooks::send_again(context, &endpoint.id, &form.message).await?;
        Ok(endpoint.id)
    };
    let id = change(&console, &signed_in, sending).await?;
    Ok(to_page(&id, &signed_in))
}

fn secret_page(endpoint: &WebhookEndpoint, signed_in: &SignedIn) -> Page {
    let content = view::draw_secret(endpoint, signed_in);
    Page::new("A new secret", signed_in.viewer.webhooks_path(), content)
}

fn to_page(id: &str, signed_in: &SignedIn) -> Redirect {
    Redirect::to(&format!("{}/{id}", signed_in.viewer.webhooks_path()))
}
