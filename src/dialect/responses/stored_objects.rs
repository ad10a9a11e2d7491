//! The objects that a vendor keeps, by the ids that a call names.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::CallError;
use crate::dialect::call::fields::invalid_value;
use crate::dialect::json::JsonValue;

/// A vendor-stored object that a call refers to. At the vendor all our accounts are one, so the
/// object must have been issued to the calling account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObjectId {
    /// The path of the field that names it.
    pub param: String,
    /// Its id.
    pub id: String,
}

/// Stored objects in one call, at most: each of them is looked up.
pub(super) const REFERENCES_MAX: usize = 256;

/// The most bytes of an id; no vendor makes longer ones.
pub(super) const ID_BYTES_MAX: usize = 256;

/// The objects that were named so far.
#[derive(Default)]
pub(super) struct ReferencedObjects(pub(super) Vec<StoredObjectId>);

impl ReferencedObjects {
    /// Takes the id that a field holds.
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
