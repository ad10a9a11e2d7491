//! The language of the tables: `hold a 60 least 60 lease 1000 key 1 -> held 60`.
//!
//! A case begins with `## what it is about`, on an account of its own, at the time 0. `at MS` sets
//! the time. `day 5`, `total 9`, or `1.day 5` sets a budget of the account, or of its key 1; `none`
//! is no limit. A message of a gateway names what it has: `update m step 1 free 9 quote 1 keys 1=9
//! needed 3 kept 5 ends 1:c=2/3,d=void/4 checkpoints e=1/3 lease 1000`. An end is
//! `call=charge/held`, then perhaps `#KEY` and `@MS`, the time of its hold. Rate limits are
//! `tokens=30/40/100` of a hold, and `tokens=9/40/100/2/0/3` of a message.

use tollgate::ledger::prepaid::answer::LedgerAnswer;
use tollgate::ledger::prepaid::direct::{DirectHoldOrigin, DirectHoldRequest};
use tollgate::ledger::prepaid::lot::{CreditSource, LotId, NEVER_EXPIRES};
use tollgate::ledger::prepaid::rate::{
    RateAsk, RateBucket, RateDemand, RateId, RateKind, RateLimit,
};
use tollgate::ledger::prepaid::records::{
    AllotmentId, AllotmentState, CallEnd, KeyStatus, PrepaidAccount, RecordKind,
};
use tollgate::ledger::prepaid::update::{AllotmentDemand, AllotmentUpdate};
use tollgate::ledger::prepaid::window::{BudgetOwner, KeyId, WindowId, WindowKind};
use tollgate::money::Money;

use super::invariants;
use super::machine::{Machine, Op};

/// Lines that belong together.
pub(crate) struct Case {
    /// What it is about.
    pub(crate) name: String,
    /// What happens: the number of the line, what is done, what must come of it.
    pub(crate) lines: Vec<(usize, String, String)>,
}

/// Reads a table.
pub(crate) fn read(table: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, text) in (1..).zip(table.lines()) {
        if let Some(name) = text.strip_prefix("## ") {
            cases.push(Case { name: name.to_owned(), lines: Vec::new() });
        } else if !text.trim().is_empty() && !text.starts_with("# ") {
            let (said, expected) =
                text.split_once("->").ok_or_else(|| format!("{number}: no `->`: {text}"))?;
            let case = cases.last_mut().ok_or_else(|| format!("{number}: outside of a case"))?;
            case.lines.push((number, said.trim().to_owned(), expected.trim().to_owned()));
        }
    }
    Ok(cases)
}

/// Runs cases, each on a machine of its own. Returns how many lines held, or which did not.
pub(crate) fn run<M: Machine>(make: impl Fn() -> M, cases: &[Case]) -> Result<usize, String> {
    let mut held = 0;
    for case in cases {
        let mut machine = make();
        let mut now = 0;
        for (number, said, expected) in &case.lines {
            let place = || format!("line {number} ({}): {said}", case.name);
            let came = perform(&mut machine, &mut now, said)
                .ok_or_else(|| format!("{}: cannot be read", place()))?;
            if came != *expected {
                return Err(format!("{}\n  expected {expected}\n  came     {came}", place()));
            }
            // Credit expires with the next operation, not by the time alone.
            let only_looks =
                ["at", "balances", "lots", "windows", "rates", "journal", "revision", "allotment"];
            if !said.split(' ').next().is_some_and(|word| only_looks.contains(&word)) {
                let sound = invariants::check(machine.account(), now);
                sound.map_err(|why| format!("{}\n  {why}", place()))?;
            }
            held += 1;
        }
    }
    Ok(held)
}

fn perform<M: Machine>(machine: &mut M, now: &mut i64, said: &str) -> Option<String> {
    let words: Vec<&str> = said.split_whitespace().collect();
    Some(match *words {
        ["at", ms] => {
            *now = ms.parse().ok()?;
            "ok".to_owned()
        }
        ["expire"] => machine.sweep(*now).to_string(),
        ["balances"] => balances_text(machine.account()),
        ["lots"] => lots_text(machine.account()),
        ["windows"] => windows_text(machine.account()),
        ["rates"] => rates_text(machine.account()),
        ["journal"] => journal_text(machine.account()),
        ["revision"] => machine.account().head.revision.to_string(),
        ["allotment", id] => allotment_text(machine.account(), id),
        _ => {
            let op = operation(machine.account(), &words, *now)?;
            answer_text(&machine.apply(&op, *now))
        }
    })
}

