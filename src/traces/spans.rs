//! Makes spans of traces, with the attributes of the conventions and our own. Neither a body nor
//! anything of it, nor more of a key than its beginning, is in them.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::call::{CallTrace, TracedAttempt, TracedCall};

/// The version of the conventions by which the attributes are named.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";
/// The name and the version of what makes the spans.
const SCOPE_NAME: &str = env!("CARGO_PKG_NAME");
const SCOPE_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The flags of a span that is recorded: of one whose parent is in this process, or that has none;
/// and of one whose parent is in another.
const FLAGS_LOCAL: u32 = 0x101;
const FLAGS_REMOTE: u32 = 0x301;
/// At most this many bytes of a text that a vendor chose are kept.
const VENDOR_TEXT_BYTES_MAX: usize = 128;

/// What the spans of this process have in common: its name, and what else the operator says of it.
#[derive(Debug, Clone)]
pub(crate) struct ProcessIdentity {
    /// The name of the service.
    pub service_name: String,
    /// The id of this process.
    pub instance_id: String,
    /// Further attributes.
    pub attributes: Vec<(String, String)>,
}

/// Makes the request to a collector for these traces.
pub(super) fn build_request(
    identity: &ProcessIdentity,
    traces: &[CallTrace],
) -> ExportTraceServiceRequest {
    let clock = WallClock { instant: Instant::now(), unix_nanos: unix_nanos() };
    let spans = traces.iter().flat_map(|trace| spans_of(trace, clock)).collect();
    let scope = InstrumentationScope {
        name: SCOPE_NAME.to_owned(),
        version: SCOPE_VERSION.to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = ScopeSpans { scope: Some(scope), spans, schema_url: SCHEMA_URL.to_owned() };
    let resource_spans = ResourceSpans {
        resource: Some(resource_of(identity)),
        scope_spans: vec![scope_spans],
        schema_url: SCHEMA_URL.to_owned(),
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn resource_of(identity: &ProcessIdentity) -> Resource {
    let mut attributes = Attributes::default();
    attributes.text("service.name", &identity.service_name);
    attributes.text("service.version", SCOPE_VERSION);
    attributes.text("service.instance.id", &identity.instance_id);
    for (key, value) in &identity.attributes {
        attributes.text(key, value);
    }
    Resource { attributes: attributes.0, ..Resource::default() }
}

/// A moment by both clocks, by which other moments are converted.
#[derive(Clone, Copy)]
struct WallClock {
    instant: Instant,
    unix_nanos: u64,
}

impl WallClock {
    /// Returns a moment of the past in unix nanoseconds.
    fn nanos(self, moment: Instant) -> u64 {
        let ago = self.instant.saturating_duration_since(moment).as_nanos();
        self.unix_nanos.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn spans_of(trace: &CallTrace, clock: WallClock) -> impl Iterator<Item = Span> {
    let call = trace.call.as_ref().map(|call| server_span(trace, call, clock));
    let attempts = trace.attempts.iter().map(move |attempt| client_span(trace, attempt, clock));
    call.into_iter().chain(attempts)
}

/// Makes the span of a call.
fn server_span(trace: &CallTrace, call: &TracedCall, clock: WallClock) -> Span {
    let mut span = Span {
        trace_id: trace.own.trace_id.to_vec(),
        span_id: trace.own.span_id.to_vec(),
        flags: FLAGS_LOCAL,
        name: format!("POST {}", call.path),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: clock.nanos(call.arrived),
        end_time_unix_nano: clock.nanos(call.ended),
        attributes: server_attributes(trace, call),
        ..Span::default()
    };
    // A refusal of what the client asked for is no fault of the gateway.
    if call.status >= 500 || call.is_broken {
        span.status = Some(error_status());
    }
    match &trace.caller {
        Some(caller) if trace.is_continued => {
            span.parent_span_id = caller.context.span_id.to_vec();
            span.flags = FLAGS_REMOTE;
            span.trace_state.clone_from(&caller.state);
        }
        Some(caller) => span.links.push(Link {
            trace_id: caller.context.trace_id.to_vec(),
            span_id: caller.context.span_id.to_vec(),
            trace_state: caller.state.clone(),
            flags: FLAGS_REMOTE & !1 | u32::from(caller.context.is_sampled),
            ..Link::default()
        }),
        None => {}
    }
    span
}

fn server_attributes(trace: &CallTrace, call: &TracedCall) -> Vec<KeyValue> {
    let mut attributes = Attributes::default();
    attributes.text("http.request.method", "POST");
    attributes.text("http.route", call.path);
    attributes.number("http.response.status_code", i64::from(call.status));
    attributes.text("error.type", call.error_code.as_deref().unwrap_or_default());
    attributes.text("gen_ai.request.model", &call.model);
    attributes.text("tollgate.request_id", &trace.request_id);
    attributes.text("tollgate.account", &trace.account);
    attributes.text("tollgate.key", &call.key_prefix);
    let requested = call.requested_model.as_deref().unwrap_or_default();
    attributes.text("tollgate.requested_model", requested);
    attributes.text("tollgate.repeat", call.repeat);
    if !call.route.is_empty() {
        attributes.text("tollgate.route", &call.route);
        attributes.number("tollgate.depth", i64::from(call.depth));
    }
    if call.is_client_gone {
        attributes.push("tollgate.client_gone", Value::BoolValue(true));
    }
    if let Some(nano) = call.charged_nano {
        attributes.number("tollgate.charged_nanousd", nano);
        attributes.text("tollgate.price_version", &call.price_version);
        attributes.text("tollgate.basis", call.basis);
    }
    attributes.0
}

/// Makes the span of an attempt.
fn client_span(trace: &CallTrace, attempt: &TracedAttempt, clock: WallClock) -> Span {
    let mut span = Span {
        trace_id: trace.own.trace_id.to_vec(),
        span_id: attempt.span_id.to_vec(),
        parent_span_id: trace.own.span_id.to_vec(),
        flags: if trace.call.is_some() { FLAGS_LOCAL } else { FLAGS_REMOTE },
        name: format!("{} {}", attempt.operation, attempt.model),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: clock.nanos(attempt.began),
        end_time_unix_nano: clock.nanos(attempt.ended.unwrap_or(clock.instant)),
        attributes: client_attributes(trace, attempt),
        ..Span::default()
    };
    if error_type(attempt).is_some() {
        span.status = Some(error_status());
    }
    span
}

fn client_attributes(trace: &CallTrace, attempt: &TracedAttempt) -> Vec<KeyValue> {
    let mut attributes = Attributes::default();
    attributes.text("gen_ai.operation.name", attempt.operation);
    attributes.text("gen_ai.provider.name", &attempt.provider);
    attributes.text("gen_ai.request.model", &attempt.model);
    if attempt.is_stream {
        attributes.push("gen_ai.request.stream", Value::BoolValue(true));
    }
    if let Some(most) = attempt.output_max {
        attributes.count("gen_ai.request.max_tokens", most);
    }
    if attempt.choices > 1 {
        attributes.count("gen_ai.request.choice.count", attempt.choices);
    }
    attributes.vendor_text("gen_ai.response.id", attempt.reply_id.as_deref());
    if let Some(tokens) = attempt.tokens {
        attributes.count("gen_ai.usage.input_tokens", tokens.input);
        attributes.count("gen_ai.usage.output_tokens", tokens.output);
        if tokens.cache_read > 0 {
            attributes.count("gen_ai.usage.cache_read.input_tokens", tokens.cache_read);
        }
        if tokens.cache_write > 0 {
            attributes.count("gen_ai.usage.cache_creation.input_tokens", tokens.cache_write);
        }
    }
    attributes.text("http.request.method", "POST");
    if let Some(status) = attempt.status {
        attributes.number("http.response.status_code", i64::from(status));
    }
    attributes.text("server.address", &attempt.host);
    attributes.number("server.port", i64::from(attempt.port));
    attributes.text("error.type", &error_type(attempt).unwrap_or_default());
    attributes.text("tollgate.request_id", &trace.request_id);
    attributes.text("tollgate.route", &attempt.route);
    attributes.text("tollgate.failure", attempt.failure.unwrap_or_default());
    attributes.vendor_text("tollgate.vendor_request_id", attempt.vendor_request_id.as_deref());
    attributes.0
}

/// Returns what went wrong in an attempt: the status, as the conventions want it, or the reason for
/// which its route failed; `None` if nothing did.
fn error_type(attempt: &TracedAttempt) -> Option<String> {
    let refused = attempt.status.filter(|status| *status >= 400);
    refused.map(|status| status.to_string()).or(attempt.failure.map(str::to_owned))
}

fn error_status() -> Status {
    Status { code: StatusCode::Error.into(), ..Status::default() }
}

/// Attributes of a span. Empty texts are left out.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn push(&mut self, key: &str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    }

    fn text(&mut self, key: &str, text: &str) {
        if !text.is_empty() {
            self.push(key, Value::StringValue(text.to_owned()));
        }
    }

    /// Adds a text that a vendor chose, cut to a bound.
    fn vendor_text(&mut self, key: &str, text: Option<&str>) {
        let text = text.unwrap_or_default();
        self.text(key, &text[..text.floor_char_boundary(VENDOR_TEXT_BYTES_MAX)]);
    }

    fn number(&mut self, key: &str, number: i64) {
        self.push(key, Value::IntValue(number));
    }

    fn count(&mut self, key: &str, count: u64) {
        self.number(key, i64::try_from(count).unwrap_or(i64::MAX));
    }
}
