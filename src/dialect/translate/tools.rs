//! Translates the tools of a call, and the choice of which of them may or must be called.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashSet;

use bytes::Bytes;

use super::dropped_fields::DroppedFields;
use super::parts::BlockKind;
use super::turns::ConversationTurn;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};

/// The input schema of a tool that takes any object.
const ANY_OBJECT_SCHEMA: &[u8] = br#"{"type":"object","properties":{}}"#;

/// The input schema of a strict tool that has no parameters.
const NO_PARAMETERS_SCHEMA: &[u8] =
    br#"{"type":"object","properties":{},"additionalProperties":false}"#;

/// The members of a function that a tool of the messages format has too.
const FUNCTION: [&str; 5] = ["name", "description", "parameters", "strict", "cache_control"];

/// The definition of a tool.
struct ToolDefinition {
    name: Bytes,
    description: Option<Bytes>,
    input_schema: Bytes,
    /// Whether the inputs must follow the schema strictly.
    is_strict: bool,
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
    /// The fields of the call that were dropped.
    pub(super) dropped_fields: DroppedFields,
    /// Whether at most one tool may be called at a time.
    disable_parallel: bool,
}

impl CallTools {
    /// Parses the tools of a call; `takes_strict` says whether the model takes strict tools.
    pub(super) fn parse(
        document: &JsonDocument,
        patch: &JsonPatch<'_>,
        takes_strict: bool,
    ) -> Result<CallTools, CallError> {
        let source = SourceBytes(document.body());
        let mut all = CallTools::default();
        all.parse_definitions(source, patch, takes_strict)?;
        let present = |name: &str| patch.get(name).filter(|v| !v.is_null());
        all.choice = match (present("tool_choice"), present("function_call")) {
            (Some(choice), legacy) => {
                if legacy.is_some() {
                    all.dropped_fields.add("", "function_call");
                }
                Some(ToolChoice::parse(source, choice)?)
            }
            (None, Some(call)) => Some(ToolChoice::parse_legacy(source, call)?),
            (None, None) => None,
        };
        if all.definitions.is_empty() && all.choice.as_ref().is_some_and(ToolChoice::is_forced) {
            let is_legacy = present("tool_choice").is_none();
            all.dropped_fields.add("", if is_legacy { "function_call" } else { "tool_choice" });
        }
        // A rule may have lowered the choice. That does not change which tools are allowed.
        if let Some(allowed) = document.get("tool_choice").and_then(AllowedTools::find) {
            all.keep_allowed(&allowed)?;
        }
        if let Some(parallel) = present("parallel_tool_calls") {
            let parallel = parallel
                .bool()
                .ok_or_else(|| invalid_value("parallel_tool_calls", "true or false", parallel))?;
            all.disable_parallel = !parallel;
        }
        Ok(all)
    }

    fn parse_definitions(
        &mut self,
        source: SourceBytes<'_>,
        patch: &JsonPatch<'_>,
        takes_strict: bool,
    ) -> Result<(), CallError> {
        for (i, tool) in array_elements(patch, "tools")?.into_iter().enumerate() {
            let field = format!("tools[{i}].function");
            let Some(function) = tool.get("function").filter(|f| f.kind() == JsonKind::Object)
            else {
                return Err(CallError::missing(&field, "an object {name, parameters}"));
            };
            let known = ["type", "function", "cache_control"];
            self.dropped_fields.add_unknown("tools[]", tool, &known);
            let mut read = ToolDefinition::parse(source, &field, function)?;
            let cache = tool.get("cache_control").filter(|v| !v.is_null());
            read.cache_control = cache.map(|c| source.slice_value(c)).or(read.cache_control);
            self.add_definition("tools[].function", function, read, takes_strict);
        }
        for (i, function) in array_elements(patch, "functions")?.into_iter().enumerate() {
            let read = ToolDefinition::parse(source, &format!("functions[{i}]"), function)?;
            self.add_definition("functions[]", function, read, takes_strict);
        }
        Ok(())
    }

    /// Adds the definition that was parsed from `function`. `parent` is the path of the function in
    /// the names of dropped fields.
    fn add_definition(
        &mut self,
        parent: &str,
        function: JsonValue<'_>,
        mut definition: ToolDefinition,
        takes_strict: bool,
    ) {
        self.dropped_fields.add_unknown(parent, function, &FUNCTION);
        if definition.is_strict && !takes_strict {
            definition.is_strict = false;
            self.dropped_fields.add(parent, "strict");
        }
        self.definitions.push(definition);
    }

