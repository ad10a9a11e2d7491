//! The store that a fleet of gateways shares: one Redis server, a master behind Sentinels, or a
//! cluster.
//!
//! Each operation is one fixed server-side script, which the server runs as one transaction. A
//! script is O(1) and uses only keys of one account, which share one hash tag. The time is always
//! that of the server's own clock. Operations travel on one connection, in the order in which they
//! were submitted.

use async_trait::async_trait;
use futures_util::future::try_join;
use redis::Value;

use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, BudgetUse, HoldCursor, JournalEntry, KeyHash, KeyId,
    KeyPage, KeyRange, KeyRecord, KeyScope, Ledger, OpenHold, OpenLot, Operation, Outcome, Receipt,
    Replaced, Replacement, SweepReport, TransferEntry, TransferPlace, Unavailable, WindowKind,
};
use crate::money::Money;

mod account_settings;
mod allotments;
mod aof_tail;
mod archive;
mod archive_scripts;
mod budgets;
mod client;
mod cluster;
mod config_check;
mod connection;
mod deletion;
mod deletion_scripts;
mod durability;
mod fleet;
mod forgotten;
mod hold_list;
mod idempotency;
mod jobs;
mod kept_bytes;
mod kept_counts;
mod key_by_id;
mod key_index;
mod key_records;
mod keys;
mod kv_cache;
mod lots;
mod operations;
mod operator_scripts;
mod operators;
mod rate_texts;
mod repair_cursor;
mod reply_parts;
mod run_fencing;
mod run_gate;
mod scripts;
mod sentinel;
mod server;
mod session_scripts;
mod sessions;
mod shared_store;
mod statement_scripts;
mod statements;
mod store_id;
mod stored_settings;
mod sweep;
mod topology;
mod transfer_index;
mod transfers;
mod usage;
mod usage_marks;
mod webhook_scripts;
mod webhooks;

pub(super) use fleet::{PendingEnds, RedisFleet};
pub(super) use run_fencing::ServerInfo;
pub(super) use run_gate::RunGate;
pub(super) use scripts::RunScripts;
pub use shared_store::RedisStore;
pub(super) use store_id::{StoredIds, derive_next_id};
pub(super) use usage_marks::UsageMarks;

use forgotten::ScriptAnswer;
use keys::{ACCOUNTS_KEY, AccountKeys, DUE_KEY};
use operations::{operation_call, parse_outcome, reply_strings};
use run_gate::Requirement;

use super::data_version::{LOTS_VERSION, TRANSFERS_VERSION};

/// The version of the data that an operation needs; `None` if each has it.
fn version_of(op: &Operation) -> Option<u32> {
    match op {
        Operation::Take { .. } | Operation::Correct { .. } => Some(TRANSFERS_VERSION),
        Operation::Grant { .. } => Some(LOTS_VERSION),
        _ => None,
    }
}

impl RedisStore {
    /// Applies an operation in whatever run the server is in, without asking the run gate.
    async fn apply_ungated(
        &self,
        account: &AccountName,
        op: &Operation,
    ) -> Result<Outcome, Unavailable> {
        let keys = AccountKeys::of(account);
        let script = self.scripts.money.for_operation(op);
        let call = operation_call(&keys, op).invocation(script);
        let reply = self.connection().await?.invoke_script(&call).await?;
        let outcome = match self.read_answer(&keys, op, &reply).await? {
            ScriptAnswer::Outcome(outcome) => outcome,
            ScriptAnswer::SendAgain(call) => {
                let call = call.invocation(script);
                let reply = self.connection().await?.invoke_script(&call).await?;
                parse_outcome(&reply_strings(&reply)?)?
            }
        };
        // Whoever follows the journals learns of it there: this process may end now.
        let due = redis::cmd("SADD").arg(DUE_KEY).arg(account.as_str()).to_owned();
        let _: i64 = self.connection().await?.query(&due).await.unwrap_or_default();
        Ok(outcome)
    }

