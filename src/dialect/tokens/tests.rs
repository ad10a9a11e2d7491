//! Tests of the counts of tokens.

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::dialect::json::JsonDocument;

fn tally(text: &str) -> TextTally {
    let mut tally = TextTally::default();
    tally.add(text);
    tally
}

fn document(body: &str) -> JsonDocument {
    JsonDocument::parse(body.to_owned().into()).expect("sound")
}

/// Texts in which words, digits, marks, white space and many scripts meet.
fn any_text() -> impl Strategy<Value = String> {
    let brick = prop_oneof![
        "[a-zA-Z]{1,20}",
        " {1,4}",
        "[0-9]{1,7}",
        "[ -~]{1,12}",
        "[\n\r\t]{1,3}",
        "[\u{e0}-\u{ff}\u{100}-\u{17f}]{1,6}",
        "[\u{400}-\u{44f}]{1,9}",
        "[\u{4e00}-\u{9fff}]{1,9}",
        "[\u{3040}-\u{30ff}\u{ac00}-\u{d7a3}]{1,6}",
        "[\u{900}-\u{97f}\u{5d0}-\u{5ea}\u{600}-\u{6ff}]{1,6}",
        "[\u{1f300}-\u{1f64f}]{1,3}",
        "\\PC{1,8}",
    ];
    prop::collection::vec(brick, 0..30).prop_map(|bricks| bricks.concat())
}

#[rstest]
#[case::nothing("", [0, 0, 0])]
#[case::a_letter("a", [1, 1, 1])]
#[case::words("The quick brown fox jumps over the lazy dog.", [10, 9, 14])]
#[case::a_number("1234567", [4, 4, 4])]
#[case::code("fn main() {\n    println!(\"{x}\");\n}\n", [10, 10, 16])]
#[case::chinese("\u{4eca}\u{5929}\u{5929}\u{6c14}\u{5f88}\u{597d}", [4, 5, 7])]
#[case::emoji("ok \u{1f600}", [3, 3, 6])]
fn known_texts_have_known_counts(#[case] text: &str, #[case] expected: [u64; 3]) {
    let tokenizers = [Tokenizer::General, Tokenizer::O200k, Tokenizer::VendorA];
    assert_eq!(tokenizers.map(|tokenizer| tokenizer.estimate_text(&tally(text))), expected);
}

#[test]
fn each_tokenizer_is_found_by_its_name() {
    for tokenizer in Tokenizer::ALL {
        assert_eq!(Tokenizer::from_name(tokenizer.name()), Some(tokenizer));
    }
    assert_eq!(Tokenizer::from_name("o100k"), None);
    assert_eq!(Tokenizer::default().name(), "general");
}

#[test]
fn a_word_is_not_cheaper_for_being_cut_into_pieces() {
    let mut pieces = TextTally::default();
    "unbelievable".chars().for_each(|c| pieces.add(&c.to_string()));
    assert_eq!(pieces, tally("unbelievable"));
    let mut texts = TextTally::default();
    for text in ["un", "believable"] {
        texts.add(text);
        texts.end_text();
    }
    let of = |tally: &TextTally| Tokenizer::O200k.estimate_text(tally);
    assert!(of(&texts) > of(&pieces), "two texts are two words");
}

fn measure(body: &str) -> InputTally {
    InputTally::of_document(&document(body), body.len() as u64)
}

/// A long conversation is measured by its beginning, and so may differ from what the whole would
/// have.
#[rstest]
#[case::one_text(1, 200_000)]
#[case::messages(400, 500)]
#[case::tiny_messages(20_000, 5)]
fn a_long_body_is_measured_in_proportion(#[case] messages: usize, #[case] bytes: usize) {
    let text = "What is the capital of that country? ".repeat(bytes / 37 + 1);
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, &text[..bytes]);
    let tool = r#"{"type":"function","name":"f","parameters":{"type":"object"}}"#;
    let tools = [tool; 1_000].join(",");
    let body = format!(
        r#"{{"tools":[{tools}],"messages":[{}]}}"#,
        vec![message.as_str(); messages].join(",")
    );
    let tally = measure(&body);
    let (found, expected) = (tally.text.bytes(), (bytes * messages) as u64);
    assert!(found >= expected * 9 / 10, "{found} of {expected}");
    assert!(found <= (message.len() * messages) as u64 * 11 / 10, "{found} of {expected}");
    assert!((900..=1_100).contains(&tally.tools), "{}", tally.tools);
    assert!(tally.messages >= messages as u64 * 9 / 10, "{}", tally.messages);
}

