//! Encrypted connections, with one request at a time or many.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Version;
use rstest::rstest;
use tempfile::TempDir;

use super::load::heard;
use super::slow::ENDLESS;
use super::{Client, PATIENCE, chat};
use crate::world::{Builder, Store, World, chat_of};

/// A world that speaks TLS, with more configuration.
pub(super) async fn encrypted(conf: &str) -> (World, TempDir) {
    encrypted_of(World::start(Store::Sqlite), conf).await
}

/// The same, of a world that is begun.
pub(super) async fn encrypted_of(builder: Builder, conf: &str) -> (World, TempDir) {
    let folder = TempDir::new().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    make_certificate(Path::new(&cert), Path::new(&key));
    let conf = format!("[listen.tls]\ncert = {cert:?}\nkey = {key:?}\n{conf}");
    (builder.conf(&conf).run().await, folder)
}

/// Writes a certificate that vouches for itself, and its key.
pub(super) fn make_certificate(cert: &Path, key: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-keyout"])
        .arg(key)
        .arg("-out")
        .arg(cert)
        .stderr(Stdio::null())
        .status();
    assert!(made.is_ok_and(|status| status.success()) && cert.exists());
}

/// A client that takes any certificate.
pub(super) fn client(one_at_a_time: bool) -> reqwest::Client {
    let builder = if one_at_a_time { builder().http1_only() } else { builder() };
    builder.build().expect("a client")
}

/// What such clients are made by.
pub(super) fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().danger_accept_invalid_certs(true).timeout(PATIENCE)
}

#[rstest]
#[case::one(true, Version::HTTP_11)]
#[case::many(false, Version::HTTP_2)]
#[tokio::test]
async fn encrypted_calls_are_served(#[case] one_at_a_time: bool, #[case] version: Version) {
    let (world, _folder) = encrypted("").await;
    let client = client(one_at_a_time);
    for _ in 0..3 {
        let url = format!("https://{}/v1/chat/completions", world.gateway.http);
        let call = client.post(url).bearer_auth(&world.key).body(chat_of("lmb-5.5").to_string());
        let answer = call.header("content-type", "application/json").send().await;
        let answer = answer.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.version()), (200, version));
        answer.bytes().await.expect("a body");
    }
    assert_eq!(world.metric("tollgate_connections", &[]).await, 1);
    world.settled(3).await;
}

#[tokio::test]
async fn a_head_of_a_stream_has_its_bound_as_well() {
    let (world, _folder) = encrypted("").await;
    let url = format!("https://{}/v1/models", world.gateway.http);
    let client = client(false);
    let call = |bytes: usize| {
        client.get(&url).bearer_auth(&world.key).header("x", "y".repeat(bytes)).send()
    };
    assert_eq!(call(20 << 10).await.expect("an answer").status(), 200);
    let refused = call(40 << 10).await;
    assert!(refused.is_err() || refused.is_ok_and(|answer| answer.status() == 431));
}

/// What a client of TLS said and heard.
struct Speaker(Child);

impl Speaker {
    fn open(world: &World, protocol: &str) -> Speaker {
        Speaker::at(&world.gateway.http, protocol)
    }

    fn at(address: &str, protocol: &str) -> Speaker {
        let child = Command::new("openssl")
            .args(["s_client", "-quiet", "-connect", address, "-alpn", protocol])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Speaker(child.expect("openssl"))
    }

    fn say(&mut self, bytes: &str) {
        let said = self.0.stdin.as_mut().expect("an input").write_all(bytes.as_bytes());
        said.expect("it is taken");
    }

    /// Waits until the other side closes, and tells what it said.
    fn rest(mut self) -> String {
        let end = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = self.0.kill();
                panic!("the connection is not closed");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut heard = Vec::new();
        let output = self.0.stdout.as_mut().expect("an output");
        output.read_to_end(&mut heard).expect("what it said");
        String::from_utf8_lossy(&heard).into_owned()
    }
}

#[tokio::test]
async fn who_does_not_get_as_far_as_a_request_is_hung_up_on() {
    let (world, _folder) = encrypted("[timeouts]\nhead_ms = 500").await;
    let silent = Client::of(&world).await;
    assert!(silent.rest().await.is_empty());
    let mut babbling = Client::of(&world).await;
    babbling.send("\u{16}\u{3}\u{1}\u{2}").await;
    assert!(babbling.rest().await.is_empty());
    for protocol in ["h2", "http/1.1"] {
        let speaker = Speaker::open(&world, protocol);
        let rest = tokio::task::spawn_blocking(|| speaker.rest());
        rest.await.expect("it was closed");
    }
    world.metric_becomes("tollgate_connections", &[], 0).await;
    // Two of them have not got as far as speaking TLS.
    world.metric_becomes("tollgate_shed_total", &["reason=\"silence\""], 4).await;
}

