//! Begins the traces of calls, and takes them when the calls have ended.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::sync::watch;

use super::call::CallTrace;
use super::context::{CallerSpan, SpanContext, TRACEPARENT, TRACESTATE};
use super::exporter::Exporter;
pub(crate) use super::exporter::ExporterConfig;
use super::queue::TraceQueue;
use super::sampler::{CallerTraces, Sampler};
pub(crate) use super::spans::ProcessIdentity;

/// Begins traces, and sends them in the background.
pub(crate) struct Tracer {
    sampler: Sampler,
    queue: Arc<TraceQueue>,
    closing: watch::Sender<bool>,
}

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TracerError {
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] reqwest::Error),
    /// The system gives no thread.
    #[error(transparent)]
    Thread(#[from] std::io::Error),
}

impl Tracer {
    /// Starts the thread that sends traces.
    ///
    /// # Errors
    /// See [`TracerError`].
    pub(crate) fn start(
        sampler: Sampler,
        exporter: ExporterConfig,
    ) -> Result<Arc<Tracer>, TracerError> {
        let queue = Arc::<TraceQueue>::default();
        let (closing, is_closing) = watch::channel(false);
        let exporter = Exporter::new(exporter, queue.clone(), is_closing)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run_exporter = move || runtime.block_on(exporter.run());
        std::thread::Builder::new().name("traces".to_owned()).spawn(run_exporter)?;
        Ok(Arc::new(Tracer { sampler, queue, closing }))
    }

    /// Begins the trace of a request whose id is a UUID, if it is to be traced.
    ///
    /// Unless the trace of the caller is continued, the id of the trace is that of the request, so
    /// that one finds the other.
    #[must_use]
    pub(crate) fn begin(&self, request_id: &str, headers: &HeaderMap) -> Option<Box<CallTrace>> {
        let id = uuid::Uuid::try_parse(request_id).ok()?.into_bytes();
        // The end of a UUID of version 7 is random.
        let [.., a, b, c, d] = id;
        if !self.sampler.chooses(u32::from_be_bytes([a, b, c, d])) {
            return None;
        }
        let values = |name| headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
        let caller = CallerSpan::from_headers(values(TRACEPARENT), values(TRACESTATE));
        if self.sampler.is_declined(caller.as_ref()) {
            return None;
        }
        let is_continued = self.sampler.callers == CallerTraces::Continue && caller.is_some();
        let continued = caller.as_ref().filter(|_| is_continued);
        let own = SpanContext {
            trace_id: continued.map_or(id, |caller| caller.context.trace_id),
            span_id: new_span_id(),
            is_sampled: true,
        };
        let trace = CallTrace::elsewhere(own, request_id.to_owned(), String::new());
        Some(Box::new(CallTrace { caller, is_continued, ..trace }))
    }

    /// Takes the trace of a call that has ended. An attempt that still runs ends now.
    pub(crate) fn finish(&self, mut trace: Box<CallTrace>) {
        trace.end_attempt(None);
        self.queue.push(*trace);
    }

    /// Sends what is queued, for as long as `within`. Afterwards nothing is sent any more.
    pub(crate) async fn flush(&self, within: Duration) {
        self.closing.send_replace(true);
        // The exporter drops its end of the channel when it has ended.
        let _ = tokio::time::timeout(within, self.closing.closed()).await;
    }
}

/// Returns an id for a span, which is never zero.
#[must_use]
pub(crate) fn new_span_id() -> [u8; 8] {
    // The end of a UUID is of the same quality, if the system has no randomness for us.
    let other = || {
        let [_, _, _, _, _, _, _, _, rest @ ..] = uuid::Uuid::now_v7().into_bytes();
        u64::from_be_bytes(rest)
    };
    getrandom::u64().unwrap_or_else(|_| other()).max(1).to_be_bytes()
}
