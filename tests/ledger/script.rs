//! A small language of operations and their results: `hold a 60 least 60 lease long -> held 60`.
//!
//! A table is made of cases, `## what the case is about`, each on accounts of its own that it
//! opens itself. A word with a colon in front (`other: void x -> voided`) names another account.
//! A lease is `short`, so that the next `expire` finds it run out, or `long`.
//!
//! A budget is named by its owner and how long its windows are: `account day`, `key 7 total`. When
//! a window began is never written, since it depends on the clock.

use std::time::{Duration, UNIX_EPOCH};

use tollgate::ledger::account::Balances;
use tollgate::ledger::{
    BudgetOwner, BudgetUse, CreditLot, CreditSource, EntryKind, HoldRequest, JournalEntry, KeyId,
    LotId, NEVER_EXPIRES, OpenLot, Operation, Outcome, RateReading, WindowKind,
};
use tollgate::money::Money;

/// 1 ms: whoever sweeps waits a little longer first.
pub(crate) const SHORT_MS: u64 = 1;
/// 1 h: no test takes so long.
pub(crate) const LONG_MS: u64 = 3_600_000;

/// Now, in unix ms.
pub(crate) fn now() -> i64 {
    let since = UNIX_EPOCH.elapsed().expect("a time after 1970");
    since.as_millis().try_into().expect("a time before the sun's end")
}

/// Waits for the next hour if this one ends within `ms`, so that no window of a budget ends in the
/// course of a case.
pub(crate) async fn wait_for_room_in_the_hour(ms: i64) {
    let now = now();
    let left = WindowKind::Hour.end_of(WindowKind::Hour.start_at(now)).saturating_sub(now);
    if left < ms {
        tokio::time::sleep(Duration::from_millis(left.unsigned_abs() + 5)).await;
    }
}

/// Something to do or to look at.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Opens the account.
    Open,
    /// Does an operation.
    Apply(Operation),
    /// Waits until short leases have run out, and sweeps.
    Expire,
    /// Looks at the balances.
    Balances,
    /// Looks at the journal.
    Journal,
    /// Sets the limit of a budget, or removes it.
    SetBudget {
        /// Whose budget it is.
        owner: BudgetOwner,
        /// How long its windows are.
        kind: WindowKind,
        /// The limit.
        limit: Option<Money>,
    },
    /// Looks at the budgets.
    Budgets,
    /// Looks at the open lots beside that of payments.
    Lots,
}

/// One line of a table.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Where it stands, from 1.
    pub(crate) number: usize,
    /// Whose account it is about.
    pub(crate) account: String,
    /// What to do.
    pub(crate) action: Action,
    /// What must come of it.
    pub(crate) expected: String,
}

/// Lines that belong together.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// What it is about.
    pub(crate) name: String,
    /// What happens.
    pub(crate) lines: Vec<Line>,
}

/// Reads a table.
pub(crate) fn read(table: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, text) in (1..).zip(table.lines()) {
        if let Some(name) = text.strip_prefix("## ") {
            cases.push(Case { name: name.to_owned(), lines: Vec::new() });
        } else if !text.trim().is_empty() && !text.starts_with("# ") {
            let line =
                line(number, text).ok_or_else(|| format!("{number}: cannot read: {text}"))?;
            let case = cases.last_mut().ok_or_else(|| format!("{number}: outside of a case"))?;
            case.lines.push(line);
        }
    }
    Ok(cases)
}

fn line(number: usize, text: &str) -> Option<Line> {
    let (said, expected) = text.split_once("->")?;
    let (account, said) = said.split_once(':').unwrap_or(("main", said));
    let words: Vec<&str> = said.split_whitespace().collect();
    let action = action(&words)?;
    let (account, expected) = (account.trim().to_owned(), expected.trim().to_owned());
    Some(Line { number, account, action, expected })
}

fn action(words: &[&str]) -> Option<Action> {
    Some(match *words {
        ["open"] => Action::Open,
        ["expire"] => Action::Expire,
        ["balances"] => Action::Balances,
        ["journal"] => Action::Journal,
        ["budgets"] => Action::Budgets,
        ["lots"] => Action::Lots,
        ["budget", "account", kind, limit] => set_budget(BudgetOwner::Account, kind, limit)?,
        ["budget", "key", id, kind, limit] => set_budget(BudgetOwner::Key(key(id)?), kind, limit)?,
        _ => Action::Apply(operation(words)?),
    })
}

