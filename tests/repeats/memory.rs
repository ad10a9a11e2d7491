//! First tries of official clients: their names and replies are in the memory of the process that
//! serves them. It writes them into the store when it stops; when it is killed they are lost, and
//! nobody pays twice.

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;
use crate::world::{ACCOUNT, CHAT, MESSAGES, Opened};

/// Told to stop, the gateway ends in order, and another one starts in its place.
async fn stop_and_start_again(world: &mut World) {
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    world.gateway = world.gateway_with("again", &[]).await;
}

/// The lines of the account's journal as the store has them, oldest first.
fn journal(world: &World, store: Store) -> Vec<Value> {
    let lines: Vec<String> = if store == Store::Sqlite {
        let file = file_of(world);
        let mut select = file.prepare("SELECT line FROM journal ORDER BY seq").expect("a query");
        let lines = select.query_map([], |row| row.get(0)).expect("rows");
        lines.map(|line| line.expect("a text")).collect()
    } else {
        let mut redis = world.connect_to_redis();
        let mut all = redis::cmd("LRANGE");
        all.arg(format!("tollgate:{{{ACCOUNT}}}:journal")).arg(0).arg(-1);
        let entries = all.query::<Vec<String>>(&mut redis).expect("a list");
        // In front of each line are two amounts.
        let line = |entry: &String| entry.splitn(3, ' ').nth(2).expect("a line").to_owned();
        entries.iter().map(line).collect()
    };
    lines.iter().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[rstest]
#[tokio::test]
async fn a_first_try_leaves_nothing_in_the_store(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    assert_eq!(stored(&world, store), (0, 0));
    let mut answers = Vec::new();
    for number in 0..20 {
        let words = number.to_string();
        let (offer, members) = match number % 4 {
            0 => (CHAT, streamed(&words)),
            1 => (MESSAGES, streamed(&words)),
            _ => (CHAT, whole(&words)),
        };
        let answer = tried(&world, offer, &members, 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answers.push((offer, members, answer));
    }
    world.settled(20).await;
    assert_eq!(stored(&world, store), (0, 0));
    // They are known all the same.
    for (offer, members, first) in &answers {
        repeats(&tried(&world, *offer, members, 1).await, first);
    }
    // A call under a key is in the store: what is counted here is what there is.
    assert_eq!(keyed(&world, CHAT, &json!({}), "a").await.status, 200);
    stored_becomes(&world, store, 1).await;
    world.settled(21).await;
}

/// Nor has it a name there while it runs, or when its client does not wait for it.
#[rstest]
#[tokio::test]
async fn a_first_try_that_runs_has_no_name_in_the_store(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &["held=0"]).conf(PATIENT).run().await;
    hung_up(&world, CHAT, (RETRIES, "0"), &json!({})).await;
    assert_eq!(stored(&world, store), (0, 0));
    world.sim.let_go();
    let charge = world.charge().await;
    assert_eq!(stored(&world, store), (0, 0));
    let again = tried(&world, CHAT, &json!({}), 1).await;
    assert_eq!((again.status, again.header(REPLAYED)), (200, Some("true")), "{again:?}");
    assert_eq!(again.header(ORIGINAL), Some(charge.request_id.as_str()));
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[rstest]
#[tokio::test]
async fn a_process_that_stopped_left_its_replies_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(PATIENT).run().await;
    let calls = [(CHAT, whole("a")), (CHAT, streamed("b")), (MESSAGES, streamed("c"))];
    let mut answers = Vec::new();
    for (offer, members) in calls {
        let answer = tried(&world, offer, &members, 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answers.push((offer, members, answer));
    }
    stop_and_start_again(&mut world).await;
    for (offer, members, first) in &answers {
        repeats_soon(async || tried(&world, *offer, members, 1).await, first).await;
        repeats_soon(async || tried(&world, *offer, members, 2).await, first).await;
    }
    world.settled(3).await;
    assert_eq!(world.sim.count("vendor_a") + world.sim.count("vendor_b"), 3);
}

/// It is told to stop while they run, and their clients are gone already.
#[rstest]
#[tokio::test]
async fn a_process_that_stopped_left_the_replies_of_its_last_calls_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "chunk-delay=30;chunks=25";
    let mut world = World::start(store).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let sent = CHAT.sent(&streamed("a"));
    let request = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, "0");
    let mut stream = Opened::open(request).await;
    stream.take(2).await;
    drop(stream);
    stop_and_start_again(&mut world).await;
    let again = insists((&world, &world.gateway), (RETRIES, "1"), &sent).await;
    assert_eq!((again.status, again.header(REPLAYED)), (200, Some("true")), "{again:?}");
    assert!(again.body.ends_with(b"data: [DONE]\n\n"), "{again:?}");
    let charge = world.charge().await;
    assert_eq!(again.header(ORIGINAL), Some(charge.request_id.as_str()));
    assert_eq!(world.sim.count("vendor_b"), 1);
}

