//! API keys in two tables: those that have a scope, or that a budget is about, are apart.

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};

use super::super::data_version::RESTRICTIONS_VERSION;
use crate::ledger::{AccountName, BudgetOwner, KeyHash, KeyRecord, KeyScope, Unavailable};

/// The tables, the one of unrestricted keys first.
const TABLES: [&str; 2] = ["access_key", "restricted_key"];
/// Moves the row of a key to the other table.
const MOVE: &str = "INSERT INTO restricted_key SELECT *, NULL FROM access_key WHERE hash = ?";

/// Adds an API key, or returns why it could not: its account does not exist, or its prefix is
/// taken. That is not a failure of the transaction, which has operations of other callers as well.
pub(super) fn add(
    c: &Connection,
    hash: KeyHash,
    record: &KeyRecord,
) -> rusqlite::Result<Result<(), Unavailable>> {
    let name = record.account.as_str();
    let mut budgets = c.prepare_cached(
        "SELECT 1 FROM budget JOIN account ON account.id = budget.account
         WHERE name = ?1 AND owner IN (?2, ?3)",
    )?;
    let own = BudgetOwner::Account.to_string();
    let of_key = BudgetOwner::Key(record.id).to_string();
    let has_scope = record.scope != KeyScope::default();
    let is_restricted = has_scope || budgets.exists(params![name, own, of_key])?;
    let [table, other] = if is_restricted { [TABLES[1], TABLES[0]] } else { TABLES };
    let mut taken = c.prepare_cached(&format!("SELECT 1 FROM {other} WHERE prefix = ?"))?;
    if taken.exists([&record.prefix])? {
        return Ok(Err(Unavailable(format!("the prefix {} is taken", record.prefix))));
    }
    let mut insert = c.prepare_cached(&format!(
        "INSERT INTO {table} (hash, account, prefix, created_at)
         VALUES (?, (SELECT id FROM account WHERE name = ?), ?, ?)"
    ))?;
    match insert.execute(params![&hash.0[..], name, record.prefix, record.created_at]) {
        Ok(_) if has_scope => write_scope(c, hash, &record.scope).map(Ok),
        Ok(_) => Ok(Ok(())),
        Err(why) if why.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            Ok(Err(Unavailable(format!("the key cannot be added: {why}"))))
        }
        Err(why) => Err(why),
    }
}

/// All keys, as a table that a query selects from.
const ALL_KEYS: &str =
    "(SELECT *, NULL AS scope FROM access_key UNION ALL SELECT * FROM restricted_key)";

pub(super) fn find(c: &Connection, hash: KeyHash) -> rusqlite::Result<Option<KeyRecord>> {
    for (table, scope) in TABLES.into_iter().zip(["NULL", "scope"]) {
        let mut select = c.prepare_cached(&format!(
            "SELECT name, prefix, created_at, revoked_at, hash, {scope} FROM {table}
             JOIN account ON account.id = account WHERE hash = ?"
        ))?;
        let found = select.query_row([&hash.0[..]], read_key_record).optional()?;
        if found.is_some() {
            return Ok(found.flatten());
        }
    }
    Ok(None)
}

pub(super) fn list(c: &Connection, name: &AccountName) -> rusqlite::Result<Vec<KeyRecord>> {
    let mut select = c.prepare_cached(&format!(
        "SELECT name, prefix, created_at, revoked_at, hash, scope FROM {ALL_KEYS}
         JOIN account ON account.id = account WHERE name = ? ORDER BY created_at, prefix"
    ))?;
    let records = select.query_map([name.as_str()], read_key_record)?;
    records.filter_map(Result::transpose).collect()
}

