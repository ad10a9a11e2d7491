//! Statements of months of events, as a store would tell them.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::ledger::{EntryKind, JournalEntry, TransferEntry, TransferType};
use crate::money::Money;
use crate::usage::{PeriodKind, PostedEntry, RollupOwner, fold};

const DAY: i64 = 86_400_000;

fn nano(nano: i64) -> Money {
    Money::from_nano(nano).expect("money")
}

fn month(text: &str) -> StatementMonth {
    StatementMonth::parse(text).expect("a month")
}

fn account() -> AccountName {
    AccountName::parse("acme").expect("a name")
}

/// What happened to an account.
#[derive(Debug, Clone, Default)]
struct History {
    transfers: Vec<TransferEntry>,
    lines: Vec<PostedEntry>,
}

impl History {
    fn transfer(&mut self, kind: TransferType, amount: i64, at: Option<i64>) {
        let (tx, amount) = (self.transfers.len().to_string(), nano(amount));
        let (moved, lot, request, reason) = (Some(amount), None, None, String::new());
        self.transfers.push(TransferEntry { tx, kind, amount, moved, at, lot, request, reason });
    }

    fn line(&mut self, kind: EntryKind, amounts: [i64; 2], line: String, at: Option<i64>) {
        let seq = u64::try_from(self.lines.len()).expect("a number") + 1;
        let [amount, written_off] = amounts.map(nano);
        let entry = JournalEntry { seq, kind, amount, written_off, line };
        self.lines.push(PostedEntry { entry, posted_at: at });
    }

    fn charge(&mut self, model: &str, version: &str, amounts: [i64; 2], at: i64) {
        let line = serde_json::json!({
            "at": 1, "model": model, "endpoint": "chat", "price_version": version,
            "usage": { "prompt_tokens": 10, "completion_tokens": 2 },
        });
        self.line(EntryKind::Charge, amounts, line.to_string(), Some(at));
    }

    fn correction(&mut self, amounts: [i64; 2], at: i64) {
        let line = r#"{"corrects":"r","correction":"t","reason":"","at":1}"#.to_owned();
        self.line(EntryKind::Correction, amounts, line, Some(at));
        self.transfer(TransferType::Correction, amounts[0], Some(at));
    }

    fn expiry(&mut self, amount: i64, at: i64) {
        let line = r#"{"expired":"5/promotion","at":1}"#.to_owned();
        self.line(EntryKind::Expiry, [amount, 0], line, Some(at));
    }

    fn books(&self) -> StatementBooks {
        let mut days = fold(&self.lines).expect("sums");
        days.retain(|key, _| {
            key.period.kind == PeriodKind::Day && key.owner == RollupOwner::Account
        });
        StatementBooks {
            lines: u64::try_from(self.lines.len()).expect("a number"),
            days: days.into_iter().collect(),
            transfers: self.transfers.clone(),
        }
    }

    /// Makes a statement, out of pages of three lines.
    fn statement(
        &self,
        of: StatementMonth,
        is_over: bool,
        sealed: &[Statement],
    ) -> Result<Statement, StatementFault> {
        let draft = StatementDraft::new(&account(), of, is_over, &self.books(), sealed)?;
        let mut lines = StatementLines::new(draft.range());
        for page in self.lines.chunks(3) {
            lines.push(page)?;
        }
        let statement = draft.finish(&lines).or_else(|_| draft.finish_with_all(&lines))?;
        assert_eq!(Statement::parse(&statement.to_json()), Ok(statement.clone()));
        Ok(statement)
    }

    fn sealed(&self, of: &str, before: &[Statement]) -> Statement {
        self.statement(month(of), true, before).expect("a statement")
    }
}

/// A statement of November with something of everything.
fn november() -> (History, Statement) {
    let (october, start) = (month("2026-10").start(), month("2026-11").start());
    let mut history = History::default();
    history.transfer(TransferType::Payment, 500, None);
    history.transfer(TransferType::Payment, 100, Some(october));
    history.charge("a", "p0", [10, 0], october + DAY);
    history.transfer(TransferType::Payment, 1_000, Some(start));
    history.transfer(TransferType::Grant, 200, Some(start + DAY));
    history.transfer(TransferType::Refund, 50, Some(start + 2 * DAY));
    history.transfer(TransferType::Refund, 70, Some(start + 2 * DAY));
    history.transfers.last_mut().expect("one").moved = None;
    history.expiry(30, start + 3 * DAY);
    history.charge("a", "p1", [40, 0], start + DAY);
    history.charge("a", "p2", [7, 0], start + 4 * DAY);
    history.charge("b", "p1", [90, 60], start + 5 * DAY);
    history.correction([35, 20], start + 6 * DAY);
    // Of December.
    history.charge("b", "p1", [3, 0], month("2026-12").start());
    history.transfer(TransferType::Payment, 9, Some(month("2026-12").start()));
    let told = history.statement(month("2026-11"), true, &[]).expect("a statement");
    (history, told)
}

