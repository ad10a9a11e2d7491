//! The responses format: parses its calls, and reads from its replies the usage and the ids of the
//! objects that the vendor stores.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{invalid_value, non_null_member, read_integer};
use super::call::text_request::{InputSize, VendorReads};
use super::json::{JsonDocument, JsonKind, JsonValue};

mod compaction;
mod input;
mod reply;
mod stored_objects;
mod tools;

pub(crate) use compaction::meter_compaction;
pub(crate) use reply::{EventStep, ResponseState, redact_error};
pub use reply::{IssuedIds, error_event};
pub use stored_objects::StoredObjectId;

use input::ResponsesInput;
use stored_objects::{ReferencedObjects, parse_id};
use tools::{CALL_TOOLS, ToolCount};

const INPUT_EXPECTED: &str = "a string or a non-empty array of items";

/// A call with tools of servers may let the vendor call its tools this many times at most.
const TOOL_CALLS_MAX: u64 = 128;
/// The vendor reads the input at most this many times more: after each call, and after a try that
/// is refused.
pub(crate) const REPEATS_MAX: u64 = TOOL_CALLS_MAX + 1;

/// The fields of a call that bear on its price and on stored objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponsesRequest {
    /// The most output tokens, if the client set a limit.
    pub output_max: Option<u64>,
    /// Whether the output is a compacted conversation. Its text is encrypted, and the vendor need
    /// not keep to a limit of output.
    pub is_compaction: bool,
    /// The size of the input.
    pub input_size: InputSize,
    /// The stored objects that the call names, in the order of the body.
    pub references: Vec<StoredObjectId>,
}

/// Parses the fields that bear on the price and on stored objects. All other fields are left to the
/// vendor to check.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn parse_request(document: &JsonDocument) -> Result<ResponsesRequest, CallError> {
    // With a prompt that the vendor stores, a call needs no input. The rules decide whether a call
    // may have one, and a refusal of it must not read as if input were missing.
    require_one(document, &["input", "prompt"])?;
    let (request, tools) = parse_fields(document)?;
    if let Some(index) = tools.first_server() {
        require_call_limit(document, index)?;
    }
    Ok(request)
}

/// Parses the same fields of a call that only has its conversation compacted. It may have no
/// `input` if it names an earlier response.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn parse_compaction(document: &JsonDocument) -> Result<ResponsesRequest, CallError> {
    require_one(document, &["input", "prompt", "previous_response_id"])?;
    let (request, _) = parse_fields(document)?;
    // The endpoint has no limit of output. The vendor need not keep to one that it does not know.
    Ok(ResponsesRequest { output_max: None, is_compaction: true, ..request })
}

/// Parses the same fields of a call that only has its input tokens counted. It may have no `input`,
/// for the vendor also counts what it stores.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub(super) fn parse_count_request(document: &JsonDocument) -> Result<ResponsesRequest, CallError> {
    parse_fields(document).map(|(request, _)| request)
}

/// Refuses a body that has none of these members, as one without input.
fn require_one(document: &JsonDocument, names: &[&str]) -> Result<(), CallError> {
    if names.iter().any(|name| non_null_member(document, name).is_some()) {
        return Ok(());
    }
    Err(CallError::missing("input", INPUT_EXPECTED))
}

/// Refuses a call whose tool with this index is one of a server, if nothing limits how often the
/// vendor calls it: the vendor reads the whole input again after each call.
fn require_call_limit(document: &JsonDocument, index: usize) -> Result<(), CallError> {
    let expected = format!(
        "a whole number from 1 to {TOOL_CALLS_MAX}, because {CALL_TOOLS}[{index}].type is \
         'mcp' and the vendor reads the input again after each call of a tool"
    );
    match read_integer(document, "max_tool_calls", 1)? {
        Some(calls) if calls <= TOOL_CALLS_MAX => Ok(()),
        Some(_) => Err(CallError::invalid("max_tool_calls", &expected)),
        None => Err(CallError::missing("max_tool_calls", &expected)),
    }
}

