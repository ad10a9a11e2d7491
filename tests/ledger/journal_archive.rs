//! Journals whose older lines are in the archive: what was in the store is in the archive or in the
//! store, line by line, whatever ends the work between two steps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use tempfile::TempDir;
use tollgate::archive::{
    ArchiveFault, ArchiveNote, ArchiveReport, ArchiveState, ArchiveStore, ArchivedDay,
    ArchivedUsage, Archiver, JournalArchive,
};
use tollgate::ledger::{AccountName, Operation, Outcome, Unavailable};
use tollgate::money::Money;
use tollgate::store::OpenStore;
use tollgate::usage::{PeriodKind, PostedEntry, UsageStore, fold};

use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, opened};

/// They are in several buckets.
const ACCOUNTS: [&str; 5] = ["ada", "bob", "cy", "dora", "eve"];
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 86_400_000;
/// The lines of an account are this many days old: ten are 40 days old, and so on. The last ones
/// are of today.
const AGES: [(u64, i64); 4] = [(1, 40), (11, 39), (21, 5), (31, 0)];
const LINES: i64 = 35;
/// How many of them are of days that are over.
const OLD_LINES: u64 = 30;

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

async fn charge(store: &OpenStore, account: &str, calls: std::ops::Range<i64>) {
    for number in calls {
        let (id, account) = (format!("r{number}"), name(account));
        let (wanted, least, lease_ms, rates) = (nano(3), Money::ZERO, LONG_MS, Vec::new());
        let hold = Operation::Hold { id: id.clone(), wanted, least, lease_ms, key: None, rates };
        store.ledger.submit(&account, hold).await.expect("a hold");
        let line = format!(r#"{{"request_id":"{id}","at":1,"model":"m{}"}}"#, number % 2);
        let charge = nano(number % 9);
        let settle = Operation::Settle { id, charge, line, origin: None, tokens: None };
        let outcome = store.ledger.submit(&account, settle).await.expect("a charge");
        assert!(matches!(outcome, Outcome::Posted { .. }), "{outcome:?}");
    }
}

/// A store with the lines of all accounts, in the sums of usage, and with their ages.
struct Aged {
    store: OpenStore,
    url: String,
    lines: Vec<Vec<PostedEntry>>,
}

impl Aged {
    async fn new(url: &str) -> Aged {
        let store = opened(url).await;
        for account in ACCOUNTS {
            store.ledger.open_account(&name(account)).await.expect("an account");
            let paid = Operation::Credit { tx: "p".to_owned(), amount: nano(60) };
            store.ledger.submit(&name(account), paid).await.expect("a payment");
            charge(&store, account, 0..LINES).await;
            set_ages(url, account);
        }
        while store.usage.fold_next(1_000).await.expect("a step").has_more {}
        let mut lines = Vec::new();
        for account in ACCOUNTS {
            lines.push(store.usage.read_posted(&name(account), 0, 1_000).await.expect("lines"));
        }
        assert!(lines.iter().all(|lines| lines.len() == usize::try_from(LINES).expect("a count")));
        Aged { store, url: url.to_owned(), lines }
    }

    /// The lines of all accounts are those that were there, and the sums are theirs.
    async fn prove(&self, archive: &Path) {
        let (usage, noted) = (self.store.usage.clone(), self.store.archive.clone());
        let whole = ArchivedUsage::new(usage, noted, Some(address(archive)));
        for (account, expected) in ACCOUNTS.into_iter().zip(&self.lines) {
            let mut lines: Vec<PostedEntry> = Vec::new();
            loop {
                let after = lines.last().map_or(0, |line| line.entry.seq);
                let page = whole.read_posted(&name(account), after, 7).await.expect("a page");
                if page.is_empty() {
                    break;
                }
                assert!(page.len() <= 7);
                lines.extend(page);
            }
            assert!(lines == *expected, "{account} at {}", self.url);
            let books = whole.read_usage_books(&name(account)).await.expect("an answer");
            let mut days = fold(&lines).expect("sums");
            days.retain(|key, _| key.period.kind == PeriodKind::Day);
            assert_eq!(books.expect("books").days, days);
        }
    }

    async fn state(&self, account: &str) -> ArchiveState {
        let state = self.store.archive.read_archive_state(&name(account)).await;
        state.expect("an answer").expect("an account")
    }

    async fn trimmed(&self) -> [u64; ACCOUNTS.len()] {
        let mut all = [0; ACCOUNTS.len()];
        for (account, trimmed) in ACCOUNTS.into_iter().zip(&mut all) {
            *trimmed = self.state(account).await.trimmed;
        }
        all
    }
}

/// Makes the lines of an account as old as [`AGES`] says.
fn set_ages(url: &str, account: &str) {
    let now = super::script::now() / HOUR_MS * HOUR_MS;
    let hours = AGES.map(|(seq, days)| (seq, now - days * DAY_MS));
    if let Some(path) = url.strip_prefix("sqlite:") {
        let file = rusqlite::Connection::open(path).expect("a file");
        file.busy_timeout(std::time::Duration::from_secs(10)).expect("a setting");
        let of = "account = (SELECT id FROM account WHERE name = ?1)";
        let delete = format!("DELETE FROM journal_hour WHERE {of}");
        file.execute(&delete, [account]).expect("deleted");
        for (seq, hour) in hours {
            let insert = "INSERT INTO journal_hour (account, seq, hour)
                          SELECT id, ?2, ?3 FROM account WHERE name = ?1";
            file.execute(insert, rusqlite::params![account, seq.cast_signed(), hour])
                .expect("inserted");
        }
        return;
    }
    let mut server = redis::Client::open(url).expect("an address").get_connection().expect("it");
    let key = format!("tollgate:{{{account}}}:journal-hours");
    redis::cmd("DEL").arg(&key).exec(&mut server).expect("deleted");
    for (seq, hour) in hours {
        let (index, mark) = (seq - 1, format!("{} {hour}", seq - 1));
        redis::cmd("ZADD").arg(&key).arg(index).arg(mark).exec(&mut server).expect("added");
    }
}

fn address(folder: &Path) -> String {
    format!("file:{}", folder.display())
}

async fn archive_with(
    store: &OpenStore,
    noted: &dyn ArchiveStore,
    folder: &Path,
    keep_days: i64,
) -> Result<ArchiveReport, ArchiveFault> {
    archive_as("test", store, noted, folder, keep_days).await
}

async fn archive_as(
    holder: &str,
    store: &OpenStore,
    noted: &dyn ArchiveStore,
    folder: &Path,
    keep_days: i64,
) -> Result<ArchiveReport, ArchiveFault> {
    let archive = JournalArchive::open(&address(folder)).expect("an archive");
    let archiver = Archiver {
        archive: &archive,
        noted,
        usage: &*store.usage,
        ledger: &*store.ledger,
        keep_ms: keep_days * DAY_MS,
        holder,
    };
    archiver.run().await
}

async fn archive(
    store: &OpenStore,
    folder: &Path,
    keep_days: i64,
) -> Result<ArchiveReport, ArchiveFault> {
    archive_with(store, &*store.archive, folder, keep_days).await
}

/// All files of an archive.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

/// The addresses of a store of each kind.
fn urls(folder: &TempDir, server: &RedisServer) -> [String; 2] {
    [format!("sqlite:{}", folder.path().join("ledger.db").display()), server.fresh_url()]
}

#[tokio::test]
async fn lines_of_days_that_are_over_leave_the_store_and_are_read_as_before() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (aged, to) = (Aged::new(&url).await, TempDir::new().expect("a folder"));
        let report = archive(&aged.store, to.path(), 30).await.expect("a run");
        let accounts = ACCOUNTS.len() as u64;
        assert_eq!((report.archived, report.trimmed), (accounts * OLD_LINES, accounts * 20));
        aged.prove(to.path()).await;
        assert_eq!(aged.trimmed().await, [20; ACCOUNTS.len()]);
        let files = files_in(to.path());
        let again = archive(&aged.store, to.path(), 30).await.expect("a run");
        assert_eq!(again, ArchiveReport::default());
        let later = archive(&aged.store, to.path(), 3).await.expect("a run");
        assert_eq!((later.archived, later.trimmed), (0, accounts * 10));
        aged.prove(to.path()).await;
        assert_eq!(files_in(to.path()), files);
    }
}

