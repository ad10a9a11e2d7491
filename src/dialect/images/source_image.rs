//! An image file that a client uploaded.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use bytes::Bytes;

use crate::dialect::CallError;
use crate::dialect::form::UploadedFile;
use crate::dialect::payload::RequestPayload;

/// An image that a client uploaded to have it edited, or as the start frame of a video.
#[derive(Clone)]
pub struct SourceImage {
    /// The media type of the image, without parameters.
    pub media_type: String,
    /// The bytes of the file, mostly slices of the request body as it arrived.
    pub content: Vec<Bytes>,
    /// The length of the file in bytes.
    pub length: usize,
}

impl SourceImage {
    /// Takes an image that was uploaded as the field `field`. Its media type is sniffed from its
    /// first bytes; the declared one counts only if they match no known format.
    pub(in crate::dialect) fn from_upload(
        field: &str,
        upload: UploadedFile,
    ) -> Result<SourceImage, CallError> {
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
    pub(in crate::dialect) fn append_data_uri(&self, payload: &mut RequestPayload) {
        payload.push_bytes(Bytes::from(format!("data:{};base64,", self.media_type)));
        payload.push_base64(self.content.clone());
    }

    /// Returns a file name with the ending of the media type.
    pub(super) fn file_name(&self) -> String {
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

/// The number of bytes at the start of a file that suffice to find its image format.
const SNIFF_BYTES: usize = 12;

/// Returns the media type of an image that begins with these bytes; `None` if no known format does.
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

/// Returns the media type that a client declares, if it is an image type whose characters are safe
/// in a header, a data URI and a file name.
fn parse_declared_type(content_type: &str) -> Option<String> {
    let media_type = content_type.split(';').next()?.trim_ascii().to_ascii_lowercase();
    let kind = media_type.strip_prefix("image/")?;
    let is_of_kind = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let sound = (1..=40).contains(&kind.len()) && kind.bytes().all(is_of_kind);
    sound.then_some(media_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
