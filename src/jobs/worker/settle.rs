//! The end of a job: its outcome goes into the ledger, once.

use anyhow::Context as _;

use super::parts::{JobWorker, NextTurn};
use super::retry::retry_until_done;
use crate::jobs::{JobClaim, JobOutcome, JobStage};
use crate::ledger::{HoldRequest, JournalLine, Operation, Outcome};
use crate::metrics::{METRICS, counter_value, record_write_off};

impl JobWorker {
    /// Brings an outcome into the ledger. The same again changes nothing there.
    pub(super) async fn settle(
        &self,
        claim: &mut JobClaim,
        outcome: &JobOutcome,
    ) -> anyhow::Result<NextTurn> {
        let job = &claim.job;
        let op = match outcome {
            JobOutcome::Failed { .. } => Operation::Void { id: job.id.clone() },
            JobOutcome::Completed { charge, .. } => {
                let line = serde_json::to_string(&journal_line(claim).context("no line")?)?;
                let origin =
                    Some(HoldRequest { wanted: job.held, least: job.held, at: job.created_ms });
                Operation::Settle { id: job.id.clone(), charge: *charge, line, origin }
            }
        };
        let asking = retry_until_done(|| self.ledger.apply(&job.account, op.clone()));
        let answer = self.while_renewing(claim, asking).await??;
        let job = &claim.job;
        match answer {
            Outcome::Posted { amount, written_off } => {
                let labels = ["videos", &job.model, &job.vendor];
                METRICS
                    .charged_nanousd
                    .with_label_values(&labels)
                    .inc_by(counter_value(amount.nano()));
                record_write_off(job.account.as_str(), &job.id, written_off.nano());
            }
            // A lease that ran out first has released what was held.
            Outcome::AlreadyPosted(_) | Outcome::Voided | Outcome::HoldEnded => {}
            other => log::error!(
                event = "hold_settlement_failed", job = job.id, answer:? = other;
                "hold settlement failed"
            ),
        }
        claim.job.mark_ended();
        log::info!(
            target: "request",
            job = claim.job.id,
            account = claim.job.account.as_str(),
            model = claim.job.model,
            status = claim.job.status().name(),
            code = match outcome {
                JobOutcome::Failed { code, .. } => code.name(),
                JobOutcome::Completed { .. } => "",
            },
            charge_nano = match outcome {
                JobOutcome::Failed { .. } => 0,
                JobOutcome::Completed { charge, .. } => charge.nano(),
            };
            "video ended"
        );
        let keep = if claim.deleted { 0 } else { self.schedule.keep_ms };
        self.save(claim, Some(keep)).await
    }
}

/// The journal line of a job that is completed.
fn journal_line(claim: &JobClaim) -> Option<JournalLine> {
    let job = &claim.job;
    let JobStage::Settling { outcome, at_ms } = &job.stage else { return None };
    let JobOutcome::Completed { route, depth, vendor_id, usage, basis, .. } = outcome else {
        return None;
    };
    Some(JournalLine {
        request_id: job.id.clone(),
        at: *at_ms,
        key_prefix: job.key_prefix.clone(),
        endpoint: "videos".to_owned(),
        model: job.model.clone(),
        vendor: job.vendor.clone(),
        route: route.clone(),
        depth: *depth,
        usage: *usage,
        basis: *basis,
        rejected_usage: None,
        price_version: job.price_version.clone(),
        vendor_request_id: Some(vendor_id.clone()),
    })
}
