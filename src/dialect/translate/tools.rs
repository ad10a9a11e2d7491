//! Tools, and which of them may or must be called.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashSet;

use bytes::Bytes;

use super::parts::What;
use super::turns::Turn;
use super::writer::{Source, Writer};
use crate::dialect::CallFault;
use crate::dialect::call::wrong;
use crate::dialect::json::{Document, Draft, Kind, Value};

/// The schema of a tool that takes anything.
const ANY: &[u8] = br#"{"type":"object","properties":{}}"#;

/// A tool.
struct Tool {
    name: Bytes,
    description: Option<Bytes>,
    schema: Bytes,
    cache: Option<Bytes>,
}

/// Which tools may or must be called.
enum Choice {
    Auto,
    Any,
    None,
    Named(Bytes),
}

/// The tools of a call.
#[derive(Default)]
pub(super) struct Tools {
    defined: Vec<Tool>,
    choice: Option<Choice>,
    /// Whether at most one may be called at a time.
    single: bool,
}

impl Tools {
    pub(super) fn read(source: Source<'_>, draft: &Draft<'_>) -> Result<Tools, CallFault> {
        let mut all = Tools::default();
        for (i, tool) in list(draft, "tools")?.into_iter().enumerate() {
            let path = format!("tools[{i}]");
            let Some(function) = tool.get("function").filter(|f| f.kind() == Kind::Object) else {
                let field = format!("{path}.function");
                return Err(CallFault::missing(&field, "an object {name, parameters}"));
            };
            let mut read = Tool::read(source, &format!("{path}.function"), function)?;
            let cache = tool.get("cache_control").filter(|v| !v.is_null());
            read.cache = cache.map(|c| source.keep(c)).or(read.cache);
            all.defined.push(read);
        }
        for (i, function) in list(draft, "functions")?.into_iter().enumerate() {
            all.defined.push(Tool::read(source, &format!("functions[{i}]"), function)?);
        }
        let present = |name: &str| draft.get(name).filter(|v| !v.is_null());
        all.choice = match (present("tool_choice"), present("function_call")) {
            (Some(choice), _) => Some(Choice::read(source, choice)?),
            (None, Some(call)) => Some(Choice::read_old(source, call)?),
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
    pub(super) fn complete(mut self, turns: &[Turn]) -> Tools {
        if !self.defined.is_empty() {
            if self.single && self.choice.is_none() {
                self.choice = Some(Choice::Auto);
            }
            return self;
        }
        let mut known = HashSet::new();
        for block in turns.iter().flat_map(|turn| &turn.blocks) {
            if let What::Use { name, .. } = &block.what
                && known.insert(name.clone())
            {
                let schema = Bytes::from_static(ANY);
                let name = name.clone();
                self.defined.push(Tool { name, description: None, schema, cache: None });
            }
        }
        self.choice = (!self.defined.is_empty()).then_some(Choice::None);
        self
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if let Some(choice) = &self.choice {
            out.text(r#","tool_choice":{"type":"#);
            match choice {
                Choice::Auto => out.text(r#""auto""#),
                Choice::Any => out.text(r#""any""#),
                Choice::None => out.text(r#""none""#),
                Choice::Named(name) => {
                    out.text(r#""tool","name":"#);
                    out.bytes(name);
                }
            }
            if self.single && !matches!(choice, Choice::None) {
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

impl Tool {
    fn read(source: Source<'_>, path: &str, function: Value<'_>) -> Result<Tool, CallFault> {
        let present = |name: &str| function.get(name).filter(|v| !v.is_null());
        let field = format!("{path}.name");
        let Some(name) = present("name") else {
            return Err(CallFault::missing(&field, "the name of the function"));
        };
        if name.kind() != Kind::Text {
            return Err(wrong(&field, "a string", name));
        }
        let description = present("description");
        if let Some(other) = description.filter(|d| d.kind() != Kind::Text) {
            return Err(wrong(&format!("{path}.description"), "a string", other));
        }
        Ok(Tool {
            name: source.keep(name),
            description: description.map(|d| source.keep(d)),
            schema: schema(source, &format!("{path}.parameters"), present("parameters"))?,
            cache: present("cache_control").map(|c| source.keep(c)),
        })
    }

    fn write(&self, out: &mut Writer) {
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
    source: Source<'_>,
    field: &str,
    parameters: Option<Value<'_>>,
) -> Result<Bytes, CallFault> {
    let Some(parameters) = parameters else { return Ok(Bytes::from_static(ANY)) };
    if parameters.kind() != Kind::Object {
        return Err(wrong(field, "a JSON schema, an object", parameters));
    }
    if parameters.members().next().is_none() {
        return Ok(Bytes::from_static(ANY));
    }
    let kept = source.keep(parameters);
    if parameters.get("type").and_then(Value::text).is_some_and(|t| t == "object") {
        return Ok(kept);
    }
    let document = Document::parse(kept)?;
    let mut draft = Draft::new(&document);
    draft.set("type", r#""object""#.to_owned());
    Ok(Bytes::from(draft.finish().concat()))
}

impl Choice {
    fn read(source: Source<'_>, choice: Value<'_>) -> Result<Choice, CallFault> {
        let right = "none, auto, required or {type: function, function: {name}}";
        match choice.text().as_deref() {
            Some("none") => return Ok(Choice::None),
            Some("auto") => return Ok(Choice::Auto),
            Some("required") => return Ok(Choice::Any),
            _ => {}
        }
        let kind = choice.get("type").and_then(Value::text);
        let name = choice.get("function").and_then(|f| f.get("name"));
        match name.filter(|n| n.kind() == Kind::Text) {
            Some(name) if kind.is_some_and(|k| k == "function") => {
                Ok(Choice::Named(source.keep(name)))
            }
            _ => Err(wrong("tool_choice", right, choice)),
        }
    }

    /// The older form: `none`, `auto` or `{name}`.
    fn read_old(source: Source<'_>, call: Value<'_>) -> Result<Choice, CallFault> {
        match call.text().as_deref() {
            Some("none") => return Ok(Choice::None),
            Some("auto") => return Ok(Choice::Auto),
            _ => {}
        }
        match call.get("name").filter(|n| n.kind() == Kind::Text) {
            Some(name) => Ok(Choice::Named(source.keep(name))),
            None => Err(wrong("function_call", "none, auto or {name}", call)),
        }
    }
}

/// The elements of a member that is a list, if it is there.
fn list<'a>(draft: &'a Draft<'_>, name: &str) -> Result<Vec<Value<'a>>, CallFault> {
    let Some(list) = draft.get(name).filter(|v| !v.is_null()) else { return Ok(Vec::new()) };
    if list.kind() != Kind::List {
        return Err(wrong(name, "an array", list));
    }
    Ok(list.elements().collect())
}
