//! A row of a roll-up: what it is about, and its sums.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::BTreeMap;

use crate::ledger::{KeyId, WindowKind};
use crate::money::Money;

/// How long the periods of a row are. All are of UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeriodKind {
    /// An hour.
    Hour,
    /// A day.
    Day,
}

impl PeriodKind {
    /// Both kinds.
    pub const ALL: [PeriodKind; 2] = [PeriodKind::Hour, PeriodKind::Day];

    /// Returns the name of the kind, as in `day`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.window().name()
    }

    /// Returns when the period that contains `at` began. Both are in unix ms.
    #[must_use]
    pub fn start_of(self, at: i64) -> i64 {
        self.window().start_at(at)
    }

    /// Returns when a period that began at `start` ends, in unix ms.
    #[must_use]
    pub fn end_of(self, start: i64) -> i64 {
        self.window().end_of(start)
    }

    fn window(self) -> WindowKind {
        match self {
            PeriodKind::Hour => WindowKind::Hour,
            PeriodKind::Day => WindowKind::Day,
        }
    }
}

/// A day or an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RollupPeriod {
    /// How long it is.
    pub kind: PeriodKind,
    /// When it began, in unix ms.
    pub start: i64,
}

/// Whose lines a row sums up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RollupOwner {
    /// All lines of the account.
    Account,
    /// Those that name no key.
    NoKey,
    /// Those of a key.
    Key(KeyId),
}

impl RollupOwner {
    /// Returns the kind of rows to which a row of this owner belongs.
    #[must_use]
    pub fn view(self) -> RollupView {
        match self {
            RollupOwner::Account => RollupView::Account,
            RollupOwner::NoKey | RollupOwner::Key(_) => RollupView::Keys,
        }
    }
}

/// The two kinds of rows. Each line is in both, so that a question that does not ask for keys reads
/// as many rows for an account with thousands of keys as for one with a single key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RollupView {
    /// Rows of all keys together.
    Account,
    /// Rows of each key apart.
    Keys,
}

impl RollupView {
    /// Both kinds.
    pub const ALL: [RollupView; 2] = [RollupView::Account, RollupView::Keys];
}

/// What a row of an account is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RollupKey {
    /// When the lines were posted.
    pub period: RollupPeriod,
    /// Whose lines it sums up.
    pub owner: RollupOwner,
    /// The model's id; empty if the line names none.
    pub model: String,
    /// The endpoint's short name; empty if the line names none.
    pub endpoint: String,
}

/// Rows of an account.
pub type Rollups = BTreeMap<RollupKey, RollupSums>;

/// A sum does not fit into 63 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sums of usage are out of range")]
pub struct UsageOverflow;

/// How many sums a row has.
const FIELDS: usize = 15;

/// The names of the sums, in the order of [`RollupSums::to_values`]. Amounts are in nano-USD.
pub const ROLLUP_FIELDS: [&str; FIELDS] = [
    "calls",
    "calls_without_cost",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "characters",
    "images",
    "seconds",
    "charged",
    "written_off",
    "corrected",
    "corrected_written_off",
    "expired",
    "fees",
    "cost",
];

/// The sums of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RollupSums {
    /// The number of charges.
    pub calls: u64,
    /// The charges among them whose cost is not known.
    pub calls_without_cost: u64,
    /// The tokens of input, with those of the prompt cache.
    pub prompt_tokens: u64,
    /// The tokens of output.
    pub completion_tokens: u64,
    /// The tokens of input that were read from a prompt cache.
    pub cached_tokens: u64,
    /// The characters of speech.
    pub characters: u64,
    /// The images.
    pub images: u64,
    /// The seconds of video.
    pub seconds: u64,
    /// The sum of the charges.
    pub charged: Money,
    /// The part of the charges that the account could not pay.
    pub written_off: Money,
    /// What was given back of charges, also of those of earlier periods.
    pub corrected: Money,
    /// The part of that which the account had not paid.
    pub corrected_written_off: Money,
    /// The granted credit that has expired.
    pub expired: Money,
    /// The fees for tools that are in the charges.
    pub fees: Money,
    /// What the vendors charge for the charges whose cost is known.
    pub cost: Money,
}

