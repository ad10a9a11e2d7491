//! Budgets on Redis alone: what it keeps of them and for how long, and where the keys of a budget
//! are, so that versions that know none do not find them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use redis::FromRedisValue;
use tollgate::jobs::{Job, JobQueue, NewJob, PlaceResult};
use tollgate::ledger::key::ApiKey;
use tollgate::ledger::prepaid::answer::{AllotmentStatus, LedgerAnswer};
use tollgate::ledger::prepaid::records::{AllotmentId, CallEnd};
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::prepaid::window::DAY_MS;
use tollgate::ledger::{
    AccountName, BudgetOwner, HoldRequest, KeyId, KeyRecord, KeyScope, Ledger, Operation, Outcome,
    Replaced, WindowId, WindowKind,
};
use tollgate::money::Money;
use tollgate::money::price::Quote;
use tollgate::store::redis::RedisStore;

use super::queue;
use super::redis_server::RedisServer;
use super::script::{LONG_MS, now, settle, settle_even_if_lost};
use super::subject::{at, name, set_scope};

const HOUR_MS: i64 = 60 * 60 * 1_000;
const KEY: KeyId = KeyId(7);

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

/// A Redis with one account, and a way past the store into what it has written.
struct BudgetedRedis {
    store: RedisStore,
    url: String,
    beside: RefCell<redis::Connection>,
    account: AccountName,
}