fn operation(account: &PrepaidAccount, words: &[&str], now: i64) -> Option<Op> {
    let text = |word: &str| word.to_owned();
    Some(match *words {
        ["pay", tx, amount] => Op::Pay { tx: text(tx), amount: money(amount)? },
        ["grant", tx, amount, source, "expires", at] => {
            let lot = LotId { expires_at: time(at)?, source: source_of(source)? };
            Op::Grant { tx: text(tx), amount: money(amount)?, lot }
        }
        ["take", tx, amount] => Op::Take { tx: text(tx), amount: money(amount)? },
        ["correct", tx, request, amount] => {
            Op::Correct { tx: text(tx), request: text(request), amount: money(amount)? }
        }
        ["hold", id, wanted, "least", least, "lease", for_ms, ref rest @ ..] => {
            let (mut key, mut rates) = (None, Vec::new());
            for pair in rest.chunks(2) {
                match *pair {
                    ["key", word] => key = Some(key_of(word)?),
                    ["rates", word] => rates = word.split(';').map(ask).collect::<Option<_>>()?,
                    _ => return None,
                }
            }
            let (wanted, least) = (money(wanted)?, money(least)?);
            let lease_ms = for_ms.parse().ok()?;
            Op::Hold(DirectHoldRequest { id: text(id), key, wanted, least, rates, lease_ms })
        }
        ["extend", id, wanted] => Op::Extend { id: text(id), wanted: money(wanted)? },
        ["renew", id, lease] => Op::Renew { id: text(id), lease_ms: lease.parse().ok()? },
        ["checkpoint", id, charge] => {
            let line = format!("{id}.checkpoint");
            Op::Checkpoint { id: text(id), charge: money(charge)?, line }
        }
        ["settle", id, charge, ref origin @ ..] => {
            let mut tokens = None;
            let origin = match origin {
                [] => None,
                ["used", word] => {
                    tokens = Some(word.strip_prefix("tokens=")?.parse().ok()?);
                    None
                }
                ["origin", wanted, least, "at", at] => Some(DirectHoldOrigin {
                    key: None,
                    wanted: money(wanted)?,
                    least: money(least)?,
                    at: at.parse().ok()?,
                    windows: windows_at(account, None, at.parse().ok()?),
                }),
                _ => return None,
            };
            Op::Settle { id: text(id), charge: money(charge)?, line: text(id), origin, tokens }
        }
        ["void", id] => Op::Void { id: text(id) },
        ["suspend"] => Op::Suspend(true),
        ["resume"] => Op::Suspend(false),
        ["key", key, status] => Op::SetKey { key: key_of(key)?, status: status_of(status)? },
        ["update", id, ref parts @ ..] => Op::Update(update(account, id, parts, now)?),
        [budget, limit] => {
            let (owner, kind) = match budget.split_once('.') {
                Some((key, kind)) => (BudgetOwner::Key(key_of(key)?), kind),
                None => (BudgetOwner::Account, budget),
            };
            let limit = if limit == "none" { None } else { Some(money(limit)?) };
            Op::Budget { owner, kind: kind_of(kind)?, limit }
        }
        _ => return None,
    })
}

/// The windows of the account and of a key at a moment.
pub(crate) fn windows_at(account: &PrepaidAccount, key: Option<KeyId>, at: i64) -> Vec<WindowId> {
    let own = account.head.budgets.keys();
    let own = own.map(|kind| WindowId::at(BudgetOwner::Account, *kind, at));
    let budgets = key.and_then(|key| Some((key, account.keys.get(&key)?)));
    let of_key = budgets.into_iter().flat_map(|(key, record)| {
        let owner = BudgetOwner::Key(key);
        record.budgets.keys().map(move |kind| WindowId::at(owner, *kind, at))
    });
    own.chain(of_key).collect()
}

