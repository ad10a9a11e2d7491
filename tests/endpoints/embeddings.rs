//! Embeddings: numbers that are those of the vendor however they are asked for, and tokens that
//! are counted where the vendor does not tell them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rstest::rstest;
use serde_json::{Value, json};

use crate::sim::vector;
use crate::world::{Canned, EMBEDDING_B, EMBEDDING_C, Offer, Store, World, http};

/// The vectors of a reply, packed or not.
fn vectors(reply: &Value, packed: bool) -> Vec<Vec<f32>> {
    let entries = reply["data"].as_array().expect("a list").iter().enumerate();
    let read = |(at, entry): (usize, &Value)| {
        assert_eq!((&entry["index"], &entry["object"]), (&json!(at), &json!("embedding")));
        let told = &entry["embedding"];
        if packed {
            let bytes = STANDARD.decode(told.as_str().expect("a text")).expect("base64");
            let fours = bytes.as_chunks::<4>().0.iter();
            return fours.map(|four| f32::from_le_bytes(*four)).collect();
        }
        serde_json::from_value(told.clone()).expect("numbers")
    };
    entries.map(read).collect()
}

#[rstest]
#[tokio::test]
async fn numbers_come_as_they_were_asked_for_whatever_the_vendor_knows(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values(EMBEDDING_B, EMBEDDING_C)] offer: Offer,
    #[values(None, Some("float"), Some("base64"))] format: Option<&str>,
) {
    let world = World::start(store).run().await;
    let texts = ["hello", "naïve 😀"];
    let mut members = json!({ "input": texts, "dimensions": 6, "encoding_format": format });
    if offer == EMBEDDING_C {
        members["user"] = "u-1".into();
    }
    let answer = world.call(offer, members).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let reply = answer.json();
    let expected: Vec<_> = texts.iter().map(|text| vector(text, 6)).collect();
    assert_eq!(vectors(&reply, format == Some("base64")), expected);
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!(offer.model)));
    let billed = world.sim.seen()[0].billed.expect("a bill").prompt;
    assert_eq!(reply["usage"], json!({ "prompt_tokens": billed, "total_tokens": billed }));
    let sent = world.sim.seen()[0].json();
    if offer == EMBEDDING_C {
        assert_eq!(sent, json!({ "model": offer.model, "input": texts, "dimensions": 6 }));
    } else {
        assert_eq!(sent.get("encoding_format"), format.map(|f| json!(f)).as_ref());
    }
    assert_eq!(world.charge().await.usage["prompt_tokens"], billed);
}

#[rstest]
#[case::b_silent(EMBEDDING_B, "no-usage", json!("hello"), 2, "counted")]
#[case::b_null(EMBEDDING_B, "null-usage", json!("hello"), 2, "counted")]
#[case::b_broken(EMBEDDING_B, "bad-usage", json!("hello"), 2, "counted")]
#[case::b_tokens(EMBEDDING_B, "no-usage", json!([1, 2, 3]), 3, "counted")]
#[case::b_many_tokens(EMBEDDING_B, "no-usage", json!([[1, 2, 3], [4]]), 4, "counted")]
#[case::b_short_texts(EMBEDDING_B, "no-usage", json!(["a", "b", "c"]), 3, "counted")]
#[case::b_told(EMBEDDING_B, "prompt=900", json!("hello"), 900, "reported")]
#[case::b_told_nothing(EMBEDDING_B, "prompt=0", json!("hello"), 2, "counted")]
#[case::c_silent(EMBEDDING_C, "", json!(["hello", "12345678"]), 4, "counted")]
#[case::c_escaped(EMBEDDING_C, "", json!("\u{1f600}\"\n\u{e9}\u{1f600}"), 2, "counted")]
#[case::c_broken(EMBEDDING_C, "bad-usage", json!("hello"), 2, "counted")]
#[case::c_told(EMBEDDING_C, "with-usage;prompt=9", json!("hello"), 9, "reported")]
#[tokio::test]
async fn tokens_are_those_reported_and_otherwise_counted_and_told(
    #[case] offer: Offer,
    #[case] fault: &str,
    #[case] input: Value,
    #[case] tokens: u64,
    #[case] basis: &str,
) {
    let world = World::start(Store::Sqlite).vendor(offer.vendor, &[fault]).run().await;
    let answer = world.call(offer, json!({ "input": input, "dimensions": 3 })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    assert_eq!(answer.json()["usage"], told, "{answer:?}");
    let charge = world.charge().await;
    assert_eq!((charge.basis.as_str(), &charge.usage["prompt_tokens"]), (basis, &json!(tokens)));
    let rate = if offer == EMBEDDING_C { 200 } else { 20 };
    assert_eq!(charge.amount_nano, i64::try_from(tokens).expect("few") * rate);
}

#[tokio::test]
async fn a_reply_that_needs_nothing_passes_byte_for_byte() {
    let reply = r#"{ "object":"list","data" : [{"object":"embedding","index":0,
        "embedding":[1e-3, -0.50,1]}],"model":"m","x":{},
        "usage":{"prompt_tokens":7,"total_tokens":7} }"#;
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.call(EMBEDDING_B, json!({ "encoding_format": "float" })).await;
    assert_eq!(answer.body, reply.as_bytes());
    assert_eq!(world.charge().await.amount_nano, 7 * 20);
}

