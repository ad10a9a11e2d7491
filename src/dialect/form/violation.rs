//! What makes a form unsound, and how it is told.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

/// What is wrong, and at which byte of those that were looked at.
#[derive(Debug)]
pub(super) enum FormViolation {
    Malformed(usize, String),
    FileTooLarge(String),
    TextTooLarge,
}

/// Names and values of clients are shown only so far.
const SHOWN_CHARS_MAX: usize = 40;

pub(super) fn violation_at(at: usize, what: impl Into<String>) -> FormViolation {
    FormViolation::Malformed(at, what.into())
}

pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}
