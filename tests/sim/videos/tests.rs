//! What is taken, what becomes of it, and what is told and billed.

use serde_json::{Value, json};

use super::super::asked::{Target, judge};
use super::super::vendor::Vendor;
use super::*;

const SUBMIT: Target = Target { vendor: Vendor::D, endpoint: Endpoint::Submit };
const POLL: Target = Target { vendor: Vendor::D, endpoint: Endpoint::Poll };
const FILE: Target = Target { vendor: Vendor::D, endpoint: Endpoint::File };
const DOT: &str = "data:image/png;base64,ZG90";

fn call() -> Value {
    json!({"model": "lmd-imagine-video-1.5", "prompt": "A cat.", "duration": 4})
}

/// Orders a video with faults, and gives what is billed, and its id.
fn ordered(record: &Record, faults: &str, body: &Value) -> (Option<u64>, String) {
    let said = Asked::for_test(SUBMIT, faults, body).say(record).expect("an order");
    let Words::Whole(text) = said.words else { panic!("no JSON") };
    let reply: Value = serde_json::from_str(&text).expect("JSON");
    let id = reply["request_id"].as_str().expect("an id").to_owned();
    (said.billed.map(|billed| billed.ticks), id)
}

/// The status and the body that are said of a video; a refusal's message stands for its body.
fn told(record: &Record, faults: &str, id: &str) -> (u16, Value) {
    let mut asked = Asked::for_test(POLL, faults, &Value::Null);
    id.clone_into(&mut asked.place.job);
    record.videos.count(Endpoint::Poll, id);
    match asked.say(record) {
        Ok(Said { status, words: Words::Whole(text), .. }) if text.is_empty() => {
            (status, Value::Null)
        }
        Ok(Said { status, words: Words::Whole(text), .. }) => {
            (status, serde_json::from_str(&text).expect("JSON"))
        }
        Ok(_) => panic!("no JSON"),
        Err(refusal) => (refusal.status, json!(refusal.message)),
    }
}

fn fetched(record: &Record, faults: &str, id: &str) -> Result<Words, Refusal> {
    let mut asked = Asked::for_test(FILE, faults, &Value::Null);
    id.clone_into(&mut asked.place.job);
    asked.say(record).map(|said| said.words)
}

#[test]
fn orders_are_checked() {
    let long = "é".repeat(32_000);
    let image = |url: &str| json!({"image": {"url": url}});
    judge(
        SUBMIT,
        &call(),
        &[
            (json!({}), ""),
            (json!({"model": null}), "'model'"),
            (json!({"model": "lmd-imagine-image"}), "does not exist"),
            (json!({"prompt": null}), "'prompt'"),
            (json!({"prompt": ""}), "empty string"),
            (json!({"prompt": long.clone()}), ""),
            (json!({"prompt": long + "é"}), "maximum length 32000"),
            (json!({"duration": null}), ""),
            (json!({"duration": 15}), ""),
            (json!({"duration": "15"}), ""),
            (json!({"duration": null, "seconds": "1"}), ""),
            (json!({"duration": 0}), "below minimum value"),
            (json!({"duration": 16}), "above maximum value"),
            (json!({"duration": "16"}), "'16' is not from 1 to 15"),
            (json!({"duration": 4.5}), "expected an integer"),
            (json!({"seconds": 4}), "Only one of duration and seconds"),
            (json!({"aspect_ratio": "2:3", "resolution": "1080p"}), ""),
            (json!({"aspect_ratio": "auto"}), "Invalid value: 'auto'"),
            (json!({"resolution": "4k"}), "Invalid value: '4k'"),
            (json!({"model": "lmd-imagine-video", "resolution": "720p"}), ""),
            (
                json!({"model": "lmd-imagine-video", "resolution": "1080p"}),
                "1080p is not supported",
            ),
            (json!({"generate_audio": false}), ""),
            (json!({"generate_audio": "false"}), "expected a boolean"),
            (json!({"size": "1280x720"}), "Argument not supported: size"),
            (json!({"n": 1}), "Argument not supported: n"),
            (image(DOT), ""),
            (image("https://a.test/b.png"), ""),
            (image("data:image/png;base64,?"), "Invalid data URI"),
            (image("data:image/gif;base64,ZG90"), "unsupported content-type"),
            (image("a.png"), "Invalid image url"),
            (json!({"image": {}}), "'image.url'"),
            (json!({"image": {"url": DOT, "type": "image_url"}}), "Unknown parameter"),
            (json!({"image": DOT}), "expected an object"),
        ],
    );
    let mut asked = Asked::for_test(SUBMIT, "", &call());
    asked.content_type = "multipart/form-data; boundary=x".to_owned();
    assert_eq!(asked.reply().err().map(|refusal| refusal.status), Some(415));
}

