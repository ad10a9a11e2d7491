//! Stores that lend, each with a way past it into what it has written.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use redis::FromRedisValue;
use rusqlite::{Connection, OptionalExtension};
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::records::AllotmentId;
use tollgate::ledger::prepaid::update::AllotmentUpdate;
use tollgate::ledger::{AccountName, Ledger};
use tollgate::store::redis::RedisStore;
use tollgate::store::sqlite::SqliteStore;

use super::super::script::now;
use super::super::subject::at;

/// The sums of an account: its credit, and what is available, held, posted and written off.
const BALANCES: [&str; 5] = ["credit", "available", "held", "posted", "written_off"];

/// What has ended is kept so long on Redis, in ms.
pub(super) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// A store that lends.
#[async_trait(?Send)]
pub(super) trait LendingStore {
    /// The ledger of today.
    fn ledger(&self) -> &dyn Ledger;
    /// Does what an update of an allotment asks.
    async fn update(&self, account: &AccountName, update: &AllotmentUpdate) -> LedgerAnswer;
    /// The [`BALANCES`] that the store has written.
    fn raw_balances(&self, account: &AccountName) -> [i64; 5];
    /// Until when nothing is lent, in unix ms; 0 if nothing was ever called back.
    fn recall_until(&self, account: &AccountName) -> i64;
    /// Makes the lease of an allotment run out; `false` if it is not open.
    fn end_lease(&self, account: &AccountName, id: &AllotmentId) -> bool;
    /// Makes a refund that waits one that began to, and was last asked for, so long ago, in ms.
    fn age_refund(&self, account: &AccountName, tx: &str, began_ago: i64, asked_ago: i64);
}

/// SQLite.
pub(super) struct LendingFile {
    store: SqliteStore,
    beside: Connection,
}

impl LendingFile {
    /// A new file in a folder.
    pub(super) fn new(folder: &Path) -> LendingFile {
        let path = folder.join("ledger.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let store = SqliteStore::open(&path).expect("a store");
        let beside = Connection::open(path).expect("the file");
        beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
        LendingFile { store, beside }
    }
}

#[async_trait(?Send)]
impl LendingStore for LendingFile {
    fn ledger(&self) -> &dyn Ledger {
        &self.store
    }

    async fn update(&self, account: &AccountName, update: &AllotmentUpdate) -> LedgerAnswer {
        let answer = self.store.update_allotment(account, update.clone()).await;
        answer.expect("an answer").expect("an account")
    }

    fn raw_balances(&self, account: &AccountName) -> [i64; 5] {
        let sql = format!("SELECT {} FROM account WHERE name = ?1", BALANCES.join(", "));
        let balances = self.beside.query_row(&sql, [account.as_str()], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])
        });
        balances.expect("balances")
    }

    fn recall_until(&self, account: &AccountName) -> i64 {
        let sql = "SELECT recall_until FROM lending JOIN account ON account.id = account \
                   WHERE name = ?1";
        let until = self.beside.query_row(sql, [account.as_str()], |row| row.get(0)).optional();
        until.expect("an answer").unwrap_or(0)
    }

    fn end_lease(&self, account: &AccountName, id: &AllotmentId) -> bool {
        let sql = "UPDATE open_hold SET lease_until = 1 \
                   WHERE account = (SELECT id FROM account WHERE name = ?1) AND id = ?2";
        self.beside.execute(sql, [account.as_str(), id.0.as_str()]).expect("written") > 0
    }

    fn age_refund(&self, account: &AccountName, tx: &str, began_ago: i64, asked_ago: i64) {
        let sql = "UPDATE transfer SET wait_since = ?3, asked_at = ?4 \
                   WHERE account = (SELECT id FROM account WHERE name = ?1) AND tx = ?2";
        let (began, asked) = (now() - began_ago, now() - asked_ago);
        let aged = self.beside.execute(sql, (account.as_str(), tx, began, asked));
        assert_eq!(aged, Ok(1));
    }
}

/// Redis.
pub(super) struct LendingRedis {
    store: RedisStore,
    beside: RefCell<redis::Connection>,
}

/// The key of a part of an account.
fn key(account: &AccountName, part: &str) -> String {
    format!("tollgate:{{{account}}}:{part}")
}

/// The key of what the store keeps of an allotment.
fn hold_key(account: &AccountName, id: &AllotmentId) -> String {
    key(account, &format!("hold:{}", id.0))
}

/// The keys of what is left of an allotment that is over.
fn kept_keys(account: &AccountName, id: &AllotmentId) -> [String; 2] {
    [hold_key(account, id), key(account, &format!("calls:{}", id.0))]
}

