//! `/admin/v1/accounts`: accounts, their balances, settings and budgets.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::amounts::{parse_account_name, parse_usd};
use super::budgets::{BudgetAmounts, BudgetReply};
use super::error::AdminError;
use super::extract::{JsonBody, JsonReply, PathName, QueryParameters};
use super::page::{AdminPage, PageRange};
use super::state::AdminApi;
use crate::ledger::OpenLot;
use crate::management::accounts::{self, AccountView, NewAccount, SettingsPatch};
use crate::management::actor::Actor;
use crate::management::context::ManagementContext;
use crate::management::deletion;
use crate::management::field_patch::FieldPatch;
use crate::management::grants::expiry_text;

/// The parameters of the list of accounts.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AccountListParameters {
    /// Whether accounts that are deleted are listed as well.
    #[serde(default)]
    deleted: bool,
    /// The `next` of the page before.
    after: Option<String>,
    /// The most rows of the page, from 1 to 1000; 100 if it is missing.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
}

/// An account that is to be opened.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountBody {
    /// The name: 1 to 64 letters, digits, `-`, `_` and `.`.
    #[schema(example = "acme", pattern = "^[A-Za-z0-9._-]{1,64}$")]
    name: String,
    /// The plan of the rules that limits the account; the default plan if it is missing.
    plan: Option<String>,
    /// The price book of the rules by which the account is charged; the list prices if it is
    /// missing.
    book: Option<String>,
    /// A first payment, in USD.
    #[schema(example = "5")]
    credit_usd: Option<String>,
}

/// The changes of an account. A member that is missing stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountPatchBody {
    /// The plan of the rules that limits the account; null for the default plan.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    plan: FieldPatch<String>,
    /// The price book of the rules by which the account is charged; null for the list prices.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    book: FieldPatch<String>,
    /// Whether all calls of the account are refused. Suspending ends running streams as well.
    suspended: Option<bool>,
    /// The limits of the account.
    #[serde(default)]
    #[schema(value_type = Option<BudgetAmounts>)]
    budgets: Option<BudgetAmounts>,
}

/// An account. Credit and write-offs came in; available, held and posted say where the money is:
/// `credited + written_off = available + held + posted`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AccountReply {
    /// The name.
    #[schema(example = "acme")]
    name: String,
    /// All payments and grants less what was paid back and what has expired, in nano-USD.
    credited_nano: i64,
    /// All payments and grants less what was paid back and what has expired, in USD.
    #[schema(example = "5.00")]
    credited_usd: String,
    /// What can be spent, in nano-USD.
    available_nano: i64,
    /// What can be spent, in USD.
    available_usd: String,
    /// What is held for running calls, in nano-USD.
    held_nano: i64,
    /// What is held for running calls, in USD.
    held_usd: String,
    /// What was charged, in nano-USD.
    posted_nano: i64,
    /// What was charged, in USD.
    posted_usd: String,
    /// What was charged and the account could not pay, in nano-USD.
    written_off_nano: i64,
    /// What was charged and the account could not pay, in USD.
    written_off_usd: String,
    /// The open lots of granted credit, in the order in which calls draw them. What is left of the
    /// balances was paid in.
    lots: Vec<LotReply>,
    /// The plan; null for the default plan.
    plan: Option<String>,
    /// The price book; null for the list prices.
    book: Option<String>,
    /// Whether all calls of the account are refused.
    suspended: bool,
    /// When the account was deleted, in unix seconds; null if it was not.
    deleted_at: Option<i64>,
    /// The budgets of the account and of its keys.
    budgets: Vec<BudgetReply>,
}

/// An account that was deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeletedAccountReply {
    /// The name.
    #[schema(example = "acme")]
    name: String,
    /// Always true.
    deleted: bool,
    /// When the account was deleted, in unix seconds.
    deleted_at: i64,
    /// Whether it was deleted before, so that only what was left was erased now.
    was_deleted: bool,
}

