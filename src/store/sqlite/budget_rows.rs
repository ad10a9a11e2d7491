//! The rows of budgets: limits, and what is used of their windows.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::accounts::read_money;
use super::columns::{parse_column, read_kind};
use crate::clock::unix_ms;
use crate::ledger::prepaid::records::{BudgetLimits, KeyBudgets};
use crate::ledger::prepaid::window::{BudgetOwner, DAY_MS, KeyId, WindowId, WindowUse};
use crate::money::Money;

/// At most this many windows of an account are kept in memory.
const WINDOWS_MAX: usize = 1_000;

/// The budgets of an account and its keys, as the writer keeps them in memory from one transaction
/// to the next.
#[derive(Default)]
pub(super) struct BudgetRows {
    pub(super) limits: BudgetLimits,
    pub(super) keys: BTreeMap<KeyId, KeyBudgets>,
    /// The windows that were read or written; `None` if there is no such row.
    windows: BTreeMap<WindowId, Option<WindowUse>>,
}

impl BudgetRows {
    /// Reads the limits of an account and its keys.
    pub(super) fn read(c: &Connection, account: i64) -> rusqlite::Result<BudgetRows> {
        let mut select =
            c.prepare_cached("SELECT owner, kind, most FROM budget WHERE account = ?")?;
        let limits = select.query_map([account], |row| {
            let limit = row.get::<_, Option<i64>>(2)?.map(|_| read_money(row, 2)).transpose()?;
            Ok((parse_column(row, 0)?, read_kind(row, 1)?, limit))
        })?;
        let mut rows = BudgetRows::default();
        for limit in limits {
            let (owner, kind, limit) = limit?;
            match owner {
                BudgetOwner::Account => rows.limits.insert(kind, limit),
                BudgetOwner::Key(key) => {
                    rows.keys.entry(key).or_default().budgets.insert(kind, limit)
                }
            };
        }
        Ok(rows)
    }

    /// Whether neither the account nor one of its keys has, or had, a budget.
    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.keys.is_empty()
    }

    /// Returns what is used of a window; `None` if there is no row of it.
    pub(super) fn window(
        &mut self,
        c: &Connection,
        account: i64,
        id: WindowId,
    ) -> rusqlite::Result<Option<WindowUse>> {
        if let Some(known) = self.windows.get(&id) {
            return Ok(*known);
        }
        let mut select = c.prepare_cached(
            "SELECT spent, held, lent FROM budget_window
             WHERE account = ? AND owner = ? AND kind = ? AND start = ?",
        )?;
        let WindowId { owner, kind, start } = id;
        let found =
            select.query_row(params![account, owner.to_text(), kind.name(), start], |row| {
                let (spent, held) = (read_money(row, 0)?, read_money(row, 1)?);
                Ok(WindowUse { spent, held, lent: read_money(row, 2)? })
            });
        let found = found.optional()?;
        if self.windows.len() >= WINDOWS_MAX {
            self.windows.clear();
        }
        self.windows.insert(id, found);
        Ok(found)
    }

    /// Writes windows. The first write of a window deletes those of the same budget that can be
    /// forgotten.
    pub(super) fn write_windows(
        &mut self,
        c: &Connection,
        account: i64,
        changed: &BTreeMap<WindowId, WindowUse>,
    ) -> rusqlite::Result<()> {
        let mut update = c.prepare_cached(
            "UPDATE budget_window SET spent = ?, held = ?, lent = ?
             WHERE account = ? AND owner = ? AND kind = ? AND start = ?",
        )?;
        for (id, used) in changed {
            let known = self.window(c, account, *id)?;
            if known == Some(*used) {
                continue;
            }
            if known.is_none() {
                self.delete_forgettable(c, account, *id)?;
            }
            let WindowId { owner, kind, start } = *id;
            let [spent, held, lent] = [used.spent, used.held, used.lent].map(Money::nano);
            let owner = owner.to_text();
            let values = params![spent, held, lent, account, owner, kind.name(), start];
            if update.execute(values)? == 0 {
                let insert =
                    "INSERT INTO budget_window (spent, held, lent, account, owner, kind, start)
                     VALUES (?, ?, ?, ?, ?, ?, ?)";
                c.prepare_cached(insert)?.execute(values)?;
            }
            self.windows.insert(*id, Some(*used));
        }
        Ok(())
    }

    /// Deletes windows of the same budget that ended a day ago (`WindowUse::is_forgettable`).
    fn delete_forgettable(
        &mut self,
        c: &Connection,
        account: i64,
        WindowId { owner, kind, .. }: WindowId,
    ) -> rusqlite::Result<()> {
        let before = kind.start_at(unix_ms().saturating_sub(DAY_MS));
        let mut delete = c.prepare_cached(
            "DELETE FROM budget_window
             WHERE account = ? AND owner = ? AND kind = ? AND start < ? AND held = 0",
        )?;
        if delete.execute(params![account, owner.to_text(), kind.name(), before])? > 0 {
            self.windows.clear();
        }
        Ok(())
    }
}
