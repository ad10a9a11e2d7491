//! TLS to a store: the trusted authorities and the client certificate.

use std::fmt;
use std::sync::Arc;

use redis::{ClientTlsConfig, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The paths of the TLS files, as the `[store]` section has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreTlsFiles {
    /// The certificates of the authorities that may have signed the server's certificate; `None`
    /// for the public authorities.
    pub ca: Option<String>,
    /// The client certificate that is sent to the server, with the intermediate certificates up to
    /// its authority.
    pub cert: Option<String>,
    /// The private key of the client certificate.
    pub key: Option<String>,
}

/// The contents of the TLS files, which were checked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreTls {
    ca: Option<PemFile>,
    /// The certificate chain of the client and its private key.
    client: Option<(PemFile, PemFile)>,
}

/// The content of a PEM file.
type PemFile = Arc<[u8]>;

impl fmt::Debug for StoreTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, client) = (self.ca.is_some(), self.client.is_some());
        f.debug_struct("StoreTls").field("ca", &ca).field("client", &client).finish()
    }
}

impl StoreTls {
    /// Reads the files, and checks that they can be used.
    ///
    /// # Errors
    /// The name of the setting at fault, and what is wrong with it.
    pub fn load(files: &StoreTlsFiles) -> Result<StoreTls, (&'static str, String)> {
        let ca = files.ca.as_deref().map(|path| {
            let pem = read_pem("ca", path)?;
            parse_ca_certificates(&pem).map_err(|why| ("ca", format!("{path}: {why}")))?;
            Ok(pem)
        });
        let client = match (&files.cert, &files.key) {
            (None, None) => None,
            (Some(_), None) => return Err(("cert", "it needs 'key', its key, too".to_owned())),
            (None, Some(_)) => {
                return Err(("key", "it needs 'cert', its certificate, too".to_owned()));
            }
            (Some(cert), Some(key)) => {
                let (chain, secret) = (read_pem("cert", cert)?, read_pem("key", key)?);
                let client = check_key_pair(cert, &chain, key, &secret)?;
                drop(client);
                Some((chain, secret))
            }
        };
        Ok(StoreTls { ca: ca.transpose()?, client })
    }

    /// Returns the certificates in the form that the Redis client takes; `None` for public
    /// authorities and no client certificate.
    pub(super) fn tls_certificates(&self) -> Option<TlsCertificates> {
        if self.ca.is_none() && self.client.is_none() {
            return None;
        }
        let client_tls = self.client.as_ref().map(|(chain, key)| ClientTlsConfig {
            client_cert: chain.to_vec(),
            client_key: key.to_vec(),
        });
        Some(TlsCertificates { client_tls, root_cert: self.ca.as_ref().map(|pem| pem.to_vec()) })
    }
}

fn read_pem(setting: &'static str, path: &str) -> Result<Arc<[u8]>, (&'static str, String)> {
    let read = std::fs::read(path).map_err(|why| (setting, format!("{path}: {why}")))?;
    Ok(read.into())
}

fn parse_ca_certificates(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in parse_chain(pem)? {
        store.add(certificate).map_err(|why| why.to_string())?;
    }
    Ok(store)
}

fn parse_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|why| why.to_string())?;
    if chain.is_empty() {
        return Err("there is no certificate in it (PEM is expected)".to_owned());
    }
    Ok(chain)
}

/// Checks that a certificate chain and a private key can be parsed and belong together.
fn check_key_pair(
    cert: &str,
    pem: &[u8],
    key: &str,
    secret: &[u8],
) -> Result<ClientConfig, (&'static str, String)> {
    let chain = parse_chain(pem).map_err(|why| ("cert", format!("{cert}: {why}")))?;
    let secret = PrivateKeyDer::from_pem_slice(secret)
        .map_err(|why| ("key", format!("{key}: there is no private key in it ({why})")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| ("cert", why.to_string()))?;
    builder
        .with_root_certificates(RootCertStore::empty())
        .with_client_auth_cert(chain, secret)
        .map_err(|why| ("key", format!("{key} does not go with {cert}: {why}")))
}
