//! Traces: which calls have one, what their spans tell, and what never gets into them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rstest::rstest;
use serde_json::json;

use crate::world::{
    Answer, Charge, Collector, Store, VENDOR_KEY, World, attributes, chat_of, closed_port, http,
    messages_of, model_of, quick,
};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const QUESTION: &str = "How much is 2 + 2?";
const TEXT: &str = "The answer is four and everybody in the room agrees.";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The span of the call, and those of its attempts in their order.
fn split(spans: Vec<Span>) -> (Span, Vec<Span>) {
    let is_call = |span: &Span| span.kind() == SpanKind::Server;
    let (mut calls, mut attempts): (Vec<_>, Vec<_>) = spans.into_iter().partition(is_call);
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert!(attempts.iter().all(|span| span.kind() == SpanKind::Client), "{attempts:#?}");
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    (calls.remove(0), attempts)
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

/// Checks that a span has these attributes, and those of `also` with any value, and no others.
fn has_only(span: &Span, expected: &[(&str, &str)], also: &[&str]) {
    let mut found = attributes(&span.attributes);
    for name in also {
        assert!(found.remove(name).is_some(), "{name} is not in {found:#?}");
    }
    let expected: BTreeMap<&str, String> =
        expected.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    assert_eq!(found, expected);
}

async fn chat_with(world: &World, headers: &[(&str, &str)]) -> Answer {
    let request = world.request("/v1/chat/completions").body(chat_of("lmb-5.5").to_string());
    Answer::read(headers.iter().fold(request, |r, (name, value)| r.header(*name, *value))).await
}

#[tokio::test]
async fn a_call_and_each_of_its_attempts_have_a_span() {
    let collector = Collector::start().await;
    let settings = "service_name = \"edge-7\"\nheaders = { x-token = \"canary-token\" }";
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["status=503", ""]);
    let world = world.env("TOLLGATE__VENDOR__VENDOR_B__PROVIDER", "maker.of.lmb");
    let world = world.conf(&collector.section(settings)).run().await;
    let sent =
        [("traceparent", PARENT), ("tracestate", "a=canary-state"), ("baggage", "b=canary-bag")];
    let answer = chat_with(&world, &sent).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, TEXT));
    let charge = world.charge().await;
    let (call, attempts) = split(collector.has(3).await);
    tells_of_the_call(&call, &charge);
    tells_of_the_attempts(&attempts, &world, &answer, &charge);
    let seen = world.sim.seen();
    for (attempt, seen) in attempts.iter().zip(&seen) {
        assert_eq!(attempt.trace_id, call.trace_id);
        assert_eq!(attempt.parent_span_id, call.span_id);
        let header = format!("00-{}-{}-01", hex(&call.trace_id), hex(&attempt.span_id));
        assert_eq!(seen.header("traceparent"), Some(header.as_str()));
        assert_eq!((seen.header("tracestate"), seen.header("baggage")), (None, None));
        let (began, ended) = (attempt.start_time_unix_nano, attempt.end_time_unix_nano);
        assert!(call.start_time_unix_nano <= began && began < ended, "{attempt:#?}");
        assert!(ended <= call.end_time_unix_nano, "{attempt:#?}");
    }
    assert!(attempts[0].end_time_unix_nano <= attempts[1].start_time_unix_nano);
    sends_who_it_is(&world, &collector, 3).await;
    keeps_secrets(&world, &collector);
}

/// The span of a call whose first route failed. The id of its trace is that of the request, and the
/// caller's span is linked.
fn tells_of_the_call(call: &Span, charge: &Charge) {
    assert_eq!(hex(&call.trace_id), charge.request_id.replace('-', ""));
    assert!(call.parent_span_id.is_empty() && call.trace_state.is_empty());
    let link = &call.links[0];
    let linked = format!("00-{}-{}-01", hex(&link.trace_id), hex(&link.span_id));
    assert_eq!((linked.as_str(), link.trace_state.as_str()), (PARENT, "a=canary-state"));
    assert_eq!((call.name.as_str(), is_error(call)), ("POST /v1/chat/completions", false));
    let amount = charge.amount_nano.to_string();
    let expected = [
        ("http.request.method", "POST"),
        ("http.route", "/v1/chat/completions"),
        ("http.response.status_code", "200"),
        ("gen_ai.request.model", "lmb-5.5"),
        ("tollgate.request_id", &charge.request_id),
        ("tollgate.account", "acct"),
        ("tollgate.route", "r1"),
        ("tollgate.depth", "1"),
        ("tollgate.charged_nanousd", &amount),
        ("tollgate.price_version", &charge.price_version),
        ("tollgate.basis", "reported"),
    ];
    has_only(call, &expected, &["tollgate.key"]);
}

