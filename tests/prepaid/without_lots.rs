//! What holds of an account without budgets and allotments.

use proptest::prelude::*;
use tollgate::ledger::account::Balances;
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::direct::{DirectHoldOrigin, DirectHoldRequest};
use tollgate::ledger::prepaid::lot::{LotAmounts, LotId};
use tollgate::ledger::prepaid::records::{
    AccountHead, DirectHold, DirectHoldState, PrepaidAccount,
};
use tollgate::ledger::{HoldRequest, Operation};
use tollgate::money::Money;

use super::machine::{Machine, Op, bounds};

/// `None` sweeps.
fn operation() -> impl Strategy<Value = Option<Operation>> {
    let amount = || {
        let nano = prop_oneof![20 => 0..=120i64, 1 => i64::MAX - 200..=i64::MAX];
        nano.prop_map(|nano| Money::from_nano(nano).unwrap_or_default())
    };
    let id = || prop::sample::select(vec!["x", "y", "z"]).prop_map(str::to_owned);
    let lease = || prop::sample::select(vec![1u64, 3_600_000]);
    let line = |id: &str| id.to_owned();
    prop_oneof![
        2 => (id(), amount()).prop_map(|(tx, amount)| Some(Operation::Credit { tx, amount })),
        1 => (id(), amount()).prop_map(|(tx, amount)| {
            Some(Operation::Take { tx, amount, reason: String::new() })
        }),
        2 => (id(), id(), amount()).prop_map(|(tx, request, amount)| {
            let (found, reason) = (Vec::new(), String::new());
            Some(Operation::Correct { tx, request, found, amount, reason })
        }),
        5 => (id(), amount(), amount(), lease()).prop_map(|(id, wanted, least, lease_ms)| {
            Some(Operation::Hold { id, wanted, least, lease_ms, key: None, rates: Vec::new() })
        }),
        3 => (id(), amount()).prop_map(|(id, wanted)| Some(Operation::Extend { id, wanted })),
        1 => (id(), lease()).prop_map(|(id, lease_ms)| Some(Operation::Renew { id, lease_ms })),
        2 => (id(), amount()).prop_map(move |(id, charge)| {
            Some(Operation::Checkpoint { line: line(&id), id, charge })
        }),
        4 => (id(), amount(), prop::option::of((amount(), amount()))).prop_map(
            move |(id, charge, origin)| {
                let request = |(wanted, least)| HoldRequest { wanted, least, at: 0, key: None };
                let origin = origin.map(request);
                Some(Operation::Settle { line: line(&id), id, charge, origin, tokens: None })
            }
        ),
        2 => id().prop_map(|id| Some(Operation::Void { id })),
        1 => Just(None),
    ]
}

fn next_op(op: &Operation) -> Op {
    match op.clone() {
        Operation::Credit { tx, amount } => Op::Pay { tx, amount },
        Operation::Grant { tx, amount, lot } => Op::Grant { tx, amount, lot },
        Operation::Take { tx, amount, .. } => Op::Take { tx, amount },
        Operation::Correct { tx, request, amount, .. } => Op::Correct { tx, request, amount },
        Operation::Hold { id, wanted, least, lease_ms, key, .. } => {
            Op::Hold(DirectHoldRequest { id, key, wanted, least, rates: Vec::new(), lease_ms })
        }
        Operation::Extend { id, wanted } => Op::Extend { id, wanted },
        Operation::Renew { id, lease_ms } => Op::Renew { id, lease_ms },
        Operation::Checkpoint { id, charge, line } => Op::Checkpoint { id, charge, line },
        Operation::Settle { id, charge, line, origin, .. } => {
            let origin = origin.map(|HoldRequest { wanted, least, at, key }| DirectHoldOrigin {
                key,
                wanted,
                least,
                at,
                windows: Vec::new(),
            });
            Op::Settle { id, charge, line, origin, tokens: None }
        }
        Operation::Void { id } => Op::Void { id },
    }
}

/// A repeated request changes nothing, whatever it is.
#[test]
fn the_same_again_changes_nothing() {
    let many = prop::collection::vec(operation(), 1..=40);
    let bounds = bounds(200);
    proptest!(bounds, |(operations in many)| {
        let mut account = PrepaidAccount::default();
        for (now, op) in (0..).step_by(2).zip(operations.iter().flatten()) {
            account.apply(&next_op(op), now);
            let before = account.clone();
            account.apply(&next_op(op), now);
            prop_assert_eq!(&before, &account, "{:?} twice", op);
        }
    });
}

/// What an account without lots has becomes one lot of paid credit, out of which its holds have
/// drawn.
#[test]
fn an_account_without_lots_goes_on_as_it_was() {
    let nano = |amount| Money::from_nano(amount).unwrap_or_default();
    let balances = Balances {
        credit: nano(150),
        available: nano(40),
        held: nano(60),
        posted: nano(55),
        written_off: nano(5),
    };
    let head = AccountHead::from_balances(balances);
    let mut drawn = LotAmounts::default();
    drawn.add(LotId::PAID, nano(60)).expect("a sum");
    let hold = DirectHold {
        key: None,
        wanted: nano(60),
        least: nano(60),
        held: nano(60),
        drawn,
        windows: Vec::new(),
        rates: Vec::new(),
        lease_until: 1_000,
        state: DirectHoldState::Open { checkpoint: None },
    };
    let holds = [("old".to_owned(), hold)].into();
    let mut account = PrepaidAccount { head, holds, ..PrepaidAccount::default() };
    let op = next_op(&Operation::Settle {
        id: "old".to_owned(),
        charge: nano(70),
        line: String::new(),
        origin: None,
        tokens: None,
    });
    account.apply(&op, 0);
    let take = Op::Take { tx: "r".to_owned(), amount: nano(100) };
    let taken = account.apply(&take, 0);
    assert_eq!(taken, LedgerAnswer::Taken { taken: nano(30), uncovered: nano(70), again: false });
    let expected = Balances {
        credit: nano(120),
        posted: nano(125),
        written_off: nano(5),
        ..Balances::default()
    };
    assert_eq!(account.head.balances, expected);
    assert!(account.head.lots.is_empty() && expected.is_balanced());
    assert!(AccountHead::from_balances(Balances::default()).lots.is_empty());
}
