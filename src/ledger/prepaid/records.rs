//! What a store keeps of a prepaid account.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::lot::{CreditLot, CreditSource, LotAmounts, LotId};
use super::rate::{RateAsk, RateBucket, RateId};
use super::window::{KeyId, WindowId, WindowKind, WindowUse};
use crate::ledger::account::Balances;
use crate::money::Money;

/// The limits of a budget, by window. A window without a limit only counts.
pub type BudgetLimits = BTreeMap<WindowKind, Option<Money>>;

/// The record of the account itself, which every operation reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountHead {
    /// The sums of the account.
    pub balances: Balances,
    /// The open lots. The sum of what is available in them is A, of what is held H.
    pub lots: BTreeMap<LotId, CreditLot>,
    /// The account's own budgets.
    pub budgets: BudgetLimits,
    /// Whether there are records of keys.
    pub has_keys: bool,
    /// Whether new calls are refused.
    pub suspended: bool,
    /// Rises whenever what a gateway remembers of the account or its keys is no longer true.
    pub revision: u64,
    /// How many lines the journal has.
    pub lines: u64,
    /// When the last line was posted, in unix ms.
    pub posted_at: i64,
    /// How many allotments may have something free.
    pub lent_out: u32,
    /// Until then, in unix ms, nothing is lent, and allotments give back what they have free.
    pub recall_until: i64,
}

impl AccountHead {
    /// Makes the record of an account that has only balances: all its credit was paid in.
    #[must_use]
    pub fn from_balances(balances: Balances) -> AccountHead {
        AccountHead::with_lots(balances, BTreeMap::new())
    }

    /// Makes the record of an account that has these lots beside that of payments, to which the
    /// rest of the balances belongs. A version of the program that does not know lots draws credit
    /// without counting it there; what it drew counts as drawn from the first lots.
    #[must_use]
    pub fn with_lots(balances: Balances, granted: BTreeMap<LotId, CreditLot>) -> AccountHead {
        let (mut available, mut held) = (balances.available, balances.held);
        let mut lots = BTreeMap::new();
        for (id, lot) in granted.into_iter().rev() {
            let lot =
                CreditLot { available: lot.available.min(available), held: lot.held.min(held) };
            available = available.saturating_sub(lot.available);
            held = held.saturating_sub(lot.held);
            lots.insert(id, lot);
        }
        lots.insert(LotId::PAID, CreditLot { available, held });
        lots.retain(|_, lot: &mut CreditLot| !lot.is_empty());
        AccountHead { balances, lots, ..AccountHead::default() }
    }

    /// Returns the open lots beside that of payments, in the order in which they are drawn.
    pub fn granted_lots(&self) -> impl Iterator<Item = (LotId, CreditLot)> + '_ {
        self.lots.iter().filter(|(id, _)| **id != LotId::PAID).map(|(id, lot)| (*id, *lot))
    }
}

/// Whether a key may make calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyStatus {
    /// It may.
    #[default]
    Active,
    /// It may not, for now.
    Disabled,
    /// It never may again.
    Revoked,
}

/// What the ledger keeps of a key. A key without a record is active and has no budget.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyBudgets {
    /// Whether the key may make calls.
    pub status: KeyStatus,
    /// The budgets of the key.
    pub budgets: BudgetLimits,
}

/// A hold that the store itself keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectHold {
    /// The key of the call.
    pub key: Option<KeyId>,
    /// The amount that covers the call at its largest.
    pub wanted: Money,
    /// The least amount that was requested.
    pub least: Money,
    /// The amount that is or was set aside.
    pub held: Money,
    /// The lots that an open hold has drawn; they sum up to `held`.
    pub drawn: LotAmounts,
    /// The windows in which the hold and its charge count.
    pub windows: Vec<WindowId>,
    /// What the call took of rate limits.
    pub rates: Vec<RateAsk>,
    /// When the lease expires unless it is renewed, in unix ms.
    pub lease_until: i64,
    /// The state of the hold.
    pub state: DirectHoldState,
}

