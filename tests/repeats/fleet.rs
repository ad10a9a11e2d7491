//! A fleet on Redis: the first try is at one gateway, whose memory has its name, and the retry
//! comes to another one.

use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use rstest::rstest;

use super::*;
use crate::world::{CHAT, Hold, MESSAGES, Opened};

/// A first try at the gateway of the world, whose vendor is held, on its way.
async fn begun(world: &World, sent: &Sent) -> tokio::task::JoinHandle<reqwest::Result<Answer>> {
    let before = world.sim.count("vendor_b");
    let begun = request(world, &world.gateway, sent, CHAT.path).header(RETRIES, "0");
    let begun = tokio::spawn(Answer::try_read(begun));
    vendor_becomes(world, "vendor_b", before + 1).await;
    begun
}

/// The one charge is that of this answer.
async fn is_the_charge(world: &World, answer: &Answer) {
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), answer.header("x-request-id"));
}

#[rstest]
#[tokio::test]
async fn a_retry_at_another_gateway_gets_the_reply_of_the_first(
    #[values((CHAT, whole("a")), (CHAT, streamed("a")), (MESSAGES, streamed("a")))] what: (
        Offer,
        Value,
    ),
) {
    let (offer, members) = what;
    let world = World::start(Store::Redis).conf(PATIENT).run().await;
    let other = world.second_gateway().await;
    let first = tried(&world, offer, &members, 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    for (before, at) in (1..).zip([&other, &other, &world.gateway]) {
        repeats(&tried_at((&world, at), offer, &members, before).await, &first);
    }
    is_the_charge(&world, &first).await;
    assert_eq!(world.sim.count(offer.vendor), 1);
    // Its own first try is a call of its own, whose retry gets its own reply.
    let second = tried_at((&world, &other), offer, &members, 0).await;
    assert_eq!((second.status, second.header(REPLAYED)), (200, None), "{second:?}");
    repeats(&tried_at((&world, &other), offer, &members, 1).await, &second);
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn a_retry_at_another_gateway_joins_the_call_that_still_runs(
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=4"]).conf(PATIENT);
    let world = builder.run().await;
    let other = world.second_gateway().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let first = begun(&world, &CHAT.sent(&members)).await;
    let going_on = async {
        // The fleet had the time to hear of it.
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        world.sim.let_go();
    };
    let retry = tried_at((&world, &other), CHAT, &members, 1);
    let (joined, ()) = tokio::join!(retry, going_on);
    let first = first.await.expect("no panic").expect("an answer");
    assert_eq!(first.status, 200, "{first:?}");
    repeats(&joined, &first);
    is_the_charge(&world, &first).await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[rstest]
#[tokio::test]
async fn a_retry_at_another_gateway_joins_the_call_of_a_client_that_hung_up(
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=4"]).conf(PATIENT);
    let world = builder.run().await;
    let other = world.second_gateway().await;
    let members = if stream { streamed("a") } else { whole("a") };
    hung_up(&world, CHAT, (RETRIES, "0"), &members).await;
    let going_on = async {
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        world.sim.let_go();
    };
    let retry = tried_at((&world, &other), CHAT, &members, 1);
    let (joined, ()) = tokio::join!(retry, going_on);
    assert_eq!((joined.status, joined.header(REPLAYED)), (200, Some("true")), "{joined:?}");
    let charge = world.charge().await;
    assert_eq!(joined.header(ORIGINAL), Some(charge.request_id.as_str()));
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// Its first try never came, or it came to nothing.
#[tokio::test]
async fn a_retry_of_which_no_gateway_knows_is_a_call() {
    let faults = "status=400;times=1";
    let builder = World::start(Store::Redis).vendor("vendor_b", &[faults]).conf(PATIENT);
    let world = builder.run().await;
    let other = world.second_gateway().await;
    let refused = tried(&world, CHAT, &whole("a"), 0).await;
    assert!(refused.status >= 400, "{refused:?}");
    let before = world.sim.count("vendor_b");
    for words in ["a", "b"] {
        let made = tried_at((&world, &other), CHAT, &whole(words), 1).await;
        assert_eq!((made.status, made.header(REPLAYED)), (200, None), "{made:?}");
        repeats(&tried(&world, CHAT, &whole(words), 2).await, &made);
    }
    world.settled(2).await;
    assert_eq!(world.sim.count("vendor_b"), before + 2);
}

/// Who stands still cannot say what it runs. When it goes on, its own call is charged no more.
#[rstest]
#[tokio::test]
async fn a_call_of_a_gateway_that_stood_still_was_charged_beside_its_retry(
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=2;times=1"]);
    let world = builder.conf(SHORT_LEASES).run().await;
    let other = world.second_gateway().await;
    let sent = CHAT.sent(&if stream { streamed("a") } else { whole("a") });
    let still = begun(&world, &sent).await;
    world.gateway.signal("STOP");
    let made = is_made_anew((&world, &other), &sent).await;
    world.gateway.signal("CONT");
    world.sim.let_go();
    // Whatever its client hears, it costs nothing.
    let _ = still.await.expect("no panic");
    is_the_charge(&world, &made).await;
    repeats(&insists((&world, &other), (RETRIES, "3"), &sent).await, &made);
    // Until it has heard from the others, it knows its own reply, for which nobody pays.
    let asked = async || insists((&world, &world.gateway), (RETRIES, "3"), &sent).await;
    let end = Instant::now() + PATIENCE;
    let mut again = asked().await;
    while again.header(ORIGINAL) != made.header("x-request-id") && Instant::now() < end {
        again = asked().await;
    }
    repeats(&again, &made);
    is_the_charge(&world, &made).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// The journal knows that the call was charged, and only who stands still has its reply.
#[tokio::test]
async fn a_reply_of_a_gateway_that_stands_still_is_not_charged_again() {
    let world = World::start(Store::Redis).conf(MEMORY_LEASES).run().await;
    let other = world.second_gateway().await;
    let first = tried(&world, CHAT, &whole("a"), 0).await;
    is_the_charge(&world, &first).await;
    world.gateway.signal("STOP");
    is_lost((&world, &other), &CHAT.sent(&whole("a"))).await;
    world.gateway.signal("CONT");
    is_the_charge(&world, &first).await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// It never comes back.
#[rstest]
#[tokio::test]
async fn a_reply_of_a_gateway_that_died_is_lost_and_not_charged_again(
    #[values(false, true)] stream: bool,
) {
    let mut world = World::start(Store::Redis).conf(MEMORY_LEASES).run().await;
    let other = world.second_gateway().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let first = tried(&world, CHAT, &members, 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    is_the_charge(&world, &first).await;
    world.gateway.kill();
    is_lost((&world, &other), &CHAT.sent(&members)).await;
    is_the_charge(&world, &first).await;
    assert_eq!(world.sim.count("vendor_b"), 1);
    // A first try asks for nothing again.
    let second = tried_at((&world, &other), CHAT, &members, 0).await;
    assert_eq!((second.status, second.header(REPLAYED)), (200, None), "{second:?}");
    repeats(&tried_at((&world, &other), CHAT, &members, 1).await, &second);
    world.settled(2).await;
}

#[rstest]
#[tokio::test]
async fn a_call_of_a_gateway_that_died_is_made_anew_at_another_one(
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=2;times=1"]);
    let mut world = builder.conf(SHORT_LEASES).run().await;
    let other = world.second_gateway().await;
    let sent = CHAT.sent(&if stream { streamed("a") } else { whole("a") });
    let lost = begun(&world, &sent).await;
    world.gateway.kill();
    assert!(lost.await.expect("no panic").is_err());
    let made = is_made_anew((&world, &other), &sent).await;
    is_the_charge(&world, &made).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

#[tokio::test]
async fn a_gateway_that_stopped_left_its_replies_to_the_others() {
    let mut world = World::start(Store::Redis).conf(PATIENT).run().await;
    let other = world.second_gateway().await;
    let mut answers = Vec::new();
    for (offer, members) in [(CHAT, whole("a")), (CHAT, streamed("b")), (MESSAGES, streamed("c"))] {
        let answer = tried(&world, offer, &members, 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answers.push((offer, members, answer));
    }
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    for (offer, members, first) in &answers {
        let again = async || tried_at((&world, &other), *offer, members, 1).await;
        repeats_soon(again, first).await;
    }
    world.settled(3).await;
    assert_eq!(world.sim.count("vendor_a") + world.sim.count("vendor_b"), 3);
}

/// It is told to stop while it runs; the retry waits for it elsewhere.
#[tokio::test]
async fn a_retry_at_another_gateway_joins_the_last_call_of_one_that_stops() {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=4"]).conf(PATIENT);
    let mut world = builder.run().await;
    let other = world.second_gateway().await;
    let sent = CHAT.sent(&streamed("a"));
    let first = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, "0");
    let mut first = Opened::open(first).await;
    first.take(2).await;
    world.gateway.signal("TERM");
    let going_on = async {
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        world.sim.let_go();
    };
    let retry = insists((&world, &other), (RETRIES, "1"), &sent);
    let (joined, first, ()) = tokio::join!(retry, first.rest(), going_on);
    assert!(first.is_done(), "{first:?}");
    assert_eq!((joined.status, joined.header(REPLAYED)), (200, Some("true")), "{joined:?}");
    assert!(joined.body == first.raw, "{joined:?}\n{first:?}");
    world.gateway.ended(PATIENCE).await;
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

const CROWD: usize = 40;

#[tokio::test]
async fn forty_retries_at_once_at_another_gateway_get_forty_replies() {
    let world = World::start(Store::Redis).conf(PATIENT).run().await;
    let other = world.second_gateway().await;
    let calls: Vec<_> = (0..CROWD)
        .map(|number| {
            let words = number.to_string();
            if number % 2 == 0 { whole(&words) } else { streamed(&words) }
        })
        .collect();
    let answers = join_all(calls.iter().map(|members| tried(&world, CHAT, members, 0))).await;
    let odd: Vec<_> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(odd.is_empty(), "{odd:?}");
    let at = (&world, &other);
    let retries = join_all(calls.iter().map(|members| tried_at(at, CHAT, members, 1))).await;
    for (again, first) in retries.iter().zip(&answers) {
        repeats(again, first);
    }
    world.settled(CROWD).await;
    assert_eq!(world.sim.count("vendor_b"), CROWD as u64);
}

/// At one gateway, or at two that both find nobody who knows the call.
#[rstest]
#[tokio::test]
async fn two_retries_at_once_of_a_call_that_died_were_two_calls(
    #[values(false, true)] apart: bool,
) {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=0;times=1"]);
    let mut world = builder.conf(SHORT_LEASES).run().await;
    let other = world.second_gateway().await;
    let third = if apart { Some(world.gateway_with("third", &[]).await) } else { None };
    let sent = CHAT.sent(&whole("a"));
    let lost = begun(&world, &sent).await;
    world.gateway.kill();
    assert!(lost.await.expect("no panic").is_err());
    let at = [&other, third.as_ref().unwrap_or(&other)];
    let retries = at.map(|at| insists((&world, at), (RETRIES, "1"), &sent));
    let answers = join_all(retries).await;
    let (made, others): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.header(REPLAYED).is_none());
    let ([made], [again]) = (&made[..], &others[..]) else { panic!("{answers:?}") };
    assert_eq!(made.status, 200, "{made:?}");
    repeats(again, made);
    is_the_charge(&world, made).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// The folders in a folder.
fn folders(within: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(within).expect("a folder");
    let paths = found.map(|found| found.expect("a folder").path());
    paths.filter(|path| path.is_dir()).collect()
}

/// The folders of addresses in an outbox, without those for the calls of busy accounts.
fn addresses(outbox: &Path) -> Vec<PathBuf> {
    let is_address = |folder: &PathBuf| !folder.to_string_lossy().ends_with("-allotments");
    folders(outbox).into_iter().filter(is_address).collect()
}

/// A first try at a gateway with this outbox, which is killed when it has written down what the
/// call costs, and before Redis hears of it. Gives the gateway that is left.
async fn written_down(world: &mut World, outbox: &Path, sent: &Sent) -> Process {
    let [own] = &addresses(&world.path("var/outbox"))[..] else { panic!("one address") };
    let address = own.file_name().expect("its name").to_owned();
    let (url, place) = (world.gate().url.clone(), outbox.display().to_string());
    let settings = [("TOLLGATE__STORE__URL", &*url), ("TOLLGATE__STORE__OUTBOX", &*place)];
    let first = world.gateway_with("first", &settings).await;
    let other = std::mem::replace(&mut world.gateway, first);
    world.gate().shut_at("\"request_id\":\"0", Hold::Words);
    let lost = request(world, &world.gateway, sent, CHAT.path).header(RETRIES, "0");
    let lost = tokio::spawn(Answer::try_read(lost));
    world.gate().is_shut().await;
    world.metric_becomes("tollgate_requests_total", &["endpoint=\"chat\""], 1).await;
    world.gateway.kill();
    // Its client may have the answer. The gate stays shut, so nothing of it arrives late.
    let _ = lost.await.expect("no panic");
    // The gate is another address of the same store, so an operator would rename its folder.
    let to = outbox.join(&address);
    std::fs::create_dir_all(&to).expect("a folder");
    let gated = addresses(outbox).into_iter().filter(|folder| *folder != to);
    for process in gated.flat_map(|folder| folders(&folder)) {
        let name = process.file_name().expect("its name");
        std::fs::rename(&process, to.join(name)).expect("it is moved");
    }
    other
}

/// The other gateway of its machine finds what it had written down within ten seconds, and the
/// lease is longer.
#[tokio::test]
async fn a_charge_that_a_dead_gateway_had_only_written_down_is_not_made_again() {
    let leases = "[timeouts]\nledger_ms = 10_000\nlease_ms = 20_000";
    let mut world = World::start(Store::Redis).gated().conf(leases).run().await;
    let sent = CHAT.sent(&whole("a"));
    let outbox = world.path("var/outbox");
    let other = written_down(&mut world, &outbox, &sent).await;
    is_lost((&world, &other), &sent).await;
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// It had written that on a disk of its own, and came back when the retry was made and paid.
#[tokio::test]
async fn a_charge_that_only_a_dead_machine_knew_was_made_beside_its_retry() {
    let mut world = World::start(Store::Redis).gated().conf(MEMORY_LEASES).run().await;
    let outbox = world.path("elsewhere");
    let sent = CHAT.sent(&whole("a"));
    let other = written_down(&mut world, &outbox, &sent).await;
    let disk = outbox.display().to_string();
    let own_disk = [("TOLLGATE__STORE__OUTBOX", disk.as_str())];
    let made = is_made_anew((&world, &other), &sent).await;
    is_the_charge(&world, &made).await;
    world.gateway = world.gateway_with("successor", &own_disk).await;
    world.logged(&["outbox_replay_finished"]).await;
    is_the_charge(&world, &made).await;
    repeats(&insists((&world, &world.gateway), (RETRIES, "3"), &sent).await, &made);
    is_the_charge(&world, &made).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// While Redis is away nobody can tell who lives. Nobody is taken for dead for that, and what ends
/// meanwhile is charged when Redis is back.
#[tokio::test]
async fn a_call_that_ended_while_redis_was_away_was_taken_for_one_that_was_made_again() {
    let builder = World::start(Store::Redis).own_redis().vendor("vendor_b", &["held=0;times=1"]);
    let mut world = builder.conf("[timeouts]\nlease_ms = 1_000").run().await;
    let other = world.second_gateway().await;
    let sent = CHAT.sent(&whole("a"));
    let first = begun(&world, &sent).await;
    world.redis().signal("STOP");
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.sim.let_go();
    let first = first.await.expect("no panic").expect("an answer");
    assert_eq!(first.status, 200, "{first:?}");
    world.redis().signal("CONT");
    is_the_charge(&world, &first).await;
    for at in [&world.gateway, &other] {
        let again = async || insists((&world, at), (RETRIES, "1"), &sent).await;
        let end = Instant::now() + PATIENCE;
        while again().await.status == 503 {
            assert!(Instant::now() < end, "it sells nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        repeats(&again().await, &first);
    }
    is_the_charge(&world, &first).await;
}

/// Two samples with the same content end while their gateway stops, and no longer says that it
/// lives. Neither is the other's retry.
#[tokio::test]
async fn of_two_samples_that_ended_while_their_gateway_stopped_one_was_free() {
    let builder = World::start(Store::Redis).vendor("vendor_b", &["held=0"]).conf(SHORT_LEASES);
    let world = builder.run().await;
    let _other = world.second_gateway().await;
    let sent = CHAT.sent(&whole("a"));
    let samples = [begun(&world, &sent).await, begun(&world, &sent).await];
    world.gateway.signal("TERM");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    world.sim.let_go();
    for sample in samples {
        let answer = sample.await.expect("no panic").expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    world.settled(2).await;
}

/// A gateway that has forgotten a reply to make room has charged its call.
#[tokio::test]
async fn a_reply_that_another_gateway_had_forgotten_was_charged_again() {
    const MANY: usize = 300;
    let vendor = ["reply-bytes=60000;prompt=1;completion=9"];
    let builder = World::start(Store::Redis).vendor("vendor_b", &vendor).conf(PATIENT);
    let world = builder.run().await;
    let other = world.second_gateway().await;
    for number in 0..MANY {
        let answer = tried(&world, CHAT, &whole(&number.to_string()), 0).await;
        assert_eq!(answer.status, 200, "{}", answer.status);
    }
    let again = tried_at((&world, &other), CHAT, &whole("0"), 1).await;
    assert_eq!(again.refusal(), (409, "reply_not_kept".to_owned()));
    let last = (MANY - 1).to_string();
    let again = tried_at((&world, &other), CHAT, &whole(&last), 1).await;
    assert_eq!(again.header(REPLAYED), Some("true"), "{}", again.status);
    world.settled(MANY).await;
}
