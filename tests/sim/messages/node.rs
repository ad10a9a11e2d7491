//! A value of a request and where it stands, for complaints that name the place.

use serde_json::Value;

/// What a check finds: nothing, or what the vendor says about it.
pub(super) type Verdict = Result<(), String>;

/// A value at its place in a request.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    path: String,
    pub(super) value: &'a Value,
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value) -> Node<'a> {
        Node { path: String::new(), value }
    }

    /// A complaint about this value.
    pub(super) fn fault(&self, what: &str) -> String {
        if self.path.is_empty() { what.to_owned() } else { format!("{}: {what}", self.path) }
    }

    /// The same value, its kind added to its place, as the vendor does with unions.
    pub(super) fn tagged(&self, kind: &str) -> Node<'a> {
        self.below(kind, self.value)
    }

    /// A member, if it is there.
    pub(super) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.value.get(name).map(|value| self.below(name, value))
    }

    /// A member that has to be there.
    pub(super) fn need(&self, name: &str) -> Result<Node<'a>, String> {
        self.get(name).ok_or_else(|| self.below(name, self.value).fault("Field required"))
    }

    /// Refuses members other than these, which are divided by spaces.
    pub(super) fn only(&self, known: &[&str]) -> Verdict {
        let object = self.value.as_object();
        let object = object.ok_or_else(|| self.fault("Input should be a valid dictionary"))?;
        let known = |name: &str| known.iter().flat_map(|n| n.split(' ')).any(|n| n == name);
        match object.keys().find(|name| !known(name)) {
            Some(name) => Err(self.below(name, self.value).fault("Extra inputs are not permitted")),
            None => Ok(()),
        }
    }

    /// The items of a list.
    pub(super) fn items(&self) -> Result<Vec<Node<'a>>, String> {
        let list = self.value.as_array();
        let list = list.ok_or_else(|| self.fault("Input should be a valid list"))?;
        Ok((0..)
            .zip(list)
            .map(|(at, value): (u32, _)| self.below(&at.to_string(), value))
            .collect())
    }

    pub(super) fn text(&self) -> Result<&'a str, String> {
        self.value.as_str().ok_or_else(|| self.fault("Input should be a valid string"))
    }

    /// A text that is one of these.
    pub(super) fn one_of(&self, known: &[&str]) -> Result<&'a str, String> {
        let text = self.text()?;
        if known.contains(&text) {
            return Ok(text);
        }
        let known: Vec<_> = known.iter().map(|name| format!("'{name}'")).collect();
        Err(self.fault(&format!("Input should be {}", known.join(" or "))))
    }

    /// A text of 1 to `length_max` letters, digits, `_` and `-`.
    pub(super) fn word(&self, length_max: usize) -> Result<&'a str, String> {
        let text = self.text()?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if text.chars().all(fits) && (1..=length_max).contains(&text.len()) {
            return Ok(text);
        }
        let length =
            if length_max == usize::MAX { "+".into() } else { format!("{{1,{length_max}}}") };
        Err(self.fault(&format!("String should match pattern '^[a-zA-Z0-9_-]{length}$'")))
    }

    pub(super) fn boolean(&self) -> Result<bool, String> {
        self.value.as_bool().ok_or_else(|| self.fault("Input should be a valid boolean"))
    }

    /// A whole number of at least `least`.
    pub(super) fn count(&self, least: u64) -> Result<u64, String> {
        if !self.value.is_i64() && !self.value.is_u64() {
            return Err(self.fault("Input should be a valid integer"));
        }
        let number = self.value.as_u64().filter(|number| *number >= least);
        number
            .ok_or_else(|| self.fault(&format!("Input should be greater than or equal to {least}")))
    }

    /// A number from 0 to 1.
    pub(super) fn share(&self) -> Verdict {
        let number = self.value.as_f64();
        let number = number.ok_or_else(|| self.fault("Input should be a valid number"))?;
        match number {
            ..0.0 => Err(self.fault("Input should be greater than or equal to 0")),
            0.0..=1.0 => Ok(()),
            _ => Err(self.fault("Input should be less than or equal to 1")),
        }
    }

    fn below(&self, name: &str, value: &'a Value) -> Node<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Node { path: format!("{}{dot}{name}", self.path), value }
    }
}
