//! What the writer has before it while it works: the connection, and the account rows of late.
//!
//! A busy account is read once and written once a transaction, however many operations come
//! together, and a hold is not read again to be ended. The rows hold as long as no other process
//! has written; SQLite tells. So do the numbers of notes, which would take a walk through an index
//! each.

use std::collections::HashMap;

use rusqlite::Connection;

use super::accounts::{self, AccountRow};
use super::notes;
use crate::ledger::AccountName;
use crate::ledger::account::{Balances, HoldRecord, HoldState, Posting};
use crate::notes::Namespace;

/// So many rows are remembered from one transaction to the next.
const ROWS_MAX: usize = 10_000;

/// Account rows that the writer remembers.
#[derive(Default)]
pub(super) struct RowCache {
    by_name: HashMap<AccountName, CachedRow>,
    /// Those that must be written before the transaction ends: few of all that are remembered.
    changed: Vec<AccountName>,
    /// How many notes of an account are on a shelf, at most: what was replaced or swept may still
    /// be counted.
    notes: HashMap<(AccountName, Namespace), usize>,
    /// SQLite's number for what other connections wrote, when the rows were read.
    version: i64,
}

struct CachedRow {
    row: AccountRow,
    /// Whether it is among those that changed.
    changed: bool,
    /// The last number in the journal, once it was asked for.
    last_seq: Option<i64>,
    /// Holds that stand, as far as they were made or changed of late.
    open: HashMap<String, HoldRecord>,
}

impl RowCache {
    /// Forgets everything if another process has written since.
    pub(super) fn renew(&mut self, c: &Connection) -> rusqlite::Result<()> {
        let version = c.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.version || self.by_name.len().max(self.notes.len()) > ROWS_MAX {
            *self = RowCache { version, ..RowCache::default() };
        }
        Ok(())
    }

    /// Writes what changed.
    pub(super) fn save(&mut self, c: &Connection) -> rusqlite::Result<()> {
        for name in self.changed.drain(..) {
            let Some(remembered) = self.by_name.get_mut(&name) else { continue };
            accounts::save(c, remembered.row.id, &remembered.row.balances)?;
            remembered.changed = false;
        }
        Ok(())
    }
}

/// See the module.
pub(super) struct WriteTxn<'a> {
    /// The connection, inside a transaction.
    pub(super) c: &'a Connection,
    pub(super) rows: &'a mut RowCache,
}

impl WriteTxn<'_> {
    /// An account's row; `None` if there is no such account.
    pub(super) fn row(&mut self, name: &AccountName) -> rusqlite::Result<Option<&AccountRow>> {
        if !self.rows.by_name.contains_key(name) {
            let Some(row) = accounts::find(self.c, name)? else { return Ok(None) };
            let (changed, last_seq, open) = (false, None, HashMap::new());
            let remembered = CachedRow { row, changed, last_seq, open };
            self.rows.by_name.insert(name.clone(), remembered);
        }
        Ok(self.rows.by_name.get(name).map(|r| &r.row))
    }

    /// A hold that stands, if it is remembered.
    pub(super) fn open_hold(&self, name: &AccountName, id: &str) -> Option<&HoldRecord> {
        self.rows.by_name.get(name)?.open.get(id)
    }

    /// Remembers a hold of an account whose row is at hand, as it was written, while it stands.
    pub(super) fn note_hold(&mut self, name: &AccountName, id: &str, record: &HoldRecord) {
        let Some(remembered) = self.rows.by_name.get_mut(name) else { return };
        if matches!(record.state, HoldState::Open { .. }) {
            remembered.open.insert(id.to_owned(), record.clone());
        } else {
            remembered.open.remove(id);
        }
    }

    /// Forgets a hold, whatever was written of it.
    pub(super) fn forget_hold(&mut self, name: &AccountName, id: &str) {
        if let Some(remembered) = self.rows.by_name.get_mut(name) {
            remembered.open.remove(id);
        }
    }

    /// An account's balances.
    pub(super) fn balances(&mut self, name: &AccountName) -> rusqlite::Result<Option<Balances>> {
        Ok(self.row(name)?.map(|row| row.balances))
    }

    /// Changes the balances of an account whose row is at hand.
    pub(super) fn set(&mut self, name: &AccountName, balances: Balances) {
        let Some(remembered) = self.rows.by_name.get_mut(name) else { return };
        if remembered.row.balances != balances && !remembered.changed {
            remembered.changed = true;
            self.rows.changed.push(name.clone());
        }
        remembered.row.balances = balances;
    }

    /// Counts a note that was just written; tells how many are on its shelf now, at most.
    pub(super) fn count_note(
        &mut self,
        name: &AccountName,
        on: Namespace,
    ) -> rusqlite::Result<usize> {
        match self.rows.notes.get_mut(&(name.clone(), on)) {
            Some(count) => {
                *count += 1;
                Ok(*count)
            }
            None => self.recount_notes(name, on),
        }
    }

    /// Tells how many notes of an account are on a shelf, and remembers it.
    pub(super) fn recount_notes(
        &mut self,
        name: &AccountName,
        on: Namespace,
    ) -> rusqlite::Result<usize> {
        let count = notes::count(self.c, name, on)?;
        self.rows.notes.insert((name.clone(), on), count);
        Ok(count)
    }

    /// Adds a charge to the journal of an account whose row is at hand.
    pub(super) fn append(&mut self, name: &AccountName, posting: &Posting) -> rusqlite::Result<()> {
        let Some(remembered) = self.rows.by_name.get_mut(name) else { return Ok(()) };
        let account = remembered.row.id;
        let last = match remembered.last_seq {
            Some(last) => last,
            None => accounts::last_seq(self.c, account)?,
        };
        accounts::append(self.c, account, last + 1, posting)?;
        remembered.last_seq = Some(last + 1);
        Ok(())
    }
}
