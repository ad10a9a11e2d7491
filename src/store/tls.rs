//! TLS to a store: the trusted authorities and the client certificate.

use std::fmt;
use std::sync::Arc;

use redis::{ClientTlsConfig, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files of the `[store]` section, as they are named there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreTlsFiles {
    /// The authorities that may vouch for the server.
    pub ca: Option<String>,
    /// The certificate that the server is shown, with what leads from it to its authority.
    pub cert: Option<String>,
    /// Its key.
    pub key: Option<String>,
}

/// What was in them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreTls {
    ca: Option<PemFile>,
    /// The chain and its key.
    client: Option<(PemFile, PemFile)>,
}

/// What is in a file.
type PemFile = Arc<[u8]>;

impl fmt::Debug for StoreTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ca, client) = (self.ca.is_some(), self.client.is_some());
        f.debug_struct("StoreTls").field("ca", &ca).field("client", &client).finish()
    }
}

impl StoreTls {
    /// Reads the files, and looks whether they can be used.
    ///
    /// # Errors
    /// What is wrong, with the setting that it is about.
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

    /// In the form that the Redis client takes; `None` for public authorities and no client
    /// certificate.
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

/// Whether a certificate and a key belong together.
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
