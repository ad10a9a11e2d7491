//! A new process takes the place of the old one, and no client notices.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rstest::rstest;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Client, PATIENCE, chat};
use crate::world::{Hold, Opened, Process, Store, Streamed, World, chat_of};

const SERVER: &str = "[server]\npid_file = \"var/tollgate.pid\"\n";
/// Who asks again on its connection within this finds it open.
const PROMPT: Duration = Duration::from_millis(250);

/// Calls until it is told to stop, on a new connection each, or on one as long as it is kept. Tells
/// how many calls it made; each has to be served.
async fn calls(world: &World, address: &str, anew: bool, stop: &AtomicBool) -> usize {
    let mut client: Option<(Client, Instant)> = None;
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let (mut open, used) = match client.take() {
            Some((open, at)) => (open, Some(at)),
            None => (Client::at(address).await, None),
        };
        let asked = Instant::now();
        open.send(chat(world, "")).await;
        // A connection that nobody used for a while may be closed.
        let is_late = used.is_some_and(|at| at.elapsed() > PROMPT);
        if is_late && !open.hears().await {
            continue;
        }
        let answer = open.answer().await;
        assert_eq!(answer.status, 200, "call {count}: {answer:?}\n{}", world.log());
        count += 1;
        if answer.header("connection") == Some("keep-alive") && !anew {
            client = Some((open, asked));
        }
    }
    count
}

