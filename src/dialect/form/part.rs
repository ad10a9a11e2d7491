//! The parts of a form, after they have been read.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use bytes::Bytes;

/// One field of a form.
#[derive(Debug, Clone)]
pub struct FormPart {
    /// The field's name, never empty.
    pub name: String,
    /// The content of the field.
    pub content: PartContent,
}

/// The content of a form's part.
#[derive(Debug, Clone)]
pub enum PartContent {
    /// A text.
    Text(String),
    /// A file: the part had a file name, even if it was empty.
    File(UploadedFile),
}

/// A file as it was uploaded.
#[derive(Clone)]
pub struct UploadedFile {
    /// The file's name; `None` if it is in a charset that is not read.
    pub name: Option<String>,
    /// The content-type that the client declared, if any.
    pub content_type: Option<String>,
    /// The bytes, mostly slices of the received chunks.
    pub content: Vec<Bytes>,
    /// The number of bytes in `content`.
    pub length: usize,
}

impl fmt::Debug for UploadedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadedFile")
            .field("name", &self.name)
            .field("content_type", &self.content_type)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