fn set_budget(owner: BudgetOwner, kind: &str, limit: &str) -> Option<Action> {
    let limit = if limit == "none" { None } else { Some(money(limit)?) };
    Some(Action::SetBudget { owner, kind: WindowKind::of_name(kind)?, limit })
}

fn operation(words: &[&str]) -> Option<Operation> {
    Some(match *words {
        ["credit", tx, amount] => Operation::Credit { tx: tx.to_owned(), amount: money(amount)? },
        ["grant", tx, amount, source, expiry] => {
            let lot =
                LotId { expires_at: expiry_at(expiry)?, source: CreditSource::of_name(source)? };
            Operation::Grant { tx: tx.to_owned(), amount: money(amount)?, lot }
        }
        ["take", tx, amount] => {
            let (tx, amount, reason) = (tx.to_owned(), money(amount)?, "a \"reason\"".to_owned());
            Operation::Take { tx, amount, reason }
        }
        ["correct", tx, request, amount] => correct(tx, request, money(amount)?),
        ["hold", id, wanted, "least", least, "lease", length] => {
            hold(id, [wanted, least], None, length)?
        }
        ["hold", id, wanted, "least", least, "key", of, "lease", length] => {
            hold(id, [wanted, least], Some(key(of)?), length)?
        }
        ["extend", id, wanted] => Operation::Extend { id: id.to_owned(), wanted: money(wanted)? },
        ["renew", id, "lease", length] => {
            Operation::Renew { id: id.to_owned(), lease_ms: lease_ms(length)? }
        }
        ["checkpoint", id, charge] => checkpoint(id, money(charge)?),
        ["settle", id, charge] => settle(id, money(charge)?),
        ["settle", id, charge, "origin", wanted, least] => {
            settle_even_if_lost(id, money(charge)?, origin([wanted, least], None)?)
        }
        ["settle", id, charge, "origin", wanted, least, "key", of] => {
            settle_even_if_lost(id, money(charge)?, origin([wanted, least], Some(key(of)?))?)
        }
        ["void", id] => Operation::Void { id: id.to_owned() },
        _ => return None,
    })
}

fn hold(id: &str, amounts: [&str; 2], key: Option<KeyId>, length: &str) -> Option<Operation> {
    let HoldRequest { wanted, least, .. } = origin(amounts, key)?;
    Some(Operation::Hold {
        id: id.to_owned(),
        wanted,
        least,
        lease_ms: lease_ms(length)?,
        key,
        rates: Vec::new(),
    })
}

/// The request of a hold that is made now, from the words for what is wanted and the least.
fn origin([wanted, least]: [&str; 2], key: Option<KeyId>) -> Option<HoldRequest> {
    Some(HoldRequest { wanted: money(wanted)?, least: money(least)?, at: now(), key })
}

/// A correction. All first lines of the journal are named: those of other calls are passed over.
pub(crate) fn correct(tx: &str, request: &str, amount: Money) -> Operation {
    let (tx, request) = (tx.to_owned(), request.to_owned());
    let found = (1..=100).collect();
    Operation::Correct { tx, request, found, amount, reason: "a \"reason\"".to_owned() }
}

/// The journal line of a call, which says what it is of.
fn call_line(id: &str, what: &str, charge: Money) -> String {
    let name = format!("{id}.{what}.{}", charge.nano());
    serde_json::json!({ "request_id": id, "name": name }).to_string()
}

/// Returns what a journal line is of: `CALL.WHAT.CHARGE`, `CALL!CORRECTION` or `expired:LOT`.
pub(crate) fn line_name(line: &str) -> String {
    let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { return line.to_owned() };
    let text = |name: &str| line[name].as_str().unwrap_or_default();
    if let Ok(lot) = text("expired").parse() {
        assert!(line["at"].as_i64().is_some_and(|at| at > 0), "{line}");
        return format!("expired:{}", lot_text(lot));
    }
    if line.get("corrects").is_none() {
        return line.as_str().unwrap_or(text("name")).to_owned();
    }
    let is_sound = line["at"].as_i64().is_some_and(|at| at > 0) && text("reason") == "a \"reason\"";
    assert!(is_sound, "{line}");
    format!("{}!{}", text("corrects"), text("correction"))
}

