//! Two gateways and a store, and the laws that hold between them.

use std::collections::{BTreeMap, BTreeSet};

use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::direct::{DirectHoldOrigin, DirectHoldRequest};
use tollgate::ledger::prepaid::lending_rule::{QUOTES_MIN, lendable};
use tollgate::ledger::prepaid::local::LocalAllotment;
use tollgate::ledger::prepaid::local::holds::{LocalAnswer, LocalExtension, NumberedEnd};
use tollgate::ledger::prepaid::local::messages::AllotmentLoad;
use tollgate::ledger::prepaid::local::rates::RateLoad;
use tollgate::ledger::prepaid::lot::{CreditSource, LotId};
use tollgate::ledger::prepaid::rate::{RateAsk, RateId, RateKind, RateLimit};
use tollgate::ledger::prepaid::records::{
    AllotmentId, AllotmentState, CallEnd, KeyStatus, PrepaidAccount, RecordKind,
};
use tollgate::ledger::prepaid::refusal::RECALL_MS;
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind, WindowUse};
use tollgate::money::{Money, MoneyError};

use super::super::invariants;
use super::super::machine::{Machine, Op, step_of};
use super::Event;

/// The lease of allotments and holds, in ms.
const LEASE_MS: u64 = 60_000;
/// 70 s before an hour, a day and a month end.
const BEGIN: i64 = 1_796_083_200_000 - 70_000;

/// What becomes of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// It arrives, and so does its answer.
    Arrives,
    /// It is lost; a copy may come later.
    Lost,
    /// It arrives, and its answer is lost.
    AnswerLost,
    /// It arrives twice.
    Doubled,
}

/// An amount.
pub(crate) fn nano(amount: i64) -> Money {
    Money::from_nano(amount).unwrap_or_default()
}

/// The limits of the account, and the narrow ones of the key 2.
fn asks(key: u64, quote: Money) -> Vec<RateAsk> {
    let ask = |owner, kind, burst, amount| RateAsk {
        id: RateId { owner, kind, row: 0 },
        limit: RateLimit { per_minute: burst, burst },
        amount,
        is_shadow: false,
    };
    let mut asks = vec![
        ask(BudgetOwner::Account, RateKind::Requests, 2_000, 1),
        ask(BudgetOwner::Account, RateKind::Tokens, 9_000, quote.nano()),
        RateAsk {
            limit: RateLimit { per_minute: 0, burst: 400 },
            ..ask(BudgetOwner::Account, RateKind::Calls, 0, 1)
        },
    ];
    if key == 2 {
        asks.push(ask(BudgetOwner::Key(KeyId(key)), RateKind::Requests, 4, 1));
    }
    asks
}

/// A call uses as many tokens as it costs.
fn used_tokens(charge: Money) -> i64 {
    charge.nano()
}

fn broken(why: MoneyError) -> String {
    format!("a gateway's sums: {why}")
}

struct DirectCall {
    request: DirectHoldRequest,
    origin: DirectHoldOrigin,
    held: Money,
}

/// What a gateway does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHabit {
    /// It answers before the end of the call is in the outbox.
    ForgetsTheOutbox,
    /// Its successor tells the ends under another allotment.
    RenamesTheAllotment,
    /// Its successor begins to count anew.
    CountsAnew,
}

/// A line of an outbox: which allotment, when it was lent first, and the end.
type OutboxLine = (AllotmentId, i64, NumberedEnd);

struct Gateway {
    name: usize,
    runs: u64,
    local: LocalAllotment,
    /// Allotments that have expired, and whose calls run or are not told yet.
    old: Vec<LocalAllotment>,
    /// Open calls out of an allotment.
    calls: Vec<(String, Money)>,
    direct: Vec<DirectCall>,
    asleep_until: i64,
}

/// What is known of a call beside the store.
#[derive(Default)]
struct CallFacts {
    /// The charge of its end, once that is in an outbox.
    charge: Option<Money>,
    /// All costs that were noted while it ran.
    checkpoints: BTreeSet<Money>,
}

