//! Of many equal calls exactly as many stand as the account, or a budget, can pay for, whoever
//! makes them, and nobody is told that there is nothing left while something free is lent.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::direct::DirectHoldRequest;
use tollgate::ledger::prepaid::local::LocalAllotment;
use tollgate::ledger::prepaid::local::holds::LocalAnswer;
use tollgate::ledger::prepaid::local::messages::AllotmentLoad;
use tollgate::ledger::prepaid::records::{AllotmentId, PrepaidAccount};
use tollgate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowKind};
use tollgate::money::{Money, MoneyError};

use super::invariants;
use super::machine::{Machine, Op, bounds};

/// The key of all calls.
const KEY: KeyId = KeyId(7);
/// The time between two messages of a gateway, in ms.
const ROUND_MS: i64 = 20;
/// So many rounds are enough for any of these crowds.
const ROUNDS_MAX: usize = 5_000;

/// What there is `affordable` calls of.
#[derive(Debug, Clone, Copy)]
enum Scarce {
    Balance,
    Budget(WindowKind),
    KeyBudget(WindowKind),
}

#[derive(Debug, Clone)]
struct Crowd {
    scarce: Scarce,
    gateways: usize,
    affordable: i64,
    extra: i64,
    quote: i64,
    /// How many calls come in a round, and how long each takes, in rounds.
    pace: usize,
    rounds: usize,
    salt: u64,
}

fn crowd() -> impl Strategy<Value = Crowd> {
    let kind = || prop::sample::select(vec![WindowKind::Hour, WindowKind::Day, WindowKind::Total]);
    let scarce = prop_oneof![
        2 => Just(Scarce::Balance),
        1 => kind().prop_map(Scarce::Budget),
        1 => kind().prop_map(Scarce::KeyBudget),
    ];
    let affordable = prop_oneof![1 => 0..=64i64, 2 => 65..=400i64];
    let shape = (1..=8usize, affordable, 1..=60i64, 1..=1_000i64);
    (scarce, shape, 1..=40usize, 1..=6usize, any::<u64>()).prop_map(
        |(scarce, (gateways, affordable, extra, quote), pace, rounds, salt)| Crowd {
            scarce,
            gateways,
            affordable,
            extra,
            quote,
            pace,
            rounds,
            salt,
        },
    )
}

struct Waiting {
    call: String,
    gateway: usize,
}

struct Running {
    waiting: Waiting,
    until: usize,
    is_local: bool,
}

/// What became of the calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CrowdResult {
    stood: i64,
    refused: i64,
    local: i64,
}

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).unwrap_or_default()
}

fn prepared<M: Machine>(mut machine: M, crowd: &Crowd) -> M {
    let scarce = crowd.affordable * crowd.quote + crowd.quote - 1;
    let plenty = 1_000 * 1_000 * crowd.quote;
    let (paid, limit) = match crowd.scarce {
        Scarce::Balance => (scarce, None),
        Scarce::Budget(kind) => (plenty, Some((BudgetOwner::Account, kind))),
        Scarce::KeyBudget(kind) => (plenty, Some((BudgetOwner::Key(KEY), kind))),
    };
    machine.apply(&Op::Pay { tx: "t".to_owned(), amount: nano(paid) }, 0);
    if let Some((owner, kind)) = limit {
        machine.apply(&Op::Budget { owner, kind, limit: Some(nano(scarce)) }, 0);
    }
    machine
}

/// A crowd at work.
struct CrowdRun<'a, M> {
    crowd: &'a Crowd,
    machine: M,
    gateways: Vec<LocalAllotment>,
    waiting: Vec<Waiting>,
    running: Vec<Running>,
    came: CrowdResult,
    left: i64,
    salt: u64,
    quote: Money,
    round: usize,
    now: i64,
}

fn broken(why: MoneyError) -> String {
    why.to_string()
}

