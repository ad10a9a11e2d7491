//! The intervals and time limits of jobs, from the configuration.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use crate::toml_reader::{ConfigError, TableReader};

/// The longest time that may be configured, in ms: a year.
const MS_MAX: u64 = 365 * DAY_MS;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// The bounds of the lease, in ms. With a shorter one a live worker could lose its jobs; with a
/// longer one the jobs of a dead worker would wait too long.
const LEASE_MS_MIN: u64 = 300;
const LEASE_MS_MAX: u64 = 10 * 60 * 1_000;
/// The longest pause after failures, in ms. Pauses double up to it.
const RETRY_DELAY_MS_MAX: u64 = 60_000;
/// The hold of a job lasts this much longer than the job may take, in ms. So the money is still
/// held after an outage of the whole fleet in between.
const HOLD_LEASE_MARGIN_MS: u64 = DAY_MS;

/// The `[videos]` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSchedule {
    /// The interval between two polls of the vendor about a job, in ms.
    pub poll_ms: u64,
    /// A job that is not finished this many ms after its creation has failed (spec: 20 minutes).
    pub timeout_ms: u64,
    /// A job and its file are kept for this many ms after the job's end (spec: 7 days).
    pub keep_ms: u64,
    /// The lease of a claim, in ms: a job of a dead worker is taken over after this time.
    pub lease_ms: u64,
    /// How many times the copy of a finished video is tried.
    pub copies_max: u32,
    /// The timeout, in ms, for a vendor's answer, and for each further piece of a file.
    pub answer_ms: u64,
    /// The pause after the first failure, in ms; it doubles with each further failure.
    pub retry_ms: u64,
    /// At most this many jobs of an account may be open.
    pub open_max: u32,
    /// Whether this process works on jobs; if not, it only accepts them.
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
    /// Parses the section; faults are added to `faults`.
    pub(crate) fn parse(table: &mut TableReader, faults: &mut Vec<ConfigError>) -> JobSchedule {
        let mut schedule = JobSchedule::default();
        let mut read = |key, most: u64, value: &mut u64| {
            let Some(number) = table.integer(key, faults) else { return };
            if !(1..=most).contains(&number) {
                faults.push(table.location.error(format!("'{key}' must be from 1 to {most}")));
            }
            *value = number.clamp(1, most);
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

    /// Returns the pause after `failures` failures in a row, in ms.
    #[must_use]
    pub(crate) fn retry_delay_ms(&self, failures: u32) -> u64 {
        let doublings = failures.saturating_sub(1).min(16);
        self.retry_ms.saturating_mul(1 << doublings).min(RETRY_DELAY_MS_MAX)
    }

    /// Returns the lease of a job's hold, in ms.
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
        let messages: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(messages, ["t.toml: 'poll_ms' must be from 1 to 31536000000"]);
        assert_eq!((schedule.copies_max, schedule.worker), (5, true));
    }
}
