//! An open write transaction, and the cache of rows that recent transactions have read or written.
//!
//! A busy account is read once, and written once per transaction, however many operations the
//! transaction has; and a hold need not be read again when it ends. The cached rows are valid as
//! long as no other process has written, which SQLite's `data_version` shows. The same holds for
//! the cached numbers of cache entries, each of which would take a scan of an index.

use std::collections::HashMap;

use rusqlite::Connection;

use super::accounts::{self, AccountRow};
use super::budget_rows::BudgetRows;
use super::cache_entries;
use super::lending::Lending;
use super::lot_rows::{self, LotRows};
use super::rate_rows::{BucketsKey, RateRows};
use super::{posted_lines, usage_rows};
use crate::kv_cache::Namespace;
use crate::ledger::AccountName;
use crate::ledger::prepaid::records::{AccountHead, DirectHold, DirectHoldState, JournalRecord};
use crate::ledger::prepaid::window::DAY_MS;
use crate::usage::PeriodKind;

/// At most this many rows are cached from one transaction to the next.
const CACHED_ROWS_MAX: usize = 10_000;

/// The cache of account rows, with their open holds and numbers of cache entries.
#[derive(Default)]
pub(super) struct RowCache {
    by_name: HashMap<AccountName, CachedRow>,
    /// The accounts whose rows must be written before the transaction ends: few of all that are
    /// cached.
    dirty: Vec<AccountName>,
    /// An upper bound of the number of an account's cache entries in a namespace: entries that were
    /// replaced or purged may still be counted.
    note_counts: HashMap<(AccountName, Namespace), usize>,
    /// Whether any account has, or had, a budget; `None` if it was not read yet.
    has_budgets: Option<bool>,
    /// Whether any account has granted credit; `None` if it was not read yet.
    has_lots: Option<bool>,
    /// The last owner of rate limits whose buckets a sweep has looked at.
    pub(super) last_purged: BucketsKey,
    /// SQLite's `data_version` when the rows were read. It changes when another connection writes.
    data_version: i64,
}

struct CachedRow {
    row: AccountRow,
    /// Whether the account is in `RowCache::dirty`.
    is_dirty: bool,
    /// The last number in the account's journal; `None` if it was not read yet.
    last_seq: Option<i64>,
    /// What the roll-ups know of the journal; `None` if it was not read yet.
    posting: Option<Posting>,
    /// What is lent of the account; `None` if it was not read yet.
    lending: Option<Lending>,
    /// The budgets of the account; `None` if they were not read yet.
    budgets: Option<BudgetRows>,
    /// The lots of granted credit; `None` if they were not read yet.
    lots: Option<LotRows>,
    /// The rate limits of the account that were used lately.
    rates: RateRows,
    /// Open holds by id, as far as they were placed or changed recently.
    open_holds: HashMap<String, DirectHold>,
}

/// What the roll-ups know of an account's journal, so that a line seldom has to tell it.
struct Posting {
    /// The hour of the last lines, by its beginning in unix ms.
    hour: i64,
    /// Whether the account is marked as having lines that are not folded.
    is_due: bool,
}

impl RowCache {
    /// Empties the cache if another connection has written since, or if the cache has grown too
    /// large.
    pub(super) fn invalidate_if_stale(&mut self, c: &Connection) -> rusqlite::Result<()> {
        let data_version =
            c.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if data_version != self.data_version
            || self.by_name.len().max(self.note_counts.len()) > CACHED_ROWS_MAX
        {
            let last_purged = std::mem::take(&mut self.last_purged);
            *self = RowCache { last_purged, data_version, ..RowCache::default() };
        }
        Ok(())
    }

