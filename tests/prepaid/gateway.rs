//! A gateway's side of an allotment: what it may hold in memory, until when, and what it tells.

use std::collections::BTreeMap;

use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::local::holds::{LocalAnswer, LocalExtension};
use tollgate::ledger::prepaid::local::messages::AllotmentLoad;
use tollgate::ledger::prepaid::local::rates::RateLoad;
use tollgate::ledger::prepaid::local::{LocalAllotment, REVISION_AGE_MAX_MS};
use tollgate::ledger::prepaid::lot::{CreditSource, LotId};
use tollgate::ledger::prepaid::rate::{
    RateAsk, RateDemand, RateId, RateKind, RateLimit, RateReading,
};
use tollgate::ledger::prepaid::records::{AllotmentId, CallEnd, KeyStatus, PrepaidAccount};
use tollgate::ledger::prepaid::settings;
use tollgate::ledger::prepaid::update::{
    AllotmentDemand, AllotmentUpdate, CALLS_MAX, KEYS_MAX, RATES_MAX, SLICES_MAX,
};
use tollgate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind};
use tollgate::money::Money;

use super::invariants;
use super::machine::{Machine, Op};

const KEY: KeyId = KeyId(1);
/// The gateway's clock, when the store's says 0.
const CLOCK: i64 = 7_000_000;
/// Ten seconds before an hour ends.
const LATE: i64 = 3_590_000;

/// One gateway and a store.
struct Pair {
    store: PrepaidAccount,
    local: LocalAllotment,
    now: i64,
    free: i64,
}

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).unwrap_or_default()
}

impl Pair {
    /// An account with so much, at a moment of the store.
    fn with(paid: i64, now: i64) -> Pair {
        let mut store = PrepaidAccount::default();
        store.apply(&Op::Pay { tx: "t".to_owned(), amount: nano(paid) }, now);
        let local = LocalAllotment::new(AllotmentId("m".to_owned()), 60_000, CLOCK + now);
        Pair { store, local, now, free: 100 }
    }

    fn clock(&self) -> i64 {
        CLOCK + self.now
    }

    fn load(&self) -> AllotmentLoad {
        let free = nano(self.free);
        AllotmentLoad { free, quote: nano(1), keys: [(KEY, free)].into(), rates: BTreeMap::new() }
    }

    /// Sends the next message, whose answer comes after some ms.
    fn update_slowly(&mut self, to_store: i64, to_gateway: i64) -> LedgerAnswer {
        let update = self.local.next_update(&self.load(), self.clock()).expect("a message");
        self.now += to_store;
        let answer = self.store.apply(&Op::Update(update), self.now);
        invariants::check(&self.store, self.now).expect("a sound account");
        self.now += to_gateway;
        self.local.receive(&answer).expect("an answer");
        answer
    }

    fn update(&mut self) -> LedgerAnswer {
        self.update_slowly(0, 0)
    }

    fn probe(&mut self) {
        let revision = self.store.head.revision;
        let is_recalled = self.store.head.recall_until > self.now;
        self.local.observe(revision, is_recalled, self.clock());
    }

    fn holds(&mut self, call: &str, amount: i64) -> bool {
        let answer =
            self.local.hold(call, Some(KEY), nano(amount), &[], self.clock()).expect("a sum");
        matches!(answer, LocalAnswer::Held(_))
    }

    fn free_now(&self) -> i64 {
        self.local.free(self.clock()).nano()
    }

    fn held(&self) -> i64 {
        self.store.head.balances.held.nano()
    }

    fn posted(&self) -> i64 {
        self.store.head.balances.posted.nano()
    }
}

/// Its charge was lost, if the gateway died before the store knew the allotment.
#[test]
fn a_hold_of_nothing_was_made_before_the_store_knew_the_allotment() {
    let id = AllotmentId("new".to_owned());
    let mut local = LocalAllotment::new(id, 60_000, 1_000);
    let held = local.hold("c", None, nano(0), &[], 1_000).expect("a sum");
    assert_eq!(held, LocalAnswer::Direct);
}

