//! Reading a table key by key: what was not asked for is a fault that names the closest known key.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::{Fault, Node, Place, Value, closest};

/// A table being read. Call [`Table::finish`] when every known key was asked for.
#[derive(Debug)]
pub struct Table {
    /// Where the table stands.
    pub place: Place,
    members: Vec<(String, Node)>,
    known: Vec<&'static str>,
}

impl Table {
    /// Opens a node as a table; anything else is a fault and reads as an empty one.
    pub fn open(node: Node, faults: &mut Vec<Fault>) -> Table {
        let members = match node.value {
            Value::Table(members) => members,
            other => {
                faults.push(node.place.fault(format!("expected a table, found {}", other.kind())));
                Vec::new()
            }
        };
        Table { place: node.place, members, known: Vec::new() }
    }

    /// The raw value of a key.
    pub fn take(&mut self, key: &'static str) -> Option<Node> {
        self.known.push(key);
        let at = self.members.iter().position(|(k, _)| k == key)?;
        Some(self.members.remove(at).1)
    }

    /// A text.
    pub fn text(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<String> {
        let node = self.take(key)?;
        text(node, key, faults)
    }

    /// A number, as its digits.
    pub fn number(
        &mut self,
        key: &'static str,
        faults: &mut Vec<Fault>,
    ) -> Option<(String, Place)> {
        let node = self.take(key)?;
        match node.value {
            Value::Number(digits) => Some((digits, node.place)),
            other => {
                faults.push(node.place.fault(expected(key, "a number", &other)));
                None
            }
        }
    }

    /// A whole number from 0.
    pub fn whole(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<u64> {
        let (digits, place) = self.number(key, faults)?;
        let read = digits.parse().ok();
        if read.is_none() {
            faults.push(place.fault(format!("'{key}' must be a whole number, not {digits}")));
        }
        read
    }

    /// `true` or `false`.
    pub fn bool(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<bool> {
        let node = self.take(key)?;
        match node.value {
            Value::Bool(b) => Some(b),
            other => {
                faults.push(node.place.fault(expected(key, "true or false", &other)));
                None
            }
        }
    }

    /// A list of nodes; an absent one is empty.
    pub fn list(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Vec<Node> {
        let Some(node) = self.take(key) else { return Vec::new() };
        match node.value {
            Value::List(items) => items,
            other => {
                faults.push(node.place.fault(expected(key, "a list", &other)));
                Vec::new()
            }
        }
    }

    /// A list of texts; an absent one is `None`.
    pub fn texts(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<Vec<String>> {
        if !self.has(key) {
            self.known.push(key);
            return None;
        }
        let items = self.list(key, faults);
        Some(items.into_iter().filter_map(|n| text(n, key, faults)).collect())
    }

    /// A table's members, whatever they are called; an absent one is empty.
    pub fn members(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Vec<(String, Node)> {
        self.take(key).map_or_else(Vec::new, |node| Table::open(node, faults).members)
    }

    /// An inner table.
    pub fn table(&mut self, key: &'static str, faults: &mut Vec<Fault>) -> Option<Table> {
        self.take(key).map(|node| Table::open(node, faults))
    }

    /// Whether a key stands there and was not taken yet.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.members.iter().any(|(k, _)| k == key)
    }

    /// Every key that nobody asked for is a fault.
    pub fn finish(self, faults: &mut Vec<Fault>) {
        for (key, node) in &self.members {
            let hint = match closest(key, self.known.iter().copied()) {
                Some(near) => format!("closest is '{near}'"),
                None => format!("known are {}", self.known.join(", ")),
            };
            faults.push(node.place.fault(format!("unknown key '{key}'; {hint}")));
        }
    }
}

/// A node as text.
fn text(node: Node, key: &str, faults: &mut Vec<Fault>) -> Option<String> {
    match node.value {
        Value::Text(text) => Some(text),
        other => {
            faults.push(node.place.fault(expected(key, "a text", &other)));
            None
        }
    }
}

fn expected(key: &str, what: &str, found: &Value) -> String {
    format!("'{key}' must be {what}, not {}", found.kind())
}