/// A long one is a file, of which only the head was in memory.
#[rstest]
#[tokio::test]
async fn a_process_that_stopped_left_a_long_reply_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let faults = "reply-bytes=200000;completion=9;chunks=12;held=2";
    let mut world = World::start(store).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let sent = CHAT.sent(&json!({}));
    hung_up(&world, CHAT, (RETRIES, "0"), &json!({})).await;
    world.sim.let_go();
    let charge = world.charge().await;
    stop_and_start_again(&mut world).await;
    let again = insists((&world, &world.gateway), (RETRIES, "1"), &sent).await;
    assert_eq!((again.status, again.header(REPLAYED)), (200, Some("true")), "{again:?}");
    assert!(again.body.len() > 200_000, "{} bytes", again.body.len());
    assert_eq!(again.header(ORIGINAL), Some(charge.request_id.as_str()));
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[rstest]
#[tokio::test]
async fn a_process_that_was_taken_over_left_its_replies_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let conf = format!("[server]\npid_file = \"var/tollgate.pid\"\n{PATIENT}");
    let mut world = World::start(store).conf(&conf).run().await;
    let mut answers = Vec::new();
    for members in [whole("a"), streamed("b")] {
        let answer = tried(&world, CHAT, &members, 0).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answers.push((members, answer));
    }
    let new = world.successor("new", &[]).await;
    world.gives_way_to(new).await;
    for (members, first) in &answers {
        repeats_soon(async || tried(&world, CHAT, members, 1).await, first).await;
    }
    world.settled(2).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// Whether the ledger had the charge by then, or only the outbox.
#[rstest]
#[tokio::test]
async fn a_reply_that_died_with_its_process_is_lost_and_not_charged_again(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
    #[values(false, true)] is_settled: bool,
) {
    let mut world = World::start(store).conf(MEMORY_LEASES).run().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let first = tried(&world, CHAT, &members, 0).await;
    assert_eq!(first.status, 200, "{first:?}");
    if is_settled {
        world.charge().await;
    }
    world.kill_and_start_again().await;
    is_lost((&world, &world.gateway), &CHAT.sent(&members)).await;
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), first.header("x-request-id"));
    assert_eq!(world.sim.count("vendor_b"), 1);
    // A first try asks for nothing again.
    let second = tried(&world, CHAT, &members, 0).await;
    assert_eq!((second.status, second.header(REPLAYED)), (200, None), "{second:?}");
    repeats(&tried(&world, CHAT, &members, 1).await, &second);
    world.settled(2).await;
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// Nothing was charged for it, and nothing of it can come any more. On SQLite the one process is
/// gone, so that nobody waits for a lease.
#[rstest]
#[case::at_once(Store::Sqlite, LONG_LEASES)]
#[case::after_a_lease(Store::Redis, SHORT_LEASES)]
#[tokio::test]
async fn a_call_that_died_with_its_process_is_made_anew(
    #[case] store: Store,
    #[case] leases: &str,
    #[values(false, true)] stream: bool,
) {
    let builder = World::start(store).vendor("vendor_b", &["held=2;times=1"]).conf(leases);
    let mut world = builder.run().await;
    let members = if stream { streamed("a") } else { whole("a") };
    let sent = CHAT.sent(&members);
    let lost = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, "0");
    let lost = tokio::spawn(Answer::try_read(lost));
    vendor_becomes(&world, "vendor_b", 1).await;
    world.kill_and_start_again().await;
    assert!(lost.await.expect("no panic").is_err());
    let made = is_made_anew((&world, &world.gateway), &sent).await;
    // What the first try held may be held until its lease ends.
    let charges = world.charged(1).await;
    assert_eq!(Some(charges[0].request_id.as_str()), made.header("x-request-id"));
    assert_eq!(world.sim.count("vendor_b"), 2);
}

