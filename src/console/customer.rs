//! The pages of a customer, who sees one account.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::charges::page_of;
use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::{Console, SignedIn, Viewer};
use super::views::customer as view;
use crate::clock::unix_ms;
use crate::ledger::AccountName;
use crate::management::accounts::read_account;
use crate::management::usage::read_usage;
use crate::usage::{UsageAsk, UsageRange};

/// Shows the balance, the limits, the keys and the usage of the last 30 days.
pub(super) async fn show_balance(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
) -> Result<Page, PageError> {
    let (account, store) = (account_of(&signed_in)?, &console.api.store);
    let view = read_account(&*store.ledger, account).await?;
    let keys = store.ledger.list_keys(account).await?;
    let ask = UsageAsk { group_by: Some("day,model"), ..UsageAsk::default() };
    let range = UsageRange::parse(ask, unix_ms());
    let range = range.map_err(|why| PageError::invalid(why.to_string()))?;
    let usage = read_usage(store, account, &range).await?.rows;
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

fn account_of(signed_in: &SignedIn) -> Result<&AccountName, PageError> {
    match &signed_in.viewer {
        Viewer::Customer(account) => Ok(account),
        Viewer::Operator { .. } => {
            Err(PageError::new(StatusCode::FORBIDDEN, "This page is for customers."))
        }
    }
}
