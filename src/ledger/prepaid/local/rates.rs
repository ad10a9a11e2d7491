//! What a gateway has of rate limits in an allotment.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::super::rate::{
    RateAsk, RateDemand, RateId, RateKind, RateLimit, RateReading, RateStatus,
};
use super::super::update::RATES_MAX;

/// What a gateway would like to have free of a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLoad {
    /// The limit.
    pub limit: RateLimit,
    /// What should be free.
    pub free: i64,
    /// What one call takes.
    pub unit: i64,
}

/// The slice of one bucket.
#[derive(Debug, Clone, Copy)]
struct LocalRate {
    limit: RateLimit,
    slice: i64,
    /// What the store had beside the slice when it answered last.
    room: i64,
    /// Places of open calls.
    needed: i64,
    /// Units that were used up since the store knew last. Less than nothing if ends have corrected
    /// more than was used.
    spent: i64,
    /// The part of it that the message under way tells.
    sent: i64,
    /// Whether calls ask for it, so that what the store says of it is of use.
    is_wanted: bool,
}

impl LocalRate {
    fn new(limit: RateLimit) -> LocalRate {
        LocalRate { limit, slice: 0, room: 0, needed: 0, spent: 0, sent: 0, is_wanted: true }
    }

    fn free(&self) -> i64 {
        // What an end has given back of earlier messages is for the store to give out again. What
        // the message under way tells of that is not there any more for calls that come meanwhile.
        let spent = self.spent.saturating_sub(self.sent.min(0)).max(0);
        self.slice.saturating_sub(self.needed).saturating_sub(spent).max(0)
    }

    /// Takes what a call asks for, and returns what is left; `None` if it is not free. What is
    /// above a shadow limit is not counted.
    fn take(&mut self, ask: &RateAsk) -> Option<RateReading> {
        let is_exceeded = self.free() < ask.amount;
        let is_above_shadow = ask.is_shadow && self.room < ask.amount;
        if is_exceeded && !is_above_shadow {
            return None;
        }
        if !is_exceeded {
            self.change(ask.id.kind, ask.amount);
        }
        let remaining = self.room.saturating_add(self.free());
        Some(RateReading { is_exceeded, ..RateReading::within(remaining) })
    }

    /// Takes units, or with a negative amount gives some back.
    fn change(&mut self, kind: RateKind, amount: i64) {
        let part = if kind == RateKind::Calls { &mut self.needed } else { &mut self.spent };
        *part = part.saturating_add(amount);
    }
}

/// The slices of all buckets.
#[derive(Debug, Clone, Default)]
pub(super) struct LocalRates(BTreeMap<RateId, LocalRate>);

impl LocalRates {
    /// Takes what a call asks for, all of it or nothing. Returns what each limit has left, as far
    /// as is known here. A call names a limit once.
    pub(super) fn take(&mut self, asks: &[RateAsk]) -> Option<Vec<RateReading>> {
        let mut readings = Vec::with_capacity(asks.len());
        for ask in asks {
            let reading = self.0.get_mut(&ask.id).and_then(|rate| rate.take(ask));
            let Some(reading) = reading else {
                self.give_back(asks.iter().zip(&readings));
                return None;
            };
            readings.push(reading);
        }
        Some(readings)
    }

