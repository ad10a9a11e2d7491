//! Calls for videos: parses the requests, builds the vendor's body, and parses the vendor's
//! replies.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{invalid_value, non_null_member};
use super::images::SourceImage;
use super::json::JsonDocument;
use super::speech::count_code_points;

mod body;
mod form;
mod reply;
mod request;
mod shape;
mod start_frame;

pub use body::build_body;
pub use form::parse_form;
pub use reply::{VideoProgress, VideoRefusal, parse_progress, parse_refusal, parse_submitted_id};
pub use request::VideoRequest;

/// All fields that a call may have.
const FIELDS: [&str; 9] = [
    "model",
    "prompt",
    "seconds",
    "size",
    "resolution",
    "aspect_ratio",
    "input_reference",
    "image_url",
    "generate_audio",
];
/// At most this many characters (Unicode code points) may be in a prompt (spec, limits).
const CHARACTERS_MAX: u64 = 32_000;
/// The maximum length of a video in seconds, and `SECONDS_DEFAULT`, the length if the call names
/// none.
const SECONDS_MAX: u64 = 15;
const SECONDS_DEFAULT: u64 = 4;
/// At most this many characters of an unknown field's name are shown in the error.
const NAME_CHARS_MAX: usize = 64;

/// Parses the fields of a call; `file` is the start frame if the call is a form that has one.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn parse_request(
    document: &JsonDocument,
    file: Option<&SourceImage>,
) -> Result<VideoRequest, CallError> {
    let mut others = document.members().filter(|(_, value)| !value.is_null());
    if let Some((name, _)) = others.find(|(name, _)| !FIELDS.contains(&&**name)) {
        return Err(unknown_field(&name));
    }
    check_prompt(document)?;
    let seconds = read_seconds(document)?;
    let has_frame = start_frame::find_url(document, file)?.is_some() || file.is_some();
    let shape = shape::parse_shape(document, has_frame)?;
    let audio = read_audio(document)?;
    let shape::VideoShape { resolution, aspect_ratio, size, resolution_field } = shape;
    Ok(VideoRequest { seconds, resolution, aspect_ratio, size, resolution_field, audio })
}

fn unknown_field(name: &str) -> CallError {
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    let message = format!("'{name}' is not taken: the fields are {}", FIELDS.join(", "));
    CallError { code: "unknown_parameter", param: Some(name), message }
}

fn check_prompt(document: &JsonDocument) -> Result<(), CallError> {
    let expected = format!("a string of 1 to {CHARACTERS_MAX} characters (Unicode code points)");
    let Some(prompt) = non_null_member(document, "prompt") else {
        return Err(CallError::missing("prompt", &expected));
    };
    let characters =
        count_code_points(prompt).ok_or_else(|| invalid_value("prompt", &expected, prompt))?;
    if (1..=CHARACTERS_MAX).contains(&characters) {
        return Ok(());
    }
    Err(CallError::invalid("prompt", &format!("{expected}, not of {characters}")))
}

fn read_seconds(document: &JsonDocument) -> Result<u64, CallError> {
    let Some(value) = non_null_member(document, "seconds") else { return Ok(SECONDS_DEFAULT) };
    let read = value.integer().or_else(|| {
        let text = value.text()?;
        text.parse().ok().filter(|seconds: &u64| seconds.to_string() == text)
    });
    let expected = format!("a whole number from 1 to {SECONDS_MAX}, as a number or a string");
    let sound = read.filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
    sound.ok_or_else(|| invalid_value("seconds", &expected, value))
}

/// Reads `generate_audio`, which is `true` by default. Forms have no booleans, so the strings
/// `true` and `false` are accepted too.
fn read_audio(document: &JsonDocument) -> Result<bool, CallError> {
    let Some(value) = non_null_member(document, "generate_audio") else { return Ok(true) };
    match (value.bool(), value.text().as_deref()) {
        (Some(audio), _) => Ok(audio),
        (_, Some("true")) => Ok(true),
        (_, Some("false")) => Ok(false),
        _ => Err(invalid_value("generate_audio", "true or false", value)),
    }
}

#[cfg(test)]
mod tests;
