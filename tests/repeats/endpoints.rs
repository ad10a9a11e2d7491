//! Every paid endpoint: the same key, the same reply, byte for byte.

use rstest::rstest;

use super::*;
use crate::world::{
    CHAT, COMPACT, EDIT_B, EDIT_D, EMBEDDING_B, EMBEDDING_C, IMAGE_B, IMAGE_D, MESSAGES,
    MODERATION, RESPONSES, SPEECH,
};

/// A chat that is translated, and says in its head what was dropped.
const TRANSLATED: Offer = Offer { vendor: "vendor_a", model: "lma-sonnet-4-6", ..CHAT };

#[rstest]
#[case::chat(CHAT, json!({}))]
#[case::chat_in_events(CHAT, json!({ "stream": true }))]
#[case::translated(TRANSLATED, json!({ "seed": 7 }))]
#[case::translated_in_events(TRANSLATED, json!({ "seed": 7, "stream": true }))]
#[case::messages(MESSAGES, json!({}))]
#[case::messages_in_events(MESSAGES, json!({ "stream": true }))]
#[case::responses(RESPONSES, json!({}))]
#[case::responses_in_events(RESPONSES, json!({ "stream": true }))]
#[case::compaction(COMPACT, json!({}))]
#[case::image(IMAGE_B, json!({}))]
#[case::image_by_ticks(IMAGE_D, json!({}))]
#[case::edit(EDIT_B, json!({}))]
#[case::edit_as_json(EDIT_D, json!({}))]
#[case::speech(SPEECH, json!({}))]
#[case::embedding(EMBEDDING_B, json!({}))]
#[case::embedding_without_usage(EMBEDDING_C, json!({}))]
#[tokio::test]
async fn the_same_key_gets_the_same_reply_byte_for_byte(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[case] offer: Offer,
    #[case] members: Value,
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let first = keyed(&world, offer, &members, "a").await;
    assert_eq!(first.status, 200, "{first:?}");
    assert!(!first.body.is_empty());
    // At once: whoever has the last byte finds the reply.
    for _ in 0..3 {
        repeats(&keyed(&world, offer, &members, "a").await, &first);
    }
    let charge = world.charge().await;
    assert_eq!(Some(charge.request_id.as_str()), first.header("x-request-id"));
    assert_eq!(world.sim.count(offer.vendor), 1);
    counted(&world, offer.endpoint, "replayed", 3).await;
    let line = world.logged(&["repeat=\"replayed\"", offer.endpoint]).await;
    assert!(line.contains("charge_nano=0"), "{line}");
}

/// Where parts end is another matter each time a client sends a form; what is in them is not.
#[rstest]
#[tokio::test]
async fn a_form_with_another_boundary_is_the_same_form(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values((KEY, "a"), (RETRIES, "0"))] header: (&str, &str),
) {
    let world = World::start(store).conf(PATIENT).run().await;
    let (sent, at) = (EDIT_B.sent(&json!({})), (&world, &world.gateway));
    let (old, new) = ("tollgate-7d9f1c0b", "0123456789abcdef");
    let media = sent.media.replace(old, new);
    let mut bytes = Vec::new();
    let mut rest = &sent.bytes[..];
    while let Some(place) = rest.windows(old.len()).position(|piece| piece == old.as_bytes()) {
        bytes.extend_from_slice(&rest[..place]);
        bytes.extend_from_slice(new.as_bytes());
        rest = &rest[place + old.len()..];
    }
    bytes.extend_from_slice(rest);
    let other = Sent { media, bytes: bytes.into() };
    assert!(other.bytes != sent.bytes && other.media != sent.media);
    let first =
        Answer::read(request(at.0, at.1, &sent, EDIT_B.path).header(header.0, header.1)).await;
    let again = if header.0 == KEY { header } else { (RETRIES, "1") };
    repeats(
        &Answer::read(request(at.0, at.1, &other, EDIT_B.path).header(again.0, again.1)).await,
        &first,
    );
    // Another text is another form, and so is another image.
    let texts = EDIT_B.sent(&json!({ "prompt": "Bluer." }));
    let images = with_other_image(&sent);
    for other in [texts, images] {
        let answer =
            Answer::read(request(at.0, at.1, &other, EDIT_B.path).header(again.0, again.1)).await;
        if header.0 == KEY {
            assert_eq!(answer.refusal(), (422, "idempotency_key_reused".to_owned()));
        } else {
            assert_eq!((answer.status, answer.header(REPLAYED)), (200, None), "{answer:?}");
        }
    }
    world.settled(if header.0 == KEY { 1 } else { 3 }).await;
}

/// The same form, with one byte of its image changed.
fn with_other_image(sent: &Sent) -> Sent {
    let mut bytes = sent.bytes.to_vec();
    let data = bytes.windows(4).position(|piece| piece == b"IEND").expect("an image") - 9;
    bytes[data] ^= 1;
    Sent { media: sent.media.clone(), bytes: bytes.into() }
}

#[rstest]
#[tokio::test]
async fn what_is_free_is_asked_for_each_time(#[values(KEY, RETRIES)] header: &str) {
    let world = World::start(Store::Sqlite).run().await;
    for count in 1..=3 {
        let sent = MODERATION.sent(&json!({}));
        let request = request(&world, &world.gateway, &sent, MODERATION.path).header(header, "1");
        let answer = Answer::read(request).await;
        assert_eq!((answer.status, answer.header(REPLAYED)), (200, None), "{answer:?}");
        assert_eq!(world.sim.count("vendor_b"), count);
    }
    world.free_of_charge().await;
}
