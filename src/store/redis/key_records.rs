//! The records of API keys in Redis: who a key belongs to, what it may be used for, and when it was
//! revoked and last used.

use std::collections::HashMap;

use super::connection::RedisConnection;
use super::keys::{AccountKeys, budget_field};
use super::stored_settings::{StoredSettings, has_settings, is_living, no_living_account};
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, KeyHash, KeyId, KeyPlace, KeyRecord, KeyScope,
    Unavailable, WindowKind,
};

/// The fields of the record of an API key.
const RECORD_FIELDS: [&str; 6] =
    ["account", "prefix", "created_at", "revoked_at", "last_used_at", "scope"];
/// The fields that move by themselves when a record moves: they may change meanwhile.
const CHANGING_FIELDS: [&str; 2] = ["revoked_at", "last_used_at"];
/// The records of at most this many API keys are read at a time.
const KEYS_AT_A_TIME: usize = 256;
/// A record is looked at so often at most, while somebody else moves it.
const REVOKE_ATTEMPTS_MAX: u32 = 5;

/// Returns the keys of both records that an API key may have: the plain one, and the one of a key
/// that has a scope, or that a budget or settings of its account are about. Versions that know none
/// of that do not look for the second one.
pub(super) fn record_keys(hash: &str) -> [String; 2] {
    [format!("tollgate:key:{hash}"), format!("tollgate:restricted-key:{hash}")]
}

/// Returns the id that the API key with this digest has unless it has one from the key that it
/// replaced.
pub(super) fn first_id(hash: &str) -> Option<KeyId> {
    KeyHash::from_hex(hash).map(KeyHash::key_id)
}

fn prefix_key(prefix: &str) -> String {
    format!("tollgate:prefix:{prefix}")
}

pub(super) fn list_key(account: &AccountName) -> String {
    format!("tollgate:{{{account}}}:keys")
}

/// The key of the sorted set of an account's API keys by the times of their issue. It is in the
/// slot of the list.
pub(super) fn index_key(account: &AccountName) -> String {
    format!("tollgate:{{{account}}}:keys-by-time")
}

/// What the sorted set has of an API key. The beginning comes first, which orders those of one
/// moment; it is empty if the API key has no record.
pub(super) fn index_member(prefix: &str, hash: &str) -> String {
    format!("{prefix} {hash}")
}

/// What one record of an API key has.
#[derive(Debug, Default)]
struct StoredKey {
    account: Option<String>,
    prefix: Option<String>,
    created_at: Option<i64>,
    revoked_at: Option<i64>,
    last_used_at: Option<i64>,
    /// The scope as JSON; `None` if the key has none.
    scope: Option<String>,
}

impl StoredKey {
    fn from_fields(fields: Vec<Option<String>>) -> StoredKey {
        let mut fields = fields.into_iter();
        let mut text = || fields.next().flatten();
        let (account, prefix) = (text(), text());
        let mut number = || text().and_then(|digits| digits.parse().ok());
        let (created_at, revoked_at, last_used_at) = (number(), number(), number());
        StoredKey { account, prefix, created_at, revoked_at, last_used_at, scope: text() }
    }

    fn is_absent(&self) -> bool {
        self.account.is_none() && self.revoked_at.is_none()
    }
}

/// Reads both records of an API key.
async fn read_records(
    connection: &RedisConnection,
    hash: &str,
) -> Result<[StoredKey; 2], Unavailable> {
    let mut records = read_records_of(connection, &[hash.to_owned()]).await?;
    Ok(records.pop().unwrap_or_default())
}

/// Reads both records of each API key. The plain one is read first: it is deleted only after the
/// other one was written, so a record that is moved meanwhile is found.
async fn read_records_of(
    connection: &RedisConnection,
    hashes: &[String],
) -> Result<Vec<[StoredKey; 2]>, Unavailable> {
    let commands = hashes.iter().flat_map(|hash| record_keys(hash)).map(|key| {
        let mut read = redis::cmd("HMGET");
        read.arg(key).arg(&RECORD_FIELDS);
        read
    });
    let read: Vec<Vec<Option<String>>> = connection.query_each(commands.collect()).await?;
    let mut records = read.into_iter().map(StoredKey::from_fields);
    let mut next = || records.next().unwrap_or_default();
    Ok(hashes.iter().map(|_| [next(), next()]).collect())
}

