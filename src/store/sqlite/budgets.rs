//! Budgets in tables: what an operation needs of them, and what it changes.

use rusqlite::params;

use super::accounts::read_money;
use super::columns::read_windows;
use super::keys;
use super::write_txn::WriteTxn;
use crate::clock::unix_ms;
use crate::ledger::prepaid::operations::budget_uses;
use crate::ledger::prepaid::records::{AccountChanges, PrepaidAccount};
use crate::ledger::prepaid::settings;
use crate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind};
use crate::ledger::{AccountName, BudgetUse};
use crate::money::Money;

/// Puts the budgets of an account and of some of its keys into the records for an operation, and
/// the windows that `find_windows` names.
pub(super) fn load(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    records: &mut PrepaidAccount,
    keys: impl IntoIterator<Item = KeyId>,
    find_windows: impl FnOnce(&PrepaidAccount) -> Vec<WindowId>,
) -> rusqlite::Result<()> {
    let conn = txn.conn;
    let Some((account, rows)) = txn.budgets(name)? else { return Ok(()) };
    if rows.is_empty() {
        return Ok(());
    }
    records.head.budgets.clone_from(&rows.limits);
    records.head.has_keys = !rows.keys.is_empty();
    for key in keys {
        if let Some(record) = rows.keys.get(&key) {
            records.keys.insert(key, record.clone());
        }
    }
    for id in find_windows(records) {
        if let Some(used) = rows.window(conn, account, id)? {
            records.windows.insert(id, used);
        }
    }
    Ok(())
}

/// Whether an account or one of its keys has, or had, a budget. Only then a call counts in windows.
pub(super) fn has_any(txn: &mut WriteTxn<'_>, name: &AccountName) -> rusqlite::Result<bool> {
    Ok(txn.budgets(name)?.is_some_and(|(_, rows)| !rows.is_empty()))
}

/// Writes the windows that an operation has changed.
pub(super) fn save_windows(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    changes: &AccountChanges,
) -> rusqlite::Result<()> {
    if changes.windows.is_empty() {
        return Ok(());
    }
    let conn = txn.conn;
    let Some((account, rows)) = txn.budgets(name)? else { return Ok(()) };
    rows.write_windows(conn, account, &changes.windows)
}

/// Sets or removes the limit of a budget; `false` if there is no such account, or it is deleted.
pub(super) fn set(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    owner: BudgetOwner,
    kind: WindowKind,
    limit: Option<Money>,
) -> rusqlite::Result<bool> {
    let conn = txn.conn;
    let living = txn.account_row(name)?.filter(|row| row.deleted_at.is_none());
    let Some(account) = living.map(|row| row.id) else { return Ok(false) };
    let mut records = PrepaidAccount::default();
    let key = match owner {
        BudgetOwner::Account => None,
        BudgetOwner::Key(key) => Some(key),
    };
    load(txn, name, &mut records, key, |_| Vec::new())?;
    let changes = settings::set_budget(&records, owner, kind, limit, unix_ms()).changes;
    if changes == AccountChanges::default() {
        return Ok(true);
    }
    keys::raise_version(conn)?;
    let mut insert = conn.prepare_cached(
        "INSERT INTO budget (account, owner, kind, most) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET most = excluded.most",
    )?;
    insert.execute(params![account, owner.to_text(), kind.name(), limit.map(Money::nano)])?;
    keys::restrict(conn, account, owner)?;
    txn.forget_budgets(name);
    Ok(true)
}

/// Returns the budgets of an account and of some of its keys, or of all of them (`None`), with what
/// is used of the windows that run now.
pub(super) fn list(
    txn: &mut WriteTxn<'_>,
    name: &AccountName,
    keys: Option<&[KeyId]>,
) -> rusqlite::Result<Vec<BudgetUse>> {
    let now = unix_ms();
    let keys = match (txn.budgets(name)?, keys) {
        (Some(_), Some(keys)) => keys.to_vec(),
        (Some((_, rows)), None) => rows.keys.keys().copied().collect(),
        (None, _) => return Ok(Vec::new()),
    };
    let mut records = PrepaidAccount::default();
    if let Some(lending) = txn.lending(name)? {
        records.allotments.clone_from(&lending.allotments);
    }
    load(txn, name, &mut records, keys, |known| {
        budget_uses(known, now).into_iter().map(|budget| budget.window).collect()
    })?;
    Ok(budget_uses(&records, now))
}

/// Corrects the windows of holds that a version of the program has ended that does not know
/// budgets, and forgets in which windows holds counted that are forgotten themselves.
pub(super) fn reconcile_holds(txn: &mut WriteTxn<'_>) -> rusqlite::Result<()> {
    let conn = txn.conn;
    if txn.has_no_budgets()? {
        return Ok(());
    }
    let mut ended = conn.prepare_cached(
        "SELECT b.account, b.id, b.windows, h.held, coalesce(h.posted, 0), name
         FROM hold_budget AS b JOIN hold AS h ON h.account = b.account AND h.id = b.id
         JOIN account ON account.id = b.account
         WHERE is_held = 1 AND h.state <> 0 AND NOT EXISTS (
             SELECT 1 FROM open_hold AS o WHERE o.account = b.account AND o.id = b.id)",
    )?;
    let ended = ended.query_map([], |row| {
        let (account, id): (i64, String) = (row.get(0)?, row.get(1)?);
        let (windows, held, posted) =
            (read_windows(row, 2)?, read_money(row, 3)?, read_money(row, 4)?);
        Ok((account, id, windows, held, posted, row.get::<_, String>(5)?))
    })?;
    for (account, id, windows, held, posted, name) in ended.collect::<rusqlite::Result<Vec<_>>>()? {
        let mut update = conn.prepare_cached(
            "UPDATE budget_window SET held = max(lent, held - ?1), spent = spent + ?2
             WHERE account = ?3 AND owner = ?4 AND kind = ?5 AND start = ?6",
        )?;
        for WindowId { owner, kind, start } in windows {
            let (held, posted, owner) = (held.nano(), posted.nano(), owner.to_text());
            update.execute(params![held, posted, account, owner, kind.name(), start])?;
        }
        let sql = "UPDATE hold_budget SET is_held = 0 WHERE account = ? AND id = ?";
        conn.prepare_cached(sql)?.execute(params![account, id])?;
        if let Some(name) = AccountName::parse(&name) {
            txn.forget_budgets(&name);
        }
    }
    let mut delete = conn.prepare_cached(
        "DELETE FROM hold_budget WHERE is_held = 0 AND NOT EXISTS (
             SELECT 1 FROM hold AS h
             WHERE h.account = hold_budget.account AND h.id = hold_budget.id)",
    )?;
    delete.execute([]).map(drop)
}