/// An account whose lines are all old keeps its last one.
#[tokio::test]
async fn the_last_line_of_a_journal_stays_in_the_store() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (store, to) = (opened(&url).await, TempDir::new().expect("a folder"));
        store.ledger.open_account(&name("ada")).await.expect("an account");
        charge(&store, "ada", 0..30).await;
        set_ages(&url, "ada");
        while store.usage.fold_next(1_000).await.expect("a step").has_more {}
        archive(&store, to.path(), 3).await.expect("a run");
        let left = store.usage.read_posted(&name("ada"), 0, 100).await.expect("lines");
        assert_eq!(left.iter().map(|line| line.entry.seq).collect::<Vec<_>>(), [30]);
        assert_eq!(store.ledger.journal_length(&name("ada")).await.expect("it"), 30);
        charge(&store, "ada", 30..33).await;
        let all = store.usage.read_posted(&name("ada"), 29, 100).await.expect("lines");
        assert_eq!(all.iter().map(|line| line.entry.seq).collect::<Vec<_>>(), [30, 31, 32, 33]);
    }
}

#[tokio::test]
async fn without_its_archive_older_lines_are_not_told_and_none_is_skipped() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (aged, to) = (Aged::new(&url).await, TempDir::new().expect("a folder"));
        archive(&aged.store, to.path(), 30).await.expect("a run");
        let (usage, noted) = (aged.store.usage.clone(), aged.store.archive.clone());
        let read = async |url: Option<String>, after| {
            let whole = ArchivedUsage::new(usage.clone(), noted.clone(), url);
            whole.read_posted(&name("ada"), after, 5).await
        };
        let why = read(None, 3).await.expect_err("no archive").to_string();
        assert!(why.contains("lines 4 to 20 of account 'ada' are in an archive"), "{why}");
        assert_eq!(read(None, 20).await.expect("lines of the store").len(), 5);
        let empty = TempDir::new().expect("a folder");
        let why = read(Some(address(empty.path())), 3).await.expect_err("another archive");
        assert!(why.to_string().contains("there is no manifest"), "{why}");
    }
}

