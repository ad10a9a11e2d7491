//! The TLS settings of one route, read from their files and verified before the first connection.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, RootCertStore};

use crate::catalogue::route_tls::{ClientCertificateFiles, RouteTlsFiles};
use crate::toml_reader::ConfigError;

/// The CA certificates that a route trusts, and the client certificate that it presents.
pub(crate) struct RouteTls {
    ca: Option<Arc<[WrappedX509]>>,
    client_cert: Option<Arc<CertKey>>,
    /// A hash of both: connections made with other certificates are not reused for this route.
    group_key: u64,
}

impl RouteTls {
    /// Reads the files of a route.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content. The error names the file and its place in
    /// the configuration.
    pub(crate) fn load(files: &RouteTlsFiles) -> Result<RouteTls, ConfigError> {
        RouteTls::read_files(files).map_err(|why| files.location.error(why))
    }

    fn read_files(files: &RouteTlsFiles) -> Result<RouteTls, String> {
        let mut group = DefaultHasher::new();
        let mut roots = RootCertStore::empty();
        let ca = files.ca.as_deref().map(read_certificates).transpose()?;
        for (der, path) in ca.iter().flatten().zip(files.ca.iter().cycle()) {
            roots.add(der.clone()).map_err(|why| format!("'{path}' is no authority: {why}"))?;
            der.as_ref().hash(&mut group);
        }
        let client = files
            .client
            .as_ref()
            .map(|files| read_client_certificate(files, &roots))
            .transpose()?;
        if let Some((chain, key)) = &client {
            chain.iter().for_each(|der| der.as_ref().hash(&mut group));
            key.secret_der().hash(&mut group);
        }
        let wrapped = |der: CertificateDer<'static>| WrappedX509::new(der.to_vec(), parse_x509);
        let client = client.map(|(chain, key)| {
            let chain = chain.iter().map(|der| der.to_vec()).collect();
            Arc::new(CertKey::new(chain, key.secret_der().to_vec()))
        });
        let ca = ca.map(|list| list.into_iter().map(wrapped).collect());
        Ok(RouteTls { ca, client_cert: client, group_key: group.finish() })
    }

    /// Makes connections to the peer use these certificates.
    pub(crate) fn apply(&self, peer: &mut HttpPeer) {
        peer.options.ca.clone_from(&self.ca);
        peer.client_cert_key.clone_from(&self.client_cert);
        peer.group_key = self.group_key;
    }
}

/// Reads the certificates of a PEM file. There must be at least one, and each must be valid.
fn read_certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let cannot = |why: rustls::pki_types::pem::Error| format!("cannot read '{path}': {why}");
    let list: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(cannot)?;
    if list.is_empty() {
        return Err(format!("there is no certificate in '{path}'"));
    }
    for der in &list {
        // The code that parses the certificates later assumes that this succeeds.
        ParsedCertificate::try_from(der).map_err(|why| format!("'{path}': {why}"))?;
    }
    Ok(list)
}

type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads the client certificate and its key. Fails if the key does not belong to the certificate.
fn read_client_certificate(
    files: &ClientCertificateFiles,
    roots: &RootCertStore,
) -> Result<ClientCertificate, String> {
    let ClientCertificateFiles { cert, key } = files;
    let chain = read_certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|why| format!("'{key}': {why}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|why| why.to_string())?;
    builder
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.clone(), secret.clone_key())
        .map_err(|why| format!("'{key}' is not the key of '{cert}': {why}"))?;
    Ok((chain, secret))
}
