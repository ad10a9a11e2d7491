//! The native messages format: parses its calls, and reads the usage that its replies report.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{count_tool_prompts, read_integer, visit_messages};
use super::call::text_request::{InputSize, TextRequest};
use super::json::{JsonDocument, JsonKind, JsonValue};
use super::meter::TOKENS_MAX;
use crate::money::TokenUsage;

mod server_tools;

pub(crate) use server_tools::REPEATS_MAX;

/// Parses the body of a messages call. All other fields are left to the vendor to check.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub(super) fn parse_request(document: &JsonDocument) -> Result<TextRequest, CallError> {
    // A limit of 0 is valid: such a call fills the vendor's cache and generates nothing.
    let Some(output_max) = read_integer(document, "max_tokens", 0)? else {
        let expected = "the most tokens to generate, a whole number; nothing is filled in here";
        return Err(CallError::missing("max_tokens", expected));
    };
    // With interleaved tool calls, the thinking budget may exceed `max_tokens`.
    let budget = document.get("thinking").and_then(|t| t.get("budget_tokens")?.integer());
    let thinking_max = budget.filter(|budget| *budget > output_max).unwrap_or(0);
    let within_limit = budget.filter(|budget| *budget <= output_max).unwrap_or(0);
    let output_min = within_limit.saturating_add(1);
    let mut input_size = measure_input(document)?;
    let summary = server_tools::add_vendor_reads(document, &mut input_size);
    Ok(TextRequest {
        output_max: Some(output_max),
        output_min,
        choices: 1,
        hidden_output_max: thinking_max.saturating_add(summary.tokens_max),
        summary_output_max: summary.tokens_max,
        expected_summary_max: summary.expected_max,
        input_size,
    })
}

/// Checks the body of a call that only has its input tokens counted. It needs no limit of output.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub(super) fn check_count_request(document: &JsonDocument) -> Result<(), CallError> {
    measure_input(document)?;
    Ok(())
}

/// Checks the shape of the messages, and counts the input that is not text.
fn measure_input(document: &JsonDocument) -> Result<InputSize, CallError> {
    let mut blocks = ContentBlocks::default();
    visit_messages(document, "user or assistant", |content| {
        blocks.count(content, BLOCKS_DEPTH_MAX);
    })?;
    let text_bytes = (document.body().len() as u64).saturating_sub(blocks.non_text_bytes);
    let ContentBlocks { images, documents, .. } = blocks;
    let tools = count_tool_prompts(document, "custom");
    Ok(InputSize {
        images,
        documents,
        vendor_tool_prompt_count: tools,
        text_bytes,
        ..InputSize::default()
    })
}

/// Blocks are counted down to this nesting depth. The deepest ones are images in a fetched page,
/// which is in a fetch result, which is in a result block, which is in a message. Walking the
/// blocks costs the depth times the bytes.
const BLOCKS_DEPTH_MAX: usize = 5;

#[derive(Default)]
struct ContentBlocks {
    images: u64,
    documents: u64,
    /// The bytes of the data of both in the body.
    non_text_bytes: u64,
}

impl ContentBlocks {
    /// Counts the images and documents in a content, also those inside results and documents.
    fn count(&mut self, content: JsonValue<'_>, depth: usize) {
        if depth == 0 {
            return;
        }
        if content.kind() == JsonKind::Object {
            return self.count_block(content, depth);
        }
        content.elements().for_each(|block| self.count_block(block, depth));
    }

    fn count_block(&mut self, block: JsonValue<'_>, depth: usize) {
        let (mut kind, mut source, mut inner) = (None, None, None);
        for (name, value) in block.members() {
            match &*name {
                "type" => kind = value.text(),
                "source" => source = Some(value),
                "content" => inner = Some(value),
                _ => {}
            }
        }
        let from = |name: &str| source.and_then(|s| s.get(name));
        let data_bytes = || from("data").map_or(0, |data| data.raw().len() as u64);
        match kind.as_deref() {
            Some("image") => {
                self.images += 1;
                self.non_text_bytes += data_bytes();
            }
            Some("document") => match from("type").and_then(JsonValue::text).as_deref() {
                Some("text") => {}
                Some("content") => {
                    from("content").into_iter().for_each(|c| self.count(c, depth - 1));
                }
                _ => {
                    self.documents += 1;
                    self.non_text_bytes += data_bytes();
                }
            },
            _ => {}
        }
        inner.into_iter().for_each(|c| self.count(c, depth - 1));
    }
}

