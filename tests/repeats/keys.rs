//! What a key stands for: one call of one account to one endpoint.

use rstest::rstest;

use super::*;
use crate::world::{CHAT, EMBEDDING_B, MESSAGES, RESPONSES};

#[rstest]
#[tokio::test]
async fn a_key_of_other_content_is_refused_and_the_first_reply_stays(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let first = keyed(&world, CHAT, &json!({}), "a").await;
    for members in [json!({ "max_tokens": 9 }), json!({ "model": "nothing" })] {
        let answer = keyed(&world, CHAT, &members, "a").await;
        assert_eq!(answer.refusal(), (422, "idempotency_key_reused".to_owned()));
        assert_eq!(answer.json()["error"]["param"], "Idempotency-Key");
    }
    // Bytes count, not what they mean.
    let text = String::from_utf8(CHAT.sent(&json!({})).bytes.to_vec()).expect("text");
    let request = world.request(CHAT.path).header(KEY, "a").body(format!("{text} "));
    assert_eq!(Answer::read(request).await.status, 422);
    repeats(&keyed(&world, CHAT, &json!({}), "a").await, &first);
    world.charge().await;
    counted(&world, "chat", "mismatch", 3).await;
}

/// They change the answer and its price, as the body does; the first reply was given all the same.
#[rstest]
#[tokio::test]
async fn a_key_with_another_header_for_the_vendor_got_the_reply_to_the_first(
    #[values((KEY, "a"), (RETRIES, "1"))] known_by: (&str, &str),
) {
    let names = "[vendor.vendor_a.header_names]\n\"vendor_a-beta\" = \"brand-beta\"";
    let builder = World::start(Store::Sqlite).vendor("vendor_a", &[""]);
    let world = builder.conf(names).run().await;
    let sent = MESSAGES.sent(&json!({}));
    let ask = async |headers: &[(&str, &str)]| {
        let asked =
            request(&world, &world.gateway, &sent, MESSAGES.path).header(known_by.0, known_by.1);
        Answer::read(headers.iter().fold(asked, |asked, (name, value)| asked.header(*name, *value)))
            .await
    };
    let first = ask(&[("vendor_a-beta", "one"), ("vendor_a-version", "2023-06-01")]).await;
    assert_eq!(first.status, 200);
    let other: [&[(&str, &str)]; 5] = [
        &[],
        &[("vendor_a-beta", "one")],
        &[("vendor_a-version", "2023-06-01")],
        &[("vendor_a-beta", "two"), ("vendor_a-version", "2023-06-01")],
        &[("vendor_a-beta", "one"), ("vendor_a-version", "2023-06-02")],
    ];
    for (before, headers) in other.iter().enumerate() {
        let answer = ask(headers).await;
        if known_by.0 == KEY {
            assert_eq!(answer.status, 422, "{answer:?}");
        } else {
            // Without a key it is another call.
            assert_eq!((answer.status, answer.header(REPLAYED)), (200, None), "{answer:?}");
            world.settled(before + 2).await;
        }
    }
    // In any order, under either name; what the vendor is not told does not count.
    let same: [&[(&str, &str)]; 3] = [
        &[("vendor_a-version", "2023-06-01"), ("vendor_a-beta", "one")],
        &[("brand-beta", "one"), ("vendor_a-version", "2023-06-01")],
        &[("vendor_a-beta", "one"), ("vendor_a-version", "2023-06-01"), ("x-other", "mine")],
    ];
    for headers in same {
        repeats(&ask(headers).await, &first);
    }
    world.settled(if known_by.0 == KEY { 1 } else { 6 }).await;
}

#[tokio::test]
async fn clients_of_the_messages_format_are_refused_in_it() {
    let faults = "chunk-delay=30";
    let world = World::start(Store::Sqlite).vendor("vendor_a", &[faults]).run().await;
    let open = async |members: &Value| keyed(&world, MESSAGES, members, "a").await;
    let streaming = json!({ "stream": true });
    let running = async {
        vendor_becomes(&world, "vendor_a", 1).await;
        open(&streaming).await
    };
    let (first, in_use) = tokio::join!(open(&streaming), running);
    assert_eq!(first.status, 200);
    assert_eq!(in_use.messages_refusal(), (409, "invalid_request_error".to_owned()));
    assert_eq!(in_use.header("retry-after"), Some("1"));
    let other = open(&json!({})).await;
    assert_eq!(other.messages_refusal(), (422, "invalid_request_error".to_owned()));
    let again = open(&streaming).await;
    repeats(&again, &first);
    assert_eq!(again.header("request-id"), again.header("x-request-id"));
    world.charge().await;
}

