//! Tests of the log of ends, and of the adoption of what it leaves.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::super::end_record::AllotmentEnds;
use super::super::orphaned_ends::OrphanedEnds;
use super::super::record;
use super::super::settlement_log::SettlementLog;
use super::*;
use crate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind};
use crate::money::Money;

mod random;

const LENT_AT: i64 = 1_795_612_455_678;

fn open(root: &Path, retention: Retention) -> EndLog {
    EndLog::open(root, retention, Arc::new(AtomicBool::new(true))).expect("a log")
}

fn account(name: &str) -> AccountName {
    AccountName::parse(name).expect("a name")
}

fn allotment(log: &EndLog, count: u64) -> AllotmentId {
    AllotmentId(format!("{}-{count}", log.run()))
}

fn end(seq: u64) -> CallEnd {
    let nano = |nano: u64| Money::from_nano(nano.try_into().expect("small")).expect("money");
    let window = |kind| WindowId::at(BudgetOwner::Key(KeyId(7)), kind, LENT_AT);
    CallEnd {
        call: format!("call-{seq}"),
        key: Some(KeyId(7)),
        held: nano(seq + 1),
        charge: (!seq.is_multiple_of(3)).then(|| nano(seq)),
        windows: vec![window(WindowKind::Day), window(WindowKind::Total)],
        line: format!(r#"{{"call":"call-{seq}"}}"#),
    }
}

fn append(log: &EndLog, name: &str, count: u64, seq: u64) {
    log.append(&account(name), &allotment(log, count), LENT_AT, seq, &end(seq));
}

fn record_durable(log: &EndLog, name: &str, count: u64, last_seq: u64) {
    log.record_durable(&account(name), &allotment(log, count), last_seq);
}

/// The numbers of the ends that the log reads back.
fn read_back(log: &EndLog, name: &str, count: u64) -> Vec<u64> {
    let mut all = log.files().expect("files").read_all().0;
    let ends = all.remove(&(account(name), allotment(log, count))).unwrap_or_default().ends;
    assert!(ends.iter().all(|(seq, read)| *read == end(*seq)), "{ends:?}");
    ends.into_keys().collect()
}

/// The numbers of the ends in a folder, by account and the count of the allotment.
fn read_orphan(orphan: &OrphanedEnds) -> BTreeMap<(String, u64), Vec<u64>> {
    let (allotments, 0) = orphan.files().expect("files").read_all() else { panic!("torn lines") };
    let counted = |((name, id), read): ((AccountName, AllotmentId), AllotmentEnds)| {
        assert_eq!(read.lent_at, LENT_AT);
        assert!(read.ends.iter().all(|(seq, read)| *read == end(*seq)));
        let count = id.0.strip_prefix(orphan.run()).and_then(|rest| rest.strip_prefix('-'));
        let count = count.and_then(|count| count.parse().ok()).expect("an id of this run");
        ((name.as_str().to_owned(), count), read.ends.into_keys().collect())
    };
    allotments.into_iter().map(counted).collect()
}

/// Adopts the only folder of an ended process under `root`.
fn adopt(root: &Path) -> OrphanedEnds {
    let mut orphans = OrphanedEnds::lock_all(root).expect("a look");
    assert_eq!(orphans.len(), 1);
    orphans.remove(0)
}

fn segments(log: &EndLog) -> Vec<PathBuf> {
    log.lock_state().dir.list_segments(SegmentKind::AllotmentEnds).expect("files")
}

/// Ends the current segment.
fn rotate(log: &EndLog) {
    log.maintain(None);
    assert!(log.lock_state().writer.rotate(), "the spare was made");
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_successor_finds_what_was_appended_and_takes_no_folder_of_a_live_process() {
    let root = tempfile::tempdir().expect("a folder");
    let top = root.path().join("x-allotments");
    assert_eq!(OrphanedEnds::lock_all(&top).expect("nothing is there").len(), 0);
    let (first, second) =
        (open(&top, Retention::FOR_EMBEDDED), open(&top, Retention::FOR_EMBEDDED));
    assert_ne!(first.run(), second.run());
    first.bind_to_store("a store").expect("a write");
    for (name, count, seq) in [("a", 1, 1), ("b", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a", 1, 3)] {
        append(&first, name, count, seq);
    }
    append(&second, "a", 1, 9);
    first.flush();
    assert_eq!(OrphanedEnds::lock_all(&top).expect("a look").len(), 0, "both live");
    let run = first.run().to_owned();
    drop(first);
    let orphan = adopt(&top);
    assert_eq!(orphan.run(), run);
    assert_eq!(orphan.store_id().expect("an id").as_deref(), Some("a store"));
    let key = |name: &str, count| (name.to_owned(), count);
    let expected = [(key("a", 1), vec![1, 2, 3]), (key("a", 2), vec![1]), (key("b", 1), vec![1])];
    assert_eq!(read_orphan(&orphan), expected.into());
    assert_eq!(OrphanedEnds::lock_all(&top).expect("a look").len(), 0, "it has an owner");
    drop(orphan);
    let orphan = adopt(&top);
    orphan.remove();
    assert_eq!(OrphanedEnds::lock_all(&top).expect("a look").len(), 0);
    assert!(!top.join(run).exists());
    drop(second);
    let orphan = adopt(&top);
    assert_eq!(orphan.store_id().expect("no id"), None);
    assert_eq!(read_orphan(&orphan), [(key("a", 1), vec![9])].into());
}

#[test]
fn the_last_line_may_be_torn_and_a_folder_with_other_files_stays() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_EMBEDDED);
    (1..=2).for_each(|seq| append(&log, "a", 1, seq));
    log.flush();
    let (file, run) = (segments(&log).remove(0), log.run().to_owned());
    drop(log);
    let text = fs::read(&file).expect("a file");
    fs::write(&file, &text[..text.len() - 9]).expect("a write");
    let orphan = adopt(root.path());
    let (allotments, torn) = orphan.files().expect("files").read_all();
    assert_eq!((allotments.into_values().next().expect("one").ends.len(), torn), (1, 1));
    let other = root.path().join(&run).join("a file of somebody else");
    fs::write(&other, "x").expect("a write");
    orphan.remove();
    assert!(other.exists());
    let orphan = adopt(root.path());
    assert_eq!(orphan.files().expect("files").read_all(), (BTreeMap::new(), 0));
    fs::remove_file(other).expect("ours");
    orphan.remove();
    assert!(!root.path().join(run).exists());
}

#[test]
fn a_segment_goes_when_all_its_ends_are_durable_and_their_retention_is_over() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    let keep = Retention::FOR_SERVER.keep;
    let later = |ms| Some(Instant::now() + keep + Duration::from_millis(ms));
    append(&log, "a", 1, 1);
    append(&log, "b", 1, 1);
    rotate(&log);
    append(&log, "a", 1, 2);
    rotate(&log);
    let is_there = |number| log.lock_state().dir.segment_path(SegmentKind::AllotmentEnds, number);
    let there = || (1..=2).filter(|number| is_there(*number).exists()).collect::<Vec<_>>();
    record_durable(&log, "a", 1, 1);
    log.maintain(later(100));
    assert_eq!(there(), [1, 2], "an end of each is not durable");
    record_durable(&log, "b", 1, 1);
    for last_answer in [None, Some(Instant::now())] {
        log.maintain(last_answer);
        assert_eq!(there(), [1, 2], "the store may forget it yet");
    }
    log.maintain(later(100));
    assert_eq!(there(), [2]);
    assert_eq!((read_back(&log, "a", 1), read_back(&log, "b", 1)), (vec![2], vec![]));
    log.forget(&account("b"), &allotment(&log, 1));
    log.forget(&account("a"), &allotment(&log, 1));
    assert!(log.lock_state().allotments.is_empty() && log.lock_state().needed.0.is_empty());
    log.maintain(later(100));
    assert_eq!(there(), [0; 0]);
}

