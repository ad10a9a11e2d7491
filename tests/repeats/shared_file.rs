//! Two processes on one file of SQLite: as soon as a process sees that it is not alone, its names
//! and replies are in the file, where the other one finds them.

use rstest::rstest;

use super::*;
use crate::world::CHAT;

/// A first try at the gateway of the world, of which the other one hears: from then on both know
/// of each other.
async fn acquainted(world: &World, other: &Process) {
    let first = tried(world, CHAT, &whole("hello"), 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    repeats_soon(async || tried_at((world, other), CHAT, &whole("hello"), 1).await, &first).await;
    let theirs = tried_at((world, other), CHAT, &whole("and hello"), 0).await;
    assert_eq!(theirs.status, 200, "{theirs:?}");
    repeats_soon(async || tried(world, CHAT, &whole("and hello"), 1).await, &theirs).await;
    world.settled(2).await;
}

/// The second one was not there yet when the first try ended.
#[rstest]
#[tokio::test]
async fn a_process_that_starts_later_finds_the_replies_of_the_first(
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).conf(PATIENT).run().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let first = tried(&world, CHAT, &members, 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(stored(&world, Store::Sqlite), (0, 0), "it is alone");
    let other = world.second_gateway().await;
    for before in 1..=2 {
        let again = async || tried_at((&world, &other), CHAT, &members, before).await;
        repeats_soon(again, &first).await;
    }
    repeats_soon(async || tried(&world, CHAT, &members, 3).await, &first).await;
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// Also when the second one is gone again.
#[rstest]
#[tokio::test]
async fn the_first_process_finds_the_replies_of_one_that_started_later(
    #[values(false, true)] stream: bool,
) {
    let world = World::start(Store::Sqlite).conf(PATIENT).run().await;
    let mut other = world.second_gateway().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let first = tried_at((&world, &other), CHAT, &members, 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    repeats_soon(async || tried(&world, CHAT, &members, 1).await, &first).await;
    other.signal("TERM");
    other.ended(PATIENCE).await;
    repeats_soon(async || tried(&world, CHAT, &members, 2).await, &first).await;
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[rstest]
#[tokio::test]
async fn a_process_that_starts_later_joins_the_call_that_runs_at_the_first(
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["held=4"]).conf(PATIENT);
    let world = builder.run().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let sent = CHAT.sent(&members);
    hung_up(&world, CHAT, (RETRIES, "0"), &members).await;
    let other = world.second_gateway().await;
    let going_on = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        world.sim.let_go();
    };
    let retry = insists((&world, &other), (RETRIES, "1"), &sent);
    let (joined, ()) = tokio::join!(retry, going_on);
    assert_eq!((joined.status, joined.header(REPLAYED)), (200, Some("true")), "{joined:?}");
    let charge = world.charge().await;
    assert_eq!(joined.header(ORIGINAL), Some(charge.request_id.as_str()));
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// Calls at a second process that is new, all at once: whoever cannot know yet says so.
#[tokio::test]
async fn a_process_that_cannot_know_yet_made_the_calls_of_the_first_again() {
    let world = World::start(Store::Sqlite).conf(PATIENT).run().await;
    let calls: Vec<_> = (0..10).map(|number| whole(&number.to_string())).collect();
    let mut answers = Vec::new();
    for members in &calls {
        let answer = tried(&world, CHAT, members, 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answers.push(answer);
    }
    let other = world.second_gateway().await;
    let at = (&world, &other);
    let retries = calls.iter().zip(&answers).map(|(members, first)| async move {
        let early = tried_at(at, CHAT, members, 1).await;
        if early.status == 409 {
            assert_eq!(early.refusal(), (409, "idempotency_key_in_use".to_owned()));
            assert_eq!(early.header("retry-after"), Some("1"), "{early:?}");
        }
        repeats_soon(async || tried_at(at, CHAT, members, 2).await, first).await;
    });
    futures_util::future::join_all(retries).await;
    world.settled(10).await;
    assert_eq!(world.sim.count("vendor_b"), 10);
}

/// What is in the file survives the process that wrote it.
#[tokio::test]
async fn a_process_that_is_not_alone_loses_no_reply_when_it_is_killed() {
    let mut world = World::start(Store::Sqlite).conf(SHORT_LEASES).run().await;
    let other = world.second_gateway().await;
    acquainted(&world, &other).await;
    stored_becomes(&world, Store::Sqlite, 2).await;
    let mut answers = Vec::new();
    for members in [whole("a"), streamed("b")] {
        let answer = tried(&world, CHAT, &members, 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answers.push((members, answer));
    }
    stored_becomes(&world, Store::Sqlite, 4).await;
    world.settled(4).await;
    world.gateway.kill();
    for (members, first) in &answers {
        let again = async || tried_at((&world, &other), CHAT, members, 1).await;
        repeats_soon(again, first).await;
    }
    world.settled(4).await;
    assert_eq!(world.sim.count("vendor_b"), 4);
}

#[tokio::test]
async fn a_call_of_a_process_that_died_is_made_anew_at_the_other() {
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &["held=0"]).conf(SHORT_LEASES);
    let mut world = builder.run().await;
    world.sim.let_go();
    let other = world.second_gateway().await;
    acquainted(&world, &other).await;
    world.sim.hold();
    let sent = CHAT.sent(&whole("a"));
    let lost = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, "0");
    let lost = tokio::spawn(Answer::try_read(lost));
    vendor_becomes(&world, "vendor_b", 3).await;
    world.gateway.kill();
    assert!(lost.await.expect("no panic").is_err());
    world.sim.let_go();
    let made = is_made_anew((&world, &other), &sent).await;
    let charges = world.settled(3).await;
    assert_eq!(Some(charges[2].request_id.as_str()), made.header("x-request-id"));
    assert_eq!(world.sim.count("vendor_b"), 4);
}
