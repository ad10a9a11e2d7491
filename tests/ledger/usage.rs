//! Sums of usage on every store: whoever folds, however often and in whatever steps, the sums are
//! those of the journal.

use tempfile::TempDir;
use tollgate::ledger::{KeyId, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::OpenStore;
use tollgate::usage::{
    PeriodKind, PostedEntry, RollupKey, RollupOwner, RollupSums, RollupView, Rollups, UsageQuery,
    UsageRows, fold,
};

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, opened};

const ACCOUNTS: [&str; 3] = ["ada", "bob", "cy"];

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

pub(super) async fn open_account(store: &OpenStore, account: &str) {
    store.ledger.open_account(&name(account)).await.expect("an account");
    let paid = Operation::Credit { tx: "p".to_owned(), amount: nano(200) };
    store.ledger.submit(&name(account), paid).await.expect("a payment");
}

/// Charges calls, each of which has a number. Some cost more than was held, and some more than
/// there is.
pub(super) async fn charge(store: &OpenStore, account: &str, calls: std::ops::Range<i64>) {
    for number in calls {
        let (id, account) = (format!("r{number}"), name(account));
        let key = (number % 3 > 0).then(|| KeyId(number.unsigned_abs() % 3));
        let (wanted, least, lease_ms, rates) = (nano(3), Money::ZERO, LONG_MS, Vec::new());
        let hold = Operation::Hold { id: id.clone(), wanted, least, lease_ms, key, rates };
        store.ledger.submit(&account, hold).await.expect("a hold");
        let of_key = key.map(|KeyId(id)| format!(r#","key_id":{id}"#)).unwrap_or_default();
        let line = format!(
            r#"{{"request_id":"{id}","at":1,"model":"m {}","endpoint":"chat"{of_key},"usage":{{"prompt_tokens":{number},"completion_tokens":1}},"cost_nano":2}}"#,
            number % 2
        );
        let settle =
            Operation::Settle { id, charge: nano(number % 9), line, origin: None, tokens: None };
        let outcome = store.ledger.submit(&account, settle).await.expect("a charge");
        assert!(matches!(outcome, Outcome::Posted { .. }), "{outcome:?}");
    }
}

pub(super) async fn correct(store: &OpenStore, account: &str, number: i64) {
    let (tx, request) = (format!("c{number}"), format!("r{number}"));
    let (found, reason) = ((1..100).collect(), String::new());
    let op = Operation::Correct { tx, request, found, amount: nano(2), reason };
    let outcome = store.ledger.submit(&name(account), op).await.expect("a correction");
    assert!(matches!(outcome, Outcome::Corrected(_)), "{outcome:?}");
}

pub(super) async fn fold_all(store: &OpenStore, lines_max: u32) -> u64 {
    let mut lines = 0;
    loop {
        let report = store.usage.fold_next(lines_max).await.expect("a step");
        lines += report.lines;
        if !report.has_more {
            return lines;
        }
    }
}

async fn listed(
    store: &OpenStore,
    account: &str,
    rows: impl Into<UsageRows>,
    rows_max: u32,
) -> Vec<(RollupKey, RollupSums)> {
    let (from, to, kind, account) = (i64::MIN, i64::MAX, PeriodKind::Day, name(account));
    let rows = rows.into();
    let query = UsageQuery { account, kind, rows, from, to, rows_max };
    store.usage.list_usage(query).await.expect("rows")
}

/// The sums are those of the journal, and the balances are those of the sums.
async fn prove(store: &OpenStore, account: &str) -> Vec<PostedEntry> {
    let books = store.usage.read_usage_books(&name(account)).await.expect("books").expect("books");
    assert_eq!(books.folded, books.lines, "{account}");
    let lines = store.usage.read_posted(&name(account), 0, 10_000).await.expect("lines");
    let mut days = fold(&lines).expect("sums");
    days.retain(|key, _| key.period.kind == PeriodKind::Day);
    assert_eq!(books.days, days, "{account}");
    for view in RollupView::ALL {
        let rows = listed(store, account, view, 10_000).await;
        let of_view = days.iter().filter(|(key, _)| key.owner.view() == view);
        assert!(rows.iter().map(|(key, sums)| (key, sums)).eq(of_view.clone()), "{rows:?}");
        let two = listed(store, account, view, 2).await;
        assert_eq!(two, rows[..2], "the first ones");
    }
    for key in [1, 2, 3].map(KeyId) {
        let rows = listed(store, account, UsageRows::Key(key), 10_000).await;
        let of_key = days.iter().filter(|(row, _)| row.owner == RollupOwner::Key(key));
        assert!(rows.iter().map(|(key, sums)| (key, sums)).eq(of_key), "{rows:?}");
    }
    let of_account = days.iter().filter(|(key, _)| key.owner == RollupOwner::Account);
    let sum = |of: fn(&RollupSums) -> Money| -> i64 {
        of_account.clone().map(|(_, sums)| of(sums).nano()).sum()
    };
    assert_eq!(books.posted.nano(), sum(|s| s.charged) - sum(|s| s.corrected));
    let not_paid = sum(|s| s.written_off) - sum(|s| s.corrected_written_off);
    assert_eq!(books.written_off.nano(), not_paid);
    lines
}

/// The urls of the stores.
fn urls(folder: &TempDir, server: &RedisServer) -> [String; 2] {
    [format!("sqlite:{}", folder.path().join("ledger.db").display()), server.fresh_url()]
}

#[tokio::test]
async fn each_line_is_in_the_sums_once_however_many_fold_at_the_same_time() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (mut first, second) = (opened(&url).await, opened(&url).await);
        for account in ACCOUNTS {
            open_account(&first, account).await;
        }
        for round in 0..6 {
            for (account, store) in ACCOUNTS.into_iter().zip([&first, &second, &first]) {
                charge(store, account, round * 10..round * 10 + 10).await;
                correct(store, account, round * 10 + 4).await;
            }
            // Steps that end within the lines of an account.
            let (a, b, c) = tokio::join!(
                first.usage.fold_next(7),
                second.usage.fold_next(4),
                second.usage.fold_next(5)
            );
            assert!(a.is_ok() && b.is_ok() && c.is_ok(), "{a:?} {b:?} {c:?}");
            if round % 2 == 1 {
                // The next process looks at all accounts when it starts.
                first = opened(&url).await;
            }
        }
        fold_all(&second, 9).await;
        fold_all(&opened(&url).await, 9).await;
        for account in ACCOUNTS {
            assert_eq!(prove(&first, account).await.len(), 66, "{url}");
        }
        assert_eq!(fold_all(&second, 100).await, 0, "nothing is left");
    }
}

