//! Reads the reply to a call that has its conversation compacted.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::reply::{read_tokens, string_length};
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use crate::dialect::meter::{ReportQuality, UsageMeter};

/// The value of the member `object` of a compacted conversation.
const OBJECT: &str = "response.compaction";

/// Meters a compacted conversation: as the vendor reports, or else by the length of what it made.
/// `None` if the reply is none.
///
/// No ids are taken from it. The vendor stores no compaction, and the ids of the messages in it are
/// those that the client sent, whoever they belong to.
pub(crate) fn meter_compaction(reply: &JsonDocument, meter: &mut UsageMeter) -> Option<()> {
    let output = reply.get("output").filter(|output| output.kind() == JsonKind::Array)?;
    reply.get("object").filter(|object| object.text().is_some_and(|text| text == OBJECT))?;
    if let Some(tokens) = reply.get("usage").and_then(read_tokens) {
        meter.record_tokens(tokens, ReportQuality::Final);
        if meter.is_reported() {
            return Some(());
        }
    }
    // The messages in the output are the client's own.
    let made = output.elements().filter_map(|item| item.get("encrypted_content"));
    made.for_each(|sealed: JsonValue<'_>| meter.count_unread_bytes(string_length(sealed)));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::{TokenUsage, UsageBasis};
    use rstest::rstest;

    const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"user","content":[{"type":"input_text","text":"How much is two and two?"}]}"#;

    /// Returns the tokens of a reply and whether the vendor reported them; `None` if the reply is
    /// no compacted conversation. The input counts as 9 tokens.
    fn metered(reply: &str) -> Option<(u64, u64, bool)> {
        let document = JsonDocument::parse_from_vendor(reply.to_owned().into()).expect("sound");
        let mut meter = UsageMeter::default();
        meter_compaction(&document, &mut meter)?;
        let usage = meter.usage(9);
        let TokenUsage { input, output, .. } = usage.tokens;
        Some((input, output, usage.basis == UsageBasis::Reported))
    }

    #[rstest]
    #[case::reported(
        r#"{"input_tokens":139,"input_tokens_details":{"cached_tokens":0},"output_tokens":438,"output_tokens_details":{"reasoning_tokens":64},"total_tokens":577}"#,
        (139, 438, true)
    )]
    #[case::reasoning_only_in_the_total(
        r#"{"input_tokens":139,"output_tokens":374,"total_tokens":577}"#,
        (139, 438, true)
    )]
    #[case::null("null", (9, 4, false))]
    #[case::no_input(r#"{"input_tokens":0,"output_tokens":438}"#, (9, 4, false))]
    #[case::negative(r#"{"input_tokens":139,"output_tokens":-438}"#, (9, 4, false))]
    fn the_pass_is_charged_as_reported_or_by_what_it_made(
        #[case] usage: &str,
        #[case] expected: (u64, u64, bool),
    ) {
        let made = r#"{"id":"cmp_1","type":"compaction","encrypted_content":"gAAAAAB0123456"}"#;
        let reply = format!(
            r#"{{"id":"resp_1","object":"response.compaction","created_at":1,"output":[{MESSAGE},{made}],"usage":{usage}}}"#
        );
        assert_eq!(metered(&reply), Some(expected));
    }

    #[rstest]
    #[case::empty("{}")]
    #[case::a_response(r#"{"id":"resp_1","object":"response","status":"completed","output":[]}"#)]
    #[case::no_output(r#"{"id":"resp_1","object":"response.compaction"}"#)]
    #[case::output_of_text(r#"{"object":"response.compaction","output":"gAA"}"#)]
    #[case::no_object(r#"{"id":"resp_1","output":[]}"#)]
    #[case::an_object_of_another_kind(r#"{"object":["response.compaction"],"output":[]}"#)]
    fn another_reply_is_no_compaction(#[case] reply: &str) {
        assert_eq!(metered(reply), None);
    }
}
