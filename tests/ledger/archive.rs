//! Journals whose first lines have left the store for the archive: which lines may go, and that
//! what is left is as it was, with the same numbers.

use tempfile::TempDir;
use tollgate::archive::{ArchiveNote, ArchiveState, ArchivedDay};
use tollgate::ledger::{EntryKind, JournalEntry, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::OpenStore;
use tollgate::usage::{FOLD_VERSION, PostedEntry};

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, opened};
use super::usage::{charge, correct, fold_all, open_account};

mod late;
mod lives;
mod redis;

pub(super) const DAY_MS: i64 = 86_400_000;

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

/// A day of the archive.
fn day(number: i64, last_seq: u64) -> ArchivedDay {
    ArchivedDay { day: number * DAY_MS, last_seq, digest: format!("{last_seq:064x}") }
}

async fn mark(store: &OpenStore, account: &str, after: u64, day: &ArchivedDay) -> bool {
    let note = ArchiveNote { account: name(account), after, day: day.clone() };
    store.archive.mark_archived(&[note]).await.expect("an answer")
}

async fn trim(store: &OpenStore, account: &str, to: u64, limit: u32) -> u64 {
    store.archive.trim_journal(&name(account), to, limit).await.expect("an answer")
}

async fn state(store: &OpenStore, account: &str) -> ArchiveState {
    let state = store.archive.read_archive_state(&name(account)).await.expect("an answer");
    state.expect("an account")
}

/// Notes all lines up to `last` as those of a day, and trims them.
async fn archive_to(store: &OpenStore, account: &str, last: u64) -> u64 {
    let known = state(store, account).await;
    let number = known.archived.as_ref().map_or(0, |known| known.day / DAY_MS);
    let noted = mark(store, account, known.archived_seq(), &day(number + 1, last)).await;
    assert!(noted, "up to {last}: {known:?}");
    trim(store, account, u64::MAX, u32::MAX).await
}

async fn lines_after(store: &OpenStore, seq: u64, limit: u32) -> Vec<JournalEntry> {
    store.ledger.read_journal(&name("ada"), seq, limit).await.expect("lines")
}

async fn posted_after(store: &OpenStore, seq: u64, limit: u32) -> Vec<PostedEntry> {
    store.usage.read_posted(&name("ada"), seq, limit).await.expect("lines")
}

fn numbers(lines: &[JournalEntry]) -> Vec<u64> {
    lines.iter().map(|line| line.seq).collect()
}

/// Each store, one after the other. The cluster has the turn and the accounts in different places.
struct Stores {
    folder: TempDir,
    server: std::sync::Arc<RedisServer>,
    cluster: Vec<RedisServer>,
}

impl Stores {
    fn start() -> Stores {
        let folder = TempDir::new().expect("a folder");
        Stores { folder, server: RedisServer::shared(), cluster: redis_cluster::start() }
    }

    /// The same without the cluster.
    fn start_two() -> Stores {
        let folder = TempDir::new().expect("a folder");
        Stores { folder, server: RedisServer::shared(), cluster: Vec::new() }
    }

    fn urls(&self) -> Vec<String> {
        let file = format!("sqlite:{}", self.folder.path().join("ledger.db").display());
        let node = self.cluster.first().map(RedisServer::cluster_url);
        [file, self.server.fresh_url()].into_iter().chain(node).collect()
    }
}

