//! The shared store: one Redis (or Sentinel, or Cluster) for a fleet of gateways.
//!
//! Each operation is one fixed server-side script: the storage engine's transaction, O(1), on keys
//! of one account under one hash tag. Time is the server's own. Operations travel on one
//! connection in the order they were made.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::{FromRedisValue, RedisError, Value};
use tokio::sync::OnceCell;

use super::StoreSection;
use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, HoldRequest, JournalEntry, KeyHash, KeyRecord, Ledger, Operation, Outcome,
    SweepReport, Unavailable,
};
use crate::money::Money;

mod aof_tail;
mod cluster;
mod config_check;
mod connection;
mod durability;
mod idempotency;
mod jobs;
mod kept_bytes;
mod keys;
mod kv_cache;
mod run_fencing;
mod scripts;
mod sentinel;
mod server;
mod store_id;
mod sweep;
mod topology;

use run_fencing::Requirement;
pub(super) use run_fencing::{RunGate, ServerInfo};
pub(super) use scripts::RunScripts;
pub(super) use store_id::{StoredIds, derive_next_id};
pub(super) use topology::Topology;

use connection::RedisConnection;
use jobs::IndexRepair;
use kept_bytes::KeptBytes;
use keys::AccountKeys;
use scripts::{ScriptCall, Scripts};

/// Time limit for a response. Callers set shorter deadlines of their own.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

type ConnectFuture<'a> =
    Pin<Box<dyn Future<Output = Result<RedisConnection, Unavailable>> + Send + 'a>>;

/// The set of all accounts' names.
const ACCOUNTS_KEY: &str = "tollgate:accounts";

/// The shared store. It connects when it is first used, so that its connection lives on the
/// runtime that uses it.
pub struct RedisStore {
    section: StoreSection,
    connected: Arc<OnceCell<RedisConnection>>,
    scripts: Arc<Scripts>,
    index_repair: IndexRepair,
    kept_bytes: Arc<KeptBytes>,
    /// Shared by all connections of a process that serves.
    pub(super) topology: Arc<Topology>,
    /// If set, money is only moved as it allows.
    run_gate: Option<Arc<RunGate>>,
}

impl From<RedisError> for Unavailable {
    fn from(why: RedisError) -> Unavailable {
        Unavailable(why.to_string())
    }
}

impl RedisStore {
    /// A store that is not connected yet.
    #[must_use]
    pub fn new(section: StoreSection) -> RedisStore {
        let kept_bytes = Arc::new(KeptBytes::new(section.kept_bytes_max));
        RedisStore {
            section,
            connected: Arc::default(),
            scripts: Arc::default(),
            index_repair: IndexRepair::default(),
            kept_bytes,
            topology: Arc::default(),
            run_gate: None,
        }
    }

    /// Another handle on the same, for what goes on in the background.
    fn clone_handle(&self) -> RedisStore {
        RedisStore {
            section: self.section.clone(),
            connected: self.connected.clone(),
            scripts: self.scripts.clone(),
            index_repair: IndexRepair::default(),
            kept_bytes: self.kept_bytes.clone(),
            topology: self.topology.clone(),
            run_gate: self.run_gate.clone(),
        }
    }

    /// A store that is not connected yet, and moves money only as its guard allows.
    pub(super) fn with_run_gate(section: StoreSection, gate: Arc<RunGate>) -> RedisStore {
        let topology = gate.topology.clone();
        RedisStore { run_gate: Some(gate), topology, ..RedisStore::new(section) }
    }

    /// Another connection to the same store, for operations that move no money.
    pub(super) fn separate_connection(&self) -> RedisStore {
        RedisStore { topology: self.topology.clone(), ..RedisStore::new(self.section.clone()) }
    }

    /// Connects, and refuses a server that may lose or drop what it acknowledged.
    ///
    /// # Errors
    /// [`Unavailable`] says why.
    pub async fn open(section: &StoreSection) -> Result<RedisStore, Unavailable> {
        let redis = RedisStore::new(section.clone());
        redis.connection().await?;
        Ok(redis)
    }

    /// Connects, if that is not done already.
    pub(super) async fn connect(&self) -> Result<(), Unavailable> {
        self.connection().await.map(drop)
    }

