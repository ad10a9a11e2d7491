//! What an operator has set of an account: its plan, its price book, and whether it is suspended.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::book_name::BookName;

/// The most bytes of the name of a plan or of a price book.
const NAME_BYTES_MAX: usize = 64;

/// Whether a text can be the name of a plan or of a price book: letters, digits, `-` and `_`, at
/// most 64 of them.
pub(super) fn is_rule_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The name of a plan: letters, digits, `-` and `_`, at most 64 of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PlanName(String);

impl PlanName {
    /// Parses a name; `None` if the text is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<PlanName> {
        is_rule_name(text).then(|| PlanName(text.to_owned()))
    }

    /// Returns the text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for PlanName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlanName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PlanName {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<PlanName, D::Error> {
        let text = String::deserialize(reader)?;
        PlanName::parse(&text).ok_or_else(|| serde::de::Error::custom("no name of a plan"))
    }
}

/// What an operator has set of an account. The default sets nothing.
///
/// Settings with a member that this version does not know cannot be read, so that a restriction of
/// a later version is never left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccountSettings {
    /// The plan of the account; `None` if it has the default plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanName>,
    /// The price book of the account; `None` if it pays the list prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub book: Option<BookName>,
    /// Whether all calls of the account are refused until it is resumed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
}

impl AccountSettings {
    /// Returns the settings as a store keeps them.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Texts can always be written. If they could not, the empty text could not be read, and so
        // the keys of the account would open nothing.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns what a store keeps in the place of the settings of an account that was deleted at
    /// this time, in unix seconds. No version of the program can read it as settings, so the keys
    /// of the account open nothing.
    #[must_use]
    pub(crate) fn deletion_json(deleted_at: i64) -> String {
        format!(r#"{{"suspended":true,"deleted_at":{deleted_at}}}"#)
    }

    /// Returns the settings that people are shown of a deleted account.
    #[must_use]
    pub(crate) fn of_deleted() -> AccountSettings {
        AccountSettings { suspended: true, ..AccountSettings::default() }
    }

    /// Reads what [`AccountSettings::to_json`] has written; `None` if it cannot be read. Then the
    /// keys of the account must open nothing.
    #[must_use]
    pub fn parse_json(text: &str) -> Option<AccountSettings> {
        // A list of no members would be read as settings that set nothing.
        let is_object = text.starts_with('{');
        is_object.then(|| serde_json::from_str(text).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written_and_unknown_members_are_refused() {
        let plan = PlanName::parse("free-2_b");
        for settings in [
            AccountSettings::default(),
            AccountSettings { plan: plan.clone(), ..AccountSettings::default() },
            AccountSettings { book: BookName::parse("gold"), ..AccountSettings::default() },
            AccountSettings { plan, book: BookName::parse("b-1_c"), suspended: true },
        ] {
            assert_eq!(AccountSettings::parse_json(&settings.to_json()), Some(settings));
        }
        for bad in [
            "",
            "[]",
            "null",
            r#"{"plan":"a b"}"#,
            r#"{"plan":""}"#,
            r#"{"book":"a b"}"#,
            r#"{"later":1}"#,
            &AccountSettings::deletion_json(7),
        ] {
            assert_eq!(AccountSettings::parse_json(bad), None, "{bad}");
        }
        assert_eq!(PlanName::parse(&"a".repeat(65)), None);
        assert_eq!(BookName::parse(&"a".repeat(65)), None);
    }
}
