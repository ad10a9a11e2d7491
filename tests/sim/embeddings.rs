//! Embeddings: vectors that follow from the text alone.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::asked::Asked;
use super::faults::Fault;
use super::member::Member;
use super::noise;
use super::record::Billed;
use super::refusal::Refusal;
use super::said::Said;
use super::usage::quoted;
use super::vendor::Vendor;

const FIELDS: &str = "model input dimensions encoding_format user";
const TEXTS_MAX: usize = 2048;
const REQUEST_TOKENS_MAX: u64 = 300_000;
const BROKEN: &str = r#"{"prompt_tokens":-7,"total_tokens":99999999999999999999}"#;

/// A model: the end of its name, its dimensions, whether fewer may be asked for, and the tokens
/// of a text.
struct Model {
    vendor: Vendor,
    name: &'static str,
    dimensions: usize,
    fewer: bool,
    tokens_max: u64,
}

const fn model(
    vendor: Vendor,
    name: &'static str,
    dimensions: usize,
    fewer: bool,
    tokens_max: u64,
) -> Model {
    Model { vendor, name, dimensions, fewer, tokens_max }
}

const MODELS: [Model; 5] = [
    model(Vendor::B, "text-embedding-3-small", 1536, true, 8192),
    model(Vendor::B, "text-embedding-3-large", 3072, true, 8192),
    model(Vendor::B, "text-embedding-ada-002", 1536, false, 8192),
    model(Vendor::C, "-embedding-001", 3072, true, 2048),
    model(Vendor::C, "-embedding-2", 3072, true, 8192),
];

/// A text to embed, and its tokens.
struct Text {
    text: String,
    tokens: u64,
}

impl Text {
    fn new(text: &str) -> Text {
        Text { text: text.to_owned(), tokens: text.chars().count().div_ceil(4) as u64 }
    }
}

