//! Deleted accounts, in both stores: what hinders a deletion, what is refused after it, what is
//! erased, and what stays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use redis::Value;
use rusqlite::Connection;
use tollgate::idempotency::{ClaimMode, IdempotencyKey, ReplyHead, ReplyParts};
use tollgate::jobs::{ClaimUpdate, JobFailCode, JobOutcome, JobStage, NewJob, PlaceResult};
use tollgate::ledger::key::ApiKey;
use tollgate::ledger::{
    AccountName, AccountRemains, AccountSettings, BudgetOwner, DeletionMark, KeyId, KeyRecord,
    KeyScope, Operation, Outcome, PlanName, RateAsk, RateId, RateKind, RateLimit, Replaced,
    Replacement, WindowKind, parse_network,
};
use tollgate::money::Money;
use tollgate::store::OpenStore;

use super::queue::order;
use super::redis_cluster;
use super::redis_server::RedisServer;
use super::script::LONG_MS;
use super::subject::{name, opened};

/// What must not be found any more begins with this.
const CANARY: &str = "canary";
/// The version of the data from the first deletion on.
const DELETION_VERSION: &str = "7";
const HOUR_MS: u64 = 60 * 60 * 1_000;

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

/// A store as two processes see it.
async fn two(url: &str) -> [OpenStore; 2] {
    [opened(url).await, opened(url).await]
}

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn key(seed: u8) -> ApiKey {
    ApiKey::from_random([seed; 32])
}

fn credit(tx: &str, amount: i64) -> Operation {
    Operation::Credit { tx: tx.to_owned(), amount: nano(amount) }
}

fn grant(tx: &str, amount: i64, lot: &str) -> Operation {
    Operation::Grant { tx: tx.to_owned(), amount: nano(amount), lot: lot.parse().expect("a lot") }
}

fn take(tx: &str, amount: i64) -> Operation {
    Operation::Take { tx: tx.to_owned(), amount: nano(amount), reason: String::new() }
}

fn hold(id: &str, amount: i64) -> Operation {
    Operation::Hold {
        id: id.to_owned(),
        wanted: nano(amount),
        least: nano(amount),
        lease_ms: LONG_MS,
        key: None,
        rates: Vec::new(),
    }
}

fn settle(id: &str, charge: i64) -> Operation {
    let line = format!(r#"{{"request_id":"{id}","account":"ada"}}"#);
    Operation::Settle { id: id.to_owned(), charge: nano(charge), line, origin: None, tokens: None }
}

fn void(id: &str) -> Operation {
    Operation::Void { id: id.to_owned() }
}

async fn apply(store: &OpenStore, account: &AccountName, op: Operation) -> Outcome {
    store.ledger.submit(account, op).await.expect("an outcome")
}

async fn opened_account(store: &OpenStore, account: &str) -> AccountName {
    let account = name(account);
    assert_eq!(store.ledger.open_account(&account).await, Ok(true));
    account
}

async fn mark(store: &OpenStore, account: &AccountName) -> DeletionMark {
    store.eraser.mark_deleted(account).await.expect("an answer")
}

/// Panics unless the account is not deleted, because it has this.
async fn is_left(store: &OpenStore, account: &AccountName, remains: AccountRemains) {
    assert_eq!(mark(store, account).await, DeletionMark::NotEmpty(remains));
    assert_eq!(store.ledger.account_deletion(account).await, Ok(None));
}

/// Panics unless the account is deleted now.
async fn is_deleted(store: &OpenStore, account: &AccountName) -> i64 {
    match mark(store, account).await {
        DeletionMark::Deleted(at) => at,
        other => panic!("{other:?}"),
    }
}

/// Whatever the store keeps, in words.
trait Dump {
    fn dump(&self) -> String;
    fn version(&self) -> String;
}

struct File(Connection);

impl File {
    fn of(folder: &Path) -> File {
        File(Connection::open(folder.join("ledger.db")).expect("the file"))
    }
}

impl Dump for File {
    fn dump(&self) -> String {
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table'";
        let mut tables = self.0.prepare(sql).expect("a query");
        let tables = tables.query_map([], |row| row.get::<_, String>(0)).expect("tables");
        let mut words = String::new();
        for table in tables {
            let table = table.expect("a name");
            let mut select = self.0.prepare(&format!("SELECT * FROM {table}")).expect("a query");
            let columns = select.column_count();
            let mut rows = select.query([]).expect("rows");
            while let Some(row) = rows.next().expect("a row") {
                for column in 0..columns {
                    let value = row.get_ref(column).expect("a value");
                    let bytes = match value {
                        rusqlite::types::ValueRef::Blob(bytes)
                        | rusqlite::types::ValueRef::Text(bytes) => bytes,
                        _ => &[],
                    };
                    let text = String::from_utf8_lossy(bytes);
                    writeln!(words, "{table}: {text}").expect("written");
                }
            }
        }
        words
    }

    fn version(&self) -> String {
        let version = self.0.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0));
        version.expect("a version").to_string()
    }
}

