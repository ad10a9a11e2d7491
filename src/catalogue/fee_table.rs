//! Parses a table `[[fee]]` of a vendor's rules.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use super::endpoint_names::parse_endpoints;
use super::fee::FeeRule;
use super::vendor::{TextApi, Vendor};
use crate::dialect::Endpoint;
use crate::toml_reader::{ConfigError, SpannedValue, TableReader};

/// Adds a fee to a vendor, whose field policies then let the tool pass. What is wrong with it is
/// added to the faults.
pub(super) fn parse_fee(vendor: &mut Vendor, node: SpannedValue, faults: &mut Vec<ConfigError>) {
    let mut row = TableReader::open(node, faults);
    let location = row.location.clone();
    let otherwise: &[Endpoint] = match (vendor.text_api, vendor.supports_responses) {
        (TextApi::Messages, _) => &[Endpoint::Messages],
        (TextApi::Chat, false) => &[Endpoint::Chat],
        (TextApi::Chat, true) => &[Endpoint::Chat, Endpoint::Responses],
    };
    let named = row.texts("endpoints", faults);
    let endpoints = parse_endpoints(named.as_deref(), otherwise, &location, faults);
    let fee = FeeRule::parse(&mut row, endpoints, vendor.text_api, faults);
    row.finish(faults);
    let Some(fee) = fee else { return };
    let shares = |other: &FeeRule| other.endpoints.iter().any(|e| fee.endpoints.contains(e));
    if vendor.fees.iter().any(|other| other.name == fee.name && shares(other)) {
        let what = format!("'{}' has a fee already; another tool needs another 'name'", fee.name);
        faults.push(location.error(what));
        return;
    }
    if vendor.fees.iter().any(|other| other.counts_with(&fee) && shares(other)) {
        // One use would be charged twice.
        faults.push(location.error("'per' has a fee already"));
        return;
    }
    let policies = vendor.field_policies.iter_mut();
    for (_, policy) in policies.filter(|(endpoint, _)| fee.endpoints.contains(endpoint)) {
        if let Err(why) = policy.add_priced(&fee.field, fee.value.clone()) {
            faults.push(location.error(why));
        }
    }
    vendor.fees.push(fee);
}
