//! Moderation calls: checks the requests, and whether a reply is a verdict on the input.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::CallError;
use super::call::fields::{invalid_value, non_null_member};
use super::json::{JsonDocument, JsonKind};

/// Checks the body of a moderation call. The parts of the input are left to the vendor to check.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn check_request(document: &JsonDocument) -> Result<(), CallError> {
    let expected = "a string, or a non-empty array of strings or of parts";
    let Some(input) = non_null_member(document, "input") else {
        return Err(CallError::missing("input", expected));
    };
    let is_right = input.kind() == JsonKind::String || input.elements().next().is_some();
    if is_right { Ok(()) } else { Err(invalid_value("input", expected, input)) }
}

/// Whether a vendor's reply is a verdict: it has a list of results.
#[must_use]
pub fn is_moderation_result(document: &JsonDocument) -> bool {
    document.get("results").is_some_and(|results| results.kind() == JsonKind::Array)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rstest::rstest;

    use super::*;

    fn document(json: &'static str) -> JsonDocument {
        JsonDocument::parse(Bytes::from_static(json.as_bytes())).expect("sound")
    }

    #[rstest]
    #[case::text(r#"{"input":"a"}"#, None)]
    #[case::empty_text(r#"{"input":""}"#, None)]
    #[case::texts(r#"{"input":["a","b"]}"#, None)]
    #[case::parts(r#"{"input":[{"type":"text","text":"a"}],"model":"m"}"#, None)]
    #[case::nothing("{}", Some("missing_required_parameter"))]
    #[case::null(r#"{"input":null}"#, Some("missing_required_parameter"))]
    #[case::empty_list(r#"{"input":[ ]}"#, Some("invalid_value"))]
    #[case::object(r#"{"input":{"text":"a"}}"#, Some("invalid_value"))]
    #[case::number(r#"{"input":1}"#, Some("invalid_value"))]
    fn there_is_an_input(#[case] body: &'static str, #[case] code: Option<&str>) {
        let fault = check_request(&document(body)).err();
        assert_eq!(fault.as_ref().map(|fault| fault.code), code);
        assert!(fault.is_none_or(|fault| fault.param.as_deref() == Some("input")));
    }

    #[rstest]
    #[case::verdict(r#"{"id":"modr-1","results":[{"flagged":false}]}"#, true)]
    #[case::nothing("{}", false)]
    #[case::null(r#"{"results":null}"#, false)]
    #[case::object(r#"{"results":{"flagged":true}}"#, false)]
    #[case::error(r#"{"error":{"message":"no"}}"#, false)]
    fn a_verdict_has_results(#[case] reply: &'static str, #[case] expected: bool) {
        assert_eq!(is_moderation_result(&document(reply)), expected);
    }
}
