//! The operations on an account, and their results.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use super::prepaid::lot::LotId;
use super::prepaid::rate::{RateAsk, RateId, RateReading};
use super::prepaid::window::{KeyId, WindowId};
use crate::money::Money;

/// An operation on an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds credit.
    Credit {
        /// The caller's id of the payment, which makes a repeat harmless.
        tx: String,
        /// The amount paid in.
        amount: Money,
    },
    /// Adds credit to a lot, which may expire. Credit whose expiry has passed expires at once.
    Grant {
        /// The caller's id of the grant, which makes a repeat harmless.
        tx: String,
        /// The amount granted.
        amount: Money,
        /// When the credit expires, and where it comes from.
        lot: LotId,
    },
    /// Pays credit back. Money that is lent to gateways is called back first, for at most
    /// [`TAKE_WAIT_MS`](super::prepaid::transfer::TAKE_WAIT_MS); what the account does not have is
    /// told as uncovered, which is final.
    Take {
        /// The caller's id of the refund, which makes a repeat harmless.
        tx: String,
        /// The amount to pay back.
        amount: Money,
        /// Why, for the people who read the list of payments. It may be empty.
        reason: String,
    },
    /// Gives back a part of a posted charge, by a line of its own in the journal.
    Correct {
        /// The caller's id of the correction, which makes a repeat harmless.
        tx: String,
        /// The id of the charged request.
        request: String,
        /// The numbers of the journal lines in which the request was charged, as a search has found
        /// them. Other lines are passed over.
        found: Vec<u64>,
        /// The amount to give back; of it, at most what is left of the charge is given.
        amount: Money,
        /// Why, for the people who read the journal. It may be empty.
        reason: String,
    },
    /// Places a hold: as much of `wanted` as is available, but not below `least`.
    Hold {
        /// The caller's id of the hold.
        id: String,
        /// The amount that covers the call at its largest.
        wanted: Money,
        /// If less than this is available, no hold is placed.
        least: Money,
        /// The lease of the hold, in ms.
        lease_ms: u64,
        /// The key of the call, in whose budgets it counts.
        key: Option<KeyId>,
        /// What the call takes of rate limits, each named once.
        rates: Vec<RateAsk>,
    },
    /// Raises an open hold to `wanted` in total, as far as the available balance allows. It never
    /// lowers the hold.
    Extend {
        /// The id of the hold.
        id: String,
        /// The amount that is to be held in total.
        wanted: Money,
    },
    /// Extends a hold's lease to at least `lease_ms` from now.
    Renew {
        /// The id of the hold.
        id: String,
        /// The new lease, in ms from now.
        lease_ms: u64,
    },
    /// Records what a call has cost so far. If the hold expires, this is charged.
    Checkpoint {
        /// The id of the hold.
        id: String,
        /// The cost so far.
        charge: Money,
        /// The journal line that is written if the hold expires, as JSON.
        line: String,
    },
    /// Charges a call and ends its hold.
    Settle {
        /// The id of the hold.
        id: String,
        /// The cost of the call.
        charge: Money,
        /// The journal line, as JSON.
        line: String,
        /// The request of the hold. With it, a store that lost the hold can settle it all the same;
        /// without it, settling an unknown hold fails.
        origin: Option<HoldRequest>,
        /// The tokens that the call has used, as rate limits count them; `None` if that is not
        /// known. Then what the hold has taken stands.
        tokens: Option<i64>,
    },
    /// Ends a hold without a charge. If the hold is unknown, a tombstone is left.
    Void {
        /// The id of the hold.
        id: String,
    },
}

impl Operation {
    /// Returns the id of the hold that the operation is about; `None` for payments, grants, refunds
    /// and corrections.
    #[must_use]
    pub(crate) fn hold_id(&self) -> Option<&str> {
        match self {
            Operation::Credit { .. }
            | Operation::Grant { .. }
            | Operation::Take { .. }
            | Operation::Correct { .. } => None,
            Operation::Hold { id, .. }
            | Operation::Extend { id, .. }
            | Operation::Renew { id, .. }
            | Operation::Checkpoint { id, .. }
            | Operation::Settle { id, .. }
            | Operation::Void { id } => Some(id),
        }
    }

    /// Returns the caller's id of a payment, a grant, a refund or a correction; `None` for any
    /// other operation.
    #[must_use]
    pub(crate) fn transfer_id(&self) -> Option<&str> {
        match self {
            Operation::Credit { tx, .. }
            | Operation::Grant { tx, .. }
            | Operation::Take { tx, .. }
            | Operation::Correct { tx, .. } => Some(tx),
            _ => None,
        }
    }

