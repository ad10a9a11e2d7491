//! The settings of accounts and the last uses of keys, in both stores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tollgate::ledger::key::ApiKey;
use tollgate::ledger::{
    AccountName, AccountSettings, BudgetOwner, KeyId, KeyRecord, KeyScope, Ledger, PlanName,
    Replaced, Replacement, WindowKind,
};
use tollgate::money::Money;
use tollgate::store;

use super::redis_cluster;
use super::redis_server::RedisServer;
use super::subject::{at, name, open};

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

fn beside_file(folder: &Path) -> Connection {
    let beside = Connection::open(folder.join("ledger.db")).expect("the file");
    beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
    beside
}

fn beside_redis(url: &str) -> redis::Connection {
    let client = redis::Client::open(url).expect("an address");
    client.get_connection().expect("a connection")
}

/// The ledgers of two processes that use one store.
async fn open_twice(url: &str) -> [Arc<dyn Ledger>; 2] {
    let first = open(url).await;
    let second = store::open(&at(url.to_owned())).await.expect("a store");
    [first, second.ledger]
}

fn on_plan(plan: &str) -> AccountSettings {
    AccountSettings { plan: PlanName::parse(plan), ..AccountSettings::default() }
}

fn suspended() -> AccountSettings {
    AccountSettings { suspended: true, ..AccountSettings::default() }
}

fn key(seed: u8) -> ApiKey {
    ApiKey::from_random([seed; 32])
}

fn record(account: &AccountName, key: &ApiKey, created_at: i64) -> KeyRecord {
    KeyRecord::new(key, account.clone(), created_at, KeyScope::default())
}

async fn set(ledger: &dyn Ledger, account: &AccountName, settings: &AccountSettings) {
    let before = ledger.account_settings(account).await.expect("an answer").expect("an account");
    let change = Replacement { before, after: settings.clone() };
    let replaced = ledger.set_account_settings(account, change).await;
    assert_eq!(replaced, Ok(Replaced::Done), "{settings:?}");
}

async fn revision(ledger: &dyn Ledger) -> u64 {
    ledger.key_revision().await.expect("a number")
}

/// What a key that is looked up says of its account.
async fn settings_by_key(ledger: &dyn Ledger, key: &ApiKey) -> AccountSettings {
    let found = ledger.find_key(key.hash()).await.expect("an answer");
    found.expect("the key").account_settings
}

async fn last_use(ledger: &dyn Ledger, key: &ApiKey) -> Option<i64> {
    let found = ledger.find_key(key.hash()).await.expect("an answer");
    found.expect("the key").last_used_at
}

async fn settings_are_kept_and_cleared([first, second]: [Arc<dyn Ledger>; 2]) {
    let (ada, bob) = (name("ada"), name("bob"));
    for account in [&ada, &bob] {
        assert_eq!(first.open_account(account).await, Ok(true));
    }
    let [old, later, foreign] = [1, 2, 3].map(key);
    for (account, key) in [(&ada, &old), (&bob, &foreign)] {
        first.add_key(key.hash(), record(account, key, 5)).await.expect("a key");
    }
    assert_eq!(first.account_settings(&ada).await, Ok(Some(AccountSettings::default())));
    let both = AccountSettings { suspended: true, ..on_plan("free") };
    for settings in [on_plan("free"), both.clone(), on_plan("other"), suspended(), both.clone()] {
        let before = revision(&*second).await;
        set(&*first, &ada, &settings).await;
        assert!(revision(&*second).await > before, "keys are looked up again");
        for ledger in [&*first, &*second] {
            assert_eq!(ledger.account_settings(&ada).await, Ok(Some(settings.clone())));
            assert_eq!(settings_by_key(ledger, &old).await, settings);
        }
        // A write of the command line may come twice.
        set(&*second, &ada, &settings).await;
        assert_eq!(settings_by_key(&*first, &old).await, settings);
    }
    second.add_key(later.hash(), record(&ada, &later, 6)).await.expect("a key");
    let restricted = |key: &ApiKey, created_at| KeyRecord {
        account_settings: both.clone(),
        ..record(&ada, key, created_at)
    };
    let listed = vec![restricted(&old, 5), restricted(&later, 6)];
    assert_eq!(first.list_keys(&ada).await, Ok(listed));
    let by_prefix = second.find_key_by_prefix(later.prefix()).await;
    assert_eq!(by_prefix, Ok(Some(restricted(&later, 6))));
    assert_eq!(settings_by_key(&*second, &foreign).await, AccountSettings::default());

    let before = revision(&*first).await;
    set(&*second, &ada, &AccountSettings::default()).await;
    assert!(revision(&*first).await > before);
    for ledger in [&*first, &*second] {
        assert_eq!(ledger.account_settings(&ada).await, Ok(Some(AccountSettings::default())));
        assert_eq!(ledger.find_key(old.hash()).await, Ok(Some(record(&ada, &old, 5))));
    }
    assert_eq!(first.revoke_key(later.prefix(), 9).await, Ok(true));
    let revoked = KeyRecord { revoked_at: Some(9), ..record(&ada, &later, 6) };
    assert_eq!(second.find_key(later.hash()).await, Ok(Some(revoked)));
}

