//! The embedded store: SQLite on disk, with one writer at a time.
//!
//! Operations are queued, and one thread commits all that are queued in one transaction. A commit
//! does not wait for the disk, so a hold does not either. Payments and charges are acknowledged by
//! a second thread when the write-ahead log that contains them is on disk. That is what
//! `synchronous = FULL` promises, without making holds wait for the charges of other calls.

use async_trait::async_trait;
use rusqlite::Connection;

use crate::ledger::account::Balances;
use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, BudgetUse, HoldCursor, JournalEntry, KeyHash, KeyId,
    KeyPage, KeyRange, KeyRecord, KeyScope, Ledger, OpenHold, OpenLot, Operation, Receipt,
    Replaced, Replacement, SweepReport, TransferEntry, TransferPlace, Unavailable, WindowKind,
};
use crate::money::Money;

mod account_settings;
mod accounts;
mod allotment_rows;
mod allotments;
mod archive;
mod archive_rows;
mod budget_rows;
mod budgets;
mod cache_entries;
mod columns;
mod data_version;
mod deletion;
mod disk;
mod embedded_store;
mod file_identity;
mod hold_list;
mod hold_rows;
mod holds;
mod idempotency;
mod jobs;
mod kept_bytes;
mod keys;
mod kv_cache;
mod lending;
mod lot_check;
mod lot_rows;
mod lots;
mod older_tables;
mod operator_rows;
mod operators;
mod posted_lines;
mod queue;
mod rate_rows;
mod rates;
mod reader;
mod schema;
mod session_rows;
mod sessions;
mod snapshot;
mod statement_rows;
mod statements;
mod transfers;
mod usage;
mod usage_rows;
mod webhook_rows;
mod webhooks;
mod write_txn;
mod writer;

pub use embedded_store::SqliteStore;
pub(in crate::store) use file_identity::side_file;
pub(in crate::store) use snapshot::{CheckedCopy, SnapshotSource, check_copy, file_identity_of};
use write_txn::WriteTxn;
use writer::Priority;

/// One sweep deletes holds that ended long ago in at most this many steps.
const HOLD_PURGE_STEPS_MAX: u32 = 40;
/// The same for expired cache entries. They are large, so each step deletes fewer of them.
const ENTRY_PURGE_STEPS_MAX: u32 = 400;
/// The same for idempotency keys and for replies.
const REPLY_PURGE_STEPS_MAX: u32 = 100;

impl SqliteStore {
    /// Does what an update of an allotment asks; `None` if there is no such account. It is answered
    /// when it is committed, and is on disk after the next [`SqliteStore::sync`].
    ///
    /// # Errors
    /// [`Unavailable`] if it cannot be written.
    pub async fn update_allotment(
        &self,
        account: &AccountName,
        update: AllotmentUpdate,
    ) -> Result<Option<LedgerAnswer>, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::Now, move |txn| allotments::update(txn, &account, &update))
            .await
    }

    /// Waits until all that was committed before is on disk.
    ///
    /// # Errors
    /// [`Unavailable`] if the disk does not take it.
    pub async fn sync(&self) -> Result<(), Unavailable> {
        self.scheduler.run(Priority::NowDurable, |_| Ok(())).await
    }

    /// Returns the allotments of a gateway that hold something, or may, with their accounts and
    /// when they were lent first (unix ms). `run` is a part of their ids.
    ///
    /// # Errors
    /// [`Unavailable`] if it cannot be read.
    pub(in crate::store) async fn list_allotments(
        &self,
        run: &str,
    ) -> Result<Vec<(AccountName, AllotmentId, i64)>, Unavailable> {
        let run = run.to_owned();
        self.scheduler.run(Priority::Now, move |txn| allotments::list_of_run(txn.conn, &run)).await
    }
}

