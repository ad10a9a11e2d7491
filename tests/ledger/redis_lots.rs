//! Lots of granted credit on Redis: what it writes of them, and credit whose time really comes.

use std::cell::RefCell;
use std::time::Duration;

use redis::FromRedisValue;
use tollgate::ledger::prepaid::answer::{AllotmentStatus, LedgerAnswer};
use tollgate::ledger::prepaid::records::AllotmentId;
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::{
    AccountName, CreditLot, EntryKind, Ledger, OpenLot, Operation, Outcome, TransferType,
};
use tollgate::money::Money;
use tollgate::store::redis::RedisStore;

use super::redis_server::RedisServer;
use super::script::{LONG_MS, checkpoint, now, settle};
use super::subject::{at, name};

mod beside_pure;

/// Credit of these tests expires so soon, in ms, which is time enough to draw it.
const SOON_MS: i64 = 1_500;

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn pay(tx: &str, amount: i64) -> Operation {
    Operation::Credit { tx: tx.to_owned(), amount: nano(amount) }
}

fn grant(tx: &str, amount: i64, lot: &str) -> Operation {
    let lot = lot.parse().expect("a lot");
    Operation::Grant { tx: tx.to_owned(), amount: nano(amount), lot }
}

fn hold(id: &str, wanted: i64, least: i64, lease_ms: u64) -> Operation {
    let (wanted, least, rates) = (nano(wanted), nano(least), Vec::new());
    Operation::Hold { id: id.to_owned(), wanted, least, lease_ms, key: None, rates }
}

fn void(id: &str) -> Operation {
    Operation::Void { id: id.to_owned() }
}

/// A Redis with one account, and a way past the store into what it has written.
struct LotRedis {
    store: RedisStore,
    beside: RefCell<redis::Connection>,
    account: AccountName,
}

impl LotRedis {
    /// An account without credit in a database of its own.
    async fn open(server: &RedisServer) -> LotRedis {
        let url = server.fresh_url();
        let store = RedisStore::open(&at(url.clone())).await.expect("a store");
        let client = redis::Client::open(url.as_str()).expect("an address");
        let beside = RefCell::new(client.get_connection().expect("a connection"));
        let account = name("ada");
        assert_eq!(store.open_account(&account).await, Ok(true));
        LotRedis { store, beside, account }
    }

    /// An account that was paid 100, and has 50 that expire soon.
    async fn with_soon(server: &RedisServer) -> (LotRedis, String) {
        let redis = LotRedis::open(server).await;
        let soon = format!("{}/promotion", now() + SOON_MS);
        assert_eq!(redis.submit(pay("t", 100)).await, Outcome::Done);
        assert_eq!(redis.submit(grant("g", 50, &soon)).await, Outcome::Done);
        (redis, soon)
    }

    fn read<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let read = redis::cmd(words[0]).arg(&words[1..]).query(&mut *self.beside.borrow_mut());
        read.unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    fn key(&self, part: &str) -> String {
        format!("tollgate:{{{}}}:{part}", self.account)
    }

    fn field(&self, part: &str, field: &str) -> Option<String> {
        self.read(&["HGET", &self.key(part), field])
    }

    /// What is written of credit, available, held, posted and written off.
    fn raw_balances(&self) -> [i64; 5] {
        let key = self.key("account");
        self.read(&["HMGET", &key, "credit", "available", "held", "posted", "written_off"])
    }

    async fn submit(&self, op: Operation) -> Outcome {
        self.store.submit(&self.account, op).await.expect("an answer")
    }

    async fn update(&self, update: &AllotmentUpdate) -> LedgerAnswer {
        let answer = self.store.update_allotment(&self.account, update).await;
        answer.expect("an answer").expect("an account")
    }

    async fn lots(&self) -> Vec<OpenLot> {
        self.store.list_lots(&self.account).await.expect("lots")
    }

    /// What is shown of credit, available and held.
    async fn shown(&self) -> [i64; 3] {
        let shown = self.store.balances(&self.account).await.expect("balances").expect("one");
        [shown.credit, shown.available, shown.held].map(Money::nano)
    }

    /// The kinds, the amounts and the lines of the journal.
    async fn journal(&self) -> Vec<(EntryKind, i64, serde_json::Value)> {
        let lines = self.store.read_journal(&self.account, 0, 100).await.expect("lines");
        let json = |line: &str| serde_json::from_str(line).expect("an object");
        lines.into_iter().map(|e| (e.kind, e.amount.nano(), json(&e.line))).collect()
    }

    /// Asserts that the journal has one line, and that it is of credit that has expired.
    async fn assert_one_expiry(&self, lot: &str, amount: i64) {
        let journal = self.journal().await;
        let [(EntryKind::Expiry, expired, line)] = &*journal else { panic!("{journal:?}") };
        assert_eq!((*expired, line["expired"].as_str()), (amount, Some(lot)));
        assert!((now() - 60_000..=now()).contains(&line["at"].as_i64().expect("a time")));
    }
}

