//! The ledger: prepaid credit, holds, and charges that are made once.
//!
//! An account's credit C and write-offs W came in; its available A, held H and posted P say where
//! the money is now: `C + W = A + H + P`, and none is ever negative. A hold is first open, and then
//! posted, voided or expired. Every operation has an id that its caller chose; a repeated operation
//! changes nothing.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use async_trait::async_trait;

use crate::money::Money;

pub mod account;
mod account_name;
mod account_settings;
mod book_name;
pub mod budget;
mod deletion;
pub mod in_memory;
mod journal;
pub(crate) mod journal_search;
mod json_text;
pub mod key;
mod key_scope;
pub mod lease;
pub mod open_hold;
mod operation;
pub mod prepaid;
mod receipt;
mod replacement;
mod transfer_entry;

pub use account::Balances;
pub use account_name::AccountName;
pub use account_settings::{AccountSettings, PlanName};
pub use book_name::BookName;
pub use budget::BudgetUse;
pub use deletion::{AccountRemains, DeletionMark};
pub(crate) use journal::{BookedAmount, JournalLine, PricedUsage, ServedCall};
pub use journal::{EntryKind, JournalEntry};
pub(crate) use json_text::{push_number, push_string};
pub use key::{KeyHash, KeyOrder, KeyPage, KeyPlace, KeyRange, KeyRecord};
pub use key_scope::{KeyScope, ScopeFault, matches_pattern, parse_network};
pub use lease::Lease;
pub use lease::Leases;
pub use open_hold::{HoldCursor, OpenHold, OpenHoldKind};
pub use operation::{HoldRequest, Operation, Outcome};
pub use prepaid::lot::{CreditLot, CreditSource, LotId, NEVER_EXPIRES, OPEN_LOTS_MAX, OpenLot};
pub use prepaid::rate::{RateAsk, RateId, RateKind, RateLimit, RateReading};
pub use prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind};
pub use receipt::Receipt;
pub use replacement::{Replaced, Replacement};
pub use transfer_entry::{TransferEntry, TransferPlace, TransferType};

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// The number of expired holds that the sweep ended.
    pub expired: u64,
    /// The number of holds that are still open.
    pub open: u64,
    /// The sum of the open holds.
    pub held: Money,
}

/// The store cannot be reached, or does not answer in time. The text is the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the ledger is unavailable: {0}")]
pub struct Unavailable(pub String);