/// Some servers, with all their keys.
struct Servers(Vec<redis::Client>);

impl Servers {
    fn of(urls: &[String]) -> Servers {
        Servers(urls.iter().map(|url| redis::Client::open(&**url).expect("a URL")).collect())
    }
}

impl Dump for Servers {
    fn dump(&self) -> String {
        let mut words = String::new();
        for client in &self.0 {
            let mut server = client.get_connection().expect("a connection");
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server).expect("keys");
            for key in keys {
                let kind: String = redis::cmd("TYPE").arg(&key).query(&mut server).expect("a type");
                let read = match kind.as_str() {
                    "string" => redis::cmd("GET").arg(&key).to_owned(),
                    "hash" => redis::cmd("HGETALL").arg(&key).to_owned(),
                    "set" => redis::cmd("SMEMBERS").arg(&key).to_owned(),
                    "zset" => redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).to_owned(),
                    "list" => redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).to_owned(),
                    _ => continue,
                };
                let value: Value = read.query(&mut server).expect("a value");
                writeln!(words, "{key}: {}", text_of(&value)).expect("written");
            }
        }
        words
    }

    fn version(&self) -> String {
        let found = self.0.iter().find_map(|client| {
            let mut server = client.get_connection().expect("a connection");
            redis::cmd("GET")
                .arg("tollgate:schema-version")
                .query::<Option<String>>(&mut server)
                .ok()?
        });
        found.unwrap_or_else(|| "1".to_owned())
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) | Value::Set(values) => {
            values.iter().map(text_of).collect::<Vec<_>>().join(" ")
        }
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| text_of(key) + " " + &text_of(value));
            pairs.collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    }
}

