//! When jobs are looked at, and how long anything about them may take, from the configuration.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::toml_reader::{ConfigError, TableReader};

/// No time is longer than a year, in ms.
const MS_MAX: u64 = 365 * DAY_MS;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Within a shorter lease, in ms, a worker that lives could lose its jobs; within a longer one
/// those of a dead one would lie about.
const LEASE_MS_MIN: u64 = 300;
const LEASE_MS_MAX: u64 = 10 * 60 * 1_000;
/// Pauses after a failure double up to this, in ms.
const RETRY_DELAY_MS_MAX: u64 = 60_000;
/// The hold of a job stands for so much longer than the job may take, in ms: a fleet that was away
/// meanwhile still finds the money held.
const HOLD_LEASE_MARGIN_MS: u64 = DAY_MS;

/// The `[videos]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSchedule {
    /// A vendor is asked about a job so often, in ms.
    pub poll_ms: u64,
    /// A job that is not finished so long after it was asked for has failed, in ms (spec: 20
    /// minutes).
    pub timeout_ms: u64,
    /// A job and its file are kept for so long after its end, in ms (spec: 7 days).
    pub keep_ms: u64,
    /// A job of a worker that has died is taken over after so long, in ms.
    pub lease_ms: u64,
    /// So many times a finished video is tried to be copied.
    pub copies_max: u32,
    /// A vendor answers within this, in ms, and its file goes on coming within it.
    pub answer_ms: u64,
    /// The pause after the first failure, in ms; it doubles with each.
    pub retry_ms: u64,
    /// So many jobs of an account may be under way.
    pub open_max: u32,
    /// Whether this process works on jobs, or only takes them in.
    pub worker: bool,
}

impl Default for JobSchedule {
    fn default() -> JobSchedule {
        JobSchedule {
            poll_ms: 5_000,
            timeout_ms: 20 * 60 * 1_000,
            keep_ms: 7 * DAY_MS,
            lease_ms: 30_000,
            copies_max: 8,
            answer_ms: 60_000,
            retry_ms: 2_000,
            open_max: 100,
            worker: true,
        }
    }
}

impl JobSchedule {
    /// Reads the section.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> JobSchedule {
        let mut schedule = JobSchedule::default();
        let mut read = |key, most: u64, value: &mut u64| {
            let Some(told) = table.integer(key, faults) else { return };
            if !(1..=most).contains(&told) {
                faults.push(table.location.error(format!("'{key}' must be from 1 to {most}")));
            }
            *value = told.clamp(1, most);
        };
        read("poll_ms", MS_MAX, &mut schedule.poll_ms);
        read("timeout_ms", MS_MAX, &mut schedule.timeout_ms);
        read("keep_ms", MS_MAX, &mut schedule.keep_ms);
        read("lease_ms", MS_MAX, &mut schedule.lease_ms);
        read("answer_ms", MS_MAX, &mut schedule.answer_ms);
        read("retry_ms", MS_MAX, &mut schedule.retry_ms);
        let mut count = |key, value: &mut u32| {
            let mut wide = u64::from(*value);
            read(key, u64::from(u32::MAX), &mut wide);
            *value = u32::try_from(wide).unwrap_or(*value);
        };
        count("copies_max", &mut schedule.copies_max);
        count("open_max", &mut schedule.open_max);
        schedule.worker = table.bool("worker", faults).unwrap_or(true);
        if !(LEASE_MS_MIN..=LEASE_MS_MAX).contains(&schedule.lease_ms) {
            let expected = format!("'lease_ms' must be from {LEASE_MS_MIN} to {LEASE_MS_MAX}");
            faults.push(table.location.error(expected));
        }
        if schedule.poll_ms >= schedule.timeout_ms {
            faults.push(table.location.error("'poll_ms' must be below 'timeout_ms'"));
        }
        schedule
    }

    /// The pause after `failures` failures in a row, in ms.
    #[must_use]
    pub(crate) fn retry_delay_ms(&self, failures: u32) -> u64 {
        let doublings = failures.saturating_sub(1).min(16);
        self.retry_ms.saturating_mul(1 << doublings).min(RETRY_DELAY_MS_MAX)
    }

    /// How long the hold of a job stands, in ms.
    #[must_use]
    pub(crate) fn hold_lease_ms(&self) -> u64 {
        self.timeout_ms.saturating_mul(2).saturating_add(HOLD_LEASE_MARGIN_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let schedule = JobSchedule::default();
        let pauses = [0, 1, 2, 3, 5, 6, 7, u32::MAX].map(|n| schedule.retry_delay_ms(n));
        assert_eq!(pauses, [2_000, 2_000, 4_000, 8_000, 32_000, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn a_time_of_nothing_is_refused() {
        let (root, mut faults) =
            crate::toml_reader::parse("t.toml", "poll_ms = 0\ncopies_max = 5\n");
        let mut table = TableReader::open(root, &mut faults);
        let schedule = JobSchedule::parse(&mut table, &mut faults);
        table.finish(&mut faults);
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["t.toml: 'poll_ms' must be from 1 to 31536000000"]);
        assert_eq!((schedule.copies_max, schedule.worker), (5, true));
    }
}
