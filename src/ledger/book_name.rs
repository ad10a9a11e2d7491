//! The name of a price book.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::account_settings::is_rule_name;

/// The name of a price book: letters, digits, `-` and `_`, at most 64 of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct BookName(String);

impl BookName {
    /// Parses a name; `None` if the text is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<BookName> {
        is_rule_name(text).then(|| BookName(text.to_owned()))
    }

    /// Returns the text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for BookName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BookName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for BookName {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<BookName, D::Error> {
        let text = String::deserialize(reader)?;
        BookName::parse(&text).ok_or_else(|| serde::de::Error::custom("no name of a price book"))
    }
}