#[rstest]
#[tokio::test]
async fn the_same_key_of_two_accounts_is_two_calls(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(PATIENT).run().await;
    let mine = keyed(&world, CHAT, &json!({}), "same").await;
    let own = world.key.clone();
    world.key = world.another_account("stranger", "5").await;
    let theirs = keyed(&world, CHAT, &json!({}), "same").await;
    assert_eq!((theirs.status, theirs.header(REPLAYED)), (200, None));
    repeats(&keyed(&world, CHAT, &json!({}), "same").await, &theirs);
    // Nor may they learn that it is used for something else.
    let other = keyed(&world, CHAT, &json!({ "max_tokens": 9 }), "mine").await;
    assert_eq!((other.status, other.header(REPLAYED)), (200, None));
    world.key = own;
    repeats(&keyed(&world, CHAT, &json!({}), "same").await, &mine);
    let new = keyed(&world, CHAT, &json!({}), "mine").await;
    assert_eq!((new.status, new.header(REPLAYED)), (200, None));
    world.settled(2).await;
    let told = world.command(&["--json", "charges", "stranger"]).await.json();
    assert_eq!((told.len(), world.sim.count("vendor_b")), (2, 4));
}

#[rstest]
#[tokio::test]
async fn the_same_key_at_two_endpoints_is_two_calls(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let mut first = Vec::new();
    for offer in [CHAT, RESPONSES, EMBEDDING_B] {
        first.push(keyed(&world, offer, &json!({}), "same").await);
    }
    for (offer, first) in [CHAT, RESPONSES, EMBEDDING_B].into_iter().zip(&first) {
        repeats(&keyed(&world, offer, &json!({}), "same").await, first);
    }
    world.settled(3).await;
}

#[tokio::test]
async fn a_key_is_visible_characters_and_not_too_many() {
    let world = World::start(Store::Sqlite).run().await;
    let (longest, too_long) = ("k".repeat(255), "k".repeat(256));
    let cases = [
        ("", 400),
        ("a", 200),
        (longest.as_str(), 200),
        (too_long.as_str(), 400),
        ("a b", 400),
        ("schlüssel", 400),
        ("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", 200),
    ];
    for (key, status) in cases {
        let before = world.sim.count("vendor_b");
        let answer = keyed(&world, CHAT, &json!({}), key).await;
        assert_eq!(answer.status, status, "{key:?}: {answer:?}");
        if status == 200 {
            let again = keyed(&world, CHAT, &json!({}), key).await;
            assert_eq!(again.header(REPLAYED), Some("true"), "{key:?}: {again:?}");
            repeats(&again, &answer);
        } else {
            let param = answer.json()["error"]["param"].clone();
            assert_eq!(param, "Idempotency-Key", "{key:?}: {answer:?}");
            assert_eq!(world.sim.count("vendor_b"), before, "{key:?}");
        }
    }
    // Only the good ones cost anything, and once.
    world.settled(cases.iter().filter(|(_, status)| *status == 200).count()).await;
}

#[tokio::test]
async fn two_keys_at_once_are_none() {
    let world = World::start(Store::Sqlite).run().await;
    let request = world.request(CHAT.path).header(KEY, "a").header(KEY, "b");
    let answer = Answer::read(request.body(CHAT.sent(&json!({})).bytes)).await;
    assert_eq!(answer.refusal().0, 400, "{answer:?}");
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn a_reply_outlives_the_gateway_that_gave_it(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let mut world = World::start(store).conf(PATIENT).run().await;
    let first = keyed(&world, CHAT, &streamed("a"), "a").await;
    world.charge().await;
    world.kill_and_start_again().await;
    repeats(&keyed(&world, CHAT, &streamed("a"), "a").await, &first);
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
}

#[rstest]
#[tokio::test]
async fn a_reply_that_is_too_large_to_be_kept_is_not_paid_for_twice(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(false, true)] stream: bool,
) {
    let conf = "[limits]\nreply_bytes_max = 3_000\n";
    let world = World::start(store)
        .vendor("vendor_b", &["chunks=40;reply-bytes=3000"])
        .conf(&format!("{conf}{PATIENT}"))
        .run()
        .await;
    let members = json!({ "stream": stream });
    assert_eq!(keyed(&world, CHAT, &members, "a").await.status, 200);
    for _ in 0..2 {
        let answer = keyed(&world, CHAT, &members, "a").await;
        assert_eq!(answer.refusal(), (409, "reply_not_kept".to_owned()));
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    world.charge().await;
    assert_eq!(world.sim.count("vendor_b"), 1);
    counted(&world, "chat", "not_kept", 2).await;
}

/// Some 6 MB, which neither side has in one piece.
#[rstest]
#[tokio::test]
async fn a_large_reply_comes_back_whole(#[values(Store::Sqlite, Store::Redis)] store: Store) {
    let faults = "reply-bytes=6000000";
    let builder = World::start(store).vendor("vendor_b", &[faults]).credit("100");
    let world = builder.conf(PATIENT).run().await;
    let first = keyed(&world, CHAT, &json!({}), "a").await;
    assert!(first.body.len() > 6_000_000);
    // It is written in the background.
    repeats_soon(async || keyed(&world, CHAT, &json!({}), "a").await, &first).await;
    world.charge().await;
}
