//! Reads TOML files so that every value keeps its file and line.
//!
//! People edit the rules and the configuration. So a fault names its line and the word that was
//! probably meant, and all faults of a file are reported together. Numbers keep their digits, so no
//! price passes through a float.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod table;

pub(crate) use table::TableReader;

/// A fault in a rules file or in the configuration, with its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub location: SourceLocation,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.message)
    }
}

/// A line of a file, a whole file, or an environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    file: Arc<str>,
    line: Option<usize>,
}

impl SourceLocation {
    /// Returns the location of a whole file, or of an environment variable.
    #[must_use]
    pub(crate) fn whole_source(name: &str) -> SourceLocation {
        SourceLocation { file: name.into(), line: None }
    }

    /// Returns an error at this location.
    #[must_use]
    pub(crate) fn error(&self, what: impl Into<String>) -> ConfigError {
        ConfigError { location: self.clone(), message: what.into() }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// A value with its location.
#[derive(Debug, Clone)]
pub(crate) struct SpannedValue {
    pub location: SourceLocation,
    pub value: TomlValue,
}

/// A value as written. Numbers stay text, so that no price passes through a float.
#[derive(Debug, Clone)]
pub(crate) enum TomlValue {
    Text(String),
    /// A number: its digits as written, without underscores.
    Number(String),
    /// `true` or `false`.
    Bool(bool),
    List(Vec<SpannedValue>),
    /// A table, in the order of its keys.
    Table(Vec<(String, SpannedValue)>),
}

impl TomlValue {
    /// Returns the kind of the value in words, for error messages.
    #[must_use]
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            TomlValue::Text(_) => "a text",
            TomlValue::Number(_) => "a number",
            TomlValue::Bool(_) => "true or false",
            TomlValue::List(_) => "a list",
            TomlValue::Table(_) => "a table",
        }
    }
}

/// Parses one file. Returns the values that could be read, and the faults.
#[must_use]
pub(crate) fn parse(file: &str, text: &str) -> (SpannedValue, Vec<ConfigError>) {
    let source = TextSource::new(file, text);
    let (root, errors) = DeTable::parse_recoverable(text);
    let fault = |e: &toml::de::Error| {
        source.location_at(e.span().map_or(0, |s| s.start)).error(e.message().to_owned())
    };
    let mut faults: Vec<ConfigError> = errors.iter().map(fault).collect();
    let mut node = source.read_table(root.get_ref(), 0, &mut faults);
    node.location = SourceLocation::whole_source(file);
    (node, faults)
}

/// Parses the value of an environment variable: as TOML if it is valid TOML, else as a text.
#[must_use]
pub(crate) fn parse_value(name: &str, text: &str) -> SpannedValue {
    let location = SourceLocation::whole_source(name);
    let wrapped = format!("v = {text}");
    let (node, faults) = parse(name, &wrapped);
    let single = match node.value {
        TomlValue::Table(members) if faults.is_empty() && members.len() == 1 => members,
        _ => return SpannedValue { location, value: TomlValue::Text(text.to_owned()) },
    };
    let value = single.into_iter().next().map(|(_, n)| n.value);
    SpannedValue { location, value: value.unwrap_or(TomlValue::Text(text.to_owned())) }
}

/// Returns the known word nearest to `word`; `None` if no known word is near enough to have been
/// meant.
#[must_use]
pub(crate) fn closest_word<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let scored =
        known.into_iter().map(|k| (strsim::damerau_levenshtein(&lower, &k.to_lowercase()), k));
    let (distance, best) = scored.min_by_key(|(d, _)| *d)?;
    (distance <= 1 + best.len().max(word.len()) / 3).then_some(best)
}

struct TextSource {
    file: Arc<str>,
    line_starts: Vec<usize>,
}

impl TextSource {
    fn new(file: &str, text: &str) -> TextSource {
        let breaks = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        TextSource { file: file.into(), line_starts: std::iter::once(0).chain(breaks).collect() }
    }

    fn location_at(&self, offset: usize) -> SourceLocation {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        SourceLocation { file: self.file.clone(), line: Some(line) }
    }

