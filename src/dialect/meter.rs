//! Determines the usage of a call: reads what the vendor reports, and counts where the vendor
//! reports nothing.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::json::JsonValue;
use crate::money::{BilledUnits, TokenUsage, Usage, UsageBasis};
use bounds::UsageBounds;

pub mod bounds;

/// A report of more tokens in one call is treated as a vendor error.
pub(super) const TOKENS_MAX: u64 = 1_000_000_000;

/// A reported cost of more than this many ticks (10 USD), or of 0, is a vendor error and no report.
const TICKS_MAX: u64 = 100_000_000_000;

/// Bytes of text per token in estimates. English text averages near four.
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

/// Estimates the tokens of a text from its bytes.
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

/// Collects a call's usage: what the vendor reports, and what the gateway counts.
#[derive(Debug, Clone, Default)]
pub struct UsageMeter {
    reported: Option<TokenUsage>,
    quality: ReportQuality,
    /// Bytes of text that the vendor generated.
    text_bytes: u64,
    /// The number of pieces in which the text arrived; most vendors send about one token in each.
    text_chunks: u64,
    /// A report above these bounds is rejected.
    bounds: UsageBounds,
}

impl UsageMeter {
    /// Sets the bounds above which a report is rejected.
    pub(crate) fn set_bounds(&mut self, bounds: UsageBounds) {
        self.bounds = bounds;
    }

    /// Returns the vendor's report, if it is rejected because it exceeds the bounds.
    #[must_use]
    pub(crate) fn rejected_report(&self) -> Option<TokenUsage> {
        self.reported.filter(|tokens| !self.bounds.admits_tokens(*tokens, self.estimated_output()))
    }

    /// Returns the vendor's report, if it is within the bounds.
    fn accepted_report(&self) -> Option<TokenUsage> {
        self.reported.filter(|tokens| self.bounds.admits_tokens(*tokens, self.estimated_output()))
    }

    /// Records the `usage` of a chat reply or chunk. A later report replaces an earlier one, since
    /// vendors that report repeatedly send running totals.
    pub(crate) fn record_chat_usage(&mut self, usage: JsonValue<'_>) {
        if let Some(tokens) = read_tokens(usage, CHAT_FIELDS) {
            self.reported = Some(tokens);
        }
    }

    /// Records tokens that the vendor reported.
    pub(crate) fn record_tokens(&mut self, tokens: TokenUsage, quality: ReportQuality) {
        self.reported = Some(tokens);
        self.quality = quality;
    }

    /// Counts the text in the choices of a chat reply or chunk. `text_member` is the member that
    /// holds the text: `message` in a reply, `delta` in a chunk. Returns how many choices have a
    /// finish reason.
    pub(crate) fn count_choices(&mut self, choices: JsonValue<'_>, text_member: &str) -> u64 {
        let mut finished = 0;
        for choice in choices.elements() {
            for (name, value) in choice.raw_members() {
                if *name == *text_member.as_bytes() {
                    self.count_message(value);
                } else if *name == *b"finish_reason" && !value.is_null() {
                    finished += 1;
                }
            }
        }
        finished
    }

    /// Returns the usage of a reply that was cut off. A vendor that reports while it generates may
    /// have reported less output than it had sent; then the counted output is used. `input` is the
    /// number of input tokens if the vendor reports none.
    #[must_use]
    pub(crate) fn usage_so_far(&self, input: u64) -> MeteredTokens {
        let usage = self.usage(input);
        if usage.tokens.output >= self.estimated_output() || self.quality == ReportQuality::Final {
            return usage;
        }
        let tokens = TokenUsage { output: self.estimated_output(), ..usage.tokens };
        MeteredTokens { tokens, basis: UsageBasis::Counted }
    }

    /// Whether the vendor has reported usage that is within the bounds, given the output that was
    /// counted so far.
    #[must_use]
    pub(crate) fn is_reported(&self) -> bool {
        self.accepted_report().is_some()
    }

    /// Whether the vendor generated any output.
    #[must_use]
    pub(crate) fn has_output(&self) -> bool {
        let reported = self.accepted_report().is_some_and(|t| t.output > 0);
        self.text_bytes > 0 || (reported && self.quality != ReportQuality::Early)
    }

    /// Returns the usage: as reported, or else the counted output with `input` input tokens.
    #[must_use]
    pub fn usage(&self, input: u64) -> MeteredTokens {
        let output = self.estimated_output();
        if let Some(tokens) = self.accepted_report() {
            if self.quality == ReportQuality::Early {
                let tokens = TokenUsage { output: output.max(tokens.output), ..tokens };
                return MeteredTokens { tokens, basis: UsageBasis::Counted };
            }
            return MeteredTokens { tokens, basis: UsageBasis::Reported };
        }
        MeteredTokens {
            tokens: TokenUsage { input, output, ..TokenUsage::default() },
            basis: UsageBasis::Counted,
        }
    }

    /// Returns the output tokens estimated from the text so far, whatever the vendor reports.
    fn estimated_output(&self) -> u64 {
        estimate_tokens(self.text_bytes).max(self.text_chunks)
    }

    fn count_message(&mut self, message: JsonValue<'_>) {
        for (name, value) in message.raw_members() {
            match &*name {
                b"content" | b"reasoning_content" | b"reasoning" | b"refusal" => {
                    self.count_text(value);
                }
                b"tool_calls" => {
                    for call in value.elements() {
                        self.count_tool_call(call.get("function").or_else(|| call.get("custom")));
                    }
                }
                // The older form of a tool call.
                b"function_call" => self.count_tool_call(Some(value)),
                _ => {}
            }
        }
    }

    fn count_tool_call(&mut self, call: Option<JsonValue<'_>>) {
        call.into_iter()
            .flat_map(JsonValue::raw_members)
            .for_each(|(_, value)| self.count_text(value));
    }

    /// Counts a string that the vendor generated.
    pub(crate) fn count_text(&mut self, value: JsonValue<'_>) {
        self.count_bytes(value.string_bytes().map_or(0, <[u8]>::len));
    }

    /// Counts `bytes` bytes that the vendor generated, as one piece. A final report that was
    /// recorded before them is no longer final.
    pub(crate) fn count_bytes(&mut self, bytes: usize) {
        if bytes > 0 {
            if self.quality == ReportQuality::Final {
                self.quality = ReportQuality::Partial;
            }
            self.text_bytes += bytes as u64;
            self.text_chunks += 1;
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
    for (name, value) in usage.raw_members().filter(|(_, value)| !value.is_null()) {
        match names.iter().position(|known| *known.as_bytes() == *name) {
            Some(0) => input = Some(sane(value)?),
            Some(1) => output = Some(sane(value)?),
            Some(2) => total = Some(sane(value)?),
            Some(_) => {
                let part = |name| value.get(name).and_then(sane).unwrap_or(0);
                tokens.cache_read = part("cached_tokens");
                tokens.cache_write = part("cache_write_tokens");
            }
            None => {}
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
}