#[test]
fn what_the_store_has_lost_is_kept_until_it_had_time_to_be_told_again() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    append(&log, "a", 1, 1);
    rotate(&log);
    record_durable(&log, "a", 1, 1);
    std::thread::sleep(Duration::from_millis(50));
    let just_before = Instant::now();
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(read_back(&log, "a", 1), [1]);
    // The retention that began before the store lost it would be over.
    log.maintain(Some(just_before + Retention::FOR_SERVER.keep));
    assert_eq!(read_back(&log, "a", 1), [1]);
}

#[test]
fn a_line_that_no_file_takes_stays_in_memory_until_one_does() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    append(&log, "a", 1, 1);
    let full = File::options().write(true).open("/dev/full").expect("a device");
    log.lock_state().writer.continue_in(full);
    (2..=4).for_each(|seq| append(&log, "a", 1, seq));
    assert!(!log.is_writable());
    record_durable(&log, "a", 1, 2);
    assert_eq!(read_back(&log, "a", 1), [1, 2, 3, 4]);
    log.maintain(None);
    assert!(log.is_writable());
    append(&log, "a", 1, 5);
    drop(log);
    let found = read_orphan(&adopt(root.path()));
    assert_eq!(found, [(("a".to_owned(), 1), vec![1, 2, 3, 4, 5])].into());
}