#[tokio::test]
async fn a_day_is_noted_if_it_follows_on_what_is_noted_and_the_journal_has_its_lines() {
    let stores = Stores::start();
    for url in stores.urls() {
        let store = opened(&url).await;
        let nobody = store.archive.read_archive_state(&name("ada")).await;
        assert_eq!(nobody, Ok(None), "{url}");
        assert!(!mark(&store, "ada", 0, &day(1, 1)).await, "{url}: nobody has no lines");
        assert_eq!(trim(&store, "ada", 9, 9).await, 0, "{url}");
        open_account(&store, "ada").await;
        assert_eq!(state(&store, "ada").await, ArchiveState::default(), "{url}");
        charge(&store, "ada", 0..9).await;
        for (after, day) in [(0, day(1, 0)), (0, day(1, 10)), (1, day(1, 4)), (0, day(1, u64::MAX))]
        {
            assert!(!mark(&store, "ada", after, &day).await, "{url}: {after} {day:?}");
        }
        let before_1970 = day(-2, 3);
        assert!(mark(&store, "ada", 0, &before_1970).await, "{url}");
        assert!(mark(&store, "ada", 0, &before_1970).await, "{url}: again");
        let other = ArchivedDay { digest: "f".repeat(64), ..before_1970.clone() };
        for (after, day) in [
            (1, before_1970.clone()),
            (0, other.clone()),
            (3, other),
            (0, day(1, 5)),
            (3, day(1, 3)),
            (3, day(-2, 5)),
            (3, day(-3, 5)),
            (4, day(1, 5)),
        ] {
            assert!(!mark(&store, "ada", after, &day).await, "{url}: {after} {day:?}");
        }
        assert!(mark(&store, "ada", 3, &day(5, 7)).await, "{url}");
        assert!(mark(&store, "ada", 3, &day(5, 7)).await, "{url}: again");
        assert!(!mark(&store, "ada", 0, &before_1970).await, "{url}: it is no longer the last one");
        assert!(mark(&store, "ada", 7, &day(6, 9)).await, "{url}");
        let archived = Some(day(6, 9));
        let expected = ArchiveState { lines: 9, folded: 0, archived, trimmed: 0 };
        assert_eq!(state(&store, "ada").await, expected, "{url}");
        for (seq, limit, expected) in [
            (0, 9, vec![before_1970.clone(), day(5, 7), day(6, 9)]),
            (0, 2, vec![before_1970.clone(), day(5, 7)]),
            (2, 1, vec![before_1970.clone()]),
            (3, 9, vec![day(5, 7), day(6, 9)]),
            (8, 9, vec![day(6, 9)]),
            (9, 9, vec![]),
            (0, 0, vec![]),
            (u64::MAX, 9, vec![]),
        ] {
            let listed = store.archive.list_archived_days(&name("ada"), seq, limit).await;
            assert_eq!(listed, Ok(expected), "{url}: {seq} {limit}");
        }
        assert_eq!(store.archive.list_archived_days(&name("bob"), 0, 9).await, Ok(vec![]));
        let clock = store.archive.archive_clock().await.expect("a time");
        assert!((clock - super::script::now()).abs() < 60_000, "{url}");
    }
}

#[tokio::test]
async fn only_lines_go_that_are_archived_and_in_the_sums_and_never_the_last_one() {
    let stores = Stores::start();
    for url in stores.urls() {
        let store = opened(&url).await;
        open_account(&store, "ada").await;
        charge(&store, "ada", 0..12).await;
        assert_eq!(trim(&store, "ada", 12, 100).await, 0, "{url}: nothing is archived");
        assert!(mark(&store, "ada", 0, &day(1, 8)).await, "{url}");
        assert_eq!(trim(&store, "ada", 12, 100).await, 0, "{url}: nothing is in the sums");
        store.usage.fold_next(5).await.expect("a step");
        let folded = state(&store, "ada").await.folded;
        assert_eq!(folded, 5, "{url}");
        assert_eq!(trim(&store, "ada", 0, 100).await, 0, "{url}");
        assert_eq!(trim(&store, "ada", 12, 0).await, 0, "{url}");
        assert_eq!(trim(&store, "ada", 2, 100).await, 2, "{url}");
        assert_eq!(trim(&store, "ada", 1, 100).await, 2, "{url}: a line does not come back");
        assert_eq!(trim(&store, "ada", 12, 1).await, 3, "{url}: one at a time");
        assert_eq!(trim(&store, "ada", u64::MAX, u32::MAX).await, 5, "{url}: the others wait");
        fold_all(&store, 100).await;
        assert_eq!(trim(&store, "ada", 12, 100).await, 8, "{url}: the others are not archived");
        assert!(mark(&store, "ada", 8, &day(2, 12)).await, "{url}");
        for _ in 0..2 {
            assert_eq!(trim(&store, "ada", 12, 100).await, 11, "{url}: the last one stays");
        }
        assert_eq!(numbers(&lines_after(&store, 0, 100).await), [12], "{url}");
        let (archived, trimmed) = (Some(day(2, 12)), 11);
        let expected = ArchiveState { lines: 12, folded: 12, archived, trimmed };
        assert_eq!(state(&store, "ada").await, expected, "{url}");
        // Another process sees the same, and the note can be repeated.
        let again = opened(&url).await;
        assert_eq!(state(&again, "ada").await, expected, "{url}");
        assert!(mark(&again, "ada", 8, &day(2, 12)).await, "{url}");
        charge(&again, "ada", 12..14).await;
        assert_eq!(numbers(&lines_after(&store, 0, 100).await), [12, 13, 14], "{url}");
        assert_eq!(trim(&store, "ada", 100, 100).await, 12, "{url}: it is no longer the last one");
    }
}

