//! Chat requests become messages requests, or are refused.

use bytes::Bytes;
use serde_json::Value as Json;
use tollgate::catalogue::Model;
use tollgate::dialect::Endpoint;
use tollgate::dialect::json::{JsonDocument, JsonPatch, JsonValue};
use tollgate::dialect::translate::request::{Translation, TranslationContext};

use super::checker::check;
use super::golden::{Golden, goldens, judge, model};

/// The account whose name salts what clients call their users.
pub(super) const ACCOUNT: &str = "acct-7";

/// What became of a chat request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// The body, and the fields that are not carried.
    Body(Vec<u8>, Vec<String>),
    /// The code and the field.
    Refused(String, String),
}

/// Takes a chat body the way that the gateway takes it: rules, then translation.
pub(super) fn translate(model: &Model, body: Bytes) -> Outcome {
    translate_with(model, body, |_| {})
}

/// The same, with something done to the translation before it is written.
pub(super) fn translate_with(
    model: &Model,
    body: Bytes,
    between: impl FnOnce(&mut Translation),
) -> Outcome {
    let document = JsonDocument::parse(body).expect("a sound body");
    let screen = model.vendor.field_policy(Endpoint::Chat).expect("rules for chat");
    if let Some(refused) = screen.find_refusal(&document, &model.price) {
        return Outcome::Refused("unsupported_parameter".to_owned(), refused.path);
    }
    let mut draft = JsonPatch::new(&document);
    model.rewrite(Endpoint::Chat, &mut draft);
    let manner = TranslationContext {
        model: &model.id,
        account: ACCOUNT,
        json_schema: model.supports_json_schema,
    };
    let mut translation = match Translation::parse_chat(&document, &draft, manner) {
        Ok(translation) => translation,
        Err(fault) => {
            assert!(!fault.message.is_empty(), "a refusal says why");
            return Outcome::Refused(fault.code.to_owned(), fault.param.unwrap_or_default());
        }
    };
    between(&mut translation);
    let translated = translation.build_call();
    Outcome::Body(translated.body_with_model(&model.id).concat(), translated.dropped_fields.clone())
}

#[test]
fn every_golden_request_becomes_what_is_expected() {
    judge(&goldens("chat_to_messages", 210), |golden| {
        let model = model(&golden.text("model"));
        let given = golden.bytes("given").expect("a body");
        match translate(model, given) {
            Outcome::Refused(code, param) => refused_rightly(golden, &code, &param),
            Outcome::Body(body, dropped) => {
                check(&body).map_err(|why| format!("{why}: {}", String::from_utf8_lossy(&body)))?;
                let body = without_model(&body, &model.id)?;
                made_rightly(golden, &body)?;
                let expected = golden.json("dropped");
                if expected == Json::from(dropped.clone()) {
                    Ok(())
                } else {
                    Err(format!("dropped are {dropped:?} instead of {expected}"))
                }
            }
        }
    });
}

/// The body without the model in front, where it has to stand.
fn without_model(body: &[u8], model: &str) -> Result<String, String> {
    let body = String::from_utf8(body.to_vec()).map_err(|e| e.to_string())?;
    let front = format!(r#"{{"model":"{model}","#);
    let rest = body.strip_prefix(&front).ok_or_else(|| format!("no model in front: {body}"))?;
    Ok(format!("{{{rest}"))
}

fn refused_rightly(golden: &Golden, code: &str, param: &str) -> Result<(), String> {
    let expected = golden.json("refused");
    let text = |name: &str| expected.get(name).and_then(Json::as_str);
    let right = expected.is_object()
        && text("code").is_none_or(|c| c == code)
        && text("param").is_none_or(|p| p == param)
        && text("param_within").is_none_or(|p| param.starts_with(p));
    if right {
        return Ok(());
    }
    Err(format!("refused with {code} at '{param}' instead of {expected}"))
}

fn made_rightly(golden: &Golden, body: &str) -> Result<(), String> {
    if let Some(expected) = golden.bytes("expect_text") {
        return same_members(
            JsonValue::from_validated(&expected),
            JsonValue::from_validated(body.as_bytes()),
        );
    }
    let made: Json = serde_json::from_str(body).map_err(|e| format!("{e}: {body}"))?;
    let expected = golden.json("expect");
    if made == expected { Ok(()) } else { Err(format!("\n  is {made}\n  not {expected}")) }
}

/// Byte for byte; only the order of the outermost members is free.
pub(super) fn same_members(expected: JsonValue<'_>, made: JsonValue<'_>) -> Result<(), String> {
    let read = |value: JsonValue<'_>| {
        let text = |v: JsonValue<'_>| String::from_utf8_lossy(v.raw()).into_owned();
        let mut members: Vec<_> = value.members().map(|(n, v)| (n.into_owned(), text(v))).collect();
        members.sort();
        members
    };
    let (expected, made) = (read(expected), read(made));
    if made == expected { Ok(()) } else { Err(format!("\n  is {made:?}\n  not {expected:?}")) }
}

#[test]
fn another_account_gives_a_user_another_name() {
    let body =
        br#"{"model":"m","max_tokens":1,"user":"u","messages":[{"role":"user","content":"x"}]}"#;
    let document = JsonDocument::parse(Bytes::from_static(body)).expect("sound");
    let of = |account| {
        let manner = TranslationContext { model: "m", account, json_schema: true };
        let read = Translation::parse_chat(&document, &JsonPatch::new(&document), manner)
            .expect("no fault");
        let made: Json =
            serde_json::from_slice(&read.build_call().body_with_model("m").concat()).expect("JSON");
        made["metadata"]["user_id"].as_str().expect("a user").to_owned()
    };
    assert_ne!(of("a"), of("b"));
    assert_eq!(of("a"), of("a"));
}

#[test]
fn the_model_is_named_as_the_route_names_it() {
    let body = br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#;
    let document = JsonDocument::parse(Bytes::from_static(body)).expect("sound");
    let manner = TranslationContext { model: "m", account: ACCOUNT, json_schema: true };
    let read =
        Translation::parse_chat(&document, &JsonPatch::new(&document), manner).expect("no fault");
    let translated = read.build_call();
    for name in ["first-route", "second/route"] {
        let made: Json =
            serde_json::from_slice(&translated.body_with_model(name).concat()).expect("JSON");
        assert_eq!(made["model"], name);
    }
}
