//! What a backup and a restore refuse: they then leave everything as it was.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use super::forged::{self, Part};
use super::{BACKUP, DATABASE, LOGS, back_up, burst, busy_world, kill, move_away, names_in};
use crate::world::{Store, World};

/// A version of the data that no program has yet.
const LATER: u32 = 1_000;
/// Where a database says its version.
const USER_VERSION: std::ops::Range<usize> = 60..64;

/// All files and folders below a folder, by their paths, without the audit trail: a restore that is
/// refused is told there.
fn all_in(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for name in names_in(folder).into_iter().filter(|name| name != "var") {
        let path = folder.join(&name);
        if path.is_dir() {
            all.extend(all_in(&path));
        }
        all.insert(path.display().to_string());
    }
    all
}

/// The restore of a file fails, tells this, and leaves nothing.
async fn is_refused(world: &World, file: &str, told: &str) {
    let before = all_in(&world.path(""));
    let run = world.command(&["restore", file]).await;
    assert_eq!((run.code, run.out.as_str()), (1, ""), "{told}: {}", run.err);
    assert!(run.err.contains(told), "{told}: {}", run.err);
    assert_eq!(all_in(&world.path("")), before, "{told}");
}

/// A world that was lost, with a backup whose logs have something.
async fn lost_world() -> World {
    let mut world = busy_world("true").await;
    burst(&world, 100, &AtomicUsize::new(0)).await;
    kill(&world);
    world.gateway.kill();
    back_up(&world).await;
    move_away(&world, &[&DATABASE[..], &LOGS].concat(), "lost");
    world
}

#[tokio::test]
async fn a_restore_touches_nothing_where_a_gateway_or_a_store_is() {
    let mut world = World::start(Store::Sqlite).run().await;
    // From now on there is an audit trail.
    world.another_account("other", "1").await;
    back_up(&world).await;
    for _ in 0..2 {
        let before = names_in(&world.path(""));
        let run = world.command(&["restore", BACKUP]).await;
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{}", run.err);
        assert!(run.err.contains("a gateway runs on ") && run.err.contains("stop it first"));
        assert_eq!(names_in(&world.path("")), before);
        if !world.path("lost").exists() {
            // A gateway whose database is gone still runs.
            move_away(&world, &DATABASE, "lost");
        }
    }
    world.gateway.kill();
    for name in DATABASE {
        let lost = world.path("lost").join(name);
        if !lost.exists() {
            continue;
        }
        fs::rename(lost, world.path(name)).expect("moved back");
        is_refused(&world, BACKUP, &world.path(name).display().to_string()).await;
        fs::remove_file(world.path(name)).expect("removed");
    }
    world.command(&["restore", BACKUP]).await.done();
    is_refused(&world, BACKUP, "a restore overwrites nothing").await;
}

#[tokio::test]
async fn a_backup_overwrites_nothing() {
    let world = World::start(Store::Sqlite).run().await;
    fs::write(world.path(BACKUP), "precious").expect("a file");
    let before = names_in(&world.path(""));
    let own = "would be among the store's own files";
    for (file, told) in [
        (BACKUP, "is there already"),
        ("no/where", "there is no folder no"),
        ("tollgate.db-journal", own),
        ("tollgate.db-outbox/run/x.log", own),
        ("./tollgate.db-allotments/x", own),
    ] {
        let run = world.command(&["backup", file]).await;
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{file}");
        assert!(run.err.contains(told), "{file}: {}", run.err);
    }
    assert_eq!(fs::read(world.path(BACKUP)).expect("a file"), b"precious");
    assert_eq!(names_in(&world.path("")), before);
    let nowhere = [("TOLLGATE__STORE__URL", "sqlite:nowhere.db")];
    let run = world.command_with(&["backup", "other"], &nowhere).await;
    assert!(run.code == 1 && run.err.contains("there is no store"), "{}", run.err);
    assert!(!world.path("nowhere.db").exists() && !world.path("other").exists());
}