impl LendingRedis {
    /// The database at an address.
    pub(super) async fn open(url: &str) -> LendingRedis {
        let store = RedisStore::open(&at(url.to_owned())).await.expect("a store");
        let client = redis::Client::open(url).expect("an address");
        let beside = RefCell::new(client.get_connection().expect("a connection"));
        LendingRedis { store, beside }
    }

    fn read<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let read = redis::cmd(words[0]).arg(&words[1..]).query(&mut *self.beside.borrow_mut());
        read.unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    fn write(&self, commands: &redis::Pipeline) {
        commands.exec(&mut *self.beside.borrow_mut()).expect("written");
    }

    /// Ends an allotment as a version of the program does that takes it for the hold of a call, and
    /// finds its lease run out. Returns what was held.
    pub(super) fn expire_as_before(&self, account: &AccountName, id: &AllotmentId) -> i64 {
        let (balances, hold) = (key(account, "account"), hold_key(account, id));
        let amount: i64 = self.read(&["HGET", &hold, "held"]);
        let mut end = redis::pipe();
        end.atomic();
        end.cmd("HINCRBY").arg(&balances).arg("held").arg(-amount);
        end.cmd("HINCRBY").arg(&balances).arg("available").arg(amount);
        end.cmd("HSET").arg(&hold).arg(&["state", "expired", "posted", "0"]);
        end.cmd("HDEL").arg(&hold).arg("line");
        end.cmd("PEXPIRE").arg(&hold).arg(DAY_MS);
        end.cmd("ZREM").arg(key(account, "open")).arg(&id.0);
        self.write(&end);
        amount
    }

    /// Voids a call whose hold the store does not have, as a version of the program does that does
    /// not know allotments.
    pub(super) fn void_as_before(&self, account: &AccountName, call: &str) {
        let hold = key(account, &format!("hold:{call}"));
        let mut void = redis::pipe();
        void.atomic();
        void.cmd("HSET").arg(&hold).arg(&["state", "tombstone"]);
        void.cmd("PEXPIRE").arg(&hold).arg(DAY_MS);
        self.write(&void);
    }

    /// For how long an allotment that is over is still kept, and what its calls were charged then,
    /// in ms.
    pub(super) fn kept_for(&self, account: &AccountName, id: &AllotmentId) -> [i64; 2] {
        kept_keys(account, id).map(|key| self.read(&["PTTL", &key]))
    }

    /// Lets both go after `ms`.
    pub(super) fn keep_for(&self, account: &AccountName, id: &AllotmentId, ms: i64) {
        let mut expire = redis::pipe();
        for key in kept_keys(account, id) {
            expire.cmd("PEXPIRE").arg(key).arg(ms);
        }
        self.write(&expire);
    }
}

#[async_trait(?Send)]
impl LendingStore for LendingRedis {
    fn ledger(&self) -> &dyn Ledger {
        &self.store
    }

    async fn update(&self, account: &AccountName, update: &AllotmentUpdate) -> LedgerAnswer {
        let answer = self.store.update_allotment(account, update).await;
        answer.expect("an answer").expect("an account")
    }

    fn raw_balances(&self, account: &AccountName) -> [i64; 5] {
        let key = key(account, "account");
        let words: Vec<&str> = ["HMGET", key.as_str()].into_iter().chain(BALANCES).collect();
        let balances: Vec<i64> = self.read(&words);
        balances.try_into().expect("five")
    }

    fn recall_until(&self, account: &AccountName) -> i64 {
        let until: Option<i64> = self.read(&["HGET", &key(account, "account"), "recall_until"]);
        until.unwrap_or(0)
    }

    fn age_refund(&self, account: &AccountName, tx: &str, began_ago: i64, asked_ago: i64) {
        let transfers = key(account, "transfers");
        let stored: String = self.read(&["HGET", &transfers, tx]);
        let mut stored: serde_json::Value = serde_json::from_str(&stored).expect("JSON");
        assert!(stored["since"].is_string() && stored["asked_at"].is_string(), "{stored}");
        stored["since"] = (now() - began_ago).to_string().into();
        stored["asked_at"] = (now() - asked_ago).to_string().into();
        let mut write = redis::pipe();
        write.cmd("HSET").arg(&transfers).arg(tx).arg(stored.to_string());
        self.write(&write);
    }

    fn end_lease(&self, account: &AccountName, id: &AllotmentId) -> bool {
        let hold = hold_key(account, id);
        let state: Option<String> = self.read(&["HGET", &hold, "state"]);
        if state.as_deref() != Some("open") {
            return false;
        }
        let mut end = redis::pipe();
        end.atomic();
        end.cmd("HSET").arg(&hold).arg("lease_until").arg(1);
        end.cmd("ZADD").arg(key(account, "open")).arg(1).arg(&id.0);
        self.write(&end);
        true
    }
}
