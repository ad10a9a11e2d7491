//! Reads the folder of the rules.

use std::path::Path;

use anyhow::Context;

use super::settings::config_error;
use crate::catalogue::{Catalogue, RulesSource, VendorModelNames};
use crate::conf::Config;
use crate::toml_reader::{ConfigError, SourceLocation};

/// Reads the rules files of a folder, those of vendors, of the plans and of the price books, in
/// order of their names.
pub(super) fn read_sources(dir: &str) -> anyhow::Result<Vec<RulesSource>> {
    let cannot = || format!("cannot read the rules in {dir}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    let source = |path: &Path| -> anyhow::Result<RulesSource> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path.display().to_string(), text))
    };
    files.iter().map(|path| source(path)).collect()
}

/// Parses the rules files. Fails if they have faults, or have no model for a configured vendor.
pub(super) fn parse_catalogue(
    dir: &str,
    sources: &[RulesSource],
    naming: &[VendorModelNames],
) -> Result<Catalogue, Vec<ConfigError>> {
    let cut = sources.iter().filter_map(|(file, text)| find_truncated(file, text));
    let mut faults: Vec<ConfigError> = cut.collect();
    match Catalogue::parse(sources, naming) {
        Ok(catalogue) => {
            faults.extend(catalogue.find_missing_vendors(naming, dir));
            if faults.is_empty() { Ok(catalogue) } else { Err(faults) }
        }
        Err(found) => {
            faults.extend(found);
            Err(faults)
        }
    }
}

/// Returns the fault that a file is empty or does not end with a line break. A file that was
/// written completely ends with one. A truncated file seldom does, and it may parse without error
/// although the restrictions further below are missing.
fn find_truncated(file: &str, text: &str) -> Option<ConfigError> {
    let what = if text.trim().is_empty() {
        "the file is empty"
    } else if text.ends_with('\n') {
        return None;
    } else {
        "the file does not end with a line break: it may be cut short"
    };
    Some(SourceLocation::whole_source(file).error(what))
}

/// Loads the catalogue of a configuration.
pub(super) fn load_catalogue(conf: &Config) -> anyhow::Result<Catalogue> {
    let sources = read_sources(&conf.rules_dir)?;
    parse_catalogue(&conf.rules_dir, &sources, &vendor_model_names(conf))
        .map_err(|found| config_error(&found))
}

/// Returns the names that the vendors have for the models.
pub(super) fn vendor_model_names(conf: &Config) -> Vec<VendorModelNames> {
    conf.vendors.iter().map(|v| v.naming.clone()).collect()
}
