//! The catalogue: every model with its price, and how each vendor's API is called.
//!
//! The rules files are its only source: one for each vendor, one with the plans, and one with the
//! price books. Their examples run when they are read. The catalogue is made as a whole or not at
//! all: if a file has a fault, the one in use stays.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::fast_map::FastMap;
use crate::hex::to_hex;
use crate::toml_reader::ConfigError;

mod alias;
pub mod book;
mod book_file;
mod book_loss;
mod completeness;
mod endpoint_names;
mod example;
pub mod failover;
pub(crate) mod fee;
mod fee_table;
pub mod field_policy;
pub mod kind;
pub mod model;
mod named_tables;
mod offer;
pub(crate) mod output_limit;
pub mod plan;
mod plan_file;
mod prices;
pub mod rewrite;
pub mod route;
pub mod route_tls;
mod rules_file;
pub mod vendor;
mod vendor_key;

pub use alias::ModelAlias;
pub(crate) use book::AccountPrice;
pub use book::{PriceBook, PriceBooks};
pub use kind::ModelKind;
pub use model::Model;
pub use offer::Catalogue;
pub use plan::{Plan, Plans};
pub use route::VendorModelNames;
pub use route::VendorRoutes;
pub use vendor::Vendor;
pub(crate) use vendor_key::VendorKey;

use offer::RulesFileCounts;
use rules_file::ModelEntry;

/// The name and the text of a rules file.
pub(crate) type RulesSource = (String, String);

impl Catalogue {
    /// Parses the rules of all vendors, the plans and the price books. `naming` has the vendors'
    /// own names for models and the aliases, from the configuration.
    ///
    /// # Errors
    /// Every fault found, each with its file and line. Aliases are checked if the rules have no
    /// fault.
    pub fn parse(
        sources: &[RulesSource],
        naming: &[VendorModelNames],
    ) -> Result<Catalogue, Vec<ConfigError>> {
        let mut faults = Vec::new();
        let mut digest = Sha256::new();
        let mut catalogue = Catalogue {
            models: Vec::new(),
            by_name: FastMap::default(),
            aliases: Vec::new(),
            default_models: Vec::new(),
            version: "".into(),
            example_count: 0,
            file_counts: Vec::new(),
            forward_headers: BTreeSet::new(),
            plans: Plans::default(),
            plan_file: None,
            books: PriceBooks::default(),
            book_file: None,
        };
        let mut locations = HashMap::new();
        let is_vendor_file = |(file, _): &&RulesSource| {
            !plan_file::is_plan_file(file) && !book_file::is_book_file(file)
        };
        for (file, text) in sources.iter().filter(is_vendor_file) {
            digest.update(text.as_bytes());
            let rules = rules_file::parse(file, text, &mut faults);
            catalogue.file_counts.push(RulesFileCounts::new(file, &rules));
            for ModelEntry { model, location, is_default } in rules.models {
                if is_default && let Some(other) = catalogue.default_model(model.kind) {
                    faults.push(location.error(format!("'{other}' is the default already")));
                } else if is_default {
                    catalogue.default_models.push((model.kind, model.id.clone()));
                }
                if let Some(first) = locations.insert(model.id.clone(), location.clone()) {
                    faults.push(
                        location
                            .error(format!("model '{}' is already defined at {first}", model.id)),
                    );
                }
                catalogue.by_name.insert(model.id.clone(), catalogue.models.len());
                catalogue.forward_headers.extend(model.vendor.forward_headers.iter().cloned());
                let version = model.vendor.version.iter().map(|(header, _)| header.clone());
                catalogue.forward_headers.extend(version);
                catalogue.models.push(Arc::new(model));
            }
            let examples = rules.examples.iter();
            catalogue.example_count += examples.map(|e| e.run(&catalogue, &mut faults)).count();
        }
        if catalogue.models.is_empty() && faults.is_empty() {
            faults.push(
                crate::toml_reader::SourceLocation::whole_source("rules")
                    .error("no model is defined"),
            );
        }
        catalogue.add_plans(sources, &mut faults);
        catalogue.add_books(sources, &mut digest, &mut faults);
        if !faults.is_empty() {
            return Err(faults);
        }
        let hash = digest.finalize();
        catalogue.version = to_hex(&hash[..6]).into();
        catalogue.add_names(naming, &mut faults);
        if faults.is_empty() { Ok(catalogue) } else { Err(faults) }
    }

