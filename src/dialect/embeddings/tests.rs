//! Tests of the token counts of embeddings calls, and of the conversion of their replies.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value as Json, json};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};

use super::*;

const ASKED: EmbeddingInputs = EmbeddingInputs { base64: true, tokens: 7, tokens_max: 9 };

fn document(json: &str) -> JsonDocument {
    JsonDocument::parse_from_vendor(Bytes::from(json.to_owned())).expect("sound")
}

fn read_json(body: &Json) -> Result<EmbeddingInputs, CallError> {
    parse_request(&document(&body.to_string()))
}

/// Converts the reply to a call that asked for base64.
fn replied(json: &str) -> Option<(Json, Option<u64>)> {
    let EmbeddingsReply { body, tokens } = convert_reply(json.as_bytes(), ASKED).ok()?;
    Some((serde_json::from_slice(&body).expect("sound"), tokens))
}

/// Returns the bits of the numbers in a base64 vector.
fn unpacked(vector: &Json) -> Vec<u32> {
    let bytes = STANDARD.decode(vector.as_str().expect("a text")).expect("base64");
    let (numbers, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    numbers.iter().map(|four| u32::from_le_bytes(*four)).collect()
}

#[rstest]
#[case::one_character(json!("a"), 1, 2)]
#[case::text(json!("hello"), 2, 6)]
#[case::whole_tokens(json!("éééé"), 1, 9)]
#[case::texts(json!(["a", "hello", "12345678"]), 5, 17)]
#[case::empty_text(json!(""), 1, 1)]
#[case::empty_text_among_texts(json!(["a", ""]), 2, 3)]
#[case::tokens(json!([0, 1, 100_000]), 3, 3)]
#[case::lists_of_tokens(json!([[1], [2, 3]]), 3, 3)]
#[case::many_texts(json!(vec!["a"; 2048]), 2048, 4096)]
#[case::many_tokens(json!(vec![1; 8192]), 8192, 8192)]
#[case::many_lists(json!(vec![[1, 2]; 2048]), 4096, 4096)]
fn input_is_counted(#[case] input: Json, #[case] tokens: u64, #[case] tokens_max: u64) {
    let read = read_json(&json!({ "input": input, "dimensions": 8 }));
    assert_eq!(read, Ok(EmbeddingInputs { base64: false, tokens, tokens_max }));
}

#[rstest]
#[case::absent(json!({}), false)]
#[case::null(json!({"encoding_format": null, "dimensions": null}), false)]
#[case::float(json!({"encoding_format": "float", "dimensions": 1}), false)]
#[case::base64(json!({"encoding_format": "base64", "dimensions": 3072}), true)]
fn the_format_is_read(#[case] mut body: Json, #[case] base64: bool) {
    body["input"] = json!("a");
    assert_eq!(read_json(&body).map(|inputs| inputs.base64), Ok(base64));
}

#[rstest]
#[case::no_input(json!({}), "missing_required_parameter", "input")]
#[case::null(json!({"input": null}), "missing_required_parameter", "input")]
#[case::empty_list(json!({"input": []}), "invalid_value", "input")]
#[case::object(json!({"input": {"text": "a"}}), "invalid_value", "input")]
#[case::number(json!({"input": 5}), "invalid_value", "input")]
#[case::empty_list_in_a_list(json!({"input": [[1], []]}), "invalid_value", "input[1]")]
#[case::number_among_texts(json!({"input": ["a", 1]}), "invalid_value", "input[1]")]
#[case::tokens_among_texts(json!({"input": ["a", [1]]}), "invalid_value", "input[1]")]
#[case::text_among_numbers(json!({"input": [1, "a"]}), "invalid_value", "input[1]")]
#[case::text_among_lists(json!({"input": [[1], "a"]}), "invalid_value", "input[1]")]
#[case::number_among_lists(json!({"input": [[1], 1]}), "invalid_value", "input[1]")]
#[case::text_in_a_list_of_tokens(json!({"input": [[1], [1, "a"]]}), "invalid_value", "input[1][1]")]
#[case::fraction(json!({"input": [1, 2.5]}), "invalid_value", "input[1]")]
#[case::negative(json!({"input": [[1], [2], [3], [-1]]}), "invalid_value", "input[3][0]")]
#[case::objects(json!({"input": [{"text": "a"}]}), "invalid_value", "input[0]")]
#[case::null_in_a_list(json!({"input": [null]}), "invalid_value", "input[0]")]
#[case::too_many_texts(json!({"input": vec!["a"; 2049]}), "invalid_value", "input")]
#[case::too_many_lists(json!({"input": vec![[1]; 2049]}), "invalid_value", "input")]
#[case::no_dimensions(json!({"input": "a", "dimensions": 0}), "invalid_value", "dimensions")]
#[case::many_dimensions(json!({"input": "a", "dimensions": 3073}), "invalid_value", "dimensions")]
#[case::dimensions_in_text(
    json!({"input": "a", "dimensions": "9"}),
    "invalid_value",
    "dimensions"
)]
#[case::unknown_format(
    json!({"input": "a", "encoding_format": "hex"}),
    "invalid_value",
    "encoding_format"
)]
#[case::numbered_format(
    json!({"input": "a", "encoding_format": 1}),
    "invalid_value",
    "encoding_format"
)]
fn the_field_at_fault_is_named(#[case] body: Json, #[case] code: &str, #[case] param: &str) {
    let fault = read_json(&body).expect_err("a fault");
    assert_eq!((fault.code, fault.param.as_deref()), (code, Some(param)));
}

