//! A question about usage, as it is asked in texts: from when to when, and grouped by what.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeSet;

use super::grouping::{UsageDimension, UsageGroup, group_rollups};
use super::rollup::{PeriodKind, RollupKey, RollupSums, UsageOverflow};
use super::{HOURS_KEPT_MS, UsageQuery, UsageRows};
use crate::ledger::AccountName;

/// At most this many rows of roll-ups are read for a page.
pub(crate) const ROWS_READ_MAX: u32 = 20_000;
/// A page has at most this many days.
const PAGE_DAYS_MAX: i64 = 366;
/// The days of a page that does not say from when on.
const DAYS_DEFAULT: i64 = 30;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// The length of a date such as 2027-01-31.
const DATE_CHARS: usize = 10;

/// A part of a question that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{field}' must be {expected}")]
pub(crate) struct InvalidQuestion {
    /// The name of the parameter.
    pub(crate) field: &'static str,
    /// What would be right, and what was found.
    pub(crate) expected: String,
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoUsagePage {
    /// The range has too many rows.
    #[error(transparent)]
    TooLarge(InvalidQuestion),
    /// A sum does not fit.
    #[error(transparent)]
    Overflow(#[from] UsageOverflow),
}

/// What is asked for, as it was written. What is `None` has a default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsageAsk<'a> {
    /// A date, or a time that is a whole hour. By default 30 days before the end; a day before it,
    /// if hours are asked for.
    pub(crate) from: Option<&'a str>,
    /// The same, and not in the range. By default the end of the current day.
    pub(crate) to: Option<&'a str>,
    /// Names with commas between them; `day` by default.
    pub(crate) group_by: Option<&'a str>,
    /// The `next` of the page before.
    pub(crate) after: Option<&'a str>,
}

/// What is asked for, as it was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsageRange {
    kind: PeriodKind,
    from: i64,
    /// The end of the page.
    to: i64,
    /// The end of all pages, if it is another one.
    last: Option<i64>,
    by: BTreeSet<UsageDimension>,
}

/// A page of usage.
#[derive(Debug, Default)]
pub(crate) struct UsagePage {
    /// The groups, in order.
    pub(crate) rows: Vec<(UsageGroup, RollupSums)>,
    /// The `after` of the next page; `None` if there is none.
    pub(crate) next: Option<String>,
}

impl UsageRange {
    /// Understands what is asked for. `now` is in unix ms.
    pub(crate) fn parse(ask: UsageAsk<'_>, now: i64) -> Result<UsageRange, InvalidQuestion> {
        let by = parse_dimensions(ask.group_by.unwrap_or("day"))?;
        let given = |field, text: Option<&str>| text.map(|t| parse_hour(field, t)).transpose();
        let (from, to) = (given("from", ask.from)?, given("to", ask.to)?);
        let is_day = |at: &i64| PeriodKind::Day.start_of(*at) == *at;
        let is_by_hour = by.contains(&UsageDimension::Hour);
        let is_whole = from.iter().chain(&to).all(is_day);
        let kind = if is_by_hour || !is_whole { PeriodKind::Hour } else { PeriodKind::Day };
        let to = to.unwrap_or_else(|| PeriodKind::Day.end_of(PeriodKind::Day.start_of(now)));
        let days = if kind == PeriodKind::Hour { 1 } else { DAYS_DEFAULT };
        let from = from.unwrap_or_else(|| to.saturating_sub(days.saturating_mul(DAY_MS)));
        if from >= to {
            return Err(invalid("from", "before 'to': the range is empty"));
        }
        let kept_from = now.saturating_sub(HOURS_KEPT_MS);
        if kind == PeriodKind::Hour && from < kept_from {
            let expected = "later, or ask for whole days: sums by hour are kept for 8 days";
            return Err(invalid("from", expected));
        }
        let mut range = UsageRange { kind, from, to, last: None, by };
        if let Some(after) = ask.after {
            let next = parse_hour("after", after)?;
            let is_next = (from..to).contains(&next) && kind.start_of(next) == next;
            if !range.is_by_time() || !is_next {
                let expected = format!("the `next` of the page before, not '{after}'");
                return Err(invalid("after", expected));
            }
            range.from = next;
        }
        let page_end = range.from.saturating_add(PAGE_DAYS_MAX.saturating_mul(DAY_MS));
        if page_end < to {
            if !range.is_by_time() {
                let expected = format!("at most {PAGE_DAYS_MAX} days before 'to', or group by day");
                return Err(invalid("from", expected));
            }
            (range.to, range.last) = (page_end, Some(to));
        }
        Ok(range)
    }