#[test]
fn a_hold_is_made_in_full_out_of_what_is_free_or_not_at_all() {
    let mut pair = Pair::with(1_000, 0);
    assert!(!pair.holds("a", 1), "nothing is lent yet");
    pair.update();
    assert!(pair.holds("a", 60) && !pair.holds("b", 41) && pair.holds("b", 40));
    assert!(!pair.holds("c", 1) && !pair.holds("a", 0), "an id is used once");
    let _ = pair.local.end("a", nano(25), "a", None).expect("an end");
    assert_eq!((pair.free_now(), pair.held(), pair.posted()), (35, 100, 0));
    pair.update();
    assert_eq!((pair.free_now(), pair.held(), pair.posted()), (100, 140, 25));
}

#[test]
fn any_key_may_hold_until_the_account_or_a_key_has_a_budget() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    let hold = |pair: &mut Pair, call: &str| {
        pair.local.hold(call, Some(KeyId(2)), nano(1), &[], pair.clock()).expect("a sum")
    };
    assert_eq!(hold(&mut pair, "a"), LocalAnswer::Held(Vec::new()));
    let (owner, kind) = (BudgetOwner::Key(KeyId(3)), WindowKind::Day);
    let step = settings::set_budget(&pair.store, owner, kind, Some(nano(1)), pair.now);
    pair.store.commit(step.changes);
    pair.update();
    assert_eq!(hold(&mut pair, "b"), LocalAnswer::Direct, "no message has named the key");
}

#[test]
fn holds_stop_at_half_the_lease_counted_from_the_question() {
    let mut pair = Pair::with(1_000, 0);
    pair.update_slowly(10, 200);
    pair.now = 29_999;
    pair.probe();
    assert!(pair.holds("a", 1));
    pair.now = 30_000;
    pair.probe();
    assert!(!pair.holds("b", 1));
    pair.update();
    assert!(pair.holds("b", 1));
}

#[test]
fn holds_stop_where_the_revision_was_not_read_for_a_while() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    pair.now = REVISION_AGE_MAX_MS - 1;
    assert!(pair.holds("a", 1));
    pair.now = REVISION_AGE_MAX_MS;
    assert!(!pair.holds("b", 1));
    pair.probe();
    assert!(pair.holds("b", 1));
}

#[test]
fn a_raised_revision_stops_holds_until_the_store_has_said_what_is_true_now() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    let disable = |status| Op::SetKey { key: KEY, status };
    pair.store.apply(&disable(KeyStatus::Disabled), 0);
    assert!(pair.holds("a", 1), "nobody knows yet");
    pair.probe();
    assert!(!pair.holds("b", 1));
    pair.update();
    assert!(!pair.holds("b", 1), "the key is refused");
    pair.store.apply(&disable(KeyStatus::Active), 0);
    pair.update();
    pair.update();
    assert!(pair.holds("b", 1));
    pair.store.apply(&Op::Suspend(true), 0);
    pair.update();
    assert!(!pair.holds("c", 1), "the answer to any message tells, too");
    pair.update();
    assert_eq!(pair.held(), 2, "all that is free is given back");
}

#[test]
fn what_is_called_back_is_given_back_but_for_what_runs() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    assert!(pair.holds("a", 30));
    pair.store.head.recall_until = 1_000;
    pair.update();
    assert!(!pair.holds("b", 1));
    pair.update();
    assert_eq!(pair.held(), 30);
    let _ = pair.local.end("a", nano(10), "a", None).expect("an end");
    assert!(!pair.holds("b", 1), "what becomes free goes back");
    pair.update();
    assert_eq!((pair.held(), pair.posted()), (0, 10));
}

#[test]
fn what_a_gateway_goes_on_using_while_it_asks_is_not_taken_back() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    pair.free = 40;
    let update = pair.local.next_update(&pair.load(), pair.clock()).expect("a message");
    assert_eq!(pair.free_now(), 40, "the rest is given back already");
    assert!(pair.holds("a", 40));
    pair.store.head.recall_until = 1_000;
    let answer = pair.store.apply(&Op::Update(update.clone()), 0);
    assert_eq!(pair.store.apply(&Op::Update(update), 0), answer);
    pair.local.receive(&answer).expect("an answer");
    assert_eq!((pair.held(), pair.local.used()), (40, nano(40)));
}