/// Credit that was granted with one source and one expiry.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LotReply {
    /// `promotion`, `voucher` or `paid`.
    #[schema(example = "promotion")]
    source: &'static str,
    /// When the credit expires (RFC 3339); null if it never does.
    #[schema(example = "2027-01-31T00:00:00Z")]
    expires_at: Option<String>,
    /// What can be spent of it, in nano-USD.
    available_nano: i64,
    /// What can be spent of it, in USD.
    available_usd: String,
    /// What is held of it for running calls, in nano-USD.
    held_nano: i64,
    /// What is held of it for running calls, in USD.
    held_usd: String,
}

impl LotReply {
    fn new(open: &OpenLot) -> LotReply {
        LotReply {
            source: open.id.source.as_str(),
            expires_at: expiry_text(open.id),
            available_nano: open.lot.available.nano(),
            available_usd: open.lot.available.to_string(),
            held_nano: open.lot.held.nano(),
            held_usd: open.lot.held.to_string(),
        }
    }
}

impl AccountReply {
    fn new(view: &AccountView) -> AccountReply {
        let balances = &view.balances;
        AccountReply {
            name: view.name.to_string(),
            credited_nano: balances.credit.nano(),
            credited_usd: balances.credit.to_string(),
            available_nano: balances.available.nano(),
            available_usd: balances.available.to_string(),
            held_nano: balances.held.nano(),
            held_usd: balances.held.to_string(),
            posted_nano: balances.posted.nano(),
            posted_usd: balances.posted.to_string(),
            written_off_nano: balances.written_off.nano(),
            written_off_usd: balances.written_off.to_string(),
            lots: view.lots.iter().map(LotReply::new).collect(),
            plan: view.settings.plan.as_ref().map(ToString::to_string),
            book: view.settings.book.as_ref().map(ToString::to_string),
            suspended: view.settings.suspended,
            deleted_at: view.deleted_at,
            budgets: view.budgets.iter().map(|b| BudgetReply::new(b, &view.keys)).collect(),
        }
    }
}

/// Lists accounts, by name.
#[utoipa::path(
    get,
    path = "/admin/v1/accounts",
    tag = "accounts",
    operation_id = "listAccounts",
    params(AccountListParameters),
    responses((status = 200, description = "Accounts.", body = AdminPage<AccountReply>))
)]
pub(super) async fn list_accounts(
    State(api): State<AdminApi>,
    QueryParameters(parameters): QueryParameters<AccountListParameters>,
) -> Result<JsonReply<AdminPage<AccountReply>>, AdminError> {
    let AccountListParameters { deleted, after, limit } = parameters;
    let range = PageRange::parse(after, limit.as_deref())?;
    let all = accounts::list_accounts(&api.store, deleted).await?;
    let is_later = |name: &str| range.after.as_deref().is_none_or(|after| name > after);
    let page_size = usize::try_from(range.limit).unwrap_or(usize::MAX).saturating_add(1);
    let mut rows = Vec::new();
    for name in all.iter().filter(|name| is_later(name.as_str())).take(page_size) {
        rows.push(AccountReply::new(&accounts::read_account(api.ledger(), name).await?));
    }
    Ok(JsonReply(AdminPage::new(rows, range.limit, |row| row.name.clone())))
}

/// Opens an account.
#[utoipa::path(
    post,
    path = "/admin/v1/accounts",
    tag = "accounts",
    operation_id = "createAccount",
    request_body = AccountBody,
    responses((status = 201, description = "The account.", body = AccountReply))
)]
pub(super) async fn create_account(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    JsonBody(body): JsonBody<AccountBody>,
) -> Result<(StatusCode, JsonReply<AccountReply>), AdminError> {
    let name = parse_account_name("name", &body.name)?;
    let plan = body.plan.as_deref().map(|name| api.parse_plan(name)).transpose()?;
    let book = body.book.as_deref().map(|name| api.parse_book(name)).transpose()?;
    let credit =
        body.credit_usd.as_deref().map(|text| parse_usd("credit_usd", text)).transpose()?;
    let new = NewAccount { name, plan, book, credit };
    let opening = async move |context: ManagementContext<'_>| {
        accounts::open_account(context, &new).await?;
        Ok(accounts::read_account(context.ledger(), &new.name).await?)
    };
    let view = api.change(actor, opening).await?;
    Ok((StatusCode::CREATED, JsonReply(AccountReply::new(&view))))
}