    /// Returns what is read of an account. `rows` is given if not all keys may be seen.
    pub(crate) fn query(&self, account: &AccountName, rows: Option<UsageRows>) -> UsageQuery {
        let by_key = self.by.contains(&UsageDimension::Key);
        let all = if by_key { UsageRows::Keys } else { UsageRows::Account };
        UsageQuery {
            account: account.clone(),
            kind: self.kind,
            rows: rows.unwrap_or(all),
            from: self.from,
            to: self.to,
            rows_max: ROWS_READ_MAX + 1,
        }
    }

    /// Whether each group is of one day or hour.
    fn is_by_time(&self) -> bool {
        self.by.contains(&UsageDimension::Day) || self.by.contains(&UsageDimension::Hour)
    }

    /// Returns when the period of the group of a row began.
    fn group_start(&self, key: &RollupKey) -> i64 {
        let is_by_hour = self.by.contains(&UsageDimension::Hour);
        let kind = if is_by_hour { PeriodKind::Hour } else { PeriodKind::Day };
        kind.start_of(key.period.start)
    }

    /// Makes a page of rows, which are at most one more than [`ROWS_READ_MAX`]. A period whose rows
    /// were not all read is for the next page.
    pub(crate) fn page_of(
        &self,
        mut rows: Vec<(RollupKey, RollupSums)>,
    ) -> Result<UsagePage, NoUsagePage> {
        let mut next = self.last.and_then(|_| moment_text(self.to));
        let rows_max = usize::try_from(ROWS_READ_MAX).unwrap_or(usize::MAX);
        if let Some((beyond, _)) = rows.get(rows_max) {
            let cut = self.group_start(beyond);
            rows.retain(|(key, _)| self.group_start(key) < cut);
            if !self.is_by_time() {
                let expected = format!(
                    "later, or group by day: the range has more than {ROWS_READ_MAX} rows of sums"
                );
                return Err(NoUsagePage::TooLarge(invalid("from", expected)));
            }
            if rows.is_empty() {
                let expected = format!(
                    "without key: one day or hour has more than {ROWS_READ_MAX} rows of sums"
                );
                return Err(NoUsagePage::TooLarge(invalid("group_by", expected)));
            }
            next = moment_text(cut);
        }
        let rows = group_rollups(&rows, &self.by)?;
        Ok(UsagePage { rows: rows.into_iter().collect(), next })
    }
}

/// Returns a moment as RFC 3339; `None` if the calendar does not reach so far.
pub(crate) fn moment_text(at: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(at).ok().map(|at| at.to_string())
}

/// Returns the date of a moment, in UTC; `None` if the calendar does not reach so far.
pub(crate) fn date_text(at: i64) -> Option<String> {
    moment_text(at).and_then(|text| text.split_once('T').map(|(date, _)| date.to_owned()))
}

fn invalid(field: &'static str, expected: impl Into<String>) -> InvalidQuestion {
    InvalidQuestion { field, expected: expected.into() }
}

fn parse_dimensions(text: &str) -> Result<BTreeSet<UsageDimension>, InvalidQuestion> {
    let mut by = BTreeSet::new();
    for name in text.split(',').map(str::trim) {
        let Some(dimension) = UsageDimension::of_name(name) else {
            let known = UsageDimension::ALL.map(UsageDimension::name).join(", ");
            let expected =
                format!("one or some of {known}, with commas between them; not '{name}'");
            return Err(invalid("group_by", expected));
        };
        by.insert(dimension);
    }
    Ok(by)
}