/// A store that fails after a number of notes, or that gives everybody the turn.
struct Failing {
    noted: Arc<dyn ArchiveStore>,
    left: AtomicU32,
    gives_turn: bool,
}

impl Failing {
    fn new(aged: &Aged, left: u32) -> Failing {
        let noted = aged.store.archive.clone();
        Failing { noted, left: AtomicU32::new(left), gives_turn: false }
    }

    fn pass(&self) -> Result<(), Unavailable> {
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(Unavailable("the process has died".to_owned()));
        }
        self.left.store(left - 1, Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait]
impl ArchiveStore for Failing {
    async fn archive_clock(&self) -> Result<i64, Unavailable> {
        self.noted.archive_clock().await
    }

    async fn read_archive_state(
        &self,
        account: &AccountName,
    ) -> Result<Option<ArchiveState>, Unavailable> {
        self.noted.read_archive_state(account).await
    }

    async fn mark_archived(&self, notes: &[ArchiveNote]) -> Result<bool, Unavailable> {
        let mut all = true;
        for note in notes {
            self.pass()?;
            all &= self.noted.mark_archived(std::slice::from_ref(note)).await?;
        }
        Ok(all)
    }

    async fn list_archived_days(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<ArchivedDay>, Unavailable> {
        self.noted.list_archived_days(account, seq, limit).await
    }

    async fn trim_journal(
        &self,
        account: &AccountName,
        to: u64,
        limit: u32,
    ) -> Result<u64, Unavailable> {
        self.pass()?;
        self.noted.trim_journal(account, to, limit).await
    }

    async fn take_archive_turn(&self, holder: &str, turn_ms: u64) -> Result<bool, Unavailable> {
        // Whoever was away for long believes that it has the turn.
        Ok(self.noted.take_archive_turn(holder, turn_ms).await? || self.gives_turn)
    }
}

#[tokio::test]
async fn a_run_that_ends_after_any_note_is_finished_by_the_next_one() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (aged, to) = (Aged::new(&url).await, TempDir::new().expect("a folder"));
        let mut runs = 0;
        loop {
            // Each run comes one note further than the one before.
            let failing = Failing::new(&aged, 1);
            let ended = archive_with(&aged.store, &failing, to.path(), 30).await;
            aged.prove(to.path()).await;
            runs += 1;
            if ended.is_ok() {
                break;
            }
        }
        // Three days of five accounts are noted, and two days of each leave the store at once.
        assert!(runs >= 15 + 5, "{runs}");
        assert_eq!(aged.trimmed().await, [20; ACCOUNTS.len()]);
    }
}

