//! Fields that must not reach a vendor, because no price covers their cost.
//!
//! All refused fields of a vendor's endpoint form one tree, so a body is walked once, and only
//! along the paths of refused fields.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::json::{JsonDocument, JsonKind, JsonValue};
use crate::money::price::Price;

/// One refused field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRefusal {
    /// The path of the field as written in the rules, such as `tools[].type`.
    pub field: String,
    /// The reason that the client gets in the error.
    pub reason: String,
    /// Values of the field, as JSON, that are allowed all the same.
    pub unless: Vec<String>,
    /// An optional price: a model that has it may get the field all the same.
    pub unless_price: Option<OptionalPrice>,
    /// Details for programs, as JSON, in the error of the messages format.
    pub details: Option<String>,
}

/// A price that not every model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionalPrice {
    /// The price of tokens that are written to a prompt cache for an hour.
    CacheWrite1h,
}

impl OptionalPrice {
    /// Parses the name of a price in the rules; `None` if it is unknown.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Option<OptionalPrice> {
        (name == "cache_write_1h").then_some(OptionalPrice::CacheWrite1h)
    }

    fn is_part_of(self, price: &Price) -> bool {
        match (self, price) {
            (OptionalPrice::CacheWrite1h, Price::Tokens(tokens)) => tokens.has_cache_write_1h(),
            _ => false,
        }
    }
}

/// All refused fields of an endpoint.
#[derive(Debug, Clone, Default)]
pub struct FieldPolicy {
    root: FieldNode,
}

#[derive(Debug, Clone, Default)]
struct FieldNode {
    members: Vec<(String, FieldNode)>,
    elements: Option<Box<FieldNode>>,
    refusals: Vec<FieldRefusal>,
}

impl FieldPolicy {
    /// Adds a refused field.
    ///
    /// # Errors
    /// A text that says what is wrong with the path of the field.
    pub(crate) fn add(&mut self, refusal: FieldRefusal) -> Result<(), String> {
        let mut branch = &mut self.root;
        for part in refusal.field.split('.') {
            let name = part.trim_end_matches("[]");
            if name.is_empty() || name.contains(['[', ']']) {
                return Err(format!("'{}' is no path such as tools[].type", refusal.field));
            }
            branch = branch.member_mut(name);
            for _ in 0..(part.len() - name.len()) / 2 {
                branch = branch.elements.get_or_insert_default();
            }
        }
        branch.refusals.push(refusal);
        Ok(())
    }

    /// Returns the first refused field in a body for a model of this price; `None` if the body has
    /// none.
    #[must_use]
    pub fn find_refusal(&self, document: &JsonDocument, price: &Price) -> Option<&FieldRefusal> {
        self.root
            .members
            .iter()
            .find_map(|(name, branch)| branch.find_refusal(document.get(name)?, price))
    }
}

impl FieldNode {
    fn member_mut(&mut self, name: &str) -> &mut FieldNode {
        let known = self.members.iter().position(|(n, _)| n == name);
        let at = known.unwrap_or_else(|| {
            self.members.push((name.to_owned(), FieldNode::default()));
            self.members.len() - 1
        });
        &mut self.members[at].1
    }

    fn find_refusal(&self, value: JsonValue<'_>, price: &Price) -> Option<&FieldRefusal> {
        if value.is_null() {
            return None;
        }
        if let Some(refusal) = self.refusals.iter().find(|r| !r.allows(value, price)) {
            return Some(refusal);
        }
        // One refused path may lead into a list, another into an object of the same name.
        if let (JsonKind::Array, Some(each)) = (value.kind(), &self.elements) {
            return value.elements().find_map(|element| each.find_refusal(element, price));
        }
        if self.members.is_empty() {
            return None;
        }
        value.members().find_map(|(name, inner)| {
            let (_, branch) = self.members.iter().find(|(n, _)| *n == name)?;
            branch.find_refusal(inner, price)
        })
    }
}

impl FieldRefusal {
    fn allows(&self, value: JsonValue<'_>, price: &Price) -> bool {
        if self.unless_price.is_some_and(|name| name.is_part_of(price)) {
            return true;
        }
        self.unless.iter().any(|allowed| match value.text() {
            // Strings are compared unescaped, since an escaped string means the same as a plain
            // one.
            Some(text) => {
                JsonValue::from_validated(allowed.as_bytes()).text().is_some_and(|a| a == text)
            }
            None => allowed.as_bytes() == value.raw(),
        })
    }
}
