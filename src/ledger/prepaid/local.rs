//! Allotments on the side of a gateway: it makes the holds of its calls out of one, in memory.
//!
//! All times are those of the gateway's own monotonic clock, in ms. A right that the store gave
//! counts from the moment at which the gateway asked, so the two clocks need not agree.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{BTreeMap, BTreeSet};

use super::rate::{RateAsk, RateId};
use super::records::{AllotmentId, CallEnd};
use super::update::AllotmentUpdate;
use super::window::{KeyId, WindowId};
use crate::money::{Money, MoneyError};

pub mod holds;
pub mod messages;
pub mod rates;
mod windows;

use rates::LocalRates;
use windows::LocalWindows;

/// What a gateway has read of the revision may be this old, in ms. So nothing is held by what was
/// true a second ago, even where the store is not heard any more.
pub const REVISION_AGE_MAX_MS: i64 = 900;
/// A hold that a gateway made out of an allotment.
#[derive(Debug, Clone)]
struct LocalHold {
    key: Option<KeyId>,
    held: Money,
    /// What the call has asked for beside that.
    asked: Money,
    /// The message that asks the store for it.
    asked_step: u64,
    windows: Vec<WindowId>,
    rates: Vec<RateAsk>,
    /// What the call has cost so far.
    checkpoint: Option<(Money, String)>,
    /// Whether the next message tells it.
    is_checkpoint_new: bool,
    /// Whether the store may know a checkpoint of the call.
    is_told: bool,
}

/// The keys that may make holds.
#[derive(Debug, Clone)]
enum LentKeys {
    All,
    These(BTreeSet<KeyId>),
}

#[derive(Debug, Clone)]
struct InFlight {
    update: AllotmentUpdate,
    asked_at: i64,
}

/// An allotment, as its gateway has it.
#[derive(Debug, Clone)]
pub struct LocalAllotment {
    id: AllotmentId,
    lease_ms: u64,
    lent_at: i64,
    /// What the store holds for this gateway, or will after the message under way.
    lent: Money,
    /// The sum of open holds, of what they ask for, and of ends that are not told yet.
    used: Money,
    /// What was lent beyond what is used, and is not used yet.
    fresh: Money,
    fresh_until: i64,
    held_until: i64,
    windows: LocalWindows,
    rates: LocalRates,
    keys: LentKeys,
    open: BTreeMap<String, LocalHold>,
    ends: BTreeMap<u64, CallEnd>,
    last_seq: u64,
    known_seq: u64,
    step: u64,
    answered_step: u64,
    in_flight: Option<InFlight>,
    hold_until: i64,
    read_at: i64,
    revision: u64,
    seen_revision: u64,
    tight: bool,
    has_ended: bool,
    must_reload: bool,
}

impl LocalAllotment {
    /// Makes one that holds nothing yet. `now_ms` is the gateway's monotonic clock.
    #[must_use]
    pub fn new(id: AllotmentId, lease_ms: u64, now_ms: i64) -> LocalAllotment {
        LocalAllotment {
            id,
            lease_ms,
            lent_at: 0,
            lent: Money::ZERO,
            used: Money::ZERO,
            fresh: Money::ZERO,
            fresh_until: now_ms,
            held_until: now_ms,
            windows: LocalWindows::default(),
            rates: LocalRates::default(),
            keys: LentKeys::These(BTreeSet::new()),
            open: BTreeMap::new(),
            ends: BTreeMap::new(),
            last_seq: 0,
            known_seq: 0,
            step: 0,
            answered_step: 0,
            in_flight: None,
            hold_until: now_ms,
            read_at: now_ms,
            revision: 0,
            seen_revision: 0,
            tight: false,
            has_ended: false,
            must_reload: false,
        }
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> &AllotmentId {
        &self.id
    }

    /// When it was lent first, in unix ms of the store. The outbox keeps it with each end.
    #[must_use]
    pub fn lent_at(&self) -> i64 {
        self.lent_at
    }

    /// Whether it has expired at the store. A gateway then takes another one for new calls.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether no call is open and the store has all ends.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_told = self.ends.is_empty() && self.in_flight.is_none() && !self.must_reload;
        self.open.is_empty() && is_told
    }

