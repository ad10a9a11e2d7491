//! Tests of bodies in a folder: their limits in total and by account, and their expiry.

use tempfile::TempDir;

use super::super::FilesSection;
use super::*;

const NOW_S: u64 = 1_800_000_000;

fn bodies(root: &TempDir, limits: BodyStoreLimits) -> BodyFiles {
    let url = format!("file:{}", root.path().display());
    let section = FilesSection { url, ..FilesSection::default() };
    BodyFiles::new(Arc::new(VideoFiles::open(&section).expect("opened")), limits)
}

fn limits(total: u64, account: u64) -> BodyStoreLimits {
    BodyStoreLimits { total, account }
}

fn name(kind: BodyKind, account: &str, expires_s: u64, id: &str) -> BodyName {
    BodyName { kind, account: account.to_owned(), expires_s, id: id.to_owned() }
}

fn reply(account: &str, expires_s: u64, id: &str) -> BodyName {
    name(BodyKind::Reply, account, expires_s, id)
}

fn bytes(count: usize) -> Bytes {
    (0..=250).cycle().take(count).collect()
}

/// Reads a body; `None` if it does not exist.
async fn read(bodies: &BodyFiles, name: &BodyName, count: usize) -> Option<Vec<u8>> {
    let mut pieces = match bodies.read(name, count as u64).await {
        Ok(pieces) => pieces,
        Err(FileReadError::Missing) => return None,
        Err(why) => panic!("{why}"),
    };
    let mut all = Vec::new();
    while let Some(piece) = pieces.next().await {
        all.extend(piece.expect("read"));
    }
    Some(all)
}

#[test]
fn a_name_is_read_back_and_no_other_is_one() {
    for account in ["a", ".", "..", ".a", "a.b-c"] {
        for kind in BodyKind::ALL {
            let name = name(kind, account, NOW_S, "video_0-1");
            assert_eq!(BodyName::parse(&name.path()), Some(name));
        }
    }
    for other in [
        "",
        "bodies",
        "bodies/replies/a",
        "bodies/replies/a/1",
        "bodies/replies/a/x-1",
        "bodies/replies/a/01-1",
        "bodies/replies/a/1-1/2",
        "bodies/others/a/1-1",
        "videos/a/1-1",
    ] {
        assert_eq!(BodyName::parse(other), None, "{other}");
    }
}

#[tokio::test]
async fn a_body_comes_back_byte_for_byte_until_it_is_deleted() {
    let root = tempfile::tempdir().expect("a folder");
    let bodies = bodies(&root, limits(1 << 30, 1 << 30));
    for count in [1, 65_537, 3 << 20] {
        let name = reply(".", NOW_S + 1, &count.to_string());
        assert_eq!(read(&bodies, &name, count).await, None);
        assert_eq!(bodies.write(&name, bytes(count)).await, Ok(()));
        assert!(read(&bodies, &name, count).await.expect("there") == bytes(count));
        // After a power failure only the beginning of a file may be left.
        assert_eq!(read(&bodies, &name, count + 1).await, None);
        assert_eq!(bodies.delete(&name, count as u64).await, Ok(()));
        assert_eq!(bodies.delete(&name, count as u64).await, Ok(()));
        assert_eq!(read(&bodies, &name, count).await, None);
    }
    assert_eq!(bodies.sweep(NOW_S).await, Ok(BodySweepReport::default()));
}

#[tokio::test]
async fn one_account_cannot_fill_what_all_share() {
    let root = tempfile::tempdir().expect("a folder");
    let bodies = bodies(&root, limits(1_000, 300));
    for (id, expected) in [("1", Ok(())), ("2", Ok(())), ("3", Err(BodyStoreRefusal::NoRoom))] {
        let written = bodies.write(&reply("greedy", NOW_S + 9, id), bytes(150)).await;
        assert_eq!(written, expected, "{id}");
    }
    assert_eq!(bodies.write(&reply("other", NOW_S + 9, "1"), bytes(250)).await, Ok(()));
    // The sweep makes room by deleting replies of this account only.
    let swept = BodySweepReport { bytes: 400, evicted_bytes: 150, expired: 0 };
    assert_eq!(bodies.sweep(NOW_S).await, Ok(swept));
    assert_eq!(read(&bodies, &reply("greedy", NOW_S + 9, "1"), 150).await, None);
    assert_eq!(bodies.write(&reply("greedy", NOW_S + 9, "3"), bytes(150)).await, Ok(()));
    assert!(read(&bodies, &reply("other", NOW_S + 9, "1"), 250).await.is_some());
    // A new process counts what is in the store.
    let next = BodyFiles::new(bodies.files.clone(), bodies.limits);
    assert_eq!(next.sweep(NOW_S).await.expect("swept").bytes, 400);
    let refused = next.write(&reply("greedy", NOW_S + 9, "4"), bytes(151)).await;
    assert_eq!(refused, Err(BodyStoreRefusal::NoRoom));
}

