//! Reads a reply, in one body or as events: its usage, and the ids of the objects that the vendor
//! stores.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use super::stored_objects::ID_BYTES_MAX;
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use crate::dialect::meter::{self, ReportQuality, TextSource, UsageMeter};
use crate::dialect::redaction::{redact, redact_json};
use crate::dialect::vendor_error::{self, VendorError};
use crate::money::TokenUsage;

/// At most this many ids of output items are recorded.
const ITEM_IDS_MAX: usize = 128;

/// At most this many members of a long error are kept, and only those with names of at most
/// `ERROR_NAME_BYTES_MAX` bytes.
const ERROR_MEMBERS_MAX: usize = 16;
const ERROR_NAME_BYTES_MAX: usize = 64;

/// The part of an output item that is the name of a tool; its texts are the parts from 0.
const NAME_PART: u64 = u64::MAX;

/// The facts read from a reply, or from a stream so far.
#[derive(Debug, Default)]
pub(crate) struct ResponseState {
    /// The ids of the response and of its conversation.
    response_ids: Vec<String>,
    /// The ids of the output items.
    item_ids: Vec<String>,
    /// How many of `response_ids` and of `item_ids` `take_issued_ids` has returned.
    issued_counts: [usize; 2],
    /// Whether the vendor reported that it does not store the response.
    is_unstored: bool,
    is_unbilled: bool,
    /// Bytes of generated text that were counted in deltas.
    counted_bytes: usize,
    /// Whether the names of called tools were counted as their items were added.
    has_counted_names: bool,
    sequence_number: u64,
}

/// Ids that were sent to the client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IssuedIds {
    /// Ids of a response and its conversation, which give access to all input and output.
    pub response_ids: Vec<String>,
    /// Ids of output items, which give access to that output only.
    pub item_ids: Vec<String>,
}

impl ResponseState {
    /// Reads a reply in one body. `None` if the body is not a response object.
    pub(crate) fn read_reply(
        &mut self,
        reply: &JsonDocument,
        meter: &mut UsageMeter,
    ) -> Option<()> {
        let response =
            ResponseMembers::from_object(JsonValue::from_validated(reply.body().trim_ascii()));
        response.id.and_then(JsonValue::text)?;
        response.status.and_then(JsonValue::text)?;
        self.finish(&response, false, meter);
        Some(())
    }

