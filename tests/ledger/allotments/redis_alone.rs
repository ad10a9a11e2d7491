//! Allotments on Redis alone: what an older version does to one, and how ends are numbered.

use std::time::Duration;

use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::records::{AllotmentId, CallEnd};
use tollgate::ledger::prepaid::update::AllotmentUpdate;
use tollgate::ledger::{Operation, Outcome};
use tollgate::money::Money;

use super::super::redis_server::RedisServer;
use super::super::script::{LONG_MS, now};
use super::super::subject::name;
use super::events::Event;
use super::lending_stores::{DAY_MS, LendingRedis, LendingStore};
use super::pair::{Pair, nano};

/// An allotment that was lent so long ago, in ms, and that the store does not know is not charged.
const OLD_MS: i64 = 13 * 60 * 60 * 1_000;
const MINUTE_MS: i64 = 60 * 1_000;

fn hold(id: &str, amount: i64) -> Operation {
    let (id, amount) = (id.to_owned(), nano(amount));
    Operation::Hold {
        id,
        wanted: amount,
        least: amount,
        lease_ms: LONG_MS,
        key: None,
        rates: Vec::new(),
    }
}

/// Two gateways. The first one was lent 300 of 10,000, and holds 20 of it for a call, when an older
/// version sweeps its allotment.
async fn swept_by_an_older_version(redis: &LendingRedis) -> Pair<'_> {
    let mut pair = Pair::new(redis, name("mixed"), 1).await;
    for event in [Event::Pay(10_000), Event::Update { free: 300 }, Event::Hold(20)] {
        pair.happen(0, event).await;
    }
    assert_eq!(pair.gateways[0].open.len(), 1, "the call has its hold");
    let id = pair.gateways[0].local.id().clone();
    assert_eq!(redis.expire_as_before(&pair.account, &id), 300);
    pair.expire_purely(&id);
    pair.compare(&"the sweep").await;
    pair
}

#[tokio::test]
async fn an_older_version_that_sweeps_an_allotment_leaves_no_money_behind() {
    let server = RedisServer::shared();
    let redis = LendingRedis::open(&server.fresh_url()).await;
    let mut pair = swept_by_an_older_version(&redis).await;

    pair.happen(0, Event::End { which: 0, charge: 7 }).await;
    let update = pair.next_update(0, 300);
    let ended = LedgerAnswer::AllotmentEnded { last_seq: 1 };
    assert_eq!(pair.send(update).await, ended);
    // The gateway did not get that answer, and sends its update once more.
    pair.update(0, 300).await;
    pair.compare(&"the end of the call").await;
    assert_eq!(redis.raw_balances(&pair.account), [10_000, 9_993, 0, 7, 0]);

    pair.update(1, 300).await;
    assert_eq!(redis.raw_balances(&pair.account), [10_000, 9_693, 300, 7, 0]);
    assert_eq!(pair.submit(hold("all", 9_993)).await, Outcome::Wait);
    pair.update(1, 0).await;
    assert_eq!(pair.submit(hold("all", 9_993)).await, Outcome::Held(nano(9_993)));
    for wanted in [1, 9_993, 10_000] {
        let refused = pair.submit(hold("more", wanted)).await;
        assert_eq!(refused, Outcome::Insufficient(Money::ZERO), "{wanted}");
    }
    pair.finish().await;
}