async fn what_is_left_hinders_it([first, second]: &[OpenStore; 2], file: &dyn Dump) {
    let ada = opened_account(first, "ada").await;
    assert_eq!(mark(first, &name("nobody")).await, DeletionMark::NoAccount);
    let remains = AccountRemains::default();
    apply(first, &ada, credit("t1", 30)).await;
    is_left(second, &ada, AccountRemains { available: nano(30), ..remains }).await;
    assert_eq!(apply(second, &ada, hold("h", 30)).await, Outcome::Held(nano(30)));
    is_left(first, &ada, AccountRemains { held: nano(30), open_holds: 1, ..remains }).await;
    apply(first, &ada, settle("h", 20)).await;
    is_left(second, &ada, AccountRemains { available: nano(10), ..remains }).await;
    apply(second, &ada, take("t2", 10)).await;
    // What holds nothing is a call all the same.
    apply(first, &ada, hold("free", 0)).await;
    is_left(first, &ada, AccountRemains { open_holds: 1, ..remains }).await;
    apply(second, &ada, void("free")).await;
    apply(first, &ada, credit("t3", 10)).await;
    let placed = first.queue.place_job(order(&ada, "video_1")).await;
    assert_eq!(placed, Ok(PlaceResult::New(Vec::new())));
    let open = AccountRemains { open_jobs: 1, ..remains };
    is_left(second, &ada, AccountRemains { held: nano(10), open_holds: 1, ..open }).await;
    apply(first, &ada, settle("video_1", 10)).await;
    is_left(second, &ada, open).await;
    end_job(first, "video_1").await;
    apply(first, &ada, grant("g1", 5, "9999999999999/promotion")).await;
    is_left(first, &ada, AccountRemains { available: nano(5), ..remains }).await;
    apply(first, &ada, hold("h2", 5)).await;
    apply(first, &ada, settle("h2", 5)).await;
    assert_ne!(file.version(), DELETION_VERSION, "nothing was deleted");
    // Credit whose time has come is nothing, and its line is written.
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
    let soon = format!("{}/voucher", at.as_millis() + 3_000);
    apply(first, &ada, grant("g2", 7, &soon)).await;
    is_left(first, &ada, AccountRemains { available: nano(7), ..remains }).await;
    tokio::time::sleep(std::time::Duration::from_millis(3_100)).await;
    let at = is_deleted(second, &ada).await;
    assert_eq!(file.version(), DELETION_VERSION);
    for store in [first, second] {
        assert_eq!(mark(store, &ada).await, DeletionMark::AlreadyDeleted(at));
        let balances = store.ledger.balances(&ada).await.expect("an answer").expect("balances");
        assert!(balances.is_balanced(), "{balances:?}");
        assert_eq!((balances.available, balances.held), (Money::ZERO, Money::ZERO));
        assert_eq!(balances.posted, nano(35));
        assert_eq!(store.ledger.journal_length(&ada).await, Ok(4));
    }
}

/// Ends a job of an account that has no other one that is due.
async fn end_job(store: &OpenStore, id: &str) {
    let mut claims = store.queue.claim_due(60_000, 10).await.expect("claims");
    let claim = claims.iter_mut().find(|claim| claim.job.id == id).expect("the job");
    let (code, message) = (JobFailCode::TimedOut, format!("{CANARY} failure"));
    let outcome = JobOutcome::Failed { code, message };
    claim.job.stage = JobStage::Ended { outcome, at_ms: 1_800_000_000_456 };
    let next = ClaimUpdate { due_ms: Some(HOUR_MS), forget_body: false };
    assert_eq!(store.queue.save_claim(claim, next).await, Ok(true));
}

/// Gives an account all that is erased with it.
async fn furnish(store: &OpenStore, account: &AccountName, seed: u8) -> [ApiKey; 2] {
    let ledger = &*store.ledger;
    let keys = [key(seed), key(seed + 1)];
    let scope = KeyScope {
        name: Some(format!("{CANARY}-name")),
        tags: BTreeMap::from([("team".to_owned(), format!("{CANARY}-tag"))]),
        models: vec![format!("{CANARY}-model-*")],
        from: vec![parse_network("203.0.113.0/24").expect("a network")],
        expires_at: Some(4_000_000_000),
        ..KeyScope::default()
    };
    for (key, scope) in keys.iter().zip([scope, KeyScope::default()]) {
        let record = KeyRecord::new(key, account.clone(), 5, scope);
        ledger.add_key(key.hash(), record).await.expect("a key");
    }
    ledger.note_key_uses(vec![(keys[0].hash(), 60)]).await.expect("noted");
    let plan = PlanName::parse(&format!("{CANARY}-plan"));
    let after = AccountSettings { plan, ..AccountSettings::default() };
    let change = Replacement { before: AccountSettings::default(), after };
    assert_eq!(ledger.set_account_settings(account, change).await, Ok(Replaced::Done));
    let key_id = keys[1].hash().key_id();
    for owner in [BudgetOwner::Account, BudgetOwner::Key(key_id)] {
        let set = ledger.set_budget(account, owner, WindowKind::Day, Some(nano(1_000))).await;
        assert_eq!(set, Ok(true));
    }
    apply(store, account, credit("t", 20)).await;
    spend(store, account, key_id).await;
    let note = Bytes::from(format!("{CANARY}-note"));
    let names = [format!("{CANARY}-note-name"), format!("resp_{CANARY}")];
    store.account_cache.put(account, &names, note, HOUR_MS).await.expect("kept");
    for (id, bytes) in [("short", 10), ("long", 300_000)] {
        let name = format!("{CANARY}-{id}");
        let call = IdempotencyKey {
            name: name.clone(),
            content: [1; 32],
            owner: format!("{id}-of-{account}"),
            life_ms: HOUR_MS,
        };
        let replies = &*store.reply_store;
        let claimed = replies.claim_key(account, &call, &ClaimMode::IfFree, LONG_MS).await;
        claimed.expect("claimed");
        let body = Bytes::from(name.repeat(bytes / name.len() + 1));
        let reply = ReplyParts { head: ReplyHead::new(200, Vec::new()), body };
        assert_eq!(replies.complete(account, &call, Some(reply)).await, Ok(true));
    }
    let id = format!("video_of_{account}");
    let mut new = order(account, &id);
    new.job.key_prefix = format!("{CANARY}-prefix");
    let body = Bytes::from(format!("{CANARY}-prompt"));
    let new = NewJob { body, key: Some(format!("{CANARY}-job-key")), ..new };
    assert_eq!(store.queue.place_job(new).await, Ok(PlaceResult::New(Vec::new())));
    end_job(store, &id).await;
    apply(store, account, void(&id)).await;
    apply(store, account, take("back", 18)).await;
    keys
}