impl<M: Machine> CrowdRun<'_, M> {
    fn arrive(&mut self) {
        let arriving = self.left.min(i64::try_from(self.crowd.pace).unwrap_or_default());
        for number in 0..arriving {
            let salted = self.salt.wrapping_mul(6_364_136_223_846_793_005);
            self.salt = salted.wrapping_add(1_442_695_040_888_963_407);
            let gateway =
                usize::try_from(self.salt >> 33).unwrap_or_default() % self.crowd.gateways;
            self.waiting.push(Waiting { call: format!("call{}", self.left - number), gateway });
        }
        self.left -= arriving;
    }

    fn end_due(&mut self) -> Result<(), String> {
        let is_due = |running: &Running| running.until <= self.round;
        let (ended, on) = std::mem::take(&mut self.running).into_iter().partition(is_due);
        let ended: Vec<Running> = ended;
        self.running = on;
        for Running { waiting: Waiting { call, gateway }, is_local, .. } in ended {
            if is_local {
                self.gateways[gateway].end(&call, self.quote, &call, None).map_err(broken)?;
            } else {
                let (id, charge) = (call.clone(), self.quote);
                let op = Op::Settle { id, charge, line: call, origin: None, tokens: None };
                self.machine.apply(&op, self.now);
            }
        }
        Ok(())
    }

    fn try_all(&mut self) -> Result<(), String> {
        for next in std::mem::take(&mut self.waiting) {
            let until = self.round + self.crowd.rounds;
            let local = &mut self.gateways[next.gateway];
            let answer =
                local.hold(&next.call, Some(KEY), self.quote, &[], self.now).map_err(broken)?;
            if matches!(answer, LocalAnswer::Held(_)) {
                (self.came.stood, self.came.local) = (self.came.stood + 1, self.came.local + 1);
                self.running.push(Running { waiting: next, until, is_local: true });
                continue;
            }
            let (id, wanted, least) = (next.call.clone(), self.quote, self.quote);
            let request = DirectHoldRequest {
                id,
                key: Some(KEY),
                wanted,
                least,
                rates: Vec::new(),
                lease_ms: 60_000,
            };
            match self.machine.apply(&Op::Hold(request), self.now) {
                LedgerAnswer::Held { .. } => {
                    self.came.stood += 1;
                    self.running.push(Running { waiting: next, until, is_local: false });
                }
                LedgerAnswer::Wait | LedgerAnswer::HeldElsewhere { .. } => self.waiting.push(next),
                LedgerAnswer::Insufficient { .. } | LedgerAnswer::BudgetExceeded { .. } => {
                    self.came.refused += 1;
                    let could = |local: &LocalAllotment| {
                        let answer =
                            local.clone().hold("another", Some(KEY), self.quote, &[], self.now);
                        matches!(answer, Ok(LocalAnswer::Held(_)))
                    };
                    if self.gateways.iter().any(could) {
                        return Err(format!("{} was refused while money is lent", next.call));
                    }
                }
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(())
    }

    fn update_all(&mut self, is_busy: bool) -> Result<(), String> {
        let quote = self.quote.nano();
        let free = nano(AllotmentLoad::free_for(quote * 20, quote));
        let free = if is_busy { free } else { Money::ZERO };
        let load = AllotmentLoad {
            free,
            quote: self.quote,
            keys: [(KEY, free)].into(),
            rates: BTreeMap::new(),
        };
        for local in &mut self.gateways {
            let update = local.next_update(&load, self.now).map_err(broken)?;
            let answer = self.machine.apply(&Op::Update(update), self.now);
            local.receive(&answer).map_err(broken)?;
        }
        invariants::check(self.machine.account(), self.now)
    }

    fn rest(&mut self) -> Result<CrowdResult, String> {
        self.update_all(false)?;
        let balances = self.machine.account().head.balances;
        let (posted, held) = (balances.posted.nano(), balances.held.nano());
        if (posted, held) == (self.came.stood * self.quote.nano(), 0) {
            return Ok(self.came);
        }
        Err(format!("{posted} is posted and {held} is held at the end: {:?}", self.came))
    }
}

fn run<M: Machine>(machine: M, crowd: &Crowd) -> Result<CrowdResult, String> {
    let new = |name| LocalAllotment::new(AllotmentId(format!("gateway{name}")), 60_000, 0);
    let mut run = CrowdRun {
        crowd,
        machine: prepared(machine, crowd),
        gateways: (0..crowd.gateways).map(new).collect(),
        waiting: Vec::new(),
        running: Vec::new(),
        came: CrowdResult::default(),
        left: crowd.affordable + crowd.extra,
        salt: crowd.salt,
        quote: nano(crowd.quote),
        round: 0,
        now: 0,
    };
    while run.round < ROUNDS_MAX {
        run.arrive();
        run.end_due()?;
        run.try_all()?;
        run.update_all(run.left > 0 || !run.waiting.is_empty())?;
        if run.left == 0 && run.waiting.is_empty() && run.running.is_empty() {
            return run.rest();
        }
        (run.round, run.now) = (run.round + 1, run.now + ROUND_MS);
    }
    Err(format!("{} calls wait for ever, {:?}", run.waiting.len(), run.came))
}

#[test]
fn exactly_as_many_calls_stand_as_can_be_paid_for() {
    let bounds = bounds(300);
    proptest!(bounds, |(crowd in crowd())| {
        let came = run(PrepaidAccount::default(), &crowd).map_err(TestCaseError::fail)?;
        prop_assert_eq!((came.stood, came.refused), (crowd.affordable, crowd.extra));
    });
}

#[test]
fn a_rich_crowd_is_served_out_of_allotments_and_a_poor_one_is_not() {
    let crowd = |affordable| Crowd {
        scarce: Scarce::Balance,
        gateways: 2,
        affordable,
        extra: 20,
        quote: 100,
        pace: 10,
        rounds: 2,
        salt: 1,
    };
    let came = |affordable| run(PrepaidAccount::default(), &crowd(affordable)).expect("a crowd");
    let (rich, poor) = (came(1_000), came(60));
    assert_eq!((rich.stood, rich.refused), (1_000, 20));
    assert!(rich.local > 700, "{rich:?}");
    assert_eq!(poor, CrowdResult { stood: 60, refused: 20, local: 0 });
}
