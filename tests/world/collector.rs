//! A collector of traces, which decodes what it is sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message;

use super::{Canned, http};

/// Spans that have not come by then never come.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module; it stops when dropped.
pub(crate) struct Collector {
    canned: Canned,
}

impl Collector {
    /// One that takes all spans.
    pub(crate) async fn start() -> Collector {
        Collector::answering(http("")).await
    }

    /// One that answers every request with these bytes.
    pub(crate) async fn answering(answer: Vec<u8>) -> Collector {
        Collector { canned: Canned::start(answer, usize::MAX).await }
    }

    /// The section of a gateway that sends it the traces of all calls, with these settings beside.
    pub(crate) fn section(&self, settings: &str) -> String {
        let url = &self.canned.url;
        format!("[traces]\nendpoint = \"{url}/traces\"\nsample_ratio = 1.0\n{settings}\n")
    }

    /// All that it was sent, byte for byte.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        (0..self.canned.heard()).flat_map(|number| self.canned.bytes(number)).collect()
    }

    /// How many requests it has read.
    pub(crate) fn requests(&self) -> usize {
        self.canned.heard()
    }

    /// The head of a request that it has read.
    pub(crate) fn head(&self, number: usize) -> String {
        let request = self.canned.bytes(number);
        let end = end_of_head(&request);
        String::from_utf8(request[..end].to_vec()).expect("a head is text").to_ascii_lowercase()
    }

    /// What it was sent, by the process that sent it.
    pub(crate) fn sent(&self) -> Vec<ResourceSpans> {
        let requests = (0..self.canned.heard()).map(|number| self.canned.bytes(number));
        let decoded = requests.map(|request| {
            let body = &request[end_of_head(&request)..];
            ExportTraceServiceRequest::decode(body).expect("spans")
        });
        decoded.flat_map(|request| request.resource_spans).collect()
    }

    /// All spans that it was sent.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let scopes = self.sent().into_iter().flat_map(|sent| sent.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Waits until it has so many spans.
    pub(crate) async fn has(&self, count: usize) -> Vec<Span> {
        let end = Instant::now() + PATIENCE;
        loop {
            let spans = self.spans();
            if spans.len() >= count {
                assert_eq!(spans.len(), count, "{spans:#?}");
                return spans;
            }
            assert!(Instant::now() < end, "only {spans:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Where the body of a request begins.
fn end_of_head(request: &[u8]) -> usize {
    let end = request.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    end.expect("a head") + 4
}

/// The attributes of a span or a process, as text.
pub(crate) fn attributes(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let pairs = attributes.iter().map(|pair| {
        let value = pair.value.as_ref().and_then(|value| value.value.as_ref());
        let text = match value.expect("a value") {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(number) => number.to_string(),
            Value::BoolValue(is_so) => is_so.to_string(),
            other => panic!("{other:?} is not expected"),
        };
        (pair.key.as_str(), text)
    });
    let all: BTreeMap<_, _> = pairs.collect();
    assert_eq!(all.len(), attributes.len(), "each stands once: {attributes:?}");
    all
}
