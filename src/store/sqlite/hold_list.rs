//! The list of open holds, for operators. It is read beside the writer, so no call waits for it.

use rusqlite::{Connection, Row, params};

use super::accounts::read_money;
use super::columns::read_call_windows;
use super::hold_rows::read_hold;
use crate::clock::unix_ms;
use crate::ledger::open_hold::LentAllotment;
use crate::ledger::prepaid::records::DirectHold;
use crate::ledger::{AccountName, HoldCursor, OpenHold};

/// The columns of holds, as both tables have them.
const HOLD: &str = "account, id, wanted, least, held, lease_until, posted, line";

/// Returns open holds in the order of their cursors.
pub(super) fn list(
    c: &Connection,
    account: Option<&AccountName>,
    after: Option<&HoldCursor>,
    limit: u32,
) -> rusqlite::Result<Vec<OpenHold>> {
    let of_account = match account {
        Some(_) => "account = (SELECT id FROM account WHERE name = ?1)",
        None => "?1 IS NULL",
    };
    let sql = format!(
        "SELECT o.wanted, o.least, o.held, o.lease_until, 0, o.posted, o.line, r.asks, l.lots,
                b.key_id, coalesce(b.windows, ''), a.name, o.id, t.needed, t.open_calls, t.lent_at
         FROM (SELECT {HOLD} FROM open_hold WHERE {of_account}
               UNION ALL SELECT {HOLD} FROM hold INDEXED BY hold_open
               WHERE state = 0 AND {of_account}) AS o
         JOIN account AS a ON a.id = o.account
         LEFT JOIN hold_rate AS r ON r.account = o.account AND r.id = o.id
         LEFT JOIN hold_lots AS l ON l.account = o.account AND l.id = o.id
         LEFT JOIN hold_budget AS b ON b.account = o.account AND b.id = o.id
         LEFT JOIN allotment AS t ON t.account = o.account AND t.id = o.id
         WHERE (a.name, o.lease_until, o.id) > (?2, ?3, ?4)
         ORDER BY a.name, o.lease_until, o.id LIMIT ?5"
    );
    let (name, lease_until, id) = match after {
        Some(HoldCursor { account, lease_until, id }) => (account.as_str(), *lease_until, &**id),
        // No account has an empty name.
        None => ("", 0, ""),
    };
    let mut select = c.prepare_cached(&sql)?;
    let account = account.map(AccountName::as_str);
    let now = unix_ms();
    let rows = select.query_map(params![account, name, lease_until, id, limit], |row| {
        read_open_hold(row, now)
    })?;
    rows.filter_map(Result::transpose).collect()
}

/// Reads an open hold; `None` if its account has a name that this version does not know.
fn read_open_hold(row: &Row<'_>, now: i64) -> rusqlite::Result<Option<OpenHold>> {
    let (name, id): (String, String) = (row.get(11)?, row.get(12)?);
    let Some(account) = AccountName::parse(&name) else { return Ok(None) };
    let (key, windows) = read_call_windows(row, 9)?;
    let hold = DirectHold { key, windows, ..read_hold(row)? };
    if row.get::<_, Option<i64>>(13)?.is_none() {
        return Ok(OpenHold::of_call(&account, &id, &hold));
    }
    let told = LentAllotment {
        drawn: &hold.drawn,
        needed: read_money(row, 13)?,
        open_calls: row.get(14)?,
        lent_at: row.get(15)?,
        lease_until: hold.lease_until,
    };
    Ok(Some(OpenHold::of_allotment(&account, &id, &told, now)))
}