/// The spans of an attempt that failed and of one that served.
fn tells_of_the_attempts(attempts: &[Span], world: &World, answer: &Answer, charge: &Charge) {
    let port = world.sim.address().port().to_string();
    let common = [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "maker.of.lmb"),
        ("gen_ai.request.model", "lmb-5.5"),
        ("http.request.method", "POST"),
        ("server.address", "127.0.0.1"),
        ("server.port", port.as_str()),
        ("tollgate.request_id", charge.request_id.as_str()),
    ];
    let (input, output) = charge.tokens();
    let (input, output) = (input.to_string(), output.to_string());
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let failed = [
        ("http.response.status_code", "503"),
        ("error.type", "503"),
        ("tollgate.failure", "overloaded"),
        ("tollgate.route", "r0"),
    ];
    let served = [
        ("http.response.status_code", "200"),
        ("gen_ai.response.id", &id),
        ("gen_ai.usage.input_tokens", &input),
        ("gen_ai.usage.output_tokens", &output),
        ("tollgate.route", "r1"),
    ];
    has_only(&attempts[0], &[&common[..], &failed[..]].concat(), &[]);
    has_only(&attempts[1], &[&common[..], &served[..]].concat(), &["tollgate.vendor_request_id"]);
    assert_eq!((is_error(&attempts[0]), is_error(&attempts[1])), (true, false));
    assert!(attempts.iter().all(|attempt| attempt.name == "chat lmb-5.5"));
}

/// What the requests themselves say.
async fn sends_who_it_is(world: &World, collector: &Collector, spans: i64) {
    world.metric_becomes("tollgate_spans_exported_total", &[], spans).await;
    assert_eq!(world.metric("tollgate_spans_dropped_total", &[]).await, 0);
    let head = collector.head(0);
    for line in ["post /v1/traces http/1.1", "content-type: application/x-protobuf"] {
        assert!(head.contains(line), "{head}");
    }
    assert!(head.contains("x-token: canary-token"), "{head}");
    assert!(!world.log().contains("canary-token"));
    for sent in collector.sent() {
        let resource = sent.resource.expect("a process");
        let process = attributes(&resource.attributes);
        assert_eq!(process["service.name"], "edge-7");
        assert_eq!(process["service.version"], env!("CARGO_PKG_VERSION"));
        assert!(process.contains_key("service.instance.id"));
        assert!(sent.schema_url.starts_with("https://opentelemetry.io/schemas/"));
    }
}

/// Nothing of a call's content is sent, nor a key, nor what the client said beside its trace.
fn keeps_secrets(world: &World, collector: &Collector) {
    let bytes = collector.bytes();
    let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    for secret in [QUESTION, TEXT, VENDOR_KEY, &world.key, "canary-bag"] {
        assert!(!has(secret), "{secret}");
    }
    // That the search finds what is there.
    let prefix = &world.key[..8];
    assert!(has(prefix) && has("lmb-5.5"));
}