/// Shows an account with its balances, lots of granted credit, settings and budgets.
#[utoipa::path(
    get,
    path = "/admin/v1/accounts/{name}",
    tag = "accounts",
    operation_id = "getAccount",
    params(("name" = String, Path, description = "The name of the account.")),
    responses((status = 200, description = "The account.", body = AccountReply))
)]
pub(super) async fn show_account(
    State(api): State<AdminApi>,
    PathName(name): PathName,
) -> Result<JsonReply<AccountReply>, AdminError> {
    let name = parse_account_name("name", &name)?;
    let view = accounts::read_account(api.ledger(), &name).await?;
    Ok(JsonReply(AccountReply::new(&view)))
}

/// Changes the plan, the price book and the budgets of an account, suspends it or resumes it.
#[utoipa::path(
    patch,
    path = "/admin/v1/accounts/{name}",
    tag = "accounts",
    operation_id = "updateAccount",
    params(("name" = String, Path, description = "The name of the account.")),
    request_body = AccountPatchBody,
    responses((status = 200, description = "The account.", body = AccountReply))
)]
pub(super) async fn update_account(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(name): PathName,
    JsonBody(body): JsonBody<AccountPatchBody>,
) -> Result<JsonReply<AccountReply>, AdminError> {
    let name = parse_account_name("name", &name)?;
    let settings = parse_settings(&api, &body)?;
    let limits = body.budgets.unwrap_or_default().parse()?;
    if limits.is_empty() && settings.is_empty() {
        let what = "there is nothing to change: give plan, book, suspended or budgets";
        return Err(AdminError::invalid("body", what));
    }
    let setting = async move |context: ManagementContext<'_>| {
        accounts::set_account(context, &name, &limits, &settings).await?;
        Ok(accounts::read_account(context.ledger(), &name).await?)
    };
    let view = api.change(actor, setting).await?;
    Ok(JsonReply(AccountReply::new(&view)))
}

/// Deletes an account that has nothing left, and erases what it has beside its books: keys,
/// settings, budgets, stored replies, cache entries, video jobs and files. Journal, payments,
/// statements and sums of usage stay. Of an account that is deleted already, what is left is
/// erased.
#[utoipa::path(
    delete,
    path = "/admin/v1/accounts/{name}",
    tag = "accounts",
    operation_id = "deleteAccount",
    params(("name" = String, Path, description = "The name of the account.")),
    responses((status = 200, description = "What was deleted.", body = DeletedAccountReply))
)]
pub(super) async fn delete_account(
    State(api): State<AdminApi>,
    Extension(actor): Extension<Actor>,
    PathName(name): PathName,
) -> Result<JsonReply<DeletedAccountReply>, AdminError> {
    let name = parse_account_name("name", &name)?;
    let (files, account) = (api.files.clone(), name.clone());
    let deleting = async move |context: ManagementContext<'_>| {
        Ok(deletion::delete_account(context, &files, &account).await?)
    };
    let done = api.change(actor, deleting).await?;
    Ok(JsonReply(DeletedAccountReply {
        name: name.to_string(),
        deleted: true,
        deleted_at: done.at,
        was_deleted: done.was_deleted,
    }))
}

fn parse_settings(api: &AdminApi, body: &AccountPatchBody) -> Result<SettingsPatch, AdminError> {
    let plan = body.plan.clone().try_map(|name| api.parse_plan(&name))?;
    let book = body.book.clone().try_map(|name| api.parse_book(&name))?;
    Ok(SettingsPatch { plan, book, suspended: body.suspended })
}
