//! Rate limits on Redis alone: what it keeps of them and for how long, and what it makes of what a
//! version has left that knows none.

use std::cell::RefCell;
use std::time::Duration;

use redis::FromRedisValue;
use tollgate::jobs::{Job, JobQueue, NewJob, PlaceResult};
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::rate::{RateDemand, RateStatus};
use tollgate::ledger::prepaid::records::AllotmentId;
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::prepaid::window::DAY_MS;
use tollgate::ledger::{
    AccountName, BudgetOwner, KeyId, Ledger, Operation, Outcome, RateAsk, RateId, RateKind,
    RateLimit, RateReading,
};
use tollgate::money::Money;
use tollgate::money::price::Quote;
use tollgate::store::redis::RedisStore;

use super::queue;
use super::redis_server::RedisServer;
use super::script::{LONG_MS, now, settle};
use super::subject::{at, name};

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn ask(kind: RateKind, per_minute: i64, burst: i64, amount: i64) -> RateAsk {
    let id = RateId { owner: BudgetOwner::Account, kind, row: 0 };
    RateAsk { id, limit: RateLimit { per_minute, burst }, amount, is_shadow: false }
}

/// One place of two.
fn place() -> RateAsk {
    ask(RateKind::Calls, 0, 2, 1)
}

fn left(remaining: i64) -> RateReading {
    RateReading { remaining, is_exceeded: false }
}

/// The answer to a hold of 5 that is within its limits.
fn within(remaining: &[i64]) -> Outcome {
    let rates = remaining.iter().map(|units| left(*units)).collect();
    Outcome::HeldWithinRates { held: nano(5), rates }
}

/// The answer to a hold for which there is no place.
fn no_place() -> Outcome {
    Outcome::RateLimited { id: place().id, retry_after_ms: Some(1_000), rates: vec![left(0)] }
}

/// A Redis with one account, and a way past the store into what it has written.
struct RatedRedis {
    store: RedisStore,
    beside: RefCell<redis::Connection>,
    account: AccountName,
}

impl RatedRedis {
    /// An account with 100,000 nano-USD in a database of its own.
    async fn open(server: &RedisServer) -> RatedRedis {
        let url = server.fresh_url();
        let store = RedisStore::open(&at(url.clone())).await.expect("a store");
        let client = redis::Client::open(url).expect("an address");
        let beside = RefCell::new(client.get_connection().expect("a connection"));
        let account = name("ada");
        assert_eq!(store.open_account(&account).await, Ok(true));
        let redis = RatedRedis { store, beside, account };
        let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(100_000) };
        assert_eq!(redis.submit(credit).await, Outcome::Done);
        redis
    }

    fn read<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let read = redis::cmd(words[0]).arg(&words[1..]).query(&mut *self.beside.borrow_mut());
        read.unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    fn key(&self, part: &str) -> String {
        format!("tollgate:{{{}}}:{part}", self.account)
    }

    async fn submit(&self, op: Operation) -> Outcome {
        self.store.submit(&self.account, op).await.expect("an answer")
    }

    /// Holds 5 for a call that asks something of rate limits.
    async fn hold(&self, id: &str, rates: &[RateAsk]) -> Outcome {
        let (id, wanted, least) = (id.to_owned(), nano(5), nano(5));
        let (lease_ms, key, rates) = (LONG_MS, Some(KeyId(7)), rates.to_vec());
        self.submit(Operation::Hold { id, wanted, least, lease_ms, key, rates }).await
    }

    async fn void(&self, id: &str) {
        assert_eq!(self.submit(Operation::Void { id: id.to_owned() }).await, Outcome::Voided);
    }

    /// What is in a bucket, in units; `None` if there is none.
    fn level(&self, owner: &str, bucket: &str) -> Option<i64> {
        let text: Option<String> =
            self.read(&["HGET", &self.key(&format!("rate:{owner}")), bucket]);
        let text = text?;
        let (level, _) = text.split_once(' ').expect("a level and a time");
        Some(level.parse::<i64>().expect("a level") / 60_000)
    }

    /// Ends a hold as a version does that knows no rate limits.
    fn end_as_before(&self, id: &str, state: &str) {
        let hold = self.key(&format!("hold:{id}"));
        let _: i64 = self.read(&["HSET", &hold, "state", state]);
        let _: i64 = self.read(&["ZREM", &self.key("open"), id]);
    }

    async fn update(&self, step: u64, rates: &[(RateId, RateDemand)]) -> LedgerAnswer {
        let rates = rates.iter().copied().collect();
        let demand =
            AllotmentDemand { free: nano(100), quote: nano(1), rates, ..Default::default() };
        let id = AllotmentId(ALLOTMENT.to_owned());
        let update = AllotmentUpdate {
            step,
            demand: Some(demand),
            lease_ms: LONG_MS,
            ..AllotmentUpdate::replay(id, 0, 1, Vec::new())
        };
        let answer = self.store.update_allotment(&self.account, &update).await;
        answer.expect("an answer").expect("an account")
    }
}

