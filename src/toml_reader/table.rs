//! Reads a table key by key. A key that was not read is an error that names the closest known key.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::{ConfigError, SourceLocation, SpannedValue, TomlValue, closest_word};

/// A table that is read key by key. Call [`TableReader::finish`] after all known keys have been
/// read.
#[derive(Debug)]
pub(crate) struct TableReader {
    /// The location of the table in its file.
    pub location: SourceLocation,
    members: Vec<(String, SpannedValue)>,
    known_keys: Vec<&'static str>,
}

impl TableReader {
    /// Opens a node as a table. A node of another kind is a fault, and is treated as an empty
    /// table.
    pub(crate) fn open(node: SpannedValue, faults: &mut Vec<ConfigError>) -> TableReader {
        let members = match node.value {
            TomlValue::Table(members) => members,
            other => {
                faults.push(
                    node.location.error(format!("expected a table, found {}", other.kind_name())),
                );
                Vec::new()
            }
        };
        TableReader { location: node.location, members, known_keys: Vec::new() }
    }

    /// Takes the raw value of a key; `None` if the key is absent or was taken before.
    pub(crate) fn take_value(&mut self, key: &'static str) -> Option<SpannedValue> {
        self.known_keys.push(key);
        let at = self.members.iter().position(|(k, _)| k == key)?;
        Some(self.members.remove(at).1)
    }

