//! The windows of budgets: hours, days, weeks and months of the UTC calendar, and the whole life.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ledger::json_text::push_number;
use crate::money::{Money, MoneyError};

/// One hour, in ms.
const HOUR_MS: i64 = 3_600_000;
/// One day, in ms.
pub const DAY_MS: i64 = 24 * HOUR_MS;
/// The unix epoch was a Thursday, three days after a Monday.
const DAYS_SINCE_MONDAY: i64 = 3;

/// The id of an API key. It stays the same when the key is rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub u64);

/// How long a window of a budget is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowKind {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A week that begins on Monday.
    Week,
    /// A month of the calendar.
    Month,
    /// All time: this window never ends.
    Total,
}

impl WindowKind {
    /// All kinds, the shortest first.
    pub const ALL: [WindowKind; 5] =
        [WindowKind::Hour, WindowKind::Day, WindowKind::Week, WindowKind::Month, WindowKind::Total];

    /// Returns the name of the kind, as in `day`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WindowKind::Hour => "hour",
            WindowKind::Day => "day",
            WindowKind::Week => "week",
            WindowKind::Month => "month",
            WindowKind::Total => "total",
        }
    }

    /// Returns the kind of a name; `None` if there is none.
    #[must_use]
    pub fn of_name(name: &str) -> Option<WindowKind> {
        WindowKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns when the window that contains `now` began. Both are in unix ms.
    #[must_use]
    pub fn start_at(self, now: i64) -> i64 {
        let day = now.div_euclid(DAY_MS);
        match self {
            WindowKind::Hour => now.saturating_sub(now.rem_euclid(HOUR_MS)),
            WindowKind::Day => now.saturating_sub(now.rem_euclid(DAY_MS)),
            WindowKind::Week => {
                (day - (day + DAYS_SINCE_MONDAY).rem_euclid(7)).saturating_mul(DAY_MS)
            }
            WindowKind::Month => {
                let (year, month) = month_of_day(day);
                day_of_month(year, month).saturating_mul(DAY_MS)
            }
            WindowKind::Total => 0,
        }
    }

    /// Returns when a window that began at `start` ends, in unix ms; [`i64::MAX`] if it never does.
    #[must_use]
    pub fn end_of(self, start: i64) -> i64 {
        match self {
            WindowKind::Hour => start.saturating_add(HOUR_MS),
            WindowKind::Day => start.saturating_add(DAY_MS),
            WindowKind::Week => start.saturating_add(7 * DAY_MS),
            WindowKind::Month => {
                let (year, month) = month_of_day(start.div_euclid(DAY_MS));
                let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
                day_of_month(next.0, next.1).saturating_mul(DAY_MS)
            }
            WindowKind::Total => i64::MAX,
        }
    }
}

/// Whose budget it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetOwner {
    /// The account's own.
    Account,
    /// That of one of its keys.
    Key(KeyId),
}

impl BudgetOwner {
    /// Appends `account` or `key:` and the id. Stores write many such texts, and the formatter
    /// takes ten times as long.
    pub(crate) fn push_to(self, text: &mut String) {
        match self {
            BudgetOwner::Account => text.push_str("account"),
            BudgetOwner::Key(KeyId(id)) => push_number(text, "key:", id),
        }
    }

    /// Returns `account` or `key:` and the id.
    pub(crate) fn to_text(self) -> String {
        let mut text = String::with_capacity(24);
        self.push_to(&mut text);
        text
    }
}

impl fmt::Display for BudgetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl FromStr for BudgetOwner {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<BudgetOwner, WindowError> {
        match text.strip_prefix("key:") {
            Some(id) => id.parse().map(|id| BudgetOwner::Key(KeyId(id))).map_err(|_| WindowError),
            None if text == "account" => Ok(BudgetOwner::Account),
            None => Err(WindowError),
        }
    }
}

/// A text does not name the window of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a window of an unknown form")]
pub struct WindowError;

