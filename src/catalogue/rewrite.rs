//! Changes that the rules make to a body: a closed set of verbs on its outermost members.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::cmp::Ordering;

use crate::dialect::Endpoint;
use crate::dialect::json::{JsonKind, JsonPatch, JsonValue};

/// What one `[[rewrite]]` does, in the order of its fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RewriteRule {
    /// The models it is for; all of the vendor's if none is named.
    pub models: Vec<String>,
    /// The endpoints it is for.
    pub endpoints: Vec<Endpoint>,
    /// Members that go.
    pub drop: Vec<String>,
    /// Members that exclude each other: only the first of a list that is there stays.
    pub either: Vec<Vec<String>>,
    /// Members that get another name; one that had that name goes.
    pub rename: Vec<(String, String)>,
    /// Members that are added, with a JSON value, where they are absent or null.
    pub default: Vec<(String, String)>,
    /// Members that get a JSON value in any case.
    pub set: Vec<(String, String)>,
    /// Numbers kept between bounds.
    pub clamp: Vec<NumberClamp>,
    /// Values lowered to another one.
    pub lower: Vec<FallbackValue>,
}

/// Bounds of a number, as decimal text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NumberClamp {
    /// The member.
    pub field: String,
    /// The least.
    pub min: Option<String>,
    /// The most.
    pub max: Option<String>,
}

/// What a value becomes unless it is one of some.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FallbackValue {
    /// The member.
    pub field: String,
    /// The JSON value that it becomes.
    pub to: String,
    /// The JSON values that stay.
    pub unless: Vec<String>,
}

impl RewriteRule {
    /// Whether it is for a model on an endpoint.
    #[must_use]
    pub(crate) fn applies_to(&self, model: &str, endpoint: Endpoint) -> bool {
        let named = self.models.is_empty() || self.models.iter().any(|m| m == model);
        named && self.endpoints.contains(&endpoint)
    }

    /// Makes the changes.
    pub(crate) fn apply(&self, draft: &mut JsonPatch<'_>) {
        self.drop.iter().for_each(|field| draft.remove(field));
        for fields in &self.either {
            let is_there = |field: &&String| draft.get(field).is_some_and(|v| !v.is_null());
            let rest: Vec<&String> = fields.iter().filter(is_there).skip(1).collect();
            rest.into_iter().for_each(|field| draft.remove(field));
        }
        for (old, new) in &self.rename {
            // A null says nothing, so it must not push out a value.
            match draft.get(old).map(JsonValue::is_null) {
                Some(true) => draft.remove(old),
                _ => draft.rename(old, new),
            }
        }
        for (field, json) in &self.default {
            if draft.get(field).is_none_or(JsonValue::is_null) {
                draft.set(field, json.clone());
            }
        }
        self.set.iter().for_each(|(field, json)| draft.set(field, json.clone()));
        self.clamp.iter().for_each(|clamp| clamp.apply(draft));
        self.lower.iter().for_each(|lower| lower.apply(draft));
    }
}

impl NumberClamp {
    fn apply(&self, draft: &mut JsonPatch<'_>) {
        let Some(value) = draft.get(&self.field).filter(|v| v.kind() == JsonKind::Number) else {
            return;
        };
        let Ok(text) = std::str::from_utf8(value.raw()) else { return };
        let beyond = |bound: &String, side| compare_numbers(text, bound) == Some(side);
        let low = self.min.as_ref().filter(|min| beyond(min, Ordering::Less));
        let high = self.max.as_ref().filter(|max| beyond(max, Ordering::Greater));
        if let Some(bound) = low.or(high).cloned() {
            draft.set(&self.field, bound);
        }
    }
}

/// Compares numbers of a model's settings. No money here, so a double's precision does.
fn compare_numbers(a: &str, b: &str) -> Option<Ordering> {
    a.parse::<f64>().ok()?.partial_cmp(&b.parse::<f64>().ok()?)
}

impl FallbackValue {
    fn apply(&self, draft: &mut JsonPatch<'_>) {
        let Some(value) = draft.get(&self.field).filter(|v| !v.is_null()) else { return };
        let stays = self.unless.iter().any(|json| json.as_bytes() == value.raw());
        if !stays {
            draft.set(&self.field, self.to.clone());
        }
    }
}
