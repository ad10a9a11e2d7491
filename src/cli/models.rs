//! `tollgate models`: the listing of `GET /v1/models`.

use super::output::{OutputFormat, print_line};
use crate::clock;
use crate::conf::Config;

pub(super) fn run(conf: &Config, out: OutputFormat) -> anyhow::Result<()> {
    let catalogue = super::rules::load_catalogue(conf)?;
    let now = clock::timestamp().as_second();
    for (name, model) in catalogue.names() {
        let listing = model.listing(name, now, None);
        if out.json {
            print_line(format_args!("{listing}"))?;
        } else {
            let vendor = &model.vendor.name;
            print_line(format_args!(
                "{:<44} {:<9} {:<11} {}",
                name,
                vendor,
                model.kind.name(),
                listing["pricing"]
            ))?;
        }
    }
    Ok(())
}