/// One window of one budget. A hold and its charge name the windows that they count in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowId {
    /// Whose budget it is.
    pub owner: BudgetOwner,
    /// How long the window is.
    pub kind: WindowKind,
    /// When the window began, in unix ms.
    pub start: i64,
}

impl WindowId {
    /// Returns the window of a budget that contains `now` (unix ms).
    #[must_use]
    pub fn at(owner: BudgetOwner, kind: WindowKind, now: i64) -> WindowId {
        WindowId { owner, kind, start: kind.start_at(now) }
    }

    /// Returns when the window ends, in unix ms; [`i64::MAX`] if it never does.
    #[must_use]
    pub fn end(self) -> i64 {
        self.kind.end_of(self.start)
    }

    /// Appends a short text such as `account/day/1795564800000` or `key:7/month/1793491200000`.
    pub(crate) fn push_to(self, text: &mut String) {
        self.owner.push_to(text);
        text.push('/');
        text.push_str(self.kind.name());
        push_number(text, "/", self.start);
    }

    /// Returns what [`push_to`](WindowId::push_to) appends.
    pub(crate) fn to_text(self) -> String {
        let mut text = String::with_capacity(48);
        self.push_to(&mut text);
        text
    }

    /// Whether the window has ended at `now` (unix ms).
    #[must_use]
    pub fn is_over(self, now: i64) -> bool {
        self.end() <= now
    }
}

impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl FromStr for WindowId {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<WindowId, WindowError> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or(WindowError);
        let owner = next()?.parse()?;
        let kind = WindowKind::of_name(next()?).ok_or(WindowError)?;
        let start = next()?.parse().map_err(|_| WindowError)?;
        match parts.next() {
            None => Ok(WindowId { owner, kind, start }),
            Some(_) => Err(WindowError),
        }
    }
}

/// Writes windows as one text, with commas between them.
#[must_use]
pub(crate) fn format_windows(windows: &[WindowId]) -> String {
    let mut text = String::with_capacity(48 * windows.len());
    for window in windows {
        if !text.is_empty() {
            text.push(',');
        }
        window.push_to(&mut text);
    }
    text
}

/// Parses what [`format_windows`] wrote.
pub(crate) fn parse_windows(text: &str) -> Result<Vec<WindowId>, WindowError> {
    text.split(',').filter(|part| !part.is_empty()).map(str::parse).collect()
}

/// What is spent and held in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowUse {
    /// The charges of the holds that were made in the window.
    pub spent: Money,
    /// The open holds that were made in it, and the slices that are lent out of it.
    pub held: Money,
    /// The slices alone.
    pub lent: Money,
}

impl WindowUse {
    /// Returns what is left below a limit; without a limit, the largest amount there is.
    #[must_use]
    pub fn left(self, limit: Option<Money>) -> Money {
        limit.map_or(MONEY_MAX, |limit| limit.saturating_sub(self.spent).saturating_sub(self.held))
    }

    /// Whether a store may forget the window at `now` (unix ms): nothing is held in it, and it
    /// ended a day ago, so that no charge that is still taken names it.
    #[must_use]
    pub fn is_forgettable(self, id: WindowId, now: i64) -> bool {
        self.held == Money::ZERO && id.end().saturating_add(DAY_MS) <= now
    }

    /// Returns how far the window is above its limit.
    pub(crate) fn excess(self, limit: Option<Money>) -> Result<Money, MoneyError> {
        let used = self.spent.checked_add(self.held)?;
        Ok(limit.map_or(Money::ZERO, |limit| used.saturating_sub(limit)))
    }
}

/// The largest amount there is.
pub(crate) const MONEY_MAX: Money = match Money::from_nano(i64::MAX) {
    Ok(most) => most,
    Err(_) => Money::ZERO,
};

/// The year and the month of a day, counted from the unix epoch. The computation counts years from
/// March, so that the day of a leap year is the last one.
fn month_of_day(day: i64) -> (i64, i64) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month)
}

