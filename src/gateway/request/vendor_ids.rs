//! Checks the use of vendor ids, which name objects that a vendor keeps. All accounts of the
//! gateway share one account at the vendor, so a call may use an id only if the calling account
//! received it.

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

/// The stored content to which the vendor ids in a call refer.
#[derive(Debug, Default)]
pub(crate) struct ReferencedContext {
    /// The tokens of this content, which the vendor may read again as input.
    pub(crate) tokens: u64,
    /// The route to the vendor account that keeps the objects; `None` if the call names none.
    pub(crate) route: Option<String>,
}

/// Checks that an account received every vendor id that its call names, and returns the content
/// behind them.
///
/// # Errors
/// The account never received one of the ids, or received it too long ago; or the store does not
/// answer.
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
        // Several items of one answer count once, with the largest of their token counts.
        let tokens = answers.entry(record.answer).or_default();
        *tokens = record.tokens.max(*tokens);
        route = route.or(Some(record.route));
    }
    let tokens = answers.into_values().fold(0, u64::saturating_add);
    Ok(ReferencedContext { tokens, route })
}

/// Stores the vendor ids that an account received with an answer over a route. Calls may use them
/// as soon as this function has returned.
pub(crate) async fn store_ids(
    gateway: &Gateway,
    account: &AccountName,
    issued_ids: IssuedIds,
    used: TokenUsage,
    route: &str,
) {
    let life_ms = u64::try_from(ID_TTL.as_millis()).unwrap_or(u64::MAX);
    let answer = issued_ids.response_ids.first().cloned().unwrap_or_default();
    let total_tokens = used.input.saturating_add(used.output);
    let ids_with_tokens =
        [(issued_ids.response_ids, total_tokens), (issued_ids.item_ids, used.output)];
    let writes = ids_with_tokens.map(|(ids, tokens)| {
        let names: Vec<String> = ids.iter().map(|id| cache_key(id)).collect();
        let record = IssuedRecord { tokens, answer: answer.clone(), route: route.to_owned() };
        async move {
            if names.is_empty() {
                return;
            }
            let keeping = gateway.account_cache.put(account, &names, record.encode(), life_ms);
            if let Err(why) = gateway.with_ledger_timeout("notes", keeping).await {
                log::warn!(
                    event = "cache_write_failed", error:% = why;
                    "storing vendor ids failed"
                );
            }
        }
    });
    // The client waits for its last bytes meanwhile, so both writes run concurrently.
    join_all(writes).await;
}

fn cache_key(id: &str) -> String {
    format!("{ID_PREFIX}{id}")
}

/// The stored record of a vendor id.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IssuedRecord {
    /// The tokens that the vendor may read again if a call uses the id.
    tokens: u64,
    /// The id of the answer with which the vendor issued it.
    answer: String,
    /// The route over which that answer came.
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