#[test]
fn what_is_too_long_is_told_its_length() {
    let fault = read_json(&json!({"input": vec!["a"; 3000]})).expect_err("too many");
    assert_eq!(fault.message, "'input' must be of at most 2048 inputs, not of 3000");
    let fault = read_json(&json!({"input": "a", "dimensions": 4096})).expect_err("too many");
    let expected = "'dimensions' must be a whole number from 1 to 3072, not a number (4096)";
    assert_eq!(fault.message, expected);
}

/// Numbers as vendors write them, and the bits of the nearest `f32`.
#[rstest]
#[case::whole("1", 0x3F80_0000)]
#[case::negative("-0.5", 0xBF00_0000)]
#[case::zero("0", 0)]
#[case::negative_zero("-0", 0x8000_0000)]
#[case::negative_zero_with_a_point("-0.0", 0x8000_0000)]
#[case::exponent("1E+2", 0x42C8_0000)]
#[case::negative_exponent("25e-2", 0x3E80_0000)]
#[case::tenth("0.1", 0x3DCC_CCCD)]
#[case::more_digits_than_fit("0.100000000000000005551115123125782702", 0x3DCC_CCCD)]
#[case::wrong_if_rounded_twice("1.00000005960464477539062500001", 0x3F80_0001)]
#[case::halfway_is_even("1.000000059604644775390625", 0x3F80_0000)]
#[case::greatest("3.4028235e38", 0x7F7F_FFFF)]
#[case::greatest_without_an_exponent("340282350000000000000000000000000000000", 0x7F7F_FFFF)]
#[case::least("1e-45", 1)]
#[case::below_the_least("1e-400", 0)]
fn a_number_becomes_the_nearest_f32(#[case] number: &str, #[case] bits: u32) {
    let json = format!(r#"{{"data":[{{"embedding":[ {number} , {number}]}}]}}"#);
    let (reply, _) = replied(&json).expect("embeddings");
    assert_eq!(unpacked(&reply["data"][0]["embedding"]), [bits; 2]);
}

#[rstest]
#[case::no_data(r#"{"object":"list"}"#)]
#[case::null_data(r#"{"data":null}"#)]
#[case::empty_data(r#"{"data":[]}"#)]
#[case::text(r#"{"data":"AAAA"}"#)]
#[case::object(r#"{"data":{"embedding":[1]}}"#)]
#[case::entry_without_an_embedding(r#"{"data":[{"embedding":[1]},{"index":1}]}"#)]
#[case::first_entry_without_an_embedding(r#"{"data":[{},{"embedding":[1]}]}"#)]
#[case::no_entries(r#"{"data":[[1,2]]}"#)]
#[case::null_after_numbers(r#"{"data":[{"embedding":[1]},null]}"#)]
#[case::null_embedding(r#"{"data":[{"embedding":null}]}"#)]
#[case::empty_embedding(r#"{"data":[{"embedding":[]}]}"#)]
#[case::empty_text_embedding(r#"{"data":[{"embedding":[1]},{"embedding":""}]}"#)]
#[case::object_embedding(r#"{"data":[{"embedding":[1]},{"embedding":{"values":[1]}}]}"#)]
#[case::text_among_numbers(r#"{"data":[{"embedding":[1,"2"]}]}"#)]
#[case::null_among_numbers(r#"{"data":[{"embedding":[1,null]}]}"#)]
#[case::list_among_numbers(r#"{"data":[{"embedding":[1,[2]]}]}"#)]
#[case::error(r#"{"error":{"message":"no","code":500}}"#)]
fn what_is_no_embedding_is_not_taken_for_one(#[case] json: &'static str) {
    for base64 in [true, false] {
        let read = convert_reply(json.as_ref(), EmbeddingInputs { base64, ..ASKED });
        let is_vendor_error =
            matches!(read, Err(EmbeddingsReplyError::VendorFailed(_))) && json.contains("error");
        assert!(is_vendor_error || read == Err(EmbeddingsReplyError::Malformed), "{read:?}");
    }
}

#[rstest]
#[case("3.5e38")]
#[case("-1e999999999999")]
fn what_no_f32_holds_is_not_written_as_one(#[case] number: &str) {
    assert_eq!(replied(&format!(r#"{{"data":[{{"embedding":[1,{number}]}}]}}"#)), None);
}

#[rstest]
#[case::absent("", None)]
#[case::null(r#","usage":null"#, None)]
#[case::empty(r#","usage":{}"#, None)]
#[case::text(r#","usage":{"prompt_tokens":"3","total_tokens":3}"#, None)]
#[case::negative(r#","usage":{"prompt_tokens":-7,"total_tokens":3}"#, None)]
#[case::nothing(r#","usage":{"prompt_tokens":0,"total_tokens":0}"#, None)]
#[case::fraction(r#","usage":{"prompt_tokens":3.5,"total_tokens":3}"#, None)]
#[case::absurd(r#","usage":{"prompt_tokens":1000000001,"total_tokens":3}"#, None)]
#[case::absurd_total_alone(r#","usage":{"total_tokens":1000000001}"#, None)]
#[case::sound(r#","usage":{"prompt_tokens":3,"total_tokens":3}"#, Some(3))]
#[case::no_total(r#","usage":{"prompt_tokens":3}"#, Some(3))]
#[case::unsound_total(
    r#","usage":{"prompt_tokens":3,"total_tokens":99999999999999999999}"#,
    Some(3)
)]
#[case::greatest(r#","usage":{"prompt_tokens":1000000000,"details":{"a":1}}"#, Some(1_000_000_000))]
fn usage_is_counted_where_none_is_reported(#[case] usage: &str, #[case] tokens: Option<u64>) {
    let json = format!(r#"{{"data":[{{"embedding":"AACAPw=="}}]{usage}}}"#);
    let (reply, reported) = replied(&json).expect("embeddings");
    assert_eq!(reported, tokens);
    let counted = json!({"prompt_tokens": 7, "total_tokens": 7});
    let sent: Json = serde_json::from_str(&json).expect("sound");
    assert_eq!(reply["usage"], if tokens.is_some() { sent["usage"].clone() } else { counted });
    assert_eq!(reply["data"], sent["data"]);
}

#[rstest]
#[case::behind(r#"{"data":[{"embedding":[1]}],"usage":{"total_tokens":3}}"#)]
#[case::before(r#"{"usage":{"total_tokens":3},"data":[{"embedding":[1]}]}"#)]
#[case::null(r#"{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":null,"total_tokens":3}}"#)]
fn a_total_without_prompt_tokens_was_taken_for_no_report(#[case] json: &str) {
    let (reply, tokens) = replied(json).expect("embeddings");
    assert_eq!(tokens, Some(3));
    assert_eq!(reply["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
}

#[rstest]
#[case::packed_as_asked(
    true,
    "{ \"data\" : [ {\"embedding\": \"AACAPw==\"} ],\n\"usage\":{\"prompt_tokens\":1 } }"
)]
#[case::numbers_as_asked(false, r#"{"usage":{"prompt_tokens":1},"data":[{"embedding":[ 1.0 ]}]}"#)]
#[case::packed_unasked(false, r#"{"data":[{"embedding":"AACAPw=="}],"usage":{"prompt_tokens":1}}"#)]
fn where_nothing_has_to_change_the_bytes_pass(#[case] base64: bool, #[case] json: &'static str) {
    let read = convert_reply(json.as_ref(), EmbeddingInputs { base64, ..ASKED });
    assert_eq!(read, Ok(EmbeddingsReply { body: Bytes::from(json), tokens: Some(1) }));
}

#[test]
fn all_else_in_a_reply_stays() {
    let json = r#"{ "id" : 1.50, "data" : [ {"object":"embedding", "index" : 0, "a\"b":"\u0041",
        "embedding" :[1, 2] } , {"embedding":"AACAPw==","index":1} ] , "z":[ ]}"#;
    let EmbeddingsReply { body, .. } = convert_reply(json.as_ref(), ASKED).expect("embeddings");
    let expected = r#"{ "id" : 1.50, "data" : [ {"object":"embedding","index":0,"a\"b":"\u0041","embedding":"AACAPwAAAEA="} , {"embedding":"AACAPw==","index":1} ] , "z":[ ],"usage":{"prompt_tokens":7,"total_tokens":7}}"#;
    assert_eq!(std::str::from_utf8(&body), Ok(expected));
}

