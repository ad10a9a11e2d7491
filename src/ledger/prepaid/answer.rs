//! What the operations on a prepaid account answer.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{BTreeMap, BTreeSet};

use super::rate::{RateId, RateReading, RateStatus};
use super::records::AccountChanges;
use super::window::{KeyId, WindowId};
use crate::money::Money;

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerAnswer {
    /// The operation was done.
    Done,
    /// The operation had been done before.
    AlreadyDone,
    /// The id was used before, for something else.
    Conflict,
    /// This amount is held now.
    Held {
        /// The amount.
        held: Money,
        /// The windows in which the hold counts.
        windows: Vec<WindowId>,
        /// What each rate limit that was asked for has left.
        rates: Vec<RateReading>,
    },
    /// This amount is held now, and what is missing is lent, and was called back. The caller asks
    /// again in a moment.
    HeldInPart {
        /// The amount.
        held: Money,
    },
    /// The hold was placed before.
    HoldExists {
        /// The amount that it holds.
        held: Money,
        /// Whether the hold is still open.
        open: bool,
        /// The windows in which the hold counts.
        windows: Vec<WindowId>,
    },
    /// The account cannot pay for the call, even after all its running calls have ended.
    Insufficient {
        /// The amount that is available.
        available: Money,
    },
    /// A budget does not allow the call until its window ends.
    BudgetExceeded {
        /// The window.
        window: WindowId,
        /// What the limit leaves once nothing is held.
        left: Money,
        /// When the window ends, in unix ms; `None` if it never does.
        resets_at: Option<i64>,
    },
    /// The money or the budget that the call needs is lent, and was called back. The caller asks
    /// again in a moment.
    Wait,
    /// The money or the budget that the call needs is held for calls that run.
    HeldElsewhere {
        /// What can be held now.
        room: Money,
    },
    /// A rate limit does not allow the call now.
    RateLimited {
        /// The bucket.
        id: RateId,
        /// When to try again, in ms from now; `None` if that is not known.
        retry_after_ms: Option<i64>,
        /// What each rate limit that was asked for has left.
        rates: Vec<RateReading>,
    },
    /// The account is suspended.
    Suspended,
    /// The key is disabled or revoked.
    KeyRefused,
    /// The hold was voided before it arrived.
    Tombstoned,
    /// The hold was posted.
    Posted {
        /// The total amount posted for the hold.
        amount: Money,
        /// The part of it that the account could not pay.
        written_off: Money,
        /// How far it is above its hold and a limit as well.
        over_budget: Money,
    },
    /// The hold had been posted before, with this amount.
    AlreadyPosted(Money),
    /// The hold ended without a charge, now or before.
    Voided,
    /// The hold has ended, so it cannot be changed.
    HoldEnded,
    /// There is no such hold.
    UnknownHold,
    /// What an allotment holds now.
    Status(Box<AllotmentStatus>),
    /// Ends are missing before the first one of the message. Nothing was done.
    MissingEnds {
        /// The number of the last end that was posted.
        last_seq: u64,
    },
    /// The allotment has expired. The ends of the message were posted late.
    AllotmentEnded {
        /// The number of the last end that was posted.
        last_seq: u64,
    },
    /// There is no such allotment, and it is too old to have been lost. Nothing was done.
    UnknownAllotment,
    /// The message has more parts than an operation may have. Nothing was done.
    TooMany,
    /// The account has as many open lots as it may have. Nothing was done.
    TooManyLots,
    /// Credit was paid back.
    Taken {
        /// The amount that was paid back.
        taken: Money,
        /// The amount that the account did not have.
        uncovered: Money,
        /// Whether it was done before.
        again: bool,
    },
    /// A part of a charge was given back.
    Corrected {
        /// The amount that was given back.
        given: Money,
        /// Whether it was done before.
        again: bool,
    },
    /// No such call was charged.
    UnknownCharge,
    /// A sum would exceed the range of [`Money`]; nothing was done.
    OutOfRange,
}

/// What an allotment holds, as its gateway is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllotmentStatus {
    /// The number of the message that this answers, or of a later one.
    pub step: u64,
    /// The number of the last end that was posted.
    pub last_seq: u64,
    /// When the allotment was lent first, in unix ms of the store.
    pub lent_at: i64,
    /// The sum that it holds.
    pub held: Money,
    /// The part of it that is beyond what the message said is needed.
    pub free: Money,
    /// How long that part may be used for new holds, in ms; `None` if no lot of it expires.
    pub free_for_ms: Option<i64>,
    /// How long any part may be used for new holds once its call has ended, in ms.
    pub held_for_ms: Option<i64>,
    /// What it may hold in each window.
    pub slices: BTreeMap<WindowId, WindowSlice>,
    /// The windows of the account and of the named keys that now run and count.
    pub current: BTreeSet<WindowId>,
    /// What it may use of the rate limits that the message named, and what they have beside that.
    pub rates: BTreeMap<RateId, RateStatus>,
    /// Whether no holds may be made out of the allotment, and all that becomes free goes back.
    pub tight: bool,
    /// The keys of the message that are disabled or revoked.
    pub refused_keys: BTreeSet<KeyId>,
    /// The keys of the message that may make holds out of the allotment.
    pub lent_keys: BTreeSet<KeyId>,
    /// Whether any key may, since neither the account nor a key of it has a budget or is refused.
    pub open_to_all: bool,
    /// The revision of the account.
    pub revision: u64,
}

/// What an allotment may hold in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSlice {
    /// The amount.
    pub amount: Money,
    /// How long the window still runs, in ms; `None` if it never ends.
    pub for_ms: Option<i64>,
}

/// The result of an operation, with all changes that the store must write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountStep {
    /// The answer for the caller.
    pub answer: LedgerAnswer,
    /// What the store writes, in one transaction.
    pub changes: AccountChanges,
}
