//! The pages of a customer, who sees one account.

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::charges::page_of;
use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::{Console, SignedIn, Viewer};
use super::views::customer as view;
use super::views::models as model_view;
use crate::clock::{timestamp, unix_ms};
use crate::ledger::AccountName;
use crate::management::accounts::read_account;
use crate::management::usage::read_usage;
use crate::usage::{RollupSums, UsageAsk, UsageGroup, UsageRange};

/// Shows the balance, the limits, the keys and the usage of the last 30 days.
pub(super) async fn show_balance(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Result<Page, PageError> {
    let (account, store) = (account_of(&signed_in)?, &console.api.store);
    let view = read_account(&*store.ledger, account).await?;
    let keys = store.ledger.list_keys(account).await?;
    let usage = usage_of(&console, account, &UsageDays::default(), "day,model").await?;
    Ok(Page::new("Balance", "/my", view::draw_balance(&view, &keys, &usage)))
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
    let account = account_of(&signed_in)?.clone();
    let found = page_of(&console, account, before).await?;
    Ok(Page::new("Charges", "/my/charges", view::draw_charges(&found)))
}

/// The days that are asked for; by default the last 30.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageDays {
    /// From this date on, such as 2026-11-01.
    pub(super) from: Option<String>,
    /// Until this date, which is left out.
    pub(super) to: Option<String>,
}

/// Reads the sums of some days. What one question reads has the bound of a page of the API.
async fn usage_of(
    console: &Console,
    account: &AccountName,
    days: &UsageDays,
    group_by: &str,
) -> Result<Vec<(UsageGroup, RollupSums)>, PageError> {
    let (from, to) = (days.from.as_deref(), days.to.as_deref());
    let ask = UsageAsk { from, to, group_by: Some(group_by), after: None };
    let range = UsageRange::parse(ask, unix_ms());
    let range = range.map_err(|why| PageError::invalid(format!("{why}.")))?;
    let page = read_usage(&console.api.store, account, &range).await?;
    if page.next.is_some() {
        return Err(PageError::invalid("That is too much for one page: ask for fewer days."));
    }
    Ok(page.rows)
}

/// Shows the usage by day and model, and by key.
pub(super) async fn show_usage(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(days): PageQuery<UsageDays>,
) -> Result<Page, PageError> {
    let account = account_of(&signed_in)?;
    let by_day = usage_of(&console, account, &days, "day,model").await?;
    let by_key = usage_of(&console, account, &days, "key").await?;
    let keys = console.api.store.ledger.list_keys(account).await?;
    Ok(Page::new("Usage", "/my/usage", view::draw_usage(&days, &by_day, &by_key, &keys)))
}

/// Sends the usage by day, model and key as a file for spreadsheets.
pub(super) async fn send_usage(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(days): PageQuery<UsageDays>,
) -> Result<Response, PageError> {
    let account = account_of(&signed_in)?;
    let rows = usage_of(&console, account, &days, "day,model,key").await?;
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
    let (account, store) = (account_of(&signed_in)?, &console.api.store);
    let settings = read_account(&*store.ledger, account).await?.settings;
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

fn account_of(signed_in: &SignedIn) -> Result<&AccountName, PageError> {
    match &signed_in.viewer {
        Viewer::Customer(account) => Ok(account),
        Viewer::Operator { .. } => {
            Err(PageError::new(StatusCode::FORBIDDEN, "This page is for customers."))
        }
    }
}
