//! The trace of sending a job to a vendor, if the request that created it is traced.

use bytes::Bytes;

use crate::catalogue::Vendor;
use crate::jobs::video_client::{SubmitOutcome, VideoRoute};
use crate::jobs::worker::JobWorker;
use crate::jobs::{Job, JobClaim};
use crate::traces::call::{CallTrace, TracedAttempt};
use crate::traces::context::SpanContext;
use crate::traces::tracer::new_span_id;

/// What the conventions call the making of a video.
const OPERATION: &str = "generate_content";

impl JobWorker {
    /// Sends a job over a route, once.
    ///
    /// # Errors
    /// The claim was lost meanwhile.
    pub(super) async fn submit_traced(
        &self,
        claim: &JobClaim,
        route: &VideoRoute,
        vendor: &Vendor,
        body: Bytes,
    ) -> anyhow::Result<SubmitOutcome> {
        let trace = self.begin_trace(&claim.job, route);
        let header = trace.as_ref().and_then(|trace| trace.attempt_header());
        let submitting = self.video_client.submit(route, vendor, body, header);
        let outcome = self.while_renewing(claim, submitting).await?;
        self.end_trace(trace, &outcome);
        Ok(outcome)
    }

    /// Begins the trace of an attempt to send a job over a route; `None` if it is not traced.
    fn begin_trace(&self, job: &Job, route: &VideoRoute) -> Option<Box<CallTrace>> {
        self.tracer.as_ref()?;
        let own = SpanContext::parse(job.trace.as_ref()?.as_bytes())?;
        let request_id = job.id.rsplit('_').next().unwrap_or_default().to_owned();
        let mut trace = CallTrace::elsewhere(own, request_id, job.account.to_string());
        let attempt = TracedAttempt::begin(
            new_span_id(),
            OPERATION,
            &job.model,
            route.provider(),
            &route.name,
            route.address(),
        );
        trace.begin_attempt(attempt);
        Some(Box::new(trace))
    }

    /// Ends the trace of an attempt.
    fn end_trace(&self, trace: Option<Box<CallTrace>>, outcome: &SubmitOutcome) {
        let (Some(tracer), Some(mut trace)) = (&self.tracer, trace) else { return };
        let failure = match outcome {
            SubmitOutcome::Accepted(_) => None,
            SubmitOutcome::Refused(_) => Some("refused"),
            SubmitOutcome::Busy(_) => Some("busy"),
            SubmitOutcome::Denied(status) => {
                trace.note_status(status.as_u16());
                Some("auth")
            }
            SubmitOutcome::Unknown(_) => Some("unknown"),
        };
        trace.end_attempt(failure);
        tracer.finish(trace);
    }
}