#[tokio::test]
async fn two_that_archive_at_the_same_time_archive_each_line_once() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (aged, to) = (Aged::new(&url).await, TempDir::new().expect("a folder"));
        let other = opened(&url).await;
        let (first, second) = (&*aged.store.archive, &*other.archive);
        let run = async |noted, holder| {
            archive_as(holder, &aged.store, noted, to.path(), 30).await.expect("a run")
        };
        let (a, b) = tokio::join!(run(first, "a"), run(second, "b"));
        assert!(a.is_interrupted || b.is_interrupted, "{a:?} {b:?}");
        assert_eq!(a.archived + b.archived, ACCOUNTS.len() as u64 * OLD_LINES);
        aged.prove(to.path()).await;
    }
}

/// A process that has lost its turn without knowing it deletes nothing, and the books are whole
/// whatever it does.
#[tokio::test]
async fn an_archiver_that_has_lost_its_turn_does_no_harm() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (aged, to) = (Aged::new(&url).await, TempDir::new().expect("a folder"));
        let both = [(); 3].map(|()| Failing {
            noted: aged.store.archive.clone(),
            left: AtomicU32::new(u32::MAX),
            gives_turn: true,
        });
        let run = async |noted: &Failing, holder, wait_ms| {
            tokio::time::sleep(std::time::Duration::from_millis(wait_ms)).await;
            archive_as(holder, &aged.store, noted, to.path(), 30).await
        };
        // One of them may find that another has noted what it was about to note.
        let _ = tokio::join!(run(&both[0], "a", 0), run(&both[1], "b", 3), run(&both[2], "c", 15));
        aged.prove(to.path()).await;
        archive(&aged.store, to.path(), 30).await.expect("a run");
        aged.prove(to.path()).await;
        assert_eq!(aged.trimmed().await, [20; ACCOUNTS.len()]);
    }
}

/// The archive is there and the store has lost what it had noted, as after a restored backup of
/// some days ago: the archive is compared and noted anew, and nothing is written twice.
#[tokio::test]
async fn a_store_that_has_forgotten_its_notes_takes_up_the_archive_that_is_there() {
    let mut server = RedisServer::start();
    let aged = Aged::new(&server.url()).await;
    let to = TempDir::new().expect("a folder");
    let copy = server.copy();
    archive(&aged.store, to.path(), 30).await.expect("a run");
    let files = files_in(to.path());
    server.fall_back_to(&copy);
    let aged = Aged { store: opened(&aged.url).await, ..aged };
    assert_eq!(aged.trimmed().await, [0; ACCOUNTS.len()]);
    let report = archive(&aged.store, to.path(), 30).await.expect("a run");
    assert_eq!(report.archived, ACCOUNTS.len() as u64 * OLD_LINES);
    assert_eq!(files_in(to.path()), files);
    aged.prove(to.path()).await;
}

