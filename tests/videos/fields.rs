//! The fields of a call: what is taken, what is refused by name, and what the vendor gets of it.

use rstest::rstest;
use serde_json::{Value, json};

use super::{SHORT, proven, swift};
use crate::world::{Answer, Form, Sent, Store, VIDEO, Video, World};

/// What is wrong, the field that is named, and a part of the message.
#[rstest]
#[case::no_prompt(json!({ "prompt": null }), "missing_required_parameter", "prompt")]
#[case::an_empty_prompt(json!({ "prompt": "" }), "", "prompt")]
#[case::a_prompt_that_is_no_text(json!({ "prompt": ["a"] }), "invalid_value", "prompt")]
#[case::a_prompt_that_is_too_long(json!({ "prompt": "é".repeat(32_001) }), "", "prompt")]
#[case::no_time(json!({ "seconds": 0 }), "invalid_value", "seconds")]
#[case::too_long(json!({ "seconds": 16 }), "invalid_value", "seconds")]
#[case::too_long_in_text(json!({ "seconds": "16" }), "invalid_value", "seconds")]
#[case::backwards(json!({ "seconds": -4 }), "invalid_value", "seconds")]
#[case::a_fraction(json!({ "seconds": 4.5 }), "invalid_value", "seconds")]
#[case::a_whole_fraction(json!({ "seconds": 4.0 }), "invalid_value", "seconds")]
#[case::a_fraction_in_text(json!({ "seconds": "4.0" }), "invalid_value", "seconds")]
#[case::an_exponent(json!({ "seconds": "4e0" }), "invalid_value", "seconds")]
#[case::a_zero_in_front(json!({ "seconds": "04" }), "invalid_value", "seconds")]
#[case::a_sign(json!({ "seconds": "+4" }), "invalid_value", "seconds")]
#[case::a_space(json!({ "seconds": " 4" }), "invalid_value", "seconds")]
#[case::no_number(json!({ "seconds": "four" }), "invalid_value", "seconds")]
#[case::an_empty_number(json!({ "seconds": "" }), "invalid_value", "seconds")]
#[case::a_boolean_number(json!({ "seconds": true }), "invalid_value", "seconds")]
#[case::beyond_all_numbers(json!({ "seconds": u64::MAX }), "invalid_value", "seconds")]
#[case::no_such_size(json!({ "size": "1024x1024" }), "invalid_value", "size")]
#[case::a_size_of_text(json!({ "size": "large" }), "invalid_value", "size")]
#[case::a_size_of_numbers(json!({ "size": 720 }), "invalid_value", "size")]
#[case::a_size_not_sold(json!({ "size": "1920x1080" }), "invalid_value", "size")]
#[case::no_such_resolution(json!({ "resolution": "720" }), "invalid_value", "resolution")]
#[case::a_resolution_not_sold(json!({ "resolution": "1080p" }), "invalid_value", "resolution")]
#[case::no_such_ratio(json!({ "aspect_ratio": "2:1" }), "invalid_value", "aspect_ratio")]
#[case::a_bad_ratio_beside_a_size(
    json!({ "size": "1280x720", "aspect_ratio": "2:1" }), "invalid_value", "aspect_ratio"
)]
#[case::a_bad_resolution_beside_a_size(
    json!({ "size": "1280x720", "resolution": "4k" }), "invalid_value", "resolution"
)]
#[case::audio_in_text(json!({ "generate_audio": "no" }), "invalid_value", "generate_audio")]
#[case::audio_in_numbers(json!({ "generate_audio": 0 }), "invalid_value", "generate_audio")]
#[case::what_nobody_knows(json!({ "n": 2 }), "unknown_parameter", "n")]
#[case::what_the_vendor_knows(json!({ "duration": 15 }), "unknown_parameter", "duration")]
#[case::what_leads_elsewhere(
    json!({ "output": { "upload_url": "https://a.test" } }), "unknown_parameter", "output"
)]
#[case::a_model_that_is_no_text(json!({ "model": 1 }), "", "model")]
#[tokio::test]
async fn a_wrong_field_is_refused_by_its_name_and_costs_nothing(
    #[case] members: Value,
    #[case] code: &str,
    #[case] param: &str,
) {
    let world = swift(Store::Sqlite).run().await;
    let answer = world.call(VIDEO, members).await;
    let (status, told) = answer.refusal();
    assert_eq!(status, 400, "{answer:?}");
    assert!(code.is_empty() || told == code, "{answer:?}");
    assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
    assert!(answer.message().contains(param), "{answer:?}");
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}

/// What is refused says what would be right.
#[rstest]
#[case::resolutions(json!({ "size": "1080x1080" }), "480p")]
#[case::more_resolutions(json!({ "resolution": "1080p" }), "720p")]
#[case::sizes(json!({ "size": "640x480" }), "1280x720")]
#[case::ratios(json!({ "aspect_ratio": "21:9" }), "16:9")]
#[case::seconds(json!({ "seconds": 99 }), "15")]
#[case::fields(json!({ "second": 4 }), "seconds")]
#[tokio::test]
async fn a_refusal_names_what_would_be_right(#[case] members: Value, #[case] right: &str) {
    let world = World::start(Store::Sqlite).run().await;
    let answer = world.call(VIDEO, members).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.message().contains(right), "{answer:?}");
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

#[rstest]
#[case::twice(Form::new().field("prompt", "a").field("prompt", "b"), "invalid_form")]
#[case::model_twice(
    Form::new().field("prompt", "a").field("model", "lmd-imagine-video-1.5"), "invalid_form"
)]
#[case::no_such_field(Form::new().field("prompt", "a").field("n", "1"), "unknown_parameter")]
#[case::not_a_number(Form::new().field("prompt", "a").field("seconds", "4s"), "invalid_value")]
#[case::not_a_boolean(
    Form::new().field("prompt", "a").field("generate_audio", "False"), "invalid_value"
)]
#[case::another_file(
    Form::new().field("prompt", "a").file("image", "image/png", b"\x89PNG\r\n\x1a\n"), ""
)]
#[case::a_file_for_a_text(Form::new().file("prompt", "text/plain", b"a"), "")]
#[tokio::test]
async fn a_form_that_is_wrong_is_refused_and_costs_nothing(#[case] form: Form, #[case] code: &str) {
    let world = swift(Store::Sqlite).run().await;
    let answer = world.send(VIDEO.path, &form.field("model", VIDEO.model).sent()).await;
    let (status, told) = answer.refusal();
    assert_eq!(status, 400, "{answer:?}");
    assert!(code.is_empty() || told == code, "{answer:?}");
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}

#[rstest]
#[case::twice(r#"{"model":"lmd-imagine-video","prompt":"a","prompt":"b"}"#)]
#[case::twice_escaped(r#"{"model":"lmd-imagine-video","prompt":"a","pro\u006dpt":"b"}"#)]
#[case::two(r#"{"model":"lmd-imagine-video","prompt":"a"}{}"#)]
#[case::a_list(r#"[{"model":"lmd-imagine-video","prompt":"a"}]"#)]
#[case::nothing("")]
#[tokio::test]
async fn json_that_could_be_read_in_two_ways_is_refused(#[case] body: &str) {
    let world = swift(Store::Sqlite).run().await;
    let answer = Answer::read(world.request(VIDEO.path).body(body.to_owned())).await;
    assert_eq!(answer.refusal().0, 400, "{answer:?}");
    world.free_of_charge().await;
    assert_eq!(world.sim.count("vendor_d"), 0);
}