#[tokio::test]
async fn a_line_counts_when_it_was_posted_whenever_its_call_was() {
    let (folder, server) = (TempDir::new().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let store = opened(&url).await;
        open_account(&store, "ada").await;
        let before = PeriodKind::Hour.start_of(super::script::now());
        charge(&store, "ada", 0..3).await;
        let after = PeriodKind::Hour.start_of(super::script::now());
        let lines = store.usage.read_posted(&name("ada"), 0, 10).await.expect("lines");
        assert_eq!(lines.len(), 3);
        for line in lines {
            assert!(
                line.posted_at.is_some_and(|hour| (before..=after).contains(&hour)),
                "{line:?}"
            );
        }
    }
}

/// A server notes the hour where it changes, by its own clock.
#[tokio::test]
async fn lines_of_a_server_have_the_hours_that_were_noted_before_them() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    let hour = 3_600_000;
    for round in 0..3 {
        charge(&store, "ada", round * 2..round * 2 + 2).await;
        // As if the lines so far were hours old.
        let older = (super::script::now() / hour - 9 + round) * hour;
        let text = older.to_string();
        let hours = "tollgate:{ada}:journal-hours";
        server.command(&["ZREMRANGEBYSCORE", hours, &(round * 2).to_string(), "+inf"]);
        let mark = format!("{} {text}", round * 2);
        server.command(&["ZADD", hours, &(round * 2).to_string(), &mark]);
        server.command(&["HSET", "tollgate:{ada}:account", "journal_hour", &text]);
    }
    let lines = store.usage.read_posted(&name("ada"), 0, 10).await.expect("lines");
    let now = super::script::now() / hour;
    let told: Vec<_> = lines.iter().map(|line| line.posted_at.map(|at| now - at / hour)).collect();
    assert_eq!(told, [9, 9, 8, 8, 7, 7].map(Some));
    // A page in the middle has the same hours.
    let some = store.usage.read_posted(&name("ada"), 3, 2).await.expect("lines");
    assert_eq!(some, lines[3..5]);
    fold_all(&store, 4).await;
    prove(&store, "ada").await;
}

