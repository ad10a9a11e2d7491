//! What holds of an account after any operation whatever, on the pure machine.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tollgate::ledger::account::{Balances, InMemoryAccount};
use tollgate::ledger::{HoldRequest, JournalEntry, Operation, Outcome};
use tollgate::money::Money;

use super::script::{self, Action, LONG_MS, SHORT_MS, now};

/// Few ids, so that operations meet.
pub(crate) const IDS: [&str; 3] = ["x", "y", "z"];

/// Mostly small; sometimes beyond what a double tells apart, or near the end of the range.
fn amount() -> impl Strategy<Value = Money> {
    let nano = prop_oneof![
        20 => 0..=120i64,
        2 => (1i64 << 53) - 2..=(1i64 << 53) + 2,
        1 => i64::MAX - 200..=i64::MAX,
    ];
    nano.prop_map(|nano| Money::from_nano(nano).unwrap_or_default())
}

fn id() -> impl Strategy<Value = String> {
    prop::sample::select(IDS.to_vec()).prop_map(str::to_owned)
}

fn lease_ms() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![SHORT_MS, LONG_MS])
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (id(), amount()).prop_map(|(tx, amount)| Operation::Credit { tx, amount }),
        5 => (id(), amount(), amount(), lease_ms()).prop_map(|(id, a, b, lease_ms)| {
            Operation::Hold { id, wanted: a.max(b), least: a.min(b), lease_ms }
        }),
        3 => (id(), amount()).prop_map(|(id, wanted)| Operation::Extend { id, wanted }),
        1 => (id(), lease_ms()).prop_map(|(id, lease_ms)| Operation::Renew { id, lease_ms }),
        2 => (id(), amount()).prop_map(|(id, charge)| script::checkpoint(&id, charge)),
        3 => (id(), amount()).prop_map(|(id, charge)| script::settle(&id, charge)),
        2 => (id(), amount(), amount(), amount()).prop_map(|(id, charge, a, b)| {
            let origin = HoldRequest { wanted: a.max(b), least: a.min(b), at: now() };
            script::settle_even_if_lost(&id, charge, origin)
        }),
        2 => id().prop_map(|id| Operation::Void { id }),
    ]
}

/// Anything that can be done to an account.
pub(crate) fn action() -> impl Strategy<Value = Action> {
    prop_oneof![8 => operation().prop_map(Action::Apply), 1 => Just(Action::Expire)]
}

/// What a journal says was posted and written off.
fn replayed(journal: &[JournalEntry]) -> (i128, i128) {
    let sum =
        |part: fn(&JournalEntry) -> Money| journal.iter().map(|e| i128::from(part(e).nano())).sum();
    (sum(|e| e.amount), sum(|e| e.written_off))
}

/// What the balances and the journal must tell after each operation.
pub(crate) fn sound(balances: Balances, journal: &[JournalEntry]) -> Result<(), TestCaseError> {
    prop_assert!(balances.is_balanced(), "{balances:?} do not add up");
    let (posted, lost) = (i128::from(balances.posted.nano()), balances.written_off.nano().into());
    prop_assert_eq!(replayed(journal), (posted, lost), "the journal tells another story");
    Ok(())
}

/// The holds that were asked for, each with what it may be known by.
#[derive(Debug, Default)]
pub(crate) struct Asked(BTreeSet<(String, Money, Money)>);

impl Asked {
    /// Notes the hold that an operation asks for, if it asks for one.
    pub(crate) fn note(&mut self, op: &Operation) {
        if let Operation::Hold { id, wanted, least, .. } = op {
            self.0.insert((id.clone(), *wanted, *least));
        }
    }

    /// All of them once more. Of those with one id one is the one that was made, if any was; on a
    /// copy of an account this tells what it holds.
    pub(crate) fn again(&self) -> impl Iterator<Item = Operation> {
        self.0.iter().cloned().map(|(id, wanted, least)| Operation::Hold {
            id,
            wanted,
            least,
            lease_ms: LONG_MS,
        })
    }
}

/// What all open holds hold.
fn open_in_all(account: &InMemoryAccount, asked: &Asked, now: i64) -> i128 {
    let held = |op| match account.clone().apply(&op, now) {
        Outcome::HoldExists { held, open: true } => i128::from(held.nano()),
        _ => 0,
    };
    asked.again().map(held).sum()
}