#[test]
fn a_segment_stays_until_what_was_written_again_is_synced() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention { synced: true, ..Retention::FOR_EMBEDDED });
    append(&log, "a", 1, 1);
    let full = File::options().write(true).open("/dev/full").expect("a device");
    log.lock_state().writer.continue_in(full);
    append(&log, "a", 1, 2);
    let first = log.lock_state().dir.segment_path(SegmentKind::AllotmentEnds, 1);
    log.maintain(Some(Instant::now()));
    assert!(log.is_writable() && first.exists());
    log.maintain(Some(Instant::now()));
    assert!(!first.exists());
    assert_eq!(read_back(&log, "a", 1), [1, 2]);
}

#[test]
fn after_a_failed_sync_all_that_is_not_durable_is_written_again() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    append(&log, "a", 1, 1);
    // It takes every write, and no sync.
    let null = File::options().write(true).open("/dev/null").expect("a device");
    log.lock_state().writer.continue_in(null);
    (2..=4).for_each(|seq| append(&log, "a", 1, seq));
    wait_until("the sync fails", || !log.is_writable());
    record_durable(&log, "a", 1, 2);
    log.maintain(None);
    assert!(log.is_writable());
    drop(log);
    let found = read_orphan(&adopt(root.path()));
    assert_eq!(found, [(("a".to_owned(), 1), vec![1, 3, 4])].into(), "2 is durable elsewhere");
}

#[test]
fn a_folder_that_was_deleted_is_made_anew_under_its_name() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    let run = log.run().to_owned();
    log.bind_to_store("a store").expect("a write");
    (1..=3).for_each(|seq| append(&log, "a", 1, seq));
    record_durable(&log, "a", 1, 1);
    for deleted in [root.path().join(&run), root.path().to_owned()] {
        fs::remove_dir_all(deleted).expect("ours");
        log.maintain(None);
        assert!(log.is_writable());
        assert_eq!(read_back(&log, "a", 1), [2, 3]);
        assert_eq!(OrphanedEnds::lock_all(root.path()).expect("a look").len(), 0);
    }
    append(&log, "a", 1, 4);
    log.maintain(None);
    assert_eq!(log.run(), run);
    drop(log);
    let orphan = adopt(root.path());
    assert_eq!(
        (orphan.run(), orphan.store_id().expect("an id").as_deref()),
        (&*run, Some("a store"))
    );
    assert_eq!(read_orphan(&orphan), [(("a".to_owned(), 1), vec![2, 3, 4])].into());
}

#[test]
fn while_no_folder_can_be_made_the_lines_wait() {
    let root = tempfile::tempdir().expect("a folder");
    let top = root.path().join("ends");
    let log = open(&top, Retention::FOR_SERVER);
    append(&log, "a", 1, 1);
    fs::remove_dir_all(&top).expect("ours");
    fs::write(&top, "no folder").expect("a write");
    for seq in 2..=3 {
        log.maintain(None);
        assert!(!log.is_writable());
        append(&log, "a", 1, seq);
    }
    fs::remove_file(&top).expect("ours");
    log.flush();
    assert!(log.is_writable());
    drop(log);
    assert_eq!(read_orphan(&adopt(&top)), [(("a".to_owned(), 1), vec![1, 2, 3])].into());
}

#[test]
fn where_only_a_file_is_gone_the_others_stay() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    append(&log, "a", 1, 1);
    record_durable(&log, "a", 1, 1);
    rotate(&log);
    append(&log, "a", 1, 2);
    log.maintain(None);
    let dir = log.lock_state().dir.path.clone();
    let replace = |file: PathBuf| {
        fs::remove_file(&file).expect("ours");
        fs::write(file, "").expect("a write");
    };
    let damages: [&dyn Fn(); 4] = [
        &|| fs::remove_file(dir.join("00000002.ends")).expect("ours"),
        &|| replace(dir.join("00000003.ends")),
        &|| fs::remove_file(dir.join("lock")).expect("ours"),
        &|| replace(dir.join("lock")),
    ];
    for damage in damages {
        damage();
        log.maintain(None);
        assert!(log.is_writable());
        assert_eq!(OrphanedEnds::lock_all(root.path()).expect("a look").len(), 0, "it lives");
        assert_eq!(read_back(&log, "a", 1), [1, 2], "of 1 only the first segment knows");
    }
}