/// What a Redis had a moment ago is all it has after a fall. Lines and sums fall together.
#[tokio::test]
async fn a_server_that_falls_back_has_the_sums_of_the_lines_that_it_has() {
    let mut server = RedisServer::start();
    let url = server.url();
    let store = opened(&url).await;
    open_account(&store, "ada").await;
    charge(&store, "ada", 0..20).await;
    fold_all(&store, 7).await;
    charge(&store, "ada", 20..30).await;
    let copy = server.copy();
    charge(&store, "ada", 30..40).await;
    fold_all(&store, 7).await;
    assert_eq!(prove(&store, "ada").await.len(), 40);
    server.fall_back_to(&copy);
    let store = opened(&url).await;
    charge(&store, "ada", 50..70).await;
    fold_all(&store, 7).await;
    assert_eq!(prove(&store, "ada").await.len(), 50);
}

/// Rows of hours are deleted when they are too old, also those of an account on which nothing
/// happens.
#[tokio::test]
async fn sums_by_hour_of_a_server_are_kept_for_eight_days() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    charge(&store, "ada", 0..3).await;
    fold_all(&store, 9).await;
    let (hour, day) = (3_600_000, 86_400_000);
    let old = (super::script::now() - 9 * day) / hour * hour;
    let kept = (super::script::now() - 7 * day) / hour * hour;
    for kind in ["hour", "hour-keys"] {
        let index = format!("tollgate:{{ada}}:usage:1:{kind}");
        for start in [old, kept] {
            let start = start.to_string();
            server.command(&["ZADD", &index, &start, &start]);
            server.command(&["HSET", &format!("{index}:{start}"), "[null,\"e\",\"m\"]", "0"]);
        }
    }
    fold_all(&opened(&server.url()).await, 9).await;
    for kind in ["hour", "hour-keys"] {
        let index = format!("tollgate:{{ada}}:usage:1:{kind}");
        let exists = |start: i64| {
            let rows = server.command(&["EXISTS", &format!("{index}:{start}")]);
            let place = server.command(&["ZSCORE", &index, &start.to_string()]);
            (rows == redis::Value::Int(1), place != redis::Value::Nil)
        };
        assert_eq!((exists(old), exists(kept)), ((false, false), (true, true)), "{kind}");
    }
}

/// The last hours of an account on which nothing happens any more were kept for ever.
#[tokio::test]
async fn sums_by_hour_of_an_idle_account_go_as_well() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    let (hour, day) = (3_600_000, 86_400_000);
    let index = "tollgate:{ada}:usage:1:hour";
    for days in [40, 41, 42] {
        let start = ((super::script::now() - days * day) / hour * hour).to_string();
        server.command(&["ZADD", index, &start, &start]);
        server.command(&["HSET", &format!("{index}:{start}"), "[null,\"e\",\"m\"]", "0"]);
    }
    fold_all(&store, 9).await;
    assert_eq!(server.command(&["EXISTS", index]), redis::Value::Int(0));
}