/// Whether a budget is about a key, its own or one of its account, or anything is set of its
/// account.
async fn is_restricted_beside(
    connection: &RedisConnection,
    key: &KeyRecord,
) -> Result<bool, Unavailable> {
    let keys = AccountKeys::of(&key.account);
    if has_settings(connection, &keys.account()).await? {
        return Ok(true);
    }
    let mut read = redis::cmd("HMGET");
    read.arg(keys.budgets());
    for owner in [BudgetOwner::Account, BudgetOwner::Key(key.id)] {
        for kind in WindowKind::ALL {
            read.arg(budget_field(owner, kind));
        }
    }
    let limits: Vec<Option<String>> = connection.query(&read).await?;
    Ok(limits.iter().any(Option::is_some))
}

pub(super) async fn add(
    connection: &RedisConnection,
    hash: KeyHash,
    record: &KeyRecord,
) -> Result<(), Unavailable> {
    let hash = hash.hex();
    if !is_living(connection, &record.account).await? {
        return Err(no_living_account(&record.account));
    }
    // API keys are revoked by their prefix. An API key whose prefix led to another one could not be
    // revoked.
    let prefix = prefix_key(&record.prefix);
    let taken = redis::cmd("SET").arg(&prefix).arg(&hash).arg("NX").arg("GET").to_owned();
    let holder: Option<String> = connection.query(&taken).await?;
    if holder.is_some_and(|holder| holder != hash) {
        return Err(Unavailable(format!("the prefix {} is taken", record.prefix)));
    }
    let (list, index) = (list_key(&record.account), index_key(&record.account));
    let mut listing = redis::pipe();
    listing.atomic().cmd("SADD").arg(list).arg(&hash).ignore();
    listing.cmd("ZREM").arg(&index).arg(index_member("", &hash)).ignore();
    listing.cmd("ZADD").arg(&index).arg(record.created_at);
    listing.arg(index_member(&record.prefix, &hash)).ignore();
    let () = connection.query_pipeline(&listing).await?;
    let [plain, restricted] = record_keys(&hash);
    let known = redis::cmd("EXISTS").arg(&restricted).to_owned();
    let has_scope = record.scope != KeyScope::default();
    let is_restricted = has_scope
        || connection.query::<bool>(&known).await?
        || is_restricted_beside(connection, record).await?;
    // The record is written last, because it makes the API key valid.
    let mut set = redis::cmd("HSET");
    set.arg(if is_restricted { restricted } else { plain });
    set.arg("account").arg(record.account.as_str());
    set.arg("prefix").arg(&record.prefix).arg("created_at").arg(record.created_at);
    if has_scope {
        set.arg("scope").arg(record.scope.to_json());
    }
    let _: i64 = connection.query(&set).await?;
    // Whoever erases the account meanwhile may not have seen the record yet. The key opens nothing,
    // since the mark of the account is no settings.
    if !is_living(connection, &record.account).await? {
        erase_key(connection, &record.account, &hash).await?;
        return Err(no_living_account(&record.account));
    }
    // Whoever sets the first budget or settings meanwhile may not have seen the record yet.
    if !is_restricted && is_restricted_beside(connection, record).await? {
        restrict(connection, &hash).await?;
    }
    Ok(())
}

/// Erases all API keys of an account: their records, their prefixes, and the list of them.
pub(super) async fn erase(
    connection: &RedisConnection,
    account: &AccountName,
) -> Result<(), Unavailable> {
    let members = redis::cmd("SMEMBERS").arg(list_key(account)).to_owned();
    let hashes: Vec<String> = connection.query(&members).await?;
    for hash in &hashes {
        erase_key(connection, account, hash).await?;
    }
    let _: i64 = connection.query(redis::cmd("DEL").arg(index_key(account))).await?;
    Ok(())
}

