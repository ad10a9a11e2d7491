//! The pages of the accounts, and their forms.

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Redirect;
use futures_util::future::join_all;
use serde::Deserialize;

use super::error::PageError;
use super::forms::{FormBody, PageQuery};
use super::page::Page;
use super::state::{Console, SignedIn};
use super::usage::{UsageDays, UsageSums};
use super::views::account::{self as account_view, AccountPage};
use super::views::accounts as list_view;
use crate::admin_api::amounts::{parse_account_name, parse_moved_usd, parse_usd};
use crate::admin_api::budgets::BudgetAmounts;
use crate::ledger::AccountName;
use crate::management::accounts::{self, NewAccount, SettingsPatch};
use crate::management::budgets::LimitChanges;
use crate::management::charges;
use crate::management::console_links;
use crate::management::context::ManagementContext;
use crate::management::error::parse_account;
use crate::management::payments::{self, Transfer, parse_transfer_id};
use crate::sessions::Principal;

/// The number of accounts of a page.
const PAGE_SIZE: usize = 50;
/// The number of keys, of payments and of charges that the page of an account shows.
const RECENT: u32 = 10;

/// The place in the list, and what is looked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountSearch {
    /// A part of the name.
    q: Option<String>,
    /// The last name of the page before.
    after: Option<String>,
}

/// Shows the accounts.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(AccountSearch { q, after }): PageQuery<AccountSearch>,
) -> Result<Page, PageError> {
    let store = &console.api.store;
    let mut names = accounts::list_accounts(store, false).await?;
    let all = names.len();
    if let Some(wanted) = q.as_deref().map(str::to_lowercase) {
        names.retain(|name| name.as_str().to_lowercase().contains(&wanted));
    }
    let found = names.len();
    names.retain(|name| after.as_deref().is_none_or(|after| name.as_str() > after));
    let has_more = names.len() > PAGE_SIZE;
    names.truncate(PAGE_SIZE);
    let reading = names.iter().map(|name| store.ledger.balances(name));
    let mut rows = Vec::new();
    for (name, balances) in names.iter().zip(join_all(reading).await) {
        rows.extend(balances?.map(|balances| (name.clone(), balances)));
    }
    let shown = list_view::AccountList { rows, all, found, q, has_more };
    Ok(Page::new("Accounts", "/accounts", list_view::draw(&shown, &signed_in)))
}

/// An account that is to be opened.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountForm {
    name: String,
    plan: Option<String>,
    credit_usd: Option<String>,
}

/// Opens an account.
pub(super) async fn create(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    FormBody(form): FormBody<AccountForm>,
) -> Result<Redirect, PageError> {
    let name = parse_account_name("name", &form.name)?;
    let plan = form.plan.as_deref().map(|plan| console.api.parse_plan(plan)).transpose()?;
    let credit =
        form.credit_usd.as_deref().map(|text| parse_usd("credit_usd", text)).transpose()?;
    let new = NewAccount { name: name.clone(), plan, book: None, credit };
    let opening = async move |context: ManagementContext<'_>| {
        Ok(accounts::open_account(context, &new).await?)
    };
    console.change(&signed_in, opening).await?;
    Ok(Redirect::to(&format!("/accounts/{name}")))
}

/// Shows an account.
pub(super) async fn show(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
) -> Result<Page, PageError> {
    let name = parse_account(&name)?;
    let store = &console.api.store;
    let (view, keys) = accounts::read_account_page(&*store.ledger, &name, RECENT).await?;
    let transfers = store.ledger.newest_transfers(&name, None, RECENT).await?;
    let lines = store.ledger.journal_length(&name).await?;
    let after = lines.saturating_sub(RECENT.into());
    let mut recent = charges::read_entries(store, &name, after, RECENT).await?.entries;
    recent.reverse();
    let usage = UsageSums::read(store, &name, &UsageDays::default()).await?;
    let catalogue = console.api.catalogue.load_full();
    let page = AccountPage { view, keys, transfers, recent, usage };
    let content = account_view::draw(&page, &catalogue, &signed_in);
    Ok(Page::new(format!("Account {name}"), "/accounts", content))
}

/// A payment.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaymentForm {
    amount_usd: String,
    /// The id of the payment, which makes a repeat harmless.
    id: String,
}

/// Adds a payment.
pub(super) async fn pay(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
    FormBody(form): FormBody<PaymentForm>,
) -> Result<Redirect, PageError> {
    let (account, tx) = (parse_account(&name)?, parse_transfer_id(&form.id)?);
    let amount = parse_moved_usd(&form.amount_usd)?;
    let payment = Transfer { account, tx, amount, reason: String::new() };
    let paying = async move |context: ManagementContext<'_>| {
        Ok(payments::add_payment(context, &payment).await?)
    };
    console.change(&signed_in, paying).await?;
    Ok(Redirect::to(&format!("/accounts/{name}#payments")))
}

/// The limits of an account. One that was left empty is removed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetForm {
    day_usd: Option<String>,
    month_usd: Option<String>,
}

/// Sets the budgets of an account.
pub(super) async fn set_budgets(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
    FormBody(form): FormBody<BudgetForm>,
) -> Result<Redirect, PageError> {
    let account = parse_account(&name)?;
    let limits = BudgetAmounts::of_account(form.day_usd, form.month_usd).parse()?;
    change_account(&console, &signed_in, account, limits, SettingsPatch::default()).await?;
    Ok(Redirect::to(&format!("/accounts/{name}#limits")))
}

/// Suspends an account.
pub(super) async fn suspend(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
) -> Result<Redirect, PageError> {
    set_suspended(&console, &signed_in, &name, true).await
}

/// Resumes an account.
pub(super) async fn resume(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
) -> Result<Redirect, PageError> {
    set_suspended(&console, &signed_in, &name, false).await
}

async fn set_suspended(
    console: &Console,
    signed_in: &SignedIn,
    name: &str,
    is_suspended: bool,
) -> Result<Redirect, PageError> {
    let account = parse_account(name)?;
    let settings = SettingsPatch { suspended: Some(is_suspended), ..SettingsPatch::default() };
    change_account(console, signed_in, account, LimitChanges::new(), settings).await?;
    Ok(Redirect::to(&format!("/accounts/{name}")))
}

/// Makes a link by which the customer signs in. It is shown once.
pub(super) async fn make_link(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
) -> Result<Page, PageError> {
    let account = parse_account(&name)?;
    let missing = || PageError::not_found("This gateway has no address for customers.");
    let address = console.customer_links.clone().ok_or_else(missing)?;
    let principal = Principal::Account(account.clone());
    let making = async move |context: ManagementContext<'_>| {
        Ok(console_links::make_link(context, &principal).await?)
    };
    let secret = console.change(&signed_in, making).await?;
    let link = address.link(&format!("/link/{}", secret.reveal()));
    let content = account_view::draw_link(&account, &link);
    Ok(Page::new("A sign-in link", "/accounts", content))
}

async fn change_account(
    console: &Console,
    signed_in: &SignedIn,
    account: AccountName,
    limits: LimitChanges,
    settings: SettingsPatch,
) -> Result<(), PageError> {
    let changing = async move |context: ManagementContext<'_>| {
        Ok(accounts::set_account(context, &account, &limits, &settings).await?)
    };
    console.change(signed_in, changing).await
}