/// The gateway would refuse a database of root's, and adopt no logs beside one.
#[tokio::test]
async fn root_restored_what_the_user_of_the_gateway_could_not_open() {
    let world = lost_world().await;
    // Only root can give a file away.
    if rustix::process::geteuid().is_root() {
        let logs = world.path(LOGS[0]);
        fs::create_dir(&logs).expect("a folder");
        std::os::unix::fs::chown(&logs, Some(65_534), None).expect("given away");
        is_refused(&world, BACKUP, "belongs to user 65534, and this process is root").await;
        fs::remove_dir(&logs).expect("removed");
    }
    world.command(&["restore", BACKUP]).await.done();
}

#[tokio::test]
async fn a_backup_with_a_flipped_byte_or_without_its_end_is_refused() {
    let world = lost_world().await;
    let whole = fs::read(world.path(BACKUP)).expect("a backup");
    let entries = forged::entries_of(&whole);
    assert!(entries.len() > 4, "the logs are empty: {entries:?}");
    for Part { name, bytes, begins_at, .. } in &entries {
        let mut damaged = whole.clone();
        damaged[begins_at + bytes.len() / 2] ^= 4;
        fs::write(world.path("damaged"), damaged).expect("a file");
        is_refused(&world, "damaged", &format!("{name} is damaged")).await;
        for end in [begins_at - 512, begins_at - 1, begins_at + bytes.len() / 2] {
            fs::write(world.path("damaged"), &whole[..end]).expect("a file");
            is_refused(&world, "damaged", "cannot be restored, and nothing was changed").await;
        }
    }
    fs::write(world.path("damaged"), "no archive").expect("a file");
    is_refused(&world, "damaged", "cannot be restored, and nothing was changed").await;
    is_refused(&world, "missing", "No such file or directory").await;
    world.command(&["restore", BACKUP]).await.done();
}

#[tokio::test]
async fn a_backup_of_a_later_version_is_refused_in_the_words_of_opening_it() {
    let world = lost_world().await;
    let (manifest, mut parts) = forged::open(&world.path(BACKUP));
    let mut later = manifest.clone();
    later["data_version"] = LATER.into();
    forged::write(&world.path("later"), &later, &parts);
    let told = format!(
        "a later version of tollgate has written it: its data have version {LATER}, and this \
         program reads up to "
    );
    is_refused(&world, "later", &told).await;
    parts[0].bytes[USER_VERSION].copy_from_slice(&LATER.to_be_bytes());
    forged::write(&world.path("later"), &forged::naming(&manifest, &parts), &parts);
    is_refused(&world, "later", &told).await;
    later["format"] = 2.into();
    forged::write(&world.path("later"), &later, &parts);
    is_refused(&world, "later", "format 2, and this program reads format 1").await;
}

#[tokio::test]
async fn a_part_that_a_backup_cannot_have_goes_nowhere() {
    let world = lost_world().await;
    let (manifest, parts) = forged::open(&world.path(BACKUP));
    let forged = world.path("forged");
    for name in ["../x", "outbox/../x", "/etc/x", "outbox/a/lock", "x"] {
        let more = [&parts[..], &[Part::new(name, b"x")]].concat();
        forged::write(&forged, &forged::naming(&manifest, &more), &more);
        is_refused(&world, "forged", &format!("'{name}' is no part of a backup")).await;
        forged::write(&forged, &manifest, &more);
        is_refused(&world, "forged", "more behind the parts").await;
    }
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Directory] {
        let mut linked = parts.clone();
        linked[1].kind = kind;
        forged::write(&forged, &manifest, &linked);
        is_refused(&world, "forged", "in the place of the file").await;
    }
    forged::write(&forged, &manifest, &parts[..parts.len() - 1]);
    is_refused(&world, "forged", "is missing").await;
    forged::write(&forged, &forged::naming(&manifest, &parts[1..]), &parts[1..]);
    is_refused(&world, "forged", "tollgate.db is not its first part").await;
    let twice = [&parts[..], &parts[..1]].concat();
    forged::write(&forged, &forged::naming(&manifest, &twice), &twice);
    is_refused(&world, "forged", "tollgate.db is there twice").await;
    forged::write(&forged, &manifest, &parts);
    world.command(&["restore", "forged"]).await.done();
}
