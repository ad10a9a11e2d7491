//! Gateways that kill themselves at each point where a call, an update of an allotment, an adoption
//! or a copy of the log into its file can be cut in two: what was answered is charged once, and
//! nothing stays held.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use rstest::rstest;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::world::{Answer, Builder, CHAT, Charge, Offer, Process, SPEECH, Store, World, with};

const AT_ONCE: usize = 16;
/// The calls of a burst: each point that a call can reach is reached by one of them.
const BURST: usize = 1_000;
/// The calls of a burst that lasts until a log is long, and has been copied.
const LONG_BURST: usize = 20_000;
/// How many calls are made at the gateway that is left.
const CALLS_AFTER: usize = 16;
/// How many of the first calls are all small.
const SMALL_CALLS: usize = 60;
/// The calls whose lines are archived.
const ARCHIVED_CALLS: usize = 60;
const SPEECH_CHARACTERS: usize = 4_000;
const SPEECH_COST: i64 = 4_000 * 15_000;
/// What a chat costs: ten tokens in, ten out. A stream has begun before it ends.
const CHAT_COST: i64 = 10 * 5_000 + 10 * 30_000;
const VENDOR: &str = "prompt=10;completion=10;chunk-delay=1";
/// The machine may have more to do than it can. What no successor knows of is held for a lease.
const CONF: &str = "[timeouts]\nledger_ms = 10_000\nlease_ms = 1_000";
/// A gateway that still lives at this time after the burst does not reach its point.
const DEATH_WAIT: Duration = Duration::from_secs(20);
const KILLED: i32 = 9;
/// The variable that arms a point.
const FAILPOINT: &str = "TOLLGATE_FAILPOINT";
const DIRECT: (&str, &str) = ("TOLLGATE__STORE__ALLOTMENTS", "false");
/// Calls are served for this long before the log grows.
const BEFORE_GROWTH: Duration = Duration::from_millis(300);
/// So much makes the log so long that it is copied, and so much that it also begins anew.
const LONG_BYTES: i64 = 6 << 20;
const RESTART_BYTES: i64 = 20 << 20;

/// Every other call is a stream.
fn chat(number: usize) -> (Offer, Value) {
    let members = json!({ "max_tokens": 10, "stream": !number.is_multiple_of(2) });
    (CHAT, with(CHAT.call(), &members))
}

/// Some later calls are so large that nothing is lent of the account any more.
fn chat_or_speech(number: usize) -> (Offer, Value) {
    if number < SMALL_CALLS || !number.is_multiple_of(20) {
        return chat(number);
    }
    (SPEECH, with(SPEECH.call(), &json!({ "input": "a".repeat(SPEECH_CHARACTERS) })))
}

/// Makes calls, many at once, until the gateway is gone. Returns the answers that came whole.
async fn burst(world: &World, calls: usize, call: fn(usize) -> (Offer, Value)) -> Vec<Answer> {
    let broken = AtomicUsize::new(0);
    let each = (0..calls).map(|number| {
        let (offer, body) = call(number);
        let request = world.url_of(&world.gateway, offer.path).body(body.to_string());
        let broken = &broken;
        async move {
            // More broke than were under way, so nobody is there any more.
            if broken.load(Ordering::Relaxed) > AT_ONCE {
                return None;
            }
            let answer = Answer::try_read(request).await.ok();
            broken.fetch_add(usize::from(answer.is_none()), Ordering::Relaxed);
            answer
        }
    });
    let each = stream::iter(each).buffer_unordered(AT_ONCE);
    let answers: Vec<Option<Answer>> = each.collect().await;
    answers.into_iter().flatten().collect()
}

/// Waits until a gateway has died at the point with which it was armed, and of nothing else.
async fn dies_at(gateway: &mut Process, point: &str) {
    gateway.ended(DEATH_WAIT).await;
    let (name, _) = point.split_once(':').expect("a point and a number");
    let (signal, log) = (gateway.ended_by(), gateway.log());
    assert_eq!(signal, Some(KILLED), "{log}");
    assert!(log.lines().any(|line| line == format!("failpoint {name}")), "{log}");
}

