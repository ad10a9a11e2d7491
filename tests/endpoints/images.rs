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

#[rstest]
#[case::bare(json!({}), json!({}))]
#[case::one(json!({ "n": 1 }), json!({ "n": 1 }))]
#[case::quality(
    json!({ "quality": "low", "output_format": "webp" }),
    json!({ "quality": "low", "output_format": "webp" })
)]
#[case::size(json!({ "size": "1024x1536" }), json!({ "size": "1024x1536" }))]
#[tokio::test]
async fn the_vendor_who_counts_tokens_gets_what_was_asked(
    #[case] members: Value,
    #[case] more: Value,
) {
    let world = World::start(Store::Sqlite).run().await;
    pictured(&world.call(IMAGE_B, members).await);
    let expected = crate::world::with(IMAGE_B.call(), &more);
    assert_eq!(world.sim.seen()[0].json(), expected);
}

#[rstest]
#[case::bare(json!({}), json!({}))]
#[case::size(json!({ "size": "1024x1536" }), json!({}))]
#[case::ratio(json!({ "aspect_ratio": "16:9" }), json!({ "aspect_ratio": "16:9" }))]
#[case::told(json!({ "response_format": "b64_json" }), json!({}))]
#[tokio::test]
async fn the_vendor_who_tells_a_price_gets_no_size_and_is_asked_for_the_image_itself(
    #[case] members: Value,
    #[case] more: Value,
) {
    let world = World::start(Store::Sqlite).run().await;
    pictured(&world.call(IMAGE_D, members).await);
    let mut expected = crate::world::with(IMAGE_D.call(), &more);
    expected["response_format"] = "b64_json".into();
    let mut sent = world.sim.seen()[0].json();
    if sent["n"] == 1 {
        sent.as_object_mut().expect("an object").remove("n");
    }
    assert_eq!(sent, expected);
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

#[rstest]
#[case::two(json!({ "n": 2 }), "n")]
#[case::none(json!({ "n": 0 }), "n")]
#[case::n_as_text(json!({ "n": "one" }), "n")]
#[case::empty_prompt(json!({ "prompt": "" }), "prompt")]
#[case::size_a_number(json!({ "size": 1024 }), "size")]
#[case::mask(json!({ "mask": "x" }), "mask")]
#[case::markup(json!({ "markup": "x" }), "markup")]
#[case::stream(json!({ "stream": true }), "stream")]
#[case::partial(json!({ "partial_images": 2 }), "partial_images")]
#[case::address(json!({ "response_format": "url" }), "response_format")]
#[case::vectors(json!({ "output_format": "svg" }), "output_format")]
#[tokio::test]
async fn what_is_not_sold_is_named_and_no_vendor_hears_of_it(
    #[case] members: Value,
    #[case] param: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [IMAGE_B, IMAGE_D, EDIT_B, EDIT_D] {
        // A form knows texts only.
        if members["size"].is_number() && offer.endpoint == "image_edits" {
            continue;
        }
        let answer = world.call(offer, members.clone()).await;
        assert_eq!(answer.refusal().0, 400, "{offer:?} {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{offer:?} {answer:?}");
    }
    assert_eq!(world.sim.seen().len(), 0);
    world.free_of_charge().await;
}

#[rstest]
#[case(json!({ "quality": "low" }), "quality")]
#[case(json!({ "resolution": "2k" }), "resolution")]
#[tokio::test]
async fn what_moves_the_price_of_the_vendor_who_tells_it_is_refused(
    #[case] members: Value,
    #[case] param: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [IMAGE_D, EDIT_D] {
        let answer = world.call(offer, members.clone()).await;
        assert_eq!(answer.refusal(), (400, "unsupported_parameter".to_owned()), "{offer:?}");
        assert_eq!(answer.json()["error"]["param"], param);
    }
    assert_eq!(world.sim.seen().len(), 0);
}

#[rstest]
#[case::harmless(json!({ "stream": false, "partial_images": 0, "n": null }))]
#[case::compression(json!({ "output_format": "jpeg", "output_compression": 50 }))]
#[tokio::test]
async fn harmless_values_pass(#[case] members: Value) {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(IMAGE_B, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
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
#[case::an_address(r#"{"created":1,"data":[{"url":"https://a.test/b.png"}]}"#, 400)]
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
