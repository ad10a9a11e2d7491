//! Budgets in a file: what older versions leave there, what they find, and what is forgotten.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tollgate::ledger::key::ApiKey;
use tollgate::ledger::{
    AccountName, BudgetOwner, KeyHash, KeyId, KeyRecord, KeyScope, Ledger, Operation, Outcome,
    Replaced, WindowKind,
};
use tollgate::money::Money;
use tollgate::store;

use super::script::{LONG_MS, SHORT_MS, now, settle};
use super::subject::{at, name, open, set_scope};

const KEY: KeyId = KeyId(7);

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

fn hold(id: &str, amount: i64, lease_ms: u64) -> Operation {
    let (id, amount) = (id.to_owned(), nano(amount));
    Operation::Hold {
        id,
        wanted: amount,
        least: amount,
        lease_ms,
        key: Some(KEY),
        rates: Vec::new(),
    }
}

/// An account with credit of 1,000 and a budget of 100 a day, and one of 80 in all for its key.
async fn limited(ledger: &dyn Ledger) -> AccountName {
    let account = name("ada");
    assert_eq!(ledger.open_account(&account).await, Ok(true));
    let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(1_000) };
    ledger.submit(&account, paid).await.expect("it is credited");
    for (owner, kind, limit) in [
        (BudgetOwner::Account, WindowKind::Day, 100),
        (BudgetOwner::Key(KEY), WindowKind::Total, 80),
    ] {
        let set = ledger.set_budget(&account, owner, kind, Some(nano(limit))).await;
        assert_eq!(set, Ok(true));
    }
    account
}

/// What is spent, held and lent of each budget.
async fn used(ledger: &dyn Ledger, account: &AccountName) -> Vec<[i64; 3]> {
    let budgets = ledger.list_budgets(account).await.expect("budgets");
    let amounts = budgets.into_iter().map(|budget| budget.used);
    amounts.map(|used| [used.spent, used.held, used.lent].map(Money::nano)).collect()
}

#[tokio::test]
async fn what_an_older_version_ended_stayed_held_in_its_budgets() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = limited(&*ledger).await;
    for id in ["charged", "voided"] {
        assert_eq!(
            ledger.submit(&account, hold(id, 30, LONG_MS)).await,
            Ok(Outcome::Held(nano(30)))
        );
    }
    assert_eq!(used(&*ledger, &account).await, [[0, 60, 0], [0, 60, 0]]);
    let ended = "
        BEGIN IMMEDIATE;
        INSERT INTO hold (account, id, wanted, least, held, lease_until, state, posted)
        SELECT account, id, wanted, least, held, lease_until,
               CASE id WHEN 'charged' THEN 1 ELSE 2 END, CASE id WHEN 'charged' THEN 20 END
        FROM open_hold;
        DELETE FROM open_hold;
        UPDATE account SET available = available + 40, held = 0, posted = posted + 20;
        INSERT INTO journal (account, seq, amount, written_off, line)
        SELECT id, 1, 20, 0, '\"charged\"' FROM account;
        COMMIT";
    beside(folder.path()).execute_batch(ended).expect("they are ended");
    for _ in 0..2 {
        ledger.expire_holds().await.expect("a sweep");
        assert_eq!(used(&*ledger, &account).await, [[20, 0, 0], [20, 0, 0]]);
    }
    assert_eq!(
        ledger.submit(&account, settle("charged", nano(20))).await,
        Ok(Outcome::AlreadyPosted(nano(20)))
    );
    assert_eq!(used(&*ledger, &account).await, [[20, 0, 0], [20, 0, 0]]);
}

