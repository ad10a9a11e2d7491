//! The catalogue: every model with its price, and how each vendor's API is called.
//!
//! The rules files are its only source. Their examples run when they are read; a file with a fault
//! changes nothing, because the catalogue is made as a whole or not at all.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::hex::to_hex;
use crate::toml_reader::ConfigError;

mod completeness;
mod example;
pub mod failover;
pub mod field_policy;
pub mod kind;
pub mod model;
mod offer;
mod prices;
pub mod rewrite;
pub mod route;
pub mod route_tls;
mod rules_file;
pub mod vendor;
mod vendor_key;

pub use kind::ModelKind;
pub use model::Model;
pub use offer::Catalogue;
pub use route::VendorModelNames;
pub use route::VendorRoutes;
pub use vendor::Vendor;
pub(crate) use vendor_key::VendorKey;

use offer::RulesFileCounts;
use rules_file::ModelEntry;

/// The name and the text of a rules file.
pub(crate) type RulesSource = (String, String);

impl Catalogue {
    /// Parses the rules of all vendors. `naming` has the vendors' own names for models, from the
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
        let mut locations = HashMap::new();
        for (file, text) in sources {
            digest.update(text.as_bytes());
            let rules = rules_file::parse(file, text, &mut faults);
            catalogue.file_counts.push(RulesFileCounts::new(file, &rules));
            for ModelEntry { model, location, is_default } in rules.models {
                if is_default && let Some(first) = catalogue.default_model(model.kind) {
                    faults.push(location.error(format!("'{first}' is the default already")));
                } else if is_default {
                    catalogue.default_models.push((model.kind, model.id.clone()));
                }
                if let Some(first) = locations.insert(model.id.clone(), location.clone()) {
                    faults.push(
                        location.error(format!("model '{}' stands at {first} too", model.id)),
                    );
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
        catalogue.version = to_hex(&hash[..6]).into();
        catalogue.add_aliases(naming);
        Ok(catalogue)
    }

    fn add_aliases(&mut self, naming: &[VendorModelNames]) {
        for (at, model) in self.models.iter().enumerate() {
            let vendor = naming.iter().find(|n| n.vendor == *model.vendor.name && n.allow_aliases);
            let Some(vendor) = vendor else { continue };
            // A model's id takes precedence over the same name used by a vendor.
            self.by_name.entry(vendor.vendor_model_name(&model.id).into_owned()).or_insert(at);
        }
    }
}