async fn nobody_has_no_settings(ledger: Arc<dyn Ledger>) {
    let nobody = name("nobody");
    for after in [suspended(), AccountSettings::default()] {
        let change = Replacement { before: AccountSettings::default(), after };
        let replaced = ledger.set_account_settings(&nobody, change).await;
        assert_eq!(replaced, Ok(Replaced::Unknown));
    }
    assert_eq!(ledger.account_settings(&nobody).await, Ok(None));
    assert_eq!(ledger.list_suspended().await, Ok(Vec::new()));
}

async fn suspended_accounts_are_listed([first, second]: [Arc<dyn Ledger>; 2]) {
    let accounts = ["carol", "ada", "bob"].map(name);
    for account in &accounts {
        assert_eq!(first.open_account(account).await, Ok(true));
    }
    let [carol, ada, bob] = &accounts;
    set(&*first, bob, &on_plan("free")).await;
    for account in [carol, ada] {
        set(&*first, account, &suspended()).await;
    }
    assert_eq!(second.list_suspended().await, Ok(vec![ada.clone(), carol.clone()]));
    set(&*second, bob, &AccountSettings { suspended: true, ..on_plan("free") }).await;
    assert_eq!(first.list_suspended().await, Ok(vec![ada.clone(), bob.clone(), carol.clone()]));
    set(&*second, ada, &AccountSettings::default()).await;
    set(&*second, carol, &on_plan("free")).await;
    assert_eq!(first.list_suspended().await, Ok(vec![bob.clone()]));
    set(&*first, ada, &suspended()).await;
    assert_eq!(first.list_suspended().await, Ok(vec![ada.clone(), bob.clone()]));
}

async fn last_uses_only_rise([first, second]: [Arc<dyn Ledger>; 2]) {
    let ada = name("ada");
    assert_eq!(first.open_account(&ada).await, Ok(true));
    let [plain, moved, unknown, unused] = [1, 2, 3, 4].map(key);
    for key in [&plain, &moved, &unused] {
        first.add_key(key.hash(), record(&ada, key, 5)).await.expect("a key");
    }
    let owner = BudgetOwner::Key(moved.hash().key_id());
    let one = Money::from_nano(1).expect("not negative");
    for (at, expected) in [(100, 100), (90, 100), (100, 100), (160, 160)] {
        let keys = [&plain, &moved, &unknown];
        let uses = keys.map(|key| (key.hash(), at)).to_vec();
        assert_eq!(second.note_key_uses(uses).await, Ok(()));
        for key in [&plain, &moved] {
            assert_eq!(last_use(&*first, key).await, Some(expected), "{at}");
        }
        // A key takes it along to where restricted keys are.
        let limited = first.set_budget(&ada, owner, WindowKind::Day, Some(one)).await;
        assert_eq!(limited, Ok(true));
        assert_eq!(last_use(&*second, &moved).await, Some(expected));
    }
    assert_eq!(last_use(&*first, &unused).await, None);
    assert_eq!(first.find_key(unknown.hash()).await, Ok(None), "it is not made by its use");
    first.add_key(unknown.hash(), record(&ada, &unknown, 7)).await.expect("a key");
    assert_eq!(last_use(&*first, &unknown).await, None);
    assert_eq!(first.note_key_uses(Vec::new()).await, Ok(()));
    let many = (0..2_000).map(|at| (plain.hash(), at)).collect();
    assert_eq!(first.note_key_uses(many).await, Ok(()));
    assert_eq!(last_use(&*second, &plain).await, Some(1_999));
}

