//! Allotments on SQLite: whatever gateways do, the file answers and keeps what the pure machine of
//! the next ledger does, and no end is posted twice or lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use rusqlite::Connection;
use tollgate::ledger::prepaid::allotment::{expire_allotment, update_allotment};
use tollgate::ledger::prepaid::answer::{AccountStep, LedgerAnswer};
use tollgate::ledger::prepaid::direct::{self, DirectHoldRequest};
use tollgate::ledger::prepaid::local::LocalAllotment;
use tollgate::ledger::prepaid::local::holds::{LocalAnswer, NumberedEnd};
use tollgate::ledger::prepaid::local::messages::AllotmentLoad;
use tollgate::ledger::prepaid::records::{Allotment, AllotmentId, CallEnd, PrepaidAccount};
use tollgate::ledger::prepaid::transfer;
use tollgate::ledger::prepaid::update::AllotmentUpdate;
use tollgate::ledger::{AccountName, Ledger, Operation, Outcome};
use tollgate::money::Money;
use tollgate::store::sqlite::SqliteStore;

use super::script::LONG_MS;
use super::subject::name;

const GATEWAYS: usize = 2;

fn nano(amount: i64) -> Money {
    Money::from_nano(amount).expect("not negative")
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a time")
}

/// What happens. `which` chooses one of the open calls.
#[derive(Debug, Clone)]
enum Event {
    Pay(i64),
    Hold(i64),
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
}

fn event() -> impl Strategy<Value = (usize, Event)> {
    let which = || 0..8usize;
    let amount = || prop_oneof![3 => 0..=40i64, 1 => 0..=400i64];
    let free = || prop_oneof![1 => Just(0), 4 => 0..=300i64];
    let id = || 0..3u8;
    let event = prop_oneof![
        2 => (0..=3_000i64).prop_map(Event::Pay),
        8 => amount().prop_map(Event::Hold),
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
    ];
    (0..GATEWAYS, event)
}

/// A gateway, with what its log of ends has.
struct Gateway {
    local: LocalAllotment,
    log: BTreeMap<u64, CallEnd>,
    open: Vec<String>,
}

/// The file, and the pure machine beside it.
struct Pair {
    store: SqliteStore,
    beside: Connection,
    account: AccountName,
    pure: PrepaidAccount,
    gateways: Vec<Gateway>,
    made: u32,
    /// The charges of calls, which must be posted in the end; `None` for one that was voided
    /// elsewhere.
    charges: BTreeMap<String, Option<Money>>,
    /// What calls have cost so far.
    costs: BTreeMap<String, i64>,
}

impl Pair {
    async fn new(folder: &Path) -> Pair {
        let path = folder.join("ledger.db");
        assert_eq!(SqliteStore::create(&path), Ok(true));
        let store = SqliteStore::open(&path).expect("a store");
        let account = name("ada");
        store.open_account(&account).await.expect("an account");
        let beside = Connection::open(path).expect("the file");
        beside.busy_timeout(Duration::from_secs(10)).expect("a setting");
        let (pure, gateways, charges, costs) = Default::default();
        let mut pair = Pair { store, beside, account, pure, gateways, made: 0, charges, costs };
        pair.gateways = (0..GATEWAYS).map(|_| pair.gateway()).collect();
        pair
    }

    fn gateway(&mut self) -> Gateway {
        self.made += 1;
        let id = AllotmentId(format!("allotment_run{}-1", self.made));
        let local = LocalAllotment::new(id, LONG_MS, unix_ms());
        Gateway { local, log: BTreeMap::new(), open: Vec::new() }
    }

