//! All metrics, each declared once. Prometheus reads them from the admin address.

use std::sync::{PoisonError, RwLock};

use once_cell::sync::Lazy;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};

use crate::fast_map::{FastMap, HashKeys};

/// Bucket limits, in ms, for times that include the vendor's.
pub(crate) const CALL_BUCKETS_MS: [u32; 12] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000];
/// Bucket limits, in seconds, for times of the gateway alone.
const OVERHEAD_BUCKETS_S: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
];

/// Bucket limits of OpenTelemetry's conventions for generative AI: tokens of a call.
const GEN_AI_TOKEN_BUCKETS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// Seconds of a whole call.
const GEN_AI_REQUEST_BUCKETS_S: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// Seconds up to the first token.
const GEN_AI_FIRST_TOKEN_BUCKETS_S: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Seconds of each token after the first.
const GEN_AI_PER_TOKEN_BUCKETS_S: [f64; 13] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// What the conventions tell a call of a model by.
const GEN_AI_LABELS: [&str; 3] =
    ["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"];

/// Errors in the log that alerts watch. They are exposed before there is any: Prometheus sees no
/// growth in a counter that begins with 1.
const ALERTED_EVENTS: [&str; 15] = [
    "allotment_books_wrong",
    "allotment_ends_lost",
    "certificate_reload_failed",
    "charge_lost",
    "charge_sum_invalid",
    "hold_conflict",
    "ledger_file_lost",
    "outbox_entry_rejected",
    "rules_reload_failed",
    "store_partially_replaced",
    "store_replaced",
    "usage_unpriced",
    "vendor_keys_reload_failed",
    "video_persist_failed",
    "video_unpaid",
];

/// All metrics.
pub struct Metrics {
    /// The version of the program, as a label of the value 1.
    pub build_info: IntGaugeVec,
    /// Warnings and errors in the log, by level and event.
    pub logged: IntCounterVec,
    /// Billed tokens of a call, by the names of OpenTelemetry's conventions.
    pub gen_ai_token_usage: HistogramVec,
    /// Seconds from the head of a model's call to the end of its response.
    pub gen_ai_request_seconds: HistogramVec,
    /// Seconds from the head of a model's call to the first byte of its stream.
    pub gen_ai_first_token_seconds: HistogramVec,
    /// Seconds of a stream for each token after the first.
    pub gen_ai_per_token_seconds: HistogramVec,
    /// Responses, by endpoint, model and status.
    pub requests: IntCounterVec,
    /// Charges in nano-USD by endpoint, model and vendor.
    pub charged_nanousd: IntCounterVec,
    /// What vendors charge for these calls in nano-USD, if the rules know it, by the same labels.
    pub cost_nanousd: IntCounterVec,
    /// Billed tokens by model and kind.
    pub tokens: IntCounterVec,
    /// Routes that failed or were skipped, by vendor, route and reason.
    pub fallbacks: IntCounterVec,
    /// How many routes failed before the one that served.
    pub fallback_depth: Histogram,
    /// Seconds from the request's head to the end of its response.
    pub request_seconds: HistogramVec,
    /// Seconds from the request's head to the first byte of its response.
    pub first_byte_seconds: HistogramVec,
    /// Seconds in the gateway, without the time spent waiting for the vendor.
    pub overhead_seconds: HistogramVec,
    /// Open holds.
    pub holds_open: IntGauge,
    /// The sum of the open holds, in nano-USD.
    pub held_nanousd: IntGauge,
    /// Holds of calls that were dropped before they were settled or voided.
    pub holds_dropped: IntCounter,
    /// Lines of journals that this process has archived.
    pub journal_lines_archived: IntCounter,
    /// Lines of journals that this process has taken out of the store.
    pub journal_lines_trimmed: IntCounter,
    /// Runs of the archiver that failed.
    pub journal_archive_failures: IntCounter,
    /// Tries to send webhook messages, by what came of them.
    pub webhook_tries: IntCounterVec,
    /// Webhook messages for which there was no room.
    pub webhook_messages_lost: IntCounter,
    /// Charges that accounts could not pay, in nano-USD.
    pub written_off_nanousd: IntCounter,
    /// Charges of which the account could not pay more than a cent.
    pub write_offs: IntCounter,
    /// Implausible usage reports that were rejected, by vendor and route.
    pub usage_rejected: IntCounterVec,
    /// Seconds of ledger operations, by operation and store.
    pub ledger_seconds: HistogramVec,
    /// Video jobs by status.
    pub video_jobs: IntGaugeVec,
    /// Whether a route is in use (1) or tried last for a while (0).
    pub route_up: IntGaugeVec,
    /// Repeated calls, by endpoint and outcome.
    pub replays: IntCounterVec,
    /// Bytes of stored replies, cache entries and request bodies for vendors, by place.
    pub kept_bytes: IntGaugeVec,
    /// Bytes of these that were evicted to make room, by place.
    pub kept_evicted_bytes: IntCounterVec,
    /// Accounts of which this process has borrowed money.
    pub allotments: IntGauge,
    /// Updates of allotments that the store has answered.
    pub allotment_updates: IntCounter,
    /// Ends of calls that these updates told.
    pub allotment_ends: IntCounter,
    /// Settlements and voids that the store has not acknowledged.
    pub outbox_pending: IntGauge,
    /// Settlements and voids that were sent again, because the store might lack them.
    pub outbox_replayed: IntCounter,
    /// Failures to write or read the outbox.
    pub outbox_errors: IntCounter,
    /// Attempts that failed after the vendor may have begun paid work, by vendor and route.
    pub lost_attempts: IntCounterVec,
    /// Open connections of clients.
    pub connections: IntGauge,
    /// Bytes of responses that clients have not read yet.
    pub answer_bytes: IntGauge,
    /// Calls above rate limits, by whose limit it is, what it counts, and whether it refuses.
    pub limited: IntCounterVec,
    /// Requests and connections that were refused or cut off because of overload or slowness, by
    /// reason.
    pub rejected_or_cut: IntCounterVec,
    /// Spans of traces that the collector has taken.
    pub spans_exported: IntCounter,
    /// Spans that were dropped, by reason.
    pub spans_dropped: IntCounterVec,
}

