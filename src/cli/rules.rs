//! Reading the rules' folder.

use std::path::Path;

use anyhow::Context;

use crate::catalogue::{Catalogue, Naming, Source};
use crate::conf::Conf;

/// The rules files of a folder, by name.
pub(super) fn read(dir: &str) -> anyhow::Result<Vec<Source>> {
    let cannot = || format!("cannot read the rules in {dir}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    let source = |path: &Path| -> anyhow::Result<Source> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path.display().to_string(), text))
    };
    files.iter().map(|path| source(path)).collect()
}

/// The catalogue of a configuration.
pub(super) fn catalogue(conf: &Conf) -> anyhow::Result<Catalogue> {
    Catalogue::parse(&read(&conf.rules_dir)?, &naming(conf)).map_err(|found| super::faults(&found))
}

/// What the vendors call our models.
pub(super) fn naming(conf: &Conf) -> Vec<Naming> {
    conf.vendors.iter().map(|v| v.naming.clone()).collect()
}
