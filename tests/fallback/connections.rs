//! Connections that cannot be made: why is in the log and in the metrics.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;
use tempfile::TempDir;

use crate::world::{Store, World, chat_of};

const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
const CONFIGURATION: &str = "[ca]\ndefault_ca=d\n[d]\nserial=serial\ndatabase=index\n\
    new_certs_dir=.\ndefault_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n";
const OF_NOW: [&str; 4] = ["-startdate", "20250101000000Z", "-enddate", "20990101000000Z"];
const OF_ONCE: [&str; 4] = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"];

fn openssl(folder: &Path, command: &str, words: &[&str]) {
    let mut openssl = Command::new("openssl");
    let made = openssl.arg(command).args(words).current_dir(folder).stderr(Stdio::null()).output();
    assert!(made.is_ok_and(|made| made.status.success()), "openssl {command} {words:?}");
}

/// A server that speaks TLS, with the certificate of an authority of its own.
struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    fn start(name: &str, dates: [&str; 4]) -> Server {
        let folder = TempDir::new().expect("a folder");
        let at = folder.path();
        let write = |name: &str, text: &str| std::fs::write(at.join(name), text).expect("a file");
        write("index", "");
        write("serial", "1000\n");
        write("ca.cnf", &format!("{CONFIGURATION}[e]\nsubjectAltName=DNS:{name}\n"));
        let authority = ["-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out"];
        let usage = ["ca.pem", "-addext", "keyUsage=critical,keyCertSign"];
        openssl(at, "req", &[&KEY[..], &authority, &usage].concat());
        let asked = ["-subj", "/CN=leaf", "-keyout", "leaf.key", "-out", "leaf.csr"];
        openssl(at, "req", &[&KEY[..], &asked].concat());
        let signed = ["-batch", "-notext", "-config", "ca.cnf", "-extensions", "e"];
        let files =
            ["-cert", "ca.pem", "-keyfile", "ca.key", "-in", "leaf.csr", "-out", "leaf.pem"];
        openssl(at, "ca", &[&signed[..], &files, &dates].concat());
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let mut server = Command::new("openssl");
        server.args(["s_server", "-quiet", "-www", "-cert", "leaf.pem", "-key", "leaf.key"]);
        server.args(["-accept", &format!("127.0.0.1:{port}")]).current_dir(at);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = server.spawn().expect("openssl");
        let end = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "nobody listens");
            std::thread::sleep(Duration::from_millis(5));
        }
        Server { child, port, folder }
    }

    fn authority(&self) -> &'static str {
        self.folder.path().join("ca.pem").display().to_string().leak()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[rstest]
#[case::unknown_authority("localhost", OF_NOW, false, "tls_unknown_ca")]
#[case::wrong_name("another.test", OF_NOW, true, "tls_wrong_name")]
#[case::expired("localhost", OF_ONCE, true, "tls_expired")]
#[tokio::test]
async fn why_a_certificate_was_refused_was_told_nobody(
    #[case] name: &str,
    #[case] dates: [&str; 4],
    #[case] is_trusted: bool,
    #[case] reason: &str,
) {
    let server = Server::start(name, dates);
    let url = format!("https://localhost:{}/v1", server.port);
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[&url, ""]);
    let trusting = [("SSL_CERT_FILE", server.authority())].into_iter().filter(|_| is_trusted);
    let builder = trusting.fold(builder, |builder, (name, path)| builder.env(name, path));
    let world = builder.run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("1"), "{answer:?}");
    let label = format!("reason={reason:?}");
    let labels = [r#"from_route="r0""#, label.as_str()];
    assert_eq!(world.metric("tollgate_fallbacks_total", &labels).await, 1, "{}", world.log());
    world.logged(&["r0", reason]).await;
}

#[tokio::test]
async fn a_sound_certificate_is_taken() {
    let server = Server::start("localhost", OF_NOW);
    let url = format!("https://localhost:{}/v1", server.port);
    let builder = World::start(Store::Sqlite).vendor("vendor_b", &[&url]);
    let builder = builder.conf("[timeouts]\nanswer_ms = 500");
    let world = builder.env("SSL_CERT_FILE", server.authority()).run().await;
    // It takes the call, and knows nothing to say.
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 504);
    assert!(!world.log().contains("tls_"), "{}", world.log());
}

#[tokio::test]
async fn why_no_connection_was_made_was_told_nobody() {
    let full = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hangs_up = format!("https://{}/v1", full.local_addr().expect("its address"));
    std::thread::spawn(move || {
        // Whoever connects is hung up on before TLS has begun.
        full.incoming().for_each(drop);
    });
    // And here nobody answers: the system itself takes the connection.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let says_nothing = format!("https://{}/v1", silent.local_addr().expect("its address"));
    let closed = crate::world::closed_port();
    let cases = [
        (closed.as_str(), "connect_refused"),
        (says_nothing.as_str(), "connect_timeout"),
        ("http://nobody.invalid/v1", "dns"),
        (hangs_up.as_str(), "connect_reset"),
    ];
    let routes: Vec<&str> = cases.iter().map(|(url, _)| *url).chain([""]).collect();
    let short = "[timeouts]\nconnect_ms = 300";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &routes).conf(short).run().await;
    let answer = world.chat(chat_of("lmb-5.5")).await;
    assert_eq!(answer.header("x-gateway-fallback-depth"), Some("4"), "{answer:?}");
    for (rank, (_, reason)) in cases.iter().enumerate() {
        let labels = [format!(r#"from_route="r{rank}""#), format!("reason={reason:?}")];
        let labels = labels.each_ref().map(String::as_str);
        assert_eq!(world.metric("tollgate_fallbacks_total", &labels).await, 1, "{}", world.log());
        world.logged(&[&format!("r{rank}"), reason]).await;
    }
    let labels = [r#"route="r2""#, r#"vendor="vendor_b""#];
    world.metric_becomes("tollgate_route_up", &labels, 0).await;
}