/// The metrics of this process.
pub static METRICS: Lazy<Metrics> = Lazy::new(|| Metrics {
    build_info: gauge_vec("build_info", "The version of the program", &["version"]),
    logged: counter_vec("logged_total", "Warnings and errors in the log", &["level", "event"]),
    gen_ai_token_usage: gen_ai_histogram(
        "gen_ai_client_token_usage",
        "Billed tokens of calls",
        Some("gen_ai_token_type"),
        &GEN_AI_TOKEN_BUCKETS,
    ),
    gen_ai_request_seconds: gen_ai_histogram(
        "gen_ai_server_request_duration_seconds",
        "Head to end of answer",
        Some("error_type"),
        &GEN_AI_REQUEST_BUCKETS_S,
    ),
    gen_ai_first_token_seconds: gen_ai_histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Head to first byte of a stream",
        None,
        &GEN_AI_FIRST_TOKEN_BUCKETS_S,
    ),
    gen_ai_per_token_seconds: gen_ai_histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "Time of a stream for each token after the first",
        None,
        &GEN_AI_PER_TOKEN_BUCKETS_S,
    ),
    requests: counter_vec("requests_total", "Answers", &["endpoint", "model", "status"]),
    charged_nanousd: counter_vec(
        "charged_nanousd_total",
        "Charges in nano-USD",
        &["endpoint", "model", "vendor"],
    ),
    cost_nanousd: counter_vec(
        "cost_nanousd_total",
        "Known costs in nano-USD of calls that were charged",
        &["endpoint", "model", "vendor"],
    ),
    tokens: counter_vec("tokens_total", "Billed tokens", &["model", "kind"]),
    fallbacks: counter_vec(
        "fallbacks_total",
        "Routes that failed",
        &["vendor", "from_route", "reason"],
    ),
    fallback_depth: register(Histogram::with_opts(
        HistogramOpts::new(
            "tollgate_fallback_depth",
            "Routes that failed before the one that served",
        )
        .buckets(vec![0.0, 1.0, 2.0, 3.0, 5.0]),
    )),
    request_seconds: histogram_vec(
        "request_seconds",
        "Head to end of answer",
        &["endpoint"],
        &call_buckets(),
    ),
    first_byte_seconds: histogram_vec(
        "first_byte_seconds",
        "Head to first byte of answer",
        &["endpoint"],
        &call_buckets(),
    ),
    overhead_seconds: histogram_vec(
        "overhead_seconds",
        "Time in the gateway, vendor excluded",
        &["endpoint"],
        OVERHEAD_BUCKETS_S,
    ),
    holds_open: gauge("holds_open", "Holds that stand"),
    held_nanousd: gauge("held_nanousd", "What open holds hold, in nano-USD"),
    holds_dropped: counter("holds_dropped_total", "Holds that were left to their leases"),
    journal_lines_archived: counter("journal_lines_archived_total", "Lines that were archived"),
    journal_lines_trimmed: counter(
        "journal_lines_trimmed_total",
        "Archived lines that were taken out of the store",
    ),
    journal_archive_failures: counter(
        "journal_archive_failures_total",
        "Runs of the archiver that failed",
    ),
    webhook_tries: counter_vec(
        "webhook_tries_total",
        "Tries to send webhook messages, by what came of them",
        &["outcome"],
    ),
    webhook_messages_lost: counter(
        "webhook_messages_lost_total",
        "Webhook messages for which there was no room",
    ),
    written_off_nanousd: counter(
        "written_off_nanousd_total",
        "Charges that accounts could not pay, in nano-USD",
    ),
    write_offs: counter(
        "write_offs_total",
        "Charges of which an account could not pay more than a cent",
    ),
    usage_rejected: counter_vec(
        "usage_rejected_total",
        "Reports of usage that cannot be",
        &["vendor", "route"],
    ),
    ledger_seconds: histogram_vec(
        "ledger_seconds",
        "Ledger operations",
        &["op", "store"],
        OVERHEAD_BUCKETS_S,
    ),
    video_jobs: gauge_vec("video_jobs", "Video jobs", &["status"]),
    route_up: gauge_vec("route_up", "Whether a route is in use", &["vendor", "route"]),
    replays: counter_vec("repeats_total", "Calls that came again", &["endpoint", "outcome"]),
    kept_bytes: gauge_vec("kept_bytes", "Bytes kept of replies, cache entries, bodies", &["place"]),
    kept_evicted_bytes: counter_vec(
        "kept_evicted_bytes_total",
        "Bytes dropped of what is kept, to make room",
        &["place"],
    ),
    allotments: gauge("allotments", "Accounts of which this gateway has borrowed money"),
    allotment_updates: counter("allotment_updates_total", "Updates of allotments"),
    allotment_ends: counter("allotment_ends_total", "Ends of calls told by updates of allotments"),
    outbox_pending: gauge("outbox_pending", "Ends of holds that the store has not acknowledged"),
    outbox_replayed: counter("outbox_replayed_total", "Ends of holds that were sent again"),
    outbox_errors: counter("outbox_errors_total", "Failures to write or read the outbox"),
    lost_attempts: counter_vec(
        "lost_attempts_total",
        "Attempts that failed after the vendor may have begun paid work",
        &["vendor", "route"],
    ),
    connections: gauge("connections", "Connections of clients"),
    answer_bytes: gauge("answer_bytes", "Bytes of answers that clients have not taken yet"),
    limited: counter_vec("limited_total", "Calls above rate limits", &["scope", "kind", "mode"]),
    rejected_or_cut: counter_vec("shed_total", "What was turned away or given up", &["reason"]),
    spans_exported: counter("spans_exported_total", "Spans that the collector has taken"),
    spans_dropped: counter_vec("spans_dropped_total", "Spans that were dropped", &["reason"]),
});