    /// Keeps only the tools that the choice allows.
    fn keep_allowed(&mut self, allowed: &AllowedTools<'_>) -> Result<(), CallError> {
        allowed.parse_mode()?;
        let defined: HashSet<String> =
            self.definitions.iter().map(ToolDefinition::unescaped_name).collect();
        let names = allowed.parse_names(&defined)?;
        self.definitions.retain(|tool| names.contains(&tool.unescaped_name()));
        Ok(())
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
                    is_strict: false,
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
        let strict = present("strict").map(|strict| {
            let field = format!("{path}.strict");
            strict.bool().ok_or_else(|| invalid_value(&field, "true or false", strict))
        });
        let is_strict = strict.transpose()?.unwrap_or(false);
        let field = format!("{path}.parameters");
        let input_schema = parse_input_schema(source, &field, present("parameters"), is_strict)?;
        Ok(ToolDefinition {
            name: source.slice_value(name),
            description: description.map(|d| source.slice_value(d)),
            input_schema,
            is_strict,
            cache_control: present("cache_control").map(|c| source.slice_value(c)),
        })
    }

    /// Returns the name without JSON escapes.
    fn unescaped_name(&self) -> String {
        JsonValue::from_validated(&self.name).text().unwrap_or_default().into_owned()
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
        if self.is_strict {
            out.write_str(r#","strict":true"#);
        }
        if let Some(cache) = &self.cache_control {
            out.write_str(r#","cache_control":"#);
            out.write_bytes(cache);
        }
        out.write_str("}");
    }
}

/// Returns the schema of a tool's input. Its `type` is set to `object`, whatever the client wrote.
/// Without parameters, a strict tool takes an empty object and any other tool any object.
fn parse_input_schema(
    source: SourceBytes<'_>,
    field: &str,
    parameters: Option<JsonValue<'_>>,
    is_strict: bool,
) -> Result<Bytes, CallError> {
    let no_parameters = if is_strict { NO_PARAMETERS_SCHEMA } else { ANY_OBJECT_SCHEMA };
    let Some(parameters) = parameters else { return Ok(Bytes::from_static(no_parameters)) };
    if parameters.kind() != JsonKind::Object {
        return Err(invalid_value(field, "a JSON schema, an object", parameters));
    }
    if parameters.members().next().is_none() {
        return Ok(Bytes::from_static(no_parameters));
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
        let expected = "none, auto, required, {type: function, function: {name}} or \
            {type: allowed_tools, allowed_tools: {mode, tools}}";
        if let Some(allowed) = AllowedTools::find(choice) {
            return allowed.parse_mode();
        }
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

    /// Whether a tool must be called.
    fn is_forced(&self) -> bool {
        matches!(self, ToolChoice::Any | ToolChoice::Named(_))
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

/// The list of allowed tools in a `tool_choice` of the type `allowed_tools`.
struct AllowedTools<'a> {
    /// The path of the object that holds the list, for error messages.
    path: &'static str,
    /// That object: its members are `mode` and `tools`.
    object: JsonValue<'a>,
}

impl<'a> AllowedTools<'a> {
    /// Returns the list of a choice; `None` if the choice is of another type. The chat format nests
    /// the list; the responses format does not, and some clients send it in that form.
    fn find(choice: JsonValue<'a>) -> Option<AllowedTools<'a>> {
        let kind = choice.get("type").and_then(JsonValue::text);
        if kind.is_none_or(|kind| kind != "allowed_tools") {
            return None;
        }
        Some(match choice.get("allowed_tools").filter(|v| !v.is_null()) {
            Some(object) => AllowedTools { path: "tool_choice.allowed_tools", object },
            None => AllowedTools { path: "tool_choice", object: choice },
        })
    }

    fn parse_mode(&self) -> Result<ToolChoice, CallError> {
        let field = format!("{}.mode", self.path);
        let mode = self.object.get("mode").filter(|v| !v.is_null());
        let mode = mode.ok_or_else(|| CallError::missing(&field, "auto or required"))?;
        match mode.text().as_deref() {
            Some("auto") => Ok(ToolChoice::Auto),
            Some("required") => Ok(ToolChoice::Any),
            _ => Err(invalid_value(&field, "auto or required", mode)),
        }
    }

    /// Returns the names in the list. Each must be one of the `defined` tools.
    fn parse_names(&self, defined: &HashSet<String>) -> Result<HashSet<String>, CallError> {
        let field = format!("{}.tools", self.path);
        let expected = "a non-empty array of {type: function, function: {name}}";
        let list = self.object.get("tools").filter(|v| !v.is_null());
        let list = list.ok_or_else(|| CallError::missing(&field, expected))?;
        let mut names = HashSet::new();
        for (i, tool) in list.elements().enumerate() {
            let function = tool.get("function").filter(|f| f.kind() == JsonKind::Object);
            let member = function.unwrap_or(tool).get("name");
            let name = member.and_then(JsonValue::text).filter(|name| defined.contains(&**name));
            let name = name.ok_or_else(|| {
                let expected = "the name of a tool that the call defines";
                invalid_value(&format!("{field}[{i}]"), expected, member.unwrap_or(tool))
            })?;
            names.insert(name.into_owned());
        }
        if names.is_empty() {
            return Err(invalid_value(&field, expected, list));
        }
        Ok(names)
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
