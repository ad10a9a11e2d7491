//! Vendors whose certificate no public authority has vouched for, and who ask for ours.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::sim::Authority;
use crate::world::{Store, World, chat_of, http};

pub(crate) const REPLY: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"lmb-5.5","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}"#;

/// A private authority, a vendor's certificate, and one for the gateway: the files of each.
pub(crate) struct Certificates {
    folder: TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Certificates {
        let certificates = Certificates { folder: TempDir::new().expect("a folder") };
        let write = |name: &str, text: &str| {
            std::fs::write(certificates.file(name), text).expect("a file");
        };
        let authority = Authority::new();
        let vendor = authority.issue_server();
        let gateway = authority.issue_client();
        write("ca.pem", authority.certificate());
        write("vendor.pem", &vendor.certificate);
        write("vendor.key", &vendor.key);
        write("gateway.pem", &gateway.certificate);
        write("gateway.key", &gateway.key);
        certificates
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A vendor with its certificate, which takes only clients that have one too.
    async fn vendor(&self) -> (String, Arc<AtomicUsize>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.file("ca.pem"))).expect("an authority");
        let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build().expect("a verifier");
        let key = PrivateKeyDer::from_pem_file(self.file("vendor.key")).expect("a key");
        let config = rustls::ServerConfig::builder()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate(&self.file("vendor.pem"))], key)
            .expect("a pair");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("https://{}/v1", listener.local_addr().expect("an address"));
        let served = Arc::new(AtomicUsize::new(0));
        let count = served.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), count.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut heard = Vec::new();
                    while !is_whole(&heard) {
                        match stream.read_buf(&mut heard).await {
                            Ok(1..) => {}
                            _ => return,
                        }
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.write_all(&http(REPLY)).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        (base, served)
    }
}

pub(crate) fn certificate(path: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(Path::new(path)).expect("a certificate")
}

/// Whether all of a request with a length is there.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}

/// The routes of a vendor, as a variable in the environment.
pub(crate) fn routes(base: &str, tls: &str) -> &'static str {
    format!("[{{ name = \"r0\", base_url = \"{base}\", key = \"k\"{tls} }}]").leak()
}

pub(crate) const ROUTES: &str = "TOLLGATE__VENDOR__VENDOR_B__ROUTES";

#[tokio::test]
async fn a_vendor_of_a_private_authority_that_asks_for_a_certificate_is_reached() {
    let certificates = Certificates::new();
    let (base, served) = certificates.vendor().await;
    let (ca, cert, key) = (
        certificates.file("ca.pem"),
        certificates.file("gateway.pem"),
        certificates.file("gateway.key"),
    );
    let tls = format!(", tls = {{ ca = \"{ca}\", cert = \"{cert}\", key = \"{key}\" }}");
    let world = World::start(Store::Sqlite).env(ROUTES, routes(&base, &tls)).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(served.load(Ordering::SeqCst), 1);
    assert_eq!(world.charge().await.usage["prompt_tokens"], 10);
}

#[tokio::test]
async fn a_route_without_the_authority_or_the_certificate_reaches_nobody() {
    let certificates = Certificates::new();
    let (base, served) = certificates.vendor().await;
    let ca = certificates.file("ca.pem");
    for tls in [String::new(), format!(", tls = {{ ca = \"{ca}\" }}")] {
        let world = World::start(Store::Sqlite).env(ROUTES, routes(&base, &tls)).run().await;
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 502, "{tls}");
        assert_eq!(served.load(Ordering::SeqCst), 0, "{tls}");
    }
}

#[tokio::test]
async fn files_that_are_no_certificates_are_told_by_check_with_their_line() {
    let certificates = Certificates::new();
    std::fs::write(certificates.file("empty.pem"), "nothing").expect("a file");
    let [ca, cert, key, other] =
        ["ca.pem", "gateway.pem", "gateway.key", "vendor.key"].map(|name| certificates.file(name));
    let empty = certificates.file("empty.pem");
    let cases = [
        (format!("ca = \"{empty}\""), "there is no certificate in"),
        (format!("ca = \"{ca}\", cert = \"{cert}\""), "go together"),
        (format!("ca = \"{ca}\", cert = \"{cert}\", key = \"{other}\""), "is not the key of"),
        (format!("ca = \"{ca}.gone\""), "cannot read"),
        ("ca = 5".to_owned(), "'ca' must be a text"),
    ];
    let world = World::start(Store::Sqlite).run().await;
    for (tls, wanted) in cases {
        let routes = routes("https://localhost:1/v1", &format!(", tls = {{ {tls} }}"));
        let told = world.command_with(&["check"], &[(ROUTES, routes)]).await;
        assert_ne!(told.code, 0, "{tls}");
        let told = told.err;
        assert!(told.contains(wanted) && told.contains(ROUTES), "{tls}: {told}");
    }
    let sound = format!(", tls = {{ ca = \"{ca}\", cert = \"{cert}\", key = \"{key}\" }}");
    world
        .command_with(&["check"], &[(ROUTES, routes("https://localhost:1/v1", &sound))])
        .await
        .done();
    let plain = routes("http://localhost:1/v1", &format!(", tls = {{ ca = \"{ca}\" }}"));
    let told = world.command_with(&["check"], &[(ROUTES, plain)]).await.err;
    assert!(told.contains("begins with https://"), "{told}");
}
