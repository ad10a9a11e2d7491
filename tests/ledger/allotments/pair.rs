//! A store, and the pure machine beside it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use tollgate::ledger::account::Balances;
use tollgate::ledger::open_hold::list_open_holds;
use tollgate::ledger::prepaid::allotment::{expire_allotment, update_allotment};
use tollgate::ledger::prepaid::answer::{AccountStep, LedgerAnswer};
use tollgate::ledger::prepaid::direct;
use tollgate::ledger::prepaid::local::LocalAllotment;
use tollgate::ledger::prepaid::local::holds::{LocalAnswer, NumberedEnd};
use tollgate::ledger::prepaid::local::messages::AllotmentLoad;
use tollgate::ledger::prepaid::local::rates::RateLoad;
use tollgate::ledger::prepaid::operations::{AppliedOperation, apply_operation, budget_uses};
use tollgate::ledger::prepaid::records::{
    Allotment, AllotmentId, CallEnd, DirectHold, DirectHoldState, JournalRecord, PrepaidAccount,
    RecordKind,
};
use tollgate::ledger::prepaid::settings;
use tollgate::ledger::prepaid::update::AllotmentUpdate;
use tollgate::ledger::prepaid::window::WindowUse;
use tollgate::ledger::{
    AccountName, BudgetOwner, KeyId, OpenHold, OpenHoldKind, Operation, Outcome, RateAsk, RateId,
    RateKind, RateLimit, WindowKind,
};
use tollgate::money::Money;

use super::super::script::{LONG_MS, now as unix_ms};
use super::events::{Event, GATEWAYS, KEYS};
use super::lending_stores::LendingStore;

/// The clocks of the store and of the pure machine are read this close to each other, in ms.
const APART_MAX_MS: i64 = 5_000;
/// Buckets count units in the ms of a minute.
const MINUTE_MS: i64 = 60_000;
/// Nothing is done so shortly before the end of a recall, in ms.
const RECALL_END_MS: i64 = 200;

pub(super) fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

/// The journal line of a call.
fn call_line(call: &str, what: &str) -> String {
    format!(r#"{{"request_id":"{call}","what":"{what}"}}"#)
}

/// A journal line without the time of a correction, which the store reads a little later, and
/// without its key, which the lines of these charges do not tell the store.
fn without_time(line: &str) -> String {
    let Ok(mut line) = serde_json::from_str::<serde_json::Value>(line) else {
        return line.to_owned();
    };
    if line.get("corrects").is_some() {
        line["at"] = 0.into();
        line["key_id"] = 0.into();
    }
    line.to_string()
}

/// An amount of a line as it changes what is posted.
fn signed(line: &JournalRecord) -> i64 {
    let nano = line.amount.nano();
    if matches!(line.kind, RecordKind::Correction(_)) { -nano } else { nano }
}

/// A gateway, with what its log of ends has.
pub(super) struct Gateway {
    pub(super) local: LocalAllotment,
    log: BTreeMap<u64, CallEnd>,
    pub(super) open: Vec<String>,
}

/// An account of a store, and the pure machine beside it.
pub(super) struct Pair<'s> {
    store: &'s dyn LendingStore,
    pub(super) account: AccountName,
    factor: i64,
    /// The burst of all rate limits; 0 if there are none.
    pub(super) burst: i64,
    pure: PrepaidAccount,
    pub(super) gateways: Vec<Gateway>,
    made: u32,
    last_refund: Option<Operation>,
    /// The charges of calls, which must be posted in the end; `None` for one that was voided
    /// elsewhere.
    charges: BTreeMap<String, Option<Money>>,
    /// What calls have cost so far, in units of the factor.
    costs: BTreeMap<String, i64>,
}