#[test]
fn slices_are_kept_in_flight_too() {
    let mut pair = Pair::with(10_000, 0);
    let (owner, kind) = (BudgetOwner::Key(KEY), WindowKind::Day);
    pair.store.apply(&Op::Budget { owner, kind, limit: Some(nano(5_000)) }, 0);
    pair.update();
    assert!(pair.holds("a", 10));
    let update = pair.local.next_update(&pair.load(), pair.clock()).expect("a message");
    assert!(pair.holds("b", 90) && !pair.holds("c", 1));
    let answer = pair.store.apply(&Op::Update(update), 0);
    pair.local.receive(&answer).expect("an answer");
    assert!(pair.holds("c", 10) && !pair.holds("d", 1));
    assert_eq!(pair.held(), 110);
}

#[test]
fn what_a_message_gives_back_is_not_used_while_it_is_under_way() {
    let mut pair = Pair::with(10_000, 0);
    let (owner, kind) = (BudgetOwner::Key(KEY), WindowKind::Day);
    pair.store.apply(&Op::Budget { owner, kind, limit: Some(nano(5_000)) }, 0);
    let place =
        RateAsk { limit: RateLimit { per_minute: 0, burst: 464 }, ..asked(RateKind::Calls, 1) };
    let mut load = pair.load();
    load.rates.insert(place.id, RateLoad { limit: place.limit, free: 100, unit: 1 });
    let update = pair.local.next_update(&load, pair.clock()).expect("a message");
    let answer = pair.store.apply(&Op::Update(update), 0);
    pair.local.receive(&answer).expect("an answer");
    load.keys.insert(KEY, nano(20));
    load.rates.values_mut().for_each(|wanted| wanted.free = 2);
    let clock = pair.clock();
    let _ = pair.local.next_update(&load, clock).expect("a message");
    assert!(!pair.holds("a", 21), "only 20 of the key's budget are kept");
    let mut hold =
        |call: &str, amount| pair.local.hold(call, Some(KEY), nano(amount), &[place], clock);
    let left = |remaining| {
        let reading = RateReading { remaining, is_exceeded: false };
        Ok(LocalAnswer::Held(vec![reading]))
    };
    assert_eq!(hold("b", 10), left(365), "364 are left beside the slice of the gateway");
    assert_eq!(hold("c", 9), left(364));
    assert_eq!(hold("d", 1), Ok(LocalAnswer::Direct), "only two places are kept");
    assert!(pair.holds("d", 1) && !pair.holds("e", 1));
}

#[test]
fn ends_of_one_key_are_no_room_in_the_budget_of_another() {
    let mut pair = Pair::with(10_000, 0);
    let other = KeyId(2);
    for key in [KEY, other] {
        let (owner, kind) = (BudgetOwner::Key(key), WindowKind::Day);
        pair.store.apply(&Op::Budget { owner, kind, limit: Some(nano(5_000)) }, 0);
    }
    let mut load = pair.load();
    load.keys.insert(other, nano(100));
    let update = pair.local.next_update(&load, pair.clock()).expect("a message");
    let answer = pair.store.apply(&Op::Update(update), 0);
    pair.local.receive(&answer).expect("an answer");
    let clock = pair.clock();
    let held = pair.local.hold("a", Some(other), nano(60), &[], clock);
    assert_eq!(held, Ok(LocalAnswer::Held(Vec::new())));
    let _ = pair.local.end("a", nano(60), "a", None).expect("an end");
    load.keys.insert(KEY, nano(10));
    let _ = pair.local.next_update(&load, clock).expect("a message");
    assert!(!pair.holds("b", 11) && pair.holds("b", 10));
}