/// The states of a direct hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectHoldState {
    /// The hold is open. If it expires, the checkpoint is posted.
    Open {
        /// The cost so far, and the journal line for it.
        checkpoint: Option<(Money, String)>,
    },
    /// The call was charged with this amount.
    Posted(Money),
    /// The hold ended without a charge.
    Voided,
    /// The lease expired, and this amount was posted then.
    Expired(Money),
    /// The hold was voided before the request to place it arrived.
    Tombstone,
}

/// The id of an allotment: the run of the gateway that took it, and a count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllotmentId(pub String);

impl AllotmentId {
    /// The prefix of the ids, by which stores tell allotments apart from holds of calls.
    pub const PREFIX: &str = "allotment_";
}

/// One long hold of a gateway, out of which it makes the holds of its calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allotment {
    /// The lots that it has drawn. Their sum is what it holds.
    pub drawn: LotAmounts,
    /// What it may hold in each window. It counts as held there.
    pub slices: BTreeMap<WindowId, Money>,
    /// What it may use of rate limits.
    pub rates: BTreeMap<RateId, i64>,
    /// What its open streams have cost so far, by call. This is posted if it expires.
    pub checkpoints: BTreeMap<String, CallEnd>,
    /// When it was lent first, in unix ms.
    pub lent_at: i64,
    /// When the lease expires unless it is renewed, in unix ms.
    pub lease_until: i64,
    /// What its gateway needed when it last said so. The rest of it is free, and so is shown as
    /// available.
    pub needed: Money,
    /// How many calls were open then.
    pub open_calls: u32,
    /// The number of the last end that was posted.
    pub last_seq: u64,
    /// The number of the last message of its gateway.
    pub last_step: u64,
    /// Whether its gateway may have something of it free.
    pub may_be_free: bool,
    /// Whether its gateway was told that nothing is lent.
    pub tight: bool,
    /// The state of the allotment.
    pub state: AllotmentState,
}

/// The states of an allotment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllotmentState {
    /// Its gateway renews it.
    Open,
    /// A successor tells the ends of its gateway. A message of the gateway itself that comes late
    /// changes nothing any more, except that it may post ends.
    Fenced,
    /// The lease expired.
    Ended {
        /// What was posted then, by call.
        charged: BTreeMap<String, Money>,
    },
}

/// The end of a call whose hold was made out of an allotment, or its cost so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallEnd {
    /// The id of the call.
    pub call: String,
    /// The key of the call.
    pub key: Option<KeyId>,
    /// What was held for the call.
    pub held: Money,
    /// The charge; `None` if the call is not charged.
    pub charge: Option<Money>,
    /// The windows in which the hold was made.
    pub windows: Vec<WindowId>,
    /// The journal line, as JSON.
    pub line: String,
}

#[cfg(test)]
impl CallEnd {
    /// Makes the end of a call that held nothing and is not charged.
    pub(crate) fn uncharged(call: &str) -> CallEnd {
        CallEnd {
            call: call.to_owned(),
            key: None,
            held: Money::ZERO,
            charge: None,
            windows: Vec::new(),
            line: String::new(),
        }
    }
}

/// What a transfer was, beside its amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferKind {
    /// A payment.
    Payment,
    /// Credit with a source and perhaps an expiry.
    Grant(LotId),
    /// Money that was paid back.
    Take,
    /// Money of a charge that was given back. The text is the id of the request.
    Correction(String),
}

/// The wait of a refund for money that is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefundWait {
    /// Since when its caller has asked without a pause, in unix ms.
    pub since: i64,
    /// When its caller asked last, in unix ms.
    pub asked_at: i64,
}

