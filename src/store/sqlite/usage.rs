//! Folds the journals of accounts into usage roll-ups. Lines are read and summed up beside the
//! writer, which only adds the sums, in the transaction that moves the number of the last folded
//! line. If others have moved it meanwhile, nothing is added.

use async_trait::async_trait;

use super::embedded_store::SqliteStore;
use super::posted_lines;
use super::usage_rows::{self, DueLines};
use super::write_txn::WriteTxn;
use super::writer::Priority;
use crate::clock::unix_ms;
use crate::failpoints::failpoint;
use crate::ledger::{AccountName, Unavailable};
use crate::usage::{
    FoldReport, PostedEntry, RollupKey, RollupSums, RollupView, Rollups, UsageBooks, UsageQuery,
    UsageStore, fold,
};

/// What has to be done in the transaction of a step.
struct FoldedStep {
    accounts: Vec<(DueLines, Rollups)>,
    unmarked: Vec<i64>,
    now: i64,
}

impl FoldedStep {
    /// Writes a step. Returns the number of lines that were folded, and why those of some accounts
    /// were not.
    fn write(&self, txn: &mut WriteTxn<'_>) -> rusqlite::Result<(u64, Vec<String>)> {
        let (mut lines, mut failed) = (0, Vec::new());
        for account in &self.unmarked {
            usage_rows::mark_due(txn.conn, *account)?;
        }
        for (due, rows) in &self.accounts {
            match self.add(txn, due, rows) {
                Ok(added) => lines += added,
                Err(why) if txn.conn.is_autocommit() => return Err(why),
                Err(why) => failed.push(format!("account '{}': {why}", due.name)),
            }
        }
        usage_rows::purge_hours(txn.conn, self.now)?;
        Ok((lines, failed))
    }

    /// Adds the sums of an account. If that fails it is undone alone: the transaction has other
    /// accounts, and operations of other callers as well.
    fn add(&self, txn: &mut WriteTxn<'_>, due: &DueLines, rows: &Rollups) -> rusqlite::Result<u64> {
        txn.conn.prepare_cached("SAVEPOINT fold")?.execute([])?;
        let added = usage_rows::apply(txn.conn, due, rows, self.now);
        if added.is_err() && !txn.conn.is_autocommit() {
            txn.conn.prepare_cached("ROLLBACK TO fold")?.execute([])?;
        }
        failpoint!("usage_added");
        txn.conn.prepare_cached("RELEASE fold")?.execute([])?;
        let Some(is_all) = added? else { return Ok(0) };
        if is_all {
            txn.note_folded(&due.name);
        }
        Ok(u64::try_from(due.entries.len()).unwrap_or(u64::MAX))
    }
}

#[async_trait]
impl UsageStore for SqliteStore {
    async fn fold_next(&self, lines_max: u32) -> Result<FoldReport, Unavailable> {
        let (now, cursor) = (unix_ms(), self.fold_cursor.clone());
        let reading = move |c: &rusqlite::Connection| {
            let work = usage_rows::read_due(c, &cursor, lines_max, now)?;
            Ok((work, usage_rows::has_old_hours(c, now)?))
        };
        let (work, has_old_hours) = self.usage_reader.query(reading).await?;
        let (mut accounts, mut failed) = (Vec::new(), work.failed);
        for due in work.accounts {
            match fold(&due.entries) {
                Ok(rows) => accounts.push((due, rows)),
                Err(why) => failed.push(format!("account '{}': {why}", due.name)),
            }
        }
        let names = accounts.iter().map(|(due, _)| due.name.clone()).collect();
        let step = FoldedStep { accounts, unmarked: work.unmarked, now };
        let mut lines = 0;
        if has_old_hours || !step.accounts.is_empty() || !step.unmarked.is_empty() {
            let writing = move |txn: &mut WriteTxn<'_>| step.write(txn);
            let (added, written) = self.scheduler.run(Priority::Now, writing).await?;
            failpoint!("usage_committed", if added > 0);
            lines = added;
            failed.extend(written);
        }
        Ok(FoldReport { lines, accounts: names, has_more: work.has_more || has_old_hours, failed })
    }

    async fn list_usage(
        &self,
        query: UsageQuery,
    ) -> Result<Vec<(RollupKey, RollupSums)>, Unavailable> {
        self.usage_reader.query(move |c| usage_rows::list(c, &query)).await
    }