#[test]
fn steering_members_and_attachments_were_counted_as_input() {
    let plain = r#"{"model":"m","messages":[{"role":"user","content":"Hello there, world"}]}"#;
    let base64 = "QUJD".repeat(1_000);
    let laden = format!(
        r#"{{"model":"m","user":"{base64}","metadata":{{"a":"{base64}"}},"messages":[{{"role":"user","id":"{base64}","content":[{{"type":"text","text":"Hello there, world","cache_control":{{"type":"ephemeral"}}}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{base64}"}}}},{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{base64}"}}}}]}}]}}"#
    );
    let [plain, laden] = [plain, &laden].map(measure);
    assert_eq!(plain.text, laden.text);
    assert_eq!((plain.messages, laden.messages, laden.parts), (1, 1, 3));
    let estimate = Tokenizer::O200k.estimate_input(&plain);
    assert!((8..=14).contains(&estimate), "{estimate}");
}

#[rstest]
#[case::chat(r#"{"messages":[{"role":"system","content":"one two"},{"role":"user","content":"three"},{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"four","arguments":"five"}}]}]}"#)]
#[case::messages(r#"{"system":[{"type":"text","text":"one two"}],"messages":[{"role":"user","content":[{"type":"text","text":"three"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"four"}]},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"five"}}]}]}"#)]
#[case::responses(r#"{"instructions":"one two","input":[{"role":"user","content":"three"},{"type":"function_call","name":"four","arguments":"five","call_id":"c"}]}"#)]
#[case::a_string(r#"{"input":"one two three four five"}"#)]
#[case::escaped(r#"{"input":"one two th\u0072ee four five"}"#)]
fn every_format_has_its_texts_counted(#[case] body: &str) {
    let tally = measure(body);
    let spaces = tally.text.bytes() - "onetwothreefourfive".len() as u64;
    assert!(spaces == 1 || spaces == 4, "{body}");
}

#[test]
fn tools_count_with_the_names_of_their_members() {
    let body = r#"{"input":"","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}]}"#;
    let tally = measure(body);
    let spaced = body.replace(':', " : ").replace(',', " ,\n");
    assert_eq!(tally, measure(&spaced), "white space is no input");
    assert_eq!(tally.tools, 1);
    let start = body.find('[').expect("it is there");
    assert_eq!(tally.schema.bytes(), (body.len() - 1 - start) as u64);
}

proptest! {
    #[test]
    fn the_count_does_not_depend_on_where_the_pieces_are_cut(
        text in any_text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.retain(|cut| text.is_char_boundary(*cut));
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut pieces = TextTally::default();
        cuts.windows(2).for_each(|cut| pieces.add(&text[cut[0]..cut[1]]));
        prop_assert_eq!(pieces, tally(&text));
    }

    #[test]
    fn more_text_never_counts_less(text in any_text(), more in any_text()) {
        for tokenizer in Tokenizer::ALL {
            let (part, whole) = (tally(&text), tally(&format!("{text}{more}")));
            let parts = tokenizer.estimate_reply(&part, 1);
            prop_assert!(parts <= tokenizer.estimate_reply(&whole, 1));
            prop_assert!(tokenizer.estimate_text(&part) <= tokenizer.estimate_text(&whole));
        }
    }

    #[test]
    fn no_text_has_more_tokens_than_its_bound(text in any_text()) {
        let body = serde_json::json!({ "input": &text, "instructions": &text }).to_string();
        let document = document(&body);
        let count = tiktoken_rs::o200k_base_singleton().count_ordinary(&text) as u64;
        let bound = o200k_tokens_max(&document, 0).expect("no attachments");
        prop_assert!(bound >= count * 2, "{} < 2 x {}", bound, count);
        prop_assert!(bound <= text.len() as u64 * 2 + 600);
    }
}

#[test]
fn an_exact_bound_is_near_the_count() {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(2_000);
    let document = document(&serde_json::json!({ "input": text }).to_string());
    let bound = o200k_tokens_max(&document, 0).expect("no attachments");
    assert!(bound < text.len() as u64 / 4);
}

/// Data that the caller does not count apart is not left out, and neither is the text of a tool.
#[rstest]
#[case::a_file(r#"{"messages":[{"role":"user","content":[{"type":"x","file_data":"TEXT"}]}]}"#)]
#[case::an_image(r#"{"messages":[{"role":"user","content":[{"type":"x","image_url":"TEXT"}]}]}"#)]
#[case::a_schema(r#"{"tools":[{"type":"function","parameters":{"image_url":"TEXT"}}]}"#)]
fn text_that_looked_like_an_attachment_was_left_out_of_the_bound(#[case] body: &str) {
    let body = body.replace("TEXT", &"QUJD".repeat(500));
    let document = document(&body);
    assert!(o200k_tokens_max(&document, 0).is_none_or(|max| max >= 1_000));
    if body.starts_with(r#"{"messages""#) {
        assert!(o200k_tokens_max(&document, 2_002).is_some_and(|max| max < 1_000));
        assert_eq!(o200k_tokens_max(&document, 2_001), None);
    }
}