#[async_trait]
impl Ledger for SqliteStore {
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::NowDurable, move |txn| accounts::open(txn.conn, &account))
            .await
    }

    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a> {
        let account = account.clone();
        let when = match op {
            Operation::Credit { .. }
            | Operation::Grant { .. }
            | Operation::Take { .. }
            | Operation::Correct { .. } => Priority::NowDurable,
            Operation::Settle { .. } | Operation::Checkpoint { .. } => Priority::DeferredDurable,
            Operation::Hold { .. }
            | Operation::Extend { .. }
            | Operation::Renew { .. }
            | Operation::Void { .. } => Priority::Now,
        };
        Receipt::start(self.scheduler.run(when, move |txn| match &op {
            Operation::Credit { .. }
            | Operation::Grant { .. }
            | Operation::Take { .. }
            | Operation::Correct { .. } => transfers::apply(txn, &account, &op),
            op => holds::apply_operation(txn, &account, op),
        }))
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::Now, move |txn| allotments::shown_balances(txn, &account))
            .await
    }

    async fn account_deletion(&self, account: &AccountName) -> Result<Option<i64>, Unavailable> {
        let account = account.clone();
        let finding = move |txn: &mut WriteTxn<'_>| {
            Ok(txn.account_row(&account)?.and_then(|row| row.deleted_at))
        };
        self.scheduler.run(Priority::Now, finding).await
    }

    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.scheduler.run(Priority::Now, |txn| accounts::list(txn.conn)).await
    }

    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::Now, move |txn| accounts::read_journal(txn.conn, &account, seq, limit))
            .await
    }

    async fn list_lots(&self, account: &AccountName) -> Result<Vec<OpenLot>, Unavailable> {
        let account = account.clone();
        self.scheduler.run(Priority::Now, move |txn| lots::list(txn, &account)).await
    }

    async fn list_holds(
        &self,
        account: Option<&AccountName>,
        after: Option<&HoldCursor>,
        limit: u32,
    ) -> Result<Vec<OpenHold>, Unavailable> {
        let (account, after) = (account.cloned(), after.cloned());
        let listing =
            move |c: &Connection| hold_list::list(c, account.as_ref(), after.as_ref(), limit);
        self.reader.query(listing).await
    }

    async fn list_transfers(
        &self,
        account: &AccountName,
        skipped: u64,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        // An account may have very many, and the writer has others to serve.
        let account = account.clone();
        self.usage_reader.query(move |c| transfers::list(c, &account, skipped, limit)).await
    }

    async fn newest_transfers(
        &self,
        account: &AccountName,
        before: Option<&TransferPlace>,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        let (account, before) = (account.clone(), before.cloned());
        let listing =
            move |c: &Connection| transfers::list_newest(c, &account, before.as_ref(), limit);
        self.reader.query(listing).await
    }

    async fn journal_length(&self, account: &AccountName) -> Result<u64, Unavailable> {
        let account = account.clone();
        self.scheduler
            .run(Priority::Now, move |txn| accounts::journal_length(txn.conn, &account))
            .await
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        let swept = self.scheduler.run(Priority::NowDurable, holds::expire_due).await?;
        self.scheduler.run(Priority::NowDurable, lots::expire_due).await?;
        self.scheduler.run(Priority::Now, budgets::reconcile_holds).await?;
        self.scheduler.run(Priority::Now, rates::reconcile).await?;
        // The steps are small, so that no call waits long for the writer.
        for _ in 0..HOLD_PURGE_STEPS_MAX {
            if self.scheduler.run(Priority::Now, |txn| hold_rows::purge_ended(txn.conn)).await? == 0
            {
                break;
            }
        }
        for _ in 0..HOLD_PURGE_STEPS_MAX {
            let purging = |txn: &mut WriteTxn<'_>| allotment_rows::purge_ended(txn.conn);
            if self.scheduler.run(Priority::Now, purging).await? == 0 {
                break;
            }
        }
        for _ in 0..HOLD_PURGE_STEPS_MAX {
            if self.scheduler.run(Priority::Now, rates::purge_unused).await? == 0 {
                break;
            }
        }
        for _ in 0..ENTRY_PURGE_STEPS_MAX {
            if self
                .scheduler
                .run(Priority::Now, |txn| cache_entries::purge_expired(txn.conn))
                .await?
                == 0
            {
                break;
            }
        }
        for _ in 0..REPLY_PURGE_STEPS_MAX {
            if self.scheduler.run(Priority::Now, |txn| idempotency::purge_expired(txn.conn)).await?
                == 0
            {
                break;
            }
        }
        let bytes_max = self.kept_bytes_max;
        for _ in 0..REPLY_PURGE_STEPS_MAX {
            if self
                .scheduler
                .run(Priority::Now, move |txn| kept_bytes::evict_excess(txn.conn, bytes_max))
                .await?
                == 0
            {
                break;
            }
        }
        self.purge_operator_requests().await?;
        self.purge_sign_ins().await?;
        Ok(swept)
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        let adding = move |txn: &mut WriteTxn<'_>| {
            if !txn.has_living(&record.account)? {
                let why = format!("there is no account {}, or it is deleted", record.account);
                return Ok(Err(Unavailable(why)));
            }
            keys::add(txn.conn, hash, &record)
        };
        self.scheduler.run(Priority::NowDurable, adding).await?
    }

    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        self.scheduler.run(Priority::Now, move |txn| keys::find(txn.conn, hash)).await
    }

    async fn find_key_by_prefix(&self, prefix: &str) -> Result<Option<KeyRecord>, Unavailable> {
        let prefix = prefix.to_owned();
        self.scheduler.run(Priority::Now, move |txn| keys::find_by_prefix(txn.conn, &prefix)).await
    }

    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        let account = account.clone();
        self.scheduler.run(Priority::Now, move |txn| keys::list(txn.conn, &account)).await
    }

    async fn list_keys_in(
        &self,
        account: &AccountName,
        range: KeyRange,
    ) -> Result<KeyPage, Unavailable> {
        let account = account.clone();
        self.reader.query(move |c: &Connection| keys::list_in(c, &account, &range)).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        let prefix = prefix.to_owned();
        self.scheduler
            .run(Priority::NowDurable, move |txn| keys::revoke(txn.conn, &prefix, at))
            .await
    }

    async fn set_key_scope(
        &self,
        prefix: &str,
        scope: Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        let prefix = prefix.to_owned();
        let setting = move |txn: &mut WriteTxn<'_>| keys::set_scope(txn.conn, &prefix, &scope);
        self.scheduler.run(Priority::NowDurable, setting).await
    }

    async fn key_revision(&self) -> Result<u64, Unavailable> {
        self.scheduler.run(Priority::Now, |txn| keys::revision(txn.conn)).await
    }

    async fn set_budget(
        &self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> Result<bool, Unavailable> {
        let account = account.clone();
        let setting = move |txn: &mut WriteTxn<'_>| budgets::set(txn, &account, owner, kind, limit);
        self.scheduler.run(Priority::NowDurable, setting).await
    }

    async fn list_budgets(&self, account: &AccountName) -> Result<Vec<BudgetUse>, Unavailable> {
        let account = account.clone();
        self.scheduler.run(Priority::Now, move |txn| budgets::list(txn, &account, None)).await
    }

    async fn list_budgets_of(
        &self,
        account: &AccountName,
        keys: &[KeyId],
    ) -> Result<Vec<BudgetUse>, Unavailable> {
        let (account, keys) = (account.clone(), keys.to_vec());
        self.scheduler
            .run(Priority::Now, move |txn| budgets::list(txn, &account, Some(&keys)))
            .await
    }

    async fn set_account_settings(
        &self,
        account: &AccountName,
        settings: Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable> {
        let account = account.clone();
        let setting = move |txn: &mut WriteTxn<'_>| account_settings::set(txn, &account, &settings);
        self.scheduler.run(Priority::NowDurable, setting).await?
    }

    async fn account_settings(
        &self,
        account: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable> {
        let account = account.clone();
        let finding = move |txn: &mut WriteTxn<'_>| account_settings::find(txn, &account);
        self.scheduler.run(Priority::Now, finding).await?
    }

    async fn list_suspended(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.scheduler.run(Priority::Now, |txn| account_settings::list_suspended(txn.conn)).await
    }

    async fn note_key_uses(&self, uses: Vec<(KeyHash, i64)>) -> Result<(), Unavailable> {
        let noting = move |txn: &mut WriteTxn<'_>| account_settings::note_uses(txn.conn, &uses);
        self.scheduler.run(Priority::Now, noting).await
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        self.scheduler.run(Priority::Now, |_| Ok(())).await
    }
}