impl BudgetedRedis {
    /// An account with 100,000 nano-USD in a database of its own.
    async fn open(server: &RedisServer) -> BudgetedRedis {
        let url = server.fresh_url();
        let store = RedisStore::open(&at(url.clone())).await.expect("a store");
        let client = redis::Client::open(url.as_str()).expect("an address");
        let beside = RefCell::new(client.get_connection().expect("a connection"));
        let account = name("ada");
        assert_eq!(store.open_account(&account).await, Ok(true));
        let redis = BudgetedRedis { store, url, beside, account };
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

    /// The names of all keys that there are, in order.
    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.read(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    async fn submit(&self, op: Operation) -> Outcome {
        self.store.submit(&self.account, op).await.expect("an answer")
    }

    async fn hold(&self, id: &str, amount: i64, key: Option<KeyId>) -> Outcome {
        let (id, amount) = (id.to_owned(), nano(amount));
        let op = Operation::Hold {
            id,
            wanted: amount,
            least: amount,
            lease_ms: LONG_MS,
            key,
            rates: Vec::new(),
        };
        self.submit(op).await
    }

    async fn limit(&self, owner: BudgetOwner, kind: WindowKind, limit: i64) {
        let set = self.store.set_budget(&self.account, owner, kind, Some(nano(limit))).await;
        assert_eq!(set, Ok(true));
    }

    /// The window of a budget that runs now.
    async fn window(&self, owner: BudgetOwner, kind: WindowKind) -> WindowId {
        let budgets = self.store.list_budgets(&self.account).await.expect("budgets");
        let budget = budgets.iter().find(|budget| (budget.owner, budget.kind) == (owner, kind));
        budget.expect("the budget").window
    }

    /// What is spent, held and lent of a window; `None` if the store has forgotten it.
    fn used(&self, window: WindowId) -> Option<[i64; 3]> {
        let key = self.key(&format!("window:{window}"));
        let used: Vec<Option<i64>> = self.read(&["HMGET", &key, "spent", "held", "lent"]);
        let used: Option<Vec<i64>> = used.into_iter().collect();
        used.map(|used| used.try_into().expect("three"))
    }

    async fn update(&self, update: &AllotmentUpdate) -> LedgerAnswer {
        let answer = self.store.update_allotment(&self.account, update).await;
        answer.expect("an answer").expect("an account")
    }
}

#[tokio::test]
async fn an_account_without_budgets_has_only_the_keys_it_had_before() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    assert_eq!(redis.hold("a", 5, Some(KEY)).await, Outcome::Held(nano(5)));
    assert_eq!(redis.hold("b", 5, None).await, Outcome::Held(nano(5)));
    assert_eq!(redis.submit(settle("a", nano(3))).await, posted(3));
    let LedgerAnswer::Status(status) = redis.update(&update(1)).await else { panic!("no status") };
    assert_eq!((status.held, status.current.len(), status.slices.len()), (nano(100), 0, 0));
    assert_eq!(status.lent_keys, BTreeSet::from([KEY]), "no budget stands against it");
    let allotment = format!("hold:{}", id().0);
    let mut expected: Vec<String> = [
        "account",
        "allotments",
        allotment.as_str(),
        "hold:a",
        "hold:b",
        "journal",
        "journal-hours",
        "open",
        "payments",
        "transfer-times",
        "transfers",
    ]
    .map(|part| redis.key(part))
    .into();
    expected.extend(["tollgate:accounts", "tollgate:usage-due"].map(str::to_owned));
    expected.sort();
    assert_eq!(redis.keys(), expected);
    let has_budgets: bool = redis.read(&["HEXISTS", &redis.key("account"), "has_budgets"]);
    assert!(!has_budgets);
    assert_eq!(redis.store.list_budgets(&redis.account).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_window_is_kept_two_days_after_its_end_and_that_of_all_time_for_ever() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    for owner in [BudgetOwner::Account, BudgetOwner::Key(KEY)] {
        for kind in WindowKind::ALL {
            redis.limit(owner, kind, 1_000).await;
        }
    }
    assert_eq!(redis.hold("a", 5, Some(KEY)).await, Outcome::Held(nano(5)));
    let budgets = redis.store.list_budgets(&redis.account).await.expect("budgets");
    assert_eq!(budgets.len(), 10);
    for budget in budgets {
        let key = redis.key(&format!("window:{}", budget.window));
        let expires_at: i64 = redis.read(&["PEXPIRETIME", &key]);
        let end = budget.window.end();
        let expected = if end == i64::MAX { -1 } else { end + 2 * DAY_MS };
        assert_eq!(expires_at, expected, "{key}");
        assert_eq!((budget.limit, budget.used.held), (Some(nano(1_000)), nano(5)), "{key}");
    }
    let bob = name("bob");
    let none = redis.store.set_budget(&bob, BudgetOwner::Account, WindowKind::Day, None).await;
    assert_eq!(none, Ok(false), "there is no such account");
}

/// A hold may be open longer than its window is kept.
#[tokio::test]
async fn a_window_that_is_gone_is_not_made_again_by_what_it_held() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    redis.limit(BudgetOwner::Account, WindowKind::Day, 1_000).await;
    let window = redis.window(BudgetOwner::Account, WindowKind::Day).await;
    for id in ["a", "b"] {
        assert_eq!(redis.hold(id, 5, None).await, Outcome::Held(nano(5)));
    }
    assert_eq!(redis.used(window), Some([0, 10, 0]));
    let _: i64 = redis.read(&["DEL", &redis.key(&format!("window:{window}"))]);
    assert_eq!(redis.submit(Operation::Void { id: "a".to_owned() }).await, Outcome::Voided);
    assert_eq!(redis.used(window), None);
    // The window of this one ended three days ago.
    let old = WindowId { start: window.start - 3 * DAY_MS, ..window };
    let hold = redis.key("hold:b");
    let _: i64 = redis.read(&["HSET", &hold, "windows", &old.to_string()]);
    assert_eq!(redis.submit(settle("b", nano(3))).await, posted(3));
    assert_eq!((redis.used(old), redis.used(window)), (None, None));
}

#[tokio::test]
async fn a_hold_that_was_lost_counts_in_the_window_of_its_request() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let owner = BudgetOwner::Key(KEY);
    redis.limit(owner, WindowKind::Hour, 1_000).await;
    let at = now() - 2 * HOUR_MS;
    for (id, key) in [("a", Some(KEY)), ("b", Some(KeyId(8))), ("c", None)] {
        let origin = HoldRequest { wanted: nano(9), least: nano(9), at, key };
        assert_eq!(redis.submit(settle_even_if_lost(id, nano(4), origin)).await, posted(4));
    }
    assert_eq!(redis.used(WindowId::at(owner, WindowKind::Hour, at)), Some([4, 0, 0]));
    assert_eq!(redis.used(redis.window(owner, WindowKind::Hour).await), None);
}

#[tokio::test]
async fn a_hold_is_refused_by_the_budget_that_ends_last_and_waits_for_what_is_held() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let owner = BudgetOwner::Key(KEY);
    redis.limit(BudgetOwner::Account, WindowKind::Month, 100).await;
    redis.limit(owner, WindowKind::Total, 60).await;
    assert_eq!(redis.hold("a", 40, Some(KEY)).await, Outcome::Held(nano(40)));
    assert_eq!(redis.hold("b", 30, Some(KEY)).await, Outcome::BudgetInUse(nano(20)));
    assert_eq!(redis.submit(settle("a", nano(35))).await, posted(35));
    let window = redis.window(owner, WindowKind::Total).await;
    let exceeded = Outcome::BudgetExceeded { window, left: nano(25) };
    assert_eq!(redis.hold("b", 90, Some(KEY)).await, exceeded);
    assert_eq!(redis.hold("b", 60, None).await, Outcome::Held(nano(60)));
}

