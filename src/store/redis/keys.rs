//! The names of an account's Redis keys, and the records of API keys.

use std::collections::HashMap;

use super::connection::RedisConnection;
use crate::kv_cache::Namespace;
use crate::ledger::{
    AccountName, BudgetOwner, JournalEntry, KeyHash, KeyRecord, KeyScope, Unavailable, WindowId,
    WindowKind,
};
use crate::money::Money;

/// The key of the set of all accounts' names.
pub(super) const ACCOUNTS_KEY: &str = "tollgate:accounts";

/// The names of an account's Redis keys. They share one hash tag, so they are in one slot of a
/// cluster.
pub(super) struct AccountKeys {
    tag: String,
}

impl AccountKeys {
    pub(super) fn of(name: &AccountName) -> AccountKeys {
        AccountKeys { tag: ["tollgate:{", name.as_str(), "}:"].concat() }
    }

    /// Returns the prefix of all these key names, which contains the hash tag.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    fn key_for(&self, part: &str) -> String {
        [&self.tag, part].concat()
    }

    fn key_with_id(&self, part: &str, id: &str) -> String {
        [&self.tag, part, ":", id].concat()
    }

    /// Returns the key of the hash with the balances.
    pub(super) fn account(&self) -> String {
        self.key_for("account")
    }

    /// Returns the key of the sorted set of open holds, ordered by the end of their leases.
    pub(super) fn open_holds(&self) -> String {
        self.key_for("open")
    }

    /// Returns the key of the journal, a list of the account's charges.
    pub(super) fn journal(&self) -> String {
        self.key_for("journal")
    }

    /// Returns the key of the hash with the amount of each payment, by its transaction id.
    pub(super) fn payments(&self) -> String {
        self.key_for("payments")
    }

    pub(super) fn hold(&self, id: &str) -> String {
        self.key_with_id("hold", id)
    }

    /// Returns the key of the hash with the limits of budgets, by [`budget_field`].
    pub(super) fn budgets(&self) -> String {
        self.key_for("budgets")
    }

    /// Returns the key of the hash with what is used of a window.
    pub(super) fn window(&self, window: WindowId) -> String {
        self.key_with_id("window", &window.to_string())
    }

    /// Returns the key of the hash of an allotment's slices, by the texts of their windows.
    pub(super) fn slices(&self, id: &str) -> String {
        self.key_with_id("slices", id)
    }

    /// Returns the key of the set of the ids of allotments that hold something, or may.
    pub(super) fn allotments(&self) -> String {
        self.key_for("allotments")
    }

    /// Returns the key of the hash of an allotment's calls that have checkpoints.
    pub(super) fn allotment_calls(&self, id: &str) -> String {
        self.key_with_id("calls", id)
    }

    /// Returns the key of a video job's record.
    pub(super) fn video(&self, id: &str) -> String {
        self.key_with_id("video", id)
    }

    /// Returns the key of the request body that a video job's vendor is to be sent.
    pub(super) fn video_body(&self, id: &str) -> String {
        self.key_with_id("video-body", id)
    }

    /// Returns the key of the hash that maps idempotency keys to the ids of their video jobs.
    pub(super) fn video_keys(&self) -> String {
        self.key_for("video-keys")
    }

    /// Returns the key of the list of video jobs, without those that their client deleted.
    pub(super) fn videos(&self) -> String {
        self.key_for("videos")
    }

    /// Returns the key of the set of open video jobs: those queued or in progress.
    pub(super) fn videos_open(&self) -> String {
        self.key_for("videos-open")
    }

    /// Returns the key of the record of the idempotency key `name`.
    pub(super) fn idempotency_claim(&self, name: &str) -> String {
        self.key_with_id("repeat", name)
    }

    /// Returns the key of the body of the reply to the call `owner`.
    pub(super) fn reply_body(&self, owner: &str) -> String {
        self.key_with_id("reply", owner)
    }

    /// Returns the keys of the list of stored reply bodies, ordered by expiry, and of the sum of
    /// their bytes.
    pub(super) fn replies(&self) -> [String; 2] {
        ["replies", "replies-bytes"].map(|part| self.key_for(part))
    }

    /// Returns the keys of the list of a namespace's cache entries, ordered by expiry, and of the
    /// sum of their bytes.
    pub(super) fn cache_entries(&self, on: Namespace) -> [String; 2] {
        match on {
            Namespace::Ids => ["ids", "ids-bytes"],
            Namespace::Other => ["notes", "notes-bytes"],
        }
        .map(|part| self.key_for(part))
    }

    /// Returns the key of a cache entry. The name may contain anything, even braces: the hash tag
    /// comes before it, and only the first braces of a key count.
    pub(super) fn cache_entry(&self, name: &str) -> String {
        self.key_with_id("note", name)
    }
}