/// Waits until credit that expires soon has expired.
async fn wait_until_expired() {
    tokio::time::sleep(Duration::from_millis(SOON_MS.unsigned_abs() + 50)).await;
}

fn lot(id: &str, available: i64, held: i64) -> OpenLot {
    let lot = CreditLot { available: nano(available), held: nano(held) };
    OpenLot { id: id.parse().expect("a lot"), lot }
}

#[tokio::test]
async fn an_account_without_grants_has_nothing_of_lots() {
    let server = RedisServer::shared();
    let redis = LotRedis::open(&server).await;
    redis.submit(pay("t", 100)).await;
    redis.submit(hold("a", 30, 30, LONG_MS)).await;
    assert_eq!([redis.field("account", "lots"), redis.field("hold:a", "lots")], [None, None]);
    assert!(redis.lots().await.is_empty());
    let version = || redis.read::<Option<u32>>(&["GET", "tollgate:schema-version"]);
    assert_eq!(version(), None);
    assert_eq!(redis.submit(grant("g", 5, "never/voucher")).await, Outcome::Done);
    assert_eq!(version(), Some(5), "a program that knows no lots does not open it");
    assert_eq!(redis.field("account", "lots").as_deref(), Some("never/voucher 5 0"));
    // Both may have come in one millisecond, so that their order says nothing.
    let transfers = redis.store.list_transfers(&redis.account, 0, 9).await.expect("transfers");
    let listed = transfers.iter().find(|transfer| transfer.tx == "g").expect("the grant");
    assert_eq!((listed.kind, listed.moved), (TransferType::Grant, Some(nano(5))));
    assert_eq!(listed.lot, "never/voucher".parse().ok());
    redis.submit(hold("b", 5, 5, LONG_MS)).await;
    assert_eq!(redis.field("hold:b", "lots").as_deref(), Some("never/voucher 5"));
    redis.submit(settle("b", nano(5))).await;
    assert_eq!([redis.field("account", "lots"), redis.field("hold:b", "lots")], [None, None]);
}

#[tokio::test]
async fn what_a_hold_gives_back_after_its_time_expires() {
    let server = RedisServer::shared();
    let (redis, soon) = LotRedis::with_soon(&server).await;
    assert_eq!(redis.submit(hold("a", 60, 60, LONG_MS)).await, Outcome::Held(nano(60)));
    assert_eq!(redis.lots().await, [lot(&soon, 0, 50)]);
    wait_until_expired().await;
    assert_eq!(redis.shown().await, [150, 90, 60], "a running call keeps what it holds");
    let refused = redis.submit(hold("b", 101, 101, LONG_MS)).await;
    assert_eq!(refused, Outcome::Insufficient(nano(90)));
    assert_eq!(redis.submit(void("a")).await, Outcome::Voided);
    redis.assert_one_expiry(&soon, 50).await;
    assert_eq!(redis.raw_balances(), [100, 100, 0, 0, 0]);
    assert_eq!(redis.field("account", "lots"), None);
}

#[tokio::test]
async fn the_rest_of_a_settled_hold_expires_before_its_line() {
    let server = RedisServer::shared();
    let (redis, soon) = LotRedis::with_soon(&server).await;
    redis.submit(hold("a", 60, 60, LONG_MS)).await;
    wait_until_expired().await;
    redis.submit(settle("a", nano(20))).await;
    let journal = redis.journal().await;
    let [(EntryKind::Expiry, 30, _), (EntryKind::Charge, 20, line)] = &*journal else {
        panic!("{journal:?}")
    };
    assert_eq!(line["lots"].as_str(), Some(&*format!("{soon} 20")));
    assert_eq!(redis.raw_balances(), [120, 100, 0, 20, 0]);
}

#[tokio::test]
async fn a_sweep_lets_the_credit_of_an_idle_account_expire() {
    let server = RedisServer::shared();
    let (redis, soon) = LotRedis::with_soon(&server).await;
    let swept = redis.store.expire_holds().await.expect("a sweep");
    assert_eq!((swept.expired, redis.lots().await), (0, vec![lot(&soon, 50, 0)]));
    wait_until_expired().await;
    assert_eq!((redis.shown().await, redis.lots().await), ([100, 100, 0], Vec::new()));
    assert_eq!(redis.raw_balances(), [150, 150, 0, 0, 0], "it is only not shown");
    redis.store.expire_holds().await.expect("a sweep");
    redis.assert_one_expiry(&soon, 50).await;
    assert_eq!((redis.raw_balances(), redis.shown().await), ([100, 100, 0, 0, 0], [100, 100, 0]));
}