fn update(account: &PrepaidAccount, id: &str, parts: &[&str], now: i64) -> Option<AllotmentUpdate> {
    let mut told = AllotmentUpdate::replay(AllotmentId(id.to_owned()), now, 1, Vec::new());
    let mut demand = AllotmentDemand::default();
    let mut is_demanding = false;
    for pair in parts.chunks(2) {
        let [name, value] = *pair else { return None };
        match name {
            "step" => told.step = value.parse().ok()?,
            "lent" => told.lent_at = value.parse().ok()?,
            "lease" => told.lease_ms = value.parse().ok()?,
            "lost" => told.earlier_lost = value == "yes",
            "retires" => told.retires = value == "yes",
            "ends" => {
                let (first, ends) = value.split_once(':')?;
                told.first_seq = first.parse().ok()?;
                told.ends = ends.split(',').map(|e| end(account, e, now)).collect::<Option<_>>()?;
            }
            "checkpoints" => {
                let all = value.split(',').map(|e| end(account, e, now));
                told.checkpoints = all.collect::<Option<_>>()?;
            }
            "rates" => {
                for word in value.split(';') {
                    let (id, wanted) = rate_demand(word)?;
                    demand.rates.insert(id, wanted);
                }
            }
            "free" => (demand.free, is_demanding) = (money(value)?, true),
            "quote" => demand.quote = money(value)?,
            "keys" => {
                for pair in value.split(',') {
                    let (key, free) = pair.split_once('=')?;
                    demand.keys.insert(key_of(key)?, money(free)?);
                }
            }
            "needed" | "kept" => {
                is_demanding = true;
                let (amount, key, at) = amount_of(value, now)?;
                let (sum, all) = if name == "needed" {
                    (&mut demand.needed, &mut demand.needed_in)
                } else {
                    (&mut demand.kept, &mut demand.kept_in)
                };
                *sum = amount;
                all.extend(windows_at(account, key, at).into_iter().map(|id| (id, amount)));
            }
            _ => return None,
        }
    }
    told.demand = is_demanding.then_some(demand);
    Some(told)
}

/// `12`, `12#1`, `12@5000` or `12#1@5000`: an amount, a key, and a time.
fn amount_of(word: &str, now: i64) -> Option<(Money, Option<KeyId>, i64)> {
    let (word, at) = match word.split_once('@') {
        Some((word, at)) => (word, at.parse().ok()?),
        None => (word, now),
    };
    let (word, key) = match word.split_once('#') {
        Some((word, key)) => (word, Some(key_of(key)?)),
        None => (word, None),
    };
    Some((money(word)?, key, at))
}

fn end(account: &PrepaidAccount, word: &str, now: i64) -> Option<CallEnd> {
    let (call, rest) = word.split_once('=')?;
    let (charge, held) = rest.split_once('/')?;
    let (held, key, at) = amount_of(held, now)?;
    let charge = if charge == "void" { None } else { Some(money(charge)?) };
    let (call, windows) = (call.to_owned(), windows_at(account, key, at));
    let line = call.clone();
    Some(CallEnd { call, key, held, charge, windows, line })
}

/// `requests`, or `tokens#1` of the key 1.
fn rate_of(word: &str) -> Option<RateId> {
    let (kind, owner) = match word.split_once('#') {
        Some((kind, key)) => (kind, BudgetOwner::Key(key_of(key)?)),
        None => (word, BudgetOwner::Account),
    };
    let kinds = [RateKind::Requests, RateKind::Tokens, RateKind::Calls];
    let kind = kinds.into_iter().find(|known| rate_kind_text(*known) == kind)?;
    Some(RateId { owner, kind, row: 0 })
}

/// `tokens=30/40/100`: thirty of forty a minute and a hundred at once; a `~` in front of it is a
/// shadow.
fn ask(word: &str) -> Option<RateAsk> {
    let (word, is_shadow) = (word.trim_start_matches('~'), word.starts_with('~'));
    let (name, numbers) = word.split_once('=')?;
    let numbers: Vec<i64> = numbers.split('/').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let [amount, per_minute, burst] = *numbers else { return None };
    let limit = RateLimit { per_minute, burst };
    Some(RateAsk { id: rate_of(name)?, limit, amount, is_shadow })
}

/// `tokens=9/40/100/2/0/3`: nine wanted free of such a limit, two spent, none needed, three kept.
fn rate_demand(word: &str) -> Option<(RateId, RateDemand)> {
    let (name, numbers) = word.split_once('=')?;
    let numbers: Vec<i64> = numbers.split('/').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let [free, per_minute, burst, spent, needed, kept] = *numbers else { return None };
    let limit = RateLimit { per_minute, burst };
    Some((rate_of(name)?, RateDemand { limit, spent, needed, kept, free, unit: 1 }))
}

fn rate_kind_text(kind: RateKind) -> &'static str {
    match kind {
        RateKind::Requests => "requests",
        RateKind::Tokens => "tokens",
        RateKind::Calls => "calls",
    }
}

fn rate_text(id: RateId) -> String {
    let owner = match id.owner {
        BudgetOwner::Account => String::new(),
        BudgetOwner::Key(KeyId(key)) => format!("#{key}"),
    };
    format!("{}{owner}", rate_kind_text(id.kind))
}

