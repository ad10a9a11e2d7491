//! Whatever a vendor sends for embeddings, the client gets vectors of the same numbers and a sound
//! usage, or is told that there are none; and what calls for embeddings, speech and moderations
//! hold is counted as another parser counts it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use serde_json::Value as Serde;
use tollgate::dialect::embeddings::{self, EmbeddingInputs};
use tollgate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use tollgate::dialect::{moderations, speech};

/// What one reply may report: none absurd.
const TOKENS_MAX: u64 = 1_000_000_000;

pub(crate) fn run(data: &[u8]) {
    if data.starts_with(b"{") {
        check_replies(Bytes::copy_from_slice(data));
        check_requests(Bytes::copy_from_slice(data));
    } else {
        // So that vectors and inputs need not be found byte by byte.
        let vector = [br#"{"usage":null,"data":[{"index":0,"embedding":"#, data, b"}]}"].concat();
        check_replies(Bytes::from(vector));
        let input = [br#"{"voice":"v","input":"#, data, b"}"].concat();
        check_requests(Bytes::from(input));
    }
}

fn check_replies(body: Bytes) {
    let Ok(document) = JsonDocument::parse_from_vendor(body) else { return };
    let inputs = EmbeddingInputs { base64: false, tokens: 7, tokens_max: 7 };
    let plain = check_reply(&document, inputs);
    let packed = check_reply(&document, EmbeddingInputs { base64: true, ..inputs });
    assert!(plain || !packed, "vectors only once they are packed");
}

/// Checks a reply; tells whether it has embeddings.
fn check_reply(sent: &JsonDocument, inputs: EmbeddingInputs) -> bool {
    let whole = embeddings::convert_reply(sent.body(), inputs);
    assert_eq!(convert_in_pieces(sent.body(), inputs), whole);
    let Ok(embeddings::EmbeddingsReply { body, tokens }) = whole else { return false };
    let converted = JsonDocument::parse_from_vendor(body.clone())
        .unwrap_or_else(|fault| panic!("{fault}: {}", String::from_utf8_lossy(&body)));
    for (name, value) in sent.members() {
        let found = converted.get(&name).expect("a member that the vendor sent");
        assert!(value == found || matches!(&*name, "data" | "usage"));
    }
    let usage = converted.get("usage").expect("a usage");
    let reported = usage.get("prompt_tokens").and_then(JsonValue::integer);
    assert_eq!(reported, Some(tokens.unwrap_or(inputs.tokens)));
    assert!(reported <= Some(TOKENS_MAX));
    let prompt_tokens = sent.get("usage").and_then(|usage| usage.get("prompt_tokens"));
    let is_told = tokens.is_some() && prompt_tokens.is_some_and(|tokens| !tokens.is_null());
    if is_told {
        assert_eq!(sent.get("usage"), Some(usage));
    }
    let (before, after) = (entries(sent), entries(&converted));
    assert!(!before.is_empty() && before.len() == after.len());
    for (before, after) in before.into_iter().zip(after) {
        assert_eq!(before.members().count(), after.members().count());
        for ((name, old), (same_name, new)) in before.members().zip(after.members()) {
            assert_eq!(name, same_name);
            if inputs.base64 && name == "embedding" && old.kind() == JsonKind::Array {
                check_packed(old, new);
            } else {
                assert_eq!(old, new);
            }
        }
        assert!(after.get("embedding").is_some());
    }
    if is_told && !inputs.base64 {
        assert_eq!(body, sent.body());
    }
    true
}

/// The same of a reply that comes byte by byte.
fn convert_in_pieces(
    body: &[u8],
    inputs: EmbeddingInputs,
) -> Result<embeddings::EmbeddingsReply, embeddings::EmbeddingsReplyError> {
    let (mut reader, mut out) = (embeddings::EmbeddingsReader::new(inputs), BytesMut::new());
    body.chunks(1).try_for_each(|piece| reader.push(piece, &mut out))?;
    let tokens = reader.finish(&mut out)?;
    Ok(embeddings::EmbeddingsReply { body: out.freeze(), tokens })
}

fn entries(document: &JsonDocument) -> Vec<JsonValue<'_>> {
    document.get("data").into_iter().flat_map(JsonValue::elements).collect()
}

/// The numbers of a list are those of a text in base64, as near as an `f32` comes.
fn check_packed(list: JsonValue<'_>, text: JsonValue<'_>) {
    let bytes = STANDARD.decode(&*text.text().expect("a text")).expect("base64");
    let (found, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty() && !found.is_empty());
    assert_eq!(list.elements().count(), found.len());
    for (number, found) in list.elements().zip(found) {
        let found = f64::from(f32::from_le_bytes(*found));
        let written = std::str::from_utf8(number.raw()).expect("text");
        let expected: f64 = written.parse().expect("a number");
        let error = (found - expected).abs();
        let least = f64::from(f32::from_bits(1));
        assert!(error <= expected.abs() * f64::from(f32::EPSILON) / 2.0 + least, "{written}");
        assert_eq!(found.is_sign_negative(), written.starts_with('-'));
    }
}

fn check_requests(body: Bytes) {
    let Ok(document) = &JsonDocument::parse(body) else { return };
    let serde: Serde = serde_json::from_slice(document.body()).expect("what our scan takes");
    let input = &serde["input"];
    let texts = |list: &Vec<Serde>| list.iter().map(count_tokens).sum();
    if let Ok(EmbeddingInputs { base64, tokens, tokens_max }) = embeddings::parse_request(document)
    {
        let expected: u64 = input.as_array().map_or_else(|| count_tokens(input), texts);
        assert_eq!(tokens, expected);
        assert!((1..=tokens_max).contains(&tokens));
        assert_eq!(base64, serde["encoding_format"] == "base64");
    }
    if let Ok(characters) = speech::count_characters(document) {
        let text = input.as_str().expect("a text");
        assert_eq!(characters, text.chars().count() as u64);
        assert!((1..=4096).contains(&characters));
    }
    let is_accepted = input.is_string() || input.as_array().is_some_and(|list| !list.is_empty());
    assert_eq!(moderations::check_request(document).is_ok(), is_accepted);
    assert_eq!(moderations::is_moderation_result(document), serde["results"].is_array());
}

/// The tokens of one input, or of one token.
fn count_tokens(input: &Serde) -> u64 {
    match input {
        Serde::String(text) => text.chars().count().div_ceil(4).max(1) as u64,
        Serde::Array(tokens) => tokens.len() as u64,
        token => u64::from(token.is_u64()),
    }
}