    /// The connection, opened on first use. Connecting continues even if the first caller stops
    /// waiting: otherwise a server with a slow handshake would never be connected to.
    async fn connection(&self) -> Result<&RedisConnection, Unavailable> {
        if self.connected.get().is_none() {
            let (section, connected) = (self.section.clone(), self.connected.clone());
            let topology = self.topology.clone();
            let opening = tokio::spawn(async move {
                let connecting = || connect_and_check(&section, topology);
                connected.get_or_try_init(connecting).await.map(|_| ())
            });
            opening.await.map_err(|why| Unavailable(why.to_string()))??;
        }
        self.connected.get().ok_or_else(|| Unavailable("not connected".to_owned()))
    }

    /// Does an operation in whatever run the server is.
    async fn apply_ungated(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        let call = operation_call(&AccountKeys::of(account), op);
        let script = self.scripts.money.for_operation(op);
        let reply = self.connection().await?.invoke_script(&call.invocation(script)).await?;
        parse_outcome(&reply_strings(&reply)?)
    }

    async fn read_balances(&self, keys: &AccountKeys) -> Result<Option<Balances>, Unavailable> {
        let mut read = redis::cmd("HMGET");
        read.arg(keys.account()).arg(&["credit", "available", "held", "posted", "written_off"]);
        let fields: Vec<Option<i64>> = self.connection().await?.query(&read).await?;
        let all: Option<Vec<i64>> = fields.into_iter().collect();
        let Some([credit, available, held, posted, written_off]) = all.as_deref() else {
            return Ok(None);
        };
        let money = |nano: &i64| Money::from_nano(*nano).map_err(|e| Unavailable(e.to_string()));
        Ok(Some(Balances {
            credit: money(credit)?,
            available: money(available)?,
            held: money(held)?,
            posted: money(posted)?,
            written_off: money(written_off)?,
        }))
    }

    /// About `about` accounts from a cursor of the server on, and the next cursor, which is 0 after
    /// the last. An account may be returned twice.
    async fn scan_accounts(
        &self,
        cursor: u64,
        about: u32,
    ) -> Result<(u64, Vec<AccountName>), Unavailable> {
        let mut scan = redis::cmd("SSCAN");
        scan.arg(ACCOUNTS_KEY).arg(cursor).arg("COUNT").arg(about);
        let (next, names): (u64, Vec<String>) = self.connection().await?.query(&scan).await?;
        Ok((next, names.iter().filter_map(|name| AccountName::parse(name)).collect()))
    }
}

/// Connects, checks the server, and gives it the scripts.
async fn connect_and_check(
    section: &StoreSection,
    topology: Arc<Topology>,
) -> Result<RedisConnection, Unavailable> {
    // Without its type: the library's futures are too deep for the compiler.
    let opening: ConnectFuture<'_> = Box::pin(RedisConnection::open(section, topology));
    let connection = opening.await?;
    config_check::check_server(&connection, section.allow_volatile).await?;
    connection.load_scripts(&Scripts::default().all()).await?;
    Ok(connection)
}

#[async_trait]
impl Ledger for RedisStore {
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable> {
        let keys = AccountKeys::of(account);
        let mut made = redis::cmd("HSETNX");
        let mut fields = redis::pipe();
        fields.atomic();
        for field in ["available", "held", "posted", "written_off"] {
            fields.cmd("HSETNX").arg(keys.account()).arg(field).arg(0).ignore();
        }
        made.arg(keys.account()).arg("credit").arg(0);
        fields.add_command(made);
        let (new,): (bool,) = self.connection().await?.query_pipeline(&fields).await?;
        // After the account, so that a name in the set always is one.
        let added = redis::cmd("SADD").arg(ACCOUNTS_KEY).arg(account.as_str()).to_owned();
        let _: i64 = self.connection().await?.query(&added).await?;
        Ok(new)
    }

