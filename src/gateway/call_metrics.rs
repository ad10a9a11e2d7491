//! What requests count in the metrics.

use std::sync::OnceLock;
use std::time::Duration;

use once_cell::sync::Lazy;
use prometheus::{Histogram, IntCounter};

use super::context::AccessLogRecord;
use crate::catalogue::model::Model;
use crate::metrics::{METRICS, MetricsByLabels};

/// The error type of a stream that broke after its head.
const BROKEN_STREAM: &str = "broken_stream";

/// What a request counts, by endpoint, model and status.
struct RequestMetrics {
    requests: IntCounter,
    seconds: Histogram,
    overhead_seconds: Histogram,
    /// Empty until a request had a first byte.
    first_byte_seconds: OnceLock<Histogram>,
}

static REQUEST_METRICS: Lazy<MetricsByLabels<RequestMetrics>> = Lazy::new(MetricsByLabels::new);

/// Counts a request that took the time `total`, of which `own` was spent in the gateway.
pub(super) fn count_request(record: &AccessLogRecord, total: Duration, own: Duration) {
    let mut digits = itoa::Buffer::new();
    let model = record.model.as_ref().map_or("", |model| model.id.as_str());
    let labels = [record.endpoint, model, digits.format(record.status)];
    let endpoint = [record.endpoint];
    let make = || RequestMetrics {
        requests: METRICS.requests.with_label_values(&labels),
        seconds: METRICS.request_seconds.with_label_values(&endpoint),
        overhead_seconds: METRICS.overhead_seconds.with_label_values(&endpoint),
        first_byte_seconds: OnceLock::new(),
    };
    REQUEST_METRICS.record(labels, make, |metrics| {
        metrics.requests.inc();
        metrics.seconds.observe(total.as_secs_f64());
        metrics.overhead_seconds.observe(own.as_secs_f64());
        if let Some(first) = record.time_to_first_byte {
            let make = || METRICS.first_byte_seconds.with_label_values(&endpoint);
            metrics.first_byte_seconds.get_or_init(make).observe(first.as_secs_f64());
        }
    });
    if let Some(model) = &record.model {
        count_model_call(record, model, total);
    }
}

/// What a call of a model counts by the names of OpenTelemetry's conventions, by operation, vendor,
/// model and error. Each is empty until there is something to count.
struct ModelCallMetrics {
    seconds: Histogram,
    input_tokens: OnceLock<Histogram>,
    output_tokens: OnceLock<Histogram>,
    first_token_seconds: OnceLock<Histogram>,
    per_token_seconds: OnceLock<Histogram>,
}

static MODEL_CALL_METRICS: Lazy<MetricsByLabels<ModelCallMetrics>> =
    Lazy::new(MetricsByLabels::new);

fn count_model_call(record: &AccessLogRecord, model: &Model, total: Duration) {
    let mut digits = itoa::Buffer::new();
    let error = match (record.status, &record.error_code) {
        (400.., _) => digits.format(record.status),
        (_, Some(_)) => BROKEN_STREAM,
        (_, None) => "",
    };
    // A call that was refused before it had a route has no other name of its vendor.
    let provider = record.route.as_ref().map_or(&*model.vendor.name, |route| route.provider());
    let operation = conventional_operation(record.endpoint);
    let id = model.id.as_str();
    let make = || ModelCallMetrics {
        seconds: METRICS
            .gen_ai_request_seconds
            .with_label_values(&[operation, provider, id, error]),
        input_tokens: OnceLock::new(),
        output_tokens: OnceLock::new(),
        first_token_seconds: OnceLock::new(),
        per_token_seconds: OnceLock::new(),
    };
    let tokens = record.usage.map(|usage| usage.tokens()).unwrap_or_default();
    MODEL_CALL_METRICS.record([operation, provider, id, error], make, |metrics| {
        metrics.seconds.observe(total.as_secs_f64());
        let kinds = [
            ("input", tokens.input, &metrics.input_tokens),
            ("output", tokens.output, &metrics.output_tokens),
        ];
        for (kind, count, metric) in kinds {
            if count > 0 {
                let labels = [operation, provider, id, kind];
                let make = || METRICS.gen_ai_token_usage.with_label_values(&labels);
                metric.get_or_init(make).observe(count_as_float(count));
            }
        }
        // What was broken off says little about how quick a vendor is.
        let Some(first) = record.time_to_first_byte.filter(|_| record.is_stream) else { return };
        if !error.is_empty() || record.client_disconnected {
            return;
        }
        let labels = [operation, provider, id];
        let make = || METRICS.gen_ai_first_token_seconds.with_label_values(&labels);
        metrics.first_token_seconds.get_or_init(make).observe(first.as_secs_f64());
        if tokens.output > 1 {
            let make = || METRICS.gen_ai_per_token_seconds.with_label_values(&labels);
            let rest = total.saturating_sub(first).as_secs_f64();
            let each = rest / count_as_float(tokens.output - 1);
            metrics.per_token_seconds.get_or_init(make).observe(each);
        }
    });
}

/// Returns the conventions' name of what an endpoint of this name does; for what they do not know,
/// that name. Metrics and traces tell the same.
pub(super) fn conventional_operation(endpoint: &'static str) -> &'static str {
    match endpoint {
        "chat" | "messages" | "responses" | "responses_compact" => "chat",
        "images" | "image_edits" | "videos" | "speech" => "generate_content",
        own => own,
    }
}

/// Counts above 2^53 lose digits, which no bucket tells apart.
#[expect(clippy::cast_precision_loss, reason = "for a histogram, which is of floats")]
fn count_as_float(count: u64) -> f64 {
    count as f64
}
