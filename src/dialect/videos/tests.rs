//! Tests of calls for a video: every field, and the body that a vendor gets for it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Map, Value as Json, json};

use super::*;
use crate::dialect::json::JsonValue;
use crate::money::VideoResolution;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\x00\xff";

fn document(body: impl Into<Bytes>) -> JsonDocument {
    JsonDocument::parse(body.into()).expect("sound")
}

/// Makes a call with a prompt and these members.
fn call(members: &str) -> JsonDocument {
    let comma = if members.is_empty() { "" } else { "," };
    document(format!(r#"{{"model":"m","prompt":"p"{comma}{members}}}"#))
}

fn file() -> SourceImage {
    let content = [&PNG[..4], &PNG[4..]].map(Bytes::from_static).to_vec();
    SourceImage { media_type: "image/png".to_owned(), content, length: PNG.len() }
}

#[rstest]
#[case::nothing("", 4)]
#[case::null(r#""seconds":null"#, 4)]
#[case::least(r#""seconds":1"#, 1)]
#[case::most(r#""seconds":15"#, 15)]
#[case::least_as_text(r#""seconds":"1""#, 1)]
#[case::most_as_text(r#""seconds":"15""#, 15)]
#[case::escaped(r#""seconds":"\u0038""#, 8)]
fn seconds_are_read(#[case] members: &str, #[case] expected: u64) {
    let request = parse_request(&call(members), None).expect("sound");
    assert_eq!(request.seconds, expected);
    let body = document(build_body(&call(members), &request, None));
    assert_eq!(body.get("duration").and_then(JsonValue::integer), Some(expected));
}

#[rstest]
#[case("0")]
#[case("16")]
#[case("-4")]
#[case("4.0")]
#[case("4e0")]
#[case("4.5")]
#[case("18446744073709551620")]
#[case("true")]
#[case("[4]")]
#[case(r#""""#)]
#[case(r#""0""#)]
#[case(r#""04""#)]
#[case(r#""+4""#)]
#[case(r#"" 4""#)]
#[case(r#""4 ""#)]
#[case(r#""4.0""#)]
#[case(r#""4s""#)]
#[case(r#""16""#)]
fn other_seconds_are_refused(#[case] written: &str) {
    let fault = parse_request(&call(&format!(r#""seconds":{written}"#)), None).expect_err("wrong");
    assert_eq!((fault.code, fault.param.as_deref()), ("invalid_value", Some("seconds")));
    assert!(fault.message.contains("from 1 to 15"), "{fault}");
}

#[rstest]
#[case::nothing("", "720p 16:9 1280x720 by resolution")]
#[case::nulls(
    r#""size":null,"resolution":null,"aspect_ratio":null"#,
    "720p 16:9 1280x720 by resolution"
)]
#[case::size(r#""size":"480x854""#, "480p 9:16 480x854 by size")]
#[case::escaped_size(r#""size":"480\u0078480""#, "480p 1:1 480x480 by size")]
#[case::size_wins(
    r#""size":"1080x1080","resolution":"480p","aspect_ratio":"2:3""#,
    "1080p 1:1 1080x1080 by size"
)]
#[case::resolution(r#""resolution":"480p""#, "480p 16:9 854x480 by resolution")]
#[case::largest(r#""resolution":"1080p""#, "1080p 16:9 1920x1080 by resolution")]
#[case::ratio(r#""aspect_ratio":"4:3""#, "720p 4:3 960x720 by resolution")]
#[case::both(r#""resolution":"480p","aspect_ratio":"9:16""#, "480p 9:16 480x854 by resolution")]
#[case::frame(r#""image_url":"https://a.example/""#, "720p - 1280x720 by resolution")]
#[case::frame_and_size(
    r#""image_url":"https://a.example/","size":"720x1280""#,
    "720p 9:16 720x1280 by size"
)]
#[case::frame_and_resolution(
    r#""resolution":"480p","input_reference":{"image_url":"https://a.example/"}"#,
    "480p - 854x480 by resolution"
)]
#[case::frame_and_ratio(
    r#""image_url":"https://a.example/","aspect_ratio":"3:2""#,
    "720p 3:2 1080x720 by resolution"
)]
fn the_shape_is_read(#[case] members: &str, #[case] expected: &str) {
    let request = parse_request(&call(members), None).expect("sound");
    let VideoRequest { resolution, aspect_ratio, size, resolution_field, .. } = &request;
    let found = format!(
        "{} {} {size} by {resolution_field}",
        resolution.name(),
        aspect_ratio.unwrap_or("-")
    );
    assert_eq!(found, expected);
}

