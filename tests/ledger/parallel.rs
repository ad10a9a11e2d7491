//! Many at once: what is there is held once, and a charge is posted once.

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::ledger::account::Balances;
use tollgate::ledger::{
    AccountName, BudgetOwner, HoldRequest, KeyId, Ledger, Operation, Outcome, SweepReport,
    WindowKind,
};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::script::{LONG_MS, now, settle, settle_even_if_lost};
use super::subject::{name, open};

/// The key of the crowd. It is too large for a double.
const KEY: KeyId = KeyId(u64::MAX >> 1);

/// Whose budget is too small for the crowd.
const BUDGET_OWNERS: [BudgetOwner; 2] = [BudgetOwner::Account, BudgetOwner::Key(KEY)];

type Stores = [Arc<dyn Ledger>; 2];

/// Two stores on one file, as two processes would have it.
async fn sqlite(folder: &Path) -> Stores {
    let url = format!("sqlite:{}", folder.join("ledger.db").display());
    [open(&url).await, open(&url).await]
}

async fn redis(server: &RedisServer) -> Stores {
    let url = server.fresh_url();
    [open(&url).await, open(&url).await]
}

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("not negative")
}

fn hold(id: String, amount: Money) -> Operation {
    hold_of(None, id, amount)
}

fn hold_of(key: Option<KeyId>, id: String, amount: Money) -> Operation {
    Operation::Hold { id, wanted: amount, least: amount, lease_ms: LONG_MS, key, rates: Vec::new() }
}

/// Does all operations at once, by turns on the one store and the other.
async fn at_once(stores: &Stores, account: &AccountName, ops: Vec<Operation>) -> Vec<Outcome> {
    let mut tasks = JoinSet::new();
    for (op, store) in ops.into_iter().zip(stores.iter().cycle()) {
        let (store, account) = (Arc::clone(store), account.clone());
        tasks.spawn(async move { store.submit(&account, op).await.expect("an answer") });
    }
    tasks.join_all().await
}

async fn funded(stores: &Stores, credit: Money) -> AccountName {
    let account = name("crowd");
    stores[0].open_account(&account).await.expect("open");
    let op = Operation::Credit { tx: "t".to_owned(), amount: credit };
    assert_eq!(stores[0].submit(&account, op).await, Ok(Outcome::Done));
    account
}

async fn balances(stores: &Stores, account: &AccountName) -> Balances {
    let one = stores[0].balances(account).await.expect("balances").expect("the account");
    let other = stores[1].balances(account).await.expect("balances").expect("the account");
    assert_eq!(one, other);
    assert!(one.is_balanced(), "{one:?}");
    one
}

/// Of a thousand holds as many stand as there is credit for.
async fn exactly_as_many_holds_stand_as_are_paid_for(stores: Stores) {
    let (each, paid_for) = (nano(9_007_199_254_740_993), 137);
    let account = funded(&stores, nano(each.nano() * paid_for + each.nano() - 1)).await;
    let ops = (0..1_000).map(|n| hold(format!("h{n}"), each)).collect();
    let answers = at_once(&stores, &account, ops).await;
    let held = answers.iter().filter(|a| **a == Outcome::Held(each)).count();
    let refused = answers.iter().filter(|a| matches!(a, Outcome::Insufficient(_))).count();
    assert_eq!((i64::try_from(held), refused), (Ok(paid_for), 1_000 - held));
    let all_held = nano(each.nano() * paid_for);
    assert_eq!(balances(&stores, &account).await.held, all_held);
    let open = SweepReport { expired: 0, open: 137, held: all_held };
    assert_eq!(stores[0].expire_holds().await, Ok(open));

    let ends = (0..1_000).map(|n| match n % 2 {
        0 => settle(&format!("h{n}"), nano(each.nano() / 2)),
        _ => Operation::Void { id: format!("h{n}") },
    });
    let answers = at_once(&stores, &account, ends.collect()).await;
    let posted = answers.iter().filter(|a| matches!(a, Outcome::Posted { .. })).count();
    let after = balances(&stores, &account).await;
    let charged = i64::try_from(posted).expect("a small number") * (each.nano() / 2);
    assert_eq!((after.held, after.posted), (Money::ZERO, nano(charged)));
    assert_eq!(after.written_off, Money::ZERO);
    assert_eq!(stores[1].expire_holds().await, Ok(SweepReport::default()));
    let journal = stores[1].read_journal(&account, 0, 2_000).await.expect("the journal");
    assert_eq!(journal.len(), posted);
}

