//! The months of statements, in UTC.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;

use crate::ledger::WindowKind;
use crate::usage::date_text;

/// The length of a month such as 2026-11.
const MONTH_CHARS: usize = 7;

/// A month of UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatementMonth {
    /// When it began, in unix ms.
    start: i64,
}

/// A text that is no month.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'month' must be a year and a month from 01 to 12, as in 2026-11, not '{}'", .0.escape_debug()
)]
pub struct InvalidMonth(String);

impl StatementMonth {
    /// Parses a month, as in `2026-11`.
    ///
    /// # Errors
    /// [`InvalidMonth`] if the text is anything else.
    pub fn parse(text: &str) -> Result<StatementMonth, InvalidMonth> {
        let invalid = || InvalidMonth(text.to_owned());
        let is_digit_or_dash = |(at, byte): (usize, u8)| match at {
            4 => byte == b'-',
            _ => byte.is_ascii_digit(),
        };
        if text.len() != MONTH_CHARS || !text.bytes().enumerate().all(is_digit_or_dash) {
            return Err(invalid());
        }
        let day = format!("{text}-01").parse::<jiff::civil::Date>().ok();
        let day = day.and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC).ok());
        let start = day.map(|day| day.timestamp().as_millisecond());
        start.map(|start| StatementMonth { start }).ok_or_else(invalid)
    }

    /// Returns the month that contains a moment (unix ms).
    #[must_use]
    pub fn containing(at: i64) -> StatementMonth {
        StatementMonth { start: WindowKind::Month.start_at(at) }
    }

    /// Returns when it began, in unix ms.
    #[must_use]
    pub fn start(self) -> i64 {
        self.start
    }

    /// Returns when it ends, in unix ms. That moment belongs to the next month.
    #[must_use]
    pub fn end(self) -> i64 {
        WindowKind::Month.end_of(self.start)
    }

    /// Returns the month after it.
    #[must_use]
    pub fn next(self) -> StatementMonth {
        StatementMonth { start: self.end() }
    }
}

impl fmt::Display for StatementMonth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = date_text(self.start).unwrap_or_default();
        f.write_str(date.get(..MONTH_CHARS).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_read_as_it_was_written_and_has_its_days() {
        const DAY: i64 = 86_400_000;
        for (text, days) in [("2026-11", 30), ("2026-12", 31), ("2028-02", 29), ("2100-02", 28)] {
            let month = StatementMonth::parse(text).expect("a month");
            assert_eq!(
                (month.to_string(), (month.end() - month.start()) / DAY),
                (text.into(), days)
            );
            for at in [month.start(), month.end() - 1] {
                assert_eq!(StatementMonth::containing(at), month, "{text}");
            }
            assert_eq!(StatementMonth::containing(month.end()), month.next());
        }
        let december = StatementMonth::parse("2026-12").expect("a month");
        assert_eq!(december.next().to_string(), "2027-01");
    }

    #[test]
    fn what_is_no_month_is_refused_with_its_value_and_what_would_be_right() {
        for text in [
            "",
            "x",
            "2026",
            "2026-13",
            "2026-00",
            "2026-1",
            "2026-11-01",
            "26-11",
            "-026-11",
            "2026/11",
            "2026-+1",
            " 2026-11",
            "２０２６-11",
            "2026-11\n",
        ] {
            let why = StatementMonth::parse(text).expect_err("no month").to_string();
            let value = format!("'{}'", text.escape_debug());
            assert!(why.starts_with("'month' must be") && why.contains("2026-11"), "{why}");
            assert!(why.ends_with(&value), "{why}");
        }
    }
}
