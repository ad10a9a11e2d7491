//! Calls that generate or edit an image: checks the requests, builds the bodies for the vendors,
//! and converts their replies.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{invalid_value, non_null_member};
use super::json::{JsonDocument, JsonKind};

mod edit;
mod region;
mod reply;
mod source_image;

use region::{REGION_FIELDS, unsupported_region};

pub use edit::{build_edit_form, build_edit_json, parse_edit_form};
pub use reply::ImagesReply;
pub use reply::WithheldImage;
pub use reply::convert_reply;
pub use source_image::SourceImage;

/// Checks the fields of a call that makes an image, from text or from an image.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn check_request(document: &JsonDocument) -> Result<(), CallError> {
    if let Some(region) =
        REGION_FIELDS.iter().find(|field| non_null_member(document, field).is_some())
    {
        return Err(unsupported_region(region));
    }
    match non_null_member(document, "prompt") {
        None => return Err(CallError::missing("prompt", "a text that says what to draw")),
        Some(prompt) if prompt.string_bytes().is_none_or(<[u8]>::is_empty) => {
            return Err(invalid_value("prompt", "a non-empty string", prompt));
        }
        Some(_) => {}
    }
    if let Some(n) = non_null_member(document, "n").filter(|n| n.integer() != Some(1)) {
        return Err(invalid_value("n", "1, since a call makes one image", n));
    }
    match non_null_member(document, "size").filter(|size| size.kind() != JsonKind::String) {
        Some(size) => Err(invalid_value("size", "a string", size)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::least(r#"{"prompt":"a cat"}"#)]
    #[case::all(r#"{"prompt":"a cat","n":1,"size":"1024x1024","quality":"high"}"#)]
    #[case::null(r#"{"prompt":"a cat","n":null,"size":null,"mask":null,"markup":null}"#)]
    fn a_sound_call_is_taken(#[case] body: &'static str) {
        assert_eq!(check_request(&JsonDocument::parse(body.into()).expect("sound")), Ok(()));
    }

    #[rstest]
    #[case::no_prompt("{}", "missing_required_parameter", "prompt", "what to draw")]
    #[case::null_prompt(r#"{"prompt":null}"#, "missing_required_parameter", "prompt", "")]
    #[case::empty_prompt(r#"{"prompt":""}"#, "invalid_value", "prompt", "non-empty")]
    #[case::list_as_prompt(r#"{"prompt":["a"]}"#, "invalid_value", "prompt", "not an array")]
    #[case::two_images(r#"{"prompt":"a","n":2}"#, "invalid_value", "n", "not a number (2)")]
    #[case::no_image(r#"{"prompt":"a","n":0}"#, "invalid_value", "n", "one image")]
    #[case::n_as_text(r#"{"prompt":"a","n":"1"}"#, "invalid_value", "n", "not a string")]
    #[case::n_with_a_point(r#"{"prompt":"a","n":1.0}"#, "invalid_value", "n", "(1.0)")]
    #[case::size_as_number(r#"{"prompt":"a","size":1024}"#, "invalid_value", "size", "a string")]
    #[case::mask(r#"{"prompt":"a","mask":""}"#, "unsupported_parameter", "mask", "say in 'prompt'")]
    #[case::markup(
        r#"{"prompt":"a","markup":{}}"#,
        "unsupported_parameter",
        "markup",
        "as a whole"
    )]
    #[case::mask_before_all(r#"{"mask":[]}"#, "unsupported_parameter", "mask", "")]
    fn what_is_wrong_is_named(
        #[case] body: &'static str,
        #[case] code: &str,
        #[case] param: &str,
        #[case] says: &str,
    ) {
        let fault =
            check_request(&JsonDocument::parse(body.into()).expect("sound")).expect_err("wrong");
        assert_eq!((fault.code, fault.param.as_deref()), (code, Some(param)));
        assert!(fault.message.contains(says), "{fault}");
    }
}
