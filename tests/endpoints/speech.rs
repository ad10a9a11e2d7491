//! Speech: characters as people count them, and sound that comes as it is made.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;

use crate::sim::sound;
use crate::world::{Answer, SPEECH, Store, World};

const LONG: usize = 4_096;

/// Texts as they are written, as they are spoken, and their characters.
const TEXTS: [(&str, &str, u32); 6] = [
    (r#""hello""#, "hello", 5),
    (r#""naïve""#, "naïve", 5),
    (r#""👍🏽""#, "👍🏽", 2),
    (r#""\ud83d\ude00!""#, "😀!", 2),
    (r#""\u0041\n\"\\""#, "A\n\"\\", 4),
    (r#""   ""#, "   ", 3),
];

#[rstest]
#[tokio::test]
async fn characters_are_code_points_and_each_costs_its_price(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let world = World::start(store).run().await;
    for (number, (written, spoken, characters)) in TEXTS.into_iter().enumerate() {
        let body = format!(r#"{{"model":"tts-1-hd", "input":{written},"voice":"nova"}}"#);
        let answer = Answer::read(world.request(SPEECH.path).body(body.clone())).await;
        assert_eq!(answer.status, 200, "{written}: {answer:?}");
        let nano = i64::from(characters) * 30_000;
        let count = characters.to_string();
        assert_eq!(answer.header("x-service-characters"), Some(&*count), "{written}");
        let charged = nano.to_string();
        assert_eq!(answer.header("x-service-charged-nano"), Some(&*charged), "{written}");
        assert_eq!(answer.header("content-type"), Some("audio/mpeg"), "{written}");
        let length = 16 + 64 * spoken.chars().count();
        assert!(answer.body == sound(spoken, "nova", "mp3", length), "other bytes: {written}");
        let seen = world.sim.take_seen().remove(0);
        assert_eq!(seen.body, body.as_bytes(), "the body passes unchanged: {written}");
        let billed = seen.billed.expect("a bill").characters;
        assert_eq!(billed, u64::from(characters), "{written}");
        let charge = world.settled(number + 1).await.remove(number);
        assert_eq!((charge.amount_nano, charge.basis.as_str()), (nano, "fixed"), "{written}");
        assert_eq!(charge.usage, json!({ "characters": characters }), "{written}");
    }
}

#[rstest]
#[tokio::test]
async fn the_longest_text_passes_and_a_character_more_does_not(
    #[values("a", "é", "😀")] letter: &str,
) {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(SPEECH, json!({ "input": letter.repeat(LONG) })).await;
    assert_eq!((answer.status, answer.header("x-service-characters")), (200, Some("4096")));
    assert_eq!(world.charge().await.amount_nano, 4_096 * 15_000);
    let answer = world.call(SPEECH, json!({ "input": letter.repeat(LONG + 1) })).await;
    assert_eq!(answer.refusal(), (400, "invalid_value".to_owned()));
    assert_eq!(answer.json()["error"]["param"], "input");
    assert_eq!(world.sim.count("vendor_b"), 1);
    world.settled(1).await;
}

#[tokio::test]
async fn whether_a_voice_is_right_or_needed_is_not_ours_to_say() {
    let world = World::start(Store::Sqlite).run().await;
    for voice in [json!({ "voice": null }), json!({ "voice": "" }), json!({ "voice": 5 })] {
        let answer = world.call(SPEECH, voice.clone()).await;
        assert_eq!(answer.status, 400, "{voice}: {answer:?}");
        let seen = world.sim.take_seen();
        assert_eq!(seen.len(), 1, "the vendor was asked: {voice}");
        assert_eq!(seen[0].json()["voice"], voice["voice"], "with what was sent: {voice}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn a_wrong_field_is_named() {
    let world = World::start(Store::Sqlite).run().await;
    for (members, param) in [
        (json!({ "input": "" }), "input"),
        (json!({ "input": ["hello"] }), "input"),
        (json!({ "stream_format": "sse" }), "stream_format"),
    ] {
        let what = members.to_string();
        let answer = world.call(SPEECH, members).await;
        let (status, code) = answer.refusal_of(&what);
        let known = ["invalid_value", "missing_required_parameter", "unsupported_parameter"];
        assert_eq!((status, known.contains(&&*code)), (400, true), "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{what}");
        assert_eq!(world.sim.seen().len(), 0, "{what}");
    }
    world.free_of_charge().await;
}

#[tokio::test]
async fn every_format_comes_as_the_vendor_calls_it() {
    let world = World::start(Store::Sqlite).run().await;
    let formats =
        [("mp3", "audio/mpeg"), ("opus", "audio/opus"), ("wav", "audio/wav"), ("pcm", "audio/pcm")];
    for (number, (format, media)) in formats.into_iter().enumerate() {
        let members = json!({ "response_format": format, "stream_format": "audio", "speed": 2.0 });
        let answer = world.call(SPEECH, members).await;
        let told = (answer.status, answer.header("content-type"));
        assert_eq!(told, (200, Some(media)), "{format}");
        let expected = sound("hello", "alloy", format, 16 + 64 * 5);
        assert!(answer.body == expected, "other bytes came: {format}");
        let charge = world.settled(number + 1).await.remove(number);
        assert_eq!(charge.amount_nano, 75_000, "{format}");
    }
}

#[tokio::test]
async fn sound_comes_as_it_is_made() {
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["chunks=10;chunk-delay=60"]);
    let world = world.run().await;
    let began = Instant::now();
    let sent = SPEECH.sent(&json!({}));
    let request = world.sending(SPEECH.path, &sent.media, Some(&world.key)).body(sent.bytes);
    let mut answer = request.send().await.expect("the head of an answer");
    assert_eq!(answer.headers()["x-service-characters"], "5");
    let mut all = answer.chunk().await.expect("a connection").expect("sound").to_vec();
    let first = began.elapsed();
    while let Some(more) = answer.chunk().await.expect("a connection") {
        all.extend_from_slice(&more);
    }
    assert!(all == sound("hello", "alloy", "mp3", 16 + 64 * 5), "other bytes came");
    assert!(began.elapsed() >= first + Duration::from_millis(200), "it came all at once");
    world.settled(1).await;
}

#[rstest]
#[tokio::test]
async fn sound_that_breaks_off_breaks_off_for_the_client_too_and_is_free(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
    #[values("cut=2", "reset=2", "stall=2")] fault: &str,
) {
    let faults = format!("chunks=6;chunk-delay=10;{fault}");
    let short = "[timeouts]\nstall_ms = 300";
    let world = World::start(store).vendor("vendor_b", &[&faults]).conf(short).run().await;
    let sent = SPEECH.sent(&json!({}));
    let request = world.sending(SPEECH.path, &sent.media, Some(&world.key)).body(sent.bytes);
    let mut answer = request.send().await.expect("the head of an answer");
    assert_eq!(answer.status(), 200);
    let mut length = 0;
    let broken = loop {
        match answer.chunk().await {
            Ok(Some(bytes)) => length += bytes.len(),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(broken, "{length} bytes looked like all of it");
    assert!(length < 16 + 64 * 5, "{length}");
    world.free_of_charge().await;
}

#[rstest]
#[tokio::test]
async fn who_hangs_up_on_sound_pays_for_it_once(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let builder = World::start(store).vendor("vendor_b", &["chunks=10;chunk-delay=30"]);
    let world = builder.run().await;
    let sent = SPEECH.sent(&json!({}));
    let request = world.sending(SPEECH.path, &sent.media, Some(&world.key)).body(sent.bytes);
    let mut answer = request.send().await.expect("the head of an answer");
    answer.chunk().await.expect("a connection").expect("sound");
    drop(answer);
    let charge = world.charge().await;
    assert_eq!((charge.amount_nano, charge.basis.as_str()), (75_000, "fixed"));
}
