//! Embeddings that are too many to be held: they pass as they come, and nothing of them ends as if
//! it were whole that is not.

use bytes::Bytes;
use rstest::rstest;
use serde_json::json;

use crate::world::{Answer, Canned, EMBEDDING_B, Store, World, http};

/// A reply with as many vectors, of which one may be broken.
fn reply(vectors: usize, broken: Option<usize>) -> String {
    let sound = format!(r#"{{"object":"embedding","embedding":"{}"}}"#, "AACAPw==".repeat(1_000));
    let entry = |at| if broken == Some(at) { r#"{"embedding":null}"# } else { sound.as_str() };
    let entries: Vec<_> = (0..vectors).map(entry).collect();
    let entries = entries.join(", ");
    format!(r#"{{ "data":[{entries} ],"usage":{{"prompt_tokens":7,"total_tokens":7}} }}"#)
}

async fn world_with(reply: &str) -> (World, Canned) {
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    (world, vendor)
}

fn call(world: &World) -> reqwest::RequestBuilder {
    let sent = EMBEDDING_B.sent(&json!({ "encoding_format": "base64" }));
    world.request(EMBEDDING_B.path).body(sent.bytes)
}

#[tokio::test]
async fn a_long_reply_passes_byte_for_byte_and_again_to_who_repeats_it() {
    let reply = reply(600, None);
    let (world, vendor) = world_with(&reply).await;
    for _ in 0..2 {
        let answer = Answer::read(call(&world).header("idempotency-key", "one")).await;
        assert_eq!((answer.status, answer.body == reply.as_bytes()), (200, true));
        // As soon as it was read to its end, it is charged.
        assert_eq!(world.charge().await.amount_nano, 7 * 20);
    }
    assert_eq!(vendor.heard(), 1);
}

/// A short one, and one that breaks soon, is refused as a whole. Of a long one there is something
/// before it breaks, and no end.
#[rstest]
#[case::short(20, 19, true)]
#[case::soon(600, 2, true)]
#[case::late(600, 500, false)]
#[tokio::test]
async fn a_reply_that_breaks_is_refused_or_has_no_end(
    #[case] vectors: usize,
    #[case] broken: usize,
    #[case] refused: bool,
) {
    let (world, vendor) = world_with(&reply(vectors, Some(broken))).await;
    for heard in 1..=2 {
        // What was broken stands under no name.
        let read = Answer::try_read(call(&world).header("idempotency-key", "one")).await;
        assert_eq!(read.ok().map(|answer| answer.refusal().0), refused.then_some(502));
        world.nothing_held().await;
        assert_eq!(vendor.heard(), heard);
    }
    world.free_of_charge().await;
}

/// The older version knows no chunks: for it the end of the connection is that of the answer.
#[tokio::test]
async fn a_long_reply_that_breaks_is_refused_where_nothing_could_tell() {
    for (broken, status) in [(None, "200"), (Some(500), "502")] {
        let reply = reply(600, broken);
        let (world, _vendor) = world_with(&reply).await;
        let body = EMBEDDING_B.sent(&json!({ "encoding_format": "base64" })).bytes;
        let head = format!(
            "POST {} HTTP/1.0\r\nhost: a\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            EMBEDDING_B.path,
            world.key,
            body.len()
        );
        let bytes = world.raw(&[Bytes::from(head), body].concat()).await;
        let answer = &bytes[0];
        assert_eq!(answer.status.to_string(), status);
        assert_eq!(answer.body == reply.as_bytes(), broken.is_none());
    }
}