/// Parses a date or a time that is a whole hour. Returns unix ms.
fn parse_hour(field: &'static str, text: &str) -> Result<i64, InvalidQuestion> {
    let at = if text.len() == DATE_CHARS {
        let day = text.parse::<jiff::civil::Date>().ok();
        let day = day.and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC).ok());
        day.map(|day| day.timestamp())
    } else {
        text.parse::<jiff::Timestamp>().ok()
    };
    let at = at.map(jiff::Timestamp::as_millisecond);
    at.filter(|at| at.rem_euclid(HOUR_MS) == 0).ok_or_else(|| {
        let expected = format!(
            "a date as in 2026-11-01 or a whole hour as in 2026-11-01T13:00:00Z, not '{text}'"
        );
        invalid(field, expected)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{RollupOwner, RollupPeriod};

    /// 2026-11-27, 09:23.
    const NOW: i64 = 1_795_771_380_123;
    const TODAY: i64 = 1_795_737_600_000;

    fn ask<'a>(from: &'a str, to: &'a str, group_by: &'a str) -> UsageAsk<'a> {
        let given = |text: &'a str| (!text.is_empty()).then_some(text);
        UsageAsk { from: given(from), to: given(to), group_by: given(group_by), after: None }
    }

    #[test]
    fn dates_ask_for_days_and_times_for_hours() {
        let hours = |number: i64| number * HOUR_MS;
        for (from, to, by, kind, expected) in [
            ("", "", "", PeriodKind::Day, (TODAY - hours(29 * 24), TODAY + hours(24))),
            ("", "", "hour", PeriodKind::Hour, (TODAY, TODAY + hours(24))),
            ("2026-11-26", "2026-11-27", "model", PeriodKind::Day, (TODAY - hours(24), TODAY)),
            (
                "2026-11-27T03:00:00Z",
                "2026-11-28",
                "model, key",
                PeriodKind::Hour,
                (TODAY + hours(3), TODAY + hours(24)),
            ),
            (
                "2026-11-27T00:00:00Z",
                "2026-11-28T02:00:00+02:00",
                "",
                PeriodKind::Day,
                (TODAY, TODAY + hours(24)),
            ),
        ] {
            let range = UsageRange::parse(ask(from, to, by), NOW).expect("a range");
            assert_eq!((range.kind, (range.from, range.to)), (kind, expected), "{from} {to} {by}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_its_name() {
        for (asked, named) in [
            (ask("2026-11-27T03:30:00Z", "", ""), "from"),
            (ask("yesterday", "", ""), "from"),
            (ask("", "2026-13-01", ""), "to"),
            (ask("2026-11-27", "2026-11-27", ""), "from"),
            (ask("2026-11-01", "2026-11-02", "hour"), "from"),
            (ask("", "", "model,colour"), "group_by"),
            (ask("", "", "model,"), "group_by"),
            (UsageAsk { after: Some("2026-11-27"), ..ask("", "", "model") }, "after"),
            (UsageAsk { after: Some("2026-10-01"), ..ask("2026-11-01", "", "") }, "after"),
            (UsageAsk { after: Some("7"), ..UsageAsk::default() }, "after"),
            (
                UsageAsk { after: Some("2026-11-01T13:00:00Z"), ..ask("2026-11-01", "", "") },
                "after",
            ),
            (UsageAsk { after: Some("2026-12-01"), ..ask("2026-11-01", "", "") }, "after"),
            (ask("2020-01-01", "", "model"), "from"),
        ] {
            let why = UsageRange::parse(asked, NOW).expect_err("refused");
            assert_eq!(why.field, named, "{asked:?}: {why}");
        }
    }

    #[test]
    fn a_long_range_has_pages_of_a_year() {
        let asked = ask("2024-01-01", "2026-11-01", "day,model");
        let first = UsageRange::parse(asked, NOW).expect("a range");
        let page = first.page_of(Vec::new()).expect("a page");
        let next = page.next.expect("more");
        assert_eq!(next, "2025-01-01T00:00:00Z");
        let second = UsageRange::parse(UsageAsk { after: Some(&next), ..asked }, NOW);
        let page = second.expect("a range").page_of(Vec::new()).expect("a page");
        let next = page.next.expect("more");
        let third = UsageRange::parse(UsageAsk { after: Some(&next), ..asked }, NOW);
        assert_eq!(third.expect("a range").page_of(Vec::new()).expect("a page").next, None);
    }

    /// Makes `of_day` rows of each of `days` days, from today on.
    fn rows(days: i64, of_day: u32) -> Vec<(RollupKey, RollupSums)> {
        let row = |day: i64, number: u32| {
            let period = RollupPeriod { kind: PeriodKind::Day, start: TODAY + day * DAY_MS };
            let (model, endpoint) = (format!("m{number}"), "chat".to_owned());
            let sums = RollupSums { calls: 1, ..RollupSums::default() };
            (RollupKey { period, owner: RollupOwner::Account, model, endpoint }, sums)
        };
        (0..days).flat_map(|day| (0..of_day).map(move |number| row(day, number))).collect()
    }

    #[test]
    fn a_page_ends_with_a_whole_day_and_tells_where_the_next_one_begins() {
        let range = |by| UsageRange::parse(ask("2026-11-27", "2027-11-27", by), NOW).expect("one");
        let mut read = rows(3, 8_000);
        let rows_max = usize::try_from(ROWS_READ_MAX).expect("a number");
        read.truncate(rows_max + 1);
        let page = range("day").page_of(read.clone()).expect("a page");
        assert_eq!(page.next.as_deref(), Some("2026-11-29T00:00:00Z"));
        let calls: Vec<u64> = page.rows.iter().map(|(_, sums)| sums.calls).collect();
        assert_eq!(calls, [8_000, 8_000]);
        assert!(range("model").page_of(read).is_err(), "no page has all of it");
        assert!(range("day").page_of(rows(1, ROWS_READ_MAX + 1)).is_err());
        let page = range("model").page_of(rows(2, 2_500)).expect("a page");
        assert_eq!((page.rows.len(), page.next), (2_500, None));
    }
}