    /// Adds the plans. Their patterns are checked against the models only if the vendors' rules
    /// have no fault: a model that could not be read would be missing.
    fn add_plans(&mut self, sources: &[RulesSource], faults: &mut Vec<ConfigError>) {
        for (file, text) in sources.iter().filter(|(file, _)| plan_file::is_plan_file(file)) {
            let catalogue = faults.is_empty().then_some(&*self);
            let plans = plan_file::parse(file, text, catalogue, faults);
            self.plans = plans;
            self.plan_file = Some(file.clone());
        }
    }

    /// Adds the price books, which belong to the version of the prices: a book's account pays by
    /// it. A file without any book leaves the version as it is.
    fn add_books(
        &mut self,
        sources: &[RulesSource],
        digest: &mut Sha256,
        faults: &mut Vec<ConfigError>,
    ) {
        for (file, text) in sources.iter().filter(|(file, _)| book_file::is_book_file(file)) {
            let catalogue = faults.is_empty().then_some(&*self);
            let books = book_file::parse(file, text, catalogue, faults);
            if books.count() > 0 {
                digest.update(text.as_bytes());
            }
            self.books = books;
            self.book_file = Some(file.clone());
        }
    }

    /// Adds the names that clients may use beside the ids. An id takes precedence over an alias,
    /// and an alias over a vendor's own name.
    fn add_names(&mut self, naming: &[VendorModelNames], faults: &mut Vec<ConfigError>) {
        let mut found = self.resolve_aliases(naming, faults);
        found.extend(self.vendor_names(naming));
        self.aliases = vec![Vec::new(); self.models.len()];
        for (name, at) in found {
            if let Entry::Vacant(entry) = self.by_name.entry(name) {
                self.aliases[at].push(entry.key().clone());
                entry.insert(at);
            }
        }
    }

    /// Returns the aliases of the configuration, each with the index of its model. Those of a
    /// vendor whose rules are missing are left out: that fault is told elsewhere.
    fn resolve_aliases(
        &self,
        naming: &[VendorModelNames],
        faults: &mut Vec<ConfigError>,
    ) -> Vec<(String, usize)> {
        let own_names = self.vendor_names(naming);
        let mut places = HashMap::new();
        let mut found = Vec::new();
        for vendor in naming {
            let is_sold = self.models.iter().any(|model| model.vendor.name == vendor.vendor);
            for alias in vendor.aliases.iter().filter(|_| is_sold) {
                let ModelAlias { name, location, .. } = alias;
                if let Some(first) = places.insert(name.as_str(), location) {
                    let what = format!("alias '{name}' is already defined at {first}");
                    faults.push(location.error(format!("{what}; a name stands for one model")));
                    continue;
                }
                match self.alias_target(alias, &vendor.vendor, &own_names) {
                    Ok(at) => found.push((name.clone(), at)),
                    Err(why) => faults.push(location.error(why)),
                }
            }
        }
        found
    }

