//! Proxies of the operator's, and those who would like to pass for one.

use std::sync::Arc;

use rstest::rstest;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Client, code, head, many};
use crate::world::{Store, World, parse};

const TRUSTED: &str = "trusted = [\"127.0.0.0/8\"]";

fn line(client: &str) -> String {
    format!("PROXY TCP4 {client} 127.0.0.1 4711 80\r\n")
}

/// The same in version 2.
fn binary(client: [u8; 4]) -> Vec<u8> {
    let addresses = [&client[..], &[127, 0, 0, 1, 18, 103, 0, 80]].concat();
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", &addresses[..]].concat()
}

async fn world(listen: &str) -> World {
    World::start(Store::Sqlite).conf(&format!("[listen]\n{listen}")).run().await
}

#[rstest]
#[case::by_protocol("protocol")]
#[case::by_header("header")]
#[tokio::test]
async fn whoever_is_no_trusted_proxy_is_closed(#[case] mode: &str) {
    let listen = format!("proxy = \"{mode}\"\ntrusted = [\"192.0.2.0/24\"]");
    let world = world(&listen).await;
    for said in [head(&world, "GET /v1/models HTTP/1.1", ""), line("192.0.2.7")] {
        let mut client = Client::of(&world).await;
        client.send(said).await;
        assert_eq!(client.rest().await.len(), 0, "not a word");
    }
    world.logged(&["untrusted_peer_closed", "127.0.0.1"]).await;
}

#[tokio::test]
async fn a_trusted_proxy_that_does_not_say_for_whom_it_speaks_is_closed() {
    let world = world(&format!("proxy = \"protocol\"\n{TRUSTED}")).await;
    let ask = head(&world, "GET /v1/models HTTP/1.1", "");
    let wrong =
        ["", "PROXY TCP4 one two 1 2\r\n", "PROXY TCP5 a b 1 2\r\n", "\r\n\r\n\0\r\nQUIT\n\x31"];
    for wrong in wrong {
        let mut client = Client::of(&world).await;
        client.send(format!("{wrong}{ask}")).await;
        assert_eq!(client.rest().await.len(), 0, "{wrong:?}");
    }
    world.metric_becomes("tollgate_shed_total", &["reason=\"proxy_header\""], 4).await;
}

#[tokio::test]
async fn the_client_that_a_proxy_speaks_for_is_in_the_log() {
    let world = world(&format!("proxy = \"protocol\"\n{TRUSTED}")).await;
    let ask = head(&world, "GET /v1/models HTTP/1.1", "");
    let beginnings = [
        (line("192.0.2.7").into_bytes(), "192.0.2.7"),
        (binary([192, 0, 2, 8]), "192.0.2.8"),
        (b"PROXY TCP6 2001:db8::9 ::1 1 2\r\n".to_vec(), "2001:db8::9"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
    ];
    for (beginning, client) in beginnings {
        let mut connection = Client::of(&world).await;
        // Cut where it may be: a proxy's line need not come alone, nor in one piece.
        let (first, rest) = beginning.split_at(beginning.len() / 2);
        connection.send(first).await;
        tokio::task::yield_now().await;
        connection.send([rest, ask.as_bytes()].concat()).await;
        assert_eq!(connection.answer().await.status, 200);
        // The line counts for all requests of the connection.
        connection.send(&ask).await;
        assert_eq!(connection.answer().await.status, 200);
        let prefix = &world.key[..14];
        let told = world.logged(&["served", &format!("client=\"{client}\""), prefix]).await;
        assert!(!told.contains(&world.key), "{told}");
    }
}

#[rstest]
#[case::by_protocol("protocol")]
#[case::by_header("header")]
#[tokio::test]
async fn a_bound_per_address_means_the_client_behind_a_proxy(#[case] mode: &str) {
    let listen =
        format!("proxy = \"{mode}\"\n{TRUSTED}\n[limits]\nconnections_per_address_max = 2");
    let world = world(&listen).await;
    let by_line = |client: &str| if mode == "protocol" { line(client) } else { String::new() };
    let ask = |client: &str| {
        let forwarded = format!("x-forwarded-for: 10.6.6.6, {client}\r\n");
        let forwarded = if mode == "header" { forwarded } else { String::new() };
        by_line(client) + &head(&world, "GET /v1/models HTTP/1.1", &forwarded)
    };
    let mut open = Vec::new();
    for client in ["192.0.2.7", "192.0.2.7", "192.0.2.8", "192.0.2.9"] {
        let mut connection = Client::of(&world).await;
        connection.send(ask(client)).await;
        assert_eq!(connection.answer().await.status, 200, "{client}");
        open.push(connection);
    }
    if mode == "protocol" {
        let mut third = Client::of(&world).await;
        third.send(ask("192.0.2.7")).await;
        assert_eq!(third.rest().await[0].status, 503);
        world.metric_becomes("tollgate_shed_total", &["reason=\"address\""], 1).await;
    }
}

#[tokio::test]
async fn a_client_behind_a_proxy_does_not_choose_its_address() {
    let world = world(&format!("proxy = \"header\"\n{TRUSTED}")).await;
    let mut connection = Client::of(&world).await;
    let ask = |lines: &str| head(&world, "GET /v1/models HTTP/1.1", lines);
    connection.send(ask("x-forwarded-for: 6.6.6.6, 192.0.2.7, 127.0.0.9\r\n")).await;
    assert_eq!(connection.answer().await.status, 200);
    world.logged(&["served", "client=\"192.0.2.7\""]).await;
    connection.send(ask("forwarded: for=6.6.6.6, for=\"[2001:db8::7]:99\"\r\n")).await;
    assert_eq!(connection.answer().await.status, 200);
    world.logged(&["served", "client=\"2001:db8::7\""]).await;
    connection.send(ask("forwarded: for=6.6.6.6\r\nx-forwarded-for: 192.0.2.7\r\n")).await;
    let refused = connection.answer().await;
    assert_eq!((refused.status, code(&refused)), (400, "invalid_value".to_owned()));
    assert!(String::from_utf8_lossy(&refused.body).contains("forwarded"));
}

#[tokio::test]
async fn a_client_says_nothing_of_its_address_where_no_proxy_is_trusted() {
    let world = World::start(Store::Sqlite).run().await;
    let mut connection = Client::of(&world).await;
    let lines = "x-forwarded-for: 192.0.2.7\r\nforwarded: for=192.0.2.8\r\n";
    connection.send(head(&world, "GET /v1/models HTTP/1.1", lines)).await;
    assert_eq!(connection.answer().await.status, 200);
    world.logged(&["served", "client=\"127.0.0.1\""]).await;
    assert!(!world.log().contains("192.0.2."));
}

#[tokio::test]
async fn a_proxys_line_comes_before_the_handshake() {
    let (world, _folder) =
        many::encrypted(&format!("[listen]\nproxy = \"protocol\"\n{TRUSTED}")).await;
    let provider = Arc::new(default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let mut stream = TcpStream::connect(&world.gateway.http).await.expect("a connection");
    stream.write_all(line("192.0.2.7").as_bytes()).await.expect("it is taken");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await.expect("TLS");
    let ask = head(&world, "GET /v1/models HTTP/1.1", "connection: close\r\n");
    stream.write_all(ask.as_bytes()).await.expect("it is taken");
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said).await;
    assert_eq!(parse(&said)[0].status, 200);
    world.logged(&["served", "client=\"192.0.2.7\""]).await;
}

/// Takes any certificate.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
