//! What the writer has before it while it works: the connection, and the account rows of late.
//!
//! A busy account is read once and written once a transaction, however many operations come
//! together, and a hold is not read again to be ended. The rows hold as long as no other process
//! has written; SQLite tells. So do the numbers of cache entries, which would take a walk through
//! an index each.

use std::collections::HashMap;

use rusqlite::Connection;

use super::accounts::{self, AccountRow};
use super::cache_entries;
use crate::kv_cache::Namespace;
use crate::ledger::AccountName;
use crate::ledger::account::{Balances, HoldRecord, HoldState, Posting};

/// So many rows are remembered from one transaction to the next.
const CACHED_ROWS_MAX: usize = 10_000;

/// Account rows that the writer remembers.
#[derive(Default)]
pub(super) struct RowCache {
    by_name: HashMap<AccountName, CachedRow>,
    /// Those that must be written before the transaction ends: few of all that are remembered.
    dirty: Vec<AccountName>,
    /// How many cache entries of an account are in a namespace, at most: what was replaced or swept
    /// may still be counted.
    note_counts: HashMap<(AccountName, Namespace), usize>,
    /// SQLite's number for what other connections wrote, when the rows were read.
    data_version: i64,
}

struct CachedRow {
    row: AccountRow,
    /// Whether it is among those that changed.
    is_dirty: bool,
    /// The last number in the journal, once it was asked for.
    last_seq: Option<i64>,
    /// Holds that stand, as far as they were made or changed of late.
    open_holds: HashMap<String, HoldRecord>,
}

impl RowCache {
    /// Forgets everything if another process has written since.
    pub(super) fn invalidate_if_stale(&mut self, c: &Connection) -> rusqlite::Result<()> {
        let data_version =
            c.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if data_version != self.data_version
            || self.by_name.len().max(self.note_counts.len()) > CACHED_ROWS_MAX
        {
            *self = RowCache { data_version, ..RowCache::default() };
        }
        Ok(())
    }

    /// Writes what changed.
    pub(super) fn write_dirty(&mut self, c: &Connection) -> rusqlite::Result<()> {
        for name in self.dirty.drain(..) {
            let Some(remembered) = self.by_name.get_mut(&name) else { continue };
            accounts::save_balances(c, remembered.row.id, &remembered.row.balances)?;
            remembered.is_dirty = false;
        }
        Ok(())
    }
}

/// An open write transaction, with the cached account rows.
pub(super) struct WriteTxn<'a> {
    /// The connection, inside a transaction.
    pub(super) conn: &'a Connection,
    pub(super) row_cache: &'a mut RowCache,
}

impl WriteTxn<'_> {
    /// An account's row; `None` if there is no such account.
    pub(super) fn account_row(
        &mut self,
        name: &AccountName,
    ) -> rusqlite::Result<Option<&AccountRow>> {
        if !self.row_cache.by_name.contains_key(name) {
            let Some(row) = accounts::find(self.conn, name)? else { return Ok(None) };
            let (is_dirty, last_seq, open_holds) = (false, None, HashMap::new());
            let remembered = CachedRow { row, is_dirty, last_seq, open_holds };
            self.row_cache.by_name.insert(name.clone(), remembered);
        }
        Ok(self.row_cache.by_name.get(name).map(|r| &r.row))
    }

    /// A hold that stands, if it is remembered.
    pub(super) fn cached_hold(&self, name: &AccountName, id: &str) -> Option<&HoldRecord> {
        self.row_cache.by_name.get(name)?.open_holds.get(id)
    }

    /// Remembers a hold of an account whose row is at hand, as it was written, while it stands.
    pub(super) fn cache_hold(&mut self, name: &AccountName, id: &str, record: &HoldRecord) {
        let Some(remembered) = self.row_cache.by_name.get_mut(name) else { return };
        if matches!(record.state, HoldState::Open { .. }) {
            remembered.open_holds.insert(id.to_owned(), record.clone());
        } else {
            remembered.open_holds.remove(id);
        }
    }

    /// Forgets a hold, whatever was written of it.
    pub(super) fn evict_hold(&mut self, name: &AccountName, id: &str) {
        if let Some(remembered) = self.row_cache.by_name.get_mut(name) {
            remembered.open_holds.remove(id);
        }
    }

    pub(super) fn balances(&mut self, name: &AccountName) -> rusqlite::Result<Option<Balances>> {
        Ok(self.account_row(name)?.map(|row| row.balances))
    }

    /// Changes the balances of an account whose row is at hand.
    pub(super) fn set_balances(&mut self, name: &AccountName, balances: Balances) {
        let Some(remembered) = self.row_cache.by_name.get_mut(name) else { return };
        if remembered.row.balances != balances && !remembered.is_dirty {
            remembered.is_dirty = true;
            self.row_cache.dirty.push(name.clone());
        }
        remembered.row.balances = balances;
    }

    /// Counts an entry that was just written; tells how many are in its namespace now, at most.
    pub(super) fn count_entry(
        &mut self,
        name: &AccountName,
        on: Namespace,
    ) -> rusqlite::Result<usize> {
        match self.row_cache.note_counts.get_mut(&(name.clone(), on)) {
            Some(count) => {
                *count += 1;
                Ok(*count)
            }
            None => self.recount_entries(name, on),
        }
    }

    /// Tells how many cache entries of an account are in a namespace, and remembers it.
    pub(super) fn recount_entries(
        &mut self,
        name: &AccountName,
        on: Namespace,
    ) -> rusqlite::Result<usize> {
        let count = cache_entries::count_entries(self.conn, name, on)?;
        self.row_cache.note_counts.insert((name.clone(), on), count);
        Ok(count)
    }

    /// Adds a charge to the journal of an account whose row is at hand.
    pub(super) fn append_posting(
        &mut self,
        name: &AccountName,
        posting: &Posting,
    ) -> rusqlite::Result<()> {
        let Some(remembered) = self.row_cache.by_name.get_mut(name) else { return Ok(()) };
        let account = remembered.row.id;
        let last = match remembered.last_seq {
            Some(last) => last,
            None => accounts::last_seq(self.conn, account)?,
        };
        accounts::append_posting(self.conn, account, last + 1, posting)?;
        remembered.last_seq = Some(last + 1);
        Ok(())
    }
}
