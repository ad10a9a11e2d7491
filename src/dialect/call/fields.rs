//! Readers of the fields that the calls of several endpoints have.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};

/// Messages of one call, at most: what one costs here is far more than its bytes. (The limit of
/// `vendor_a`.)
const MESSAGES_MAX: usize = 100_000;

/// Checks the shape of the messages, and shows the content of each to `see`.
pub(in crate::dialect) fn visit_messages<'a>(
    document: &'a JsonDocument,
    roles: &str,
    mut see: impl FnMut(JsonValue<'a>),
) -> Result<(), CallError> {
    let expected = "a non-empty array of {role, content}";
    let Some(messages) = non_null_member(document, "messages") else {
        return Err(CallError::missing("messages", expected));
    };
    let mut count = 0;
    for (i, message) in messages.elements().enumerate() {
        count += 1;
        if message.kind() != JsonKind::Object {
            return Err(invalid_value(
                &format!("messages[{i}]"),
                "an object {role, content}",
                message,
            ));
        }
        let mut role = None;
        for (name, value) in message.members() {
            match &*name {
                "role" => role = value.text(),
                "content" => see(value),
                _ => {}
            }
        }
        if role.is_none() {
            return Err(CallError::missing(&format!("messages[{i}].role"), roles));
        }
    }
    if count == 0 {
        // Anything but a list yields no elements.
        return Err(invalid_value("messages", expected, messages));
    }
    if count > MESSAGES_MAX {
        return Err(CallError::invalid("messages", &format!("at most {MESSAGES_MAX} messages")));
    }
    Ok(())
}

/// Counts the tool prompts, see
/// [`InputSize::vendor_tool_prompt_count`](super::InputSize::vendor_tool_prompt_count). `custom` is
/// the type of the tools for which the vendor adds no prompt.
pub(in crate::dialect) fn count_tool_prompts(document: &JsonDocument, custom: &str) -> u64 {
    let mut count = 0;
    for tool in non_null_member(document, "tools").into_iter().flat_map(JsonValue::elements) {
        let kind = tool.get("type").and_then(JsonValue::text);
        count += u64::from(count == 0) + u64::from(kind.is_some_and(|kind| kind != custom));
    }
    count
}

/// A member that is there and not null.
pub(in crate::dialect) fn non_null_member<'a>(
    document: &'a JsonDocument,
    field: &str,
) -> Option<JsonValue<'a>> {
    document.get(field).filter(|v| !v.is_null())
}

pub(in crate::dialect) fn read_bool(
    document: &JsonDocument,
    field: &str,
) -> Result<bool, CallError> {
    let Some(value) = non_null_member(document, field) else { return Ok(false) };
    value.bool().ok_or_else(|| invalid_value(field, "true or false", value))
}

/// A whole number of at least `least`.
pub(in crate::dialect) fn read_integer(
    document: &JsonDocument,
    field: &str,
    least: u64,
) -> Result<Option<u64>, CallError> {
    let Some(value) = non_null_member(document, field) else { return Ok(None) };
    let read = value.integer().filter(|n| *n >= least);
    let expected = || format!("a whole number from {least} to 9007199254740991");
    read.map(Some).ok_or_else(|| invalid_value(field, &expected(), value))
}

/// What is wrong with a value, with its beginning.
pub(in crate::dialect) fn invalid_value(
    field: &str,
    expected: &str,
    found: JsonValue<'_>,
) -> CallError {
    let shown: String = String::from_utf8_lossy(found.raw()).chars().take(40).collect();
    CallError::invalid(field, &format!("{expected}, not {} ({shown})", found.kind().description()))
}
