//! An account in memory beside a second one that is made of plain sums: they say the same of every
//! operation, also when windows of budgets end between two of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate::ledger::account::Balances;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::{
    BudgetOwner, BudgetUse, EntryKind, HoldRequest, JournalEntry, KeyId, Operation, Outcome,
    WindowId, WindowKind,
};
use tollgate::money::Money;

use super::machine::bounds;

const MINUTE_MS: i64 = 60 * 1_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
/// An unknown hold that was asked for so long ago, in ms, is not settled.
const LOST_MS: i64 = 12 * HOUR_MS;
/// A Sunday in November, an hour before the week ends, in unix ms.
const START_MS: i64 = 1_795_993_200_000;

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    Apply(Operation),
    SetBudget {
        owner: BudgetOwner,
        kind: WindowKind,
        limit: Option<Money>,
    },
    Expire,
    /// So many ms pass.
    Pass(i64),
}

/// How a call of the second account stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Open,
    Posted(i128),
    Voided,
    Expired(i128),
    Tombstone,
}

#[derive(Debug, Clone)]
struct Call {
    /// What was wanted, and the least. A repeated hold is told by its amounts, not by its key.
    asked: (i128, i128),
    held: i128,
    windows: Vec<WindowId>,
    lease_until: i64,
    checkpoint: (i128, String),
    state: State,
}

/// A payment, a refund or a correction, with what was moved.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Transfer {
    what: String,
    amount: i128,
    moved: i128,
}

/// What is spent and held of a window.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    spent: i128,
    held: i128,
}

/// The second account: sums, which may be as large as they like until an operation is over.
#[derive(Debug, Clone, Default)]
struct Sums {
    credit: i128,
    available: i128,
    held: i128,
    posted: i128,
    lost: i128,
    /// Payments, refunds and corrections.
    transfers: BTreeMap<String, Transfer>,
    calls: BTreeMap<String, Call>,
    limits: BTreeMap<(BudgetOwner, WindowKind), Option<i128>>,
    windows: BTreeMap<WindowId, Used>,
    lines: Vec<(i128, i128, String)>,
    /// Whether a sum was too large for an amount in the course of this operation.
    is_out_of_range: bool,
}

fn sum(amount: Money) -> i128 {
    amount.nano().into()
}

/// The amount of a sum that is in range.
fn money(sum: i128) -> Money {
    let nano = i64::try_from(sum).expect("in range");
    Money::from_nano(nano).expect("not negative")
}

impl Sums {
    /// Does something, or nothing at all if a sum comes out too large.
    fn attempt(&mut self, now: i64, act: impl FnOnce(&mut Sums, i64) -> Outcome) -> Outcome {
        let before = self.clone();
        let outcome = act(self, now);
        let all = [self.credit, self.available, self.held, self.posted, self.lost];
        if self.is_out_of_range || all.iter().any(|sum| i64::try_from(*sum).is_err()) {
            *self = before;
            return Outcome::OutOfRange;
        }
        outcome
    }

    fn apply(&mut self, op: &Operation, now: i64) -> Outcome {
        self.attempt(now, |sums, now| match op {
            Operation::Credit { tx, amount } => sums.pay(tx, sum(*amount)),
            Operation::Grant { .. } => unreachable!("sums know no lots"),
            Operation::Take { tx, amount, .. } => sums.take(tx, sum(*amount)),
            Operation::Correct { tx, request, amount, .. } => {
                sums.correct(tx, request, sum(*amount), now)
            }
            Operation::Hold { id, wanted, least, lease_ms, key, .. } => {
                let asked = (sum(*wanted), sum(*least));
                let lease_ms = i64::try_from(*lease_ms).expect("a short lease");
                sums.hold(id, asked, *key, now, lease_ms)
            }
            Operation::Extend { id, wanted } => sums.extend(id, sum(*wanted)),
            Operation::Renew { id, lease_ms } => {
                let until = now + i64::try_from(*lease_ms).expect("a short lease");
                sums.change_open(id, |call| call.lease_until = call.lease_until.max(until))
            }
            Operation::Checkpoint { id, charge, line } => sums.change_open(id, |call| {
                if call.checkpoint.0 < sum(*charge) {
                    call.checkpoint = (sum(*charge), line.clone());
                }
            }),
            Operation::Settle { id, charge, line, origin, .. } => {
                sums.settle(id, sum(*charge), line, *origin, now)
            }
            Operation::Void { id } => sums.void(id),
        })
    }