/// Nothing reads the journal for a page.
#[tokio::test]
async fn a_page_of_a_server_reads_no_lines_and_few_rows() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    let today = PeriodKind::Day.start_of(super::script::now());
    // Four weeks of lines, as an older version has written them: no hours are noted.
    let push = "for n = 0, 99999 do
                    local at = ARGV[1] - math.floor(n * 28 / 100000) * 86400000
                    local line = '2 0 {\"at\":%.0f,\"model\":\"m%d\",\"key_id\":%d}'
                    redis.call('RPUSH', KEYS[1], string.format(line, at, n % 3, n % 500))
                end
                redis.call('HSET', KEYS[2], 'posted', 200000)";
    let today_text = today.to_string();
    let (journal, account) = ("tollgate:{ada}:journal", "tollgate:{ada}:account");
    server.command(&["EVAL", push, "2", journal, account, &today_text]);
    assert_eq!(fold_all(&opened(&server.url()).await, 10_000).await, 100_000);
    server.command(&["CONFIG", "RESETSTAT"]);
    let rows = listed(&store, "ada", RollupView::Account, 20_000).await;
    assert_eq!(rows.len(), 28 * 3);
    let charged: i64 = rows.iter().map(|(_, sums)| sums.charged.nano()).sum();
    assert_eq!(charged, 200_000);
    let stats = format!("{:?}", server.command(&["INFO", "commandstats"]));
    assert!(!stats.contains("cmdstat_lrange"), "{stats}");
    let of_keys = listed(&store, "ada", RollupView::Keys, 20_000).await;
    assert_eq!(of_keys.len(), 20_000, "no more than were asked for");
    let days: Rollups = rows.into_iter().collect();
    assert_eq!(days.len(), 28 * 3);
}

/// A cluster of which a slot moves, as far as its account is concerned: what was moved is not here.
struct MovedSlot {
    nodes: Vec<RedisServer>,
    /// The place of the node that has the slot.
    owner: usize,
    slot: String,
}

impl MovedSlot {
    async fn of(account: &str) -> (MovedSlot, OpenStore) {
        let nodes = redis_cluster::start();
        let store = opened(&nodes[0].cluster_url()).await;
        let key = format!("tollgate:{{{account}}}:account");
        let slot: i64 = redis::from_redis_value(nodes[0].command(&["CLUSTER", "KEYSLOT", &key]))
            .expect("a slot");
        open_account(&store, account).await;
        let has_it = |node: &RedisServer| node.try_command(&["EXISTS", &key]).is_ok();
        let owner = nodes.iter().position(has_it).expect("an owner");
        (MovedSlot { nodes, owner, slot: slot.to_string() }, store)
    }

    fn begin(&self) {
        let other = &self.nodes[(self.owner + 1) % 3];
        let id: String =
            redis::from_redis_value(other.command(&["CLUSTER", "MYID"])).expect("an id");
        self.command(&["CLUSTER", "SETSLOT", &self.slot, "MIGRATING", &id]);
    }

    fn end(&self) {
        self.command(&["CLUSTER", "SETSLOT", &self.slot, "STABLE"]);
    }

    fn command(&self, words: &[&str]) -> redis::Value {
        self.nodes[self.owner].command(words)
    }
}

/// Money was moved, and the script ended before it had added the line.
#[tokio::test]
async fn a_slot_that_moves_left_a_charge_without_its_line() {
    let (moved, store) = MovedSlot::of("ada").await;
    charge(&store, "ada", 0..3).await;
    let (id, wanted) = ("late".to_owned(), nano(5));
    let (lease_ms, key, rates) = (LONG_MS, None, Vec::new());
    let hold = Operation::Hold { id: id.clone(), wanted, least: wanted, lease_ms, key, rates };
    store.ledger.submit(&name("ada"), hold).await.expect("a hold");
    let posted = || moved.command(&["HGET", "tollgate:{ada}:account", "posted"]);
    let before = posted();
    // A new hour, whose key has moved already.
    moved.command(&["HDEL", "tollgate:{ada}:account", "journal_hour"]);
    moved.command(&["DEL", "tollgate:{ada}:journal-hours"]);
    moved.begin();
    let line = r#"{"request_id":"late","at":1}"#.to_owned();
    let settle = Operation::Settle { id, charge: nano(4), line, origin: None, tokens: None };
    let failed = store.ledger.submit(&name("ada"), settle.clone()).await;
    let failed = failed.expect_err("the slot moves").to_string();
    assert!(failed.contains("non local key"), "it is the script that fails: {failed}");
    assert_eq!(posted(), before);
    moved.end();
    let outcome = store.ledger.submit(&name("ada"), settle).await.expect("a charge");
    assert_eq!(outcome, Outcome::Posted { amount: nano(4), written_off: Money::ZERO });
    fold_all(&store, 100).await;
    assert_eq!(prove(&store, "ada").await.len(), 4);
}