const ALLOTMENT: &str = "allotment_run1-1";

#[tokio::test]
async fn a_call_without_limits_leaves_nothing_of_rates() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    assert_eq!(redis.hold("a", &[]).await, Outcome::Held(nano(5)));
    let LedgerAnswer::Status(status) = redis.update(1, &[]).await else { panic!("no status") };
    assert!(status.rates.is_empty(), "{status:?}");
    assert_eq!(redis.read::<Vec<String>>(&["KEYS", "*:rate:*"]), Vec::<String>::new());
    for (hold, field) in [("a", "rates"), (ALLOTMENT, "rate_slices")] {
        let hold = redis.key(&format!("hold:{hold}"));
        assert!(!redis.read::<bool>(&["HEXISTS", &hold, field]), "{field}");
    }
}

#[tokio::test]
async fn what_a_hold_took_is_kept_with_it_and_corrected_at_its_end() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let of_key = RateId { owner: BudgetOwner::Key(KeyId(7)), kind: RateKind::Tokens, row: 3 };
    let tokens = RateAsk { id: of_key, ..ask(RateKind::Tokens, 0, 100, 40) };
    let shadow = RateAsk { is_shadow: true, ..ask(RateKind::Tokens, 0, 0, 40) };
    let asks = [ask(RateKind::Requests, 0, 9, 1), tokens, shadow, place()];
    let exceeded = RateReading { remaining: 0, is_exceeded: true };
    let rates = vec![left(8), left(60), exceeded, left(1)];
    assert_eq!(redis.hold("a", &asks).await, Outcome::HeldWithinRates { held: nano(5), rates });
    let kept: String = redis.read(&["HGET", &redis.key("hold:a"), "rates"]);
    assert_eq!(kept, "account/requests/0=1:0:9,key:7/tokens/3=40:0:100,account/calls/0=1:0:2");
    for owner in ["account", "key:7"] {
        let left_ms: i64 = redis.read(&["PTTL", &redis.key(&format!("rate:{owner}"))]);
        assert!((DAY_MS..=2 * DAY_MS).contains(&left_ms), "{owner}: {left_ms}");
    }

    let mut settle = settle("a", nano(3));
    if let Operation::Settle { tokens, .. } = &mut settle {
        *tokens = Some(15);
    }
    assert!(matches!(redis.submit(settle).await, Outcome::Posted { .. }));
    assert!(!redis.read::<bool>(&["HEXISTS", &redis.key("hold:a"), "rates"]));
    assert_eq!(redis.level("key:7", "tokens/3"), Some(15));
    assert_eq!(redis.level("account", "calls/0"), Some(0));
    assert_eq!(redis.hold("b", &asks[..2]).await, within(&[7, 45]));
    redis.void("b").await;
    assert_eq!(redis.level("account", "requests/0"), Some(2), "it was a request");
    assert_eq!(redis.level("key:7", "tokens/3"), Some(15));
}