fn view_of(statement: Statement, is_sealed: bool) -> StatementView {
    let json = statement.to_json();
    let sha256 = digest_of(&json);
    let seal = StatementSeal { number: 7, sealed_at: month("2026-12").start() + 1_000, sha256 };
    let as_of = month("2026-12").start();
    StatementView { statement, json, seal: is_sealed.then_some(seal), as_of }
}

#[test]
fn a_statement_has_all_that_happened_in_its_month() {
    let (_, told) = november();
    let sums = told.month_totals.values().map(Money::nano);
    assert_eq!(sums, [1_000, 200, 50, 30, 137, 35, 60, 20]);
    assert_eq!((told.opening, told.closing), (590, 590 + 1_000 + 200 - 50 - 30 - 137 + 35 + 40));
    let models = told.models.iter().map(|model| {
        let versions: Vec<&str> = model.price_versions.iter().map(String::as_str).collect();
        (model.model.as_str(), model.calls, model.prompt_tokens, model.charged.nano(), versions)
    });
    let expected = [("a", 2, 20, 47, vec!["p1", "p2"]), ("b", 1, 10, 90, vec!["p1"])];
    assert_eq!(models.collect::<Vec<_>>(), expected);
    assert_eq!((told.from.as_str(), told.to.as_str()), ("2026-11-01", "2026-12-01"));
    assert_eq!(told.journal_lines, 7);
}

#[test]
fn what_comes_after_the_seal_is_in_the_next_month() {
    let (mut history, told) = november();
    let start = month("2026-11").start();
    history.correction([5, 0], start + 9 * DAY);
    history.charge("c", "p9", [11, 0], start + 9 * DAY);
    history.transfer(TransferType::Payment, 2, Some(start));
    history.transfer(TransferType::Payment, 1, None);
    // The refund that waited.
    history.transfers[5].moved = Some(nano(70));
    let sealed = [told];
    let next = history.sealed("2026-12", &sealed);
    assert_eq!(next.opening, sealed[0].closing);
    let sums = next.month_totals.values().map(Money::nano);
    assert_eq!(sums, [9 + 2 + 1, 0, 70, 0, 3 + 11, 5, 0, 0]);
    let charged: Vec<_> =
        next.models.iter().map(|m| (m.model.as_str(), m.charged.nano())).collect();
    assert_eq!(charged, [("b", 3), ("c", 11)]);
    let all = history.books().totals_before(i64::MAX).expect("sums");
    assert_eq!(Ok(next.closing), all.closing(0));
}

#[test]
fn a_month_with_nothing_in_it_closes_as_it_opened() {
    let (history, told) = november();
    let december = history.sealed("2026-12", std::slice::from_ref(&told));
    let quiet = history.sealed("2027-01", &[told, december.clone()]);
    assert_eq!((quiet.opening, quiet.closing), (december.closing, december.closing));
    assert!(quiet.models.is_empty());
    let of_nobody = History::default().statement(month("2026-11"), false, &[]);
    assert_eq!(of_nobody.expect("a statement").closing, 0);
}

#[test]
fn a_month_that_runs_has_what_follows_it_by_a_wrong_clock_as_well() {
    let (history, _) = november();
    let running = history.statement(month("2026-11"), false, &[]).expect("a statement");
    let all = history.books().totals_before(i64::MAX).expect("sums");
    assert_eq!(Ok(running.closing), all.closing(0));
}

#[test]
fn lines_that_do_not_have_the_sums_of_the_roll_ups_make_no_statement() {
    let (history, _) = november();
    let draft = StatementDraft::new(&account(), month("2026-11"), true, &history.books(), &[]);
    let draft = draft.expect("a draft");
    for (change, told) in [
        (0, "charged of model 'a': the roll-ups say 47, the journal 48"),
        (1, "calls of model 'a': the roll-ups say 2, the journal 1"),
        (2, "written_off: the roll-ups say 60, the journal 61 nano-USD"),
        (3, "corrections_not_paid: the roll-ups say 20, the journal 19 nano-USD"),
        (4, "expiries: the roll-ups say 30, the journal 31 nano-USD"),
    ] {
        let mut wrong = history.clone();
        match change {
            0 => wrong.lines[2].entry.amount = nano(41),
            1 => drop(wrong.lines.remove(2)),
            2 => wrong.lines[4].entry.written_off = nano(61),
            3 => wrong.lines[5].entry.written_off = nano(19),
            _ => wrong.lines[1].entry.amount = nano(31),
        }
        let mut lines = StatementLines::new(draft.range());
        lines.push(&wrong.lines).expect("sums");
        let why = draft.finish(&lines).expect_err("refused").to_string();
        assert_eq!(why, told);
    }
}