/// A checkpoint whose journal line tells where it came from.
pub(crate) fn checkpoint(id: &str, charge: Money) -> Operation {
    let line = call_line(id, "checkpoint", charge);
    Operation::Checkpoint { id: id.to_owned(), charge, line }
}

/// A settlement whose journal line tells where it came from.
pub(crate) fn settle(id: &str, charge: Money) -> Operation {
    let line = call_line(id, "settle", charge);
    Operation::Settle { id: id.to_owned(), charge, line, origin: None, tokens: None }
}

/// A settlement that counts even where the hold was lost; its line is that of any other.
pub(crate) fn settle_even_if_lost(id: &str, charge: Money, origin: HoldRequest) -> Operation {
    let mut op = settle(id, charge);
    if let Operation::Settle { origin: known, .. } = &mut op {
        *known = Some(origin);
    }
    op
}

fn money(word: &str) -> Option<Money> {
    let nano = if word == "max" { i64::MAX } else { word.parse().ok()? };
    Money::from_nano(nano).ok()
}

fn key(word: &str) -> Option<KeyId> {
    word.parse().ok().map(KeyId)
}

fn lease_ms(word: &str) -> Option<u64> {
    match word {
        "short" => Some(SHORT_MS),
        "long" => Some(LONG_MS),
        _ => None,
    }
}

/// When credit expires, in unix ms: in no test, or long ago.
pub(crate) const EXPIRIES: [(&str, i64); 4] = [
    ("past", 1_000_000_000_000),
    ("near", 3_900_000_000_000),
    ("far", 4_000_000_000_000),
    ("never", NEVER_EXPIRES),
];

fn expiry_at(word: &str) -> Option<i64> {
    let known = EXPIRIES.into_iter().find(|(name, _)| *name == word).map(|(_, at)| at);
    known.or_else(|| word.parse().ok())
}

/// A lot as the tables name it: `promotion@far`.
fn lot_text(lot: LotId) -> String {
    let word = EXPIRIES.into_iter().find(|(_, at)| *at == lot.expires_at);
    let at = word.map_or(lot.expires_at.to_string(), |(word, _)| word.to_owned());
    format!("{}@{at}", lot.source.as_str())
}

/// Open lots as the tables write them: `LOT=AVAILABLE/HELD …`.
pub(crate) fn lots_text(lots: &[OpenLot]) -> String {
    let text = |open: &OpenLot| {
        let CreditLot { available, held } = open.lot;
        format!("{}={}/{}", lot_text(open.id), available.nano(), held.nano())
    };
    match lots {
        [] => "none".to_owned(),
        _ => lots.iter().map(text).collect::<Vec<_>>().join(" "),
    }
}

/// The part of a journal line that tells which granted credit has paid: `[LOT AMOUNT,…]`.
fn paying_lots(line: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let Some(lots) = line["lots"].as_str() else { return String::new() };
    let text = |part: &str| {
        let (lot, amount) = part.split_once(' ').expect("an amount");
        format!("{} {amount}", lot_text(lot.parse().expect("a lot")))
    };
    format!("[{}]", lots.split(',').map(text).collect::<Vec<_>>().join(","))
}

/// An answer as the tables write it.
pub(crate) fn answer_text(answer: &Outcome) -> String {
    match answer {
        Outcome::Done => "done".to_owned(),
        Outcome::AlreadyDone => "exists".to_owned(),
        Outcome::Conflict => "conflict".to_owned(),
        Outcome::Held(held) => format!("held {}", held.nano()),
        Outcome::HeldWithinRates { held, rates } => {
            format!("held {} left {}", held.nano(), readings_text(rates))
        }
        Outcome::RateLimited { id, retry_after_ms, rates } => {
            let again = retry_after_ms.map_or("unknown".to_owned(), |ms| ms.to_string());
            format!("rate-limited {id} again {again} left {}", readings_text(rates))
        }
        Outcome::HeldInPart(held) => format!("held {} in part", held.nano()),
        Outcome::Wait => "wait".to_owned(),
        Outcome::HoldExists { held, open: true } => format!("exists {} open", held.nano()),
        Outcome::HoldExists { held, open: false } => format!("exists {} ended", held.nano()),
        Outcome::Insufficient(available) => format!("insufficient {}", available.nano()),
        Outcome::BudgetExceeded { window, left } => {
            let budget = budget_text(window.owner, window.kind);
            format!("budget-exceeded {budget} left {}", left.nano())
        }
        Outcome::BudgetInUse(room) => format!("budget-in-use {}", room.nano()),
        Outcome::Tombstoned => "tombstoned".to_owned(),
        Outcome::Posted { amount, written_off } => {
            format!("posted {} lost {}", amount.nano(), written_off.nano())
        }
        Outcome::AlreadyPosted(amount) => format!("already posted {}", amount.nano()),
        Outcome::Voided => "voided".to_owned(),
        Outcome::HoldEnded => "gone".to_owned(),
        Outcome::UnknownHold => "unknown".to_owned(),
        Outcome::Taken { taken, uncovered } => {
            format!("taken {} uncovered {}", taken.nano(), uncovered.nano())
        }
        Outcome::Corrected(given) => format!("corrected {}", given.nano()),
        Outcome::TooManyLots => "too many lots".to_owned(),
        Outcome::UnknownCharge => "unknown charge".to_owned(),
        Outcome::NoAccount => "no account".to_owned(),
        Outcome::AccountDeleted => "deleted".to_owned(),
        Outcome::OutOfRange => "out of range".to_owned(),
    }
}

