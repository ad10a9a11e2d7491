//! Allotments: this process borrows money of a busy account from the store, makes the holds of its
//! calls out of it in memory, and tells the store of many ends at once.
//!
//! The ledger here stands before the outbox. An operation on a hold that it does not have in memory
//! goes to the outbox and the store, as always. docs/develop/allotments.md has the design.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::lent_money;
use super::outbox::{Outbox, OutboxTarget};
use super::redis::PendingEnds as _;
use crate::clock::boottime_ms;
use crate::failpoints::failpoint;
use crate::ledger::account::Balances;
use crate::ledger::prepaid::local::LocalAllotment;
use crate::ledger::prepaid::local::holds::{LocalExtension, NumberedEnd};
use crate::ledger::{
    AccountName, AccountSettings, BudgetOwner, BudgetUse, HoldCursor, JournalEntry, KeyHash, KeyId,
    KeyPage, KeyRange, KeyRecord, KeyScope, Ledger, OpenHold, OpenLot, Operation, Outcome, RateAsk,
    RateReading, Receipt, Replaced, Replacement, SweepReport, TransferEntry, TransferPlace,
    Unavailable, WindowKind,
};
use crate::money::{Money, MoneyError};

mod book;
mod busy_account;
mod end_replay;
mod shared_lender;
mod store;
mod upkeep;

pub(super) use book::AllotmentBook;
use book::{ANSWER_POLL, BusyAccount};

pub(super) use shared_lender::SharedLender;
pub(super) use upkeep::AllotmentUpkeep;

/// An extension that got less than it asked for is tried again for this long: other gateways give
/// back what they have free.
const EXTEND_FOR: Duration = Duration::from_millis(200);

/// A ledger that makes the holds of busy accounts in memory.
pub(super) struct AllotmentLedger<B> {
    outbox: Outbox<B>,
    book: Arc<AllotmentBook>,
    /// How long an operation is repeated whose money is lent.
    lent_wait: Duration,
}

/// What came of an operation on a hold in memory.
enum LocalStep {
    Done(Outcome),
    /// The store has to be asked first.
    Ask,
    /// The hold is voided here, and the store has to note it, too.
    VoidInStore,
}

impl<B: OutboxTarget> AllotmentLedger<B> {
    pub(super) fn new(
        outbox: Outbox<B>,
        book: Arc<AllotmentBook>,
        lent_wait: Duration,
    ) -> AllotmentLedger<B> {
        AllotmentLedger { outbox, book, lent_wait }
    }

    /// Does an operation on a hold in memory; `None` if there is no such hold here.
    fn apply_locally(&self, busy: &Arc<BusyAccount>, op: &Operation) -> Option<LocalStep> {
        let mut state = busy.lock();
        let local = state.find_open(op.hold_id()?)?;
        let step = match op {
            Operation::Credit { .. }
            | Operation::Grant { .. }
            | Operation::Take { .. }
            | Operation::Correct { .. }
            | Operation::Hold { .. } => return None,
            Operation::Renew { .. } => return Some(LocalStep::Done(Outcome::Done)),
            // The store has given back what it held.
            Operation::Extend { .. } if local.has_ended() => {
                return Some(LocalStep::Done(Outcome::HoldEnded));
            }
            Operation::Extend { id, wanted } => match local.extend(id, *wanted, boottime_ms()) {
                Ok(LocalExtension::Held(held)) => {
                    return Some(LocalStep::Done(Outcome::Held(held)));
                }
                Ok(LocalExtension::Ask) => LocalStep::Ask,
                Ok(LocalExtension::Unknown) => return None,
                Err(_) => return Some(LocalStep::Done(Outcome::OutOfRange)),
            },
            Operation::Checkpoint { id, charge, line } => {
                local.checkpoint(id, *charge, line);
                LocalStep::Done(Outcome::Done)
            }
            Operation::Settle { id, charge, line, tokens, .. } => {
                let ended = local.end(id, *charge, line, *tokens);
                failpoint!("end_in_memory");
                let posted = Outcome::Posted { amount: *charge, written_off: Money::ZERO };
                self.log_end(busy, local, ended, posted)
            }
            Operation::Void { id } => {
                let ended = local.void(id);
                let step = self.log_end(busy, local, ended, Outcome::Voided);
                // The owner of the hold lives, and somebody else has taken its claim over. The
                // store has to know, so that the call is not charged when it ends.
                if self.book.has_lease(&busy.name, id) { LocalStep::VoidInStore } else { step }
            }
        };
        if matches!(op, Operation::Settle { .. } | Operation::Void { .. }) {
            self.book.mark_due_later(busy, &mut state, boottime_ms());
        } else {
            self.book.mark_due(busy, &mut state);
        }
        Some(step)
    }