#[test]
fn the_shape_is_left_to_a_frame_that_is_a_file() {
    let request = parse_request(&call(""), Some(&file())).expect("sound");
    assert_eq!((request.aspect_ratio, &*request.size), (None, "1280x720"));
    let request = parse_request(&call(r#""size":"720x720""#), Some(&file())).expect("sound");
    assert_eq!((request.aspect_ratio, &*request.size), (Some("1:1"), "720x720"));
}

#[rstest]
#[case::none("", true)]
#[case::null(r#""generate_audio":null"#, true)]
#[case::on(r#""generate_audio":true"#, true)]
#[case::off(r#""generate_audio":false"#, false)]
#[case::on_in_a_form(r#""generate_audio":"true""#, true)]
#[case::off_in_a_form(r#""generate_audio":"false""#, false)]
fn sound_is_on_unless_it_is_turned_off(#[case] members: &str, #[case] expected: bool) {
    let request = parse_request(&call(members), None).expect("sound");
    assert_eq!(request.audio, expected);
    let body = document(build_body(&call(members), &request, None));
    let audio = body.get("generate_audio").and_then(JsonValue::bool);
    assert_eq!(audio, (!expected).then_some(false));
}

#[rstest]
#[case::size(r#""size":"1024x1024""#, "size", "one of 1280x720, 720x1280, ")]
#[case::size_as_number(r#""size":720"#, "size", "not a number (720)")]
#[case::size_in_capitals(r#""size":"1280X720""#, "size", "")]
#[case::empty_size(r#""size":"""#, "size", "")]
#[case::resolution(r#""resolution":"720""#, "resolution", "one of 480p, 720p, 1080p, not")]
#[case::ratio(r#""aspect_ratio":"21:9""#, "aspect_ratio", "one of 16:9, 9:16, 1:1, ")]
#[case::ratio_beside_a_size(r#""size":"720x720","aspect_ratio":"auto""#, "aspect_ratio", "")]
#[case::resolution_beside_a_size(r#""size":"720x720","resolution":1"#, "resolution", "")]
#[case::audio(r#""generate_audio":1"#, "generate_audio", "true or false")]
#[case::audio_in_capitals(r#""generate_audio":"False""#, "generate_audio", "")]
#[case::open_address(r#""image_url":"http://a.example/""#, "image_url", "https://")]
#[case::address_as_object(r#""image_url":{"url":"https://a.example/"}"#, "image_url", "")]
#[case::empty_address(r#""image_url":"""#, "image_url", "")]
#[case::reference_as_text(
    r#""input_reference":"https://a.example/""#,
    "input_reference",
    "an object {\"image_url\": \"...\"}, or a file in a form, not a string"
)]
#[case::reference_of_nothing(r#""input_reference":{}"#, "input_reference", "")]
#[case::reference_of_null(r#""input_reference":{"image_url":null}"#, "input_reference", "")]
#[case::reference_to_a_file(r#""input_reference":{"file_id":"f"}"#, "input_reference", "")]
#[case::reference_and_more(
    r#""input_reference":{"image_url":"https://a.example/","file_id":"f"}"#,
    "input_reference",
    ""
)]
#[case::open_reference(
    r#""input_reference":{"image_url":"http://a.example/"}"#,
    "input_reference.image_url",
    "https://"
)]
#[case::both(
    r#""input_reference":{"image_url":"https://a.example/"},"image_url":"https://a.example/""#,
    "image_url",
    "left out where 'input_reference' is given"
)]
fn the_field_at_fault_is_named(#[case] members: &str, #[case] param: &str, #[case] says: &str) {
    let fault = parse_request(&call(members), None).expect_err("wrong");
    assert_eq!((fault.code, fault.param.as_deref()), ("invalid_value", Some(param)));
    assert!(fault.message.contains(says), "{fault}");
}