async fn ids_lead_to_keys(ledger: Arc<dyn Ledger>) {
    let (ada, bob) = (name("ada"), name("bob"));
    for account in [&ada, &bob] {
        assert_eq!(ledger.open_account(account).await, Ok(true));
    }
    let [first, second, foreign] = [1, 2, 3].map(key);
    let id = first.hash().key_id();
    for (account, key) in [(&ada, &first), (&bob, &foreign)] {
        ledger.add_key(key.hash(), record(account, key, 5)).await.expect("a key");
    }
    let by_id = async |id: KeyId| ledger.find_key_by_prefix(&id.0.to_string()).await;
    assert_eq!(by_id(id).await, Ok(Some(record(&ada, &first, 5))));
    let scope = KeyScope { id: Some(id), ..KeyScope::default() };
    let rotated = KeyRecord::new(&second, ada.clone(), 6, scope);
    assert_eq!(rotated.id, id);
    ledger.add_key(second.hash(), rotated.clone()).await.expect("a key");
    assert_eq!(ledger.find_key(second.hash()).await, Ok(Some(rotated.clone())));
    assert_eq!(by_id(id).await, Ok(Some(rotated.clone())), "the newest");
    assert_eq!(by_id(foreign.hash().key_id()).await, Ok(Some(record(&bob, &foreign, 5))));
    assert_eq!(by_id(second.hash().key_id()).await, Ok(None), "it has the id of another one");
    for none in [0, 7, u64::MAX] {
        assert_eq!(by_id(KeyId(none)).await, Ok(None), "{none}");
    }
    assert_eq!(ledger.revoke_key(second.prefix(), 9).await, Ok(true));
    assert_eq!(by_id(id).await, Ok(Some(record(&ada, &first, 5))), "the one that is not revoked");
}

#[tokio::test]
async fn settings_of_an_account_are_kept_and_cleared_by_both_stores() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        settings_are_kept_and_cleared(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn an_account_that_does_not_exist_has_no_settings() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        nobody_has_no_settings(open(&url).await).await;
    }
}

#[tokio::test]
async fn suspended_accounts_are_listed_in_order_until_they_are_resumed() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        suspended_accounts_are_listed(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn the_last_use_of_a_key_never_goes_back() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        last_uses_only_rise(open_twice(&url).await).await;
    }
}

#[tokio::test]
async fn an_id_leads_to_the_key_that_has_it_now() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        ids_lead_to_keys(open(&url).await).await;
    }
}