    /// Whether money is called back is a matter of the moment: no operation is done close to it.
    async fn settle_recall(&self) {
        while (0..50).contains(&self.pure.head.recall_until.saturating_sub(unix_ms())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn commit(&mut self, AccountStep { answer, changes }: AccountStep) -> LedgerAnswer {
        self.pure.commit(changes);
        answer
    }

    /// Does an operation of today's ledger on both.
    async fn submit(&mut self, op: Operation) {
        self.settle_recall().await;
        let (now, pure) = (unix_ms(), &self.pure);
        let step = match op.clone() {
            Operation::Credit { tx, amount } => transfer::add_payment(pure, &tx, amount, now),
            Operation::Hold { id, wanted, least, lease_ms } => {
                let (key, rates) = (None, Vec::new());
                let request = DirectHoldRequest { id, key, wanted, least, rates, lease_ms };
                direct::place_hold(pure, &request, now)
            }
            Operation::Extend { id, wanted } => direct::extend_hold(pure, &id, wanted, now),
            Operation::Settle { id, charge, line, .. } => {
                direct::settle_hold(pure, &id, charge, &line, None, &[], now)
            }
            Operation::Void { id } => direct::void_hold(pure, &id, now),
            other => panic!("{other:?} is not tried here"),
        };
        let available = self.pure.head.balances.available;
        let expected = match self.commit(step) {
            LedgerAnswer::Done => Outcome::Done,
            LedgerAnswer::AlreadyDone => Outcome::AlreadyDone,
            LedgerAnswer::Conflict => Outcome::Conflict,
            LedgerAnswer::Held { held, .. } => Outcome::Held(held),
            LedgerAnswer::HeldInPart { held } => Outcome::HeldInPart(held),
            LedgerAnswer::HoldExists { held, open, .. } => Outcome::HoldExists { held, open },
            LedgerAnswer::Insufficient { available } => Outcome::Insufficient(available),
            LedgerAnswer::HeldElsewhere => Outcome::Insufficient(available),
            LedgerAnswer::Wait => Outcome::Wait,
            LedgerAnswer::Tombstoned => Outcome::Tombstoned,
            LedgerAnswer::Posted { amount, written_off, .. } => {
                Outcome::Posted { amount, written_off }
            }
            LedgerAnswer::AlreadyPosted(amount) => Outcome::AlreadyPosted(amount),
            LedgerAnswer::Voided => Outcome::Voided,
            LedgerAnswer::HoldEnded => Outcome::HoldEnded,
            LedgerAnswer::UnknownHold => Outcome::UnknownHold,
            other => panic!("{other:?} to {op:?}"),
        };
        let outcome = self.store.submit(&self.account, op.clone()).await;
        assert_eq!(outcome, Ok(expected), "{op:?}");
    }

    /// Sends an update to both.
    async fn send(&mut self, update: AllotmentUpdate) -> LedgerAnswer {
        self.settle_recall().await;
        let step = update_allotment(&self.pure, &update, unix_ms());
        let mut expected = self.commit(step);
        let answer = self.store.update_allotment(&self.account, update.clone()).await;
        let answer = answer.expect("an answer").expect("an account");
        // The two look at the clock one after the other.
        if let (LedgerAnswer::Status(pure), LedgerAnswer::Status(stored)) = (&mut expected, &answer)
        {
            assert!((stored.lent_at - pure.lent_at).abs() < 5_000);
            pure.lent_at = stored.lent_at;
        }
        assert_eq!(answer, expected, "{update:?}");
        answer
    }

    fn next_update(&mut self, at: usize, free: i64) -> AllotmentUpdate {
        let quote = if free == 0 { Money::ZERO } else { nano(5) };
        let load = AllotmentLoad { free: nano(free), quote, ..AllotmentLoad::default() };
        self.gateways[at].local.next_update(&load, unix_ms()).expect("an update")
    }

    async fn update(&mut self, at: usize, free: i64) {
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

    async fn happen(&mut self, at: usize, event: Event) {
        let now = unix_ms();
        match event {
            Event::Pay(amount) => {
                self.made += 1;
                let tx = format!("t{}", self.made);
                self.submit(Operation::Credit { tx, amount: nano(amount) }).await;
            }
            Event::Hold(amount) => {
                self.made += 1;
                let call = format!("call{}", self.made);
                let Gateway { local, open, .. } = &mut self.gateways[at];
                let held = local.hold(&call, None, nano(amount), &[], now).expect("a sum");
                if held == LocalAnswer::Held {
                    open.push(call);
                }
            }
            Event::Extend { which, wanted } => {
                let Gateway { local, open, .. } = &mut self.gateways[at];
                if let Some(call) = open.get(which) {
                    let _ = local.extend(call, nano(wanted), now).expect("a sum");
                }
            }
            Event::Checkpoint { which, charge } => {
                let Gateway { local, open, .. } = &mut self.gateways[at];
                if let Some(call) = open.get(which) {
                    let so_far = self.costs.entry(call.clone()).or_default();
                    *so_far = (*so_far).max(charge);
                    local.checkpoint(call, nano(charge), &format!("{call} so far"));
                }
            }
            Event::End { which, charge } => {
                let Gateway { local, open, .. } = &mut self.gateways[at];
                if which < open.len() {
                    let call = open.remove(which);
                    // No call costs less in the end than it did before.
                    let charge = nano(charge.max(self.costs.get(&call).copied().unwrap_or(0)));
                    let ended = local.end(&call, charge, &call, &[]).expect("a sum");
                    self.charges.entry(call).or_insert(Some(charge));
                    self.log_end(at, ended);
                }
            }
            Event::Void { which } => {
                let Gateway { local, open, .. } = &mut self.gateways[at];
                if which < open.len() {
                    let ended = local.void(&open.remove(which)).expect("a sum");
                    self.log_end(at, ended);
                }
            }
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
            Event::Kill => self.kill(at).await,
            Event::Expire => self.expire(at).await,
            direct => self.happen_directly(direct).await,
        }
    }

    async fn happen_directly(&mut self, event: Event) {
        let name = |id: u8| format!("hold{id}");
        let op = match event {
            Event::DirectHold { id, wanted, least } => {
                let (wanted, least) = (nano(wanted.max(least)), nano(least));
                Operation::Hold { id: name(id), wanted, least, lease_ms: LONG_MS }
            }
            Event::DirectExtend { id, wanted } => {
                Operation::Extend { id: name(id), wanted: nano(wanted) }
            }
            Event::DirectSettle { id, charge } => {
                let (id, charge, line) = (name(id), nano(charge), name(id));
                Operation::Settle { id, charge, line, origin: None }
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
        let sql = "UPDATE open_hold SET lease_until = 1 WHERE id = ?1";
        if self.beside.execute(sql, [&id.0]).expect("written") == 0 {
            return;
        }
        if let Some(known) = self.pure.allotments.get_mut(&id) {
            known.lease_until = 1;
        }
        let now = unix_ms();
        let step = expire_allotment(&self.pure, &id, now);
        self.commit(step);
        self.store.expire_holds().await.expect("a sweep");
    }

    async fn compare(&self, after: &Event) {
        let journal = self.store.read_journal(&self.account, 0, 10_000).await.expect("a journal");
        let line =
            |seq, amount, written_off, line: &str| (seq, amount, written_off, line.to_owned());
        let stored: Vec<_> =
            journal.iter().map(|l| line(l.seq, l.amount, l.written_off, &l.line)).collect();
        let pure = self.pure.journal.iter();
        let pure: Vec<_> = pure.map(|l| line(l.seq, l.amount, l.written_off, &l.line)).collect();
        assert_eq!(stored, pure, "{after:?}");
        let sql = "SELECT credit, available, held, posted, written_off FROM account";
        let stored: [i64; 5] = self
            .beside
            .query_row(sql, [], |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])
            })
            .expect("balances");
        let b = self.pure.head.balances;
        let pure = [b.credit, b.available, b.held, b.posted, b.written_off].map(Money::nano);
        assert_eq!(stored, pure, "{after:?}");
        let shown = self.store.balances(&self.account).await.expect("an answer").expect("balances");
        assert!(shown.is_balanced() && shown.held <= b.held, "{after:?}");
    }

    /// In the end all calls end, all ends are told, and everything is given back.
    async fn finish(mut self) {
        for at in 0..GATEWAYS {
            while !self.gateways[at].open.is_empty() {
                self.happen(at, Event::End { which: 0, charge: 3 }).await;
            }
            for _ in 0..4 {
                self.update(at, 0).await;
            }
        }
        self.compare(&Event::Kill).await;
        let posted: BTreeMap<String, i64> =
            self.pure.journal.iter().fold(BTreeMap::new(), |mut sums, line| {
                *sums.entry(line.request.clone()).or_default() += line.amount.nano();
                sums
            });
        for (call, charge) in &self.charges {
            let sum = posted.get(call).copied();
            match charge {
                Some(charge) => assert_eq!(sum.unwrap_or(0), charge.nano(), "{call}"),
                // A checkpoint may have been charged before it was voided.
                None => assert!(sum.is_none() || self.had_checkpoint(call), "{call} was voided"),
            }
        }
        let lent = self.pure.allotments.values().map(|a| a.drawn.total().expect("a sum").nano());
        assert_eq!(lent.sum::<i64>(), 0, "nothing stays lent");
        let shown = self.store.balances(&self.account).await.expect("an answer").expect("balances");
        assert_eq!(shown.held, self.pure.head.balances.held);
    }

    fn had_checkpoint(&self, call: &str) -> bool {
        let so_far = format!("{call} so far");
        self.pure.journal.iter().any(|line| line.line == so_far)
    }
}

fn run(events: Vec<(usize, Event)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut pair = Pair::new(folder.path()).await;
        for (at, event) in events {
            pair.happen(at, event.clone()).await;
            pair.compare(&event).await;
        }
        pair.finish().await;
    });
}

#[test]
fn a_file_does_what_the_pure_machine_does() {
    let many = prop::collection::vec(event(), 1..=80);
    let default = ProptestConfig::default();
    // As many as the environment says, where it does: mutants and long runs want others.
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if is_set { default.cases } else { 60 };
    let config = ProptestConfig { cases, failure_persistence: None, ..default };
    proptest!(config, |(events in many)| run(events));
}

/// The last message of a successor has no ends, so nobody looked for the calls of its checkpoints.
#[test]
fn the_checkpoint_of_a_voided_call_was_charged_when_its_gateway_was_retired() {
    run([
        Event::Pay(3_000),
        Event::Update { free: 300 },
        Event::Hold(20),
        Event::Checkpoint { which: 0, charge: 7 },
        Event::Update { free: 300 },
        Event::VoidElsewhere { which: 0 },
        Event::Kill,
    ]
    .map(|event| (0, event))
    .into());
}