#[test]
fn a_file_and_an_address_are_one_frame_too_many() {
    for members in
        [r#""image_url":"https://a.example/""#, r#""input_reference":{"image_url":"https://a/"}"#]
    {
        let fault = parse_request(&call(members), Some(&file())).expect_err("two frames");
        assert_eq!((fault.code, fault.param.as_deref()), ("invalid_value", Some("image_url")));
    }
    let null = r#""image_url":null,"input_reference":null"#;
    assert!(parse_request(&call(null), Some(&file())).is_ok());
}

#[rstest]
#[case::none(r#"{"model":"m"}"#, "missing_required_parameter")]
#[case::null(r#"{"prompt":null}"#, "missing_required_parameter")]
#[case::empty(r#"{"prompt":""}"#, "invalid_value")]
#[case::list(r#"{"prompt":["a"]}"#, "invalid_value")]
fn a_prompt_is_required(#[case] body: &'static str, #[case] code: &str) {
    let fault = parse_request(&document(body), None).expect_err("wrong");
    assert_eq!((fault.code, fault.param.as_deref()), (code, Some("prompt")));
    assert!(fault.message.contains("1 to 32000 characters"), "{fault}");
}

#[rstest]
#[case::letters("a")]
#[case::pairs("😀")]
#[case::escaped_pairs(r"\ud83d\ude00")]
fn a_prompt_is_as_long_as_may_be(#[case] character: &str) {
    let of = |n| document(format!(r#"{{"prompt":"{}"}}"#, character.repeat(n)));
    assert!(parse_request(&of(32_000), None).is_ok());
    let fault = parse_request(&of(32_001), None).expect_err("too long");
    assert_eq!((fault.code, fault.param.as_deref()), ("invalid_value", Some("prompt")));
    assert!(fault.message.ends_with("not of 32001"), "{fault}");
}

#[rstest]
#[case::foreign("n", "1")]
#[case::vendors_own("duration", "4")]
#[case::image("image", "{}")]
#[case::capitals("Seconds", "4")]
fn unknown_fields_are_refused_before_all(#[case] name: &str, #[case] value: &str) {
    let body = format!(r#"{{"seconds":99,"{name}":{value}}}"#);
    let fault = parse_request(&document(body), None).expect_err("unknown");
    assert_eq!((fault.code, fault.param.as_deref()), ("unknown_parameter", Some(name)));
    let all = "the fields are model, prompt, seconds, size, resolution, aspect_ratio, \
        input_reference, image_url, generate_audio";
    assert!(fault.message.ends_with(all), "{fault}");
}

#[test]
fn unknown_fields_that_are_null_are_absent_and_long_ones_are_cut() {
    assert!(parse_request(&call(r#""user":null"#), None).is_ok());
    let fault =
        parse_request(&call(&format!(r#""{}":1"#, "ä".repeat(9_000))), None).expect_err("unknown");
    assert_eq!(fault.param.map(|param| param.chars().count()), Some(NAME_CHARS_MAX));
}

#[test]
fn a_resolution_that_is_not_sold_is_blamed_on_the_field_that_says_it() {
    let sold = [VideoResolution::P480, VideoResolution::P720];
    for (members, param) in
        [(r#""size":"1920x1080""#, "size"), (r#""resolution":"1080p""#, "resolution")]
    {
        let fault =
            parse_request(&call(members), None).expect("sound").unsupported_resolution("v", &sold);
        assert_eq!((fault.code, fault.param.as_deref()), ("invalid_value", Some(param)));
        let expected =
            format!("'{param}' must be of a resolution that 'v' makes (480p, 720p), not of 1080p");
        assert_eq!(fault.message, expected);
    }
}

#[test]
fn what_was_asked_for_holds_no_copy_of_the_call() {
    let members = format!(r#""image_url":"data:image/png;base64,{}""#, "A".repeat(100_000));
    let request = parse_request(&call(&members), None).expect("sound");
    assert!(format!("{request:?}").len() < 200);
}

fn sent(document: &JsonDocument, file: Option<&SourceImage>) -> String {
    let request = parse_request(document, file).expect("sound");
    String::from_utf8(build_body(document, &request, file).to_vec()).expect("a text")
}

#[test]
fn a_body_keeps_what_the_client_wrote() {
    let given = document(
        r#"{"generate_audio":false,"image_url":"https:\/\/a.example\/\u0061","seconds":"8","prompt":"a \"\u00e9\" \/","model":"\u006d","size":"480x854"}"#,
    );
    let expected = r#"{"model":"\u006d","prompt":"a \"\u00e9\" \/","duration":8,"aspect_ratio":"9:16","resolution":"480p","image":{"url":"https:\/\/a.example\/\u0061"},"generate_audio":false}"#;
    assert_eq!(sent(&given, None), expected);
    let given = call(r#""input_reference":{"image_url":"data:image/png;base64,iVBORw0KGgo="}"#);
    let expected = r#"{"model":"m","prompt":"p","duration":4,"resolution":"720p","image":{"url":"data:image/png;base64,iVBORw0KGgo="}}"#;
    assert_eq!(sent(&given, None), expected);
    let expected = r#"{"model":"m","prompt":"p","duration":4,"resolution":"720p","image":{"url":"data:image/png;base64,iVBORw0KGgoA/w=="}}"#;
    assert_eq!(sent(&call(""), Some(&file())), expected);
    let expected =
        r#"{"model":"m","prompt":"p","duration":4,"aspect_ratio":"16:9","resolution":"720p"}"#;
    assert_eq!(sent(&call(""), None), expected);
}

/// Generates the members of a call, most of them valid.
fn members() -> impl Strategy<Value = Map<String, Json>> {
    let maybe = |name: &'static str, value: BoxedStrategy<Json>| {
        proptest::option::of(value).prop_map(move |value| value.map(|value| (name, value)))
    };
    let text = |pattern: &'static str| pattern.prop_map(Json::from).boxed();
    let seconds = prop_oneof![
        (0..17u64).prop_map(Json::from),
        (0..17u64).prop_map(|seconds| Json::from(seconds.to_string())),
        Just(Json::Null),
    ];
    let audio = prop_oneof![any::<bool>().prop_map(Json::from), text("true|false")];
    let address = text("https://[a-z]{1,5}/.{0,3}|data:image/[a-z]{1,4};base64,[A-Z]{4}|.{0,9}");
    let reference = address.clone().prop_map(|address| json!({ "image_url": address }));
    let (audio, seconds) = (audio.boxed(), seconds.boxed());
    let optional = (
        maybe("seconds", seconds),
        maybe("size", text("1280x720|480x854|1080x1080|854x480")),
        maybe("resolution", text("480p|720p|1080p")),
        maybe("aspect_ratio", text("16:9|9:16|1:1|4:3|3:4|3:2|2:3")),
        maybe("generate_audio", audio),
        prop_oneof![
            3 => Just(None),
            1 => maybe("image_url", address),
            1 => maybe("input_reference", reference.boxed()),
        ],
    );
    (".{1,9}", optional).prop_map(|(prompt, (a, b, c, d, e, f))| {
        let optional = [a, b, c, d, e, f].into_iter().flatten();
        let all = [("model", Json::from("m")), ("prompt", Json::from(prompt))];
        all.into_iter().chain(optional).map(|(name, value)| (name.to_owned(), value)).collect()
    })
}

fn value(name: &str) -> impl Fn(&Map<String, Json>) -> Json {
    move |members| members.get(name).cloned().unwrap_or_default()
}

proptest! {
    #[test]
    fn a_vendor_is_told_what_is_paid_for(
        members in members(),
        content in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
    ) {
        let given = document(Json::from(members.clone()).to_string());
        let file = content.as_ref().map(|content| SourceImage {
            media_type: "image/webp".to_owned(),
            content: content.chunks(7).map(Bytes::copy_from_slice).collect(),
            length: content.len(),
        });
        let Ok(request) = parse_request(&given, file.as_ref()) else { return Ok(()) };
        let body = build_body(&given, &request, file.as_ref());
        prop_assert!(JsonDocument::parse(body.clone()).is_ok());
        let body: Map<String, Json> = serde_json::from_slice(&body).expect("JSON");

        let field_value = |member: &str| value(member)(&members);
        let mut expected = json!({
            "model": "m", "prompt": field_value("prompt"), "duration": request.seconds,
            "resolution": request.resolution.name(),
        });
        if let Some(ratio) = request.aspect_ratio {
            expected["aspect_ratio"] = ratio.into();
        }
        let address = match (&content, field_value("input_reference")) {
            (Some(content), _) => {
                Json::from(format!("data:image/webp;base64,{}", STANDARD.encode(content)))
            }
            (None, Json::Null) => field_value("image_url"),
            (None, reference) => reference["image_url"].clone(),
        };
        if !address.is_null() {
            expected["image"] = json!({ "url": address });
        }
        if matches!(field_value("generate_audio").to_string().trim_matches('"'), "false") {
            expected["generate_audio"] = false.into();
        }
        prop_assert_eq!(Json::from(body), expected);

        let seconds = field_value("seconds").to_string();
        let seconds = seconds.trim_matches('"').parse().unwrap_or(4);
        prop_assert_eq!(request.seconds, seconds);
        let short = request.size.split('x').map(|side| side.parse::<u64>().expect("a side")).min();
        let lines = request.resolution.name().trim_end_matches('p').parse().ok();
        prop_assert_eq!(short, lines);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        let lossy = Json::from(String::from_utf8_lossy(&bytes));
        if let Ok(document) = JsonDocument::parse(Bytes::from(bytes)) {
            let _ =
                parse_request(&document, None).map(|request| build_body(&document, &request, None));
        }
        for field in ["image_url", "seconds", "size", "generate_audio"] {
            let _ = parse_request(&call(&format!("\"{field}\":{lossy}")), None);
        }
    }
}
