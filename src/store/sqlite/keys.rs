//! API keys in two tables: those that have a scope, or that a budget or settings of their account
//! are about, are apart.

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};

use super::super::key_of_id::{parse_key_id, pick_key};
use super::data_version;
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, KeyHash, KeyId, KeyOrder, KeyPage, KeyPlace,
    KeyRange, KeyRecord, KeyScope, Replaced, Replacement, Unavailable,
};

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
    let has_scope = record.scope != KeyScope::default();
    let is_restricted = has_scope || is_restricted_beside(c, record)?;
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

/// Whether a budget is about a key, or anything is set of its account.
fn is_restricted_beside(c: &Connection, key: &KeyRecord) -> rusqlite::Result<bool> {
    let mut select = c.prepare_cached(
        "SELECT 1 FROM account WHERE name = ?1 AND (
             EXISTS (SELECT 1 FROM account_setting WHERE account_setting.account = account.id)
             OR EXISTS (SELECT 1 FROM budget
                        WHERE budget.account = account.id AND owner IN (?2, ?3)))",
    )?;
    let own = BudgetOwner::Account.to_string();
    let of_key = BudgetOwner::Key(key.id).to_string();
    select.exists(params![key.account.as_str(), own, of_key])
}

/// All keys, as a table that a query selects from.
const ALL_KEYS: &str =
    "(SELECT *, NULL AS scope FROM access_key UNION ALL SELECT * FROM restricted_key)";

/// What a record of a key needs beside the row `k` of the key.
const JOINED: &str = "JOIN account ON account.id = k.account
     LEFT JOIN account_setting ON account_setting.account = k.account
     LEFT JOIN key_use ON key_use.hash = k.hash";

/// The columns of a record of a key, after its scope.
const COLUMNS: &str = "name, prefix, created_at, revoked_at, k.hash, settings, at";

