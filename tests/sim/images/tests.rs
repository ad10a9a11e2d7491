//! What is made, and what is refused.

use serde_json::{Value, json};

use super::super::asked::{Target, judge};
use super::super::endpoint::Endpoint;
use super::super::record::Record;
use super::super::said::Words;
use super::*;

const GENERATE_B: Target = Target { vendor: Vendor::B, endpoint: Endpoint::Generations };
const GENERATE_D: Target = Target { vendor: Vendor::D, endpoint: Endpoint::Generations };
const EDIT_B: Target = Target { vendor: Vendor::B, endpoint: Endpoint::Edits };
const EDIT_D: Target = Target { vendor: Vendor::D, endpoint: Endpoint::Edits };

fn call(model: &str) -> Value {
    json!({"model": model, "prompt": "A red dot."})
}

/// An edit of a form with these parts: a name, what follows it in the header, and the content.
fn edit(parts: &[(&str, &str, &str)]) -> Asked {
    let part = |(name, more, content): &(&str, &str, &str)| {
        let head = format!("content-disposition: form-data; name=\"{name}\"{more}");
        format!("--xyz\r\n{head}\r\n\r\n{content}\r\n")
    };
    let body: String = parts.iter().map(part).collect();
    let mut asked = Asked::for_test(EDIT_B, "", &Value::Null);
    "multipart/form-data; boundary=xyz".clone_into(&mut asked.content_type);
    asked.body = (body + "--xyz--\r\n").into();
    asked
}

const PNG: &str = "; filename=\"a.png\"\r\ncontent-type: image/png";
const MODEL: (&str, &str, &str) = ("model", "", "lmb-image-1.5");
const PROMPT: (&str, &str, &str) = ("prompt", "", "Redder.");

#[test]
fn a_picture_has_the_length_asked_for() {
    assert_eq!(picture(0), DOT);
    assert_eq!(picture(80).len(), 69);
    for length in [81, 82, 5000] {
        let picture = picture(length);
        assert_eq!(picture.len(), length);
        assert!(picture.starts_with(&DOT[..57]) && picture.ends_with(&DOT[57..]));
    }
}

#[test]
fn generations_of_vendor_b_are_checked() {
    judge(
        GENERATE_B,
        &call("lmb-image-1"),
        &[
            (json!({}), ""),
            (json!({"size": "1024x1536", "quality": "low", "n": 10, "stream": false}), ""),
            (json!({"model": null}), "Missing required parameter: 'model'."),
            (json!({"model": "lmb-5.5"}), "Invalid value: 'lmb-5.5'"),
            (json!({"prompt": ""}), "empty string"),
            (json!({"size": "512x512"}), "Invalid value: '512x512'"),
            (json!({"model": "lmb-image-2", "size": "3840x2160"}), ""),
            (json!({"model": "lmb-image-2", "size": "3840x3840"}), "Invalid value: '3840x3840'"),
            (json!({"n": 0}), "below minimum value"),
            (json!({"n": "1"}), "expected an integer"),
            (json!({"response_format": "b64_json"}), "Unknown parameter: 'response_format'."),
            (json!({"input_fidelity": "low"}), "Unknown parameter: 'input_fidelity'."),
            (json!({"stream": true}), "must be verified to stream"),
        ],
    );
    let mut asked = Asked::for_test(GENERATE_B, "", &call("lmb-image-1"));
    asked.content_type = "text/plain".to_owned();
    assert_eq!(
        asked.reply().err().and_then(|refusal| refusal.code),
        Some("unsupported_content_type")
    );
}

#[test]
fn vendor_b_counts_tokens() {
    for (faults, input, output) in [("", 3, 1056), ("prompt=9;completion=70", 9, 70)] {
        let asked = Asked::for_test(GENERATE_B, faults, &call("lmb-image-2"));
        let (reply, billed) = asked.reply().expect("an image");
        let billed = billed.expect("a bill");
        assert_eq!((billed.prompt, billed.completion, billed.images), (input, output, 1));
        assert_eq!(reply["created"], asked.created);
        let told = json!({"input_tokens": input, "output_tokens": output,
            "total_tokens": input + output,
            "input_tokens_details": {"text_tokens": input, "image_tokens": 0},
            "output_tokens_details": {"text_tokens": 0, "image_tokens": output}});
        assert_eq!(reply["usage"], told);
    }
    let asked = Asked::for_test(GENERATE_B, "image-bytes=100;no-usage", &call("lmb-image-2"));
    let (reply, _) = asked.reply().expect("an image");
    assert!(reply.get("usage").is_none());
    let text = reply["data"][0]["b64_json"].as_str().expect("an image");
    assert_eq!(STANDARD.decode(text).ok(), Some(picture(100)));
    let asked = Asked::for_test(GENERATE_B, "no-image", &call("lmb-image-2"));
    assert_eq!(asked.reply().expect("no image").0["data"], json!([{}]));
    let asked = Asked::for_test(GENERATE_B, "moderated", &call("lmb-image-2"));
    assert_eq!(asked.reply().err().and_then(|refusal| refusal.code), Some("moderation_blocked"));
}

