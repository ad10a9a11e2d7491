//! All models on offer, and the search for one by its name or by a similar name.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::book::PriceBooks;
use super::kind::ModelKind;
use super::model::Model;
use super::plan::Plans;
use crate::dialect::Endpoint;
use crate::fast_map::FastMap;

/// At most this many characters of an unknown name are compared: the search costs the product of
/// the lengths, and a longer name is no nearer to any known id.
const COMPARED_CHARS_MAX: usize = 128;

/// Every model on offer.
#[derive(Debug)]
pub struct Catalogue {
    pub(super) models: Vec<Arc<Model>>,
    /// The index in `models` for each name by which clients may ask: ids and aliases.
    pub(super) by_name: FastMap<String, usize>,
    /// The other names of each model, in the order of `models`: the aliases of the configuration,
    /// and the vendors' own names if clients may use them.
    pub(super) aliases: Vec<Vec<String>>,
    /// The default models: used by calls of a kind that name no model.
    pub(super) default_models: Vec<(ModelKind, String)>,
    /// The price version for journals: a digest of the vendors' rules and of the price books, if
    /// there are any. Plans are no prices.
    pub version: Arc<str>,
    /// How many examples in the rules were run.
    pub example_count: usize,
    /// The number of models and examples in each rules file.
    pub(super) file_counts: Vec<RulesFileCounts>,
    /// The rules for client headers that any vendor gets, see [`Vendor::forward_headers`].
    pub(super) forward_headers: BTreeSet<String>,
    /// The plans of accounts and keys.
    pub plans: Plans,
    /// The file that the plans are from; `None` if there is none.
    pub(super) plan_file: Option<String>,
    /// The price books of accounts.
    pub books: PriceBooks,
    /// The file that the price books are from; `None` if there is none.
    pub(super) book_file: Option<String>,
}

/// The number of models and examples in a rules file.
#[derive(Debug)]
pub(super) struct RulesFileCounts {
    pub(super) file: String,
    pub(super) vendor: String,
    pub(super) model_count: usize,
    pub(super) example_count: usize,
}

impl Catalogue {
    /// Returns the model that has this name as its id or as an alias.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name).map(|at| &self.models[*at])
    }

    /// Returns the tokens of the vendors whose rules were read, once for each of their models.
    pub fn vendors(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|model| model.vendor.name.as_str())
    }

    /// Returns the rules for client headers that any vendor gets.
    pub(crate) fn forward_headers(&self) -> impl Iterator<Item = &str> {
        self.forward_headers.iter().map(String::as_str)
    }

    /// Returns the id of the default model: the model for calls of a kind that name none.
    #[must_use]
    pub(crate) fn default_model(&self, kind: ModelKind) -> Option<&str> {
        self.default_models.iter().find(|(k, _)| *k == kind).map(|(_, id)| id.as_str())
    }

    /// Returns the known name nearest to an unknown one: an id or an alias. The models of
    /// `endpoint` are searched first; all models are searched only if none of those is near.
    #[must_use]
    pub(crate) fn closest_name(&self, name: &str, endpoint: Option<Endpoint>) -> Option<&str> {
        let name = UnknownName::new(name);
        let sold = |at: usize| endpoint.is_none_or(|e| self.models[at].endpoints().contains(&e));
        let of_endpoint = self.nearest(&name, sold);
        let nearest = match of_endpoint {
            Some((distance, _)) if name.is_near(distance) => of_endpoint,
            _ => self.nearest(&name, |_| true).filter(|(d, _)| name.is_near(*d)).or(of_endpoint),
        };
        let (_, known) = nearest.or_else(|| self.nearest(&name, |_| true))?;
        Some(known)
    }

    /// Returns the nearest name of the wanted models, after its distance.
    fn nearest(
        &self,
        name: &UnknownName,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Option<(usize, &str)> {
        let names = self.by_name.iter().filter(|(_, at)| is_wanted(**at));
        // Of two names at the same distance, the one with the longer common beginning wins: a new
        // version differs from the known one at its end, and an unknown name may be both with a
        // date added. Then the name of the more similar length wins, then an id over an alias.
        let ranked = names.map(|(known, at)| {
            let is_alias = self.models[*at].id != *known;
            let (distance, common) = name.compare(&known.to_lowercase());
            let length_difference = known.len().abs_diff(name.full.len());
            (distance, Reverse(common), length_difference, is_alias, *at, known.as_str())
        });
        ranked.min().map(|(distance, .., known)| (distance, known))
    }

    /// Returns every name by which clients may ask, with its model: each id, followed by the
    /// model's aliases.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &Arc<Model>)> {
        self.models.iter().enumerate().flat_map(move |(at, model)| {
            let aliases = self.aliases.get(at).into_iter().flatten();
            let names = std::iter::once(&model.id).chain(aliases);
            names.map(move |name| (name.as_str(), model))
        })
    }

    /// All models, in the order of the rules.
    #[must_use]
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }
}

/// A name that no model has.
struct UnknownName {
    /// The name in lower case, cut to `COMPARED_CHARS_MAX`.
    full: String,
    /// The part of `full` after its last slash, if it has one: other services put the maker's name
    /// before the model's.
    last_segment: Option<String>,
}

impl UnknownName {
    fn new(name: &str) -> UnknownName {
        let full: String = name.to_lowercase().chars().take(COMPARED_CHARS_MAX).collect();
        let last_segment = last_segment(&full).map(str::to_owned);
        UnknownName { full, last_segment }
    }

    /// Returns the distance of an id from the name, and the length of their common beginning in
    /// characters. The distance is the smallest edit distance between the whole texts and the parts
    /// after their last slashes; the beginning is that of the pair with this distance. A name that
    /// only adds a date to an id means that model, so the distance is 0.
    fn compare(&self, id: &str) -> (usize, usize) {
        let own = [Some(self.full.as_str()), self.last_segment.as_deref()];
        let theirs = [Some(id), last_segment(id)];
        let pairs = own.into_iter().flatten().flat_map(|name| {
            theirs.into_iter().flatten().map(move |id| {
                let distance = match name.strip_prefix(id) {
                    Some(rest) if is_date_suffix(rest) => 0,
                    _ => strsim::damerau_levenshtein(name, id),
                };
                (distance, common_beginning(name, id))
            })
        });
        let nearest = pairs.min_by_key(|(distance, common)| (*distance, Reverse(*common)));
        nearest.unwrap_or((usize::MAX, 0))
    }

    /// Whether a name at this distance is near: at most half of its characters are changed.
    fn is_near(&self, distance: usize) -> bool {
        let compared = self.last_segment.as_ref().unwrap_or(&self.full);
        distance.saturating_mul(2) <= compared.chars().count()
    }
}

/// Returns how many characters two texts have in common at their beginnings.
fn common_beginning(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count()
}

fn last_segment(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(_, rest)| rest).filter(|rest| !rest.is_empty())
}

/// Whether the text that a name adds to an id is a date as vendors write them, or `-latest`.
fn is_date_suffix(rest: &str) -> bool {
    let digits = rest.bytes().filter(u8::is_ascii_digit).count();
    let only = rest.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    rest == "-latest" || (rest.starts_with('-') && only && digits >= 4)
}
