//! The pages of statements: for operators those of all accounts, for a customer the own ones.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::{Console, SignedIn, Viewer};
use super::views::statement as view;
use crate::admin_api::state::AdminApi;
use crate::ledger::AccountName;
use crate::management::accounts::require_account;
use crate::management::context::ManagementContext;
use crate::management::error::{ManagementError, parse_account};
use crate::management::statements::read_statement;
use crate::statement::{StatementMonth, write_csv, write_view};

/// The month whose statement is looked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MonthChoice {
    /// Such as 2026-11.
    month: Option<String>,
}

/// The form in which a statement is sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatementForm {
    /// `csv` or `json`; a page if it is missing.
    #[serde(rename = "as")]
    form: Option<String>,
}

/// Shows the statements of the own account, or leads to the one that was chosen.
pub(super) async fn choose_own(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(choice): PageQuery<MonthChoice>,
) -> Result<Response, PageError> {
    let account = signed_in.viewer.customer()?;
    list(&console, &signed_in, account, choice).await
}

/// Shows the statements of an account, or leads to the one that was chosen.
pub(super) async fn choose(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
    PageQuery(choice): PageQuery<MonthChoice>,
) -> Result<Response, PageError> {
    let account = parse_account(&name)?;
    require_account(&*console.api.store.ledger, &account).await?;
    list(&console, &signed_in, &account, choice).await
}

async fn list(
    console: &Console,
    signed_in: &SignedIn,
    account: &AccountName,
    MonthChoice { month }: MonthChoice,
) -> Result<Response, PageError> {
    let root = root_of(signed_in, account);
    if let Some(month) = month {
        let month = StatementMonth::parse(&month).map_err(ManagementError::from)?;
        return Ok(Redirect::to(&format!("{root}/{month}")).into_response());
    }
    let statements = &console.api.store.statements;
    let current = StatementMonth::containing(statements.statement_clock().await?);
    let sealed = statements.list_statements(account).await?;
    let content = view::draw_list(&root, current, &sealed);
    Ok(Page::new("Statements", place_of(signed_in), content).into_response())
}

/// Shows or sends a statement of the own account.
pub(super) async fn show_own(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(month): Path<String>,
    PageQuery(form): PageQuery<StatementForm>,
) -> Result<Response, PageError> {
    let account = signed_in.viewer.customer()?;
    let _own = console.limits.statements.take(account).ok_or_else(|| {
        let message = "Another statement is being read for you at this moment: wait for it.";
        PageError::new(StatusCode::TOO_MANY_REQUESTS, message)
    })?;
    let _permit = AdminApi::take_permit(&console.limits.all_statements)?;
    send(&console, &signed_in, account, &month, &form).await
}

/// Shows or sends a statement of an account.
pub(super) async fn show(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path((name, month)): Path<(String, String)>,
    PageQuery(form): PageQuery<StatementForm>,
) -> Result<Response, PageError> {
    let account = parse_account(&name)?;
    let _permit = AdminApi::take_permit(&console.api.searching)?;
    send(&console, &signed_in, &account, &month, &form).await
}

async fn send(
    console: &Console,
    signed_in: &SignedIn,
    account: &AccountName,
    month: &str,
    StatementForm { form }: &StatementForm,
) -> Result<Response, PageError> {
    let month = StatementMonth::parse(month).map_err(ManagementError::from)?;
    let owner = account.clone();
    let reading = async move |context: ManagementContext<'_>| {
        Ok(read_statement(context.store, &owner, month).await?)
    };
    let statement = console.read(signed_in, reading).await?;
    let file = |kind: &'static str, end: &str, text: String| {
        let name = format!("attachment; filename=\"statement-{account}-{month}.{end}\"");
        let headers =
            [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_DISPOSITION, name)];
        Ok((headers, text).into_response())
    };
    match form.as_deref() {
        None => {
            let root = root_of(signed_in, account);
            let content = view::draw(&root, &statement);
            let title = format!("Statement {month} of {account}");
            Ok(Page::new(title, place_of(signed_in), content).into_response())
        }
        Some("csv") => file("text/csv; charset=utf-8", "csv", write_csv(&statement)),
        Some("json") => file("application/json", "json", write_view(&statement)),
        Some(other) => {
            let message = format!("'{other}' is no form of a statement: as=csv or as=json.");
            Err(PageError::invalid(message))
        }
    }
}

/// Returns the path below which the statements of an account are.
fn root_of(signed_in: &SignedIn, account: &AccountName) -> String {
    match &signed_in.viewer {
        Viewer::Operator { .. } => format!("/accounts/{account}/statements"),
        Viewer::Customer(_) => "/my/statements".to_owned(),
    }
}

fn place_of(signed_in: &SignedIn) -> &'static str {
    match &signed_in.viewer {
        Viewer::Operator { .. } => "/accounts",
        Viewer::Customer(_) => "/my/statements",
    }
}
