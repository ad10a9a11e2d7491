//! `tollgate init`: creates a new store. No other command creates one unless an option asks for it.

use serde_json::json;

use super::output::{OutputFormat, print_line};
use super::runtime::build_runtime;
use crate::conf::Config;
use crate::store::{self, StoreCreation};

pub(super) fn run(conf: &Config, out: OutputFormat) -> anyhow::Result<()> {
    let created = create_store(conf)?;
    let store = store::kind_label(&conf.store);
    if out.json {
        let shown = json!({ "store": store, "created": created == StoreCreation::New });
        print_line(format_args!("{shown}"))?;
        return Ok(());
    }
    let message = match created {
        StoreCreation::New => "a new store was made",
        StoreCreation::AlreadyExists => "the store is there already; nothing was changed",
        StoreCreation::NotNeeded => "a Redis needs no init; this one is set up as it has to be",
    };
    print_line(format_args!("{message}"))?;
    Ok(())
}

/// Creates the store of a configuration, unless it exists.
pub(super) fn create_store(conf: &Config) -> anyhow::Result<StoreCreation> {
    Ok(build_runtime()?.block_on(store::create(&conf.store))?)
}