/// The ids of the calls that were served.
fn served(answers: &[Answer]) -> BTreeSet<String> {
    let id = |answer: &Answer| answer.header("x-request-id").expect("an id").to_owned();
    answers.iter().filter(|answer| answer.status == 200).map(id).collect()
}

/// Every charge is that of another call, and is what such a call costs.
fn prove_each(charges: &[Charge]) {
    let ids: BTreeSet<&str> = charges.iter().map(|charge| charge.request_id.as_str()).collect();
    assert_eq!(ids.len(), charges.len(), "a call was charged twice: {charges:#?}");
    for charge in charges {
        let cost = if charge.endpoint == SPEECH.endpoint { SPEECH_COST } else { CHAT_COST };
        assert_eq!((charge.amount_nano, charge.written_off_nano), (cost, 0), "{charge:?}");
    }
}

/// What is left after deaths: all that was served is charged once, nothing is held, and the
/// successor serves.
async fn prove_recovery(mut world: World, mut known: BTreeSet<String>) {
    world.kill_and_start_again().await;
    let charges = world.at_rest_with(&known).await;
    // Besides, calls may be charged whose answers broke off.
    assert!(charges.len() <= known.len() + AT_ONCE, "{} calls are too many", charges.len());
    prove_each(&charges);
    let answers = burst(&world, CALLS_AFTER, chat).await;
    known.extend(served(&answers));
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200; CALLS_AFTER], "{answers:?}");
    prove_each(&world.at_rest_with(&known).await);
}

/// A world whose gateway is armed with a point. Where `is_direct`, every hold is in the store.
fn armed(store: Store, point: &'static str, is_direct: bool) -> Builder {
    let builder = World::start(store).vendor("vendor_b", &[VENDOR]).conf(CONF);
    let builder = builder.env(FAILPOINT, point);
    if is_direct { builder.env(DIRECT.0, DIRECT.1) } else { builder }
}

/// The same. Of its credit, nothing is lent while a speech is among the calls.
async fn armed_world(store: Store, point: &'static str, is_direct: bool) -> World {
    armed(store, point, is_direct).credit("1").run().await
}

/// Lets a gateway die at a point during a burst, and proves what is left.
async fn die_at(
    store: Store,
    point: &'static str,
    is_direct: bool,
    call: fn(usize) -> (Offer, Value),
) {
    let mut world = armed_world(store, point, is_direct).await;
    let answers = burst(&world, BURST, call).await;
    dies_at(&mut world.gateway, point).await;
    prove_recovery(world, served(&answers)).await;
}

/// The number is that of the pass at which the gateway dies.
#[rstest]
#[case::hold_made_in_memory("hold_made_in_memory:60")]
#[case::reply_begun("reply_begun:60")]
#[case::end_in_memory("end_in_memory:60")]
#[case::first_segment_created("ends_segment_created:1")]
#[case::spare_segment_created("ends_segment_created:2")]
#[case::end_written("end_written:60")]
#[case::outbox_synced("outbox_synced:8")]
#[case::reply_sent("reply_sent:60")]
#[case::update_made("update_made:5")]
#[case::allotment_lent("allotment_lent:1")]
#[case::update_committed("update_committed:5")]
#[case::update_noted("update_noted:5")]
#[tokio::test]
async fn a_busy_account_outlives_its_gateway(
    #[case] point: &'static str,
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    die_at(store, point, false, chat).await;
}

/// A script of Redis has no inside where a gateway could die.
#[rstest]
#[case::update_in_transaction("update_in_transaction:5", false)]
#[case::settlement_in_transaction("settlement_in_transaction:60", true)]
#[tokio::test]
async fn a_gateway_that_dies_in_a_transaction_leaves_nothing_of_it(
    #[case] point: &'static str,
    #[case] is_direct: bool,
) {
    die_at(Store::Sqlite, point, is_direct, chat).await;
}

