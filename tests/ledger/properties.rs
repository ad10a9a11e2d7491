//! Random scripts: the stores and the pure machine say the same, and the money adds up.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::{AccountName, EntryKind, JournalEntry, OpenHold, OpenHoldKind, Outcome};
use tollgate::money::Money;

use super::laws::{Asked, action, probe_of_rates, sound};
use super::redis_server::RedisServer;
use super::script::{self, Action};
use super::subject::{self, Memory, Stored, Subject};

/// Few accounts, so that operations meet.
const ACCOUNTS: [&str; 2] = ["ada", "bob"];

/// No case takes so long, in ms: all of them count in windows of one hour.
const CASE_MS: i64 = 15_000;

type Steps = Vec<(&'static str, Action)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((prop::sample::select(ACCOUNTS.to_vec()), action()), 1..=25)
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
    let mut asked: BTreeMap<AccountName, Asked> = BTreeMap::new();
    for (account, action) in steps {
        let about = subject::name(account);
        if let Action::Apply(op) = action {
            asked.entry(about.clone()).or_default().note(op);
        }
        let expected = subject::perform(yardstick, &about, action).await;
        for store in &mut *stores {
            let came = subject::perform(store, &about, action).await;
            prop_assert_eq!(&came, &expected, "{:?} of {}", action, account);
        }
        for name in &names {
            same_books(yardstick, stores, name).await?;
        }
    }
    for (name, asked) in &asked {
        same_holds(yardstick, stores, name, asked).await?;
    }
    for name in &names {
        let expected = yardstick.apply(name, &probe_of_rates()).await;
        for store in &mut *stores {
            prop_assert_eq!(&store.apply(name, &probe_of_rates()).await, &expected, "{}", name);
        }
    }
    Ok(())
}

/// That each of them tells the same of every hold, and that the open ones are all that is held.
async fn same_holds(
    yardstick: &mut dyn Subject,
    stores: &mut [Stored],
    name: &AccountName,
    asked: &Asked,
) -> Result<(), TestCaseError> {
    let mut open = 0;
    for op in asked.again() {
        let expected = yardstick.apply(name, &op).await;
        if let Outcome::Held(held) | Outcome::HoldExists { held, open: true } = expected {
            open += i128::from(held.nano());
        }
        for store in &mut *stores {
            prop_assert_eq!(&store.apply(name, &op).await, &expected, "{:?}", op);
        }
    }
    let balances = yardstick.balances(name).await.unwrap_or_default();
    prop_assert_eq!(i128::from(balances.held.nano()), open, "H is not what is open");
    Ok(())
}

async fn same_books(
    yardstick: &mut dyn Subject,
    stores: &mut [Stored],
    name: &AccountName,
) -> Result<(), TestCaseError> {
    let balances = yardstick.balances(name).await.unwrap_or_default();
    let (journal, budgets) = (yardstick.journal(name).await, yardstick.budgets(name).await);
    let lots = yardstick.lots(name).await;
    let holds = yardstick.holds(name).await;
    sound(balances, &journal)?;
    let held: i128 = holds.iter().map(|hold| i128::from(hold.held.nano())).sum();
    prop_assert_eq!(held, i128::from(balances.held.nano()), "H is not what the open holds hold");
    for store in stores {
        prop_assert_eq!(store.balances(name).await, Some(balances));
        same_journal(&store.journal(name).await, &journal)?;
        prop_assert_eq!(&store.budgets(name).await, &budgets);
        prop_assert_eq!(&store.lots(name).await, &lots);
        let listed = store.holds(name).await;
        prop_assert_eq!(what_is_held(&listed), what_is_held(&holds));
    }
    Ok(())
}

/// What each open hold holds, and what its call has cost so far. The clocks of the stores differ,
/// so the leases do, too.
fn what_is_held(holds: &[OpenHold]) -> BTreeMap<&str, (Money, OpenHoldKind)> {
    holds.iter().map(|hold| (hold.id.as_str(), (hold.held, hold.kind))).collect()
}

/// That two journals say the same. The lines of corrections and expiries have the time of the
/// store.
fn same_journal(came: &[JournalEntry], expected: &[JournalEntry]) -> Result<(), TestCaseError> {
    let without_time = |entry: &JournalEntry| {
        let mut line: serde_json::Value = serde_json::from_str(&entry.line).unwrap_or_default();
        if entry.kind != EntryKind::Charge {
            line["at"] = 0.into();
        }
        JournalEntry { line: line.to_string(), ..entry.clone() }
    };
    let all = |entries: &[JournalEntry]| entries.iter().map(without_time).collect::<Vec<_>>();
    prop_assert_eq!(all(came), all(expected));
    Ok(())
}

/// So many random cases against real stores, which shrink for a bounded time.
pub(super) fn bounds(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_shrink_iters: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn random_scripts_end_the_same_on_all_three() {
    let server = RedisServer::shared();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    proptest!(bounds(48), |(steps in steps())| {
        let folder = tempfile::tempdir().expect("a folder");
        runtime.block_on(async {
            script::wait_for_room_in_the_hour(CASE_MS).await;
            let sqlite = Stored::sqlite(folder.path()).await;
            let mut stores = [sqlite, Stored::at(&server.fresh_url()).await];
            same_everywhere(&mut Memory::new(InMemoryAccount::default), &mut stores, &steps).await
        })?;
    });
}
