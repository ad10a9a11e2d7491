//! Long replies are kept in the object store: they cost the ledger's store nothing, and nobody a
//! second charge when they are gone.

use rstest::rstest;

use tollgate::idempotency::PIECE_BYTES;

use super::*;
use crate::world::CHAT;

const LARGE: &str = "reply-bytes=200000;completion=9";

/// The files below a folder, and how many bytes they have.
fn below(folder: &std::path::Path) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.expect("an entry");
        if entry.path().is_dir() {
            let (more, theirs) = below(&entry.path());
            (files, bytes) = (files + more, bytes + theirs);
        } else {
            (files, bytes) = (files + 1, bytes + entry.metadata().expect("a file").len());
        }
    }
    (files, bytes)
}

#[rstest]
#[tokio::test]
async fn a_long_reply_is_no_burden_for_the_ledgers_store(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let faults = format!("{LARGE};chunks=12");
    let builder = World::start(store).vendor("vendor_b", &[&faults]).conf(PATIENT).own_redis();
    let world = builder.run().await;
    let members = json!({ "stream": stream });
    let first = keyed(&world, CHAT, &members, "one").await;
    assert!(first.status == 200 && first.body.len() > 200_000);
    repeats_soon(async || keyed(&world, CHAT, &members, "one").await, &first).await;
    world.settled(1).await;
    assert_eq!(below(&world.path("files/bodies/replies")), (1, first.body.len() as u64));
    assert_eq!(stored(&world, store), (1, 0), "a name, and no reply");
}

#[rstest]
#[tokio::test]
async fn an_object_store_that_is_away_costs_nobody_a_paid_call(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).vendor("vendor_b", &[LARGE]).conf(PATIENT).run().await;
    let bodies = world.path("files/bodies");
    std::fs::remove_dir_all(&bodies).expect("removed");
    std::fs::write(&bodies, "a file where the folder should be").expect("written");
    let first = keyed(&world, CHAT, &json!({}), "one").await;
    assert!(first.status == 200 && first.body.len() > 200_000);
    not_kept_soon(async || keyed(&world, CHAT, &json!({}), "one").await).await;
    world.settled(1).await;
    assert_eq!(world.sim.count("vendor_b"), 1);
    world.logged(&["reply body not stored"]).await;
}

/// How much memory Redis uses.
fn used_memory(world: &mut World) -> u64 {
    let info = format!("{:?}", world.redis().command(&["INFO", "memory"]));
    let (_, rest) = info.split_once("used_memory:").expect("the figure");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// One account, a cent: 258 MiB of everybody's Redis for a day.
#[tokio::test]
async fn thirty_four_long_replies_filled_the_memory_of_redis() {
    let builder =
        World::start(Store::Redis).vendor("vendor_b", &["reply-bytes=8000000;completion=9"]);
    let mut world = builder.conf(PATIENT).own_redis().run().await;
    let before = used_memory(&mut world);
    let mut last = None;
    for number in 0..34 {
        let answer = keyed(&world, CHAT, &json!({}), &number.to_string()).await;
        assert!(answer.status == 200 && answer.body.len() > 8_000_000, "{}", answer.status);
        last = Some(answer);
    }
    let charges = world.settled(34).await;
    let last = last.expect("there were some");
    repeats_soon(async || keyed(&world, CHAT, &json!({}), "33").await, &last).await;
    let after = used_memory(&mut world);
    let (_, files) = below(&world.path("files/bodies/replies"));
    let total: i64 = charges.iter().map(|charge| charge.amount_nano).sum();
    println!("used_memory {before} before, {after} after; {files} in files; {total} nano charged");
    // It may also be less: Redis gives back what its clients' buffers took.
    assert!(after < before + (4 << 20), "{before} bytes before, {after} after");
}

/// Asks until the first call has ended, whose reply is not there. A store on a busy disk may be
/// late, which costs nothing either.
async fn not_kept_soon(ask: impl AsyncFn() -> Answer) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, code) = ask().await.refusal();
        if (status, code.as_str()) == (409, "reply_not_kept") {
            return;
        }
        let is_late = (status, code.as_str()) == (503, "ledger_unavailable");
        let is_running = (status, code.as_str()) == (409, "idempotency_key_in_use");
        assert!(is_late || is_running, "{status} {code}");
        assert!(Instant::now() < end, "the call does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As it was before long replies had a place of their own.
#[tokio::test]
async fn a_long_reply_that_an_older_version_kept_is_still_sent_again() {
    let faults = "reply-bytes=600000;completion=9";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[faults]).conf(PATIENT).run().await;
    let first = keyed(&world, CHAT, &json!({}), "one").await;
    repeats_soon(async || keyed(&world, CHAT, &json!({}), "one").await, &first).await;
    let file = rusqlite::Connection::open(world.path("tollgate.db")).expect("the file");
    file.busy_timeout(PATIENCE).expect("a setting");
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let known = "SELECT account, owner, head FROM repeat";
    let (account, owner, head): (String, String, String) =
        file.query_row(known, [], read).expect("the name");
    let mut head: Value = serde_json::from_str(&head).expect("a head");
    assert!(head.as_object_mut().expect("an object").remove("apart").is_some());
    head["status"] = json!(200);
    for (number, piece) in first.body.chunks(PIECE_BYTES).enumerate() {
        let number = i64::try_from(number).expect("a small one");
        let keep = "INSERT INTO reply (account, owner, piece, lives_until, body)
                    VALUES (?, ?, ?, 9223372036854775807, ?)";
        file.execute(keep, rusqlite::params![account, owner, number, piece]).expect("kept");
    }
    let bytes = i64::try_from(first.body.len()).expect("a small one");
    let set = "UPDATE repeat SET head = ?, bytes = ?";
    file.execute(set, rusqlite::params![head.to_string(), bytes]).expect("set");
    std::fs::remove_dir_all(world.path("files/bodies")).expect("removed");
    repeats(&keyed(&world, CHAT, &json!({}), "one").await, &first);
    world.settled(1).await;
}