#[tokio::test]
async fn lines_keep_their_numbers_when_others_before_them_go() {
    let stores = Stores::start();
    for url in stores.urls() {
        let store = opened(&url).await;
        open_account(&store, "ada").await;
        charge(&store, "ada", 0..20).await;
        correct(&store, "ada", 4).await;
        fold_all(&store, 100).await;
        let all = lines_after(&store, 0, 100).await;
        let posted = posted_after(&store, 0, 100).await;
        let books = store.usage.read_usage_books(&name("ada")).await.expect("books");
        for last in [1, 2, 9, 20, 21] {
            let base = archive_to(&store, "ada", last).await;
            assert_eq!(base, last.min(20), "{url}");
            let kept = usize::try_from(base).expect("a number");
            for (seq, limit) in [(0, 100), (base, 3), (base + 1, 3), (30, 3), (u64::MAX, 3), (5, 0)]
            {
                let from = usize::try_from(seq.max(base)).expect("a number").min(all.len());
                let expected: Vec<_> = all[from..].iter().take(limit as usize).cloned().collect();
                assert_eq!(lines_after(&store, seq, limit).await, expected, "{url}: {seq}");
                let expected: Vec<_> = posted[from..].iter().take(limit as usize).collect();
                let found = posted_after(&store, seq, limit).await;
                assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{url}: {seq}");
            }
            assert!(all[kept..].iter().eq(&lines_after(&store, 0, 100).await), "{url}");
            assert_eq!(store.ledger.journal_length(&name("ada")).await, Ok(21), "{url}");
            assert_eq!(store.usage.read_usage_books(&name("ada")).await.expect("books"), books);
        }
        // The next lines, by this process and by another one.
        charge(&store, "ada", 20..23).await;
        let again = opened(&url).await;
        charge(&again, "ada", 23..25).await;
        assert_eq!(numbers(&lines_after(&store, 0, 100).await), [21, 22, 23, 24, 25, 26], "{url}");
        assert_eq!(fold_all(&again, 2).await + fold_all(&store, 2).await, 5, "{url}");
        let books = store.usage.read_usage_books(&name("ada")).await.expect("books");
        let books = books.expect("books");
        assert_eq!((books.folded, books.lines), (26, 26), "{url}");
        let charged = |(_, sums): (_, &tollgate::usage::RollupSums)| {
            sums.charged.nano() - sums.corrected.nano()
        };
        let total: i64 = books.days.iter().map(charged).sum();
        assert_eq!(total, 2 * books.posted.nano(), "{url}: once for the account, once for keys");
    }
}