#[test]
fn the_bill_is_the_list_price_unless_told_otherwise() {
    let record = Record::default();
    for (faults, changes, ticks) in [
        ("", json!({}), 3_200_000_000),
        ("", json!({"duration": null}), 6_400_000_000),
        ("", json!({"resolution": "720p"}), 5_600_000_000),
        ("", json!({"resolution": "1080p", "duration": "15"}), 37_500_000_000),
        ("", json!({"model": "lmd-imagine-video"}), 2_000_000_000),
        ("", json!({"model": "lmd-imagine-video", "resolution": "720p"}), 2_800_000_000),
        ("image-ticks=7", json!({}), 3_200_000_000),
        ("image-ticks=7", json!({"image": {"url": DOT}}), 3_200_000_007),
        ("ticks=5;image-ticks=7", json!({"image": {"url": DOT}}), 5),
        ("ticks=0", json!({}), 0),
        ("poll.ticks=5", json!({}), 3_200_000_000),
    ] {
        let mut body = call();
        for (name, value) in changes.as_object().expect("members") {
            body[name] = value.clone();
        }
        let faults = format!("{faults};video-ms=0");
        let (billed, id) = ordered(&record, &faults, &body);
        assert_eq!(billed, Some(ticks), "{faults} {changes}");
        assert_eq!(told(&record, "", &id).1["usage"]["cost_in_usd_ticks"], ticks, "{faults}");
    }
    let (_, id) = ordered(&record, "video-ms=0", &call());
    let usage = |faults| told(&record, faults, &id).1.get("usage").cloned();
    assert_eq!(usage("ticks=9"), Some(json!({"cost_in_usd_ticks": 9})));
    assert_eq!(usage("bad-usage"), Some(json!({"cost_in_usd_ticks": -7.5})));
    assert_eq!((usage("null-usage"), usage("no-usage")), (Some(Value::Null), None));
}

#[test]
fn every_end_can_be_asked_for_in_the_address_or_in_the_prompt() {
    const GONE: &str = "not found.";
    for (fault, word, outcome, status, told_at, expected) in [
        ("", "", "done", 200, "/video/respect_moderation", json!(true)),
        ("moderated", "[withheld]", "withheld", 200, "/video/respect_moderation", json!(false)),
        ("moderated=output", "[withheld]", "withheld", 200, "/video/url", json!("")),
        ("moderated=late", "[late]", "failed", 200, "/error/code", json!("invalid_argument")),
        ("moderated=denied", "[denied]", "failed", 200, "/error/code", json!("permission_denied")),
        ("fails=internal_error", "[fails]", "failed", 200, "/error/code", json!("internal_error")),
        ("fails=expired", "[expires]", "expired", 200, "/status", json!("expired")),
        ("fails=gone", "[gone]", "gone", 404, "", json!(GONE)),
        ("never", "[never]", "never", 202, "/status", json!("pending")),
    ] {
        for (fault, prompt) in [(fault, "A cat."), ("", &*format!("A {word} cat."))] {
            let record = Record::default();
            let mut body = call();
            body["prompt"] = json!(prompt);
            let (billed, id) = ordered(&record, &format!("{fault};video-ms=0"), &body);
            let [video] = &*record.videos.videos() else { panic!("one video") };
            assert_eq!((&video.id, video.billed, video.outcome), (&id, billed, outcome));
            let free = !matches!(outcome, "done" | "withheld");
            assert_eq!(billed.is_none(), free, "{fault} {prompt}");
            let (code, body) = told(&record, "", &id);
            assert_eq!(code, status, "{fault} {prompt}");
            let fits = match (body.pointer(told_at), &expected) {
                (Some(Value::String(said)), Value::String(part)) => said.ends_with(part),
                (said, expected) => said == Some(expected),
            };
            assert!(fits, "{fault} {prompt} ends with {body}");
            assert_eq!(fetched(&record, "", &id).is_ok(), outcome == "done", "{fault} {prompt}");
        }
    }
}

#[test]
fn more_ends_of_the_address_or_of_the_prompt_alone() {
    let record = Record::default();
    for code in
        ["service_unavailable", "failed_precondition", "invalid_argument", "permission_denied"]
    {
        let (billed, id) = ordered(&record, &format!("fails={code};video-ms=0"), &call());
        let (_, body) = told(&record, "", &id);
        assert_eq!((billed, &body["error"]["code"]), (None, &json!(code)));
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(!message.contains("moderation") && !message.contains("policy"), "{message}");
    }
    let (_, id) = ordered(&record, "fails=silent;video-ms=0", &call());
    assert_eq!(told(&record, "", &id).1, json!({"status": "failed", "progress": 0}));
    let mut body = call();
    body["prompt"] = json!("[lost-file]");
    let (billed, id) = ordered(&record, "video-ms=0", &body);
    assert!(billed.is_some() && told(&record, "", &id).1["video"]["url"].is_string());
    assert_eq!(fetched(&record, "", &id).err().map(|refusal| refusal.status), Some(404));
    let videos = record.videos.videos().len();
    for (faults, prompt) in
        [("moderated=prompt", "A cat."), ("", "[blocked]"), ("never", "[blocked]")]
    {
        body["prompt"] = json!(prompt);
        let refusal = Asked::for_test(SUBMIT, faults, &body).say(&record).err();
        let refusal = refusal.expect("a refusal");
        assert_eq!(refusal.status, 400, "{faults} {prompt}");
        assert!(refusal.message.is_some_and(|message| message.contains("moderation")));
    }
    assert_eq!(record.videos.videos().len(), videos);
}

