//! What a gateway tells the store about an allotment, and what it makes of the answers.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::super::answer::{AllotmentStatus, LedgerAnswer};
use super::super::rate::RateId;
use super::super::records::CallEnd;
use super::super::update::{AllotmentDemand, AllotmentUpdate, CALLS_MAX};
use super::super::window::KeyId;
use super::holds::call_end;
use super::rates::RateLoad;
use super::{InFlight, LentKeys, LocalAllotment, use_of};
use crate::money::{Money, MoneyError};

/// An allotment has at least so many quotes free.
const FREE_QUOTES_MIN: i64 = 8;

/// What a gateway would like to have free, from what it saw lately.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllotmentLoad {
    /// What should be free; nothing if the account is idle.
    pub free: Money,
    /// The quote of the largest call.
    pub quote: Money,
    /// What should be free for each key.
    pub keys: BTreeMap<KeyId, Money>,
    /// What should be free of rate limits.
    pub rates: BTreeMap<RateId, RateLoad>,
}

impl AllotmentLoad {
    /// Returns what should be free: what was held anew lately, and room for eight calls at least;
    /// of money in nano-USD, of a rate limit in its units.
    #[must_use]
    pub fn free_for(recent: i64, quote: i64) -> i64 {
        recent.max(quote.saturating_mul(FREE_QUOTES_MIN))
    }
}

impl LocalAllotment {
    /// Notes what a probe of the store has read: the revision, and whether what is free is called
    /// back. `asked_at` is when the probe was sent.
    pub fn observe(&mut self, revision: u64, is_recalled: bool, asked_at: i64) {
        self.read_at = self.read_at.max(asked_at);
        self.seen_revision = self.seen_revision.max(revision);
        self.tight |= is_recalled;
    }