#[test]
fn books_that_lost_what_was_told_make_no_statement() {
    let (mut history, told) = november();
    history.transfers.remove(2);
    let why = history.statement(month("2026-12"), true, &[told]).expect_err("refused").to_string();
    let expected = "payments: the statements of earlier months tell 1600 nano-USD, and the books \
                    have 609";
    assert_eq!(why, expected);
}

#[test]
fn books_are_compared_with_the_balances() {
    let (history, _) = november();
    let right = BooksCredit {
        credit: nano(500 + 100 + 1_000 + 9 + 200 - 50 - 30),
        posted: nano(10 + 137 + 3 - 35),
        written_off: nano(40),
    };
    let books = history.books();
    assert_eq!(books.compare(right), Ok(()));
    for (wrong, name) in [
        (BooksCredit { credit: nano(1), ..right }, "credit"),
        (BooksCredit { posted: nano(1), ..right }, "posted"),
        (BooksCredit { written_off: nano(1), ..right }, "written off"),
    ] {
        let why = books.compare(wrong).expect_err("they differ").to_string();
        assert!(why.starts_with(&format!("{name}: the balance says 1 and")), "{why}");
    }
    assert_eq!(books.first_month(), Some(month("2026-10")));
    let mut undated = History::default();
    undated.transfer(TransferType::Payment, 5, None);
    undated.line(EntryKind::Charge, [1, 0], "no JSON".to_owned(), None);
    assert_eq!(undated.books().first_month(), None);
}

/// An event: its kind, its amount, its day, and how many months later the store gets to know it.
type Event = (u8, i64, i64, usize);

fn events() -> impl Strategy<Value = Vec<Event>> {
    let late = prop_oneof![6 => Just(0_usize), 1 => 1..3_usize];
    let of_months = (0..8_u8, 0..1_000_i64, 0..120_i64, late);
    // A clock was wrong after the first statement.
    let of_before = (0..8_u8, 0..1_000_i64, -90..0_i64, 1..5_usize);
    prop::collection::vec(prop_oneof![8 => of_months, 1 => of_before], 0..40)
}

fn add_event(history: &mut History, event: Event) {
    let (kind, amount, day, _) = event;
    let at = month("2026-09").start() + day * DAY + 3_600_000 * (day % 24);
    let part = amount / 3;
    match kind {
        0 => history.transfer(TransferType::Payment, amount, Some(at)),
        1 => history.transfer(TransferType::Grant, amount, Some(at)),
        2 => history.transfer(TransferType::Refund, amount, Some(at)),
        3 => history.transfer(TransferType::Payment, amount, None),
        4 => history.expiry(amount, at),
        5 => history.correction([amount, part], at),
        _ => history.charge(["a", "b"][usize::from(kind % 2)], "p", [amount, part], at),
    }
}

proptest! {
    /// Whatever happens, and however late the store gets to know it: each statement opens with the
    /// closing of the one before, and the last one closes with A + H.
    #[test]
    fn statements_chain_and_add_up_to_what_is_there(events in events()) {
        let first = month("2026-09");
        let (mut sealed, mut of) = (Vec::<Statement>::new(), first);
        let month_of = |event: &Event| {
            let mut number = 0;
            let at = first.start() + event.2 * DAY;
            let mut counted = first;
            while counted.end() <= at {
                (number, counted) = (number + 1, counted.next());
            }
            number + event.3
        };
        let mut history = History::default();
        for number in 0..6 {
            // The order in which they come is not that of their days.
            for event in events.iter().filter(|event| month_of(event) == number) {
                add_event(&mut history, *event);
            }
            let running = history.statement(of, false, &sealed).expect("so far");
            let all = history.books().totals_before(i64::MAX).expect("sums");
            prop_assert_eq!(Ok(running.closing), all.closing(0));
            let told = history.statement(of, true, &sealed).expect("a statement");
            if let Some(before) = sealed.last() {
                prop_assert_eq!(told.opening, before.closing);
            }
            let items: i64 = {
                let view = view_of(told.clone(), true);
                let items = view.items();
                items[..items.len() - 1].iter().map(|item| item.nano).sum()
            };
            prop_assert_eq!(items, told.closing);
            sealed.push(told);
            of = of.next();
        }
        let all = history.books().totals_before(i64::MAX).expect("sums");
        prop_assert_eq!(sealed.last().map(|last| last.closing), all.closing(0).ok());
        let calls: u64 = sealed.iter().flat_map(|one| &one.models).map(|model| model.calls).sum();
        let charges = history.lines.iter().filter(|line| line.entry.kind == EntryKind::Charge);
        prop_assert_eq!(calls, u64::try_from(charges.count()).expect("a number"));
    }
}