#[rstest]
#[case::none(&[], None)]
#[case::sampled(&[PARENT], Some("b7ad6b7169203331"))]
#[case::malformed(&["00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"], None)]
#[case::twice(&[PARENT, PARENT], None)]
#[tokio::test]
async fn a_trace_of_the_caller_is_continued_if_that_is_wanted(
    #[case] parents: &[&str],
    #[case] parent: Option<&str>,
) {
    let collector = Collector::start().await;
    let conf = collector.section("callers = \"continue\"");
    let world = World::start(Store::Sqlite).conf(&conf).run().await;
    let mut headers: Vec<_> = parents.iter().map(|value| ("traceparent", *value)).collect();
    headers.push(("tracestate", "a=b"));
    let answer = chat_with(&world, &headers).await;
    let (call, attempts) = split(collector.has(2).await);
    let request_id = answer.header("x-request-id").expect("an id");
    let own = request_id.replace('-', "");
    let trace_id = parent.map_or(own.as_str(), |_| "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&call.trace_id), trace_id);
    assert_eq!(hex(&call.parent_span_id), parent.unwrap_or_default());
    assert_eq!(call.trace_state, if parent.is_some() { "a=b" } else { "" });
    assert!(call.links.is_empty());
    assert_eq!(attempts[0].parent_span_id, call.span_id);
    let seen = world.sim.seen().remove(0);
    assert!(seen.header("traceparent").is_some_and(|header| header.contains(trace_id)));
    assert_eq!(seen.header("tracestate"), None);
}

#[tokio::test]
async fn a_caller_can_take_its_call_out_of_the_traces_and_never_in() {
    let collector = Collector::start().await;
    let unsampled = PARENT.replace("-01", "-00");
    let conf = collector.section("callers = \"continue\"");
    let world = World::start(Store::Sqlite).conf(&conf).run().await;
    assert_eq!(chat_with(&world, &[("traceparent", &unsampled)]).await.status, 200);
    // One call in four billion is traced, whatever its caller says.
    let few = conf.replace("sample_ratio = 1.0", "sample_ratio = 0.00000000025");
    let other = World::start(Store::Sqlite).conf(&few).run().await;
    for _ in 0..20 {
        assert_eq!(chat_with(&other, &[("traceparent", PARENT)]).await.status, 200);
    }
    for world in [&world, &other] {
        assert!(world.sim.seen().iter().all(|seen| seen.header("traceparent").is_none()));
    }
    // What comes after them is the first to arrive.
    assert_eq!(chat_with(&world, &[]).await.status, 200);
    collector.has(2).await;
}

#[tokio::test]
async fn what_is_refused_has_a_span_if_its_key_is_known() {
    let collector = Collector::start().await;
    let world = World::start(Store::Sqlite).vendor("vendor_d", &["status=500"]);
    let world = world.conf(&collector.section("")).run().await;
    assert_eq!(world.get_with("/v1/models", "sk-canary-of-a-stranger").await.status, 401);
    assert_eq!(world.get("/v1/models").await.status, 200);
    let request = world.client().post(format!("http://{}/v1/messages", world.gateway.http));
    let request = request.bearer_auth("sk-canary-of-a-stranger");
    let stranger = Answer::read(request.body(messages_of("lma-sonnet-4-6").to_string())).await;
    assert_eq!(stranger.status, 401);
    assert_eq!(world.chat(chat_of("nothing")).await.status, 404);
    assert_eq!(world.chat(chat_of(model_of("vendor_d"))).await.status, 502);
    let spans = collector.has(3).await;
    let status = |span: &Span| attributes(&span.attributes)["http.response.status_code"].clone();
    let of = |wanted: &str, kind: SpanKind| {
        let found = spans.iter().find(|span| span.kind() == kind && status(span) == wanted);
        found.unwrap_or_else(|| panic!("no {wanted} in {spans:#?}"))
    };
    let unknown = of("404", SpanKind::Server);
    assert_eq!(attributes(&unknown.attributes)["error.type"], "model_not_found");
    assert!(!is_error(unknown));
    let failed = of("502", SpanKind::Server);
    assert_eq!(attributes(&failed.attributes)["error.type"], "upstream_error");
    assert!(is_error(failed) && is_error(of("500", SpanKind::Client)));
    assert!(!attributes(&failed.attributes).contains_key("tollgate.charged_nanousd"));
}

#[tokio::test]
async fn a_stream_that_breaks_is_an_error_of_both_its_spans() {
    let collector = Collector::start().await;
    let world = World::start(Store::Sqlite).vendor("vendor_b", &["cut=3"]);
    let world = world.conf(&collector.section("")).run().await;
    let mut body = chat_of("lmb-5.5");
    body["max_completion_tokens"] = json!(100);
    assert!(!world.stream(body).await.is_done());
    let charge = world.charge().await;
    let (call, attempts) = split(collector.has(2).await);
    let told = attributes(&call.attributes);
    assert_eq!(told["http.response.status_code"], "200");
    assert_eq!(told["tollgate.charged_nanousd"], charge.amount_nano.to_string());
    assert_eq!(told["tollgate.basis"], "counted");
    assert!(told.contains_key("error.type") && is_error(&call), "{told:#?}");
    let told = attributes(&attempts[0].attributes);
    assert_eq!(told["gen_ai.request.stream"], "true");
    assert_eq!(told["gen_ai.request.max_tokens"], "100");
    assert_eq!(told["tollgate.failure"], "cut");
    assert_eq!(told["error.type"], "cut");
    assert!(is_error(&attempts[0]));
}

#[rstest]
#[tokio::test]
async fn sending_a_video_to_its_vendor_is_a_part_of_the_trace_of_its_request(
    #[values(Store::Sqlite, Store::Redis)] store: Store,
) {
    let collector = Collector::start().await;
    let world = World::start(store).vendor("vendor_d", &["status=503", "video-ms=40"]);
    let world = world.conf(&quick(&[])).conf(&collector.section("")).run().await;
    let id = world.place(json!({ "prompt": "canary-prompt" })).await;
    world.over(&id).await;
    let (call, attempts) = split(collector.has(3).await);
    assert_eq!(call.name, "POST /v1/videos");
    let request_id = id.trim_start_matches("video_");
    assert_eq!(hex(&call.trace_id), request_id.replace('-', ""));
    let told = attempts.iter().map(|span| attributes(&span.attributes)).collect::<Vec<_>>();
    assert_eq!(told[0]["tollgate.failure"], "busy");
    assert!(is_error(&attempts[0]) && !is_error(&attempts[1]));
    let submissions = world.submissions();
    for ((attempt, told), seen) in attempts.iter().zip(&told).zip(&submissions) {
        assert!(attempt.name.starts_with("generate_content lmd-"), "{}", attempt.name);
        assert_eq!((&attempt.trace_id, &attempt.parent_span_id), (&call.trace_id, &call.span_id));
        assert_eq!(told["tollgate.request_id"], request_id);
        assert_eq!(told["gen_ai.provider.name"], "vendor_d");
        let header = format!("00-{}-{}-01", hex(&call.trace_id), hex(&attempt.span_id));
        assert_eq!(seen.header("traceparent"), Some(header.as_str()));
    }
    let bytes = collector.bytes();
    assert!(!bytes.windows(13).any(|part| part == b"canary-prompt"));
}

#[tokio::test]
async fn a_collector_that_takes_only_some_spans_is_told_of_and_not_asked_again() {
    // A partial success with one span that was rejected.
    let collector = Collector::answering(http("\n\x02\x08\x01")).await;
    let world = World::start(Store::Sqlite).conf(&collector.section("")).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.metric_becomes("tollgate_spans_exported_total", &[], 1).await;
    let refused = [r#"reason="refused""#];
    world.metric_becomes("tollgate_spans_dropped_total", &refused, 1).await;
    world.logged(&["trace_export_failed", "dropped=1"]).await;
    assert_eq!(collector.requests(), 1);
}

#[tokio::test]
async fn a_collector_that_refuses_spans_is_not_asked_again() {
    let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    let collector = Collector::answering(refusal.into()).await;
    let world = World::start(Store::Sqlite).conf(&collector.section("")).run().await;
    for _ in 0..2 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    }
    world.metric_becomes("tollgate_spans_dropped_total", &[r#"reason="refused""#], 4).await;
    assert_eq!(world.log().matches("trace_export_failed").count(), 1);
    assert_eq!(world.metric("tollgate_spans_exported_total", &[]).await, 0);
}

#[tokio::test]
async fn calls_do_not_wait_for_a_collector_that_is_away_and_a_stop_does_not_either() {
    let url = closed_port();
    let conf = format!("[traces]\nendpoint = {url:?}\nsample_ratio = 1.0\n");
    let mut world = World::start(Store::Sqlite).conf(&conf).run().await;
    for _ in 0..3 {
        assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    }
    world.logged(&["trace_export_failed"]).await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.gateway.signal("TERM");
    let began = Instant::now();
    world.gateway.ended(Duration::from_secs(20)).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(world.log().matches("trace_export_failed").count(), 1, "{}", world.log());
}

#[tokio::test]
async fn what_waits_is_sent_when_the_process_stops() {
    let collector = Collector::start().await;
    let mut world = World::start(Store::Sqlite).conf(&collector.section("")).run().await;
    assert_eq!(world.chat(chat_of("lmb-5.5")).await.status, 200);
    world.gateway.signal("TERM");
    world.gateway.ended(Duration::from_secs(20)).await;
    assert_eq!(collector.spans().len(), 2);
}

#[tokio::test]
async fn the_standard_variables_turn_traces_on() {
    let world = World::start(Store::Sqlite).env("OTEL_TRACES_SAMPLER", "jaeger_remote");
    // Without an address they mean nothing.
    let world = world.run().await;
    let collector = Collector::start().await;
    let base = collector.section("");
    let base = base.split('"').nth(1).expect("an address").trim_end_matches("/v1/traces");
    let name = ("OTEL_SERVICE_NAME", "by-variable");
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", base),
        name,
        ("OTEL_TRACES_SAMPLER", "parentbased_always_on"),
    ];
    let gateway = world.gateway_with("traced", &env).await;
    let request = world.url_of(&gateway, "/v1/chat/completions");
    let request = request.header("traceparent", PARENT).body(chat_of("lmb-5.5").to_string());
    assert_eq!(Answer::read(request).await.status, 200);
    let (call, _) = split(collector.has(2).await);
    assert_eq!(hex(&call.parent_span_id), "b7ad6b7169203331");
    let sent = collector.sent().remove(0).resource.expect("a process");
    assert_eq!(attributes(&sent.attributes)["service.name"], "by-variable");
    let mut doomed = world.doomed_gateway("doomed", &[env[0], ("OTEL_TRACES_SAMPLER", "odd")]);
    doomed.ended(Duration::from_secs(20)).await;
    let log = doomed.log();
    assert!(log.contains("environment variable OTEL_TRACES_SAMPLER: 'odd' is no sampler"), "{log}");
}
