//! Tools, and which of them may or must be called.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashSet;

use bytes::Bytes;

use super::parts::BlockKind;
use super::turns::ConversationTurn;
use super::writer::{MessagesWriter, SourceBytes};
use crate::dialect::CallError;
use crate::dialect::call::wrong;
use crate::dialect::json::{JsonDocument, JsonKind, JsonPatch, JsonValue};

/// The schema of a tool that takes anything.
const ANY: &[u8] = br#"{"type":"object","properties":{}}"#;

/// A tool.
struct ToolDefinition {
    name: Bytes,
    description: Option<Bytes>,
    schema: Bytes,
    cache: Option<Bytes>,
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
    defined: Vec<ToolDefinition>,
    choice: Option<ToolChoice>,
    /// Whether at most one may be called at a time.
    single: bool,
}

impl CallTools {
    pub(super) fn read(
        source: SourceBytes<'_>,
        draft: &JsonPatch<'_>,
    ) -> Result<CallTools, CallError> {
        let mut all = CallTools::default();
        for (i, tool) in list(draft, "tools")?.into_iter().enumerate() {
            let path = format!("tools[{i}]");
            let Some(function) = tool.get("function").filter(|f| f.kind() == JsonKind::Object)
            else {
                let field = format!("{path}.function");
                return Err(CallError::missing(&field, "an object {name, parameters}"));
            };
            let mut read = ToolDefinition::read(source, &format!("{path}.function"), function)?;
            let cache = tool.get("cache_control").filter(|v| !v.is_null());
            read.cache = cache.map(|c| source.keep(c)).or(read.cache);
            all.defined.push(read);
        }
        for (i, function) in list(draft, "functions")?.into_iter().enumerate() {
            all.defined.push(ToolDefinition::read(source, &format!("functions[{i}]"), function)?);
        }
        let present = |name: &str| draft.get(name).filter(|v| !v.is_null());
        all.choice = match (present("tool_choice"), present("function_call")) {
            (Some(choice), _) => Some(ToolChoice::read(source, choice)?),
            (None, Some(call)) => Some(ToolChoice::read_old(source, call)?),
            (None, None) => None,
        };
        if let Some(parallel) = present("parallel_tool_calls") {
            let parallel = parallel
                .bool()
                .ok_or_else(|| wrong("parallel_tool_calls", "true or false", parallel))?;
            all.single = !parallel;
        }
        Ok(all)
    }

    /// Defines what was called earlier, where a client offers no tools any more: the vendor wants
    /// them defined all the same, and none of them is to be called.
    pub(super) fn complete(mut self, turns: &[ConversationTurn]) -> CallTools {
        if !self.defined.is_empty() {
            if self.single && self.choice.is_none() {
                self.choice = Some(ToolChoice::Auto);
            }
            return self;
        }
        let mut known = HashSet::new();
        for block in turns.iter().flat_map(|turn| &turn.blocks) {
            if let BlockKind::Use { name, .. } = &block.what
                && known.insert(name.clone())
            {
                let schema = Bytes::from_static(ANY);
                let name = name.clone();
                self.defined.push(ToolDefinition { name, description: None, schema, cache: None });
            }
        }
        self.choice = (!self.defined.is_empty()).then_some(ToolChoice::None);
        self
    }