#[rstest]
#[tokio::test]
async fn what_one_account_lost_does_not_matter_to_the_next(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(MEMORY_LEASES).run().await;
    let sent = CHAT.sent(&json!({}));
    assert_eq!(tried(&world, CHAT, &json!({}), 0).await.status, 200);
    world.charge().await;
    let theirs = world.another_account("stranger", "5").await;
    world.kill_and_start_again().await;
    let own = std::mem::replace(&mut world.key, theirs);
    is_made_anew((&world, &world.gateway), &sent).await;
    world.key = own;
    is_lost((&world, &world.gateway), &sent).await;
    world.charge().await;
    let end = Instant::now() + PATIENCE;
    while world.command(&["--json", "charges", "stranger"]).await.json().len() != 1 {
        assert!(Instant::now() < end, "their call is not charged");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.sim.count("vendor_b"), 2);
}

/// By it the ledger knows a call whose process was killed.
#[rstest]
#[tokio::test]
async fn the_journal_has_a_digest_of_first_tries_alone(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let (sent, other) = (CHAT.sent(&whole("a")), CHAT.sent(&streamed("b")));
    let calls: [(&Sent, &[(&str, &str)]); 6] = [
        (&sent, &[(RETRIES, "0")]),
        (&sent, &[(RETRIES, "0")]),
        (&other, &[(RETRIES, "0")]),
        (&sent, &[]),
        (&sent, &[(KEY, "a")]),
        (&sent, &[(KEY, "b"), (RETRIES, "0")]),
    ];
    for (number, (sent, headers)) in (1..).zip(calls) {
        let asked = request(&world, &world.gateway, sent, CHAT.path);
        let asked = headers.iter().fold(asked, |asked, (name, value)| asked.header(*name, *value));
        let answer = Answer::read(asked).await;
        assert_eq!((answer.status, answer.header(REPLAYED)), (200, None), "{answer:?}");
        world.settled(number).await;
    }
    let lines = journal(&world, store);
    let digests: Vec<_> = lines.iter().map(|line| line["retry_digest"].as_str()).collect();
    let [Some(first), Some(second), Some(third), None, None, None] = digests[..] else {
        panic!("{lines:#?}");
    };
    assert!(first == second && first != third, "{digests:?}");
    for digest in [first, third] {
        let is_base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        assert!(digest.len() == 43 && digest.as_bytes().iter().all(is_base64), "{digest}");
    }
}

/// Who asks for samples gets as many, and a retry is one of the sample that was asked for last.
#[rstest]
#[tokio::test]
async fn of_ten_samples_a_retry_gets_the_last(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let mut world = World::start(store).conf(PATIENT).run().await;
    let mut samples = Vec::new();
    for _ in 0..10 {
        let sample = tried(&world, CHAT, &json!({}), 0).await;
        assert_eq!((sample.status, sample.header(REPLAYED)), (200, None), "{sample:?}");
        samples.push(sample);
    }
    let ids: BTreeSet<_> = samples.iter().map(|a| a.header("x-request-id")).collect();
    assert_eq!(ids.len(), 10);
    repeats(&tried(&world, CHAT, &json!({}), 1).await, &samples[9]);
    stop_and_start_again(&mut world).await;
    repeats_soon(async || tried(&world, CHAT, &json!({}), 1).await, &samples[9]).await;
    world.settled(10).await;
    assert_eq!(world.sim.count("vendor_b"), 10);
}