/// The usage that the vendor reports for a reply. A stream reports it two times or more, and each
/// later report is for the whole reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReportedUsage {
    /// Input tokens that were neither read from a cache nor written to one.
    input: Option<u64>,
    cache_write: Option<u64>,
    /// The tokens written to a cache by their lifetime: those kept for five minutes, and for an
    /// hour.
    cache_write_by_ttl: [Option<u64>; 2],
    cache_read: Option<u64>,
    output: Option<u64>,
    /// The part of the output tokens that is the model's thinking.
    pub thinking: u64,
    /// The tokens of all steps (`iterations`) of the vendor together; none if it does not report
    /// the steps.
    iteration_totals: TokenUsage,
}

impl ReportedUsage {
    /// Merges a `usage` into the report. Returns whether it has the output tokens. Members that are
    /// absent or null keep the value that was reported before. If a number is negative, fractional
    /// or implausibly large, the whole `usage` is ignored.
    pub(crate) fn merge(&mut self, usage: JsonValue<'_>) -> bool {
        let before = *self;
        let sound = self.read_usage(usage).is_some();
        if !sound {
            *self = before;
        }
        sound && usage.get("output_tokens").is_some_and(|output| !output.is_null())
    }

    fn read_usage(&mut self, usage: JsonValue<'_>) -> Option<()> {
        for (name, value) in usage.members().filter(|(_, v)| !v.is_null()) {
            match &*name {
                "input_tokens" => self.input = Some(plausible_count(value)?),
                "cache_creation_input_tokens" => self.cache_write = Some(plausible_count(value)?),
                "cache_creation" => self.read_cache_ttls(value)?,
                "cache_read_input_tokens" => self.cache_read = Some(plausible_count(value)?),
                "output_tokens" => self.output = Some(plausible_count(value)?),
                "output_tokens_details" => {
                    let thinking = value.get("thinking_tokens").filter(|v| !v.is_null());
                    self.thinking = thinking.and_then(plausible_count).unwrap_or(self.thinking);
                }
                "iterations" => self.iteration_totals = sum_iterations(value)?,
                _ => {}
            }
        }
        Some(())
    }

    fn read_cache_ttls(&mut self, split: JsonValue<'_>) -> Option<()> {
        for (name, value) in split.members().filter(|(_, v)| !v.is_null()) {
            match &*name {
                "ephemeral_5m_input_tokens" => {
                    self.cache_write_by_ttl[0] = Some(plausible_count(value)?);
                }
                "ephemeral_1h_input_tokens" => {
                    self.cache_write_by_ttl[1] = Some(plausible_count(value)?);
                }
                _ => {}
            }
        }
        Some(())
    }

    /// Returns the tokens once both input and output are known, else `None`. Tokens written to a
    /// cache or read from one count as input.
    #[must_use]
    pub(crate) fn tokens(&self) -> Option<TokenUsage> {
        let [five_minutes, hour] = self.cache_write_by_ttl.map(Option::unwrap_or_default);
        let cache_write_by_ttl_sum = five_minutes.saturating_add(hour);
        let cache_write = self.cache_write.unwrap_or(0).max(cache_write_by_ttl_sum);
        let cache_read = self.cache_read.unwrap_or(0);
        let input = self.input?.saturating_add(cache_write).saturating_add(cache_read);
        let steps = self.iteration_totals;
        Some(TokenUsage {
            input: input.max(steps.input),
            output: self.output?.max(steps.output),
            cache_read: cache_read.max(steps.cache_read),
            cache_write: cache_write.max(steps.cache_write),
            cache_write_1h: hour.max(steps.cache_write_1h),
        })
    }
}