#[tokio::test]
async fn a_hold_does_not_see_credit_whose_time_has_come() {
    let server = RedisServer::shared();
    let (redis, soon) = LotRedis::with_soon(&server).await;
    wait_until_expired().await;
    let refused = redis.submit(hold("a", 101, 101, LONG_MS)).await;
    assert_eq!(refused, Outcome::Insufficient(nano(100)));
    redis.assert_one_expiry(&soon, 50).await;
}

#[tokio::test]
async fn a_hold_that_expires_is_charged_to_its_lots_and_gives_the_rest_back() {
    let server = RedisServer::shared();
    let redis = LotRedis::open(&server).await;
    redis.submit(grant("g", 50, "never/promotion")).await;
    redis.submit(hold("a", 40, 40, 1)).await;
    redis.submit(Operation::Extend { id: "a".to_owned(), wanted: nano(45) }).await;
    assert_eq!(redis.field("hold:a", "lots").as_deref(), Some("never/promotion 45"));
    redis.submit(checkpoint("a", nano(7))).await;
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(redis.store.expire_holds().await.expect("a sweep").expired, 1);
    assert_eq!(redis.lots().await, [lot("never/promotion", 43, 0)]);
    assert_eq!(redis.journal().await[0].2["lots"].as_str(), Some("never/promotion 7"));
}

#[tokio::test]
async fn a_correction_gives_back_to_the_lot_that_has_paid() {
    let server = RedisServer::shared();
    let redis = LotRedis::open(&server).await;
    redis.submit(pay("t", 100)).await;
    redis.submit(grant("g", 50, "never/voucher")).await;
    redis.submit(hold("a", 60, 60, LONG_MS)).await;
    redis.submit(settle("a", nano(60))).await;
    assert!(redis.lots().await.is_empty());
    let correct = |tx: &str, amount| Operation::Correct {
        tx: tx.to_owned(),
        request: "a".to_owned(),
        found: vec![1],
        amount: nano(amount),
        reason: String::new(),
    };
    let corrected = |text: &str| assert_eq!(redis.field("corrected", "a").as_deref(), Some(text));
    assert_eq!(redis.submit(correct("c1", 10)).await, Outcome::Corrected(nano(10)));
    corrected("10 0");
    assert_eq!(redis.submit(correct("c2", 15)).await, Outcome::Corrected(nano(15)));
    corrected("25 0 never/voucher 15");
    assert_eq!(redis.lots().await, [lot("never/voucher", 15, 0)]);
    assert_eq!(redis.submit(correct("c3", 100)).await, Outcome::Corrected(nano(35)));
    corrected("60 0 never/voucher 50");
    let of_lots: Vec<_> =
        redis.journal().await.into_iter().map(|(_, _, line)| line["lots"].clone()).collect();
    let texts: Vec<Option<&str>> = of_lots.iter().map(serde_json::Value::as_str).collect();
    let [all, some, rest] = ["50", "15", "35"].map(|nano| format!("never/voucher {nano}"));
    assert_eq!(texts, [Some(&*all), None, Some(&*some), Some(&*rest)]);
    assert_eq!(redis.raw_balances(), [150, 150, 0, 0, 0]);
}

#[tokio::test]
async fn a_correction_needs_a_place_for_its_lot() {
    let server = RedisServer::shared();
    let redis = LotRedis::open(&server).await;
    redis.submit(grant("g", 50, "never/voucher")).await;
    redis.submit(hold("a", 50, 50, LONG_MS)).await;
    redis.submit(settle("a", nano(50))).await;
    for at in 0..15 {
        let lot = format!("{}/voucher", 4_000_000_000_000_i64 + at);
        assert_eq!(redis.submit(grant(&lot, 1, &lot)).await, Outcome::Done);
    }
    assert_eq!(redis.submit(grant("h", 1, "never/voucher")).await, Outcome::TooManyLots);
    let (tx, request, reason) = ("c".to_owned(), "a".to_owned(), String::new());
    let correct = Operation::Correct { tx, request, found: vec![1], amount: nano(1), reason };
    assert_eq!(redis.submit(correct.clone()).await, Outcome::TooManyLots);
    redis.submit(hold("b", 1, 1, LONG_MS)).await;
    redis.submit(settle("b", nano(1))).await;
    assert_eq!(redis.submit(correct).await, Outcome::Corrected(nano(1)));
}