/// From its first note in the ledger on a stream has its name in the store: when that note is
/// charged, nobody takes the stream for a call that never was.
#[rstest]
#[tokio::test]
async fn a_stream_that_died_behind_a_checkpoint_is_charged_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] is_settled: bool,
) {
    let faults = "chunk-delay=100;chunks=100;held=62;times=1";
    let builder = World::start(store).vendor("vendor_b", &[faults]).conf(SHORT_LEASES);
    let mut world = builder.run().await;
    let sent = CHAT.sent(&streamed("a"));
    let request = request(&world, &world.gateway, &sent, CHAT.path).header(RETRIES, "0");
    let mut stream = Opened::open(request).await;
    let first = stream.headers["x-request-id"].to_str().expect("text").to_owned();
    stream.take(60).await;
    let end = Instant::now() + PATIENCE;
    while stored(&world, store).0 == 0 {
        assert!(Instant::now() < end, "it has no name in the store");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Whichever of its name and its note is written first, the other one is there by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.kill_and_start_again().await;
    if is_settled {
        // Its lease is over, so the sweep charges what was noted.
        assert_eq!(world.charge().await.request_id, first);
        is_lost((&world, &world.gateway), &sent).await;
        assert_eq!(world.sim.count("vendor_b"), 1);
    } else {
        // Either the sweep comes first, or the retry, which gives back what was held.
        let answer = insists((&world, &world.gateway), (RETRIES, "1"), &sent).await;
        let charge = world.charge().await;
        if answer.status == 200 {
            assert_eq!(answer.header(REPLAYED), None, "{answer:?}");
            assert_eq!(Some(charge.request_id.as_str()), answer.header("x-request-id"));
        } else {
            assert_eq!(answer.refusal(), (409, "reply_lost".to_owned()));
            assert_eq!(charge.request_id, first);
        }
    }
    insists((&world, &world.gateway), (RETRIES, "1"), &sent).await;
    world.charge().await;
}

/// What an account keeps there, in bytes.
const ACCOUNT_BYTES_MAX: usize = 16 << 20;
/// So many replies of some 60 KB are more than that.
const MANY: usize = 300;

#[tokio::test]
async fn replies_in_memory_have_a_bound_for_each_account() {
    let vendor = ["reply-bytes=60000;prompt=1;completion=9"];
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &vendor).conf(PATIENT);
    let mut world = builder.run().await;
    let theirs = world.another_account("stranger", "5").await;
    let own = std::mem::replace(&mut world.key, theirs.clone());
    let first = tried(&world, CHAT, &json!({}), 0).await;
    assert!(first.status == 200 && first.body.len() > 60_000, "{}", first.status);
    world.key = own;
    for number in 0..MANY {
        let answer = tried(&world, CHAT, &whole(&number.to_string()), 0).await;
        assert!(answer.status == 200 && answer.body.len() > 60_000, "{}", answer.status);
    }
    let (mut kept, mut bytes) = (0, 0);
    for number in 0..MANY {
        let again = tried(&world, CHAT, &whole(&number.to_string()), 1).await;
        if again.header(REPLAYED).is_some() {
            (kept, bytes) = (kept + 1, bytes + again.body.len());
        } else {
            // It is known all the same, so nobody pays for it again.
            assert_eq!(again.refusal(), (409, "reply_not_kept".to_owned()));
        }
    }
    assert!((1..MANY).contains(&kept) && bytes <= ACCOUNT_BYTES_MAX, "{kept}: {bytes} bytes");
    world.settled(MANY).await;
    world.key = theirs;
    repeats(&tried(&world, CHAT, &json!({}), 1).await, &first);
    assert_eq!(world.sim.count("vendor_b"), MANY as u64 + 1);
}