#[tokio::test]
async fn a_charge_that_is_no_longer_there_cannot_be_corrected() {
    let stores = Stores::start();
    for url in stores.urls() {
        let store = opened(&url).await;
        open_account(&store, "ada").await;
        charge(&store, "ada", 0..10).await;
        fold_all(&store, 100).await;
        assert_eq!(archive_to(&store, "ada", 6).await, 6, "{url}");
        let correct = async |tx: &str, request: &str, found: &[u64]| {
            let (tx, request, reason) = (tx.to_owned(), request.to_owned(), String::new());
            let (found, amount) = (found.to_vec(), nano(2));
            let op = Operation::Correct { tx, request, found, amount, reason };
            store.ledger.submit(&name("ada"), op).await.expect("an outcome")
        };
        // The call r5 has line 6, and r6 has line 7.
        let unknown = Outcome::UnknownCharge;
        assert_eq!(correct("c1", "r5", &[6]).await, unknown, "{url}");
        assert_eq!(correct("c1", "r5", &[0, 1, 6, 7, 10, 11, u64::MAX]).await, unknown, "{url}");
        assert_eq!(correct("c1", "r6", &[1]).await, unknown, "{url}: the first one that is left");
        let corrected = Outcome::Corrected(nano(2));
        assert_eq!(correct("c1", "r6", &[1, 6, 7]).await, corrected, "{url}");
        assert_eq!(correct("c1", "r6", &[]).await, corrected, "{url}: again");
        let last = lines_after(&store, 10, 9).await;
        assert_eq!(numbers(&last), [11], "{url}");
        assert_eq!(last[0].kind, EntryKind::Correction, "{url}");
        // What was corrected before its line went cannot be corrected any more.
        fold_all(&store, 100).await;
        archive_to(&store, "ada", 11).await;
        assert_eq!(correct("c1", "r6", &[7]).await, corrected, "{url}: again");
        assert_eq!(correct("c2", "r6", &[7, 11]).await, unknown, "{url}");
    }
}

/// A version of the fold that counts in another way, or sums that were lost.
#[tokio::test]
async fn sums_that_lack_lines_are_not_made() {
    let stores = Stores::start_two();
    let urls = stores.urls();
    for url in &urls {
        let store = opened(url).await;
        for account in ["ada", "bob"] {
            open_account(&store, account).await;
            charge(&store, account, 0..10).await;
        }
        fold_all(&store, 100).await;
        assert_eq!(archive_to(&store, "ada", 6).await, 6, "{url}");
        if url.starts_with("sqlite") {
            let beside = rusqlite::Connection::open(stores.folder.path().join("ledger.db"));
            let lose = "DELETE FROM usage_fold WHERE account = 1";
            beside.expect("the file").execute_batch(lose).expect("lost");
        } else {
            let client = ::redis::Client::open(url.as_str()).expect("an address");
            let mut beside = client.get_connection().expect("a connection");
            let key = format!("tollgate:{{ada}}:usage:{FOLD_VERSION}");
            ::redis::cmd("DEL").arg(key).exec(&mut beside).expect("lost");
        }
        let store = opened(url).await;
        for account in ["ada", "bob"] {
            charge(&store, account, 10..12).await;
        }
        let (mut folded, mut failed) = (0, Vec::new());
        for _ in 0..4 {
            let report = store.usage.fold_next(100).await.expect("a step");
            folded += report.lines;
            failed.extend(report.failed);
        }
        assert_eq!(folded, 2, "{url}: those of the other account");
        let told = "lines 1 to 6 are in the archive, so the sums cannot be made from the store";
        assert!(!failed.is_empty(), "{url}");
        assert!(
            failed.iter().all(|why| why.contains("'ada'") && why.contains(told)),
            "{url}: {failed:?}"
        );
        assert_eq!(state(&store, "ada").await.folded, 0, "{url}");
        assert_eq!(trim(&store, "ada", 100, 100).await, 6, "{url}: nothing more goes");
    }
}