    /// Writes an end to the log, before the caller's answer goes out.
    fn log_end(
        &self,
        busy: &BusyAccount,
        local: &LocalAllotment,
        ended: Result<Option<NumberedEnd>, MoneyError>,
        outcome: Outcome,
    ) -> LocalStep {
        match ended {
            Ok(Some(NumberedEnd { seq, end })) => {
                self.book.ends.append(&busy.name, local.id(), local.lent_at(), seq, &end);
                failpoint!("end_written");
                LocalStep::Done(outcome)
            }
            Ok(None) => LocalStep::Done(outcome),
            Err(_) => LocalStep::Done(Outcome::OutOfRange),
        }
    }

    /// Raises a hold in memory after the store was asked for more.
    async fn extend_after_answer(
        &self,
        busy: Arc<BusyAccount>,
        op: Operation,
    ) -> Result<Outcome, Unavailable> {
        let end = Instant::now() + EXTEND_FOR;
        loop {
            sleep(ANSWER_POLL).await;
            match self.apply_locally(&busy, &op) {
                Some(LocalStep::Done(Outcome::Held(held)))
                    if held < op.wanted() && Instant::now() < end => {}
                Some(LocalStep::Done(outcome)) => return Ok(outcome),
                Some(LocalStep::Ask | LocalStep::VoidInStore) => {}
                None => return Ok(Outcome::HoldEnded),
            }
        }
    }

    /// Submits an operation to the store. While money that it needs is lent, it is repeated, and
    /// this process gives back what it has.
    async fn submit_to_store(
        &self,
        account: &AccountName,
        op: Operation,
    ) -> Result<Outcome, Unavailable> {
        lent_money::retry(
            || {
                let submitted = self.outbox.submit(account, op.clone());
                async {
                    let outcome = submitted.await?;
                    if lent_money::is_lent(&outcome)
                        && let Some(busy) = self.book.find(account)
                    {
                        let mut state = busy.lock();
                        state.all_mut().for_each(|local| local.observe(0, true, i64::MIN));
                        self.book.mark_due(&busy, &mut state);
                    }
                    Ok(outcome)
                }
            },
            lent_money::is_lent,
            self.lent_wait,
        )
        .await
    }
}

#[async_trait]
impl<B: OutboxTarget> Ledger for AllotmentLedger<B> {
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable> {
        self.outbox.open_account(account).await
    }

    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a> {
        if let Some(busy) = self.book.find(account) {
            match self.apply_locally(&busy, &op) {
                Some(LocalStep::Done(outcome)) => return Receipt::ready(Ok(outcome)),
                Some(LocalStep::Ask) => {
                    return Receipt::start(self.extend_after_answer(busy, op));
                }
                Some(LocalStep::VoidInStore) | None => {}
            }
        }
        if matches!(op, Operation::Hold { .. } | Operation::Extend { .. }) {
            return Receipt::start(self.submit_to_store(account, op));
        }
        self.outbox.submit(account, op)
    }

