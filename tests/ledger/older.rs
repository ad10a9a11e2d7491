//! A version without a table for open holds kept them among those that ended. It may still be at
//! work on a file, and what it leaves there has to end as everywhere.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tollgate::ledger::account::Balances;
use tollgate::ledger::{AccountName, Answer, Entry, Operation};

use super::subject::{self, Stored, Subject};
use super::tables::tables;

/// What that version would have written.
const AS_BEFORE: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted, line)
    SELECT account, id, wanted, least, held, lease_until, 0, posted, line FROM open_hold;
    DELETE FROM open_hold;
    COMMIT";

/// SQLite, where every hold that stands is put where that version had it.
struct Older {
    store: Stored,
    beside: Connection,
    moved: u32,
}

impl Older {
    async fn new(folder: &Path) -> Older {
        let store = Stored::sqlite(folder).await;
        let beside = Connection::open(folder.join("ledger.db")).expect("the file");
        beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
        Older { store, beside, moved: 0 }
    }
}

#[async_trait]
impl Subject for Older {
    async fn open(&mut self, account: &AccountName) -> bool {
        self.store.open(account).await
    }

    async fn apply(&mut self, account: &AccountName, op: &Operation) -> Answer {
        let answer = self.store.apply(account, op).await;
        let open = "SELECT count(*) FROM open_hold";
        let open: u32 = self.beside.query_row(open, [], |row| row.get(0)).expect("a number");
        if open > 0 {
            self.beside.execute_batch(AS_BEFORE).expect("they are moved");
        }
        self.moved += open;
        answer
    }

    async fn expire(&mut self) -> u64 {
        self.store.expire().await
    }

    async fn balances(&mut self, account: &AccountName) -> Option<Balances> {
        self.store.balances(account).await
    }

    async fn journal(&mut self, account: &AccountName) -> Vec<Entry> {
        self.store.journal(account).await
    }
}

#[tokio::test]
async fn holds_of_a_version_with_one_table_do_what_the_tables_say() {
    let mut moved = 0;
    for (file, cases) in tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut older = Older::new(folder.path()).await;
        let done = subject::run(&mut older, &cases).await;
        done.unwrap_or_else(|why| panic!("{file} {why}"));
        moved += older.moved;
    }
    assert!(moved > 100, "{moved} holds stood");
}
