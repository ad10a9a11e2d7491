//! Readers of the request fields that several endpoints share.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};

/// A call may have at most this many messages: the gateway's work for a message is far more than
/// its bytes suggest. (`vendor_a` has the same limit.)
const MESSAGES_MAX: u64 = 100_000;

/// Checks that `messages` is a non-empty array of objects with a role, and passes the content of
/// each message to `visit_content`. `roles` names the valid roles in the error message.
pub(in crate::dialect) fn visit_messages<'a>(
    document: &'a JsonDocument,
    roles: &str,
    mut visit_content: impl FnMut(JsonValue<'a>),
) -> Result<(), CallError> {
    let expected = "a non-empty array of {role, content}";
    let Some(messages) = non_null_member(document, "messages") else {
        return Err(CallError::missing("messages", expected));
    };
    let (mut count, mut without_role) = (0, None);
    messages.visit_objects(|place, members| {
        count = place + 1;
        if without_role.is_some() {
            return;
        }
        let mut has_role = false;
        for (name, value) in members {
            match &*name {
                b"role" => has_role = value.kind() == JsonKind::String,
                b"content" => visit_content(value),
                _ => {}
            }
        }
        without_role = (!has_role).then_some(place);
    });
    if let Some(place) = without_role {
        let message = messages.elements().zip(0..).find(|(_, i)| *i == place);
        return Err(match message.filter(|(message, _)| message.kind() != JsonKind::Object) {
            Some((message, i)) => {
                invalid_value(&format!("messages[{i}]"), "an object {role, content}", message)
            }
            None => CallError::missing(&format!("messages[{place}].role"), roles),
        });
    }
    if count == 0 {
        // A value that is not an array has no elements, so it is rejected here too.
        return Err(invalid_value("messages", expected, messages));
    }
    if count > MESSAGES_MAX {
        return Err(CallError::invalid("messages", &format!("at most {MESSAGES_MAX} messages")));
    }
    Ok(())
}

/// Counts the tool prompts that the vendor adds, see
/// [`InputSize::vendor_tool_prompt_count`](super::InputSize::vendor_tool_prompt_count). `custom` is
/// the type of the client's own tools, for which the vendor adds only the one prompt that any tools
/// cause. A tool without a type counts as the client's own.
pub(in crate::dialect) fn count_tool_prompts(document: &JsonDocument, custom: &str) -> u64 {
    let mut count = 0;
    for tool in non_null_member(document, "tools").into_iter().flat_map(JsonValue::elements) {
        let kind = tool.get("type").and_then(JsonValue::text);
        count += u64::from(count == 0) + u64::from(kind.is_some_and(|kind| kind != custom));
    }
    count
}

/// Returns a member of the body; `None` if it is absent or null.
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

/// Reads a whole number from `least` to 2^53 - 1; `None` if the field is absent or null.
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

/// Returns the error for an invalid value. The message quotes the first 40 characters of the value.
pub(in crate::dialect) fn invalid_value(
    field: &str,
    expected: &str,
    found: JsonValue<'_>,
) -> CallError {
    let shown: String = String::from_utf8_lossy(found.raw()).chars().take(40).collect();
    CallError::invalid(field, &format!("{expected}, not {} ({shown})", found.kind().description()))
}