    /// Returns the amount that a hold or an extension asks for; nothing for any other operation.
    #[must_use]
    pub(crate) fn wanted(&self) -> Money {
        match self {
            Operation::Hold { wanted, .. } | Operation::Extend { wanted, .. } => *wanted,
            _ => Money::ZERO,
        }
    }
}

/// The amounts and the time with which a hold was requested. A store recognises a repeated request
/// by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRequest {
    /// The amount that covers the call at its largest.
    pub wanted: Money,
    /// If less than this is available, no hold is placed.
    pub least: Money,
    /// When the hold was requested, in unix ms.
    #[serde(default)]
    pub at: i64,
    /// The key of the call, in whose budgets it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was done.
    Done,
    /// The operation had been done before.
    AlreadyDone,
    /// The id was used before, for something else.
    Conflict,
    /// This amount is held now.
    Held(Money),
    /// This amount is held now, and the call is within its rate limits.
    HeldWithinRates {
        /// The amount.
        held: Money,
        /// What each rate limit that was asked for has left.
        rates: Vec<RateReading>,
    },
    /// A rate limit does not allow the call now.
    RateLimited {
        /// The limit; of several, the one that lets the call pass last.
        id: RateId,
        /// When to try again, in ms from now; `None` if that is not known.
        retry_after_ms: Option<i64>,
        /// What each rate limit that was asked for has left.
        rates: Vec<RateReading>,
    },
    /// This amount is held now. What is missing is lent to gateways, and was called back: the
    /// caller asks again in a moment.
    HeldInPart(Money),
    /// What the hold needs is lent to gateways, and was called back: the caller asks again in a
    /// moment.
    Wait,
    /// The hold was placed before.
    HoldExists {
        /// The amount that it holds.
        held: Money,
        /// Whether the hold is still open.
        open: bool,
    },
    /// Not enough is available; the value is what is available.
    Insufficient(Money),
    /// A budget does not allow the call until its window ends.
    BudgetExceeded {
        /// The window.
        window: WindowId,
        /// What the limit leaves once nothing is held.
        left: Money,
    },
    /// The part of a budget that the call needs is held for calls that run; the value is what can
    /// be held now.
    BudgetInUse(Money),
    /// The hold was voided before it arrived.
    Tombstoned,
    /// The hold was posted.
    Posted {
        /// The total amount posted for the hold.
        amount: Money,
        /// The part of it that the account could not pay.
        written_off: Money,
    },
    /// The hold had been posted before, with this amount.
    AlreadyPosted(Money),
    /// The hold ended without a charge, now or before.
    Voided,
    /// The hold has ended, so it cannot be changed.
    HoldEnded,
    /// There is no such hold.
    UnknownHold,
    /// Credit was paid back, now or before.
    Taken {
        /// The amount that was paid back.
        taken: Money,
        /// The amount that the account did not have.
        uncovered: Money,
    },
    /// This part of a charge was given back, now or before.
    Corrected(Money),
    /// No such request was charged.
    UnknownCharge,
    /// The account has as many open lots as it may have; nothing was done.
    TooManyLots,
    /// There is no such account.
    NoAccount,
    /// The account is deleted: nothing comes into it, and no call begins. Nothing was done.
    AccountDeleted,
    /// A sum would exceed the range of [`Money`]; nothing was done.
    OutOfRange,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_on_a_hold_names_it_and_a_payment_none() {
        let (id, amount, line) = ("h".to_owned(), Money::ZERO, String::new());
        let payment = Operation::Credit { tx: id.clone(), amount };
        assert_eq!(payment.hold_id(), None);
        for op in [
            Operation::Hold {
                id: id.clone(),
                wanted: amount,
                least: amount,
                lease_ms: 1,
                key: None,
                rates: Vec::new(),
            },
            Operation::Extend { id: id.clone(), wanted: amount },
            Operation::Renew { id: id.clone(), lease_ms: 1 },
            Operation::Checkpoint { id: id.clone(), charge: amount, line: line.clone() },
            Operation::Settle { id: id.clone(), charge: amount, line, origin: None, tokens: None },
            Operation::Void { id },
        ] {
            assert_eq!(op.hold_id(), Some("h"), "{op:?}");
        }
    }
}
