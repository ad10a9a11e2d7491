//! Ids of objects that vendors keep in an account which all customers of a gateway share. A call
//! may name one only if the account that calls was given it.

use std::time::Duration;

use bytes::Bytes;

use super::Gateway;
use super::refusal::Refusal;
use crate::dialect::responses::{Given, Named};
use crate::ledger::AccountName;
use crate::money::Tokens;
use crate::notes::ID_PREFIX;

/// So long after an id was given it may be named.
const LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What stands behind the ids that a call names.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// Tokens that the vendor may read again.
    pub(super) tokens: u64,
    /// The route to the account where the vendor keeps them.
    pub(super) route: Option<String>,
}

/// Checks that an account was given every id that its call names.
///
/// # Errors
/// One was never given to this account, or too long ago; or nobody can tell.
pub(super) async fn check(
    gateway: &Gateway,
    account: &AccountName,
    ids: &[Named],
) -> Result<Earlier, Refusal> {
    let mut earlier = Earlier::default();
    if ids.is_empty() {
        return Ok(earlier);
    }
    let names: Vec<String> = ids.iter().map(|named| note(&named.id)).collect();
    let finding = gateway.notes.find(account, &names);
    let found = gateway.in_time("notes", finding).await.map_err(|_| Refusal::NoLedger)?;
    for (named, found) in ids.iter().zip(found) {
        let Some(found) = found else { return Err(Refusal::NotGiven(named.param.clone())) };
        let (tokens, route) = read(&found);
        earlier.tokens = earlier.tokens.saturating_add(tokens);
        earlier.route = earlier.route.or(route);
    }
    Ok(earlier)
}

/// Remembers the ids that an account was given with an answer over a route. They can be named as
/// soon as this has returned.
pub(super) async fn keep(
    gateway: &Gateway,
    account: &AccountName,
    given: Given,
    (used, route): (Tokens, &str),
) {
    let life_ms = u64::try_from(LIFE.as_millis()).unwrap_or(u64::MAX);
    let all = used.input.saturating_add(used.output);
    for (ids, tokens) in [(given.whole, all), (given.items, used.output)] {
        if ids.is_empty() {
            continue;
        }
        let names: Vec<String> = ids.iter().map(|id| note(id)).collect();
        let record = Bytes::from(format!("{tokens} {route}"));
        let keeping = gateway.notes.keep(account, &names, record, life_ms);
        if let Err(why) = gateway.in_time("notes", keeping).await {
            log::warn!(why:% = why; "ids are not kept");
        }
    }
}

fn note(id: &str) -> String {
    format!("{ID_PREFIX}{id}")
}

fn read(note: &[u8]) -> (u64, Option<String>) {
    let text = String::from_utf8_lossy(note);
    let (tokens, route) = text.split_once(' ').unwrap_or((&text, ""));
    (tokens.parse().unwrap_or(0), Some(route.to_owned()).filter(|route| !route.is_empty()))
}