/// Embeds, or tells why not.
pub(super) fn answer(asked: &Asked) -> Result<Said, Refusal> {
    let body = asked.json()?;
    let root = Member::root(&body);
    let in_base64 = if asked.vendor == Vendor::C {
        only_floats(&root)?;
        false
    } else {
        root.only(FIELDS)?;
        let format = root.get("encoding_format").map(|format| format.one_of("float base64"));
        format.transpose()? == Some("base64")
    };
    let named = root.need("model")?.text()?;
    let model = model_of(asked.vendor, named)?;
    let dimensions = dimensions(&root, model)?;
    let texts = texts(&root.need("input")?, asked.vendor)?;
    within_limits(&texts, model)?;
    let counted = texts.iter().map(|text| text.tokens).sum();
    let prompt = asked.faults.number(Fault::Prompt).unwrap_or(counted);
    let billed = Billed { prompt, total: prompt, ..Billed::default() };
    let vectors = texts.iter().map(|text| written(&vector(&text.text, dimensions), in_base64));
    let data: Vec<_> = vectors.enumerate().map(|(at, one)| entry(asked.vendor, at, &one)).collect();
    let usage =
        usage(asked, prompt).map_or_else(String::new, |usage| format!(r#","usage":{usage}"#));
    let reply = format!(
        r#"{{"object":"list","data":[{}],"model":{}{usage}}}"#,
        data.join(","),
        quoted(named)
    );
    Ok(Said::whole(billed, reply))
}

/// The vector of a text, of which a request may ask for the beginning only.
///
/// Number `i` is `(b - 128) / 256`, where `b` is the highest byte of the product of the FNV-1a of
/// the text and `2 * i + 1`, modulo 2^64. Tokens stand for their text in decimals, with a space
/// between them.
pub(crate) fn vector(text: &str, dimensions: usize) -> Vec<f32> {
    let bytes = noise::bytes(noise::fnv(text.as_bytes())).take(dimensions);
    bytes.map(|byte| (f32::from(byte) - 128.0) / 256.0).collect()
}

/// A vector as it stands in a reply.
fn written(vector: &[f32], in_base64: bool) -> String {
    if in_base64 {
        let bytes: Vec<_> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
        return quoted(&STANDARD.encode(bytes));
    }
    let numbers: Vec<_> = vector.iter().map(|number| format!("{number:?}")).collect();
    format!("[{}]", numbers.join(","))
}

fn entry(vendor: Vendor, index: usize, vector: &str) -> String {
    if vendor == Vendor::C {
        format!(r#"{{"object":"embedding","embedding":{vector},"index":{index}}}"#)
    } else {
        format!(r#"{{"object":"embedding","index":{index},"embedding":{vector}}}"#)
    }
}

fn usage(asked: &Asked, prompt: u64) -> Option<String> {
    let untold = asked.vendor == Vendor::C && !asked.faults.has(Fault::WithUsage);
    if asked.faults.has(Fault::NoUsage) {
        None
    } else if asked.faults.has(Fault::NullUsage) {
        Some("null".to_owned())
    } else if asked.faults.has(Fault::BadUsage) {
        Some(BROKEN.to_owned())
    } else if untold {
        None
    } else {
        Some(json!({"prompt_tokens": prompt, "total_tokens": prompt}).to_string())
    }
}

/// The fields as `vendor_c` knows them, who refuses what it cannot map onto its own.
fn only_floats(root: &Member<'_>) -> Result<(), Refusal> {
    let known = ["model", "input", "dimensions", "encoding_format"];
    let names = root.value.as_object().into_iter().flat_map(|object| object.keys());
    if let Some(name) = names.into_iter().find(|name| !known.contains(&name.as_str())) {
        let message =
            format!("Invalid JSON payload received. Unknown name \"{name}\": Cannot find field.");
        return Err(Refusal::new(400, message));
    }
    match root.get("encoding_format").map(|format| format.value) {
        None => Ok(()),
        Some(format) if format == "float" => Ok(()),
        Some(format) => Err(Refusal::new(
            400,
            format!("Invalid value at 'encoding_format': {format}. Only 'float' is supported."),
        )),
    }
}

fn model_of(vendor: Vendor, named: &str) -> Result<&'static Model, Refusal> {
    let is_it = |model: &&Model| {
        model.vendor == vendor
            && if vendor == Vendor::C { named.ends_with(model.name) } else { named == model.name }
    };
    MODELS.iter().find(is_it).ok_or_else(|| {
        let message = if vendor == Vendor::C {
            let name = named.trim_start_matches("models/");
            format!(
                "models/{name} is not found for API version v1main, or is not supported for \
                 embedContent."
            )
        } else {
            format!("The model `{named}` does not exist or you do not have access to it.")
        };
        Refusal::new(404, message)
    })
}

fn dimensions(root: &Member<'_>, model: &Model) -> Result<usize, Refusal> {
    let Some(asked) = root.get("dimensions") else { return Ok(model.dimensions) };
    if !model.fewer {
        return Err(asked.refusal("This model does not support specifying dimensions."));
    }
    let number = asked.integer(1..=model.dimensions as u64)?;
    Ok(usize::try_from(number).expect("a bounded number"))
}

fn texts(input: &Member<'_>, vendor: Vendor) -> Result<Vec<Text>, Refusal> {
    if input.value.is_string() {
        return Ok(vec![Text::new(input.text_within(usize::MAX)?)]);
    }
    let items = input.items()?;
    if items.is_empty() {
        return Err(input.invalid("empty array. Expected at least one item.").coded("empty_array"));
    }
    let takes_tokens = vendor == Vendor::B;
    if takes_tokens && items[0].value.is_u64() {
        return Ok(vec![of_tokens(input)?]);
    }
    if items.len() > TEXTS_MAX {
        let what = format!("array too long. Expected an array with maximum length {TEXTS_MAX}.");
        return Err(input.invalid(&what).coded("array_above_max_length"));
    }
    let text = |item: &Member<'_>| {
        if takes_tokens && item.value.is_array() {
            of_tokens(item)
        } else {
            item.text_within(usize::MAX).map(Text::new)
        }
    };
    items.iter().map(text).collect()
}

fn of_tokens(list: &Member<'_>) -> Result<Text, Refusal> {
    let tokens = list.items()?;
    if tokens.is_empty() {
        return Err(list.invalid("empty array. Expected at least one item.").coded("empty_array"));
    }
    let written = tokens.iter().map(|token| token.integer(0..=u64::from(u32::MAX)));
    let written: Vec<_> =
        written.map(|token| token.map(|token| token.to_string())).collect::<Result<_, _>>()?;
    Ok(Text { text: written.join(" "), tokens: tokens.len() as u64 })
}

fn within_limits(texts: &[Text], model: &Model) -> Result<(), Refusal> {
    let most = model.tokens_max;
    if let Some(text) = texts.iter().find(|text| text.tokens > most) {
        let tokens = text.tokens;
        let message = format!(
            "This model's maximum context length is {most} tokens, however you requested {tokens} \
             tokens ({tokens} in your prompt; 0 for the completion). Please reduce your prompt; or \
             completion length."
        );
        return Err(Refusal::new(400, message));
    }
    let all: u64 = texts.iter().map(|text| text.tokens).sum();
    if model.vendor == Vendor::B && all > REQUEST_TOKENS_MAX {
        let message = format!(
            "Invalid 'input': maximum request size is {REQUEST_TOKENS_MAX} tokens per request."
        );
        return Err(Refusal::new(400, message).at("input").coded("max_tokens_per_request"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::asked::{Target, judge};
    use super::super::endpoint::Endpoint;
    use super::*;

    fn target(vendor: Vendor) -> Target {
        Target { vendor, endpoint: Endpoint::Embeddings }
    }

    fn call(vendor: Vendor) -> Value {
        let model =
            if vendor == Vendor::C { "lmc-embedding-001" } else { "text-embedding-3-small" };
        json!({"model": model, "input": "hello"})
    }

    fn reply(vendor: Vendor, body: &Value, faults: &str) -> (Value, Billed) {
        let asked = Asked::for_test(target(vendor), faults, body);
        let (reply, billed) = asked.reply().expect("an accepted request");
        (reply, billed.expect("a bill"))
    }

    #[test]
    fn embeddings_of_vendor_b_are_checked() {
        let (many, long) = (vec!["a"; 2049], "a".repeat(4 * 8192));
        judge(
            target(Vendor::B),
            &call(Vendor::B),
            &[
                (json!({}), ""),
                (json!({"encoding_format": "base64", "user": "u", "dimensions": 1536}), ""),
                (json!({"encoding_format": "hex"}), "Invalid value: 'hex'"),
                (json!({"model": null}), "Missing required parameter: 'model'."),
                (json!({"model": "lmb-5.5"}), "does not exist"),
                (json!({"model": "text-embedding-ada-002", "dimensions": 9}), "specifying dim"),
                (json!({"dimensions": 0}), "below minimum value"),
                (json!({"dimensions": 1537}), "above maximum value"),
                (json!({"input": ["a", [1, 2]]}), ""),
                (json!({"input": [1, 2]}), ""),
                (json!({"input": [1, "a"]}), "expected an integer"),
                (json!({"input": ""}), "empty string"),
                (json!({"input": ["a", ""]}), "empty string"),
                (json!({"input": []}), "empty array"),
                (json!({"input": many}), "array too long"),
                (json!({"input": long}), ""),
                (json!({"input": long.clone() + "a"}), "maximum context length is 8192"),
                (json!({"input": vec![long.clone(); 37]}), "300000 tokens per request"),
                (json!({"input_type": "query"}), "Unknown parameter: 'input_type'."),
            ],
        );
    }

    #[test]
    fn embeddings_of_vendor_c_are_checked() {
        judge(
            target(Vendor::C),
            &call(Vendor::C),
            &[
                (json!({}), ""),
                (json!({"model": "models/lmc-embedding-2", "encoding_format": "float"}), ""),
                (json!({"model": "text-embedding-3-small"}), "is not found"),
                (json!({"encoding_format": "base64"}), "Only 'float' is supported"),
                (json!({"user": "u"}), "Unknown name \"user\""),
                (json!({"input": [1, 2]}), "expected a string"),
                (json!({"input": "a".repeat(4 * 2048 + 1)}), "maximum context length is 2048"),
                (json!({"dimensions": 3073}), "above maximum value"),
            ],
        );
    }

    #[test]
    fn vectors_follow_from_the_text() {
        let body = json!({"model": "text-embedding-3-large", "input": ["hello", [5, 60]]});
        let (floats, billed) = reply(Vendor::B, &body, "");
        assert_eq!((billed.prompt, billed.total), (4, 4));
        assert_eq!(floats["usage"], json!({"prompt_tokens": 4, "total_tokens": 4}));
        for (at, text) in ["hello", "5 60"].into_iter().enumerate() {
            let told = &floats["data"][at];
            assert_eq!((&told["index"], &told["object"]), (&json!(at), &json!("embedding")));
            assert_eq!(told["embedding"], json!(vector(text, 3072)));
        }
        let body = json!({"model": "text-embedding-3-small", "input": "hello",
            "encoding_format": "base64", "dimensions": 3});
        let (packed, _) = reply(Vendor::B, &body, "no-usage");
        let text = packed["data"][0]["embedding"].as_str().expect("a text");
        let bytes = STANDARD.decode(text).expect("base64");
        let numbers: Vec<_> =
            bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        assert_eq!(numbers, vector("hello", 3));
        assert!(packed.get("usage").is_none());
    }

    #[test]
    fn vendor_c_tells_usage_only_if_asked() {
        let body = call(Vendor::C);
        let (silent, billed) = reply(Vendor::C, &body, "");
        assert!(silent.get("usage").is_none());
        assert_eq!(billed.prompt, 2);
        let (told, billed) = reply(Vendor::C, &body, "with-usage;prompt=9");
        assert_eq!((&told["usage"]["prompt_tokens"], billed.prompt), (&json!(9), 9));
        assert_eq!(told["data"][0]["embedding"].as_array().map(Vec::len), Some(3072));
    }
}
