//! What the vendor may read beside the body: the pages that it fetches itself, and the whole input
//! once more after each of its tools and after each summary.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::call::fields::non_null_member;
use crate::dialect::call::text_request::{InputSize, VendorReads};
use crate::dialect::json::{JsonDocument, JsonValue};

/// The beginning of the types of the tool by which the vendor fetches pages.
const FETCH_TOOL_PREFIX: &str = "web_fetch";
/// The beginning of the types of the tool by which it searches. It is sold only where the rules
/// have a fee for it, and they tell how much it adds to the input.
const SEARCH_TOOL_PREFIX: &str = "web_search";
/// The vendor runs its tools between passes of the model, and pauses the turn after this many
/// passes. Each pass reads the whole input, and all of them are billed.
const PASSES_MAX: u64 = 10;
/// So the vendor reads the input at most this many times more.
pub(crate) const REPEATS_MAX: u64 = PASSES_MAX - 1;
/// `max_content_tokens` is approximate: this many times as much may arrive.
const CONTENT_TOKENS_FACTOR: u64 = 2;

/// The beginning of the types of the edits by which the vendor summarizes a long conversation
/// before it answers.
const COMPACTION_EDIT_PREFIX: &str = "compact_";
/// The number of input tokens from which on the vendor summarizes, if an edit names none.
const COMPACTION_TRIGGER_DEFAULT: u64 = 150_000;
/// No limit of the call bounds a summary: it may be as long as the longest answer of any model.
const SUMMARY_TOKENS_MAX: u64 = 128_000;

/// The output tokens of the summaries that a call may cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SummaryOutput {
    /// The most tokens of all summaries, whatever the length of the input.
    pub(super) tokens_max: u64,
    /// The same, or 0 if the input is too short to be summarized.
    pub(super) expected_max: u64,
}

/// Adds to the input what the vendor reads by itself, and returns the output tokens of the
/// summaries that it may make.
pub(super) fn add_vendor_reads(
    document: &JsonDocument,
    input_size: &mut InputSize,
) -> SummaryOutput {
    let mut reads = fetch_reads(document);
    let passes = reads.repeats.saturating_add(1);
    input_size.vendor_reads = reads;
    let Some(trigger) = compaction_trigger(document) else { return SummaryOutput::default() };
    // Every pass may be preceded by a summary.
    let tokens_max = SUMMARY_TOKENS_MAX.saturating_mul(passes);
    // No token is shorter than a byte.
    if input_size.is_bounded_by_body() && input_size.text_bytes < trigger {
        return SummaryOutput { tokens_max, expected_max: 0 };
    }
    reads.repeats = passes.saturating_mul(2).saturating_sub(1);
    input_size.vendor_reads = reads;
    SummaryOutput { tokens_max, expected_max: tokens_max }
}

/// Returns what the vendor reads because of its fetch tool.
fn fetch_reads(document: &JsonDocument) -> VendorReads {
    let (mut reads, mut searches) = (VendorReads::default(), 0_u64);
    for tool in non_null_member(document, "tools").into_iter().flat_map(JsonValue::elements) {
        let kind = tool.get("type").and_then(JsonValue::text);
        let is_of = |prefix| kind.as_ref().is_some_and(|kind| kind.starts_with(prefix));
        // A limit that the vendor cannot read limits nothing here.
        let limit = |name| tool.get(name).and_then(JsonValue::integer).unwrap_or(u64::MAX);
        let uses = limit("max_uses");
        if is_of(SEARCH_TOOL_PREFIX) {
            searches = searches.saturating_add(uses);
        }
        if !is_of(FETCH_TOOL_PREFIX) {
            continue;
        }
        let content = limit("max_content_tokens").saturating_mul(CONTENT_TOKENS_FACTOR);
        reads.repeats = REPEATS_MAX;
        reads.added_tokens = reads.added_tokens.saturating_add(uses.saturating_mul(content));
        // The limit of tokens is for text alone: a document of pages is never cut.
        reads.added_documents = reads.added_documents.saturating_add(uses);
    }
    if searches > 0 {
        // One more: the model may try again after the last use, and is told that it cannot.
        reads.repeats = reads.repeats.max(searches.saturating_add(1).min(REPEATS_MAX));
    }
    reads
}