#[tokio::test]
async fn room_is_taken_from_whoever_keeps_most_the_oldest_first() {
    let root = tempfile::tempdir().expect("a folder");
    let bodies = bodies(&root, limits(1_000, 1_000));
    for number in 0..7 {
        let greedy = reply("greedy", NOW_S + 100 - number, &number.to_string());
        assert_eq!(bodies.write(&greedy, bytes(100)).await, Ok(()));
    }
    let modest = reply("modest", NOW_S + 1, "1");
    assert_eq!(bodies.write(&modest, bytes(90)).await, Ok(()));
    let job = name(BodyKind::Request, "modest", NOW_S + 1, "job");
    assert_eq!(bodies.write(&job, bytes(200)).await, Ok(()));
    assert_eq!(
        bodies.write(&reply("late", NOW_S + 9, "1"), bytes(100)).await,
        Err(BodyStoreRefusal::NoRoom)
    );
    // A sweep is requested at once; the next regular one is a minute away.
    bodies.low_space.notified().await;
    let swept = BodySweepReport { bytes: 790, evicted_bytes: 200, expired: 0 };
    assert_eq!(bodies.sweep(NOW_S).await, Ok(swept));
    for number in 0..7 {
        let greedy = reply("greedy", NOW_S + 100 - number, &number.to_string());
        assert_eq!(read(&bodies, &greedy, 100).await.is_some(), number < 5, "{number}");
    }
    assert!(read(&bodies, &modest, 90).await.is_some());
    assert!(read(&bodies, &job, 200).await.is_some());
    assert_eq!(bodies.write(&reply("late", NOW_S + 9, "1"), bytes(100)).await, Ok(()));
}

#[tokio::test]
async fn what_a_process_left_is_gone_when_its_time_has_come() {
    let root = tempfile::tempdir().expect("a folder");
    let first = bodies(&root, limits(1 << 20, 1 << 20));
    let (over, stays) = (reply("a", NOW_S, "1"), reply("a", NOW_S + 1, "2"));
    let job = name(BodyKind::Request, "b", NOW_S, "job");
    for name in [&over, &stays, &job] {
        assert_eq!(first.write(name, bytes(10)).await, Ok(()));
    }
    drop(first);
    let next = bodies(&root, limits(1 << 20, 1 << 20));
    let swept = BodySweepReport { bytes: 10, expired: 2, evicted_bytes: 0 };
    assert_eq!(next.sweep(NOW_S).await, Ok(swept));
    assert!(read(&next, &stays, 10).await.is_some());
    assert_eq!(next.sweep(NOW_S + 1).await.expect("swept").bytes, 0);
}

#[tokio::test]
async fn a_store_that_is_away_keeps_nothing_and_counts_nothing() {
    let root = tempfile::tempdir().expect("a folder");
    let bodies = bodies(&root, limits(100, 100));
    let in_the_way = root.path().join(ROOT_FOLDER);
    std::fs::remove_dir(&in_the_way).expect("removed");
    std::fs::write(&in_the_way, "a file where the folder should be").expect("written");
    for _ in 0..3 {
        let written = bodies.write(&reply("a", NOW_S + 1, "1"), bytes(60)).await;
        assert!(matches!(written, Err(BodyStoreRefusal::Store(_))), "{written:?}");
    }
    std::fs::remove_file(&in_the_way).expect("removed");
    std::fs::create_dir(&in_the_way).expect("made");
    assert_eq!(bodies.write(&reply("a", NOW_S + 1, "1"), bytes(60)).await, Ok(()));
}

/// Replies contain what customers asked and what they were answered.
#[tokio::test]
async fn no_other_user_of_the_machine_reads_a_body() {
    use std::os::unix::fs::PermissionsExt;

    let root = tempfile::tempdir().expect("a folder");
    let bodies = bodies(&root, limits(100, 100));
    assert_eq!(bodies.write(&reply("a", NOW_S + 1, "1"), bytes(60)).await, Ok(()));
    let mode =
        std::fs::metadata(root.path().join(ROOT_FOLDER)).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test]
async fn a_sweep_that_failed_forgot_what_had_been_written() {
    let root = tempfile::tempdir().expect("a folder");
    let bodies = bodies(&root, limits(1_000, 300));
    for id in ["1", "2"] {
        assert_eq!(bodies.write(&reply("greedy", NOW_S + 9, id), bytes(150)).await, Ok(()));
    }
    // A symbolic link to itself cannot be listed.
    let link = root.path().join("bodies/loop");
    std::os::unix::fs::symlink("loop", &link).expect("a link");
    assert!(bodies.sweep(NOW_S).await.is_err());
    let refused = bodies.write(&reply("greedy", NOW_S + 9, "3"), bytes(150)).await;
    assert_eq!(refused, Err(BodyStoreRefusal::NoRoom));
    std::fs::remove_file(&link).expect("no link");
    let swept = BodySweepReport { bytes: 150, evicted_bytes: 150, expired: 0 };
    assert_eq!(bodies.sweep(NOW_S).await, Ok(swept), "it counts nothing twice");
}