/// Erases an API key. The prefix goes first, which only the record tells, and the list last, so
/// that what is left by an attempt that ends halfway is found by the next one.
async fn erase_key(
    connection: &RedisConnection,
    account: &AccountName,
    hash: &str,
) -> Result<(), Unavailable> {
    for StoredKey { prefix, .. } in read_records(connection, hash).await? {
        if let Some(prefix) = prefix {
            let _: i64 = connection.query(redis::cmd("DEL").arg(prefix_key(&prefix))).await?;
            let mut remove = redis::cmd("ZREM");
            remove.arg(index_key(account)).arg(index_member(&prefix, hash));
            let _: i64 = connection.query(&remove).await?;
        }
    }
    for record in record_keys(hash) {
        let _: i64 = connection.query(redis::cmd("DEL").arg(record)).await?;
    }
    let _: i64 = connection.query(redis::cmd("SREM").arg(list_key(account)).arg(hash)).await?;
    Ok(())
}

/// Moves the record of an API key to where versions that know no restrictions do not find it. The
/// two places are in different slots of a cluster, so the new record is written before the old one
/// is deleted, and whoever changes or reads a record looks at both.
async fn restrict(connection: &RedisConnection, hash: &str) -> Result<(), Unavailable> {
    let [plain, restricted] = record_keys(hash);
    let mut fields: HashMap<String, String> =
        connection.query(redis::cmd("HGETALL").arg(&plain)).await?;
    if fields.is_empty() {
        return Ok(());
    }
    fields.retain(|field, _| !CHANGING_FIELDS.contains(&field.as_str()));
    if !fields.is_empty() {
        let mut set = redis::cmd("HSET");
        set.arg(&restricted);
        for (field, value) in &fields {
            set.arg(field).arg(value);
        }
        let _: i64 = connection.query(&set).await?;
    }
    // The key may have been revoked or used before the new record was there.
    let mut read = redis::cmd("HMGET");
    read.arg(&plain).arg(&CHANGING_FIELDS);
    let times: Vec<Option<i64>> = connection.query(&read).await?;
    for (field, time) in CHANGING_FIELDS.iter().zip(times) {
        if let Some(time) = time {
            set_if_absent(connection, &restricted, field, time).await?;
        }
    }
    let _: i64 = connection.query(redis::cmd("DEL").arg(&plain)).await?;
    Ok(())
}

/// Moves the records of the API keys that a budget or settings are about: all keys of an account,
/// or one of them.
pub(super) async fn restrict_keys(
    connection: &RedisConnection,
    account: &AccountName,
    owner: BudgetOwner,
) -> Result<(), Unavailable> {
    let members = redis::cmd("SMEMBERS").arg(list_key(account)).to_owned();
    let hashes: Vec<String> = connection.query(&members).await?;
    let is_meant = |hash: &&String| match owner {
        BudgetOwner::Account => true,
        BudgetOwner::Key(id) => first_id(hash) == Some(id),
    };
    let meant: Vec<&String> = hashes.iter().filter(is_meant).collect();
    let commands = meant.iter().map(|hash| {
        let [plain, _] = record_keys(hash);
        redis::cmd("EXISTS").arg(plain).to_owned()
    });
    let not_moved: Vec<bool> = connection.query_each(commands.collect()).await?;
    for (hash, _) in meant.into_iter().zip(not_moved).filter(|(_, not_moved)| *not_moved) {
        restrict(connection, hash).await?;
    }
    Ok(())
}

pub(super) async fn find(
    connection: &RedisConnection,
    hash: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    let Some(record) = find_record(connection, hash).await? else { return Ok(None) };
    let account_key = AccountKeys::of(&record.account).account();
    match StoredSettings::read(connection, &account_key).await? {
        StoredSettings::Known(account_settings) => {
            Ok(Some(KeyRecord { account_settings, ..record }))
        }
        StoredSettings::Unreadable => Ok(None),
        // Then what was set of it is gone too, so the key may not be used as if nothing was set.
        StoredSettings::NoAccount => Err(Unavailable(format!(
            "the account {} of the key {} is not in the store",
            record.account, record.prefix
        ))),
    }
}