/// What is wrong, the members that make it so, in the place of those of a good call, and the field
/// that is named.
fn wrong_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("no texts", json!({ "input": [] }), "input"),
        ("no tokens", json!({ "input": [[]] }), "input"),
        ("broken tokens", json!({ "input": [1, 2.5] }), "input"),
        ("negative tokens", json!({ "input": [[1, -2]] }), "input"),
        ("an object", json!({ "input": { "text": "a" } }), "input"),
        ("too many", json!({ "input": vec!["a"; 2_049] }), "input"),
        ("no dimensions", json!({ "dimensions": 0 }), "dimensions"),
        ("too many dimensions", json!({ "dimensions": 3_073 }), "dimensions"),
        ("dimensions as text", json!({ "dimensions": "3" }), "dimensions"),
        ("another format", json!({ "encoding_format": "hex" }), "encoding_format"),
    ]
}

#[tokio::test]
async fn a_wrong_field_is_named_and_no_vendor_hears_of_it() {
    let world = World::start(Store::Sqlite).run().await;
    for (what, members, param) in wrong_fields() {
        for offer in [EMBEDDING_B, EMBEDDING_C] {
            let what = format!("{what} for {}", offer.vendor);
            let answer = world.call(offer, members.clone()).await;
            assert_eq!(answer.refusal_of(&what).0, 400, "{what}: {answer:?}");
            let named = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
            assert!(named.starts_with(param), "{what}: {answer:?}");
        }
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_total_alone_was_taken_for_no_report_and_counted() {
    let reply = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1]}],
        "model":"m","usage":{"total_tokens":7}}"#;
    let vendor = Canned::start(http(reply), usize::MAX).await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &[&vendor.url]).run().await;
    let answer = world.call(EMBEDDING_B, json!({ "encoding_format": "float" })).await;
    assert_eq!(answer.json()["usage"], json!({ "prompt_tokens": 7, "total_tokens": 7 }));
    let charge = world.charge().await;
    assert_eq!((charge.amount_nano, charge.basis.as_str()), (7 * 20, "reported"));
}

#[tokio::test]
async fn an_empty_text_is_the_vendors_to_judge() {
    let world = World::start(Store::Sqlite).run().await;
    for input in [json!(""), json!(["a", ""])] {
        for offer in [EMBEDDING_B, EMBEDDING_C] {
            let answer = world.call(offer, json!({ "input": input })).await;
            assert_eq!(answer.status, 400, "{input}: {answer:?}");
            assert_eq!(world.sim.take_seen().len(), 1, "{input}: {answer:?}");
        }
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn as_many_texts_as_may_be_are_embedded_at_once() {
    let world = World::start(Store::Sqlite).run().await;
    for offer in [EMBEDDING_B, EMBEDDING_C] {
        let members = json!({ "input": vec!["a"; 2_048], "dimensions": 1 });
        let answer = world.call(offer, members).await;
        assert_eq!(answer.status, 200, "{offer:?}");
        assert_eq!(answer.json()["data"].as_array().map(Vec::len), Some(2_048));
    }
    let charges = world.settled(2).await;
    assert!(charges.iter().all(|c| c.usage["prompt_tokens"] == 2_048), "{charges:?}");
}