fn posted(amount: i64) -> Outcome {
    Outcome::Posted { amount: nano(amount), written_off: nano(0) }
}

fn record(account: &AccountName, key: &ApiKey) -> KeyRecord {
    KeyRecord::new(key, account.clone(), 5, KeyScope::default())
}

#[tokio::test]
async fn a_version_without_budgets_finds_no_key_that_one_is_about() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let (store, account, other) = (&redis.store, &redis.account, name("bob"));
    store.open_account(&other).await.expect("open");
    let [first, second, later, foreign] =
        [1u8, 2, 3, 4].map(|seed| ApiKey::from_random([seed; 32]));
    for (owner, key) in [(account, &first), (account, &second), (&other, &foreign)] {
        store.add_key(key.hash(), record(owner, key)).await.expect("a key");
    }
    let is_moved = |key: &ApiKey| {
        let [plain, restricted] = ["key", "restricted-key"].map(|place| {
            let record = format!("tollgate:{place}:{}", key.hash().hex());
            redis.read::<bool>(&["EXISTS", &record])
        });
        assert_ne!(plain, restricted, "a key has one record");
        restricted
    };
    assert_eq!(store.revoke_key(first.prefix(), 30).await, Ok(true));
    redis.limit(BudgetOwner::Key(first.hash().key_id()), WindowKind::Day, 9).await;
    assert!(is_moved(&first) && !is_moved(&second) && !is_moved(&foreign));
    let revoked = KeyRecord { revoked_at: Some(30), ..record(account, &first) };
    assert_eq!(store.find_key(first.hash()).await, Ok(Some(revoked)));

    redis.limit(BudgetOwner::Account, WindowKind::Day, 9).await;
    store.add_key(later.hash(), record(account, &later)).await.expect("a key");
    assert!(is_moved(&second) && is_moved(&later) && !is_moved(&foreign));
    assert_eq!(store.find_key(second.hash()).await, Ok(Some(record(account, &second))));
    assert_eq!(store.revoke_key(later.prefix(), 40).await, Ok(true));
    let revoked = KeyRecord { revoked_at: Some(40), ..record(account, &later) };
    assert_eq!(store.find_key(later.hash()).await, Ok(Some(revoked)));
    assert!(is_moved(&later), "revoked where it is");
    assert_eq!(store.list_keys(account).await.map(|keys| keys.len()), Ok(3));
}

/// The command line sets the budgets of a new key before it adds the key.
#[tokio::test]
async fn a_key_whose_budget_came_first_was_found_by_versions_without_budgets() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let key = ApiKey::from_random([1; 32]);
    redis.limit(BudgetOwner::Key(key.hash().key_id()), WindowKind::Day, 9).await;
    redis.store.add_key(key.hash(), record(&redis.account, &key)).await.expect("a key");
    let plain = format!("tollgate:key:{}", key.hash().hex());
    assert!(!redis.read::<bool>(&["EXISTS", &plain]));
    assert_eq!(redis.store.find_key(key.hash()).await, Ok(Some(record(&redis.account, &key))));
}

#[tokio::test]
async fn a_version_without_scopes_finds_no_key_that_has_one() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let (store, account) = (&redis.store, &redis.account);
    let [plain, scoped] = [1u8, 2].map(|seed| ApiKey::from_random([seed; 32]));
    let place = |key: &ApiKey| {
        ["key", "restricted-key"].map(|place| {
            let record = format!("tollgate:{place}:{}", key.hash().hex());
            redis.read::<bool>(&["EXISTS", &record])
        })
    };
    let version = || redis.read::<Option<u32>>(&["GET", "tollgate:schema-version"]);
    store.add_key(plain.hash(), record(account, &plain)).await.expect("a key");
    assert_eq!(set_scope(store, plain.prefix(), KeyScope::default()).await, Replaced::Done);
    assert_eq!((place(&plain), version()), ([true, false], None), "nothing is restricted");
    let scope = KeyScope { disabled: true, ..KeyScope::default() };
    let of_scoped = KeyRecord { scope: scope.clone(), ..record(account, &scoped) };
    store.add_key(scoped.hash(), of_scoped.clone()).await.expect("a key");
    assert_eq!((place(&scoped), version()), ([false, true], Some(2)));
    assert_eq!(store.find_key(scoped.hash()).await, Ok(Some(of_scoped.clone())));
    assert_eq!(set_scope(store, plain.prefix(), scope).await, Replaced::Done);
    assert_eq!(place(&plain), [false, true]);
    // A budget that comes later leaves the scope as it is.
    redis.limit(BudgetOwner::Account, WindowKind::Day, 9).await;
    assert_eq!(store.find_key(scoped.hash()).await, Ok(Some(of_scoped)));
    assert_eq!(set_scope(store, plain.prefix(), KeyScope::default()).await, Replaced::Done);
    assert_eq!(place(&plain), [false, true], "it stays where it is");
    let of_plain = format!("tollgate:restricted-key:{}", plain.hash().hex());
    let _: i64 = redis.read(&["HSET", &of_plain, "scope", "{\"methods\":[\"GET\"]}"]);
    assert_eq!(store.find_key(plain.hash()).await, Ok(None), "a restriction that is not known");
    let opened = set_scope(store, plain.prefix(), KeyScope::default()).await;
    assert_eq!(opened, Replaced::Unknown, "nor is it replaced unseen");
}

