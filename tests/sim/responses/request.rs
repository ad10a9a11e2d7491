//! The fields of a request.

use serde_json::Value;

use super::super::member::{Member, Verdict};
use super::super::record::Record;
use super::super::refusal::Refusal;
use super::input;

const FIELDS: &str = "model input instructions previous_response_id conversation prompt background \
    client_metadata context_management include max_output_tokens max_tool_calls metadata \
    moderation parallel_tool_calls prewarm prompt_cache_key prompt_cache_options \
    prompt_cache_retention reasoning safety_identifier service_tier store stream \
    stream_options temperature text tool_choice tools top_logprobs top_p truncation user";
/// Fields of the chat format, and where they went.
const MOVED: [(&str, &str); 6] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("functions", "tools"),
];
/// Words in the names of models that are no models for text.
const OTHER_KINDS: &str = "image embedding tts moderation imagine";
const TOOLS: &str = "function custom web_search web_search_2025_08_26 web_search_preview \
    web_search_preview_2025_03_11 file_search code_interpreter image_generation mcp \
    computer_use_preview computer local_shell shell apply_patch namespace tool_search";
/// What an answer may tell in addition.
const INCLUDED: &str = "file_search_call.results web_search_call.results \
    web_search_call.action.sources message.input_image.image_url \
    computer_call_output.output.image_url code_interpreter_call.outputs \
    reasoning.encrypted_content message.output_text.logprobs";
const EFFORTS: &str = "none minimal low medium high xhigh max";
const TOKENS_MIN: u64 = 16;

/// Refuses a request that the vendor refuses.
pub(super) fn check(body: &Value, record: &Record) -> Verdict {
    let root = Member::root(body);
    known(&root)?;
    model(&root.need("model")?)?;
    for name in ["background", "stream", "store", "parallel_tool_calls", "prewarm"] {
        root.get(name).map(|flag| flag.boolean()).transpose()?;
    }
    for name in ["instructions", "user", "safety_identifier", "prompt_cache_key"] {
        root.get(name).map(|text| text.text()).transpose()?;
    }
    root.get("max_output_tokens").map(|n| n.integer(TOKENS_MIN..=u64::MAX)).transpose()?;
    root.get("max_tool_calls").map(|n| n.integer(1..=u64::MAX)).transpose()?;
    root.get("top_logprobs").map(|n| n.integer(0..=20)).transpose()?;
    root.get("temperature").map(|n| n.decimal(0.0..=2.0)).transpose()?;
    root.get("top_p").map(|n| n.decimal(0.0..=1.0)).transpose()?;
    root.get("truncation").map(|text| text.one_of("auto disabled")).transpose()?;
    let tiers = "auto default flex scale priority fast ultrafast";
    root.get("service_tier").map(|tier| tier.one_of(tiers)).transpose()?;
    root.get("client_metadata").map(|metadata| metadata.only_object()).transpose()?;
    let included = root.get("include").map(|list| list.items()).transpose()?.unwrap_or_default();
    for member in included {
        member.one_of(INCLUDED)?;
    }
    stream_options(&root)?;
    reasoning(&root)?;
    formats(&root)?;
    tools(&root)?;
    objects_of_the_account(&root, record)?;
    if root.get("prompt").is_some() && root.get("input").is_none() {
        return Ok(());
    }
    input::check(&root.need("input")?, root.get("previous_response_id").is_some())
}

fn known(root: &Member<'_>) -> Verdict {
    for (old, new) in MOVED {
        if root.value.get(old).is_some() {
            let message = format!(
                "Unsupported parameter: '{old}'. In the Responses API, this parameter has moved to \
                 '{new}'."
            );
            return Err(Refusal::new(400, message).at(old).coded("unsupported_parameter"));
        }
    }
    root.only(FIELDS)
}

fn model(member: &Member<'_>) -> Verdict {
    let model = member.text_within(256)?;
    let mut words = model.split('-');
    if words.any(|word| OTHER_KINDS.split(' ').any(|kind| kind == word)) {
        let message =
            format!("The requested model '{model}' cannot be used with the Responses API.");
        return Err(member.refusal(&message).coded("model_not_found"));
    }
    Ok(())
}