/// All of it.
pub(crate) struct World<M> {
    store: M,
    now: i64,
    gateways: Vec<Gateway>,
    outbox: Vec<OutboxLine>,
    /// Ends of direct holds, to be told again where the store lost them.
    direct_ends: Vec<(String, Option<Money>, DirectHoldOrigin)>,
    facts: BTreeMap<String, CallFacts>,
    late: Vec<AllotmentUpdate>,
    synced: PrepaidAccount,
    has_lost: bool,
    asked_more: bool,
    refused_since: BTreeMap<u64, i64>,
    serial: u64,
    /// What both gateways do wrong.
    pub(crate) habit: Option<BadHabit>,
    /// What has happened in this life, so that a test can tell that lives are not dull.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

/// What an answer is, in a word.
fn kind_of(answer: &LedgerAnswer) -> &'static str {
    match answer {
        LedgerAnswer::Held { .. } => "direct hold",
        LedgerAnswer::HeldInPart { .. } => "held in part",
        LedgerAnswer::Insufficient { .. } => "insufficient",
        LedgerAnswer::BudgetExceeded { .. } => "budget exceeded",
        LedgerAnswer::Wait => "wait",
        LedgerAnswer::HeldElsewhere { .. } => "held elsewhere",
        LedgerAnswer::RateLimited { .. } => "rate limited",
        LedgerAnswer::Suspended => "suspended",
        LedgerAnswer::KeyRefused => "key refused",
        LedgerAnswer::Posted { over_budget, .. } if *over_budget > Money::ZERO => "over budget",
        LedgerAnswer::Posted { written_off, .. } if *written_off > Money::ZERO => "written off",
        LedgerAnswer::Status(status) if status.tight => "tight",
        LedgerAnswer::Status(_) => "status",
        LedgerAnswer::MissingEnds { .. } => "missing ends",
        LedgerAnswer::AllotmentEnded { .. } => "allotment ended",
        LedgerAnswer::Taken { uncovered, .. } if *uncovered > Money::ZERO => "uncovered",
        LedgerAnswer::Taken { .. } => "taken",
        LedgerAnswer::Corrected { .. } => "corrected",
        _ => "other",
    }
}

impl<M: Machine> World<M> {
    pub(crate) fn new(store: M) -> World<M> {
        let synced = store.account().clone();
        let mut world = World {
            store,
            now: BEGIN,
            gateways: Vec::new(),
            outbox: Vec::new(),
            direct_ends: Vec::new(),
            facts: BTreeMap::new(),
            late: Vec::new(),
            synced,
            has_lost: false,
            asked_more: false,
            refused_since: BTreeMap::new(),
            serial: 0,
            habit: None,
            seen: BTreeMap::new(),
        };
        for name in 0..2 {
            let local = world.new_local(name, 0);
            let gateway = Gateway {
                name,
                runs: 0,
                local,
                old: Vec::new(),
                calls: Vec::new(),
                direct: Vec::new(),
                asleep_until: 0,
            };
            world.gateways.push(gateway);
        }
        world
    }

    /// Each gateway's clock is another one.
    fn clock(&self, gateway: usize) -> i64 {
        self.now - BEGIN + 1_000_000 * (i64::try_from(gateway).unwrap_or_default() + 1)
    }

