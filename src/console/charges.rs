//! The pages of the charges.

use std::time::Duration;

use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::Value;

use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::Console;
use super::views::charge as charge_view;
use super::views::charges as list_view;
use crate::admin_api::state::AdminApi;
use crate::ledger::{AccountName, JournalEntry};
use crate::management::accounts::require_account;
use crate::management::charges::{EntrySearch, count_older, entry_json, find_newest, read_entries};
use crate::management::corrections::{find_charged_account, find_request_lines};
use crate::management::error::parse_account;

/// The number of charges of a page.
const PAGE_SIZE: usize = 50;

/// A search for a request ends after this time.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// What is looked for.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChargeSearch {
    pub(super) account: Option<String>,
    /// The id of a request.
    pub(super) request: Option<String>,
    /// The id of a vendor's reply.
    pub(super) reply: Option<String>,
    /// The beginning of a key.
    pub(super) key: Option<String>,
    /// The newest day (UTC), such as 2026-11-27.
    pub(super) until: Option<String>,
    /// The number of the last line of the page before.
    pub(super) before: Option<u64>,
}

/// Lines of an account.
pub(super) struct FoundLines {
    pub(super) account: AccountName,
    /// Newest first.
    pub(super) lines: Vec<JournalEntry>,
    /// The `before` of the next page; `None` if there is none.
    pub(super) next: Option<u64>,
}

/// Shows the charges of an account, newest first, or those that were looked for.
pub(super) async fn list(
    State(console): State<Console>,
    PageQuery(search): PageQuery<ChargeSearch>,
) -> Result<Page, PageError> {
    let account = search.account.as_deref().map(parse_account).transpose()?;
    let is_for_one = search.reply.is_some() || search.key.is_some() || search.until.is_some();
    let found = match (account, search.request.as_deref()) {
        (account, Some(request)) => {
            let finding = tokio::time::timeout(SEARCH_TIMEOUT, find(&console, account, request));
            Some(finding.await.map_err(too_slow)??)
        }
        (Some(account), None) => Some(page_of(&console, account, &search).await?),
        (None, None) if is_for_one => {
            let message = "Give the account as well: only ids of requests are looked for in all.";
            return Err(PageError::invalid(message));
        }
        (None, None) => None,
    };
    let content = list_view::draw(&search, found.as_ref());
    Ok(Page::new("Charges", "/charges", content))
}

fn too_slow(_: tokio::time::error::Elapsed) -> PageError {
    PageError::invalid("That takes too long: give the account or a day as well.")
}

/// Returns a page of the lines of an account.
pub(super) async fn page_of(
    console: &Console,
    account: AccountName,
    search: &ChargeSearch,
) -> Result<FoundLines, PageError> {
    let store = &console.api.store;
    require_account(&*store.ledger, &account).await?;
    let is_filtered = search.reply.is_some() || search.key.is_some();
    let _permit = is_filtered.then(|| AdminApi::take_permit(&console.api.searching)).transpose()?;
    let finding = async {
        let mut before = search.before;
        if let (None, Some(day)) = (before, &search.until) {
            let older = count_older(store, &account, end_of_day(day)?).await?;
            before = Some(older.saturating_add(1));
        }
        let (key, reply) = (search.key.as_deref(), search.reply.as_deref());
        let wanted = EntrySearch { key, reply, before };
        Ok::<_, PageError>(find_newest(store, &account, wanted, PAGE_SIZE).await?)
    };
    let found = tokio::time::timeout(SEARCH_TIMEOUT, finding).await.map_err(too_slow)??;
    Ok(FoundLines { account, lines: found.entries, next: found.next })
}

/// Returns when a day ends, in unix ms.
fn end_of_day(day: &str) -> Result<i64, PageError> {
    let wrong = || PageError::invalid(format!("'{day}' is no day, such as 2026-11-27."));
    let date: jiff::civil::Date = day.parse().map_err(|_| wrong())?;
    let next = date.tomorrow().map_err(|_| wrong())?;
    let begin = next.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| wrong())?;
    Ok(begin.timestamp().as_millisecond())
}

/// Finds the lines about a request. That may read many lines, so few do it at a time.
async fn find(
    console: &Console,
    account: Option<AccountName>,
    request: &str,
) -> Result<FoundLines, PageError> {
    let _permit = AdminApi::take_permit(&console.api.searching)?;
    let store = &console.api.store;
    let account = match account {
        Some(account) => account,
        None => find_charged_account(store, request).await?,
    };
    let mut lines = find_request_lines(store, &account, request).await?;
    lines.reverse();
    Ok(FoundLines { account, lines, next: None })
}

/// Shows a charge with its arithmetic.
pub(super) async fn show(
    State(console): State<Console>,
    Path((account, seq)): Path<(String, u64)>,
) -> Result<Page, PageError> {
    let account = parse_account(&account)?;
    let store = &console.api.store;
    require_account(&*store.ledger, &account).await?;
    let page = read_entries(store, &account, seq.saturating_sub(1), 1).await?;
    let entry = page.entries.into_iter().find(|entry| entry.seq == seq);
    let missing = || PageError::not_found(format!("Account '{account}' has no line {seq}."));
    let entry = entry.ok_or_else(missing)?;
    let line = entry_json(&entry).unwrap_or(Value::Null);
    let catalogue = console.api.catalogue.load_full();
    let content = charge_view::draw(&account, &entry, &line, &catalogue);
    Ok(Page::new(format!("Line {seq} of {account}"), "/charges", content))
}