/// Parses a journal entry: `AMOUNT WRITTEN_OFF LINE`, with the amounts in nano-USD.
pub(super) fn parse_journal_entry(seq: u64, text: &str) -> Result<JournalEntry, Unavailable> {
    let mut parts = text.splitn(3, ' ');
    let mut money = || parts.next()?.parse().ok().and_then(|nano| Money::from_nano(nano).ok());
    let amounts = (money(), money());
    let line = parts.next();
    match (amounts, line) {
        ((Some(amount), Some(written_off)), Some(line)) => {
            Ok(JournalEntry { seq, amount, written_off, line: line.to_owned() })
        }
        _ => Err(Unavailable(format!("journal entry {seq} cannot be read"))),
    }
}

/// Returns the name of a budget in the hash of an account's limits, such as `account/day` or
/// `key:7/month`.
pub(super) fn budget_field(owner: BudgetOwner, kind: WindowKind) -> String {
    format!("{owner}/{}", kind.name())
}

/// The fields of the record of an API key.
const RECORD_FIELDS: [&str; 5] = ["account", "prefix", "created_at", "revoked_at", "scope"];
/// A record is looked at so often at most, while somebody else moves it.
const REVOKE_ATTEMPTS_MAX: u32 = 5;

/// Returns the keys of both records that an API key may have: the plain one, and the one of a key
/// that has a scope, or that a budget is about. Versions that know neither do not look for the
/// second one.
pub(super) fn record_keys(hash: &str) -> [String; 2] {
    [format!("tollgate:key:{hash}"), format!("tollgate:restricted-key:{hash}")]
}

fn prefix_key(prefix: &str) -> String {
    format!("tollgate:prefix:{prefix}")
}

fn list_key(account: &AccountName) -> String {
    format!("tollgate:{{{account}}}:keys")
}

/// What one record of an API key has.
#[derive(Debug, Default)]
struct StoredKey {
    account: Option<String>,
    prefix: Option<String>,
    created_at: Option<i64>,
    revoked_at: Option<i64>,
    /// The scope as JSON; `None` if the key has none.
    scope: Option<String>,
}

impl StoredKey {
    fn from_fields(fields: Vec<Option<String>>) -> StoredKey {
        let mut fields = fields.into_iter();
        let mut text = || fields.next().flatten();
        let (account, prefix) = (text(), text());
        let mut number = || text().and_then(|digits| digits.parse().ok());
        let (created_at, revoked_at) = (number(), number());
        StoredKey { account, prefix, created_at, revoked_at, scope: text() }
    }

    fn is_absent(&self) -> bool {
        self.account.is_none() && self.revoked_at.is_none()
    }
}

/// Reads both records of an API key. The plain one is read first: it is deleted only after the
/// other one was written, so a record that is moved meanwhile is found.
async fn read_records(
    connection: &RedisConnection,
    hash: &str,
) -> Result<[StoredKey; 2], Unavailable> {
    let commands = record_keys(hash).map(|key| {
        let mut read = redis::cmd("HMGET");
        read.arg(key).arg(&RECORD_FIELDS);
        read
    });
    let read: Vec<Vec<Option<String>>> = connection.query_each(commands.into()).await?;
    let mut records = read.into_iter().map(StoredKey::from_fields);
    Ok([records.next().unwrap_or_default(), records.next().unwrap_or_default()])
}

