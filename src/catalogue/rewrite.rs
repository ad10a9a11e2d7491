//! Changes that the rules make to a body: a fixed set of operations on its top-level members.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::cmp::Ordering;

use crate::dialect::Endpoint;
use crate::dialect::json::{JsonKind, JsonPatch, JsonValue};

/// The operations of one `[[rewrite]]`. They are applied in the order of the fields below.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RewriteRule {
    /// The models that the rule applies to; all models of the vendor if the list is empty.
    pub models: Vec<String>,
    /// The endpoints that the rule applies to.
    pub endpoints: Vec<Endpoint>,
    /// Members that are removed.
    pub drop: Vec<String>,
    /// Lists of members that exclude each other: of each list, only the first member that a body
    /// has stays.
    pub either: Vec<Vec<String>>,
    /// Members that are renamed, as (old name, new name). A member that already has the new name is
    /// removed.
    pub rename: Vec<(String, String)>,
    /// Members that are added, with a JSON value, if they are absent or null.
    pub default: Vec<(String, String)>,
    /// Members that are set to a JSON value, whether they are present or not.
    pub set: Vec<(String, String)>,
    /// Members whose numbers are limited to a range.
    pub clamp: Vec<NumberClamp>,
    /// Members whose values are replaced by a lower one, unless they are allowed.
    pub fallbacks: Vec<FallbackValue>,
}

/// Bounds of a number, as decimal text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NumberClamp {
    /// The name of the member.
    pub field: String,
    /// The lower bound; `None` if there is none.
    pub min: Option<String>,
    /// The upper bound; `None` if there is none.
    pub max: Option<String>,
}

/// The value that replaces a member's value, unless the member's value is on a list of allowed
/// ones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FallbackValue {
    /// The name of the member.
    pub field: String,
    /// The JSON value that replaces it.
    pub to: String,
    /// The JSON values that are not replaced.
    pub unless: Vec<String>,
}

impl RewriteRule {
    /// Whether the rule applies to a model on an endpoint.
    #[must_use]
    pub(crate) fn applies_to(&self, model: &str, endpoint: Endpoint) -> bool {
        let named = self.models.is_empty() || self.models.iter().any(|m| m == model);
        named && self.endpoints.contains(&endpoint)
    }

    /// Applies the rule to a body.
    pub(crate) fn apply(&self, patch: &mut JsonPatch<'_>) {
        self.drop.iter().for_each(|field| patch.remove(field));
        for fields in &self.either {
            let is_there = |field: &&String| patch.get(field).is_some_and(|v| !v.is_null());
            let rest: Vec<&String> = fields.iter().filter(is_there).skip(1).collect();
            rest.into_iter().for_each(|field| patch.remove(field));
        }
        for (old, new) in &self.rename {
            // A null has no meaning, so it must not replace a value under the new name.
            match patch.get(old).map(JsonValue::is_null) {
                Some(true) => patch.remove(old),
                _ => patch.rename(old, new),
            }
        }
        for (field, json) in &self.default {
            if patch.get(field).is_none_or(JsonValue::is_null) {
                patch.set(field, json.clone());
            }
        }
        self.set.iter().for_each(|(field, json)| patch.set(field, json.clone()));
        self.clamp.iter().for_each(|clamp| clamp.apply(patch));
        self.fallbacks.iter().for_each(|fallback| fallback.apply(patch));
    }
}

impl NumberClamp {
    fn apply(&self, patch: &mut JsonPatch<'_>) {
        let Some(value) = patch.get(&self.field).filter(|v| v.kind() == JsonKind::Number) else {
            return;
        };
        let Ok(text) = std::str::from_utf8(value.raw()) else { return };
        let beyond = |bound: &String, side| compare_numbers(text, bound) == Some(side);
        let low = self.min.as_ref().filter(|min| beyond(min, Ordering::Less));
        let high = self.max.as_ref().filter(|max| beyond(max, Ordering::Greater));
        if let Some(bound) = low.or(high).cloned() {
            patch.set(&self.field, bound);
        }
    }
}

/// Compares numbers in a model's settings. They are not money, so the precision of a double
/// suffices.
fn compare_numbers(a: &str, b: &str) -> Option<Ordering> {
    a.parse::<f64>().ok()?.partial_cmp(&b.parse::<f64>().ok()?)
}

impl FallbackValue {
    fn apply(&self, patch: &mut JsonPatch<'_>) {
        let Some(value) = patch.get(&self.field).filter(|v| !v.is_null()) else { return };
        let stays = self.unless.iter().any(|json| json.as_bytes() == value.raw());
        if !stays {
            patch.set(&self.field, self.to.clone());
        }
    }
}
