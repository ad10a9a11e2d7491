//! `tollgate check`: loads the configuration, secrets, rules and TLS files, and reports any faults.

use super::output::{OutputFormat, print_line};
use super::rules::{load_catalogue, local_files, read_sources};
use super::settings::{config_error, load_client_secret, load_secrets};
use crate::catalogue::ModelKind;
use crate::conf::Config;
use crate::gateway::upstream::route_tls::RouteTls;

pub(super) fn run(conf: &Config, out: OutputFormat) -> anyhow::Result<()> {
    load_secrets(conf)?;
    conf.console.oidc.as_ref().map(load_client_secret).transpose()?;
    let catalogue = load_catalogue(conf)?;
    let local = local_files(&conf.rules, &read_sources(&conf.rules)?);
    check_route_tls(conf)?;
    let models = catalogue.models();
    let of_kind = |kind| models.iter().filter(|m| m.kind == kind).count();
    let counts: Vec<(&str, usize)> =
        ModelKind::ALL.iter().map(|k| (k.name(), of_kind(*k))).collect();
    let routes: Vec<(&str, usize)> =
        conf.vendors.iter().map(|v| (v.naming.vendor.as_str(), v.routes.len())).collect();
    if out.json {
        let kinds: serde_json::Map<_, _> =
            counts.iter().map(|(k, n)| ((*k).to_owned(), (*n).into())).collect();
        let routes: serde_json::Map<_, _> =
            routes.iter().map(|(v, n)| ((*v).to_owned(), (*n).into())).collect();
        let summary = serde_json::json!({
            "models": models.len(),
            "plans": catalogue.plans.count(),
            "books": catalogue.books.count(),
            "kinds": kinds,
            "examples": catalogue.example_count,
            "local": local,
            "routes": routes,
            "price_version": &*catalogue.version,
        });
        print_line(format_args!("{summary}"))?;
        return Ok(());
    }
    let kinds: Vec<String> = counts.iter().map(|(k, n)| format!("{n} {k}")).collect();
    print_line(format_args!("models    {} ({})", models.len(), kinds.join(", ")))?;
    print_line(format_args!("examples  {} passed", catalogue.example_count))?;
    for file in local {
        print_line(format_args!("local     {file}"))?;
    }
    for (vendor, count) in routes {
        print_line(format_args!("routes    {vendor}: {count}"))?;
    }
    print_line(format_args!("plans     {}", catalogue.plans.count()))?;
    print_line(format_args!("books     {}", catalogue.books.count()))?;
    print_line(format_args!("prices    version {}", catalogue.version))?;
    Ok(())
}

/// Loads the TLS files of every route.
fn check_route_tls(conf: &Config) -> anyhow::Result<()> {
    let routes = conf.vendors.iter().flat_map(|vendor| &vendor.routes);
    let files = routes.filter_map(|route| route.tls.as_ref());
    let faults: Vec<_> = files.filter_map(|files| RouteTls::load(files).err()).collect();
    if faults.is_empty() { Ok(()) } else { Err(config_error(&faults)) }
}