/// What is spent and held of the only budget of an account, as both stores have it.
async fn budget_use(stores: &Stores, account: &AccountName) -> (Money, Money) {
    let one = stores[0].list_budgets(account).await.expect("budgets");
    let other = stores[1].list_budgets(account).await.expect("budgets");
    assert_eq!(one, other);
    let [budget] = one[..] else { panic!("one budget: {one:?}") };
    (budget.used.spent, budget.used.held)
}

/// Of five hundred holds as many stand as the budget has quotes, though there is credit for more;
/// and once these have ended, as many as it has then.
async fn exactly_as_many_holds_stand_as_the_budget_has_quotes(stores: Stores, owner: BudgetOwner) {
    let (each, quotes) = (nano(9_007_199_254_740_993), 137);
    let times = |n: i64| nano(each.nano() * n);
    let account = funded(&stores, times(1_000)).await;
    let limit = nano(each.nano() * quotes + each.nano() - 1);
    let is_set = stores[0].set_budget(&account, owner, WindowKind::Total, Some(limit)).await;
    assert_eq!(is_set, Ok(true));
    let ops = |from: u32| -> Vec<Operation> {
        (from..from + 500).map(|n| hold_of(Some(KEY), format!("h{n}"), each)).collect()
    };
    let answers = at_once(&stores, &account, ops(0)).await;
    let count = |answers: &[Outcome], told: &Outcome| answers.iter().filter(|a| *a == told).count();
    let in_use = Outcome::BudgetInUse(nano(each.nano() - 1));
    let told = (count(&answers, &Outcome::Held(each)), count(&answers, &in_use));
    assert_eq!(told, (137, 500 - 137));
    assert_eq!(budget_use(&stores, &account).await, (Money::ZERO, times(quotes)));
    assert_eq!(balances(&stores, &account).await.held, times(quotes));

    // Some cost nothing, some a half, and some twice as much.
    let ends = (0..500).map(|n| match n % 3 {
        0 => settle(&format!("h{n}"), nano(each.nano() / 2)),
        1 => settle(&format!("h{n}"), times(2)),
        _ => Operation::Void { id: format!("h{n}") },
    });
    let answers = at_once(&stores, &account, ends.collect()).await;
    let amount = |answer: &Outcome| match answer {
        Outcome::Posted { amount, .. } => amount.nano(),
        _ => 0,
    };
    let spent = nano(answers.iter().map(amount).sum());
    assert_eq!(balances(&stores, &account).await.posted, spent);
    assert_eq!(budget_use(&stores, &account).await, (spent, Money::ZERO));

    let answers = at_once(&stores, &account, ops(500)).await;
    let left = limit.nano().saturating_sub(spent.nano()).max(0) / each.nano();
    let held = count(&answers, &Outcome::Held(each));
    assert_eq!(i64::try_from(held), Ok(left));
    assert_eq!(budget_use(&stores, &account).await, (spent, times(left)));
    // A key that has no budget of its own is not touched by another's.
    let answer = stores[1].submit(&account, hold_of(Some(KeyId(8)), "x".to_owned(), each)).await;
    match owner {
        BudgetOwner::Account => assert_ne!(answer, Ok(Outcome::Held(each))),
        BudgetOwner::Key(_) => assert_eq!(answer, Ok(Outcome::Held(each))),
    }
}

/// Holds that grow at once under a budget share what it has, to the last nano-USD.
async fn holds_that_grow_at_once_share_the_budget(stores: Stores) {
    let (each, all) = (9_007_199_254_740_993, 50);
    let account = funded(&stores, nano(each * all * 10)).await;
    let limit = Some(nano(each * all * 3 - 1));
    let set = stores[0].set_budget(&account, BudgetOwner::Account, WindowKind::Month, limit).await;
    assert_eq!(set, Ok(true));
    at_once(&stores, &account, (0..all).map(|n| hold(format!("g{n}"), nano(each))).collect()).await;
    let more = |n| Operation::Extend { id: format!("g{}", n % all), wanted: nano(each * 5) };
    at_once(&stores, &account, (0..all * 3).map(more).collect()).await;
    assert_eq!(budget_use(&stores, &account).await, (Money::ZERO, nano(each * all * 3 - 1)));
    let voids = (0..all).map(|n| Operation::Void { id: format!("g{n}") });
    at_once(&stores, &account, voids.collect()).await;
    assert_eq!(budget_use(&stores, &account).await, (Money::ZERO, Money::ZERO));
}