    /// Returns about `about` accounts, beginning at the SSCAN cursor `cursor`, and the next cursor,
    /// which is 0 after the last account. An account may be returned twice.
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
        // The name is added to the set after the account exists, so that every name in the set has
        // an account.
        let added = redis::cmd("SADD").arg(ACCOUNTS_KEY).arg(account.as_str()).to_owned();
        let _: i64 = self.connection().await?.query(&added).await?;
        Ok(new)
    }

    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a> {
        Receipt::start(async move {
            if let Some(version) = version_of(&op) {
                // A name that is mistyped leaves the store as it is.
                let key = AccountKeys::of(account).account();
                let exists = redis::cmd("EXISTS").arg(key).to_owned();
                if self.connection().await?.query::<bool>(&exists).await? {
                    self.raise_version(version).await?;
                }
            }
            Ok(self.apply_gated(account, &op).await?.0)
        })
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        let shown = self.read_shown_balances(&AccountKeys::of(account)).await?;
        Ok(shown.map(|shown| shown.balances))
    }

    async fn account_deletion(&self, account: &AccountName) -> Result<Option<i64>, Unavailable> {
        self.read_deletion(account).await
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
        let page = self.read_lines(&AccountKeys::of(account), seq, limit, false).await?;
        let numbered = (page.after + 1..).zip(&page.lines);
        numbered.map(|(seq, text)| keys::parse_journal_entry(seq, text)).collect()
    }

    async fn list_lots(&self, account: &AccountName) -> Result<Vec<OpenLot>, Unavailable> {
        self.read_lots(account).await
    }

    async fn list_holds(
        &self,
        account: Option<&AccountName>,
        after: Option<&HoldCursor>,
        limit: u32,
    ) -> Result<Vec<OpenHold>, Unavailable> {
        self.read_holds(account, after, limit as usize).await
    }

    async fn list_transfers(
        &self,
        account: &AccountName,
        skipped: u64,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        self.read_transfers(account, skipped, limit).await
    }

    async fn newest_transfers(
        &self,
        account: &AccountName,
        before: Option<&TransferPlace>,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        self.read_newest_transfers(account, before, limit as usize).await
    }

    async fn journal_length(&self, account: &AccountName) -> Result<u64, Unavailable> {
        let found = self.find_archive_state(&AccountKeys::of(account)).await?;
        Ok(found.map_or(0, |state| state.lines))
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        let swept = self.sweep().await?;
        // The sweep of holds is more important, so a failed recount is only logged. The next sweep
        // recounts.
        if let Err(why) = self.recount_kept_bytes().await {
            log::warn!(
                event = "kept_bytes_update_failed", error:% = why;
                "kept bytes recount failed"
            );
        }
        Ok(swept)
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        self.write_key(hash, &record).await
    }

    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        let hash = hash.hex();
        let found = key_records::find(self.connection().await?, &hash).await?;
        if found.is_none() {
            let [plain, restricted] = key_records::record_keys(&hash);
            try_join(self.confirm_absence(&plain), self.confirm_absence(&restricted)).await?;
        }
        Ok(found)
    }

    async fn find_key_by_prefix(&self, prefix: &str) -> Result<Option<KeyRecord>, Unavailable> {
        key_by_id::find_by_prefix_or_id(self.connection().await?, prefix).await
    }

    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        key_records::list(self.connection().await?, account).await
    }

    async fn list_keys_in(
        &self,
        account: &AccountName,
        range: KeyRange,
    ) -> Result<KeyPage, Unavailable> {
        key_index::list_in(self.connection().await?, account, &range).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        key_records::revoke(self.connection().await?, prefix, at).await
    }

    async fn set_key_scope(
        &self,
        prefix: &str,
        scope: Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        self.write_scope(prefix, &scope).await
    }

    async fn key_revision(&self) -> Result<u64, Unavailable> {
        key_records::revision(self.connection().await?).await
    }

    async fn set_budget(
        &self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> Result<bool, Unavailable> {
        self.write_budget(account, owner, kind, limit).await
    }

    async fn list_budgets(&self, account: &AccountName) -> Result<Vec<BudgetUse>, Unavailable> {
        self.read_budgets(account, None).await
    }

    async fn list_budgets_of(
        &self,
        account: &AccountName,
        keys: &[KeyId],
    ) -> Result<Vec<BudgetUse>, Unavailable> {
        self.read_budgets(account, Some(keys)).await
    }

    async fn set_account_settings(
        &self,
        account: &AccountName,
        settings: Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable> {
        self.write_settings(account, &settings).await
    }

    async fn account_settings(
        &self,
        account: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable> {
        self.read_settings(account).await
    }

    async fn list_suspended(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.read_suspended().await
    }

    async fn note_key_uses(&self, uses: Vec<(KeyHash, i64)>) -> Result<(), Unavailable> {
        self.write_key_uses(&uses).await
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