#[tokio::test]
async fn a_hold_that_is_refused_takes_nothing() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let (request, tokens) = (ask(RateKind::Requests, 0, 9, 1), ask(RateKind::Tokens, 0, 9, 5));
    assert_eq!(redis.hold("a", &[request, tokens]).await, within(&[8, 4]));
    let refused = redis.hold("b", &[request, tokens]).await;
    let rates = vec![left(8), left(4)];
    let id = tokens.id;
    assert_eq!(refused, Outcome::RateLimited { id, retry_after_ms: None, rates });
    let (id, wanted, least, key) = ("c".to_owned(), nano(100_000), nano(100_000), None);
    let rates = vec![request];
    let poor = Operation::Hold { id, wanted, least, lease_ms: LONG_MS, key, rates };
    assert_eq!(redis.submit(poor).await, Outcome::Insufficient(nano(99_995)));
    assert_eq!(redis.level("account", "requests/0"), Some(1));
    assert_eq!(redis.level("account", "tokens/0"), Some(5));
}

#[tokio::test]
async fn a_bucket_drains_by_the_clock_of_the_server() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let (slow, fast) = (ask(RateKind::Requests, 1, 1, 1), ask(RateKind::Tokens, 60_000, 1, 1));
    assert_eq!(redis.hold("a", &[slow]).await, within(&[0]));
    let refused = redis.hold("b", &[slow]).await;
    let Outcome::RateLimited { retry_after_ms: Some(retry), .. } = refused else {
        panic!("{refused:?}");
    };
    assert!((1..=60_000).contains(&retry), "{retry} ms");
    assert_eq!(redis.hold("c", &[fast]).await, within(&[0]));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(redis.hold("d", &[fast]).await, within(&[0]));
}

/// A refusal writes nothing, so the bucket waited until the clock was there again.
#[tokio::test]
async fn calls_were_refused_for_a_day_after_the_clock_was_set_back_a_day() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let slow = ask(RateKind::Requests, 1, 1, 1);
    assert_eq!(redis.hold("a", &[slow]).await, within(&[0]));
    let ahead = format!("60000 {}", now() + DAY_MS);
    let _: i64 = redis.read(&["HSET", &redis.key("rate:account"), "requests/0", &ahead]);
    assert_eq!(redis.hold("b", &[slow]).await, within(&[0]));
    assert!(matches!(redis.hold("c", &[slow]).await, Outcome::RateLimited { .. }));
}

/// The script failed after it had moved the money. So each repeat charged the call once more, and
/// wrote no line.
#[tokio::test]
async fn a_call_was_charged_with_each_repeat_where_its_limits_could_not_be_read() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let unreadable = [
        ("a", "hold:a", "rates", "account/things/x=4,account/calls/0=1:0:2"),
        ("b", "rate:account", "calls/0", "one"),
    ];
    for (id, key, field, text) in unreadable {
        assert_eq!(redis.hold(id, &[place()]).await, within(&[1]));
        let _: i64 = redis.read(&["HSET", &redis.key(key), field, text]);
        let posted = Outcome::Posted { amount: nano(3), written_off: nano(0) };
        assert_eq!(redis.submit(settle(id, nano(3))).await, posted);
        assert_eq!(redis.submit(settle(id, nano(3))).await, Outcome::AlreadyPosted(nano(3)));
        assert_eq!(redis.level("account", "calls/0"), Some(0), "{id}");
    }
    let balances = redis.store.balances(&redis.account).await;
    let balances = balances.expect("an answer").expect("an account");
    assert_eq!((balances.posted, balances.held), (nano(6), nano(0)));
}

