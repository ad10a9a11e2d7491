//! The names of an account's keys, and the records of access keys.

use super::connection::RedisConnection;
use crate::kv_cache::Namespace;
use crate::ledger::{AccountName, JournalEntry, KeyHash, KeyRecord, Unavailable};
use crate::money::Money;

/// The set of all accounts' names.
pub(super) const ACCOUNTS_KEY: &str = "tollgate:accounts";

/// The keys of an account: one hash tag, so one slot of a cluster.
pub(super) struct AccountKeys {
    tag: String,
}

impl AccountKeys {
    pub(super) fn of(name: &AccountName) -> AccountKeys {
        AccountKeys { tag: ["tollgate:{", name.as_str(), "}:"].concat() }
    }

    /// What they all begin with.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    fn key_for(&self, part: &str) -> String {
        [&self.tag, part].concat()
    }

    fn key_with_id(&self, part: &str, id: &str) -> String {
        [&self.tag, part, ":", id].concat()
    }

    /// Its balances.
    pub(super) fn account(&self) -> String {
        self.key_for("account")
    }

    /// Its open holds, by when their leases end.
    pub(super) fn open_holds(&self) -> String {
        self.key_for("open")
    }

    /// Its charges.
    pub(super) fn journal(&self) -> String {
        self.key_for("journal")
    }

    /// Its payments.
    pub(super) fn payments(&self) -> String {
        self.key_for("payments")
    }

    pub(super) fn hold(&self, id: &str) -> String {
        self.key_with_id("hold", id)
    }

    /// A job's record.
    pub(super) fn video(&self, id: &str) -> String {
        self.key_with_id("video", id)
    }

    /// What a job's vendor is to be sent.
    pub(super) fn video_body(&self, id: &str) -> String {
        self.key_with_id("video-body", id)
    }

    /// The job of each idempotency key.
    pub(super) fn video_keys(&self) -> String {
        self.key_for("video-keys")
    }

    /// The jobs that their client sees.
    pub(super) fn videos(&self) -> String {
        self.key_for("videos")
    }

    /// The jobs that are under way.
    pub(super) fn videos_open(&self) -> String {
        self.key_for("videos-open")
    }

    /// What a name of a call stands for.
    pub(super) fn idempotency_claim(&self, name: &str) -> String {
        self.key_with_id("repeat", name)
    }

    /// The body of the reply to a call.
    pub(super) fn reply_body(&self, owner: &str) -> String {
        self.key_with_id("reply", owner)
    }

    /// The bodies that there are, by when they go; and how many bytes they have.
    pub(super) fn replies(&self) -> [String; 2] {
        ["replies", "replies-bytes"].map(|part| self.key_for(part))
    }

    /// The cache entries of a namespace, by when they go; and how many bytes they have.
    pub(super) fn cache_entries(&self, on: Namespace) -> [String; 2] {
        match on {
            Namespace::Ids => ["ids", "ids-bytes"],
            Namespace::Other => ["notes", "notes-bytes"],
        }
        .map(|part| self.key_for(part))
    }

    /// Whatever is in the name, the hash tag stands before it.
    pub(super) fn cache_entry(&self, name: &str) -> String {
        self.key_with_id("note", name)
    }
}

/// Reads `AMOUNT WRITTEN_OFF LINE`.
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
    // A key whose prefix led to another one could not be revoked.
    let prefix = prefix_key(&record.prefix);
    let taken = redis::cmd("SET").arg(&prefix).arg(&hash).arg("NX").arg("GET").to_owned();
    let holder: Option<String> = connection.query(&taken).await?;
    if holder.is_some_and(|holder| holder != hash) {
        return Err(Unavailable(format!("the prefix {} is taken", record.prefix)));
    }
    let mut list = redis::cmd("SADD");
    list.arg(list_key(&record.account)).arg(&hash);
    let _: i64 = connection.query(&list).await?;
    // Last, since it is what makes the key work.
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
