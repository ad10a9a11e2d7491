//! Parts of the list of an account's API keys in Redis: a sorted set has them by the times of their
//! issue. What a version of the program has added that does not know the set is put into it once
//! somebody reads.

use super::connection::RedisConnection;
use super::key_records::{find_hash, index_key, index_member, list_key, read_keys, read_places};
use crate::ledger::{AccountName, KeyOrder, KeyPage, KeyPlace, KeyRange, Unavailable};

/// About so many API keys are put into the index at a time.
const KEYS_AT_A_TIME: u32 = 256;

/// Returns a part of the API keys of an account.
pub(super) async fn list_in(
    connection: &RedisConnection,
    account: &AccountName,
    range: &KeyRange,
) -> Result<KeyPage, Unavailable> {
    complete_index(connection, account).await?;
    let limit = range.limit.saturating_add(1) as usize;
    let mut rows: Vec<(KeyPlace, String)> = Vec::new();
    let mut rank = first_rank(connection, account, range).await?;
    while rows.len() < limit {
        let wanted = limit.saturating_sub(rows.len());
        let read = read_ranks(connection, account, range.order, rank, wanted).await?;
        if read.is_empty() {
            break;
        }
        rank = rank.saturating_add(read.len());
        // Keys that were issued meanwhile have moved the ranks.
        rows.extend(read.into_iter().filter(|(place, _)| is_after(range, place)));
    }
    let hashes: Vec<String> = rows.iter().map(|(_, hash)| hash.clone()).collect();
    let records = read_keys(connection, account, &hashes).await?;
    let places = rows.into_iter().map(|(place, _)| place);
    Ok(KeyPage::new(places.zip(records).collect(), range.limit))
}

fn is_after(range: &KeyRange, place: &KeyPlace) -> bool {
    range.after.as_ref().is_none_or(|after| match range.order {
        KeyOrder::OldestFirst => place > after,
        KeyOrder::NewestFirst => place < after,
    })
}

/// Returns the rank of the first entry of the index that is after the place of a range. If there is
/// no such key, it is that of the first one of another moment.
async fn first_rank(
    connection: &RedisConnection,
    account: &AccountName,
    range: &KeyRange,
) -> Result<usize, Unavailable> {
    let Some(KeyPlace { created_at, prefix }) = &range.after else { return Ok(0) };
    let index = index_key(account);
    if let Some(hash) = find_hash(connection, prefix).await? {
        let ranking = match range.order {
            KeyOrder::OldestFirst => "ZRANK",
            KeyOrder::NewestFirst => "ZREVRANK",
        };
        let ranking = redis::cmd(ranking).arg(&index).arg(index_member(prefix, &hash)).to_owned();
        if let Some(rank) = connection.query::<Option<usize>>(&ranking).await? {
            return Ok(rank.saturating_add(1));
        }
    }
    let mut count = redis::cmd("ZCOUNT");
    count.arg(&index);
    match range.order {
        KeyOrder::OldestFirst => count.arg("-inf").arg(created_at),
        KeyOrder::NewestFirst => count.arg(created_at).arg("+inf"),
    };
    connection.query(&count).await
}

/// Reads entries of the index from a rank on, at most `limit`.
async fn read_ranks(
    connection: &RedisConnection,
    account: &AccountName,
    order: KeyOrder,
    rank: usize,
    limit: usize,
) -> Result<Vec<(KeyPlace, String)>, Unavailable> {
    let mut read = redis::cmd("ZRANGE");
    read.arg(index_key(account)).arg(rank).arg(rank.saturating_add(limit).saturating_sub(1));
    if order == KeyOrder::NewestFirst {
        read.arg("REV");
    }
    read.arg("WITHSCORES");
    let entries: Vec<(String, i64)> = connection.query(&read).await?;
    let unknown = |member: &str| Unavailable(format!("unknown entry of the keys: {member}"));
    let entries = entries.into_iter().map(|(member, created_at)| {
        let (prefix, hash) = member.split_once(' ').ok_or_else(|| unknown(&member))?;
        Ok((KeyPlace { created_at, prefix: prefix.to_owned() }, hash.to_owned()))
    });
    entries.collect()
}

/// Puts into the index what it lacks. A key and its place are listed in one step, so the numbers of
/// both are the same unless another version has added some.
async fn complete_index(
    connection: &RedisConnection,
    account: &AccountName,
) -> Result<(), Unavailable> {
    let (list, index) = (list_key(account), index_key(account));
    let mut counts = redis::pipe();
    // Not in a transaction: a server whose memory is full takes none, not even to read. What is
    // added or erased in between costs one look at all the keys.
    counts.cmd("ZCARD").arg(&index).cmd("SCARD").arg(&list);
    let (indexed, known): (u64, u64) = connection.query_pipeline(&counts).await?;
    if known == indexed {
        return Ok(());
    }
    if indexed > known {
        // Whoever reads meanwhile finds fewer than there are, and completes the index as well.
        let _: i64 = connection.query(redis::cmd("DEL").arg(&index)).await?;
    }
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SSCAN");
        scan.arg(&list).arg(cursor).arg("COUNT").arg(KEYS_AT_A_TIME);
        let (next, hashes): (u64, Vec<String>) = connection.query(&scan).await?;
        let places = read_places(connection, &hashes).await?;
        let mut add = redis::cmd("ZADD");
        add.arg(&index);
        for (hash, place) in hashes.iter().zip(places) {
            // One that is being added, or whose addition has ended halfway, has no record.
            let KeyPlace { created_at, prefix } =
                place.unwrap_or(KeyPlace { created_at: 0, prefix: String::new() });
            add.arg(created_at).arg(index_member(&prefix, hash));
        }
        if !hashes.is_empty() {
            let _: i64 = connection.query(&add).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}
