//! Random lives of an account with lots: Redis does what the pure machine does, call by call.

use proptest::prelude::*;
use tollgate::ledger::prepaid::allotment::update_allotment;
use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::lot::LotAmounts;
use tollgate::ledger::prepaid::operations::apply_operation;
use tollgate::ledger::prepaid::records::{AllotmentId, CallEnd, PrepaidAccount};
use tollgate::ledger::prepaid::transfer::expire_credit;
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::{JournalEntry, Ledger, LotId, OpenLot, Operation};

use super::super::redis_server::RedisServer;
use super::super::script::{LONG_MS, now, settle};
use super::{LotRedis, grant, hold, nano, pay};

/// The lots of grants. Those of the first two are renamed once, as though their time had come.
const LOTS: [&str; 7] = [
    "3000000000000/promotion",
    "3000000000000/voucher",
    "4000000000000/paid",
    "never/promotion",
    "never/voucher",
    "never/paid",
    "1/promotion",
];
const BEFORE: &str = "3000000000000/";
const AFTER: &str = "5/";

/// Renames lots in all that Redis has of an account.
const RENAME: &str = "
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    local all = redis.call('HGETALL', key)
    for at = 1, #all, 2 do
      redis.call('HSET', key, all[at], (string.gsub(all[at + 1], ARGV[1], ARGV[2])))
    end
  elseif kind == 'list' then
    for at, line in ipairs(redis.call('LRANGE', key, 0, -1)) do
      redis.call('LSET', key, at - 1, (string.gsub(line, ARGV[1], ARGV[2])))
    end
  end
end";

/// What happens. A call is one of those before, counted from the last.
#[derive(Debug, Clone)]
enum Event {
    Pay(i64),
    Grant(usize, i64),
    Hold(i64),
    Extend(usize, i64),
    Checkpoint(usize, i64),
    Settle(usize, i64),
    Void(usize),
    Take(i64),
    Correct(usize, i64),
    Update { needed: i64, kept: i64, free: i64, ends: Vec<(i64, Option<i64>)>, cost: i64 },
    Retire,
    Expire,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let call = 0..4_usize;
    let ends = prop::collection::vec((0..30_i64, prop::option::weighted(0.9, 0..40_i64)), 0..3);
    let event = prop_oneof![
        1 => (1..40_i64).prop_map(Event::Pay),
        3 => (0..LOTS.len(), 0..60_i64).prop_map(|(lot, amount)| Event::Grant(lot, amount)),
        2 => (1..50_i64).prop_map(Event::Hold),
        1 => (call.clone(), 1..80_i64).prop_map(|(of, amount)| Event::Extend(of, amount)),
        1 => (call.clone(), 1..60_i64).prop_map(|(of, amount)| Event::Checkpoint(of, amount)),
        2 => (call.clone(), 0..90_i64).prop_map(|(of, amount)| Event::Settle(of, amount)),
        1 => call.clone().prop_map(Event::Void),
        1 => (1..50_i64).prop_map(Event::Take),
        2 => (call, 1..50_i64).prop_map(|(of, amount)| Event::Correct(of, amount)),
        4 => (0..40_i64, 0..20_i64, 0..80_i64, ends, 0..20_i64).prop_map(
            |(needed, kept, free, ends, cost)| Event::Update { needed, kept, free, ends, cost }
        ),
        1 => Just(Event::Retire),
        1 => Just(Event::Expire),
    ];
    prop::collection::vec(event, 1..40)
}

/// An account in Redis, and the pure machine beside it.
struct Life<'r> {
    redis: &'r LotRedis,
    pure: PrepaidAccount,
    made: usize,
    calls: Vec<String>,
    allotments: usize,
    step: u64,
    seq: u64,
    has_expired: bool,
}

