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

/// What is wrong with one of the TLS settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFault {
    /// The name of the setting in the `[store]` section: `ca`, `cert` or `key`.
    pub setting: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl TlsFault {
    fn new(setting: &'static str, message: impl Into<String>) -> TlsFault {
        TlsFault { setting, message: message.into() }
    }
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
    /// [`TlsFault`] names the setting at fault.
    pub fn load(files: &StoreTlsFiles) -> Result<StoreTls, TlsFault> {
        let ca = files.ca.as_deref().map(|path| -> Result<PemFile, TlsFault> {
            let pem = read_pem("ca", path)?;
            parse_ca_certificates(&pem)
                .map_err(|why| TlsFault::new("ca", format!("{path}: {why}")))?;
            Ok(pem)
        });
        let client = match (&files.cert, &files.key) {
            (None, None) => None,
            (Some(_), None) => return Err(TlsFault::new("cert", "it needs 'key', its key, too")),
            (None, Some(_)) => {
                return Err(TlsFault::new("key", "it needs 'cert', its certificate, too"));
            }
            (Some(cert_path), Some(key_path)) => {
                let (cert_pem, key_pem) =
                    (read_pem("cert", cert_path)?, read_pem("key", key_path)?);
                // The client of the store builds its own. Here this only shows that it can.
                drop(build_client_config(cert_path, &cert_pem, key_path, &key_pem)?);
                Some((cert_pem, key_pem))
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

fn read_pem(setting: &'static str, path: &str) -> Result<PemFile, TlsFault> {
    let read =
        std::fs::read(path).map_err(|why| TlsFault::new(setting, format!("{path}: {why}")))?;
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

/// Builds a TLS client configuration, which fails unless the certificate chain and the private key
/// can be parsed and belong together.
fn build_client_config(
    cert_path: &str,
    cert_pem: &[u8],
    key_path: &str,
    key_pem: &[u8],
) -> Result<ClientConfig, TlsFault> {
    let chain = parse_chain(cert_pem)
        .map_err(|why| TlsFault::new("cert", format!("{cert_path}: {why}")))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|why| {
        TlsFault::new("key", format!("{key_path}: there is no private key in it ({why})"))
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| TlsFault::new("cert", why.to_string()))?;
    builder
        .with_root_certificates(RootCertStore::empty())
        .with_client_auth_cert(chain, key)
        .map_err(|why| {
            TlsFault::new("key", format!("{key_path} does not go with {cert_path}: {why}"))
        })
}