    /// Makes the next message; the one that is under way again if its answer did not come.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn next_update(
        &mut self,
        load: &AllotmentLoad,
        now_ms: i64,
    ) -> Result<AllotmentUpdate, MoneyError> {
        if let Some(in_flight) = &self.in_flight {
            return Ok(in_flight.update.clone());
        }
        let next_seq = self.known_seq.saturating_add(1);
        let first_seq = self.ends.keys().next().copied().unwrap_or(next_seq);
        let in_order = (first_seq..).zip(&self.ends).take_while(|(seq, (known, _))| seq == *known);
        let ends = in_order.map(|(_, (_, end))| end.clone()).take(CALLS_MAX);
        let ends: Vec<CallEnd> = ends.collect();
        let earlier_lost = first_seq > next_seq && !self.must_reload;
        let update = if self.has_ended {
            let (id, lent_at) = (self.id.clone(), self.lent_at);
            AllotmentUpdate {
                earlier_lost,
                ..AllotmentUpdate::replay(id, lent_at, first_seq, ends)
            }
        } else {
            self.step = self.step.saturating_add(1);
            let demand = Some(self.demand(load, &ends, now_ms)?);
            AllotmentUpdate {
                allotment: self.id.clone(),
                step: self.step,
                lent_at: self.lent_at,
                first_seq,
                ends,
                earlier_lost,
                retires: false,
                checkpoints: self.checkpoints(),
                demand,
                lease_ms: self.lease_ms,
            }
        };
        self.in_flight = Some(InFlight { update: update.clone(), asked_at: now_ms });
        Ok(update)
    }

    fn checkpoints(&mut self) -> Vec<CallEnd> {
        let mut told = Vec::new();
        for (call, hold) in &mut self.open {
            if let Some((charge, line)) =
                hold.checkpoint.as_ref().filter(|_| hold.is_checkpoint_new)
            {
                told.push(call_end(call, hold, Some(*charge), line));
                (hold.is_checkpoint_new, hold.is_told) = (false, true);
            }
        }
        told
    }

    /// What is needed once the ends of the message are posted, and what is kept for new holds. All
    /// else is given back, so it is not used from here on.
    fn demand(
        &mut self,
        load: &AllotmentLoad,
        ends: &[CallEnd],
        now_ms: i64,
    ) -> Result<AllotmentDemand, MoneyError> {
        let mut needed = self.used;
        for end in ends {
            needed = needed.checked_sub(use_of(end))?;
        }
        let free = self.free(now_ms).min(load.free);
        let windows = self.windows.demand(ends, free, &load.keys, now_ms)?;
        self.lent = self.lent.min(self.used.checked_add(free)?);
        Ok(AllotmentDemand {
            needed,
            needed_in: windows.needed,
            open_calls: u32::try_from(self.open.len()).unwrap_or(u32::MAX),
            kept: needed.checked_add(free)?,
            kept_in: windows.kept,
            free: load.free,
            quote: load.quote,
            keys: load.keys.clone(),
            rates: self.rates.demand(&load.rates, self.may_hold(now_ms)),
        })
    }

    /// Notes the answer to the message under way.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn receive(&mut self, answer: &LedgerAnswer) -> Result<(), MoneyError> {
        let Some(in_flight) = self.in_flight.take() else { return Ok(()) };
        match answer {
            LedgerAnswer::Status(status) if self.has_ended => {
                self.acknowledge(status.last_seq)?;
            }
            LedgerAnswer::Status(status) if status.step == in_flight.update.step => {
                self.acknowledge(status.last_seq)?;
                self.answered_step = status.step;
                self.rates.adopt(&status.rates);
                self.adopt(status, in_flight.asked_at);
            }
            LedgerAnswer::MissingEnds { last_seq } => {
                (self.known_seq, self.must_reload) = (*last_seq, true);
            }
            LedgerAnswer::AllotmentEnded { last_seq } => {
                self.acknowledge(*last_seq)?;
                self.has_ended = true;
            }
            // Nobody can charge them any more.
            LedgerAnswer::UnknownAllotment => self.acknowledge(self.last_seq)?,
            // The store knows a later message, so this one was overtaken; the next one counts.
            LedgerAnswer::Status(status) => {
                self.step = self.step.max(status.step);
            }
            _ => self.in_flight = Some(in_flight),
        }
        Ok(())
    }

    fn adopt(&mut self, status: &AllotmentStatus, asked_at: i64) {
        let until =
            |for_ms: Option<i64>| for_ms.map_or(i64::MAX, |for_ms| asked_at.saturating_add(for_ms));
        self.lent_at = status.lent_at;
        self.lent = status.held;
        self.fresh = status.free.min(self.lent.saturating_sub(self.used));
        self.fresh_until = until(status.free_for_ms);
        self.held_until = until(status.held_for_ms);
        self.windows.adopt(status, asked_at);
        self.keys = if status.open_to_all {
            LentKeys::All
        } else {
            LentKeys::These(status.lent_keys.clone())
        };
        self.tight = status.tight;
        self.revision = status.revision;
        self.seen_revision = self.seen_revision.max(status.revision);
        self.read_at = self.read_at.max(asked_at);
        let half = i64::try_from(self.lease_ms / 2).unwrap_or(i64::MAX);
        self.hold_until = asked_at.saturating_add(half);
    }

    /// Whether the store lacks ends that it had acknowledged. The gateway then gives those of the
    /// outbox to [`LocalAllotment::reload`].
    #[must_use]
    pub fn must_reload(&self) -> bool {
        self.must_reload
    }

    /// Takes back the ends of the outbox that the store has lost. What the outbox has not got any
    /// more is lost for good.
    ///
    /// # Errors
    /// [`MoneyError::OutOfRange`] if a sum exceeds the range.
    pub fn reload(&mut self, ends: &BTreeMap<u64, CallEnd>) -> Result<(), MoneyError> {
        for (seq, end) in ends.range(self.known_seq.saturating_add(1)..) {
            if !self.ends.contains_key(seq) && *seq <= self.last_seq {
                self.add_use(use_of(end), &end.windows)?;
                self.ends.insert(*seq, end.clone());
            }
        }
        self.must_reload = false;
        Ok(())
    }

    fn acknowledge(&mut self, last_seq: u64) -> Result<(), MoneyError> {
        while let Some(entry) = self.ends.first_entry() {
            if *entry.key() > last_seq {
                break;
            }
            let end = entry.remove();
            self.drop_use(use_of(&end), &end.windows)?;
        }
        // The store had acknowledged more, so it has lost some.
        self.must_reload |= last_seq < self.known_seq;
        self.known_seq = last_seq;
        Ok(())
    }
}