impl<'s> Pair<'s> {
    /// Opens an account, in which all amounts of events are multiplied by `factor`.
    pub(super) async fn new(
        store: &'s dyn LendingStore,
        account: AccountName,
        factor: i64,
    ) -> Pair<'s> {
        assert_eq!(store.ledger().open_account(&account).await, Ok(true));
        let (pure, gateways, charges, costs) = Default::default();
        let (burst, made, last_refund) = (0, 0, None);
        let mut pair = Pair {
            store,
            account,
            factor,
            burst,
            pure,
            gateways,
            made,
            last_refund,
            charges,
            costs,
        };
        pair.gateways = (0..GATEWAYS).map(|_| pair.gateway()).collect();
        pair
    }

    fn gateway(&mut self) -> Gateway {
        self.made += 1;
        let id = AllotmentId(format!("allotment_run{}-1", self.made));
        let local = LocalAllotment::new(id, LONG_MS, unix_ms());
        Gateway { local, log: BTreeMap::new(), open: Vec::new() }
    }

    /// An amount of an event.
    fn money(&self, amount: i64) -> Money {
        nano(amount * self.factor)
    }

    /// What a call asks of rate limits. None has a pace, since the store and the pure machine look
    /// at the clock one after the other.
    fn asks(&self, key: Option<KeyId>, tokens: i64) -> Vec<RateAsk> {
        if self.burst == 0 {
            return Vec::new();
        }
        let limit = RateLimit { per_minute: 0, burst: self.burst };
        let (account, own) = (BudgetOwner::Account, key.map(BudgetOwner::Key));
        let own = own.unwrap_or(account);
        let parts = [
            (account, RateKind::Requests, 1),
            (account, RateKind::Tokens, tokens),
            (own, RateKind::Calls, 1),
        ];
        let ask = |(owner, kind, amount)| {
            let is_shadow = kind == RateKind::Tokens && key.is_some();
            RateAsk { id: RateId { owner, kind, row: 0 }, limit, amount, is_shadow }
        };
        parts.map(ask).into()
    }

    /// What should be free of rate limits.
    fn rate_loads(&self, free: i64) -> BTreeMap<RateId, RateLoad> {
        let keys = [None, Some(KEYS[0]), Some(KEYS[1])];
        let asks = keys.into_iter().flat_map(|key| self.asks(key, 1));
        asks.map(|ask| (ask.id, RateLoad { limit: ask.limit, free, unit: 1 })).collect()
    }

    /// Whether money is called back is a matter of the moment: no operation is done close to it.
    async fn settle_recall(&self) {
        let is_close = |left: i64| (0..RECALL_END_MS).contains(&left);
        while is_close(self.pure.head.recall_until.saturating_sub(unix_ms())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Takes the end of a recall over from the store, which looked at the clock a little later, and
    /// may let a recall of a moment ago do.
    fn adopt_recall(&mut self, before: i64) {
        let until = &mut self.pure.head.recall_until;
        if *until != before {
            let stored = self.store.recall_until(&self.account);
            assert!((stored - *until).abs() < APART_MAX_MS, "{stored} is not {until}");
            *until = stored;
        }
    }

    fn commit(&mut self, AccountStep { answer, changes }: AccountStep) -> LedgerAnswer {
        self.pure.commit(changes);
        answer
    }

    /// Does an operation on both.
    pub(super) async fn submit(&mut self, op: Operation) -> Outcome {
        self.settle_recall().await;
        let recall_until = self.pure.head.recall_until;
        let AppliedOperation { outcome: expected, changes } =
            apply_operation(&self.pure, &op, unix_ms());
        self.pure.commit(changes);
        let outcome = self.store.ledger().submit(&self.account, op.clone()).await;
        assert_eq!(outcome.as_ref(), Ok(&expected), "{op:?}");
        self.adopt_recall(recall_until);
        expected
    }

    /// Sends an update to both.
    pub(super) async fn send(&mut self, update: AllotmentUpdate) -> LedgerAnswer {
        self.settle_recall().await;
        let recall_until = self.pure.head.recall_until;
        let step = update_allotment(&self.pure, &update, unix_ms());
        let mut expected = self.commit(step);
        let answer = self.store.update(&self.account, &update).await;
        // The two look at the clock one after the other.
        if let (LedgerAnswer::Status(pure), LedgerAnswer::Status(stored)) = (&mut expected, &answer)
        {
            assert!((stored.lent_at - pure.lent_at).abs() < APART_MAX_MS);
            pure.lent_at = stored.lent_at;
            // No store has a revision yet.
            pure.revision = stored.revision;
            for (window, slice) in &mut pure.slices {
                let Some(stored) = stored.slices.get(window) else { continue };
                let apart = slice.for_ms.zip(stored.for_ms).map(|(a, b)| (a - b).abs());
                if apart.is_some_and(|apart| apart < APART_MAX_MS) {
                    slice.for_ms = stored.for_ms;
                }
            }
        }
        assert_eq!(answer, expected, "{update:?}");
        self.adopt_recall(recall_until);
        answer
    }

    /// Makes the next update of a gateway, which would like to have so much free.
    pub(super) fn next_update(&mut self, at: usize, free: i64) -> AllotmentUpdate {
        let quote = if free == 0 { Money::ZERO } else { self.money(5) };
        let rates = self.rate_loads(free);
        let free = self.money(free);
        let keys = KEYS.into_iter().map(|key| (key, free)).collect();
        let load = AllotmentLoad { free, quote, keys, rates };
        self.gateways[at].local.next_update(&load, unix_ms()).expect("an update")
    }

    /// Sends the next update of a gateway, or the one that was not answered again, and gives it the
    /// answer.
    pub(super) async fn update(&mut self, at: usize, free: i64) {
        let update = self.next_update(at, free);
        let answer = self.send(update).await;
        let Gateway { local, log, .. } = &mut self.gateways[at];
        local.receive(&answer).expect("a sum");
        assert!(!local.is_waiting() && !local.must_reload(), "{answer:?}");
        log.retain(|seq, _| *seq > local.known_seq());
        if local.has_ended() && local.is_settled() {
            self.gateways[at] = self.gateway();
        }
    }

    fn log_end(&mut self, at: usize, ended: Option<NumberedEnd>) {
        let Some(NumberedEnd { seq, end }) = ended else { return };
        self.gateways[at].log.insert(seq, end);
    }

    /// Lets something happen at a gateway.
    pub(super) async fn happen(&mut self, at: usize, event: Event) {
        match event {
            Event::Pay(amount) => {
                self.made += 1;
                let (tx, amount) = (format!("t{}", self.made), self.money(amount));
                self.submit(Operation::Credit { tx, amount }).await;
            }
            Event::Refund(amount) => {
                self.made += 1;
                let (tx, amount) = (format!("r{}", self.made), self.money(amount));
                self.last_refund = Some(Operation::Take { tx, amount, reason: String::new() });
                self.refund_again().await;
            }
            Event::RefundAgain => self.refund_again().await,
            Event::Correct { which, amount } => self.correct(which, amount).await,
            Event::VoidElsewhere { which } => {
                if let Some(call) = self.gateways[at].open.get(which).cloned() {
                    self.charges.insert(call.clone(), None);
                    self.submit(Operation::Void { id: call }).await;
                }
            }
            Event::Update { free } => self.update(at, free).await,
            Event::UpdateTwice { free } => {
                let update = self.next_update(at, free);
                self.send(update).await;
                self.update(at, free).await;
            }
            Event::LoseAnswer { free } => {
                let update = self.next_update(at, free);
                self.send(update).await;
            }
            Event::SetBudget { owner, kind, limit } => {
                let limit = limit.map(|limit| self.money(limit));
                self.set_budget(owner, kind, limit).await;
            }
            Event::Kill => self.kill(at).await,
            Event::Expire => self.expire(at).await,
            Event::DirectHold { .. }
            | Event::DirectExtend { .. }
            | Event::DirectSettle { .. }
            | Event::DirectVoid { .. } => self.happen_directly(event).await,
            local => self.happen_in_memory(at, local),
        }
    }

    async fn refund_again(&mut self) {
        if let Some(op) = self.last_refund.clone() {
            self.submit(op).await;
        }
    }

    /// Gives a part of the charge of a call back.
    async fn correct(&mut self, which: usize, amount: i64) {
        let Some(line) = self.pure.journal.get(which) else { return };
        self.made += 1;
        let (tx, request) = (format!("c{}", self.made), line.request.clone());
        let found = (1..=self.pure.head.lines).collect();
        let (amount, reason) = (self.money(amount), "why".to_owned());
        self.submit(Operation::Correct { tx, request, found, amount, reason }).await;
    }

    /// Sets or removes the limit of a budget on both.
    async fn set_budget(&mut self, owner: BudgetOwner, kind: WindowKind, limit: Option<Money>) {
        self.settle_recall().await;
        let step = settings::set_budget(&self.pure, owner, kind, limit, unix_ms());
        self.commit(step);
        let is_set = self.store.ledger().set_budget(&self.account, owner, kind, limit).await;
        assert_eq!(is_set, Ok(true), "{owner} {kind:?} {limit:?}");
    }

    /// A call begins at a gateway, if it has the money, the budgets and the rate limits free.
    fn begin(&mut self, at: usize, key: Option<KeyId>, amount: i64) {
        self.made += 1;
        let (asks, amount) = (self.asks(key, amount), self.money(amount));
        let (call, now) = (format!("call{}", self.made), unix_ms());
        let Gateway { local, open, .. } = &mut self.gateways[at];
        if matches!(local.hold(&call, key, amount, &asks, now), Ok(LocalAnswer::Held(_))) {
            open.push(call);
        }
    }

    fn happen_in_memory(&mut self, at: usize, event: Event) {
        let (now, factor) = (unix_ms(), self.factor);
        let money = |amount: i64| nano(amount * factor);
        let Gateway { local, open, .. } = &mut self.gateways[at];
        match event {
            Event::Hold(amount) => self.begin(at, None, amount),
            Event::KeyHold { key, amount } => self.begin(at, Some(key), amount),
            Event::Extend { which, wanted } => {
                if let Some(call) = open.get(which) {
                    let _ = local.extend(call, money(wanted), now).expect("a sum");
                }
            }
            Event::Checkpoint { which, charge } => {
                if let Some(call) = open.get(which) {
                    let so_far = self.costs.entry(call.clone()).or_default();
                    *so_far = (*so_far).max(charge);
                    local.checkpoint(call, money(charge), &call_line(call, "so far"));
                }
            }
            Event::End { which, charge } => {
                if which < open.len() {
                    let call = open.remove(which);
                    // No call costs less in the end than it did before.
                    let tokens = (which != 0).then_some(charge);
                    let charge = money(charge.max(self.costs.get(&call).copied().unwrap_or(0)));
                    let ended = local
                        .end(&call, charge, &call_line(&call, "in all"), tokens)
                        .expect("a sum");
                    self.charges.entry(call).or_insert(Some(charge));
                    self.log_end(at, ended);
                }
            }
            Event::Void { which } => {
                if which < open.len() {
                    let ended = local.void(&open.remove(which)).expect("a sum");
                    self.log_end(at, ended);
                }
            }
            other => panic!("{other:?} needs the store"),
        }
    }

    async fn happen_directly(&mut self, event: Event) {
        let name = |id: u8| format!("hold{id}");
        let op = match event {
            Event::DirectHold { id, wanted, least } => {
                // One id is always of one key, and the last of none.
                let key = KEYS.get(usize::from(id)).copied();
                let rates = self.asks(key, wanted);
                let (wanted, least) = (self.money(wanted.max(least)), self.money(least));
                Operation::Hold { id: name(id), wanted, least, lease_ms: LONG_MS, key, rates }
            }
            Event::DirectExtend { id, wanted } => {
                Operation::Extend { id: name(id), wanted: self.money(wanted) }
            }
            Event::DirectSettle { id, charge } => {
                let tokens = (id != 0).then_some(charge);
                let (id, charge) = (name(id), self.money(charge));
                let line = call_line(&id, "in all");
                Operation::Settle { id, charge, line, origin: None, tokens }
            }
            Event::DirectVoid { id } => Operation::Void { id: name(id) },
            other => panic!("{other:?} is not for the store"),
        };
        self.submit(op).await;
    }

    /// A gateway dies, and its successor tells what it has left.
    async fn kill(&mut self, at: usize) {
        let next = self.gateway();
        let Gateway { local, log, open } = std::mem::replace(&mut self.gateways[at], next);
        let (id, lent_at) = (local.id().clone(), local.lent_at());
        let first = log.keys().next().copied().unwrap_or(1);
        let ends = log.into_values().collect();
        let replay = AllotmentUpdate::replay(id.clone(), lent_at, first, ends);
        let is_out = self.pure.allotments.get(&id).is_some_and(Allotment::is_out);
        if !replay.ends.is_empty() {
            self.send(replay).await;
        }
        if is_out {
            let last = AllotmentUpdate::replay(id, lent_at, 1, Vec::new());
            self.send(AllotmentUpdate { retires: true, ..last }).await;
        }
        // What these have cost is charged as far as a checkpoint of it arrived.
        for call in open {
            self.charges.remove(&call);
        }
    }

    /// The lease of a gateway runs out, and it finds out by its next update.
    async fn expire(&mut self, at: usize) {
        let id = self.gateways[at].local.id().clone();
        if self.store.end_lease(&self.account, &id) {
            self.expire_purely(&id);
            self.store.ledger().expire_holds().await.expect("a sweep");
        }
    }

    /// Lets the lease of an allotment run out on the pure machine alone, and sweeps there.
    pub(super) fn expire_purely(&mut self, id: &AllotmentId) {
        if let Some(known) = self.pure.allotments.get_mut(id) {
            known.lease_until = 1;
        }
        let step = expire_allotment(&self.pure, id, unix_ms());
        self.commit(step);
    }

    /// Voids a call on the pure machine alone, where it has no hold.
    pub(super) fn void_purely(&mut self, call: &str) {
        self.charges.insert(call.to_owned(), None);
        let step = direct::void_hold(&self.pure, call, unix_ms());
        assert_eq!(self.commit(step), LedgerAnswer::Voided);
    }

    /// Compares what the two have: the journal, the balances, and what people are shown of them.
    pub(super) async fn compare(&self, after: &dyn Debug) {
        let ledger = self.store.ledger();
        let journal = ledger.read_journal(&self.account, 0, 10_000).await.expect("a journal");
        let line =
            |seq, amount, written_off, line: &str| (seq, amount, written_off, without_time(line));
        let stored: Vec<_> =
            journal.iter().map(|l| line(l.seq, l.amount, l.written_off, &l.line)).collect();
        let pure = self.pure.journal.iter();
        let pure: Vec<_> = pure.map(|l| line(l.seq, l.amount, l.written_off, &l.line)).collect();
        assert_eq!(stored, pure, "{after:?}");
        let b = self.pure.head.balances;
        let pure = [b.credit, b.available, b.held, b.posted, b.written_off].map(Money::nano);
        assert_eq!(self.store.raw_balances(&self.account), pure, "{after:?}");
        let shown = ledger.balances(&self.account).await.expect("an answer").expect("balances");
        assert_eq!(shown, self.shown(), "{after:?}");
        assert!(shown.is_balanced(), "{after:?}");
        let budgets = ledger.list_budgets(&self.account).await.expect("budgets");
        assert_eq!(budgets, budget_uses(&self.pure, unix_ms()), "{after:?}");
        self.compare_holds(shown, after).await;
        self.check_windows(after);
        self.check_places(after);
    }

    /// Compares the open holds of the two, which are all that is shown as held.
    async fn compare_holds(&self, shown: Balances, after: &dyn Debug) {
        let listed = self.store.ledger().list_holds(Some(&self.account), None, 10_000).await;
        let listed = listed.expect("holds");
        let held: i64 = listed.iter().map(|hold| hold.held.nano()).sum();
        assert_eq!(held, shown.held.nano(), "{after:?}: {listed:?}");
        let (holds, allotments) = (&self.pure.holds, &self.pure.allotments);
        let pure = list_open_holds(&self.account, holds, allotments, unix_ms());
        // The clocks of the two differ, so the leases do, too.
        let told = |hold: &OpenHold| {
            let kind = match hold.kind {
                OpenHoldKind::Allotment { free, open_calls, .. } => {
                    OpenHoldKind::Allotment { free, open_calls, lent_at: 0 }
                }
                direct @ OpenHoldKind::Direct { .. } => direct,
            };
            (hold.id.clone(), (hold.held, kind))
        };
        let all = |holds: &[OpenHold]| holds.iter().map(told).collect::<BTreeMap<_, _>>();
        assert_eq!(all(&listed), all(&pure), "{after:?}");
    }

    /// What is held in a window is what the open holds say that count in it, and the slices; what
    /// is spent is what the journal says.
    fn check_windows(&self, after: &dyn Debug) {
        let is_open = |h: &&DirectHold| matches!(h.state, DirectHoldState::Open { .. });
        for (id, WindowUse { spent, held, lent }) in &self.pure.windows {
            let holds = self.pure.holds.values().filter(is_open);
            let holds = holds.filter(|hold| hold.windows.contains(id)).map(|hold| hold.held);
            let slices = self.pure.allotments.values().filter_map(|a| a.slices.get(id).copied());
            let lines = self.pure.journal.iter().filter(|line| line.windows.contains(id));
            let direct: i64 = holds.map(Money::nano).sum();
            let in_slices: i64 = slices.map(Money::nano).sum();
            let charged: i64 = lines.map(signed).sum();
            let told = (spent.nano(), held.nano(), lent.nano());
            assert_eq!(told, (charged, direct + in_slices, in_slices), "{id} after {after:?}");
        }
    }

    /// A bucket of places has the places of open holds and of slices.
    fn check_places(&self, after: &dyn Debug) {
        let is_open = |h: &&DirectHold| matches!(h.state, DirectHoldState::Open { .. });
        for (id, bucket) in self.pure.rates.iter().filter(|(id, _)| id.kind == RateKind::Calls) {
            let holds = self.pure.holds.values().filter(is_open).flat_map(|hold| &hold.rates);
            let direct: i64 = holds.filter(|ask| ask.id == *id).map(|ask| ask.amount).sum();
            let slices = self.pure.allotments.values().filter_map(|a| a.rates.get(id));
            let in_slices: i64 = slices.sum();
            assert_eq!(bucket.level, (direct + in_slices) * MINUTE_MS, "{id} after {after:?}");
        }
    }

    /// The balances as people are shown them: what gateways have free counts as available.
    fn shown(&self) -> Balances {
        let balances = self.pure.head.balances;
        let out = self.pure.allotments.values().filter(|allotment| allotment.is_out());
        let free = |a: &Allotment| a.drawn.total().expect("a sum").saturating_sub(a.needed);
        let free = nano(out.map(|allotment| free(allotment).nano()).sum());
        Balances {
            available: balances.available.checked_add(free).expect("a sum"),
            held: balances.held.saturating_sub(free),
            ..balances
        }
    }

    /// In the end all calls end, all ends are told, and everything is given back.
    pub(super) async fn finish(mut self) {
        for at in 0..GATEWAYS {
            while !self.gateways[at].open.is_empty() {
                self.happen(at, Event::End { which: 0, charge: 3 }).await;
            }
            for _ in 0..4 {
                self.update(at, 0).await;
            }
        }
        self.compare(&"the end").await;
        self.submit(self.probe_of_rates()).await;
        let posted: BTreeMap<String, i64> =
            self.pure.journal.iter().filter(|line| line.kind == RecordKind::Charge).fold(
                BTreeMap::new(),
                |mut sums, line| {
                    *sums.entry(line.request.clone()).or_default() += line.amount.nano();
                    sums
                },
            );
        for (call, charge) in &self.charges {
            let sum = posted.get(call).copied();
            match charge {
                Some(charge) => assert_eq!(sum.unwrap_or(0), charge.nano(), "{call}"),
                // A checkpoint may have been charged before it was voided.
                None => assert!(sum.is_none() || self.had_checkpoint(call), "{call} was voided"),
            }
        }
        let has_rates = |allotment: &Allotment| !allotment.rates.is_empty();
        let is_lent = self.pure.allotments.values().any(has_rates);
        assert!(!is_lent, "nothing stays lent of a rate limit");
        let lent = self.pure.allotments.values().map(|a| a.drawn.total().expect("a sum").nano());
        assert_eq!(lent.sum::<i64>(), 0, "nothing stays lent");
        let lent = self.pure.windows.values().map(|used| used.lent.nano());
        assert_eq!(lent.sum::<i64>(), 0, "nothing stays lent of a budget");
    }

    /// A hold of nothing, whose answer shows what is in the buckets.
    fn probe_of_rates(&self) -> Operation {
        let (wanted, least, lease_ms) = (Money::ZERO, Money::ZERO, LONG_MS);
        let ask = |(id, load): (RateId, RateLoad)| {
            let RateLoad { limit, .. } = load;
            RateAsk { id, limit, amount: 0, is_shadow: true }
        };
        let rates = self.rate_loads(0).into_iter().map(ask).collect();
        Operation::Hold { id: "probe".to_owned(), wanted, least, lease_ms, key: None, rates }
    }

    fn had_checkpoint(&self, call: &str) -> bool {
        let is_so_far = |line: &str| line.contains(r#""what":"so far""#);
        self.pure.journal.iter().any(|line| line.request == call && is_so_far(&line.line))
    }
}
