//! Refuses the fields that select a region of an image.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;

/// Fields that say which part of an image to draw. No vendor is asked for a part.
pub(super) const REGION_FIELDS: [&str; 2] = ["mask", "markup"];

pub(super) fn unsupported_region(field: &str) -> CallError {
    CallError {
        code: "unsupported_parameter",
        param: Some(field.to_owned()),
        message: format!(
            "'{field}' is not taken: an image is drawn anew as a whole; leave it out and say in \
             'prompt' what is to change"
        ),
    }
}