#[test]
fn who_has_lost_the_lock_to_another_does_not_write_on() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_SERVER);
    append(&log, "a", 1, 1);
    fs::remove_file(root.path().join(log.run()).join("lock")).expect("ours");
    let orphan = adopt(root.path());
    for _ in 0..2 {
        log.maintain(None);
        assert!(!log.is_writable(), "it is another's now");
    }
    append(&log, "a", 1, 2);
    assert_eq!(read_orphan(&orphan).into_values().next().expect("ends"), [1, 2]);
    orphan.remove();
    log.maintain(None);
    assert!(log.is_writable());
    assert_eq!(read_back(&log, "a", 1), [1, 2]);
}

#[test]
fn an_end_that_the_store_has_already_is_written_and_not_waited_for() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_EMBEDDED);
    record_durable(&log, "a", 1, 2);
    (1..=3).rev().for_each(|seq| append(&log, "a", 1, seq));
    assert_eq!(log.lock_state().lines_mut().count(), 1);
    assert_eq!(log.lock_state().needed.0, [(1, 1)].into());
    append(&log, "a", 1, 3);
    assert_eq!(log.lock_state().needed.0, [(1, 1)].into(), "it was appended again");
    assert_eq!(read_back(&log, "a", 1), [1, 2, 3]);
    record_durable(&log, "a", 1, u64::MAX);
    assert!(log.lock_state().needed.0.is_empty());
}

#[test]
fn a_segment_that_is_full_is_followed_by_another_without_a_pause() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_EMBEDDED);
    let large = CallEnd { line: "x".repeat(1 << 20), ..end(1) };
    for seq in 1..=40 {
        log.append(&account("a"), &allotment(&log, 1), LENT_AT, seq, &large);
    }
    assert_eq!(segments(&log).len(), 3);
    let numbers = |log: &EndLog| {
        let ends =
            log.files().expect("files").read_all().0.into_values().next().expect("ends").ends;
        ends.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(numbers(&log), (1..=40).collect::<Vec<_>>());
    record_durable(&log, "a", 1, 20);
    log.maintain(Some(Instant::now()));
    assert_eq!(numbers(&log), (16..=40).collect::<Vec<_>>());
    log.flush();
    let bytes: u64 = segments(&log).iter().map(|f| fs::metadata(f).expect("a file").len()).sum();
    assert!(bytes < 60 << 20, "{bytes} bytes");
}

#[test]
fn the_other_log_and_this_one_pass_over_each_others_files() {
    let root = tempfile::tempdir().expect("a folder");
    let writable = Arc::new(AtomicBool::new(true));
    let other = SettlementLog::open(root.path(), Retention::FOR_EMBEDDED, writable).expect("a log");
    let void = crate::ledger::Operation::Void { id: "h".to_owned() };
    other.append(&account("a"), &Arc::new(void));
    drop(other);
    let orphan = adopt(root.path());
    assert_eq!(orphan.files().expect("files").read_all(), (BTreeMap::new(), 0));
    let run = orphan.run().to_owned();
    orphan.remove();
    assert!(root.path().join(&run).join("00000001.log").exists(), "it is not its to remove");
    fs::remove_dir_all(root.path().join(run)).expect("ours");
    let log = open(root.path(), Retention::FOR_EMBEDDED);
    append(&log, "a", 1, 1);
    let dir = log.lock_state().dir.clone();
    for kind in [SegmentKind::HoldEnds, SegmentKind::Calls, SegmentKind::Jobs] {
        assert_eq!(dir.list_segments(kind).expect("files").len(), 0);
    }
    let text = fs::read(&segments(&log)[0]).expect("a file");
    assert_eq!(record::parse_segment(&text), (Vec::new(), 1), "an older version reads no record");
}

#[test]
fn threads_that_append_lose_nothing_while_files_come_and_go() {
    let root = tempfile::tempdir().expect("a folder");
    let log = open(root.path(), Retention::FOR_EMBEDDED);
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let log = &log;
            scope.spawn(move || (1..=2_000).for_each(|seq| append(log, name, 1, seq)));
        }
        for round in 0..40_u32 {
            log.maintain(Some(Instant::now()));
            log.lock_state().writer.rotate();
            if round % 8 == 7 {
                fs::remove_dir_all(root.path().join(log.run())).expect("ours");
            }
        }
    });
    log.maintain(Some(Instant::now()));
    assert!(log.is_writable());
    drop(log);
    let found = read_orphan(&adopt(root.path()));
    let all: Vec<u64> = (1..=2_000).collect();
    let expected = ["a", "b", "c"].map(|name| ((name.to_owned(), 1), all.clone()));
    assert_eq!(found, expected.into());
}
