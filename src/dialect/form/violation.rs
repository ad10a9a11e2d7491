//! The errors inside the form reader, and how much of a client's text their messages quote.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// Why a form is rejected. The offset is in bytes, from the start of the piece that is being read.
#[derive(Debug)]
pub(super) enum FormViolation {
    Malformed(usize, String),
    FileTooLarge(String),
    TextTooLarge,
}

/// Error messages quote at most this many characters of a client's names and values.
const SHOWN_CHARS_MAX: usize = 40;

pub(super) fn violation_at(at: usize, what: impl Into<String>) -> FormViolation {
    FormViolation::Malformed(at, what.into())
}

pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