/// Neither who has not begun to speak TLS keeps it from its end, nor who says nothing in it.
#[tokio::test]
async fn told_to_stop_it_waits_for_nobody_who_is_silent() {
    let (mut world, _folder) = encrypted("[timeouts]\nhead_ms = 120_000").await;
    let silent = Client::of(&world).await;
    let speakers = ["h2", "http/1.1"].map(|protocol| Speaker::open(&world, protocol));
    world.metric_becomes("tollgate_connections", &[], 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
    for speaker in speakers {
        tokio::task::spawn_blocking(|| speaker.rest()).await.expect("it was closed");
    }
    drop(silent);
}

/// A connection of many streams with a request for the models: the preface, no settings, and a head
/// without compression.
const MANY_MODELS: &str = concat!(
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\0\0\0\x04\0\0\0\0\0",
    "\0\0\x1b\x01\x05\0\0\0\x01",
    "\x01\x01a\x02\x03GET\x04\x0a/v1/models\x06\x05https",
);
/// The beginning of a frame that tells the other side to ask for nothing more on a connection.
const GOAWAY: &str = "\0\0\x08\x07\0\0\0\0\0";

/// It would not know why its next request gets no answer.
#[tokio::test]
async fn who_begins_to_speak_tls_while_it_stops_is_told_to_go() {
    while !is_told_to_go().await {}
}

/// Whether who had to be told was quick enough to be heard.
async fn is_told_to_go() -> bool {
    let (mut world, _folder) = encrypted("").await;
    let between = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = between.local_addr().expect("an address").to_string();
    let mut speaker = Speaker::at(&address, "h2");
    speaker.say(MANY_MODELS);
    let near = between.accept().expect("it connects").0;
    let far = TcpStream::connect(&world.gateway.http).expect("it listens");
    world.metric_becomes("tollgate_connections", &[], 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.gateway.signal("TERM");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let other = |line: &TcpStream| line.try_clone().expect("the same");
    for (mut from, mut to) in [(other(&near), other(&far)), (far, near)] {
        std::thread::spawn(move || {
            std::io::copy(&mut from, &mut to).and_then(|_| to.shutdown(Shutdown::Write))
        });
    }
    let heard = tokio::task::spawn_blocking(|| speaker.rest()).await.expect("it was closed");
    assert!(heard.is_empty() || heard.contains(GOAWAY), "{heard:?}");
    world.gateway.ended(PATIENCE).await;
    !heard.is_empty()
}

/// Whatever is left of an answer, of one stream or of many.
#[rstest]
#[tokio::test]
async fn who_stops_reading_does_not_stay_connected(
    #[values("--http1.1", "--http2")] version: &str,
) {
    let builder = World::start(Store::Sqlite).credit("5000").vendor("vendor_b", &[ENDLESS]);
    let (world, _folder) = encrypted_of(builder, "[timeouts]\nclient_write_ms = 1_000").await;
    let mut call = chat_of("lmb-5.5");
    call["stream"] = true.into();
    let key = format!("authorization: Bearer {}", world.key);
    let mut reader = Command::new("curl")
        .args(["-sk", version, "-o", "/dev/null", "-d", &call.to_string(), "-H", &key])
        .args(["-H", "content-type: application/json"])
        .arg(format!("https://{}/v1/chat/completions", world.gateway.http))
        .spawn()
        .expect("curl");
    heard(&world, 1).await;
    let stopped = Command::new("kill").args(["-s", "STOP", &reader.id().to_string()]).status();
    assert!(stopped.is_ok_and(|status| status.success()));
    world.sim.let_go();
    world.metric_becomes("tollgate_connections", &[], 0).await;
    reader.kill().and_then(|()| reader.wait()).expect("it ran");
    world.settled(1).await;
}

#[tokio::test]
async fn heads_are_read_as_strictly_under_a_cover() {
    let (world, _folder) = encrypted("").await;
    let mut speaker = Speaker::open(&world, "http/1.1");
    speaker.say(&chat(&world, "transfer-encoding: chunked\r\n"));
    let heard = tokio::task::spawn_blocking(|| speaker.rest()).await.expect("it was closed");
    assert!(heard.starts_with("HTTP/1.1 400 "), "{heard}");
    assert_eq!(world.sim.seen().len(), 0);
}
