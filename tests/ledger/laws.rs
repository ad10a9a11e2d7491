//! What holds of an account after any operation whatever, on the pure machine.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tollgate::ledger::account::Balances;
use tollgate::ledger::in_memory::InMemoryAccount;
use tollgate::ledger::prepaid::rate::RATE_UNITS_MAX;
use tollgate::ledger::{
    BudgetOwner, BudgetUse, CreditSource, EntryKind, HoldRequest, JournalEntry, KeyId, LotId,
    OPEN_LOTS_MAX, OpenLot, Operation, Outcome, RateAsk, RateId, RateKind, RateLimit, WindowKind,
};
use tollgate::money::Money;

use super::script::{self, Action, LONG_MS, SHORT_MS, now};

/// Few ids, so that operations meet.
pub(crate) const IDS: [&str; 4] = ["w", "x", "y", "z"];

/// Few keys, for the same reason. One is too large for a double.
const KEYS: [KeyId; 2] = [KeyId(1), KeyId((1 << 62) + 1)];

/// Few rate limits, for the same reason.
const RATES: [RateId; 5] = [
    RateId { owner: BudgetOwner::Account, kind: RateKind::Requests, row: 0 },
    RateId { owner: BudgetOwner::Account, kind: RateKind::Tokens, row: 2 },
    RateId { owner: BudgetOwner::Account, kind: RateKind::Calls, row: 0 },
    RateId { owner: BudgetOwner::Key(KEYS[0]), kind: RateKind::Tokens, row: 0 },
    RateId { owner: BudgetOwner::Key(KEYS[1]), kind: RateKind::Calls, row: 1 },
];

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

/// The key of a call. It is always the same, since a store need not remember the key of a hold that
/// counts in no budget.
fn key_of(id: &str) -> Option<KeyId> {
    match id {
        "w" | "x" => Some(KEYS[0]),
        "y" => Some(KEYS[1]),
        _ => None,
    }
}

/// What a call asks of a limit, from the burst of that. No limit has a pace, since the clock of the
/// machine in memory is not that of the stores.
fn ask(id: RateId, burst: i64, tokens: i64, is_shadow: bool) -> RateAsk {
    let amount = if id.kind == RateKind::Tokens { tokens } else { 1 };
    RateAsk { id, limit: RateLimit { per_minute: 0, burst }, amount, is_shadow }
}

/// What a call asks of rate limits. Most ask nothing, so that money decides.
fn rates() -> impl Strategy<Value = Vec<RateAsk>> {
    let burst = prop::sample::select(vec![0, 1, 3, 40, 1_000, RATE_UNITS_MAX]);
    let parts = prop::collection::vec((burst, 0..=45i64, prop::bool::weighted(0.25)), 3);
    let ids = prop::sample::subsequence(RATES.to_vec(), 1..=3);
    let asks = (ids, parts).prop_map(|(ids, parts)| {
        let asked = ids.into_iter().zip(parts);
        let asks = asked.map(|(id, (burst, tokens, is_shadow))| ask(id, burst, tokens, is_shadow));
        asks.collect::<Vec<RateAsk>>()
    });
    prop_oneof![2 => Just(Vec::new()), 1 => asks]
}

/// A hold of nothing, whose answer shows what is in the bucket of each rate limit.
pub(crate) fn probe_of_rates() -> Operation {
    let (wanted, least) = (Money::ZERO, Money::ZERO);
    let rates = RATES.map(|id| ask(id, RATE_UNITS_MAX, 0, true)).into();
    let id = "probe".to_owned();
    Operation::Hold { id, wanted, least, lease_ms: LONG_MS, key: None, rates }
}

/// The same settlement of a call that has used so many tokens.
fn with_tokens(mut op: Operation, used: Option<i64>) -> Operation {
    if let Operation::Settle { tokens, .. } = &mut op {
        *tokens = used;
    }
    op
}

/// A lot, of few. None expires in the course of a test.
fn lot() -> impl Strategy<Value = LotId> {
    let source = prop::sample::select(CreditSource::ALL.to_vec());
    let expiry = prop::sample::select(script::EXPIRIES.to_vec());
    (source, expiry).prop_map(|(source, (_, expires_at))| LotId { expires_at, source })
}

