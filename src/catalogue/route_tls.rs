//! The TLS settings of one route, as configured: the authorities that it trusts, and the client
//! certificate that it presents.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::toml_reader::{ConfigError, SourceLocation, SpannedValue, TableReader};

/// The `tls` table of a route. Each file is in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTlsFiles {
    /// The location of the table in the configuration, for errors about its files.
    pub location: SourceLocation,
    /// The file of the authorities that the route trusts in place of the system's; `None` trusts
    /// the system's.
    pub ca: Option<String>,
    /// The client certificate that the vendor gets; `None` if the route presents none.
    pub client: Option<ClientCertificateFiles>,
}

/// The files of a client certificate chain and of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificateFiles {
    /// The file of the chain, with the client's own certificate first.
    pub cert: String,
    /// The file of the private key.
    pub key: String,
}

impl RouteTlsFiles {
    /// Parses `{ ca = "..", cert = "..", key = ".." }`.
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
