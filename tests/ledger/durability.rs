//! What was acknowledged stays: in the file, in the list of keys, and in a hold's own type.

use std::path::Path;
use std::sync::Arc;

use tollgate::ledger::key::ApiKey;
use tollgate::ledger::{
    self, AccountName, HoldRefused, HoldRequest, KeyHash, KeyRecord, KeyScope, Ledger, Operation,
    Outcome, Replaced, Replacement,
};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::script::{LONG_MS, balances_text, journal_text, now, settle, settle_even_if_lost};
use super::subject::{name, open, set_scope};

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn sqlite_url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("ledger.db").display())
}

/// The request of a hold that is made now.
fn request(wanted: i64, least: i64) -> HoldRequest {
    HoldRequest { wanted: nano(wanted), least: nano(least), at: now(), key: None }
}

async fn charged(ledger: &dyn Ledger, account: &AccountName) {
    assert_eq!(ledger.open_account(account).await, Ok(true));
    let credit = Operation::Credit { tx: "t".to_owned(), amount: nano(100) };
    assert_eq!(ledger.submit(account, credit).await, Ok(Outcome::Done));
    let hold = ledger::place_hold(ledger, account, "a", request(60, 60), &[], LONG_MS).await;
    let hold = hold.expect("a hold");
    let answer = hold.settle(ledger, nano(55), "\"a\"", None).await.expect("an answer");
    assert_eq!(answer, Outcome::Posted { amount: nano(55), written_off: Money::ZERO });
}

#[tokio::test]
async fn a_charge_and_a_credit_outlive_the_store_that_took_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, account) = (sqlite_url(folder.path()), name("lasting"));
    let books = "credit 100 available 45 held 0 posted 55 lost 0";
    let first = open(&url).await;
    charged(&*first, &account).await;

    // Another process sees them while the first one still runs.
    let second = open(&url).await;
    assert_eq!(balances_text(second.balances(&account).await.expect("balances")), books);
    drop((first, second));

    for _ in 0..3 {
        let again = open(&url).await;
        assert_eq!(balances_text(again.balances(&account).await.expect("balances")), books);
        assert_eq!(
            journal_text(&again.read_journal(&account, 0, 9).await.expect("lines")),
            "a=55/0"
        );
        let repeat = again.submit(&account, settle("a", nano(55))).await;
        assert_eq!(repeat, Ok(Outcome::AlreadyPosted(nano(55))));
    }
}

#[tokio::test]
async fn an_extension_and_the_charge_of_a_lost_hold_outlive_the_store_that_took_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, account) = (sqlite_url(folder.path()), name("lasting"));
    let first = open(&url).await;
    charged(&*first, &account).await;
    let hold = ledger::place_hold(&*first, &account, "b", request(20, 20), &[], LONG_MS).await;
    let mut hold = hold.expect("a hold");
    assert_eq!(hold.extend(&*first, nano(30)).await, Ok(nano(30)));
    let origin = request(9, 9);
    let lost = settle_even_if_lost("c", nano(7), origin);
    let posted = Outcome::Posted { amount: nano(7), written_off: Money::ZERO };
    assert_eq!(first.submit(&account, lost.clone()).await, Ok(posted));
    drop(first);

    let again = open(&url).await;
    let books = "credit 100 available 8 held 30 posted 62 lost 0";
    assert_eq!(balances_text(again.balances(&account).await.expect("balances")), books);
    assert_eq!(again.submit(&account, lost).await, Ok(Outcome::AlreadyPosted(nano(7))));
    assert_eq!(hold.extend(&*again, nano(30)).await, Ok(nano(30)));
    assert_eq!(
        hold.settle(&*again, nano(25), "\"b\"", None).await.expect("an answer"),
        Outcome::Posted { amount: nano(25), written_off: Money::ZERO }
    );
    let journal = journal_text(&again.read_journal(&account, 0, 9).await.expect("lines"));
    assert_eq!(journal, "a=55/0 c.settle.7=7/0 b=25/0");
}

