//! Determines the usage of a call: reads what the vendor reports, and counts where the vendor
//! reports nothing.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::json::value::unescape_lossy;
use super::json::{JsonKind, JsonValue};
use super::tokens::{InputCount, TextTally, Tokenizer, add_json};
use crate::money::{BilledUnits, TokenUsage, Usage, UsageBasis};
use bounds::UsageBounds;
use tool_uses::ToolUses;

pub mod bounds;
pub(crate) mod tool_uses;

/// A report of more tokens in one call is treated as a vendor error.
pub(super) const TOKENS_MAX: u64 = 1_000_000_000;

/// A reported cost of more than this many ticks (10 USD), or of 0, is a vendor error and no report.
const TICKS_MAX: u64 = 100_000_000_000;

/// Bytes of text per token where only the bytes are known. English text averages near four.
const BYTES_PER_TOKEN: u64 = 4;

/// How complete a usage report is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ReportQuality {
    /// The report was made before the output was generated, and does not cover the output.
    Early,
    /// The vendor reports while it generates, and may report more later.
    #[default]
    Partial,
    /// The report covers the whole reply.
    Final,
}

/// The tokens of a reply, and the basis of their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeteredTokens {
    /// The tokens, as they are billed.
    pub tokens: TokenUsage,
    /// Whether the vendor reported the tokens or the gateway counted them.
    pub basis: UsageBasis,
}

impl From<MeteredTokens> for Usage {
    fn from(MeteredTokens { tokens, basis }: MeteredTokens) -> Usage {
        Usage { units: BilledUnits::Tokens(tokens), basis }
    }
}

/// Estimates the tokens of a text from its bytes alone, which is quick and twice too high at times.
#[must_use]
pub(crate) fn estimate_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Returns the cost that a `usage` object reports, in ticks (10 ticks are 1 nano-USD); `None` if
/// there is none, or an implausible one.
pub(super) fn read_cost_ticks(usage: JsonValue<'_>) -> Option<u64> {
    let ticks_reported = usage.get("cost_in_usd_ticks").and_then(JsonValue::integer);
    ticks_reported.filter(|ticks| (1..=TICKS_MAX).contains(ticks))
}

/// Where a piece of text belongs: pieces of one text continue each other, and pieces of two do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TextSource {
    /// The index of the choice, of the content block or of the output item.
    pub index: u64,
    /// The member or the call of a tool in it.
    pub part: u64,
}

/// Counts what the vendor generated in the block with this index of a messages reply.
pub(crate) fn count_block(block: JsonValue<'_>, index: u64, meter: &mut UsageMeter) {
    for (name, value) in block.raw_members() {
        match &*name {
            b"text" => meter.count_value(value, TextSource { index, part: 0 }),
            b"thinking" => meter.count_value(value, TextSource { index, part: 1 }),
            b"name" => meter.count_tool_name(value, TextSource { index, part: 2 }),
            b"input" => meter.count_value(value, TextSource { index, part: 3 }),
            // A summary is a text here. What a tool of the vendor fetched is an object, and no
            // output.
            b"content" if value.kind() == JsonKind::String => {
                meter.count_value(value, TextSource { index, part: 4 });
            }
            _ => {}
        }
    }
}

/// Collects a call's usage: what the vendor reports, and what the gateway counts.
#[derive(Debug, Clone, Default)]
pub struct UsageMeter {
    reported: Option<TokenUsage>,
    quality: ReportQuality,
    /// The text that the vendor generated.
    text: TextTally,
    /// The text to which the last piece belongs.
    source: TextSource,
    /// The calls of tools that the vendor generated.
    tool_calls: u64,
    /// Bytes that the vendor generated, but that the gateway did not read.
    unread_bytes: u64,
    /// The output as it was counted when the vendor made its report.
    counted_at_report: u64,
    tokenizer: Tokenizer,
    /// A report above these bounds is rejected.
    bounds: UsageBounds,
    /// The uses of the vendor's tools, if the call has any that cost a fee.
    tool_uses: Option<Box<ToolUses>>,
}

impl UsageMeter {
    /// Sets the bounds above which a report is rejected.
    pub(crate) fn set_bounds(&mut self, bounds: UsageBounds) {
        self.bounds = bounds;
    }

    /// Sets the tokenizer by which text is counted.
    pub(crate) fn set_tokenizer(&mut self, tokenizer: Tokenizer) {
        self.tokenizer = tokenizer;
    }

