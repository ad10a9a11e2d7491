//! Images from text, and from an image: the calls, the bodies that vendors take, and their replies.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use bytes::Bytes;

use super::CallError;
use super::call::{invalid_value, non_null_member};
use super::form::UploadedFile;
use super::json::{JsonDocument, JsonKind};
use super::payload::RequestPayload;

mod edit;
mod reply;

pub use edit::{build_edit_form, build_edit_json, parse_edit_form};
pub use reply::{ImagesReply, WithheldImage, convert_reply};

/// An image that a client sent to be edited, or to begin a video.
#[derive(Clone)]
pub struct SourceImage {
    /// What kind of image, as a media type without parameters.
    pub media_type: String,
    /// The bytes, mostly slices of what came in.
    pub content: Vec<Bytes>,
    /// How many bytes these are.
    pub length: usize,
}

impl SourceImage {
    /// Takes an image that was uploaded as the field `field`. Its media type is sniffed from its
    /// first bytes; the declared one counts only if they match no known format.
    pub(super) fn from_upload(field: &str, upload: UploadedFile) -> Result<SourceImage, CallError> {
        let UploadedFile { content_type, content, length, .. } = upload;
        if length == 0 {
            return Err(CallError::invalid(field, "a file that is not empty"));
        }
        let start: Vec<u8> = content.iter().flatten().copied().take(SNIFF_BYTES).collect();
        let media_type = match sniff_media_type(&start) {
            Some(known) => known.to_owned(),
            None => content_type.as_deref().and_then(parse_declared_type).ok_or_else(|| {
                CallError::invalid(field, "an image: a PNG, JPEG, WebP or GIF file")
            })?,
        };
        Ok(SourceImage { media_type, content, length })
    }

    /// Adds the image as a data URI, which has no character that JSON would escape.
    pub(super) fn append_data_uri(&self, payload: &mut RequestPayload) {
        payload.push_bytes(Bytes::from(format!("data:{};base64,", self.media_type)));
        payload.push_base64(self.content.clone());
    }

    /// What a file of this kind is called.
    fn file_name(&self) -> String {
        let kind = self.media_type.strip_prefix("image/").unwrap_or_default();
        let ending = match kind.split('+').next() {
            Some("jpeg" | "jpg") => "jpg",
            Some("") | None => "bin",
            Some(other) => other,
        };
        format!("image.{ending}")
    }
}

impl fmt::Debug for SourceImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceImage")
            .field("media_type", &self.media_type)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

/// As many bytes tell what kind of image a file is.
const SNIFF_BYTES: usize = 12;

/// The media type of an image that begins so.
fn sniff_media_type(start: &[u8]) -> Option<&'static str> {
    if start.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if start.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else if start.starts_with(b"GIF87a") || start.starts_with(b"GIF89a") {
        Some("image/gif")
    } else {
        None
    }
}

/// The media type of an image that a client declares, if it is one that can stand anywhere.
fn parse_declared_type(content_type: &str) -> Option<String> {
    let media_type = content_type.split(';').next()?.trim_ascii().to_ascii_lowercase();
    let kind = media_type.strip_prefix("image/")?;
    let is_of_kind = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let sound = (1..=40).contains(&kind.len()) && kind.bytes().all(is_of_kind);
    sound.then_some(media_type)
}

/// Fields that say which part of an image to draw, which no vendor here is asked for.
const REGION_FIELDS: [&str; 2] = ["mask", "markup"];

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

fn unsupported_region(field: &str) -> CallError {
    CallError {
        code: "unsupported_parameter",
        param: Some(field.to_owned()),
        message: format!(
            "'{field}' is not taken: an image is drawn anew as a whole; leave it out and say in \
             'prompt' what is to change"
        ),
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

    fn upload(content: &'static [u8], content_type: Option<&str>) -> UploadedFile {
        UploadedFile {
            name: None,
            content_type: content_type.map(str::to_owned),
            content: content.chunks(3).map(Bytes::from_static).collect(),
            length: content.len(),
        }
    }

    #[rstest]
    #[case::png(b"\x89PNG\r\n\x1a\n..", None, Some("image/png"), "image.png")]
    #[case::jpeg(b"\xff\xd8\xff\xe0", Some("image/png"), Some("image/jpeg"), "image.jpg")]
    #[case::webp(b"RIFF\x01\x02\x03\x04WEBPVP8 ", None, Some("image/webp"), "image.webp")]
    #[case::sound_and_not_webp(b"RIFF....WAVE", None, None, "")]
    #[case::gif(b"GIF89a", Some("text/plain"), Some("image/gif"), "image.gif")]
    #[case::declared(b"....", Some("Image/AVIF"), Some("image/avif"), "image.avif")]
    #[case::declared_with_more(
        b"<svg",
        Some("image/svg+xml; a=b"),
        Some("image/svg+xml"),
        "image.svg"
    )]
    #[case::declared_in_two_names(b".", Some("image/jpg"), Some("image/jpg"), "image.jpg")]
    #[case::not_declared(b"....", None, None, "")]
    #[case::text(b"....", Some("text/plain"), None, "")]
    #[case::nothing_declared(b"....", Some("image/"), None, "")]
    #[case::declared_to_break_out(b"....", Some("image/a\"b"), None, "")]
    #[case::starts_too_short(b"\x89PN", None, None, "")]
    fn a_file_is_what_it_begins_with_or_is_declared_to_be(
        #[case] content: &'static [u8],
        #[case] content_type: Option<&str>,
        #[case] expected: Option<&str>,
        #[case] name: &str,
    ) {
        let read = SourceImage::from_upload("image", upload(content, content_type));
        assert_eq!(read.as_ref().ok().map(|file| &*file.media_type), expected);
        match read {
            Ok(file) => assert_eq!(file.file_name(), name),
            Err(fault) => assert_eq!(fault.param.as_deref(), Some("image")),
        }
    }
}
