//! All models on offer, and how one is found by its name or by one that is near.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::kind::ModelKind;
use super::model::Model;
use crate::dialect::Endpoint;

/// At most this many characters of an unknown name are compared: the search costs the product of
/// the lengths, and a longer name is no nearer to any of ours.
const COMPARED_CHARS_MAX: usize = 128;

/// Every model on offer.
#[derive(Debug)]
pub struct Catalogue {
    pub(super) models: Vec<Arc<Model>>,
    /// Ids, and the vendors' own names where clients may use them.
    pub(super) by_name: HashMap<String, usize>,
    /// The default models: used by calls of a kind that name no model.
    pub(super) default_models: Vec<(ModelKind, String)>,
    /// Names the price list in journals: a digest of the rules.
    pub version: Arc<str>,
    /// How many examples in the rules were run.
    pub example_count: usize,
    /// What each rules file has brought.
    pub(super) file_counts: Vec<RulesFileCounts>,
}

/// What a rules file has brought.
#[derive(Debug)]
pub(super) struct RulesFileCounts {
    pub(super) file: String,
    pub(super) vendor: String,
    pub(super) model_count: usize,
    pub(super) example_count: usize,
}

impl Catalogue {
    /// The model of that id, or that a vendor calls so where aliases are on.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name).map(|at| &self.models[*at])
    }

    /// The tokens of the vendors whose rules were read.
    pub fn vendors(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|model| model.vendor.name.as_str())
    }

    /// The model that calls of a kind are for when they name none.
    #[must_use]
    pub(crate) fn default_model(&self, kind: ModelKind) -> Option<&str> {
        self.default_models.iter().find(|(k, _)| *k == kind).map(|(_, id)| id.as_str())
    }

    /// The known id nearest to a name. It is looked for among the models of `endpoint` first; only
    /// where none of them is near, among all.
    #[must_use]
    pub(crate) fn closest_model_id(&self, name: &str, endpoint: Option<Endpoint>) -> Option<&str> {
        let name = UnknownName::new(name);
        let sold = |at: usize| endpoint.is_none_or(|e| self.models[at].endpoints().contains(&e));
        let of_endpoint = self.nearest(&name, sold);
        let nearest = match of_endpoint {
            Some((distance, _)) if name.is_near(distance) => of_endpoint,
            _ => self.nearest(&name, |_| true).filter(|(d, _)| name.is_near(*d)).or(of_endpoint),
        };
        let (_, at) = nearest.or_else(|| self.nearest(&name, |_| true))?;
        Some(self.models[at].id.as_str())
    }

    /// The nearest of the models that are wanted, and how far its name is away.
    fn nearest(
        &self,
        name: &UnknownName,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Option<(usize, usize)> {
        let names = self.by_name.iter().filter(|(_, at)| is_wanted(**at));
        // Of two as near the longer one: a date adds to it.
        let ranked =
            names.map(|(id, at)| (name.distance(&id.to_lowercase()), Reverse(id.len()), *at));
        ranked.min().map(|(distance, _, at)| (distance, at))
    }

    /// All models, in the order of the rules.
    #[must_use]
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }
}

/// A name that is no model's.
struct UnknownName {
    /// In lower case, and no longer than is compared.
    full: String,
    /// The same behind its last slash, if it has one: others name models by their maker.
    last_segment: Option<String>,
}

impl UnknownName {
    fn new(name: &str) -> UnknownName {
        let full: String = name.to_lowercase().chars().take(COMPARED_CHARS_MAX).collect();
        let last_segment = last_segment(&full).map(str::to_owned);
        UnknownName { full, last_segment }
    }

    /// How far an id is away: as a whole, or where either has a slash, of what stands behind it. A
    /// name that only adds a date to an id means that one.
    fn distance(&self, id: &str) -> usize {
        let own = [Some(self.full.as_str()), self.last_segment.as_deref()];
        let theirs = [Some(id), last_segment(id)];
        let pairs = own.into_iter().flatten().flat_map(|name| {
            theirs.into_iter().flatten().map(move |id| match name.strip_prefix(id) {
                Some(rest) if is_date_suffix(rest) => 0,
                _ => strsim::damerau_levenshtein(name, id),
            })
        });
        pairs.min().unwrap_or(usize::MAX)
    }

    /// Whether this number of changes leaves most of the list as it is.
    fn is_near(&self, distance: usize) -> bool {
        let compared = self.last_segment.as_ref().unwrap_or(&self.full);
        distance.saturating_mul(2) <= compared.chars().count()
    }
}

fn last_segment(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(_, rest)| rest).filter(|rest| !rest.is_empty())
}

/// Whether what a name adds to an id is a date as vendors write them, or the word for the newest.
fn is_date_suffix(rest: &str) -> bool {
    let digits = rest.bytes().filter(u8::is_ascii_digit).count();
    let only = rest.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    rest == "-latest" || (rest.starts_with('-') && only && digits >= 4)
}
