//! An account of which this process makes holds in memory, or will: its allotments, and how busy it
//! is.

use std::collections::BTreeMap;

use crate::ledger::prepaid::local::LocalAllotment;
use crate::ledger::prepaid::local::messages::AllotmentLoad;
use crate::ledger::prepaid::local::rates::RateLoad;
use crate::ledger::prepaid::rate::{RateAsk, RateId, RateLimit};
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::prepaid::update::KEYS_MAX;
use crate::ledger::prepaid::window::KeyId;
use crate::money::Money;

/// An account is busy if it had [`BUSY_HOLDS`] holds within this time, in ms.
const BUSY_WITHIN_MS: i64 = 100;
/// See [`BUSY_WITHIN_MS`].
const BUSY_HOLDS: usize = 4;
/// After this time without a new hold, in ms, an account gives back what it has free.
const IDLE_AFTER_MS: i64 = 200;
/// The sum of the holds of this time, in ms, is what should be free: twice what is needed until the
/// ends of these calls are told.
const LOAD_WINDOW_MS: i64 = 100;
/// An account without a call for this long, in ms, is forgotten.
pub(super) const FORGET_AFTER_MS: i64 = 10_000;
/// Of at most this many rate limits of an account something is borrowed.
const LIMITS_MAX: usize = 96;

/// How many holds an account lately made, and how large they were.
#[derive(Debug, Default)]
pub(super) struct LoadMeter {
    /// When the last holds were made, the oldest first.
    last_holds: [i64; BUSY_HOLDS],
    all: RecentHolds,
    /// The keys that made holds lately, at most [`KEYS_MAX`].
    keys: Vec<(KeyId, RecentHolds)>,
    /// The rate limits of which calls took lately, at most [`LIMITS_MAX`].
    rates: BTreeMap<RateId, (RateLimit, RecentHolds)>,
}

/// The holds of the present window of time, and of the one before it.
#[derive(Debug, Clone, Copy, Default)]
struct RecentHolds {
    window_start: i64,
    current: LoadWindow,
    previous: LoadWindow,
    last_hold: i64,
}

/// The holds of a window of time, in nano-USD or in the units of a rate limit.
#[derive(Debug, Clone, Copy, Default)]
struct LoadWindow {
    held: i64,
    largest: i64,
}

impl RecentHolds {
    fn record(&mut self, amount: i64, now_ms: i64) {
        let age = now_ms.saturating_sub(self.window_start);
        if age >= LOAD_WINDOW_MS {
            let is_next = age < 2 * LOAD_WINDOW_MS;
            self.previous = if is_next { self.current } else { LoadWindow::default() };
            (self.current, self.window_start) = (LoadWindow::default(), now_ms);
        }
        self.last_hold = now_ms;
        let LoadWindow { held, largest } = &mut self.current;
        *held = held.saturating_add(amount);
        *largest = amount.max(*largest);
    }

    fn quote(&self) -> i64 {
        self.current.largest.max(self.previous.largest)
    }

    /// Whether there was no hold for a while, so that nothing should be free any more.
    fn is_idle(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.last_hold) >= IDLE_AFTER_MS
    }

    /// What should be free.
    fn wanted_free(&self, now_ms: i64) -> i64 {
        if self.is_idle(now_ms) {
            return 0;
        }
        let recent = self.current.held.max(self.previous.held);
        AllotmentLoad::free_for(recent, self.quote())
    }
}

impl LoadMeter {
    /// Counts a hold, and what the call takes of rate limits.
    pub(super) fn record(
        &mut self,
        key: Option<KeyId>,
        amount: Money,
        rates: &[RateAsk],
        now_ms: i64,
    ) {
        let amount = amount.nano();
        rates.iter().for_each(|ask| self.record_rate(ask, now_ms));
        self.last_holds.rotate_left(1);
        self.last_holds[BUSY_HOLDS - 1] = now_ms;
        self.all.record(amount, now_ms);
        let Some(key) = key else { return };
        if let Some((_, holds)) = self.keys.iter_mut().find(|(known, _)| *known == key) {
            return holds.record(amount, now_ms);
        }
        if self.keys.len() >= KEYS_MAX {
            self.keys.retain(|(_, holds)| !holds.is_idle(now_ms));
        }
        // The calls of further keys are placed in the store.
        if self.keys.len() < KEYS_MAX {
            let mut holds = RecentHolds::default();
            holds.record(amount, now_ms);
            self.keys.push((key, holds));
        }
    }

