//! The search for the API key that an id stands for.

use super::super::key_of_id::{parse_key_id, pick_key};
use super::connection::RedisConnection;
use super::key_records::{find_by_prefix, first_id, list, list_key};
use super::keys::ACCOUNTS_KEY;
use crate::ledger::{AccountName, KeyId, KeyRecord, Unavailable};

/// The lists of so many accounts are read at a time, in search of an API key.
const LISTS_AT_A_TIME: usize = 256;

/// Returns the record of the API key that is listed under a prefix, or that an id stands for.
pub(super) async fn find_by_prefix_or_id(
    connection: &RedisConnection,
    prefix: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    match parse_key_id(prefix) {
        Some(id) => find_by_id(connection, id).await,
        None => find_by_prefix(connection, prefix).await,
    }
}

/// Looks through the lists of all accounts for the first API key with an id, whose digest begins
/// with it. It is listed for ever, and those that replaced it are of the same account.
async fn find_by_id(
    connection: &RedisConnection,
    id: KeyId,
) -> Result<Option<KeyRecord>, Unavailable> {
    let members = redis::cmd("SMEMBERS").arg(ACCOUNTS_KEY).to_owned();
    let names: Vec<String> = connection.query(&members).await?;
    let accounts: Vec<_> = names.iter().filter_map(|name| AccountName::parse(name)).collect();
    for accounts in accounts.chunks(LISTS_AT_A_TIME) {
        let read = |account: &AccountName| redis::cmd("SMEMBERS").arg(list_key(account)).to_owned();
        let lists: Vec<Vec<String>> =
            connection.query_each(accounts.iter().map(read).collect()).await?;
        for (account, hashes) in accounts.iter().zip(lists) {
            if hashes.iter().any(|hash| first_id(hash) == Some(id)) {
                return Ok(pick_key(list(connection, account).await?, id));
            }
        }
    }
    Ok(None)
}
