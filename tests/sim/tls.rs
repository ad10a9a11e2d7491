//! TLS as vendors have it: HTTP/1.1 and HTTP/2, vouched for by an authority of the simulator's own.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use super::authority::Identity;

/// The first byte of every handshake.
pub(super) const HANDSHAKE: u8 = 0x16;

/// HTTP/2, as a handshake names it.
pub(super) const HTTP2: &[u8] = b"h2";

const HTTP1: &[u8] = b"http/1.1";

/// How the addresses of the simulator are spoken to. It takes all of them on the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 without TLS.
    Plain,
    /// HTTP/1.1 over TLS.
    Http1,
    /// HTTP/2 over TLS, or HTTP/1.1 for those who cannot.
    Http2,
}

impl Protocol {
    pub(super) fn scheme(self) -> &'static str {
        if self == Protocol::Plain { "http" } else { "https" }
    }

    /// What a handshake offers, the preferred one first.
    fn offer(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = if self == Protocol::Http1 { &[HTTP1] } else { &[HTTP2, HTTP1] };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// What accepts connections with TLS.
pub(super) fn acceptor(identity: &Identity, protocol: Protocol) -> TlsAcceptor {
    // It may be the default already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate()], identity.key())
        .expect("a certificate and its key");
    config.alpn_protocols = protocol.offer();
    TlsAcceptor::from(Arc::new(config))
}