#[test]
fn money_of_an_expired_lot_is_not_fresh_because_a_message_was_under_way() {
    let mut pair = Pair::with(1_000, 0);
    let lot = LotId { expires_at: 500, source: CreditSource::Promotion };
    pair.store.apply(&Op::Grant { tx: "g".to_owned(), amount: nano(60), lot }, 0);
    pair.update();
    assert!(pair.holds("a", 60));
    pair.now = 490;
    let update = pair.local.next_update(&pair.load(), pair.clock()).expect("a message");
    assert!(pair.holds("b", 40), "all that is free, while the message is under way");
    let answer = pair.store.apply(&Op::Update(update), pair.now);
    pair.local.receive(&answer).expect("an answer");
    pair.now = 500;
    let _ = pair.local.void("a").expect("a void");
    assert_eq!(pair.free_now(), 60, "what was lent anew, and not what a gave up");
}

/// The store refused such a message. The calls that ran had no allotment any more, so none could be
/// extended, and they were charged late, past their budgets.
#[test]
fn long_calls_of_ever_new_keys_made_a_message_too_large() {
    let mut pair = Pair::with(10_000_000, 0);
    for number in 0..200 {
        let key = KeyId(number);
        for kind in [WindowKind::Day, WindowKind::Total] {
            let (owner, limit) = (BudgetOwner::Key(key), Some(nano(5_000)));
            pair.store.apply(&Op::Budget { owner, kind, limit }, 0);
        }
        let mut load = pair.load();
        load.keys = [(key, nano(100))].into();
        let update = pair.local.next_update(&load, pair.clock()).expect("a message");
        let answer = pair.store.apply(&Op::Update(update), 0);
        assert!(matches!(answer, LedgerAnswer::Status(_)), "{number}: {answer:?}");
        pair.local.receive(&answer).expect("an answer");
        let (call, clock) = (format!("call{number}"), pair.clock());
        let held = pair.local.hold(&call, Some(key), nano(10), &[], clock);
        assert_eq!(held == Ok(LocalAnswer::Held(Vec::new())), number < 82, "{number}: {held:?}");
    }
}

#[test]
fn a_message_has_bounds() {
    let pair = Pair::with(1_000, 0);
    let small = |demand| AllotmentUpdate {
        step: 1,
        demand: Some(demand),
        ..AllotmentUpdate::replay(AllotmentId("n".to_owned()), 0, 1, Vec::new())
    };
    let tell = |update: AllotmentUpdate| pair.store.clone().apply(&Op::Update(update), 0);
    let is_done = |update| matches!(tell(update), LedgerAnswer::Status(_));
    let end = |n: usize| CallEnd {
        call: format!("call{n}"),
        key: None,
        held: nano(1),
        charge: Some(nano(1)),
        windows: Vec::new(),
        line: String::new(),
    };
    let ends = |count| (0..count).map(end).collect::<Vec<_>>();
    let windows = |count: usize| {
        let window = |n| {
            let start = i64::try_from(n).unwrap_or_default();
            (WindowId { owner: BudgetOwner::Account, kind: WindowKind::Hour, start }, nano(0))
        };
        (0..count).map(window).collect::<BTreeMap<_, _>>()
    };
    let keys = |count: u64| (0..count).map(|key| (KeyId(key), nano(0))).collect();
    let rate = |row| RateId { owner: BudgetOwner::Account, kind: RateKind::Requests, row };
    let limit = RateLimit { per_minute: 1, burst: 1 };
    let wanted = RateDemand { limit, spent: 0, needed: 0, kept: 0, free: 0, unit: 1 };
    let rates = |count: usize| {
        let row = |n| u16::try_from(n).unwrap_or_default();
        (0..count).map(|n| (rate(row(n)), wanted)).collect::<BTreeMap<_, _>>()
    };
    let none = AllotmentDemand::default;
    for (more, is_small) in [(0, true), (1, false)] {
        let many = CALLS_MAX + more;
        let extra = u64::try_from(more).unwrap_or_default();
        for update in [
            AllotmentUpdate { ends: ends(many), ..small(none()) },
            AllotmentUpdate { checkpoints: ends(many), ..small(none()) },
            small(AllotmentDemand { needed_in: windows(SLICES_MAX + more), ..none() }),
            small(AllotmentDemand { kept_in: windows(SLICES_MAX + more), ..none() }),
            small(AllotmentDemand { keys: keys(KEYS_MAX as u64 + extra), ..none() }),
            small(AllotmentDemand { rates: rates(RATES_MAX + more), ..none() }),
        ] {
            assert_eq!(is_done(update.clone()), is_small, "{more} more: {update:?}");
        }
    }
    let mut store = pair.store.clone();
    let first = AllotmentUpdate { checkpoints: ends(CALLS_MAX), ..small(none()) };
    store.apply(&Op::Update(first), 0);
    let another = vec![CallEnd { call: "another".to_owned(), ..end(0) }];
    let before = store.clone();
    let second = AllotmentUpdate { step: 2, checkpoints: another, ..small(none()) };
    assert_eq!(store.apply(&Op::Update(second), 0), LedgerAnswer::TooMany);
    assert_eq!(store, before);
}