    async fn read_usage_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        let account = account.clone();
        let views = &RollupView::ALL;
        self.usage_reader.query(move |c| usage_rows::read_books(c, &account, views)).await
    }

    async fn read_account_books(
        &self,
        account: &AccountName,
    ) -> Result<Option<UsageBooks>, Unavailable> {
        let (account, views) = (account.clone(), &[RollupView::Account]);
        self.usage_reader.query(move |c| usage_rows::read_books(c, &account, views)).await
    }

    async fn read_posted(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<PostedEntry>, Unavailable> {
        let account = account.clone();
        self.usage_reader
            .query(move |c| posted_lines::read_posted_of(c, &account, seq, limit))
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;

    use super::*;
    use crate::ledger::{Ledger, Operation};
    use crate::money::Money;
    use crate::usage::{HOURS_KEPT_MS, PeriodKind};

    const DAY_MS: i64 = 86_400_000;

    fn nano(amount: i64) -> Money {
        Money::from_nano(amount).expect("money")
    }

    fn named(name: &str) -> AccountName {
        AccountName::parse(name).expect("a name")
    }

    fn opened(path: &Path) -> SqliteStore {
        SqliteStore::create(path).expect("a file");
        SqliteStore::open(path).expect("a store")
    }

    async fn open_account(store: &SqliteStore, name: &str) {
        store.open_account(&named(name)).await.expect("an account");
        let tx = "p".to_owned();
        let paid = Operation::Credit { tx, amount: nano(1_000_000) };
        store.submit(&named(name), paid).await.expect("credit");
    }

    /// Charges calls of an account, each of which has a number.
    async fn charge(store: &SqliteStore, name: &str, calls: std::ops::Range<u32>) {
        let account = named(name);
        let mut charges = Vec::new();
        for number in calls {
            let (id, wanted) = (format!("r{number}"), nano(5));
            let (least, lease_ms, key, rates) = (wanted, 60_000, None, Vec::new());
            let hold = Operation::Hold { id: id.clone(), wanted, least, lease_ms, key, rates };
            store.submit(&account, hold).await.expect("a hold");
            let model = number % 3;
            let line = format!(
                r#"{{"request_id":"{id}","at":1,"key_id":{model},"model":"m{model}","endpoint":"chat","usage":{{"prompt_tokens":{number},"completion_tokens":1}},"cost_nano":2}}"#
            );
            let charge = nano(i64::from(number % 7));
            let settle = Operation::Settle { id, charge, line, origin: None, tokens: None };
            charges.push(store.submit(&account, settle));
        }
        for charge in charges {
            charge.await.expect("a charge");
        }
    }

    async fn correct(store: &SqliteStore, name: &str, number: u32) {
        let (tx, request) = (format!("c{number}"), format!("r{number}"));
        let (found, reason) = ((1..100).collect(), String::new());
        let op = Operation::Correct { tx, request, found, amount: nano(3), reason };
        store.submit(&named(name), op).await.expect("a correction");
    }

    async fn fold_all(store: &SqliteStore, lines_max: u32) -> u64 {
        let mut lines = 0;
        loop {
            let report = store.fold_next(lines_max).await.expect("a step");
            lines += report.lines;
            if !report.has_more {
                return lines;
            }
        }
    }

    /// The sums are those of the journal, and the journal has what the balances say.
    async fn prove(store: &SqliteStore, name: &str) {
        let books = store.read_usage_books(&named(name)).await.expect("books").expect("books");
        assert_eq!(books.folded, books.lines);
        let lines = store.read_posted(&named(name), 0, u32::MAX).await.expect("lines");
        let whole = fold(&lines).expect("sums");
        let kept_from = unix_ms() - HOURS_KEPT_MS;
        let is_kept =
            |key: &RollupKey| key.period.kind == PeriodKind::Day || key.period.start >= kept_from;
        let of_kind =
            |kind| whole.iter().filter(move |(key, _)| key.period.kind == kind && is_kept(key));
        assert!(books.days.iter().eq(of_kind(PeriodKind::Day)), "{name}");
        let mut hours = Vec::new();
        for view in RollupView::ALL {
            hours.extend(listed(store, name, PeriodKind::Hour, view).await);
        }
        let hours: Rollups = hours.into_iter().collect();
        assert!(hours.iter().eq(of_kind(PeriodKind::Hour)));
        for view in RollupView::ALL {
            let days = books.days.iter().filter(|(key, _)| key.owner.view() == view);
            let sum = |of: fn(&RollupSums) -> Money| -> i64 {
                days.clone().map(|(_, sums)| of(sums).nano()).sum()
            };
            let balances = store.balances(&named(name)).await.expect("an answer");
            let balances = balances.expect("balances");
            assert_eq!(balances.posted.nano(), sum(|s| s.charged) - sum(|s| s.corrected));
            let not_paid = sum(|s| s.written_off) - sum(|s| s.corrected_written_off);
            assert_eq!(balances.written_off.nano(), not_paid);
        }
    }

    async fn listed(
        store: &SqliteStore,
        name: &str,
        kind: PeriodKind,
        view: RollupView,
    ) -> Vec<(RollupKey, RollupSums)> {
        let (from, to, account) = (i64::MIN, i64::MAX, named(name));
        let rows = view.into();
        let query = UsageQuery { account, kind, rows, from, to, rows_max: u32::MAX };
        store.list_usage(query).await.expect("rows")
    }

    #[tokio::test]
    async fn steps_of_any_size_by_any_process_leave_the_sums_of_the_journal() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let (mut first, second) = (opened(&path), opened(&path));
        for name in ["ada", "bob", "cy"] {
            open_account(&first, name).await;
        }
        for round in 0..6_u32 {
            for (name, store) in [("ada", &first), ("bob", &second), ("cy", &first)] {
                charge(store, name, round * 10..round * 10 + 10).await;
                correct(store, name, round * 10 + 4).await;
            }
            // Both follow at once, in steps that end within the lines of an account.
            let (one, other) = tokio::join!(first.fold_next(7), second.fold_next(4));
            assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
            if round % 2 == 1 {
                drop(first);
                first = opened(&path);
            }
        }
        let (one, other) = tokio::join!(fold_all(&first, 5), fold_all(&second, 3));
        assert!(one + other > 0);
        fold_all(&first, 100).await;
        for name in ["ada", "bob", "cy"] {
            prove(&first, name).await;
        }
        assert_eq!(fold_all(&second, 100).await, 0, "nothing is left");
    }

    #[tokio::test]
    async fn of_two_that_have_read_the_same_lines_one_adds_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = opened(&path);
        open_account(&store, "ada").await;
        charge(&store, "ada", 0..20).await;
        let beside = Connection::open(&path).expect("the file");
        let read = || {
            let cursor = usage_rows::FoldCursor::default();
            let work = usage_rows::read_due(&beside, &cursor, 15, unix_ms()).expect("work");
            let with_sums = |due: DueLines| {
                let rows = fold(&due.entries).expect("sums");
                (due, rows)
            };
            let accounts = work.accounts.into_iter().map(with_sums).collect();
            FoldedStep { accounts, unmarked: work.unmarked, now: unix_ms() }
        };
        let steps = [read(), read()];
        let mut lines = Vec::new();
        for step in steps {
            let written = store.scheduler.run(Priority::Now, move |txn| step.write(txn));
            let (added, failed) = written.await.expect("a transaction");
            assert_eq!(failed, [""; 0]);
            lines.push(added);
        }
        assert_eq!(lines, [15, 0]);
        assert_eq!(fold_all(&store, 100).await, 5);
        prove(&store, "ada").await;
    }

    #[tokio::test]
    async fn lines_that_nobody_has_marked_are_found_by_the_next_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = opened(&path);
        for name in ["ada", "bob"] {
            open_account(&store, name).await;
            charge(&store, name, 0..10).await;
        }
        let beside = Connection::open(&path).expect("the file");
        // As an older version leaves it.
        beside.execute_batch("DELETE FROM usage_due; DELETE FROM journal_hour").expect("deleted");
        drop(store);
        let store = opened(&path);
        assert_eq!(fold_all(&store, 100).await, 20);
        prove(&store, "ada").await;
        prove(&store, "bob").await;
        let days = listed(&store, "ada", PeriodKind::Day, RollupView::Account).await;
        assert!(days.iter().all(|(key, _)| key.period.start == 0), "the line's own time counts");
    }

    #[tokio::test]
    async fn sums_of_an_older_version_of_the_fold_are_made_anew_and_newer_ones_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = opened(&path);
        for name in ["ada", "bob"] {
            open_account(&store, name).await;
            charge(&store, name, 0..10).await;
        }
        fold_all(&store, 100).await;
        let beside = Connection::open(&path).expect("the file");
        let versions = "UPDATE usage_rollup SET charged = charged + 7;
                        UPDATE usage_rollup SET model = 'other' WHERE model = 'm2' AND by_key = 0;
                        UPDATE usage_fold SET version = version - 1 WHERE account = 1;
                        UPDATE usage_fold SET version = version + 1 WHERE account = 2";
        // The version before the first one is below what the table allows.
        beside.execute_batch("PRAGMA ignore_check_constraints = ON").expect("a setting");
        beside.execute_batch(versions).expect("changed");
        let books = store.read_usage_books(&named("ada")).await.expect("books").expect("books");
        assert_eq!((books.folded, books.days.len()), (0, 0), "sums of another version are none");
        drop(store);
        let store = opened(&path);
        charge(&store, "bob", 10..20).await;
        assert_eq!(fold_all(&store, 4).await, 10);
        prove(&store, "ada").await;
        let days = listed(&store, "bob", PeriodKind::Day, RollupView::Account).await;
        let calls: u64 = days.iter().map(|(_, sums)| sums.calls).sum();
        assert_eq!(calls, 10, "the newer version has yet to add the others");
    }

    #[tokio::test]
    async fn a_line_counts_when_it_was_posted_whenever_its_call_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = opened(&folder.path().join("t.db"));
        open_account(&store, "ada").await;
        let before = PeriodKind::Day.start_of(unix_ms());
        charge(&store, "ada", 0..3).await;
        let after = PeriodKind::Day.start_of(unix_ms());
        fold_all(&store, 100).await;
        let days = listed(&store, "ada", PeriodKind::Day, RollupView::Account).await;
        assert_eq!(days.len(), 3);
        for (key, _) in days {
            assert!((before..=after).contains(&key.period.start), "{key:?}");
        }
    }

    #[tokio::test]
    async fn sums_that_overflow_harm_no_operation_beside_them_and_no_other_account() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = opened(&path);
        for name in ["ada", "bob"] {
            open_account(&store, name).await;
            charge(&store, name, 0..10).await;
        }
        fold_all(&store, 100).await;
        let beside = Connection::open(&path).expect("the file");
        let largest = "UPDATE usage_rollup SET images = 9223372036854775807 WHERE account = 1";
        beside.execute_batch(largest).expect("changed");
        let line = r#"{"at":1,"key_id":1,"model":"m1","endpoint":"chat","usage":{"images":1}}"#;
        let (id, line) = ("late".to_owned(), line.to_owned());
        let (wanted, key, rates) = (nano(5), None, Vec::new());
        let hold =
            Operation::Hold { id: id.clone(), wanted, least: wanted, lease_ms: 60_000, key, rates };
        store.submit(&named("ada"), hold).await.expect("a hold");
        let settle = Operation::Settle { id, charge: nano(1), line, origin: None, tokens: None };
        store.submit(&named("ada"), settle).await.expect("a charge");
        charge(&store, "bob", 10..20).await;
        let (step, ping) = tokio::join!(store.fold_next(1), store.ping());
        let failed = step.expect("a step").failed;
        assert!(failed.len() == 1 && failed[0].contains("'ada'") && ping.is_ok(), "{failed:?}");
        for _ in 0..4 {
            // The one account fails whenever it has its turn.
            store.fold_next(100).await.expect("a step");
        }
        prove(&store, "bob").await;
    }

    #[tokio::test]
    async fn a_page_of_a_hundred_thousand_lines_reads_a_few_hundred_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = opened(&path);
        open_account(&store, "ada").await;
        let beside = Connection::open(&path).expect("the file");
        // Four weeks of three models, as an older version has written them.
        let today = PeriodKind::Day.start_of(unix_ms());
        let lines = format!(
            "WITH RECURSIVE n (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < 100000)
             INSERT INTO journal (account, seq, amount, written_off, line)
             SELECT 1, seq, 2, 0,
                    json_object('at', {today} - (100000 - seq) * 28 / 100000 * {DAY_MS}, 'model',
                                'm' || (seq % 3), 'endpoint', 'chat', 'key_id', 7)
             FROM n;
             UPDATE account SET posted = 200000, available = available - 200000 WHERE id = 1"
        );
        beside.execute_batch(&lines).expect("lines");
        drop(store);
        let store = opened(&path);
        assert_eq!(fold_all(&store, 10_000).await, 100_000);
        let days = listed(&store, "ada", PeriodKind::Day, RollupView::Account).await;
        assert_eq!(days.len(), 28 * 3);
        let charged: i64 = days.iter().map(|(_, sums)| sums.charged.nano()).sum();
        assert_eq!(charged, 200_000);
        let hours = listed(&store, "ada", PeriodKind::Hour, RollupView::Account).await;
        assert_eq!(hours.len(), 8 * 3, "older hours are not kept");
        assert!(hours.iter().all(|(key, _)| key.period.start >= unix_ms() - HOURS_KEPT_MS));
        let older =
            format!("UPDATE usage_rollup SET start = start - {HOURS_KEPT_MS} WHERE kind = 'hour'");
        beside.execute_batch(&older).expect("changed");
        fold_all(&store, 100).await;
        assert_eq!(listed(&store, "ada", PeriodKind::Hour, RollupView::Account).await, []);
        assert_eq!(listed(&store, "ada", PeriodKind::Day, RollupView::Account).await, days);
    }
}
