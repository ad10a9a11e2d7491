//! Erases what is kept of an account: its endpoints with their messages, its crossed levels, and
//! the messages about it to the endpoints of the operators.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::account_check::balance_subject;
use super::message::WebhookMessage;
use super::row::{WebhookRow, WebhookRowKind, WebhookStore};
use crate::ledger::{AccountName, Unavailable};

/// So many rows are read at a time.
const PAGE_ROWS: u32 = 200;

/// Erases what is kept of an account.
pub(crate) async fn erase_account(
    store: &dyn WebhookStore,
    account: &AccountName,
) -> Result<(), Unavailable> {
    let own = Some(account.as_str());
    let endpoints = store.list_rows(WebhookRowKind::Endpoint, own, None, PAGE_ROWS).await?;
    for endpoint in &endpoints {
        erase_endpoint(store, &endpoint.id).await?;
    }
    erase_rows(store, WebhookRowKind::Crossing, account.as_str(), |_| true).await?;
    for shared in store.list_rows(WebhookRowKind::Endpoint, Some(""), None, PAGE_ROWS).await? {
        let is_about = |row: &WebhookRow| {
            WebhookMessage::of_row(row).is_ok_and(|read| read.account.as_deref() == own)
        };
        erase_rows(store, WebhookRowKind::Message, &shared.id, is_about).await?;
        let balance = balance_subject(&shared.id, account);
        store.remove_row(WebhookRowKind::Crossing, &balance).await?;
    }
    Ok(())
}

/// Removes an endpoint, then its messages and levels: nothing is noted for an endpoint that is not
/// there.
pub(crate) async fn erase_endpoint(
    store: &dyn WebhookStore,
    id: &str,
) -> Result<bool, Unavailable> {
    let removed = store.remove_row(WebhookRowKind::Endpoint, id).await?;
    erase_rows(store, WebhookRowKind::Message, id, |_| true).await?;
    erase_rows(store, WebhookRowKind::Crossing, id, |_| true).await?;
    Ok(removed)
}

/// Removes those rows of an owner that are picked.
async fn erase_rows(
    store: &dyn WebhookStore,
    kind: WebhookRowKind,
    owner: &str,
    is_picked: impl Fn(&WebhookRow) -> bool,
) -> Result<(), Unavailable> {
    let mut before = None;
    loop {
        let rows = store.list_rows(kind, Some(owner), before.as_ref(), PAGE_ROWS).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        before = Some(last.place());
        for row in rows.iter().filter(|row| is_picked(row)) {
            store.remove_row(kind, &row.id).await?;
        }
    }
}