#[test]
fn an_idle_gateway_gives_back_all() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    pair.free = 0;
    pair.update();
    assert_eq!((pair.held(), pair.free_now(), pair.store.head.lent_out), (0, 0, 0));
    assert!(pair.local.is_settled());
}

#[test]
fn a_slice_dies_with_its_window_and_a_charge_counts_where_its_hold_was_made() {
    let mut pair = Pair::with(10_000, LATE);
    let budget = Op::Budget {
        owner: BudgetOwner::Account,
        kind: WindowKind::Hour,
        limit: Some(nano(5_000)),
    };
    pair.store.apply(&budget, LATE);
    pair.update_slowly(300, 300);
    assert!(pair.holds("a", 50));
    pair.now = LATE + 9_699;
    pair.probe();
    assert!(pair.holds("b", 1), "10 s, less the way to the store");
    pair.now = LATE + 9_700;
    pair.probe();
    assert!(!pair.holds("c", 1));
    pair.now = LATE + 10_000;
    pair.update();
    assert!(pair.holds("c", 5));
    for (call, charge) in [("a", 20), ("b", 1), ("c", 5)] {
        let _ = pair.local.end(call, nano(charge), call, None).expect("an end");
    }
    pair.free = 0;
    pair.update();
    let spent: Vec<i64> = pair.store.windows.values().map(|used| used.spent.nano()).collect();
    let held: Vec<i64> = pair.store.windows.values().map(|used| used.held.nano()).collect();
    assert_eq!((spent, held), (vec![21, 5], vec![0, 0]));
}

/// Each hold of the key asked the store for more, as long as the call ran.
#[test]
fn a_key_had_nothing_free_while_a_call_of_an_ended_window_ran() {
    let mut pair = Pair::with(100_000, LATE);
    let (owner, kind) = (BudgetOwner::Key(KEY), WindowKind::Hour);
    pair.store.apply(&Op::Budget { owner, kind, limit: Some(nano(50_000)) }, LATE);
    pair.update();
    assert!(pair.holds("a", 50));
    assert_eq!(pair.local.free_of_key(KEY, pair.clock()), Some(nano(50)));
    pair.now = LATE + 10_000;
    pair.update();
    assert_eq!(pair.local.free_of_key(KEY, pair.clock()), Some(nano(100)));
}

#[test]
fn free_money_of_a_lot_is_not_used_after_its_expiry() {
    let mut pair = Pair::with(1_000, 0);
    let lot = LotId { expires_at: 500, source: CreditSource::Promotion };
    pair.store.apply(&Op::Grant { tx: "g".to_owned(), amount: nano(60), lot }, 0);
    pair.update_slowly(10, 10);
    assert!(pair.holds("a", 50));
    pair.now = 489;
    assert!(pair.holds("b", 1));
    pair.now = 490;
    assert!(!pair.holds("c", 1), "500 ms, less the way to the store");
    pair.now = 500;
    pair.update();
    assert!(pair.holds("c", 30));
    // What a call gives up now may be of the lot that has expired.
    let _ = pair.local.void("a").expect("a void");
    assert_eq!(pair.free_now(), 70);
    pair.update();
    let credit = pair.store.head.balances.credit.nano();
    assert_eq!(credit, 1_060 - 9 - 20, "of 60 it keeps 31 for its calls, and no more");
    assert_eq!(pair.free_now(), 100);
}