/// Each file of an archive is changed in turn before the store has noted it.
#[tokio::test]
async fn nothing_leaves_a_store_whose_archive_does_not_agree() {
    let folder = TempDir::new().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let (aged, to) = (Aged::new(&url).await, TempDir::new().expect("a folder"));
    // The first day is written and not noted.
    let failing = Failing::new(&aged, 0);
    archive_with(&aged.store, &failing, to.path(), 30).await.expect_err("it has died");
    // A bucket that does not agree does not keep the others from their work.
    let of_bob = |path: &PathBuf| path.to_string_lossy().contains("bucket=01");
    let files: Vec<PathBuf> = files_in(to.path()).into_iter().filter(of_bob).collect();
    assert_eq!(files.len(), 2);
    for path in files {
        let bytes = std::fs::read(&path).expect("a file");
        let is_manifest = path.ends_with("manifest.json");
        let text =
            String::from_utf8_lossy(&bytes).replace("\"charged_nano\":", "\"charged_nano\":1");
        let changed: [Option<Vec<u8>>; 2] = if is_manifest {
            [Some(text.into_bytes()), Some(bytes[..bytes.len() - 1].to_vec())]
        } else {
            let flipped = bytes.iter().enumerate().map(|(at, b)| if at == 40 { b ^ 1 } else { *b });
            [Some(flipped.collect()), None]
        };
        for content in changed {
            match content {
                Some(content) => std::fs::write(&path, content).expect("written"),
                None => std::fs::remove_file(&path).expect("removed"),
            }
            let why = archive(&aged.store, to.path(), 30).await.expect_err("it was changed");
            assert!(matches!(why, ArchiveFault::Differs(_)), "{why}");
            assert_eq!(aged.trimmed().await, [20, 0, 20, 20, 20]);
            std::fs::write(&path, &bytes).expect("as it was");
        }
    }
    // A line of the store is not the one that was written.
    let file = rusqlite::Connection::open(folder.path().join("ledger.db")).expect("a file");
    let change = "UPDATE journal SET line = replace(line, '\"r3\"', '\"r4\"') WHERE seq = 4";
    file.execute(change, []).expect("changed");
    let why = archive(&aged.store, to.path(), 30).await.expect_err("the store was changed");
    assert!(why.to_string().contains("the store has other lines"), "{why}");
    assert_eq!(aged.trimmed().await, [20, 0, 20, 20, 20]);
    file.execute("UPDATE journal SET line = replace(line, '\"r4\"', '\"r3\"') WHERE seq = 4", [])
        .expect("as it was");
    archive(&aged.store, to.path(), 30).await.expect("a run");
    aged.prove(to.path()).await;
}

/// A restored backup lacks the newest lines, which the archive has: nothing is noted of the day of
/// which any line is lost, and nothing is written beside it.
#[tokio::test]
async fn lines_that_a_store_has_lost_and_the_archive_has_stop_the_archiver() {
    let mut server = RedisServer::start();
    let store = opened(&server.url()).await;
    let to = TempDir::new().expect("a folder");
    // Two accounts of one bucket.
    let pair = ["ada", "cy"];
    for account in pair {
        store.ledger.open_account(&name(account)).await.expect("an account");
        charge(&store, account, 0..25).await;
    }
    let copy = server.copy();
    for account in pair {
        charge(&store, account, 25..LINES).await;
        set_ages(&server.url(), account);
    }
    while store.usage.fold_next(1_000).await.expect("a step").has_more {}
    archive(&store, to.path(), 3).await.expect("a run");
    let files = files_in(to.path());
    server.fall_back_to(&copy);
    let store = opened(&server.url()).await;
    charge(&store, pair[0], 40..45).await;
    for account in pair {
        set_ages(&server.url(), account);
    }
    while store.usage.fold_next(1_000).await.expect("a step").has_more {}
    for _ in 0..2 {
        let why = archive(&store, to.path(), 3).await.expect_err("lines are lost");
        assert!(matches!(why, ArchiveFault::Differs(_)), "{why}");
        assert_eq!(files_in(to.path()), files);
        for account in pair {
            let state = store.archive.read_archive_state(&name(account)).await.expect("it");
            // The two days of which no line is lost are noted, and leave the store.
            let state = state.expect("an account");
            assert_eq!((state.archived_seq(), state.trimmed), (20, 20), "{account}");
        }
    }
}