/// Whether a budget is about a key: its own, or one of its account.
async fn is_budgeted(connection: &RedisConnection, key: &KeyRecord) -> Result<bool, Unavailable> {
    let mut read = redis::cmd("HMGET");
    read.arg(AccountKeys::of(&key.account).budgets());
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
    let exists = redis::cmd("EXISTS").arg(AccountKeys::of(&record.account).account()).to_owned();
    if !connection.query::<bool>(&exists).await? {
        return Err(Unavailable(format!("there is no account {}", record.account)));
    }
    // API keys are revoked by their prefix. An API key whose prefix led to another one could not be
    // revoked.
    let prefix = prefix_key(&record.prefix);
    let taken = redis::cmd("SET").arg(&prefix).arg(&hash).arg("NX").arg("GET").to_owned();
    let holder: Option<String> = connection.query(&taken).await?;
    if holder.is_some_and(|holder| holder != hash) {
        return Err(Unavailable(format!("the prefix {} is taken", record.prefix)));
    }
    let mut list = redis::cmd("SADD");
    list.arg(list_key(&record.account)).arg(&hash);
    let _: i64 = connection.query(&list).await?;
    let [plain, restricted] = record_keys(&hash);
    let known = redis::cmd("EXISTS").arg(&restricted).to_owned();
    let has_scope = record.scope != KeyScope::default();
    let is_restricted = has_scope
        || connection.query::<bool>(&known).await?
        || is_budgeted(connection, record).await?;
    // The record is written last, because it makes the API key valid.
    let mut set = redis::cmd("HSET");
    set.arg(if is_restricted { restricted } else { plain });
    set.arg("account").arg(record.account.as_str());
    set.arg("prefix").arg(&record.prefix).arg("created_at").arg(record.created_at);
    if has_scope {
        set.arg("scope").arg(record.scope.to_json());
    }
    let _: i64 = connection.query(&set).await?;
    // Whoever sets the first budget meanwhile may not have seen the record yet.
    if !is_restricted && is_budgeted(connection, record).await? {
        restrict(connection, &hash).await?;
    }
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
    fields.remove("revoked_at");
    if !fields.is_empty() {
        let mut set = redis::cmd("HSET");
        set.arg(&restricted);
        for (field, value) in &fields {
            set.arg(field).arg(value);
        }
        let _: i64 = connection.query(&set).await?;
    }
    // The key may have been revoked before the new record was there.
    let mut read = redis::cmd("HGET");
    read.arg(&plain).arg("revoked_at");
    let revoked_at: Option<i64> = connection.query(&read).await?;
    if let Some(revoked_at) = revoked_at {
        set_revoked(connection, &restricted, revoked_at).await?;
    }
    let _: i64 = connection.query(redis::cmd("DEL").arg(&plain)).await?;
    Ok(())
}

