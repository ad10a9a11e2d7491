//! The lists of keys: for operators those of all accounts, for a customer those of the own one.

use axum::Extension;
use axum::extract::{Path, State};
use serde::Deserialize;

use super::error::PageError;
use super::forms::PageQuery;
use super::page::Page;
use super::state::{Console, SignedIn};
use super::views::key_list as view;
use crate::ledger::{
    AccountName, BudgetUse, KeyId, KeyOrder, KeyPlace, KeyRange, KeyRecord, Ledger,
};
use crate::management::accounts::require_account;
use crate::management::error::parse_account;
use crate::management::key_search::parse_key_id;

/// The number of keys of a page.
const PAGE_SIZE: u32 = 50;
/// A search reads at most this many records of keys for a page.
const SEARCHED_MAX: u32 = 2_000;
/// So many records are read at a time.
const SEARCHED_AT_A_TIME: u32 = 500;

/// The place in the list, and what is looked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeySearch {
    /// The beginning of a key, or a part of its name.
    q: Option<String>,
    /// The place of the last key that the page before has looked at.
    after: Option<String>,
}

/// Keys of an account.
pub(super) struct KeyListPage {
    pub(super) account: AccountName,
    /// What was looked for.
    pub(super) wanted: Option<String>,
    /// Newest first.
    pub(super) keys: Vec<KeyRecord>,
    /// The budgets of the account and of these keys.
    pub(super) budgets: Vec<BudgetUse>,
    /// Where the list goes on; `None` at its end.
    pub(super) next: Option<KeyPlace>,
    /// Whether the search has ended before the page was full.
    pub(super) is_cut: bool,
}

/// Shows the keys of an account, newest first, or those that are looked for.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    Path(name): Path<String>,
    PageQuery(search): PageQuery<KeySearch>,
) -> Result<Page, PageError> {
    let account = parse_account(&name)?;
    require_account(&*console.api.store.ledger, &account).await?;
    let title = format!("Keys of {account}");
    show(&console, &signed_in, account, search, title).await
}

/// Shows the keys of the own account.
pub(super) async fn list_own(
    State(console): State<Console>,
    Extension(signed_in): Extension<SignedIn>,
    PageQuery(search): PageQuery<KeySearch>,
) -> Result<Page, PageError> {
    let account = signed_in.viewer.customer()?.clone();
    show(&console, &signed_in, account, search, "Keys".to_owned()).await
}

async fn show(
    console: &Console,
    signed_in: &SignedIn,
    account: AccountName,
    KeySearch { q: wanted, after }: KeySearch,
    title: String,
) -> Result<Page, PageError> {
    let ledger = &*console.api.store.ledger;
    let unknown = || PageError::invalid("There is no such place in the list of keys.");
    let after = after.as_deref().map(|text| KeyPlace::parse(text).ok_or_else(unknown));
    let after = after.transpose()?;
    let (keys, next) = match wanted.as_deref() {
        None => {
            let range = KeyRange { order: KeyOrder::NewestFirst, after, limit: PAGE_SIZE };
            let page = ledger.list_keys_in(&account, range).await?;
            (page.keys, page.next)
        }
        Some(wanted) => search(ledger, &account, wanted, after).await?,
    };
    let is_cut = next.is_some() && keys.len() < PAGE_SIZE as usize;
    let ids: Vec<KeyId> = keys.iter().map(|key| key.id).collect();
    let budgets = ledger.list_budgets_of(&account, &ids).await?;
    let found = KeyListPage { account, wanted, keys, budgets, next, is_cut };
    Ok(Page::new(title, signed_in.viewer.keys_place(), view::draw(&found, signed_in)))
}

/// Looks for keys: the one with this beginning, or else those that begin so, or have it in their
/// names. Returns them with the place from which the search goes on.
async fn search(
    ledger: &dyn Ledger,
    account: &AccountName,
    wanted: &str,
    mut after: Option<KeyPlace>,
) -> Result<(Vec<KeyRecord>, Option<KeyPlace>), PageError> {
    if after.is_none()
        && parse_key_id(wanted).is_none()
        && let Some(key) = ledger.find_key_by_prefix(wanted).await?
        && key.account == *account
        && key.prefix == wanted
    {
        return Ok((vec![key], None));
    }
    let part = wanted.to_lowercase();
    let is_meant = |key: &KeyRecord| {
        let name = key.scope.name.as_deref().unwrap_or_default();
        key.prefix.starts_with(wanted) || name.to_lowercase().contains(&part)
    };
    let mut found = Vec::new();
    for _ in 0..SEARCHED_MAX / SEARCHED_AT_A_TIME {
        let (order, limit) = (KeyOrder::NewestFirst, SEARCHED_AT_A_TIME);
        let page = ledger.list_keys_in(account, KeyRange { order, after, limit }).await?;
        for key in page.keys {
            if is_meant(&key) {
                found.push(key);
            }
            if found.len() == PAGE_SIZE as usize {
                let next = found.last().map(KeyRecord::place);
                return Ok((found, next));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok((found, after))
}
