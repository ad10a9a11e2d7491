//! Translates the tools of a call, and the choice of which of them may or must be called.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashSet;

use bytes::Bytes;

use super::parts::BlockKind;
use super::turns::ConversationTurn;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};

/// The input schema of a tool that takes any object.
const ANY_OBJECT_SCHEMA: &[u8] = br#"{"type":"object","properties":{}}"#;

/// The definition of a tool.
struct ToolDefinition {
    name: Bytes,
    description: Option<Bytes>,
    input_schema: Bytes,
    cache_control: Option<Bytes>,
}

/// Which tools may or must be called.
enum ToolChoice {
    Auto,
    Any,
    None,
    Named(Bytes),
}

/// The tools of a call.
#[derive(Default)]
pub(super) struct CallTools {
    definitions: Vec<ToolDefinition>,
    choice: Option<ToolChoice>,
    /// Whether at most one tool may be called at a time.
    disable_parallel: bool,
}

impl CallTools {
    pub(super) fn parse(
        source: SourceBytes<'_>,
        patch: &JsonPatch<'_>,
    ) -> Result<CallTools, CallError> {
        let mut all = CallTools::default();
        for (i, tool) in array_elements(patch, "tools")?.into_iter().enumerate() {
            let field = format!("tools[{i}].function");
            let Some(function) = tool.get("function").filter(|f| f.kind() == JsonKind::Object)
            else {
                return Err(CallError::missing(&field, "an object {name, parameters}"));
            };
            let mut read = ToolDefinition::parse(source, &field, function)?;
            let cache = tool.get("cache_control").filter(|v| !v.is_null());
            read.cache_control = cache.map(|c| source.slice_value(c)).or(read.cache_control);
            all.definitions.push(read);
        }
        for (i, function) in array_elements(patch, "functions")?.into_iter().enumerate() {
            all.definitions.push(ToolDefinition::parse(
                source,
                &format!("functions[{i}]"),
                function,
            )?);
        }
        let present = |name: &str| patch.get(name).filter(|v| !v.is_null());
        all.choice = match (present("tool_choice"), present("function_call")) {
            (Some(choice), _) => Some(ToolChoice::parse(source, choice)?),
            (None, Some(call)) => Some(ToolChoice::parse_legacy(source, call)?),
            (None, None) => None,
        };
        if let Some(parallel) = present("parallel_tool_calls") {
            let parallel = parallel
                .bool()
                .ok_or_else(|| invalid_value("parallel_tool_calls", "true or false", parallel))?;
            all.disable_parallel = !parallel;
        }
        Ok(all)
    }