/// Of two hundred settlements of one hold, each with another charge, one counts.
async fn one_settlement_of_many_counts(stores: Stores) {
    let account = funded(&stores, nano(1_000)).await;
    at_once(&stores, &account, vec![hold("a".to_owned(), nano(500))]).await;
    let ops = (0..200).map(|n| settle("a", nano(100 + n))).collect();
    let answers = at_once(&stores, &account, ops).await;
    let first = answers.iter().find_map(|answer| match answer {
        Outcome::Posted { amount, .. } => Some(*amount),
        _ => None,
    });
    let first = first.expect("one that posts");
    let repeats = answers.iter().filter(|a| **a == Outcome::AlreadyPosted(first)).count();
    assert_eq!(repeats, 199);
    let after = balances(&stores, &account).await;
    assert_eq!((after.held, after.posted), (Money::ZERO, first));
    assert_eq!(stores[0].read_journal(&account, 0, 10).await.expect("the journal").len(), 1);
}

/// A hold that the store lost is settled by all who remember it, and is charged once.
async fn one_settlement_of_a_lost_hold_counts(stores: Stores) {
    let account = funded(&stores, nano(1_000)).await;
    let (wanted, least, at) = (nano(500), nano(500), now());
    let origin = HoldRequest { wanted, least, at, key: None };
    let ops = (0..200).map(|n| match n % 4 {
        // It may be made again at the same time.
        3 => hold("a".to_owned(), nano(500)),
        _ => settle_even_if_lost("a", nano(300), origin),
    });
    let answers = at_once(&stores, &account, ops.collect()).await;
    let posted = Outcome::Posted { amount: nano(300), written_off: Money::ZERO };
    let of = |told: &Outcome| answers.iter().filter(|a| *a == told).count();
    assert_eq!((of(&posted), of(&Outcome::AlreadyPosted(nano(300)))), (1, 149));
    let after = balances(&stores, &account).await;
    assert_eq!((after.held, after.posted, after.available), (Money::ZERO, nano(300), nano(700)));
    assert_eq!(stores[0].read_journal(&account, 0, 10).await.expect("the journal").len(), 1);
}

/// Holds that grow at once share what there is, and none of it twice.
async fn holds_that_grow_at_once_share_what_there_is(stores: Stores) {
    let (each, all) = (9_007_199_254_740_993, 100);
    let account = funded(&stores, nano(each * all * 3)).await;
    at_once(&stores, &account, (0..all).map(|n| hold(format!("g{n}"), nano(each))).collect()).await;
    // Each wants five times as much as it has: there is three times as much.
    let more = |n| Operation::Extend { id: format!("g{}", n % all), wanted: nano(each * 5) };
    let answers = at_once(&stores, &account, (0..all * 3).map(more).collect()).await;
    assert!(answers.iter().all(|a| matches!(a, Outcome::Held(held) if *held >= nano(each))));
    let after = balances(&stores, &account).await;
    assert_eq!((after.available, after.held), (Money::ZERO, nano(each * all * 3)));
    let open = SweepReport { expired: 0, open: 100, held: after.held };
    assert_eq!(stores[1].expire_holds().await, Ok(open));

    let voids = (0..all).map(|n| Operation::Void { id: format!("g{n}") });
    at_once(&stores, &account, voids.collect()).await;
    let after = balances(&stores, &account).await;
    assert_eq!((after.available, after.held), (nano(each * all * 3), Money::ZERO));
}

/// A hold and its void may overtake each other, and nothing stays held.
async fn nothing_stays_held_when_void_races_hold(stores: Stores) {
    let account = funded(&stores, nano(300)).await;
    let pairs = (0..300).flat_map(|n| {
        let (id, void) = (format!("r{n}"), Operation::Void { id: format!("r{n}") });
        // The void comes by the other store, and every second time it is asked for first.
        if n % 2 == 0 { [hold(id, nano(1)), void] } else { [void, hold(id, nano(1))] }
    });
    let answers = at_once(&stores, &account, pairs.collect()).await;
    let told = |a: &Outcome| {
        matches!(a, Outcome::Voided | Outcome::Held(_) | Outcome::Tombstoned)
            || matches!(a, Outcome::Insufficient(_))
    };
    assert!(answers.iter().all(told), "{answers:?}");
    let after = balances(&stores, &account).await;
    assert_eq!((after.held, after.available), (Money::ZERO, nano(300)));
}