/// The interface to the accounts. Every store gives the results of the state machine in
/// [`prepaid`].
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Opens an account; `false` if it exists already, or is deleted.
    async fn open_account(&self, account: &AccountName) -> Result<bool, Unavailable>;
    /// Submits an operation on an account. When this returns, the operation is on its way to the
    /// store.
    fn submit<'a>(&'a self, account: &'a AccountName, op: Operation) -> Receipt<'a>;
    /// Holds `amount` for a call of a key out of what this process has borrowed of the account,
    /// and takes `rates` of its limits. Returns what each limit has left; `None` if the hold has to
    /// be placed by [`Ledger::submit`]. All other operations on the hold go there.
    fn hold_in_memory(
        &self,
        _account: &AccountName,
        _id: &str,
        _key: Option<KeyId>,
        _amount: Money,
        _rates: &[RateAsk],
    ) -> Option<Vec<RateReading>> {
        None
    }
    /// Returns an account's balances; `None` if there is no such account. What gateways have
    /// borrowed and not used counts as available.
    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable>;
    /// Returns when an account was deleted, in unix seconds; `None` if it was not, or there is no
    /// such account.
    async fn account_deletion(&self, account: &AccountName) -> Result<Option<i64>, Unavailable>;
    /// Returns all accounts, ordered by name, also those that are deleted: they have their books.
    async fn list_accounts(&self) -> Result<Vec<AccountName>, Unavailable>;
    /// Returns entries of an account's journal after `seq`, oldest first, at most `limit`.
    async fn read_journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<JournalEntry>, Unavailable>;
    /// Returns the open lots of an account beside that of payments, in the order in which they are
    /// drawn. Of a lot whose time has come nothing is available.
    async fn list_lots(&self, account: &AccountName) -> Result<Vec<OpenLot>, Unavailable>;
    /// Returns open holds of an account, or of all accounts (`None`), in the order of their
    /// cursors, those after `after`, at most `limit`. Fewer are all that follow. A hold whose lease
    /// is renewed meanwhile may be there twice; none that stays open is missed.
    async fn list_holds(
        &self,
        account: Option<&AccountName>,
        after: Option<&HoldCursor>,
        limit: u32,
    ) -> Result<Vec<OpenHold>, Unavailable>;
    /// Returns what came into an account and went back beside charges: payments, grants, refunds
    /// and corrections, oldest first, without the first `skipped`, at most `limit`.
    async fn list_transfers(
        &self,
        account: &AccountName,
        skipped: u64,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable>;
    /// Returns what [`Ledger::list_transfers`] does, newest first: those before the place `before`,
    /// or from the newest one on, at most `limit`.
    async fn newest_transfers(
        &self,
        account: &AccountName,
        before: Option<&TransferPlace>,
        limit: u32,
    ) -> Result<Vec<TransferEntry>, Unavailable>;
    /// Returns the number of the last entry of an account's journal; 0 if it is empty.
    async fn journal_length(&self, account: &AccountName) -> Result<u64, Unavailable>;
    /// Ends every hold whose lease has expired: posts its checkpoint and releases the rest.
    async fn expire_holds(&self) -> Result<SweepReport, Unavailable>;
    /// Adds an API key. A deleted account gets none.
    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable>;
    /// Returns the record of an API key; `None` if it is unknown.
    async fn find_key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable>;
    /// Returns the record of the API key that is listed under a prefix; `None` if there is none.
    async fn find_key_by_prefix(&self, prefix: &str) -> Result<Option<KeyRecord>, Unavailable>;
    /// Returns the API keys of an account, oldest first.
    async fn list_keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable>;
    /// Returns a part of what [`Ledger::list_keys`] does. It costs what the part has, however many
    /// keys there are.
    async fn list_keys_in(
        &self,
        account: &AccountName,
        range: KeyRange,
    ) -> Result<KeyPage, Unavailable>;
    /// Revokes the API key that is listed under a prefix, at the time `at` (unix seconds); `false`
    /// if there is none.
    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable>;
    /// Replaces the scope of the API key that is listed under a prefix. A scope that cannot be read
    /// is not replaced: what it restricts is not known.
    ///
    /// A version of the program that knows no scopes does not find the key any more.
    async fn set_key_scope(
        &self,
        prefix: &str,
        scope: Replacement<KeyScope>,
    ) -> Result<Replaced, Unavailable>;
    /// Returns a number that rises when a key is revoked or its scope changes.
    async fn key_revision(&self) -> Result<u64, Unavailable>;
    /// Sets the limit of a budget, or removes it (`None`). What was spent stays spent, and a window
    /// whose limit was removed counts on. `false` if there is no such account, or it is deleted.
    ///
    /// A version of the program that knows no budgets does not find the keys that a budget is about
    /// any more: all keys of the account, or the one key.
    async fn set_budget(
        &self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> Result<bool, Unavailable>;
    /// Returns the budgets of an account and of its keys that have, or had, a limit, with what is
    /// used of the windows that run now; in order.
    async fn list_budgets(&self, account: &AccountName) -> Result<Vec<BudgetUse>, Unavailable>;
    /// Returns the budgets of an account and of some of its keys, as [`Ledger::list_budgets`] does.
    async fn list_budgets_of(
        &self,
        account: &AccountName,
        keys: &[KeyId],
    ) -> Result<Vec<BudgetUse>, Unavailable>;
    /// Replaces what is set of an account. All its keys are looked up again, as after
    /// [`Ledger::set_key_scope`].
    ///
    /// A version of the program that knows no plans does not find the keys of the account any more.
    async fn set_account_settings(
        &self,
        account: &AccountName,
        settings: Replacement<AccountSettings>,
    ) -> Result<Replaced, Unavailable>;
    /// Returns the settings of an account; `None` if there is no such account. One that is deleted
    /// is suspended.
    async fn account_settings(
        &self,
        account: &AccountName,
    ) -> Result<Option<AccountSettings>, Unavailable>;
    /// Returns the accounts that are suspended, in order.
    async fn list_suspended(&self) -> Result<Vec<AccountName>, Unavailable>;
    /// Notes when keys were last used, in unix seconds. An earlier time than the one that is known
    /// changes nothing, and neither does a key that is unknown.
    async fn note_key_uses(&self, uses: Vec<(KeyHash, i64)>) -> Result<(), Unavailable>;
    /// Whether new holds are accepted now. If this fails, the caller has sent nothing to the store
    /// yet, so it has nothing to void.
    async fn accepts_holds(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    /// Checks that the store answers.
    async fn ping(&self) -> Result<(), Unavailable>;
}

/// What a store does to delete accounts.
#[async_trait]
pub trait AccountEraser: Send + Sync {
    /// Marks an account as deleted, if it has nothing left. That is checked in the same step, so no
    /// hold, payment or grant comes in between. From then on the store refuses whatever would put
    /// something into the account, its keys are not found, and keys, budgets and settings are
    /// refused.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot be reached. Then the account may be marked.
    async fn mark_deleted(&self, account: &AccountName) -> Result<DeletionMark, Unavailable>;
    /// Returns the accounts that are deleted, in order.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot be reached.
    async fn list_deleted(&self) -> Result<Vec<AccountName>, Unavailable>;
    /// Erases what an account that is deleted has beside its books: keys, settings, budgets, rate
    /// limits, idempotency keys with their replies, cache entries and video jobs. An account that
    /// is not deleted keeps everything. The same again erases what is left.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot be reached. Then a part may be erased.
    async fn erase_account(&self, account: &AccountName) -> Result<(), Unavailable>;
}

/// Money set aside for one call. Only a ledger makes a hold, and ending the hold consumes it. So no
/// vendor is called without a hold, and no hold is settled twice.
#[derive(Debug)]
#[must_use = "a hold must be settled or voided"]
pub struct Hold {
    account: AccountName,
    id: String,
    held: Money,
    origin: HoldRequest,
    is_in_memory: bool,
    /// What each rate limit of the call has left, in the order in which they were asked for.
    rates: Vec<RateReading>,
    /// Reports that the hold was dropped; `None` once its end was handed to a ledger.
    report_drop: Option<fn(&Hold)>,
}

/// Why no hold was placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldRefused {
    /// The available balance is too small.
    #[error("the balance does not cover the call")]
    Insufficient {
        /// The least amount that the call needs.
        least: Money,
        /// The amount that is available.
        available: Money,
    },
    /// A budget does not allow the call until its window ends.
    #[error("the budget does not cover the call")]
    BudgetExceeded {
        /// The window of the budget.
        window: WindowId,
        /// The least amount that the call needs.
        least: Money,
        /// What the limit leaves once nothing is held.
        left: Money,
    },
    /// The part of a budget that the call needs is held for calls that run.
    #[error("the budget is held for other calls")]
    BudgetInUse {
        /// The least amount that the call needs.
        least: Money,
        /// What can be held now.
        left: Money,
    },
    /// A rate limit does not allow the call now.
    #[error("the call is above the rate limit {id}")]
    RateLimited {
        /// The limit.
        id: RateId,
        /// When to try again, in ms from now; `None` if that is not known.
        retry_after_ms: Option<i64>,
        /// What each rate limit that was asked for has left.
        rates: Vec<RateReading>,
    },
    /// The id was used before for another hold, or for one that has ended.
    #[error("the id was used before")]
    Conflict,
    /// The account does not exist, or is deleted.
    #[error("there is no such account")]
    NoAccount,
    /// The money is lent to a gateway that has not given it back in time.
    #[error("the money is lent to another gateway")]
    Lent,
    /// The store cannot be reached, or does not answer in time.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Holds all that a call wants out of what this process has borrowed of its
/// account; `None` if the hold has to be placed in the store.
pub fn hold_in_memory(
    ledger: &dyn Ledger,
    account: &AccountName,
    id: &str,
    origin: HoldRequest,
    rates: &[RateAsk],
) -> Option<Hold> {
    let HoldRequest { wanted, key, .. } = origin;
    let rates = ledger.hold_in_memory(account, id, key, wanted, rates)?;
    let (account, id) = (account.clone(), id.to_owned());
    let (held, report_drop) = (wanted, None);
    Some(Hold { account, id, held, origin, is_in_memory: true, rates, report_drop })
}

/// Places a hold for a call, which takes `rates` of its limits.
///
/// # Errors
/// See [`HoldRefused`]. After [`HoldRefused::Unavailable`] the hold may have been placed all the
/// same, so the caller voids its id.
pub async fn place_hold(
    ledger: &dyn Ledger,
    account: &AccountName,
    id: &str,
    origin: HoldRequest,
    rates: &[RateAsk],
    lease_ms: u64,
) -> Result<Hold, HoldRefused> {
    let HoldRequest { wanted, least, key, .. } = origin;
    let rates = rates.to_vec();
    let op = Operation::Hold { id: id.to_owned(), wanted, least, lease_ms, key, rates };
    let placed = |held, rates| {
        let (account, id) = (account.clone(), id.to_owned());
        let report_drop = None;
        Ok(Hold { account, id, held, origin, is_in_memory: false, rates, report_drop })
    };
    match ledger.submit(account, op).await? {
        Outcome::HeldWithinRates { held, rates } => placed(held, rates),
        Outcome::Held(held) | Outcome::HoldExists { held, open: true } => placed(held, Vec::new()),
        Outcome::RateLimited { id, retry_after_ms, rates } => {
            Err(HoldRefused::RateLimited { id, retry_after_ms, rates })
        }
        Outcome::Insufficient(available) => Err(HoldRefused::Insufficient { least, available }),
        Outcome::BudgetExceeded { window, left } => {
            Err(HoldRefused::BudgetExceeded { window, least, left })
        }
        Outcome::BudgetInUse(left) => Err(HoldRefused::BudgetInUse { least, left }),
        Outcome::NoAccount | Outcome::AccountDeleted => Err(HoldRefused::NoAccount),
        Outcome::Wait => Err(HoldRefused::Lent),
        Outcome::HoldExists { open: false, .. }
        | Outcome::Conflict
        | Outcome::HeldInPart(_)
        | Outcome::Tombstoned
        | Outcome::Done
        | Outcome::AlreadyDone
        | Outcome::Posted { .. }
        | Outcome::AlreadyPosted(_)
        | Outcome::Voided
        | Outcome::HoldEnded
        | Outcome::UnknownHold
        | Outcome::Taken { .. }
        | Outcome::Corrected(_)
        | Outcome::UnknownCharge
        | Outcome::TooManyLots
        | Outcome::OutOfRange => Err(HoldRefused::Conflict),
    }
}

impl Hold {
    /// Makes the hold that a store placed together with a job, from the values in the job. The
    /// job's worker needs it to end the hold. If it is dropped, the job still has these values.
    pub(crate) fn resume(
        account: AccountName,
        id: String,
        key: Option<KeyId>,
        held: Money,
        placed_at: i64,
    ) -> Hold {
        let origin = HoldRequest { wanted: held, least: held, at: placed_at, key };
        let (rates, report_drop) = (Vec::new(), None);
        Hold { account, id, held, origin, is_in_memory: false, rates, report_drop }
    }

    /// Calls `report` if the hold is dropped before its end was handed to a ledger. Nothing else is
    /// done about it then: the money stays held until the lease of the hold runs out.
    pub fn report_drop_to(mut self, report: fn(&Hold)) -> Hold {
        self.report_drop = Some(report);
        self
    }

    /// What each rate limit of the call has left, in the order in which they were asked for. Empty
    /// if the call has none.
    #[must_use]
    pub fn rates(&self) -> &[RateReading] {
        &self.rates
    }

    /// Whether the hold is in the memory of this process, out of an allotment.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// The account whose money is held.
    #[must_use]
    pub fn account(&self) -> &AccountName {
        &self.account
    }

    /// The id of the hold.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The amount that is held.
    #[must_use]
    pub fn held(&self) -> Money {
        self.held
    }

    /// The amounts and the time with which the hold was requested.
    #[must_use]
    pub fn origin(&self) -> HoldRequest {
        self.origin
    }

    /// Raises the hold to `wanted` in total, as far as the available balance allows. Returns the
    /// amount now held.
    ///
    /// # Errors
    /// The store could not be reached, or has no open hold of this id.
    pub async fn extend(
        &mut self,
        ledger: &dyn Ledger,
        wanted: Money,
    ) -> Result<Money, Unavailable> {
        let op = Operation::Extend { id: self.id.clone(), wanted };
        match ledger.submit(&self.account, op).await? {
            Outcome::Held(held) | Outcome::HeldInPart(held) => {
                self.held = held;
                Ok(held)
            }
            other => Err(Unavailable(format!("the hold was not extended: {other:?}"))),
        }
    }

    /// Charges the call and ends the hold. `tokens` are those that the call has used, as rate
    /// limits count them, if they are known.
    ///
    /// # Errors
    /// Returns the hold, for another try, if the store could not be reached.
    pub async fn settle(
        self,
        ledger: &dyn Ledger,
        charge: Money,
        line: &str,
        tokens: Option<i64>,
    ) -> Result<Outcome, (Hold, Unavailable)> {
        let (id, line) = (self.id.clone(), line.to_owned());
        let op = Operation::Settle { id, charge, line, origin: Some(self.origin), tokens };
        self.end(ledger, op).await
    }

    /// Ends the hold without a charge.
    ///
    /// # Errors
    /// Returns the hold, for another try, if the store could not be reached.
    pub async fn void(self, ledger: &dyn Ledger) -> Result<Outcome, (Hold, Unavailable)> {
        let op = Operation::Void { id: self.id.clone() };
        self.end(ledger, op).await
    }

    async fn end(
        mut self,
        ledger: &dyn Ledger,
        op: Operation,
    ) -> Result<Outcome, (Hold, Unavailable)> {
        let receipt = ledger.submit(&self.account, op);
        // The end is on its way to the store from here on, also if nobody waits for the answer.
        let report_drop = self.report_drop.take();
        match receipt.await {
            Ok(outcome) => Ok(outcome),
            Err(why) => {
                self.report_drop = report_drop;
                Err((self, why))
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(report) = self.report_drop {
            report(self);
        }
    }
}