    /// What was moved before under an id; `Err` if the id was used for something else.
    fn moved(&self, tx: &str, what: &str, amount: i128) -> Result<Option<i128>, Outcome> {
        match self.transfers.get(tx) {
            None => Ok(None),
            Some(known) if known.what == what && known.amount == amount => Ok(Some(known.moved)),
            Some(_) => Err(Outcome::Conflict),
        }
    }

    fn note(&mut self, tx: &str, what: &str, amount: i128, moved: i128) {
        let transfer = Transfer { what: what.to_owned(), amount, moved };
        self.transfers.insert(tx.to_owned(), transfer);
    }

    fn pay(&mut self, tx: &str, amount: i128) -> Outcome {
        match self.moved(tx, "payment", amount) {
            Err(conflict) => return conflict,
            Ok(Some(_)) => return Outcome::AlreadyDone,
            Ok(None) => {}
        }
        self.note(tx, "payment", amount, amount);
        self.credit += amount;
        self.available += amount;
        Outcome::Done
    }

    fn take(&mut self, tx: &str, amount: i128) -> Outcome {
        let before = match self.moved(tx, "refund", amount) {
            Err(conflict) => return conflict,
            Ok(before) => before,
        };
        let taken = before.unwrap_or_else(|| amount.min(self.available));
        if before.is_none() {
            self.note(tx, "refund", amount, taken);
            self.credit -= taken;
            self.available -= taken;
        }
        Outcome::Taken { taken: money(taken), uncovered: money(amount - taken) }
    }

    fn correct(&mut self, tx: &str, request: &str, amount: i128, now: i64) -> Outcome {
        let what = format!("{request} correction");
        match self.moved(tx, &what, amount) {
            Err(conflict) => return conflict,
            Ok(Some(given)) => return Outcome::Corrected(money(given)),
            Ok(None) => {}
        }
        let is_of = |name: &str| name.split(' ').next() == Some(request);
        let own: Vec<_> = self.lines.iter().filter(|(_, _, name)| is_of(name)).cloned().collect();
        if own.is_empty() {
            return Outcome::UnknownCharge;
        }
        // The lines of corrections have minuses.
        let charged: i128 = own.iter().map(|(amount, ..)| amount).sum();
        let lost: i128 = own.iter().map(|(_, lost, _)| lost).sum();
        let given = amount.min(charged);
        let lost = lost.min(given);
        self.posted -= given;
        self.lost -= lost;
        self.available += given - lost;
        for window in self.calls.get(request).map(|call| call.windows.clone()).unwrap_or_default() {
            if window.end() > now {
                let used = self.windows.entry(window).or_default();
                used.spent = (used.spent - given).max(0);
            }
        }
        self.note(tx, &what, amount, given);
        self.lines.push((-given, -lost, what));
        Outcome::Corrected(money(given))
    }

    /// The windows in which a call counts that a key makes at a time, in order.
    fn windows_at(&self, key: Option<KeyId>, at: i64) -> Vec<WindowId> {
        let is_own = |owner: BudgetOwner| match owner {
            BudgetOwner::Account => true,
            BudgetOwner::Key(owner) => key == Some(owner),
        };
        let own = self.limits.keys().filter(|(owner, _)| is_own(*owner));
        own.map(|(owner, kind)| WindowId::at(*owner, *kind, at)).collect()
    }

    fn used(&self, window: WindowId) -> Used {
        self.windows.get(&window).copied().unwrap_or_default()
    }

    /// What a limit leaves of a window once nothing is held; `None` without a limit.
    fn unspent(&self, window: WindowId) -> Option<i128> {
        let limit = self.limits.get(&(window.owner, window.kind)).copied().flatten()?;
        Some((limit - self.used(window).spent).max(0))
    }

    fn room(&self, windows: &[WindowId]) -> i128 {
        let left = |id: &WindowId| Some((self.unspent(*id)? - self.used(*id).held).max(0));
        windows.iter().filter_map(left).fold(self.available, i128::min)
    }

    fn hold(
        &mut self,
        id: &str,
        asked: (i128, i128),
        key: Option<KeyId>,
        now: i64,
        lease_ms: i64,
    ) -> Outcome {
        if let Some(known) = self.calls.get(id) {
            return match known.state {
                State::Tombstone => Outcome::Tombstoned,
                _ if known.asked != asked => Outcome::Conflict,
                _ => {
                    let (held, open) = (money(known.held), known.state == State::Open);
                    Outcome::HoldExists { held, open }
                }
            };
        }
        let (wanted, least) = asked;
        let windows = self.windows_at(key, now);
        let room = self.room(&windows);
        if room < least {
            return self.refuse(&windows, least);
        }
        let held = wanted.min(room);
        let (lease_until, checkpoint, state) = (now + lease_ms, (0, String::new()), State::Open);
        let call = Call { asked, held: 0, windows, lease_until, checkpoint, state };
        self.calls.insert(id.to_owned(), call);
        self.move_to_hold(id, held);
        Outcome::Held(money(held))
    }