    async fn apply(&self, account: &AccountName, op: Operation) -> Result<Outcome, Unavailable> {
        Ok(self.apply_gated(account, &op).await?.0)
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        self.read_balances(&AccountKeys::of(account)).await
    }

    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        let names: Vec<String> =
            self.connection().await?.query(redis::cmd("SMEMBERS").arg(ACCOUNTS_KEY)).await?;
        let mut names: Vec<_> = names.iter().filter_map(|n| AccountName::parse(n)).collect();
        names.sort();
        Ok(names)
    }

    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let keys = AccountKeys::of(account);
        let mut range = redis::cmd("LRANGE");
        range.arg(keys.journal()).arg(seq).arg(seq.saturating_add(u64::from(limit) - 1));
        let lines: Vec<String> = self.connection().await?.query(&range).await?;
        let numbered = (seq + 1..).zip(&lines);
        numbered.map(|(seq, text)| keys::parse_journal_entry(seq, text)).collect()
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        let swept = self.sweep().await?;
        // Holds come first; what is not counted now is counted by the next sweep.
        if let Err(why) = self.recount_kept_bytes().await {
            log::warn!(event = "kept_bytes_update_failed", why:% = why; "kept bytes recount failed");
        }
        Ok(swept)
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        keys::add(self.connection().await?, hash, &record).await
    }

    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        let hash = hash.hex();
        let found = keys::find(self.connection().await?, &hash).await?;
        if found.is_none() {
            self.confirm_absence(&keys::record_key(&hash)).await?;
        }
        Ok(found)
    }

    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        keys::list(self.connection().await?, account).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        keys::revoke(self.connection().await?, prefix, at).await
    }

    async fn accepts_holds(&self) -> Result<(), Unavailable> {
        self.connection().await?;
        match &self.run_gate {
            Some(gate) => gate.await_allowed_run(Requirement::WritableOutbox).await.map(drop),
            None => Ok(()),
        }
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        let _: Value = self.connection().await?.query(&redis::cmd("PING")).await?;
        match &self.run_gate {
            Some(gate) => gate.check_open(),
            None => Ok(()),
        }
    }
}

/// The keys and arguments of an operation's script.
fn operation_call(keys: &AccountKeys, op: &Operation) -> ScriptCall {
    let mut call = ScriptCall::default();
    call.key(keys.account());
    if let Some(id) = op.hold_id() {
        call.key(keys.hold(id)).key(keys.open_holds()).arg(id);
    }
    match op {
        Operation::Credit { tx, amount } => {
            call.key(keys.payments()).arg(tx).arg(amount.nano());
        }
        Operation::Hold { wanted, least, lease_ms, .. } => {
            call.arg(wanted.nano()).arg(least.nano()).arg(*lease_ms);
        }
        Operation::Extend { wanted, .. } => {
            call.arg(wanted.nano());
        }
        Operation::Renew { lease_ms, .. } => {
            call.arg(*lease_ms);
        }
        Operation::Checkpoint { charge, line, .. } => {
            call.arg("").arg(charge.nano()).arg(line);
        }
        Operation::Settle { charge, line, origin, .. } => {
            call.key(keys.journal()).arg(charge.nano()).arg(line);
            if let Some(HoldRequest { wanted, least, at }) = origin {
                call.arg(wanted.nano()).arg(least.nano()).arg(*at);
            }
        }
        Operation::Void { .. } => {}
    }
    call
}

/// A script's reply.
fn reply_strings(reply: &Value) -> Result<Vec<String>, Unavailable> {
    Vec::from_redis_value_ref(reply).map_err(|e| Unavailable(format!("unexpected answer: {e}")))
}

/// Parses a script's reply: a word, then amounts as digits.
fn parse_outcome(words: &[String]) -> Result<Outcome, Unavailable> {
    let amount = |at: usize| {
        let digits = words.get(at).and_then(|w| w.parse().ok());
        digits
            .and_then(|nano| Money::from_nano(nano).ok())
            .ok_or_else(|| Unavailable(format!("unexpected answer: {words:?}")))
    };
    Ok(match words.first().map(String::as_str) {
        Some("done") => Outcome::Done,
        Some("exists") => Outcome::AlreadyDone,
        Some("conflict") => Outcome::Conflict,
        Some("held") => Outcome::Held(amount(1)?),
        Some("hold_exists") => {
            let open = words.get(2).is_some_and(|state| state == "open");
            Outcome::HoldExists { held: amount(1)?, open }
        }
        Some("insufficient") => Outcome::Insufficient(amount(1)?),
        Some("tombstoned") => Outcome::Tombstoned,
        Some("posted") => Outcome::Posted { amount: amount(1)?, written_off: amount(2)? },
        Some("already_posted") => Outcome::AlreadyPosted(amount(1)?),
        Some("voided") => Outcome::Voided,
        Some("gone") => Outcome::HoldEnded,
        Some("unknown") => Outcome::UnknownHold,
        Some("no_account") => Outcome::NoAccount,
        Some("out_of_range") => Outcome::OutOfRange,
        _ => return Err(Unavailable(format!("unexpected answer: {words:?}"))),
    })
}