fn parse_fields(document: &JsonDocument) -> Result<(ResponsesRequest, ToolCount), CallError> {
    let output_max = read_integer(document, "max_output_tokens", 1)?;
    let has_prompt = non_null_member(document, "prompt").is_some();
    let mut references = ReferencedObjects::default();
    let mut input = ResponsesInput::default();
    for (name, value) in document.members().filter(|(_, value)| !value.is_null()) {
        match (&*name, value.kind()) {
            ("conversation", JsonKind::Object) => {
                let inside = "conversation.id";
                let id = value.get("id").ok_or_else(|| CallError::missing(inside, "an id"))?;
                references.push(&name, parse_id(inside, id)?)?;
            }
            ("previous_response_id" | "conversation", _) => references.add(&name, value)?,
            ("input", JsonKind::String) => {}
            ("input", JsonKind::Array) if input.read_items(value, &mut references)? > 0 => {}
            // What is wrong with the call is then the prompt, and the rules say so.
            ("input", _) if has_prompt => {}
            ("input", _) => return Err(invalid_value("input", INPUT_EXPECTED, value)),
            (CALL_TOOLS, _) => input.tools.add_list(CALL_TOOLS, value)?,
            _ => {}
        }
    }
    let input_size = InputSize {
        images: input.images,
        documents: input.documents,
        vendor_tool_prompt_count: input.tools.prompt_count(),
        text_bytes: (document.body().len() as u64).saturating_sub(input.non_text_bytes),
        // The text of a stored prompt is not in the body.
        has_external_input: has_prompt,
        vendor_reads: server_tool_reads(document, &input.tools),
    };
    let is_compaction = input.has_compaction_trigger;
    let output_max = output_max.filter(|_| !is_compaction);
    let request =
        ResponsesRequest { output_max, is_compaction, input_size, references: references.0 };
    Ok((request, input.tools))
}

/// Returns what the vendor reads because of tools of servers. It adds the definitions of the tools
/// and the results of the calls to the input, and nothing limits their length.
fn server_tool_reads(document: &JsonDocument, tools: &ToolCount) -> VendorReads {
    if !tools.has_servers() {
        return VendorReads::default();
    }
    let limit = document.get("max_tool_calls").and_then(JsonValue::integer);
    // One more: the model may try to go on calling, and is told that it cannot.
    let repeats = limit.unwrap_or(TOOL_CALLS_MAX).min(TOOL_CALLS_MAX).saturating_add(1);
    VendorReads { repeats, added_tokens: u64::MAX, ..VendorReads::default() }
}

#[cfg(test)]
mod tests {
    use super::stored_objects::{ID_BYTES_MAX, REFERENCES_MAX};
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn parse(members: &str) -> Result<ResponsesRequest, CallError> {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        parse_request(&JsonDocument::parse(body.into()).expect("sound"))
    }

    /// Returns the stored objects that a body with these members names, as `param=id`.
    fn named(members: &str) -> Vec<String> {
        let references = parse(members).expect("a call").references;
        references.into_iter().map(|named| format!("{}={}", named.param, named.id)).collect()
    }