    fn refuse(&self, windows: &[WindowId], least: i128) -> Outcome {
        if self.available + self.held < least {
            return Outcome::Insufficient(money(self.available));
        }
        let mut named: Option<(WindowId, i128)> = None;
        for window in windows {
            let Some(left) = self.unspent(*window).filter(|left| *left < least) else { continue };
            if named.is_none_or(|(before, _)| before.end() <= window.end()) {
                named = Some((*window, left));
            }
        }
        match named {
            Some((window, left)) => Outcome::BudgetExceeded { window, left: money(left) },
            None if self.available < least => Outcome::Insufficient(money(self.available)),
            None => Outcome::BudgetInUse(money(self.room(windows))),
        }
    }

    /// Moves an amount from what is available into a hold; with a negative amount, back.
    fn move_to_hold(&mut self, id: &str, amount: i128) {
        let Some(call) = self.calls.get_mut(id) else { return };
        call.held += amount;
        self.available -= amount;
        self.held += amount;
        for window in &call.windows {
            self.windows.entry(*window).or_default().held += amount;
        }
    }

    fn extend(&mut self, id: &str, wanted: i128) -> Outcome {
        let open = self.calls.get(id).filter(|call| call.state == State::Open);
        let Some(Call { held, windows, .. }) = open else { return Outcome::HoldEnded };
        let more = (wanted - held).max(0).min(self.room(windows));
        let held = held + more;
        self.move_to_hold(id, more);
        Outcome::Held(money(held))
    }

    fn change_open(&mut self, id: &str, change: impl FnOnce(&mut Call)) -> Outcome {
        let open = self.calls.get_mut(id).filter(|call| call.state == State::Open);
        let Some(call) = open else { return Outcome::HoldEnded };
        change(call);
        Outcome::Done
    }

    /// Releases all that an open call holds. What the call is known by stays.
    fn release(&mut self, id: &str, state: State) {
        let held = self.calls.get(id).map_or(0, |call| call.held);
        self.move_to_hold(id, -held);
        if let Some(call) = self.calls.get_mut(id) {
            (call.held, call.state) = (held, state);
        }
    }

    /// Charges a call out of what is available. Returns what the account could not pay.
    fn charge(&mut self, id: &str, amount: i128, line: &str) -> i128 {
        let paid = amount.min(self.available);
        let lost = amount - paid;
        self.available -= paid;
        self.posted += amount;
        self.lost += lost;
        for window in self.calls.get(id).map(|call| call.windows.clone()).unwrap_or_default() {
            let used = self.windows.entry(window).or_default();
            used.spent += amount;
            self.is_out_of_range |= i64::try_from(used.spent + used.held).is_err();
        }
        self.lines.push((amount, lost, name_of(line)));
        lost
    }

    fn settle(
        &mut self,
        id: &str,
        charge: i128,
        line: &str,
        origin: Option<HoldRequest>,
        now: i64,
    ) -> Outcome {
        let recent = origin.filter(|origin| (now - origin.at).abs() < LOST_MS);
        if let (false, Some(origin)) = (self.calls.contains_key(id), recent) {
            let HoldRequest { wanted, least, at, key } = origin;
            let call = Call {
                asked: (sum(wanted), sum(least)),
                held: 0,
                windows: self.windows_at(key, at),
                lease_until: now,
                checkpoint: (0, String::new()),
                state: State::Expired(0),
            };
            self.calls.insert(id.to_owned(), call);
        }
        let Some(known) = self.calls.get(id) else { return Outcome::UnknownHold };
        let before = match known.state {
            State::Open => {
                self.release(id, State::Open);
                0
            }
            State::Expired(before) => before,
            State::Posted(amount) => return Outcome::AlreadyPosted(money(amount)),
            State::Voided | State::Tombstone => return Outcome::Voided,
        };
        let due = (charge - before).max(0);
        let lost = self.charge(id, due, line);
        if let Some(call) = self.calls.get_mut(id) {
            call.state = State::Posted(before + due);
        }
        Outcome::Posted { amount: money(before + due), written_off: money(lost) }
    }

