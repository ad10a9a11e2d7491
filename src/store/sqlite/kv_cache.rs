//! The account cache in a table. Entries are large, so they are read on a separate connection, not
//! on the writer's.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::params;

use super::super::cache_lookup;
use super::cache_entries::{evict_overflow, find_entry};
use super::embedded_store::SqliteStore;
use super::kept_bytes;
use super::write_txn::WriteTxn;
use super::writer::Priority;
use crate::clock::unix_ms;
use crate::kv_cache::{self, AccountCache, CacheRefusal, Namespace};
use crate::ledger::{AccountName, Unavailable};

/// Stores an entry under its names, or returns why it could not. A failed write is not a failure of
/// the transaction, which has operations of other callers as well, unless SQLite has ended the
/// transaction.
fn store_entry(
    txn: &mut WriteTxn<'_>,
    account: &AccountName,
    names: &[String],
    entry: &[u8],
    bytes_max: u64,
    ttl_ms: u64,
) -> rusqlite::Result<Result<(), Unavailable>> {
    let ttl_ms = i64::try_from(ttl_ms).unwrap_or(i64::MAX);
    let expires_at_ms = unix_ms().saturating_add(ttl_ms);
    let bytes_needed = names.iter().map(|name| name.len() + entry.len()).sum();
    let written = kept_bytes::make_room(txn.conn, bytes_max, bytes_needed).and_then(|has_room| {
        let mut names = names.iter().filter(|_| has_room);
        names
            .try_for_each(|name| upsert_entry(txn, account, name, entry, expires_at_ms))
            .map(|()| has_room)
    });
    match written {
        Err(why) if !txn.conn.is_autocommit() => {
            Ok(Err(Unavailable(format!("the note cannot be kept: {why}"))))
        }
        Ok(false) => Ok(Err(Unavailable("no room is left for cache entries".to_owned()))),
        done => done.map(|_| Ok(())),
    }
}

fn upsert_entry(
    txn: &mut WriteTxn<'_>,
    account: &AccountName,
    name: &str,
    entry: &[u8],
    expires_at_ms: i64,
) -> rusqlite::Result<()> {
    // This makes a new row even for an old name: among entries that expire at the same time, the
    // oldest row is evicted first.
    let mut insert = txn.conn.prepare_cached(
        "INSERT OR REPLACE INTO note (account, name, lives_until, body) VALUES (?, ?, ?, ?)",
    )?;
    insert.execute(params![account.as_str(), name, expires_at_ms, entry])?;
    let namespace = Namespace::of(name);
    let full = |count| count > namespace.entries_max();
    if full(txn.count_entry(account, namespace)?) && full(txn.recount_entries(account, namespace)?)
    {
        evict_overflow(txn.conn, account, namespace)?;
        txn.recount_entries(account, namespace)?;
    }
    Ok(())
}

#[async_trait]
impl AccountCache for SqliteStore {
    async fn put(
        &self,
        account: &AccountName,
        names: &[String],
        entry: Bytes,
        ttl_ms: u64,
    ) -> Result<(), CacheRefusal> {
        kv_cache::check_size(names, &entry)?;
        let (account, names, bytes_max) = (account.clone(), names.to_vec(), self.kept_bytes_max);
        self.scheduler
            .run(Priority::Now, move |txn| {
                store_entry(txn, &account, &names, &entry, bytes_max, ttl_ms)
            })
            .await??;
        Ok(())
    }

    async fn get_many(
        &self,
        account: &AccountName,
        names: &[String],
    ) -> Result<Vec<Option<Bytes>>, Unavailable> {
        cache_lookup::find_entries(names, |few| {
            let account = account.clone();
            self.reader.query(move |c| {
                let now = unix_ms();
                few.iter().map(|name| find_entry(c, &account, name, now)).collect()
            })
        })
        .await
    }
}