/// A process that had read the record when another one revoked the key wrote it without that.
#[tokio::test]
async fn a_key_that_was_revoked_while_its_record_was_moved_stays_revoked() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let key = ApiKey::from_random([1; 32]);
    redis.store.add_key(key.hash(), record(&redis.account, &key)).await.expect("a key");
    let [plain, restricted] =
        ["key", "restricted-key"].map(|p| format!("tollgate:{p}:{}", key.hash().hex()));
    let _: bool = redis.read(&["COPY", &plain, &restricted]);
    let _: i64 = redis.read(&["HSET", &plain, "revoked_at", "30"]);
    let revoked = KeyRecord { revoked_at: Some(30), ..record(&redis.account, &key) };
    assert_eq!(redis.store.find_key(key.hash()).await, Ok(Some(revoked.clone())));
    redis.limit(BudgetOwner::Account, WindowKind::Day, 9).await;
    assert_eq!(redis.store.find_key(key.hash()).await, Ok(Some(revoked)));
    let _: bool = redis.read(&["COPY", &restricted, &plain]);
    let _: i64 = redis.read(&["HDEL", &restricted, "revoked_at"]);
    let _: i64 = redis.read(&["HDEL", &plain, "revoked_at"]);
    assert_eq!(redis.store.revoke_key(key.prefix(), 40).await, Ok(true));
    for place in [&plain, &restricted] {
        assert_eq!(redis.read::<Option<i64>>(&["HGET", place, "revoked_at"]), Some(40));
    }
}

#[tokio::test]
async fn the_first_budget_raises_the_version_of_the_data() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let version = || redis.read::<Option<u32>>(&["GET", "tollgate:schema-version"]);
    assert_eq!(version(), None);
    redis.limit(BudgetOwner::Account, WindowKind::Day, 9).await;
    assert_eq!(version(), Some(2));
    assert!(RedisStore::open(&at(redis.url.clone())).await.is_ok());
    let _: String = redis.read(&["SET", "tollgate:schema-version", "8"]);
    redis.limit(BudgetOwner::Account, WindowKind::Day, 10).await;
    assert_eq!(version(), Some(8), "it is never lowered");
    assert!(RedisStore::open(&at(redis.url.clone())).await.is_err());
}

fn order(account: &AccountName, id: &str, amount: i64) -> NewJob {
    let order = queue::order(account, id);
    let job = Job { key_id: Some(KEY), held: nano(amount), ..order.job };
    NewJob { job, quote: Quote::exactly(nano(amount)), ..order }
}

#[tokio::test]
async fn a_video_counts_in_the_budgets_of_its_key() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    let owner = BudgetOwner::Key(KEY);
    redis.limit(owner, WindowKind::Week, 100).await;
    let window = redis.window(owner, WindowKind::Week).await;
    let place = |id: &str, amount: i64| redis.store.place_job(order(&redis.account, id, amount));
    assert_eq!(place("a", 60).await, Ok(PlaceResult::New(Vec::new())));
    assert_eq!(redis.used(window), Some([0, 60, 0]));
    assert_eq!(place("b", 41).await, Ok(PlaceResult::BudgetInUse(nano(40))));
    let exceeded = PlaceResult::BudgetExceeded { window, left: nano(100) };
    assert_eq!(place("b", 101).await, Ok(exceeded));
    assert_eq!(redis.store.find_job(&redis.account, "b").await, Ok(None));
    assert_eq!(redis.submit(settle("a", nano(50))).await, posted(50));
    assert_eq!(redis.used(window), Some([50, 0, 0]));
}

