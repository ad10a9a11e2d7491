//! Calls that somebody has voided who took their gateway for dead.

use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::local::LocalAllotment;
use tollgate::ledger::prepaid::local::messages::AllotmentLoad;
use tollgate::ledger::prepaid::records::{AllotmentId, CallEnd, PrepaidAccount};
use tollgate::ledger::prepaid::update::AllotmentUpdate;
use tollgate::money::Money;

use super::invariants;
use super::machine::{Machine, Op};

const LEASE_MS: u64 = 60_000;

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).unwrap_or_default()
}

/// Where the allotment of a call is when its end arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Open,
    Successor,
    Expired,
    OnlyCheckpoint,
}

/// The end of a voided call, and that of another one, in every state of their allotment.
fn posted(place: Place, voids_first: bool) -> (i64, i64) {
    let mut store = PrepaidAccount::default();
    store.apply(&Op::Pay { tx: "t".to_owned(), amount: nano(10_000) }, 0);
    let mut local = LocalAllotment::new(AllotmentId("m".to_owned()), LEASE_MS, 0);
    let load = AllotmentLoad { free: nano(100), quote: nano(1), ..AllotmentLoad::default() };
    let tell = |store: &mut PrepaidAccount, local: &mut LocalAllotment, now| {
        let update = local.next_update(&load, now).expect("an update");
        let answer = store.apply(&Op::Update(update), now);
        local.receive(&answer).expect("an answer");
    };
    tell(&mut store, &mut local, 0);
    for call in ["voided", "kept"] {
        local.hold(call, None, nano(10), &[], 1).expect("a sum");
        local.checkpoint(call, nano(3), call);
    }
    tell(&mut store, &mut local, 2);
    let void = Op::Void { id: "voided".to_owned() };
    if voids_first {
        assert_eq!(store.apply(&void, 3), LedgerAnswer::Voided);
    }
    let now = i64::try_from(LEASE_MS).expect("a time") + 5;
    let mut ends: Vec<CallEnd> = Vec::new();
    if place != Place::OnlyCheckpoint {
        for call in ["voided", "kept"] {
            let ended = local.end(call, nano(7), call, None).expect("a sum").expect("an end");
            ends.push(ended.end);
        }
    }
    match place {
        Place::Open => tell(&mut store, &mut local, 4),
        Place::Successor => {
            let replay = AllotmentUpdate::replay(local.id().clone(), local.lent_at(), 1, ends);
            store.apply(&Op::Update(AllotmentUpdate { retires: true, ..replay }), 4);
        }
        Place::Expired => {
            assert_eq!(store.sweep(now), 1);
            tell(&mut store, &mut local, now);
        }
        Place::OnlyCheckpoint => assert_eq!(store.sweep(now), 1),
    }
    if !voids_first {
        assert_eq!(store.apply(&void, now), LedgerAnswer::Voided);
    }
    invariants::check(&store, now).expect("a sound account");
    let of = |call: &str| {
        let lines = store.journal.iter().filter(|line| line.request == call);
        lines.map(|line| line.amount.nano()).sum::<i64>()
    };
    (of("voided"), of("kept"))
}

#[test]
fn a_call_that_was_voided_is_not_charged_by_an_end_that_comes_later() {
    for place in [Place::Open, Place::Successor, Place::Expired] {
        assert_eq!(posted(place, true), (0, 7), "{place:?}");
    }
    assert_eq!(posted(Place::OnlyCheckpoint, true), (0, 3));
}

/// Whoever voids it then finds it in the journal.
#[test]
fn a_call_that_was_charged_before_it_was_voided_stays_charged() {
    for place in [Place::Open, Place::Successor, Place::Expired] {
        assert_eq!(posted(place, false), (7, 7), "{place:?}");
    }
    assert_eq!(posted(Place::OnlyCheckpoint, false), (3, 3));
}