fn operation() -> impl Strategy<Value = Operation> {
    let tokens = || prop::option::of(0..=60i64);
    prop_oneof![
        2 => (id(), amount()).prop_map(|(tx, amount)| Operation::Credit { tx, amount }),
        2 => (id(), amount(), lot())
            .prop_map(|(tx, amount, lot)| Operation::Grant { tx, amount, lot }),
        2 => (id(), amount()).prop_map(|(tx, amount)| {
            Operation::Take { tx, amount, reason: "a \"reason\"".to_owned() }
        }),
        3 => (id(), id(), amount())
            .prop_map(|(tx, request, amount)| script::correct(&tx, &request, amount)),
        5 => (id(), amount(), amount(), lease_ms(), rates()).prop_map(
            |(id, a, b, lease_ms, rates)| {
                let (key, wanted, least) = (key_of(&id), a.max(b), a.min(b));
                Operation::Hold { id, wanted, least, lease_ms, key, rates }
            }
        ),
        3 => (id(), amount()).prop_map(|(id, wanted)| Operation::Extend { id, wanted }),
        1 => (id(), lease_ms()).prop_map(|(id, lease_ms)| Operation::Renew { id, lease_ms }),
        2 => (id(), amount()).prop_map(|(id, charge)| script::checkpoint(&id, charge)),
        3 => (id(), amount(), tokens())
            .prop_map(|(id, charge, used)| with_tokens(script::settle(&id, charge), used)),
        2 => (id(), amount(), amount(), amount(), tokens()).prop_map(|(id, charge, a, b, used)| {
            let (wanted, least) = (a.max(b), a.min(b));
            let origin = HoldRequest { wanted, least, at: now(), key: key_of(&id) };
            with_tokens(script::settle_even_if_lost(&id, charge, origin), used)
        }),
        2 => id().prop_map(|id| Operation::Void { id }),
    ]
}

fn budget() -> impl Strategy<Value = Action> {
    let owners = [BudgetOwner::Account, BudgetOwner::Key(KEYS[0]), BudgetOwner::Key(KEYS[1])];
    let owner = prop::sample::select(owners.to_vec());
    let kind = prop::sample::select(WindowKind::ALL.to_vec());
    (owner, kind, prop::option::weighted(0.8, amount()))
        .prop_map(|(owner, kind, limit)| Action::SetBudget { owner, kind, limit })
}

/// Anything that can be done to an account.
pub(crate) fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => operation().prop_map(Action::Apply),
        2 => budget(),
        1 => Just(Action::Expire),
    ]
}

/// What a journal says was posted and written off.
fn replayed(journal: &[JournalEntry]) -> (i128, i128) {
    let sum = |part: fn(&JournalEntry) -> Money| journal.iter().map(|e| signed(e, part(e))).sum();
    (sum(|e| e.amount), sum(|e| e.written_off))
}