#[tokio::test]
async fn a_hold_knows_what_it_holds_and_how_it_began() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let (ledger, account) = (open(&url).await, name("growing"));
        charged(&*ledger, &account).await;
        let origin = request(20, 10);
        let hold = async || ledger::place_hold(&*ledger, &account, "b", origin, &[], LONG_MS).await;
        let mut first = hold().await.expect("a hold");
        assert_eq!((first.id(), first.held()), ("b", nano(20)));
        assert_eq!(first.origin(), origin);
        // Less changes nothing, more is more as far as there is any.
        for (wanted, held) in [(5, 20), (30, 30), (60, 45), (30, 45)] {
            assert_eq!(first.extend(&*ledger, nano(wanted)).await, Ok(nano(held)), "{url}");
            assert_eq!(first.held(), nano(held));
        }
        // The same call again, whose first answers were lost, finds all of it.
        let mut again = hold().await.expect("the same hold");
        assert_eq!((again.held(), again.origin()), (nano(45), first.origin()));
        assert_eq!(first.void(&*ledger).await.expect("an answer"), Outcome::Voided);
        assert!(again.extend(&*ledger, nano(50)).await.is_err(), "it does not stand any more");
        assert_eq!(again.held(), nano(45));
        assert_eq!(
            again.settle(&*ledger, nano(9), "{}", None).await.expect("told"),
            Outcome::Voided
        );
    }
}

/// The other store is as the first one would be had it lost its last second.
#[tokio::test]
async fn a_hold_is_settled_where_nobody_knows_it() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let server = RedisServer::shared();
    let [first, second] = folders.each_ref().map(|f| sqlite_url(f.path()));
    for (url, other) in [(first, second), (server.fresh_url(), server.fresh_url())] {
        let (before, after, account) = (open(&url).await, open(&other).await, name("lost"));
        charged(&*before, &account).await;
        charged(&*after, &account).await;
        let origin = request(20, 10);
        let hold =
            async |id| ledger::place_hold(&*before, &account, id, origin, &[], LONG_MS).await;
        let (lost, voided) = (hold("b").await.expect("a hold"), hold("c").await.expect("a hold"));
        let settled = lost.settle(&*after, nano(50), "\"b\"", None).await.expect("an answer");
        assert_eq!(settled, Outcome::Posted { amount: nano(50), written_off: nano(5) }, "{url}");
        assert_eq!(voided.void(&*after).await.expect("an answer"), Outcome::Voided);
        for id in ["b", "c"] {
            let late = ledger::place_hold(&*after, &account, id, origin, &[], LONG_MS).await;
            assert_eq!(late.expect_err("it has ended"), HoldRefused::Conflict, "{url}");
        }
        let books = "credit 100 available 0 held 0 posted 105 lost 5";
        assert_eq!(balances_text(after.balances(&account).await.expect("balances")), books);
        let journal = journal_text(&after.read_journal(&account, 0, 9).await.expect("lines"));
        assert_eq!(journal, "a=55/0 b=50/5", "{url}");
    }
}

/// A store remembers for a day how a hold ended. When its clock is set ahead, or a settlement is
/// sent again after days, it does not know any more, and must not take that for lost.
#[tokio::test]
async fn what_a_store_may_have_forgotten_is_not_charged_once_more() {
    const HOUR: i64 = 3_600_000;
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let (ledger, account) = (open(&url).await, name("forgotten"));
        charged(&*ledger, &account).await;
        for (id, hours, is_lost) in
            [("b", 25, false), ("c", 13, false), ("d", 11, true), ("e", -25, false)]
        {
            let origin = HoldRequest { at: now() - hours * HOUR, ..request(9, 9) };
            let answer = ledger.submit(&account, settle_even_if_lost(id, nano(1), origin)).await;
            let posted = Outcome::Posted { amount: nano(1), written_off: Money::ZERO };
            let expected = if is_lost { posted } else { Outcome::UnknownHold };
            assert_eq!(answer, Ok(expected), "{url}, {hours} hours old");
        }
        let books = "credit 100 available 44 held 0 posted 56 lost 0";
        assert_eq!(balances_text(ledger.balances(&account).await.expect("balances")), books);
    }
}

