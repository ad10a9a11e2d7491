//! The fields of a call: what is taken, what is refused by name, and what the vendor gets of it.

use rstest::rstest;
use serde_json::{Value, json};

use super::{SHORT, proven, swift};
use crate::world::{Answer, Form, Sent, Store, VIDEO, Video, World};

/// What is wrong, the members that make it so, in the place of those of a short call, the code if
/// it is one and no other, and the field that is named.
fn wrong_fields() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let (value, unknown) = ("invalid_value", "unknown_parameter");
    let long = "é".repeat(32_001);
    let sized = |name: &str, told: &str| json!({ "size": "1280x720", name: told });
    let elsewhere = json!({ "output": { "upload_url": "https://a.test" } });
    vec![
        ("no prompt", json!({ "prompt": null }), "missing_required_parameter", "prompt"),
        ("an empty prompt", json!({ "prompt": "" }), "", "prompt"),
        ("a prompt that is no text", json!({ "prompt": ["a"] }), value, "prompt"),
        ("a prompt that is too long", json!({ "prompt": long }), "", "prompt"),
        ("no time", json!({ "seconds": 0 }), value, "seconds"),
        ("too long", json!({ "seconds": 16 }), value, "seconds"),
        ("too long in text", json!({ "seconds": "16" }), value, "seconds"),
        ("backwards", json!({ "seconds": -4 }), value, "seconds"),
        ("a fraction", json!({ "seconds": 4.5 }), value, "seconds"),
        ("a whole fraction", json!({ "seconds": 4.0 }), value, "seconds"),
        ("a fraction in text", json!({ "seconds": "4.0" }), value, "seconds"),
        ("an exponent", json!({ "seconds": "4e0" }), value, "seconds"),
        ("a zero in front", json!({ "seconds": "04" }), value, "seconds"),
        ("a sign", json!({ "seconds": "+4" }), value, "seconds"),
        ("a space", json!({ "seconds": " 4" }), value, "seconds"),
        ("no number", json!({ "seconds": "four" }), value, "seconds"),
        ("an empty number", json!({ "seconds": "" }), value, "seconds"),
        ("a boolean number", json!({ "seconds": true }), value, "seconds"),
        ("beyond all numbers", json!({ "seconds": u64::MAX }), value, "seconds"),
        ("no such size", json!({ "size": "1024x1024" }), value, "size"),
        ("a size of text", json!({ "size": "large" }), value, "size"),
        ("a size of numbers", json!({ "size": 720 }), value, "size"),
        ("a size not sold", json!({ "size": "1920x1080" }), value, "size"),
        ("no such resolution", json!({ "resolution": "720" }), value, "resolution"),
        ("a resolution not sold", json!({ "resolution": "1080p" }), value, "resolution"),
        ("no such ratio", json!({ "aspect_ratio": "2:1" }), value, "aspect_ratio"),
        ("a bad ratio beside a size", sized("aspect_ratio", "2:1"), value, "aspect_ratio"),
        ("a bad resolution beside a size", sized("resolution", "4k"), value, "resolution"),
        ("audio in text", json!({ "generate_audio": "no" }), value, "generate_audio"),
        ("audio in numbers", json!({ "generate_audio": 0 }), value, "generate_audio"),
        ("what nobody knows", json!({ "n": 2 }), unknown, "n"),
        ("what the vendor knows", json!({ "duration": 15 }), unknown, "duration"),
        ("what leads elsewhere", elsewhere, unknown, "output"),
        ("a model that is no text", json!({ "model": 1 }), "", "model"),
    ]
}

#[tokio::test]
async fn a_wrong_field_is_refused_by_its_name_and_costs_nothing() {
    let world = swift(Store::Sqlite).run().await;
    for (what, members, code, param) in wrong_fields() {
        let answer = world.call(VIDEO, members).await;
        let (status, told) = answer.refusal_of(what);
        assert_eq!(status, 400, "{what}: {answer:?}");
        assert!(code.is_empty() || told == code, "{what}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{what}: {answer:?}");
        assert!(answer.message().contains(param), "{what}: {answer:?}");
        assert_eq!(world.sim.count("vendor_d"), 0, "{what}");
    }
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}

/// What is refused says what would be right.
#[tokio::test]
async fn a_refusal_names_what_would_be_right() {
    let world = World::start(Store::Sqlite).run().await;
    for (members, right) in [
        (json!({ "size": "1080x1080" }), "480p"),
        (json!({ "resolution": "1080p" }), "720p"),
        (json!({ "size": "640x480" }), "1280x720"),
        (json!({ "aspect_ratio": "21:9" }), "16:9"),
        (json!({ "seconds": 99 }), "15"),
        (json!({ "second": 4 }), "seconds"),
    ] {
        let what = members.to_string();
        let answer = world.call(VIDEO, members).await;
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
        assert!(answer.message().contains(right), "{what}: {answer:?}");
    }
}

#[rstest]
#[case::least(json!({ "seconds": 1 }), 1)]
#[case::least_in_text(json!({ "seconds": "1" }), 1)]
#[case::most(json!({ "seconds": 15 }), 15)]
#[case::most_in_text(json!({ "seconds": "15" }), 15)]
#[case::not_told(json!({ "seconds": null }), 4)]
#[tokio::test]
async fn seconds_are_a_number_for_the_vendor_and_a_text_for_the_client(
    #[values(false, true)] in_a_form: bool,
    #[case] members: Value,
    #[case] seconds: i64,
) {
    let world = swift(Store::Sqlite).run().await;
    let sent = if in_a_form { form(&members) } else { VIDEO.sent(&members) };
    let video = Video::of(&world.send(VIDEO.path, &sent).await);
    assert_eq!(video.json["seconds"], seconds.to_string());
    assert_eq!(world.balances().await.held, seconds * (SHORT / 4));
    proven(&world, &[video.id().to_owned()]).await;
    assert_eq!(world.submissions()[0].json()["duration"], seconds);
}