    fn read_table(
        &self,
        table: &DeTable<'_>,
        offset: usize,
        faults: &mut Vec<ConfigError>,
    ) -> SpannedValue {
        let mut members: Vec<(usize, String, SpannedValue)> = Vec::new();
        for (key, value) in table {
            let mut node = self.read_value(value, faults);
            // The location is the line of the key, not of the value, because people look for the
            // key.
            node.location = self.location_at(key.span().start);
            members.push((key.span().start, key.get_ref().to_string(), node));
        }
        members.sort_by_key(|(start, ..)| *start);
        let members = members.into_iter().map(|(_, key, node)| (key, node)).collect();
        SpannedValue { location: self.location_at(offset), value: TomlValue::Table(members) }
    }

    fn read_value(
        &self,
        value: &Spanned<DeValue<'_>>,
        faults: &mut Vec<ConfigError>,
    ) -> SpannedValue {
        let location = self.location_at(value.span().start);
        let read = match value.get_ref() {
            DeValue::String(text) => TomlValue::Text(text.to_string()),
            DeValue::Integer(n) if n.radix() == 10 => TomlValue::Number(n.as_str().to_owned()),
            DeValue::Integer(_) => {
                faults.push(location.error("write the number in decimal"));
                TomlValue::Number("0".to_owned())
            }
            DeValue::Float(n) => TomlValue::Number(n.as_str().to_owned()),
            DeValue::Boolean(b) => TomlValue::Bool(*b),
            DeValue::Datetime(d) => TomlValue::Text(d.to_string()),
            DeValue::Array(items) => {
                TomlValue::List(items.iter().map(|item| self.read_value(item, faults)).collect())
            }
            DeValue::Table(t) => return self.read_table(t, value.span().start, faults),
        };
        SpannedValue { location, value: read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_file_is_told_with_its_line() {
        let (_, faults) = parse("x.toml", "a = 1\nb = \nc = 2\nd 3\n");
        let messages: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(messages.iter().any(|t| t.starts_with("x.toml:2: ")), "{messages:?}");
        assert!(messages.iter().any(|t| t.starts_with("x.toml:4: ")), "{messages:?}");
    }

    #[test]
    fn a_word_far_from_all_is_not_guessed() {
        assert_eq!(closest_word("inptu", ["input", "output"]), Some("input"));
        assert_eq!(closest_word("zzz", ["input", "output"]), None);
    }

    #[test]
    fn a_variable_is_toml_or_else_text() {
        assert!(matches!(parse_value("V", "[1, 2]").value, TomlValue::List(_)));
        assert!(matches!(parse_value("V", "true").value, TomlValue::Bool(true)));
        for text in ["redis://h/0", "1 2", "1\nw = 2", "[1", ""] {
            let node = parse_value("V", text);
            assert!(matches!(node.value, TomlValue::Text(found) if found == text), "{text}");
            assert_eq!(node.location, SourceLocation::whole_source("V"));
        }
    }

    #[test]
    fn a_number_keeps_its_digits_and_has_ten_of_them() {
        let read = |text: &str| {
            let (node, faults) = parse("f", &format!("n = {text}"));
            let TomlValue::Table(mut members) = node.value else { return None };
            let TomlValue::Number(digits) = members.pop()?.1.value else { return None };
            Some((digits, faults.iter().map(ConfigError::to_string).collect::<Vec<_>>()))
        };
        for (text, digits) in
            [("1_000", "1000"), ("0.10", "0.10"), ("-1e3", "-1e3"), ("inf", "inf")]
        {
            assert_eq!(read(text), Some((digits.to_owned(), vec![])));
        }
        for text in ["0x10", "0o10", "0b10"] {
            let message = "f:1: write the number in decimal".to_owned();
            assert_eq!(read(text), Some(("0".to_owned(), vec![message])));
        }
    }

    #[test]
    fn members_stand_in_the_order_and_on_the_lines_of_the_file() {
        let (node, faults) = parse("f", "b = 1\n\na = [\n2]\n[c]\nd = 3\n");
        let TomlValue::Table(members) = node.value else { panic!("a table") };
        let found = members.iter().map(|(key, node)| format!("{key} {}", node.location));
        assert_eq!(found.collect::<Vec<_>>(), ["b f:1", "a f:3", "c f:5"]);
        assert_eq!((node.location.to_string().as_str(), faults), ("f", vec![]));
    }
}
