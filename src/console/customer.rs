//! The pages of a customer, who sees one account.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::charges::{ChargeSearch, page_of};
use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::{Console, SignedIn};
use super::usage::{UsageDays, UsageSums, read_sums};
use super::views::charge as charge_view;
use super::views::customer as view;
use super::views::models as model_view;
use crate::clock::timestamp;
use crate::management::accounts::read_account_page;
use crate::management::charges::read_entries;

/// The limits of this many keys, the newest, are on the first page.
const KEYS_SHOWN: u32 = 50;

/// Shows the balance, the limits, the keys and the usage of the last 30 days.
pub(super) async fn show_balance(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Result<Page, PageError> {
    let (account, store) = (signed_in.viewer.customer()?, &console.api.store);
    let (view, keys) = read_account_page(&*store.ledger, account, KEYS_SHOWN).await?;
    let usage = read_sums(store, account, &UsageDays::default(), "day,model").await?;
    let usage = usage.unwrap_or_default();
    Ok(Page::new("Balance", "/my", view::draw_balance(&view, &keys.keys, &usage)))
}

/// The place in the list of charges.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChargePlace {
    /// The number of the last line of the page before.
    before: Option<u64>,
}

/// Shows the charges, newest first.
pub(super) async fn list_charges(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(ChargePlace { before }): PageQuery<ChargePlace>,
) -> Result<Page, PageError> {
    let account = signed_in.viewer.customer()?.clone();
    let search = ChargeSearch { before, ..ChargeSearch::default() };
    let found = page_of(&console, account, &search).await?;
    Ok(Page::new("Charges", "/my/charges", view::draw_charges(&found)))
}

/// Shows the usage by day and model, and by key.
pub(super) async fn show_usage(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(days): PageQuery<UsageDays>,
) -> Result<Page, PageError> {
    let account = signed_in.viewer.customer()?;
    let usage = UsageSums::read(&console.api.store, account, &days).await?;
    Ok(Page::new("Usage", "/my/usage", view::draw_usage(&days, &usage)))
}

/// Shows a charge with its arithmetic.
pub(super) async fn show_charge(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(seq): Path<u64>,
) -> Result<Page, PageError> {
    let account = signed_in.viewer.customer()?;
    let page = read_entries(&console.api.store, account, seq.saturating_sub(1), 1).await?;
    let entry = page.entries.into_iter().find(|entry| entry.seq == seq);
    let entry = entry.ok_or_else(|| PageError::not_found(format!("There is no line {seq}.")))?;
    let content = charge_view::draw_own(&entry, &console.api.catalogue.load_full());
    Ok(Page::new(format!("Line {seq}"), "/my/charges", content))
}

/// Shows how clients are set up.
pub(super) async fn show_setup(
    State(console): State<Console>,
    Extension(_): Extension<SignedIn>,
) -> Page {
    Page::new("Set-up", "/my/setup", view::draw_setup(&console.guide))
}

/// Sends the usage by day, model and key as a file for spreadsheets.
pub(super) async fn send_usage(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(days): PageQuery<UsageDays>,
) -> Result<Response, PageError> {
    let account = signed_in.viewer.customer()?;
    let rows = read_sums(&console.api.store, account, &days, "day,model,key").await?;
    let rows = rows
        .ok_or_else(|| PageError::invalid("That is too much for one file: ask for fewer days."))?;
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"usage.csv\""),
    ];
    Ok((headers, view::write_usage(&rows)).into_response())
}

/// Shows what the account pays.
pub(super) async fn show_prices(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Result<Page, PageError> {
    let (account, store) = (signed_in.viewer.customer()?, &console.api.store);
    let settings = store.ledger.account_settings(account).await?.unwrap_or_default();
    let catalogue = console.api.catalogue.load_full();
    let book = match &settings.book {
        Some(name) => Some(catalogue.books.find(name).ok_or_else(|| {
            let message = "The prices of this account are not in force at the moment.";
            PageError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?),
        None => None,
    };
    let book = book.map(|book| &**book);
    let content = model_view::model_table(&catalogue, timestamp().as_second(), book);
    Ok(Page::new("Prices", "/my/prices", content))
}
