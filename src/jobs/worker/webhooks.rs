//! Tells the endpoints of webhooks that a video is ready, or will not come.

use std::time::Duration;

use serde_json::json;

use super::parts::JobWorker;
use super::retry::retry_until_done;
use crate::clock::unix_ms;
use crate::jobs::{JobClaim, JobOutcome};
use crate::ledger::Unavailable;
use crate::notifier::report_noted;
use crate::webhooks::event::{EventKind, WebhookEvent};
use crate::webhooks::publish::{list_endpoints, note_event};

/// A job that has ended waits at most this long until that is noted.
const NOTE_TIMEOUT: Duration = Duration::from_secs(10);

impl JobWorker {
    /// Notes that a job has ended, before that is saved: a worker that comes later notes it again,
    /// which adds nothing. Nobody is told of a job that its client has deleted.
    pub(super) async fn note_end(&self, claim: &JobClaim, outcome: &JobOutcome) {
        if claim.deleted {
            return;
        }
        let (job, now) = (&claim.job, unix_ms());
        let (kind, charged, error) = match outcome {
            JobOutcome::Completed { charge, .. } => (EventKind::VideoCompleted, Some(charge), None),
            JobOutcome::Failed { code, message } => {
                (EventKind::VideoFailed, None, Some((code, message)))
            }
        };
        let event = WebhookEvent {
            kind,
            account: Some(job.account.clone()),
            key: job.id.clone(),
            at: now,
            data: json!({
                "video_id": job.id,
                "model": job.model,
                "key_id": job.key_id.map(|id| id.0.to_string()),
                "charged_usd": charged.map(ToString::to_string),
                "error": error.map(|(code, message)| json!({
                    "code": code.name(),
                    "message": message,
                })),
            }),
        };
        let note = || async {
            let endpoints = list_endpoints(&*self.webhooks, Some(&job.account)).await?;
            note_event(&*self.webhooks, &endpoints, &event, now).await
        };
        let noting = tokio::time::timeout(NOTE_TIMEOUT, retry_until_done(note)).await;
        match noting.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned()))) {
            Ok(noted) => report_noted(noted),
            Err(why) => log::warn!(
                event = "webhook_not_noted", job = job.id, error:% = why;
                "webhook message of a video lost"
            ),
        }
    }
}