    fn record_rate(&mut self, ask: &RateAsk, now_ms: i64) {
        if let Some((limit, recent)) = self.rates.get_mut(&ask.id) {
            *limit = ask.limit;
            return recent.record(ask.amount, now_ms);
        }
        if self.rates.len() >= LIMITS_MAX {
            self.rates.retain(|_, (_, recent)| !recent.is_idle(now_ms));
        }
        // The calls of further limits are placed in the store.
        if self.rates.len() < LIMITS_MAX {
            let mut recent = RecentHolds::default();
            recent.record(ask.amount, now_ms);
            self.rates.insert(ask.id, (ask.limit, recent));
        }
    }

    /// What should be free of a rate limit.
    pub(super) fn wanted_of_rate(&self, id: RateId, now_ms: i64) -> i64 {
        self.rates.get(&id).map_or(0, |(_, recent)| recent.wanted_free(now_ms))
    }

    /// What should be free for a key; `None` if nothing is lent to it, because there are too many.
    pub(super) fn wanted_for_key(&self, key: KeyId, now_ms: i64) -> Option<Money> {
        let (_, holds) = self.keys.iter().find(|(known, _)| *known == key)?;
        Some(to_money(holds.wanted_free(now_ms)))
    }

    /// Whether the account has made enough holds lately to have an allotment.
    pub(super) fn is_busy(&self, now_ms: i64) -> bool {
        let [first, ..] = self.last_holds;
        first > 0 && now_ms.saturating_sub(first) <= BUSY_WITHIN_MS
    }

    /// For how long the account has made no hold, in ms.
    pub(super) fn idle_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.last_holds[BUSY_HOLDS - 1])
    }

    /// Whether nothing should be free any more.
    pub(super) fn is_idle(&self, now_ms: i64) -> bool {
        self.idle_ms(now_ms) >= IDLE_AFTER_MS
    }

    /// What should be free in all.
    pub(super) fn wanted_free(&self, now_ms: i64) -> Money {
        to_money(self.all.wanted_free(now_ms))
    }

    /// What should be free, in all and for each key.
    pub(super) fn load(&self, now_ms: i64) -> AllotmentLoad {
        let keys = self.keys.iter().filter(|(_, holds)| !holds.is_idle(now_ms));
        let keys = keys.map(|(key, holds)| (*key, to_money(holds.wanted_free(now_ms)))).collect();
        let (free, quote) = (self.wanted_free(now_ms), to_money(self.all.quote()));
        let rates = self.rates.iter().filter(|(_, (_, recent))| !recent.is_idle(now_ms));
        let rates = rates.map(|(id, (limit, recent))| {
            let (free, unit) = (recent.wanted_free(now_ms), recent.quote());
            (*id, RateLoad { limit: *limit, free, unit })
        });
        AllotmentLoad { free, quote, keys, rates: rates.collect() }
    }
}

fn to_money(nano: i64) -> Money {
    Money::from_nano(nano).unwrap_or_default()
}

/// The allotments of an account, behind the lock of the account.
#[derive(Debug, Default)]
pub(super) struct AccountAllotments {
    /// The allotment out of which new holds are made.
    pub(super) current: Option<LocalAllotment>,
    /// Allotments that have expired while calls were open, or ends not told.
    pub(super) expired: Vec<LocalAllotment>,
    pub(super) load: LoadMeter,
    /// Whether an update is to be sent in the next round.
    pub(super) is_due: bool,
    /// Whether it waits for more to tell.
    pub(super) is_delayed: bool,
    /// When the last update was sent.
    pub(super) updated_at: i64,
    /// Whether the store has refused one of the last updates for good.
    pub(super) is_refused: bool,
    /// Open calls that no lease keeps alive any more, and since when.
    pub(super) abandoned: BTreeMap<String, i64>,
    /// The numbers up to which the store has the ends of each allotment, as far as the log of ends
    /// was not told that they are on disk.
    pub(super) not_durable: BTreeMap<AllotmentId, u64>,
}

