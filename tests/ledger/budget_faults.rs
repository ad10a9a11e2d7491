//! Faults of budgets that a reading of the code has found, on SQLite.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tollgate::ledger::prepaid::answer::{AllotmentStatus, LedgerAnswer};
use tollgate::ledger::prepaid::records::AllotmentId;
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::{
    AccountName, BudgetOwner, KeyId, Ledger, Operation, Outcome, WindowId, WindowKind,
};
use tollgate::money::Money;
use tollgate::store::sqlite::SqliteStore;

use super::script::{LONG_MS, settle};
use super::subject::name;

const KEY: KeyId = KeyId(7);
const OF_KEY: BudgetOwner = BudgetOwner::Key(KEY);

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

/// A file with one account, and a way past the store into what it has written.
struct BudgetedFile {
    store: SqliteStore,
    beside: Connection,
    account: AccountName,
}

impl BudgetedFile {
    /// An account with 100,000 nano-USD, whose key may spend 1,000 in all.
    async fn new(folder: &Path) -> BudgetedFile {
        let path = folder.join("ledger.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let store = SqliteStore::open(&path).expect("a store");
        let beside = Connection::open(path).expect("the file");
        beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
        let account = name("ada");
        assert_eq!(store.open_account(&account).await, Ok(true));
        let file = BudgetedFile { store, beside, account };
        let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(100_000) };
        assert_eq!(file.submit(credit).await, Outcome::Done);
        let limit = Some(nano(1_000));
        let set = file.store.set_budget(&file.account, OF_KEY, WindowKind::Total, limit).await;
        assert_eq!(set, Ok(true));
        file
    }

    async fn submit(&self, op: Operation) -> Outcome {
        self.store.submit(&self.account, op).await.expect("an answer")
    }

    async fn hold(&self, id: &str, amount: i64) -> Outcome {
        let (id, amount) = (id.to_owned(), nano(amount));
        let (least, key) = (amount, Some(KEY));
        self.submit(Operation::Hold {
            id,
            wanted: amount,
            least,
            lease_ms: LONG_MS,
            key,
            rates: Vec::new(),
        })
        .await
    }

    /// What is spent, held and lent of the key's budget.
    async fn used(&self) -> [i64; 3] {
        let budgets = self.store.list_budgets(&self.account).await.expect("budgets");
        let used = budgets.first().expect("the budget").used;
        [used.spent, used.held, used.lent].map(Money::nano)
    }

    async fn lent(&self, step: u64, demand: AllotmentDemand) -> Box<AllotmentStatus> {
        let id = AllotmentId("allotment_run1-1".to_owned());
        let update = AllotmentUpdate {
            step,
            demand: Some(demand),
            lease_ms: LONG_MS,
            ..AllotmentUpdate::replay(id, 0, 1, Vec::new())
        };
        match self.store.update_allotment(&self.account, update).await {
            Ok(Some(LedgerAnswer::Status(status))) => status,
            other => panic!("{other:?}"),
        }
    }

    fn change(&self, sql: &str) {
        self.beside.execute_batch(sql).expect("it is written");
    }
}

/// What a gateway wants that would like to have 100 free, also for the key.
fn wanted() -> AllotmentDemand {
    let keys = [(KEY, nano(100))].into();
    AllotmentDemand { free: nano(100), quote: nano(1), keys, ..Default::default() }
}

#[tokio::test]
async fn a_stream_of_a_key_without_new_calls_was_extended_past_the_limit_of_the_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = BudgetedFile::new(folder.path()).await;
    let status = file.lent(1, wanted()).await;
    let total = WindowId::at(OF_KEY, WindowKind::Total, 0);
    assert_eq!(status.slices[&total].amount, nano(100));
    // The stream holds 50, and asks for 5,000 in all. Other calls are made, but none of its key.
    let needed = nano(5_000);
    let needed_in = [(total, needed)];
    let demand = AllotmentDemand {
        needed,
        needed_in: needed_in.into(),
        kept: needed,
        kept_in: needed_in.into(),
        open_calls: 1,
        keys: [].into(),
        ..wanted()
    };
    let status = file.lent(2, demand).await;
    assert_eq!(status.slices[&total].amount, nano(1_000), "the whole limit, and no more");
    assert_eq!(file.used().await, [0, 1_000, 1_000]);
}

#[tokio::test]
async fn the_slice_of_an_allotment_that_an_older_version_ended_stayed_lent_after_an_extension() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = BudgetedFile::new(folder.path()).await;
    assert_eq!(file.hold("a", 30).await, Outcome::Held(nano(30)));
    assert_eq!(file.lent(1, wanted()).await.held, nano(100));
    assert_eq!(file.used().await, [0, 130, 100]);
    file.change(
        "BEGIN IMMEDIATE;
         DELETE FROM open_hold WHERE id = 'allotment_run1-1';
         UPDATE account SET available = available + 100, held = held - 100;
         COMMIT",
    );
    let extend = Operation::Extend { id: "a".to_owned(), wanted: nano(2_000) };
    assert_eq!(file.submit(extend).await, Outcome::Held(nano(1_000)));
    assert_eq!(file.used().await, [0, 1_000, 0]);
}

#[tokio::test]
async fn a_hold_that_an_older_version_let_expire_stayed_held_if_it_was_settled_before_a_sweep() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = BudgetedFile::new(folder.path()).await;
    for id in ["settled", "voided"] {
        assert_eq!(file.hold(id, 30).await, Outcome::Held(nano(30)));
    }
    file.change(
        "BEGIN IMMEDIATE;
         INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted)
         SELECT account, id, wanted, least, held, lease_until, 3, 0 FROM open_hold;
         DELETE FROM open_hold;
         UPDATE account SET available = available + 60, held = held - 60;
         COMMIT",
    );
    let posted = Outcome::Posted { amount: nano(25), written_off: Money::ZERO };
    assert_eq!(file.submit(settle("settled", nano(25))).await, posted);
    let void = Operation::Void { id: "voided".to_owned() };
    assert_eq!(file.submit(void).await, Outcome::Voided);
    file.store.expire_holds().await.expect("a sweep");
    assert_eq!(file.used().await, [25, 0, 0]);
}
