//! Converts the text fields of a form into the members of a JSON object.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::dialect::CallError;
use crate::dialect::json::JsonDocument;
use crate::dialect::json::patch::json_string;

/// The fields of a form that were read so far.
#[derive(Debug, Default)]
pub(in crate::dialect) struct FormFields {
    members: Vec<String>,
    names: BTreeSet<String>,
}

impl FormFields {
    /// Adds a field, whose value is given as JSON. The name must be valid, and no field may have
    /// been added under it before.
    pub(in crate::dialect) fn add(&mut self, name: &str, json: &str) -> Result<(), CallError> {
        check_field_name(name)?;
        if !self.names.insert(name.to_owned()) {
            return Err(invalid_form(name, format!("the field '{name}' stands twice in the form")));
        }
        self.members.push(format!("{}:{json}", json_string(name)));
        Ok(())
    }

    /// Returns the JSON object, with its members in the order of the fields.
    pub(in crate::dialect) fn into_document(self) -> Result<JsonDocument, CallError> {
        Ok(JsonDocument::parse(Bytes::from(format!("{{{}}}", self.members.join(","))))?)
    }
}

/// A field name may have at most this many bytes; no vendor has a field with a longer name.
const NAME_BYTES_MAX: usize = 64;

/// Checks that the name of a field is plain, so that no parser can read it as another name.
pub(in crate::dialect) fn check_field_name(name: &str) -> Result<(), CallError> {
    // Some parsers read brackets as a list, and a leading underscore as a setting of the form
    // itself.
    let is_of_name = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let plain = name.bytes().all(is_of_name) && !name.starts_with('_');
    if plain && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    Err(invalid_form(&shown, format!("'{shown}' is no name of a field")))
}

fn invalid_form(field: &str, message: String) -> CallError {
    CallError { code: "invalid_form", param: Some(field.to_owned()), message }
}