/// Makes a call with rate limits, which is charged 2 nano-USD.
async fn spend(store: &OpenStore, account: &AccountName, key: KeyId) {
    let id = RateId { owner: BudgetOwner::Account, kind: RateKind::Requests, row: 0 };
    let limit = RateLimit { per_minute: 60, burst: 60 };
    let Operation::Hold { wanted, least, lease_ms, .. } = hold("call", 2) else { unreachable!() };
    let rates = vec![RateAsk { id, limit, amount: 1, is_shadow: false }];
    let holding =
        Operation::Hold { id: "call".to_owned(), wanted, least, lease_ms, key: Some(key), rates };
    let held = apply(store, account, holding).await;
    assert!(matches!(held, Outcome::HeldWithinRates { .. }), "{held:?}");
    apply(store, account, settle("call", 2)).await;
}

/// Panics unless all is refused that would put something into a deleted account.
async fn nothing_comes_in(store: &OpenStore, ada: &AccountName, keys: &[ApiKey]) {
    let ledger = &*store.ledger;
    let found = vec![1];
    let (tx, request, reason) = ("c".to_owned(), "call".to_owned(), String::new());
    for op in [
        credit("late", 5),
        grant("g", 5, "never/voucher"),
        take("late", 1),
        Operation::Correct { tx, request, found, amount: nano(1), reason },
        hold("late", 0),
    ] {
        assert_eq!(apply(store, ada, op.clone()).await, Outcome::AccountDeleted, "{op:?}");
    }
    // What was booked is answered as it was, so that nobody books it elsewhere.
    let repeated = apply(store, ada, credit("t", 20)).await;
    assert_eq!(repeated, Outcome::AlreadyDone, "a payment that was made before");
    assert_eq!(apply(store, ada, settle("call", 2)).await, Outcome::AlreadyPosted(nano(2)));
    assert_eq!(store.queue.place_job(order(ada, "late")).await, Ok(PlaceResult::NoAccount));
    let late = key(200);
    let record = KeyRecord::new(&late, ada.clone(), 6, KeyScope::default());
    assert!(ledger.add_key(late.hash(), record).await.is_err());
    assert_eq!(ledger.find_key(late.hash()).await, Ok(None));
    let owner = BudgetOwner::Account;
    let set = ledger.set_budget(ada, owner, WindowKind::Day, Some(nano(1))).await;
    assert_eq!(set, Ok(false));
    let before = ledger.account_settings(ada).await.expect("an answer").expect("settings");
    assert!(before.suspended);
    let change = Replacement { before, after: AccountSettings::default() };
    assert_eq!(ledger.set_account_settings(ada, change).await, Ok(Replaced::Unknown));
    for key in keys {
        assert_eq!(ledger.find_key(key.hash()).await, Ok(None));
    }
    assert_eq!(ledger.list_keys(ada).await, Ok(Vec::new()));
    assert_eq!(ledger.open_account(ada).await, Ok(false));
    assert_eq!(store.eraser.list_deleted().await, Ok(vec![ada.clone()]));
    assert_eq!(ledger.list_accounts().await, Ok(vec![ada.clone(), name("bob")]));
    let balances = ledger.balances(ada).await.expect("an answer").expect("balances");
    assert!(balances.is_balanced() && balances.available == Money::ZERO, "{balances:?}");
}

