//! A random life of an account: two gateways with allotments, direct holds beside them, messages
//! that are lost, doubled and late, crashes, pauses, leases that run out, a store that loses its
//! last operations, and an operator.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tollgate::ledger::prepaid::records::PrepaidAccount;

pub(crate) mod state;

use state::{BadHabit, Fate, World};

use super::machine::{Machine, bounds};

/// Something that happens. Numbers choose among what there is.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Call { gateway: usize, key: u64, quote: i64 },
    End { gateway: usize, which: usize, percent: i64 },
    Void { gateway: usize, which: usize },
    Extend { gateway: usize, which: usize, more: i64 },
    Checkpoint { gateway: usize, which: usize, percent: i64 },
    Update { gateway: usize, fate: Fate, free: i64 },
    Deliver { which: usize },
    Probe { gateway: usize },
    Crash { gateway: usize },
    Pause { gateway: usize, ms: i64 },
    Advance { ms: i64 },
    Sweep,
    Synced,
    Loss,
    Pay { amount: i64 },
    Grant { amount: i64, source: u8, for_ms: i64 },
    Take { amount: i64 },
    Correct { which: usize, amount: i64 },
    Budget { key: u64, kind: usize, limit: i64 },
    Suspend { suspended: bool },
    Disable { key: u64, disabled: bool },
}

fn gateway() -> impl Strategy<Value = usize> {
    0..2usize
}

fn calls() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (gateway(), 0..3u64, prop_oneof![9 => 1..=12i64, 1 => 100..=900i64])
            .prop_map(|(gateway, key, quote)| Event::Call { gateway, key, quote }),
        6 => (gateway(), 0..8usize, prop_oneof![4 => 0..=100i64, 1 => 101..=300i64])
            .prop_map(|(gateway, which, percent)| Event::End { gateway, which, percent }),
        1 => (gateway(), 0..8usize).prop_map(|(gateway, which)| Event::Void { gateway, which }),
        1 => (gateway(), 0..8usize, 1..=30i64)
            .prop_map(|(gateway, which, more)| Event::Extend { gateway, which, more }),
        2 => (gateway(), 0..8usize, 0..=120i64)
            .prop_map(|(gateway, which, percent)| Event::Checkpoint { gateway, which, percent }),
    ]
}

fn messages() -> impl Strategy<Value = Event> {
    let fate = prop_oneof![
        6 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Doubled),
    ];
    prop_oneof![
        8 => (gateway(), fate, prop_oneof![1 => Just(0i64), 5 => 1..=60i64])
            .prop_map(|(gateway, fate, free)| Event::Update { gateway, fate, free }),
        1 => (0..8usize).prop_map(|which| Event::Deliver { which }),
        2 => gateway().prop_map(|gateway| Event::Probe { gateway }),
    ]
}

fn troubles() -> impl Strategy<Value = Event> {
    let ms = || prop::sample::select(vec![1i64, 20, 250, 900, 1_100, 5_000, 31_000, 61_000]);
    prop_oneof![
        1 => gateway().prop_map(|gateway| Event::Crash { gateway }),
        1 => (gateway(), ms()).prop_map(|(gateway, ms)| Event::Pause { gateway, ms }),
        6 => ms().prop_map(|ms| Event::Advance { ms }),
        2 => Just(Event::Sweep),
        2 => Just(Event::Synced),
        1 => Just(Event::Loss),
    ]
}

fn operator() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1..=4_000i64).prop_map(|amount| Event::Pay { amount }),
        2 => (1..=300i64, 0..3u8, 1..=70_000i64)
            .prop_map(|(amount, source, for_ms)| Event::Grant { amount, source, for_ms }),
        1 => (1..=600i64).prop_map(|amount| Event::Take { amount }),
        2 => (0..8usize, 1..=20i64).prop_map(|(which, amount)| Event::Correct { which, amount }),
        4 => (0..3u64, 0..5usize, prop_oneof![1..=80i64, 400..=2_000i64])
            .prop_map(|(key, kind, limit)| Event::Budget { key, kind, limit }),
        1 => any::<bool>().prop_map(|suspended| Event::Suspend { suspended }),
        1 => (1..3u64, any::<bool>())
            .prop_map(|(key, disabled)| Event::Disable { key, disabled }),
    ]
}

/// Anything that can happen, to an account that is poor or rich at first.
pub(crate) fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![10 => calls(), 6 => messages(), 4 => troubles(), 2 => operator()];
    let first = prop::sample::select(vec![30i64, 800, 900, 1_500, 20_000]);
    (first, prop::collection::vec(event, 1..=most)).prop_map(|(amount, events)| {
        let beginning = [
            Event::Pay { amount },
            Event::Update { gateway: 0, fate: Fate::Arrives, free: 60 },
            Event::Update { gateway: 1, fate: Fate::Arrives, free: 60 },
        ];
        beginning.into_iter().chain(events).collect()
    })
}

/// Lives through events, and then to the end of all calls. Fails at the first law that is broken;
/// else tells what has happened how often.
pub(crate) fn live<M: Machine>(
    machine: M,
    events: &[Event],
) -> Result<BTreeMap<&'static str, u64>, String> {
    let mut world = World::new(machine);
    for event in events {
        world.live(event).map_err(|why| format!("{event:?}: {why}"))?;
    }
    world.come_to_rest()?;
    Ok(world.seen)
}

#[test]
fn a_random_life_keeps_the_laws() {
    let bounds = bounds(400);
    proptest!(bounds, |(events in events(120))| {
        live(PrepaidAccount::default(), &events).map_err(TestCaseError::fail)?;
    });
}

/// In which of some random lives a bad habit breaks a law first.
fn found_out(habit: BadHabit) -> Option<usize> {
    let mut runner = TestRunner::deterministic();
    (0..1_000).find(|_| {
        let events = events(120).new_tree(&mut runner).expect("a life").current();
        let mut world = World::new(PrepaidAccount::default());
        world.habit = Some(habit);
        let sound = events.iter().try_for_each(|event| world.live(event));
        sound.and_then(|()| world.come_to_rest()).is_err()
    })
}

#[test]
fn gateways_with_a_bad_habit_are_found_out() {
    let all = [BadHabit::ForgetsTheOutbox, BadHabit::RenamesTheAllotment, BadHabit::CountsAnew];
    for habit in all {
        assert!(found_out(habit).is_some(), "{habit:?} breaks no law");
    }
}

/// Lives in which nothing happens prove nothing.
#[test]
fn lives_are_not_dull() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for _ in 0..400 {
        let events = events(120).new_tree(&mut runner).expect("a life").current();
        for (what, times) in live(PrepaidAccount::default(), &events).expect("a sound life") {
            *seen.entry(what).or_insert(0) += times;
        }
    }
    for what in [
        "local hold",
        "direct hold",
        "local extension",
        "extension asked",
        "insufficient",
        "budget exceeded",
        "wait",
        "held elsewhere",
        "rate limited",
        "suspended",
        "key refused",
        "over budget",
        "written off",
        "tight",
        "status",
        "missing ends",
        "allotment ended",
        "expiry",
        "expiry with a line",
        "taken",
        "uncovered",
        "corrected",
    ] {
        let times = seen.get(what).copied().unwrap_or_default();
        assert!(times >= 2, "{what} happened {times} times: {seen:?}");
    }
}
