//! Ids of objects that vendors keep in an account which all customers of a gateway share. A call
//! may name one only if the account that calls was given it.

use std::time::Duration;

use bytes::Bytes;

use super::Gateway;
use super::refusal::Refusal;
use crate::dialect::responses::Named;
use crate::ledger::AccountName;
use crate::money::Tokens;
use crate::notes::ID_PREFIX;

/// So long after an id was given it may be named.
const LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Checks that an account was given every id that its call names. Tells how many tokens the vendor
/// may read again for them.
///
/// # Errors
/// One was never given to this account, or too long ago; or nobody can tell.
pub(super) async fn check(
    gateway: &Gateway,
    account: &AccountName,
    ids: &[Named],
) -> Result<u64, Refusal> {
    if ids.is_empty() {
        return Ok(0);
    }
    let names: Vec<String> = ids.iter().map(|named| note(&named.id)).collect();
    let finding = gateway.notes.find(account, &names);
    let found = gateway.in_time("notes", finding).await.map_err(|_| Refusal::NoLedger)?;
    let mut earlier = 0u64;
    for (named, found) in ids.iter().zip(found) {
        let Some(found) = found else { return Err(Refusal::NotGiven(named.param.clone())) };
        earlier = earlier.saturating_add(tokens(&found));
    }
    Ok(earlier)
}

/// Remembers the ids that an account was given with an answer: that of a response, then those of
/// the items in it. They can be named as soon as this has returned.
pub(super) async fn keep(gateway: &Gateway, account: &AccountName, ids: Vec<String>, used: Tokens) {
    let Some((response, items)) = ids.split_first() else { return };
    let life_ms = u64::try_from(LIFE.as_millis()).unwrap_or(u64::MAX);
    let whole = used.input.saturating_add(used.output);
    for (ids, tokens) in [(std::slice::from_ref(response), whole), (items, used.output)] {
        let names: Vec<String> = ids.iter().map(|id| note(id)).collect();
        let keeping = gateway.notes.keep(account, &names, Bytes::from(tokens.to_string()), life_ms);
        if let Err(why) = gateway.in_time("notes", keeping).await {
            log::warn!(why:% = why; "ids are not kept");
        }
    }
}

fn note(id: &str) -> String {
    format!("{ID_PREFIX}{id}")
}

fn tokens(note: &[u8]) -> u64 {
    std::str::from_utf8(note).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
