//! The parts of a form, as they were read.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use bytes::Bytes;

/// One field of a form.
#[derive(Debug, Clone)]
pub struct FormPart {
    /// The field's name, never empty.
    pub name: String,
    /// What it holds.
    pub content: PartContent,
}

/// What a part of a form holds.
#[derive(Debug, Clone)]
pub enum PartContent {
    /// A text.
    Text(String),
    /// A file: the part had a file name, be it an empty one.
    File(UploadedFile),
}

/// A file as it was uploaded.
#[derive(Clone)]
pub struct UploadedFile {
    /// The file's name, as far as it could be read.
    pub name: Option<String>,
    /// The type that the client declared.
    pub content_type: Option<String>,
    /// The bytes, mostly slices of what came in.
    pub content: Vec<Bytes>,
    /// How many bytes these are.
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
