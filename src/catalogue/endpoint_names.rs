//! Parses the names of endpoints that a rule is about.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::dialect::Endpoint;
use crate::toml_reader::{ConfigError, SourceLocation, closest_word};

/// Returns the endpoints of these names; `otherwise` if a rule names none.
pub(super) fn parse_endpoints(
    names: Option<&[String]>,
    otherwise: &[Endpoint],
    location: &SourceLocation,
    faults: &mut Vec<ConfigError>,
) -> Vec<Endpoint> {
    let Some(names) = names else { return otherwise.to_vec() };
    // A count of tokens has the rules of the calls that it counts.
    let with_rules = || Endpoint::ALL.into_iter().filter(|e| e.rules_endpoint() == *e);
    let known = |name: &String| with_rules().find(|e| e.name() == name);
    for name in names.iter().filter(|name| known(name).is_none()) {
        let near = closest_word(name, with_rules().map(Endpoint::name)).unwrap_or("chat");
        faults.push(location.error(format!("unknown endpoint '{name}'; closest is '{near}'")));
    }
    names.iter().filter_map(known).collect()
}