/// Returns the number of input tokens from which on the vendor may summarize the conversation,
/// which it bills beside the answer; `None` if it may not. An unreadable number is 0.
fn compaction_trigger(document: &JsonDocument) -> Option<u64> {
    let edits = document.get("context_management").and_then(|management| management.get("edits"));
    let is_compaction = |edit: &JsonValue<'_>| {
        let kind = edit.get("type").and_then(JsonValue::text);
        kind.is_some_and(|kind| kind.starts_with(COMPACTION_EDIT_PREFIX))
    };
    let compactions = edits.into_iter().flat_map(JsonValue::elements).filter(is_compaction);
    let trigger = |edit: JsonValue<'_>| match edit.get("trigger").filter(|t| !t.is_null()) {
        Some(trigger) => trigger.get("value").and_then(JsonValue::integer).unwrap_or(0),
        None => COMPACTION_TRIGGER_DEFAULT,
    };
    compactions.map(trigger).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Returns what is read and summarized for a call with these members and so many bytes of text.
    fn measured(members: &str, text_bytes: u64) -> (VendorReads, SummaryOutput) {
        let body = format!(r#"{{"model":"m","messages":[],{members}}}"#);
        let document = JsonDocument::parse(body.into()).expect("sound");
        let mut input_size = InputSize { text_bytes, ..InputSize::default() };
        let summary = add_vendor_reads(&document, &mut input_size);
        (input_size.vendor_reads, summary)
    }

    #[rstest]
    #[case::no_tools(r#""tools":[]"#, 0, 0, 0)]
    #[case::tools_of_the_client(r#""tools":[{"name":"web_fetch"},{"type":"custom"}]"#, 0, 0, 0)]
    #[case::search_of_tools(r#""tools":[{"type":"tool_search_tool_bm25"}]"#, 0, 0, 0)]
    #[case::without_limits(r#""tools":[{"type":"web_fetch_20250910"}]"#, 9, u64::MAX, u64::MAX)]
    #[case::nulls(
        r#""tools":[{"type":"web_fetch_20250910","max_uses":null,"max_content_tokens":null}]"#,
        9,
        u64::MAX,
        u64::MAX
    )]
    #[case::of_uses(r#""tools":[{"type":"web_fetch_20250910","max_uses":3}]"#, 9, u64::MAX, 3)]
    #[case::of_content(
        r#""tools":[{"type":"web_fetch_20250910","max_content_tokens":1000}]"#,
        9,
        u64::MAX,
        u64::MAX
    )]
    #[case::of_both(
        r#""tools":[{"type":"web_fetch_20260209","max_uses":3,"max_content_tokens":1000}]"#,
        9,
        6_000,
        3
    )]
    #[case::two_tools(
        r#""tools":[{"type":"web_fetch_20250910","max_uses":3,"max_content_tokens":1000},{"type":"web_fetch_20990101","max_uses":1,"max_content_tokens":1}]"#,
        9,
        6_002,
        4
    )]
    #[case::limits_of_text(
        r#""tools":[{"type":"web_fetch_20250910","max_uses":"3","max_content_tokens":-1}]"#,
        9,
        u64::MAX,
        u64::MAX
    )]
    #[case::an_escaped_type(
        r#""tools":[{"type":"web\u005ffetch_20250910","max_uses":0}]"#,
        9,
        0,
        0
    )]
    fn what_the_vendor_fetches_is_limited_by_the_tool(
        #[case] members: &str,
        #[case] repeats: u64,
        #[case] added_tokens: u64,
        #[case] added_documents: u64,
    ) {
        let expected =
            VendorReads { repeats, added_tokens, added_documents, ..VendorReads::default() };
        assert_eq!(measured(members, 10), (expected, SummaryOutput::default()));
    }

    #[rstest]
    #[case::none(r#"{"edits":[{"type":"clear_thinking_20251015"}]}"#, 1_000_000, 0, 0)]
    #[case::too_short(r#"{"edits":[{"type":"compact_20260112"}]}"#, 149_999, 0, 128_000)]
    #[case::just_long_enough(r#"{"edits":[{"type":"compact_20260112"}]}"#, 150_000, 1, 128_000)]
    #[case::trigger(
        r#"{"edits":[{"type":"compact_20260112","trigger":{"type":"input_tokens","value":50000}}]}"#,
        50_000,
        1,
        128_000
    )]
    #[case::below_the_trigger(
        r#"{"edits":[{"type":"compact_20260112","trigger":{"type":"input_tokens","value":50000}}]}"#,
        49_999,
        0,
        128_000
    )]
    #[case::no_trigger(
        r#"{"edits":[{"type":"compact_20260112","trigger":null}]}"#,
        149_999,
        0,
        128_000
    )]
    #[case::unreadable_trigger(
        r#"{"edits":[{"type":"compact_20260112","trigger":{"value":"50000"}}]}"#,
        1,
        1,
        128_000
    )]
    #[case::the_lowest_trigger(
        r#"{"edits":[{"type":"compact_20260112"},{"type":"compact_20990101","trigger":{"value":60000}}]}"#,
        60_000,
        1,
        128_000
    )]
    fn a_summary_is_expected_of_a_long_conversation_only(
        #[case] management: &str,
        #[case] text_bytes: u64,
        #[case] repeats: u64,
        #[case] tokens_max: u64,
    ) {
        let members = format!(r#""context_management":{management}"#);
        let expected_max = if repeats > 0 { tokens_max } else { 0 };
        let reads = VendorReads { repeats, ..VendorReads::default() };
        let summary = SummaryOutput { tokens_max, expected_max };
        assert_eq!(measured(&members, text_bytes), (reads, summary));
    }

    #[test]
    fn every_pass_between_fetches_may_begin_with_a_summary() {
        let members = r#""tools":[{"type":"web_fetch_20250910","max_uses":1,"max_content_tokens":5}],"context_management":{"edits":[{"type":"compact_20260112"}]}"#;
        let body = format!(r#"{{"model":"m","messages":[],{members}}}"#);
        let document = JsonDocument::parse(body.into()).expect("sound");
        let mut input_size = InputSize { vendor_tool_prompt_count: 2, ..InputSize::default() };
        let summary = add_vendor_reads(&document, &mut input_size);
        let expected = VendorReads {
            repeats: 19,
            added_tokens: 10,
            added_documents: 1,
            ..VendorReads::default()
        };
        assert_eq!(input_size.vendor_reads, expected);
        assert_eq!(summary, SummaryOutput { tokens_max: 1_280_000, expected_max: 1_280_000 });
    }
}