    /// Whether a call is open whose hold was made out of it.
    #[must_use]
    pub fn has_open(&self, call: &str) -> bool {
        self.open.contains_key(call)
    }

    /// Returns the ids of the open calls.
    pub fn open_calls(&self) -> impl Iterator<Item = &str> {
        self.open.keys().map(String::as_str)
    }

    /// Whether there are open calls, or something that the store holds for this gateway.
    #[must_use]
    pub fn is_out(&self) -> bool {
        !self.open.is_empty() || self.lent > Money::ZERO
    }

    /// Whether it has money that neither open calls nor ends use.
    #[must_use]
    pub fn has_free(&self) -> bool {
        self.lent > self.used
    }

    /// Whether ends have not been told yet.
    #[must_use]
    pub fn has_untold(&self) -> bool {
        !self.ends.is_empty()
    }

    /// How many ends neither the store has nor the message under way tells.
    #[must_use]
    pub fn untold(&self) -> usize {
        let under_way = self.in_flight.as_ref().map_or(0, |message| message.update.ends.len());
        self.ends.len().saturating_sub(under_way)
    }

    /// The number of the first end that has not been told yet.
    #[must_use]
    pub fn first_untold(&self) -> Option<u64> {
        self.ends.keys().next().copied()
    }

    /// Whether holds of a key may be made out of it, as far as the windows of the key allow.
    #[must_use]
    pub fn is_lent_to(&self, key: KeyId) -> bool {
        match &self.keys {
            LentKeys::All => true,
            LentKeys::These(keys) => keys.contains(&key),
        }
    }

    /// What new calls of a key can hold as far as its own slices go; `None` if the key has none.
    #[must_use]
    pub fn free_of_key(&self, key: KeyId, now_ms: i64) -> Option<Money> {
        self.windows.free_of_key(key, now_ms)
    }

    /// What is free of a rate limit.
    #[must_use]
    pub fn free_of_rate(&self, id: RateId) -> i64 {
        self.rates.free(id)
    }

    /// Whether no holds are made out of it until the store lends again.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.tight
    }

    /// The number of the last end.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// The number of the last end that the store has.
    #[must_use]
    pub fn known_seq(&self) -> u64 {
        self.known_seq
    }

    /// Until when new holds may be made out of it, as far as its lease goes.
    #[must_use]
    pub fn hold_until(&self) -> i64 {
        self.hold_until
    }

    /// Whether a message waits for its answer.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.in_flight.is_some()
    }

    /// What is used: open holds, what they ask for, and ends that the store has not got yet.
    #[must_use]
    pub fn used(&self) -> Money {
        self.used
    }

    /// The same by window.
    #[must_use]
    pub fn used_in(&self) -> Vec<(WindowId, Money)> {
        self.windows.used().collect()
    }

    /// What new calls can hold now.
    #[must_use]
    pub fn free(&self, now_ms: i64) -> Money {
        if !self.may_hold(now_ms) || now_ms >= self.fresh_until {
            return Money::ZERO;
        }
        let free = self.lent.saturating_sub(self.used);
        // Of a lot that has expired since, only what runs may be used, and nothing of it again.
        if now_ms >= self.held_until { free.min(self.fresh) } else { free }
    }

    fn may_hold(&self, now_ms: i64) -> bool {
        !self.tight
            && !self.has_ended
            && self.seen_revision == self.revision
            && now_ms < self.hold_until
            && now_ms < self.read_at.saturating_add(REVISION_AGE_MAX_MS)
    }

    fn add_use(&mut self, amount: Money, windows: &[WindowId]) -> Result<(), MoneyError> {
        let used = self.used.checked_add(amount)?;
        self.windows.add(amount, windows)?;
        self.used = used;
        Ok(())
    }

    fn drop_use(&mut self, amount: Money, windows: &[WindowId]) -> Result<(), MoneyError> {
        self.used = self.used.checked_sub(amount)?;
        self.windows.subtract(amount, windows)
    }
}

/// What of an end comes out of the allotment: the charge, as far as its hold covered it.
fn use_of(end: &CallEnd) -> Money {
    end.charge.map_or(Money::ZERO, |charge| charge.min(end.held))
}
