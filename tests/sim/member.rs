//! A value of a request and the way to it, for refusals that name it.
//!
//! The words are `vendor_b`'s, which the vendors with endpoints of its shape have taken over.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::refusal::Refusal;

/// A value at its place in a request.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    path: String,
    pub(super) value: &'a Value,
}

/// What a check finds: nothing, or why the request is refused.
pub(super) type Verdict = Result<(), Refusal>;

impl<'a> Member<'a> {
    pub(super) fn root(value: &'a Value) -> Member<'a> {
        Member { path: String::new(), value }
    }

    /// A refusal for the sake of this value.
    pub(super) fn refusal(&self, message: &str) -> Refusal {
        let refusal = Refusal::new(400, message);
        if self.path.is_empty() { refusal } else { refusal.at(&self.path) }
    }

    /// The same with the path in front: `Invalid 'a.b': what`.
    pub(super) fn invalid(&self, what: &str) -> Refusal {
        self.refusal(&format!("Invalid '{}': {what}", self.path)).coded("invalid_value")
    }

    /// A member, if it is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<Member<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null());
        value.map(|value| Member { path: self.path_of(name), value })
    }

    /// A member that has to be there.
    pub(super) fn need(&self, name: &str) -> Result<Member<'a>, Refusal> {
        self.get(name).ok_or_else(|| {
            let path = self.path_of(name);
            Refusal::new(400, format!("Missing required parameter: '{path}'."))
                .at(&path)
                .coded("missing_required_parameter")
        })
    }

    /// Refuses members other than these, which are divided by spaces.
    pub(super) fn only(&self, known: &str) -> Verdict {
        let Some(object) = self.value.as_object() else {
            return Err(self.mistyped("an object"));
        };
        match object.keys().find(|name| !known.split(' ').any(|known| known == *name)) {
            Some(name) => {
                let path = self.path_of(name);
                let refusal = Refusal::new(400, format!("Unknown parameter: '{path}'."));
                Err(refusal.at(&path).coded("unknown_parameter"))
            }
            None => Ok(()),
        }
    }

    /// Refuses what is no object.
    pub(super) fn only_object(&self) -> Verdict {
        if self.value.is_object() { Ok(()) } else { Err(self.mistyped("an object")) }
    }

    /// The items of a list.
    pub(super) fn items(&self) -> Result<Vec<Member<'a>>, Refusal> {
        let list = self.value.as_array().ok_or_else(|| self.mistyped("an array"))?;
        let item = |(at, value)| Member { path: format!("{}[{at}]", self.path), value };
        Ok(list.iter().enumerate().map(item).collect())
    }

    pub(super) fn text(&self) -> Result<&'a str, Refusal> {
        self.value.as_str().ok_or_else(|| self.mistyped("a string"))
    }

    /// A text of one character to so many.
    pub(super) fn text_within(&self, length_max: usize) -> Result<&'a str, Refusal> {
        let text = self.text()?;
        let length = text.chars().count();
        if length == 0 {
            let what = "empty string. Expected a string with minimum length 1, but got an empty \
                string instead.";
            return Err(self.invalid(what).coded("empty_string"));
        }
        if length > length_max {
            let what = format!(
                "string too long. Expected a string with maximum length {length_max}, but got a \
                 string with length {length} instead."
            );
            return Err(self.invalid(&what).coded("string_above_max_length"));
        }
        Ok(text)
    }

    /// A text that is one of these, which are divided by spaces.
    pub(super) fn one_of(&self, known: &str) -> Result<&'a str, Refusal> {
        let text = self.text()?;
        if known.split(' ').any(|known| known == text) {
            return Ok(text);
        }
        let known: Vec<_> = known.split(' ').map(|known| format!("'{known}'")).collect();
        let message =
            format!("Invalid value: '{text}'. Supported values are: {}.", known.join(", "));
        Err(self.refusal(&message).coded("invalid_value"))
    }

    pub(super) fn boolean(&self) -> Result<bool, Refusal> {
        self.value.as_bool().ok_or_else(|| self.mistyped("a boolean"))
    }

    pub(super) fn integer(&self, range: RangeInclusive<u64>) -> Result<u64, Refusal> {
        if !self.value.is_i64() && !self.value.is_u64() {
            return Err(self.mistyped("an integer"));
        }
        let (least, most) = (range.start(), range.end());
        match self.value.as_u64() {
            Some(number) if range.contains(&number) => Ok(number),
            Some(number) if number > *most => {
                let what = format!(
                    "integer above maximum value. Expected a value <= {most}, but got {number} \
                     instead."
                );
                Err(self.invalid(&what).coded("integer_above_max_value"))
            }
            _ => {
                let what = format!(
                    "integer below minimum value. Expected a value >= {least}, but got {} instead.",
                    self.value
                );
                Err(self.invalid(&what).coded("integer_below_min_value"))
            }
        }
    }

    pub(super) fn decimal(&self, range: RangeInclusive<f64>) -> Verdict {
        let number = self.value.as_f64().ok_or_else(|| self.mistyped("a decimal"))?;
        if range.contains(&number) {
            return Ok(());
        }
        let what =
            format!("expected a value from {} to {}, but got {number}", range.start(), range.end());
        Err(self.invalid(&what))
    }

    /// A complaint that this is not what it has to be.
    pub(super) fn mistyped(&self, expected: &str) -> Refusal {
        let kind = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(number) if number.is_f64() => "a decimal",
            Value::Number(_) => "an integer",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        let path = &self.path;
        let message =
            format!("Invalid type for '{path}': expected {expected}, but got {kind} instead.");
        self.refusal(&message).coded("invalid_type")
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusals_name_the_place() {
        let body = json!({"a": [{"b": 0, "c": "x", "d": ""}], "e": null});
        let root = Member::root(&body);
        let list = root.need("a").and_then(|list| list.items()).expect("a list");
        let first = &list[0];
        for (refusal, param, code) in [
            (root.need("e").err(), "e", "missing_required_parameter"),
            (root.only("a").err(), "e", "unknown_parameter"),
            (first.need("f").err(), "a[0].f", "missing_required_parameter"),
            (
                first.need("b").and_then(|b| b.integer(1..=2)).err(),
                "a[0].b",
                "integer_below_min_value",
            ),
            (first.need("b").and_then(|b| b.text().map(|_| 0)).err(), "a[0].b", "invalid_type"),
            (
                first.need("c").and_then(|c| c.one_of("y z")).err().clone(),
                "a[0].c",
                "invalid_value",
            ),
            (first.need("d").and_then(|d| d.text_within(2)).err(), "a[0].d", "empty_string"),
        ] {
            let refusal = refusal.expect("a refusal");
            assert_eq!(refusal.param.as_deref(), Some(param), "{refusal:?}");
            assert_eq!(refusal.code, Some(code), "{refusal:?}");
        }
    }
}