#[test]
fn a_pending_video_tells_how_far_it_is_or_nothing() {
    let record = Record::default();
    let mut body = call();
    body["prompt"] = json!("[slow 3600000]");
    let (_, id) = ordered(&record, "video-ms=0", &body);
    for number in 1..=7 {
        let (status, body) = told(&record, "", &id);
        assert_eq!(status, 202);
        let expected = json!({"status": "pending", "progress": 0});
        assert_eq!(body, if number % 3 == 2 { Value::Null } else { expected }, "{number}");
    }
    assert!(fetched(&record, "", &id).is_err());
}

#[test]
fn a_video_is_known_to_the_key_that_ordered_it() {
    let record = Record::default();
    let mut asked = Asked::for_test(SUBMIT, "video-ms=0", &call());
    asked.place.key = "vk-1".to_owned();
    let (reply, _) = asked.reply().expect("an order");
    assert!(reply["request_id"].is_string());
    asked.say(&record).expect("an order");
    let id = record.videos.videos().remove(0).id;
    assert_eq!(told(&record, "", &id).0, 404);
    assert_eq!(told(&record, "", "").0, 404);
    let mut asked = Asked::for_test(POLL, "", &Value::Null);
    (asked.place.key, asked.place.job) = ("vk-1".to_owned(), id);
    assert_eq!(asked.say(&record).map(|said| said.status), Ok(200));
}

#[test]
fn the_file_can_be_said_to_be_elsewhere() {
    let record = Record::default();
    let (_, id) = ordered(&record, "video-ms=0", &call());
    for (faults, expected) in [
        ("", "http://sim:99/vendor_d/v1/files/ID.mp4"),
        ("file.cut=1", "http://sim:99/vendor_d/file.cut=1/v1/files/ID.mp4"),
        ("url=other-host", "http://localhost:99/vendor_d/url=other-host/v1/files/ID.mp4"),
        ("url=metadata", "http://169.254.169.254/vendor_d/url=metadata/v1/files/ID.mp4"),
        ("url=scheme", "file:///vendor_d/url=scheme/v1/files/ID.mp4"),
        ("url=relative", "/vendor_d/url=relative/v1/files/ID.mp4"),
        ("url=empty", ""),
        ("url-port=7", "http://sim:7/vendor_d/url-port=7/v1/files/ID.mp4"),
    ] {
        let (_, body) = told(&record, faults, &id);
        assert_eq!(body["video"]["url"], expected.replace("ID", &id), "{faults}");
    }
    assert!(told(&record, "url=none", &id).1["video"].get("url").is_none());
    let Ok(Words::Moved(location)) = fetched(&record, "redirect", &id) else { panic!("moved") };
    assert_eq!(location, format!("http://sim:99/vendor_d/v1/files/{id}.mp4"));
}

#[test]
fn a_file_is_as_long_as_its_video() {
    let record = Record::default();
    let (_, id) = ordered(&record, "video-ms=0", &call());
    for (faults, expected) in [("", film(&id, 4)), ("reply-bytes=100", footage(&id, 100))] {
        let Ok(Words::File(media, bytes)) = fetched(&record, faults, &id) else { panic!("a file") };
        assert!(media == "video/mp4" && bytes == expected, "{faults}");
    }
}

#[test]
fn the_image_is_remembered() {
    const SHA256: &str = "e392dad8b08599f74d4819cd291feef81ab4389e0a6fae2b1286f99411b0c7ca";
    let record = Record::default();
    for (url, kept) in [(DOT, SHA256), ("https://a.test/b.png", "https://a.test/b.png")] {
        let mut body = call();
        body["image"] = json!({"url": url});
        let said = Asked::for_test(SUBMIT, "", &body).say(&record).expect("an order");
        assert_eq!(said.form.files.len(), usize::from(url == DOT));
        let video = record.videos.videos().pop().expect("a video");
        assert_eq!(video.image.as_deref(), Some(kept));
    }
    let page = record.videos.page();
    assert_eq!(page["videos"][0]["image"], SHA256);
    assert_eq!((&page["videos"][0]["over"], &page["polls"]), (&json!(false), &json!(0)));
}