/// The update that would tell the store what the older version did never comes.
#[tokio::test]
async fn nobody_waits_for_a_gateway_that_is_gone_and_whose_allotment_an_older_version_swept() {
    let server = RedisServer::shared();
    let redis = LendingRedis::open(&server.fresh_url()).await;
    let mut pair = swept_by_an_older_version(&redis).await;

    pair.update(1, 300).await;
    assert_eq!(redis.raw_balances(&pair.account), [10_000, 9_700, 300, 0, 0]);
    pair.update(1, 0).await;
    assert_eq!(pair.submit(hold("all", 10_000)).await, Outcome::Held(nano(10_000)));
    let refused = pair.submit(hold("more", 10_001)).await;
    assert_eq!(refused, Outcome::Insufficient(Money::ZERO));

    // The store may have to sweep before it knows that nothing is lent.
    let mut told = Outcome::Wait;
    for _ in 0..100 {
        let answer = redis.ledger().submit(&pair.account, hold("one", 1)).await;
        told = answer.expect("an answer");
        if told != Outcome::Wait {
            break;
        }
        redis.ledger().expire_holds().await.expect("a sweep");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(told, Outcome::Insufficient(Money::ZERO), "it waits for ever");
    pair.compare(&"all of it").await;
}

/// Its own late update took it out of the count once more, so that the other one was not called
/// back.
#[tokio::test]
async fn an_allotment_that_an_older_version_swept_was_counted_out_twice() {
    let server = RedisServer::shared();
    let redis = LendingRedis::open(&server.fresh_url()).await;
    let mut pair = Pair::new(&redis, name("counted"), 1).await;
    pair.happen(0, Event::Pay(10_000)).await;
    for at in [0, 1] {
        pair.happen(at, Event::Update { free: 300 }).await;
    }
    let id = pair.gateways[0].local.id().clone();
    assert_eq!(redis.expire_as_before(&pair.account, &id), 300);
    pair.expire_purely(&id);

    assert_eq!(pair.submit(hold("all", 10_000)).await, Outcome::Wait, "who counts anew");
    pair.update(0, 300).await;
    assert_eq!(pair.submit(hold("all", 10_000)).await, Outcome::Wait, "the other has 300 free");
    pair.update(1, 0).await;
    assert_eq!(pair.submit(hold("all", 10_000)).await, Outcome::Held(nano(10_000)));
    pair.finish().await;
}

/// The older version leaves a tombstone, and nothing that says that there is one.
#[tokio::test]
async fn a_call_that_an_older_version_had_voided_was_charged() {
    let server = RedisServer::shared();
    let redis = LendingRedis::open(&server.fresh_url()).await;
    let ended = Event::End { which: 0, charge: 7 };
    let noted = vec![Event::Checkpoint { which: 0, charge: 7 }, Event::Update { free: 300 }];
    for (how, before, after) in [
        ("update", Vec::new(), vec![ended.clone(), Event::Update { free: 300 }]),
        ("successor", Vec::new(), vec![ended, Event::Kill]),
        ("expiry", noted, vec![Event::Expire]),
    ] {
        let account = name(how);
        let mut pair = Pair::new(&redis, account.clone(), 1).await;
        let begun = [Event::Pay(10_000), Event::Update { free: 300 }, Event::Hold(20)];
        for event in begun.into_iter().chain(before) {
            pair.happen(0, event).await;
        }
        let call = pair.gateways[0].open[0].clone();
        redis.void_as_before(&account, &call);
        pair.void_purely(&call);
        for event in after {
            pair.happen(0, event).await;
        }
        pair.compare(&how).await;
        pair.finish().await;
        let journal = redis.ledger().read_journal(&account, 0, 100).await.expect("a journal");
        assert!(journal.is_empty(), "{how}: {journal:?}");
        assert_eq!(redis.raw_balances(&account), [10_000, 10_000, 0, 0, 0], "{how}");
    }
}

/// The charges of checkpoints were kept for a day after the expiry, and the allotment for a day
/// after each late end.
#[tokio::test]
async fn a_late_end_was_charged_in_full_after_its_checkpoint() {
    let server = RedisServer::shared();
    let redis = LendingRedis::open(&server.fresh_url()).await;
    let mut pair = Pair::new(&redis, name("late"), 1).await;
    let (account, id) = (pair.account.clone(), pair.gateways[0].local.id().clone());
    let expect_about_a_day = |after: &str| {
        let kept = redis.kept_for(&account, &id);
        let is_about_a_day = |ms: &i64| (DAY_MS - MINUTE_MS..=DAY_MS).contains(ms);
        assert!(kept.iter().all(is_about_a_day), "{kept:?} after {after}");
    };
    for event in [
        Event::Pay(10_000),
        Event::Update { free: 300 },
        Event::Hold(20),
        Event::Hold(20),
        Event::Checkpoint { which: 0, charge: 7 },
        Event::Update { free: 300 },
        Event::Expire,
    ] {
        pair.happen(0, event).await;
    }
    expect_about_a_day("the expiry");
    redis.keep_for(&account, &id, MINUTE_MS);
    for event in [Event::End { which: 1, charge: 5 }, Event::Update { free: 300 }] {
        pair.happen(0, event).await;
    }
    expect_about_a_day("the late end of the other call");
    for event in [Event::End { which: 0, charge: 10 }, Event::Update { free: 300 }] {
        pair.happen(0, event).await;
    }
    let journal = redis.ledger().read_journal(&account, 0, 100).await.expect("a journal");
    let amounts: Vec<i64> = journal.iter().map(|entry| entry.amount.nano()).collect();
    assert_eq!(amounts, [7, 5, 3]);
    pair.finish().await;
}

fn end(call: &str) -> CallEnd {
    CallEnd {
        call: call.to_owned(),
        key: None,
        held: nano(20),
        charge: Some(nano(10)),
        windows: Vec::new(),
        line: call.to_owned(),
    }
}

#[tokio::test]
async fn ends_are_passed_over_by_number_and_missing_ends_are_asked_for() {
    let server = RedisServer::shared();
    let redis = LendingRedis::open(&server.fresh_url()).await;
    let mut pair = Pair::new(&redis, name("numbers"), 1).await;
    for event in [Event::Pay(10_000), Event::Update { free: 300 }] {
        pair.happen(0, event).await;
    }
    let local = &pair.gateways[0].local;
    let (id, lent_at) = (local.id().clone(), local.lent_at());
    let of = |id: &AllotmentId, lent_at: i64, first_seq: u64, calls: &[&str]| {
        let ends = calls.iter().map(|call| end(call)).collect();
        AllotmentUpdate::replay(id.clone(), lent_at, first_seq, ends)
    };
    let replay = |first_seq: u64, calls: &[&str]| of(&id, lent_at, first_seq, calls);
    let ended = |last_seq: u64| LedgerAnswer::AllotmentEnded { last_seq };
    let (other, old) =
        (AllotmentId("allotment_run8-1".into()), AllotmentId("allotment_run9-1".into()));
    for (update, expected) in [
        (replay(1, &["a", "b"]), ended(2)),
        (replay(1, &["a", "b"]), ended(2)),
        (replay(2, &["b", "c"]), ended(3)),
        (replay(5, &["e"]), LedgerAnswer::MissingEnds { last_seq: 3 }),
        (AllotmentUpdate { earlier_lost: true, ..replay(5, &["e"]) }, ended(5)),
        (replay(4, &["d", "e"]), ended(5)),
        (AllotmentUpdate { retires: true, ..replay(1, &[]) }, ended(5)),
        (replay(6, &["f"]), ended(6)),
        (of(&other, now(), 2, &["h"]), LedgerAnswer::MissingEnds { last_seq: 0 }),
        (of(&other, now(), 1, &["g"]), ended(1)),
        (of(&other, now(), 1, &["g"]), ended(1)),
        (of(&old, now() - OLD_MS, 1, &["i"]), LedgerAnswer::UnknownAllotment),
    ] {
        assert_eq!(pair.send(update.clone()).await, expected, "{update:?}");
        pair.compare(&update).await;
    }
    let journal = redis.ledger().read_journal(&pair.account, 0, 100).await.expect("a journal");
    let lines: Vec<&str> = journal.iter().map(|entry| entry.line.as_str()).collect();
    assert_eq!(lines, ["a", "b", "c", "e", "f", "g"]);
    assert_eq!(redis.raw_balances(&pair.account), [10_000, 9_940, 0, 60, 0]);
}
