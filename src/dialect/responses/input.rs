//! Parses the input of a responses call: measures how much of it is not text, and finds the items
//! that the vendor would look up by id.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;
use std::collections::HashSet;

use super::stored_objects::ReferencedObjects;
use super::tools::ToolCount;
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::data_uri::{TEXT_MEDIA_TYPES, is_data_uri};
use crate::dialect::json::{JsonKind, JsonValue};

/// At most this many items are accepted in one input: each costs the gateway far more than its
/// bytes.
const ITEMS_MAX: usize = 100_000;

/// Parts are counted down to this nesting depth; the item is the outermost level. Walking the parts
/// costs the depth times the bytes.
const PARTS_DEPTH_MAX: usize = 5;

/// The images, documents and tools found in an input.
#[derive(Default)]
pub(super) struct ResponsesInput {
    pub(super) images: u64,
    pub(super) documents: u64,
    /// The bytes of both, or of their addresses, in the body.
    pub(super) non_text_bytes: u64,
    /// The tools that items add, to which those of the call itself are added.
    pub(super) tools: ToolCount,
    /// Whether an item asks for a compaction of the conversation instead of an answer.
    pub(super) has_compaction_trigger: bool,
    /// The ids of the questions for an approval that are complete in the body.
    asked_approvals: HashSet<String>,
}

impl ResponsesInput {
    /// Reads a list of items, adds the ids that the vendor would look up to `references`, and
    /// returns the number of items.
    pub(super) fn read_items(
        &mut self,
        list: JsonValue<'_>,
        references: &mut ReferencedObjects,
    ) -> Result<usize, CallError> {
        let mut count = 0;
        for (i, item) in list.elements().enumerate() {
            count += 1;
            if count > ITEMS_MAX {
                return Err(CallError::invalid("input", &format!("at most {ITEMS_MAX} items")));
            }
            if item.kind() != JsonKind::Object {
                return Err(invalid_value(&format!("input[{i}]"), "an object", item));
            }
            self.collect_references(item, i, references)?;
            self.check_lists(item, i)?;
            self.count_part(item, PARTS_DEPTH_MAX);
        }
        Ok(count)
    }

    /// Collects the ids by which the vendor would look up an item, or the object that the item
    /// belongs to.
    fn collect_references(
        &mut self,
        item: JsonValue<'_>,
        i: usize,
        references: &mut ReferencedObjects,
    ) -> Result<(), CallError> {
        let members: Vec<(Cow<'_, str>, JsonValue<'_>)> = item.members().collect();
        let get = |name: &str| members.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
        let non_null = |name: &str| get(name).filter(|value| !value.is_null());
        let kind = match get("type") {
            Some(kind) => kind.text().unwrap_or_default(),
            None if non_null("role").is_some() => Cow::Borrowed("message"),
            None => Cow::Borrowed("item_reference"),
        };
        self.has_compaction_trigger |= kind == "compaction_trigger";
        let required = required_members(&kind);
        let is_complete = !required.is_empty()
            && required.iter().all(|name| get(name).is_some_and(|value| has_content(name, value)));
        if let Some(id) = non_null("id") {
            if !is_complete {
                references.add(&format!("input[{i}].id"), id)?;
            } else if kind == "mcp_approval_request" {
                self.asked_approvals.extend(id.text().map(Cow::into_owned));
            }
        }
        if let Some(id) = non_null("approval_request_id") {
            let is_asked = id.text().is_some_and(|id| self.asked_approvals.contains(&*id));
            if !is_asked {
                references.add(&format!("input[{i}].approval_request_id"), id)?;
            }
        }
        Ok(())
    }

