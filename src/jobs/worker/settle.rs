//! The end of a job: its outcome is written to the ledger, once.

use std::borrow::Cow;
use std::time::Instant;

use anyhow::Context as _;

use super::parts::{JobWorker, NextStep};
use super::retry::RETRY_TIME_MAX;
use crate::dialect::Endpoint;
use crate::jobs::{JobClaim, JobOutcome, JobStage};
use crate::ledger::{Hold, JournalLine, Outcome};
use crate::money::{Money, Usage};
use crate::settlement::{self, Charge};

impl JobWorker {
    /// Settles or voids the hold of a job. A repeat changes nothing in the ledger.
    pub(super) async fn settle(
        &self,
        claim: &mut JobClaim,
        outcome: &JobOutcome,
    ) -> anyhow::Result<NextStep> {
        let job = &claim.job;
        let (account, id, key) = (job.account.clone(), job.id.clone(), job.key_id);
        let hold = Hold::resume(account, id, key, job.held, job.created_ms);
        let due = match outcome {
            JobOutcome::Failed { .. } => None,
            JobOutcome::Completed { charge, usage, basis, .. } => {
                let usage = Usage { units: *usage, basis: *basis };
                Some((*charge, usage, journal_line(claim).context("no line")?))
            }
        };
        let charge =
            due.as_ref().map(|(amount, usage, line)| Charge::new(*amount, line.to_json(), *usage));
        let (ledger, deadline) = (self.ledger.clone(), Some(Instant::now() + RETRY_TIME_MAX));
        let store = self.store_name;
        let ending = settlement::end_hold(&ledger, hold, charge.as_ref(), deadline, store);
        let ended = self.while_renewing(claim, ending).await??;
        // Only a new posting is counted. One that was made before was counted at that time.
        if let (Outcome::Posted { .. }, Some((amount, usage, line))) = (ended, &due) {
            settlement::count_charge(line, *usage, *amount);
        }
        claim.job.mark_ended();
        let job = &claim.job;
        let line = due.as_ref().map(|(_, _, line)| line);
        log::info!(
            target: "request",
            event = "video_ended",
            job = job.id,
            endpoint = Endpoint::Videos.name(),
            key = job.key_prefix,
            account = job.account.as_str(),
            model = job.model,
            route = line.map_or("", |line| &*line.route),
            depth = line.map_or(0, |line| line.depth),
            status = job.status().name(),
            code = match outcome {
                JobOutcome::Failed { code, .. } => code.name(),
                JobOutcome::Completed { .. } => "",
            },
            charge_nano = due.as_ref().map_or(Money::ZERO, |(amount, _, _)| *amount).nano();
            "video ended"
        );
        let keep = if claim.deleted { 0 } else { self.schedule.keep_ms };
        self.save(claim, Some(keep)).await
    }
}

/// Returns the journal line of a completed job; `None` if the job is not completed.
fn journal_line(claim: &JobClaim) -> Option<JournalLine<'static>> {
    let job = &claim.job;
    let JobStage::Settling { outcome, at_ms } = &job.stage else { return None };
    let JobOutcome::Completed { route, depth, vendor_id, usage, basis, .. } = outcome else {
        return None;
    };
    Some(JournalLine {
        request_id: job.id.clone().into(),
        at: *at_ms,
        key_prefix: job.key_prefix.clone().into(),
        key_id: job.key_id,
        endpoint: Endpoint::Videos.name().into(),
        model: job.model.clone().into(),
        requested_model: job.requested_model.clone().map(Cow::Owned),
        vendor: job.vendor.clone().into(),
        route: route.clone().into(),
        depth: *depth,
        usage: *usage,
        basis: *basis,
        rejected_usage: None,
        price_version: job.price_version.clone().into(),
        vendor_request_id: Some(vendor_id.clone().into()),
        retry_digest: None,
        over_budget_nano: None,
    })
}
