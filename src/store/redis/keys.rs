//! The names of an account's Redis keys, and the records of API keys.

use super::connection::RedisConnection;
use crate::kv_cache::Namespace;
use crate::ledger::{AccountName, JournalEntry, KeyHash, KeyRecord, Unavailable};
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

pub(super) fn record_key(hash: &str) -> String {
    format!("tollgate:key:{hash}")
}

fn prefix_key(prefix: &str) -> String {
    format!("tollgate:prefix:{prefix}")
}

fn list_key(account: &AccountName) -> String {
    format!("tollgate:{{{account}}}:keys")
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
    // The record is written last, because it makes the API key valid.
    let mut set = redis::cmd("HSET");
    set.arg(record_key(&hash)).arg("account").arg(record.account.as_str());
    set.arg("prefix").arg(&record.prefix).arg("created_at").arg(record.created_at);
    let _: i64 = connection.query(&set).await?;
    Ok(())
}

pub(super) async fn find(
    connection: &RedisConnection,
    hash: &str,
) -> Result<Option<KeyRecord>, Unavailable> {
    type KeyFields = (Option<String>, Option<String>, Option<i64>, Option<i64>);
    let mut get = redis::cmd("HMGET");
    get.arg(record_key(hash)).arg(&["account", "prefix", "created_at", "revoked_at"]);
    let (account, prefix, created_at, revoked_at): KeyFields = connection.query(&get).await?;
    let (Some(account), Some(prefix), Some(created_at)) = (account, prefix, created_at) else {
        return Ok(None);
    };
    let Some(account) = AccountName::parse(&account) else { return Ok(None) };
    Ok(Some(KeyRecord { account, prefix, created_at, revoked_at }))
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
    let get = redis::cmd("GET").arg(prefix_key(prefix)).to_owned();
    let hash: Option<String> = connection.query(&get).await?;
    let Some(hash) = hash else { return Ok(false) };
    let mut set = redis::cmd("HSETNX");
    set.arg(record_key(&hash)).arg("revoked_at").arg(at);
    let _: i64 = connection.query(&set).await?;
    Ok(true)
}