#[tokio::test]
async fn the_journal_is_read_in_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let (ledger, account) = (open(&url).await, name("pages"));
        ledger.open_account(&account).await.expect("open");
        for n in 0..5 {
            let id = format!("p{n}");
            let hold =
                ledger::place_hold(&*ledger, &account, &id, request(0, 0), &[], LONG_MS).await;
            let hold = hold.expect("held");
            hold.settle(&*ledger, nano(n), "{}", None).await.expect("posted");
        }
        let page = async |after, limit| {
            let entries = ledger.read_journal(&account, after, limit).await.expect("a page");
            entries.iter().map(|e| (e.seq, e.amount.nano())).collect::<Vec<_>>()
        };
        assert_eq!(page(0, 2).await, [(1, 0), (2, 1)], "{url}");
        assert_eq!(page(2, 2).await, [(3, 2), (4, 3)], "{url}");
        assert_eq!(page(4, 2).await, [(5, 4)], "{url}");
        assert_eq!(page(5, 2).await, [], "{url}");
        assert_eq!(page(0, 0).await, [], "{url}");
        assert_eq!(page(99, 9).await, [], "{url}");
    }
}

#[tokio::test]
async fn a_hold_is_refused_in_its_own_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ledger, account) = (open(&sqlite_url(folder.path())).await, name("words"));
    let hold = async |id: &str, least| {
        ledger::place_hold(&*ledger, &account, id, request(60, least), &[], LONG_MS).await
    };
    assert_eq!(hold("a", 60).await.expect_err("no account"), HoldRefused::NoAccount);
    charged(&*ledger, &account).await;
    let refused = HoldRefused::Insufficient { least: nano(46), available: nano(45) };
    assert_eq!(hold("b", 46).await.expect_err("too little"), refused);
    assert_eq!(hold("a", 60).await.expect_err("it was settled"), HoldRefused::Conflict);
    let first = hold("c", 1).await.expect("a hold");
    assert_eq!((first.held(), first.account()), (nano(45), &account));
    // The same call again, whose first answer was lost, gets the same hold.
    let again = hold("c", 1).await.expect("the same hold");
    assert_eq!(again.void(&*ledger).await.expect("an answer"), Outcome::Voided);
    assert_eq!(
        first.settle(&*ledger, nano(9), "{}", None).await.expect("an answer"),
        Outcome::Voided
    );
    assert_eq!(hold("c", 1).await.expect_err("it was voided"), HoldRefused::Conflict);
}

fn record(account: &AccountName, key: &ApiKey, created_at: i64) -> KeyRecord {
    KeyRecord::new(key, account.clone(), created_at, KeyScope::default())
}

async fn keys_live_and_die(ledger: Arc<dyn Ledger>) {
    let (account, other) = (name("keys"), name("other-keys"));
    ledger.open_account(&account).await.expect("open");
    ledger.open_account(&other).await.expect("open");
    let [young, old, foreign] = [3u8, 1, 2].map(|seed| ApiKey::from_random([seed; 32]));
    for (owner, key, at) in [(&account, &young, 20), (&account, &old, 10), (&other, &foreign, 5)] {
        ledger.add_key(key.hash(), record(owner, key, at)).await.expect("a key");
    }
    assert_eq!(old.prefix(), "sk-tg-01010101");
    assert_eq!(ledger.find_key(old.hash()).await, Ok(Some(record(&account, &old, 10))));
    assert_eq!(ledger.find_key(KeyHash::of("sk-tg-nobody")).await, Ok(None));
    let both = vec![record(&account, &old, 10), record(&account, &young, 20)];
    assert_eq!(ledger.list_keys(&account).await, Ok(both));
    assert_eq!(ledger.list_keys(&name("nobody")).await, Ok(Vec::new()));

    assert_eq!(ledger.revoke_key("sk-tg-ffffffff", 30).await, Ok(false));
    assert_eq!(ledger.revoke_key(old.prefix(), 30).await, Ok(true));
    // Revoked again it stays revoked, and since when.
    assert_eq!(ledger.revoke_key(old.prefix(), 40).await, Ok(true));
    let dead = KeyRecord { revoked_at: Some(30), ..record(&account, &old, 10) };
    assert_eq!(ledger.find_key(old.hash()).await, Ok(Some(dead.clone())));
    assert_eq!(ledger.list_keys(&account).await, Ok(vec![dead, record(&account, &young, 20)]));
    assert_eq!(
        ledger.find_key(young.hash()).await.map(|k| k.map(|k| k.revoked_at)),
        Ok(Some(None))
    );

    // Another key with this beginning would make one of the two irrevocable.
    let mut bits = [3; 32];
    bits[31] = 4;
    let twin = ApiKey::from_random(bits);
    assert!(ledger.add_key(twin.hash(), record(&other, &twin, 50)).await.is_err());
    assert_eq!(ledger.find_key(twin.hash()).await, Ok(None));
    assert_eq!(ledger.revoke_key(young.prefix(), 60).await, Ok(true));
    let young = ledger.find_key(young.hash()).await.expect("an answer").expect("the key");
    assert_eq!(young.revoked_at, Some(60));
}