/// The sums of usage have each line once, and their proof knows nothing of the death.
#[rstest]
#[case::usage_added(Store::Sqlite, "usage_added:1")]
#[case::usage_committed(Store::Sqlite, "usage_committed:1")]
#[case::usage_summed(Store::Redis, "usage_summed:1")]
#[case::usage_written(Store::Redis, "usage_written:1")]
#[tokio::test]
async fn sums_of_usage_outlive_a_gateway_that_dies_while_it_adds_to_them(
    #[case] store: Store,
    #[case] point: &'static str,
) {
    let mut world = armed_world(store, point, false).await;
    let answers = burst(&world, BURST, chat).await;
    dies_at(&mut world.gateway, point).await;
    world.kill_and_start_again().await;
    prove_each(&world.at_rest_with(&served(&answers)).await);
    world.sums_are_proved().await;
}

/// A run of the archiver is killed at each of its steps, as often as it passes there, and one that
/// is not killed finishes its work: no line is lost, and no line is archived twice.
#[rstest]
#[case::part_written("archive_part_written:")]
#[case::parts_written("archive_parts_written:")]
#[case::manifest_written("archive_manifest_written:")]
#[case::notes_written("archive_notes_written:")]
#[case::lines_trimmed("archive_lines_trimmed:")]
#[tokio::test]
async fn an_archive_outlives_runs_that_die(#[case] point: &'static str) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let conf = format!("{CONF}\n[journal]\narchive = \"file:{}\"", folder.path().display());
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[VENDOR]).conf(&conf);
    let mut world = world.credit("1").run().await;
    let known = served(&burst(&world, ARCHIVED_CALLS, chat).await);
    let before = world.at_rest_with(&known).await;
    world.sums_are_proved().await;
    world.gateway.kill();
    make_older(&world);
    // It sums up the older lines. It archives some seconds later, if it lives.
    world.kill_and_start_again().await;
    world.sums_are_proved().await;
    world.gateway.kill();
    let run = ["--json", "archive", "run"];
    let mut deaths = 0;
    loop {
        // Until a manifest is written nothing of its day is kept, so the next run passes there.
        let pass = if point == "archive_parts_written:" { deaths + 1 } else { 1 };
        let armed = format!("{point}{pass}");
        let Some(signal) = world.killed_command(&run, &[(FAILPOINT, &armed)]).await else { break };
        assert_eq!(signal, KILLED, "{armed}");
        deaths += 1;
        assert!(deaths < 20, "it never ends");
        // The turn of a dead process ends after two minutes.
        open_beside(&world).execute_batch("DELETE FROM archive_turn").expect("no turn");
        assert_eq!(told(&world.told_charges().await), told(&before), "{armed}");
        world.sums_are_proved().await;
    }
    // Two days are written and noted; the lines leave the store at once.
    let expected = if point == "archive_lines_trimmed:" { 1 } else { 2 };
    assert_eq!(deaths, expected, "{point}");
    let last = world.command(&run).await.json().remove(0);
    assert_eq!(last["finished"], true, "{last}");
    let in_store = "SELECT count(*), max(seq) FROM journal";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let left = open_beside(&world).query_row(in_store, [], read).expect("lines");
    assert_eq!(left, (1, i64::try_from(before.len()).expect("a count")));
    assert_eq!(told(&world.told_charges().await), told(&before));
    world.sums_are_proved().await;
}

/// Makes the lines of the account forty days old, and the second half of them a day younger.
fn make_older(world: &World) {
    let beside = open_beside(world);
    let older = "UPDATE journal_hour SET hour = hour - 40 * 86400000;
                 INSERT OR IGNORE INTO journal_hour (account, seq, hour)
                 SELECT account, max(seq) / 2, (SELECT max(hour) FROM journal_hour) + 86400000
                 FROM journal GROUP BY account;
                 DELETE FROM usage_rollup; DELETE FROM usage_fold";
    beside.execute_batch(older).expect("older lines");
}

fn told(charges: &[Charge]) -> Vec<(&str, i64)> {
    charges.iter().map(|charge| (charge.request_id.as_str(), charge.amount_nano)).collect()
}