    /// Writes the balances and lots that have changed.
    pub(super) fn write_dirty(&mut self, c: &Connection) -> rusqlite::Result<()> {
        for name in self.dirty.drain(..) {
            let Some(cached) = self.by_name.get_mut(&name) else { continue };
            accounts::save_balances(c, cached.row.id, &cached.row.balances)?;
            if let Some(lots) = &mut cached.lots {
                lots.write(c, cached.row.id)?;
            }
            cached.is_dirty = false;
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
    /// Returns an account's row; `None` if there is no such account.
    pub(super) fn account_row(
        &mut self,
        name: &AccountName,
    ) -> rusqlite::Result<Option<&AccountRow>> {
        if !self.row_cache.by_name.contains_key(name) {
            let Some(row) = accounts::find(self.conn, name)? else { return Ok(None) };
            let (is_dirty, last_seq, posting) = (false, None, None);
            let (lending, budgets, lots) = (None, None, None);
            let (rates, open_holds) = (RateRows::default(), HashMap::new());
            let cached = CachedRow {
                row,
                is_dirty,
                last_seq,
                posting,
                lending,
                budgets,
                lots,
                rates,
                open_holds,
            };
            self.row_cache.by_name.insert(name.clone(), cached);
        }
        Ok(self.row_cache.by_name.get(name).map(|r| &r.row))
    }

    /// Notes that an account whose row is cached was deleted at this time, in unix seconds.
    pub(super) fn note_deleted(&mut self, name: &AccountName, at: i64) {
        if let Some(cached) = self.row_cache.by_name.get_mut(name) {
            cached.row.deleted_at = Some(at);
        }
    }

    /// Whether there is an account, and it is not deleted.
    pub(super) fn has_living(&mut self, name: &AccountName) -> rusqlite::Result<bool> {
        Ok(self.account_row(name)?.is_some_and(|row| row.deleted_at.is_none()))
    }

    /// Returns an open hold from the cache; `None` if it is not cached.
    pub(super) fn cached_hold(&self, name: &AccountName, id: &str) -> Option<&DirectHold> {
        self.row_cache.by_name.get(name)?.open_holds.get(id)
    }

    /// Puts a hold into the cache as it was written, if it is open, else removes it. The account's
    /// row must be cached.
    pub(super) fn cache_hold(&mut self, name: &AccountName, id: &str, record: &DirectHold) {
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return };
        if matches!(record.state, DirectHoldState::Open { .. }) {
            cached.open_holds.insert(id.to_owned(), record.clone());
        } else {
            cached.open_holds.remove(id);
        }
    }

    /// Removes a hold from the cache.
    pub(super) fn evict_hold(&mut self, name: &AccountName, id: &str) {
        if let Some(cached) = self.row_cache.by_name.get_mut(name) {
            cached.open_holds.remove(id);
        }
    }

    /// Returns the sums and the lots of an account, as the machine needs them; `None` if there is
    /// no such account.
    pub(super) fn head(&mut self, name: &AccountName) -> rusqlite::Result<Option<AccountHead>> {
        let has_lots = self.has_lots()?;
        self.account_row(name)?;
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return Ok(None) };
        if cached.lots.is_none() && has_lots {
            cached.lots = Some(LotRows::read(self.conn, cached.row.id)?);
        }
        let lots = cached.lots.as_ref().map(|lots| lots.open.clone()).unwrap_or_default();
        Ok(Some(AccountHead::with_lots(cached.row.balances, lots)))
    }

    /// Whether any account of the store has granted credit.
    pub(super) fn has_lots(&mut self) -> rusqlite::Result<bool> {
        let has_lots = match self.row_cache.has_lots {
            Some(known) => known,
            None => lot_rows::has_any(self.conn)?,
        };
        self.row_cache.has_lots = Some(has_lots);
        Ok(has_lots)
    }