#[tokio::test]
async fn keys_live_and_die_on_both_stores() {
    let folder = tempfile::tempdir().expect("a folder");
    keys_live_and_die(open(&sqlite_url(folder.path())).await).await;
    let reopened = open(&sqlite_url(folder.path())).await;
    let key = reopened.find_key(ApiKey::from_random([1; 32]).hash()).await.expect("an answer");
    assert_eq!(key.and_then(|k| k.revoked_at), Some(30));
    keys_live_and_die(open(&RedisServer::shared().fresh_url()).await).await;
}

fn scope(name: &str, models: &[&str]) -> KeyScope {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    KeyScope { name: Some(name.to_owned()), models, ..KeyScope::default() }
}

async fn scopes_are_kept(ledger: Arc<dyn Ledger>) {
    let account = name("scopes");
    ledger.open_account(&account).await.expect("open");
    let [plain, scoped] = [5u8, 6].map(|seed| ApiKey::from_random([seed; 32]));
    let of_plain = record(&account, &plain, 10);
    let mut of_scoped =
        KeyRecord { scope: scope("ci", &["lmb-*"]), ..record(&account, &scoped, 20) };
    ledger.add_key(plain.hash(), of_plain.clone()).await.expect("a key");
    // A write of the command line may come twice.
    for _ in 0..2 {
        let _ = ledger.add_key(scoped.hash(), of_scoped.clone()).await;
        assert_eq!(ledger.find_key(scoped.hash()).await, Ok(Some(of_scoped.clone())));
    }
    assert_eq!(ledger.find_key(plain.hash()).await, Ok(Some(of_plain.clone())));
    let listed = vec![of_plain.clone(), of_scoped.clone()];
    assert_eq!(ledger.list_keys(&account).await, Ok(listed));
    for scope in [scope("other", &[]), KeyScope::default(), scope("last", &["a", "b"])] {
        of_scoped.scope = scope.clone();
        for _ in 0..2 {
            assert_eq!(set_scope(&*ledger, scoped.prefix(), scope.clone()).await, Replaced::Done);
            assert_eq!(ledger.find_key(scoped.hash()).await, Ok(Some(of_scoped.clone())));
        }
        let found = ledger.find_key_by_prefix(scoped.prefix()).await;
        assert_eq!(found, Ok(Some(of_scoped.clone())));
    }
    let disabled = KeyScope { disabled: true, ..KeyScope::default() };
    assert_eq!(set_scope(&*ledger, plain.prefix(), disabled.clone()).await, Replaced::Done);
    let of_plain = KeyRecord { scope: disabled, ..of_plain };
    assert_eq!(ledger.find_key(plain.hash()).await, Ok(Some(of_plain.clone())));
    assert_eq!(ledger.revoke_key(plain.prefix(), 30).await, Ok(true));
    let of_plain = KeyRecord { revoked_at: Some(30), ..of_plain };
    assert_eq!(ledger.list_keys(&account).await, Ok(vec![of_plain.clone(), of_scoped]));
    assert_eq!(set_scope(&*ledger, plain.prefix(), KeyScope::default()).await, Replaced::Done);
    let of_plain = KeyRecord { scope: KeyScope::default(), ..of_plain };
    assert_eq!(ledger.find_key(plain.hash()).await, Ok(Some(of_plain)), "it stays revoked");
    let none = set_scope(&*ledger, "sk-tg-ffffffff", KeyScope::default()).await;
    assert_eq!(none, Replaced::Unknown);
}