impl RollupSums {
    /// Returns the sums as the numbers that a store keeps.
    ///
    /// # Errors
    /// [`UsageOverflow`] if a count does not fit into 63 bits.
    pub fn to_values(&self) -> Result<[i64; FIELDS], UsageOverflow> {
        let count = |count: u64| i64::try_from(count).map_err(|_| UsageOverflow);
        Ok([
            count(self.calls)?,
            count(self.calls_without_cost)?,
            count(self.prompt_tokens)?,
            count(self.completion_tokens)?,
            count(self.cached_tokens)?,
            count(self.characters)?,
            count(self.images)?,
            count(self.seconds)?,
            self.charged.nano(),
            self.written_off.nano(),
            self.corrected.nano(),
            self.corrected_written_off.nano(),
            self.expired.nano(),
            self.fees.nano(),
            self.cost.nano(),
        ])
    }

    /// Returns the sums of the numbers that a store keeps.
    ///
    /// # Errors
    /// [`UsageOverflow`] if one is below zero.
    pub fn of_values(values: [i64; FIELDS]) -> Result<RollupSums, UsageOverflow> {
        let count = |value: i64| u64::try_from(value).map_err(|_| UsageOverflow);
        let money = |value: i64| Money::from_nano(value).map_err(|_| UsageOverflow);
        let [calls, without_cost, prompt, completion, cached, characters, images, seconds, ..] =
            values;
        let [.., charged, written_off, corrected, not_paid, expired, fees, cost] = values;
        Ok(RollupSums {
            calls: count(calls)?,
            calls_without_cost: count(without_cost)?,
            prompt_tokens: count(prompt)?,
            completion_tokens: count(completion)?,
            cached_tokens: count(cached)?,
            characters: count(characters)?,
            images: count(images)?,
            seconds: count(seconds)?,
            charged: money(charged)?,
            written_off: money(written_off)?,
            corrected: money(corrected)?,
            corrected_written_off: money(not_paid)?,
            expired: money(expired)?,
            fees: money(fees)?,
            cost: money(cost)?,
        })
    }

    /// Adds other sums.
    ///
    /// # Errors
    /// [`UsageOverflow`] if a sum does not fit.
    pub fn checked_add(&self, other: &RollupSums) -> Result<RollupSums, UsageOverflow> {
        let mut values = self.to_values()?;
        for (value, more) in values.iter_mut().zip(other.to_values()?) {
            *value = value.checked_add(more).ok_or(UsageOverflow)?;
        }
        RollupSums::of_values(values)
    }
}

/// Adds rows to others.
///
/// # Errors
/// [`UsageOverflow`] if a sum does not fit. What was added before it stays.
pub fn merge_rollups(rows: &mut Rollups, more: Rollups) -> Result<(), UsageOverflow> {
    for (key, sums) in more {
        let sum = rows.entry(key).or_default();
        *sum = sum.checked_add(&sums)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_kept_as_numbers_that_have_names() {
        let mut values = [0; FIELDS];
        for (value, number) in values.iter_mut().zip(1..) {
            *value = number;
        }
        let sums = RollupSums::of_values(values).expect("sums");
        assert_eq!(sums.to_values(), Ok(values));
        let at = |name| ROLLUP_FIELDS.iter().position(|field| *field == name).expect("a name");
        assert_eq!(sums.calls, u64::try_from(values[at("calls")]).expect("a count"));
        assert_eq!(sums.seconds, u64::try_from(values[at("seconds")]).expect("a count"));
        assert_eq!(sums.charged.nano(), values[at("charged")]);
        assert_eq!(sums.corrected_written_off.nano(), values[at("corrected_written_off")]);
        assert_eq!(sums.cost.nano(), values[at("cost")]);
        let twice = sums.checked_add(&sums).expect("sums").to_values().expect("values");
        assert_eq!(twice, values.map(|value| value * 2));
    }

    #[test]
    fn a_sum_that_does_not_fit_is_refused() {
        let largest = RollupSums { images: i64::MAX.unsigned_abs(), ..RollupSums::default() };
        let one = RollupSums { images: 1, ..RollupSums::default() };
        assert_eq!(largest.checked_add(&one), Err(UsageOverflow));
        assert_eq!(RollupSums { calls: u64::MAX, ..one }.to_values(), Err(UsageOverflow));
        let mut values = [0; FIELDS];
        values[3] = -1;
        assert_eq!(RollupSums::of_values(values), Err(UsageOverflow));
    }

    #[test]
    fn periods_begin_at_midnight_and_at_whole_hours_of_utc() {
        let at = 1_795_771_380_123;
        let hour = PeriodKind::Hour.start_of(at);
        assert_eq!((hour, PeriodKind::Hour.end_of(hour)), (1_795_770_000_000, 1_795_773_600_000));
        let day = PeriodKind::Day.start_of(at);
        assert_eq!((day, PeriodKind::Day.end_of(day)), (1_795_737_600_000, 1_795_824_000_000));
    }
}
