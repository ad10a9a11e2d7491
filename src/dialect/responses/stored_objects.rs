//! The vendor-stored objects that a call refers to by id.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::JsonValue;

/// A vendor-stored object that a call refers to. At the vendor, all accounts of the gateway share
/// one account, so the object must have been issued to the account that calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObjectId {
    /// The path of the field that holds the id.
    pub param: String,
    /// The id of the object.
    pub id: String,
}

/// At most this many stored objects may be named in one call: each of them is looked up.
pub(super) const REFERENCES_MAX: usize = 256;

/// The maximum length of an id in bytes; no vendor issues longer ones.
pub(super) const ID_BYTES_MAX: usize = 256;

/// The stored objects that were found in a call so far.
#[derive(Default)]
pub(super) struct ReferencedObjects(pub(super) Vec<StoredObjectId>);

impl ReferencedObjects {
    /// Adds the id that a field holds.
    pub(super) fn add(&mut self, param: &str, id: JsonValue<'_>) -> Result<(), CallError> {
        self.push(param, parse_id(param, id)?)
    }

    pub(super) fn push(&mut self, param: &str, id: String) -> Result<(), CallError> {
        if self.0.len() == REFERENCES_MAX {
            let expected =
                format!("one of at most {REFERENCES_MAX} ids of stored objects in a call");
            return Err(CallError::invalid(param, &expected));
        }
        self.0.push(StoredObjectId { param: param.to_owned(), id });
        Ok(())
    }
}

pub(super) fn parse_id(param: &str, value: JsonValue<'_>) -> Result<String, CallError> {
    let fits = |id: &str| (1..=ID_BYTES_MAX).contains(&id.len());
    let id = value.text().filter(|id| fits(id)).map(std::borrow::Cow::into_owned);
    id.ok_or_else(|| invalid_value(param, &format!("an id of 1 to {ID_BYTES_MAX} bytes"), value))
}
