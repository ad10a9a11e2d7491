//! When an account has something to tell, and when it may be forgotten.

use super::*;
use crate::ledger::prepaid::rate::{RateAsk, RateId, RateKind, RateLimit};
use crate::ledger::prepaid::window::BudgetOwner;
use crate::store::allotments::busy_account::FORGET_AFTER_MS;

/// After this time without a hold, an account is idle.
const IDLE: Duration = Duration::from_millis(250);

/// A gateway that has made the hold of a call, and when it did.
async fn world_with_hold() -> (World, Arc<BusyAccount>, i64) {
    let world = World::new(Retention::FOR_SERVER);
    world.hold(&ada(), "1").await;
    let busy = world.book().find(&ada()).expect("a busy account");
    let held_at = busy.lock().load.idle_ms(0).saturating_neg();
    (world, busy, held_at)
}

/// Whether an update is needed so long after the last one.
fn is_needed(world: &World, busy: &BusyAccount, now_ms: i64, age_ms: i64) -> bool {
    let mut state = busy.lock();
    state.updated_at = now_ms - age_ms;
    world.upkeep.is_update_needed(&state, now_ms)
}

#[tokio::test]
async fn an_update_is_sent_when_something_is_to_tell_and_not_before() {
    let (world, busy, held_at) = world_with_hold().await;
    let is_needed = |now, age| is_needed(&world, &busy, now, age);
    let state = || {
        let state = busy.lock();
        (state.is_told(), state.is_waiting(), state.is_settled())
    };
    assert!(!is_needed(held_at + 199, 99), "it is busy, and was told lately");
    assert!(is_needed(held_at + 199, 100), "what a busy account has read grows old");
    assert!(is_needed(held_at + 200, 0), "what is free goes back");
    sleep(IDLE).await;
    world.tell().await;
    let now = held_at + 100_000;
    assert!(!is_needed(now, 14_999), "its call runs, and its lease is young");
    assert!(is_needed(now, 15_000), "a quarter of its lease is over");
    let ended = busy.lock().find_open("1").map(|local| local.end("1", nano(1), "{}", None));
    assert!(matches!(ended, Some(Ok(Some(_)))));
    assert_eq!(state(), (false, false, false));
    assert!(!is_needed(now, 99), "its end waits for more");
    assert!(is_needed(now, 100), "its end is to tell");
    world.tell().await;
    assert_eq!(state(), (true, false, true));
    assert!(!is_needed(now, 100_000), "it has nothing");
    let load = AllotmentLoad::default();
    let asked = busy.lock().current.as_mut().map(|local| local.next_update(&load, boottime_ms()));
    assert!(matches!(asked, Some(Ok(_))));
    assert_eq!(state(), (true, true, false));
    assert!(!is_needed(now, 99) && is_needed(now, 100), "the answer may be lost");
}

/// Whether an account is told in the next round if its ends are noted at this time.
fn is_told_next(world: &World, busy: &Arc<BusyAccount>, now_ms: i64) -> bool {
    world.book().mark_due_later(busy, &mut busy.lock(), now_ms);
    let due = world.book().take_due();
    busy.lock().is_due = false;
    due.iter().any(|due| Arc::ptr_eq(due, busy))
}

#[tokio::test]
async fn a_busy_account_waits_for_more_to_tell_and_a_quiet_one_does_not() {
    let (world, busy, _) = world_with_hold().await;
    world.book().take_due();
    let told_at = boottime_ms() + 1_000;
    busy.lock().updated_at = told_at;
    assert!(!is_told_next(&world, &busy, told_at + 49));
    assert!(is_told_next(&world, &busy, told_at + 50), "it is quiet");
    for call in 2..=64 {
        world.call(&ada(), &call.to_string()).await;
    }
    world.book().take_due();
    busy.lock().is_due = false;
    busy.lock().updated_at = told_at;
    assert!(!is_told_next(&world, &busy, told_at + 1), "63 ends");
    world.call(&ada(), "65").await;
    world.book().take_due();
    busy.lock().is_due = false;
    busy.lock().updated_at = told_at;
    assert!(is_told_next(&world, &busy, told_at + 1), "64 ends");
    world.tell().await;
    busy.lock().updated_at = told_at;
    assert!(!is_told_next(&world, &busy, told_at + 1));
    busy.lock().all_mut().for_each(|local| local.observe(0, true, i64::MIN));
    assert!(is_told_next(&world, &busy, told_at + 1), "its money is called back");
}

