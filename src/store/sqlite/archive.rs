//! What the embedded store knows of the archive of journals.

use async_trait::async_trait;
use rusqlite::Connection;

use super::archive_rows;
use super::embedded_store::SqliteStore;
use super::writer::Priority;
use crate::archive::{ArchiveNote, ArchiveState, ArchiveStore, ArchivedDay};
use crate::clock::unix_ms;
use crate::ledger::{AccountName, Unavailable};

impl SqliteStore {
    /// Writes within a savepoint. If that fails it is undone alone, and is no failure of the
    /// transaction, which has operations of other callers as well, unless SQLite has ended it.
    async fn write_archive<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let written = self.scheduler.run(Priority::NowDurable, move |txn| {
            txn.conn.prepare_cached("SAVEPOINT archive")?.execute([])?;
            let written = write(txn.conn);
            if written.is_err() {
                if txn.conn.is_autocommit() {
                    return written.map(Ok);
                }
                txn.conn.prepare_cached("ROLLBACK TO archive")?.execute([])?;
            }
            txn.conn.prepare_cached("RELEASE archive")?.execute([])?;
            Ok(written.map_err(|why| Unavailable(why.to_string())))
        });
        written.await?
    }
}

#[async_trait]
impl ArchiveStore for SqliteStore {
    async fn archive_clock(&self) -> Result<i64, Unavailable> {
        Ok(unix_ms())
    }

    async fn read_archive_state(
        &self,
        account: &AccountName,
    ) -> Result<Option<ArchiveState>, Unavailable> {
        let account = account.clone();
        self.usage_reader.query(move |c| archive_rows::read_state(c, &account)).await
    }

    async fn mark_archived(&self, notes: &[ArchiveNote]) -> Result<bool, Unavailable> {
        let notes = notes.to_vec();
        let writing = move |c: &Connection| {
            notes.iter().try_fold(true, |all, note| Ok(archive_rows::mark(c, note)? && all))
        };
        self.write_archive(writing).await
    }