/// Two processes that write in turns, each operation a transaction of its own, wait for each other.
async fn writers_in_turns_wait_for_each_other(stores: Stores) {
    let account = funded(&stores, nano(1_000)).await;
    let writer = async |store: &Arc<dyn Ledger>, name: &str| {
        for n in 0..300 {
            let answer = store.submit(&account, hold(format!("{name}{n}"), nano(1))).await;
            assert_eq!(answer, Ok(Outcome::Held(nano(1))));
        }
    };
    tokio::join!(writer(&stores[0], "x"), writer(&stores[1], "y"));
    assert_eq!(balances(&stores, &account).await.held, nano(600));
}

/// Sweeps by several processes at once end each hold once.
async fn sweeps_at_once_end_each_hold_once(stores: Stores) {
    let account = funded(&stores, nano(1_000)).await;
    let short = |n| {
        let (id, wanted, least) = (format!("s{n}"), nano(10), nano(10));
        Operation::Hold { id, wanted, least, lease_ms: 1, key: None, rates: Vec::new() }
    };
    at_once(&stores, &account, (0..100).map(short).collect()).await;
    let costs = (0..100).map(|n| super::script::checkpoint(&format!("s{n}"), nano(7)));
    at_once(&stores, &account, costs.collect()).await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let (a, b) = tokio::join!(stores[0].expire_holds(), stores[1].expire_holds());
    assert_eq!(a.expect("a sweep").expired + b.expect("a sweep").expired, 100);
    let after = balances(&stores, &account).await;
    assert_eq!((after.held, after.posted, after.available), (Money::ZERO, nano(700), nano(300)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_keeps_its_head_in_a_crowd() {
    let folders = [(); 10].map(|()| tempfile::tempdir().expect("a folder"));
    let [holds, charges, races, sweeps, turns, lost, growth, budget, key, shared] =
        folders.each_ref().map(tempfile::TempDir::path);
    let [own, of_key] = BUDGET_OWNERS;
    exactly_as_many_holds_stand_as_the_budget_has_quotes(sqlite(budget).await, own).await;
    exactly_as_many_holds_stand_as_the_budget_has_quotes(sqlite(key).await, of_key).await;
    holds_that_grow_at_once_share_the_budget(sqlite(shared).await).await;
    exactly_as_many_holds_stand_as_are_paid_for(sqlite(holds).await).await;
    one_settlement_of_many_counts(sqlite(charges).await).await;
    one_settlement_of_a_lost_hold_counts(sqlite(lost).await).await;
    holds_that_grow_at_once_share_what_there_is(sqlite(growth).await).await;
    nothing_stays_held_when_void_races_hold(sqlite(races).await).await;
    sweeps_at_once_end_each_hold_once(sqlite(sweeps).await).await;
    writers_in_turns_wait_for_each_other(sqlite(turns).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redis_keeps_its_head_in_a_crowd() {
    let server = RedisServer::shared();
    for owner in BUDGET_OWNERS {
        exactly_as_many_holds_stand_as_the_budget_has_quotes(redis(&server).await, owner).await;
    }
    holds_that_grow_at_once_share_the_budget(redis(&server).await).await;
    exactly_as_many_holds_stand_as_are_paid_for(redis(&server).await).await;
    one_settlement_of_many_counts(redis(&server).await).await;
    one_settlement_of_a_lost_hold_counts(redis(&server).await).await;
    holds_that_grow_at_once_share_what_there_is(redis(&server).await).await;
    nothing_stays_held_when_void_races_hold(redis(&server).await).await;
    sweeps_at_once_end_each_hold_once(redis(&server).await).await;
    writers_in_turns_wait_for_each_other(redis(&server).await).await;
}

/// Two gateways that start at the same moment both make the tables of a new file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_file_opened_by_many_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let url = url.clone();
        tasks.spawn(
            async move { open(&url).await.open_account(&name(&format!("account-{n}"))).await },
        );
    }
    assert!(tasks.join_all().await.iter().all(|new| *new == Ok(true)));
    assert_eq!(open(&url).await.list_accounts().await.expect("accounts").len(), 8);
}