#[tokio::test]
async fn ends_of_an_allotment_were_refused_where_one_of_its_slices_could_not_be_read() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let limit = RateLimit { per_minute: 0, burst: 100 };
    let demand = RateDemand { limit, spent: 0, needed: 3, kept: 3, free: 0, unit: 1 };
    let told = [(place().id, demand)];
    assert!(matches!(redis.update(1, &told).await, LedgerAnswer::Status(_)));
    let allotment = redis.key(&format!("hold:{ALLOTMENT}"));
    let text = "account/calls/0=3,things=4";
    let _: i64 = redis.read(&["HSET", &allotment, "rate_slices", text]);
    assert!(matches!(redis.update(2, &[]).await, LedgerAnswer::Status(_)));
    assert_eq!(redis.level("account", "calls/0"), Some(0));
}

/// That version ends a hold, and its place stayed taken as long as anybody called.
#[tokio::test]
async fn places_that_a_version_without_rate_limits_had_left_stayed_taken() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    assert_eq!(redis.hold("a", &[place()]).await, within(&[1]));
    assert_eq!(redis.hold("b", &[place()]).await, within(&[0]));
    assert_eq!(redis.hold("c", &[place()]).await, no_place());
    redis.end_as_before("a", "posted");
    assert_eq!(redis.hold("c", &[place()]).await, no_place(), "they were counted a moment ago");
    let _: i64 = redis.read(&["HSET", &redis.key("rate:account"), "recounted_at", "1"]);
    assert_eq!(redis.hold("c", &[place()]).await, within(&[0]));
    assert_eq!(redis.hold("d", &[place()]).await, no_place());
}

#[tokio::test]
async fn places_of_an_allotment_that_another_version_ended_come_back_with_its_next_message() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let limit = RateLimit { per_minute: 0, burst: 100 };
    let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Calls, row: 0 };
    let demand = RateDemand { limit, spent: 0, needed: 3, kept: 3, free: 50, unit: 1 };
    let LedgerAnswer::Status(status) = redis.update(1, &[(id, demand)]).await else {
        panic!("no status");
    };
    // A quarter of what is left above 64.
    let told = RateStatus { slice: 11, room: 89 };
    assert_eq!(status.rates, [(id, told)].into());
    assert_eq!(redis.level("account", "calls/0"), Some(11));
    let slices: String =
        redis.read(&["HGET", &redis.key(&format!("hold:{ALLOTMENT}")), "rate_slices"]);
    assert_eq!(slices, "account/calls/0=11");

    redis.end_as_before(ALLOTMENT, "ended");
    let ended = LedgerAnswer::AllotmentEnded { last_seq: 0 };
    assert_eq!(redis.update(2, &[]).await, ended);
    assert_eq!(redis.level("account", "calls/0"), Some(0));
    assert_eq!(redis.update(3, &[]).await, ended);
}

fn order(account: &AccountName, id: &str, rates: &[RateAsk]) -> NewJob {
    let order = queue::order(account, id);
    let job = Job { key_id: None, held: nano(5), ..order.job };
    NewJob { job, quote: Quote::exactly(nano(5)), rates: rates.to_vec(), ..order }
}

#[tokio::test]
async fn a_video_takes_of_rate_limits_once() {
    let server = RedisServer::shared();
    let redis = RatedRedis::open(&server).await;
    let one = [place()];
    let place = |id: &str| redis.store.place_job(order(&redis.account, id, &one));
    assert_eq!(place("a").await, Ok(PlaceResult::New(vec![left(1)])));
    assert_eq!(place("a").await, Ok(PlaceResult::New(Vec::new())), "the same order again");
    assert_eq!(place("b").await, Ok(PlaceResult::New(vec![left(0)])));
    let Outcome::RateLimited { id, retry_after_ms, rates } = no_place() else {
        panic!("no refusal");
    };
    let refused = PlaceResult::RateLimited { id, retry_after_ms, rates };
    assert_eq!(place("c").await, Ok(refused));
    assert_eq!(redis.store.find_job(&redis.account, "c").await, Ok(None));
    redis.void("a").await;
    assert_eq!(place("c").await, Ok(PlaceResult::New(vec![left(0)])));
}