    fn void(&mut self, id: &str) -> Outcome {
        match self.calls.get(id).map(|call| call.state.clone()) {
            None => {
                let call = Call {
                    asked: (0, 0),
                    held: 0,
                    windows: Vec::new(),
                    lease_until: 0,
                    checkpoint: (0, String::new()),
                    state: State::Tombstone,
                };
                self.calls.insert(id.to_owned(), call);
            }
            Some(State::Open) => self.release(id, State::Voided),
            Some(State::Expired(0)) => {
                if let Some(call) = self.calls.get_mut(id) {
                    call.state = State::Voided;
                }
            }
            Some(State::Voided | State::Tombstone) => {}
            Some(State::Posted(amount) | State::Expired(amount)) => {
                return Outcome::AlreadyPosted(money(amount));
            }
        }
        Outcome::Voided
    }

    fn expire(&mut self, now: i64) -> u64 {
        let is_due = |call: &Call| call.state == State::Open && call.lease_until <= now;
        let due = self.calls.iter().filter(|(_, call)| is_due(call));
        let mut due: Vec<_> = due.map(|(id, call)| (call.lease_until, id.clone())).collect();
        due.sort();
        let mut ended = 0;
        for (_, id) in due {
            let outcome = self.attempt(now, |sums, _| {
                let checkpoint = sums.calls.get(&id).map(|call| call.checkpoint.clone());
                let (charge, line) = checkpoint.unwrap_or_default();
                sums.release(&id, State::Expired(charge));
                if charge > 0 {
                    sums.charge(&id, charge, &line);
                }
                Outcome::Done
            });
            ended += u64::from(outcome == Outcome::Done);
        }
        ended
    }

    fn balances(&self) -> Balances {
        let sums = [self.credit, self.available, self.held, self.posted, self.lost];
        let [credit, available, held, posted, written_off] = sums.map(money);
        Balances { credit, available, held, posted, written_off }
    }

    /// The limits, and what is spent and held of the windows that run now.
    fn budgets(&self, now: i64) -> Vec<(WindowId, Option<i128>, i128, i128)> {
        let of_limit = |((owner, kind), limit): (&(BudgetOwner, WindowKind), &Option<i128>)| {
            let window = WindowId::at(*owner, *kind, now);
            let Used { spent, held } = self.used(window);
            (window, *limit, spent, held)
        };
        self.limits.iter().map(of_limit).collect()
    }
}

/// What a journal line is of.
fn name_of(line: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    match (line["name"].as_str(), line["corrects"].as_str()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(request)) => format!("{request} correction"),
        (None, None) => String::new(),
    }
}

fn told(budget: &BudgetUse) -> (WindowId, Option<i128>, i128, i128) {
    (budget.window, budget.limit.map(sum), sum(budget.used.spent), sum(budget.used.held))
}

fn amount() -> impl Strategy<Value = Money> {
    let nano = prop_oneof![20 => 0..=120i64, 1 => i64::MAX - 200..=i64::MAX];
    nano.prop_map(|nano| Money::from_nano(nano).expect("not negative"))
}

fn key() -> impl Strategy<Value = Option<KeyId>> {
    prop::option::of(prop::sample::select(vec![KeyId(1), KeyId(2)]))
}

fn operation() -> impl Strategy<Value = Event> {
    let id = || prop::sample::select(vec!["x", "y", "z", "v", "w"]).prop_map(str::to_owned);
    let tx = || prop::sample::select(vec!["x", "t1", "t2", "t3", "t4"]).prop_map(str::to_owned);
    let lease = || prop::sample::select(vec![1u64, 60_000, 3_600_000, 200_000_000]);
    let line = |id: &str, what: &str, charge: Money| {
        let name = format!("{id} {what} {}", charge.nano());
        serde_json::json!({ "request_id": id, "name": name }).to_string()
    };
    let ago = prop::sample::select(vec![0, HOUR_MS, 11 * HOUR_MS, LOST_MS - 1, LOST_MS, DAY_MS]);
    let origin = (amount(), amount(), ago, key());
    let op = prop_oneof![
        3 => (id(), amount()).prop_map(|(tx, amount)| Operation::Credit { tx, amount }),
        2 => (tx(), amount())
            .prop_map(|(tx, amount)| Operation::Take { tx, amount, reason: String::new() }),
        3 => (tx(), id(), amount()).prop_map(|(tx, request, amount)| {
            let found = (1..=100).collect();
            Operation::Correct { tx, request, found, amount, reason: String::new() }
        }),
        6 => (id(), amount(), amount(), lease(), key()).prop_map(
            |(id, wanted, least, lease_ms, key)| {
                Operation::Hold { id, wanted, least, lease_ms, key, rates: Vec::new() }
            }
        ),
        3 => (id(), amount()).prop_map(|(id, wanted)| Operation::Extend { id, wanted }),
        1 => (id(), lease()).prop_map(|(id, lease_ms)| Operation::Renew { id, lease_ms }),
        2 => (id(), amount()).prop_map(move |(id, charge)| {
            Operation::Checkpoint { line: line(&id, "so far", charge), id, charge }
        }),
        4 => (id(), amount(), prop::option::of(origin)).prop_map(move |(id, charge, origin)| {
            let origin = origin.map(|(wanted, least, ago, key)| {
                // The time is relative until the operation is done.
                HoldRequest { wanted, least, at: -ago, key }
            });
            let line = line(&id, "in all", charge);
            Operation::Settle { line, id, charge, origin, tokens: None }
        }),
        2 => id().prop_map(|id| Operation::Void { id }),
    ];
    op.prop_map(Event::Apply)
}