fn stream_options(root: &Member<'_>) -> Verdict {
    let Some(options) = root.get("stream_options") else { return Ok(()) };
    if root.value["stream"] != true {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return Err(options.refusal(message));
    }
    options.only("include_obfuscation")?;
    options.get("include_obfuscation").map(|flag| flag.boolean()).transpose().map(|_| ())
}

fn reasoning(root: &Member<'_>) -> Verdict {
    let Some(reasoning) = root.get("reasoning") else { return Ok(()) };
    reasoning.only("effort summary generate_summary context")?;
    reasoning.get("effort").map(|effort| effort.one_of(EFFORTS)).transpose()?;
    let known = "auto concise detailed";
    reasoning.get("summary").map(|summary| summary.one_of(known)).transpose().map(|_| ())
}

fn formats(root: &Member<'_>) -> Verdict {
    let Some(text) = root.get("text") else { return Ok(()) };
    text.only("format verbosity")?;
    text.get("verbosity").map(|verbosity| verbosity.one_of("low medium high")).transpose()?;
    let Some(format) = text.get("format") else { return Ok(()) };
    if format.need("type")?.one_of("text json_object json_schema")? == "json_schema" {
        format.need("name")?.text_within(64)?;
        format.need("schema")?.only_object()?;
    }
    Ok(())
}

fn tools(root: &Member<'_>) -> Verdict {
    let mut names = Vec::new();
    if let Some(tools) = root.get("tools") {
        for tool in tools.items()? {
            if let "function" | "custom" = check_tool(&tool)? {
                names.push(tool.need("name")?.text()?);
            }
        }
    }
    let Some(choice) = root.get("tool_choice") else { return Ok(()) };
    if choice.value.is_string() {
        return choice.one_of("none auto required").map(|_| ());
    }
    let kind = choice.need("type")?;
    if kind.one_of(&format!("{TOOLS} allowed_tools"))? != "function" {
        return Ok(());
    }
    let name = choice.need("name")?.text()?;
    if names.contains(&name) {
        return Ok(());
    }
    Err(choice.refusal(&format!("Tool choice '{name}' not found in 'tools' parameter.")))
}

/// Refuses a tool that the vendor refuses; tells what it is.
pub(super) fn check_tool<'a>(tool: &Member<'a>) -> Result<&'a str, Refusal> {
    let kind = tool.need("type")?.one_of(TOOLS)?;
    if matches!(kind, "function" | "custom" | "namespace") {
        tool.need("name")?.text_within(64)?;
    }
    match kind {
        "function" => tool.only("type name description parameters strict defer_loading")?,
        "code_interpreter" => drop(tool.need("container")?),
        "mcp" => {
            tool.need("server_label")?.text()?;
            let source = tool.get("connector_id").map_or_else(|| tool.need("server_url"), Ok)?;
            source.text().map(drop)?;
        }
        "tool_search" => {
            tool.only("type execution description parameters")?;
            tool.get("execution").map(|who| who.one_of("client server")).transpose()?;
        }
        "namespace" => {
            tool.need("description")?.text()?;
            for inner in tool.need("tools")?.items()? {
                inner.need("type")?.one_of("function custom")?;
                check_tool(&inner)?;
            }
        }
        _ => {}
    }
    Ok(kind)
}

/// Refuses what names an object that this simulator never gave out.
fn objects_of_the_account(root: &Member<'_>, record: &Record) -> Verdict {
    if let Some(previous) = root.get("previous_response_id") {
        let id = previous.text()?;
        if !record.has_response(id) {
            let message = format!("Previous response with id '{id}' not found.");
            return Err(previous.refusal(&message).coded("previous_response_not_found"));
        }
    }
    for (name, object) in [("conversation", "Conversation"), ("prompt", "Prompt")] {
        let Some(member) = root.get(name) else { continue };
        let id = member.value.as_str().or_else(|| member.value["id"].as_str());
        let id = id.unwrap_or_default();
        let message = format!("{object} with id '{id}' not found.");
        return Err(Refusal { status: 404, ..member.refusal(&message) }.coded("not_found"));
    }
    Ok(())
}