/// The keys of accounts, their records and the index are in slots of different masters.
#[tokio::test]
async fn settings_and_uses_are_kept_by_a_cluster() {
    let nodes = redis_cluster::start();
    let [first, second] = open_twice(&nodes[0].cluster_url()).await;
    let accounts = (0..12).map(|number| name(&format!("account-{number:02}")));
    let accounts: Vec<AccountName> = accounts.collect();
    let keys: Vec<ApiKey> = (0..12).map(key).collect();
    for (account, key) in accounts.iter().zip(&keys) {
        assert_eq!(first.open_account(account).await, Ok(true));
        first.add_key(key.hash(), record(account, key, 5)).await.expect("a key");
        set(&*first, account, &suspended()).await;
    }
    let uses = keys.iter().map(|key| (key.hash(), 60)).collect();
    assert_eq!(first.note_key_uses(uses).await, Ok(()));
    assert_eq!(second.list_suspended().await, Ok(accounts.clone()));
    for (account, key) in accounts.iter().zip(&keys) {
        let (last_used_at, account_settings) = (Some(60), suspended());
        let expected = KeyRecord { last_used_at, account_settings, ..record(account, key, 5) };
        assert_eq!(second.find_key(key.hash()).await, Ok(Some(expected.clone())));
        let by_id = second.find_key_by_prefix(&expected.id.0.to_string()).await;
        assert_eq!(by_id, Ok(Some(expected)));
        set(&*second, account, &AccountSettings::default()).await;
    }
    assert_eq!(first.list_suspended().await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_version_without_settings_finds_no_key_in_a_file_whose_account_has_any() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&sqlite_url(folder.path())).await;
    let (ada, bob) = (name("ada"), name("bob"));
    let keys = [1, 2, 3].map(key);
    for account in [&ada, &bob] {
        assert_eq!(ledger.open_account(account).await, Ok(true));
    }
    let found_before = || {
        let beside = beside_file(folder.path());
        let mut select =
            beside.prepare("SELECT 1 FROM access_key WHERE hash = ?").expect("a query");
        [0, 1, 2].map(|at| select.exists([&keys[at].hash().0[..]]).expect("an answer"))
    };
    let version = || {
        let beside = beside_file(folder.path());
        beside.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0)).expect("one")
    };
    for (key, account) in [(&keys[0], &ada), (&keys[2], &bob)] {
        ledger.add_key(key.hash(), record(account, key, 5)).await.expect("a key");
    }
    set(&*ledger, &ada, &AccountSettings::default()).await;
    assert_eq!((found_before(), version()), ([true, false, true], 1), "nothing is set");
    set(&*ledger, &ada, &on_plan("free")).await;
    assert_eq!((found_before(), version()), ([false, false, true], 3));
    ledger.add_key(keys[1].hash(), record(&ada, &keys[1], 5)).await.expect("a key");
    assert_eq!(found_before(), [false, false, true]);
    set(&*ledger, &ada, &AccountSettings::default()).await;
    assert_eq!(found_before(), [false, false, true], "they stay where they are");

    set(&*ledger, &ada, &suspended()).await;
    let later = r#"UPDATE account_setting SET settings = '{"suspended":true,"hours":8}'"#;
    beside_file(folder.path()).execute(later, []).expect("written");
    for key in &keys[..2] {
        assert_eq!(ledger.find_key(key.hash()).await, Ok(None), "a setting that is not known");
    }
    assert!(ledger.account_settings(&ada).await.is_err());
    let change = Replacement { before: suspended(), after: AccountSettings::default() };
    let replaced = ledger.set_account_settings(&ada, change).await;
    assert!(replaced.is_err(), "nor is it replaced unseen");
    assert_eq!(ledger.list_suspended().await, Ok(vec![ada]));
}

#[tokio::test]
async fn a_version_without_settings_finds_no_key_on_redis_whose_account_has_any() {
    let server = RedisServer::shared();
    let url = server.fresh_url();
    let ledger = open(&url).await;
    let mut beside = beside_redis(&url);
    let mut ask = |words: &[&str]| -> Option<i64> {
        let asked = redis::cmd(words[0]).arg(&words[1..]).query(&mut beside);
        asked.unwrap_or_else(|why| panic!("{words:?}: {why}"))
    };
    let mut place = |key: &ApiKey| {
        ["key", "restricted-key"].map(|place| {
            let record = format!("tollgate:{place}:{}", key.hash().hex());
            ask(&["EXISTS", &record]) == Some(1)
        })
    };
    let (ada, bob) = (name("ada"), name("bob"));
    let [old, later, foreign] = [1, 2, 3].map(key);
    for account in [&ada, &bob] {
        assert_eq!(ledger.open_account(account).await, Ok(true));
    }
    for (key, account) in [(&old, &ada), (&foreign, &bob)] {
        ledger.add_key(key.hash(), record(account, key, 5)).await.expect("a key");
    }
    set(&*ledger, &ada, &AccountSettings::default()).await;
    assert_eq!(place(&old), [true, false], "nothing is set");
    set(&*ledger, &ada, &on_plan("free")).await;
    ledger.add_key(later.hash(), record(&ada, &later, 5)).await.expect("a key");
    for (key, expected) in [(&old, [false, true]), (&later, [false, true])] {
        assert_eq!(place(key), expected);
    }
    set(&*ledger, &ada, &AccountSettings::default()).await;
    assert_eq!((place(&old), place(&foreign)), ([false, true], [true, false]));
    let version = ask(&["GET", "tollgate:schema-version"]);
    assert_eq!(version, Some(2));

    set(&*ledger, &ada, &suspended()).await;
    let unknown = r#"{"suspended":false,"hours":8}"#;
    ask(&["HSET", "tollgate:{ada}:account", "settings", unknown]);
    for key in [&old, &later] {
        assert_eq!(ledger.find_key(key.hash()).await, Ok(None), "a setting that is not known");
    }
    assert!(ledger.account_settings(&ada).await.is_err());
    let change = Replacement { before: suspended(), after: AccountSettings::default() };
    let replaced = ledger.set_account_settings(&ada, change).await;
    assert!(replaced.is_err(), "nor is it replaced unseen");
    assert_eq!(ledger.list_suspended().await, Ok(vec![ada]));
}