    /// Checks that the parts and the tools of an item are objects: the rules inspect these, and
    /// nothing deeper but the tools of a namespace.
    fn check_lists(&mut self, item: JsonValue<'_>, i: usize) -> Result<(), CallError> {
        for (name, list) in item.members().filter(|(_, list)| !list.is_null()) {
            match &*name {
                "content" | "output" => check_parts(&name, list, i)?,
                "tools" => self.tools.add_list(&format!("input[{i}].tools"), list)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts the images and documents in a `content` or an `output`.
    fn count_parts(&mut self, parts: JsonValue<'_>, depth: usize) {
        if depth == 0 {
            return;
        }
        if parts.kind() == JsonKind::Object {
            return self.count_part(parts, depth);
        }
        parts.elements().for_each(|part| self.count_part(part, depth));
    }

    fn count_part(&mut self, part: JsonValue<'_>, depth: usize) {
        let (mut kind, mut image, mut file, mut result) = (None, None, None, None);
        for (name, value) in part.members() {
            match &*name {
                "type" => kind = value.text(),
                "image_url" => image = Some(value),
                "file_data" => file = Some(value),
                "result" => result = Some(value),
                "content" | "output" => self.count_parts(value, depth - 1),
                _ => {}
            }
        }
        match kind.as_deref() {
            Some("input_image" | "computer_screenshot") => {
                let is_pages = image.is_some_and(|image| is_data_uri(image, &["application/pdf"]));
                self.count_attachment(!is_pages, image);
            }
            // A file that the vendor reads as text counts as text.
            Some("input_file") if file.is_some_and(|file| is_data_uri(file, &TEXT_MEDIA_TYPES)) => {
            }
            Some("input_file") => {
                self.count_attachment(
                    file.is_some_and(|file| is_data_uri(file, &["image/"])),
                    file,
                );
            }
            Some("image_generation_call") => self.count_attachment(true, result),
            _ => {}
        }
    }

    /// Counts an image or a document, and the bytes of the string that holds it or its address.
    fn count_attachment(&mut self, is_image: bool, data: Option<JsonValue<'_>>) {
        let counted = if is_image { &mut self.images } else { &mut self.documents };
        *counted += 1;
        self.non_text_bytes += data.map_or(0, |data| data.raw().len() as u64);
    }
}

/// Checks that the parts in a list of item `i` are objects. A text has no parts.
fn check_parts(name: &str, list: JsonValue<'_>, i: usize) -> Result<(), CallError> {
    for (j, part) in list.elements().enumerate() {
        if part.kind() != JsonKind::Object {
            return Err(invalid_value(&format!("input[{i}].{name}[{j}]"), "an object", part));
        }
    }
    Ok(())
}

/// Returns the members that an item of this type must have so that the vendor need not look up
/// anything. Empty if the vendor uses the item's id whatever is sent with it.
fn required_members(kind: &str) -> &'static [&'static str] {
    match kind {
        "message" | "agent_message" => &["content"],
        "function_call" => &["name", "arguments"],
        "custom_tool_call" => &["name", "input"],
        "local_shell_call" => &["action", "call_id", "status"],
        "apply_patch_call" => &["operation", "call_id", "status"],
        // The text of its output is optional.
        "apply_patch_call_output" => &["call_id", "status"],
        "tool_search_call" => &["arguments"],
        "mcp_list_tools" => &["server_label", "tools"],
        "mcp_call" | "mcp_approval_request" => &["server_label", "name", "arguments"],
        "mcp_approval_response" => &["approval_request_id", "approve"],
        "tool_search_output" | "additional_tools" => &["tools"],
        "function_call_output"
        | "custom_tool_call_output"
        | "computer_call_output"
        | "local_shell_call_output" => &["output"],
        // The plain text of these items is for people; the model reads the encrypted content or the
        // stored item.
        "reasoning" | "compaction" => &["encrypted_content"],
        _ => &[],
    }
}

/// Whether a member has the content that it should have. A message with an empty list has no more
/// content than its id; the output of a tool may be empty, and so may a list of tools.
fn has_content(name: &str, value: JsonValue<'_>) -> bool {
    match (name, value.kind()) {
        ("encrypted_content" | "call_id" | "status", JsonKind::String) => {
            value.string_bytes().is_some_and(|text| !text.is_empty())
        }
        ("action" | "operation", kind) => {
            kind == JsonKind::Object && value.members().next().is_some()
        }
        ("tools", kind) => kind == JsonKind::Array,
        ("approve", kind) => kind == JsonKind::Bool,
        (_, JsonKind::String)
        | ("output", JsonKind::Object | JsonKind::Array)
        | ("arguments", JsonKind::Object) => true,
        ("content", JsonKind::Array) => value.elements().next().is_some(),
        _ => false,
    }
}
