//! What can be done to an account, and what comes of it.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use serde::{Deserialize, Serialize};

use crate::money::Money;

/// What can be done to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Adds credit.
    Credit {
        /// The caller's id of the payment.
        tx: String,
        /// How much.
        amount: Money,
    },
    /// Sets money aside: as much of `wanted` as there is, but not below `least`.
    Hold {
        /// The caller's id of the hold.
        id: String,
        /// What covers the call to the full.
        wanted: Money,
        /// Below it nothing is held.
        least: Money,
        /// For how long, in ms.
        lease_ms: u64,
    },
    /// Sets more money aside for a hold that stands: so much in all, as far as there is any. It
    /// never holds less afterwards.
    Extend {
        /// The hold.
        id: String,
        /// What is to be held in all.
        wanted: Money,
    },
    /// Extends a hold's lease to at least `lease_ms` from now.
    Renew {
        /// The hold.
        id: String,
        /// For how long, in ms.
        lease_ms: u64,
    },
    /// Says what a call has cost so far: what expiry would post.
    Checkpoint {
        /// The hold.
        id: String,
        /// The cost so far.
        charge: Money,
        /// The journal line that expiry would write, as JSON.
        line: String,
    },
    /// Charges a call and ends its hold.
    Settle {
        /// The hold.
        id: String,
        /// The cost.
        charge: Money,
        /// The journal line, as JSON.
        line: String,
        /// How the hold began: with it a store that lost the hold can settle it all the same.
        /// Without, a hold that is not known stays unknown.
        origin: Option<HoldRequest>,
    },
    /// Ends a hold without a charge. Of an unknown id it leaves a tombstone.
    Void {
        /// The hold.
        id: String,
    },
}

impl Operation {
    /// The id of the hold it is about; `None` for a payment.
    #[must_use]
    pub(crate) fn hold_id(&self) -> Option<&str> {
        match self {
            Operation::Credit { .. } => None,
            Operation::Hold { id, .. }
            | Operation::Extend { id, .. }
            | Operation::Renew { id, .. }
            | Operation::Checkpoint { id, .. }
            | Operation::Settle { id, .. }
            | Operation::Void { id } => Some(id),
        }
    }
}

/// What a hold was asked for with: the content by which a store knows it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRequest {
    /// What covers the call to the full.
    pub wanted: Money,
    /// Below it nothing is held.
    pub least: Money,
    /// When it was asked for, in unix ms.
    #[serde(default)]
    pub at: i64,
}

/// A hold that is not known is not settled any more after so long, in ms: a store remembers for a
/// day what became of one, and after that would charge it once more.
const HOLD_REQUEST_AGE_MAX_MS: u64 = 12 * 60 * 60 * 1_000;

impl HoldRequest {
    /// Whether a store that does not know the hold can only have lost it, at a moment (unix ms) by
    /// the store's own clock.
    #[must_use]
    pub(crate) fn is_recent(&self, now: i64) -> bool {
        now.abs_diff(self.at) < HOLD_REQUEST_AGE_MAX_MS
    }
}

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It had been done before.
    AlreadyDone,
    /// The id was used before, for something else.
    Conflict,
    /// So much is held now.
    Held(Money),
    /// The hold was made before.
    HoldExists {
        /// With so much.
        held: Money,
        /// Whether it still stands.
        open: bool,
    },
    /// There is not enough; so much is available.
    Insufficient(Money),
    /// The hold was voided before it came.
    Tombstoned,
    /// So much is posted for the hold.
    Posted {
        /// In all.
        amount: Money,
        /// Of this, what the account could not pay.
        written_off: Money,
    },
    /// The hold had been posted before, with so much.
    AlreadyPosted(Money),
    /// The hold ended without a charge, now or before.
    Voided,
    /// The hold no longer stands.
    HoldEnded,
    /// There is no such hold.
    UnknownHold,
    /// There is no such account.
    NoAccount,
    /// A sum would not fit; nothing was done.
    OutOfRange,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_counts_for_half_a_day_before_and_after_its_moment() {
        let half_a_day = 43_200_000;
        let of = |at| HoldRequest { wanted: Money::ZERO, least: Money::ZERO, at };
        for at in [0, 7, 1_800_000_000_000] {
            for (off, is_of_late) in [(0, true), (half_a_day - 1, true), (half_a_day, false)] {
                assert_eq!(of(at).is_recent(at + off), is_of_late, "{at} and {off} ms");
                assert_eq!(of(at).is_recent(at - off), is_of_late, "{off} ms before {at}");
            }
        }
        assert!(!of(i64::MIN).is_recent(i64::MAX));
    }

    #[test]
    fn every_operation_on_a_hold_names_it_and_a_payment_none() {
        let (id, amount, line) = ("h".to_owned(), Money::ZERO, String::new());
        let payment = Operation::Credit { tx: id.clone(), amount };
        assert_eq!(payment.hold_id(), None);
        for op in [
            Operation::Hold { id: id.clone(), wanted: amount, least: amount, lease_ms: 1 },
            Operation::Extend { id: id.clone(), wanted: amount },
            Operation::Renew { id: id.clone(), lease_ms: 1 },
            Operation::Checkpoint { id: id.clone(), charge: amount, line: line.clone() },
            Operation::Settle { id: id.clone(), charge: amount, line, origin: None },
            Operation::Void { id },
        ] {
            assert_eq!(op.hold_id(), Some("h"), "{op:?}");
        }
    }
}