    /// Reads an event. `None` if it has neither a `type` nor an error.
    pub(crate) fn read_event(
        &mut self,
        event: &JsonDocument,
        meter: &mut UsageMeter,
    ) -> Option<EventStep> {
        let Some(kind) = event.get("type").and_then(JsonValue::text) else {
            return VendorError::from_event(event).map(EventStep::Error);
        };
        if kind == "error" {
            // The sequence number of this event is not recorded: the client gets another event in
            // its place.
            return Some(EventStep::Error(parse_error_event(event)));
        }
        if let Some(number) = event.get("sequence_number").and_then(JsonValue::integer) {
            self.sequence_number = number.saturating_add(1);
        }
        let response =
            || event.get("response").map(ResponseMembers::from_object).unwrap_or_default();
        match &*kind {
            "response.output_text.delta"
            | "response.refusal.delta"
            | "response.function_call_arguments.delta"
            | "response.custom_tool_call_input.delta"
            | "response.mcp_call_arguments.delta"
            | "response.code_interpreter_call_code.delta"
            | "response.shell_call_command.delta"
            | "response.reasoning_text.delta"
            | "response.reasoning_summary_text.delta" => {
                let place = |name| event.get(name).and_then(JsonValue::integer).unwrap_or(0);
                let source =
                    TextSource { index: place("output_index"), part: place("content_index") };
                if let Some(delta) = event.get("delta") {
                    self.counted_bytes += string_length(delta);
                    meter.count_text(delta, source);
                }
            }
            "response.output_item.added" => {
                event.get("item").into_iter().for_each(|item| self.record_item_id(item));
                if kind == "response.output_item.added" {
                    self.count_name(event, meter);
                }
                if let (Some(uses), Some(item)) = (meter.tool_uses_mut(), event.get("item")) {
                    uses.see_item(item);
                }
            }
            "response.output_item.done" => {
                if let Some(item) = event.get("item") {
                    self.record_item_id(item);
                    let bytes = task_bytes(item);
                    self.counted_bytes += bytes;
                    meter.count_unread_bytes(bytes);
                }
            }
            "response.created" | "response.queued" | "response.in_progress" => {
                let response = response();
                self.record_ids(&response);
                if let Some(tokens) = response.usage.and_then(read_tokens) {
                    meter.record_tokens(tokens, ReportQuality::Early);
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.finish(&response(), kind == "response.failed", meter);
                return Some(EventStep::Last);
            }
            _ => {}
        }
        Some(EventStep::Continue)
    }

    /// Returns the ids that were sent to the client since the last call of this function, each of
    /// them once. Empty if the vendor does not store the response.
    pub(crate) fn take_issued_ids(&mut self) -> IssuedIds {
        if self.is_unstored {
            return IssuedIds::default();
        }
        let [ids, items] = self.issued_counts;
        self.issued_counts = [self.response_ids.len(), self.item_ids.len()];
        IssuedIds {
            response_ids: self.response_ids[ids..].to_vec(),
            item_ids: self.item_ids[items..].to_vec(),
        }
    }

    /// Whether the response failed without reported usage, so that nothing is charged.
    #[must_use]
    pub(crate) fn is_unbilled(&self) -> bool {
        self.is_unbilled
    }

    /// Returns the sequence number of the next event.
    #[must_use]
    pub(crate) fn next_sequence_number(&self) -> u64 {
        self.sequence_number
    }

    /// Reads the final response object.
    fn finish(&mut self, response: &ResponseMembers<'_>, has_failed: bool, meter: &mut UsageMeter) {
        self.record_ids(response);
        if let Some(uses) = meter.tool_uses_mut() {
            uses.see_output(response.output);
            uses.read_report(|name| response.object?.get(name));
        }
        let reported = response.usage.and_then(read_tokens);
        if let Some(tokens) = reported {
            meter.record_tokens(tokens, ReportQuality::Final);
            if meter.has_whole_report() {
                return;
            }
        }
        // Text that came in no delta was generated all the same, so it is counted here.
        let items = || response.output.into_iter().flat_map(JsonValue::elements);
        if self.counted_bytes == 0 {
            let with_names = !self.has_counted_names;
            let items = (0..).zip(items());
            items.for_each(|(index, item)| count_item(item, index, with_names, meter));
        } else {
            let bytes = items().map(generated_bytes).fold(0, usize::saturating_add);
            meter.count_unread_bytes(bytes.saturating_sub(self.counted_bytes));
        }
        // The text counted above may make the report plausible, so that the meter now accepts it.
        let is_billed = reported.is_some() && meter.is_reported();
        let status = response.status.and_then(JsonValue::text);
        self.is_unbilled = !is_billed && (has_failed || status.as_deref() == Some("failed"));
    }

    /// Counts the name of the tool that an added item calls.
    fn count_name(&mut self, event: &JsonDocument, meter: &mut UsageMeter) {
        let index = event.get("output_index").and_then(JsonValue::integer).unwrap_or_default();
        if let Some(name) = event.get("item").and_then(|item| item.get("name")) {
            self.has_counted_names = true;
            meter.count_tool_name(name, TextSource { index, part: NAME_PART });
        }
    }

    fn record_ids(&mut self, response: &ResponseMembers<'_>) {
        self.is_unstored |= response.store.and_then(JsonValue::bool) == Some(false);
        let conversation = response.conversation.and_then(|conversation| conversation.get("id"));
        for id in [response.id, conversation].into_iter().flatten() {
            self.push_id(id, false);
        }
        let items = response.output.into_iter().flat_map(JsonValue::elements);
        items.take(ITEM_IDS_MAX).for_each(|item| self.record_item_id(item));
    }

    fn record_item_id(&mut self, item: JsonValue<'_>) {
        item.get("id").into_iter().for_each(|id| self.push_id(id, true));
    }

    /// Records an id, unless it is known, too long or beyond the limit.
    fn push_id(&mut self, id: JsonValue<'_>, is_item: bool) {
        let fits = |id: &str| (1..=ID_BYTES_MAX).contains(&id.len());
        let Some(id) = id.text().filter(|id| fits(id)) else { return };
        let is_known = self.response_ids.iter().chain(&self.item_ids).any(|known| *known == id);
        let (ids, most) =
            if is_item { (&mut self.item_ids, ITEM_IDS_MAX) } else { (&mut self.response_ids, 2) };
        if !is_known && ids.len() < most {
            ids.push(id.into_owned());
        }
    }
}

/// Whether a stream continues after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventStep {
    /// The stream continues.
    Continue,
    /// The event was the last one of the stream.
    Last,
    /// The stream ends with an error that the vendor reported.
    Error(VendorError),
}

/// Returns the error event that ends a broken stream. The error is in it twice: the format defines
/// it as members of the event, and clients raise the one in `error`.
#[must_use]
pub fn error_event(kind: &str, code: &str, message: &str, sequence_number: u64) -> String {
    let message = json_string(message);
    let error = format!(r#"{{"message":{message},"type":"{kind}","param":null,"code":"{code}"}}"#);
    format!(
        "event: error\ndata: {{\"type\":\"error\",\"code\":\"{code}\",\
         \"message\":{message},\"param\":null,\"sequence_number\":{sequence_number},\
         \"error\":{error}}}\n\n"
    )
}

/// The members of a response object that the gateway reads.
#[derive(Default)]
struct ResponseMembers<'a> {
    /// The response itself.
    object: Option<JsonValue<'a>>,
    id: Option<JsonValue<'a>>,
    status: Option<JsonValue<'a>>,
    conversation: Option<JsonValue<'a>>,
    store: Option<JsonValue<'a>>,
    output: Option<JsonValue<'a>>,
    usage: Option<JsonValue<'a>>,
}