    fn new_local(&self, gateway: usize, run: u64) -> LocalAllotment {
        let id = AllotmentId(format!("gateway{gateway}/{run}"));
        LocalAllotment::new(id, LEASE_MS, self.clock(gateway))
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn live(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Call { gateway, .. }
            | Event::End { gateway, .. }
            | Event::Void { gateway, .. }
            | Event::Extend { gateway, .. }
            | Event::Checkpoint { gateway, .. }
            | Event::Update { gateway, .. }
            | Event::Probe { gateway }
                if self.gateways[*gateway].asleep_until > self.now =>
            {
                Ok(())
            }
            Event::Call { gateway, key, quote } => self.call(*gateway, *key, nano(*quote)),
            Event::End { gateway, which, percent } => self.end(*gateway, *which, Some(*percent)),
            Event::Void { gateway, which } => self.end(*gateway, *which, None),
            Event::Extend { gateway, which, more } => self.extend(*gateway, *which, nano(*more)),
            Event::Checkpoint { gateway, which, percent } => {
                self.checkpoint(*gateway, *which, *percent)
            }
            Event::Update { gateway, fate, free } => self.update(*gateway, *fate, nano(*free)),
            Event::Deliver { which } => self.deliver(*which),
            Event::Probe { gateway } => {
                self.probe(*gateway);
                Ok(())
            }
            Event::Crash { gateway } => self.crash(*gateway),
            Event::Pause { gateway, ms } => {
                self.gateways[*gateway].asleep_until = self.now + ms;
                Ok(())
            }
            Event::Advance { ms } => {
                self.now += ms;
                Ok(())
            }
            Event::Sweep => self.sweep(),
            Event::Synced => {
                self.synced = self.store.account().clone();
                Ok(())
            }
            Event::Loss => self.lose(),
            _ => self.operate(event),
        }
    }

    /// Does an operation, and checks what must hold after it.
    fn apply(&mut self, op: &Op) -> Result<LedgerAnswer, String> {
        let before = self.store.account().clone();
        let answer = self.store.apply(op, self.now);
        self.check(&before, op)?;
        self.see(kind_of(&answer));
        Ok(answer)
    }

    fn check(&self, before: &PrepaidAccount, op: &Op) -> Result<(), String> {
        let after = self.store.account();
        invariants::check(after, self.now).map_err(|why| format!("{op:?}: {why}"))?;
        let mut again = after.clone();
        again.commit(step_of(after, op, self.now).changes);
        if again != *after {
            return Err(format!("{op:?} once more changes something"));
        }
        if matches!(op, Op::Budget { .. }) {
            let spent = |account: &PrepaidAccount, id| {
                account.windows.get(id).map_or(Money::ZERO, |used: &WindowUse| used.spent)
            };
            let is_kept = before.windows.keys().all(|id| spent(before, id) == spent(after, id));
            return if is_kept { Ok(()) } else { Err("a limit changed what was spent".to_owned()) };
        }
        for (id, used) in &after.windows {
            let limit = match id.owner {
                BudgetOwner::Account => after.head.budgets.get(&id.kind),
                BudgetOwner::Key(key) => after.keys.get(&key).and_then(|k| k.budgets.get(&id.kind)),
            };
            let Some(limit) = limit.copied().flatten() else { continue };
            let earlier = before.windows.get(id).copied().unwrap_or_default();
            let sum = |used: WindowUse| used.spent.nano() + used.held.nano();
            let has_grown = sum(*used) > sum(earlier) && used.held > earlier.held;
            if sum(*used) > limit.nano() && has_grown {
                return Err(format!("{op:?}: {id:?} holds more, above its limit: {used:?}"));
            }
        }
        Ok(())
    }

    /// What of the account all gateways together could use or give back.
    fn lent_free(&self) -> i64 {
        let account = self.store.account();
        let of = |gateway: &Gateway| {
            let allotment = account.allotments.get(gateway.local.id());
            let lasting = allotment.into_iter().flat_map(|a| a.drawn.iter());
            let lasting = lasting.filter(|(lot, _)| !lot.is_expired(self.now));
            let held: i64 = lasting.map(|(_, amount)| amount.nano()).sum();
            (held - gateway.local.used().nano()).max(0)
        };
        self.gateways.iter().map(of).sum()
    }