/// Returns the record of an API key without the settings of its account.
async fn find_record(
    connection: &RedisConnection,
    hash: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    let found = find_record_once(connection, hash).await?;
    // The nodes of a cluster answer in any order, so a record that is moved may be missed once.
    if found.is_none() && connection.is_cluster() {
        return find_record_once(connection, hash).await;
    }
    Ok(found)
}

async fn find_record_once(
    connection: &RedisConnection,
    hash: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    Ok(merge_records(hash, read_records(connection, hash).await?))
}

/// Makes the record of an API key out of both that it may have; `None` if it has none.
fn merge_records(hash: &str, [plain, restricted]: [StoredKey; 2]) -> Option<KeyRecord> {
    // While a record is moved there are two, and either may be the one that was revoked.
    let revoked_at = restricted.revoked_at.or(plain.revoked_at);
    let last_used_at = restricted.last_used_at.max(plain.last_used_at);
    let stored = if restricted.account.is_some() { restricted } else { plain };
    let StoredKey { account: Some(account), prefix: Some(prefix), created_at, scope, .. } = stored
    else {
        return None;
    };
    // A key whose restrictions cannot be read opens nothing.
    let scope = parse_scope(scope.as_deref())?;
    Some(KeyRecord {
        id: scope.id.or_else(|| first_id(hash))?,
        account: AccountName::parse(&account)?,
        prefix,
        created_at: created_at?,
        revoked_at,
        scope,
        last_used_at,
        account_settings: AccountSettings::default(),
    })
}

pub(super) async fn list(
    connection: &RedisConnection,
    account: &AccountName,
) -> Result<Vec<KeyRecord>, Unavailable> {
    let members = redis::cmd("SMEMBERS").arg(list_key(account)).to_owned();
    let hashes: Vec<String> = connection.query(&members).await?;
    let mut records: Vec<KeyRecord> =
        read_keys(connection, account, &hashes).await?.into_iter().flatten().collect();
    records.sort_by(|a, b| (a.created_at, &a.prefix).cmp(&(b.created_at, &b.prefix)));
    Ok(records)
}

/// Reads API keys of an account; `None` for one that has no record, or one that cannot be read.
pub(super) async fn read_keys(
    connection: &RedisConnection,
    account: &AccountName,
    hashes: &[String],
) -> Result<Vec<Option<KeyRecord>>, Unavailable> {
    let mut records = Vec::with_capacity(hashes.len());
    for hashes in hashes.chunks(KEYS_AT_A_TIME) {
        let read = read_records_of(connection, hashes).await?;
        for (hash, both) in hashes.iter().zip(read) {
            records.push(match merge_records(hash, both) {
                None if connection.is_cluster() => find_record(connection, hash).await?,
                record => record,
            });
        }
    }
    let account_key = AccountKeys::of(account).account();
    let StoredSettings::Known(settings) = StoredSettings::read(connection, &account_key).await?
    else {
        // Keys of which nobody knows what is set of their account open nothing.
        return Ok(vec![None; hashes.len()]);
    };
    for record in records.iter_mut().flatten() {
        record.account_settings.clone_from(&settings);
    }
    Ok(records)
}

/// Returns when API keys were issued, and their beginnings; `None` for one that has no record.
pub(super) async fn read_places(
    connection: &RedisConnection,
    hashes: &[String],
) -> Result<Vec<Option<KeyPlace>>, Unavailable> {
    let read = read_records_of(connection, hashes).await?.into_iter();
    let place_of =
        |key: StoredKey| Some(KeyPlace { created_at: key.created_at?, prefix: key.prefix? });
    Ok(read.map(|[plain, restricted]| place_of(restricted).or_else(|| place_of(plain))).collect())
}