    #[rstest]
    #[case::no_input(r#""stream":true"#, "missing_required_parameter", "input")]
    #[case::null(r#""input":null"#, "missing_required_parameter", "input")]
    #[case::number(r#""input":7"#, "invalid_value", "input")]
    #[case::object(r#""input":{}"#, "invalid_value", "input")]
    #[case::empty(r#""input":[]"#, "invalid_value", "input")]
    #[case::item_of_text(
        r#""input":[{"role":"user","content":"a"},"b"]"#,
        "invalid_value",
        "input[1]"
    )]
    #[case::item_of_list(r#""input":[[]]"#, "invalid_value", "input[0]")]
    #[case::tools_of_text(r#""input":"a","tools":"web_search""#, "invalid_value", "tools")]
    #[case::tool_of_list(r#""input":"a","tools":[{},[{}]]"#, "invalid_value", "tools[1]")]
    #[case::namespace_of_one(
        r#""input":"a","tools":[{"type":"namespace","tools":{"type":"mcp"}}]"#,
        "invalid_value",
        "tools[0].tools"
    )]
    #[case::namespace_of_text(
        r#""input":[{"tools":[{},{"type":"namespace","tools":["mcp"]}]}]"#,
        "invalid_value",
        "input[0].tools[1].tools[0]"
    )]
    #[case::no_output(r#""input":"a","max_output_tokens":0"#, "invalid_value", "max_output_tokens")]
    #[case::half(r#""input":"a","max_output_tokens":1.5"#, "invalid_value", "max_output_tokens")]
    #[case::previous(
        r#""input":"a","previous_response_id":7"#,
        "invalid_value",
        "previous_response_id"
    )]
    #[case::no_previous(
        r#""input":"a","previous_response_id":"""#,
        "invalid_value",
        "previous_response_id"
    )]
    #[case::conversation(r#""input":"a","conversation":["c"]"#, "invalid_value", "conversation")]
    #[case::no_conversation(r#""input":"a","conversation":"""#, "invalid_value", "conversation")]
    #[case::its_id(r#""input":"a","conversation":{"id":null}"#, "invalid_value", "conversation.id")]
    #[case::no_id(
        r#""input":"a","conversation":{}"#,
        "missing_required_parameter",
        "conversation.id"
    )]
    #[case::empty_reference(
        r#""input":[{"type":"item_reference","id":""}]"#,
        "invalid_value",
        "input[0].id"
    )]
    #[case::reference_to_a_number(r#""input":[{"id":7}]"#, "invalid_value", "input[0].id")]
    fn what_is_wrong_is_named(#[case] members: &str, #[case] code: &str, #[case] param: &str) {
        let fault = parse(members).expect_err("a fault");
        assert_eq!((fault.code, fault.param.as_deref()), (code, Some(param)), "{fault}");
    }

    #[rstest]
    #[case::text(r#""input":"hi","max_output_tokens":16"#, Some(16))]
    #[case::empty_text(r#""input":"","max_output_tokens":null"#, None)]
    #[case::easy(r#""input":[{"role":"user","content":"hi"}],"previous_response_id":null,"conversation":null"#, None)]
    fn a_call_need_not_say_much(#[case] members: &str, #[case] output_max: Option<u64>) {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        let input_size = InputSize { text_bytes: body.len() as u64, ..InputSize::default() };
        let references = Vec::new();
        let expected =
            ResponsesRequest { output_max, is_compaction: false, input_size, references };
        assert_eq!(parse(members), Ok(expected));
    }

    #[rstest]
    #[case::a_trigger(r#"{"type":"compaction_trigger"}"#, true)]
    #[case::escaped(r#"{"type":"compaction\u005ftrigger"}"#, true)]
    #[case::an_earlier_compaction(r#"{"type":"compaction","encrypted_content":"gAA"}"#, false)]
    fn no_limit_of_output_applies_where_a_trigger_asks_for_a_compaction(
        #[case] item: &str,
        #[case] is_compaction: bool,
    ) {
        let said = r#"{"role":"user","content":"hi"}"#;
        let members = format!(r#""input":[{said},{item}],"max_output_tokens":16"#);
        let request = parse(&members).expect("a call");
        let limit = if is_compaction { None } else { Some(16) };
        assert_eq!((request.is_compaction, request.output_max), (is_compaction, limit));
        assert_eq!(request.references, []);
    }

    #[rstest]
    #[case::nothing(r#""input":"resp_1""#, &[])]
    #[case::previous_and_conversation(
        r#""input":[{"id":"i"}],"conversation":{"id":"c"},"previous_response_id":"r""#,
        &["input[0].id=i", "conversation=c", "previous_response_id=r"]
    )]
    #[case::conversation(r#""conversation":"c","input":"a""#, &["conversation=c"])]
    #[case::references(
        r#""input":[{"role":"user","content":"a"},{"type":"item_reference","id":"i"},{"id":"j"}]"#,
        &["input[1].id=i", "input[2].id=j"]
    )]
    #[case::a_reference_in_disguise(
        r#""input":[{"type":null,"role":"user","content":"a","id":"i"},{"type":"item_reference","role":"user","content":"a","output":"a","id":"j"}]"#,
        &["input[0].id=i", "input[1].id=j"]
    )]
    #[case::escaped(r#""input":[{"\u0069d":"\u0069"}]"#, &["input[0].id=i"])]
    #[case::thoughts_that_are_stored(
        r#""input":[{"type":"reasoning","id":"i","summary":[{"text":"a"}]},{"type":"reasoning","id":"j","summary":[],"encrypted_content":null},{"type":"reasoning","id":"k","encrypted_content":"","content":[{"text":"a"}]}]"#,
        &["input[0].id=i", "input[1].id=j", "input[2].id=k"]
    )]
    #[case::thoughts_that_are_sealed(
        r#""input":[{"type":"reasoning","id":"i","summary":[],"encrypted_content":"gAA"},{"type":"compaction","id":"j","encrypted_content":"gAA"},{"type":"reasoning","summary":[]}]"#,
        &[]
    )]
    #[case::echoes(
        r#""input":[{"type":"message","role":"assistant","id":"i","content":[{"type":"output_text","text":"a"}]},{"role":"user","id":"j","content":""},{"type":"function_call","id":"k","call_id":"c","name":"f","arguments":""},{"type":"function_call_output","id":"l","call_id":"c","output":""},{"type":"custom_tool_call","id":"m","name":"f","input":"a"},{"type":"custom_tool_call_output","id":"n","output":[{"type":"input_text","text":"a"}]},{"type":"message","id":null,"role":"user","content":[]}]"#,
        &[]
    )]
    #[case::calls_of_tools_that_the_client_ran_were_looked_up(
        r#""input":[{"type":"local_shell_call","id":"i","call_id":"c","status":"completed","action":{"type":"exec","command":["ls"]}},{"type":"apply_patch_call","id":"j","call_id":"d","status":"completed","operation":{"type":"delete_file","path":"a"}},{"type":"apply_patch_call_output","id":"k","call_id":"d","status":"failed"},{"type":"local_shell_call_output","id":"l","output":"{}"},{"type":"tool_search_call","id":"m","call_id":"e","execution":"client","arguments":{"query":"a"}},{"type":"tool_search_call","id":"n","call_id":null,"execution":"server","arguments":"{}"}]"#,
        &[]
    )]
    #[case::ids_that_the_client_made_were_looked_up(
        r#""input":[{"type":"additional_tools","id":"at_1","role":"developer","tools":[]},{"type":"tool_search_output","id":"tso_1","call_id":"c","tools":[{"type":"function","name":"f"}]},{"type":"agent_message","id":"am_1","author":"a","recipient":"b","content":[{"type":"encrypted_content","encrypted_content":"gAA"}]}]"#,
        &[]
    )]
    #[case::calls_with_a_part_missing(
        r#""input":[{"type":"local_shell_call","id":"i","status":"completed","action":{"type":"exec"}},{"type":"local_shell_call","id":"j","call_id":"c","status":"completed","action":{}},{"type":"local_shell_call","id":"k","call_id":"c","status":"completed","action":"ls"},{"type":"apply_patch_call","id":"l","call_id":"","status":"completed","operation":{"type":"delete_file"}},{"type":"apply_patch_call_output","id":"m","call_id":"c"},{"type":"tool_search_call","id":"n","arguments":null},{"type":"tool_search_output","id":"o"},{"type":"additional_tools","id":"p","tools":null},{"type":"agent_message","id":"q","content":[]},{"type":"compaction","id":"r","encrypted_content":null}]"#,
        &[
            "input[0].id=i",
            "input[1].id=j",
            "input[2].id=k",
            "input[3].id=l",
            "input[4].id=m",
            "input[5].id=n",
            "input[6].id=o",
            "input[7].id=p",
            "input[8].id=q",
            "input[9].id=r",
        ]
    )]
    #[case::echoes_without_content(
        r#""input":[{"type":"message","role":"assistant","id":"i"},{"type":"message","role":"assistant","id":"j","content":[]},{"type":"function_call","id":"k","name":"f"},{"type":"function_call","id":"l","arguments":"{}"},{"type":"function_call_output","id":"m","output":null}]"#,
        &["input[0].id=i", "input[1].id=j", "input[2].id=k", "input[3].id=l", "input[4].id=m"]
    )]
    #[case::content_that_is_anothers(
        r#""input":[{"type":"image_generation_call","id":"i","content":"a","output":"a"},{"type":"reasoning","id":"j","content":"a","arguments":"a"},{"type":"program","id":"k","input":"a"}]"#,
        &["input[0].id=i", "input[1].id=j", "input[2].id=k"]
    )]
    #[case::an_approval(
        r#""input":[{"type":"mcp_approval_response","approval_request_id":"i","approve":true}]"#,
        &["input[0].approval_request_id=i"]
    )]
    fn what_the_vendor_would_look_up_is_named(#[case] members: &str, #[case] expected: &[&str]) {
        assert_eq!(named(members), expected);
    }

    #[rstest]
    #[case::text(r#"{"type":"input_text","text":"data:image/png;base64,AA=="}"#, 0, 0, 0)]
    #[case::image(r#"{"type":"input_image","image_url":"data:image/png;base64,AA=="}"#, 1, 0, 28)]
    #[case::image_elsewhere(r#"{"type":"input_image","image_url":"https://x"}"#, 1, 0, 11)]
    #[case::pages_as_an_image(
        r#"{"type":"input_image","image_url":"data:\u0061pplication/PDF;base64,AA=="}"#,
        0,
        1,
        39
    )]
    #[case::pages(
        r#"{"type":"input_file","file_data":"DATA:application/pdf;base64,AA=="}"#,
        0,
        1,
        34
    )]
    #[case::pages_elsewhere(r#"{"type":"input_file","file_url":"https://x"}"#, 0, 1, 0)]
    #[case::who_knows(r#"{"type":"input_file","file_data":"AA==","filename":"a"}"#, 0, 1, 6)]
    #[case::text_file(
        r#"{"type":"input_file","file_data":"data:text/plain;base64,AA=="}"#,
        0,
        0,
        0
    )]
    #[case::image_as_a_file(
        r#"{"type":"input_file","file_data":"data:image/gif;base64,AA=="}"#,
        1,
        0,
        28
    )]
    #[case::unknown(r#"{"type":"video","image_url":"https://x","file_data":"AA=="}"#, 0, 0, 0)]
    fn what_is_not_text_is_counted_apart(
        #[case] part: &str,
        #[case] images: u64,
        #[case] documents: u64,
        #[case] non_text_bytes: u64,
        #[values(
            r#"{"role":"user","content":[PART]}"#,
            r#"{"type":"function_call_output","call_id":"c","output":[PART]}"#,
            r#"{"type":"computer_call_output","call_id":"c","output":PART}"#
        )]
        item: &str,
    ) {
        let tools = r#""tools":[{"type":"function"},{"type":"custom"},{"type":"web_search"}]"#;
        let members = format!(r#""input":[{}],{tools}"#, item.replace("PART", part));
        let text_bytes = (members.len() + r#"{"model":"m",}"#.len()) as u64 - non_text_bytes;
        let input_size = parse(&members).expect("a call").input_size;
        let expected = InputSize {
            images,
            documents,
            vendor_tool_prompt_count: 2,
            text_bytes,
            ..InputSize::default()
        };
        assert_eq!(input_size, expected);
    }

    #[rstest]
    #[case::none(r#""input":"a""#, 0)]
    #[case::of_the_client(r#""input":"a","tools":[{"type":"function"},{"type":"custom"},{}]"#, 1)]
    #[case::hosted(r#""input":"a","tools":[{"type":"tool_search","execution":"client"}]"#, 2)]
    #[case::in_a_namespace(
        r#""input":"a","tools":[{"type":"namespace","tools":[{"type":"function"},{"type":"mcp"}]}]"#,
        2
    )]
    #[case::in_the_input(
        r#""input":[{"type":"additional_tools","tools":[{"type":"local_shell"}]},{"type":"tool_search_output","tools":[{"type":"apply_patch"}]}],"tools":[{"type":"function"}]"#,
        3
    )]
    #[case::empty(r#""input":[{"type":"tool_search_output","tools":[]}],"tools":[]"#, 0)]
    #[case::schema(
        r#""input":"a","tools":[{"type":"function","tools":5,"parameters":{"tools":[{"type":"mcp"}]}}]"#,
        1
    )]
    fn tools_are_counted_wherever_they_stand(#[case] members: &str, #[case] prompts: u64) {
        let input_size = parse(members).expect("a call").input_size;
        assert_eq!(input_size.vendor_tool_prompt_count, prompts);
    }

    #[rstest]
    #[case::none(r#""input":"a","tools":[{"type":"function"}],"max_tool_calls":5"#, 0, 0)]
    #[case::one_call(r#""input":"a","tools":[{"type":"mcp"}],"max_tool_calls":1"#, 2, u64::MAX)]
    #[case::most(r#""input":"a","tools":[{"type":"mcp"}],"max_tool_calls":128"#, 129, u64::MAX)]
    #[case::in_the_input(
        r#""input":[{"type":"additional_tools","tools":[{"type":"mcp"}]}],"max_tool_calls":3"#,
        4,
        u64::MAX
    )]
    fn the_input_is_read_again_after_each_call_of_a_servers_tool(
        #[case] members: &str,
        #[case] repeats: u64,
        #[case] added_tokens: u64,
    ) {
        let reads = parse(members).expect("a call").input_size.vendor_reads;
        assert_eq!(reads, VendorReads { repeats, added_tokens, ..VendorReads::default() });
    }

    #[rstest]
    #[case::absent("", "missing_required_parameter", "tools[1].type is 'mcp'")]
    #[case::null(r#","max_tool_calls":null"#, "missing_required_parameter", "from 1 to 128")]
    #[case::none(r#","max_tool_calls":0"#, "invalid_value", "from 1 to")]
    #[case::too_many(r#","max_tool_calls":129"#, "invalid_value", "from 1 to 128")]
    #[case::text(r#","max_tool_calls":"3""#, "invalid_value", "not a string")]
    fn tools_of_servers_need_a_limit_of_calls(
        #[case] member: &str,
        #[case] code: &str,
        #[case] said: &str,
    ) {
        let tools = r#""tools":[{"type":"function"},{"type":"mcp"},{"type":"mcp"}]"#;
        let fault = parse(&format!(r#""input":"a",{tools}{member}"#)).expect_err("a fault");
        assert_eq!((fault.code, fault.param.as_deref()), (code, Some("max_tool_calls")));
        assert!(fault.message.contains(said), "{fault}");
    }

    #[test]
    fn a_count_and_a_compaction_need_no_limit_of_calls() {
        let body = r#"{"model":"m","input":"a","tools":[{"type":"mcp"}],"max_output_tokens":9}"#;
        let document = JsonDocument::parse(body.into()).expect("sound");
        let counted = parse_count_request(&document).expect("a call");
        let compacted = parse_compaction(&document).expect("a call");
        assert_eq!(counted.input_size, compacted.input_size);
        assert_eq!(counted.input_size.vendor_reads.repeats, TOOL_CALLS_MAX + 1);
        assert_eq!((counted.output_max, compacted.output_max), (Some(9), None));
        assert_eq!((counted.is_compaction, compacted.is_compaction), (false, true));
    }

    #[rstest]
    #[case::input(r#""input":"a""#, true)]
    #[case::previous(r#""previous_response_id":"r""#, true)]
    #[case::nothing(r#""input":null"#, false)]
    #[case::conversation(r#""conversation":"c""#, false)]
    fn a_compaction_needs_a_conversation(#[case] members: &str, #[case] is_sound: bool) {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        let document = JsonDocument::parse(body.into()).expect("sound");
        assert_eq!(parse_compaction(&document).is_ok(), is_sound);
    }

    #[rstest]
    #[case::of_a_complete_question(
        r#"{"type":"mcp_approval_request","id":"q","server_label":"a","name":"f","arguments":"{}"}"#,
        &[]
    )]
    #[case::of_another_question(
        r#"{"type":"mcp_approval_request","id":"x","server_label":"a","name":"f","arguments":"{}"}"#,
        &["input[1].approval_request_id=q"]
    )]
    #[case::of_a_question_that_is_looked_up(
        r#"{"type":"mcp_approval_request","id":"q","server_label":"a","name":"f"}"#,
        &["input[0].id=q", "input[1].approval_request_id=q"]
    )]
    #[case::of_a_call(
        r#"{"type":"mcp_call","id":"q","server_label":"a","name":"f","arguments":"{}"}"#,
        &["input[1].approval_request_id=q"]
    )]
    #[case::of_a_list(
        r#"{"type":"mcp_list_tools","id":"q","server_label":"a","tools":[]}"#,
        &["input[1].approval_request_id=q"]
    )]
    fn an_approval_is_looked_up_unless_its_question_is_in_the_body(
        #[case] item: &str,
        #[case] expected: &[&str],
    ) {
        let approval =
            r#"{"type":"mcp_approval_response","approval_request_id":"q","approve":true}"#;
        assert_eq!(named(&format!(r#""input":[{item},{approval}]"#)), expected);
    }

    #[test]
    fn a_call_that_was_approved_is_complete_beside_its_question() {
        let question = r#"{"type":"mcp_approval_request","id":"q","server_label":"a","name":"f","arguments":"{}"}"#;
        let call = r#"{"type":"mcp_call","id":"c","approval_request_id":"q","server_label":"a","name":"f","arguments":"{}"}"#;
        let nothing: [String; 0] = [];
        assert_eq!(named(&format!(r#""input":[{question},{call}]"#)), nothing);
        let looked_up = ["input[0].approval_request_id=q"];
        assert_eq!(named(&format!(r#""input":[{call},{question}]"#)), looked_up);
    }

    #[test]
    fn whatever_input_stands_beside_a_stored_prompt_it_is_the_prompt_that_is_wrong() {
        for input in ["null", r#""""#, "[]", "7", "{}", "false", r#"[{"role":"user"}]"#] {
            let call = parse(&format!(r#""prompt":{{"id":"p"}},"input":{input}"#));
            assert!(call.expect("a call, as far as this goes").input_size.has_external_input);
        }
    }

    #[test]
    fn a_stored_prompt_was_refused_as_a_missing_input() {
        let call = parse(r#""prompt":{"id":"pmpt_1"}"#).expect("a call, as far as this goes");
        assert!(call.input_size.has_external_input);
        assert!(parse(r#""prompt":null"#).is_err());
    }

    #[test]
    fn calls_are_bounded() {
        let items = |item: &str, n| format!(r#""input":[{}]"#, vec![item; n].join(","));
        assert_eq!(named(&items(r#"{"id":"i"}"#, REFERENCES_MAX)).len(), REFERENCES_MAX);
        let fault = parse(&items(r#"{"id":"i"}"#, REFERENCES_MAX + 1)).expect_err("a fault");
        assert_eq!(fault.param.as_deref(), Some("input[256].id"));
        assert!(parse(&items("{}", 100_000)).is_ok());
        let fault = parse(&items("{}", 100_001)).expect_err("a fault");
        assert_eq!(fault.param.as_deref(), Some("input"));
        let reference = |n| format!(r#""input":[{{"id":"{}"}}]"#, "i".repeat(n));
        assert!(parse(&reference(ID_BYTES_MAX)).is_ok() && parse(&reference(257)).is_err());
        let part = |depth: usize| {
            let image = r#"{"type":"input_image"}"#;
            let inner = (0..depth).fold(image.to_owned(), |p, _| format!(r#"{{"content":[{p}]}}"#));
            parse(&format!(r#""input":[{inner}]"#)).expect("a call").input_size.images
        };
        assert_eq!([part(4), part(5)], [1, 0], "what lies so deep is looked at by nobody");
    }

    proptest! {
        #[test]
        fn an_item_that_is_hardly_more_than_its_id_is_named(
            kind in "(message|reasoning|((function|custom_tool)_call(_output)?)|[a-z_]{0,20})",
            typed: bool,
            role: bool,
            null in "(content|output|arguments|input|encrypted_content)?",
            foreign in "(summary|status|call_id|result|action|queries|code|tools|phase)?",
        ) {
            let kind = if typed { format!(r#""type":"{kind}","#) } else { String::new() };
            let role = if role { r#""role":"assistant","# } else { "" };
            let item = format!(r#"{{{kind}{role}"{null}":null,"{foreign}x":"a","id":"i"}}"#);
            prop_assert_eq!(named(&format!(r#""input":[{item}]"#)), ["input[0].id=i"]);
        }
    }
}
