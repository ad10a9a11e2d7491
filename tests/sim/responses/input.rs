//! The input: a text, or the items of a conversation.

use std::collections::HashSet;

use super::super::member::{Member, Verdict};
use super::request::check_tool;

const TEXT_CHARACTERS_MAX: usize = 10_485_760;
const ITEMS: &str = "message function_call function_call_output custom_tool_call \
    custom_tool_call_output reasoning item_reference web_search_call file_search_call \
    code_interpreter_call image_generation_call mcp_call mcp_list_tools mcp_approval_request \
    mcp_approval_response computer_call computer_call_output compaction local_shell_call \
    local_shell_call_output apply_patch_call apply_patch_call_output tool_search_call \
    tool_search_output additional_tools agent_message compaction_trigger";
const STATES: &str = "in_progress completed incomplete";

/// Refuses an input that the vendor refuses; calls may stand in the response `before` it.
pub(super) fn check(input: &Member<'_>, before: bool) -> Verdict {
    if input.value.is_string() {
        return input.text_within(TEXT_CHARACTERS_MAX).map(|_| ());
    }
    let items = input.items()?;
    if items.is_empty() && !before {
        return Err(input.invalid("empty array. Expected at least one item.").coded("empty_array"));
    }
    let mut open = Vec::new();
    let mut made = HashSet::new();
    for (at, item) in items.iter().enumerate() {
        match kind(item)? {
            "message" => message(item)?,
            "function_call" => {
                item.need("name")?.text_within(64)?;
                item.need("arguments")?.text()?;
                let id = item.need("call_id")?.text_within(64)?;
                made.insert(id);
                open.push(id);
            }
            "function_call_output" => {
                let id = item.need("call_id")?.text_within(64)?;
                let output = item.need("output")?;
                if !output.value.is_string() {
                    output.items()?.iter().try_for_each(|part| part_of(part, false))?;
                }
                if !made.contains(id) && !before {
                    return Err(input.refusal(&format!(
                        "No tool call found for function call output with call_id {id}."
                    )));
                }
                open.retain(|known| *known != id);
            }
            // Its output may come as that of a function, too.
            "local_shell_call" | "apply_patch_call" => {
                item_of_tools(item)?;
                made.insert(item.need("call_id")?.text()?);
            }
            kind @ ("local_shell_call_output" | "apply_patch_call_output") => {
                item_of_tools(item)?;
                let name = if kind == "local_shell_call_output" { "id" } else { "call_id" };
                let id = item.need(name)?.text()?;
                if !made.contains(id) && !before {
                    let what = kind.replace('_', " ");
                    return Err(input.refusal(&format!("No tool call found for {what} {id}.")));
                }
            }
            "compaction_trigger" if at + 1 < items.len() => {
                return Err(item.refusal("A compaction trigger must be the final input item."));
            }
            "item_reference" => drop(item.need("id")?.text_within(256)?),
            // Sealed, it says itself what would be looked up.
            "reasoning" if item.get("encrypted_content").is_none() => {
                item.need("id")?.text_within(256)?;
            }
            _ => item_of_tools(item)?,
        }
    }
    match open.first() {
        None => Ok(()),
        Some(id) => Err(input.refusal(&format!("No tool output found for function call {id}."))),
    }
}

/// Refuses an item of a tool that the client runs, or of agents, if a member of it is missing.
fn item_of_tools(item: &Member<'_>) -> Verdict {
    match item.value["type"].as_str().unwrap_or_default() {
        "local_shell_call" => {
            item.need("call_id")?.text()?;
            item.need("status")?.one_of(STATES)?;
            let action = item.need("action")?;
            action.need("type")?.one_of("exec")?;
            action.need("command")?.items().map(|_| ())
        }
        "apply_patch_call" => {
            item.need("call_id")?.text()?;
            item.need("status")?.one_of("in_progress completed")?;
            let operation = item.need("operation")?;
            operation.need("path")?.text()?;
            operation.need("type")?.one_of("create_file delete_file update_file").map(|_| ())
        }
        "apply_patch_call_output" => {
            item.need("call_id")?.text()?;
            item.need("status")?.one_of("completed failed").map(|_| ())
        }
        "local_shell_call_output" => item.need("output")?.text().map(|_| ()),
        "tool_search_call" => item.need("arguments").map(|_| ()),
        "tool_search_output" | "additional_tools" => {
            item.need("tools")?.items()?.iter().try_for_each(|tool| check_tool(tool).map(|_| ()))
        }
        "agent_message" => {
            item.need("author")?.text()?;
            item.need("recipient")?.text()?;
            item.need("content")?.items().map(|_| ())
        }
        "compaction" => item.need("encrypted_content")?.text().map(|_| ()),
        "mcp_list_tools" => {
            item.need("server_label")?.text()?;
            item.need("tools")?.items().map(|_| ())
        }
        "mcp_call" | "mcp_approval_request" => {
            item.need("server_label")?.text()?;
            item.need("name")?.text()?;
            item.need("arguments")?.text().map(|_| ())
        }
        "mcp_approval_response" => {
            item.need("approval_request_id")?.text()?;
            item.need("approve")?.boolean().map(|_| ())
        }
        _ => Ok(()),
    }
}

/// What an item is; one with a role needs not say it.
fn kind<'a>(item: &Member<'a>) -> Result<&'a str, super::Refusal> {
    match item.get("type") {
        Some(kind) => kind.one_of(ITEMS),
        None if item.get("role").is_some() => Ok("message"),
        None => item.need("type")?.one_of(ITEMS),
    }
}

fn message(item: &Member<'_>) -> Verdict {
    item.only("type role content id status phase")?;
    let role = item.need("role")?.one_of("user assistant system developer")?;
    let content = item.need("content")?;
    if content.value.is_string() {
        return Ok(());
    }
    content.items()?.iter().try_for_each(|part| part_of(part, role == "assistant"))
}

fn part_of(part: &Member<'_>, assistant: bool) -> Verdict {
    let known = if assistant { "output_text refusal" } else { "input_text input_image input_file" };
    match part.need("type")?.one_of(known)? {
        "input_text" | "output_text" => part.need("text")?.text().map(|_| ()),
        "refusal" => part.need("refusal")?.text().map(|_| ()),
        "input_image" => match (part.get("image_url"), part.get("file_id")) {
            (Some(url), _) => url.text_within(usize::MAX).map(|_| ()),
            (None, Some(id)) => Err(not_found(&id)),
            (None, None) => part.need("image_url").map(|_| ()),
        },
        _ => part.get("file_id").map_or(Ok(()), |id| Err(not_found(&id))),
    }
}

/// No file was ever given to the simulator.
fn not_found(id: &Member<'_>) -> super::Refusal {
    let file = id.value.as_str().unwrap_or_default();
    let refusal = id.refusal(&format!("File with id '{file}' not found."));
    super::Refusal { status: 404, ..refusal }.coded("not_found")
}
