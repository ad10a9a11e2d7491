//! Images that are made: what the vendor is asked, and the one shape of the reply.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rstest::rstest;
use serde_json::{Value, json};

use crate::sim::picture;
use crate::world::{Answer, Canned, EDIT_B, EDIT_D, IMAGE_B, IMAGE_D, Offer, Store, World, http};

/// The picture of a reply, whose shape has to be the listed one.
pub(super) fn pictured(answer: &Answer) -> Vec<u8> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let reply = answer.json();
    assert!(reply["created"].as_i64().is_some_and(|time| time > 1_700_000_000), "{answer:?}");
    assert_eq!(reply["data"].as_array().map(Vec::len), Some(1), "{answer:?}");
    let text = reply["data"][0]["b64_json"].as_str().expect("an image");
    STANDARD.decode(text).expect("base64")
}

#[rstest]
#[tokio::test]
async fn an_image_comes_in_the_listed_shape(
    #[values(IMAGE_B, IMAGE_D, EDIT_B, EDIT_D)] offer: Offer,
    #[values(0, 200_000, 20_000_000)] bytes: usize,
) {
    let fault = format!("image-bytes={bytes}");
    let world = World::start(Store::Sqlite).vendor(offer.vendor, &[&fault]).run().await;
    let answer = world.ask(offer).await;
    assert!(pictured(&answer) == picture(bytes), "another picture");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    world.settled(1).await;
}

#[tokio::test]
async fn the_vendor_who_counts_tokens_gets_what_was_asked() {
    let world = World::start(Store::Sqlite).run().await;
    for members in [
        json!({}),
        json!({ "n": 1 }),
        json!({ "quality": "low", "output_format": "webp" }),
        json!({ "size": "1024x1536" }),
    ] {
        let answer = world.call(IMAGE_B, members.clone()).await;
        assert_eq!(answer.status, 200, "{members}: {answer:?}");
        pictured(&answer);
        let expected = crate::world::with(IMAGE_B.call(), &members);
        assert_eq!(world.sim.take_seen()[0].json(), expected, "{members}");
    }
}

#[tokio::test]
async fn the_vendor_who_tells_a_price_gets_no_size_and_is_asked_for_the_image_itself() {
    let world = World::start(Store::Sqlite).run().await;
    for (members, more) in [
        (json!({}), json!({})),
        (json!({ "size": "1024x1536" }), json!({})),
        (json!({ "aspect_ratio": "16:9" }), json!({ "aspect_ratio": "16:9" })),
        (json!({ "response_format": "b64_json" }), json!({})),
    ] {
        let answer = world.call(IMAGE_D, members.clone()).await;
        assert_eq!(answer.status, 200, "{members}: {answer:?}");
        pictured(&answer);
        let mut expected = crate::world::with(IMAGE_D.call(), &more);
        expected["response_format"] = "b64_json".into();
        let mut sent = world.sim.take_seen()[0].json();
        if sent["n"] == 1 {
            sent.as_object_mut().expect("an object").remove("n");
        }
        assert_eq!(sent, expected, "{members}");
    }
}

#[tokio::test]
async fn the_image_itself_may_be_asked_for_by_name() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [IMAGE_B, IMAGE_D, EDIT_B, EDIT_D] {
        let answer = world.call(offer, json!({ "response_format": "b64_json" })).await;
        assert_eq!(answer.status, 200, "{offer:?} {answer:?}");
    }
    world.settled(4).await;
}

/// What is wrong, the members that make it so, in the place of those of a good call, and the field
/// that is named.
fn unsold() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("two", json!({ "n": 2 }), "n"),
        ("none", json!({ "n": 0 }), "n"),
        ("n as text", json!({ "n": "one" }), "n"),
        ("an empty prompt", json!({ "prompt": "" }), "prompt"),
        ("a size that is a number", json!({ "size": 1024 }), "size"),
        ("a mask", json!({ "mask": "x" }), "mask"),
        ("markup", json!({ "markup": "x" }), "markup"),
        ("a stream", json!({ "stream": true }), "stream"),
        ("partial images", json!({ "partial_images": 2 }), "partial_images"),
        ("an address", json!({ "response_format": "url" }), "response_format"),
        ("vectors", json!({ "output_format": "svg" }), "output_format"),
    ]
}