/// The record of a transfer under its caller's id. It makes a repeat harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferRecord {
    /// What it was.
    pub kind: TransferKind,
    /// The amount that was asked for.
    pub amount: Money,
    /// When it was asked for first, in unix ms.
    pub at: i64,
    /// What was moved; `None` while a refund waits for money that is lent.
    pub moved: Option<Money>,
    /// The wait of a refund that waits.
    pub wait: Option<RefundWait>,
    /// Why, as its caller has said; empty if it has not.
    pub reason: String,
}

/// What a journal record is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordKind {
    /// A charge: P grows by the amount.
    Charge,
    /// A part of a charge was given back: P falls by the amount. The text is the transfer's id.
    Correction(String),
    /// A lot expired: C falls by the amount.
    Expiry(LotId),
}

/// A line of the journal, with the amounts that the machine computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRecord {
    /// The number of the line in the account's journal, from 1.
    pub seq: u64,
    /// When it was posted, in unix ms of the store. Never before the line before it.
    pub posted_at: i64,
    /// What it is about.
    pub kind: RecordKind,
    /// The id of the call; empty for an expiry.
    pub request: String,
    /// The key of the call.
    pub key: Option<KeyId>,
    /// The amount.
    pub amount: Money,
    /// The part of it that the account could not pay, or that is no longer its debt.
    pub written_off: Money,
    /// How far the charge is above its hold and a limit as well.
    pub over_budget: Money,
    /// The lots that paid, or that got money back.
    pub lots: LotAmounts,
    /// The windows in which it counts.
    pub windows: Vec<WindowId>,
    /// The line of the call, as JSON.
    pub line: String,
}

/// All that a store must write after an operation, in one transaction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountChanges {
    /// The new record of the account.
    pub head: Option<AccountHead>,
    /// New records of keys.
    pub keys: BTreeMap<KeyId, KeyBudgets>,
    /// New records of windows.
    pub windows: BTreeMap<WindowId, WindowUse>,
    /// New records of rate limits.
    pub rates: BTreeMap<RateId, RateBucket>,
    /// New records of direct holds.
    pub holds: BTreeMap<String, DirectHold>,
    /// New records of allotments.
    pub allotments: BTreeMap<AllotmentId, Allotment>,
    /// New records of transfers.
    pub transfers: BTreeMap<String, TransferRecord>,
    /// New lines of the journal.
    pub lines: Vec<JournalRecord>,
}

/// The records of an account that an operation needs: all of them in memory, in a store those that
/// the operation names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrepaidAccount {
    /// The record of the account itself.
    pub head: AccountHead,
    /// Records of keys.
    pub keys: BTreeMap<KeyId, KeyBudgets>,
    /// Records of windows.
    pub windows: BTreeMap<WindowId, WindowUse>,
    /// Records of rate limits. They may be lost: then the buckets are empty.
    pub rates: BTreeMap<RateId, RateBucket>,
    /// Records of direct holds.
    pub holds: BTreeMap<String, DirectHold>,
    /// Records of allotments.
    pub allotments: BTreeMap<AllotmentId, Allotment>,
    /// Records of transfers.
    pub transfers: BTreeMap<String, TransferRecord>,
    /// The journal, oldest line first.
    pub journal: Vec<JournalRecord>,
}

impl Allotment {
    /// Whether it holds something, or may.
    #[must_use]
    pub fn is_out(&self) -> bool {
        matches!(self.state, AllotmentState::Open | AllotmentState::Fenced)
    }
}

impl PrepaidAccount {
    /// Writes the changes of an operation.
    pub fn commit(&mut self, changes: AccountChanges) {
        if let Some(head) = changes.head {
            self.head = head;
        }
        self.keys.extend(changes.keys);
        self.windows.extend(changes.windows);
        self.rates.extend(changes.rates);
        self.holds.extend(changes.holds);
        self.allotments.extend(changes.allotments);
        self.transfers.extend(changes.transfers);
        self.journal.extend(changes.lines);
    }
}

/// Whether a lot can be paid back.
#[must_use]
pub(crate) fn is_refundable(lot: LotId) -> bool {
    lot.source == CreditSource::Paid
}