    /// Undoes what asks have taken.
    fn give_back<'a>(&mut self, taken: impl Iterator<Item = (&'a RateAsk, &'a RateReading)>) {
        for (ask, _) in taken.filter(|(_, reading)| !reading.is_exceeded) {
            if let Some(rate) = self.0.get_mut(&ask.id) {
                rate.change(ask.id.kind, ask.amount.saturating_neg());
            }
        }
    }

    /// What is free of a limit.
    pub(super) fn free(&self, id: RateId) -> i64 {
        self.0.get(&id).map_or(0, LocalRate::free)
    }

    /// Corrects what a call took by the tokens that it used in the end. Its place is free again.
    pub(super) fn end(&mut self, taken: &[RateAsk], tokens: Option<i64>) {
        for ask in taken {
            self.change(ask, ask.used(tokens).saturating_sub(ask.amount));
        }
    }

    /// Gives back what a call took that was not made: its place and its tokens.
    pub(super) fn void(&mut self, taken: &[RateAsk]) {
        for ask in taken.iter().filter(|ask| ask.id.kind != RateKind::Requests) {
            self.change(ask, ask.amount.saturating_neg());
        }
    }

    /// Changes what is used of a limit. If nothing of it was left to tell, it is told anew; with
    /// too many others, what was not used lapses.
    fn change(&mut self, ask: &RateAsk, amount: i64) {
        if let Some(rate) = self.0.get_mut(&ask.id) {
            rate.change(ask.id.kind, amount);
        } else if amount != 0 && self.0.len() < RATES_MAX {
            let mut rate = LocalRate::new(ask.limit);
            rate.change(ask.id.kind, amount);
            self.0.insert(ask.id, rate);
        }
    }

    /// What the next message says: what was used, and what is kept and wanted.
    pub(super) fn demand(
        &mut self,
        load: &BTreeMap<RateId, RateLoad>,
        may_hold: bool,
    ) -> BTreeMap<RateId, RateDemand> {
        for (id, RateLoad { limit, .. }) in load {
            if self.0.len() < RATES_MAX || self.0.contains_key(id) {
                self.0.entry(*id).or_insert_with(|| LocalRate::new(*limit)).limit = *limit;
            }
        }
        let demand = |(id, rate): (&RateId, &mut LocalRate)| {
            let wanted = load.get(id).copied();
            let free = wanted.map_or(0, |load| load.free.max(0));
            rate.is_wanted = free > 0;
            let kept = if may_hold { rate.free().min(free) } else { 0 };
            rate.sent = rate.spent;
            let needed = rate.needed.max(0);
            let kept = needed.saturating_add(kept);
            rate.slice = rate.slice.min(kept.saturating_add(rate.sent.max(0)));
            let unit = wanted.map_or(1, |load| load.unit);
            let (limit, spent) = (rate.limit, rate.sent);
            (*id, RateDemand { limit, spent, needed, kept, free, unit })
        };
        self.0.iter_mut().map(demand).collect()
    }

    /// Notes the answer to the message under way.
    pub(super) fn adopt(&mut self, status: &BTreeMap<RateId, RateStatus>) {
        for (id, rate) in &mut self.0 {
            rate.spent = rate.spent.saturating_sub(std::mem::take(&mut rate.sent));
            let status = status.get(id).copied();
            (rate.slice, rate.room) = status.map_or((0, 0), |status| (status.slice, status.room));
        }
        let is_used = |rate: &LocalRate| (rate.slice, rate.needed, rate.spent) != (0, 0, 0);
        self.0.retain(|_, rate| rate.is_wanted || is_used(rate));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::window::BudgetOwner;
    use super::*;

    #[test]
    fn what_a_message_gave_back_to_the_store_was_used_here_while_it_was_under_way() {
        let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Tokens, row: 0 };
        let limit = RateLimit { per_minute: 60, burst: 464 };
        let ask = |amount| RateAsk { id, limit, amount, is_shadow: false };
        let load = BTreeMap::from([(id, RateLoad { limit, free: 100, unit: 1 })]);
        let told = |room| BTreeMap::from([(id, RateStatus { slice: 100, room })]);
        let mut rates = LocalRates::default();
        rates.demand(&load, true);
        rates.adopt(&told(364));
        assert!(rates.take(&[ask(30)]).is_some());
        rates.demand(&load, true);
        rates.adopt(&told(334));
        rates.end(&[ask(30)], Some(0));
        let demand = rates.demand(&load, true);
        assert_eq!((demand[&id].spent, demand[&id].kept), (-30, 100));
        assert!(rates.take(&[ask(100)]).is_some());
        assert_eq!(rates.take(&[ask(1)]), None, "the 30 are for others now");
        rates.adopt(&told(364));
        assert_eq!(rates.free(id), 0);
    }
}