/// An amount of an entry as it changes the balances.
fn signed(entry: &JournalEntry, amount: Money) -> i128 {
    let nano = i128::from(amount.nano());
    match entry.kind {
        EntryKind::Charge => nano,
        EntryKind::Correction => -nano,
        EntryKind::Expiry => 0,
    }
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
pub(crate) struct Asked(BTreeSet<(String, Money, Money, Option<KeyId>)>);

impl Asked {
    /// Notes the hold that an operation asks for, if it asks for one.
    pub(crate) fn note(&mut self, op: &Operation) {
        if let Operation::Hold { id, wanted, least, key, .. } = op {
            self.0.insert((id.clone(), *wanted, *least, *key));
        }
    }

    /// All of them once more. Of those with one id one is the one that was made, if any was; on a
    /// copy of an account this tells what it holds.
    pub(crate) fn again(&self) -> impl Iterator<Item = Operation> {
        self.0.iter().cloned().map(|(id, wanted, least, key)| Operation::Hold {
            id,
            wanted,
            least,
            lease_ms: LONG_MS,
            key,
            rates: Vec::new(),
        })
    }
}

/// Returns what an operation has added to C: what came in, or less than nothing for what went back.
/// A refund that comes again has taken nothing more.
fn added(op: &Operation, answer: &Outcome, taken: &mut BTreeSet<String>) -> i128 {
    match (op, answer) {
        (Operation::Credit { amount, .. } | Operation::Grant { amount, .. }, Outcome::Done) => {
            amount.nano().into()
        }
        (Operation::Take { tx, .. }, Outcome::Taken { taken: sum, .. })
            if taken.insert(tx.clone()) =>
        {
            -i128::from(sum.nano())
        }
        _ => 0,
    }
}

/// That C is what came in and neither went back nor has expired, and that the lots are parts of the
/// balances.
fn lots_add_up(account: &InMemoryAccount, transferred: i128) -> Result<(), TestCaseError> {
    let expired = account.journal.iter().filter(|entry| entry.kind == EntryKind::Expiry);
    let expired: i128 = expired.map(|entry| i128::from(entry.amount.nano())).sum();
    prop_assert_eq!(i128::from(account.balances.credit.nano()), transferred - expired);
    let sum = |part: fn(&OpenLot) -> Money| -> i128 {
        account.lots().map(|lot| i128::from(part(&lot).nano())).sum()
    };
    prop_assert!(sum(|lot| lot.lot.available) <= account.balances.available.nano().into());
    prop_assert!(sum(|lot| lot.lot.held) <= account.balances.held.nano().into());
    prop_assert!(account.lots().count() < OPEN_LOTS_MAX, "a place is kept for payments");
    Ok(())
}

/// What each open hold holds.
fn open_holds(account: &InMemoryAccount, asked: &Asked, now: i64) -> BTreeMap<String, i128> {
    let mut open = BTreeMap::new();
    for op in asked.again() {
        let told = account.clone().apply(&op, now);
        if let (Operation::Hold { id, .. }, Outcome::HoldExists { held, open: true }) = (op, told) {
            open.insert(id, held.nano().into());
        }
    }
    open
}

/// A budget, by its owner and how long its windows are.
type Budget = (BudgetOwner, WindowKind);

/// In which budgets each hold counts: those that there were when it was made, or when its charge
/// came and it was lost.
#[derive(Debug, Default)]
struct Counted(BTreeMap<String, BTreeSet<Budget>>);

impl Counted {
    /// Notes the budgets of a hold that an operation makes, out of those that there were before it.
    fn note(&mut self, op: &Operation, answer: &Outcome, before: &[BudgetUse]) {
        let (id, key) = match (op, answer) {
            (
                Operation::Hold { id, key, .. },
                Outcome::Held(_) | Outcome::HeldWithinRates { .. },
            ) => (id, *key),
            (Operation::Settle { id, origin: Some(origin), .. }, Outcome::Posted { .. }) => {
                (id, origin.key)
            }
            _ => return,
        };
        let is_own = |budget: &&BudgetUse| match budget.owner {
            BudgetOwner::Account => true,
            BudgetOwner::Key(owner) => key == Some(owner),
        };
        let own = before.iter().filter(is_own).map(|budget| (budget.owner, budget.kind));
        self.0.entry(id.clone()).or_insert_with(|| own.collect());
    }

    fn counts_in(&self, id: &str, budget: Budget) -> bool {
        self.0.get(id).is_some_and(|budgets| budgets.contains(&budget))
    }

    /// What is left for a hold: the least of all its budgets.
    fn left(&self, id: &str, budgets: &[BudgetUse]) -> Option<Money> {
        let own = budgets.iter().filter(|budget| self.counts_in(id, (budget.owner, budget.kind)));
        own.map(|budget| budget.used.left(budget.limit)).min()
    }
}

/// That each budget says of what is held what the open holds say that count in it, and of what is
/// spent what the lines of such calls say.
fn budgets_add_up(
    account: &InMemoryAccount,
    budgets: &[BudgetUse],
    open: &BTreeMap<String, i128>,
    counted: &Counted,
) -> Result<(), TestCaseError> {
    for budget in budgets {
        let name = (budget.owner, budget.kind);
        let of_it = |(id, _): &(&String, &i128)| counted.counts_in(id, name);
        let held: i128 = open.iter().filter(of_it).map(|(_, held)| held).sum();
        prop_assert_eq!(i128::from(budget.used.held.nano()), held, "held in {:?}", name);
        let is_of = |line: &JournalEntry, id: &str| {
            let name = script::line_name(&line.line);
            name.strip_prefix(id).is_some_and(|rest| rest.starts_with(['.', '!']))
        };
        let own = IDS.into_iter().filter(|id| counted.counts_in(id, name));
        let charged = |id: &str| {
            let lines = account.journal.iter().filter(|line| is_of(line, id));
            lines.map(|line| signed(line, line.amount)).sum::<i128>()
        };
        let spent: i128 = own.map(charged).sum();
        prop_assert_eq!(i128::from(budget.used.spent.nano()), spent, "spent in {:?}", name);
        prop_assert_eq!(budget.used.lent, Money::ZERO, "lent by nobody");
    }
    Ok(())
}

/// That no hold and no extension takes what is spent and held over a limit, that what is spent
/// never falls, and that nothing else touches a budget but what is about a hold in it.
fn limits_hold(
    op: Option<&Operation>,
    before: &[BudgetUse],
    after: &[BudgetUse],
) -> Result<(), TestCaseError> {
    let sum = |b: &BudgetUse| i128::from(b.used.spent.nano()) + i128::from(b.used.held.nano());
    for budget in after {
        let is_same = |b: &&BudgetUse| b.window == budget.window;
        let Some(earlier) = before.iter().find(is_same) else {
            prop_assert_eq!(budget.used.held, Money::ZERO, "{:?} is new", budget);
            continue;
        };
        let may_fall = matches!(op, Some(Operation::Correct { .. }));
        let falls = budget.used.spent < earlier.used.spent;
        prop_assert!(may_fall || !falls, "{budget:?} was {earlier:?}");
        match op {
            Some(Operation::Correct { .. }) => {
                prop_assert!(budget.used.spent <= earlier.used.spent, "{budget:?}");
                prop_assert_eq!(budget.used.held, earlier.used.held);
            }
            Some(Operation::Hold { .. } | Operation::Extend { .. }) => {
                let limit = budget.limit.map_or(i128::MAX, |limit| limit.nano().into());
                let may_be = sum(budget) <= limit || sum(budget) == sum(earlier);
                prop_assert!(may_be, "{earlier:?} became {budget:?}");
                prop_assert_eq!(budget.used.spent, earlier.used.spent);
            }
            Some(Operation::Settle { .. } | Operation::Void { .. }) => {
                prop_assert!(budget.used.held <= earlier.used.held, "{budget:?}");
            }
            Some(_) => prop_assert_eq!(budget, earlier),
            None => {}
        }
    }
    Ok(())
}

/// That what is told of a hold is what its lines in the journal say.
fn each_is_charged_as_told(account: &InMemoryAccount, now: i64) -> Result<(), TestCaseError> {
    for id in IDS {
        let of_it = |line: &str| script::line_name(line).starts_with(&format!("{id}."));
        let lines: Vec<&JournalEntry> = account.journal.iter().filter(|e| of_it(&e.line)).collect();
        let settled =
            lines.iter().filter(|e| script::line_name(&e.line).contains(".settle.")).count();
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

/// When this hour began, in unix ms.
fn hour() -> i64 {
    WindowKind::Hour.start_at(now())
}

#[test]
fn long_random_scripts_keep_the_pure_machine_sound() {
    let many = prop::collection::vec(action(), 1..=200);
    let bounds =
        ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(bounds, |(actions in many)| {
        let (mut account, mut asked) = (InMemoryAccount::default(), Asked::default());
        let (mut counted, mut transferred) = (Counted::default(), 0);
        let mut taken = BTreeSet::new();
        for (now, action) in (hour()..).step_by(2).zip(&actions) {
            let before = account.budgets(now);
            match action {
                Action::Apply(op) => {
                    let answer = account.apply(op, now);
                    let budgets = account.budgets(now);
                    transferred += added(op, &answer, &mut taken);
                    asked.note(op);
                    counted.note(op, &answer, &before);
                    limits_hold(Some(op), &before, &budgets)?;
                    keeps_the_law(op, &answer, account.balances, &budgets, &counted)?;
                }
                Action::SetBudget { owner, kind, limit } => {
                    account.set_budget(*owner, *kind, *limit, now);
                    changes_one_limit(&before, &account.budgets(now), (*owner, *kind), *limit)?;
                }
                _ => {
                    account.expire_holds(now);
                    limits_hold(None, &before, &account.budgets(now))?;
                }
            }
            sound(account.balances, &account.journal)?;
            lots_add_up(&account, transferred)?;
            let open = open_holds(&account, &asked, now);
            let held = i128::from(account.balances.held.nano());
            prop_assert_eq!(held, open.values().sum::<i128>(), "H is not what is open");
            budgets_add_up(&account, &account.clone().budgets(now), &open, &counted)?;
            each_is_charged_as_told(&account, now)?;
        }
    });
}

/// That a new limit changes the one budget that it is about, and resets nothing.
fn changes_one_limit(
    before: &[BudgetUse],
    after: &[BudgetUse],
    changed: Budget,
    limit: Option<Money>,
) -> Result<(), TestCaseError> {
    let is_it = |b: &BudgetUse| (b.owner, b.kind) == changed;
    let rest = |all: &[BudgetUse]| all.iter().copied().filter(|b| !is_it(b)).collect::<Vec<_>>();
    prop_assert_eq!(rest(before), rest(after), "other budgets changed");
    let used = |all: &[BudgetUse]| all.iter().copied().find(is_it).map(|b| (b.limit, b.used));
    let (_, earlier) = used(before).unwrap_or_default();
    prop_assert_eq!(used(after), Some((limit, earlier)), "it was reset");
    Ok(())
}

/// What an answer must be to its operation, whatever came before.
fn keeps_the_law(
    op: &Operation,
    answer: &Outcome,
    after: Balances,
    budgets: &[BudgetUse],
    counted: &Counted,
) -> Result<(), TestCaseError> {
    let is_all_taken =
        |id: &str| after.available == Money::ZERO || counted.left(id, budgets) == Some(Money::ZERO);
    match (op, answer) {
        (
            Operation::Hold { id, wanted, least, .. },
            Outcome::Held(held) | Outcome::HeldWithinRates { held, .. },
        ) => {
            prop_assert!(held <= wanted && held >= least.min(wanted));
            let all = held == wanted || is_all_taken(id);
            prop_assert!(all, "less is held than was wanted and is there");
        }
        (Operation::Hold { least, .. }, Outcome::BudgetExceeded { window, left }) => {
            let named = budgets.iter().find(|budget| budget.window == *window);
            let told = named.and_then(|b| Some(b.limit?.saturating_sub(b.used.spent)));
            prop_assert_eq!(told, Some(*left), "{:?} has something else left", window);
            prop_assert!(left < least, "{window:?} is not exceeded");
        }
        (Operation::Hold { least, .. }, Outcome::BudgetInUse(room)) => {
            prop_assert!(room < least && *least <= after.available);
        }
        (Operation::Extend { id, wanted, .. }, Outcome::Held(held)) => {
            let all = held >= wanted || is_all_taken(id);
            prop_assert!(all, "an extension left what it wanted");
        }
        (Operation::Take { amount, .. }, Outcome::Taken { taken, uncovered }) => {
            let sum = i128::from(taken.nano()) + i128::from(uncovered.nano());
            prop_assert_eq!(sum, i128::from(amount.nano()), "a part is forgotten");
        }
        (Operation::Correct { amount, .. }, Outcome::Corrected(given)) => {
            prop_assert!(given <= amount, "more is given back than was asked for");
        }
        (Operation::Take { .. } | Operation::Correct { .. }, other) => {
            let is_refusal = matches!(
                other,
                Outcome::Conflict
                    | Outcome::UnknownCharge
                    | Outcome::TooManyLots
                    | Outcome::OutOfRange
            );
            prop_assert!(is_refusal, "{op:?}: {other:?}");
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
        for (now, action) in (hour()..).step_by(2).zip(&actions) {
            let op = match action {
                Action::Apply(op) => op,
                Action::SetBudget { owner, kind, limit } => {
                    account.set_budget(*owner, *kind, *limit, now);
                    let before = account.budgets(now);
                    account.set_budget(*owner, *kind, *limit, now);
                    prop_assert_eq!(before, account.budgets(now));
                    continue;
                }
                _ => {
                    account.expire_holds(now);
                    continue;
                }
            };
            let first = account.apply(op, now);
            let books = |account: &mut InMemoryAccount| {
                (account.balances, account.journal.len(), account.budgets(now))
            };
            let before = books(&mut account);
            let again = account.apply(op, now);
            prop_assert_eq!(before, books(&mut account));
            let fits = match (&first, &again) {
                (Outcome::Done, Outcome::AlreadyDone) => {
                    matches!(op, Operation::Credit { .. } | Operation::Grant { .. })
                }
                (
                    Outcome::Held(held) | Outcome::HeldWithinRates { held, .. },
                    Outcome::HoldExists { held: same, open: true },
                ) => held == same,
                (Outcome::Posted { amount, .. }, Outcome::AlreadyPosted(same)) => amount == same,
                _ => first == again,
            };
            prop_assert!(fits, "{first:?}, and again {again:?}");
        }
    });
}