fn id() -> AllotmentId {
    AllotmentId("allotment_run1-1".to_owned())
}

/// A message that would like to have 100 free, also for the key.
fn update(step: u64) -> AllotmentUpdate {
    let keys = [(KEY, nano(100))].into();
    let demand = AllotmentDemand { free: nano(100), quote: nano(1), keys, ..Default::default() };
    AllotmentUpdate {
        step,
        demand: Some(demand),
        lease_ms: LONG_MS,
        ..AllotmentUpdate::replay(id(), 0, 1, Vec::new())
    }
}

fn call(charge: i64, windows: &[WindowId]) -> CallEnd {
    CallEnd {
        call: "call".to_owned(),
        key: Some(KEY),
        held: nano(20),
        charge: Some(nano(charge)),
        windows: windows.to_vec(),
        line: format!("12 34@line of {charge}"),
    }
}

async fn lent(redis: &BudgetedRedis, update: &AllotmentUpdate) -> Box<AllotmentStatus> {
    match redis.update(update).await {
        LedgerAnswer::Status(status) => status,
        other => panic!("{other:?} for {update:?}"),
    }
}

#[tokio::test]
async fn a_key_with_too_little_left_gets_no_slice_and_the_others_do() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    redis.limit(BudgetOwner::Account, WindowKind::Day, 10_000).await;
    redis.limit(BudgetOwner::Key(KEY), WindowKind::Total, 63).await;
    let status = lent(&redis, &update(1)).await;
    let day = redis.window(BudgetOwner::Account, WindowKind::Day).await;
    let total = redis.window(BudgetOwner::Key(KEY), WindowKind::Total).await;
    assert_eq!(status.current, BTreeSet::from([day, total]));
    assert_eq!(status.slices.keys().copied().collect::<Vec<_>>(), [day]);
    let slice = status.slices[&day];
    assert_eq!((slice.amount, status.held, status.tight), (nano(100), nano(100), false));
    assert!(slice.for_ms.is_some_and(|ms| (0..=DAY_MS).contains(&ms)), "{slice:?}");
    assert_eq!((redis.used(day), redis.used(total)), (Some([0, 100, 100]), None));

    redis.limit(BudgetOwner::Key(KEY), WindowKind::Total, 464).await;
    let status = lent(&redis, &update(2)).await;
    assert_eq!((status.slices[&total].amount, status.slices[&total].for_ms), (nano(100), None));
    assert_eq!(status.revision, 3, "each new limit raises it");
}

#[tokio::test]
async fn the_checkpoint_of_an_allotment_that_expires_counts_in_its_windows() {
    let server = RedisServer::shared();
    let redis = BudgetedRedis::open(&server).await;
    redis.limit(BudgetOwner::Account, WindowKind::Day, 10_000).await;
    let day = redis.window(BudgetOwner::Account, WindowKind::Day).await;
    lent(&redis, &update(1)).await;
    let mut next = AllotmentUpdate { checkpoints: vec![call(7, &[day])], ..update(2) };
    if let Some(demand) = &mut next.demand {
        (demand.needed, demand.needed_in) = (nano(20), [(day, nano(20))].into());
    }
    let status = lent(&redis, &next).await;
    assert_eq!((status.held, status.slices[&day].amount), (nano(120), nano(120)));

    let _: i64 = redis.read(&["HSET", &redis.key(&format!("hold:{}", id().0)), "lease_until", "1"]);
    let _: i64 = redis.read(&["ZADD", &redis.key("open"), "1", &id().0]);
    assert_eq!(redis.store.expire_holds().await.map(|swept| swept.expired), Ok(1));
    assert_eq!(redis.used(day), Some([7, 0, 0]));
    let slices: bool = redis.read(&["EXISTS", &redis.key(&format!("slices:{}", id().0))]);
    assert!(!slices, "slices of an allotment that has ended");

    let late = AllotmentUpdate::replay(id(), now(), 1, vec![call(10, &[day])]);
    assert_eq!(redis.update(&late).await, LedgerAnswer::AllotmentEnded { last_seq: 1 });
    assert_eq!(redis.used(day), Some([10, 0, 0]));
    let journal = redis.store.read_journal(&redis.account, 0, 10).await.expect("a journal");
    let lines: Vec<&str> = journal.iter().map(|entry| entry.line.as_str()).collect();
    assert_eq!(lines, ["12 34@line of 7", "12 34@line of 10"]);
}
