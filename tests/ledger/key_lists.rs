//! Parts of the list of an account's keys on every store, and the budgets of some keys.

use tollgate::ledger::key::ApiKey;
use tollgate::ledger::{
    AccountName, BudgetOwner, KeyOrder, KeyPage, KeyPlace, KeyRange, KeyRecord, KeyScope, Ledger,
    WindowKind,
};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::subject::{name, open};

/// The urls of the stores.
fn urls(folder: &tempfile::TempDir, server: &RedisServer) -> [String; 2] {
    [format!("sqlite:{}", folder.path().join("ledger.db").display()), server.fresh_url()]
}

/// Adds keys, many of which are issued in the same second, and every third of which has a scope.
async fn add_keys(ledger: &dyn Ledger, account: &AccountName, seeds: std::ops::Range<u8>) {
    for seed in seeds {
        // Their beginnings have another order than their digests.
        let key = ApiKey::from_random([seed.wrapping_mul(37); 32]);
        let name = (seed % 3 == 0).then(|| format!("key {seed}"));
        let scope = KeyScope { name, ..KeyScope::default() };
        let record = KeyRecord::new(&key, account.clone(), i64::from(seed / 8), scope);
        ledger.add_key(key.hash(), record).await.expect("a key");
    }
}

async fn part(
    ledger: &dyn Ledger,
    account: &AccountName,
    order: KeyOrder,
    after: Option<KeyPlace>,
    limit: u32,
) -> KeyPage {
    ledger.list_keys_in(account, KeyRange { order, after, limit }).await.expect("a page")
}

/// Reads all keys, page by page.
async fn read_all(
    ledger: &dyn Ledger,
    account: &AccountName,
    order: KeyOrder,
    limit: u32,
) -> Vec<KeyRecord> {
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let page = part(ledger, account, order, after, limit).await;
        assert!(page.keys.len() <= limit as usize);
        assert!(page.next.is_none() || page.keys.len() == limit as usize);
        read.extend(page.keys);
        after = page.next;
        if after.is_none() {
            return read;
        }
    }
}

#[tokio::test]
async fn pages_of_keys_have_each_key_once_in_both_orders() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (ledger, account, other) = (open(&url).await, name("ada"), name("bob"));
        let ledger = &*ledger;
        let none = part(ledger, &account, KeyOrder::OldestFirst, None, 5).await;
        assert_eq!(none, KeyPage::default(), "{url}");
        for account in [&account, &other] {
            ledger.open_account(account).await.expect("open");
        }
        add_keys(ledger, &account, 1..40).await;
        add_keys(ledger, &other, 40..50).await;
        let mut all = ledger.list_keys(&account).await.expect("a list");
        assert_eq!(all.len(), 39);
        for limit in [1, 7, 38, 39, 100] {
            let read = read_all(ledger, &account, KeyOrder::OldestFirst, limit).await;
            assert_eq!(read, all, "{url}, {limit}");
        }
        all.reverse();
        for limit in [1, 7, 38, 39, 100] {
            let read = read_all(ledger, &account, KeyOrder::NewestFirst, limit).await;
            assert_eq!(read, all, "{url}, {limit}");
        }
        // A place at which there is no key is no fault: a page of another account, or an old link.
        let nowhere = KeyPlace { created_at: 5, prefix: "sk-tg-nobody00".to_owned() };
        let page = part(ledger, &account, KeyOrder::OldestFirst, Some(nowhere), 100).await;
        assert!(page.keys.iter().all(|key| key.created_at >= 5) && page.keys.len() <= 24, "{url}");
        let end = KeyPlace { created_at: i64::MAX, prefix: String::new() };
        let page = part(ledger, &account, KeyOrder::OldestFirst, Some(end), 100).await;
        assert_eq!(page, KeyPage::default(), "{url}");
    }
}

/// A gateway of an older version adds keys without their places in the index, and one that ended
/// halfway has listed a key without its record.
#[tokio::test]
async fn keys_of_an_older_version_are_in_the_pages() {
    let server = RedisServer::shared();
    let (url, account) = (server.fresh_url(), name("ada"));
    let ledger = open(&url).await;
    let ledger = &*ledger;
    ledger.open_account(&account).await.expect("open");
    add_keys(ledger, &account, 1..20).await;
    let client = redis::Client::open(url.as_str()).expect("an address");
    let mut beside = client.get_connection().expect("a connection");
    let index = "tollgate:{ada}:keys-by-time";
    let mut run = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).exec(&mut beside).expect("an answer");
    };
    let lost = ApiKey::from_random([0xee; 32]).hash().hex();
    let all = ledger.list_keys(&account).await.expect("a list");
    run(&["ZREMRANGEBYRANK", index, "0", "9"]);
    run(&["SADD", "tollgate:{ada}:keys", &lost]);
    for _ in 0..2 {
        let page = part(ledger, &account, KeyOrder::OldestFirst, None, 100).await;
        assert_eq!(page.keys, all);
    }
    run(&["SREM", "tollgate:{ada}:keys", &lost]);
    let page = part(ledger, &account, KeyOrder::OldestFirst, None, 100).await;
    assert_eq!(page.keys, all);
    // The addition that had ended halfway is made again.
    run(&["SADD", "tollgate:{ada}:keys", &lost]);
    part(ledger, &account, KeyOrder::OldestFirst, None, 1).await;
    let key = ApiKey::from_random([0xee; 32]);
    let record = KeyRecord::new(&key, account.clone(), 99, KeyScope::default());
    ledger.add_key(key.hash(), record.clone()).await.expect("a key");
    let page = part(ledger, &account, KeyOrder::NewestFirst, None, 1).await;
    assert_eq!(page.keys, [record]);
}

#[tokio::test]
async fn the_budgets_of_some_keys_are_those_of_all_without_the_others() {
    let (folder, server) = (tempfile::tempdir().expect("a folder"), RedisServer::shared());
    for url in urls(&folder, &server) {
        let (ledger, account) = (open(&url).await, name("ada"));
        let ledger = &*ledger;
        assert_eq!(ledger.list_budgets_of(&account, &[]).await, Ok(Vec::new()), "{url}");
        ledger.open_account(&account).await.expect("open");
        add_keys(ledger, &account, 1..6).await;
        let keys = ledger.list_keys(&account).await.expect("a list");
        let owners = keys.iter().map(|key| BudgetOwner::Key(key.id));
        for owner in owners.chain([BudgetOwner::Account]) {
            for kind in [WindowKind::Day, WindowKind::Total] {
                let limit = Some(Money::from_nano(7).expect("money"));
                assert_eq!(ledger.set_budget(&account, owner, kind, limit).await, Ok(true));
            }
        }
        let all = ledger.list_budgets(&account).await.expect("a list");
        assert_eq!(all.len(), 12);
        for shown in [0..0, 0..1, 1..4, 0..5] {
            let ids: Vec<_> = keys[shown].iter().map(|key| key.id).collect();
            let mut expected = all.clone();
            expected.retain(|budget| match budget.owner {
                BudgetOwner::Account => true,
                BudgetOwner::Key(id) => ids.contains(&id),
            });
            assert_eq!(ledger.list_budgets_of(&account, &ids).await, Ok(expected), "{url}");
        }
    }
}
