//! Traces: a span for each call and one for each attempt, sent to a collector as OTLP over HTTP.
//!
//! A call that is not sampled has no trace, and costs nothing more. That of a sampled call is
//! filled from what the call keeps anyway, and is queued when the call has ended. A thread of its
//! own makes spans of it and sends them, so that no call waits for a collector.

pub(crate) mod call;
pub(crate) mod context;
mod exporter;
mod queue;
pub(crate) mod sampler;
mod spans;
pub(crate) mod tracer;