async fn what_it_had_is_erased([first, second]: &[OpenStore; 2], file: &dyn Dump) {
    let ada = opened_account(first, "ada").await;
    let bob = opened_account(second, "bob").await;
    let keys = furnish(first, &ada, 1).await;
    let others = furnish(second, &bob, 11).await;
    let before = file.dump();
    for kept in ["name", "tag", "model", "plan", "note", "short", "long", "prefix", "prompt"] {
        assert!(before.contains(&format!("{CANARY}-{kept}")), "{kept}");
    }
    first.eraser.erase_account(&ada).await.expect("an answer");
    assert!(first.ledger.find_key(keys[0].hash()).await.expect("an answer").is_some());
    let revision = second.ledger.key_revision().await.expect("a number");
    let at = is_deleted(first, &ada).await;
    assert!(second.ledger.key_revision().await.expect("a number") > revision);
    assert_eq!(second.ledger.list_suspended().await, Ok(vec![ada.clone()]));
    for store in [second, first] {
        nothing_comes_in(store, &ada, &keys).await;
    }
    // Another process does it, and does it once more, since a call that was late left something.
    for _ in 0..2 {
        second.eraser.erase_account(&ada).await.expect("erased");
        assert_eq!(first.ledger.list_suspended().await, Ok(Vec::new()));
        nothing_comes_in(first, &ada, &keys).await;
        let names = [format!("{CANARY}-late")];
        let found = first.account_cache.get_many(&ada, &names).await.expect("an answer");
        assert_eq!(found, [None]);
        let note = Bytes::from(format!("{CANARY}-late"));
        first.account_cache.put(&ada, &names, note, HOUR_MS).await.expect("kept");
    }
    first.eraser.erase_account(&ada).await.expect("erased");
    for key in &others {
        assert!(first.ledger.find_key(key.hash()).await.expect("an answer").is_some());
    }
    assert_eq!(second.ledger.list_budgets(&ada).await, Ok(Vec::new()));
    assert_eq!(second.ledger.list_budgets(&bob).await.expect("budgets").len(), 2);
    let journal = first.ledger.read_journal(&ada, 0, 10).await.expect("a journal");
    assert_eq!(journal.len(), 1, "the books stay");
    let transfers = second.ledger.list_transfers(&ada, 0, 10).await.expect("transfers");
    assert_eq!(transfers.iter().map(|one| &*one.tx).collect::<Vec<_>>(), ["t", "back"]);
    assert_eq!(first.ledger.account_deletion(&ada).await, Ok(Some(at)));
    // What else has the word is of the other account.
    apply(first, &bob, settle("call", 2)).await;
    is_deleted(second, &bob).await;
    first.eraser.erase_account(&bob).await.expect("erased");
    let after = file.dump();
    let found: Vec<_> = after.lines().filter(|line| line.contains(CANARY)).collect();
    assert!(found.is_empty(), "{found:#?}");
    for hash in keys.iter().chain(&others).map(|key| key.hash().hex()) {
        assert!(!after.contains(&hash), "{hash}");
    }
    for key in keys.iter().chain(&others) {
        assert!(!after.contains(key.prefix()), "{}", key.prefix());
    }
    assert!(after.contains("ada") && after.contains(r#""request_id":"call""#));
}

/// Either the deletion is refused or what comes at the same moment.
async fn nothing_slips_in([first, second]: &[OpenStore; 2]) {
    let mut deleted = 0;
    for round in 0..40 {
        let ada = opened_account(first, &format!("ada-{round}")).await;
        // In every other round it is the marking that waits.
        let waits = [round, 0].map(std::time::Duration::from_millis);
        let [before_mark, before] = if round % 2 == 0 { waits } else { [waits[1], waits[0]] };
        let marking = async {
            tokio::time::sleep(before_mark).await;
            mark(first, &ada).await
        };
        let applying = async |op| {
            tokio::time::sleep(before).await;
            apply(second, &ada, op).await
        };
        let late = key(100 + u8::try_from(round).expect("few"));
        let record = KeyRecord::new(&late, ada.clone(), 6, KeyScope::default());
        let adding = second.ledger.add_key(late.hash(), record);
        let (marked, paid, granted, held, added) = tokio::join!(
            marking,
            applying(credit("t", 5)),
            applying(grant("g", 3, "never/voucher")),
            applying(hold("h", 0)),
            adding,
        );
        let is_deleted = matches!(marked, DeletionMark::Deleted(_));
        for (outcome, done) in [(paid, Outcome::Done), (granted, Outcome::Done)] {
            let expected = if is_deleted { Outcome::AccountDeleted } else { done };
            // What came after a deletion that was refused, or before one that was not, is done.
            assert_eq!(outcome, expected, "{round}: {marked:?}");
        }
        let expected = if is_deleted { Outcome::AccountDeleted } else { Outcome::Held(nano(0)) };
        assert_eq!(held, expected, "{round}: {marked:?}");
        let balances = second.ledger.balances(&ada).await.expect("an answer").expect("balances");
        assert!(balances.is_balanced(), "{balances:?}");
        if is_deleted {
            deleted += 1;
            assert_eq!((balances.available, balances.credit), (Money::ZERO, Money::ZERO));
            first.eraser.erase_account(&ada).await.expect("erased");
            assert_eq!(first.ledger.find_key(late.hash()).await, Ok(None));
            assert_eq!(second.ledger.list_keys(&ada).await, Ok(Vec::new()));
        } else {
            assert_eq!(balances.available, nano(8), "{round}");
            assert_eq!(added, Ok(()), "{round}");
        }
    }
    assert!(0 < deleted && deleted < 40, "{deleted} deletions were not refused");
}

#[tokio::test]
async fn an_account_that_has_something_is_not_deleted_by_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let stores = two(&sqlite_url(folder.path())).await;
    what_is_left_hinders_it(&stores, &File::of(folder.path())).await;
}

#[tokio::test]
async fn an_account_that_has_something_is_not_deleted_by_redis() {
    let url = RedisServer::shared().fresh_url();
    what_is_left_hinders_it(&two(&url).await, &Servers::of(&[url])).await;
}

#[tokio::test]
async fn what_a_deleted_account_had_is_erased_by_sqlite_but_for_its_books() {
    let folder = tempfile::tempdir().expect("a folder");
    let stores = two(&sqlite_url(folder.path())).await;
    what_it_had_is_erased(&stores, &File::of(folder.path())).await;
}

#[tokio::test]
async fn what_a_deleted_account_had_is_erased_by_redis_but_for_its_books() {
    let url = RedisServer::shared().fresh_url();
    what_it_had_is_erased(&two(&url).await, &Servers::of(&[url])).await;
}

/// The keys of accounts, their records and the indexes are on different masters.
#[tokio::test]
async fn what_a_deleted_account_had_is_erased_by_a_cluster_but_for_its_books() {
    let nodes = redis_cluster::start();
    let stores = two(&nodes[0].cluster_url()).await;
    let urls: Vec<String> = nodes[..3].iter().map(RedisServer::url).collect();
    what_it_had_is_erased(&stores, &Servers::of(&urls)).await;
}

#[tokio::test]
async fn nothing_slips_into_an_account_while_sqlite_deletes_it() {
    let folder = tempfile::tempdir().expect("a folder");
    nothing_slips_in(&two(&sqlite_url(folder.path())).await).await;
}

#[tokio::test]
async fn nothing_slips_into_an_account_while_redis_deletes_it() {
    nothing_slips_in(&two(&RedisServer::shared().fresh_url()).await).await;
}