#[rstest]
#[case::hold_placed("hold_placed:60")]
#[case::settlement_line_written("settlement_line_written:60")]
#[case::reply_sent("reply_sent:60")]
#[case::settlement_committed("settlement_committed:60")]
#[case::settlement_noted("settlement_noted:60")]
#[tokio::test]
async fn direct_holds_outlive_their_gateway(
    #[case] point: &'static str,
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    die_at(store, point, true, chat).await;
}

/// The first syncs are of folders. Settlements for an embedded store are not synced here, but with
/// the charge in its file.
#[tokio::test]
async fn a_death_right_after_a_sync_of_the_outbox_loses_nothing() {
    die_at(Store::Redis, "outbox_synced:8", true, chat).await;
}

/// Opens the file of a store beside its gateway. It copies nothing of the log, now or when it is
/// closed.
fn open_beside(world: &World) -> Connection {
    let beside = Connection::open(world.path("tollgate.db")).expect("the file");
    beside.busy_timeout(Duration::from_secs(30)).expect("a setting");
    let leaves_log = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    beside.set_db_config(leaves_log, true).expect("a setting");
    beside.pragma_update(None, "wal_autocheckpoint", 0).expect("a setting");
    beside
}

/// Makes the log longer by this many bytes, as another process would that keeps replies.
async fn grow_log(world: &World, bytes: i64) {
    let beside = open_beside(world);
    let writing = move || {
        let table = "CREATE TABLE IF NOT EXISTS filling (bytes BLOB)";
        beside.execute_batch(table).expect("a table");
        beside.execute("INSERT INTO filling VALUES (zeroblob(?1))", [bytes]).expect("a row");
    };
    spawn_blocking(writing).await.expect("a thread");
}

/// How many pages the log of a store has, and how many of them are in the file.
fn pages_of_log(world: &World) -> (i64, i64) {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(1)?, row.get(2)?));
    open_beside(world).query_row("PRAGMA wal_checkpoint(NOOP)", [], read).expect("pages")
}

/// How many times the log of a store has begun anew, as its head says.
fn beginnings_of_log(world: &World) -> u32 {
    let log = std::fs::read(world.path("tollgate.db-wal")).expect("a log");
    let number = log.get(12..16).and_then(|bytes| bytes.try_into().ok());
    number.map(u32::from_be_bytes).expect("a head")
}

/// The log is copied into the file; all of it is, while nobody writes; and then its beginning is
/// written over.
#[rstest]
#[case::log_copied("log_copied:1", LONG_BYTES)]
#[case::rest_of_log_copied("rest_of_log_copied:1", RESTART_BYTES)]
#[case::log_begun_anew("log_begun_anew:1", RESTART_BYTES)]
#[tokio::test]
async fn a_gateway_that_dies_after_a_copy_of_its_log_has_lost_nothing(
    #[case] point: &'static str,
    #[case] bytes: i64,
    #[values(false, true)] is_direct: bool,
) {
    let mut world = armed(Store::Sqlite, point, is_direct).credit("10").run().await;
    let growing = async {
        sleep(BEFORE_GROWTH).await;
        grow_log(&world, bytes).await;
    };
    let (answers, ()) = tokio::join!(burst(&world, LONG_BURST, chat), growing);
    dies_at(&mut world.gateway, point).await;
    let must_begin_anew = point.starts_with("log_begun_anew");
    assert!(!must_begin_anew || beginnings_of_log(&world) > 0, "nothing was written over");
    prove_recovery(world, served(&answers)).await;
}

