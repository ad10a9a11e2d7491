//! The input: how much of it is no text, and which of its items the vendor would look up.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use super::stored_objects::ReferencedObjects;
use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::data_uri::{TEXT_MEDIA_TYPES, is_data_uri};
use crate::dialect::json::{JsonKind, JsonValue};

/// Items of one input, at most: what one costs here is far more than its bytes.
const ITEMS_MAX: usize = 100_000;

/// Parts inside of parts, at most; the item is the outermost. Walking costs the depth times the
/// bytes.
const PARTS_DEPTH_MAX: usize = 5;

/// What was found in an input.
#[derive(Default)]
pub(super) struct ResponsesInput {
    pub(super) images: u64,
    pub(super) documents: u64,
    /// Bytes of both.
    pub(super) non_text_bytes: u64,
}

impl ResponsesInput {
    /// Reads a list of items, and tells how many there are.
    pub(super) fn read_items(
        &mut self,
        list: JsonValue<'_>,
        names: &mut ReferencedObjects,
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
            collect_references(item, i, names)?;
            check_parts(item, i)?;
            self.count_part(item, PARTS_DEPTH_MAX);
        }
        Ok(count)
    }

    /// Counts the parts of a content or an output.
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
            // A file that is read as text stays text.
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

    /// Counts an image or a document, and what holds it or its address.
    fn count_attachment(&mut self, is_image: bool, data: Option<JsonValue<'_>>) {
        let counted = if is_image { &mut self.images } else { &mut self.documents };
        *counted += 1;
        self.non_text_bytes += data.map_or(0, |data| data.raw().len() as u64);
    }
}

/// Checks that parts are objects: the rules look at these, and at nothing deeper.
fn check_parts(item: JsonValue<'_>, i: usize) -> Result<(), CallError> {
    for (name, list) in item.members().filter(|(name, _)| matches!(&**name, "content" | "output")) {
        for (j, part) in list.elements().enumerate() {
            if part.kind() != JsonKind::Object {
                return Err(invalid_value(&format!("input[{i}].{name}[{j}]"), "an object", part));
            }
        }
    }
    Ok(())
}

/// Takes the ids by which the vendor would look up an item, or what it belongs to.
fn collect_references(
    item: JsonValue<'_>,
    i: usize,
    names: &mut ReferencedObjects,
) -> Result<(), CallError> {
    let members: Vec<(Cow<'_, str>, JsonValue<'_>)> = item.members().collect();
    let get = |name: &str| members.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
    let there = |name: &str| get(name).filter(|value| !value.is_null());
    let kind = match get("type") {
        Some(kind) => kind.text().unwrap_or_default(),
        None if there("role").is_some() => Cow::Borrowed("message"),
        None => Cow::Borrowed("item_reference"),
    };
    let own = required_members(&kind);
    let is_whole = !own.is_empty()
        && own.iter().all(|name| get(name).is_some_and(|value| has_content(name, value)));
    if let Some(id) = there("id").filter(|_| !is_whole) {
        names.add(&format!("input[{i}].id"), id)?;
    }
    if let Some(id) = there("approval_request_id") {
        names.add(&format!("input[{i}].approval_request_id"), id)?;
    }
    Ok(())
}

/// The members that make an item of a type whole, so that nothing is left to be looked up; none if
/// its id counts whatever is sent with it.
fn required_members(kind: &str) -> &'static [&'static str] {
    match kind {
        "message" => &["content"],
        "function_call" => &["name", "arguments"],
        "custom_tool_call" => &["name", "input"],
        "function_call_output"
        | "custom_tool_call_output"
        | "computer_call_output"
        | "local_shell_call_output" => &["output"],
        // Its text is for people; the model reads what is sealed, or what is stored.
        "reasoning" | "compaction" => &["encrypted_content"],
        _ => &[],
    }
}

/// Whether a member holds what it should. A message with an empty list says no more than its id; a
/// tool may have had nothing to say.
fn has_content(name: &str, value: JsonValue<'_>) -> bool {
    match (name, value.kind()) {
        ("encrypted_content", JsonKind::String) => {
            value.string_bytes().is_some_and(|sealed| !sealed.is_empty())
        }
        (_, JsonKind::String) | ("output", JsonKind::Object | JsonKind::Array) => true,
        ("content", JsonKind::Array) => value.elements().next().is_some(),
        _ => false,
    }
}
