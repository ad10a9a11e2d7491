//! The traffic of the last 24 hours, minute by minute, as differences of readings.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::{BTreeMap, VecDeque};

use super::counts::{CallCounts, RouteCounts, RouteName, TrafficReading};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// The number of hours that are shown, the one that runs among them.
const HOURS: i64 = 24;
/// At most this many minutes are kept.
const MINUTES_MAX: usize = 24 * 60;
/// Of routes, at most this many minutes are kept.
const ROUTE_MINUTES_MAX: usize = 60;

/// What was counted in a minute.
#[derive(Debug)]
struct Minute<T> {
    /// Its number since 1970.
    number: i64,
    counted: T,
}

/// The traffic of the last 24 hours. All times are in unix ms.
#[derive(Debug)]
pub(crate) struct TrafficHistory {
    since: i64,
    read_at: i64,
    last: TrafficReading,
    minutes: VecDeque<Minute<CallCounts>>,
    route_minutes: VecDeque<Minute<BTreeMap<RouteName, RouteCounts>>>,
}

/// The calls of an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HourOfCalls {
    /// Its beginning in unix ms.
    pub(crate) start: i64,
    pub(crate) calls: CallCounts,
}

impl TrafficHistory {
    /// Makes the history of a process that starts at `now`. Its counters begin at zero.
    #[must_use]
    pub(crate) fn new(now: i64) -> TrafficHistory {
        TrafficHistory {
            since: now,
            read_at: now,
            last: TrafficReading::default(),
            minutes: VecDeque::new(),
            route_minutes: VecDeque::new(),
        }
    }

    /// Returns when the history began.
    #[must_use]
    pub(crate) fn since(&self) -> i64 {
        self.since
    }

    /// Returns the time of the last reading.
    #[must_use]
    pub(crate) fn read_at(&self) -> i64 {
        self.read_at
    }

    /// Adds what was counted since the last reading to the minute of that reading.
    pub(crate) fn note(&mut self, now: i64, reading: TrafficReading) {
        let counted = reading.since(&self.last);
        let number = self.read_at.div_euclid(MINUTE_MS);
        // A clock that was set back makes no minute twice.
        let number = self.minutes.back().map_or(number, |minute| minute.number.max(number));
        let calls = entry(&mut self.minutes, number, MINUTES_MAX);
        calls.add(&counted.calls);
        let routes = entry(&mut self.route_minutes, number, ROUTE_MINUTES_MAX);
        for (name, counts) in counted.routes {
            routes.entry(name).or_default().add(&counts);
        }
        self.read_at = now;
        self.last = reading;
    }

    /// Returns the calls of the last 24 hours, the running one last.
    #[must_use]
    pub(crate) fn hours(&self, now: i64) -> Vec<HourOfCalls> {
        let running = now.div_euclid(HOUR_MS);
        let starts = (running - HOURS + 1..=running).map(|hour| hour * HOUR_MS);
        let hour = |start: i64| HourOfCalls { start, calls: self.calls_in(start, start + HOUR_MS) };
        starts.map(hour).collect()
    }

    /// Returns the calls from one time to before another.
    #[must_use]
    pub(crate) fn calls_in(&self, from: i64, to: i64) -> CallCounts {
        let mut sum = CallCounts::default();
        let is_in = |minute: &&Minute<CallCounts>| {
            let start = minute.number.saturating_mul(MINUTE_MS);
            (from..to).contains(&start)
        };
        self.minutes.iter().filter(is_in).for_each(|minute| sum.add(&minute.counted));
        sum
    }

    /// Returns what happened on each route in the last hour, the running minute and the 59 before.
    #[must_use]
    pub(crate) fn routes_of_last_hour(&self, now: i64) -> BTreeMap<RouteName, RouteCounts> {
        let mut sums = BTreeMap::<RouteName, RouteCounts>::new();
        let after = now.div_euclid(MINUTE_MS) - HOUR_MS / MINUTE_MS;
        for minute in self.route_minutes.iter().filter(|minute| minute.number > after) {
            for (name, counts) in &minute.counted {
                sums.entry(name.clone()).or_default().add(counts);
            }
        }
        sums
    }
}

/// Returns what was counted in the minute `number`, which is the last one or a new one. A new one
/// drops those that are too old.
fn entry<T: Default>(minutes: &mut VecDeque<Minute<T>>, number: i64, most: usize) -> &mut T {
    let span = i64::try_from(most).unwrap_or(i64::MAX);
    if minutes.back().is_none_or(|last| last.number < number) {
        while minutes.front().is_some_and(|first| number - first.number >= span) {
            minutes.pop_front();
        }
        minutes.push_back(Minute { number, counted: T::default() });
    }
    let last = minutes.len() - 1;
    &mut minutes[last].counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::traffic::counts::StatusClass;

    const DAY_MS: i64 = 24 * HOUR_MS;

    fn reading(answered: u64, attempts: u64) -> TrafficReading {
        let mut calls = CallCounts::default();
        calls.count(StatusClass::Answered, answered);
        let name = RouteName { vendor: "v".to_owned(), route: "r".to_owned() };
        let routes = [(name, RouteCounts { attempts, ..RouteCounts::default() })];
        TrafficReading { calls, routes: routes.into() }
    }

    fn attempts(history: &TrafficHistory, now: i64) -> u64 {
        history.routes_of_last_hour(now).values().map(|counts| counts.attempts).sum()
    }

    #[test]
    fn what_was_counted_belongs_to_the_minute_and_the_hour_in_which_it_was() {
        let start = 100 * DAY_MS;
        let mut history = TrafficHistory::new(start);
        history.note(start + MINUTE_MS, reading(3, 3));
        history.note(start + MINUTE_MS + 500, reading(4, 4));
        history.note(start + HOUR_MS, reading(4, 4));
        history.note(start + HOUR_MS + 5, reading(9, 5));
        let now = start + HOUR_MS + 10;
        let hours = history.hours(now);
        assert_eq!((hours.len(), hours[23].start), (24, start + HOUR_MS));
        assert_eq!([hours[22].calls.calls(), hours[23].calls.calls()], [4, 5]);
        assert_eq!(history.calls_in(start, now).answered, 9);
        assert_eq!(history.calls_in(start, start + MINUTE_MS).answered, 3);
        assert_eq!(attempts(&history, now), 2, "the first minute is over an hour ago");
        assert_eq!(attempts(&history, now + DAY_MS), 0);
        assert_eq!((history.since(), history.read_at()), (start, start + HOUR_MS + 5));
    }

    #[test]
    fn no_more_than_a_day_is_kept_whatever_the_clock_does() {
        let mut history = TrafficHistory::new(0);
        for minute in 1..4_000 {
            history.note(minute * MINUTE_MS, reading(minute.unsigned_abs(), 1));
        }
        assert_eq!(history.minutes.len(), MINUTES_MAX);
        assert_eq!(history.route_minutes.len(), ROUTE_MINUTES_MAX);
        let of_day: u64 = history.hours(3_999 * MINUTE_MS).iter().map(|h| h.calls.calls()).sum();
        assert!((23 * 60..=24 * 60).contains(&of_day), "{of_day}");
        // Set back, and then far ahead.
        history.note(0, reading(4_000, 1));
        history.note(5, reading(4_001, 1));
        assert_eq!(history.minutes.len(), MINUTES_MAX);
        history.note(i64::MAX, reading(4_002, 1));
        history.note(i64::MAX, reading(4_003, 1));
        assert_eq!(history.minutes.len(), 1);
        assert_eq!(history.hours(3_999 * MINUTE_MS).len(), 24);
    }
}
