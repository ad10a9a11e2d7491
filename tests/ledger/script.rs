//! A small language of operations and their results: `hold a 60 least 60 lease long -> held 60`.
//!
//! A table is made of cases, `## what the case is about`, each on accounts of its own that it
//! opens itself. A word with a colon in front (`other: void x -> voided`) names another account.
//! A lease is `short`, so that the next `expire` finds it run out, or `long`.

use std::time::UNIX_EPOCH;

use tollgate::ledger::account::Balances;
use tollgate::ledger::{HoldRequest, JournalEntry, Operation, Outcome};
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
        _ => Action::Apply(operation(words)?),
    })
}

fn operation(words: &[&str]) -> Option<Operation> {
    Some(match *words {
        ["credit", tx, amount] => Operation::Credit { tx: tx.to_owned(), amount: money(amount)? },
        ["hold", id, wanted, "least", least, "lease", length] => Operation::Hold {
            id: id.to_owned(),
            wanted: money(wanted)?,
            least: money(least)?,
            lease_ms: lease_ms(length)?,
        },
        ["extend", id, wanted] => Operation::Extend { id: id.to_owned(), wanted: money(wanted)? },
        ["renew", id, "lease", length] => {
            Operation::Renew { id: id.to_owned(), lease_ms: lease_ms(length)? }
        }
        ["checkpoint", id, charge] => checkpoint(id, money(charge)?),
        ["settle", id, charge] => settle(id, money(charge)?),
        ["settle", id, charge, "origin", wanted, least] => {
            let origin = HoldRequest { wanted: money(wanted)?, least: money(least)?, at: now() };
            settle_even_if_lost(id, money(charge)?, origin)
        }
        ["void", id] => Operation::Void { id: id.to_owned() },
        _ => return None,
    })
}

/// A checkpoint whose journal line tells where it came from.
pub(crate) fn checkpoint(id: &str, charge: Money) -> Operation {
    let line = format!("\"{id}.checkpoint.{}\"", charge.nano());
    Operation::Checkpoint { id: id.to_owned(), charge, line }
}

/// A settlement whose journal line tells where it came from.
pub(crate) fn settle(id: &str, charge: Money) -> Operation {
    let line = format!("\"{id}.settle.{}\"", charge.nano());
    Operation::Settle { id: id.to_owned(), charge, line, origin: None }
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

fn lease_ms(word: &str) -> Option<u64> {
    match word {
        "short" => Some(SHORT_MS),
        "long" => Some(LONG_MS),
        _ => None,
    }
}

/// An answer as the tables write it.
pub(crate) fn answer_text(answer: &Outcome) -> String {
    match answer {
        Outcome::Done => "done".to_owned(),
        Outcome::AlreadyDone => "exists".to_owned(),
        Outcome::Conflict => "conflict".to_owned(),
        Outcome::Held(held) => format!("held {}", held.nano()),
        Outcome::HeldInPart(held) => format!("held {} in part", held.nano()),
        Outcome::Wait => "wait".to_owned(),
        Outcome::HoldExists { held, open: true } => format!("exists {} open", held.nano()),
        Outcome::HoldExists { held, open: false } => format!("exists {} ended", held.nano()),
        Outcome::Insufficient(available) => format!("insufficient {}", available.nano()),
        Outcome::Tombstoned => "tombstoned".to_owned(),
        Outcome::Posted { amount, written_off } => {
            format!("posted {} lost {}", amount.nano(), written_off.nano())
        }
        Outcome::AlreadyPosted(amount) => format!("already posted {}", amount.nano()),
        Outcome::Voided => "voided".to_owned(),
        Outcome::HoldEnded => "gone".to_owned(),
        Outcome::UnknownHold => "unknown".to_owned(),
        Outcome::NoAccount => "no account".to_owned(),
        Outcome::OutOfRange => "out of range".to_owned(),
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

/// A journal as the tables write it: `LINE=AMOUNT/WRITTEN_OFF …`.
pub(crate) fn journal_text(journal: &[JournalEntry]) -> String {
    let counted = (1..).zip(journal).all(|(seq, entry)| entry.seq == seq);
    let entry = |e: &JournalEntry| {
        let line = e.line.trim_matches('"');
        format!("{line}={}/{}", e.amount.nano(), e.written_off.nano())
    };
    match journal {
        [] => "none".to_owned(),
        _ if !counted => format!("badly numbered: {journal:?}"),
        _ => journal.iter().map(entry).collect::<Vec<_>>().join(" "),
    }
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    for bad in ["hold a 60", "## x\nhold a 60 -> held 60", "## x\nvoid a", "open -> new"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}
