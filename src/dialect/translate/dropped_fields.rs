//! Collects the names of the fields of a chat call that the messages call does not carry, so that
//! the client can be told.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::json::JsonValue;

/// At most this many names are reported, each of at most `NAME_BYTES_MAX` bytes.
const NAMES_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 64;
/// The last name, if there are fields whose names are not reported.
const FURTHER_FIELDS: &str = "...";

/// The paths of the dropped fields, each once, such as `seed` or `messages[].name`.
#[derive(Debug, Default)]
pub(super) struct DroppedFields {
    paths: Vec<String>,
    /// Whether a field was dropped whose name is not in `paths`.
    has_unnamed: bool,
}

impl DroppedFields {
    /// Adds the field `name` of the object at the path `parent`; `parent` is empty for the fields
    /// of the body itself.
    pub(super) fn add(&mut self, parent: &str, name: &str) {
        if self.paths.iter().any(|path| is_path_of(path, parent, name)) {
            return;
        }
        if self.paths.len() >= NAMES_MAX || !is_reportable(name) {
            self.has_unnamed = true;
        } else if parent.is_empty() {
            self.paths.push(name.to_owned());
        } else {
            self.paths.push(format!("{parent}.{name}"));
        }
    }

    /// Adds the members of an object at the path `parent` that are not null and not `known`.
    pub(super) fn add_unknown(&mut self, parent: &str, object: JsonValue<'_>, known: &[&str]) {
        for (name, value) in object.members() {
            if !value.is_null() && !known.contains(&&*name) {
                self.add(parent, &name);
            }
        }
    }

    /// Adds the fields that another part of the translation dropped.
    pub(super) fn append(&mut self, other: DroppedFields) {
        self.has_unnamed |= other.has_unnamed;
        for path in other.paths {
            if self.paths.len() >= NAMES_MAX {
                self.has_unnamed = true;
            } else if !self.paths.contains(&path) {
                self.paths.push(path);
            }
        }
    }

    /// Returns the paths for the client. The last one is `...` if further fields were dropped.
    pub(super) fn into_paths(mut self) -> Vec<String> {
        if self.has_unnamed {
            self.paths.push(FURTHER_FIELDS.to_owned());
        }
        self.paths
    }
}

/// Whether `path` is the path of the field `name` in the object at `parent`.
fn is_path_of(path: &str, parent: &str, name: &str) -> bool {
    if parent.is_empty() {
        return path == name;
    }
    let rest = path.strip_prefix(parent).and_then(|rest| rest.strip_prefix('.'));
    rest.is_some_and(|rest| rest == name)
}

/// Whether a name, which the client chose, can stand in a header.
fn is_reportable(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_named_once_and_by_its_path() {
        let mut dropped = DroppedFields::default();
        dropped.add("", "name");
        dropped.add("messages[]", "name");
        dropped.add("messages[]", "name");
        let object = JsonValue::from_validated(br#"{"a":1,"b":null,"c":[]}"#);
        dropped.add_unknown("tools[]", object, &["a"]);
        assert_eq!(dropped.into_paths(), ["name", "messages[].name", "tools[].c"]);
    }

    #[test]
    fn what_cannot_be_named_is_not_passed_over_in_silence() {
        for odd in ["", "a b", "a\r\nx-evil: 1", "a,b", "é", &"a".repeat(NAME_BYTES_MAX + 1)] {
            let mut dropped = DroppedFields::default();
            dropped.add("", "seed");
            dropped.add("", odd);
            assert_eq!(dropped.into_paths(), ["seed", FURTHER_FIELDS], "{odd:?}");
        }
        let mut dropped = DroppedFields::default();
        (0..=NAMES_MAX).for_each(|n| dropped.add("", &format!("f{n}")));
        let paths = dropped.into_paths();
        assert_eq!((paths.len(), paths[NAMES_MAX].as_str()), (NAMES_MAX + 1, FURTHER_FIELDS));
    }

    #[test]
    fn two_parts_are_told_together_within_the_bound() {
        let many = |from: usize| {
            let mut dropped = DroppedFields::default();
            (from..from + 20).for_each(|n| dropped.add("", &format!("f{n}")));
            dropped
        };
        let mut dropped = many(0);
        dropped.append(many(10));
        assert_eq!(dropped.into_paths().len(), 30);
        let mut dropped = many(0);
        dropped.append(many(20));
        assert_eq!(dropped.into_paths().len(), NAMES_MAX + 1);
    }
}