#[tokio::test]
async fn a_hold_that_expired_is_charged_late_in_the_windows_in_which_it_was_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = limited(&*ledger).await;
    ledger.submit(&account, hold("late", 30, SHORT_MS)).await.expect("a hold");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(ledger.expire_holds().await.map(|swept| swept.expired), Ok(1));
    assert_eq!(used(&*ledger, &account).await, [[0, 0, 0], [0, 0, 0]]);
    ledger.expire_holds().await.expect("a sweep");
    let posted = Outcome::Posted { amount: nano(25), written_off: Money::ZERO };
    assert_eq!(ledger.submit(&account, settle("late", nano(25))).await, Ok(posted));
    assert_eq!(used(&*ledger, &account).await, [[25, 0, 0], [25, 0, 0]]);
    let left: u32 = beside(folder.path())
        .query_row("SELECT count(*) FROM hold_budget", [], |row| row.get(0))
        .expect("a number");
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_version_without_budgets_does_not_find_the_keys_that_a_budget_is_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let keys = [1, 2, 3].map(|bits| ApiKey::from_random([bits; 32]));
    let accounts = ["ada", "bob"].map(name);
    for account in &accounts {
        assert_eq!(ledger.open_account(account).await, Ok(true));
    }
    for (key, account) in keys.iter().zip([&accounts[0], &accounts[0], &accounts[1]]) {
        ledger.add_key(key.hash(), record(key, account)).await.expect("it is added");
    }
    let found_before = |hash: KeyHash| {
        let sql = "SELECT 1 FROM access_key WHERE hash = ?";
        let beside = beside(folder.path());
        beside.prepare(sql).and_then(|mut select| select.exists([&hash.0[..]])).expect("an answer")
    };
    assert!(keys.iter().all(|key| found_before(key.hash())));
    let one = Some(nano(1));
    let owner = BudgetOwner::Key(keys[0].hash().key_id());
    assert_eq!(ledger.set_budget(&accounts[0], owner, WindowKind::Hour, one).await, Ok(true));
    assert_eq!([0, 1, 2].map(|at| found_before(keys[at].hash())), [false, true, true]);
    let owner = BudgetOwner::Account;
    assert_eq!(ledger.set_budget(&accounts[0], owner, WindowKind::Month, one).await, Ok(true));
    assert_eq!([0, 1, 2].map(|at| found_before(keys[at].hash())), [false, false, true]);
    let later = ApiKey::from_random([4; 32]);
    ledger.add_key(later.hash(), record(&later, &accounts[0])).await.expect("it is added");
    assert!(!found_before(later.hash()));
    for (key, account) in keys.iter().zip([&accounts[0], &accounts[0], &accounts[1]]) {
        assert_eq!(ledger.find_key(key.hash()).await, Ok(Some(record(key, account))));
    }
    let listed = ledger.list_keys(&accounts[0]).await.expect("a list");
    assert_eq!(listed.len(), 3);
    assert_eq!(ledger.revoke_key(later.prefix(), 9).await, Ok(true));
    let revoked = ledger.find_key(later.hash()).await.expect("an answer").expect("the key");
    assert_eq!(revoked.revoked_at, Some(9));
    let again = ledger.add_key(later.hash(), record(&later, &accounts[1])).await;
    assert!(again.is_err(), "its prefix is taken");
    assert_eq!(ledger.set_budget(&name("nobody"), owner, WindowKind::Day, one).await, Ok(false));
}

#[tokio::test]
async fn a_version_without_scopes_finds_no_key_that_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = name("ada");
    assert_eq!(ledger.open_account(&account).await, Ok(true));
    let keys = [1, 2, 3].map(|bits| ApiKey::from_random([bits; 32]));
    let version = || {
        let beside = beside(folder.path());
        beside.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0)).expect("one")
    };
    let found_before = || {
        let sql = "SELECT 1 FROM access_key WHERE hash = ?";
        let beside = beside(folder.path());
        let mut select = beside.prepare(sql).expect("a query");
        [0, 1, 2].map(|at| select.exists([&keys[at].hash().0[..]]).expect("an answer"))
    };
    for key in &keys[..2] {
        ledger.add_key(key.hash(), record(key, &account)).await.expect("it is added");
    }
    let plain = keys[0].prefix();
    assert_eq!(set_scope(&*ledger, plain, KeyScope::default()).await, Replaced::Done);
    assert_eq!((found_before(), version()), ([true, true, false], 1), "nothing is restricted");
    let scope = KeyScope { disabled: true, ..KeyScope::default() };
    let scoped = KeyRecord { scope: scope.clone(), ..record(&keys[2], &account) };
    ledger.add_key(keys[2].hash(), scoped).await.expect("it is added");
    assert_eq!((found_before(), version()), ([true, true, false], 3));
    assert_eq!(set_scope(&*ledger, plain, scope).await, Replaced::Done);
    assert_eq!(found_before(), [false, true, false]);
    assert_eq!(set_scope(&*ledger, plain, KeyScope::default()).await, Replaced::Done);
    assert_eq!(found_before(), [false, true, false], "it stays where it is");
    let unknown = r#"UPDATE restricted_key SET scope = '{"methods":["GET"]}'"#;
    beside(folder.path()).execute(unknown, []).expect("written");
    for at in [0, 2] {
        let found = ledger.find_key(keys[at].hash()).await;
        assert_eq!(found, Ok(None), "a restriction that is not known");
    }
    let opened = set_scope(&*ledger, plain, KeyScope::default()).await;
    assert_eq!(opened, Replaced::Unknown, "nor is it replaced unseen");
}

