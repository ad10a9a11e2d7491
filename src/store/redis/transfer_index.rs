//! The newest payments, grants, refunds and corrections in Redis: a sorted set has their ids by
//! their times. The scripts write it; what a version of the program has written that does not know
//! it is added once somebody reads.

use std::collections::BTreeMap;

use super::connection::RedisConnection;
use super::keys::AccountKeys;
use super::reply_parts::parse_money;
use super::shared_store::RedisStore;
use super::transfers::{parse_transfer, undated_payment};
use crate::ledger::{AccountName, TransferEntry, TransferPlace, Unavailable};

/// About so many fields of a hash are read at a time.
const FIELDS_AT_A_TIME: u32 = 1_000;
/// At most this many entries of the index are read at a time.
const ENTRIES_AT_A_TIME: usize = 1_000;

impl RedisStore {
    /// Returns what came into an account and went back, newest first, those before a place, at most
    /// `limit`. Payments of older versions, whose times are not known, come after all others.
    pub(super) async fn read_newest_transfers(
        &self,
        account: &AccountName,
        before: Option<&TransferPlace>,
        limit: usize,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        let (keys, connection) = (AccountKeys::of(account), self.connection().await?);
        let mut entries = Vec::new();
        if before.is_none_or(|before| before.at.is_some()) {
            complete_index(connection, &keys).await?;
            entries = read_dated(connection, &keys, before, limit).await?;
        }
        if entries.len() < limit {
            let before = before.filter(|before| before.at.is_none());
            let before = before.map(|before| before.tx.as_str());
            entries.extend(
                read_undated(connection, &keys, before, limit.saturating_sub(entries.len()))
                    .await?,
            );
        }
        Ok(entries)
    }
}

/// Adds to the index what it lacks. A script writes a transfer and its place in the index in one
/// step, so the numbers of both are the same unless another version has written some.
async fn complete_index(
    connection: &RedisConnection,
    keys: &AccountKeys,
) -> Result<(), Unavailable> {
    let (transfers, times) = (keys.transfers(), keys.transfer_times());
    let mut counts = redis::pipe();
    // Not in a transaction: a server whose memory is full takes none, not even to read. What is
    // added or erased in between costs one look at all the transfers.
    counts.cmd("ZCARD").arg(&times).cmd("HLEN").arg(&transfers);
    let (indexed, known): (u64, u64) = connection.query_pipeline(&counts).await?;
    if known == indexed {
        return Ok(());
    }
    if indexed > known {
        // Whoever reads meanwhile finds fewer than there are, and completes the index as well.
        let _: i64 = connection.query(redis::cmd("DEL").arg(&times)).await?;
    }
    let mut cursor = 0_u64;
    loop {
        let (next, fields) = scan_hash(connection, &transfers, cursor).await?;
        let mut add = redis::cmd("ZADD");
        add.arg(&times);
        let is_empty = fields.is_empty();
        for (tx, text) in fields {
            let at = parse_transfer(tx.clone(), &text)?.at.unwrap_or_default();
            add.arg(at).arg(tx);
        }
        if !is_empty {
            let _: i64 = connection.query(&add).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Reads about a thousand fields of a hash, from a cursor on. Returns the next cursor, which is 0
/// after the last field, and the fields with their values.
async fn scan_hash(
    connection: &RedisConnection,
    key: &str,
    cursor: u64,
) -> Result<(u64, Vec<(String, String)>), Unavailable> {
    let scan = redis::cmd("HSCAN").arg(key).arg(cursor).arg("COUNT").arg(FIELDS_AT_A_TIME).clone();
    connection.query(&scan).await
}

/// Reads transfers whose times are known, newest first.
async fn read_dated(
    connection: &RedisConnection,
    keys: &AccountKeys,
    before: Option<&TransferPlace>,
    limit: usize,
) -> Result<Vec<TransferEntry>, Unavailable> {
    let mut entries = Vec::new();
    let mut rank = first_rank(connection, keys, before).await?;
    while entries.len() < limit {
        let wanted = limit.saturating_sub(entries.len()).min(ENTRIES_AT_A_TIME);
        let mut range = redis::cmd("ZRANGE");
        range.arg(keys.transfer_times()).arg(rank);
        range.arg(rank.saturating_add(wanted).saturating_sub(1)).arg("REV");
        let ids: Vec<String> = connection.query(&range).await?;
        if ids.is_empty() {
            break;
        }
        rank = rank.saturating_add(ids.len());
        let mut read = redis::cmd("HMGET");
        read.arg(keys.transfers()).arg(&ids);
        let texts: Vec<Option<String>> = connection.query(&read).await?;
        for (tx, text) in ids.into_iter().zip(texts) {
            let Some(text) = text else { continue };
            let entry = parse_transfer(tx, &text)?;
            // Transfers that came meanwhile have moved the ranks.
            if before.is_none_or(|before| entry.place() < *before) {
                entries.push(entry);
            }
        }
    }
    Ok(entries)
}

/// Returns the rank of the newest transfer before a place. If there is no transfer at the place, it
/// is that of the first one of an earlier moment.
async fn first_rank(
    connection: &RedisConnection,
    keys: &AccountKeys,
    before: Option<&TransferPlace>,
) -> Result<usize, Unavailable> {
    let Some(TransferPlace { at, tx }) = before else { return Ok(0) };
    let times = keys.transfer_times();
    let ranking = redis::cmd("ZREVRANK").arg(&times).arg(tx).to_owned();
    if let Some(rank) = connection.query::<Option<usize>>(&ranking).await? {
        return Ok(rank.saturating_add(1));
    }
    let count = redis::cmd("ZCOUNT").arg(times).arg(at.unwrap_or_default()).arg("+inf").to_owned();
    connection.query(&count).await
}

/// Reads payments of older versions, the one with the greatest id first, those before an id.
async fn read_undated(
    connection: &RedisConnection,
    keys: &AccountKeys,
    before: Option<&str>,
    limit: usize,
) -> Result<Vec<TransferEntry>, Unavailable> {
    let mut last = BTreeMap::new();
    let mut cursor = 0_u64;
    loop {
        let (next, mut payments) = scan_hash(connection, &keys.payments(), cursor).await?;
        payments.retain(|(tx, _)| before.is_none_or(|before| tx.as_str() < before));
        if !payments.is_empty() {
            let mut read = redis::cmd("HMGET");
            read.arg(keys.transfers()).arg(payments.iter().map(|(tx, _)| tx).collect::<Vec<_>>());
            let dated: Vec<Option<String>> = connection.query(&read).await?;
            let undated = payments.into_iter().zip(dated).filter(|(_, dated)| dated.is_none());
            last.extend(undated.map(|(payment, _)| payment));
        }
        while last.len() > limit {
            last.pop_first();
        }
        if next == 0 {
            break;
        }
        cursor = next;
    }
    let newest = last.into_iter().rev();
    newest.map(|(tx, amount)| Ok(undated_payment(tx, parse_money(&amount)?))).collect()
}
