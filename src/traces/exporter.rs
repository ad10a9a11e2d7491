//! Sends traces to a collector, in batches, from a thread of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use tokio::sync::watch;

use super::call::CallTrace;
use super::queue::{DropReason, TraceQueue, count_dropped};
use super::spans::{ProcessIdentity, build_request};
use crate::error_chain::error_chain;
use crate::metrics::METRICS;

/// How long traces wait for others at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// The pauses between the tries to send a batch, and how many tries there are: about half a minute.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(16);
const TRIES_MAX: u32 = 6;
/// At most this many bytes of a collector's answer are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// That a collector is away is logged at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Where traces are sent, and what they say of this process.
pub(crate) struct ExporterConfig {
    /// The address of the collector, with its path.
    pub endpoint: String,
    /// Headers of each request, such as one with a token.
    pub headers: HeaderMap,
    /// The timeout of a request.
    pub timeout: Duration,
    /// What the spans of this process have in common.
    pub identity: ProcessIdentity,
}

/// Sends the traces of a queue.
pub(super) struct Exporter {
    client: Client,
    config: ExporterConfig,
    queue: Arc<TraceQueue>,
    /// Becomes true when what waits is to be sent now, and nothing is waited for.
    closing: watch::Receiver<bool>,
    last_logged: Option<Instant>,
    /// Spans that were dropped since the last log line.
    unlogged: u64,
}

/// Why a batch was not taken.
enum SendError {
    /// It may be sent again, after this time if the collector says so.
    Retryable(String, Option<Duration>),
    /// The collector does not want it.
    Refused(StatusCode),
}

impl Exporter {
    /// Makes the exporter and its HTTP client.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(super) fn new(
        config: ExporterConfig,
        queue: Arc<TraceQueue>,
        closing: watch::Receiver<bool>,
    ) -> reqwest::Result<Exporter> {
        let client = Client::builder()
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .no_proxy()
            .timeout(config.timeout)
            .build()?;
        Ok(Exporter { client, config, queue, closing, last_logged: None, unlogged: 0 })
    }

    /// Sends what is queued until the process ends. Returns after the last batch.
    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.queue.filled.notified() => {}
                _ = self.closing.changed() => {}
            }
            loop {
                let batch = self.queue.take_batch();
                if batch.is_empty() {
                    break;
                }
                let spans = batch.iter().map(CallTrace::spans).sum();
                let body = build_request(&self.config.identity, &batch).encode_to_vec();
                drop(batch);
                self.send_with_retry(body.into(), spans).await;
            }
            if self.is_closing() {
                return;
            }
        }
    }

    /// Whether what waits is to be sent now, and nothing is waited for.
    fn is_closing(&self) -> bool {
        *self.closing.borrow() || self.closing.has_changed().is_err()
    }

    /// Sends a batch, several times if it must be; or drops it.
    async fn send_with_retry(&mut self, body: bytes::Bytes, spans: u64) {
        let mut pause = RETRY_PAUSE_MIN;
        for tries in 1.. {
            let (why, wait) = match self.send(body.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    METRICS.spans_exported.inc_by(spans - rejected);
                    if rejected > 0 {
                        count_dropped(DropReason::Refused, rejected);
                        self.log_failure("the collector took only a part of the spans", rejected);
                    }
                    return;
                }
                Err(SendError::Refused(status)) => {
                    count_dropped(DropReason::Refused, spans);
                    self.log_failure(&format!("the collector answered {status}"), spans);
                    return;
                }
                Err(SendError::Retryable(why, wait)) => (why, wait),
            };
            let is_closing = self.is_closing();
            if tries >= TRIES_MAX || is_closing {
                let reason =
                    if is_closing { DropReason::Shutdown } else { DropReason::Unreachable };
                count_dropped(reason, spans);
                self.log_failure(&why, spans);
                return;
            }
            self.log_failure(&why, 0);
            let wait = wait.unwrap_or_default().clamp(pause, RETRY_PAUSE_MAX);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = self.closing.changed() => {}
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Sends a batch once. Returns how many of its spans the collector did not take.
    async fn send(&self, body: bytes::Bytes) -> Result<u64, SendError> {
        let post = self.client.post(&self.config.endpoint).headers(self.config.headers.clone());
        let post = post.header(CONTENT_TYPE, "application/x-protobuf").body(body);
        let answer = post
            .send()
            .await
            .map_err(|why| SendError::Retryable(error_chain(&why.without_url()), None))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(read_rejected(answer).await);
        }
        // Those that the protocol says may be sent again.
        if matches!(status.as_u16(), 429 | 502..=504) {
            let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
            return Err(SendError::Retryable(format!("the collector answered {status}"), after));
        }
        Err(SendError::Refused(status))
    }

    /// Logs that spans were not taken, and how many were dropped since that was last logged.
    fn log_failure(&mut self, why: &str, dropped: u64) {
        self.unlogged = self.unlogged.saturating_add(dropped);
        if self.last_logged.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            return;
        }
        self.last_logged = Some(Instant::now());
        let dropped = std::mem::take(&mut self.unlogged);
        log::warn!(event = "trace_export_failed", dropped, error = why; "traces not sent");
    }
}

/// Returns how many spans a collector says it did not take.
async fn read_rejected(mut answer: Response) -> u64 {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            return 0;
        }
        body.extend_from_slice(&piece);
    }
    let answer = ExportTraceServiceResponse::decode(body.as_slice()).unwrap_or_default();
    let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
    u64::try_from(rejected).unwrap_or(0)
}
