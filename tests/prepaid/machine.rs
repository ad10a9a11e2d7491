//! What a script runs against: the right machine, or one of the canaries.

use proptest::prelude::ProptestConfig;
use tollgate::ledger::prepaid::allotment::{expire_allotment, update_allotment};
use tollgate::ledger::prepaid::answer::{AccountStep, LedgerAnswer};
use tollgate::ledger::prepaid::correct::{ChargeCorrection, correct_charge};
use tollgate::ledger::prepaid::direct::{self, DirectHoldOrigin, DirectHoldRequest};
use tollgate::ledger::prepaid::lot::LotId;
use tollgate::ledger::prepaid::records::{DirectHoldState, KeyStatus, PrepaidAccount};
use tollgate::ledger::prepaid::settings;
use tollgate::ledger::prepaid::transfer;
use tollgate::ledger::prepaid::update::AllotmentUpdate;
use tollgate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowKind};
use tollgate::money::Money;

/// How many random cases a property has: the number of `PROPTEST_CASES` where it is set, as for
/// mutants, of which there are many.
pub(crate) fn bounds(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if is_set { default.cases } else { cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// An operation on an account.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Pay {
        tx: String,
        amount: Money,
    },
    Grant {
        tx: String,
        amount: Money,
        lot: LotId,
    },
    Take {
        tx: String,
        amount: Money,
    },
    Correct {
        tx: String,
        request: String,
        amount: Money,
    },
    Hold(DirectHoldRequest),
    Extend {
        id: String,
        wanted: Money,
    },
    Renew {
        id: String,
        lease_ms: u64,
    },
    Checkpoint {
        id: String,
        charge: Money,
        line: String,
    },
    Settle {
        id: String,
        charge: Money,
        line: String,
        origin: Option<DirectHoldOrigin>,
        tokens: Option<i64>,
    },
    Void {
        id: String,
    },
    Update(AllotmentUpdate),
    Budget {
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    },
    Suspend(bool),
    SetKey {
        key: KeyId,
        status: KeyStatus,
    },
}

/// An account's machine.
pub(crate) trait Machine {
    /// Does an operation at a moment (unix ms).
    fn apply(&mut self, op: &Op, now: i64) -> LedgerAnswer;
    /// Ends what is due, what ran out first at first. Returns how much ended.
    fn sweep(&mut self, now: i64) -> u64;
    /// The records.
    fn account(&self) -> &PrepaidAccount;
    /// The records, for a test that loses some.
    fn account_mut(&mut self) -> &mut PrepaidAccount;
}

/// Computes an operation without doing it.
pub(crate) fn step_of(account: &PrepaidAccount, op: &Op, now: i64) -> AccountStep {
    match op {
        Op::Pay { tx, amount } => transfer::add_payment(account, tx, *amount, now),
        Op::Grant { tx, amount, lot } => transfer::add_grant(account, tx, *amount, *lot, now),
        Op::Take { tx, amount } => transfer::take_credit(account, tx, *amount, "", now),
        Op::Correct { tx, request, amount } => {
            let correction = ChargeCorrection { tx, request, amount: *amount, reason: "" };
            correct_charge(account, correction, now)
        }
        Op::Hold(request) => direct::place_hold(account, request, now),
        Op::Extend { id, wanted } => direct::extend_hold(account, id, *wanted, now),
        Op::Renew { id, lease_ms } => direct::renew_hold(account, id, *lease_ms, now),
        Op::Checkpoint { id, charge, line } => {
            direct::checkpoint_hold(account, id, *charge, line, now)
        }
        Op::Settle { id, charge, line, origin, tokens } => {
            direct::settle_hold(account, id, *charge, line, origin.as_ref(), *tokens, now)
        }
        Op::Void { id } => direct::void_hold(account, id, now),
        Op::Update(update) => update_allotment(account, update, now),
        Op::Budget { owner, kind, limit } => {
            settings::set_budget(account, *owner, *kind, *limit, now)
        }
        Op::Suspend(suspended) => settings::set_suspended(account, *suspended, now),
        Op::SetKey { key, status } => settings::set_key_status(account, *key, *status, now),
    }
}

impl Machine for PrepaidAccount {
    fn apply(&mut self, op: &Op, now: i64) -> LedgerAnswer {
        let AccountStep { answer, changes } = step_of(self, op, now);
        self.commit(changes);
        answer
    }

    fn sweep(&mut self, now: i64) -> u64 {
        let mut ended = 0;
        for due in due_at(self, now) {
            let step = match &due {
                Due::Hold(id) => direct::expire_hold(self, id, now),
                Due::Allotment(id) => expire_allotment(self, id, now),
            };
            ended += u64::from(step.answer != LedgerAnswer::OutOfRange);
            self.commit(step.changes);
        }
        self.commit(transfer::expire_credit(self, now).changes);
        ended
    }

    fn account(&self) -> &PrepaidAccount {
        self
    }

    fn account_mut(&mut self) -> &mut PrepaidAccount {
        self
    }
}

/// Something whose lease has run out.
pub(crate) enum Due {
    Hold(String),
    Allotment(tollgate::ledger::prepaid::records::AllotmentId),
}

/// All whose lease has run out at a moment, in this order.
pub(crate) fn due_at(account: &PrepaidAccount, now: i64) -> Vec<Due> {
    let is_open = |state: &DirectHoldState| matches!(state, DirectHoldState::Open { .. });
    let holds = account.holds.iter().filter(|(_, hold)| is_open(&hold.state));
    let holds = holds.map(|(id, hold)| (hold.lease_until, Due::Hold(id.clone())));
    let lent = account.allotments.iter().filter(|(_, lent)| lent.is_out());
    let lent = lent.map(|(id, lent)| (lent.lease_until, Due::Allotment(id.clone())));
    let mut due: Vec<_> = holds.chain(lent).filter(|(until, _)| *until <= now).collect();
    due.sort_by_key(|(until, _)| *until);
    due.into_iter().map(|(_, due)| due).collect()
}