#[tokio::test]
async fn only_what_was_paid_in_is_paid_back() {
    let server = RedisServer::shared();
    let redis = LotRedis::open(&server).await;
    redis.submit(pay("t", 30)).await;
    for (tx, lot) in [("g", "never/promotion"), ("h", "4000000000000/paid")] {
        redis.submit(grant(tx, 20, lot)).await;
    }
    let take = |tx: &str, amount| {
        let (tx, reason) = (tx.to_owned(), String::new());
        Operation::Take { tx, amount: nano(amount), reason }
    };
    let taken =
        |taken, uncovered| Outcome::Taken { taken: nano(taken), uncovered: nano(uncovered) };
    assert_eq!(redis.submit(take("r1", 35)).await, taken(35, 0));
    let promotion = lot("never/promotion", 20, 0);
    assert_eq!(redis.lots().await, [lot("4000000000000/paid", 15, 0), promotion]);
    assert_eq!(redis.submit(take("r2", 35)).await, taken(15, 20));
    assert_eq!(redis.lots().await, [promotion]);
    assert_eq!(redis.raw_balances(), [20, 20, 0, 0, 0]);
}

fn update(step: u64, needed: i64, free: i64) -> AllotmentUpdate {
    let (needed, free) = (nano(needed), nano(free));
    let demand = AllotmentDemand { needed, kept: needed, free, ..AllotmentDemand::default() };
    let id = AllotmentId("allotment_run1-1".to_owned());
    let replay = AllotmentUpdate::replay(id, 0, 1, Vec::new());
    AllotmentUpdate { step, demand: Some(demand), lease_ms: LONG_MS, ..replay }
}

async fn status(redis: &LotRedis, update: &AllotmentUpdate) -> Box<AllotmentStatus> {
    match redis.update(update).await {
        LedgerAnswer::Status(status) => status,
        other => panic!("{other:?} for {update:?}"),
    }
}

#[tokio::test]
async fn an_allotment_gives_expired_credit_back_late_and_says_when_it_expires() {
    let server = RedisServer::shared();
    let (redis, soon) = LotRedis::with_soon(&server).await;
    let lent = status(&redis, &update(1, 20, 15)).await;
    assert_eq!((lent.held, lent.free), (nano(35), nano(15)));
    for for_ms in [lent.free_for_ms, lent.held_for_ms] {
        assert!(for_ms.is_some_and(|ms| (1..=SOON_MS).contains(&ms)), "{for_ms:?}");
    }
    let record = "hold:allotment_run1-1";
    assert_eq!(redis.field(record, "lots"), Some(format!("{soon} 35")));
    wait_until_expired().await;
    // Its calls keep what they have drawn; what is free expires, and other credit comes instead.
    let lent = status(&redis, &update(2, 20, 15)).await;
    assert_eq!((lent.held, lent.free_for_ms), (nano(35), None));
    assert!(lent.held_for_ms.is_some_and(|ms| ms <= 0), "{lent:?}");
    assert_eq!(redis.field(record, "lots"), Some(format!("{soon} 20")));
    let amounts = async || redis.journal().await.iter().map(|line| line.1).collect::<Vec<_>>();
    assert_eq!(amounts().await, [15, 15], "what nobody had drawn, and what was free");
    let retired = AllotmentUpdate { retires: true, demand: None, ..update(0, 0, 0) };
    assert_eq!(redis.update(&retired).await, LedgerAnswer::AllotmentEnded { last_seq: 0 });
    assert_eq!(amounts().await, [15, 15, 20]);
    assert_eq!(redis.raw_balances(), [100, 100, 0, 0, 0]);
    assert_eq!([redis.field(record, "lots"), redis.field("account", "lots")], [None, None]);
}

/// It was shown as available until the gateway's next message, although it never comes back.
#[tokio::test]
async fn what_a_gateway_has_free_of_credit_past_its_time_is_not_shown_as_available() {
    let server = RedisServer::shared();
    let (redis, _) = LotRedis::with_soon(&server).await;
    let lent = status(&redis, &update(1, 20, 15)).await;
    assert_eq!((lent.held, lent.free), (nano(35), nano(15)));
    assert_eq!(redis.shown().await, [150, 130, 20]);
    wait_until_expired().await;
    assert_eq!(redis.shown().await, [135, 100, 35]);
    redis.store.expire_holds().await.expect("a sweep");
    assert_eq!(redis.shown().await, [135, 100, 35]);
}

/// A void moved the money first, and left the lot of it held for ever.
#[tokio::test]
async fn where_the_lots_of_a_hold_cannot_be_read_nothing_is_moved() {
    let server = RedisServer::shared();
    let (redis, _) = LotRedis::with_soon(&server).await;
    redis.submit(hold("a", 60, 60, LONG_MS)).await;
    let before = redis.raw_balances();
    redis.read::<u64>(&["HSET", &redis.key("hold:a"), "lots", "5/gift 50"]);
    let longer = Operation::Extend { id: "a".to_owned(), wanted: nano(70) };
    for op in [void("a"), longer] {
        assert!(redis.store.submit(&redis.account, op).await.is_err());
        assert_eq!(redis.raw_balances(), before);
        assert_eq!(redis.field("hold:a", "state").as_deref(), Some("open"));
    }
}
