//! A version without a table for open holds kept them among those that ended. It may still be at
//! work on a file: what it leaves there has to end as everywhere, and what it ends has ended.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tollgate::ledger::account::Balances;
use tollgate::ledger::{
    AccountName, BudgetOwner, BudgetUse, JournalEntry, OpenHold, OpenLot, Operation, Outcome,
    WindowKind,
};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::script::{LONG_MS, SHORT_MS, balances_text, journal_text, settle};
use super::subject::{self, Stored, Subject, at, name};
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

    async fn apply(&mut self, account: &AccountName, op: &Operation) -> Outcome {
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

    async fn journal(&mut self, account: &AccountName) -> Vec<JournalEntry> {
        self.store.journal(account).await
    }

    async fn set_budget(
        &mut self,
        account: &AccountName,
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    ) -> bool {
        self.store.set_budget(account, owner, kind, limit).await
    }

    async fn budgets(&mut self, account: &AccountName) -> Vec<BudgetUse> {
        self.store.budgets(account).await
    }

    async fn lots(&mut self, account: &AccountName) -> Vec<OpenLot> {
        self.store.lots(account).await
    }

    async fn holds(&mut self, account: &AccountName) -> Vec<OpenHold> {
        self.store.holds(account).await
    }
}

#[tokio::test]
async fn holds_of_a_version_with_one_table_do_what_the_tables_say() {
    let mut moved = 0;
    // That version finds no key of an account with budgets, so it makes no holds there.
    for (file, cases) in tables().into_iter().filter(|(file, _)| file != "budgets.txt") {
        let folder = tempfile::tempdir().expect("a folder");
        let mut older = Older::new(folder.path()).await;
        let done = subject::run(&mut older, &cases).await;
        done.unwrap_or_else(|why| panic!("{file} {why}"));
        moved += older.moved;
    }
    assert!(moved > 100, "{moved} holds stood");
}

/// What that version does with a charge of 55 for a hold of 60 that it does not see.
const CHARGED: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted)
    SELECT account, id, wanted, least, 0, 0, 1, 55 FROM open_hold;
    INSERT INTO journal (account, seq, amount, written_off, line)
    SELECT account, 1, 55, 0, '{\"name\":\"a\"}' FROM open_hold;
    UPDATE account SET available = available - 55, posted = posted + 55;
    COMMIT";

#[tokio::test]
async fn what_an_older_version_charged_without_seeing_its_hold_is_charged_once() {
    let nano = |nano| Money::from_nano(nano).expect("not negative");
    let checkpoint = Operation::Checkpoint {
        id: "a".to_owned(),
        charge: nano(20),
        line: "{\"name\":\"a\"}".to_owned(),
    };
    let charged = Outcome::AlreadyPosted(nano(55));
    for (lease_ms, end) in [
        (LONG_MS, Some(settle("a", nano(57)))),
        (LONG_MS, Some(Operation::Void { id: "a".to_owned() })),
        (SHORT_MS, None),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut older = Older::new(folder.path()).await;
        let (store, account) = (&mut older.store, name("mixed"));
        assert!(store.open(&account).await);
        let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(200) };
        assert_eq!(store.apply(&account, &paid).await, Outcome::Done);
        let (id, wanted) = ("a".to_owned(), nano(60));
        let hold =
            Operation::Hold { id, wanted, least: wanted, lease_ms, key: None, rates: Vec::new() };
        assert_eq!(store.apply(&account, &hold).await, Outcome::Held(wanted));
        assert_eq!(store.apply(&account, &checkpoint).await, Outcome::Done);
        older.beside.execute_batch(CHARGED).expect("it is charged");

        match &end {
            Some(end) => assert_eq!(store.apply(&account, end).await, charged),
            None => assert_eq!(store.expire().await, 1),
        }
        let balances = balances_text(store.balances(&account).await);
        assert_eq!(balances, "credit 200 available 145 held 0 posted 55 lost 0", "{end:?}");
        assert_eq!(store.apply(&account, &settle("a", nano(57))).await, charged);
        assert_eq!(journal_text(&store.journal(&account).await), "a=55/0");
        assert_eq!(store.expire().await, 0);
    }
}

/// A store that a later version has changed so that this one would misread it.
#[tokio::test]
async fn a_redis_with_data_of_a_later_version_is_refused() {
    let server = RedisServer::shared();
    let section = at(server.fresh_url());
    let client = redis::Client::open(section.url.as_str()).expect("an address");
    let mut beside = client.get_connection().expect("a connection");
    for (version, is_refused) in [("1", false), ("4", false), ("7", false), ("8", true)] {
        redis::cmd("SET")
            .arg("tollgate:schema-version")
            .arg(version)
            .exec(&mut beside)
            .expect("set");
        let fault = tollgate::store::open(&section).await.err().map(|why| why.to_string());
        let is_told = fault.as_ref().is_some_and(|why| why.contains("a later version"));
        assert_eq!(is_told, is_refused, "{fault:?}");
    }
}