    /// Sets the tools whose uses are counted.
    pub(crate) fn set_tool_uses(&mut self, uses: ToolUses) {
        self.tool_uses = Some(Box::new(uses));
    }

    /// Returns the uses of the vendor's tools; `None` if the call has none that cost a fee.
    #[must_use]
    pub(crate) fn tool_uses(&self) -> Option<&ToolUses> {
        self.tool_uses.as_deref()
    }

    /// The same, so that uses can be counted.
    pub(crate) fn tool_uses_mut(&mut self) -> Option<&mut ToolUses> {
        self.tool_uses.as_deref_mut()
    }

    /// Returns the vendor's report, if it is rejected because it exceeds the bounds.
    #[must_use]
    pub(crate) fn rejected_report(&self) -> Option<TokenUsage> {
        self.reported.filter(|tokens| !self.admits(*tokens))
    }

    /// Returns the vendor's report, if it is within the bounds.
    fn accepted_report(&self) -> Option<TokenUsage> {
        self.reported.filter(|tokens| self.admits(*tokens))
    }

    /// Whether a report is within the bounds. The output is counted only where that matters.
    fn admits(&self, reported: TokenUsage) -> bool {
        let counted = if self.bounds.output_is_visible { self.plausible_output() } else { 0 };
        self.bounds.admits_tokens(reported, counted)
    }

    /// Records the `usage` of a chat reply or chunk. A later report replaces an earlier one, since
    /// vendors that report repeatedly send running totals.
    pub(crate) fn record_chat_usage(&mut self, usage: JsonValue<'_>) {
        if let Some(tokens) = read_tokens(usage, CHAT_FIELDS) {
            self.record_tokens(tokens, self.quality);
        }
    }

    /// Records tokens that the vendor reported.
    pub(crate) fn record_tokens(&mut self, tokens: TokenUsage, quality: ReportQuality) {
        self.reported = Some(tokens);
        self.quality = quality;
        self.counted_at_report = self.estimated_output();
    }

    /// Counts the text in the choices of a chat reply or chunk. `text_member` is the member that
    /// holds the text: `message` in a reply, `delta` in a chunk. Returns how many choices have a
    /// finish reason.
    pub(crate) fn count_choices(&mut self, choices: JsonValue<'_>, text_member: &str) -> u64 {
        let mut finished = 0;
        choices.visit_objects(|place, members| {
            let (mut index, mut message) = (place, None);
            for (name, value) in members {
                if *name == *text_member.as_bytes() {
                    message = Some(value);
                } else if *name == *b"finish_reason" && !value.is_null() {
                    finished += 1;
                } else if *name == *b"index" {
                    index = value.integer().unwrap_or(index);
                }
            }
            message.into_iter().for_each(|message| self.count_message(message, index));
        });
        finished
    }

    /// Returns the usage of a reply that was cut off. A vendor that reports while it generates may
    /// have reported less output than it had sent; then the text after its report is counted too.
    /// `input` is the number of input tokens if the vendor reports none.
    #[must_use]
    pub(crate) fn usage_so_far(&self, input: u64) -> MeteredTokens {
        let usage = self.usage(input);
        if self.quality == ReportQuality::Final || usage.basis == UsageBasis::Counted {
            return usage;
        }
        let counted = self.estimated_output();
        let since_report = counted.saturating_sub(self.counted_at_report);
        // A report of less than half of what was counted was not made for the text before it.
        let is_stale = usage.tokens.output < self.counted_at_report / 2;
        let output = if is_stale {
            counted.max(usage.tokens.output)
        } else {
            usage.tokens.output.saturating_add(since_report)
        };
        if output == usage.tokens.output {
            return usage;
        }
        let tokens = TokenUsage { output, ..usage.tokens };
        MeteredTokens { tokens, basis: UsageBasis::Counted }
    }

    /// Whether the vendor has reported usage that is within the bounds, given the output that was
    /// counted so far.
    #[must_use]
    pub(crate) fn is_reported(&self) -> bool {
        self.accepted_report().is_some()
    }

    /// Whether the vendor has reported usage that needs no count beside it: within the bounds, with
    /// input and with output.
    #[must_use]
    pub(crate) fn has_whole_report(&self) -> bool {
        self.accepted_report().is_some_and(|tokens| tokens.input > 0 && tokens.output > 0)
    }