/// Moves the records of the API keys that a budget is about: all keys of an account, or one of
/// them.
pub(super) async fn restrict_keys(
    connection: &RedisConnection,
    account: &AccountName,
    owner: BudgetOwner,
) -> Result<(), Unavailable> {
    let members = redis::cmd("SMEMBERS").arg(list_key(account)).to_owned();
    let hashes: Vec<String> = connection.query(&members).await?;
    let is_meant = |hash: &&String| match owner {
        BudgetOwner::Account => true,
        BudgetOwner::Key(id) => KeyHash::from_hex(hash).map(KeyHash::key_id) == Some(id),
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
    let found = find_once(connection, hash).await?;
    // The nodes of a cluster answer in any order, so a record that is moved may be missed once.
    if found.is_none() && connection.is_cluster() {
        return find_once(connection, hash).await;
    }
    Ok(found)
}

async fn find_once(
    connection: &RedisConnection,
    hash: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    let [plain, restricted] = read_records(connection, hash).await?;
    // While a record is moved there are two, and either may be the one that was revoked.
    let revoked_at = restricted.revoked_at.or(plain.revoked_at);
    let stored = if restricted.account.is_some() { restricted } else { plain };
    let StoredKey { account: Some(account), prefix: Some(prefix), created_at, scope, .. } = stored
    else {
        return Ok(None);
    };
    // A key whose restrictions cannot be read opens nothing.
    let scope = scope.map_or_else(|| Some(KeyScope::default()), |text| KeyScope::parse_json(&text));
    let Some(scope) = scope else { return Ok(None) };
    let Some(created_at) = created_at else { return Ok(None) };
    let Some(account) = AccountName::parse(&account) else { return Ok(None) };
    let Some(id) = KeyHash::from_hex(hash).map(KeyHash::key_id) else { return Ok(None) };
    Ok(Some(KeyRecord { id, account, prefix, created_at, revoked_at, scope }))
}

pub(super) async fn list(
    connection: &RedisConnection,
    account: &AccountName,
) -> Result<Vec<KeyRecord>, Unavailable> {
    let members = redis::cmd("SMEMBERS").arg(list_key(account)).to_owned();
    let hashes: Vec<String> = connection.query(&members).await?;
    let mut records = Vec::new();
    for hash in hashes {
        records.extend(find(connection, &hash).await?);
    }
    records.sort_by(|a, b| (a.created_at, &a.prefix).cmp(&(b.created_at, &b.prefix)));
    Ok(records)
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
        set_revoked(connection, key, at).await?;
    }
    Err(Unavailable("the record of the key is being moved".to_owned()))
}

/// Notes when a key was revoked, unless that is known.
async fn set_revoked(connection: &RedisConnection, key: &str, at: i64) -> Result<(), Unavailable> {
    let mut set = redis::cmd("HSETNX");
    set.arg(key).arg("revoked_at").arg(at);
    let _: i64 = connection.query(&set).await?;
    Ok(())
}

/// Sets the scope of the API key that is listed under a prefix, and moves its record; `false` if
/// there is none.
pub(super) async fn set_scope(
    connection: &RedisConnection,
    prefix: &str,
    scope: &KeyScope,
) -> Result<bool, Unavailable> {
    let Some(hash) = find_hash(connection, prefix).await? else { return Ok(false) };
    restrict(connection, &hash).await?;
    let [_, restricted] = record_keys(&hash);
    let write = if *scope == KeyScope::default() {
        redis::cmd("HDEL").arg(&restricted).arg("scope").to_owned()
    } else {
        redis::cmd("HSET").arg(&restricted).arg("scope").arg(scope.to_json()).to_owned()
    };
    let _: i64 = connection.query(&write).await?;
    raise_revision(connection).await?;
    Ok(true)
}

/// The key of the number that rises when an API key is revoked or its scope changes.
const REVISION_KEY: &str = "tollgate:key-revision";

/// Returns the number that rises when an API key is revoked or its scope changes.
pub(super) async fn revision(connection: &RedisConnection) -> Result<u64, Unavailable> {
    let get = redis::cmd("GET").arg(REVISION_KEY).to_owned();
    let found: Option<u64> = connection.query(&get).await?;
    Ok(found.unwrap_or(0))
}

/// Raises the number, after the change was made: whoever sees the new number reads the new record.
async fn raise_revision(connection: &RedisConnection) -> Result<(), Unavailable> {
    let raise = redis::cmd("INCR").arg(REVISION_KEY).to_owned();
    let _: u64 = connection.query(&raise).await?;
    Ok(())
}

/// Returns the digest, in hexadecimal, of the API key that is listed under a prefix.
async fn find_hash(
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