fn event() -> impl Strategy<Value = Event> {
    let owners = vec![BudgetOwner::Account, BudgetOwner::Key(KeyId(1)), BudgetOwner::Key(KeyId(2))];
    let owner = prop::sample::select(owners);
    let kind = prop::sample::select(WindowKind::ALL.to_vec());
    let budget = (owner, kind, prop::option::weighted(0.8, amount()))
        .prop_map(|(owner, kind, limit)| Event::SetBudget { owner, kind, limit });
    let pass = prop::sample::select(vec![2, MINUTE_MS, HOUR_MS - 1, HOUR_MS, DAY_MS, 31 * DAY_MS]);
    prop_oneof![
        10 => operation(),
        3 => budget,
        1 => Just(Event::Expire),
        2 => pass.prop_map(Event::Pass),
    ]
}

/// The operation as it is done at a moment.
fn at_time(op: &Operation, now: i64) -> Operation {
    let mut op = op.clone();
    if let Operation::Settle { origin: Some(origin), .. } = &mut op {
        origin.at += now;
    }
    op
}

/// A random script found that the sums told repeated holds by their key, too.
#[test]
fn a_hold_of_another_key_with_the_same_id_and_amounts_is_a_repeat() {
    let hold = |key| Operation::Hold {
        id: "x".to_owned(),
        wanted: money(60),
        least: money(50),
        lease_ms: 60_000,
        key,
        rates: Vec::new(),
    };
    let credit = Operation::Credit { tx: "t".to_owned(), amount: money(100) };
    let (mut account, mut sums) = (InMemoryAccount::default(), Sums::default());
    for op in [credit, hold(Some(KeyId(1))), hold(None)] {
        assert_eq!(account.apply(&op, START_MS), sums.apply(&op, START_MS), "{op:?}");
    }
    let repeated = Outcome::HoldExists { held: money(60), open: true };
    assert_eq!(account.apply(&hold(Some(KeyId(2))), START_MS), repeated);
}

#[test]
fn an_account_does_what_plain_sums_say() {
    let many = prop::collection::vec(event(), 1..=80);
    let bounds = bounds(500);
    proptest!(bounds, |(events in many)| {
        let (mut account, mut sums) = (InMemoryAccount::default(), Sums::default());
        let mut now = START_MS;
        for event in &events {
            match event {
                Event::Apply(op) => {
                    let op = at_time(op, now);
                    prop_assert_eq!(account.apply(&op, now), sums.apply(&op, now), "{:?}", op);
                }
                Event::SetBudget { owner, kind, limit } => {
                    account.set_budget(*owner, *kind, *limit, now);
                    sums.limits.insert((*owner, *kind), limit.map(sum));
                }
                Event::Expire => prop_assert_eq!(account.expire_holds(now), sums.expire(now)),
                Event::Pass(ms) => now += ms,
            }
            prop_assert_eq!(account.balances, sums.balances());
            let budgets = account.budgets(now);
            prop_assert_eq!(budgets.iter().map(told).collect::<Vec<_>>(), sums.budgets(now));
        }
        let lines = account.journal.iter();
        let sign = |l: &JournalEntry| if l.kind == EntryKind::Correction { -1 } else { 1 };
        let lines: Vec<_> = lines
            .map(|l| (sign(l) * sum(l.amount), sign(l) * sum(l.written_off), name_of(&l.line)))
            .collect();
        prop_assert_eq!(lines, sums.lines);
    });
}
