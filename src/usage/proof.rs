//! Proves the books of an account: the roll-ups are the sums of the lines that were folded, and the
//! balances those of all lines.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use super::books::UsageBooks;
use super::fold::{PostedEntry, fold};
use super::rollup::{
    PeriodKind, ROLLUP_FIELDS, RollupKey, RollupOwner, RollupSums, Rollups, UsageOverflow,
    merge_rollups,
};
use crate::ledger::KeyId;

/// The proof of the books of an account, while its journal is read.
#[derive(Debug)]
pub(crate) struct BooksProof {
    books: UsageBooks,
    /// The sums by day of the lines that were folded.
    folded_days: Rollups,
    /// The sums of all lines.
    totals: RollupSums,
    /// The number of the last line that was read.
    last: u64,
}

/// The first thing in the books that does not add up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BooksDifference {
    /// A line is not there, though a later one is, or the sums say that they have it.
    Line { seq: u64 },
    /// A sum of a row is not that of the lines.
    Row { key: Box<RollupKey>, field: &'static str, rolled_up: i64, journal: i64 },
    /// A balance is not the sum of the lines.
    Balance { field: &'static str, balance: i64, journal: i64 },
}

impl BooksProof {
    pub(crate) fn new(books: UsageBooks) -> BooksProof {
        let (folded_days, totals) = (Rollups::new(), RollupSums::default());
        BooksProof { books, folded_days, totals, last: 0 }
    }

    /// Returns the number of the line after which more are to be read; `None` if all have been.
    pub(crate) fn next(&self) -> Option<u64> {
        (self.last < self.books.lines).then_some(self.last)
    }

    /// Takes the next lines of the journal. Lines after the moment of the books are left out.
    /// Returns what is missing, if something is.
    pub(crate) fn push(
        &mut self,
        entries: &[PostedEntry],
    ) -> Result<Option<BooksDifference>, UsageOverflow> {
        if entries.is_empty() {
            return Ok(Some(BooksDifference::Line { seq: self.last.saturating_add(1) }));
        }
        for posted in entries.iter().filter(|posted| posted.entry.seq <= self.books.lines) {
            let expected = self.last.saturating_add(1);
            if posted.entry.seq != expected {
                return Ok(Some(BooksDifference::Line { seq: expected }));
            }
            self.last = expected;
            let mut rows = fold(std::slice::from_ref(posted))?;
            rows.retain(|key, _| key.period.kind == PeriodKind::Day);
            for sums in of_account(&rows) {
                self.totals = self.totals.checked_add(sums)?;
            }
            if posted.entry.seq <= self.books.folded {
                merge_rollups(&mut self.folded_days, rows)?;
            }
        }
        Ok(None)
    }

    /// Compares the books with the lines that were read. Returns the first difference.
    pub(crate) fn finish(&self) -> Result<Option<BooksDifference>, UsageOverflow> {
        if self.books.folded > self.books.lines {
            return Ok(Some(BooksDifference::Line { seq: self.books.folded }));
        }
        let none = RollupSums::default();
        for key in self.books.days.keys().chain(self.folded_days.keys()) {
            let rolled_up = self.books.days.get(key).unwrap_or(&none).to_values()?;
            let journal = self.folded_days.get(key).unwrap_or(&none).to_values()?;
            let fields = ROLLUP_FIELDS.into_iter().zip(rolled_up.into_iter().zip(journal));
            for (field, (rolled_up, journal)) in fields {
                if rolled_up != journal {
                    let key = Box::new(key.clone());
                    return Ok(Some(BooksDifference::Row { key, field, rolled_up, journal }));
                }
            }
        }
        let RollupSums { charged, corrected, written_off, corrected_written_off, .. } = self.totals;
        let UsageBooks { posted, written_off: debt, .. } = self.books;
        let balances = [
            ("posted", posted, charged, corrected),
            ("written_off", debt, written_off, corrected_written_off),
        ];
        for (field, balance, more, less) in balances {
            let balance = balance.nano();
            let journal = more.nano().saturating_sub(less.nano());
            if balance != journal {
                return Ok(Some(BooksDifference::Balance { field, balance, journal }));
            }
        }
        Ok(None)
    }

    /// Returns the number of lines of the journal, and of those that were folded.
    pub(crate) fn lines(&self) -> (u64, u64) {
        (self.books.lines, self.books.folded)
    }
}

/// Returns the sums of the rows of the whole account.
fn of_account(rows: &Rollups) -> impl Iterator<Item = &RollupSums> {
    rows.iter().filter(|(key, _)| key.owner == RollupOwner::Account).map(|(_, sums)| sums)
}

impl fmt::Display for BooksDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BooksDifference::Line { seq } => write!(f, "line {seq} of the journal is missing"),
            BooksDifference::Row { key, field, rolled_up, journal } => {
                let RollupKey { period, owner, model, endpoint } = &**key;
                let owner = match owner {
                    RollupOwner::Account => "all keys".to_owned(),
                    RollupOwner::NoKey => "no key".to_owned(),
                    RollupOwner::Key(KeyId(id)) => format!("key {id}"),
                };
                write!(
                    f,
                    "{field} of the {} that began at {} ms, {owner}, model '{model}', endpoint \
                     '{endpoint}': the roll-up says {rolled_up}, the journal {journal}",
                    period.kind.name(),
                    period.start,
                )
            }
            BooksDifference::Balance { field, balance, journal } => {
                write!(f, "{field}: the balance says {balance}, the journal {journal} nano-USD")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{EntryKind, JournalEntry};
    use crate::money::Money;

    fn nano(amount: i64) -> Money {
        Money::from_nano(amount).expect("money")
    }

    fn entry(seq: u64, kind: EntryKind, amount: i64, written_off: i64) -> PostedEntry {
        let (amount, written_off) = (nano(amount), nano(written_off));
        let line = r#"{"at":1,"model":"m","endpoint":"chat"}"#.to_owned();
        PostedEntry {
            entry: JournalEntry { seq, kind, amount, written_off, line },
            posted_at: None,
        }
    }

    fn journal() -> Vec<PostedEntry> {
        vec![
            entry(1, EntryKind::Charge, 50, 20),
            entry(2, EntryKind::Correction, 10, 5),
            entry(3, EntryKind::Expiry, 99, 0),
            entry(4, EntryKind::Charge, 7, 0),
        ]
    }

    /// The books of that journal, of which so many lines were folded.
    fn books(folded: usize) -> UsageBooks {
        let mut days = fold(&journal()[..folded]).expect("sums");
        days.retain(|key, _| key.period.kind == PeriodKind::Day);
        let (posted, written_off) = (nano(47), nano(15));
        let folded = u64::try_from(folded).expect("a number");
        UsageBooks { folded, lines: 4, posted, written_off, days }
    }

    fn proved(books: UsageBooks, lines: &[PostedEntry]) -> Option<BooksDifference> {
        let mut proof = BooksProof::new(books);
        while let Some(after) = proof.next() {
            let left = lines.iter().filter(|line| line.entry.seq > after).take(3);
            let missing = proof.push(&left.cloned().collect::<Vec<_>>()).expect("sums");
            if missing.is_some() {
                return missing;
            }
        }
        proof.finish().expect("sums")
    }

    #[test]
    fn books_that_add_up_are_proved_however_far_they_are_folded() {
        let mut lines = journal();
        lines.push(entry(5, EntryKind::Charge, 1_000, 0));
        for folded in 0..=4 {
            assert_eq!(proved(books(folded), &lines), None, "{folded}");
        }
        let (posted, written_off, days) = (Money::ZERO, Money::ZERO, Rollups::new());
        let empty = UsageBooks { folded: 0, lines: 0, posted, written_off, days };
        assert_eq!(proved(empty, &lines), None, "the line after the moment is left out");
    }

    #[test]
    fn the_first_difference_is_told() {
        let told = |books, lines: &[PostedEntry]| proved(books, lines).map(|why| why.to_string());
        let mut wrong = books(4);
        wrong.posted = nano(48);
        let expected = "posted: the balance says 48, the journal 47 nano-USD";
        assert_eq!(told(wrong, &journal()).as_deref(), Some(expected));
        let mut wrong = books(4);
        wrong.written_off = nano(0);
        let expected = "written_off: the balance says 0, the journal 15 nano-USD";
        assert_eq!(told(wrong, &journal()).as_deref(), Some(expected));
        let mut wrong = books(4);
        wrong.days.values_mut().last().expect("a row").charged = nano(58);
        let expected = "charged of the day that began at 0 ms, no key, model 'm', endpoint 'chat': \
                        the roll-up says 58, the journal 57";
        assert_eq!(told(wrong, &journal()).as_deref(), Some(expected));
        let mut wrong = books(4);
        wrong.days.clear();
        assert!(matches!(proved(wrong, &journal()), Some(BooksDifference::Row { .. })));
        let mut lines = journal();
        lines.remove(1);
        let expected = "line 2 of the journal is missing";
        assert_eq!(told(books(4), &lines).as_deref(), Some(expected));
        let expected = "line 4 of the journal is missing";
        assert_eq!(told(books(4), &journal()[..3]).as_deref(), Some(expected));
        let folded_on = UsageBooks { folded: 5, ..books(4) };
        assert!(matches!(proved(folded_on, &journal()), Some(BooksDifference::Line { seq: 5 })));
    }
}