    pub(super) fn write(&self, out: &mut MessagesWriter) {
        if let Some(choice) = &self.choice {
            out.text(r#","tool_choice":{"type":"#);
            match choice {
                ToolChoice::Auto => out.text(r#""auto""#),
                ToolChoice::Any => out.text(r#""any""#),
                ToolChoice::None => out.text(r#""none""#),
                ToolChoice::Named(name) => {
                    out.text(r#""tool","name":"#);
                    out.bytes(name);
                }
            }
            if self.single && !matches!(choice, ToolChoice::None) {
                out.text(r#","disable_parallel_tool_use":true"#);
            }
            out.text("}");
        }
        if self.defined.is_empty() {
            return;
        }
        out.text(r#","tools":["#);
        out.list(&self.defined, |out, tool| tool.write(out));
        out.text("]");
    }
}

impl ToolDefinition {
    fn read(
        source: SourceBytes<'_>,
        path: &str,
        function: JsonValue<'_>,
    ) -> Result<ToolDefinition, CallError> {
        let present = |name: &str| function.get(name).filter(|v| !v.is_null());
        let field = format!("{path}.name");
        let Some(name) = present("name") else {
            return Err(CallError::missing(&field, "the name of the function"));
        };
        if name.kind() != JsonKind::Text {
            return Err(wrong(&field, "a string", name));
        }
        let description = present("description");
        if let Some(other) = description.filter(|d| d.kind() != JsonKind::Text) {
            return Err(wrong(&format!("{path}.description"), "a string", other));
        }
        Ok(ToolDefinition {
            name: source.keep(name),
            description: description.map(|d| source.keep(d)),
            schema: schema(source, &format!("{path}.parameters"), present("parameters"))?,
            cache: present("cache_control").map(|c| source.keep(c)),
        })
    }

    fn write(&self, out: &mut MessagesWriter) {
        out.text(r#"{"name":"#);
        out.bytes(&self.name);
        if let Some(description) = &self.description {
            out.text(r#","description":"#);
            out.bytes(description);
        }
        out.text(r#","input_schema":"#);
        out.bytes(&self.schema);
        if let Some(cache) = &self.cache {
            out.text(r#","cache_control":"#);
            out.bytes(cache);
        }
        out.text("}");
    }
}

/// The schema of a tool's input, whose type is an object whatever else it says.
fn schema(
    source: SourceBytes<'_>,
    field: &str,
    parameters: Option<JsonValue<'_>>,
) -> Result<Bytes, CallError> {
    let Some(parameters) = parameters else { return Ok(Bytes::from_static(ANY)) };
    if parameters.kind() != JsonKind::Object {
        return Err(wrong(field, "a JSON schema, an object", parameters));
    }
    if parameters.members().next().is_none() {
        return Ok(Bytes::from_static(ANY));
    }
    let kept = source.keep(parameters);
    if parameters.get("type").and_then(JsonValue::text).is_some_and(|t| t == "object") {
        return Ok(kept);
    }
    let document = JsonDocument::parse(kept)?;
    let mut draft = JsonPatch::new(&document);
    draft.set("type", r#""object""#.to_owned());
    Ok(Bytes::from(draft.finish().concat()))
}

impl ToolChoice {
    fn read(source: SourceBytes<'_>, choice: JsonValue<'_>) -> Result<ToolChoice, CallError> {
        let right = "none, auto, required or {type: function, function: {name}}";
        match choice.text().as_deref() {
            Some("none") => return Ok(ToolChoice::None),
            Some("auto") => return Ok(ToolChoice::Auto),
            Some("required") => return Ok(ToolChoice::Any),
            _ => {}
        }
        let kind = choice.get("type").and_then(JsonValue::text);
        let name = choice.get("function").and_then(|f| f.get("name"));
        match name.filter(|n| n.kind() == JsonKind::Text) {
            Some(name) if kind.is_some_and(|k| k == "function") => {
                Ok(ToolChoice::Named(source.keep(name)))
            }
            _ => Err(wrong("tool_choice", right, choice)),
        }
    }

    /// The older form: `none`, `auto` or `{name}`.
    fn read_old(source: SourceBytes<'_>, call: JsonValue<'_>) -> Result<ToolChoice, CallError> {
        match call.text().as_deref() {
            Some("none") => return Ok(ToolChoice::None),
            Some("auto") => return Ok(ToolChoice::Auto),
            _ => {}
        }
        match call.get("name").filter(|n| n.kind() == JsonKind::Text) {
            Some(name) => Ok(ToolChoice::Named(source.keep(name))),
            None => Err(wrong("function_call", "none, auto or {name}", call)),
        }
    }
}

/// The elements of a member that is a list, if it is there.
fn list<'a>(draft: &'a JsonPatch<'_>, name: &str) -> Result<Vec<JsonValue<'a>>, CallError> {
    let Some(list) = draft.get(name).filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
    if list.kind() != JsonKind::List {
        return Err(wrong(name, "an array", list));
    }
    Ok(list.elements().collect())
}