#[test]
fn an_extension_is_free_or_is_asked_for_and_gets_what_there_is() {
    let mut pair = Pair::with(1_000, 0);
    let extend = |pair: &mut Pair, wanted| {
        let clock = pair.clock();
        pair.local.extend("a", nano(wanted), clock).expect("a sum")
    };
    assert_eq!(extend(&mut pair, 5), LocalExtension::Unknown);
    pair.update();
    assert!(pair.holds("a", 30));
    assert_eq!(extend(&mut pair, 100), LocalExtension::Held(nano(100)));
    assert_eq!(extend(&mut pair, 20), LocalExtension::Held(nano(100)));
    assert_eq!(extend(&mut pair, 700), LocalExtension::Ask);
    assert_eq!(extend(&mut pair, 700), LocalExtension::Ask, "it was not asked for yet");
    pair.update();
    assert_eq!(extend(&mut pair, 700), LocalExtension::Held(nano(700)));
    assert_eq!(extend(&mut pair, 2_000), LocalExtension::Ask);
    pair.update();
    assert_eq!(extend(&mut pair, 2_000), LocalExtension::Held(nano(1_000)));
    let _ = pair.local.end("a", nano(900), "a", None).expect("an end");
    pair.free = 0;
    pair.update();
    assert_eq!((pair.held(), pair.posted(), pair.local.used()), (0, 900, nano(0)));
}

#[test]
fn a_call_without_a_charge_is_told_only_if_its_checkpoint_was() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    assert!(pair.holds("a", 10) && pair.holds("b", 10));
    pair.local.checkpoint("a", nano(7), "a");
    pair.local.checkpoint("a", nano(3), "a");
    assert_eq!(pair.local.void("b"), Ok(None));
    pair.update();
    assert_eq!(pair.store.allotments.values().map(|a| a.checkpoints.len()).sum::<usize>(), 1);
    let told = pair.local.void("a").expect("a void").expect("an end to tell");
    assert_eq!((told.seq, told.end.charge), (1, None));
    pair.update();
    pair.now = 70_000;
    pair.store.sweep(70_000);
    assert_eq!((pair.posted(), pair.held()), (0, 0));
}

#[test]
fn a_message_whose_answer_was_lost_is_sent_again_as_it_was() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    assert!(pair.holds("a", 10));
    let _ = pair.local.end("a", nano(10), "a", None).expect("an end");
    let first = pair.local.next_update(&pair.load(), pair.clock()).expect("a message");
    pair.store.apply(&Op::Update(first.clone()), 0);
    assert!(pair.holds("b", 10), "holds go on meanwhile");
    let again = pair.local.next_update(&pair.load(), pair.clock()).expect("a message");
    assert_eq!(first, again);
    pair.update();
    assert_eq!((pair.posted(), pair.held(), pair.store.journal.len()), (10, 100, 1));
}

#[test]
fn so_many_calls_and_no_more_are_open_or_untold() {
    let mut pair = Pair::with(100_000, 0);
    pair.free = 2_000;
    pair.update();
    let held = (0..CALLS_MAX + 44).filter(|n| pair.holds(&format!("call{n}"), 1)).count();
    assert_eq!(held, CALLS_MAX);
    let _ = pair.local.end("call0", nano(1), "x", None).expect("an end");
    assert!(!pair.holds("another", 1), "its end is not told yet");
    pair.update();
    assert!(pair.holds("another", 1));
}