/// The first day of a month, counted from the unix epoch.
fn day_of_month(year: i64, month: i64) -> i64 {
    let year_from_march = year - i64::from(month <= 2);
    let era = year_from_march.div_euclid(400);
    let year_of_era = year_from_march.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    /// 2026-11-25 13:14:15.678 UTC, a Wednesday.
    const NOW: i64 = 1_795_612_455_678;

    #[rstest]
    #[case(WindowKind::Hour, 1_795_611_600_000, 1_795_615_200_000)]
    #[case(WindowKind::Day, 1_795_564_800_000, 1_795_651_200_000)]
    #[case(WindowKind::Week, 1_795_392_000_000, 1_795_996_800_000)]
    #[case(WindowKind::Month, 1_793_491_200_000, 1_796_083_200_000)]
    #[case(WindowKind::Total, 0, i64::MAX)]
    fn a_moment_lies_in_the_window_of_the_calendar(
        #[case] kind: WindowKind,
        #[case] start: i64,
        #[case] end: i64,
    ) {
        assert_eq!((kind.start_at(NOW), kind.end_of(start)), (start, end));
        assert_eq!(kind.start_at(start), start, "the first moment belongs to it");
        if kind != WindowKind::Total {
            assert_eq!(kind.start_at(end - 1), start, "the last moment belongs to it");
            assert_eq!(kind.start_at(end), end, "the next one does not");
        }
    }

    #[rstest]
    #[case(2024, 2, 29)]
    #[case(2026, 2, 28)]
    #[case(2000, 2, 29)]
    #[case(2100, 2, 28)]
    #[case(2026, 12, 31)]
    #[case(1970, 1, 31)]
    fn months_have_their_days(#[case] year: i64, #[case] month: i64, #[case] days: i64) {
        let first = day_of_month(year, month);
        let start = first * DAY_MS;
        assert_eq!((WindowKind::Month.end_of(start) - start) / DAY_MS, days);
        assert_eq!(month_of_day(first), (year, month));
        assert_eq!(month_of_day(first + days - 1), (year, month));
    }

    proptest! {
        #[test]
        fn windows_follow_each_other_without_gaps(now in -4_000_000_000_000i64..8_000_000_000_000) {
            for kind in WindowKind::ALL.into_iter().filter(|kind| *kind != WindowKind::Total) {
                let start = kind.start_at(now);
                let end = kind.end_of(start);
                prop_assert!(start <= now && now < end);
                prop_assert_eq!(kind.start_at(end), end);
                prop_assert_eq!(kind.start_at(end - 1), start);
            }
        }
    }

    #[test]
    fn a_window_is_kept_for_a_day_and_while_something_is_held_in_it() {
        let id = WindowId::at(BudgetOwner::Account, WindowKind::Hour, NOW);
        let nano = |n| Money::from_nano(n).expect("money");
        let spent = WindowUse { spent: nano(5), ..WindowUse::default() };
        let held = WindowUse { held: nano(1), ..WindowUse::default() };
        let day_later = id.end() + DAY_MS;
        assert!(!spent.is_forgettable(id, day_later - 1) && spent.is_forgettable(id, day_later));
        assert!(!held.is_forgettable(id, day_later));
        let total = WindowId::at(BudgetOwner::Account, WindowKind::Total, NOW);
        assert!(!spent.is_forgettable(total, i64::MAX - 1));
        assert_eq!((spent.left(Some(nano(7))), held.left(Some(nano(1)))), (nano(2), nano(0)));
        assert_eq!((spent.left(Some(nano(4))), spent.left(None)), (nano(0), MONEY_MAX));
    }

    #[test]
    fn the_ends_of_time_do_not_overflow() {
        for kind in WindowKind::ALL {
            for now in [i64::MIN, i64::MAX] {
                let _ = kind.end_of(kind.start_at(now));
            }
        }
    }
}