/// A folder belongs to one machine. Whoever asks at another one is told so, and pays once.
#[tokio::test]
async fn a_reply_in_another_machines_folder_is_not_charged_again() {
    let world = World::start(Store::Redis).vendor("vendor_b", &[LARGE]).conf(PATIENT).run().await;
    let elsewhere = format!("file:{}", world.path("elsewhere").display());
    let other = world.gateway_with("other", &[("TOLLGATE__FILES__URL", &elsewhere)]).await;
    let first = keyed(&world, CHAT, &json!({}), "one").await;
    assert_eq!(first.status, 200);
    repeats_soon(async || keyed(&world, CHAT, &json!({}), "one").await, &first).await;
    let sent = CHAT.sent(&json!({}));
    let there = request(&world, &other, &sent, CHAT.path).header(KEY, "one");
    assert_eq!(Answer::read(there).await.refusal(), (409, "reply_not_kept".to_owned()));
    world.settled(1).await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[rstest]
#[tokio::test]
async fn long_replies_have_a_bound_in_all(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let builder = World::start(store).vendor("vendor_b", &[LARGE]).conf(PATIENT);
    let world = builder.env("TOLLGATE__FILES__KEPT_BYTES_MAX", "700000").run().await;
    let other = world.another_account("other", "1").await;
    let sent = CHAT.sent(&json!({}));
    let theirs = async || {
        let request = world.sending(CHAT.path, &sent.media, Some(&other)).header(KEY, "theirs");
        Answer::read(request.body(sent.bytes.clone())).await
    };
    let first = theirs().await;
    repeats_soon(theirs, &first).await;
    let mut kept = 0;
    for number in 0..12 {
        let key = number.to_string();
        let answer = keyed(&world, CHAT, &json!({}), &key).await;
        assert_eq!(answer.status, 200);
        let end = Instant::now() + PATIENCE;
        loop {
            let again = keyed(&world, CHAT, &json!({}), &key).await;
            match again.status {
                200 => {
                    repeats(&again, &answer);
                    kept += 1;
                    break;
                }
                _ if again.refusal().1 == "reply_not_kept" => break,
                _ => assert!(Instant::now() < end, "{again:?}"),
            }
        }
        let (_, bytes) = below(&world.path("files/bodies"));
        assert!(bytes <= 700_000, "{bytes} bytes");
        // A sweep makes room again.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(kept > 2, "{kept} were kept");
    // Room was taken from the one who keeps most.
    repeats(&theirs().await, &first);
    assert_eq!(world.sim.count("vendor_b"), 13);
}
