//! What is for sale: every model with its price, and how each vendor is spoken to.
//!
//! All of it is data, read from the rules files and proved before it is used. A file with a fault
//! changes nothing: the catalogue is made whole or not at all.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::sheet::Fault;

mod example;
pub mod kind;
pub mod model;
mod prices;
pub mod rewrite;
pub mod route;
pub mod screen;
pub mod vendor;

pub use kind::Kind;
pub use model::Model;
pub use route::{Naming, VendorRoutes};
use vendor::Row;
pub use vendor::Vendor;

/// The name and the text of a rules file.
pub type Source = (String, String);

/// Longer names are near to none of ours.
const NAME_BYTES_MAX: usize = 128;

/// Every model on offer.
#[derive(Debug)]
pub struct Catalogue {
    models: Vec<Arc<Model>>,
    /// Ids, and the vendors' own names where clients may use them.
    by_name: HashMap<String, usize>,
    /// What calls of a kind are for that name no model.
    unnamed: Vec<(Kind, String)>,
    /// Names the price list in journals: a digest of the rules.
    pub version: Arc<str>,
    /// How many examples in the rules were run.
    pub examples: usize,
}

impl Catalogue {
    /// Reads the rules of all vendors. `naming` are the vendors' own names for models, from the
    /// configuration.
    ///
    /// # Errors
    /// Every fault found, each with its file and line.
    pub fn parse(sources: &[Source], naming: &[Naming]) -> Result<Catalogue, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut digest = Sha256::new();
        let mut catalogue = Catalogue {
            models: Vec::new(),
            by_name: HashMap::new(),
            unnamed: Vec::new(),
            version: "".into(),
            examples: 0,
        };
        let mut places = HashMap::new();
        for (file, text) in sources {
            digest.update(text.as_bytes());
            let rules = vendor::parse(file, text, &mut faults);
            for Row { model, place, is_default } in rules.models {
                if is_default && let Some(first) = catalogue.unnamed(model.kind) {
                    faults.push(place.fault(format!("'{first}' is the default already")));
                } else if is_default {
                    catalogue.unnamed.push((model.kind, model.id.clone()));
                }
                if let Some(first) = places.insert(model.id.clone(), place.clone()) {
                    faults.push(place.fault(format!("model '{}' stands at {first} too", model.id)));
                }
                catalogue.by_name.insert(model.id.clone(), catalogue.models.len());
                catalogue.models.push(Arc::new(model));
            }
            let models = rules.examples.iter();
            catalogue.examples += models.map(|e| e.run(&catalogue, &mut faults)).count();
        }
        if catalogue.models.is_empty() && faults.is_empty() {
            faults.push(crate::sheet::Place::whole("rules").fault("no model is defined"));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let hash = digest.finalize();
        catalogue.version =
            hash.iter().take(6).map(|b| format!("{b:02x}")).collect::<String>().into();
        catalogue.name_aliases(naming);
        Ok(catalogue)
    }

    /// The model of that id, or that a vendor calls so where aliases are on.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.by_name.get(name).map(|at| &self.models[*at])
    }

    /// The model that calls of a kind are for when they name none.
    #[must_use]
    pub fn unnamed(&self, kind: Kind) -> Option<&str> {
        self.unnamed.iter().find(|(k, _)| *k == kind).map(|(_, id)| id.as_str())
    }

    /// The known id nearest to a name.
    #[must_use]
    pub fn closest(&self, name: &str) -> Option<&str> {
        // The search costs the product of the lengths, and nobody meant so long a name.
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let lower = name.to_lowercase();
        let names = || self.by_name.iter().map(|(name, at)| (name.to_lowercase(), *at));
        // A name that only adds a date to one of ours means that one.
        let begins = |id: &str| lower.strip_prefix(id).is_some_and(is_date);
        let begun = names().filter(|(id, _)| begins(id)).max_by_key(|(id, _)| id.len());
        let distance = |id: &str| strsim::damerau_levenshtein(&lower, id);
        let nearest = || names().map(|(id, at)| (distance(&id), at)).min();
        let at = begun.map(|(_, at)| at).or_else(|| nearest().map(|(_, at)| at))?;
        Some(self.models[at].id.as_str())
    }

    /// All models, in the order of the rules.
    #[must_use]
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }

    fn name_aliases(&mut self, naming: &[Naming]) {
        for (at, model) in self.models.iter().enumerate() {
            let vendor = naming.iter().find(|n| n.vendor == *model.vendor.token && n.aliases);
            let Some(vendor) = vendor else { continue };
            // An id of ours always wins over a name of a vendor's.
            self.by_name.entry(vendor.upstream(&model.id).into_owned()).or_insert(at);
        }
    }
}

/// Whether what a name adds to an id is a date as vendors write them, or the word for the newest.
fn is_date(rest: &str) -> bool {
    let digits = rest.bytes().filter(u8::is_ascii_digit).count();
    let only = rest.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    rest == "-latest" || (rest.starts_with('-') && only && digits >= 4)
}
