//! Reads the counters of the process into the history of its traffic.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::proto;

use super::counts::{CallCounts, RouteCounts, RouteName, StatusClass, TrafficReading};
use super::history::{HourOfCalls, TrafficHistory};
use super::percentile::BucketCounts;
use crate::dialect::Endpoint;
use crate::gateway::upstream::routes::RouteTable;
use crate::metrics::METRICS;

/// A look reads the counters again if the last reading is at least this old, in ms.
const FRESH_MS: i64 = 1_000;
const DAY_MS: i64 = 24 * 3_600_000;
/// The reason of routes that were passed over since they have no place for a call.
const FULL: &str = "full";

/// The traffic of this gateway, as far as it is kept.
pub(crate) struct TrafficLog {
    history: Mutex<TrafficHistory>,
    routes: Arc<RouteTable>,
}

/// What a look at the traffic shows.
#[derive(Debug)]
pub(crate) struct TrafficView {
    /// Since when there has been any, in unix ms.
    pub(crate) since: i64,
    /// The last 24 hours, the running one last.
    pub(crate) hours: Vec<HourOfCalls>,
    /// The current day (UTC).
    pub(crate) today: CallCounts,
    /// The routes on which anything happened in the last hour.
    pub(crate) routes: BTreeMap<RouteName, RouteCounts>,
}

impl TrafficLog {
    /// Makes the log of a process that starts at `now`, in unix ms.
    pub(crate) fn new(routes: Arc<RouteTable>, now: i64) -> TrafficLog {
        TrafficLog { history: Mutex::new(TrafficHistory::new(now)), routes }
    }

    /// Reads the counters, and keeps what they have counted since the last reading.
    pub(crate) fn note(&self, now: i64) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.note(now, read(&self.routes));
    }

    /// Returns the traffic up to this moment, or one a second ago.
    pub(crate) fn look(&self, now: i64) -> TrafficView {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if !(0..FRESH_MS).contains(&(now - history.read_at())) {
            history.note(now, read(&self.routes));
        }
        TrafficView {
            since: history.since(),
            hours: history.hours(now),
            today: history.calls_in(now - now.rem_euclid(DAY_MS), i64::MAX),
            routes: history.routes_of_last_hour(now),
        }
    }
}

fn read(routes: &RouteTable) -> TrafficReading {
    let mut calls = CallCounts::default();
    for metric in series(&METRICS.requests).filter(is_of_call) {
        let status = label(&metric, "status").parse().unwrap_or_default();
        calls.count(StatusClass::of_status(status), counted(&metric));
    }
    for metric in series(&METRICS.first_byte_seconds).filter(is_of_call) {
        add_buckets(&mut calls.first_bytes, &metric.histogram);
    }
    let mut by_route: BTreeMap<RouteName, RouteCounts> = BTreeMap::new();
    for route in routes.all() {
        let (vendor, name) = (route.vendor.clone(), route.name.clone());
        let attempts = u64::from(route.attempts());
        let counts = RouteCounts { attempts, ..RouteCounts::default() };
        by_route.insert(RouteName { vendor, route: name }, counts);
    }
    let mut count = |metric: &proto::Metric, name: &str, add: fn(&mut RouteCounts, u64)| {
        let (vendor, route) = (label(metric, "vendor").to_owned(), label(metric, name).to_owned());
        if let Some(counts) = by_route.get_mut(&RouteName { vendor, route }) {
            add(counts, counted(metric));
        }
    };
    for metric in series(&METRICS.fallbacks).filter(|metric| label(metric, "reason") != FULL) {
        count(&metric, "from_route", |counts, more| {
            counts.failed = counts.failed.saturating_add(more);
        });
    }
    for metric in series(&METRICS.lost_attempts) {
        count(&metric, "route", |counts, more| counts.lost = counts.lost.saturating_add(more));
    }
    TrafficReading { calls, routes: by_route }
}

/// Returns the values of a metric, one for each set of labels.
fn series(metric: &impl Collector) -> impl Iterator<Item = proto::Metric> {
    metric.collect().into_iter().flat_map(|mut family| family.take_metric())
}

fn label<'a>(metric: &'a proto::Metric, name: &str) -> &'a str {
    let found = metric.get_label().iter().find(|label| label.name() == name);
    found.map_or("", |label| label.value())
}

/// Whether requests are calls: to an endpoint of models, not for a list or for an unknown path.
fn is_of_call(metric: &proto::Metric) -> bool {
    is_call(label(metric, "endpoint"))
}

/// Whether requests for an endpoint, by its name in metrics, are calls.
pub(crate) fn is_call(endpoint: &str) -> bool {
    Endpoint::ALL.iter().any(|known| known.name() == endpoint)
}

fn counted(metric: &proto::Metric) -> u64 {
    let value = metric.counter.value();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a counter of requests is a whole number, and never below zero"
    )]
    let whole = value as u64;
    whole
}

/// Adds what is in each bucket of a histogram, whose own counts include the buckets below.
fn add_buckets(sums: &mut BucketCounts, histogram: &proto::Histogram) {
    let up_to = histogram.bucket.iter().map(proto::Bucket::cumulative_count);
    let mut below = 0;
    for (sum, count) in sums.iter_mut().zip(up_to.chain([histogram.sample_count()])) {
        *sum = sum.saturating_add(count.saturating_sub(below));
        below = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::traffic::percentile::TimePercentile;

    #[test]
    fn the_counters_of_calls_are_read_by_status_and_by_bucket() {
        let log = TrafficLog::new(Arc::default(), 0);
        log.note(1_000);
        let before = log.look(1_500).today;
        let count = |endpoint: &str, status: &str, calls: u64| {
            METRICS.requests.with_label_values(&[endpoint, "m", status]).inc_by(calls);
        };
        count("chat", "200", 5);
        count("messages", "429", 2);
        count("chat", "502", 3);
        count("chat", "503", 4);
        // Neither is a call.
        count("models", "200", 100);
        count("other", "404", 100);
        for seconds in [0.01, 0.05, 0.06, 1_000.0] {
            METRICS.first_byte_seconds.with_label_values(&["chat"]).observe(seconds);
        }
        assert_eq!(log.look(1_600).today, before, "a reading of this second is good enough");
        let view = log.look(3_000);
        let today = view.today.since(&before);
        let ends = [
            today.answered,
            today.client_errors,
            today.vendor_errors,
            today.gateway_errors,
            today.first_bytes[0],
            today.first_bytes[1],
            today.first_bytes[12],
        ];
        assert_eq!(ends, [5, 2, 3, 4, 2, 1, 1]);
        assert_eq!((today.calls(), today.errors()), (14, 9));
        let slowest = TimePercentile::of(&today.first_bytes, 95);
        assert_eq!(slowest, Some(TimePercentile::Above(300_000_000)));
        assert_eq!((view.since, view.hours.len()), (0, 24));
    }
}