/// Some sums were written, and the number of the last line was not moved.
#[tokio::test]
async fn a_slot_that_moves_left_lines_in_sums_twice() {
    let (moved, store) = MovedSlot::of("ada").await;
    charge(&store, "ada", 0..6).await;
    fold_all(&store, 100).await;
    charge(&store, "ada", 6..12).await;
    for kind in ["hour", "day", "day-keys"] {
        let index = format!("tollgate:{{ada}}:usage:1:{kind}");
        let starts: Vec<String> =
            redis::from_redis_value(moved.command(&["ZRANGE", &index, "0", "-1"])).expect("starts");
        let rows = format!("{index}:{}", starts[0]);
        let redis::Value::BulkString(copy) = moved.command(&["DUMP", &rows]) else {
            panic!("no rows of {kind}");
        };
        moved.begin();
        moved.command(&["DEL", &rows]);
        let step = store.usage.fold_next(100).await;
        assert!(step.as_ref().map_or(true, |step| step.lines == 0), "{kind}: {step:?}");
        moved.end();
        let mut connection = moved.nodes[moved.owner].connection();
        redis::cmd("RESTORE").arg(&rows).arg(0).arg(copy).exec(&mut connection).expect("restored");
    }
    // The account is marked still, or again.
    charge(&store, "ada", 12..13).await;
    fold_all(&store, 100).await;
    assert_eq!(prove(&store, "ada").await.len(), 13);
}

/// The account at the top of the list had all turns until its lines were folded.
#[tokio::test]
async fn an_account_with_many_lines_made_those_after_it_wait() {
    let server = RedisServer::shared();
    let store = opened(&server.fresh_url()).await;
    for account in ACCOUNTS {
        open_account(&store, account).await;
    }
    charge(&store, "ada", 0..40).await;
    charge(&store, "cy", 0..2).await;
    // Each step ends within the lines of the first account.
    let mut steps = 0;
    while store.usage.read_usage_books(&name("cy")).await.expect("books").expect("books").folded < 2
    {
        store.usage.fold_next(5).await.expect("a step");
        steps += 1;
        assert!(steps < 4, "it waits");
    }
}

/// One account that cannot be folded ended each step, and all others waited for ten seconds.
#[tokio::test]
async fn an_account_that_cannot_be_read_made_all_others_wait() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    for account in ACCOUNTS {
        open_account(&store, account).await;
        charge(&store, account, 0..4).await;
    }
    server.command(&["LSET", "tollgate:{ada}:journal", "2", "no line"]);
    server.command(&["HSET", "tollgate:{bob}:usage:1", "seq", "nothing"]);
    let report = store.usage.fold_next(100).await.expect("a step");
    assert_eq!(report.lines, 4, "{report:?}");
    assert!(report.failed.len() == 2 && !report.has_more, "{report:?}");
    assert!(report.failed[0].contains("'ada'") && report.failed[1].contains("'bob'"), "{report:?}");
    prove(&store, "cy").await;
    server.command(&["DEL", "tollgate:{bob}:usage:1"]);
    assert_eq!(store.usage.fold_next(100).await.expect("a step").lines, 4);
    prove(&store, "bob").await;
}

/// The sums are read while they change.
#[tokio::test]
async fn books_are_proved_while_lines_are_folded() {
    let server = RedisServer::start();
    let store = opened(&server.url()).await;
    open_account(&store, "ada").await;
    let charging = async {
        for round in 0..40 {
            charge(&store, "ada", round * 3..round * 3 + 3).await;
            store.usage.fold_next(2).await.expect("a step");
        }
    };
    let proving = async {
        let mut seen = 0;
        while seen < 60 {
            let books = store.usage.read_usage_books(&name("ada")).await.expect("books");
            let books = books.expect("books");
            let lines = store.usage.read_posted(&name("ada"), 0, 1_000).await.expect("lines");
            let folded = usize::try_from(books.folded).expect("a number");
            let mut days = fold(&lines[..folded]).expect("sums");
            days.retain(|key, _| key.period.kind == PeriodKind::Day);
            assert_eq!(books.days, days);
            seen = books.folded;
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(charging, proving);
}