impl Life<'_> {
    fn call(&self, of: usize) -> String {
        self.calls.iter().rev().nth(of).cloned().unwrap_or_default()
    }

    fn new_id(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }

    async fn apply(&mut self, op: Operation) {
        let outcome = self.redis.submit(op.clone()).await;
        let applied = apply_operation(&self.pure, &op, now());
        self.pure.commit(applied.changes);
        assert_eq!(outcome, applied.outcome, "{op:?}");
    }

    async fn update(&mut self, update: AllotmentUpdate) {
        let answer = self.redis.update(&update).await;
        let step = update_allotment(&self.pure, &update, now());
        self.pure.commit(step.changes);
        assert_eq!(shown(&answer), shown(&step.answer), "{update:?}");
    }

    fn message(&mut self, ends: Vec<CallEnd>) -> AllotmentUpdate {
        let id = AllotmentId(format!("allotment_run1-{}", self.allotments));
        let first_seq = self.seq + 1;
        self.seq += ends.len() as u64;
        AllotmentUpdate::replay(id, now(), first_seq, ends)
    }

    fn end(&mut self, held: i64, charge: Option<i64>) -> CallEnd {
        let call = self.new_id("e");
        self.calls.push(call.clone());
        let line = format!(r#"{{"request_id":"{call}"}}"#);
        let (charge, windows) = (charge.map(nano), Vec::new());
        CallEnd { call, key: None, held: nano(held), charge, windows, line }
    }

    async fn happen(&mut self, event: Event) {
        let found: Vec<u64> = (1..=200).collect();
        match event {
            Event::Pay(amount) => {
                let op = pay(&self.new_id("t"), amount);
                self.apply(op).await;
            }
            Event::Grant(lot, amount) => {
                let op = grant(&self.new_id("g"), amount, LOTS[lot]);
                self.apply(op).await;
            }
            Event::Hold(amount) => {
                let id = self.new_id("h");
                self.calls.push(id.clone());
                self.apply(hold(&id, amount, 0, LONG_MS)).await;
            }
            Event::Extend(of, amount) => {
                self.apply(Operation::Extend { id: self.call(of), wanted: nano(amount) }).await;
            }
            Event::Checkpoint(of, charge) => {
                let (id, line) = (self.call(of), "{}".to_owned());
                self.apply(Operation::Checkpoint { id, charge: nano(charge), line }).await;
            }
            Event::Settle(of, amount) => self.apply(settle(&self.call(of), nano(amount))).await,
            Event::Void(of) => self.apply(Operation::Void { id: self.call(of) }).await,
            Event::Take(amount) => {
                let (tx, reason) = (self.new_id("r"), String::new());
                self.apply(Operation::Take { tx, amount: nano(amount), reason }).await;
            }
            Event::Correct(of, amount) => {
                let (tx, request, amount) = (self.new_id("c"), self.call(of), nano(amount));
                let reason = String::new();
                self.apply(Operation::Correct { tx, request, found, amount, reason }).await;
            }
            Event::Update { needed, kept, free, ends, cost } => {
                let ends = ends.into_iter().map(|(held, charge)| self.end(held, charge)).collect();
                let checkpoint = self.end(10, Some(cost));
                self.step += 1;
                let demand = AllotmentDemand {
                    needed: nano(needed),
                    kept: nano(needed + kept),
                    free: nano(free),
                    ..AllotmentDemand::default()
                };
                let step = self.step;
                let update = AllotmentUpdate {
                    step,
                    checkpoints: vec![checkpoint],
                    demand: Some(demand),
                    lease_ms: LONG_MS,
                    ..self.message(ends)
                };
                self.update(update).await;
            }
            Event::Retire => {
                let end = self.end(5, Some(7));
                let update = AllotmentUpdate { retires: true, ..self.message(vec![end]) };
                self.update(update).await;
                (self.allotments, self.step, self.seq) = (self.allotments + 1, 0, 0);
            }
            Event::Expire if self.has_expired => {}
            Event::Expire => self.rename().await,
        }
    }

    /// Lets the time of two lots come, and sweeps.
    async fn rename(&mut self) {
        self.has_expired = true;
        let _: Option<String> = self.redis.read(&["EVAL", RENAME, "0", BEFORE, AFTER]);
        let lots = std::mem::take(&mut self.pure.head.lots);
        self.pure.head.lots = lots.into_iter().map(|(id, lot)| (renamed(id), lot)).collect();
        for hold in self.pure.holds.values_mut() {
            hold.drawn = all_renamed(&hold.drawn);
        }
        for allotment in self.pure.allotments.values_mut() {
            allotment.drawn = all_renamed(&allotment.drawn);
        }
        for line in &mut self.pure.journal {
            line.lots = all_renamed(&line.lots);
            line.line = line.line.replace(BEFORE, AFTER);
        }
        let swept = self.redis.store.expire_holds().await.expect("a sweep");
        assert_eq!(swept.expired, 0, "no lease has run out");
        self.pure.commit(expire_credit(&self.pure, now()).changes);
    }

    async fn compare(&mut self) {
        let sums = self.pure.head.balances;
        let sums = [sums.credit, sums.available, sums.held, sums.posted, sums.written_off];
        assert_eq!(self.redis.raw_balances(), sums.map(tollgate::money::Money::nano));
        let granted = self.pure.head.granted_lots();
        let granted: Vec<OpenLot> = granted.map(|(id, lot)| OpenLot { id, lot }).collect();
        assert_eq!(self.redis.lots().await, granted);
        let lines = self.pure.journal.iter().cloned().map(JournalEntry::from);
        let lines: Vec<JournalEntry> = lines.map(without_time).collect();
        let stored = self.redis.store.read_journal(&self.redis.account, 0, 1_000).await;
        let stored: Vec<_> = stored.expect("lines").into_iter().map(without_time).collect();
        assert_eq!(stored, lines);
        // A recall ends at a time that the two read one after the other.
        if self.pure.head.recall_until > 0 {
            self.pure.head.recall_until = 0;
            let key = self.redis.key("account");
            let _: i64 = self.redis.read(&["HSET", &key, "recall_until", "0"]);
        }
    }
}

