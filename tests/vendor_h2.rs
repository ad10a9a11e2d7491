//! A vendor that answers many calls over one connection, as HTTP/2 has it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::vendor_tls::{Certificates, REPLY, ROUTES, certificate, routes};
use crate::world::{Answer, CHAT, EMBEDDING_B, Store, World, chat_of};

/// What it gives out at a time.
const PIECE_BYTES: usize = 64 << 10;
/// More than all buffers on the way to a client that does not read.
const VECTORS: usize = 2_048;
const UNREAD: usize = 3;

/// Starts it; its address, and how many connections were made to it.
async fn vendor(certificates: &Certificates) -> (String, Arc<AtomicUsize>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = PrivateKeyDer::from_pem_file(certificates.file("vendor.key")).expect("a key");
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate(&certificates.file("vendor.pem"))], key)
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("https://{}/v1", listener.local_addr().expect("an address"));
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(acceptor.clone(), stream));
        }
    });
    (base, connections)
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let entry = format!(r#"{{"embedding":"{}","index":0}}"#, "AACAPw==".repeat(1_536));
    let entries = vec![entry.as_str(); VECTORS].join(",");
    let usage = r#"{"prompt_tokens":2000,"total_tokens":2000}"#;
    let long = Bytes::from(format!(r#"{{"data":[{entries}],"usage":{usage}}}"#));
    while let Some(Ok((request, respond))) = connection.accept().await {
        let is_long = request.uri().path().ends_with("embeddings");
        let body = if is_long { long.clone() } else { REPLY.into() };
        tokio::spawn(answer(respond, body));
    }
}

async fn answer(mut respond: SendResponse<Bytes>, mut body: Bytes) -> Option<()> {
    let head =
        http::Response::builder().header("content-type", "application/json").body(()).ok()?;
    let mut stream = respond.send_response(head, false).ok()?;
    while !body.is_empty() {
        stream.reserve_capacity(body.len().min(PIECE_BYTES));
        let room = poll_fn(|context| stream.poll_capacity(context)).await?.ok()?;
        let piece = body.split_to(room.min(body.len()));
        stream.send_data(piece, body.is_empty()).ok()?;
    }
    Some(())
}

#[tokio::test]
async fn an_answer_that_nobody_read_stopped_all_others_on_its_connection() {
    let certificates = Certificates::new();
    let (base, connections) = vendor(&certificates).await;
    let tls = format!(", tls = {{ ca = \"{}\" }}", certificates.file("ca.pem"));
    let world = World::start(Store::Sqlite).env(ROUTES, routes(&base, &tls)).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    let members = json!({ "encoding_format": "base64" });
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        let sent = EMBEDDING_B.sent(&members).bytes;
        let asked = world.request(EMBEDDING_B.path).body(sent).send().await;
        unread.push(asked.expect("the head of an answer"));
    }
    // What is on its way fills all buffers.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let chat = tokio::time::timeout(Duration::from_secs(20), world.chat(chat_of("lmb-5.5")));
    assert_eq!(chat.await.expect("it is not kept waiting").status, 200);
    assert_eq!(connections.load(Ordering::SeqCst), 1, "all of them went over one connection");
}

#[tokio::test]
async fn a_head_that_http2_does_not_send_took_the_task_of_the_call_and_its_hold_along() {
    let certificates = Certificates::new();
    let (base, _) = vendor(&certificates).await;
    let tls = format!(", tls = {{ ca = \"{}\" }}", certificates.file("ca.pem"));
    let world = World::start(Store::Sqlite).own_rules().env(ROUTES, routes(&base, &tls));
    let world = world.run().await;
    let rules = world.path("rules/vendor_b.toml");
    let text = std::fs::read_to_string(&rules).expect("the rules");
    let forwarding = text.replacen("forward_headers = []", "forward_headers = [\"te\"]", 1);
    assert_ne!(forwarding, text, "the rules have changed; so must this test");
    std::fs::write(&rules, forwarding).expect("other rules");
    world.logged(&["rules reloaded"]).await;
    let request = world.request(CHAT.path).header("te", "gzip");
    let answer = Answer::read(request.body(chat_of("lmb-5.5").to_string())).await;
    assert_eq!(answer.refusal(), (502, "upstream_error".to_owned()));
    world.free_of_charge().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}
