//! Counts the tools of a responses call: those of the call itself, and those that items of its
//! input add.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::{JsonKind, JsonValue};

/// The path of the list of the call itself.
pub(super) const CALL_TOOLS: &str = "tools";

/// The type of a tool that stands for all tools of a server, which the vendor lists and calls.
const SERVER_TOOL: &str = "mcp";

/// The tools found in a call so far.
#[derive(Default)]
pub(super) struct ToolCount {
    has_any: bool,
    hosted: u64,
    /// Whether any tool, wherever it stands, is one of a server.
    has_servers: bool,
    /// The index of the first such tool in the list of the call itself.
    first_server: Option<usize>,
}

impl ToolCount {
    /// Adds a list of tools, with those inside its namespaces. `param` is the path of the list.
    /// Lists must hold objects: the rules screen these, and nothing else.
    pub(super) fn add_list(&mut self, param: &str, list: JsonValue<'_>) -> Result<(), CallError> {
        for_each_tool(param, list, |i, tool| {
            let kind = tool.get("type").and_then(JsonValue::text).unwrap_or_default();
            self.add(&kind);
            if param == CALL_TOOLS && kind == SERVER_TOOL {
                self.first_server = self.first_server.or(Some(i));
            }
            match tool.get("tools").filter(|inner| !inner.is_null()) {
                // A namespace has no namespaces inside.
                Some(inner) if kind == "namespace" => {
                    for_each_tool(&format!("{param}[{i}].tools"), inner, |_, tool| {
                        self.add(&tool.get("type").and_then(JsonValue::text).unwrap_or_default());
                        Ok(())
                    })
                }
                _ => Ok(()),
            }
        })
    }

    /// Returns the number of tool prompts, see
    /// [`InputSize::vendor_tool_prompt_count`](super::InputSize::vendor_tool_prompt_count).
    pub(super) fn prompt_count(&self) -> u64 {
        u64::from(self.has_any) + self.hosted
    }

    /// Whether any tool is one of a server.
    pub(super) fn has_servers(&self) -> bool {
        self.has_servers
    }

    /// Returns the index of the first tool of the call itself that is one of a server.
    pub(super) fn first_server(&self) -> Option<usize> {
        self.first_server
    }

    fn add(&mut self, kind: &str) {
        self.has_any = true;
        self.has_servers |= kind == SERVER_TOOL;
        // The vendor adds no prompt of its own for functions and custom tools.
        let is_hosted = !matches!(kind, "" | "function" | "custom" | "namespace");
        self.hosted += u64::from(is_hosted);
    }
}

/// Shows each tool of a list to `see`, with its index.
fn for_each_tool<'a>(
    param: &str,
    list: JsonValue<'a>,
    mut see: impl FnMut(usize, JsonValue<'a>) -> Result<(), CallError>,
) -> Result<(), CallError> {
    if list.kind() != JsonKind::Array {
        return Err(invalid_value(param, "an array", list));
    }
    for (i, tool) in list.elements().enumerate() {
        if tool.kind() != JsonKind::Object {
            return Err(invalid_value(&format!("{param}[{i}]"), "an object", tool));
        }
        see(i, tool)?;
    }
    Ok(())
}