#[tokio::test]
async fn what_waits_for_more_is_told_in_time_and_once() {
    let (world, busy, _) = world_with_hold().await;
    world.tell().await;
    let due = |now| {
        world.book().end_delays(now);
        world.book().take_due().len()
    };
    for has_end in [true, false] {
        let told_at = boottime_ms() + 1_000;
        if has_end {
            let ended = busy.lock().find_open("1").map(|local| local.end("1", nano(1), "{}", None));
            assert!(matches!(ended, Some(Ok(Some(_)))));
        }
        busy.lock().updated_at = told_at;
        for later in 0..3 {
            world.book().mark_due_later(&busy, &mut busy.lock(), told_at + later);
        }
        assert_eq!(due(told_at + 49), 0);
        assert_eq!(due(told_at + 50), usize::from(has_end), "it may have been told meanwhile");
        assert_eq!(due(told_at + 10_000), 0);
        assert!(!busy.lock().is_delayed);
        world.tell().await;
    }
}

#[tokio::test]
async fn an_account_is_forgotten_when_nobody_could_miss_it_and_not_before() {
    let (world, busy, held_at) = world_with_hold().await;
    let is_empty = || busy.lock().is_empty();
    let is_unused = |idle| busy.lock().is_unused(held_at + idle);
    let is_out_and_durable = || {
        let state = busy.lock();
        (state.all().any(LocalAllotment::is_out), state.not_durable.is_empty())
    };
    let voided = busy.lock().find_open("1").map(|local| local.void("1"));
    assert_eq!(voided, Some(Ok(None)));
    world.upkeep.record_durable().await.expect("synced");
    assert_eq!(is_out_and_durable(), (true, true));
    assert!(!is_empty() && !is_unused(FORGET_AFTER_MS), "it has borrowed something");
    sleep(IDLE).await;
    world.tell().await;
    assert_eq!(is_out_and_durable(), (false, false));
    assert!(!is_empty() && !is_unused(FORGET_AFTER_MS), "the store may lose what it was told");
    world.upkeep.record_durable().await.expect("synced");
    assert!(is_empty());
    assert!(!is_unused(FORGET_AFTER_MS - 1) && is_unused(FORGET_AFTER_MS));
}

#[tokio::test]
async fn who_waits_for_ends_does_not_wait_for_those_that_came_later() {
    let world = World::new(Retention::FOR_SERVER);
    world.call(&ada(), "1").await;
    world.tell().await;
    let busy = world.book().find(&ada()).expect("a busy account");
    let wanted = busy.lock().last_seqs();
    assert_eq!(wanted.iter().map(|(_, seq)| *seq).collect::<Vec<_>>(), [1]);
    world.call(&ada(), "2").await;
    let state = busy.lock();
    assert!(state.has_told(&wanted) && !state.has_told(&state.last_seqs()));
}

#[tokio::test]
async fn a_call_without_a_lease_ends_after_the_time_of_a_lease_and_not_before() {
    let (world, busy, held_at) = world_with_hold().await;
    let lease_ms = i64::try_from(LEASE.as_millis()).expect("a number");
    for (age_ms, is_open) in [(0, true), (lease_ms - 1, true), (lease_ms, false)] {
        world.book().end_abandoned(&busy, held_at + age_ms);
        assert_eq!(busy.lock().find_open("1").is_some(), is_open, "{age_ms}");
    }
}

#[test]
fn an_account_that_somebody_looks_at_was_forgotten() {
    let world = World::new(Retention::FOR_SERVER);
    let book = world.book();
    assert_eq!(book.hold(&bob(), "1", None, nano(1), &[]), None);
    let busy = book.find(&bob());
    book.remove_if(&bob(), |_| true);
    assert!(busy.is_some() && book.find(&bob()).is_some());
    drop(busy);
    book.remove_if(&bob(), |_| false);
    assert!(book.find(&bob()).is_some());
    book.remove_if(&bob(), |_| true);
    assert!(book.find(&bob()).is_none());
}

#[test]
fn nothing_is_borrowed_for_calls_of_a_small_limit_or_once_lending_has_stopped() {
    let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Requests, row: 0 };
    for (burst, is_shadow, is_watched) in [(63, false, false), (64, false, true), (63, true, true)]
    {
        let world = World::new(Retention::FOR_SERVER);
        let limit = RateLimit { per_minute: 60, burst };
        let ask = RateAsk { id, limit, amount: 1, is_shadow };
        assert_eq!(world.book().hold(&ada(), "1", None, nano(1), &[ask]), None);
        assert_eq!(world.book().find(&ada()).is_some(), is_watched, "{burst} {is_shadow}");
        world.upkeep.stop_lending();
        assert_eq!(world.book().hold(&bob(), "1", None, nano(1), &[]), None);
        assert!(world.book().find(&bob()).is_none());
    }
}