/// What is in the buckets, in whole units and as of when they were looked at last.
fn rates_text(account: &PrepaidAccount) -> String {
    let text = |(id, bucket): (&RateId, &RateBucket)| {
        let units = bucket.level.div_euclid(60_000) + i64::from(bucket.level % 60_000 > 0);
        format!("{} {units}", rate_text(*id))
    };
    or_none(&account.rates.iter().map(text).collect::<Vec<_>>())
}

fn money(word: &str) -> Option<Money> {
    let nano = if word == "max" { i64::MAX } else { word.parse().ok()? };
    Money::from_nano(nano).ok()
}

fn time(word: &str) -> Option<i64> {
    if word == "never" { Some(NEVER_EXPIRES) } else { word.parse().ok() }
}

fn key_of(word: &str) -> Option<KeyId> {
    word.parse().ok().map(KeyId)
}

fn source_of(word: &str) -> Option<CreditSource> {
    match word {
        "paid" => Some(CreditSource::Paid),
        "promotion" => Some(CreditSource::Promotion),
        "voucher" => Some(CreditSource::Voucher),
        _ => None,
    }
}

fn status_of(word: &str) -> Option<KeyStatus> {
    match word {
        "active" => Some(KeyStatus::Active),
        "disabled" => Some(KeyStatus::Disabled),
        "revoked" => Some(KeyStatus::Revoked),
        _ => None,
    }
}

fn kind_of(word: &str) -> Option<WindowKind> {
    WindowKind::ALL.into_iter().find(|kind| kind_text(*kind) == word)
}

fn kind_text(kind: WindowKind) -> &'static str {
    match kind {
        WindowKind::Hour => "hour",
        WindowKind::Day => "day",
        WindowKind::Week => "week",
        WindowKind::Month => "month",
        WindowKind::Total => "total",
    }
}

fn window_text(id: WindowId) -> String {
    let owner = match id.owner {
        BudgetOwner::Account => String::new(),
        BudgetOwner::Key(KeyId(key)) => format!("{key}."),
    };
    format!("{owner}{}@{}", kind_text(id.kind), id.start)
}

fn lot_text(lot: LotId) -> String {
    let source = match lot.source {
        CreditSource::Paid => "paid",
        CreditSource::Promotion => "promotion",
        CreditSource::Voucher => "voucher",
    };
    if lot.expires_at == NEVER_EXPIRES {
        source.to_owned()
    } else {
        format!("{source}@{}", lot.expires_at)
    }
}

/// An answer as the tables write it.
pub(crate) fn answer_text(answer: &LedgerAnswer) -> String {
    let again = |again: &bool| if *again { " again" } else { "" };
    match answer {
        LedgerAnswer::Done => "done".to_owned(),
        LedgerAnswer::AlreadyDone => "exists".to_owned(),
        LedgerAnswer::Conflict => "conflict".to_owned(),
        LedgerAnswer::Held { held, .. } => format!("held {}", held.nano()),
        LedgerAnswer::HeldInPart { held } => format!("held {} in part", held.nano()),
        LedgerAnswer::HoldExists { held, open: true, .. } => format!("exists {} open", held.nano()),
        LedgerAnswer::HoldExists { held, open: false, .. } => {
            format!("exists {} ended", held.nano())
        }
        LedgerAnswer::Insufficient { available } => format!("insufficient {}", available.nano()),
        LedgerAnswer::BudgetExceeded { window, left, resets_at } => {
            let resets = resets_at.map_or("never".to_owned(), |at| at.to_string());
            format!("exceeded {} left {} resets {resets}", window_text(*window), left.nano())
        }
        LedgerAnswer::Wait => "wait".to_owned(),
        LedgerAnswer::HeldElsewhere { .. } => "held elsewhere".to_owned(),
        LedgerAnswer::RateLimited { id, retry_after_ms, .. } => {
            let retry = retry_after_ms.map_or("never".to_owned(), |ms| ms.to_string());
            format!("limited {} retry {retry}", rate_text(*id))
        }
        LedgerAnswer::Suspended => "suspended".to_owned(),
        LedgerAnswer::KeyRefused => "key refused".to_owned(),
        LedgerAnswer::Tombstoned => "tombstoned".to_owned(),
        LedgerAnswer::Posted { amount, written_off, over_budget } => {
            let over = match over_budget.nano() {
                0 => String::new(),
                over => format!(" over {over}"),
            };
            format!("posted {} lost {}{over}", amount.nano(), written_off.nano())
        }
        LedgerAnswer::AlreadyPosted(amount) => format!("already posted {}", amount.nano()),
        LedgerAnswer::Voided => "voided".to_owned(),
        LedgerAnswer::HoldEnded => "gone".to_owned(),
        LedgerAnswer::UnknownHold => "unknown".to_owned(),
        LedgerAnswer::Status(s) => {
            let tight = if s.tight { " tight" } else { "" };
            let (held, free) = (s.held.nano(), s.free.nano());
            let refused: String = s.refused_keys.iter().map(|k| format!(" not {}", k.0)).collect();
            format!("step {} last {} holds {held} free {free}{tight}{refused}", s.step, s.last_seq)
        }
        LedgerAnswer::MissingEnds { last_seq } => format!("missing after {last_seq}"),
        LedgerAnswer::AllotmentEnded { last_seq } => format!("ended last {last_seq}"),
        LedgerAnswer::UnknownAllotment => "unknown allotment".to_owned(),
        LedgerAnswer::TooMany => "too many".to_owned(),
        LedgerAnswer::TooManyLots => "too many lots".to_owned(),
        LedgerAnswer::Taken { taken, uncovered, again: once_more } => {
            let again = again(once_more);
            format!("taken {} uncovered {}{again}", taken.nano(), uncovered.nano())
        }
        LedgerAnswer::Corrected { given, again: once_more } => {
            format!("corrected {}{}", given.nano(), again(once_more))
        }
        LedgerAnswer::UnknownCharge => "unknown charge".to_owned(),
        LedgerAnswer::OutOfRange => "out of range".to_owned(),
    }
}