    async fn list_archived_days(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<ArchivedDay>, Unavailable> {
        let account = account.clone();
        self.usage_reader.query(move |c| archive_rows::list_days(c, &account, seq, limit)).await
    }

    async fn trim_journal(
        &self,
        account: &AccountName,
        to: u64,
        limit: u32,
    ) -> Result<u64, Unavailable> {
        let account = account.clone();
        self.write_archive(move |c| archive_rows::trim(c, &account, to, limit)).await
    }

    async fn take_archive_turn(&self, holder: &str, turn_ms: u64) -> Result<bool, Unavailable> {
        let (holder, turn_ms) = (holder.to_owned(), i64::try_from(turn_ms).unwrap_or(i64::MAX));
        let taking = move |c: &Connection| archive_rows::take_turn(c, &holder, turn_ms, unix_ms());
        self.write_archive(taking).await
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::snapshot::{SnapshotSource, check_copy};
    use super::*;
    use crate::ledger::{Ledger as _, Operation};
    use crate::money::Money;
    use crate::usage::UsageStore as _;

    fn ada() -> AccountName {
        AccountName::parse("ada").expect("a name")
    }

    fn noted(day: ArchivedDay) -> [ArchiveNote; 1] {
        [ArchiveNote { account: ada(), after: 0, day }]
    }

    fn nano(amount: i64) -> Money {
        Money::from_nano(amount).expect("an amount")
    }

    async fn charge(store: &SqliteStore, id: &str, amount: i64) {
        let (id, wanted, line) = (id.to_owned(), nano(20), format!(r#"{{"request_id":"{id}"}}"#));
        let (least, lease_ms, key, rates) = (Money::ZERO, 60_000, None, Vec::new());
        let charge = nano(amount);
        for op in [
            Operation::Hold { id: id.clone(), wanted, least, lease_ms, key, rates },
            Operation::Settle { id, charge, line, origin: None, tokens: None },
        ] {
            store.submit(&ada(), op).await.expect("an outcome");
        }
    }

    /// A store with charges, of which some are written off, corrections and an expiry: 9 lines.
    async fn filled(path: &Path) -> SqliteStore {
        SqliteStore::create(path).expect("a file");
        let store = SqliteStore::open(path).expect("a store");
        store.open_account(&ada()).await.expect("an account");
        let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(100) };
        store.submit(&ada(), credit).await.expect("a payment");
        for (id, amount) in [("a", 30), ("b", 90), ("c", 50)] {
            charge(&store, id, amount).await;
        }
        for (tx, request, amount) in [("c1", "a", 10), ("c2", "b", 80), ("c3", "b", 40)] {
            let (tx, request, reason) = (tx.to_owned(), request.to_owned(), String::new());
            let (found, amount) = ((1..9).collect(), nano(amount));
            let op = Operation::Correct { tx, request, found, amount, reason };
            store.submit(&ada(), op).await.expect("a correction");
        }
        let (tx, lot) = ("g".to_owned(), "1/promotion".parse().expect("a lot"));
        let grant = Operation::Grant { tx, amount: nano(7), lot };
        store.submit(&ada(), grant).await.expect("a grant");
        charge(&store, "d", 3).await;
        charge(&store, "e", 4).await;
        store.fold_next(100).await.expect("a step");
        store
    }

    fn copied(path: &Path, to: &Path) {
        std::fs::remove_file(to).unwrap_or_default();
        SnapshotSource::open(path).expect("a source").copy_to(to).expect("copied");
    }

    #[tokio::test]
    async fn a_copy_of_a_file_without_its_first_lines_adds_up_and_works_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("t.db"), folder.path().join("copy.db"));
        let store = filled(&path).await;
        let digest = "0".repeat(64);
        let day = ArchivedDay { day: 0, last_seq: 9, digest };
        assert_eq!(store.mark_archived(&noted(day)).await, Ok(true));
        for last in 1..=8 {
            assert_eq!(store.trim_journal(&ada(), 9, 1).await, Ok(last));
            copied(&path, &copy);
            assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1), "{last}");
            let restored = SqliteStore::open(&copy).expect("a store");
            let state = restored.read_archive_state(&ada()).await.expect("an answer");
            assert_eq!(state.map(|state| (state.lines, state.trimmed)), Some((9, last)));
            charge(&restored, "f", 5).await;
            let lines = restored.read_journal(&ada(), 0, 100).await.expect("lines");
            assert_eq!(lines.last().map(|line| line.seq), Some(10));
            assert_eq!(lines.first().map(|line| line.seq), Some(last + 1));
        }
        copied(&path, &copy);
        let file = Connection::open(&copy).expect("a file");
        for (change, undo, told) in [
            ("charged = charged + 2", "charged = charged - 2", "what is posted and the journal"),
            ("corrected = corrected + 2", "corrected = corrected - 2", "what is posted and the"),
            ("written_off = written_off - 1", "written_off = written_off + 1", "is written off"),
            ("expired = expired - 1", "expired = expired + 1", "the credit and the payments"),
        ] {
            let set = |sums| format!("UPDATE journal_base SET {sums}");
            file.execute_batch(&set(change)).expect("changed");
            let why = check_copy(&copy).expect_err(change);
            assert!(why.contains(told), "{why}");
            file.execute_batch(&set(undo)).expect("changed back");
            assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1), "{undo}");
        }
        file.execute_batch("DELETE FROM journal_base").expect("deleted");
        check_copy(&copy).expect_err("lines are missing");
    }

    #[tokio::test]
    async fn a_file_from_before_there_was_an_archive_is_checked_and_gets_its_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("t.db"), folder.path().join("copy.db"));
        drop(filled(&path).await);
        let file = Connection::open(&path).expect("a file");
        let drop_all = "DROP TABLE archived_day; DROP TABLE journal_base; DROP TABLE archive_turn";
        file.execute_batch(drop_all).expect("dropped");
        copied(&path, &copy);
        assert_eq!(check_copy(&copy).map(|checked| checked.accounts), Ok(1));
        let store = SqliteStore::open(&path).expect("a store");
        let state = store.read_archive_state(&ada()).await.expect("an answer").expect("an account");
        assert_eq!((state.lines, state.folded, state.trimmed), (9, 9, 0));
        assert_eq!(store.take_archive_turn("a", 1_000).await, Ok(true));
    }

    /// One transaction has the operations of many callers.
    #[tokio::test]
    async fn a_note_that_fails_harms_no_operation_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = filled(&path).await;
        let day = ArchivedDay { day: 0, last_seq: 4, digest: "short".to_owned() };
        let notes = noted(day.clone());
        let (told, ping) = tokio::join!(store.mark_archived(&notes), store.ping());
        assert!(told.is_err() && ping.is_ok(), "{told:?} {ping:?}");
        let notes = noted(ArchivedDay { digest: "0".repeat(64), ..day });
        assert_eq!(store.mark_archived(&notes).await, Ok(true));
        // Sums that leave 64 bits end the trim, and nothing has gone.
        let beside = Connection::open(&path).expect("the file");
        let huge = format!(
            "INSERT INTO journal_base VALUES (1, 1, {0}, 0, 0, 0, 0);
             UPDATE journal SET amount = {0} WHERE seq = 2",
            i64::MAX - 5
        );
        beside.execute_batch(&huge).expect("changed");
        let ada = ada();
        let (gone, ping) = tokio::join!(store.trim_journal(&ada, 9, 9), store.ping());
        assert!(gone.is_err() && ping.is_ok(), "{gone:?} {ping:?}");
        let left = store.read_journal(&ada, 0, 100).await.expect("lines");
        assert_eq!(left.len(), 9);
        let version = beside.pragma_query_value(None, "user_version", |row| row.get(0));
        assert_eq!(version, Ok(5_u32), "that of the grant");
    }

    /// A clock that was a year ahead for a moment.
    #[tokio::test]
    async fn a_turn_whose_end_is_absurd_does_not_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let store = filled(&path).await;
        assert_eq!(store.take_archive_turn("a", 1_000_000).await, Ok(true));
        assert_eq!(store.take_archive_turn("b", 1_000).await, Ok(false));
        let beside = Connection::open(&path).expect("the file");
        let later = "UPDATE archive_turn SET ends_at = ends_at + 31536000000";
        beside.execute_batch(later).expect("changed");
        assert_eq!(store.take_archive_turn("b", 1_000).await, Ok(true));
        beside.execute_batch("UPDATE archive_turn SET ends_at = 5").expect("changed");
        assert_eq!(store.take_archive_turn("a", 1_000).await, Ok(true));
    }
}
