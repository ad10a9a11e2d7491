//! The ledger of busy accounts, on a real file.

use super::*;
use crate::clock::unix_ms;
use crate::ledger::lease::{LeaseEntry, LeasedItem};
use crate::ledger::{HoldRequest, Lease, Leases};
use crate::store::outbox::{EndLog, SettlementLog};
use crate::store::sqlite::SqliteStore;

const CALL: &str = "call";
const WAIT: Duration = Duration::from_millis(200);

/// An account on a file, whose holds are in memory.
struct BusyWorld {
    account: AccountName,
    leases: Leases,
    ledger: AllotmentLedger<SqliteStore>,
    upkeep: AllotmentUpkeep<Arc<SqliteStore>>,
    _folder: tempfile::TempDir,
}

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn origin() -> HoldRequest {
    HoldRequest { wanted: nano(100), least: nano(100), at: unix_ms(), key: None }
}

impl BusyWorld {
    async fn new(lease: Duration) -> BusyWorld {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let store = Arc::new(SqliteStore::open(&path).expect("a store"));
        let log = Arc::new(SettlementLog::open_for_embedded(&path).expect("an outbox"));
        let (leases, ends) = (Leases::default(), EndLog::open_for_embedded(&path));
        let ends = ends.expect("a log of ends");
        let book = Arc::new(AllotmentBook::new(ends, leases.clone(), lease));
        let ledger = AllotmentLedger::new(Outbox::new(store.clone(), log), book.clone(), WAIT);
        let upkeep = AllotmentUpkeep::new(book, store, true);
        upkeep.start_lending();
        let account = AccountName::parse("ada").expect("a name");
        ledger.open_account(&account).await.expect("an account");
        let tx = "t".to_owned();
        let paid = ledger.submit(&account, Operation::Credit { tx, amount: nano(1_000_000) }).await;
        assert_eq!(paid, Ok(Outcome::Done));
        BusyWorld { account, leases, ledger, upkeep, _folder: folder }
    }

    /// Makes the hold of [`CALL`] in memory, as soon as the account is busy.
    async fn hold(&self) -> Lease {
        while self.ledger.hold_in_memory(&self.account, CALL, None, nano(100), &[]).is_none() {
            sleep(Duration::from_millis(5)).await;
        }
        let item = LeasedItem::Hold { origin: origin(), held: nano(100), is_in_memory: true };
        let (account, id) = (self.account.clone(), CALL.to_owned());
        self.leases.keep_alive(LeaseEntry { account, id, item })
    }

    async fn submit(&self, op: Operation) -> Outcome {
        self.ledger.submit(&self.account, op).await.expect("an answer")
    }

    async fn settle(&self) -> Outcome {
        let (id, line, origin) = (CALL.to_owned(), "{}".to_owned(), Some(origin()));
        self.submit(Operation::Settle { id, charge: nano(60), line, origin, tokens: None }).await
    }

    async fn posted(&self) -> i64 {
        self.ledger.journal_length(&self.account).await.expect("an answer");
        let balances = self.ledger.balances(&self.account).await.expect("an answer");
        balances.expect("an account").posted.nano()
    }

    /// Does something while the upkeep runs.
    async fn while_kept(&self, body: impl Future<Output = ()>) {
        tokio::select! {
            () = self.upkeep.run() => {}
            () = body => {}
        }
    }
}

#[tokio::test]
async fn a_call_whose_claim_was_taken_over_was_charged_when_it_ended() {
    let world = BusyWorld::new(Duration::from_secs(60)).await;
    let body = async {
        let lease = world.hold().await;
        let void = Operation::Void { id: CALL.to_owned() };
        assert_eq!(world.submit(void).await, Outcome::Voided, "by the retry");
        assert_eq!(world.settle().await, Outcome::Voided, "by the call itself");
        drop(lease);
        assert_eq!(world.posted().await, 0);
    };
    world.while_kept(body).await;
}

#[tokio::test]
async fn a_call_that_ends_is_posted_before_the_journal_is_read() {
    let world = BusyWorld::new(Duration::from_secs(60)).await;
    let body = async {
        let lease = world.hold().await;
        let posted = Outcome::Posted { amount: nano(60), written_off: nano(0) };
        assert_eq!(world.settle().await, posted);
        drop(lease);
        assert_eq!(world.posted().await, 60);
    };
    world.while_kept(body).await;
}

/// Its task has panicked: nobody ends it, and its money stayed held for ever.
#[tokio::test]
async fn a_call_that_nobody_ends_is_charged_what_it_had_cost_and_holds_nothing_more() {
    let world = BusyWorld::new(Duration::from_millis(400)).await;
    let body = async {
        let lease = world.hold().await;
        let (id, line) = (CALL.to_owned(), "{}".to_owned());
        let noted = world.submit(Operation::Checkpoint { id, charge: nano(7), line }).await;
        assert_eq!(noted, Outcome::Done);
        sleep(Duration::from_millis(900)).await;
        assert_eq!(world.posted().await, 0, "its lease is kept");
        drop(lease);
        while world.posted().await == 0 {
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.posted().await, 7);
        let balances = world.ledger.balances(&world.account).await.expect("an answer");
        assert_eq!(balances.expect("an account").held, nano(0));
    };
    world.while_kept(body).await;
}

/// What waits is told with ends, and this account had none.
#[tokio::test]
async fn a_note_of_a_running_stream_waited_for_ends_that_did_not_come() {
    let world = BusyWorld::new(Duration::from_secs(60)).await;
    let body = async {
        let _lease = world.hold().await;
        let busy = world.ledger.book.find(&world.account).expect("a busy account");
        world.ledger.book.take_due();
        busy.lock().is_due = false;
        busy.lock().updated_at = boottime_ms();
        let (id, line) = (CALL.to_owned(), "{}".to_owned());
        world.submit(Operation::Checkpoint { id, charge: nano(7), line }).await;
        assert!(busy.lock().is_due);
    };
    world.while_kept(body).await;
}
