//! What a gateway has of rate limits in an allotment.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use super::super::rate::{RateAsk, RateDemand, RateId, RateKind, RateLimit, RateStatus, RateUsed};

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
    /// Places of open calls.
    needed: i64,
    /// Units that were used up since the store knew last. Less than nothing if ends have corrected
    /// more than was used.
    spent: i64,
    /// The part of it that the message under way tells.
    sent: i64,
}

impl LocalRate {
    fn free(&self) -> i64 {
        self.slice.saturating_sub(self.needed).saturating_sub(self.spent).max(0)
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
    /// Takes what a call asks for, all of it or nothing. Returns what it took: what a shadow limit
    /// has not free is not counted.
    pub(super) fn take(&mut self, asks: &[RateAsk]) -> Option<Vec<RateAsk>> {
        let mut after = self.clone();
        let mut taken = Vec::new();
        for ask in asks {
            let rate = after.0.get_mut(&ask.id).filter(|rate| rate.free() >= ask.amount);
            match rate {
                Some(rate) => {
                    rate.change(ask.id.kind, ask.amount);
                    taken.push(*ask);
                }
                None if ask.is_shadow => {}
                None => return None,
            }
        }
        *self = after;
        Some(taken)
    }

    /// Corrects what a call took by what it used in the end. Its place is free again.
    pub(super) fn end(&mut self, taken: &[RateAsk], used: &[RateUsed]) {
        for ask in taken {
            let reported = used.iter().find(|used| used.id == ask.id).map(|used| used.amount);
            let amount = match ask.id.kind {
                RateKind::Calls => 0,
                RateKind::Requests | RateKind::Tokens => reported.unwrap_or(ask.amount),
            };
            self.change(ask.id, amount.saturating_sub(ask.amount));
        }
    }

    /// Gives back what a call took that was not made: its place and its tokens.
    pub(super) fn void(&mut self, taken: &[RateAsk]) {
        for ask in taken.iter().filter(|ask| ask.id.kind != RateKind::Requests) {
            self.change(ask.id, ask.amount.saturating_neg());
        }
    }

    fn change(&mut self, id: RateId, amount: i64) {
        if let Some(rate) = self.0.get_mut(&id) {
            rate.change(id.kind, amount);
        }
    }

    /// What the next message says: what was used, and what is kept and wanted.
    pub(super) fn demand(
        &mut self,
        load: &BTreeMap<RateId, RateLoad>,
        may_hold: bool,
    ) -> BTreeMap<RateId, RateDemand> {
        for (id, RateLoad { limit, .. }) in load {
            let new = LocalRate { limit: *limit, slice: 0, needed: 0, spent: 0, sent: 0 };
            self.0.entry(*id).or_insert(new).limit = *limit;
        }
        let demand = |(id, rate): (&RateId, &mut LocalRate)| {
            let wanted = load.get(id).copied();
            let free = wanted.map_or(0, |load| load.free.max(0));
            let kept = if may_hold { rate.free().min(free) } else { 0 };
            rate.sent = rate.spent.max(0);
            let needed = rate.needed.max(0);
            let kept = needed.saturating_add(kept);
            rate.slice = rate.slice.min(kept.saturating_add(rate.sent));
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
            rate.slice = status.get(id).map_or(0, |status| status.slice);
        }
        let is_idle = |rate: &LocalRate| (rate.slice, rate.needed, rate.spent) == (0, 0, 0);
        self.0.retain(|_, rate| !is_idle(rate));
    }
}
