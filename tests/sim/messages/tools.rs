//! The tools of a request, and the choice among them.

use std::collections::HashSet;

use super::blocks::cache_control;
use super::family::Family;
use super::node::{Node, Verdict};

const OF_CUSTOM: &str = "name description input_schema cache_control type strict defer_loading \
    allowed_callers input_examples eager_input_streaming";
/// Tools of the vendor whose types have no date.
const UNDATED: [&str; 2] = ["tool_search_tool_regex", "tool_search_tool_bm25"];
const NAME_MAX: usize = 128;

pub(super) fn check(root: &Node<'_>, family: &Family) -> Verdict {
    let tools = root.get("tools").map(|tools| tools.items()).transpose()?.unwrap_or_default();
    let mut names = HashSet::new();
    for tool in &tools {
        if !names.insert(check_one(tool)?) {
            return Err("tools: Tool names must be unique.".to_owned());
        }
    }
    match root.get("tool_choice") {
        Some(choice) => check_choice(&choice, &names, family),
        None => Ok(()),
    }
}

/// The name of a tool that is as it should be.
fn check_one<'a>(tool: &Node<'a>) -> Result<&'a str, String> {
    let kind = tool.get("type").map_or(Ok("custom"), |kind| kind.text())?;
    let node = tool.tagged(kind);
    if kind != "custom" {
        let day = kind.rsplit_once('_').map_or("", |(_, day)| day);
        let is_dated = day.len() == 8 && day.chars().all(|c| c.is_ascii_digit());
        if !is_dated && !UNDATED.contains(&kind) {
            return Err(tool.fault(&format!(
                "Input tag '{kind}' found using 'type' does not match any of the expected tags"
            )));
        }
        return node.need("name")?.word(NAME_MAX);
    }
    let name = node.need("name")?.word(NAME_MAX)?;
    node.only(&[OF_CUSTOM])?;
    node.get("description").map(|text| text.text()).transpose()?;
    node.get("strict").map(|flag| flag.boolean()).transpose()?;
    cache_control(&node)?;
    let schema = node.need("input_schema")?;
    schema.need("type")?.one_of(&["object"])?;
    if let Some(properties) = schema.get("properties")
        && !properties.value.is_object()
    {
        return Err(schema.fault("JSON schema is invalid: properties should be an object"));
    }
    Ok(name)
}

fn check_choice(choice: &Node<'_>, names: &HashSet<&str>, family: &Family) -> Verdict {
    let kind = choice.need("type")?.one_of(&["auto", "any", "tool", "none"])?;
    let node = choice.tagged(kind);
    node.only(&[match kind {
        "tool" => "type name disable_parallel_tool_use",
        "none" => "type",
        _ => "type disable_parallel_tool_use",
    }])?;
    node.get("disable_parallel_tool_use").map(|flag| flag.boolean()).transpose()?;
    if names.is_empty() {
        return Err("tool_choice may only be specified while providing tools.".to_owned());
    }
    if kind == "tool" {
        let name = node.need("name")?.text()?;
        if !names.contains(name) {
            return Err(format!("Tool '{name}' not found in provided tools"));
        }
    }
    if !family.can_be_forced() && matches!(kind, "any" | "tool") {
        return Err(choice.fault("tool use cannot be forced on this model"));
    }
    Ok(())
}
