//! What a gateway tells the store about its allotment.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::rate::{RateDemand, RateId};
use super::records::{AllotmentId, CallEnd};
use super::window::{KeyId, WindowId};
use crate::money::Money;

/// One message has at most this many ends. A gateway has at most this many open holds out of one
/// allotment, so that an allotment has at most this many checkpoints, too.
pub const CALLS_MAX: usize = 1_024;
/// One allotment has slices of at most this many keys.
pub const KEYS_MAX: usize = 32;
/// One allotment has at most this many slices: five windows of the account and of each key, and as
/// many that have ended while a hold still names them.
pub const SLICES_MAX: usize = 2 * 5 * (KEYS_MAX + 1);
/// The open holds out of one allotment count in at most this many windows. Calls of ever new keys
/// may run for long, and a message with more than [`SLICES_MAX`] windows is refused. The other half
/// is for windows of which something is kept.
pub const WINDOWS_USED_MAX: usize = SLICES_MAX / 2;
/// One allotment has slices of at most this many rate limits.
pub const RATES_MAX: usize = 256;

/// A message of a gateway about its allotment. The store does all of it, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllotmentUpdate {
    /// The allotment.
    pub allotment: AllotmentId,
    /// The number of the message, from 1. A number that the store knows changes nothing. 0 stands
    /// for whoever tells the ends of a gateway that is gone; from then on no message of the gateway
    /// itself lends, gives back or notes anything.
    pub step: u64,
    /// When the allotment was lent first, in unix ms of the store, as far as the sender knows.
    pub lent_at: i64,
    /// The number of the first end.
    pub first_seq: u64,
    /// The ends of calls, one number after the other.
    pub ends: Vec<CallEnd>,
    /// Whether the ends before the first one are lost for good, so that the store does not wait.
    pub earlier_lost: bool,
    /// Whether the allotment ends with this message, since its gateway is gone and nothing is left
    /// to tell.
    pub retires: bool,
    /// What open calls have cost so far.
    pub checkpoints: Vec<CallEnd>,
    /// What the gateway needs and wants; `None` leaves the allotment as it is.
    pub demand: Option<AllotmentDemand>,
    /// The new lease, in ms.
    pub lease_ms: u64,
}

/// What a gateway needs of an allotment, and what it would like to have free beside that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllotmentDemand {
    /// The sum of what open holds have, of ends that are not told yet, and of what open calls ask
    /// for more.
    pub needed: Money,
    /// The same by window.
    pub needed_in: BTreeMap<WindowId, Money>,
    /// How many calls are open.
    pub open_calls: u32,
    /// What must not be taken back, since the gateway goes on making holds out of it until it has
    /// the answer. It includes what is needed.
    pub kept: Money,
    /// The same by window.
    pub kept_in: BTreeMap<WindowId, Money>,
    /// What should be free beside what is needed.
    pub free: Money,
    /// The quote of the largest call that asks.
    pub quote: Money,
    /// What should be free of the budgets of each key beside what is needed.
    pub keys: BTreeMap<KeyId, Money>,
    /// What was used of rate limits, and what is wanted of them.
    pub rates: BTreeMap<RateId, RateDemand>,
}

impl AllotmentUpdate {
    /// Makes a message that only tells ends, as a successor does.
    #[must_use]
    pub fn replay(
        allotment: AllotmentId,
        lent_at: i64,
        first_seq: u64,
        ends: Vec<CallEnd>,
    ) -> AllotmentUpdate {
        AllotmentUpdate {
            allotment,
            step: 0,
            lent_at,
            first_seq,
            ends,
            earlier_lost: false,
            retires: false,
            checkpoints: Vec::new(),
            demand: None,
            lease_ms: 0,
        }
    }

    /// Whether the message is small enough for one operation.
    pub(crate) fn is_bounded(&self) -> bool {
        let demand = self.demand.as_ref();
        let is_demand_bounded = |demand: &AllotmentDemand| {
            demand.keys.len() <= KEYS_MAX
                && demand.needed_in.len() <= SLICES_MAX
                && demand.kept_in.len() <= SLICES_MAX
                && demand.rates.len() <= RATES_MAX
        };
        self.ends.len() <= CALLS_MAX
            && self.checkpoints.len() <= CALLS_MAX
            && demand.is_none_or(is_demand_bounded)
    }
}
