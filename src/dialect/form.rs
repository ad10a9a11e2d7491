//! Reads the forms that clients upload (multipart/form-data), while they arrive.
//!
//! A file's content stays slices of the received chunks and is not copied. A form that two parsers
//! could read differently is rejected: a boundary after a lone line feed, folded headers, duplicate
//! parameters, and the like.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use bytes::{Buf, Bytes};

use super::CallError;

mod content;
mod fields;
mod head;
mod parameters;
mod part;
mod violation;

use content::{BoundaryMatcher, PartBody};
pub(super) use fields::{FormFields, check_field_name};
use head::PartHeadReader;
use parameters::HeaderParameters;
pub use part::FormPart;
pub use part::PartContent;
pub use part::UploadedFile;
use violation::{FormViolation, excerpt, violation_at};

/// The size limits of one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormLimits {
    /// At most this many parts.
    pub parts_max: usize,
    /// At most this many bytes of all text fields together.
    pub text_bytes_max: usize,
    /// At most this many bytes of one file.
    pub file_bytes_max: usize,
}

/// A form that has been read to its end.
#[derive(Debug, Clone, Default)]
pub struct Form {
    /// Its parts, in order.
    pub parts: Vec<FormPart>,
}

/// Why a form is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The content-type does not describe a form that can be read.
    #[error("the content-type must be multipart/form-data with a boundary: {0}")]
    NotForm(String),
    /// The form is malformed, or can be read in more than one way.
    #[error("the form is not sound: {what}, at byte {offset}")]
    Malformed {
        /// The byte offset of the error, from 0.
        offset: usize,
        /// What is violation there.
        what: String,
    },
    /// A file exceeds its size limit.
    #[error("the file '{name}' is larger than {most} bytes")]
    FileTooLarge {
        /// The name of the form field.
        name: String,
        /// The limit in bytes.
        most: usize,
    },
    /// The text fields together exceed this limit in bytes.
    #[error("the text fields together are larger than {0} bytes")]
    TextTooLarge(usize),
}

impl From<FormError> for CallError {
    fn from(fault: FormError) -> CallError {
        let (code, param) = match &fault {
            FormError::NotForm(_) | FormError::Malformed { .. } => ("invalid_form", None),
            FormError::FileTooLarge { name, .. } => ("request_too_large", Some(name.clone())),
            FormError::TextTooLarge(_) => ("request_too_large", None),
        };
        CallError { code, param, message: fault.to_string() }
    }
}

/// An incremental reader of a form, which takes pieces of any size.
#[derive(Debug)]
pub struct FormReader {
    boundary: BoundaryMatcher,
    limits: FormLimits,
    /// Whether the declared charset equals UTF-8 only for ASCII text, such as Latin-1.
    is_ascii_only: bool,
    state: FormState,
    parts: Vec<FormPart>,
    text_bytes: usize,
    /// How many bytes have been read.
    offset: usize,
    /// The first error; nothing is read after it.
    error: Option<FormError>,
}

#[derive(Debug)]
enum FormState {
    /// Before or inside the first boundary; how many bytes of it have matched, those of its line
    /// break included.
    FirstBoundary(usize),
    /// After a boundary; the byte that follows the boundary, once it has arrived.
    AfterBoundary(Option<u8>),
    Head(PartHeadReader),
    Content(PartBody),
    /// After the last boundary.
    Epilogue,
}

impl FormReader {
    /// Returns a reader for a form with this content-type.
    ///
    /// # Errors
    /// [`FormError::NotForm`] if the content-type is not a single valid description of a form.
    pub fn new(content_type: &str, limits: FormLimits) -> Result<FormReader, FormError> {
        let (boundary, ascii) = parse_content_type(content_type).map_err(FormError::NotForm)?;
        Ok(FormReader {
            boundary: BoundaryMatcher::new(&boundary),
            limits,
            is_ascii_only: ascii,
            state: FormState::FirstBoundary(0),
            parts: Vec::new(),
            text_bytes: 0,
            offset: 0,
            error: None,
        })
    }