    pub(crate) fn text(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Option<String> {
        let node = self.take_value(key)?;
        read_text(node, key, faults)
    }

    /// Reads a number, as its digits with their location.
    pub(crate) fn number(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Option<(String, SourceLocation)> {
        let node = self.take_value(key)?;
        match node.value {
            TomlValue::Number(digits) => Some((digits, node.location)),
            other => {
                faults.push(node.location.error(wrong_kind(key, "a number", &other)));
                None
            }
        }
    }

    /// Reads a whole number from 0.
    pub(crate) fn integer(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Option<u64> {
        let (digits, location) = self.number(key, faults)?;
        let read = digits.parse().ok();
        if read.is_none() {
            faults.push(location.error(format!("'{key}' must be a whole number, not {digits}")));
        }
        read
    }

    /// Reads `true` or `false`.
    pub(crate) fn bool(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Option<bool> {
        let node = self.take_value(key)?;
        match node.value {
            TomlValue::Bool(b) => Some(b),
            other => {
                faults.push(node.location.error(wrong_kind(key, "true or false", &other)));
                None
            }
        }
    }

    /// Reads a list of nodes; empty if the key is absent.
    pub(crate) fn list(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Vec<SpannedValue> {
        let Some(node) = self.take_value(key) else { return Vec::new() };
        match node.value {
            TomlValue::List(items) => items,
            other => {
                faults.push(node.location.error(wrong_kind(key, "a list", &other)));
                Vec::new()
            }
        }
    }

    /// Reads a list of texts; `None` if the key is absent.
    pub(crate) fn texts(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Option<Vec<String>> {
        if !self.has(key) {
            self.known_keys.push(key);
            return None;
        }
        let items = self.list(key, faults);
        Some(items.into_iter().filter_map(|n| read_text(n, key, faults)).collect())
    }

    /// Reads the members of an inner table, which may have any keys; empty if the key is absent.
    pub(crate) fn members(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Vec<(String, SpannedValue)> {
        self.take_value(key).map_or_else(Vec::new, |node| TableReader::open(node, faults).members)
    }

    /// Reads an inner table; `None` if the key is absent.
    pub(crate) fn table(
        &mut self,
        key: &'static str,
        faults: &mut Vec<ConfigError>,
    ) -> Option<TableReader> {
        self.take_value(key).map(|node| TableReader::open(node, faults))
    }

    /// Whether the table has a key that was not taken yet.
    #[must_use]
    pub(crate) fn has(&self, key: &str) -> bool {
        self.members.iter().any(|(k, _)| k == key)
    }

    /// Ends the reading. Every key of the table that was not asked for is a fault.
    pub(crate) fn finish(self, faults: &mut Vec<ConfigError>) {
        for (key, node) in &self.members {
            let hint = match closest_word(key, self.known_keys.iter().copied()) {
                Some(near) => format!("closest is '{near}'"),
                None => format!("known are {}", self.known_keys.join(", ")),
            };
            faults.push(node.location.error(format!("unknown key '{key}'; {hint}")));
        }
    }
}

/// Reads a node as a text; a node of another kind is a fault.
fn read_text(node: SpannedValue, key: &str, faults: &mut Vec<ConfigError>) -> Option<String> {
    match node.value {
        TomlValue::Text(text) => Some(text),
        other => {
            faults.push(node.location.error(wrong_kind(key, "a text", &other)));
            None
        }
    }
}

fn wrong_kind(key: &str, what: &str, found: &TomlValue) -> String {
    format!("'{key}' must be {what}, not {}", found.kind_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_reader;

    fn open(text: &str) -> (TableReader, Vec<ConfigError>) {
        let (node, mut faults) = toml_reader::parse("f", text);
        (TableReader::open(node, &mut faults), faults)
    }

    fn error_messages(faults: &[ConfigError]) -> Vec<String> {
        faults.iter().map(ConfigError::to_string).collect()
    }

    #[test]
    fn what_stands_there_is_read_once_as_what_it_is() {
        let (mut table, mut faults) = open(
            "text = 'a'\nnumber = 0.50\nwhole = 7\nyes = true\nno = false\nlist = [1, 2]\n\
             texts = ['b', 'c']\nempty = []\n[members]\nz = 1\ny = 2\n[inner]\ntext = 'd'\n",
        );
        for again in [false, true] {
            let found = |value: &'static str| (!again).then(|| value.to_owned());
            let faults = &mut faults;
            assert_eq!(table.has("text"), !again);
            assert_eq!(table.text("text", faults), found("a"));
            assert_eq!(table.number("number", faults).map(|(digits, _)| digits), found("0.50"));
            assert_eq!(table.integer("whole", faults), (!again).then_some(7));
            assert_eq!(table.bool("yes", faults), (!again).then_some(true));
            assert_eq!(table.bool("no", faults), (!again).then_some(false));
            assert_eq!(table.list("list", faults).len(), if again { 0 } else { 2 });
            let texts = (!again).then(|| vec!["b".to_owned(), "c".to_owned()]);
            assert_eq!(table.texts("texts", faults), texts);
            assert_eq!(table.texts("empty", faults), (!again).then(Vec::new));
            let members = table.members("members", faults).into_iter().map(|(key, _)| key);
            assert_eq!(members.collect::<Vec<_>>(), if again { vec![] } else { vec!["z", "y"] });
            let inner = table.table("inner", faults).and_then(|mut t| t.text("text", faults));
            assert_eq!(inner, found("d"));
        }
        table.finish(&mut faults);
        assert_eq!(faults, []);
    }

    #[test]
    fn what_is_of_another_kind_is_told_and_reads_as_absent() {
        let values = ["'a'", "1", "true", "[]", "{}"];
        let kinds = ["a text", "a number", "true or false", "a list", "a table"];
        let each = |read: fn(&mut TableReader, &mut Vec<ConfigError>) -> bool| {
            let found = values.map(|value| {
                let (mut table, mut faults) = open(&format!("\nk = {value}"));
                let is_there = read(&mut table, &mut faults);
                assert_eq!(is_there, faults.is_empty());
                error_messages(&faults).pop()
            });
            found.to_vec()
        };
        let not = |wanted: &str, but: &str| {
            let message = format!("f:2: 'k' must be {wanted}, not {but}");
            (wanted != but).then_some(message)
        };
        let expected = |wanted: &str| kinds.map(|kind| not(wanted, kind)).to_vec();
        assert_eq!(each(|t, f| t.text("k", f).is_some()), expected("a text"));
        assert_eq!(each(|t, f| t.number("k", f).is_some()), expected("a number"));
        assert_eq!(each(|t, f| t.integer("k", f).is_some()), expected("a number"));
        assert_eq!(each(|t, f| t.bool("k", f).is_some()), expected("true or false"));
        let table = |kind: &str| format!("f:2: expected a table, found {kind}");
        let tables = kinds.map(|kind| (kind != "a table").then(|| table(kind)));
        let inner = each(|t, f| t.table("k", f).is_some_and(|_| f.is_empty()));
        assert_eq!(inner, tables);
        assert_eq!(each(|t, f| t.members("k", f).is_empty() && f.is_empty()), tables);
        let list = each(|t, f| t.list("k", f).is_empty() && f.is_empty());
        assert_eq!(list, expected("a list"));
        assert_eq!(each(|t, f| t.texts("k", f).is_some() && f.is_empty()), expected("a list"));
    }

    #[test]
    fn a_whole_number_is_one_from_0_and_texts_are_all_texts() {
        let (mut table, mut faults) =
            open("a = -1\nb = 1.0\nc = 18446744073709551616\nd = ['e', 1]");
        for key in ["a", "b", "c"] {
            assert_eq!(table.integer(key, &mut faults), None);
        }
        assert_eq!(table.texts("d", &mut faults), Some(vec!["e".to_owned()]));
        let expected = [
            "f:1: 'a' must be a whole number, not -1",
            "f:2: 'b' must be a whole number, not 1.0",
            "f:3: 'c' must be a whole number, not 18446744073709551616",
            "f:4: 'd' must be a text, not a number",
        ];
        assert_eq!(error_messages(&faults), expected);
    }

    #[test]
    fn a_key_that_nobody_asked_for_is_told_with_the_nearest_or_all() {
        let (mut table, mut faults) = open("inptu = 1\nzzz = 2");
        assert_eq!(table.number("input", &mut faults), None);
        assert_eq!(table.texts("output", &mut faults), None);
        table.finish(&mut faults);
        let expected = [
            "f:1: unknown key 'inptu'; closest is 'input'",
            "f:2: unknown key 'zzz'; known are input, output",
        ];
        assert_eq!(error_messages(&faults), expected);
    }
}
