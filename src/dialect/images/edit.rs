//! Calls that edit an image: parses the forms of clients, and builds the bodies that vendors take.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use bytes::Bytes;

use super::region::{REGION_FIELDS, unsupported_region};
use super::source_image::SourceImage;
use crate::dialect::CallError;
use crate::dialect::form::{Form, FormFields, PartContent, check_field_name};
use crate::dialect::json::patch::json_string;
use crate::dialect::json::{JsonDocument, JsonValue};
use crate::dialect::payload::RequestPayload;

/// The form field of the image to edit.
const IMAGE_FIELD: &str = "image";

/// Parses a form into a JSON object of its text fields, and its one file.
///
/// `n`, `output_compression` and `partial_images` become JSON numbers if they are written as plain
/// whole numbers, and `stream` becomes a boolean if it is `true` or `false`; every other field
/// becomes a string.
///
/// # Errors
/// [`CallError`] names the field and what would be right.
pub fn parse_edit_form(form: Form) -> Result<(JsonDocument, SourceImage), CallError> {
    let (mut fields, mut file) = (FormFields::default(), None);
    for part in form.parts {
        let name = part.name;
        check_region(&name)?;
        match part.content {
            PartContent::File(upload) if is_image_field(&name) => {
                if file.replace(upload).is_some() {
                    return Err(CallError::invalid(
                        IMAGE_FIELD,
                        "one file, since one image is edited",
                    ));
                }
            }
            PartContent::Text(_) if is_image_field(&name) => {
                return Err(CallError::invalid(IMAGE_FIELD, "a file: a part that has a file name"));
            }
            PartContent::File(_) => {
                check_field_name(&name)?;
                let expected = "a text: the one file of an edit is 'image'";
                return Err(CallError::invalid(&name, expected));
            }
            PartContent::Text(text) => fields.add(&name, &field_json(&name, text))?,
        }
    }
    let Some(upload) = file else {
        return Err(CallError::missing(IMAGE_FIELD, "the image to edit, as a file"));
    };
    let file = SourceImage::from_upload(IMAGE_FIELD, upload)?;
    Ok((fields.into_document()?, file))
}

fn is_image_field(name: &str) -> bool {
    matches!(name, "image" | "image[]")
}

/// Refuses a field that selects a region, also with brackets after its name, such as `mask[]`.
fn check_region(name: &str) -> Result<(), CallError> {
    let stem = name.split('[').next().unwrap_or_default();
    match REGION_FIELDS.iter().find(|region| **region == stem) {
        Some(region) => Err(unsupported_region(region)),
        None => Ok(()),
    }
}

/// Returns the JSON value of a form field.
fn field_json(name: &str, text: String) -> String {
    let is_bare = match name {
        // Any other spelling is not a JSON number, or parsers disagree about it.
        "n" | "output_compression" | "partial_images" => {
            text.parse::<u64>().is_ok_and(|number| number.to_string() == text)
        }
        "stream" => matches!(&*text, "true" | "false"),
        _ => false,
    };
    if is_bare { text } else { json_string(&text) }
}