    fn call(&mut self, gateway: usize, key: u64, quote: Money) -> Result<(), String> {
        let call = format!("call{}", self.next_serial());
        let (clock, now) = (self.clock(gateway), self.now);
        let local = &mut self.gateways[gateway].local;
        let rates = asks(key, quote);
        let answer = local.hold(&call, Some(KeyId(key)), quote, &rates, clock).map_err(broken)?;
        if matches!(answer, LocalAnswer::Held(_)) {
            self.see("local hold");
            self.may_hold_locally(gateway, key)?;
            self.gateways[gateway].calls.push((call.clone(), quote));
            self.facts.insert(call, CallFacts::default());
            return self.check_local(gateway);
        }
        let (wanted, least) = (quote, quote);
        let request = DirectHoldRequest {
            id: call.clone(),
            key: Some(KeyId(key)),
            wanted,
            least,
            rates,
            lease_ms: LEASE_MS,
        };
        let lent_free = self.lent_free();
        match self.apply(&Op::Hold(request.clone()))? {
            LedgerAnswer::Held { held, windows, .. } => {
                let origin = DirectHoldOrigin { key: request.key, wanted, least, at: now, windows };
                self.gateways[gateway].direct.push(DirectCall { request, origin, held });
                self.facts.insert(call, CallFacts::default());
            }
            LedgerAnswer::Insufficient { available }
                if !self.has_lost && available.nano() + lent_free >= least.nano() =>
            {
                return Err(format!("no money is told of, and {lent_free} is lent and free"));
            }
            _ => {}
        }
        Ok(())
    }

    /// What must be true where a gateway has made a hold out of its allotment.
    fn may_hold_locally(&self, gateway: usize, key: u64) -> Result<(), String> {
        let account = self.store.account();
        let refused_since = [0, key].into_iter().filter_map(|of| self.refused_since.get(&of)).min();
        if refused_since.is_some_and(|since| self.now - since >= 1_000) {
            return Err(format!("a hold by the state of a second ago, key {key}"));
        }
        let allotment = account.allotments.get(self.gateways[gateway].local.id());
        if !self.has_lost && allotment.is_none_or(|a| a.state != AllotmentState::Open) {
            return Err("a hold out of an allotment that has ended".to_owned());
        }
        Ok(())
    }

    /// What a gateway uses must be held for it, and what it has free as well.
    fn check_local(&self, gateway: usize) -> Result<(), String> {
        let local = &self.gateways[gateway].local;
        let allotment = self.store.account().allotments.get(local.id());
        let is_blind = self.has_lost || self.asked_more || local.is_waiting() || local.has_ended();
        let Some(allotment) = allotment.filter(|a| a.state == AllotmentState::Open) else {
            return Ok(());
        };
        let held = allotment.drawn.total().unwrap_or_default().nano();
        let used = local.used().nano() + local.free(self.clock(gateway)).nano();
        let places = allotment.rates.iter().filter(|(id, _)| id.kind == RateKind::Calls);
        let places: i64 = places.map(|(_, slice)| slice).sum();
        let of = &self.gateways[gateway];
        let open = i64::try_from(of.calls.len()).unwrap_or_default();
        if !is_blind && of.old.is_empty() && open > places {
            return Err(format!("{open} calls are open in {places} places"));
        }
        for (window, used) in local.used_in() {
            let slice = allotment.slices.get(&window).copied().unwrap_or_default();
            if !is_blind && used > slice {
                return Err(format!("a gateway uses {used} of a slice of {slice} in {window:?}"));
            }
        }
        if !is_blind && used > held {
            return Err(format!("a gateway uses {used} of an allotment that holds {held}"));
        }
        Ok(())
    }

    fn end(&mut self, gateway: usize, which: usize, percent: Option<i64>) -> Result<(), String> {
        let of = &mut self.gateways[gateway];
        let count = of.calls.len() + of.direct.len();
        if count == 0 {
            return Ok(());
        }
        let which = which % count;
        if which >= of.calls.len() {
            let direct = of.direct.remove(which - of.calls.len());
            let charge = percent.map(|percent| nano(direct.held.nano() * percent / 100));
            return self.end_direct(&direct, charge);
        }
        let (call, held) = of.calls.remove(which);
        let charge = percent.map(|percent| nano(held.nano() * percent / 100));
        let is_here = |local: &&mut LocalAllotment| !local.is_settled();
        let mut all = std::iter::once(&mut of.local).chain(&mut of.old).filter(is_here);
        let ended = all.find_map(|local| {
            let end = match charge {
                Some(charge) => local.end(&call, charge, &call, Some(used_tokens(charge))),
                None => local.void(&call),
            };
            Some((local.id().clone(), local.lent_at(), end.transpose()?))
        });
        if let Some((id, lent_at, end)) = ended
            && self.habit != Some(BadHabit::ForgetsTheOutbox)
        {
            self.outbox.push((id, lent_at, end.map_err(broken)?));
        }
        if let Some(charge) = charge {
            self.facts.entry(call).or_default().charge = Some(charge);
        }
        self.check_local(gateway)
    }