#[tokio::test]
async fn one_process_writes_to_the_archive_at_a_time() {
    let stores = Stores::start();
    for url in stores.urls() {
        let (first, second) = (opened(&url).await, opened(&url).await);
        let take = async |store: &OpenStore, holder: &str, ms: u64| {
            store.archive.take_archive_turn(holder, ms).await.expect("an answer")
        };
        assert!(take(&first, "a", 60_000).await, "{url}");
        assert!(!take(&second, "b", 60_000).await, "{url}");
        // It is prolonged, and then ends soon.
        assert!(take(&second, "a", u64::MAX).await, "{url}");
        assert!(!take(&first, "b", 60_000).await || url.starts_with("sqlite"), "{url}");
        if url.starts_with("sqlite") {
            // The end of that turn is absurd, so it does not count.
            assert!(!take(&first, "a", 60_000).await, "{url}");
            continue;
        }
        assert!(take(&first, "a", 1).await, "{url}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert!(take(&second, "b", 60_000).await, "{url}");
        assert!(!take(&first, "a", 60_000).await, "{url}");
    }
}

/// Reads and trims at the same time: each page has the lines that belong to its numbers.
#[tokio::test]
async fn a_page_that_is_read_while_lines_go_has_no_wrong_number() {
    let stores = Stores::start_two();
    for url in stores.urls() {
        let (store, beside) = (opened(&url).await, opened(&url).await);
        open_account(&store, "ada").await;
        charge(&store, "ada", 0..60).await;
        fold_all(&store, 100).await;
        assert!(mark(&store, "ada", 0, &day(1, 60)).await, "{url}");
        let trimming = async {
            for to in 1..60 {
                assert_eq!(trim(&beside, "ada", to, 1).await, to, "{url}");
                let call = 100 + to.cast_signed();
                charge(&beside, "ada", call..call + 1).await;
            }
        };
        let reading = async {
            let mut first = 0;
            while first < 60 {
                let lines = posted_after(&store, 0, 1_000).await;
                for (seq, PostedEntry { entry, .. }) in (lines[0].entry.seq..).zip(&lines) {
                    assert_eq!(entry.seq, seq, "{url}");
                    let call = if seq <= 60 { seq - 1 } else { seq + 40 };
                    let named = format!(r#""request_id":"r{call}""#);
                    assert!(entry.line.contains(&named), "{url}: {seq} {}", entry.line);
                }
                first = lines[0].entry.seq;
                assert!(store.ledger.journal_length(&name("ada")).await.expect("one") >= 60);
            }
        };
        tokio::join!(trimming, reading);
    }
}

/// A version of the program that counts the lines that are there would give numbers twice.
#[tokio::test]
async fn the_first_line_that_goes_raises_the_version_of_the_data() {
    let stores = Stores::start_two();
    let urls = stores.urls();
    let file = stores.folder.path().join("ledger.db");
    let version = |url: &str| -> u32 {
        if url.starts_with("sqlite") {
            let beside = rusqlite::Connection::open(&file).expect("the file");
            let read = beside.pragma_query_value(None, "user_version", |row| row.get(0));
            return read.expect("a version");
        }
        let client = ::redis::Client::open(url).expect("an address");
        let mut beside = client.get_connection().expect("a connection");
        let get = ::redis::cmd("GET").arg("tollgate:schema-version").to_owned();
        let version: Option<u32> = get.query(&mut beside).expect("a version");
        version.unwrap_or(1)
    };
    for url in &urls {
        let store = opened(url).await;
        open_account(&store, "ada").await;
        charge(&store, "ada", 0..3).await;
        fold_all(&store, 100).await;
        assert!(mark(&store, "ada", 0, &day(1, 3)).await, "{url}");
        assert_eq!(trim(&store, "ada", 0, 100).await, 0, "{url}");
        assert_eq!(version(url), 1, "{url}: nothing is gone");
        assert_eq!(trim(&store, "ada", 2, 100).await, 2, "{url}");
        assert_eq!(version(url), 6, "{url}");
    }
}

/// A settled call, by its id.
async fn settle_new(store: &OpenStore, id: &str, amount: i64, line: &str) -> Outcome {
    let (id, wanted) = (id.to_owned(), nano(amount));
    let (lease_ms, key, rates) = (LONG_MS, None, Vec::new());
    let hold = Operation::Hold { id: id.clone(), wanted, least: wanted, lease_ms, key, rates };
    store.ledger.submit(&name("ada"), hold).await.expect("a hold");
    let line = line.to_owned();
    let settle = Operation::Settle { id, charge: wanted, line, origin: None, tokens: None };
    store.ledger.submit(&name("ada"), settle).await.expect("a charge")
}
