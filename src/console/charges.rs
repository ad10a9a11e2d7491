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
use crate::management::charges::{entry_json, read_entries};
use crate::management::corrections::{find_charged_account, find_request_lines};
use crate::management::error::parse_account;

/// The number of charges of a page.
const PAGE_SIZE: u32 = 50;

/// A search for a request ends after this time.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);

/// What is looked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChargeSearch {
    account: Option<String>,
    /// The id of a request.
    request: Option<String>,
    /// The number of the last line of the page before.
    before: Option<u64>,
}

/// Shows the charges of an account, newest first, or those of a request.
pub(super) async fn list(
    State(console): State<Console>,
    PageQuery(search): PageQuery<ChargeSearch>,
) -> Result<Page, PageError> {
    let account = search.account.as_deref().map(parse_account).transpose()?;
    let found = match (account, search.request.as_deref()) {
        (account, Some(request)) => {
            let finding = tokio::time::timeout(SEARCH_TIMEOUT, find(&console, account, request));
            let slow = |_| PageError::invalid("That takes too long: give the account as well.");
            Some(finding.await.map_err(slow)??)
        }
        (Some(account), None) => Some(page_of(&console, account, search.before).await?),
        (None, None) => None,
    };
    let content = list_view::draw(&search, found.as_ref());
    Ok(Page::new("Charges", "/charges", content))
}

impl ChargeSearch {
    /// Returns the account as it was given.
    pub(super) fn account(&self) -> &str {
        self.account.as_deref().unwrap_or_default()
    }

    /// Returns the id of the request as it was given.
    pub(super) fn request(&self) -> &str {
        self.request.as_deref().unwrap_or_default()
    }
}

/// Lines of an account.
pub(super) struct FoundLines {
    pub(super) account: AccountName,
    /// Newest first.
    pub(super) lines: Vec<JournalEntry>,
    /// The `before` of the next page; `None` if there is none.
    pub(super) next: Option<u64>,
}

pub(super) async fn page_of(
    console: &Console,
    account: AccountName,
    before: Option<u64>,
) -> Result<FoundLines, PageError> {
    let store = &console.api.store;
    require_account(&*store.ledger, &account).await?;
    let last = store.ledger.journal_length(&account).await?;
    let end = before.map_or(last, |before| before.saturating_sub(1).min(last));
    let begin = end.saturating_sub(PAGE_SIZE.into());
    let count = u32::try_from(end - begin).unwrap_or(PAGE_SIZE);
    let mut lines: Vec<JournalEntry> = Vec::new();
    // A page of the archive may end before what was asked for.
    while (lines.len() as u64) < u64::from(count) {
        let after = lines.last().map_or(begin, |line| line.seq);
        let more = read_entries(store, &account, after, count).await?.entries;
        if more.is_empty() {
            break;
        }
        lines.extend(more);
    }
    lines.truncate(count as usize);
    lines.reverse();
    let next = (begin > 0).then(|| begin.saturating_add(1));
    Ok(FoundLines { account, lines, next })
}

/// Finds the lines about a request. That may read many lines, so few do it at a time.
async fn find(
    console: &Console,
    account: Option<AccountName>,
    request: &str,
) -> Result<FoundLines, PageError> {
    let _permit = AdminApi::take_permit(&console.api.searching)?;
    let ledger = &*console.api.store.ledger;
    let account = match account {
        Some(account) => account,
        None => find_charged_account(ledger, request).await?,
    };
    let mut lines = find_request_lines(ledger, &account, request).await?;
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