fn balances_text(account: &PrepaidAccount) -> String {
    let b = account.head.balances;
    format!(
        "C {} A {} H {} P {} W {}",
        b.credit.nano(),
        b.available.nano(),
        b.held.nano(),
        b.posted.nano(),
        b.written_off.nano()
    )
}

fn or_none(parts: &[String]) -> String {
    if parts.is_empty() { "none".to_owned() } else { parts.join(" ") }
}

fn lots_text(account: &PrepaidAccount) -> String {
    let lots = account.head.lots.iter();
    let text = |(id, lot): (&LotId, &tollgate::ledger::prepaid::lot::CreditLot)| {
        format!("{} {}/{}", lot_text(*id), lot.available.nano(), lot.held.nano())
    };
    or_none(&lots.map(text).collect::<Vec<_>>())
}

fn windows_text(account: &PrepaidAccount) -> String {
    let windows = account.windows.iter();
    let text = |(id, used): (&WindowId, &tollgate::ledger::prepaid::window::WindowUse)| {
        format!("{} {}/{}", window_text(*id), used.spent.nano(), used.held.nano())
    };
    or_none(&windows.map(text).collect::<Vec<_>>())
}

fn journal_text(account: &PrepaidAccount) -> String {
    let line = |line: &tollgate::ledger::prepaid::records::JournalRecord| {
        let about = match &line.kind {
            RecordKind::Charge => line.line.clone(),
            RecordKind::Correction(tx) => format!("{tx}:{}", line.request),
            RecordKind::Expiry(lot) => format!("expired:{}", lot_text(*lot)),
        };
        let over = match line.over_budget.nano() {
            0 => String::new(),
            over => format!("/{over}"),
        };
        format!("{about}={}/{}{over}", line.amount.nano(), line.written_off.nano())
    };
    or_none(&account.journal.iter().map(line).collect::<Vec<_>>())
}

fn allotment_text(account: &PrepaidAccount, id: &str) -> String {
    let Some(allotment) = account.allotments.get(&AllotmentId(id.to_owned())) else {
        return "none".to_owned();
    };
    let lots = allotment.drawn.iter().map(|(l, amount)| (lot_text(l), amount));
    let slices = allotment.slices.iter().map(|(id, amount)| (window_text(*id), *amount));
    let parts = lots.chain(slices).map(|(what, amount)| format!("{what} {}", amount.nano()));
    let rates = allotment.rates.iter().map(|(id, slice)| format!("{} {slice}", rate_text(*id)));
    let parts = parts.chain(rates);
    let state = match &allotment.state {
        AllotmentState::Open => "open",
        AllotmentState::Fenced => "fenced",
        AllotmentState::Ended { .. } => "ended",
    };
    format!("{state} {}", or_none(&parts.collect::<Vec<_>>()))
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    for bad in ["hold a 60", "hold a 60 -> held 60"] {
        assert!(read(bad).is_err(), "{bad}");
    }
    for bad in ["hold a 60", "hold a b least 1 lease 1", "update m step", "update m odd 1", "x y z"]
    {
        let case = Case { name: String::new(), lines: vec![(1, bad.to_owned(), String::new())] };
        assert!(run(PrepaidAccount::default, &[case]).is_err(), "{bad}");
    }
}
