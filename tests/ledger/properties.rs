//! Random scripts: the stores and the pure machine say the same, and the money adds up.

use proptest::prelude::*;
use tollgate::ledger::account::{Account, Balances};
use tollgate::ledger::{AccountName, Entry, Operation};
use tollgate::money::Money;

use super::redis_server::RedisServer;
use super::script::{self, Action, LONG_MS, SHORT_MS};
use super::subject::{self, Memory, Stored, Subject};

/// Few accounts and ids, so that operations meet.
const ACCOUNTS: [&str; 2] = ["ada", "bob"];

fn amount() -> impl Strategy<Value = Money> {
    let nano = prop_oneof![
        20 => 0..=120i64,
        2 => (1i64 << 53) - 2..=(1i64 << 53) + 2,
        1 => i64::MAX - 200..=i64::MAX,
    ];
    nano.prop_map(|nano| Money::from_nano(nano).unwrap_or_default())
}

fn id() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["x", "y", "z"]).prop_map(str::to_owned)
}

fn lease_ms() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![SHORT_MS, LONG_MS])
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (id(), amount()).prop_map(|(tx, amount)| Operation::Credit { tx, amount }),
        4 => (id(), amount(), amount(), lease_ms()).prop_map(|(id, a, b, lease_ms)| {
            Operation::Hold { id, wanted: a.max(b), least: a.min(b), lease_ms }
        }),
        1 => (id(), lease_ms()).prop_map(|(id, lease_ms)| Operation::Renew { id, lease_ms }),
        2 => (id(), amount()).prop_map(|(id, charge)| script::checkpoint(&id, charge)),
        3 => (id(), amount()).prop_map(|(id, charge)| script::settle(&id, charge)),
        1 => id().prop_map(|id| Operation::Void { id }),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![8 => operation().prop_map(Action::Apply), 1 => Just(Action::Expire)]
}

type Steps = Vec<(&'static str, Action)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((prop::sample::select(ACCOUNTS.to_vec()), action()), 1..=25)
}

/// What a journal says was posted and written off.
fn replayed(journal: &[Entry]) -> (i128, i128) {
    let sum = |part: fn(&Entry) -> Money| journal.iter().map(|e| i128::from(part(e).nano())).sum();
    (sum(|e| e.amount), sum(|e| e.written_off))
}

/// What every script must leave behind after each step.
fn sound(balances: Balances, journal: &[Entry]) -> Result<(), TestCaseError> {
    prop_assert!(balances.add_up(), "{balances:?} do not add up");
    let (posted, lost) = (i128::from(balances.posted.nano()), balances.written_off.nano().into());
    prop_assert_eq!(replayed(journal), (posted, lost), "the journal tells another story");
    Ok(())
}

async fn same_everywhere(
    yardstick: &mut dyn Subject,
    stores: &mut [Stored],
    steps: &Steps,
) -> Result<(), TestCaseError> {
    let names = ACCOUNTS.map(subject::name);
    for name in &names {
        yardstick.open(name).await;
        for store in &mut *stores {
            store.open(name).await;
        }
    }
    for (account, action) in steps {
        let about = subject::name(account);
        let expected = subject::perform(yardstick, &about, action).await;
        for store in &mut *stores {
            let came = subject::perform(store, &about, action).await;
            prop_assert_eq!(&came, &expected, "{:?} of {}", action, account);
        }
        for name in &names {
            same_books(yardstick, stores, name).await?;
        }
    }
    Ok(())
}

async fn same_books(
    yardstick: &mut dyn Subject,
    stores: &mut [Stored],
    name: &AccountName,
) -> Result<(), TestCaseError> {
    let balances = yardstick.balances(name).await.unwrap_or_default();
    let journal = yardstick.journal(name).await;
    sound(balances, &journal)?;
    for store in stores {
        prop_assert_eq!(store.balances(name).await, Some(balances));
        prop_assert_eq!(&store.journal(name).await, &journal);
    }
    Ok(())
}

#[test]
fn random_scripts_end_the_same_on_all_three() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let bounds = ProptestConfig {
        cases: 48,
        max_shrink_iters: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(bounds, |(steps in steps())| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            let sqlite = Stored::sqlite(folder.path()).await;
            let mut stores = [sqlite, Stored::at(&server.fresh_url()).await];
            same_everywhere(&mut Memory::new(Account::default), &mut stores, &steps).await
        })?;
    });
}

#[test]
fn long_random_scripts_keep_the_pure_machine_sound() {
    let many = prop::collection::vec(action(), 1..=200);
    let bounds =
        ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(bounds, |(actions in many)| {
        let mut account = Account::default();
        for (now, action) in (0..).step_by(2).zip(&actions) {
            match action {
                Action::Apply(op) => drop(account.apply(op, now)),
                _ => drop(account.expire(now)),
            }
            sound(account.balances, &account.journal)?;
        }
    });
}
