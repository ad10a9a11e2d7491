//! The end of a job: its outcome is written to the ledger, once.

use std::time::Instant;

use anyhow::Context as _;

use super::parts::{JobWorker, NextStep};
use super::retry::RETRY_TIME_MAX;
use crate::dialect::Endpoint;
use crate::jobs::{Job, JobClaim, JobOutcome, JobStage};
use crate::ledger::{BookedAmount, Hold, JournalLine, Outcome, PricedUsage, ServedCall};
use crate::money::{BilledUnits, Money, Usage};
use crate::settlement::{self, Charge};

impl JobWorker {
    /// Settles or voids the hold of a job. A repeat changes nothing in the ledger.
    pub(super) async fn settle(
        &self,
        claim: &mut JobClaim,
        outcome: &JobOutcome,
    ) -> anyhow::Result<NextStep> {
        self.end_hold(claim, outcome).await?;
        claim.job.mark_ended();
        let job = &claim.job;
        let (code, route, depth, charge) = match outcome {
            JobOutcome::Failed { code, .. } => (code.name(), "", 0, Money::ZERO),
            JobOutcome::Completed { route, depth, charge, .. } => {
                ("", route.as_str(), *depth, *charge)
            }
        };
        log::info!(
            target: "request",
            event = "video_ended",
            job = job.id,
            endpoint = Endpoint::Videos.name(),
            key = job.key_prefix,
            account = job.account.as_str(),
            model = job.model,
            route,
            depth,
            status = job.status().name(),
            code,
            charge_nano = charge.nano();
            "video ended"
        );
        let noting = self.note_end(claim, outcome);
        self.while_renewing(claim, noting).await?;
        let keep = if claim.deleted { 0 } else { self.schedule.keep_ms };
        self.save(claim, Some(keep)).await
    }

    /// Settles the hold of a completed job, or voids that of a failed one, and counts the charge.
    async fn end_hold(&self, claim: &JobClaim, outcome: &JobOutcome) -> anyhow::Result<()> {
        let job = &claim.job;
        let (account, id, key) = (job.account.clone(), job.id.clone(), job.key_id);
        let hold = Hold::resume(account, id, key, job.held, job.created_ms);
        let due = match outcome {
            JobOutcome::Failed { .. } => None,
            JobOutcome::Completed { charge, .. } => {
                let line = journal_line(job).context("no line")?;
                Some((Charge::new(*charge, &line), line))
            }
        };
        let charge = due.as_ref().map(|(charge, _)| charge);
        let deadline = Some(Instant::now() + RETRY_TIME_MAX);
        let ending = settlement::end_hold(&self.ledger, hold, charge, deadline, self.store_name);
        let ended = self.while_renewing(claim, ending).await??;
        // Only a new posting is counted. One that was made before was counted at that time.
        if let (Outcome::Posted { .. }, Some((charge, line))) = (ended, &due) {
            settlement::count_charge(line, charge.amount);
        }
        Ok(())
    }
}

/// Returns the journal line of a completed job; `None` if the job is not completed.
fn journal_line(job: &Job) -> Option<JournalLine<'_>> {
    let JobStage::Settling { outcome, at_ms } = &job.stage else { return None };
    let JobOutcome::Completed { route, depth, vendor_id, usage, basis, .. } = outcome else {
        return None;
    };
    let call = ServedCall {
        request_id: &job.id,
        key_prefix: &job.key_prefix,
        key_id: job.key_id,
        endpoint: Endpoint::Videos.name(),
        model: &job.model,
        requested_model: job.requested_model.as_deref(),
        vendor: &job.vendor,
        route,
        depth: *depth,
        vendor_request_id: Some(vendor_id.as_str()),
        reply_id: None,
        retry_digest: None,
    };
    // Where the vendor reports its bill, that is the price on the price list, and the cost.
    let billed = match usage {
        BilledUnits::Video { ticks: Some(ticks), .. } => Money::from_ticks(*ticks).ok(),
        _ => None,
    };
    let used = PricedUsage {
        at: *at_ms,
        usage: Usage { units: *usage, basis: *basis },
        rejected: None,
        price_version: &job.price_version,
        booked: job
            .booked
            .as_ref()
            .map(|booked| BookedAmount { book: &booked.book, list: billed.unwrap_or(booked.list) }),
        cost: job.cost.map(|cost| billed.unwrap_or(cost)),
    };
    Some(JournalLine::new(call, used))
}