    /// Whether the vendor has reported usage that covers the whole reply, within the bounds.
    #[must_use]
    pub(super) fn has_final_report(&self) -> bool {
        self.quality == ReportQuality::Final && self.has_whole_report()
    }

    /// Whether the vendor has reported the input, within the bounds.
    #[must_use]
    pub(crate) fn has_input_report(&self) -> bool {
        self.accepted_report().is_some_and(|tokens| tokens.input > 0)
    }

    /// Returns the usage, as [`UsageMeter::usage`]. The input is counted only if it is needed.
    pub(super) fn usage_with(&self, input: &InputCount) -> MeteredTokens {
        self.usage(if self.has_input_report() { 0 } else { input.tokens() })
    }

    /// Whether the vendor generated any output.
    #[must_use]
    pub(crate) fn has_output(&self) -> bool {
        let reported = self.accepted_report().is_some_and(|t| t.output > 0);
        self.has_text() || (reported && self.quality != ReportQuality::Early)
    }

    /// Returns the usage: as reported, or else the counted output with `input` input tokens. A side
    /// that is reported as 0 counts as not reported if there was input, or if text arrived.
    #[must_use]
    pub fn usage(&self, input: u64) -> MeteredTokens {
        let Some(reported) = self.accepted_report() else {
            let output = self.estimated_output();
            let tokens = TokenUsage { input, output, ..TokenUsage::default() };
            return MeteredTokens { tokens, basis: UsageBasis::Counted };
        };
        let lacks_input = reported.input == 0 && input > 0;
        let lacks_output = reported.output == 0 && self.has_text();
        let is_early = self.quality == ReportQuality::Early;
        if !(lacks_input || lacks_output || is_early) {
            return MeteredTokens { tokens: reported, basis: UsageBasis::Reported };
        }
        let mut tokens = reported;
        if lacks_input {
            tokens.input = input;
        }
        if lacks_output || is_early {
            tokens.output = self.estimated_output().max(reported.output);
        }
        MeteredTokens { tokens, basis: UsageBasis::Counted }
    }

    /// Returns the output tokens estimated from the text so far, whatever the vendor reports. They
    /// never fall while text arrives.
    fn estimated_output(&self) -> u64 {
        let read = self.tokenizer.estimate_reply(&self.text, self.tool_calls);
        read.saturating_add(estimate_tokens(self.unread_bytes))
    }

    /// Returns the count by which the plausibility of a report is judged: the estimate, or that
    /// from the bytes if it is more.
    fn plausible_output(&self) -> u64 {
        let bytes = self.text.bytes().saturating_add(self.unread_bytes);
        self.estimated_output().max(estimate_tokens(bytes))
    }

    fn has_text(&self) -> bool {
        self.text.bytes() > 0 || self.unread_bytes > 0
    }

    fn count_message(&mut self, message: JsonValue<'_>, index: u64) {
        for (name, value) in message.raw_members() {
            match &*name {
                b"content" => self.count_text(value, TextSource { index, part: 0 }),
                b"reasoning_content" => self.count_text(value, TextSource { index, part: 1 }),
                b"reasoning" => self.count_text(value, TextSource { index, part: 2 }),
                b"refusal" => self.count_text(value, TextSource { index, part: 3 }),
                b"tool_calls" => {
                    for (place, call) in value.elements().enumerate() {
                        let named = call.get("index").and_then(JsonValue::integer);
                        let place = named.unwrap_or(place as u64);
                        let part = place.saturating_mul(2).saturating_add(6);
                        let called = call.get("function").or_else(|| call.get("custom"));
                        self.count_tool_call(called, TextSource { index, part });
                    }
                }
                // The older form of a tool call.
                b"function_call" => {
                    self.count_tool_call(Some(value), TextSource { index, part: 4 });
                }
                _ => {}
            }
        }
    }

    /// Counts the name of a call of a tool as one text, and its arguments as the next one.
    fn count_tool_call(&mut self, call: Option<JsonValue<'_>>, source: TextSource) {
        for (name, value) in call.into_iter().flat_map(JsonValue::raw_members) {
            if *name == *b"name" {
                self.count_tool_name(value, source);
            } else {
                let part = source.part.saturating_add(1);
                self.count_text(value, TextSource { part, ..source });
            }
        }
    }

    /// Counts the name with which a call of a tool begins.
    pub(crate) fn count_tool_name(&mut self, name: JsonValue<'_>, source: TextSource) {
        if name.string_bytes().is_some_and(|name| !name.is_empty()) {
            self.tool_calls = self.tool_calls.saturating_add(1);
            self.count_text(name, source);
        }
    }