impl AccountAllotments {
    /// All allotments.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut LocalAllotment> {
        self.current.iter_mut().chain(&mut self.expired)
    }

    /// All allotments.
    pub(super) fn all(&self) -> impl Iterator<Item = &LocalAllotment> {
        self.current.iter().chain(&self.expired)
    }

    /// Returns the allotment out of which the hold of a call was made, while the call is open.
    pub(super) fn find_open(&mut self, call: &str) -> Option<&mut LocalAllotment> {
        self.all_mut().find(|local| local.has_open(call))
    }

    /// Whether the store has all ends, and no call is open.
    pub(super) fn is_settled(&self) -> bool {
        self.all().all(LocalAllotment::is_settled)
    }

    /// Whether there is nothing that anybody could miss.
    pub(super) fn is_empty(&self) -> bool {
        self.is_settled() && !self.all().any(LocalAllotment::is_out) && self.not_durable.is_empty()
    }

    /// Whether the account has made no call for a while, and has nothing that anybody could miss.
    pub(super) fn is_unused(&self, now_ms: i64) -> bool {
        self.load.idle_ms(now_ms) >= FORGET_AFTER_MS && self.is_empty()
    }

    /// Returns the number of the last end of each allotment.
    pub(super) fn last_seqs(&self) -> Vec<(AllotmentId, u64)> {
        self.all().map(|local| (local.id().clone(), local.last_seq())).collect()
    }

    /// Whether the store has the ends of allotments up to these numbers, except those that are lost
    /// for good.
    pub(super) fn has_told(&self, seqs: &[(AllotmentId, u64)]) -> bool {
        let lacks = |local: &LocalAllotment| {
            let is_wanted =
                |first: u64| seqs.iter().any(|(id, seq)| id == local.id() && *seq >= first);
            local.must_reload() || local.first_untold().is_some_and(is_wanted)
        };
        !self.all().any(lacks)
    }

    /// How many ends the next updates will tell.
    pub(super) fn untold(&self) -> usize {
        self.all().map(LocalAllotment::untold).sum()
    }

    /// Whether an update waits for its answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.all().any(LocalAllotment::is_waiting)
    }

    /// Whether the store has lost ends that have to be read back.
    pub(super) fn must_reload(&self) -> bool {
        self.all().any(LocalAllotment::must_reload)
    }

    /// Whether the store has all ends of calls that have ended.
    pub(super) fn is_told(&self) -> bool {
        self.all().all(|local| !local.has_untold())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::prepaid::rate::RateKind;
    use crate::ledger::prepaid::window::BudgetOwner;

    fn nano(n: i64) -> Money {
        Money::from_nano(n).expect("money")
    }

    #[test]
    fn four_holds_in_a_tenth_of_a_second_make_an_account_busy() {
        let mut meter = LoadMeter::default();
        for (at, busy) in [(1_000, false), (1_040, false), (1_080, false), (1_100, true)] {
            meter.record(None, nano(1), &[], at);
            assert_eq!(meter.is_busy(at), busy, "{at}");
        }
        assert!(!meter.is_busy(1_101));
        meter.record(None, nano(1), &[], 1_141);
        assert!(!meter.is_busy(1_141), "the first of the last four is too long ago");
    }

    #[test]
    fn an_account_was_busy_with_one_call_soon_after_the_machine_had_started() {
        let mut meter = LoadMeter::default();
        meter.record(None, nano(1), &[], 50);
        assert!(!meter.is_busy(60));
    }

    #[test]
    fn what_was_held_two_windows_ago_is_forgotten() {
        for (at, quote) in [(1_199, nano(100)), (1_200, nano(7))] {
            let mut meter = LoadMeter::default();
            meter.record(None, nano(100), &[], 1_000);
            meter.record(None, nano(7), &[], at);
            assert_eq!(meter.load(at).quote, quote, "{at}");
        }
    }

    #[test]
    fn what_was_held_lately_should_be_free_and_room_for_eight_calls_at_least() {
        let mut meter = LoadMeter::default();
        for at in [1_000, 1_040, 1_099] {
            meter.record(None, nano(100), &[], at);
        }
        let load = meter.load(1_099);
        assert_eq!((load.free, load.quote), (nano(800), nano(100)));
        for _ in 0..20 {
            meter.record(None, nano(50), &[], 1_120);
        }
        let load = meter.load(1_125);
        assert_eq!((load.free, load.quote), (nano(1_000), nano(100)));
        assert_eq!(meter.load(1_319).free, nano(1_000));
        assert_eq!((meter.load(1_320).free, meter.is_idle(1_320)), (nano(0), true));
        meter.record(None, nano(7), &[], 2_000);
        let load = meter.load(2_000);
        assert_eq!((load.free, load.quote), (nano(56), nano(7)), "the old ones are forgotten");
    }

    #[test]
    fn each_key_should_have_free_what_it_held_lately_and_the_33rd_goes_to_the_store() {
        let mut meter = LoadMeter::default();
        let key = |n: usize| Some(KeyId(n as u64));
        for number in 0..=KEYS_MAX {
            meter.record(key(number), nano(10), &[], 1_000);
        }
        for _ in 0..20 {
            meter.record(key(0), nano(10), &[], 1_000);
        }
        let load = meter.load(1_000);
        assert_eq!(load.keys.len(), KEYS_MAX);
        assert_eq!((load.keys[&KeyId(0)], load.keys[&KeyId(1)]), (nano(210), nano(80)));
        assert!(!load.keys.contains_key(&KeyId(KEYS_MAX as u64)));
        let wanted = |key| meter.wanted_for_key(KeyId(key), 1_000);
        assert_eq!((wanted(0), wanted(KEYS_MAX as u64)), (Some(nano(210)), None));
        // Those that are idle make room.
        meter.record(key(0), nano(10), &[], 1_200);
        meter.record(key(KEYS_MAX), nano(10), &[], 1_200);
        let load = meter.load(1_200);
        assert_eq!(load.keys.into_keys().collect::<Vec<_>>(), [KeyId(0), KeyId(KEYS_MAX as u64)]);
    }

    #[test]
    fn of_a_rate_limit_should_be_free_what_was_taken_lately_as_long_as_calls_ask_for_it() {
        let mut meter = LoadMeter::default();
        let ask = |row, amount| {
            let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Tokens, row };
            let limit = RateLimit { per_minute: 60, burst: 60 };
            RateAsk { id, limit, amount, is_shadow: false }
        };
        for _ in 0..20 {
            meter.record(None, nano(1), &[ask(0, 5), ask(1, 0)], 1_000);
        }
        let load = meter.load(1_000);
        let of = |row| load.rates[&ask(row, 0).id];
        assert_eq!((of(0).free, of(0).unit, of(0).limit), (100, 5, ask(0, 0).limit));
        assert_eq!((of(1).free, of(1).unit), (0, 0));
        assert_eq!(meter.wanted_of_rate(ask(0, 0).id, 1_199), 100);
        assert_eq!(meter.load(1_200).rates, BTreeMap::new());
        for row in 0..200 {
            meter.record(None, nano(1), &[ask(row, 1)], 1_300);
        }
        assert_eq!(meter.load(1_300).rates.len(), LIMITS_MAX, "the others go to the store");
        meter.record(None, nano(1), &[ask(300, 1)], 1_500);
        let rates = meter.load(1_500).rates;
        assert_eq!(rates.into_keys().collect::<Vec<_>>(), [ask(300, 1).id], "idle ones make room");
    }
}