    /// Reads the next piece of the body.
    ///
    /// # Errors
    /// [`FormError`] as soon as the form is certainly invalid; every later call returns the same
    /// error.
    pub fn push(&mut self, mut piece: Bytes) -> Result<(), FormError> {
        while !piece.is_empty() && self.error.is_none() {
            match self.step(&piece) {
                Ok(used) => {
                    self.offset += used;
                    piece.advance(used);
                }
                Err(violation) => self.fail(violation),
            }
        }
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Returns the form, after its last piece.
    ///
    /// # Errors
    /// [`FormError`] as in [`FormReader::push`], or because the form ended before its last
    /// boundary.
    pub fn finish(self) -> Result<Form, FormError> {
        match (self.error, self.state) {
            (Some(fault), _) => Err(fault),
            (None, FormState::Epilogue) => Ok(Form { parts: self.parts }),
            (None, _) => Err(FormError::Malformed {
                offset: self.offset,
                what: "it ends before its last boundary".to_owned(),
            }),
        }
    }

    fn fail(&mut self, violation: FormViolation) {
        self.error = Some(match violation {
            FormViolation::Malformed(at, what) => {
                FormError::Malformed { offset: self.offset + at, what }
            }
            FormViolation::FileTooLarge(name) => {
                FormError::FileTooLarge { name, most: self.limits.file_bytes_max }
            }
            FormViolation::TextTooLarge => FormError::TextTooLarge(self.limits.text_bytes_max),
        });
        self.parts = Vec::new();
        self.state = FormState::Epilogue;
    }

    /// Reads a piece up to the next change of state; returns how many bytes were read.
    fn step(&mut self, piece: &Bytes) -> Result<usize, FormViolation> {
        match &mut self.state {
            FormState::FirstBoundary(matched) => {
                let used = self.boundary.match_first(matched, piece)?;
                if self.boundary.is_complete(*matched) {
                    self.state = FormState::AfterBoundary(None);
                }
                Ok(used)
            }
            FormState::AfterBoundary(before) => {
                self.state = state_after_boundary(*before, piece[0])?;
                if matches!(self.state, FormState::Head(_))
                    && self.parts.len() == self.limits.parts_max
                {
                    return Err(violation_at(
                        0,
                        format!("more than {} parts", self.limits.parts_max),
                    ));
                }
                Ok(1)
            }
            FormState::Head(head) => {
                let used = head.push(piece)?;
                if let Some(part) = head.finish(used - 1)? {
                    let text_max = self.limits.text_bytes_max - self.text_bytes;
                    let file_max = self.limits.file_bytes_max;
                    self.state = FormState::Content(PartBody::new(part, text_max, file_max));
                }
                Ok(used)
            }
            FormState::Content(content) => {
                let (used, is_complete) = content.push(&self.boundary, piece)?;
                if is_complete {
                    let part = content.finish(used - 1, self.is_ascii_only)?;
                    if let PartContent::Text(text) = &part.content {
                        self.text_bytes += text.len();
                    }
                    self.parts.push(part);
                    self.state = FormState::AfterBoundary(None);
                }
                Ok(used)
            }
            FormState::Epilogue => match piece.iter().position(|b| !b" \t\r\n".contains(b)) {
                Some(at) => Err(violation_at(at, "bytes after the last boundary")),
                None => Ok(piece.len()),
            },
        }
    }
}

/// Returns the state after the first or second byte that follows a boundary. `before` is the first
/// of them when `byte` is the second.
fn state_after_boundary(before: Option<u8>, byte: u8) -> Result<FormState, FormViolation> {
    match (before, byte) {
        (None, b'\r' | b'-') => Ok(FormState::AfterBoundary(Some(byte))),
        (Some(b'\r'), b'\n') => Ok(FormState::Head(PartHeadReader::default())),
        (Some(b'-'), b'-') => Ok(FormState::Epilogue),
        _ => Err(violation_at(0, "a boundary must be followed by a line break or by '--'")),
    }
}

/// Returns the boundary that a content-type names, and whether its charset equals UTF-8 only for
/// ASCII text.
fn parse_content_type(content_type: &str) -> Result<(String, bool), String> {
    let read = HeaderParameters::parse(content_type)?;
    if !read.main_value.eq_ignore_ascii_case("multipart/form-data") {
        return Err(format!("it is '{}'", excerpt(read.main_value)));
    }
    if let Some(name) = read.names().find(|name| name.contains('*')) {
        return Err(format!("it has the parameter '{}'", excerpt(name)));
    }
    let boundary = read.get("boundary").ok_or("it has no boundary")?.raw();
    let is_of_boundary = |b: u8| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&b);
    let is_sound = (1..=70).contains(&boundary.len())
        && boundary.bytes().all(is_of_boundary)
        && !boundary.ends_with(' ');
    if !is_sound {
        return Err(format!("'{}' is no boundary", excerpt(boundary)));
    }
    Ok((boundary.to_owned(), read.is_ascii_only()?))
}

#[cfg(test)]
mod tests;
