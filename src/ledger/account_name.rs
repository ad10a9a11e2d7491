//! The names of accounts.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The name of an account: 1 to 64 letters, digits, `-`, `_` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccountName(Arc<str>);

impl TryFrom<String> for AccountName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<AccountName, &'static str> {
        AccountName::parse(&text).ok_or("no name of an account")
    }
}

impl From<AccountName> for String {
    fn from(name: AccountName) -> String {
        name.as_str().to_owned()
    }
}

impl AccountName {
    /// Parses a name; `None` if the text is not a valid name.
    #[must_use]
    pub fn parse(text: &str) -> Option<AccountName> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let sound = (1..=64).contains(&text.len()) && text.bytes().all(fits);
        sound.then(|| AccountName(text.into()))
    }

    /// Returns the name as a text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_64_plain_letters_digits_and_marks() {
        let longest = "n".repeat(64);
        for good in ["a", "0", "Ada-1_b.c", &longest] {
            let name = AccountName::parse(good).expect("a name");
            assert_eq!((name.as_str(), name.to_string()), (good, good.to_owned()));
            assert_eq!(String::from(name.clone()), good);
            assert_eq!(AccountName::try_from(good.to_owned()), Ok(name));
        }
        for bad in ["", " ", "a b", "a/b", "a:b", "ä", "a\n", "{a}", &"n".repeat(65)] {
            assert_eq!(AccountName::parse(bad), None, "{bad:?}");
            assert!(AccountName::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }
}