/// That what is told of a hold is what its lines in the journal say.
fn each_is_charged_as_told(account: &InMemoryAccount, now: i64) -> Result<(), TestCaseError> {
    for id in IDS {
        let of_it = |line: &str| line.trim_matches('"').starts_with(&format!("{id}."));
        let lines: Vec<&JournalEntry> = account.journal.iter().filter(|e| of_it(&e.line)).collect();
        let settled = lines.iter().filter(|e| e.line.contains(".settle.")).count();
        let expired = lines.len() - settled;
        prop_assert!(settled <= 1 && expired <= 1, "{id} was charged twice: {lines:?}");
        let told = match account.clone().apply(&Operation::Void { id: id.to_owned() }, now) {
            Outcome::AlreadyPosted(amount) => i128::from(amount.nano()),
            _ => 0,
        };
        let charged: i128 = lines.iter().map(|e| i128::from(e.amount.nano())).sum();
        prop_assert_eq!(charged, told, "what is told of {} is not what was charged", id);
    }
    Ok(())
}

#[test]
fn long_random_scripts_keep_the_pure_machine_sound() {
    let many = prop::collection::vec(action(), 1..=200);
    let bounds =
        ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(bounds, |(actions in many)| {
        let (mut account, mut asked) = (InMemoryAccount::default(), Asked::default());
        for (now, action) in (0..).step_by(2).zip(&actions) {
            match action {
                Action::Apply(op) => {
                    let answer = account.apply(op, now);
                    asked.note(op);
                    keeps_the_law(op, &answer, &account)?;
                }
                _ => drop(account.expire_holds(now)),
            }
            sound(account.balances, &account.journal)?;
            let held = i128::from(account.balances.held.nano());
            prop_assert_eq!(held, open_in_all(&account, &asked, now), "H is not what is open");
            each_is_charged_as_told(&account, now)?;
        }
    });
}

/// What an answer must be to its operation, whatever came before.
fn keeps_the_law(
    op: &Operation,
    answer: &Outcome,
    after: &InMemoryAccount,
) -> Result<(), TestCaseError> {
    match (op, answer) {
        (Operation::Hold { wanted, least, .. }, Outcome::Held(held)) => {
            prop_assert!(held <= wanted && held >= least.min(wanted));
            let all = held == wanted || after.balances.available == Money::ZERO;
            prop_assert!(all, "less is held than was wanted and is there");
        }
        (Operation::Extend { wanted, .. }, Outcome::Held(held)) => {
            let all = held >= wanted || after.balances.available == Money::ZERO;
            prop_assert!(all, "an extension left what it wanted");
        }
        (Operation::Settle { charge, .. }, Outcome::Posted { amount, .. }) => {
            prop_assert!(amount >= charge, "less is posted than was charged");
        }
        (Operation::Extend { .. }, Outcome::HoldEnded | Outcome::OutOfRange) => {}
        (Operation::Extend { .. }, other) => prop_assert!(false, "an extension: {:?}", other),
        _ => {}
    }
    Ok(())
}

/// An operation that comes again, as after an answer that was lost, changes nothing.
#[test]
fn the_same_again_changes_nothing() {
    let many = prop::collection::vec(action(), 1..=60);
    let bounds =
        ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(bounds, |(actions in many)| {
        let mut account = InMemoryAccount::default();
        for (now, action) in (0..).step_by(2).zip(&actions) {
            let Action::Apply(op) = action else {
                account.expire_holds(now);
                continue;
            };
            let first = account.apply(op, now);
            let (balances, lines) = (account.balances, account.journal.len());
            let again = account.apply(op, now);
            prop_assert_eq!((balances, lines), (account.balances, account.journal.len()));
            let fits = match (&first, &again) {
                (Outcome::Done, Outcome::AlreadyDone) => matches!(op, Operation::Credit { .. }),
                (Outcome::Held(held), Outcome::HoldExists { held: same, open: true }) => {
                    held == same
                }
                (Outcome::Posted { amount, .. }, Outcome::AlreadyPosted(same)) => amount == same,
                _ => first == again,
            };
            prop_assert!(fits, "{first:?}, and again {again:?}");
        }
    });
}