pub(super) fn find(c: &Connection, hash: KeyHash) -> rusqlite::Result<Option<KeyRecord>> {
    for (table, scope) in TABLES.into_iter().zip(["NULL", "scope"]) {
        let mut select = c.prepare_cached(&format!(
            "SELECT {scope}, {COLUMNS} FROM {table} AS k {JOINED} WHERE k.hash = ?"
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
        "SELECT scope, {COLUMNS} FROM {ALL_KEYS} AS k {JOINED}
         WHERE name = ? ORDER BY created_at, prefix"
    ))?;
    let records = select.query_map([name.as_str()], read_key_record)?;
    records.filter_map(Result::transpose).collect()
}

/// Returns a part of the keys of an account. Of each table the index gives the next rows, and no
/// others are read.
pub(super) fn list_in(
    c: &Connection,
    name: &AccountName,
    range: &KeyRange,
) -> rusqlite::Result<KeyPage> {
    let (sign, direction, beyond) = match range.order {
        KeyOrder::OldestFirst => (">", "ASC", i64::MIN),
        KeyOrder::NewestFirst => ("<", "DESC", i64::MAX),
    };
    let order = format!("ORDER BY created_at {direction}, prefix {direction} LIMIT ?4");
    let part = format!(
        "account = (SELECT id FROM account WHERE name = ?1)
         AND (created_at, prefix) {sign} (?2, ?3) {order}"
    );
    let mut select = c.prepare_cached(&format!(
        "SELECT scope, {COLUMNS} FROM (
             SELECT * FROM (SELECT *, NULL AS scope FROM access_key WHERE {part})
             UNION ALL
             SELECT * FROM (SELECT * FROM restricted_key WHERE {part})) AS k {JOINED} {order}"
    ))?;
    let after = range.after.as_ref();
    let (created_at, prefix) =
        after.map_or((beyond, ""), |place| (place.created_at, place.prefix.as_str()));
    let limit = range.limit.saturating_add(1);
    let rows = select.query_map(params![name.as_str(), created_at, prefix, limit], |row| {
        let place = KeyPlace { prefix: row.get(2)?, created_at: row.get(3)? };
        Ok((place, read_key_record(row)?))
    })?;
    Ok(KeyPage::new(rows.collect::<rusqlite::Result<_>>()?, range.limit))
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

/// Moves the keys that a budget is about, or settings of their account, to where a version of the
/// program that knows neither does not find them.
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

/// Replaces the scope of the API key that is listed under a prefix, and moves the key to where a
/// version of the program that knows no scopes does not find it. A scope that cannot be read is not
/// replaced: what it restricts is not known.
pub(super) fn set_scope(
    c: &Connection,
    prefix: &str,
    scope: &Replacement<KeyScope>,
) -> rusqlite::Result<Replaced> {
    let Some(hash) = find_hash(c, prefix)? else { return Ok(Replaced::Unknown) };
    let Some(record) = find(c, hash)? else { return Ok(Replaced::Unknown) };
    if let Some(replaced) = scope.compare(&record.scope) {
        return Ok(replaced);
    }
    restrict_key(c, hash)?;
    write_scope(c, hash, &scope.after)?;
    raise_revision(c)?;
    Ok(Replaced::Done)
}

/// Returns the number that rises when a key is revoked, or its scope or its account's settings
/// change.
pub(super) fn revision(c: &Connection) -> rusqlite::Result<u64> {
    let mut select = c.prepare_cached("SELECT revision FROM key_revision")?;
    let found = select.query_row([], |row| row.get::<_, i64>(0)).optional()?;
    Ok(found.unwrap_or(0).unsigned_abs())
}

pub(super) fn raise_revision(c: &Connection) -> rusqlite::Result<()> {
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
    data_version::raise(c, data_version::SLICES_VERSION)
}

/// Parses what is set of an account: nothing if there is no text. `None` if it cannot be read. Then
/// the keys of the account open nothing.
pub(super) fn parse_settings(text: Option<&str>) -> Option<AccountSettings> {
    text.map_or_else(|| Some(AccountSettings::default()), AccountSettings::parse_json)
}

fn read_key_record(row: &Row<'_>) -> rusqlite::Result<Option<KeyRecord>> {
    let scope = match row.get::<_, Option<String>>(0)? {
        Some(text) => KeyScope::parse_json(&text),
        None => Some(KeyScope::default()),
    };
    // A key whose restrictions cannot be read opens nothing.
    let Some(scope) = scope else { return Ok(None) };
    let Some(account) = AccountName::parse(&row.get::<_, String>(1)?) else { return Ok(None) };
    let settings: Option<String> = row.get(6)?;
    let Some(account_settings) = parse_settings(settings.as_deref()) else { return Ok(None) };
    let hash = KeyHash(row.get(5)?);
    Ok(Some(KeyRecord {
        id: scope.id.unwrap_or_else(|| hash.key_id()),
        account,
        prefix: row.get(2)?,
        created_at: row.get(3)?,
        revoked_at: row.get(4)?,
        scope,
        last_used_at: row.get(7)?,
        account_settings,
    }))
}

/// Returns the record of the API key that is listed under a prefix, in whichever table it is, or
/// of the one that an id stands for.
pub(super) fn find_by_prefix(c: &Connection, prefix: &str) -> rusqlite::Result<Option<KeyRecord>> {
    match (find_hash(c, prefix)?, parse_key_id(prefix)) {
        (Some(hash), _) => find(c, hash),
        (None, Some(id)) => find_by_id(c, id),
        (None, None) => Ok(None),
    }
}

/// Returns the record of the API key that an id stands for. The first key with the id, whose digest
/// begins with it, is kept for ever, and those that replaced it are of the same account.
fn find_by_id(c: &Connection, id: KeyId) -> rusqlite::Result<Option<KeyRecord>> {
    let Some(first) = id.0.checked_mul(2) else { return Ok(None) };
    let [mut least, mut most] = [[0; 32], [u8::MAX; 32]];
    least[..8].copy_from_slice(&first.to_be_bytes());
    most[..8].copy_from_slice(&(first | 1).to_be_bytes());
    let mut select = c.prepare_cached(&format!(
        "SELECT DISTINCT name FROM {ALL_KEYS} AS k JOIN account ON account.id = k.account
         WHERE k.hash BETWEEN ? AND ?"
    ))?;
    let names = select.query_map([&least[..], &most[..]], |row| row.get::<_, String>(0))?;
    let mut keys = Vec::new();
    for name in names {
        if let Some(name) = AccountName::parse(&name?) {
            keys.extend(list(c, &name)?);
        }
    }
    Ok(pick_key(keys, id))
}

fn find_hash(c: &Connection, prefix: &str) -> rusqlite::Result<Option<KeyHash>> {
    let query = format!("SELECT hash FROM {ALL_KEYS} WHERE prefix = ?");
    let mut select = c.prepare_cached(&query)?;
    select.query_row([prefix], |row| row.get(0).map(KeyHash)).optional()
}