/// Two commands read the same scope and wrote each its own, so that the change of the first one
/// was lost: a key that it had disabled worked again.
async fn a_scope_that_another_one_replaced_stays(ledger: &dyn Ledger) {
    let account = name("ada");
    ledger.open_account(&account).await.expect("open");
    let key = ApiKey::from_random([7; 32]);
    ledger.add_key(key.hash(), record(&account, &key, 10)).await.expect("a key");
    let disabled = KeyScope { disabled: true, ..KeyScope::default() };
    let named = scope("ci", &[]);
    let set = async |before: &KeyScope, after: &KeyScope| {
        let change = Replacement { before: before.clone(), after: after.clone() };
        ledger.set_key_scope(key.prefix(), change).await
    };
    let none = KeyScope::default();
    for (before, after, came, stored) in [
        (&none, &disabled, Replaced::Done, &disabled),
        (&none, &named, Replaced::Changed, &disabled),
        (&named, &none, Replaced::Changed, &disabled),
        (&none, &disabled, Replaced::Done, &disabled),
        (&disabled, &named, Replaced::Done, &named),
        (&disabled, &none, Replaced::Changed, &named),
        (&named, &none, Replaced::Done, &none),
        (&named, &disabled, Replaced::Changed, &none),
    ] {
        assert_eq!(set(before, after).await, Ok(came), "{before:?} {after:?}");
        let found = ledger.find_key(key.hash()).await.expect("an answer").expect("the key");
        assert_eq!(found.scope, *stored, "{before:?} {after:?}");
    }
}

#[tokio::test]
async fn a_change_of_a_scope_that_was_made_meanwhile_was_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    a_scope_that_another_one_replaced_stays(&*open(&sqlite_url(folder.path())).await).await;
    let server = RedisServer::shared();
    a_scope_that_another_one_replaced_stays(&*open(&server.fresh_url()).await).await;
}

#[tokio::test]
async fn scopes_are_kept_by_both_stores() {
    let folder = tempfile::tempdir().expect("a folder");
    scopes_are_kept(open(&sqlite_url(folder.path())).await).await;
    let reopened = open(&sqlite_url(folder.path())).await;
    let key = reopened.find_key(ApiKey::from_random([6; 32]).hash()).await.expect("an answer");
    assert_eq!(key.map(|key| key.scope), Some(scope("last", &["a", "b"])));
    scopes_are_kept(open(&RedisServer::shared().fresh_url()).await).await;
}

/// The writer does all waiting operations in one transaction, and one bad key failed them all.
#[tokio::test]
async fn a_key_of_nobody_failed_the_operations_that_waited_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = RedisServer::shared();
    for url in [sqlite_url(folder.path()), server.fresh_url()] {
        let (ledger, account) = (open(&url).await, name("neighbour"));
        ledger.open_account(&account).await.expect("open");
        for n in 0..40 {
            let key = ApiKey::from_random([n; 32]);
            let credit = Operation::Credit { tx: format!("t{n}"), amount: nano(1) };
            let (credited, bad) = tokio::join!(
                ledger.submit(&account, credit),
                ledger.add_key(key.hash(), record(&name("nobody"), &key, 0)),
            );
            assert_eq!(credited, Ok(Outcome::Done), "{url}");
            assert!(bad.is_err(), "{url}");
        }
    }
}

/// The oldest holds are looked up account by account: the search through the whole table held up
/// everybody who waited for the writer (33 ms for half a million holds).
#[tokio::test]
async fn sweeps_forgot_old_holds_of_all_accounts_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = open(&sqlite_url(folder.path())).await;
    // UUIDs of version 7: one of 2024, one of far in the future.
    let [old, new] = ["018cc251-f400-7000-8000-000000000000", "7fffffff-ffff-7000-8000-0000"];
    for account in ["first", "second"].map(name) {
        ledger.open_account(&account).await.expect("open");
        for id in [old, new, "tx"] {
            let void = Operation::Void { id: id.to_owned() };
            assert_eq!(ledger.submit(&account, void).await, Ok(Outcome::Voided));
        }
        let open = Operation::Hold {
            id: format!("{old}-open"),
            wanted: Money::ZERO,
            least: Money::ZERO,
            lease_ms: LONG_MS,
            key: None,
            rates: Vec::new(),
        };
        assert_eq!(ledger.submit(&account, open).await, Ok(Outcome::Held(Money::ZERO)));
    }
    assert_eq!(ledger.expire_holds().await.expect("a sweep").open, 2);
    for account in ["first", "second"].map(name) {
        let open = format!("{old}-open");
        for (id, is_known) in [(old, false), (new, true), ("tx", true), (&open, true)] {
            let answer = ledger.submit(&account, settle(id, Money::ZERO)).await;
            assert_eq!(answer != Ok(Outcome::UnknownHold), is_known, "{account} {id}");
        }
    }
}