fn renamed(id: LotId) -> LotId {
    id.to_string().replace(BEFORE, AFTER).parse().expect("a lot")
}

fn all_renamed(amounts: &LotAmounts) -> LotAmounts {
    let mut all = LotAmounts::default();
    amounts.iter().for_each(|(id, amount)| all.add(renamed(id), amount).expect("a sum"));
    all
}

fn without_time(mut entry: JournalEntry) -> JournalEntry {
    if let Ok(mut line) = serde_json::from_str::<serde_json::Value>(&entry.line)
        && line.get("at").is_some()
    {
        line["at"] = 0.into();
        entry.line = line.to_string();
    }
    entry
}

/// What of an answer does not depend on when it was asked for.
fn shown(answer: &LedgerAnswer) -> String {
    let LedgerAnswer::Status(status) = answer else { return format!("{answer:?}") };
    let expire = [status.free_for_ms, status.held_for_ms].map(|ms| ms.map(|ms| ms > 0));
    let (amounts, seqs) = ((status.held, status.free), (status.step, status.last_seq));
    format!("{amounts:?} {seqs:?} {expire:?} {}", status.tight)
}

/// All lives share a server and a runtime, and each has a database of its own.
#[test]
fn a_redis_with_lots_does_what_the_pure_machine_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (server, runtime) = (RedisServer::shared(), runtime.expect("a runtime"));
    let default = ProptestConfig::default();
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = if is_set { default.cases } else { 40 };
    let config = ProptestConfig { cases, failure_persistence: None, ..default };
    proptest!(config, |(events in events())| {
        runtime.block_on(async {
            let redis = LotRedis::open(&server).await;
            let mut life = Life {
                redis: &redis,
                pure: PrepaidAccount::default(),
                made: 0,
                calls: Vec::new(),
                allotments: 1,
                step: 0,
                seq: 0,
                has_expired: false,
            };
            for event in events {
                life.happen(event).await;
                life.compare().await;
            }
        });
    });
}
