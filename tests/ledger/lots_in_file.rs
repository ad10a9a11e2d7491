//! Lots of granted credit in a file: what expires over time, what is still there when the file is
//! opened again, and what older versions leave there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tollgate::ledger::{
    CreditSource, EntryKind, Ledger, LotId, NEVER_EXPIRES, Operation, Outcome, TransferType,
};
use tollgate::money::Money;

use super::script::{LONG_MS, now, settle};
use super::subject::{name, open};

const VOUCHER: LotId = LotId { expires_at: NEVER_EXPIRES, source: CreditSource::Voucher };

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

fn beside(folder: &Path) -> Connection {
    let beside = Connection::open(folder.join("ledger.db")).expect("the file");
    beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
    beside
}

fn promotion(expires_at: i64) -> LotId {
    LotId { expires_at, source: CreditSource::Promotion }
}

fn pay(tx: &str, amount: i64) -> Operation {
    Operation::Credit { tx: tx.to_owned(), amount: nano(amount) }
}

fn grant(tx: &str, amount: i64, lot: LotId) -> Operation {
    Operation::Grant { tx: tx.to_owned(), amount: nano(amount), lot }
}

fn hold(id: &str, amount: i64) -> Operation {
    let (id, wanted, key, rates) = (id.to_owned(), nano(amount), None, Vec::new());
    Operation::Hold { id, wanted, least: wanted, lease_ms: LONG_MS, key, rates }
}

fn void(id: &str) -> Operation {
    Operation::Void { id: id.to_owned() }
}

fn correct(tx: &str, request: &str, amount: i64) -> Operation {
    let (tx, request, found) = (tx.to_owned(), request.to_owned(), vec![1]);
    Operation::Correct { tx, request, found, amount: nano(amount), reason: String::new() }
}

/// The account of a file.
struct Ada(Arc<dyn Ledger>);

impl Ada {
    async fn open(folder: &Path) -> Ada {
        let ledger = open(&url(folder)).await;
        ledger.open_account(&name("ada")).await.expect("open");
        Ada(ledger)
    }

    async fn submit(&self, op: Operation) -> Outcome {
        self.0.submit(&name("ada"), op).await.expect("an outcome")
    }

    async fn done(&self, ops: impl IntoIterator<Item = Operation>) {
        for op in ops {
            assert_eq!(self.submit(op).await, Outcome::Done);
        }
    }

    /// The credit, and what is available, held and posted.
    async fn sums(&self) -> [i64; 4] {
        let sums = self.0.balances(&name("ada")).await.expect("an answer").expect("balances");
        [sums.credit, sums.available, sums.held, sums.posted].map(Money::nano)
    }

    /// The open lots, with what is available and held of them.
    async fn lots(&self) -> Vec<(LotId, [i64; 2])> {
        let lots = self.0.list_lots(&name("ada")).await.expect("lots").into_iter();
        lots.map(|open| (open.id, [open.lot.available, open.lot.held].map(Money::nano))).collect()
    }

    async fn journal(&self) -> Vec<(EntryKind, i64, String)> {
        let entries = self.0.read_journal(&name("ada"), 0, 99).await.expect("a journal");
        entries.into_iter().map(|entry| (entry.kind, entry.amount.nano(), entry.line)).collect()
    }
}