/// The index and the accounts are in different slots, so a command that ended halfway left a name.
#[tokio::test]
async fn an_account_that_was_only_put_into_the_index_is_not_suspended() {
    let server = RedisServer::shared();
    let url = server.fresh_url();
    let ledger = open(&url).await;
    let mut beside = beside_redis(&url);
    let ada = name("ada");
    assert_eq!(ledger.open_account(&ada).await, Ok(true));
    let mut index = |change: &str| {
        let mut put = redis::cmd("HSET");
        put.arg("tollgate:suspended").arg("ada").arg(change);
        put.exec(&mut beside).expect("written");
    };
    index("0");
    assert_eq!(ledger.list_suspended().await, Ok(Vec::new()));
    set(&*ledger, &ada, &suspended()).await;
    assert_eq!(ledger.list_suspended().await, Ok(vec![ada.clone()]));
    // Whoever suspended it later has written this before the account was resumed here.
    index("100");
    set(&*ledger, &ada, &AccountSettings::default()).await;
    assert_eq!(ledger.list_suspended().await, Ok(Vec::new()));
    set(&*ledger, &ada, &suspended()).await;
    assert_eq!(ledger.list_suspended().await, Ok(vec![ada]));
}

/// Its keys were used as if it was not suspended.
#[tokio::test]
async fn the_keys_of_an_account_that_was_lost_open_nothing() {
    let server = RedisServer::shared();
    let url = server.fresh_url();
    let ledger = open(&url).await;
    let (ada, old) = (name("ada"), key(1));
    assert_eq!(ledger.open_account(&ada).await, Ok(true));
    ledger.add_key(old.hash(), record(&ada, &old, 5)).await.expect("a key");
    redis::cmd("DEL").arg("tollgate:{ada}:account").exec(&mut beside_redis(&url)).expect("gone");
    assert!(ledger.find_key(old.hash()).await.is_err());
}

/// Two commands read the same settings and wrote each its own: an account that one of them had
/// suspended was served again.
async fn settings_that_another_one_replaced_stay(url: &str) {
    let [first, second] = open_twice(url).await;
    let ada = name("ada");
    first.open_account(&ada).await.expect("open");
    let none = AccountSettings::default();
    let on_free = on_plan("free");
    let change = |before: &AccountSettings, after: &AccountSettings| Replacement {
        before: before.clone(),
        after: after.clone(),
    };
    let (suspended, ada) = (&suspended(), &ada);
    for (ledger, before, after, came, stored) in [
        (&first, &none, suspended, Replaced::Done, suspended),
        (&second, &none, &on_free, Replaced::Changed, suspended),
        (&second, &on_free, &none, Replaced::Changed, suspended),
        (&second, &none, suspended, Replaced::Done, suspended),
        (&second, suspended, &on_free, Replaced::Done, &on_free),
        (&first, suspended, &none, Replaced::Changed, &on_free),
        (&first, &on_free, &none, Replaced::Done, &none),
        (&first, &on_free, suspended, Replaced::Changed, &none),
    ] {
        let replaced = ledger.set_account_settings(ada, change(before, after)).await;
        assert_eq!(replaced, Ok(came), "{before:?} {after:?}");
        let found = first.account_settings(ada).await;
        assert_eq!(found, Ok(Some(stored.clone())), "{before:?} {after:?}");
    }
    assert_eq!(first.list_suspended().await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_change_of_settings_that_was_made_meanwhile_was_lost() {
    settings_that_another_one_replaced_stay(&RedisServer::shared().fresh_url()).await;
    let folder = tempfile::tempdir().expect("a folder");
    settings_that_another_one_replaced_stay(&sqlite_url(folder.path())).await;
}