/// What limits have left, as the tables write it: a `!` stands after one that a call is above.
fn readings_text(rates: &[RateReading]) -> String {
    let text = |reading: &RateReading| {
        let mark = if reading.is_exceeded { "!" } else { "" };
        format!("{}{mark}", reading.remaining)
    };
    rates.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// A budget as the tables name it.
fn budget_text(owner: BudgetOwner, kind: WindowKind) -> String {
    match owner {
        BudgetOwner::Account => format!("account {}", kind.name()),
        BudgetOwner::Key(KeyId(key)) => format!("key {key} {}", kind.name()),
    }
}

/// Balances as the tables write them.
pub(crate) fn balances_text(balances: Option<Balances>) -> String {
    let Some(b) = balances else { return "none".to_owned() };
    format!(
        "credit {} available {} held {} posted {} lost {}",
        b.credit.nano(),
        b.available.nano(),
        b.held.nano(),
        b.posted.nano(),
        b.written_off.nano()
    )
}

/// A journal as the tables write it: `LINE=AMOUNT/WRITTEN_OFF[LOT AMOUNT,…] …`; the amounts of a
/// correction have a minus, and lots are told only where granted credit has paid.
pub(crate) fn journal_text(journal: &[JournalEntry]) -> String {
    let counted = (1..).zip(journal).all(|(seq, entry)| entry.seq == seq);
    let entry = |e: &JournalEntry| {
        let sign = if e.kind == EntryKind::Correction { "-" } else { "" };
        let name = line_name(&e.line);
        let lots = paying_lots(&e.line);
        format!("{name}={sign}{}/{sign}{}{lots}", e.amount.nano(), e.written_off.nano())
    };
    match journal {
        [] => "none".to_owned(),
        _ if !counted => format!("badly numbered: {journal:?}"),
        _ => journal.iter().map(entry).collect::<Vec<_>>().join(" "),
    }
}

/// Budgets as the tables write them: `BUDGET=SPENT/HELD/LIMIT, …`.
pub(crate) fn budgets_text(budgets: &[BudgetUse]) -> String {
    let is_named = |b: &BudgetUse| (b.owner, b.kind) == (b.window.owner, b.window.kind);
    let is_lent = |b: &BudgetUse| b.used.lent > Money::ZERO;
    let entry = |b: &BudgetUse| {
        let limit = b.limit.map_or("none".to_owned(), |limit| limit.nano().to_string());
        let (spent, held) = (b.used.spent.nano(), b.used.held.nano());
        format!("{}={spent}/{held}/{limit}", budget_text(b.owner, b.kind))
    };
    match budgets {
        [] => "none".to_owned(),
        _ if !budgets.iter().all(is_named) => format!("badly named: {budgets:?}"),
        _ if budgets.iter().any(is_lent) => format!("lent by nobody: {budgets:?}"),
        _ => budgets.iter().map(entry).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    for bad in [
        "hold a 60",
        "## x\nhold a 60 -> held 60",
        "## x\nvoid a",
        "open -> new",
        "## x\nbudget account day -> set",
        "## x\nbudget account year 5 -> set",
        "## x\nbudget key x day 5 -> set",
        "## x\nhold a 60 least 60 key x lease long -> held 60",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}
