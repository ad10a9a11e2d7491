//! A Redis behind TLS, with an authority of its own, that asks who is there.

use std::process::{Command, Stdio};

use rstest::rstest;
use tempfile::TempDir;
use tollgate::conf::Config;
use tollgate::store::{self, StoreSection, StoreTls, StoreTlsFiles};

use super::redis_cluster;
use super::redis_server::{RedisServer, free_port};
use super::subject::{at, name};

/// An authority, and what it has vouched for.
struct Authority(TempDir);

impl Authority {
    fn new() -> Authority {
        let own = Authority(TempDir::new().expect("a folder"));
        own.openssl(&["-keyout", &own.file("ca.key"), "-out", &own.file("ca.pem")]);
        for what in ["server", "client"] {
            own.openssl(&[
                "-CA",
                &own.file("ca.pem"),
                "-CAkey",
                &own.file("ca.key"),
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
                "-keyout",
                &own.file(&format!("{what}.key")),
                "-out",
                &own.file(&format!("{what}.pem")),
            ]);
        }
        own
    }

    fn openssl(&self, more: &[&str]) {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .args(["-nodes", "-days", "2", "-subj", "/CN=tests"])
            .args(more)
            .current_dir(self.0.path())
            .stderr(Stdio::null())
            .status();
        assert!(made.is_ok_and(|status| status.success()), "openssl {more:?}");
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// What a server is set to, beside its port.
    fn settings(&self) -> Vec<String> {
        let files = [("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem")];
        let files = files.map(|(what, file)| [format!("--tls-{what}-file"), self.file(file)]);
        let asks = ["--tls-auth-clients", "yes"].map(str::to_owned);
        files.into_iter().flatten().chain(asks).collect()
    }

    /// What a client needs.
    fn files(&self) -> StoreTlsFiles {
        StoreTlsFiles {
            ca: Some(self.file("ca.pem")),
            cert: Some(self.file("client.pem")),
            key: Some(self.file("client.key")),
        }
    }
}

/// What listens, and its address.
fn started(kind: &str, authority: &Authority) -> (Vec<RedisServer>, String) {
    let settings = authority.settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    if kind == "cluster" {
        let (nodes, ports) = redis_cluster::start_over_tls(&settings);
        return (nodes, format!("rediss-cluster://127.0.0.1:{}", ports[0]));
    }
    let port = free_port().to_string();
    let server = RedisServer::start_with(&[&settings[..], &["--tls-port", &port]].concat());
    if kind == "server" {
        return (vec![server], format!("rediss://127.0.0.1:{port}"));
    }
    let own_port = free_port();
    let mut lines = format!("tls-port {own_port}\ntls-replication yes\n");
    for pair in settings.chunks(2) {
        lines.extend([&pair[0][2..], " ", pair[1], "\n"]);
    }
    let port = port.parse().expect("a port");
    let sentinel = RedisServer::start_sentinel_with(port, &lines);
    let address = format!("rediss-sentinel://127.0.0.1:{own_port}/mymaster");
    redis_cluster::until("Sentinel sees the master", || {
        let asked = ["SENTINEL", "MASTER", "mymaster"];
        redis_cluster::says(&sentinel, &asked, "runid")
            && !redis_cluster::says(&sentinel, &asked, "disconnected")
    });
    (vec![server, sentinel], address)
}

#[rstest]
#[tokio::test]
async fn a_server_with_an_authority_of_its_own_is_spoken_to_and_lets_nobody_else_in(
    #[values("server", "sentinel", "cluster")] kind: &str,
) {
    let authority = Authority::new();
    let (_servers, url) = started(kind, &authority);
    let section = |files: &StoreTlsFiles| {
        let tls = StoreTls::load(files).expect("they can be used");
        StoreSection { tls, ..at(url.clone()) }
    };
    let opened = store::open(&section(&authority.files())).await;
    let opened = opened.unwrap_or_else(|why| panic!("{url}: {why}"));
    for account in ["a", "b", "c", "d"] {
        assert_eq!(opened.ledger.open_account(&name(account)).await, Ok(true));
        assert!(opened.ledger.balances(&name(account)).await.expect("balances").is_some());
    }
    let stranger = Authority::new();
    let (own, other) = (authority.files(), stranger.files());
    for (who, files) in [
        ("whoever shows nothing", StoreTlsFiles { ca: own.ca.clone(), ..StoreTlsFiles::default() }),
        ("a stranger", StoreTlsFiles { ca: own.ca.clone(), ..other.clone() }),
        ("who believes others", StoreTlsFiles { ca: other.ca, ..own.clone() }),
        ("who believes the public", StoreTlsFiles { ca: None, ..own }),
    ] {
        assert!(store::open(&section(&files)).await.is_err(), "{who} is let in");
    }
}

#[tokio::test]
async fn the_command_line_shows_its_certificate_too() {
    let authority = Authority::new();
    let (_servers, url) = started("server", &authority);
    let StoreTlsFiles { ca, cert, key } = authority.files();
    let [ca, cert, key] = [ca, cert, key].map(Option::unwrap_or_default);
    let conf = format!("[store]\nurl = {url:?}\nca = {ca:?}\ncert = {cert:?}\nkey = {key:?}\n");
    let file = authority.file("tollgate.toml");
    std::fs::write(&file, conf).expect("a configuration");
    let words = ["--conf", &file, "account", "create", "acct", "--credit", "1"];
    let done = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(words).output();
    let done = done.expect("the binary");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn certificates_that_cannot_be_used_are_named_with_their_line() {
    let (one, other) = (Authority::new(), Authority::new());
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|file| one.file(file));
    let told = |lines: &str| {
        let text = format!("[store]\nurl = 'rediss://h'\n{lines}");
        let faults = Config::parse("t.toml", &text, []).err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(told(&format!("ca = '{ca}'\ncert = '{cert}'\nkey = '{key}'\n")), "");
    for (lines, expected) in [
        ("ca = '/nowhere/ca.pem'\n".to_owned(), "t.toml:3: store.ca: /nowhere/ca.pem: No such"),
        (format!("ca = '{key}'\n"), "there is no certificate in it"),
        (format!("cert = '{cert}'\n"), "t.toml:3: store.cert: it needs 'key'"),
        (format!("key = '{key}'\n"), "t.toml:3: store.key: it needs 'cert'"),
        (format!("cert = '{cert}'\nkey = '{cert}'\n"), "t.toml:4: store.key"),
        (format!("cert = '{cert}'\nkey = '{}'\n", other.file("client.key")), "does not go with"),
        ("ca = 3\n".to_owned(), "t.toml:3: 'ca' must be a text, not a number"),
    ] {
        let told = told(&lines);
        assert!(told.contains(expected), "{lines}: {told}");
    }
    let plain = format!("[store]\nurl = 'redis://h'\nca = '{ca}'\n");
    let faults = Config::parse("t.toml", &plain, []).err().unwrap_or_default();
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(faults, ["t.toml:3: store.ca is for a store.url that begins with 'rediss'"]);
}