/// A copy goes no further than the oldest reader, so the file has a part of the log and lacks the
/// rest, as in the middle of a copy.
#[rstest]
#[tokio::test]
async fn a_gateway_that_dies_when_half_of_its_log_is_copied_has_lost_nothing(
    #[values(false, true)] is_direct: bool,
) {
    // The first copy may come before the reader.
    let point = "log_copied:2";
    let mut world = armed(Store::Sqlite, point, is_direct).credit("10").run().await;
    let growing = async {
        sleep(BEFORE_GROWTH).await;
        grow_log(&world, LONG_BYTES).await;
        let reader = open_beside(&world);
        reader.execute_batch("BEGIN; SELECT count(*) FROM filling").expect("a reader");
        sleep(BEFORE_GROWTH).await;
        grow_log(&world, LONG_BYTES).await;
        reader
    };
    let (answers, reader) = tokio::join!(burst(&world, LONG_BURST, chat), growing);
    dies_at(&mut world.gateway, point).await;
    let (pages, copied) = pages_of_log(&world);
    assert!(0 < copied && copied < pages, "{copied} of {pages} pages");
    // Nothing is left of what the dead gateway had in memory, and all is read from the files.
    drop(reader);
    prove_recovery(world, served(&answers)).await;
}

/// What is free is called back, and the gateway dies before it has given it.
#[rstest]
#[tokio::test]
async fn what_is_called_back_comes_back_from_a_dead_gateway(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    die_at(store, "recall_noted:1", false, chat_or_speech).await;
}

/// After a burst everything is given back, which the gateway does not learn.
#[rstest]
#[tokio::test]
async fn what_was_given_back_is_not_given_twice(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let point = "all_given_back:1";
    let mut world = armed_world(store, point, false).await;
    let answers = burst(&world, 2 * SMALL_CALLS, chat).await;
    dies_at(&mut world.gateway, point).await;
    prove_recovery(world, served(&answers)).await;
}

/// The successor dies in the middle of the adoption, and another one does it again. With Redis, the
/// segments of a dead gateway stay for longer than a test lasts.
#[rstest]
#[case::ends_replayed_sqlite(Store::Sqlite, "ends_replayed:1")]
#[case::ends_replayed_redis(Store::Redis, "ends_replayed:1")]
#[case::dead_allotment_ended_sqlite(Store::Sqlite, "dead_allotment_ended:1")]
#[case::dead_allotment_ended_redis(Store::Redis, "dead_allotment_ended:1")]
#[case::dead_segment_removed_sqlite(Store::Sqlite, "dead_segment_removed:1")]
#[case::settlement_replayed_sqlite(Store::Sqlite, "settlement_replayed:1")]
#[case::settlement_replayed_redis(Store::Redis, "settlement_replayed:1")]
#[tokio::test]
async fn an_adoption_is_done_again_after_the_successor_died(
    #[case] store: Store,
    #[case] point: &'static str,
) {
    let is_direct = point.starts_with("settlement");
    let first = if is_direct { "settlement_line_written:60" } else { "end_written:60" };
    let mut world = armed_world(store, first, is_direct).await;
    let answers = burst(&world, BURST, chat).await;
    dies_at(&mut world.gateway, first).await;
    let mut successor = world.doomed_gateway("successor", &[(FAILPOINT, point)]);
    dies_at(&mut successor, point).await;
    prove_recovery(world, served(&answers)).await;
}

/// A hold of an allotment, and one in the store.
#[rstest]
#[tokio::test]
async fn a_call_that_panics_breaks_off_alone_and_its_hold_ends_with_its_lease(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] is_direct: bool,
) {
    let world = armed(store, "reply_begun:1!", is_direct).run().await;
    let broken = world.stream(CHAT.call()).await;
    assert!(!broken.is_done(), "{broken:?}");
    world.metric_becomes("tollgate_holds_dropped_total", &[], 1).await;
    let line = world.logged(&["event=\"hold_dropped_unended\"", "panicked=true"]).await;
    assert!(line.contains("account=\"acct\""), "{line}");
    let whole = world.stream(CHAT.call()).await;
    assert!(whole.is_done(), "the other calls go on: {whole:?}");
    let served = BTreeSet::from([whole.header("x-request-id").expect("an id").to_owned()]);
    let charges = world.at_rest_with(&served).await;
    assert!(charges.len() <= 2, "{charges:#?}");
    prove_each(&charges);
}
