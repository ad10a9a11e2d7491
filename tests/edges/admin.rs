//! The admin address, as whoever can reach it may use it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep};

use super::{Client, PATIENCE, head};
use crate::world::{Store, World, chat_of, parse};

/// More idle connections than any scraper has.
const IDLE: usize = 300;
/// Of these so many may stand at a time.
const CONNECTIONS_MAX: usize = 64;

/// Whether the other end has not hung up.
fn is_open(connection: &TcpStream) -> bool {
    let mut said = [0; 1_024];
    loop {
        match connection.try_read(&mut said) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(why) => return why.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

#[tokio::test]
async fn idle_connections_to_the_admin_address_keep_nobody_out() {
    let world = World::start(Store::Sqlite).run().await;
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(&world.gateway.admin).await.expect("a connection"));
    }
    let mut client = Client::of(&world).await;
    client.send(head(&world, "GET /v1/models HTTP/1.1", "")).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    // Who is one too many is hung up on long before who says nothing has to go.
    let open = || idle.iter().filter(|connection| is_open(connection)).count();
    let end = Instant::now() + PATIENCE;
    while open() > CONNECTIONS_MAX {
        assert!(Instant::now() < end, "{} connections stand", open());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(open() >= 1, "all were hung up on");
    // Who says nothing has to go, and all of them do.
    for mut connection in idle {
        let mut said = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut said)).await;
        let _ = ended.expect("it is closed");
    }
    assert_eq!(world.metric("tollgate_connections", &[]).await, 2, "those of clients alone");
}

#[tokio::test]
async fn the_metrics_are_for_who_has_the_token() {
    let token = ("TOLLGATE__LISTEN__ADMIN_TOKEN", "scrape-canary");
    let world = World::start(Store::Sqlite).env(token.0, token.1).run().await;
    let get = |path: &str, token: Option<&str>| {
        let url = format!("http://{}{path}", world.gateway.admin);
        let call = world.client().get(url);
        let call = if let Some(token) = token { call.bearer_auth(token) } else { call };
        async move {
            let answer = call.send().await.expect("an answer");
            (answer.status().as_u16(), answer.text().await.expect("a text"))
        }
    };
    for wrong in [None, Some("scrape-canarx"), Some("")] {
        let (status, told) = get("/metrics", wrong).await;
        assert_eq!(status, 401);
        assert!(told.contains("listen.admin_token") && !told.contains("tollgate_"), "{told}");
        assert_eq!(get("/readyz", wrong).await, (200, r#"{"ready":true}"#.to_owned()));
        assert_eq!(get("/healthz", wrong).await.0, 200);
    }
    assert!(get("/metrics", Some(token.1)).await.1.contains("tollgate_connections"));
    assert!(get("/readyz", Some(token.1)).await.1.contains("vendor_b"));
    assert!(!world.log().contains(token.1));
    let missing = [(token.0, "env:TOLLGATE_TEST_NOWHERE")];
    let told = world.command_with(&["serve"], &missing).await;
    assert!(told.code != 0 && told.err.contains("listen.admin_token"), "{}", told.err);
}

/// A gateway of a world's folder, which ends when dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn scrapers_may_come_by_a_socket_that_only_the_owner_opens() {
    let world = World::start(Store::Sqlite).run().await;
    // Its folder is made; a missing one left the gateway without its admin address.
    let socket = world.path("made/admin.sock");
    for _ in 0..2 {
        let child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("--conf")
            .arg(world.path("tollgate.toml"))
            .arg("serve")
            .current_dir(world.path(""))
            .env("TOLLGATE__LISTEN__HTTP", "127.0.0.1:0")
            .env("TOLLGATE__LISTEN__ADMIN", format!("unix:{}", socket.display()))
            .env("TOLLGATE__SERVER__UPGRADE_SOCK", world.path("other.sock"))
            .stderr(Stdio::null())
            .spawn();
        let mut other = Other(child.expect("the binary"));
        let told = scrape(&socket, &mut other.0).await;
        assert!(told.contains("tollgate_connections"), "{told}");
        let mode = std::fs::metadata(&socket).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Killed, it leaves the socket behind; the next one takes its place.
    }
}

async fn scrape(socket: &Path, child: &mut Child) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(matches!(child.try_wait(), Ok(None)) && Instant::now() < end, "it does not serve");
        if let Ok(mut stream) = UnixStream::connect(socket).await {
            let ask = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(ask.as_bytes()).await.expect("it is taken");
            let mut said = Vec::new();
            stream.read_to_end(&mut said).await.expect("an answer");
            let answers = parse(&said);
            return String::from_utf8(answers[0].body.clone()).expect("text");
        }
        sleep(std::time::Duration::from_millis(10)).await;
    }
}