/// Generates the bits of a finite `f32`, and one way to write that number.
fn number() -> impl Strategy<Value = (u32, String)> {
    let finite = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |n| n.is_finite());
    (finite, 0..4u8).prop_map(|(number, manner)| {
        let written = match manner {
            0 => format!("{number:?}"),
            1 => format!("{number:e}"),
            2 => format!("{number:E}"),
            _ => number.to_string(),
        };
        (number.to_bits(), written)
    })
}

proptest! {
    #[test]
    fn base64_holds_exactly_the_numbers(
        vectors in proptest::collection::vec(proptest::collection::vec(number(), 1..20), 1..5),
        space in "[ \n]{0,2}",
    ) {
        let entry = |vector: &Vec<(u32, String)>| {
            let numbers: Vec<_> = vector.iter().map(|(_, written)| written.as_str()).collect();
            let numbers = numbers.join(&format!("{space},{space}"));
            format!(r#"{{"object":"embedding","embedding":{space}[{space}{numbers}{space}]}}"#)
        };
        let entries: Vec<_> = vectors.iter().map(entry).collect();
        let json = format!(r#"{{"data":{space}[{space}{}{space}]}}"#, entries.join(","));
        let (reply, tokens) = replied(&json).expect("embeddings");
        prop_assert_eq!(tokens, None);
        let made = reply["data"].as_array().expect("a list");
        prop_assert_eq!(made.len(), vectors.len());
        for (entry, vector) in made.iter().zip(&vectors) {
            let bits: Vec<_> = vector.iter().map(|(bits, _)| *bits).collect();
            prop_assert_eq!(unpacked(&entry["embedding"]), bits);
            prop_assert_eq!(&entry["object"], "embedding");
        }
    }

    #[test]
    fn texts_are_counted_by_their_characters(
        texts in proptest::collection::vec(".{1,20}", 1..6),
    ) {
        let counted = |text: &String| text.chars().count().div_ceil(4) as u64;
        let expected: u64 = texts.iter().map(counted).sum();
        let bytes: usize = texts.iter().map(String::len).sum();
        let inputs = read_json(&json!({ "input": texts })).expect("right");
        prop_assert_eq!(inputs.tokens, expected);
        prop_assert!(inputs.tokens_max >= (bytes + texts.len()) as u64);
        let alone = read_json(&json!({ "input": texts[0] })).expect("right");
        prop_assert_eq!(alone.tokens, counted(&texts[0]));
    }
}

/// A vendor may indent its numbers. A reply that is then too long would be generated and billed,
/// but never forwarded, so the call is refused.
#[rstest]
#[case::most(1_365, "", true)]
#[case::one_more(1_366, "", false)]
#[case::shorter(2_048, r#","dimensions":2048"#, true)]
#[case::longer(2_048, r#","dimensions":2049"#, false)]
#[case::packed(2_048, r#","encoding_format":"base64""#, true)]
#[case::asked_for(2_048, r#","encoding_format":"float""#, false)]
fn more_numbers_than_an_answer_holds_are_refused(
    #[case] inputs: usize,
    #[case] members: &str,
    #[case] fits: bool,
) {
    let texts = vec![r#""a""#; inputs].join(",");
    let read = parse_request(&document(&format!(r#"{{"input":[{texts}]{members}}}"#)));
    match read {
        Ok(_) => assert!(fits),
        Err(fault) => assert_eq!((fault.param.as_deref(), fits), (Some("encoding_format"), false)),
    }
}

/// Converts a reply that arrives in pieces of these sizes, which repeat until its end.
fn in_pieces(
    json: &[u8],
    sizes: &[usize],
    base64: bool,
) -> Result<EmbeddingsReply, EmbeddingsReplyError> {
    let mut reader = EmbeddingsReader::new(EmbeddingInputs { base64, ..ASKED });
    let (mut out, mut rest) = (BytesMut::new(), json);
    for size in sizes.iter().cycle() {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        reader.push(piece, &mut out)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    let tokens = reader.finish(&mut out)?;
    Ok(EmbeddingsReply { body: out.freeze(), tokens })
}

/// Returns the expected tokens of a reply in which nothing is rewritten, from a scan of the whole
/// reply.
fn scanned_whole(json: &[u8]) -> Result<Option<u64>, ()> {
    proved(json).ok_or(()).map(|document| {
        let reported = document.get("usage").and_then(|usage| usage.get("prompt_tokens"));
        reported.and_then(JsonValue::integer).filter(|n| (1..=1_000_000_000).contains(n))
    })
}

/// Parses a whole reply; `None` unless all its entries are valid.
fn proved(json: &[u8]) -> Option<JsonDocument> {
    let document = JsonDocument::parse_from_vendor(Bytes::copy_from_slice(json)).ok()?;
    let data =
        document.get("data").filter(|_| document.get("error").is_none_or(JsonValue::is_null))?;
    let is_entry = |entry: JsonValue<'_>| {
        let vector = entry.get("embedding").filter(|_| entry.kind() == JsonKind::Object)?;
        let is_text = vector.string_bytes().is_some_and(|text| !text.is_empty());
        let mut numbers = vector.elements().map(JsonValue::kind).peekable();
        let is_list = numbers.peek().is_some() && numbers.all(|kind| kind == JsonKind::Number);
        (is_text || is_list).then_some(())
    };
    let entries: Vec<_> = data.elements().map(is_entry).collect();
    if data.kind() != JsonKind::Array || entries.is_empty() || entries.contains(&None) {
        return None;
    }
    Some(document)
}

/// Generates fragments of JSON that occur in a reply, also in places where they are invalid.
fn scrap() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(r#""data":[{"embedding":[1,2]}]"#.to_owned()),
        Just(r#"{"embedding":[0.5, -1e3],"index":0}"#.to_owned()),
        Just(r#"{"embedding":"AACAPw==","a":{"b":[{}]}}"#.to_owned()),
        Just(r#""data":["#.to_owned()),
        Just(r#""data""#.to_owned()),
        Just(r#""usage":{"prompt_tokens":3}"#.to_owned()),
        Just(r#""a\"]}":"\\","x":"data""#.to_owned()),
        Just(r#""error":null"#.to_owned()),
        Just(r#"{"embedding":[]}"#.to_owned()),
        "[\\[\\]{}:,\" \\\\]",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// In whatever pieces a reply arrives, its conversion gives the same result, which is that of a
    /// scan of the whole reply. Where nothing is rewritten, its bytes are the vendor's.
    #[test]
    fn a_reply_that_comes_in_pieces_is_read_as_a_whole_one(
        before in proptest::collection::vec(scrap(), 0..3),
        entries in proptest::collection::vec((scrap(), 0..4_u8), 0..4),
        after in proptest::collection::vec(scrap(), 0..3),
        (open, close) in (prop_oneof![9 => Just("\"data\": ["), 1 => Just("[")],
            prop_oneof![9 => Just(" ]"), 1 => Just("")]),
        flip in proptest::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>())),
        sizes in proptest::collection::vec(1..40_usize, 1..5),
    ) {
        let sound = |(scrap, kind): &(String, u8)| match kind {
            0 => scrap.clone(),
            1 => r#"{"embedding":"AACAPw==","t":"}]\"\\"}"#.to_owned(),
            _ => r#"{ "embedding":[ 1,2.5 ],"o":{"p":{}}}"#.to_owned(),
        };
        let entries: Vec<_> = entries.iter().map(sound).collect();
        let list = format!("{open}{}{close}", entries.join(" , "));
        let members: Vec<_> = before.into_iter().chain([list]).chain(after).collect();
        let mut json = format!("{{{}}} ", members.join(",")).into_bytes();
        if let Some((at, byte)) = flip {
            let at = at.index(json.len());
            json[at] = byte;
        }
        for base64 in [true, false] {
            let whole = in_pieces(&json, &[usize::MAX], base64);
            prop_assert_eq!(&in_pieces(&json, &sizes, base64), &whole);
            let expected = scanned_whole(&json);
            prop_assert_eq!(whole.as_ref().map(|reply| reply.tokens).map_err(|_| ()), expected);
            let Ok(EmbeddingsReply { body, tokens }) = whole else { continue };
            prop_assert!(JsonDocument::parse_from_vendor(body.clone()).is_ok());
            if tokens.is_some() && !base64 {
                prop_assert_eq!(&body[..], &json[..]);
            }
        }
    }
}

#[test]
fn of_a_long_reply_no_more_than_an_entry_is_held() {
    let entry = format!(r#"{{"embedding":[{}1]}}"#, "0.25,".repeat(3_000));
    let entries = vec![entry.as_str(); 200].join(",");
    let json = format!(r#"{{"data":[{entries}],"usage":{{"prompt_tokens":1}}}}"#);
    let (mut reader, mut out) = (EmbeddingsReader::new(ASKED), BytesMut::new());
    for piece in json.as_bytes().chunks(1_000) {
        reader.push(piece, &mut out).expect("sound");
        assert!(reader.buffered_bytes() < entry.len() + 2_000);
    }
    assert_eq!(reader.finish(&mut out), Ok(Some(1)));
}

#[rstest]
#[case::entry(r#"{"data":[{"embedding":""#, "A")]
#[case::numbers(r#"{"data":[{"embedding":["#, "1,")]
#[case::head(r#"{"x":""#, "data")]
#[case::tail(r#"{"data":[{"embedding":[1]}],"x":""#, "]")]
fn a_part_that_does_not_end_is_given_up(#[case] start: &str, #[case] more: &str) {
    let (mut reader, mut out) = (EmbeddingsReader::new(ASKED), BytesMut::new());
    reader.push(start.as_bytes(), &mut out).expect("more may come");
    let more = more.repeat(10_000);
    let fault = (0..1_000).find_map(|_| reader.push(more.as_bytes(), &mut out).err());
    assert_eq!(fault, Some(EmbeddingsReplyError::TooLarge));
    assert!(reader.buffered_bytes() < 2 << 20);
}

#[rstest]
#[case::before(r#"{"usage":null,"data":[{"embedding":[1]}]}"#)]
#[case::behind(r#"{"data":[{"embedding":[1]}],"usage":null}"#)]
fn a_usage_that_says_nothing_is_replaced_where_it_stands(#[case] json: &'static str) {
    let inputs = EmbeddingInputs { base64: false, ..ASKED };
    let EmbeddingsReply { body, tokens } = convert_reply(json.as_ref(), inputs).expect("a reply");
    let counted = r#"{"prompt_tokens":7,"total_tokens":7}"#;
    let expected = json.replace("null", counted);
    assert_eq!((std::str::from_utf8(&body), tokens), (Ok(&*expected), None));
}
