//! What happens in the lives of gateways.

use proptest::prelude::*;
use tollgate::ledger::{BudgetOwner, KeyId, WindowKind};

/// How many gateways a life has.
pub(super) const GATEWAYS: usize = 2;

/// The keys of the calls. One is too large for a double.
pub(super) const KEYS: [KeyId; 2] = [KeyId(1), KeyId((1 << 62) + 1)];

/// The amounts of a life are multiples of one of these. With the third, balances go beyond 2^53;
/// with the last, what is lent and what calls cost does, too. As many payments as a life has events
/// stay below 2^63.
const FACTORS: [i64; 4] = [1, 1_000_000_007, 9_007_199_254_741, 36_028_797_018_967];

/// The bursts of the rate limits of a life; 0 if it has none.
const BURSTS: [i64; 5] = [0, 0, 30, 1_000, 1_000_000];

/// The life of two gateways.
#[derive(Debug, Clone)]
pub(super) struct Life {
    /// All amounts are multiplied by this.
    pub(super) factor: i64,
    /// The burst of all rate limits; 0 if there are none.
    pub(super) burst: i64,
    /// What happens, and at which gateway.
    pub(super) events: Vec<(usize, Event)>,
}

/// What happens. `which` chooses one of the open calls.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Pay(i64),
    /// Credit is paid back.
    Refund(i64),
    /// The last refund is asked for again, as while it waits for money that is lent.
    RefundAgain,
    /// A part of a charge is given back. `which` chooses one of the lines.
    Correct {
        which: usize,
        amount: i64,
    },
    Hold(i64),
    /// A call of a key begins.
    KeyHold {
        key: KeyId,
        amount: i64,
    },
    Extend {
        which: usize,
        wanted: i64,
    },
    Checkpoint {
        which: usize,
        charge: i64,
    },
    End {
        which: usize,
        charge: i64,
    },
    Void {
        which: usize,
    },
    /// A retry of the call takes its process for dead.
    VoidElsewhere {
        which: usize,
    },
    Update {
        free: i64,
    },
    UpdateTwice {
        free: i64,
    },
    LoseAnswer {
        free: i64,
    },
    Kill,
    Expire,
    DirectHold {
        id: u8,
        wanted: i64,
        least: i64,
    },
    DirectExtend {
        id: u8,
        wanted: i64,
    },
    DirectSettle {
        id: u8,
        charge: i64,
    },
    DirectVoid {
        id: u8,
    },
    SetBudget {
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<i64>,
    },
}

/// Random lives.
pub(super) fn lives() -> impl Strategy<Value = Life> {
    let factor = prop::sample::select(FACTORS.to_vec());
    let burst = prop::sample::select(BURSTS.to_vec());
    // Most budgets are there before the first call.
    let budgets = prop::collection::vec((0..GATEWAYS, budget()), 0..=4);
    let events = prop::collection::vec(event(), 1..=80);
    (factor, burst, budgets, events).prop_map(|(factor, burst, mut events, rest)| {
        events.extend(rest);
        Life { factor, burst, events }
    })
}

/// A budget of the account or of a key: so small that it decides, or larger than all credit.
fn budget() -> impl Strategy<Value = Event> {
    let [one, other] = KEYS.map(BudgetOwner::Key);
    let owner = prop::sample::select(vec![BudgetOwner::Account, one, other]);
    let kind = prop::sample::select(WindowKind::ALL.to_vec());
    let limit = prop_oneof![3 => 0..=400i64, 3 => 400..=4_000i64, 1 => Just(90_000i64)];
    (owner, kind, prop::option::weighted(0.85, limit))
        .prop_map(|(owner, kind, limit)| Event::SetBudget { owner, kind, limit })
}

fn event() -> impl Strategy<Value = (usize, Event)> {
    let which = || 0..8usize;
    let amount = || prop_oneof![3 => 0..=40i64, 1 => 0..=400i64];
    let free = || prop_oneof![1 => Just(0), 4 => 0..=300i64];
    let id = || 0..3u8;
    let key = || prop::sample::select(KEYS.to_vec());
    let event = prop_oneof![
        2 => (0..=3_000i64).prop_map(Event::Pay),
        1 => (0..=1_000i64).prop_map(Event::Refund),
        1 => Just(Event::RefundAgain),
        2 => (0..40usize, amount()).prop_map(|(which, amount)| Event::Correct { which, amount }),
        4 => amount().prop_map(Event::Hold),
        6 => (key(), amount()).prop_map(|(key, amount)| Event::KeyHold { key, amount }),
        2 => (which(), amount()).prop_map(|(which, wanted)| Event::Extend { which, wanted }),
        3 => (which(), amount()).prop_map(|(which, charge)| Event::Checkpoint { which, charge }),
        5 => (which(), amount()).prop_map(|(which, charge)| Event::End { which, charge }),
        2 => which().prop_map(|which| Event::Void { which }),
        1 => which().prop_map(|which| Event::VoidElsewhere { which }),
        8 => free().prop_map(|free| Event::Update { free }),
        2 => free().prop_map(|free| Event::UpdateTwice { free }),
        2 => free().prop_map(|free| Event::LoseAnswer { free }),
        1 => Just(Event::Kill),
        1 => Just(Event::Expire),
        4 => (id(), amount(), amount())
            .prop_map(|(id, wanted, least)| Event::DirectHold { id, wanted, least }),
        1 => (id(), amount()).prop_map(|(id, wanted)| Event::DirectExtend { id, wanted }),
        2 => (id(), amount()).prop_map(|(id, charge)| Event::DirectSettle { id, charge }),
        1 => id().prop_map(|id| Event::DirectVoid { id }),
        1 => budget(),
    ];
    (0..GATEWAYS, event)
}
