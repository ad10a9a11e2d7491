//! The certificate for clients, which may be replaced while connections are served.

use std::sync::Arc;

use anyhow::{Context, ensure};
use arc_swap::ArcSwap;
use pingora::listeners::tls::Acceptor;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::conf::ListenTlsSection;

/// A certificate chain and its key, and the files from which they were loaded.
#[derive(Debug)]
pub(super) struct ServerCertificate {
    files: ListenTlsSection,
    current: ArcSwap<CertifiedKey>,
}

impl ServerCertificate {
    /// Loads the files.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not belong to the certificate.
    pub(super) fn load(files: &ListenTlsSection) -> anyhow::Result<Arc<ServerCertificate>> {
        let current = ArcSwap::from_pointee(load_certified_key(files)?);
        Ok(Arc::new(ServerCertificate { files: files.clone(), current }))
    }

    /// Loads the files again. Open connections keep the old certificate; after a fault nothing
    /// changes. Returns whether they could be loaded.
    pub(super) fn reload(&self) -> bool {
        let cert = self.files.cert.as_str();
        match load_certified_key(&self.files) {
            Ok(new) => {
                let new = Arc::new(new);
                let is_other = new.cert != self.current.swap(new.clone()).cert;
                log::info!(event = "certificate_reloaded", cert, is_other; "certificate reloaded");
                true
            }
            Err(why) => {
                let why = format!("{why:#}");
                let event = "certificate_reload_failed";
                log::error!(event, cert, error:% = why; "certificate not reloaded");
                false
            }
        }
    }

    /// Returns the TLS acceptor with this certificate, for HTTP/1.1 and HTTP/2.
    pub(super) fn acceptor(self: &Arc<Self>) -> Acceptor {
        let builder = ServerConfig::builder().with_no_client_auth();
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Acceptor::from_server_config(Arc::new(config))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn load_certified_key(files: &ListenTlsSection) -> anyhow::Result<CertifiedKey> {
    let unread = |path: &str| format!("cannot read {path}");
    let chain: Vec<_> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .with_context(|| unread(&files.cert))?;
    ensure!(!chain.is_empty(), "there is no certificate in {}", files.cert);
    let key = PrivateKeyDer::from_pem_file(&files.key).with_context(|| unread(&files.key))?;
    let provider = rustls::crypto::ring::default_provider();
    let is_no_pair = || format!("{} is not the key of {}", files.key, files.cert);
    CertifiedKey::from_der(chain, key, &provider).with_context(is_no_pair)
}