fn expiry(lot: LotId, amount: i64, line: &(EntryKind, i64, String)) {
    assert_eq!((line.0, line.1), (EntryKind::Expiry, amount));
    assert!(line.2.starts_with(&format!(r#"{{"expired":"{lot}","at":"#)), "{line:?}");
}

#[tokio::test]
async fn what_a_hold_gives_back_to_a_lot_past_its_time_expires() {
    let folder = tempfile::tempdir().expect("a folder");
    let ada = Ada::open(folder.path()).await;
    let lot = promotion(now() + 800);
    ada.done([grant("g", 100, lot), pay("p", 50)]).await;
    assert_eq!(ada.submit(grant("g", 100, lot)).await, Outcome::AlreadyDone);
    assert_eq!(ada.submit(pay("g", 100)).await, Outcome::Conflict);
    assert_eq!(ada.submit(hold("a", 120)).await, Outcome::Held(nano(120)));
    assert_eq!(ada.lots().await, [(lot, [0, 100])]);
    tokio::time::sleep(Duration::from_millis(850)).await;
    assert_eq!(ada.sums().await, [150, 30, 120, 0], "what is held stays");
    assert_eq!(ada.submit(void("a")).await, Outcome::Voided);
    assert_eq!((ada.sums().await, ada.lots().await), ([50, 50, 0, 0], Vec::new()));
    let journal = ada.journal().await;
    assert_eq!(journal.len(), 1, "{journal:?}");
    expiry(lot, 100, &journal[0]);
    let transfers = ada.0.list_transfers(&name("ada"), 0, 9).await.expect("transfers");
    let listed = transfers.iter().map(|one| (one.tx.as_str(), one.kind, one.lot));
    let both = [("g", TransferType::Grant, Some(lot)), ("p", TransferType::Payment, None)];
    assert!(listed.eq(both), "{transfers:?}");
}

#[tokio::test]
async fn a_file_that_is_opened_again_knows_what_was_drawn_and_given_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let lot = promotion(now() + 3_600_000);
    let ada = Ada::open(folder.path()).await;
    ada.done([grant("g1", 20, VOUCHER), grant("g2", 50, lot), pay("p", 100)]).await;
    assert_eq!(ada.submit(hold("a", 90)).await, Outcome::Held(nano(90)));
    let lots = [(lot, [0, 50]), (VOUCHER, [0, 20])];
    assert_eq!(ada.lots().await, lots);
    drop(ada);
    let ada = Ada::open(folder.path()).await;
    assert_eq!(ada.lots().await, lots);
    let posted = Outcome::Posted { amount: nano(80), written_off: Money::ZERO };
    assert_eq!(ada.submit(settle("a", nano(80))).await, posted);
    assert_eq!((ada.lots().await, ada.sums().await), (Vec::new(), [170, 90, 0, 80]));
    // What was drawn last comes back first: 10 were paid, 20 a voucher, the rest a promotion.
    let mut expected = Vec::new();
    for (tx, amount, lots) in [
        ("c1", 15, vec![(VOUCHER, [5, 0])]),
        ("c2", 25, vec![(lot, [10, 0]), (VOUCHER, [20, 0])]),
        ("c3", 99, vec![(lot, [50, 0]), (VOUCHER, [20, 0])]),
    ] {
        let ada = Ada::open(folder.path()).await;
        let given = amount.min(40);
        assert_eq!(ada.submit(correct(tx, "a", amount)).await, Outcome::Corrected(nano(given)));
        assert_eq!(ada.lots().await, lots);
        expected.push((EntryKind::Correction, given));
    }
    assert_eq!(ada.sums().await, [170, 170, 0, 0]);
    let journal = ada.journal().await;
    assert!(journal[0].2.ends_with(&format!(r#""lots":"{lot} 50,never/voucher 20"}}"#)));
    assert!(journal[1].2.ends_with(r#""lots":"never/voucher 5"}"#), "{journal:?}");
    let kinds = journal[1..].iter().map(|(kind, amount, _)| (*kind, *amount));
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_sweep_lets_credit_of_an_idle_account_expire_once_and_it_is_not_shown_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let ada = Ada::open(folder.path()).await;
    let (lot, later) = (promotion(now() + 800), promotion(now() + 3_600_000));
    ada.done([grant("g1", 100, lot), grant("g2", 7, later), pay("p", 50)]).await;
    ada.0.expire_holds().await.expect("a sweep");
    assert_eq!(ada.sums().await, [157, 157, 0, 0], "it is not due");
    tokio::time::sleep(Duration::from_millis(850)).await;
    assert_eq!((ada.sums().await, ada.lots().await), ([57, 57, 0, 0], vec![(later, [7, 0])]));
    assert_eq!(ada.journal().await, []);
    for _ in 0..2 {
        ada.0.expire_holds().await.expect("a sweep");
        let journal = ada.journal().await;
        assert_eq!(journal.len(), 1, "{journal:?}");
        expiry(lot, 100, &journal[0]);
        assert_eq!((ada.sums().await, ada.lots().await), ([57, 57, 0, 0], vec![(later, [7, 0])]));
    }
    let left = "SELECT credit FROM account";
    let left: i64 = beside(folder.path()).query_row(left, [], |row| row.get(0)).expect("credit");
    assert_eq!(left, 57);
}

#[tokio::test]
async fn a_file_from_before_there_were_lots_takes_grants() {
    let folder = tempfile::tempdir().expect("a folder");
    let ada = Ada::open(folder.path()).await;
    ada.done([pay("p", 50)]).await;
    assert_eq!(ada.submit(hold("a", 20)).await, Outcome::Held(nano(20)));
    drop(ada);
    let file = beside(folder.path());
    file.execute_batch(
        "DROP TABLE credit_lot; DROP TABLE hold_lots; DROP TABLE credit_grant;
         DROP TABLE correction_lots; DROP TABLE expiry_line",
    )
    .expect("they were there");
    let version = || {
        let found = file.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0));
        found.expect("a version")
    };
    let ada = Ada::open(folder.path()).await;
    assert_eq!(version(), 1);
    assert_eq!((ada.sums().await, ada.lots().await), ([50, 30, 20, 0], Vec::new()));
    ada.done([grant("g", 100, VOUCHER)]).await;
    assert_eq!(version(), 5, "a version before this one must not open it any more");
    let posted = Outcome::Posted { amount: nano(120), written_off: Money::ZERO };
    assert_eq!(ada.submit(settle("a", nano(120))).await, posted);
    assert_eq!((ada.sums().await, ada.lots().await), ([150, 30, 0, 120], Vec::new()));
}

/// A version that is still at work ends holds without their lots: the money of holds that drew
/// none could never be given back.
#[tokio::test]
async fn what_an_older_version_ended_stayed_held_in_its_lots() {
    let folder = tempfile::tempdir().expect("a folder");
    let ada = Ada::open(folder.path()).await;
    let lot = promotion(now() + 3_600_000);
    ada.done([grant("g", 100, lot), pay("p", 50)]).await;
    for (id, amount) in [("charged", 40), ("voided", 30), ("swept", 20), ("smaller", 8)] {
        assert_eq!(ada.submit(hold(id, amount)).await, Outcome::Held(nano(amount)));
    }
    assert_eq!(ada.submit(hold("other", 50)).await, Outcome::Held(nano(50)));
    assert_eq!(ada.lots().await, [(lot, [0, 100])]);
    let ended = "
        BEGIN IMMEDIATE;
        INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted)
        SELECT account, id, wanted, least, held, lease_until,
               CASE id WHEN 'charged' THEN 1 ELSE 2 END, CASE id WHEN 'charged' THEN 25 END
        FROM open_hold WHERE id IN ('charged', 'voided');
        DELETE FROM open_hold WHERE id IN ('charged', 'voided', 'swept');
        UPDATE open_hold SET held = 5 WHERE id = 'smaller';
        UPDATE account SET available = available + 68, held = 55, posted = 25;
        INSERT INTO journal (account, seq, amount, written_off, line)
        SELECT id, 1, 25, 0, '\"charged\"' FROM account;
        COMMIT";
    beside(folder.path()).execute_batch(ended).expect("they are ended");
    assert_eq!(ada.sums().await, [150, 70, 55, 25]);
    assert_eq!(ada.lots().await, [(lot, [68, 7])]);
    assert_eq!(ada.submit(void("other")).await, Outcome::Voided);
    assert_eq!(ada.submit(void("smaller")).await, Outcome::Voided);
    assert_eq!((ada.sums().await, ada.lots().await), ([150, 125, 0, 25], vec![(lot, [75, 0])]));
    let left = "SELECT count(*) FROM hold_lots";
    let left: u32 = beside(folder.path()).query_row(left, [], |row| row.get(0)).expect("a number");
    assert_eq!(left, 0);
}