impl<'a> ResponseMembers<'a> {
    fn from_object(object: JsonValue<'a>) -> ResponseMembers<'a> {
        let mut response = ResponseMembers { object: Some(object), ..ResponseMembers::default() };
        for (name, value) in object.members() {
            let place = match &*name {
                "id" => &mut response.id,
                "status" => &mut response.status,
                "conversation" => &mut response.conversation,
                "store" => &mut response.store,
                "output" => &mut response.output,
                "usage" => &mut response.usage,
                _ => continue,
            };
            *place = Some(value);
        }
        response
    }
}

/// Reads a usage report. A report of 0 input tokens is ignored, because every input has tokens.
pub(super) fn read_tokens(usage: JsonValue<'_>) -> Option<TokenUsage> {
    meter::read_tokens(usage, meter::RESPONSES_FIELDS).filter(|tokens| tokens.input > 0)
}

/// Counts the text of an output item that the model generated, and the name of the tool that it
/// calls if `with_name` is true.
fn count_item(item: JsonValue<'_>, index: u64, with_name: bool, meter: &mut UsageMeter) {
    if let Some(name) = item.get("name").filter(|_| with_name) {
        meter.count_tool_name(name, TextSource { index, part: NAME_PART });
    }
    meter.count_unread_bytes(unread_bytes(item));
    (0..).zip(generated_texts(item)).for_each(|(part, text)| {
        meter.count_text(text, TextSource { index, part });
    });
}

/// Returns how many bytes of an output item the model generated.
fn generated_bytes(item: JsonValue<'_>) -> usize {
    let texts = generated_texts(item).map(string_length);
    texts.fold(unread_bytes(item), usize::saturating_add)
}

/// Returns how many bytes of an output item the model generated that are no text.
fn unread_bytes(item: JsonValue<'_>) -> usize {
    // Nothing else is there of a compacted conversation. Of a thought there may be a summary.
    let sealed = item.get("encrypted_content").filter(|_| has_type(item, "compaction"));
    task_bytes(item).saturating_add(sealed.map_or(0, string_length))
}

/// Returns the texts in an output item that the model generated.
fn generated_texts(item: JsonValue<'_>) -> impl Iterator<Item = JsonValue<'_>> {
    item.raw_members().flat_map(|(name, value)| {
        let (alone, parts) = match &*name {
            b"arguments" | b"input" => (Some(value), None),
            b"content" | b"summary" => (None, Some(value)),
            _ => (None, None),
        };
        let inside =
            parts.into_iter().flat_map(JsonValue::elements).flat_map(JsonValue::raw_members);
        let texts = inside.filter(|(name, _)| matches!(&**name, b"text" | b"refusal"));
        alone.into_iter().chain(texts.map(|(_, text)| text))
    })
}

/// Returns the length of what a call of a shell or of a patch tells the client to do. No delta
/// brings it.
fn task_bytes(item: JsonValue<'_>) -> usize {
    let tasks = [("local_shell_call", "action"), ("apply_patch_call", "operation")];
    let task = tasks.into_iter().find(|(kind, _)| has_type(item, kind));
    task.and_then(|(_, name)| item.get(name)).map_or(0, |task| task.raw().len())
}

fn has_type(item: JsonValue<'_>, kind: &str) -> bool {
    item.get("type").and_then(JsonValue::text).is_some_and(|found| found == kind)
}

/// Returns the length of a string in bytes, with its escapes as written.
pub(super) fn string_length(text: JsonValue<'_>) -> usize {
    text.string_bytes().map_or(0, <[u8]>::len)
}

/// Returns the error of an error event, from its member `error` or from the members of the event.
fn parse_error_event(event: &JsonDocument) -> VendorError {
    if let Some(error) = VendorError::from_event(event).filter(|error| error.message.is_some()) {
        return error;
    }
    VendorError {
        message: event.get("message").and_then(vendor_error::clean_message),
        code: event.get("code").and_then(vendor_error::clean_identifier),
        param: event.get("param").and_then(vendor_error::clean_identifier),
        ..VendorError::default()
    }
}

/// Returns the reply, or the event with a reply, with secrets of the operator removed from its
/// error and with a long error shortened. `None` if there is no error, or if the error is short and
/// has no secrets.
#[must_use]
pub(crate) fn redact_error(document: &JsonDocument) -> Option<Vec<u8>> {
    let response = document.get("response").filter(|response| response.kind() == JsonKind::Object);
    let error = response.map_or_else(|| document.get("error"), |response| response.get("error"))?;
    let clean = if vendor_error::is_short(error) {
        contains_secrets(error).then(|| redact_json(error))?
    } else {
        shorten_error(error)
    };
    let body = document.body();
    let start = error.raw().as_ptr() as usize - body.as_ptr() as usize;
    let end = start + error.raw().len();
    Some([&body[..start], clean.as_bytes(), &body[end..]].concat())
}

/// Shortens a long error and removes its secrets. Only the part that is shown is searched for
/// secrets, since an error may be very long.
fn shorten_error(error: JsonValue<'_>) -> String {
    if error.kind() != JsonKind::Object {
        return shorten_value(error).unwrap_or_else(|| "null".to_owned());
    }
    let member = |(name, value): (Cow<'_, str>, JsonValue<'_>)| {
        let is_fit =
            name.len() <= ERROR_NAME_BYTES_MAX && matches!(redact(&name), Cow::Borrowed(_));
        let shown = shorten_value(value).filter(|_| is_fit)?;
        Some(format!("{}:{shown}", json_string(&name)))
    };
    let members: Vec<_> = error.members().take(ERROR_MEMBERS_MAX).filter_map(member).collect();
    format!("{{{}}}", members.join(","))
}

/// Returns what is shown of a part of a long error: the beginning of a string, or any other value
/// as a whole if it is short. `None` if it is left out.
fn shorten_value(value: JsonValue<'_>) -> Option<String> {
    if value.kind() == JsonKind::String {
        return Some(json_string(&vendor_error::clean_message(value).unwrap_or_default()));
    }
    vendor_error::is_short(value).then(|| redact_json(value))
}

/// Whether redaction would change any string or name in a value.
fn contains_secrets(value: JsonValue<'_>) -> bool {
    match value.kind() {
        JsonKind::String => matches!(redact(&value.text().unwrap_or_default()), Cow::Owned(_)),
        JsonKind::Array => value.elements().any(contains_secrets),
        JsonKind::Object => value
            .members()
            .any(|(name, value)| matches!(redact(&name), Cow::Owned(_)) || contains_secrets(value)),
        JsonKind::Bool | JsonKind::Number | JsonKind::Null => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::meter::MeteredTokens;
    use crate::money::UsageBasis;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use rstest::rstest;

    fn document(json: &str) -> JsonDocument {
        JsonDocument::parse_from_vendor(json.to_owned().into()).expect("sound")
    }

    /// Takes the new ids; those of items come last.
    fn ids(state: &mut ResponseState) -> Vec<String> {
        let IssuedIds { response_ids: whole, item_ids: items } = state.take_issued_ids();
        [whole, items].concat()
    }

    fn read_whole(json: &str) -> Option<(ResponseState, UsageMeter)> {
        let (mut state, mut meter) = (ResponseState::default(), UsageMeter::default());
        state.read_reply(&document(json), &mut meter).map(|()| (state, meter))
    }

    /// Reads all events. Returns the state, the meter and the result of the last event.
    fn read_events<T: AsRef<str>>(events: &[T]) -> (ResponseState, UsageMeter, Option<EventStep>) {
        let (mut state, mut meter, mut step) =
            (ResponseState::default(), UsageMeter::default(), None);
        for event in events {
            step = state.read_event(&document(event.as_ref()), &mut meter);
        }
        (state, meter, step)
    }

    fn counted(input: u64, output: u64) -> MeteredTokens {
        let tokens = TokenUsage { input, output, ..TokenUsage::default() };
        MeteredTokens { tokens, basis: UsageBasis::Counted }
    }

    fn reported(input: u64, output: u64) -> MeteredTokens {
        MeteredTokens { basis: UsageBasis::Reported, ..counted(input, output) }
    }

    #[rstest]
    #[case::plain(r#"{"input_tokens":80,"output_tokens":310,"total_tokens":390}"#, Some((80, 310)))]
    #[case::total_above(r#"{"input_tokens":80,"output_tokens":10,"total_tokens":390}"#, Some((80, 310)))]
    #[case::total_below(r#"{"input_tokens":80,"output_tokens":310,"total_tokens":3}"#, Some((80, 310)))]
    #[case::no_total(r#"{"input_tokens":80,"output_tokens":310,"total_tokens":null}"#, Some((80, 310)))]
    #[case::no_output(r#"{"input_tokens":80,"total_tokens":390}"#, Some((80, 310)))]
    #[case::null("null", None)]
    #[case::empty("{}", None)]
    #[case::no_input(r#"{"output_tokens":310,"total_tokens":390}"#, None)]
    #[case::only_input(r#"{"input_tokens":80,"output_tokens":null}"#, None)]
    #[case::negative(r#"{"input_tokens":-7,"output_tokens":310}"#, None)]
    #[case::fraction(r#"{"input_tokens":80,"output_tokens":3.75}"#, None)]
    #[case::absurd(r#"{"input_tokens":80,"output_tokens":1000000001}"#, None)]
    #[case::huge(
        r#"{"input_tokens":80,"output_tokens":5,"total_tokens":99999999999999999999}"#,
        None
    )]
    #[case::text(r#"{"input_tokens":"80","output_tokens":310}"#, None)]
    fn usage_is_read_or_is_no_report(#[case] json: &str, #[case] expected: Option<(u64, u64)>) {
        let read = read_tokens(JsonValue::from_validated(json.as_bytes()));
        assert_eq!(read.map(|t| (t.input, t.output)), expected);
    }

    #[rstest]
    #[case::both(r#"{"cached_tokens":7,"cache_write_tokens":9}"#, (7, 9))]
    #[case::one(r#"{"cached_tokens":7,"cache_write_tokens":null}"#, (7, 0))]
    #[case::unsound(r#"{"cached_tokens":-7,"cache_write_tokens":1.5}"#, (0, 0))]
    #[case::null("null", (0, 0))]
    fn the_cache_is_part_of_the_input(#[case] details: &str, #[case] expected: (u64, u64)) {
        let json =
            format!(r#"{{"input_tokens":80,"input_tokens_details":{details},"output_tokens":1}}"#);
        let read = read_tokens(JsonValue::from_validated(json.as_bytes())).expect("a report");
        assert_eq!((read.cache_read, read.cache_write, read.input), (expected.0, expected.1, 80));
    }

    #[rstest]
    #[case::completed(
        r#""status":"completed","usage":{"input_tokens":8,"output_tokens":5}"#,
        reported(8, 5),
        false
    )]
    #[case::counted(
        r#""status":"incomplete","usage":null,"output":[{"type":"reasoning","summary":[{"text":"1234"}],"content":[{"text":"5678"}]},{"type":"message","content":[{"type":"output_text","text":"1234"},{"type":"refusal","refusal":"5"}]},{"type":"function_call","name":"f","arguments":"1234"},{"type":"custom_tool_call","input":"1234"},{"type":"web_search_call","action":{"query":"1234"}}]"#,
        counted(25, 29),
        false
    )]
    #[case::unsound(
        r#""status":"completed","usage":{"input_tokens":8,"output_tokens":-5}"#,
        counted(25, 0),
        false
    )]
    #[case::failed(
        r#""status":"failed","error":{"message":"no"},"usage":null"#,
        counted(25, 0),
        true
    )]
    #[case::failed_unsoundly(
        r#""status":"failed","usage":{"input_tokens":-8}"#,
        counted(25, 0),
        true
    )]
    #[case::failed_and_billed(
        r#""status":"failed","usage":{"input_tokens":8,"output_tokens":5}"#,
        reported(8, 5),
        false
    )]
    fn a_reply_tells_what_is_due(
        #[case] members: &str,
        #[case] usage: MeteredTokens,
        #[case] is_unpaid: bool,
    ) {
        let (state, meter) = read_whole(&format!(" {{\"id\":\"r\",{members}}}\n")).expect("read");
        assert_eq!((meter.usage(25), state.is_unbilled()), (usage, is_unpaid));
    }

    #[rstest]
    #[case::error(r#"{"error":{"message":"no"}}"#)]
    #[case::no_id(r#"{"status":"completed","output":[]}"#)]
    #[case::no_status(r#"{"id":"resp_1","output":[]}"#)]
    #[case::wrong_id(r#"{"id":1,"status":"completed"}"#)]
    #[case::wrong_status(r#"{"id":"resp_1","status":null}"#)]
    fn what_is_no_response_is_not_read(#[case] json: &str) {
        assert!(read_whole(json).is_none());
    }

    #[rstest]
    #[case::all(r#""conversation":{"id":"c"},"output":[{"id":"i"},{"id":"j"},{"id":"i"},{"id":""},{"id":7},{}]"#, &["r", "c", "i", "j"])]
    #[case::of_another_object(r#""conversation":{"id":"r"},"output":[{"id":"i"},{"id":"r"}]"#, &["r", "i"])]
    #[case::stored(r#""store":true,"output":null"#, &["r"])]
    #[case::unstored(r#""store":false,"output":[{"id":"i"}]"#, &[])]
    fn ids_are_given_once(#[case] members: &str, #[case] expected: &[&str]) {
        let json = format!(r#"{{"id":"r","status":"completed",{members}}}"#);
        let (mut state, _) = read_whole(&json).expect("a response");
        assert_eq!(ids(&mut state), expected);
        assert!(ids(&mut state).is_empty());
    }

    #[test]
    fn ids_are_given_as_they_come() {
        let (mut state, mut meter) = (ResponseState::default(), UsageMeter::default());
        let mut after = |json: &str| {
            state.read_event(&document(json), &mut meter);
            ids(&mut state)
        };
        let created = r#"{"type":"response.created","response":{"conversation":{"id":"c"},"id":"r","output":[]}}"#;
        assert_eq!(after(created), ["r", "c"]);
        assert_eq!(after(r#"{"type":"response.output_item.added","item":{"id":"i"}}"#), ["i"]);
        assert!(after(r#"{"type":"response.output_item.done","item":{"id":"i"}}"#).is_empty());
        assert_eq!(after(r#"{"type":"response.output_item.done","item":{"id":"j"}}"#), ["j"]);
        let completed = r#"{"type":"response.completed","response":{"id":"r","output":[{"id":"i"},{"id":"k"}]}}"#;
        assert_eq!(after(completed), ["k"]);
    }

    #[test]
    fn only_the_first_items_are_given() {
        let items: Vec<_> = (0..200).map(|n| format!(r#"{{"id":"i{n}"}}"#)).collect();
        let output = items.join(",");
        let json = format!(
            r#"{{"output":[{output}],"id":"r","status":"completed","conversation":{{"id":"c"}}}}"#
        );
        let given = ids(&mut read_whole(&json).expect("a response").0);
        assert_eq!((given.len(), given[1].as_str(), given[129].as_str()), (130, "c", "i127"));
        let events: Vec<_> = items
            .iter()
            .map(|item| format!(r#"{{"type":"response.output_item.done","item":{item}}}"#))
            .chain([format!(r#"{{"type":"response.completed","response":{json}}}"#)])
            .collect();
        assert_eq!(ids(&mut read_events(&events).0), given);
        let long = format!(r#"{{"id":"{}","status":"completed"}}"#, "r".repeat(257));
        assert!(ids(&mut read_whole(&long).expect("a response").0).is_empty());
    }

    #[rstest]
    #[case::no_type(r#"{"sequence_number":1}"#, None)]
    #[case::odd_type(r#"{"type":1}"#, None)]
    #[case::unknown(
        r#"{"type":"response.dreamt","error":{"message":"no"}}"#,
        Some(EventStep::Continue)
    )]
    #[case::completed(
        r#"{"type":"response.completed","response":{"error":null}}"#,
        Some(EventStep::Last)
    )]
    #[case::incomplete(r#"{"type":"response.incomplete"}"#, Some(EventStep::Last))]
    #[case::failed(
        r#"{"type":"response.failed","response":{"error":{"message":"no"}}}"#,
        Some(EventStep::Last)
    )]
    fn an_event_goes_on_or_ends(#[case] json: &str, #[case] expected: Option<EventStep>) {
        assert_eq!(read_events(&[json]).2, expected);
    }

    #[rstest]
    #[case::usual(r#"{"type":"error","code":"c","message":"no","param":"p","sequence_number":3}"#, ["no", "c", "p", ""])]
    #[case::inside(r#"{"type":"error","error":{"type":"t","message":"no","code":"c","param":"p"}}"#, ["no", "c", "p", "t"])]
    #[case::nothing_inside(r#"{"type":"error","message":"no","code":null,"param":null,"error":null}"#, ["no", "", "", ""])]
    #[case::both(r#"{"type":"error","message":"no","code":"c","error":{}}"#, ["no", "c", "", ""])]
    #[case::bare(r#"{"error":{"message":"no"}}"#, ["no", "", "", ""])]
    #[case::mute(r#"{"type":"error"}"#, ["", "", "", ""])]
    fn an_error_is_read(#[case] json: &str, #[case] expected: [&str; 4]) {
        let (state, _, step) = read_events(&[r#"{"type":"a","sequence_number":2}"#, json]);
        let Some(EventStep::Error(error)) = step else { panic!("no error: {step:?}") };
        let VendorError { message, code, param, kind, .. } = error;
        assert_eq!([message, code, param, kind].map(Option::unwrap_or_default), expected);
        assert_eq!(state.next_sequence_number(), 3, "the error takes the place of the vendor's");
    }

    #[test]
    fn the_error_event_has_both_shapes() {
        let expected = concat!(
            "event: error\ndata: ",
            r#"{"type":"error","code":"upstream_error","message":"a \"b\"","param":null,"sequence_number":7,"#,
            r#""error":{"message":"a \"b\"","type":"server_error","param":null,"code":"upstream_error"}}"#,
            "\n\n"
        );
        assert_eq!(error_event("server_error", "upstream_error", "a \"b\"", 7), expected);
        assert_eq!(ResponseState::default().next_sequence_number(), 0);
    }

    #[rstest]
    #[case::nothing_yet("null", &[], counted(25, 0), false)]
    #[case::words("null", &["12345678", "90"], counted(25, 8), true)]
    #[case::pieces("null", &["1", "2", "3"], counted(25, 3), true)]
    #[case::long_pieces("null", &["a wo", "rd or", " t", "wo"], counted(25, 6), true)]
    #[case::one_piece("null", &["a word or two"], counted(25, 6), true)]
    #[case::early(r#"{"input_tokens":80,"output_tokens":0}"#, &[], counted(80, 0), false)]
    #[case::early_and_words(r#"{"input_tokens":80,"output_tokens":0}"#, &["1234"], counted(80, 5), true)]
    fn a_stream_that_is_cut_is_counted(
        #[case] usage: &str,
        #[case] deltas: &[&str],
        #[case] expected: MeteredTokens,
        #[case] any_output: bool,
    ) {
        let created = format!(
            r#"{{"type":"response.created","response":{{"id":"r","status":"in_progress","usage":{usage}}}}}"#
        );
        let deltas = deltas
            .iter()
            .map(|delta| format!(r#"{{"type":"response.output_text.delta","delta":"{delta}"}}"#));
        let events: Vec<_> = [created].into_iter().chain(deltas).collect();
        let (mut state, meter, _) = read_events(&events);
        assert_eq!((meter.usage_so_far(25), meter.has_output()), (expected, any_output));
        assert_eq!((ids(&mut state), state.is_unbilled()), (vec!["r".to_owned()], false));
    }

    /// Returns the redacted error of a failed response, alone and inside an event; `None` if it is
    /// unchanged.
    fn error_shown(error: &str) -> Option<String> {
        let response = format!(r#"{{"id":"r","error":{error},"status":"failed"}}"#);
        let event = format!(r#"{{"type":"response.failed","response":{response},"error":1}}"#);
        let clean = |json: &str| {
            let clean = redact_error(&document(json))?;
            Some(String::from_utf8(clean).expect("text"))
        };
        let (alone, inside) = (clean(&response), clean(&event));
        assert_eq!(alone.as_ref().map(|clean| event.replace(&response, clean)), inside);
        let clean = JsonDocument::parse_from_vendor(alone?.into()).expect("sound");
        let error = clean.get("error").expect("an error").raw();
        Some(String::from_utf8_lossy(error).into_owned())
    }

    #[rstest]
    #[case::none("null", None)]
    #[case::clean(r#"{"code":"c","message":"no","more":[1]}"#, None)]
    #[case::empty(r#"{"code":"","message":null}"#, None)]
    #[case::secret(
        r#"{"message":"key sk-0123abcd", "more":{"a":["at 10.0.0.1"]}}"#,
        Some(r#"{"message":"key [...]","more":{"a":["at [...]"]}}"#)
    )]
    #[case::text(r#""key sk-0123abcd""#, Some(r#""key [...]""#))]
    fn secrets_in_errors_went_to_clients(#[case] error: &str, #[case] expected: Option<&str>) {
        assert_eq!(error_shown(error).as_deref(), expected);
    }

    #[test]
    fn a_message_of_a_megabyte_was_searched_to_its_end() {
        let long = "sk-0123abcd is bad, ".repeat(50_000);
        let cut: String = "[...] is bad, ".repeat(200).chars().take(2_000).collect();
        let name = "n".repeat(ERROR_NAME_BYTES_MAX + 1);
        let error = format!(
            r#"{{"code":"c","message":"{long}","more":["{long}"],"at":["10.0.0.1"],"sk-0123abcd":1,"{name}":1,"n":null,"e":""}}"#
        );
        let expected =
            format!(r#"{{"code":"c","message":"{cut}","at":["[...]"],"n":null,"e":""}}"#);
        assert_eq!(error_shown(&error), Some(expected));
        assert_eq!(error_shown(&format!(r#""{long}""#)), Some(format!(r#""{cut}""#)));
        assert_eq!(error_shown(&format!(r#"["{long}"]"#)).as_deref(), Some("null"));
    }

    #[test]
    fn a_long_error_keeps_some_members() {
        let members: Vec<_> = (0..4_000).map(|n| format!(r#""n{n}":{n}"#)).collect();
        let shown = error_shown(&format!("{{{}}}", members.join(",")));
        assert_eq!(shown, Some(format!("{{{}}}", members[..ERROR_MEMBERS_MAX].join(","))));
    }

    #[test]
    fn what_a_failed_stream_reported_at_its_beginning_is_no_bill() {
        let created = r#"{"type":"response.created","response":{"usage":{"input_tokens":8,"output_tokens":0}}}"#;
        let failed = r#"{"type":"response.failed","response":{"status":"failed","usage":null}}"#;
        assert!(read_events(&[created, failed]).0.is_unbilled());
        assert!(read_events(&[r#"{"type":"response.failed"}"#]).0.is_unbilled());
    }

    /// An output item, the text of each of its deltas, and their type.
    type Made = (String, Vec<String>, &'static str);

    fn made() -> impl Strategy<Value = Made> {
        (0..5u8, vec("[a-zäß☃ ]{0,9}", 0..5), "[a-z]{1,3}").prop_map(|(kind, pieces, id)| {
            let text = pieces.concat();
            let (item, delta) = match kind {
                0 => (
                    format!(r#""type":"message","content":[{{"type":"output_text","text":"{text}"}}]"#),
                    "response.output_text.delta",
                ),
                1 => (
                    format!(r#""type":"message","content":[{{"type":"refusal","refusal":"{text}"}}]"#),
                    "response.refusal.delta",
                ),
                2 => (
                    format!(r#""type":"function_call","name":"f","arguments":"{text}""#),
                    "response.function_call_arguments.delta",
                ),
                3 => (
                    format!(r#""type":"custom_tool_call","name":"f","input":"{text}""#),
                    "response.custom_tool_call_input.delta",
                ),
                _ => (
                    format!(r#""type":"reasoning","summary":[{{"type":"summary_text","text":"{text}"}}]"#),
                    "response.reasoning_summary_text.delta",
                ),
            };
            (format!(r#"{{"id":"{id}",{item}}}"#), pieces, delta)
        })
    }

    /// Returns the events of a stream that ends with `response`.
    fn events(response: &str, made: &[Made], status: &str, with_deltas: bool) -> Vec<String> {
        let begun = r#"{"type":"response.created","response":{"id":"r","status":"in_progress","output":[],"usage":null},"sequence_number":0}"#;
        let mut events = vec![begun.to_owned()];
        for (item, pieces, kind) in made {
            events.push(format!(r#"{{"type":"response.output_item.added","item":{item}}}"#));
            let text = json_string(&pieces.concat());
            let pieces = pieces.iter().filter(|_| with_deltas);
            events.extend(pieces.map(|p| format!(r#"{{"type":"{kind}","delta":"{p}"}}"#)));
            events.push(format!(r#"{{"type":"response.output_text.done","text":{text}}}"#));
            events.push(format!(r#"{{"type":"response.output_item.done","item":{item}}}"#));
        }
        let number = events.len();
        events.push(format!(
            r#"{{"type":"response.{status}","response":{response},"sequence_number":{number}}}"#
        ));
        events
    }

    proptest! {
        #[test]
        fn a_stream_tells_what_its_whole_reply_tells(
            made in vec(made(), 0..6),
            status in "(completed|incomplete|failed)",
            usage in proptest::option::of((1..99u64, 0..99u64, 0..199u64)),
            unstored: bool,
            with_deltas: bool,
        ) {
            let output: Vec<_> = made.iter().map(|(item, ..)| item.as_str()).collect();
            let usage = usage.map_or("null".to_owned(), |(input, output, total)| format!(
                r#"{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{total}}}"#
            ));
            let response = format!(
                r#"{{"id":"r","status":"{status}","store":{},"conversation":{{"id":"c"}},"output":[{}],"usage":{usage}}}"#,
                !unstored,
                output.join(",")
            );
            let (mut whole, whole_meter) = read_whole(&response).expect("a response");
            let all = events(&response, &made, &status, with_deltas);
            let (mut stream, meter, step) = read_events(&all);
            prop_assert_eq!(step, Some(EventStep::Last));
            prop_assert_eq!(stream.is_unbilled(), whole.is_unbilled());
            prop_assert_eq!(stream.is_unbilled(), status == "failed" && usage == "null");
            prop_assert_eq!(stream.next_sequence_number(), all.len() as u64);
            let (mut given, mut expected) = (ids(&mut stream), ids(&mut whole));
            given.sort();
            expected.sort();
            prop_assert_eq!(given, expected);
            let usage_expected = whole_meter.usage(7);
            let counted = meter.usage(7);
            prop_assert_eq!(meter.usage_so_far(7), counted);
            if usage_expected.basis == UsageBasis::Reported {
                prop_assert_eq!(counted, usage_expected);
            } else {
                // Which texts of a stream continue each other is told by its events alone.
                prop_assert_eq!(counted.tokens.input, usage_expected.tokens.input);
                let texts = made.len() as u64 * 4 + 1;
                let (one, other) = (counted.tokens.output, usage_expected.tokens.output);
                prop_assert!(one.abs_diff(other) <= texts, "{} and {}", one, other);
            }
        }

        #[test]
        fn nothing_that_a_vendor_sends_does_harm(
            kind in "(error|response\\.(created|failed|output_text\\.delta|output_item\\.done))",
            name in "(response|item|delta|usage|error|sequence_number|message)",
            value in r#"(null|-1|"a"|\[\]|\[1,"a",\[\]\]|\{\}|\{"(id|output|usage|conversation|store)":(1|"a"|\[1,\{"id":2\}\]|\{"id":\[\]\}|\{"input_tokens":1\})\})"#,
        ) {
            let json = format!(r#"{{"type":"{kind}","{name}":{value}}}"#);
            let (mut state, meter, step) = read_events(&[json.as_str()]);
            prop_assert!(step.is_some());
            prop_assert!(ids(&mut state).len() <= 1);
            prop_assert_eq!(meter.usage(0).basis, UsageBasis::Counted);
            prop_assert!(read_whole(&json).is_none());
        }
    }
}