    /// Counts a string that the vendor generated.
    pub(crate) fn count_text(&mut self, value: JsonValue<'_>, source: TextSource) {
        self.count_escaped(value.string_bytes().unwrap_or_default(), source);
    }

    /// Counts a value that the vendor generated: the text of a string, or any other value as JSON.
    pub(crate) fn count_value(&mut self, value: JsonValue<'_>, source: TextSource) {
        if matches!(value.kind(), JsonKind::Object | JsonKind::Array) {
            self.begin_piece(source);
            add_json(value, &mut self.text);
        } else {
            self.count_text(value, source);
        }
    }

    /// Counts the content of a JSON string that the vendor generated, with its escapes as written.
    /// A final report that was recorded before it is no longer final.
    pub(crate) fn count_escaped(&mut self, content: &[u8], source: TextSource) {
        if !content.is_empty() {
            self.begin_piece(source);
            self.text.add(&unescape_lossy(content));
        }
    }

    /// Counts bytes that the vendor generated and that the gateway will not read.
    pub(crate) fn count_unread_bytes(&mut self, bytes: usize) {
        self.unread_bytes = self.unread_bytes.saturating_add(bytes as u64);
    }

    fn begin_piece(&mut self, source: TextSource) {
        if self.quality == ReportQuality::Final {
            self.quality = ReportQuality::Partial;
        }
        if self.source != source {
            self.text.end_text();
            self.source = source;
        }
    }
}

