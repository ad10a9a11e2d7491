//! Ids of objects that vendors keep in an account which all customers of a gateway share. A call
//! may name one only if the account that calls was given it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::dialect::responses::{IssuedIds, StoredObjectId};
use crate::gateway::api_error::{AdmissionError, ApiError, ServerError};
use crate::gateway::state::Gateway;
use crate::kv_cache::ID_PREFIX;
use crate::ledger::AccountName;
use crate::money::TokenUsage;

/// How long a call may refer to an id after the vendor issued it.
const ID_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What stands behind the ids that a call names.
#[derive(Debug, Default)]
pub(crate) struct ReferencedContext {
    /// Tokens that the vendor may read again.
    pub(crate) tokens: u64,
    /// The route to the account where the vendor keeps them.
    pub(crate) route: Option<String>,
}

/// Checks that an account was given every id that its call names.
///
/// # Errors
/// One was never given to this account, or too long ago; or nobody can tell.
pub(crate) async fn check_ownership(
    gateway: &Gateway,
    account: &AccountName,
    ids: &[StoredObjectId],
) -> Result<ReferencedContext, ApiError> {
    if ids.is_empty() {
        return Ok(ReferencedContext::default());
    }
    let names: Vec<String> = ids.iter().map(|named| cache_key(&named.id)).collect();
    let finding = gateway.account_cache.get_many(account, &names);
    let found = gateway
        .with_ledger_timeout("notes", finding)
        .await
        .map_err(|_| ServerError::LedgerUnavailable)?;
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    let mut route = None;
    for (named, found) in ids.iter().zip(found) {
        let found = found.as_deref().and_then(IssuedRecord::decode);
        let Some(record) = found else {
            return Err(AdmissionError::IdNotOwned(named.param.clone()).into());
        };
        // Several items of one answer are no more than that answer.
        let tokens = answers.entry(record.answer).or_default();
        *tokens = record.tokens.max(*tokens);
        route = route.or(Some(record.route));
    }
    let tokens = answers.into_values().fold(0, u64::saturating_add);
    Ok(ReferencedContext { tokens, route })
}

/// Remembers the ids that an account was given with an answer over a route. They can be named as
/// soon as this has returned.
pub(crate) async fn store_ids(
    gateway: &Gateway,
    account: &AccountName,
    given: IssuedIds,
    used: TokenUsage,
    route: &str,
) {
    let life_ms = u64::try_from(ID_TTL.as_millis()).unwrap_or(u64::MAX);
    let answer = given.response_ids.first().cloned().unwrap_or_default();
    let all = used.input.saturating_add(used.output);
    let kept = [(given.response_ids, all), (given.item_ids, used.output)].map(|(ids, tokens)| {
        let names: Vec<String> = ids.iter().map(|id| cache_key(id)).collect();
        let record = IssuedRecord { tokens, answer: answer.clone(), route: route.to_owned() };
        async move {
            if names.is_empty() {
                return;
            }
            let keeping = gateway.account_cache.put(account, &names, record.encode(), life_ms);
            if let Err(why) = gateway.with_ledger_timeout("notes", keeping).await {
                log::warn!(event = "note_store_failed", why:% = why; "storing vendor ids failed");
            }
        }
    });
    // A client waits for its last bytes meanwhile, so both at once.
    join_all(kept).await;
}

fn cache_key(id: &str) -> String {
    format!("{ID_PREFIX}{id}")
}

/// What is noted of an id.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IssuedRecord {
    /// What stands behind it.
    tokens: u64,
    /// The answer that it came with.
    answer: String,
    /// The route that answer came over.
    route: String,
}

impl IssuedRecord {
    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn decode(note: &[u8]) -> Option<IssuedRecord> {
        serde_json::from_slice(note).ok()
    }
}