fn record(key: &ApiKey, account: &AccountName) -> KeyRecord {
    KeyRecord::new(key, account.clone(), 5, KeyScope::default())
}

#[tokio::test]
async fn windows_that_ended_days_ago_are_forgotten_unless_something_is_held_in_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&url(folder.path())).await;
    let account = limited(&*ledger).await;
    let day = 86_400_000;
    let today = now() / day * day;
    let old = |days: i64, held: i64| {
        let sql = "INSERT INTO budget_window (account, owner, kind, start, spent, held, lent)
                   SELECT id, 'account', 'day', ?, 5, ?, 0 FROM account";
        beside(folder.path()).execute(sql, (today - days * day, held)).expect("a row");
    };
    old(1, 0);
    old(2, 0);
    old(3, 4);
    ledger.submit(&account, hold("a", 30, LONG_MS)).await.expect("a hold");
    let starts = "SELECT start FROM budget_window WHERE owner = 'account' ORDER BY start";
    let beside = beside(folder.path());
    let mut select = beside.prepare(starts).expect("a query");
    let starts = select.query_map([], |row| row.get::<_, i64>(0)).expect("rows");
    let ages: Vec<i64> = starts.map(|start| (today - start.expect("a start")) / day).collect();
    assert_eq!(ages, [3, 1, 0]);
}

#[tokio::test]
async fn a_budget_that_another_process_sets_counts_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = url(folder.path());
    let (first, second) = (open(&url).await, store::open(&at(url.clone())).await.expect("a store"));
    let account = name("ada");
    assert_eq!(first.open_account(&account).await, Ok(true));
    let paid = Operation::Credit { tx: "t".to_owned(), amount: nano(1_000) };
    first.submit(&account, paid).await.expect("it is credited");
    assert_eq!(first.submit(&account, hold("a", 30, LONG_MS)).await, Ok(Outcome::Held(nano(30))));
    let day = WindowKind::Day;
    for (limit, answer) in [
        (Some(nano(10)), Some(10)),
        (Some(nano(40)), None),
        (Some(nano(29)), Some(0)),
        (None, None),
    ] {
        let set = second.ledger.set_budget(&account, BudgetOwner::Account, day, limit).await;
        assert_eq!(set, Ok(true));
        let id = format!("{limit:?}");
        let outcome = first.submit(&account, hold(&id, 30, LONG_MS)).await.expect("an answer");
        match answer {
            None => assert_eq!(outcome, Outcome::Held(nano(30))),
            // What was held before there was a budget does not count in it.
            Some(10) => assert!(
                matches!(outcome, Outcome::BudgetExceeded { left, .. } if left == nano(10)),
                "{outcome:?}"
            ),
            Some(_) => assert!(
                matches!(outcome, Outcome::BudgetExceeded { left, .. } if left == nano(29)),
                "{outcome:?}"
            ),
        }
    }
    // Both that were held since then count on.
    assert_eq!(used(&*first, &account).await, [[0, 60, 0]]);
}