    /// Changes the balances and the lots of an account of which [`head`](WriteTxn::head) was read.
    pub(super) fn set_head(&mut self, name: &AccountName, head: &AccountHead) {
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return };
        let mut is_changed = cached.row.balances != head.balances;
        cached.row.balances = head.balances;
        if cached.lots.is_some() || head.granted_lots().next().is_some() {
            let lots = cached.lots.get_or_insert_default();
            let open = head.granted_lots().collect();
            is_changed |= lots.open != open;
            lots.open = open;
            self.row_cache.has_lots = Some(true);
        }
        if is_changed && !cached.is_dirty {
            cached.is_dirty = true;
            self.row_cache.dirty.push(name.clone());
        }
    }

    /// Restores an account as `head` has it, since what was written after that is rolled back.
    pub(super) fn restore_head(&mut self, name: &AccountName, head: &AccountHead) {
        self.set_head(name, head);
        if let Some(cached) = self.row_cache.by_name.get_mut(name) {
            // Credit may have expired.
            (cached.last_seq, cached.posting) = (None, None);
        }
    }

    /// Counts a cache entry that was just written. Returns an upper bound of the number of entries
    /// in its namespace.
    pub(super) fn count_entry(
        &mut self,
        name: &AccountName,
        namespace: Namespace,
    ) -> rusqlite::Result<usize> {
        match self.row_cache.note_counts.get_mut(&(name.clone(), namespace)) {
            Some(count) => {
                *count += 1;
                Ok(*count)
            }
            None => self.recount_entries(name, namespace),
        }
    }

    /// Counts the cache entries of an account in a namespace, and caches the number.
    pub(super) fn recount_entries(
        &mut self,
        name: &AccountName,
        namespace: Namespace,
    ) -> rusqlite::Result<usize> {
        let count = cache_entries::count_entries(self.conn, name, namespace)?;
        self.row_cache.note_counts.insert((name.clone(), namespace), count);
        Ok(count)
    }

    /// Returns the last number in the journal of an account whose row is cached.
    pub(super) fn last_seq(&mut self, name: &AccountName) -> rusqlite::Result<i64> {
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return Ok(0) };
        let last = match cached.last_seq {
            Some(last) => last,
            None => accounts::last_seq(self.conn, cached.row.id)?,
        };
        cached.last_seq = Some(last);
        Ok(last)
    }

    /// Returns what is lent of an account; `None` if there is no such account.
    pub(super) fn lending(&mut self, name: &AccountName) -> rusqlite::Result<Option<&mut Lending>> {
        self.account_row(name)?;
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return Ok(None) };
        if cached.lending.is_none() {
            cached.lending = Some(Lending::read(self.conn, cached.row.id)?);
            // That may have given back what an older version has left in windows and rate limits.
            cached.budgets = None;
            cached.rates = RateRows::default();
        }
        Ok(cached.lending.as_mut())
    }

    /// Whether no account of the store has, or had, a budget.
    pub(super) fn has_no_budgets(&mut self) -> rusqlite::Result<bool> {
        let has_budgets = match self.row_cache.has_budgets {
            Some(known) => known,
            None => self.conn.prepare_cached("SELECT 1 FROM budget LIMIT 1")?.exists([])?,
        };
        self.row_cache.has_budgets = Some(has_budgets);
        Ok(!has_budgets)
    }

    /// Returns the row id of an account and its budgets; `None` if there is no such account, or no
    /// account has a budget.
    pub(super) fn budgets(
        &mut self,
        name: &AccountName,
    ) -> rusqlite::Result<Option<(i64, &mut BudgetRows)>> {
        if self.has_no_budgets()? {
            return Ok(None);
        }
        self.account_row(name)?;
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return Ok(None) };
        let account = cached.row.id;
        if cached.budgets.is_none() {
            cached.budgets = Some(BudgetRows::read(self.conn, account)?);
        }
        Ok(cached.budgets.as_mut().map(|budgets| (account, budgets)))
    }

    /// Forgets the budgets of an account that are cached, since one has changed.
    pub(super) fn forget_budgets(&mut self, name: &AccountName) {
        self.row_cache.has_budgets = None;
        if let Some(cached) = self.row_cache.by_name.get_mut(name) {
            cached.budgets = None;
        }
    }

    /// Returns the row id of an account and its rate limits; `None` if there is no such account.
    pub(super) fn rates(
        &mut self,
        name: &AccountName,
    ) -> rusqlite::Result<Option<(i64, &mut RateRows)>> {
        self.account_row(name)?;
        let cached = self.row_cache.by_name.get_mut(name);
        Ok(cached.map(|cached| (cached.row.id, &mut cached.rates)))
    }

    /// Forgets the rate limits of an account that are cached, since they were written elsewhere.
    pub(super) fn forget_rates(&mut self, name: &AccountName) {
        if let Some(cached) = self.row_cache.by_name.get_mut(name) {
            cached.rates = RateRows::default();
        }
    }

    /// Forgets all rate limits that are cached, since some were deleted.
    pub(super) fn forget_all_rates(&mut self) {
        for cached in self.row_cache.by_name.values_mut() {
            cached.rates = RateRows::default();
        }
    }

    /// Appends a line to the journal of an account whose row is cached.
    pub(super) fn append_line(
        &mut self,
        name: &AccountName,
        line: &JournalRecord,
    ) -> rusqlite::Result<()> {
        let last = self.last_seq(name)?;
        let Some(cached) = self.row_cache.by_name.get_mut(name) else { return Ok(()) };
        let account = cached.row.id;
        accounts::append_line(self.conn, account, last + 1, line)?;
        cached.last_seq = Some(last + 1);
        let posting = match &mut cached.posting {
            Some(known) => known,
            unknown => {
                let hour = posted_lines::last_hour(self.conn, account)?.unwrap_or(i64::MIN);
                unknown.insert(Posting { hour, is_due: false })
            }
        };
        // A clock that was set back leaves the line in the hour of the line before it, but not if
        // it is more than a day: then it was wrong before.
        let hour = PeriodKind::Hour.start_of(line.posted_at);
        if hour > posting.hour || hour < posting.hour.saturating_sub(DAY_MS) {
            posted_lines::mark_hour(self.conn, account, last + 1, hour)?;
            posting.hour = hour;
        }
        if !posting.is_due {
            usage_rows::mark_due(self.conn, account)?;
            posting.is_due = true;
        }
        Ok(())
    }

    /// Notes that all lines of an account are folded, so that the next one marks it again.
    pub(super) fn note_folded(&mut self, name: &AccountName) {
        let cached = self.row_cache.by_name.get_mut(name);
        if let Some(posting) = cached.and_then(|cached| cached.posting.as_mut()) {
            posting.is_due = false;
        }
    }
}
