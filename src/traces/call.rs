//! What is kept of a call that is traced, until its spans are made.

use std::time::Instant;

use super::context::{CallerSpan, SpanContext};

/// A call that is traced.
#[derive(Debug)]
pub(crate) struct CallTrace {
    /// The span of the call itself. Those of its attempts are its children.
    pub own: SpanContext,
    /// The span of the caller; `None` if it sent none.
    pub caller: Option<CallerSpan>,
    /// Whether the caller's span is the parent of the call's; otherwise it is linked.
    pub is_continued: bool,
    /// The call itself; `None` if its span is made elsewhere, as that of the request for a video is
    /// when the worker sends the job.
    pub call: Option<TracedCall>,
    /// The id of the request.
    pub request_id: String,
    /// The account that pays.
    pub account: String,
    /// The attempts in their order.
    pub attempts: Vec<TracedAttempt>,
}

/// What the span of a call tells. What never came about is empty.
#[derive(Debug)]
pub(crate) struct TracedCall {
    /// The path of the endpoint.
    pub path: &'static str,
    pub arrived: Instant,
    pub ended: Instant,
    /// The status that was sent to the client.
    pub status: u16,
    /// The error code of a refusal, or the reason why a stream broke.
    pub error_code: Option<String>,
    /// Whether the answer broke after its head was sent.
    pub is_broken: bool,
    /// The beginning of the API key.
    pub key_prefix: String,
    /// The id of the model, and the name by which the client asked for it if that is another.
    pub model: String,
    pub requested_model: Option<String>,
    /// The route that served the call, or that was tried last.
    pub route: String,
    /// How many routes failed before it.
    pub depth: u32,
    pub is_client_gone: bool,
    /// The result of an idempotent repeat, such as `replayed`.
    pub repeat: &'static str,
    pub price_version: String,
    /// Where the charged units come from.
    pub basis: &'static str,
    /// The charge in nano-USD.
    pub charged_nano: Option<i64>,
}

/// What the span of an attempt tells.
#[derive(Debug)]
pub(crate) struct TracedAttempt {
    pub span_id: [u8; 8],
    /// What the vendor is to do, in the words of the conventions.
    pub operation: &'static str,
    /// The name of the vendor in traces.
    pub provider: String,
    /// The id of the model.
    pub model: String,
    pub route: String,
    /// Where the request is sent.
    pub host: String,
    pub port: u16,
    pub began: Instant,
    /// `None` while it runs.
    pub ended: Option<Instant>,
    pub is_stream: bool,
    /// The limit of output tokens, if the client set one, and the number of choices.
    pub output_max: Option<u64>,
    pub choices: u64,
    /// The status of the vendor's answer.
    pub status: Option<u16>,
    /// Why the attempt failed, in the words of the metrics.
    pub failure: Option<&'static str>,
    /// The vendor's id of the request.
    pub vendor_request_id: Option<String>,
    /// The id of the reply.
    pub reply_id: Option<String>,
    /// The tokens that were charged.
    pub tokens: Option<TracedTokens>,
}

/// The tokens of a call: all input, of that the part read from a cache and the part written to one;
/// and all output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TracedTokens {
    pub input: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub output: u64,
}

impl TracedCall {
    /// Begins what is told of a call to the endpoint at this path.
    #[must_use]
    pub(crate) fn begin(path: &'static str, arrived: Instant) -> TracedCall {
        TracedCall {
            path,
            arrived,
            ended: arrived,
            status: 0,
            error_code: None,
            is_broken: false,
            key_prefix: String::new(),
            model: String::new(),
            requested_model: None,
            route: String::new(),
            depth: 0,
            is_client_gone: false,
            repeat: "",
            price_version: String::new(),
            basis: "",
            charged_nano: None,
        }
    }
}

impl TracedAttempt {
    /// Begins what is told of an attempt for a model on a route, now. `address` is the host and the
    /// port to which the request is sent.
    #[must_use]
    pub(crate) fn begin(
        span_id: [u8; 8],
        operation: &'static str,
        model: &str,
        provider: &str,
        route: &str,
        address: (&str, u16),
    ) -> TracedAttempt {
        TracedAttempt {
            span_id,
            operation,
            provider: provider.to_owned(),
            model: model.to_owned(),
            route: route.to_owned(),
            host: address.0.to_owned(),
            port: address.1,
            began: Instant::now(),
            ended: None,
            is_stream: false,
            output_max: None,
            choices: 1,
            status: None,
            failure: None,
            vendor_request_id: None,
            reply_id: None,
            tokens: None,
        }
    }
}

impl CallTrace {
    /// Begins the trace of an attempt whose call is traced elsewhere, under the span `own`.
    #[must_use]
    pub(crate) fn elsewhere(own: SpanContext, request_id: String, account: String) -> CallTrace {
        CallTrace {
            own,
            caller: None,
            is_continued: false,
            call: None,
            request_id,
            account,
            attempts: Vec::new(),
        }
    }

    /// Returns how many spans are made of it.
    #[must_use]
    pub(crate) fn spans(&self) -> u64 {
        let spans = self.attempts.len() + usize::from(self.call.is_some());
        u64::try_from(spans).unwrap_or(u64::MAX)
    }

    /// Returns the `traceparent` for the vendor of the attempt that runs.
    #[must_use]
    pub(crate) fn attempt_header(&self) -> Option<String> {
        let span_id = self.running()?.span_id;
        Some(SpanContext { span_id, ..self.own }.to_header())
    }

    /// Begins an attempt.
    pub(crate) fn begin_attempt(&mut self, attempt: TracedAttempt) {
        self.end_attempt(None);
        self.attempts.push(attempt);
    }

    /// Notes the status of the vendor's answer.
    pub(crate) fn note_status(&mut self, status: u16) {
        if let Some(attempt) = self.running_mut() {
            attempt.status = Some(status);
        }
    }

    /// Ends the attempt that runs, if there is one. `failure` is why it failed.
    pub(crate) fn end_attempt(&mut self, failure: Option<&'static str>) {
        if let Some(attempt) = self.running_mut() {
            attempt.ended = Some(Instant::now());
            attempt.failure = failure;
        }
    }

    /// Returns the attempt that runs.
    fn running(&self) -> Option<&TracedAttempt> {
        self.attempts.last().filter(|attempt| attempt.ended.is_none())
    }

    /// The same, to be changed.
    pub(crate) fn running_mut(&mut self) -> Option<&mut TracedAttempt> {
        self.attempts.last_mut().filter(|attempt| attempt.ended.is_none())
    }
}