    fn hold_in_memory(
        &self,
        account: &AccountName,
        id: &str,
        key: Option<KeyId>,
        amount: Money,
        rates: &[RateAsk],
    ) -> Option<Vec<RateReading>> {
        let may_hold = self.outbox.log.is_writable() && self.outbox.store.may_hold();
        may_hold.then(|| self.book.hold(account, id, key, amount, rates)).flatten()
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        self.outbox.balances(account).await
    }

    async fn account_deletion(&self, account: &AccountName) -> Result<Option<i64>, Unavailable> {
        self.outbox.account_deletion(account).await
    }

    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.outbox.list_accounts().await
    }

    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable> {
        let page = self.outbox.read_journal(account, seq, limit).await?;
        let is_full = page.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
        if is_full || self.book.find(account).is_none() {
            return Ok(page);
        }
        self.book.tell_ends(account).await?;
        self.outbox.read_journal(account, seq, limit).await
    }

    async fn list_lots(&self, account: &AccountName) -> Result<Vec<OpenLot>, Unavailable> {
        self.outbox.list_lots(account).await
    }

    async fn list_holds(
        &self,
        account: Option<&AccountName>,
        after: Option<&HoldCursor>,
        limit: u32,
    ) -> Result<Vec<OpenHold>, Unavailable> {
        self.outbox.list_holds(account, after, limit).await
    }

    async fn list_transfers(
        &self,
        account: &AccountName,
        skipped: u64,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        self.outbox.list_transfers(account, skipped, limit).await
    }

    async fn newest_transfers(
        &self,
        account: &AccountName,
        before: Option<&TransferPlace>,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable> {
        self.outbox.newest_transfers(account, before, limit).await
    }

    async fn journal_length(&self, account: &AccountName) -> Result<u64, Unavailable> {
        self.book.tell_ends(account).await?;
        self.outbox.journal_length(account).await
    }

    async fn expire_holds(&self) -> Result<SweepReport, Unavailable> {
        self.outbox.expire_holds().await
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        self.outbox.add_key(hash, record).await
    }

    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        self.outbox.find_key(hash).await
    }

    async fn find_key_by_prefix(&self, prefix: &str) -> Result<Option<KeyRecord>, Unavailable> {
        self.outbox.find_key_by_prefix(prefix).await
    }

    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        self.outbox.list_keys(account).await
    }

    async fn list_keys_in(
        &self,
        account: &AccountName,
        range: KeyRange,
    ) -> Result<KeyPage, Unavailable> {
        self.outbox.list_keys_in(account, range).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        self.outbox.revoke_key(prefix, at).await
    }

    async fn set_key_scope(
        &self,
        prefix: &str,
        scope: Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable> {
        self.outbox.set_key_scope(prefix, scope).await
    }

    async fn key_revision(&self) -> Result<u64, Unavailable> {
        self.outbox.key_revision().await
    }

    async fn set_budget(
        &self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> Result<bool, Unavailable> {
        self.outbox.set_budget(account, owner, kind, limit).await
    }

    async fn list_budgets(&self, account: &AccountName) -> Result<Vec<BudgetUse>, Unavailable> {
        self.outbox.list_budgets(account).await
    }

    async fn list_budgets_of(
        &self,
        account: &AccountName,
        keys: &[KeyId],
    ) -> Result<Vec<BudgetUse>, Unavailable> {
        self.outbox.list_budgets_of(account, keys).await
    }

    async fn set_account_settings(
        &self,
        account: &AccountName,
        settings: Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable> {
        self.outbox.set_account_settings(account, settings).await
    }

    async fn account_settings(
        &self,
        account: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable> {
        self.outbox.account_settings(account).await
    }

    async fn list_suspended(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.outbox.list_suspended().await
    }

    async fn note_key_uses(&self, uses: Vec<(KeyHash, i64)>) -> Result<(), Unavailable> {
        self.outbox.note_key_uses(uses).await
    }

    async fn accepts_holds(&self) -> Result<(), Unavailable> {
        self.outbox.accepts_holds().await
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        self.outbox.ping().await
    }
}

#[cfg(test)]
mod tests;