fn plausible_count(value: JsonValue<'_>) -> Option<u64> {
    value.integer().filter(|n| *n <= TOKENS_MAX)
}

/// Returns the tokens of all steps together; `None` if a number is implausible. The totals beside
/// the steps may lack a step that is billed.
fn sum_iterations(list: JsonValue<'_>) -> Option<TokenUsage> {
    let add = |sum: u64, count: u64| sum.checked_add(count).filter(|n| *n <= TOKENS_MAX);
    let mut sums = TokenUsage::default();
    for step in list.elements() {
        let mut one = ReportedUsage::default();
        one.read_usage(step)?;
        let tokens = one.tokens().unwrap_or_default();
        sums = TokenUsage {
            input: add(sums.input, tokens.input)?,
            output: add(sums.output, tokens.output)?,
            cache_read: add(sums.cache_read, tokens.cache_read)?,
            cache_write: add(sums.cache_write, tokens.cache_write)?,
            cache_write_1h: add(sums.cache_write_1h, tokens.cache_write_1h)?,
        };
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain(&[r#"{"input_tokens":12,"output_tokens":5}"#], Some((12, 5)))]
    #[case::caches_are_input(
        &[r#"{"input_tokens":12,"cache_creation_input_tokens":100,"cache_read_input_tokens":7,"output_tokens":5}"#],
        Some((119, 5))
    )]
    #[case::later_replaces_and_never_adds(
        &[
            r#"{"input_tokens":2037,"cache_read_input_tokens":3,"output_tokens":1}"#,
            r#"{"input_tokens":15665,"cache_read_input_tokens":null,"output_tokens":20}"#,
            r#"{"output_tokens":33}"#,
        ],
        Some((15668, 33))
    )]
    #[case::one_side(&[r#"{"input_tokens":12}"#], None)]
    #[case::nothing(&["null"], None)]
    #[case::negative(&[r#"{"input_tokens":-1,"output_tokens":5}"#], None)]
    #[case::fraction(&[r#"{"input_tokens":1.5,"output_tokens":5}"#], None)]
    #[case::absurd(&[r#"{"input_tokens":1000000001,"output_tokens":5}"#], None)]
    #[case::an_unsound_report_changes_nothing(
        &[r#"{"input_tokens":12,"output_tokens":5}"#, r#"{"input_tokens":13,"output_tokens":-5}"#],
        Some((12, 5))
    )]
    #[case::a_step_that_the_sums_leave_out(
        &[r#"{"input_tokens":10,"output_tokens":5,"iterations":[{"input_tokens":90,"output_tokens":20},{"input_tokens":10,"output_tokens":5}]}"#],
        Some((100, 25))
    )]
    fn usage_is_read_or_is_no_report(
        #[case] reports: &[&str],
        #[case] expected: Option<(u64, u64)>,
    ) {
        let mut reported = ReportedUsage::default();
        for json in reports {
            reported.merge(JsonValue::from_validated(json.as_bytes()));
        }
        assert_eq!(reported.tokens().map(|t| (t.input, t.output)), expected);
    }

    #[rstest]
    #[case::none(&[r#"{"input_tokens":12,"output_tokens":5}"#], (12, 0, 0))]
    #[case::no_split(
        &[r#"{"input_tokens":12,"cache_creation_input_tokens":7,"output_tokens":5}"#],
        (19, 7, 0)
    )]
    #[case::both_lives(
        &[r#"{"input_tokens":12,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":70},"output_tokens":5}"#],
        (112, 100, 70)
    )]
    #[case::split_alone(
        &[r#"{"input_tokens":12,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":70},"output_tokens":5}"#],
        (112, 100, 70)
    )]
    #[case::split_at_the_start_of_a_stream_only(
        &[
            r#"{"input_tokens":12,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":100},"output_tokens":1}"#,
            r#"{"output_tokens":33,"cache_creation":null}"#,
        ],
        (112, 100, 100)
    )]
    #[case::caches_of_the_steps(
        &[r#"{"input_tokens":10,"cache_creation_input_tokens":4,"output_tokens":5,"iterations":[{"type":"compaction","input_tokens":80,"cache_creation_input_tokens":100,"cache_creation":{"ephemeral_1h_input_tokens":90},"output_tokens":20},{"type":"message","input_tokens":10,"cache_creation_input_tokens":4,"output_tokens":5}]}"#],
        (194, 104, 90)
    )]
    #[case::unsound_split(
        &[r#"{"input_tokens":12,"cache_creation":{"ephemeral_1h_input_tokens":-1},"output_tokens":5}"#, r#"{"input_tokens":1,"output_tokens":5}"#],
        (1, 0, 0)
    )]
    fn what_is_cached_for_an_hour_is_told_apart(
        #[case] reports: &[&str],
        #[case] expected: (u64, u64, u64),
    ) {
        let mut reported = ReportedUsage::default();
        for json in reports {
            reported.merge(JsonValue::from_validated(json.as_bytes()));
        }
        let tokens = reported.tokens().expect("a report");
        assert_eq!((tokens.input, tokens.cache_write, tokens.cache_write_1h), expected);
    }

    #[rstest]
    #[case::text(r#""hi""#, 0, 0, 0)]
    #[case::image(r#"[{"type":"image","source":{"type":"base64","data":"QUJD"}}]"#, 1, 0, 6)]
    #[case::elsewhere(r#"[{"type":"image","source":{"type":"url","url":"https://x"}}]"#, 1, 0, 0)]
    #[case::pages(
        r#"[{"type":"document","source":{"type":"base64","data":"QUJD"}},{"type":"document","source":{"type":"url","url":"https://x"}}]"#,
        0, 2, 6
    )]
    #[case::text_document(
        r#"[{"type":"document","source":{"type":"text","data":"abc"}}]"#,
        0,
        0,
        0
    )]
    #[case::inside_a_result_and_a_document(
        r#"[{"type":"tool_result","content":[{"type":"image","source":{"data":"QQ=="}}]},{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"data":"QQ=="}}]}}]"#,
        2, 0, 12
    )]
    #[case::inside_a_fetched_page(
        r#"[{"type":"web_fetch_tool_result","content":{"type":"web_fetch_result","content":{"type":"document","source":{"type":"url","url":"https://x"}}}}]"#,
        0, 1, 0
    )]
    fn what_is_not_text_is_counted_apart(
        #[case] content: &str,
        #[case] images: u64,
        #[case] documents: u64,
        #[case] non_text_bytes: u64,
    ) {
        let body = format!(
            r#"{{"model":"m","max_tokens":5,"tools":[{{"name":"f"}},{{"type":"bash_1"}}],"messages":[{{"role":"user","content":{content}}}]}}"#
        );
        let length = body.len() as u64;
        let text =
            parse_request(&JsonDocument::parse(body.into()).expect("sound")).expect("a call");
        let text_bytes = length - non_text_bytes;
        let expected = InputSize {
            images,
            documents,
            vendor_tool_prompt_count: 2,
            text_bytes,
            ..InputSize::default()
        };
        assert_eq!(text.input_size, expected);
    }

    #[test]
    fn nested_contents_cost_their_depth_times_their_bytes() {
        let deep = format!("{}{}", r#"[{"content":"#.repeat(25), "}]".repeat(25));
        let deep = deep.replace(":}", r#":"x"}"#);
        let body = format!(
            r#"{{"model":"m","max_tokens":5,"messages":[{{"role":"user","content":{deep}}}]}}"#
        );
        assert!(parse_request(&JsonDocument::parse(body.into()).expect("sound")).is_ok());
        let mut blocks = ContentBlocks::default();
        let image = r#"[{"content":[{"content":[{"content":[{"content":[{"content":[{"type":"image"}]}]}]}]}]}]"#;
        blocks.count(JsonValue::from_validated(image.as_bytes()), BLOCKS_DEPTH_MAX);
        assert_eq!(blocks.images, 0, "what lies so deep is looked at by nobody");
    }
}