pub(super) fn revoke(c: &Connection, prefix: &str, at: i64) -> rusqlite::Result<bool> {
    for table in TABLES {
        let mut update = c.prepare_cached(&format!(
            "UPDATE {table} SET revoked_at = coalesce(revoked_at, ?) WHERE prefix = ?"
        ))?;
        if update.execute(params![at, prefix])? == 1 {
            raise_revision(c)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves the keys that a budget is about to where a version of the program that knows no budgets
/// does not find them.
pub(super) fn restrict(c: &Connection, account: i64, owner: BudgetOwner) -> rusqlite::Result<()> {
    let mut select = c.prepare_cached("SELECT hash FROM access_key WHERE account = ?")?;
    let hashes = select.query_map([account], |row| row.get::<_, [u8; 32]>(0))?;
    let hashes: Vec<[u8; 32]> = hashes.collect::<rusqlite::Result<_>>()?;
    for hash in hashes {
        let is_meant = match owner {
            BudgetOwner::Account => true,
            BudgetOwner::Key(key) => KeyHash(hash).key_id() == key,
        };
        if is_meant {
            restrict_key(c, KeyHash(hash))?;
        }
    }
    Ok(())
}

/// Moves a key, unless it was moved before.
fn restrict_key(c: &Connection, hash: KeyHash) -> rusqlite::Result<()> {
    c.prepare_cached(MOVE)?.execute([&hash.0[..]])?;
    let mut delete = c.prepare_cached("DELETE FROM access_key WHERE hash = ?")?;
    delete.execute([&hash.0[..]]).map(drop)
}

/// Sets the scope of the API key that is listed under a prefix, and moves the key to where a
/// version of the program that knows no scopes does not find it; `false` if there is none. A scope
/// that cannot be read is not replaced: what it restricts is not known.
pub(super) fn set_scope(c: &Connection, prefix: &str, scope: &KeyScope) -> rusqlite::Result<bool> {
    let Some(hash) = find_hash(c, prefix)? else { return Ok(false) };
    let Some(record) = find(c, hash)? else { return Ok(false) };
    if record.scope == *scope {
        return Ok(true);
    }
    restrict_key(c, hash)?;
    write_scope(c, hash, scope)?;
    raise_revision(c)?;
    Ok(true)
}

/// Returns the number that rises when a key is revoked or its scope changes.
pub(super) fn revision(c: &Connection) -> rusqlite::Result<u64> {
    let mut select = c.prepare_cached("SELECT revision FROM key_revision")?;
    let found = select.query_row([], |row| row.get::<_, i64>(0)).optional()?;
    Ok(found.unwrap_or(0).unsigned_abs())
}

fn raise_revision(c: &Connection) -> rusqlite::Result<()> {
    let mut raise = c.prepare_cached(
        "INSERT INTO key_revision (row, revision) VALUES (1, 1)
         ON CONFLICT DO UPDATE SET revision = revision + 1",
    )?;
    raise.execute([]).map(drop)
}

/// Writes the scope of a restricted key.
fn write_scope(c: &Connection, hash: KeyHash, scope: &KeyScope) -> rusqlite::Result<()> {
    raise_version(c)?;
    let scope = (*scope != KeyScope::default()).then(|| scope.to_json());
    let mut update = c.prepare_cached("UPDATE restricted_key SET scope = ? WHERE hash = ?")?;
    update.execute(params![scope, &hash.0[..]]).map(drop)
}

/// Raises the version of the data, so that no version of the program opens the store that would not
/// heed its restrictions.
pub(super) fn raise_version(c: &Connection) -> rusqlite::Result<()> {
    let version = "user_version";
    let found: u32 = c.pragma_query_value(None, version, |row| row.get(0))?;
    c.pragma_update(None, version, found.max(RESTRICTIONS_VERSION))
}

fn read_key_record(row: &Row<'_>) -> rusqlite::Result<Option<KeyRecord>> {
    let Some(account) = AccountName::parse(&row.get::<_, String>(0)?) else { return Ok(None) };
    let scope = match row.get::<_, Option<String>>(5)? {
        Some(text) => KeyScope::parse_json(&text),
        None => Some(KeyScope::default()),
    };
    // A key whose restrictions cannot be read opens nothing.
    let Some(scope) = scope else { return Ok(None) };
    Ok(Some(KeyRecord {
        id: KeyHash(row.get(4)?).key_id(),
        account,
        prefix: row.get(1)?,
        created_at: row.get(2)?,
        revoked_at: row.get(3)?,
        scope,
    }))
}

/// Returns the record of the API key that is listed under a prefix, in whichever table it is.
pub(super) fn find_by_prefix(c: &Connection, prefix: &str) -> rusqlite::Result<Option<KeyRecord>> {
    find_hash(c, prefix)?.map_or(Ok(None), |hash| find(c, hash))
}

fn find_hash(c: &Connection, prefix: &str) -> rusqlite::Result<Option<KeyHash>> {
    let query = format!("SELECT hash FROM {ALL_KEYS} WHERE prefix = ?");
    let mut select = c.prepare_cached(&query)?;
    select.query_row([prefix], |row| row.get(0).map(KeyHash)).optional()
}
