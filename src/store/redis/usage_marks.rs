//! Which accounts may have lines that are not in the sums. A process marks the accounts of which it
//! changes something, and looks at all accounts from time to time: another process, such as a
//! command or one that died, marks none here.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::ledger::AccountName;

/// All accounts are looked at once in this time, or more rarely if there are very many.
const ROUND_MIN: Duration = Duration::from_secs(60);
/// The time between two looks at some accounts.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The marks of a process, and how far its look at all accounts is. Its connections share it.
#[derive(Default)]
pub(in crate::store) struct UsageMarks(Mutex<MarkedAccounts>);

#[derive(Default)]
struct MarkedAccounts {
    names: BTreeSet<AccountName>,
    /// The last account that was taken: those after it have their turn first.
    taken: Option<AccountName>,
    look: Look,
}

/// How far the look at all accounts is.
#[derive(Default)]
struct Look {
    /// The cursor of SSCAN; 0 if no round is under way.
    cursor: u64,
    /// When the next accounts are looked at; `None` for at once.
    next: Option<Instant>,
    /// When the round has begun.
    begun: Option<Instant>,
}

impl UsageMarks {
    fn lock(&self) -> MutexGuard<'_, MarkedAccounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks an account.
    pub(in crate::store) fn add(&self, account: &AccountName) {
        let mut marked = self.lock();
        if !marked.names.contains(account) {
            marked.names.insert(account.clone());
        }
    }

    /// Takes the account whose turn it is; `None` if none is marked.
    pub(super) fn take(&self) -> Option<AccountName> {
        let mut marked = self.lock();
        let MarkedAccounts { names, taken, .. } = &mut *marked;
        let after = taken.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let next = names.range((after, Bound::Unbounded)).next().or_else(|| names.first());
        let next = next.cloned()?;
        names.remove(&next);
        *taken = Some(next.clone());
        Some(next)
    }

    /// Returns the number of marked accounts.
    pub(super) fn len(&self) -> usize {
        self.lock().names.len()
    }

    /// Returns the cursor from which some accounts are to be looked at now; `None` if it is too
    /// early.
    pub(super) fn begin_look(&self, now: Instant) -> Option<u64> {
        let look = &mut self.lock().look;
        if look.next.is_some_and(|next| now < next) {
            return None;
        }
        look.next = Some(now + LOOK_INTERVAL);
        if look.cursor == 0 {
            look.begun = Some(now);
        }
        Some(look.cursor)
    }

    /// Notes where the next look begins. After the last accounts it is 0, and a round is over.
    pub(super) fn end_look(&self, cursor: u64) {
        let look = &mut self.lock().look;
        look.cursor = cursor;
        if cursor == 0 {
            look.next = look.begun.map(|begun| begun + ROUND_MIN).max(look.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> AccountName {
        AccountName::parse(name).expect("a name")
    }

    fn taken(marks: &UsageMarks, most: usize) -> String {
        let names = (0..most).map_while(|_| marks.take());
        names.map(|name| name.as_str().to_owned()).collect()
    }

    #[test]
    fn each_account_has_its_turn_also_if_those_before_it_are_marked_again_and_again() {
        let marks = UsageMarks::default();
        for name in ["a", "b", "c", "d"] {
            marks.add(&named(name));
        }
        assert_eq!((marks.len(), taken(&marks, 2)), (4, "ab".to_owned()));
        marks.add(&named("a"));
        marks.add(&named("a"));
        assert_eq!((marks.len(), taken(&marks, 2)), (3, "cd".to_owned()));
        assert_eq!(taken(&marks, 2), "a");
        assert_eq!((marks.len(), taken(&marks, 2)), (0, String::new()));
    }

    #[test]
    fn accounts_are_looked_at_once_a_second_and_in_rounds_of_at_least_a_minute() {
        let (marks, start) = (UsageMarks::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(marks.begin_look(at(0)), Some(0), "at once");
        marks.end_look(7);
        assert_eq!(marks.begin_look(at(999)), None);
        assert_eq!(marks.begin_look(at(1_000)), Some(7));
        // That look failed.
        assert_eq!(marks.begin_look(at(2_000)), Some(7));
        marks.end_look(0);
        assert_eq!(marks.begin_look(at(59_999)), None);
        assert_eq!(marks.begin_look(at(60_000)), Some(0));
        marks.end_look(9);
        // A round that takes longer is followed by the next one a second later.
        assert_eq!(marks.begin_look(at(130_000)), Some(9));
        marks.end_look(0);
        assert_eq!(marks.begin_look(at(130_999)), None);
        assert_eq!(marks.begin_look(at(131_000)), Some(0));
    }
}