/// The member names of a `usage` object: of the input, of the output, of the total, and of the
/// details of the input.
pub(super) type UsageFieldNames = [&'static str; 4];
/// The member names in the chat format.
const CHAT_FIELDS: UsageFieldNames =
    ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"];
/// The member names in the formats of responses and of images.
pub(super) const RESPONSES_FIELDS: UsageFieldNames =
    ["input_tokens", "output_tokens", "total_tokens", "input_tokens_details"];

/// Reads a `usage` object with the member names of its format. A null counts as absent. `None` if
/// the object is not a valid report.
///
/// Some vendors leave reasoning out of the output but not out of the total, so the billable output
/// is the larger of the output and the total − the input. A report with a number that is negative,
/// fractional or above [`TOKENS_MAX`] is invalid.
pub(super) fn read_tokens(usage: JsonValue<'_>, names: UsageFieldNames) -> Option<TokenUsage> {
    let sane = |value: JsonValue<'_>| value.integer().filter(|n| *n <= TOKENS_MAX);
    let (mut input, mut output, mut total) = (None, None, None);
    let mut tokens = TokenUsage::default();
    let known = usage.raw_members().filter_map(|(name, value)| {
        let place = names.iter().position(|known| *known.as_bytes() == *name)?;
        (!value.is_null()).then_some((place, value))
    });
    // What stands after the last of them is not read.
    for (place, value) in known.take(names.len()) {
        match place {
            0 => input = Some(sane(value)?),
            1 => output = Some(sane(value)?),
            2 => total = Some(sane(value)?),
            _ => {
                for (name, value) in value.raw_members() {
                    match &*name {
                        b"cached_tokens" => tokens.cache_read = sane(value).unwrap_or(0),
                        b"cache_write_tokens" => tokens.cache_write = sane(value).unwrap_or(0),
                        _ => {}
                    }
                }
            }
        }
    }
    tokens.input = input?;
    let beyond_input = total.map(|total| total.saturating_sub(tokens.input));
    tokens.output = output.into_iter().chain(beyond_input).max()?;
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain(r#"{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13}"#, Some((11, 2)))]
    #[case::reasoning_only_in_the_total(
        r#"{"prompt_tokens":12,"completion_tokens":1,"total_tokens":241,"completion_tokens_details":{"reasoning_tokens":228}}"#,
        Some((12, 229))
    )]
    #[case::reasoning_left_out(r#"{"prompt_tokens":19,"completion_tokens":84,"total_tokens":1184}"#, Some((19, 1165)))]
    #[case::total_too_small(r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":3}"#, Some((10, 5)))]
    #[case::no_total(r#"{"prompt_tokens":10,"completion_tokens":5}"#, Some((10, 5)))]
    #[case::no_completion(r#"{"prompt_tokens":10,"total_tokens":15}"#, Some((10, 5)))]
    #[case::null_total(
        r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":null}"#,
        Some((10, 5))
    )]
    #[case::null("null", None)]
    #[case::negative(r#"{"prompt_tokens":-1,"completion_tokens":5}"#, None)]
    #[case::fraction(r#"{"prompt_tokens":1.5,"completion_tokens":5}"#, None)]
    #[case::overflow(r#"{"prompt_tokens":18446744073709551616,"completion_tokens":5}"#, None)]
    #[case::absurd(r#"{"prompt_tokens":1000000001,"completion_tokens":5}"#, None)]
    #[case::text(r#"{"prompt_tokens":"10","completion_tokens":5}"#, None)]
    #[case::nothing_but_input(r#"{"prompt_tokens":10}"#, None)]
    fn usage_is_read_or_is_no_report(#[case] json: &str, #[case] expected: Option<(u64, u64)>) {
        let read = super::read_tokens(JsonValue::from_validated(json.as_bytes()), CHAT_FIELDS);
        assert_eq!(read.map(|t| (t.input, t.output)), expected);
    }

    #[test]
    fn the_last_report_counts_and_is_never_added() {
        let mut meter = UsageMeter::default();
        for n in [1, 5, 9] {
            let json = format!(r#"{{"prompt_tokens":7,"completion_tokens":{n}}}"#);
            meter.record_chat_usage(JsonValue::from_validated(json.as_bytes()));
        }
        meter.record_chat_usage(JsonValue::from_validated(b"null"));
        assert_eq!(meter.usage(0).tokens.output, 9);
        assert_eq!(meter.usage(0).basis, UsageBasis::Reported);
    }

    /// Returns a meter that has counted a text of `words` words, and then read these reports, each
    /// followed by as many words again.
    fn metered(words: usize, reports: &[(u64, u64)], quality: ReportQuality) -> UsageMeter {
        let mut meter = UsageMeter::default();
        let text = " word".repeat(words);
        let count = |meter: &mut UsageMeter| {
            meter.count_escaped(text.as_bytes(), TextSource::default());
        };
        count(&mut meter);
        for (input, output) in reports {
            let tokens = TokenUsage { input: *input, output: *output, ..TokenUsage::default() };
            meter.record_tokens(tokens, quality);
            count(&mut meter);
        }
        meter
    }

    #[rstest]
    #[case::whole((9, 5), (9, 5, UsageBasis::Reported))]
    #[case::no_input((0, 5), (7, 5, UsageBasis::Counted))]
    #[case::no_output((9, 0), (9, 22, UsageBasis::Counted))]
    #[case::nothing((0, 0), (7, 22, UsageBasis::Counted))]
    fn a_report_of_nothing_beside_a_text_was_believed(
        #[case] report: (u64, u64),
        #[case] expected: (u64, u64, UsageBasis),
    ) {
        for quality in [ReportQuality::Partial, ReportQuality::Final] {
            let meter = metered(10, &[report], quality);
            let MeteredTokens { tokens, basis } = meter.usage(7);
            assert_eq!((tokens.input, tokens.output, basis), expected);
            assert_eq!(meter.has_whole_report(), expected.2 == UsageBasis::Reported);
        }
        let silent = metered(0, &[(9, 0)], ReportQuality::Final).usage(7);
        assert_eq!((silent.tokens.output, silent.basis), (0, UsageBasis::Reported));
    }

    #[rstest]
    #[case::running_totals(&[(9, 11), (9, 21)], 31)]
    #[case::a_high_total(&[(9, 400), (9, 800)], 810)]
    #[case::a_total_that_stands_still(&[(9, 1), (9, 1)], 32)]
    fn a_cut_stream_costs_its_last_report_and_the_text_since(
        #[case] reports: &[(u64, u64)],
        #[case] expected: u64,
    ) {
        let usage = metered(10, reports, ReportQuality::Partial).usage_so_far(7);
        assert_eq!((usage.tokens.input, usage.tokens.output), (9, expected));
        assert_eq!(usage.basis, UsageBasis::Counted);
    }

    #[test]
    fn choices_whose_pieces_alternate_are_texts_of_their_own() {
        let mut meter = UsageMeter::default();
        let chunk = |index: u64| format!(r#"[{{"index":{index},"delta":{{"content":"word"}}}}]"#);
        for index in [0, 1, 0, 1] {
            meter.count_choices(JsonValue::from_validated(chunk(index).as_bytes()), "delta");
        }
        assert_eq!(meter.usage(0).tokens.output, 4 + 2);
    }
}