pub(super) async fn revoke(
    connection: &RedisConnection,
    prefix: &str,
    at: i64,
) -> Result<bool, Unavailable> {
    let hash = find_hash(connection, prefix).await?;
    let Some(hash) = hash else { return Ok(false) };
    let [plain, restricted] = record_keys(&hash);
    for _ in 0..REVOKE_ATTEMPTS_MAX {
        let records = read_records(connection, &hash).await?;
        let is_revoked = |record: &StoredKey| record.revoked_at.is_some() || record.is_absent();
        if records.iter().all(is_revoked) && !records.iter().all(StoredKey::is_absent) {
            raise_revision(connection).await?;
            return Ok(true);
        }
        // A key that has no record yet gets one that says only this.
        let [_, moved] = &records;
        let key = if moved.is_absent() || is_revoked(moved) { &plain } else { &restricted };
        set_if_absent(connection, key, "revoked_at", at).await?;
    }
    Err(Unavailable("the record of the key is being moved".to_owned()))
}

/// Writes a time into a field of a record that does not have it.
async fn set_if_absent(
    connection: &RedisConnection,
    key: &str,
    field: &str,
    time: i64,
) -> Result<(), Unavailable> {
    let mut set = redis::cmd("HSETNX");
    set.arg(key).arg(field).arg(time);
    let _: i64 = connection.query(&set).await?;
    Ok(())
}

/// The record of an API key in the place of keys that have a scope.
pub(super) struct RestrictedRecord {
    /// The key of the record.
    pub(super) key: String,
    /// The scope as JSON; `None` if the API key has none.
    pub(super) scope_text: Option<String>,
}

impl RestrictedRecord {
    /// Returns the scope; `None` if it cannot be read.
    pub(super) fn scope(&self) -> Option<KeyScope> {
        parse_scope(self.scope_text.as_deref())
    }
}

/// Moves the record of the API key that is listed under a prefix to where versions that know no
/// restrictions do not find it, and reads its scope there; `None` if there is no such API key.
pub(super) async fn restrict_by_prefix(
    connection: &RedisConnection,
    prefix: &str,
) -> Result<Option<RestrictedRecord>, Unavailable> {
    let Some(hash) = find_hash(connection, prefix).await? else { return Ok(None) };
    restrict(connection, &hash).await?;
    let [_, key] = record_keys(&hash);
    let read = redis::cmd("HGET").arg(&key).arg("scope").to_owned();
    let scope_text = connection.query(&read).await?;
    Ok(Some(RestrictedRecord { key, scope_text }))
}

/// Parses the scope of a record; `None` if it cannot be read.
fn parse_scope(text: Option<&str>) -> Option<KeyScope> {
    text.map_or_else(|| Some(KeyScope::default()), KeyScope::parse_json)
}

/// The key of the number that rises when an API key is revoked, or its scope or its account's
/// settings change.
const REVISION_KEY: &str = "tollgate:key-revision";

/// Returns the number that rises when an API key is revoked, or its scope or its account's settings
/// change.
pub(super) async fn revision(connection: &RedisConnection) -> Result<u64, Unavailable> {
    let get = redis::cmd("GET").arg(REVISION_KEY).to_owned();
    let found: Option<u64> = connection.query(&get).await?;
    Ok(found.unwrap_or(0))
}

/// Raises the number, after the change was made: whoever sees the new number reads the new record.
pub(super) async fn raise_revision(connection: &RedisConnection) -> Result<(), Unavailable> {
    let raise = redis::cmd("INCR").arg(REVISION_KEY).to_owned();
    let _: u64 = connection.query(&raise).await?;
    Ok(())
}

/// Returns the digest, in hexadecimal, of the API key that is listed under a prefix.
pub(super) async fn find_hash(
    connection: &RedisConnection,
    prefix: &str,
) -> Result<Option<String>, Unavailable> {
    let get = redis::cmd("GET").arg(prefix_key(prefix)).to_owned();
    connection.query(&get).await
}

/// Returns the record of the API key that is listed under a prefix.
pub(super) async fn find_by_prefix(
    connection: &RedisConnection,
    prefix: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    let hash = find_hash(connection, prefix).await?;
    match hash {
        Some(hash) => find(connection, &hash).await,
        None => Ok(None),
    }
}