/// Waits until a gateway has said this, and tells where in its log.
async fn said(gateway: &Process, words: &str) -> usize {
    let end = Instant::now() + PATIENCE;
    loop {
        let log = gateway.log();
        if let Some(place) = log.find(words) {
            return place;
        }
        assert!(Instant::now() < end, "{words:?} is not in\n{log}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_process_takes_over_and_nothing_is_refused_or_cut(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let long = "chunk-delay=100;chunks=100";
    let builder = World::start(store).conf(SERVER).credit("5000");
    let builder = builder.vendor("vendor_c", &[long]);
    let mut world = builder.run().await;
    let streams = join_all((0..5).map(|_| world.open_stream(chat_of("lmc-3.5-flash")))).await;
    let address = world.gateway.http.clone();
    let stop = AtomicBool::new(false);
    let (old, new) = (&world.gateway, world.successor("new", &[]));
    let calling = join_all((0..6).map(|number| calls(&world, &address, number % 2 == 0, &stop)));
    let replacing = async {
        said(old, " served ").await;
        let new = new.await;
        said(old, " stopped").await;
        said(&new, " served ").await;
        stop.store(true, Ordering::Relaxed);
        new
    };
    let (counts, new) = tokio::join!(calling, replacing);
    let streamed = join_all(streams.into_iter().map(Opened::rest)).await;
    assert!(streamed.iter().all(Streamed::is_done), "{streamed:?}");
    world.gives_way_to(new).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200, "the new one serves alone");
    world.settled(counts.iter().sum::<usize>() + 5 + 1).await;
}

/// From the first moment on it gets a part of the calls, and those would not be served.
#[tokio::test]
async fn a_new_process_that_cannot_sell_yet_leaves_the_old_one_alone() {
    let mut world = World::start(Store::Redis).gated().conf(SERVER).run().await;
    // It is connected, and does not hear which run of the store this is.
    world.gate().shut_at("persistence", Hold::Words);
    let url = world.gate().url.clone();
    let new = world.successor("new", &[("TOLLGATE__STORE__URL", &url)]);
    let waiting = async {
        world.gate().is_shut().await;
        for _ in 0..10 {
            assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
        }
        world.gate().open();
    };
    let (new, ()) = tokio::join!(new, waiting);
    let told = said(&new, "asked to hand over").await;
    assert!(said(&new, "store recovery finished").await < told, "{}", new.log());
    world.gives_way_to(new).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(11).await;
}

#[tokio::test]
async fn told_to_give_way_to_nobody_it_stays() {
    let mut world = World::start(Store::Sqlite).run().await;
    world.gateway.signal("QUIT");
    world.logged(&["nobody is there to give way to"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.gateway.signal("QUIT");
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.gateway.signal("TERM");
    world.gateway.ended(PATIENCE).await;
}

#[tokio::test]
async fn who_finds_nobody_to_take_over_from_says_so() {
    let mut world = World::start(Store::Sqlite).conf(SERVER).run().await;
    world.gateway.kill();
    let told = world.command(&["serve", "--upgrade"]).await;
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("nobody to take over from"), "{told:?}");
    std::fs::write(world.path("var/tollgate.pid"), "1\n").expect("a file");
    let told = world.command(&["serve", "--upgrade"]).await;
    assert_eq!(told.code, 1, "another program has that number: {told:?}");
}

/// Waits until a process waits at the socket.
async fn is_there(socket: &Path) {
    let end = Instant::now() + PATIENCE;
    while !socket.exists() {
        assert!(Instant::now() < end, "nobody waits at {}", socket.display());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
}

/// Sends a listening socket as if it were the one for this address.
async fn hand_over(socket: &Path, address: &str, listener: &TcpListener) {
    let end = Instant::now() + PATIENCE;
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            // The file is there a moment before anybody listens.
            Err(why) => assert!(Instant::now() < end, "nobody waits: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let sockets = [listener.as_fd()];
    assert!(beside.push(SendAncillaryMessage::ScmRights(&sockets)));
    let names = [IoSlice::new(address.as_bytes())];
    sendmsg(&stream, &names, &mut beside, SendFlags::empty()).expect("sent");
}

#[tokio::test]
async fn a_listener_at_another_address_was_taken_under_the_name_of_ours() {
    let conf = "[server]\nupgrade_sock = \"up/t.sock\"\n";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let (http, admin) = (world.gateway.http.clone(), world.gateway.admin.clone());
    let env =
        [("TOLLGATE__LISTEN__HTTP", http.as_str()), ("TOLLGATE__LISTEN__ADMIN", admin.as_str())];
    let other = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let socket = world.path("up/t.sock");
    let sending = async {
        hand_over(&socket, &http, &other).await;
    };
    let (told, ()) = tokio::join!(world.command_with(&["serve", "--upgrade"], &env), sending);
    assert_eq!(told.code, 1, "{told:?}");
    let listens = format!("listens at {}", other.local_addr().expect("its address"));
    assert!(told.err.contains("are refused") && told.err.contains(&listens), "{told:?}");
    assert!(!told.err.contains("serving"), "{told:?}");
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200, "the old one stays");
}

/// The folder keeps other users out; should they get in, the system tells who they are.
#[tokio::test]
async fn a_process_of_another_user_could_hand_over_its_own_listeners() {
    let conf = "[server]\nupgrade_sock = \"up/t.sock\"\n";
    let mut world = World::start(Store::Sqlite).conf(conf).run().await;
    let (folder, socket) = (world.path("up"), world.path("up/t.sock"));
    let (old, new) = (&world.gateway, world.successor("new", &[]));
    let trying = async {
        is_there(&socket).await;
        let mode = std::fs::metadata(&folder).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        if rustix::process::geteuid().is_root() {
            for path in [&world.path(""), &folder, &socket] {
                set_mode(path, 0o777);
            }
            let connect = "socket(S, AF_UNIX, SOCK_STREAM, 0); \
                           connect(S, sockaddr_un($ARGV[0])) or die $!; \
                           print 'read ', sysread(S, $read, 1)";
            let mut stranger = tokio::process::Command::new("setpriv");
            stranger.args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "perl",
                "-MSocket",
                "-e",
            ]);
            let ended = stranger.arg(connect).arg(&socket).output().await.expect("a stranger");
            assert_eq!(String::from_utf8_lossy(&ended.stdout), "read 0", "{ended:?}");
            let log = std::fs::read_to_string(world.path("new.log")).expect("a log");
            assert!(log.contains("upgrade_peer_rejected"), "{log}");
            assert!(log.contains("a process of user 65534"), "{log}");
            // With the folder open it would not go on.
            old.signal("QUIT");
            said(old, "open to other users").await;
            set_mode(&folder, 0o700);
            set_mode(&world.path(""), 0o700);
        }
        old.signal("QUIT");
    };
    let (new, ()) = tokio::join!(new, trying);
    world.gives_way_to(new).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}

#[tokio::test]
async fn a_folder_that_others_can_enter_is_no_place_for_the_sockets() {
    let conf = "[server]\nupgrade_sock = \"open/t.sock\"\n";
    let world = World::start(Store::Sqlite).conf(conf).run().await;
    let folder = world.path("open");
    std::fs::create_dir(&folder).expect("a folder");
    set_mode(&folder, 0o755);
    let told = world.command(&["serve", "--upgrade"]).await;
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("server.upgrade_sock needs a folder of its own"), "{told:?}");
    world.gateway.signal("QUIT");
    world.logged(&["upgrade aborted", "open to other users"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
}