#[test]
fn what_the_store_has_lost_is_told_again_from_the_outbox() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    let synced = pair.store.clone();
    let mut outbox = BTreeMap::new();
    for call in ["a", "b", "c"] {
        assert!(pair.holds(call, 10));
        let end = pair.local.end(call, nano(10), call, None).expect("an end").expect("an end");
        outbox.insert(end.seq, end.end);
        pair.update();
    }
    assert_eq!(pair.posted(), 30);
    pair.store = synced;
    pair.update();
    assert!(pair.local.must_reload() && !pair.local.is_settled());
    // The outbox has not got the first one any more.
    outbox.remove(&1);
    pair.local.reload(&outbox).expect("ends");
    pair.update();
    assert_eq!((pair.posted(), pair.local.is_settled()), (20, true));
    assert_eq!(pair.store.journal.len(), 2);
}

#[test]
fn ends_are_not_given_up_before_the_outbox_was_asked() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    let synced = pair.store.clone();
    let mut outbox = BTreeMap::new();
    for call in ["a", "b"] {
        assert!(pair.holds(call, 10));
        let end = pair.local.end(call, nano(10), call, None).expect("an end").expect("an end");
        outbox.insert(end.seq, end.end);
        if call == "a" {
            pair.update();
        }
    }
    pair.store = synced;
    assert_eq!(pair.update(), LedgerAnswer::MissingEnds { last_seq: 0 });
    assert!(pair.local.must_reload());
    assert_eq!(pair.update(), LedgerAnswer::MissingEnds { last_seq: 0 });
    pair.local.reload(&outbox).expect("ends");
    pair.update();
    assert_eq!((pair.posted(), pair.local.must_reload()), (20, false));
}

#[test]
fn a_message_that_was_overtaken_is_followed_by_one_that_counts() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    for allotment in pair.store.allotments.values_mut() {
        allotment.last_step = 9;
    }
    pair.update();
    pair.free = 40;
    let LedgerAnswer::Status(status) = pair.update() else { panic!("no status") };
    assert_eq!((status.step, pair.free_now(), pair.held()), (10, 40, 40));
}

#[test]
fn a_gateway_that_slept_too_long_posts_late_and_holds_nothing() {
    let mut pair = Pair::with(1_000, 0);
    pair.update();
    assert!(pair.holds("a", 10) && pair.holds("z", 5));
    pair.now = 60_000;
    pair.store.sweep(60_000);
    assert_eq!(pair.held(), 0);
    assert!(!pair.holds("b", 1));
    let _ = pair.local.end("a", nano(10), "a", None).expect("an end");
    assert_eq!(pair.update(), LedgerAnswer::AllotmentEnded { last_seq: 1 });
    assert!(pair.local.has_ended() && !pair.local.is_settled());
    let clock = pair.clock();
    assert_eq!(pair.local.extend("z", nano(50), clock), Ok(LocalExtension::Held(nano(5))));
    let _ = pair.local.end("z", nano(5), "z", None).expect("an end");
    assert_eq!(pair.update(), LedgerAnswer::AllotmentEnded { last_seq: 2 });
    assert!(pair.local.is_settled());
    assert_eq!((pair.posted(), pair.held()), (15, 0));
    pair.probe();
    assert!(!pair.holds("b", 1));
}

/// A limit of the account, and what a call asks of it.
fn asked(kind: RateKind, amount: i64) -> RateAsk {
    let id = RateId { owner: BudgetOwner::Account, kind, row: 0 };
    RateAsk { id, limit: RateLimit { per_minute: 60, burst: 464 }, amount, is_shadow: false }
}

