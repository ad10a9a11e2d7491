//! Who is told to give way stays, unless somebody serves in its place; and who is told to stop
//! hears it when it is told once more.

use std::fs::DirBuilder;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rstest::rstest;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::PATIENCE;
use crate::world::{Store, World, chat_of};

const SERVER: &str = "[server]\npid_file = \"var/tollgate.pid\"\nupgrade_sock = \"up/t.sock\"\n\
                      [timeouts]\nledger_ms = 20_000\nshed_lag_ms = 0";

/// Panics unless the gateway serves, at both of its addresses, and is the one to be told.
async fn serves(world: &World) {
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    assert!(world.metrics().await.contains("tollgate_"));
    let signed = std::fs::read_to_string(world.path("var/tollgate.pid")).expect("a number");
    assert_eq!(signed.trim(), world.gateway.id().to_string());
}

/// The old one had left five seconds after it was told, whatever became of the new one.
#[rstest]
#[case::clients("TOLLGATE__LISTEN__HTTP", "TOLLGATE__LISTEN__ADMIN")]
#[case::scrapers("TOLLGATE__LISTEN__ADMIN", "TOLLGATE__LISTEN__HTTP")]
#[tokio::test]
async fn nobody_served_after_a_new_process_that_could_not_have_its_address(
    #[case] taken: &str,
    #[case] kept: &str,
) {
    let mut world = World::start(Store::Sqlite).conf(SERVER).run().await;
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("an address").to_string();
    let gateway = &world.gateway;
    let of_old = if kept.ends_with("HTTP") { &gateway.http } else { &gateway.admin };
    let env = [(taken, address.as_str()), (kept, of_old.as_str())];
    let told = timeout(PATIENCE, world.command_with(&["serve", "--upgrade"], &env)).await;
    let told = told.expect("it ends");
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains(&format!("cannot listen at {address}")), "{told:?}");
    assert!(!told.err.contains("serving"), "{told:?}");
    world.logged(&["upgrade aborted", "the new process has ended"]).await;
    serves(&world).await;
    // The next one finds everything as it was.
    drop(other);
    let new = world.successor("new", &[(taken, address.as_str())]).await;
    let old = world.gives_way_to(new).await;
    let http = if taken.ends_with("HTTP") { &address } else { &old.http };
    let admin = if taken.ends_with("HTTP") { &old.admin } else { &address };
    (world.gateway.http, world.gateway.admin) = (http.clone(), admin.clone());
    serves(&world).await;
}

/// What a new process is to the old one, as far as it gets.
struct Successor {
    waiting: UnixListener,
    place: PathBuf,
}

impl Successor {
    fn of(world: &World) -> Successor {
        let folder = world.path("up");
        DirBuilder::new().mode(0o700).create(&folder).expect("a folder of its own");
        let waiting = UnixListener::bind(folder.join("t.sock")).expect("a socket");
        Successor { waiting, place: folder.join("t.sock-old") }
    }

    /// Takes the sockets, and goes to say that it can serve.
    async fn takes(self) -> UnixStream {
        let (mut sockets, _) = self.waiting.accept().await.expect("the old process");
        let mut names = Vec::new();
        sockets.read_to_end(&mut names).await.expect("names of sockets");
        assert!(String::from_utf8_lossy(&names).contains("127.0.0.1:"));
        UnixStream::connect(&self.place).await.expect("the old process waits")
    }
}

/// The old one had left all the same.
#[tokio::test]
async fn nobody_served_after_a_new_process_that_died_with_the_sockets() {
    let mut world = World::start(Store::Sqlite).conf(SERVER).run().await;
    let successor = Successor::of(&world);
    world.gateway.signal("QUIT");
    drop(successor.takes().await);
    world.logged(&["upgrade aborted", "the new process has ended"]).await;
    std::fs::remove_file(world.path("up/t.sock")).expect("a socket");
    assert!(!world.path("up/t.sock-old").exists());
    serves(&world).await;
    let new = world.successor("new", &[]).await;
    world.gives_way_to(new).await;
    serves(&world).await;
}

/// So it had if that came a moment later.
#[tokio::test]
async fn nobody_served_after_a_new_process_that_died_young() {
    let mut world = World::start(Store::Sqlite).conf(SERVER).run().await;
    let mut new = world.successor("new", &[]).await;
    new.kill();
    world.logged(&["upgrade aborted", "the new process has ended"]).await;
    serves(&world).await;
    let new = world.successor("newer", &[]).await;
    world.gives_way_to(new).await;
    serves(&world).await;
}

/// It did not listen any more until the new one had its place, or at all.
#[rstest]
#[tokio::test]
async fn told_to_stop_while_it_gave_way_it_did_not_hear_it(#[values("TERM", "INT")] signal: &str) {
    let mut world = World::start(Store::Sqlite).conf(SERVER).run().await;
    let successor = Successor::of(&world);
    world.gateway.signal("QUIT");
    let mut word = successor.takes().await;
    world.gateway.signal(signal);
    world.gateway.ended(PATIENCE).await;
    let mut heard = Vec::new();
    // It does not say that it stays.
    let _ = word.read_to_end(&mut heard).await;
    assert_eq!(heard, b"");
}

/// It waited for its last answer, for as long as it may, whatever it was told.
#[rstest]
#[case::told_to_stop("TERM", "TERM")]
#[case::told_to_end("TERM", "INT")]
#[case::told_to_give_way("QUIT", "TERM")]
#[tokio::test]
async fn told_once_more_while_it_stopped_it_did_not_hear_it(
    #[case] first: &str,
    #[case] second: &str,
) {
    let builder = World::start(Store::Sqlite).conf(SERVER);
    let mut world = builder.vendor("vendor_b", &["chunk-delay=1000;chunks=200"]).run().await;
    let mut stream = world.open_stream(chat_of("lmb-5.5")).await;
    stream.take(1).await;
    let new = if first == "QUIT" {
        Some(world.successor("new", &[]).await)
    } else {
        world.gateway.signal(first);
        None
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(world.gateway.is_running(), "{}", world.log());
    let end = Instant::now() + PATIENCE;
    while world.gateway.is_running() {
        assert!(Instant::now() < end, "it still runs:\n{}", world.log());
        world.gateway.signal(second);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(world.log().contains("shutdown_forced"), "{}", world.log());
    assert!(world.log().contains("stopped"), "{}", world.log());
    drop((stream, new));
}

/// A container gives the same number again, and keeps the file.
#[tokio::test]
async fn a_file_with_its_own_number_made_it_end_itself() {
    let world = World::start(Store::Sqlite).conf(SERVER).run().await;
    let mut shell = tokio::process::Command::new("sh");
    // The number stays the same.
    shell.args(["-c", "echo $$ > var/tollgate.pid; exec \"$@\"", "sh"]);
    shell.args([env!("CARGO_BIN_EXE_tollgate"), "--conf", "tollgate.toml", "serve", "--upgrade"]);
    let running = shell.current_dir(world.path("")).kill_on_drop(true).output();
    let ended = timeout(PATIENCE, running).await.expect("it ends").expect("the binary");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.contains("nobody to take over from"), "{told}");
    assert!(told.contains("is this process itself"), "{told}");
}