#[test]
fn edits_of_vendor_b_come_as_a_form() {
    let image = ("image", PNG, "dot");
    for (parts, expected) in [
        (vec![MODEL, PROMPT, image, ("n", "", "2"), ("size", "", "auto")], ""),
        (vec![MODEL, PROMPT, ("image[]", PNG, "dot"), ("image[]", PNG, "dot")], ""),
        (vec![MODEL, PROMPT, image, ("mask", PNG, "dot")], ""),
        (vec![MODEL, PROMPT], "Missing required parameter: 'image'."),
        (vec![MODEL, image], "Missing required parameter: 'prompt'."),
        (vec![PROMPT, image], "Missing required parameter: 'model'."),
        (vec![MODEL, PROMPT, image, image], "Duplicate parameter: 'image'"),
        (vec![MODEL, MODEL, PROMPT, image], "Duplicate parameter: 'model'"),
        (vec![MODEL, PROMPT, ("image", "", "dot")], "expected a file"),
        (vec![MODEL, PROMPT, ("image", "; filename=a", "dot")], "unsupported mimetype"),
        (vec![MODEL, PROMPT, ("image", PNG, "")], "the file is empty"),
        (vec![MODEL, ("prompt", PNG, "dot"), image], "expected a string, but got a file"),
        (vec![MODEL, PROMPT, image, ("markup", PNG, "dot")], "Unknown parameter: 'markup'."),
        (vec![MODEL, PROMPT, image, ("style", "", "vivid")], "Unknown parameter: 'style'."),
        (vec![MODEL, PROMPT, image, ("n", "", "eleven")], "expected an integer"),
    ] {
        let said = edit(&parts).reply().err().and_then(|refusal| refusal.message);
        let said = said.unwrap_or_default();
        let fits = if expected.is_empty() { said.is_empty() } else { said.contains(expected) };
        assert!(fits, "{parts:?} is answered with {said:?}");
    }
    let asked = Asked::for_test(EDIT_B, "", &call("lmb-image-1"));
    assert_eq!(asked.reply().err().map(|refusal| refusal.status), Some(400));
}

#[test]
fn files_are_remembered() {
    const SHA256: &str = "e392dad8b08599f74d4819cd291feef81ab4389e0a6fae2b1286f99411b0c7ca";
    let asked = edit(&[MODEL, PROMPT, ("image", PNG, "dot")]);
    let said = asked.say(&Record::default()).expect("an image");
    let file = SentFile {
        part: "image".to_owned(),
        name: Some("a.png".to_owned()),
        content_type: "image/png".to_owned(),
        len: 3,
        sha256: SHA256.to_owned(),
    };
    assert_eq!(said.form.files, std::slice::from_ref(&file));
    assert_eq!(said.form.fields[0], ("model".to_owned(), "lmb-image-1.5".to_owned()));
    let billed = said.billed.expect("a bill");
    assert_eq!((billed.prompt, billed.prompt_images), (2 + 256, 256));
    let mut body = call("lmd-imagine-image");
    body["image"] = json!({"url": format!("data:image/png;base64,{}", STANDARD.encode("dot"))});
    let said = Asked::for_test(EDIT_D, "", &body).say(&Record::default()).expect("an image");
    assert_eq!(said.form.files, [SentFile { name: None, ..file }]);
    assert_eq!(said.billed.map(|billed| billed.ticks), Some(220_000_000));
}

#[test]
fn images_of_vendor_d_are_checked() {
    judge(
        GENERATE_D,
        &call("lmd-imagine-image"),
        &[
            (json!({}), ""),
            (json!({"response_format": "b64_json", "aspect_ratio": "16:9", "n": 2}), ""),
            (json!({"size": "1024x1024"}), "Argument not supported: size"),
            (json!({"image": {"url": "https://a.test/b.png"}}), "Argument not supported: image"),
            (json!({"model": "lmd-4.6"}), "does not exist"),
            (json!({"prompt": null}), "'prompt'"),
            (json!({"n": 11}), "above maximum value"),
            (json!({"response_format": "png"}), "Invalid value: 'png'"),
        ],
    );
    let mut edit = call("lmd-imagine-image");
    edit["image"] = json!({"url": "data:image/png;base64,ZG90"});
    judge(
        EDIT_D,
        &edit,
        &[
            (json!({}), ""),
            (json!({"image": {"url": "https://a.test/b.png"}}), ""),
            (json!({"image": null}), "Missing required field: image"),
            (json!({"image": null, "images": [{"url": "https://a.test/b.png"}]}), ""),
            (json!({"image": {"url": "ZG90"}}), "Invalid image url"),
            (json!({"image": {"url": "data:image/png;base64,?"}}), "Invalid data URI"),
            (json!({"image": {"url": "data:image/gif;base64,ZG90"}}), "unsupported content-type"),
            (json!({"size": "auto"}), "Argument not supported: size"),
        ],
    );
    let mut asked = Asked::for_test(EDIT_D, "", &edit);
    asked.content_type = "multipart/form-data; boundary=x".to_owned();
    assert_eq!(asked.reply().err().map(|refusal| refusal.status), Some(415));
}

#[test]
fn vendor_d_tells_a_price() {
    let mut body = call("lmd-imagine-image-2.0");
    let (reply, _) = Asked::for_test(GENERATE_D, "", &body).reply().expect("an image");
    assert!(reply["data"][0]["url"].is_string() && reply.get("created").is_none());
    body["response_format"] = json!("b64_json");
    for (faults, data, usage) in [
        ("", STANDARD.encode(DOT), json!({"cost_in_usd_ticks": 600_000_000})),
        ("ticks=5", STANDARD.encode(DOT), json!({"cost_in_usd_ticks": 5})),
        ("no-usage;image-bytes=90", STANDARD.encode(picture(90)), Value::Null),
        ("moderated", String::new(), json!({"cost_in_usd_ticks": 600_000_000})),
    ] {
        let asked = Asked::for_test(GENERATE_D, faults, &body);
        let said = asked.say(&Record::default()).expect("an image");
        let Words::Whole(text) = &said.words else { panic!("no JSON") };
        let reply: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(reply["data"][0]["b64_json"], data, "{faults}");
        assert_eq!(reply["usage"], usage, "{faults}");
        let respected = reply["data"][0].get("respect_moderation");
        assert_eq!(respected, (faults == "moderated").then_some(&json!(false)), "{faults}");
    }
}