#[test]
fn a_call_takes_of_rate_limits_what_is_lent_and_gives_back_what_it_did_not_use() {
    let mut pair = Pair::with(1_000, 0);
    let all =
        [asked(RateKind::Requests, 1), asked(RateKind::Tokens, 30), asked(RateKind::Calls, 1)];
    let mut load = pair.load();
    for ask in all {
        let wanted = RateLoad { limit: ask.limit, free: 100, unit: 1 };
        load.rates.insert(ask.id, wanted);
    }
    let tell = |pair: &mut Pair| {
        let update = pair.local.next_update(&load, pair.clock()).expect("a message");
        let answer = pair.store.apply(&Op::Update(update), pair.now);
        pair.local.receive(&answer).expect("an answer");
    };
    let hold = |pair: &mut Pair, call: &str, asks: &[RateAsk]| {
        let clock = pair.clock();
        let held = pair.local.hold(call, Some(KEY), nano(1), asks, clock).expect("a sum");
        matches!(held, LocalAnswer::Held(_))
    };
    let level = |pair: &Pair, ask: RateAsk| {
        pair.store.rates.get(&ask.id).map_or(0, |bucket| bucket.level / 60_000)
    };
    tell(&mut pair);
    assert_eq!(all.map(|ask| level(&pair, ask)), [100, 100, 100]);
    assert!(hold(&mut pair, "a", &all) && hold(&mut pair, "b", &all) && hold(&mut pair, "c", &all));
    assert!(!hold(&mut pair, "d", &all), "ten tokens are left");
    assert!(hold(&mut pair, "d", &[asked(RateKind::Tokens, 10)]));
    let shadow = RateAsk { is_shadow: true, ..asked(RateKind::Tokens, 99) };
    assert!(!hold(&mut pair, "e", &[shadow]), "the store has room for it, and counts it");
    let above = RateAsk { amount: 365, ..shadow };
    let answer = pair.local.hold("e", Some(KEY), nano(1), &[above], pair.clock());
    let reading = RateReading { remaining: 364, is_exceeded: true };
    assert_eq!(answer, Ok(LocalAnswer::Held(vec![reading])), "a shadow refuses nothing");
    assert_eq!(pair.local.void("b"), Ok(None));
    let _ = pair.local.end("a", nano(1), "a", Some(50)).expect("an end");
    tell(&mut pair);
    // Of tokens a took 50, c 30 and d 10; of places c has one. Beside that a quarter is lent of
    // what is above 64.
    let lent = [3, 90, 1].map(|used: i64| used + (464 - used - 64) / 4);
    assert_eq!(all.map(|ask| level(&pair, ask)), lent);
    for call in ["c", "d", "e"] {
        let _ = pair.local.end(call, nano(1), call, None).expect("an end");
    }
    load.rates.values_mut().for_each(|wanted| wanted.free = 0);
    for _ in 0..2 {
        let update = pair.local.next_update(&load, pair.clock()).expect("a message");
        let answer = pair.store.apply(&Op::Update(update), pair.now);
        pair.local.receive(&answer).expect("an answer");
    }
    assert_eq!(all.map(|ask| level(&pair, ask)), [3, 90, 0]);
}

/// What was told as spent before its call ended stayed a credit of the gateway for ever.
#[test]
fn tokens_that_a_call_did_not_use_go_back_to_the_store() {
    let mut pair = Pair::with(1_000, 0);
    let ask = asked(RateKind::Tokens, 30);
    let mut load = pair.load();
    load.rates.insert(ask.id, RateLoad { limit: ask.limit, free: 100, unit: 1 });
    let tell = |pair: &mut Pair, load: &AllotmentLoad| {
        let update = pair.local.next_update(load, pair.clock()).expect("a message");
        let answer = pair.store.apply(&Op::Update(update), pair.now);
        pair.local.receive(&answer).expect("an answer");
        pair.store.rates.get(&ask.id).map_or(0, |bucket| bucket.level / 60_000)
    };
    assert_eq!(tell(&mut pair, &load), 100);
    let held = pair.local.hold("a", Some(KEY), nano(1), &[ask], pair.clock());
    assert!(matches!(held, Ok(LocalAnswer::Held(_))));
    load.rates.clear();
    assert_eq!(tell(&mut pair, &load), 30, "the rest of the slice went back");
    let _ = pair.local.end("a", nano(1), "a", Some(12)).expect("an end");
    assert_eq!(tell(&mut pair, &load), 12);
    assert_eq!(tell(&mut pair, &load), 12);
    let next = pair.local.next_update(&load, pair.clock()).expect("a message");
    assert_eq!(next.demand.expect("a demand").rates, BTreeMap::new(), "nothing is left to tell");
}
