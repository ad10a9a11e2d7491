//! Who else on the machine can read what a gateway keeps: nobody.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::world::{ACCOUNT, Store, World, chat_of};

/// Everything below a folder that its group or others may touch, but for what is not the gateway's.
fn open_to_others(folder: &Path) -> Vec<String> {
    let mut open = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        // Of the test: its configuration, a certificate, and the log that it has the gateway write.
        let is_top = folder.join("tollgate.toml").exists();
        let is_log = Path::new(&name).extension().is_some_and(|ending| ending == "log");
        if is_top && (["tollgate.toml", "vendors.pem"].contains(&name.as_str()) || is_log) {
            continue;
        }
        let about = entry.metadata().expect("an entry");
        if about.permissions().mode() & 0o077 != 0 {
            open.push(entry.path().display().to_string());
        }
        if about.is_dir() {
            open.extend(open_to_others(&entry.path()));
        }
    }
    open
}

/// What a gateway of an older version left: open to everybody.
fn open_up(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o666 | 0o111)).expect("ours");
}

#[tokio::test]
async fn what_a_gateway_kept_could_be_read_by_every_user_of_the_machine() {
    let server = "[server]\npid_file = \"var/run/tollgate.pid\"\n";
    let world = World::start(Store::Sqlite).conf(server).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.settled(1).await;
    for made in ["tollgate.db", "tollgate.db-wal", "tollgate.db-outbox", "files", "var/run"] {
        assert!(world.path(made).exists(), "{made}");
    }
    assert_eq!(open_to_others(&world.path("")), [""; 0]);
}

#[tokio::test]
async fn what_was_open_is_closed_with_a_warning() {
    let mut world = World::start(Store::Sqlite).run().await;
    let kept = ["tollgate.db", "tollgate.db-wal", "tollgate.db-shm"];
    kept.iter().for_each(|name| open_up(&world.path(name)));
    let run = world.command(&["account", "show", ACCOUNT]).await;
    assert_eq!(run.code, 0, "{run:?}");
    for name in kept {
        assert!(run.err.contains(&format!("{name}\"")), "{name}: {}", run.err);
    }
    assert!(run.err.contains("was open to other users"), "{}", run.err);
    let folders = ["tollgate.db-outbox", "files"];
    folders.iter().for_each(|name| open_up(&world.path(name)));
    world.kill_and_start_again().await;
    for name in folders {
        world.logged(&["was open to other users", name]).await;
    }
    assert_eq!(open_to_others(&world.path("")), [""; 0]);
    let silent = world.command(&["account", "show", ACCOUNT]).await;
    assert_eq!(silent.err, "", "there is nothing more to warn of");
}

#[tokio::test]
async fn a_gateway_that_crashes_leaves_no_memory_behind() {
    let world = World::start(Store::Sqlite).run().await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", world.gateway.id()));
    let limits = limits.expect("the system tells");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.expect("a limit").split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{words:?}");
}
