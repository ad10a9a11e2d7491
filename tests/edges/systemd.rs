//! What a gateway tells the service manager that has started it.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Client, PATIENCE, chat};
use crate::world::{Builder, Store, World, chat_of};

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    _folder: TempDir,
}

impl Manager {
    /// One, and its address.
    fn new() -> (Manager, &'static str) {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let path = path.display().to_string();
        (Manager { socket, _folder: folder }, path.leak())
    }

    /// The next message. It blocks, so the vendors need another thread.
    fn message(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    }

    /// The next message with a line that begins so; those before it are passed over.
    fn told(&self, line: &str) -> String {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let message = self.message();
            if value(&message, line).is_some() {
                return message;
            }
        }
        panic!("{line:?} is not told");
    }
}

/// What follows `name` in the line of a message that begins so.
fn value<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.lines().find_map(|line| line.strip_prefix(name))
}

fn given(path: &'static str) -> Builder {
    World::start(Store::Sqlite).own_rules().env("NOTIFY_SOCKET", path)
}

/// A process that a test has not started itself; it is gone when this is.
struct Stranger(String);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "KILL", &self.0]).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_is_told_of_the_start_of_each_reload_and_of_the_stop() {
    let (manager, path) = Manager::new();
    let mut world = given(path).run().await;
    let ready = manager.told("READY=1");
    assert_eq!(value(&ready, "STATUS="), Some("5 of 5 routes up, 0 requests running"));
    let monotonic = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
    };
    let before = monotonic();
    world.gateway.signal("HUP");
    let reloading = manager.told("RELOADING=1");
    let at: i64 = value(&reloading, "MONOTONIC_USEC=").expect("a time").parse().expect("a number");
    assert!(before <= at && at <= monotonic(), "{before} {at}");
    assert!(!manager.told("READY=1").contains("refused"));
    std::fs::write(world.path("rules/vendor_b.toml"), "[chat\n").expect("broken rules");
    world.gateway.signal("HUP");
    manager.told("RELOADING=1");
    let ready = manager.told("READY=1");
    assert!(ready.contains("reload refused, the old settings stay"), "{ready}");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.gateway.signal("TERM");
    let stopping = manager.told("STOPPING=1");
    assert_eq!(value(&stopping, "STATUS="), Some("stopping, 0 requests running"));
    world.gateway.ended(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_knows_no_vendor_is_not_ready_but_alive() {
    let (manager, path) = Manager::new();
    let builder = given(path).env("WATCHDOG_USEC", "200000");
    let nowhere = ["http://nowhere.invalid/v1"];
    let builder = ["vendor_a", "vendor_b", "vendor_c", "vendor_d", "vendor_e"]
        .into_iter()
        .fold(builder, |builder, vendor| builder.vendor(vendor, &nowhere));
    let world = builder.run().await;
    // Its first word may be that the store was not asked yet.
    loop {
        let message = manager.message();
        assert!(message.starts_with("STATUS=not ready: "), "{message}");
        if message.starts_with("STATUS=not ready: no address of a vendor is known\n") {
            break;
        }
    }
    // After an upgrade the manager goes on with the watchdog of the process before.
    for _ in 0..5 {
        let message = manager.message();
        let expected = "STATUS=not ready: no address of a vendor is known\nWATCHDOG=1\n";
        assert_eq!(message, expected, "{}", world.log());
    }
}

/// A gateway that stands still gives none, so that it is started anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watchdog_gets_a_sign_of_life_at_each_half_of_its_time() {
    let (manager, path) = Manager::new();
    let world = given(path).env("WATCHDOG_USEC", "600000").run().await;
    manager.told("READY=1");
    for _ in 0..3 {
        manager.told("WATCHDOG=1");
    }
    let began = Instant::now();
    for _ in 0..5 {
        manager.told("WATCHDOG=1");
    }
    // No less than that, but on a busy machine later.
    assert!(began.elapsed() > Duration::from_millis(4 * 250), "{:?}", began.elapsed());
    world.gateway.signal("STOP");
    manager.socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    while manager.socket.recv(&mut [0; 4096]).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it does not stand still");
    }
    world.gateway.signal("CONT");
    manager.told("WATCHDOG=1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_signal_a_gateway_starts_the_one_that_takes_its_place() {
    let (manager, path) = Manager::new();
    let mut world = given(path).run().await;
    manager.told("READY=1");
    let broken = std::fs::read_to_string(world.path("tollgate.toml")).expect("the settings");
    std::fs::write(world.path("tollgate.toml"), format!("{broken}\n[nonsense]\n")).expect("broken");
    world.gateway.signal("USR2");
    world.logged(&["upgrade aborted", "the new process has ended: exit status 1"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200, "the old one stays");
    std::fs::write(world.path("tollgate.toml"), broken).expect("whole again");

    let mut open = world.open_stream(chat_of("lmb-5.5")).await;
    open.take(1).await;
    world.gateway.signal("USR2");
    let replaced = manager.told("MAINPID=");
    let new = value(&replaced, "MAINPID=").expect("a number").to_owned();
    let new = Stranger(new);
    assert_ne!(new.0, world.gateway.id().to_string());
    assert!(manager.told("READY=1").contains("STATUS=5 of 5 routes up"), "the new one speaks");
    assert!(open.rest().await.is_done());
    world.gateway.ended(PATIENCE).await;
    assert!(!world.log().contains("upgrade_peer_rejected"));
    let mut client = Client::of(&world).await;
    client.send(chat(&world, "")).await;
    assert_eq!(client.answer().await.status, 200, "the new one serves alone");
}