    /// Returns the index of the model that an alias of `vendor` stands for. `own_names` has the
    /// vendors' own names that clients may use.
    ///
    /// # Errors
    /// A text that says what is wrong with the alias.
    fn alias_target(
        &self,
        alias: &ModelAlias,
        vendor: &str,
        own_names: &[(String, usize)],
    ) -> Result<usize, String> {
        let ModelAlias { name, model_id, .. } = alias;
        if self.by_name.contains_key(name) {
            return Err(format!("alias '{name}' is the id of a model; an alias is another name"));
        }
        let Some(at) = self.by_name.get(model_id).copied() else {
            let closest = self.closest_name(model_id, None).unwrap_or_default();
            return Err(format!(
                "alias '{name}' stands for '{model_id}', which is no model id; closest is \
                 '{closest}'"
            ));
        };
        let mut claimed = own_names.iter().filter(|(own_name, _)| own_name == name);
        let claimed = claimed.find(|(_, of)| *of != at && self.models[*of].vendor.name != vendor);
        let Some((_, of)) = claimed else { return Ok(at) };
        let Model { id, vendor: owner, .. } = &*self.models[*of];
        let owner = &owner.name;
        Err(format!("alias '{name}' is {owner}'s own name of '{id}', which clients may use"))
    }

    /// Returns the vendors' own names of the models, where clients may use them, each with the
    /// index of its model.
    fn vendor_names(&self, naming: &[VendorModelNames]) -> Vec<(String, usize)> {
        let own_name = |(at, model): (usize, &Arc<Model>)| {
            let of_vendor = |n: &&VendorModelNames| n.vendor == model.vendor.name;
            let vendor = naming.iter().find(of_vendor).filter(|n| n.allows_vendor_names)?;
            Some((vendor.vendor_model_name(&model.id).into_owned(), at))
        };
        self.models.iter().enumerate().filter_map(own_name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_reader::{self, SpannedValue, TomlValue};

    const HEAD: &str = "dialect = \"chat\"\nauth = { header = \"x\" }\n\
                        estimate = { output_tokens = 1, image_tokens = 1, document_tokens = 1 }\n";

    /// Two vendors: one sells `x-1` and `x-2`, the other `y-1`.
    fn rules() -> Vec<RulesSource> {
        let rules = |vendor: &str, ids: &[&str]| {
            let model = |id| format!("\"{id}\" = {{ input = 1, output = 1, context = 1000 }}\n");
            let models: String = ids.iter().map(model).collect();
            (format!("r/{vendor}.toml"), format!("vendor = \"{vendor}\"\n{HEAD}[chat]\n{models}"))
        };
        vec![rules("vendor_x", &["x-1", "x-2"]), rules("vendor_y", &["y-1"])]
    }

    /// Parses the sections `[vendor_x]` and `[vendor_y]` of a configuration.
    fn naming(text: &str) -> Vec<VendorModelNames> {
        let (node, mut faults) = toml_reader::parse("t.toml", text);
        let TomlValue::Table(sections) = node.value else { panic!("a table") };
        let parse = |(name, node): (String, SpannedValue)| {
            VendorRoutes::parse(&name, node, &mut faults).naming
        };
        let naming = sections.into_iter().map(parse).collect();
        assert_eq!(faults, []);
        naming
    }

    /// Parses the rules with the names of a configuration.
    fn catalogue(text: &str) -> Result<Catalogue, Vec<String>> {
        let messages = |faults: Vec<ConfigError>| faults.iter().map(ToString::to_string).collect();
        Catalogue::parse(&rules(), &naming(text)).map_err(messages)
    }

    #[test]
    fn an_alias_stands_for_its_model_and_is_named_after_it() {
        let text = "[vendor_x.aliases]\n\"dated-2025\" = \"x-1\"\n\"a/b\" = \"y-1\"\n\
                    [vendor_y]\nnames = { \"y-*\" = \"brand-*\" }\nvendor_names = true\n";
        let catalogue = catalogue(text).expect("sound names");
        let names: Vec<_> = catalogue.names().map(|(name, m)| (name, m.id.as_str())).collect();
        let expected = [
            ("x-1", "x-1"),
            ("dated-2025", "x-1"),
            ("x-2", "x-2"),
            ("y-1", "y-1"),
            ("a/b", "y-1"),
            ("brand-1", "y-1"),
        ];
        assert_eq!(names, expected);
        for (name, id) in expected {
            assert_eq!(catalogue.find(name).map(|model| model.id.as_str()), Some(id), "{name}");
        }
        assert_eq!(catalogue.models().len(), 3);
        assert_eq!(catalogue.closest_name("dated-2026", None), Some("dated-2025"));
        assert_eq!(catalogue.closest_name("X-2", None), Some("x-2"));
    }

    #[test]
    fn a_new_version_was_taken_for_an_old_one_of_the_same_length() {
        let text = "[vendor_x.aliases]\n\"word-4-8\" = \"x-1\"\n\"word-5\" = \"x-2\"\n\
                    \"word-4.8-mini\" = \"x-1\"\n\"word-5.1-mini\" = \"x-2\"\n";
        let catalogue = catalogue(text).expect("sound names");
        for (name, closest) in [
            // As many edits from both: what it begins like decides.
            ("word-5-5", "word-5"),
            ("somebody/word-5-5", "word-5"),
            ("word-5.8-mini", "word-5.1-mini"),
            ("word-4-9", "word-4-8"),
            // A date is no edit, however long the name becomes.
            ("word-5-20270131", "word-5"),
        ] {
            assert_eq!(catalogue.closest_name(name, None), Some(closest), "{name}");
        }
    }

    #[test]
    fn a_vendors_own_names_are_names_only_where_that_is_allowed() {
        for (switch, is_found) in [
            ("", false),
            ("aliases = false", false),
            ("vendor_names = false", false),
            ("aliases = true", true),
            ("vendor_names = true", true),
            ("vendor_names = true\n[vendor_y.aliases]\nother = \"y-1\"", true),
            ("[vendor_y.aliases]\nother = \"y-1\"", false),
        ] {
            let text = format!("[vendor_y]\nnames = {{ \"y-*\" = \"brand-*\" }}\n{switch}\n");
            let catalogue = catalogue(&text).expect("sound names");
            assert_eq!(catalogue.find("brand-1").is_some(), is_found, "{switch}");
        }
    }

    #[test]
    fn an_alias_that_misleads_is_a_fault_with_its_line() {
        let text = "[vendor_x.aliases]\n\"x-2\" = \"x-1\"\nnew = \"x-11\"\nboth = \"x-1\"\n\
                    \"brand-1\" = \"x-1\"\nchain = \"both\"\n[vendor_y]\n\
                    names = { \"y-*\" = \"brand-*\" }\nvendor_names = true\n\
                    [vendor_y.aliases]\nboth = \"y-1\"\n";
        let faults = catalogue(text).expect_err("faults");
        let expected = [
            "t.toml:2: alias 'x-2' is the id of a model; an alias is another name",
            "t.toml:3: alias 'new' stands for 'x-11', which is no model id; closest is 'x-1'",
            "t.toml:5: alias 'brand-1' is vendor_y's own name of 'y-1', which clients may use",
            "t.toml:6: alias 'chain' stands for 'both', which is no model id; closest is 'x-1'",
            "t.toml:11: alias 'both' is already defined at t.toml:4; a name stands for one model",
        ];
        assert_eq!(faults, expected);
    }

    #[test]
    fn an_alias_wins_over_the_same_name_of_its_own_vendor() {
        let text = "[vendor_x]\nnames = { \"x-*\" = \"brand-*\" }\nvendor_names = true\n\
                    [vendor_x.aliases]\n\"brand-1\" = \"x-2\"\n";
        let catalogue = catalogue(text).expect("sound names");
        let id_of = |name: &str| catalogue.find(name).map(|model| model.id.as_str());
        assert_eq!((id_of("brand-1"), id_of("brand-2")), (Some("x-2"), Some("x-2")));
        assert_eq!(catalogue.names().filter(|(name, _)| *name == "brand-1").count(), 1);
    }

    #[test]
    fn aliases_of_a_vendor_without_rules_are_left_to_the_fault_of_its_file() {
        let catalogue = catalogue("[vendor_z.aliases]\nold = \"z-1\"\n").expect("sound rules");
        assert!(catalogue.find("old").is_none());
    }
}