#[test]
fn the_json_is_one_line_of_amounts_that_are_exact() {
    let (_, told) = november();
    let view = view_of(told, true);
    let text = write_view(&view);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let told = &json["statement"];
    assert_eq!((&json["number"], &json["sealed"]), (&Value::from(7), &Value::from(true)));
    assert_eq!(
        (&told["closing_nano"], &told["closing_usd"]),
        (&1_648.into(), &"0.000001648".into())
    );
    assert_eq!(told["models"][0]["charged_nano"], 47);
    assert_eq!(told["since_opened"]["payments_nano"], 1_600);
    // The digest is that of the bytes of the member.
    let (_, member) = text.split_once(r#""statement":"#).expect("a member");
    let member = member.strip_suffix('}').expect("the end");
    assert_eq!(json["sha256"], digest_of(member));
    assert_eq!(member, view.json);
    assert!(!text.contains('\n'));
    let running: Value =
        serde_json::from_str(&write_view(&StatementView { seal: None, ..view })).expect("JSON");
    assert_eq!((&running["number"], &running["sealed"]), (&Value::Null, &Value::from(false)));
}

#[test]
fn the_text_has_its_amounts_below_each_other() {
    let (_, told) = november();
    let shown = write_text(&view_of(told.clone(), true));
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "statement  acme  2026-11  (from 2026-11-01 until 2026-12-01, UTC)");
    assert_eq!(lines[1], "number     7, sealed 2026-12-01T00:00:01Z");
    let points = lines[4..].iter().map(|line| line.find('.').expect("a point"));
    let points: std::collections::BTreeSet<usize> = points.collect();
    assert_eq!(points.len(), 1, "{shown}");
    assert!(shown.contains("charges"), "{shown}");
    assert!(shown.contains("2 calls, 20+4 tokens"), "{shown}");
    assert!(shown.contains("prices p1 p2"), "{shown}");
    let so_far = write_text(&view_of(told, false));
    assert!(so_far.contains("so far, at 2026-12-01T00:00:00Z; not sealed"), "{so_far}");
}

#[test]
fn the_csv_has_a_row_for_each_item() {
    let (_, told) = november();
    let csv = write_csv(&view_of(told, true));
    let rows: Vec<&str> = csv.lines().collect();
    let columns = rows[0].split(',').count();
    assert!(rows.iter().all(|row| row.split(',').count() == columns), "{csv}");
    assert_eq!(rows.len(), 1 + 7 + 2 + 1);
    assert_eq!(rows[1], "acme,2026-11,sealed,7,opening,,,,,,,,,,590,0.00000059");
    assert_eq!(rows[6], "acme,2026-11,sealed,7,charges,a,2,20,4,0,0,0,0,p1 p2,-47,-0.000000047");
}

#[test]
fn names_of_models_do_nothing_in_a_spreadsheet_a_browser_or_a_terminal() {
    let start = month("2026-11").start();
    let mut history = History::default();
    history.transfer(TransferType::Payment, 100, Some(start));
    for name in ["=HYPERLINK(\"http://x\",\"a\")", "<script>alert('x')&amp;</script>", "\u{1b}[2Jm"]
    {
        history.charge(name, "=1+1", [1, 0], start);
    }
    let told = history.statement(month("2026-11"), true, &[]).expect("a statement");
    let view = view_of(told, true);
    let csv = write_csv(&view);
    assert!(csv.contains(",\"'=HYPERLINK(\"\"http://x\"\",\"\"a\"\")\","), "{csv}");
    assert!(csv.contains(",'=1+1,"), "{csv}");
    assert!(!csv.contains(",=") && !csv.contains(",\"="), "{csv}");
    let html = write_html(&view);
    assert!(!html.contains("<script") && !html.contains("'x'"), "{html}");
    assert!(html.contains("&lt;script&gt;alert(&#39;x&#39;)&amp;amp;&lt;/script&gt;"), "{html}");
    for needed in ["<!doctype html>", "<html lang=\"en\">", "<th scope=\"col\">", "size: A4"] {
        assert!(html.contains(needed), "{needed}");
    }
    for outside in ["src=", "href=", "url(", "@import"] {
        assert!(!html.contains(outside), "{outside}");
    }
    for shown in [write_text(&view), html] {
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}