#[tokio::test]
async fn what_is_not_sold_is_named_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    for (what, members, param) in unsold() {
        for offer in [IMAGE_B, IMAGE_D, EDIT_B, EDIT_D] {
            // A form knows texts only.
            if members["size"].is_number() && offer.endpoint == "image_edits" {
                continue;
            }
            let what = format!("{what} at {offer:?}");
            let answer = world.call(offer, members.clone()).await;
            assert_eq!(answer.refusal_of(&what).0, 400, "{what}: {answer:?}");
            assert_eq!(answer.json()["error"]["param"], param, "{what}: {answer:?}");
        }
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn what_moves_the_price_of_the_vendor_who_tells_it_is_refused() {
    let world = World::start(Store::Sqlite).run().await;
    for (members, param) in
        [(json!({ "quality": "low" }), "quality"), (json!({ "resolution": "2k" }), "resolution")]
    {
        for offer in [IMAGE_D, EDIT_D] {
            let what = format!("{members} at {offer:?}");
            let answer = world.call(offer, members.clone()).await;
            let expected = (400, "unsupported_parameter".to_owned());
            assert_eq!(answer.refusal_of(&what), expected, "{what}");
            assert_eq!(answer.json()["error"]["param"], param, "{what}");
        }
        assert_eq!(world.sim.seen().len(), 0, "{members}");
    }
}

#[tokio::test]
async fn harmless_values_pass() {
    let world = World::start(Store::Sqlite).run().await;
    for members in [
        json!({ "stream": false, "partial_images": 0, "n": null }),
        json!({ "output_format": "jpeg", "output_compression": 50 }),
    ] {
        let answer = world.call(IMAGE_B, members.clone()).await;
        assert_eq!(answer.status, 200, "{members}: {answer:?}");
    }
}

#[rstest]
#[case::complete(
    r#"{ "data":[ {"b64_json":"QUJD", "x":1}],"created":5,"y":[],"usage":{"input_tokens":1,"output_tokens":1}}"#,
    None
)]
#[case::without_a_time(
    r#"{"data":[{"mime_type":"image/png","b64_json":"QUJD","revised_prompt":"A dot"}],"z":1}"#,
    Some(json!([{ "b64_json": "QUJD", "revised_prompt": "A dot" }]))
)]
#[tokio::test]
async fn a_reply_that_is_complete_passes_byte_for_byte_and_others_are_completed(
    #[case] reply: &str,
    #[case] data: Option<Value>,
) {
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(IMAGE_B).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    match data {
        None => assert_eq!(answer.body, reply.as_bytes()),
        Some(data) => {
            let told = answer.json();
            assert_eq!(told["data"], data);
            assert!(told["created"].as_i64().is_some_and(|time| time > 1_700_000_000));
            assert_eq!(told.as_object().map(serde_json::Map::len), Some(2), "{told}");
        }
    }
    world.settled(1).await;
}

#[rstest]
#[case::nothing(r#"{"created":1,"data":[]}"#, 400)]
#[case::no_data(r#"{"created":1}"#, 502)]
#[case::empty(r#"{"created":1,"data":[{"b64_json":""}]}"#, 400)]
#[case::null(r#"{"created":1,"data":[{"b64_json":null}]}"#, 400)]
#[case::an_address(r#"{"created":1,"data":[{"url":"https://a.test/b.png"}]}"#, 502)]
#[case::half(r#"{"created":1,"data":[{"b64_json":"QUJD"}"#, 502)]
#[case::page("<html>", 502)]
#[tokio::test]
async fn a_200_without_an_image_is_no_success_and_free(#[case] reply: &str, #[case] status: u16) {
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.ask(IMAGE_B).await;
    let code = if status == 400 { "content_policy_violation" } else { "upstream_error" };
    assert_eq!(answer.refusal(), (status, code.to_owned()), "{answer:?}");
    world.free_of_charge().await;
}
