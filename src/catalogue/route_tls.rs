//! The TLS of one route: whom it trusts, and what it shows of itself, as configured.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader};

/// The `tls` table of a route. Each file is in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTlsFiles {
    /// Where it stands, so that a fault of a file can say so.
    pub location: SourceLocation,
    /// Authorities that may vouch for the vendor, in place of the system's.
    pub ca: Option<String>,
    /// The certificate chain and the key that the vendor is shown.
    pub client: Option<ClientCertificateFiles>,
}

/// A certificate chain and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificateFiles {
    /// The chain, the client's own certificate first.
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl RouteTlsFiles {
    /// Reads `{ ca = "..", cert = "..", key = ".." }`.
    pub(crate) fn parse(
        node: SpannedValue,
        is_tls: bool,
        faults: &mut Vec<ConfigError>,
    ) -> RouteTlsFiles {
        let location = node.location.clone();
        let mut table = TableReader::open(node, faults);
        let ca = table.text("ca", faults);
        let (cert, key) = (table.text("cert", faults), table.text("key", faults));
        table.finish(faults);
        let client = match (cert, key) {
            (Some(cert), Some(key)) => Some(ClientCertificateFiles { cert, key }),
            (None, None) => None,
            _ => {
                faults.push(location.error("'cert' and 'key' of a route's tls go together"));
                None
            }
        };
        if !is_tls {
            faults.push(location.error("'tls' is for a base_url that begins with https://"));
        } else if ca.is_none() && client.is_none() {
            faults.push(location.error("'tls' needs 'ca', or 'cert' and 'key', each a PEM file"));
        }
        RouteTlsFiles { location, ca, client }
    }
}