/// A short call as a form, with these members as texts; what is null is left out.
fn form(members: &Value) -> Sent {
    let mut form = Form::new().field("model", VIDEO.model).field("prompt", "A red dot.");
    for (name, value) in members.as_object().expect("members") {
        form = match value {
            Value::Null => form,
            Value::String(text) => form.field(name, text),
            other => form.field(name, &other.to_string()),
        };
    }
    form.sent()
}

#[rstest]
#[case::plain("A red dot.")]
#[case::spaces("  A red\n\tdot. ")]
#[case::marks(r#"A "red" \dot\ </script>"#)]
#[case::far_away("Ein roter Punkt — 赤い点 🔴")]
#[case::longest(&"é".repeat(32_000))]
#[tokio::test]
async fn the_prompt_reaches_the_vendor_as_it_came(#[case] prompt: &str) {
    let world = swift(Store::Sqlite).run().await;
    let mut ids = vec![world.place(json!({ "prompt": prompt })).await];
    let form = Form::new().field("model", VIDEO.model).field("prompt", &format!("{prompt}!"));
    let by_form = world.send(VIDEO.path, &form.sent()).await;
    if prompt.chars().count() < 32_000 {
        ids.push(Video::of(&by_form).id().to_owned());
    } else {
        assert_eq!(by_form.refusal().0, 400, "{by_form:?}");
    }
    proven(&world, &ids).await;
    let mut prompts: Vec<_> = world.sim.videos().into_iter().map(|video| video.prompt).collect();
    prompts.sort_by_key(String::len);
    assert_eq!(prompts[0], prompt);
    assert!(prompts.get(1).is_none_or(|longer| *longer == format!("{prompt}!")));
}

/// Not a byte of it is written anew.
#[tokio::test]
async fn escapes_in_a_prompt_stay_escapes() {
    let world = swift(Store::Sqlite).run().await;
    let prompt = r#""\u0041 red\/dot \ud83d\udd34""#;
    let body = format!(r#"{{"prompt":{prompt},"model":"lmd-imagine-video"}}"#);
    let video = Video::of(&Answer::read(world.request(VIDEO.path).body(body)).await);
    proven(&world, &[video.id().to_owned()]).await;
    let body = String::from_utf8(world.submissions()[0].body.to_vec()).expect("text");
    assert!(body.contains(&format!(r#""prompt":{prompt}"#)), "{body}");
}

#[rstest]
#[case::not_told(json!({}), None)]
#[case::on(json!({ "generate_audio": true }), None)]
#[case::null(json!({ "generate_audio": null }), None)]
#[case::off(json!({ "generate_audio": false }), Some(false))]
#[tokio::test]
async fn audio_is_spoken_of_only_where_it_is_off(
    #[values(false, true)] in_a_form: bool,
    #[case] members: Value,
    #[case] told: Option<bool>,
) {
    let world = swift(Store::Sqlite).run().await;
    let sent = if in_a_form { form(&members) } else { VIDEO.sent(&members) };
    let video = Video::of(&world.send(VIDEO.path, &sent).await);
    let charge = proven(&world, &[video.id().to_owned()]).await.remove(0);
    assert_eq!(charge.amount_nano, SHORT, "the price is the same");
    let body = world.submissions()[0].json();
    assert_eq!(body.get("generate_audio"), told.map(Value::from).as_ref(), "{body}");
}

/// What is wrong with a form, all of it but the model, and the code if it is one and no other.
fn wrong_forms() -> Vec<(&'static str, Form, &'static str)> {
    let usual = || Form::new().field("prompt", "a");
    let file = b"\x89PNG\r\n\x1a\n";
    vec![
        ("a field twice", usual().field("prompt", "b"), "invalid_form"),
        ("the model twice", usual().field("model", "lmd-imagine-video-1.5"), "invalid_form"),
        ("no such field", usual().field("n", "1"), "unknown_parameter"),
        ("not a number", usual().field("seconds", "4s"), "invalid_value"),
        ("not a boolean", usual().field("generate_audio", "False"), "invalid_value"),
        ("another file", usual().file("image", "image/png", file), ""),
        ("a file for a text", Form::new().file("prompt", "text/plain", b"a"), ""),
    ]
}

#[tokio::test]
async fn a_form_that_is_wrong_is_refused_and_costs_nothing() {
    let world = swift(Store::Sqlite).run().await;
    for (what, form, code) in wrong_forms() {
        let answer = world.send(VIDEO.path, &form.field("model", VIDEO.model).sent()).await;
        let (status, told) = answer.refusal_of(what);
        assert_eq!(status, 400, "{what}: {answer:?}");
        assert!(code.is_empty() || told == code, "{what}: {answer:?}");
        assert_eq!(world.sim.count("vendor_d"), 0, "{what}");
    }
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}

#[tokio::test]
async fn json_that_could_be_read_in_two_ways_is_refused() {
    let world = swift(Store::Sqlite).run().await;
    for body in [
        r#"{"model":"lmd-imagine-video","prompt":"a","prompt":"b"}"#,
        r#"{"model":"lmd-imagine-video","prompt":"a","pro\u006dpt":"b"}"#,
        r#"{"model":"lmd-imagine-video","prompt":"a"}{}"#,
        r#"[{"model":"lmd-imagine-video","prompt":"a"}]"#,
        "",
    ] {
        let answer = Answer::read(world.request(VIDEO.path).body(body)).await;
        assert_eq!(answer.refusal_of(body).0, 400, "{body}: {answer:?}");
        assert_eq!(world.sim.count("vendor_d"), 0, "{body}");
    }
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}
