//! Parses calls for a video that are sent as forms, as the vendors' own SDKs always do.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::start_frame::{REFERENCE_FIELD, URL_FIELD};
use crate::dialect::CallError;
use crate::dialect::form::{Form, FormFields, PartContent, check_field_name};
use crate::dialect::images::SourceImage;
use crate::dialect::json::JsonDocument;
use crate::dialect::json::patch::json_string;

/// Parses a form into a JSON object of its text fields, all of them strings, and the start frame.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn parse_form(form: Form) -> Result<(JsonDocument, Option<SourceImage>), CallError> {
    let (mut fields, mut file) = (FormFields::default(), None);
    for part in form.parts {
        let name = match &*part.name {
            // The SDKs write a member of an object in this way.
            "input_reference[image_url]" => URL_FIELD,
            "input_reference[]" => REFERENCE_FIELD,
            name => name,
        };
        match part.content {
            PartContent::File(upload) if name == REFERENCE_FIELD => {
                if file.replace(upload).is_some() {
                    return Err(CallError::invalid(
                        REFERENCE_FIELD,
                        "one file: a video has one start",
                    ));
                }
            }
            PartContent::Text(_) if name == REFERENCE_FIELD => {
                let expected = "a file: a part with a file name; an address goes into 'image_url'";
                return Err(CallError::invalid(REFERENCE_FIELD, expected));
            }
            PartContent::File(_) => {
                check_field_name(name)?;
                let expected = "a text: the one file of a video is 'input_reference'";
                return Err(CallError::invalid(name, expected));
            }
            PartContent::Text(text) => fields.add(name, &json_string(&text))?,
        }
    }
    let file = file.map(|upload| SourceImage::from_upload(REFERENCE_FIELD, upload)).transpose()?;
    Ok((fields.into_document()?, file))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value as Json;

    use super::super::parse_request;
    use super::*;
    use crate::dialect::form::{FormPart, UploadedFile};

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\x00\xff";

    fn text(name: &str, text: &str) -> FormPart {
        FormPart { name: name.to_owned(), content: PartContent::Text(text.to_owned()) }
    }

    fn upload(name: &str, content: &'static [u8]) -> FormPart {
        let content = PartContent::File(UploadedFile {
            name: Some(String::new()),
            content_type: None,
            content: vec![Bytes::from_static(content)],
            length: content.len(),
        });
        FormPart { name: name.to_owned(), content }
    }

    #[rstest]
    #[case::one("input_reference")]
    #[case::list_of_one("input_reference[]")]
    fn a_form_reads_as_an_object_and_a_file(#[case] name: &str) {
        let parts = vec![text("prompt", "a \"cat\"\r\n"), upload(name, PNG), text("seconds", "8")];
        let (document, file) = parse_form(Form { parts }).expect("sound");
        assert_eq!(document.body(), r#"{"prompt":"a \"cat\"\r\n","seconds":"8"}"#);
        let file = file.expect("a file");
        assert_eq!((&*file.media_type, file.content.concat()), ("image/png", PNG.to_vec()));
    }

    #[test]
    fn an_object_in_a_form_is_an_address() {
        let parts = vec![text("input_reference[image_url]", "https://a.example/")];
        let (document, file) = parse_form(Form { parts }).expect("sound");
        assert_eq!(document.body(), r#"{"image_url":"https://a.example/"}"#);
        assert!(file.is_none());
        let (document, file) = parse_form(Form::default()).expect("sound");
        assert!(document.body() == "{}" && file.is_none());
    }

    #[rstest]
    #[case::reference_as_text(
        vec![text("input_reference", "a")],
        "invalid_value",
        "input_reference"
    )]
    #[case::reference_in_a_list(
        vec![text("input_reference[]", "a")],
        "invalid_value",
        "input_reference"
    )]
    #[case::two_files(
        vec![upload("input_reference", PNG), upload("input_reference[]", PNG)],
        "invalid_value",
        "input_reference"
    )]
    #[case::empty(vec![upload("input_reference", b"")], "invalid_value", "input_reference")]
    #[case::no_image(vec![upload("input_reference", b"%PDF-")], "invalid_value", "input_reference")]
    #[case::file_elsewhere(vec![upload("prompt", PNG)], "invalid_value", "prompt")]
    #[case::address_as_file(vec![upload("image_url", PNG)], "invalid_value", "image_url")]
    #[case::object_as_file(
        vec![upload("input_reference[image_url]", PNG)],
        "invalid_value",
        "image_url"
    )]
    #[case::twice(vec![text("seconds", "4"), text("seconds", "4")], "invalid_form", "seconds")]
    #[case::two_addresses(
        vec![text("image_url", "a"), text("input_reference[image_url]", "a")],
        "invalid_form",
        "image_url"
    )]
    #[case::another_object(
        vec![text("input_reference[file_id]", "f")],
        "invalid_form",
        "input_reference[file_id]"
    )]
    #[case::no_name(vec![text("__proto__", "a")], "invalid_form", "__proto__")]
    fn what_is_wrong_with_a_form_is_named(
        #[case] parts: Vec<FormPart>,
        #[case] code: &str,
        #[case] param: &str,
    ) {
        let fault = parse_form(Form { parts }).expect_err("wrong");
        assert_eq!((fault.code, fault.param.as_deref()), (code, Some(param)), "{fault}");
    }

    proptest! {
        #[test]
        fn forms_and_objects_of_texts_are_read_alike(
            texts in proptest::collection::btree_map(
                "model|prompt|seconds|size|generate_audio|image_url|[a-z]{1,3}",
                "[0-9]{1,2}|true|false|1280x720|https://a/|.{0,6}",
                0..7,
            ),
        ) {
            let parts = texts.iter().map(|(name, value)| text(name, value)).collect();
            let (of_form, file) = parse_form(Form { parts }).expect("sound");
            prop_assert!(file.is_none());
            let object = Json::from_iter(texts).to_string();
            let object = JsonDocument::parse(object.into()).expect("sound");
            prop_assert_eq!(parse_request(&of_form, None), parse_request(&object, None));
        }

        #[test]
        fn any_part_is_read_without_a_panic(
            bytes: Vec<u8>,
            name in "input_reference|input_reference\\[\\]|input_reference\\[image_url\\]|.{0,9}",
            is_file: bool,
        ) {
            let length = bytes.len();
            let lossy = String::from_utf8_lossy(&bytes).into_owned();
            let content = vec![Bytes::from(bytes)];
            let content = if is_file {
                PartContent::File(UploadedFile { name: None, content_type: None, content, length })
            } else {
                PartContent::Text(lossy)
            };
            let form = Form { parts: vec![FormPart { name, content }] };
            if let Ok((document, file)) = parse_form(form) {
                let parsed = parse_request(&document, file.as_ref());
                prop_assert!(parsed.is_err(), "there is no prompt");
            }
        }
    }
}