/// The metrics of each set of labels, so that a call finds all that it counts by one look-up. It
/// knows a set of labels by its hash, as the metrics themselves do.
pub(crate) struct MetricsByLabels<M> {
    hash_keys: HashKeys,
    by_hash: RwLock<FastMap<u64, M>>,
}

impl<M> MetricsByLabels<M> {
    #[must_use]
    pub(crate) fn new() -> MetricsByLabels<M> {
        MetricsByLabels { hash_keys: HashKeys::default(), by_hash: RwLock::default() }
    }

    /// Passes the metrics of these labels to `record`. They are made when they are first needed, so
    /// that none is exposed of which nothing was ever recorded.
    pub(crate) fn record<const N: usize>(
        &self,
        labels: [&str; N],
        make: impl FnOnce() -> M,
        record: impl FnOnce(&M),
    ) {
        let hash = self.hash_keys.hash_one(labels);
        if let Some(known) = self.by_hash.read().unwrap_or_else(PoisonError::into_inner).get(&hash)
        {
            return record(known);
        }
        // Whoever makes them at the same time gets the same ones.
        let new = make();
        record(&new);
        self.by_hash.write().unwrap_or_else(PoisonError::into_inner).insert(hash, new);
    }
}

/// Registers all metrics, so that the first scrape has them.
pub(crate) fn register_all() {
    METRICS.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    for event in ALERTED_EVENTS {
        METRICS.logged.with_label_values(&["error", event]);
    }
}