    /// If the call offers no tools, defines those that earlier turns called, with `tool_choice`
    /// `none`: the vendor requires a definition of every tool that was called.
    pub(super) fn define_called_tools(mut self, turns: &[ConversationTurn]) -> CallTools {
        if !self.definitions.is_empty() {
            if self.disable_parallel && self.choice.is_none() {
                self.choice = Some(ToolChoice::Auto);
            }
            return self;
        }
        let mut known = HashSet::new();
        for block in turns.iter().flat_map(|turn| &turn.blocks) {
            if let BlockKind::ToolUse { name, .. } = &block.kind
                && known.insert(name.clone())
            {
                let schema = Bytes::from_static(ANY_OBJECT_SCHEMA);
                let name = name.clone();
                self.definitions.push(ToolDefinition {
                    name,
                    description: None,
                    input_schema: schema,
                    cache_control: None,
                });
            }
        }
        self.choice = (!self.definitions.is_empty()).then_some(ToolChoice::None);
        self
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        if let Some(choice) = &self.choice {
            out.write_str(r#","tool_choice":{"type":"#);
            match choice {
                ToolChoice::Auto => out.write_str(r#""auto""#),
                ToolChoice::Any => out.write_str(r#""any""#),
                ToolChoice::None => out.write_str(r#""none""#),
                ToolChoice::Named(name) => {
                    out.write_str(r#""tool","name":"#);
                    out.write_bytes(name);
                }
            }
            if self.disable_parallel && !matches!(choice, ToolChoice::None) {
                out.write_str(r#","disable_parallel_tool_use":true"#);
            }
            out.write_str("}");
        }
        if self.definitions.is_empty() {
            return;
        }
        out.write_str(r#","tools":["#);
        out.write_list(&self.definitions, |out, tool| tool.write(out));
        out.write_str("]");
    }
}

impl ToolDefinition {
    fn parse(
        source: SourceBytes<'_>,
        path: &str,
        function: JsonValue<'_>,
    ) -> Result<ToolDefinition, CallError> {
        let present = |name: &str| function.get(name).filter(|v| !v.is_null());
        let field = format!("{path}.name");
        let Some(name) = present("name") else {
            return Err(CallError::missing(&field, "the name of the function"));
        };
        if name.kind() != JsonKind::String {
            return Err(invalid_value(&field, "a string", name));
        }
        let description = present("description");
        if let Some(other) = description.filter(|d| d.kind() != JsonKind::String) {
            return Err(invalid_value(&format!("{path}.description"), "a string", other));
        }
        Ok(ToolDefinition {
            name: source.slice_value(name),
            description: description.map(|d| source.slice_value(d)),
            input_schema: parse_input_schema(
                source,
                &format!("{path}.parameters"),
                present("parameters"),
            )?,
            cache_control: present("cache_control").map(|c| source.slice_value(c)),
        })
    }

    fn write(&self, out: &mut MessagesWriter) {
        out.write_str(r#"{"name":"#);
        out.write_bytes(&self.name);
        if let Some(description) = &self.description {
            out.write_str(r#","description":"#);
            out.write_bytes(description);
        }
        out.write_str(r#","input_schema":"#);
        out.write_bytes(&self.input_schema);
        if let Some(cache) = &self.cache_control {
            out.write_str(r#","cache_control":"#);
            out.write_bytes(cache);
        }
        out.write_str("}");
    }
}

/// Returns the schema of a tool's input. Its `type` is set to `object`, whatever the client wrote.
fn parse_input_schema(
    source: SourceBytes<'_>,
    field: &str,
    parameters: Option<JsonValue<'_>>,
) -> Result<Bytes, CallError> {
    let Some(parameters) = parameters else { return Ok(Bytes::from_static(ANY_OBJECT_SCHEMA)) };
    if parameters.kind() != JsonKind::Object {
        return Err(invalid_value(field, "a JSON schema, an object", parameters));
    }
    if parameters.members().next().is_none() {
        return Ok(Bytes::from_static(ANY_OBJECT_SCHEMA));
    }
    let kept = source.slice_value(parameters);
    if parameters.get("type").and_then(JsonValue::text).is_some_and(|t| t == "object") {
        return Ok(kept);
    }
    let document = JsonDocument::parse(kept)?;
    let mut patch = JsonPatch::new(&document);
    patch.set("type", r#""object""#.to_owned());
    Ok(Bytes::from(patch.finish().concat()))
}

impl ToolChoice {
    fn parse(source: SourceBytes<'_>, choice: JsonValue<'_>) -> Result<ToolChoice, CallError> {
        let expected = "none, auto, required or {type: function, function: {name}}";
        match choice.text().as_deref() {
            Some("none") => return Ok(ToolChoice::None),
            Some("auto") => return Ok(ToolChoice::Auto),
            Some("required") => return Ok(ToolChoice::Any),
            _ => {}
        }
        let kind = choice.get("type").and_then(JsonValue::text);
        let name = choice.get("function").and_then(|f| f.get("name"));
        match name.filter(|n| n.kind() == JsonKind::String) {
            Some(name) if kind.is_some_and(|k| k == "function") => {
                Ok(ToolChoice::Named(source.slice_value(name)))
            }
            _ => Err(invalid_value("tool_choice", expected, choice)),
        }
    }

    /// Parses the legacy form, `function_call`: `none`, `auto` or `{name}`.
    fn parse_legacy(source: SourceBytes<'_>, call: JsonValue<'_>) -> Result<ToolChoice, CallError> {
        match call.text().as_deref() {
            Some("none") => return Ok(ToolChoice::None),
            Some("auto") => return Ok(ToolChoice::Auto),
            _ => {}
        }
        match call.get("name").filter(|n| n.kind() == JsonKind::String) {
            Some(name) => Ok(ToolChoice::Named(source.slice_value(name))),
            None => Err(invalid_value("function_call", "none, auto or {name}", call)),
        }
    }
}

/// Returns the elements of a list member; empty if the member is absent or null.
fn array_elements<'a>(
    patch: &'a JsonPatch<'_>,
    name: &str,
) -> Result<Vec<JsonValue<'a>>, CallError> {
    let Some(list) = patch.get(name).filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
    if list.kind() != JsonKind::Array {
        return Err(invalid_value(name, "an array", list));
    }
    Ok(list.elements().collect())
}
