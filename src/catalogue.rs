//! What is for sale: every model with its price, and how each vendor is spoken to.
//!
//! All of it is data, read from the rules files and proved before it is used. A file with a fault
//! changes nothing: the catalogue is made whole or not at all.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::dialect::Endpoint;
use crate::toml_reader::ConfigError;

mod completeness;
mod example;
pub mod failover;
pub mod field_policy;
pub mod kind;
pub mod model;
mod prices;
pub mod rewrite;
pub mod route;
pub mod route_tls;
pub mod vendor;
mod vendor_key;

pub use kind::ModelKind;
pub use model::Model;
pub use route::{VendorModelNames, VendorRoutes};
use vendor::ModelEntry;
pub use vendor::Vendor;
pub use vendor_key::VendorKey;

/// The name and the text of a rules file.
pub type RulesSource = (String, String);

/// At most this many characters of an unknown name are compared: the search costs the product of
/// the lengths, and a longer name is no nearer to any of ours.
const COMPARED_CHARS_MAX: usize = 128;

/// Every model on offer.
#[derive(Debug)]
pub struct Catalogue {
    models: Vec<Arc<Model>>,
    /// Ids, and the vendors' own names where clients may use them.
    by_name: HashMap<String, usize>,
    /// The default models: used by calls of a kind that name no model.
    default_models: Vec<(ModelKind, String)>,
    /// Names the price list in journals: a digest of the rules.
    pub version: Arc<str>,
    /// How many examples in the rules were run.
    pub example_count: usize,
    /// What each rules file has brought.
    file_counts: Vec<completeness::RulesFileCounts>,
}

impl Catalogue {
    /// Reads the rules of all vendors. `naming` are the vendors' own names for models, from the
    /// configuration.
    ///
    /// # Errors
    /// Every fault found, each with its file and line.
    pub fn parse(
        sources: &[RulesSource],
        naming: &[VendorModelNames],
    ) -> Result<Catalogue, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let mut digest = Sha256::new();
        let mut catalogue = Catalogue {
            models: Vec::new(),
            by_name: HashMap::new(),
            default_models: Vec::new(),
            version: "".into(),
            example_count: 0,
            file_counts: Vec::new(),
        };
        let mut places = HashMap::new();
        for (file, text) in sources {
            digest.update(text.as_bytes());
            let rules = vendor::parse(file, text, &mut faults);
            catalogue.file_counts.push(completeness::RulesFileCounts::new(file, &rules));
            for ModelEntry { model, location: place, is_default } in rules.models {
                if is_default && let Some(first) = catalogue.default_model(model.kind) {
                    faults.push(place.error(format!("'{first}' is the default already")));
                } else if is_default {
                    catalogue.default_models.push((model.kind, model.id.clone()));
                }
                if let Some(first) = places.insert(model.id.clone(), place.clone()) {
                    faults.push(place.error(format!("model '{}' stands at {first} too", model.id)));
                }
                catalogue.by_name.insert(model.id.clone(), catalogue.models.len());
                catalogue.models.push(Arc::new(model));
            }
            let models = rules.examples.iter();
            catalogue.example_count += models.map(|e| e.run(&catalogue, &mut faults)).count();
        }
        if catalogue.models.is_empty() && faults.is_empty() {
            faults.push(
                crate::toml_reader::SourceLocation::whole_source("rules")
                    .error("no model is defined"),
            );
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let hash = digest.finalize();
        catalogue.version =
            hash.iter().take(6).map(|b| format!("{b:02x}")).collect::<String>().into();
        catalogue.add_aliases(naming);
        Ok(catalogue)
    }

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
    pub fn default_model(&self, kind: ModelKind) -> Option<&str> {
        self.default_models.iter().find(|(k, _)| *k == kind).map(|(_, id)| id.as_str())
    }

    /// The known id nearest to a name. It is looked for among the models of `endpoint` first; only
    /// where none of them is near, among all.
    #[must_use]
    pub fn closest_model_id(&self, name: &str, endpoint: Option<Endpoint>) -> Option<&str> {
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

    fn add_aliases(&mut self, naming: &[VendorModelNames]) {
        for (at, model) in self.models.iter().enumerate() {
            let vendor = naming.iter().find(|n| n.vendor == *model.vendor.name && n.allow_aliases);
            let Some(vendor) = vendor else { continue };
            // An id of ours always wins over a name of a vendor's.
            self.by_name.entry(vendor.vendor_model_name(&model.id).into_owned()).or_insert(at);
        }
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

    /// Whether so many changes leave most of it as it is.
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