    fn end_direct(&mut self, call: &DirectCall, charge: Option<Money>) -> Result<(), String> {
        let id = call.request.id.clone();
        self.direct_ends.push((id.clone(), charge, call.origin.clone()));
        let told = self.update_direct(&id, charge, call.origin.clone())?;
        match (charge, told) {
            (Some(charge), LedgerAnswer::Voided) => Err(format!("{charge} was not posted")),
            (Some(charge), _) => {
                self.facts.entry(id).or_default().charge = Some(charge);
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn update_direct(
        &mut self,
        id: &str,
        charge: Option<Money>,
        origin: DirectHoldOrigin,
    ) -> Result<LedgerAnswer, String> {
        let (id, line) = (id.to_owned(), id.to_owned());
        match charge {
            Some(charge) => self.apply(&Op::Settle {
                id,
                charge,
                line,
                origin: Some(origin),
                tokens: Some(used_tokens(charge)),
            }),
            None => self.apply(&Op::Void { id }),
        }
    }

    fn extend(&mut self, gateway: usize, which: usize, more: Money) -> Result<(), String> {
        let clock = self.clock(gateway);
        let of = &mut self.gateways[gateway];
        let count = of.calls.len() + of.direct.len();
        if count == 0 {
            return Ok(());
        }
        let which = which % count;
        if let Some((call, held)) = of.calls.get(which).cloned() {
            let wanted = held.checked_add(more).map_err(broken)?;
            match of.local.extend(&call, wanted, clock).map_err(broken)? {
                LocalExtension::Held(now_held) => {
                    of.calls[which].1 = now_held;
                    self.see("local extension");
                }
                LocalExtension::Ask => {
                    self.asked_more = true;
                    self.see("extension asked");
                }
                LocalExtension::Unknown => {}
            }
            return Ok(());
        }
        let at = which - of.calls.len();
        let (id, held) = (of.direct[at].request.id.clone(), of.direct[at].held);
        let wanted = held.checked_add(more).map_err(broken)?;
        let answer = self.apply(&Op::Extend { id, wanted })?;
        if let LedgerAnswer::Held { held, .. } | LedgerAnswer::HeldInPart { held } = answer {
            self.gateways[gateway].direct[at].held = held;
        }
        Ok(())
    }

    fn checkpoint(&mut self, gateway: usize, which: usize, percent: i64) -> Result<(), String> {
        let of = &mut self.gateways[gateway];
        let count = of.calls.len() + of.direct.len();
        if count == 0 {
            return Ok(());
        }
        let which = which % count;
        if let Some((call, held)) = of.calls.get(which).cloned() {
            let charge = nano(held.nano() * percent / 100);
            of.local.checkpoint(&call, charge, &call);
            self.facts.entry(call).or_default().checkpoints.insert(charge);
            return Ok(());
        }
        let direct = &of.direct[which - of.calls.len()];
        let (id, line) = (direct.request.id.clone(), direct.request.id.clone());
        let charge = nano(direct.held.nano() * percent / 100);
        self.facts.entry(id.clone()).or_default().checkpoints.insert(charge);
        self.apply(&Op::Checkpoint { id, charge, line }).map(drop)
    }

    fn load(free: Money) -> AllotmentLoad {
        let keys = (0..3).map(|key| (KeyId(key), free)).collect();
        let rates = asks(1, free).into_iter().map(|ask| {
            (ask.id, RateLoad { limit: ask.limit, free: 12 * ask.amount.max(1), unit: 1 })
        });
        AllotmentLoad { free, quote: nano(12), keys, rates: rates.collect() }
    }

    fn update(&mut self, gateway: usize, fate: Fate, free: Money) -> Result<(), String> {
        let clock = self.clock(gateway);
        let load = Self::load(free);
        let update = self.gateways[gateway].local.next_update(&load, clock).map_err(broken)?;
        match fate {
            Fate::Lost => self.late.push(update),
            Fate::AnswerLost => drop(self.send(&update)?),
            Fate::Arrives | Fate::Doubled => {
                let answer = self.send(&update)?;
                if matches!(fate, Fate::Doubled) {
                    let again = self.send(&update)?;
                    let is_same = !matches!(answer, LedgerAnswer::Status(_)) || again == answer;
                    if !is_same {
                        return Err(format!("{answer:?}, and again {again:?}"));
                    }
                    self.late.push(update.clone());
                }
                self.receive(gateway, &answer)?;
            }
        }
        self.update_old(gateway)
    }

    fn receive(&mut self, gateway: usize, answer: &LedgerAnswer) -> Result<(), String> {
        let of = &mut self.gateways[gateway];
        of.local.receive(answer).map_err(broken)?;
        if of.local.must_reload() {
            let id = of.local.id().clone();
            let lines = self.outbox.iter().filter(|(of, ..)| *of == id);
            let ends: BTreeMap<u64, CallEnd> =
                lines.map(|(_, _, line)| (line.seq, line.end.clone())).collect();
            of.local.reload(&ends).map_err(broken)?;
        }
        if of.local.has_ended() {
            of.runs += 1;
            let (name, runs) = (of.name, of.runs);
            let fresh = self.new_local(name, runs);
            let of = &mut self.gateways[gateway];
            of.old.push(std::mem::replace(&mut of.local, fresh));
        }
        self.check_local(gateway)
    }

    /// Tells the ends of allotments that have expired.
    fn update_old(&mut self, gateway: usize) -> Result<(), String> {
        let (mut old, clock) =
            (std::mem::take(&mut self.gateways[gateway].old), self.clock(gateway));
        for local in &mut old {
            let update = local.next_update(&Self::load(Money::ZERO), clock).map_err(broken)?;
            let answer = self.send(&update)?;
            local.receive(&answer).map_err(broken)?;
            if local.must_reload() {
                let lines = self.outbox.iter().filter(|(of, ..)| of == local.id());
                let ends: BTreeMap<u64, CallEnd> =
                    lines.map(|(_, _, line)| (line.seq, line.end.clone())).collect();
                local.reload(&ends).map_err(broken)?;
            }
        }
        self.gateways[gateway].old = old;
        Ok(())
    }

    fn send(&mut self, update: &AllotmentUpdate) -> Result<LedgerAnswer, String> {
        let before = self.store.account().allotments.get(&update.allotment).cloned();
        let is_new = before.is_none_or(|known| known.last_step < update.step);
        let answer = self.apply(&Op::Update(update.clone()))?;
        if let (LedgerAnswer::Status(status), Some(demand), true) =
            (&answer, &update.demand, is_new)
        {
            self.check_lent(status.free, demand)?;
        }
        Ok(answer)
    }

    /// No more than a quarter of what is above the floor may be free, except what was kept.
    fn check_lent(&self, free: Money, demand: &AllotmentDemand) -> Result<(), String> {
        let account = self.store.account();
        let kept = demand.kept.saturating_sub(demand.needed);
        let left = account.head.balances.available.nano() + free.nano();
        let lendable = lendable(nano(left), demand.quote, 0).unwrap_or_default();
        if free > kept && (free > lendable || left < demand.quote.nano() * QUOTES_MIN) {
            return Err(format!("{free} of {left} is lent, at most {lendable} may be"));
        }
        Ok(())
    }

    fn deliver(&mut self, which: usize) -> Result<(), String> {
        if self.late.is_empty() {
            return Ok(());
        }
        let update = self.late.remove(which % self.late.len());
        self.apply(&Op::Update(update)).map(drop)
    }

    fn probe(&mut self, gateway: usize) {
        let clock = self.clock(gateway);
        let head = &self.store.account().head;
        let (revision, is_recalled) = (head.revision, head.recall_until > self.now);
        self.gateways[gateway].local.observe(revision, is_recalled, clock);
    }

    /// A gateway dies, and its successor tells what is in the outbox.
    fn crash(&mut self, gateway: usize) -> Result<(), String> {
        let of = &mut self.gateways[gateway];
        of.runs += 1;
        (of.calls, of.direct, of.old) = (Vec::new(), Vec::new(), Vec::new());
        let (name, runs) = (of.name, of.runs);
        self.gateways[gateway].local = self.new_local(name, runs);
        self.gateways[gateway].asleep_until = 0;
        self.replay(gateway)
    }

    /// Tells all ends of the earlier runs of a gateway again.
    fn replay(&mut self, gateway: usize) -> Result<(), String> {
        let mut all: BTreeMap<AllotmentId, (i64, Vec<CallEnd>)> = BTreeMap::new();
        let of = &self.gateways[gateway];
        let lives =
            |id: &AllotmentId| of.local.id() == id || of.old.iter().any(|local| local.id() == id);
        let own = format!("gateway{gateway}/");
        for (id, lent_at, line) in self.outbox.iter().filter(|(id, ..)| id.0.starts_with(&own)) {
            if !lives(id) {
                let (_, ends) = all.entry(id.clone()).or_insert((*lent_at, Vec::new()));
                ends.push(line.end.clone());
            }
        }
        for (mut id, (lent_at, mut ends)) in all {
            match self.habit {
                Some(BadHabit::RenamesTheAllotment) => id.0.push('\''),
                Some(BadHabit::CountsAnew) => drop(ends.drain(..ends.len().min(1))),
                _ => {}
            }
            let first = ends.len() / 2;
            let (begin, rest) = (ends[..first].to_vec(), ends[first..].to_vec());
            let begin = AllotmentUpdate::replay(id.clone(), lent_at, 1, begin);
            let rest = AllotmentUpdate::replay(id, lent_at, 1 + first as u64, rest);
            self.apply(&Op::Update(begin))?;
            self.apply(&Op::Update(AllotmentUpdate { retires: true, ..rest }))?;
        }
        Ok(())
    }

    fn sweep(&mut self) -> Result<(), String> {
        let lines = self.store.account().journal.len();
        if self.store.sweep(self.now) > 0 {
            self.see("expiry");
        }
        if self.store.account().journal.len() > lines {
            self.see("expiry with a line");
        }
        invariants::check(self.store.account(), self.now)
    }

    /// The store loses all since it was synced; the gateways tell again what they know.
    fn lose(&mut self) -> Result<(), String> {
        *self.store.account_mut() = self.synced.clone();
        self.has_lost = true;
        let held: Vec<DirectHoldRequest> =
            self.gateways.iter().flat_map(|g| &g.direct).map(|d| d.request.clone()).collect();
        for request in held {
            self.apply(&Op::Hold(request))?;
        }
        for (id, charge, origin) in self.direct_ends.clone() {
            self.update_direct(&id, charge, origin)?;
        }
        (0..2).try_for_each(|gateway| self.replay(gateway))
    }

    fn operate(&mut self, event: &Event) -> Result<(), String> {
        let tx = format!("tx{}", self.next_serial());
        let op = match event {
            Event::Pay { amount } => Op::Pay { tx, amount: nano(*amount) },
            Event::Grant { amount, source, for_ms } => {
                let sources = [CreditSource::Promotion, CreditSource::Voucher, CreditSource::Paid];
                let source = sources[usize::from(*source) % 3];
                let lot = LotId { expires_at: self.now + for_ms, source };
                Op::Grant { tx, amount: nano(*amount), lot }
            }
            Event::Take { amount } => Op::Take { tx, amount: nano(*amount) },
            Event::Correct { which, amount } => {
                let calls: Vec<&String> = self.facts.keys().collect();
                let Some(call) = calls.get(which % calls.len().max(1)) else { return Ok(()) };
                Op::Correct { tx, request: (*call).clone(), amount: nano(*amount) }
            }
            Event::Budget { key, kind, limit } => {
                let owner = match key {
                    0 => BudgetOwner::Account,
                    key => BudgetOwner::Key(KeyId(*key)),
                };
                let kind = WindowKind::ALL[kind % WindowKind::ALL.len()];
                let limit = (*limit % 4 > 0).then(|| nano(*limit));
                Op::Budget { owner, kind, limit }
            }
            Event::Suspend { suspended } => {
                self.refuse(0, *suspended);
                Op::Suspend(*suspended)
            }
            Event::Disable { key, disabled } => {
                self.refuse(*key, *disabled);
                let status = if *disabled { KeyStatus::Disabled } else { KeyStatus::Active };
                Op::SetKey { key: KeyId(*key), status }
            }
            _ => return Ok(()),
        };
        let spent = self.promised();
        self.apply(&op)?;
        if matches!(op, Op::Take { .. }) && self.promised() != spent {
            return Err("a refund took credit that was not paid".to_owned());
        }
        // What an operator does is acknowledged after it is synced.
        self.synced = self.store.account().clone();
        Ok(())
    }

    /// What is left of credit that was not paid and does not expire now.
    fn promised(&self) -> i64 {
        let lots = self.store.account().head.lots.iter();
        let given =
            lots.filter(|(id, _)| id.source != CreditSource::Paid && !id.is_expired(self.now));
        given.map(|(_, lot)| lot.available.nano() + lot.held.nano()).sum()
    }

    fn refuse(&mut self, key: u64, is_refused: bool) {
        if is_refused {
            self.refused_since.entry(key).or_insert(self.now);
        } else {
            self.refused_since.remove(&key);
        }
    }

    /// Ends all calls, tells everything, lets leases run out, and checks what was charged.
    pub(crate) fn come_to_rest(&mut self) -> Result<(), String> {
        for gateway in 0..2 {
            self.gateways[gateway].asleep_until = 0;
            while self.gateways[gateway].calls.len() + self.gateways[gateway].direct.len() > 0 {
                self.end(gateway, 0, Some(50))?;
            }
            for _ in 0..6 {
                self.update(gateway, Fate::Arrives, Money::ZERO)?;
            }
            let of = &self.gateways[gateway];
            let is_settled = of.local.is_settled() && of.old.iter().all(LocalAllotment::is_settled);
            if !is_settled {
                return Err(format!("gateway {gateway} has not told all: {:?}", of.local));
            }
        }
        self.now += 2 * i64::try_from(LEASE_MS).unwrap_or_default() + RECALL_MS;
        self.sweep()?;
        for gateway in 0..2 {
            self.replay(gateway)?;
        }
        let account = self.store.account();
        if account.head.balances.held > Money::ZERO || account.head.lent_out > 0 {
            return Err(format!("something is held at rest: {:?}", account.head));
        }
        let is_held = |(_, used): &(&WindowId, &WindowUse)| used.held > Money::ZERO;
        if let Some(window) = account.windows.iter().find(is_held) {
            return Err(format!("something is held at rest: {window:?}"));
        }
        self.facts.iter().try_for_each(|(call, facts)| self.check_charge(call, facts))
    }

    /// A call that ended is charged once; one that did not is charged with a checkpoint or nothing.
    fn check_charge(&self, call: &str, facts: &CallFacts) -> Result<(), String> {
        let lines = self.store.account().journal.iter();
        let of_call = lines.filter(|l| l.request == call && l.kind == RecordKind::Charge);
        let charged: i64 = of_call.map(|line| line.amount.nano()).sum();
        let noted = facts.checkpoints.iter().map(|c| c.nano()).collect::<Vec<_>>();
        let is_right = match facts.charge {
            Some(charge) => {
                charged == charge.nano() || charged > charge.nano() && noted.contains(&charged)
            }
            None => charged == 0 || noted.contains(&charged),
        };
        let told = format!("{call} cost {:?}, {noted:?}, and was charged {charged}", facts.charge);
        if is_right { Ok(()) } else { Err(told) }
    }
}