/// Above this write-off, in nano-USD (a cent), an error is logged.
const WRITE_OFF_ALERT_NANO: i64 = 10_000_000;

/// Counts the part of a charge that an account could not pay, and logs an error if it is more than
/// a cent. The message of that log line does not change: alerts match it.
pub(crate) fn record_write_off(account: &str, request_id: &str, written_off_nano: i64) {
    METRICS.written_off_nanousd.inc_by(counter_value(written_off_nano));
    if written_off_nano > WRITE_OFF_ALERT_NANO {
        METRICS.write_offs.inc();
        log::error!(
            event = "write_off",
            account,
            request_id,
            written_off_nano;
            "charge written off: above what the account had"
        );
    }
}

/// Converts an amount, which is never negative, for a counter.
#[must_use]
pub(crate) fn counter_value(nano: i64) -> u64 {
    nano.unsigned_abs()
}

fn counter_vec(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register(IntCounterVec::new(Opts::new(format!("tollgate_{name}"), help), labels))
}

fn counter(name: &str, help: &str) -> IntCounter {
    register(IntCounter::new(format!("tollgate_{name}"), help))
}

fn gauge_vec(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    register(IntGaugeVec::new(Opts::new(format!("tollgate_{name}"), help), labels))
}

fn gauge(name: &str, help: &str) -> IntGauge {
    register(IntGauge::new(format!("tollgate_{name}"), help))
}

/// Returns the bucket limits of calls in seconds.
fn call_buckets() -> [f64; CALL_BUCKETS_MS.len()] {
    CALL_BUCKETS_MS.map(|limit| f64::from(limit) / 1_000.0)
}

fn histogram_vec(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    let opts = HistogramOpts::new(format!("tollgate_{name}"), help).buckets(buckets.to_vec());
    register(HistogramVec::new(opts, labels))
}

/// Makes a histogram whose name is not ours, with one label more than all of its kind have.
fn gen_ai_histogram(name: &str, help: &str, label: Option<&str>, buckets: &[f64]) -> HistogramVec {
    let labels: Vec<_> = GEN_AI_LABELS.into_iter().chain(label).collect();
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(HistogramVec::new(opts, &labels))
}

/// Registers a metric. The names above are constants; the test below checks that they are valid and
/// distinct.
fn register<M>(made: prometheus::Result<M>) -> M
where
    M: prometheus::core::Collector + Clone + 'static,
{
    let metric = made.expect("a valid name and labels");
    prometheus::register(Box::new(metric.clone())).expect("a name of its own");
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_with_the_same_labels_count_the_same_metrics_which_are_looked_up_once() {
        let counters = IntCounterVec::new(Opts::new("calls", "Calls"), &["model", "status"]);
        let counters = counters.expect("a valid name");
        let (by_labels, mut look_ups) = (MetricsByLabels::new(), 0);
        let sets = [["m", "200"], ["m2", "200"], ["m", "200"], ["m", "500"], ["m", "200"]];
        for labels in sets {
            let make = || {
                look_ups += 1;
                counters.with_label_values(&labels)
            };
            by_labels.record(labels, make, IntCounter::inc);
        }
        assert_eq!(look_ups, 3);
        counters.with_label_values(&["m", "500"]).inc();
        let count = |labels: [&str; 2]| counters.with_label_values(&labels).get();
        assert_eq!([count(["m", "200"]), count(["m", "500"])], [3, 2]);
    }

    #[test]
    fn all_names_are_valid_and_distinct() {
        super::register_all();
    }
}