/// Builds a JSON body for a vendor: the members of `fields`, and the image as a data URI in
/// `image.url`.
#[must_use]
pub fn build_edit_json(fields: &JsonDocument, file: &SourceImage) -> RequestPayload {
    let mut text = "{".to_owned();
    for (name, value) in members_except_image(fields) {
        text.push_str(&json_string(&name));
        text.push(':');
        text.push_str(&String::from_utf8_lossy(value.raw()));
        text.push(',');
    }
    text.push_str(r#""image":{"url":""#);
    let mut payload = RequestPayload::default();
    payload.push_bytes(Bytes::from(text));
    file.append_data_uri(&mut payload);
    payload.push_bytes(Bytes::from_static(br#""}}"#));
    payload
}

/// Builds a form for a vendor: the members of `fields` as text parts, and the image as the file
/// part `image`. Strings are written as their text, other values as their JSON; `null` is left out.
///
/// The boundary must be unpredictable to the client.
#[must_use]
pub fn build_edit_form(
    fields: &JsonDocument,
    file: &SourceImage,
    boundary: &str,
) -> RequestPayload {
    let mut text = String::new();
    let part = |name: &str| {
        // Quotes and line breaks are escaped as browsers do. Backslashes are doubled as well: all
        // parsers except those made for browsers read a backslash as an escape.
        let name = name.replace('\\', "\\\\").replace('"', "%22");
        let name = name.replace('\r', "%0D").replace('\n', "%0A");
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"")
    };
    for (name, value) in members_except_image(fields).filter(|(_, value)| !value.is_null()) {
        text.push_str(&part(&name));
        text.push_str("\r\n\r\n");
        match value.text() {
            Some(value) => text.push_str(&value),
            None => text.push_str(&String::from_utf8_lossy(value.raw())),
        }
        text.push_str("\r\n");
    }
    text.push_str(&part(IMAGE_FIELD));
    let (name, media_type) = (file.file_name(), &file.media_type);
    let rest = format!("; filename=\"{name}\"\r\nContent-Type: {media_type}\r\n\r\n");
    text.push_str(&rest);
    let mut payload = RequestPayload::default();
    payload.push_bytes(Bytes::from(text));
    file.content.iter().for_each(|slice| payload.push_bytes(slice.clone()));
    payload.push_bytes(Bytes::from(format!("\r\n--{boundary}--\r\n")));
    payload
}

/// Returns all members except the image.
fn members_except_image(
    fields: &JsonDocument,
) -> impl Iterator<Item = (Cow<'_, str>, JsonValue<'_>)> {
    fields.members().filter(|(name, _)| name != IMAGE_FIELD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::form::{FormLimits, FormPart, FormReader, UploadedFile};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Map, Value as Json, json};

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\x00\xff";

    fn text(name: &str, text: &str) -> FormPart {
        FormPart { name: name.to_owned(), content: PartContent::Text(text.to_owned()) }
    }

    fn upload(name: &str, content: &'static [u8]) -> FormPart {
        let (head, tail) = content.split_at(content.len() / 2);
        let content = PartContent::File(UploadedFile {
            name: Some("a.png".to_owned()),
            content_type: Some("image/png".to_owned()),
            content: vec![Bytes::from_static(head), Bytes::from_static(tail)],
            length: content.len(),
        });
        FormPart { name: name.to_owned(), content }
    }

    fn read(parts: Vec<FormPart>) -> Result<(JsonDocument, SourceImage), CallError> {
        parse_edit_form(Form { parts })
    }

    #[rstest]
    #[case::one("image")]
    #[case::list_of_one("image[]")]
    fn a_form_reads_as_an_object_and_a_file(#[case] name: &str) {
        let parts = vec![
            text("prompt", "a \"cat\"\r\n"),
            upload(name, PNG),
            text("n", "1"),
            text("output_compression", "80"),
            text("partial_images", "01"),
            text("stream", "false"),
            text("size", "1024"),
            text("user", ""),
        ];
        let (document, file) = read(parts).expect("sound");
        let expected = r#"{"prompt":"a \"cat\"\r\n","n":1,"output_compression":80,"partial_images":"01","stream":false,"size":"1024","user":""}"#;
        assert_eq!(document.body(), expected);
        assert_eq!((&*file.media_type, file.length), ("image/png", PNG.len()));
        assert_eq!(file.content.concat(), PNG);
        assert!(format!("{file:?}").len() < 100);
    }

    #[rstest]
    #[case::number("n", "12", "12")]
    #[case::largest("n", "18446744073709551615", "18446744073709551615")]
    #[case::beyond("n", "18446744073709551616", "\"18446744073709551616\"")]
    #[case::sign("n", "+1", "\"+1\"")]
    #[case::space("n", " 1", "\" 1\"")]
    #[case::nothing("n", "", "\"\"")]
    #[case::truth("stream", "true", "true")]
    #[case::truth_in_capitals("stream", "True", "\"True\"")]
    #[case::digits_elsewhere("seed", "1", "\"1\"")]
    fn what_is_no_text_is_told_by_its_field(
        #[case] name: &str,
        #[case] value: &str,
        #[case] expected: &str,
    ) {
        let (document, _) = read(vec![upload("image", PNG), text(name, value)]).expect("sound");
        assert_eq!(document.body(), &format!("{{\"{name}\":{expected}}}"));
    }

    #[rstest]
    #[case::no_file(vec![text("prompt", "a")], "missing_required_parameter", "image")]
    #[case::two_files(vec![upload("image", PNG), upload("image", PNG)], "invalid_value", "image")]
    #[case::two_in_a_list(
        vec![upload("image[]", PNG), upload("image[]", PNG)],
        "invalid_value",
        "image"
    )]
    #[case::two_names(vec![upload("image", PNG), upload("image[]", PNG)], "invalid_value", "image")]
    #[case::empty(vec![upload("image", b"")], "invalid_value", "image")]
    #[case::address(vec![text("image", "https://a.example/")], "invalid_value", "image")]
    #[case::file_and_text(
        vec![upload("image", PNG), text("image[]", "a")],
        "invalid_value",
        "image"
    )]
    #[case::text_as_file(
        vec![upload("image", PNG), upload("prompt", b"a")],
        "invalid_value",
        "prompt"
    )]
    #[case::mask(vec![upload("image", PNG), upload("mask", PNG)], "unsupported_parameter", "mask")]
    #[case::mask_as_text(vec![text("mask", "")], "unsupported_parameter", "mask")]
    #[case::masks(vec![upload("mask[0]", PNG)], "unsupported_parameter", "mask")]
    #[case::markup(vec![text("markup", "a")], "unsupported_parameter", "markup")]
    #[case::twice(vec![text("n", "1"), text("n", "1")], "invalid_form", "n")]
    #[case::no_name(vec![text("mask\"", "1")], "invalid_form", "mask\"")]
    fn what_is_wrong_is_named(
        #[case] parts: Vec<FormPart>,
        #[case] code: &str,
        #[case] param: &str,
    ) {
        let fault = read(parts).expect_err("wrong");
        assert_eq!((fault.code, fault.param.as_deref()), (code, Some(param)), "{fault}");
    }

    #[test]
    fn what_a_client_wrote_is_shown_only_so_far() {
        let fault = read(vec![text(&"é".repeat(1_000), "")]).expect_err("wrong");
        assert_eq!(fault.message, format!("'{}' is no name of a field", "é".repeat(40)));
        let long = "a".repeat(65);
        assert_eq!(read(vec![text(&long, "")]).expect_err("too long").code, "invalid_form");
    }

    fn sent(payload: &RequestPayload) -> Vec<u8> {
        let sent = payload.chunks().collect::<Vec<_>>().concat();
        assert_eq!(sent.len(), payload.length());
        sent
    }

    fn golden() -> (JsonDocument, SourceImage) {
        let body = r#"{ "model" : "m", "image":1, "prompt":"a \"\u00e9\"", "n":1, "seed":1.50, "user":null, "x":{"a": [true]} }"#;
        let fields = JsonDocument::parse(body.into()).expect("sound");
        let content = [&PNG[..1], &PNG[1..]].map(Bytes::from_static).to_vec();
        (fields, SourceImage { media_type: "image/png".to_owned(), content, length: PNG.len() })
    }

    #[test]
    fn a_body_of_json_has_the_image_as_a_data_uri() {
        let (fields, file) = golden();
        let expected = r#"{"model":"m","prompt":"a \"\u00e9\"","n":1,"seed":1.50,"user":null,"x":{"a": [true]},"image":{"url":"data:image/png;base64,iVBORw0KGgoA/w=="}}"#;
        let sent = sent(&build_edit_json(&fields, &file));
        assert_eq!(String::from_utf8_lossy(&sent), expected);
        let alone = build_edit_json(&JsonDocument::parse("{}".into()).expect("sound"), &file);
        assert!(JsonDocument::parse(alone.chunks().collect::<Vec<_>>().concat().into()).is_ok());
    }

    #[test]
    fn a_body_as_a_form_has_the_image_as_its_last_part() {
        let (fields, file) = golden();
        let mut expected = Vec::new();
        for (name, text) in [
            ("model", "m"),
            ("prompt", "a \"é\""),
            ("n", "1"),
            ("seed", "1.50"),
            ("x", "{\"a\": [true]}"),
        ] {
            let head = format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
            expected.extend_from_slice(format!("{head}{text}\r\n").as_bytes());
        }
        let head = "--b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"image.png\"\
            \r\nContent-Type: image/png\r\n\r\n";
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(PNG);
        expected.extend_from_slice(b"\r\n--b--\r\n");
        let sent = sent(&build_edit_form(&fields, &file, "b"));
        assert_eq!(sent.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    fn fields() -> impl Strategy<Value = Map<String, Json>> {
        let value = prop_oneof![
            ".{0,12}".prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<bool>().prop_map(Json::from),
            Just(Json::Null),
            Just(json!({"a": [1, "b"]})),
        ];
        let members = proptest::collection::btree_map("[a-z\"\\\\é\r\n]{1,6}", value, 0..6);
        members.prop_map(|members| members.into_iter().collect())
    }

    proptest! {
        #[test]
        fn bodies_read_back_as_they_were_meant(
            fields in fields(),
            content in proptest::collection::vec(any::<u8>(), 1..50),
            cut in 0..50usize,
        ) {
            prop_assume!(!fields.contains_key(IMAGE_FIELD));
            let document = JsonDocument::parse(Json::from(fields.clone()).to_string().into());
            let document = document.expect("sound");
            let (head, tail) = content.split_at(cut.min(content.len()));
            let file = SourceImage {
                media_type: "image/webp".to_owned(),
                content: [head, tail].map(Bytes::copy_from_slice).to_vec(),
                length: content.len(),
            };

            let mut expected = fields.clone();
            let address = format!("data:image/webp;base64,{}", STANDARD.encode(&content));
            expected.insert(IMAGE_FIELD.to_owned(), json!({"url": address}));
            let body = Bytes::from(sent(&build_edit_json(&document, &file)));
            prop_assert!(JsonDocument::parse(body.clone()).is_ok());
            let read: Json = serde_json::from_slice(&body).expect("JSON");
            prop_assert_eq!(read, Json::from(expected));

            let limits =
                FormLimits { parts_max: 16, text_bytes_max: 1 << 16, file_bytes_max: 1 << 16 };
            let mut reader =
                FormReader::new("multipart/form-data; boundary=0aZ9", limits).expect("a form");
            for chunk in build_edit_form(&document, &file, "0aZ9").chunks() {
                reader.push(chunk).expect("sound");
            }
            let mut parts = reader.finish().expect("sound").parts;
            let last = parts.pop().expect("a file");
            let PartContent::File(read) = last.content else { panic!("no file") };
            prop_assert_eq!((&*last.name, read.name.as_deref()), (IMAGE_FIELD, Some("image.webp")));
            prop_assert_eq!(read.content_type.as_deref(), Some("image/webp"));
            prop_assert_eq!(read.content.concat(), content);
            let found = parts.into_iter().map(|part| match part.content {
                PartContent::Text(text) => (part.name, text),
                PartContent::File(_) => panic!("another file"),
            });
            let meant = fields.into_iter().filter(|(_, value)| !value.is_null());
            let meant = meant.map(|(name, value)| {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                (name, text)
            });
            prop_assert!(found.eq(meant));
        }
    }
}
