//! Ends a call: turns its usage into a charge, settles or voids its hold, and logs the request.
//!
//! The settlement is handed to the ledger before the last bytes go to the client. The charge is
//! posted some milliseconds later if the store answers; retries and the sync to disk go on in the
//! background.

use std::time::Duration;

use super::call_metrics::count_request;
use super::context::{AccessLogRecord, RelayedCall, RequestContext};
use super::spawn::poll_then_spawn;
use super::state::Gateway;
use super::{call_trace, idempotency};
use crate::backoff::Backoff;
use crate::clock::unix_ms;
use crate::dialect::relay::{RelayError, RelayProgress, RetainedData};
use crate::gateway::request::{reasoning_cache, vendor_ids};
use crate::gateway::settlement::funding::Funding;
use crate::ledger::{
    AccountName, BookedAmount, JournalLine, Operation, PricedUsage, ServedCall, Unavailable,
};
use crate::metrics::METRICS;
use crate::money::fee::ChargedFee;
use crate::money::{Money, Usage, UsageBasis};
use crate::settlement::{Charge, RETRY_WAIT_MAX, RETRY_WAIT_MIN, count_charge, end_hold};

pub(crate) mod funding;
pub(crate) mod holds;
pub(crate) mod output_estimates;
pub(crate) mod quote;
pub(crate) mod repeated_reads;
pub(crate) mod stream_budget;
pub(crate) mod stream_holds;
pub(crate) mod token_estimate;
pub(crate) mod usage_bounds;

/// Settles or voids the hold of a call whose response has ended, and records the charge.
pub(super) async fn settle_call(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    relaying: Box<RelayedCall>,
    client_gone: bool,
) {
    ctx.access_log.client_disconnected = client_gone;
    call_trace::note_answer(ctx, &relaying);
    log_rejected_usage(ctx, &relaying);
    log_rejected_fees(ctx, &relaying);
    let exhausted_usage = relaying.stream_budget.exhausted_usage(&relaying.input_count);
    let billable_usage =
        || relaying.billable_usage().map(|usage| relaying.stream_budget.cap_usage(usage));
    let Some(usage) = exhausted_usage.or_else(billable_usage) else {
        void_hold(gateway, relaying.funding);
        return;
    };
    let Some((amount, fees)) = compute_charge(&relaying, usage) else {
        log::error!(
            event = "usage_unpriced", request_id = ctx.id;
            "usage pricing failed; nothing charged"
        );
        void_hold(gateway, relaying.funding);
        return;
    };
    let charge = {
        let retry_digest = idempotency::retry_digest(ctx);
        let Some(line) = journal_line(&relaying, retry_digest, usage, fees) else { return };
        count_charge(&line, amount);
        Charge::new(amount, &line)
    };
    record_output(&relaying, usage);
    let RelayedCall { funding, route, mut relay, .. } = *relaying;
    let Funding::Held { hold, lease, .. } = funding else { return };
    record_charge(&mut ctx.access_log, usage, amount);
    let account = hold.account().clone();
    let ledger = gateway.ledger.clone();
    let settling = gateway.settlements.begin();
    let store = gateway.store_name;
    poll_then_spawn(async move {
        let _settling = settling;
        // Without a deadline, the settlement is retried until it succeeds.
        let _ = end_hold(&ledger, hold, Some(&charge), None, store).await;
    });
    drop(lease);
    match relay.take_retained() {
        Some(RetainedData::Thinking(kept)) => {
            reasoning_cache::save_reasoning(gateway, &account, kept).await;
        }
        Some(RetainedData::IssuedIds(ids)) => {
            vendor_ids::store_ids(gateway, &account, ids, usage.tokens(), &route.name).await;
        }
        None => {}
    }
}

/// Adds the output that the vendor reported to what such calls of the account took lately.
fn record_output(relaying: &RelayedCall, usage: Usage) {
    if usage.basis == UsageBasis::Reported {
        let choices = relaying.stream_budget.choices.max(1);
        relaying.pricing.output_estimate.record(usage.tokens().output / choices);
    }
}

/// Returns the charge for a usage, and the fees that are in it; `None` if the usage has no price.
/// If the vendor's usage report was rejected, or the response was given up because the client did
/// not read it, the charge is at most the held amount.
pub(super) fn compute_charge(
    relaying: &RelayedCall,
    usage: Usage,
) -> Option<(Money, Vec<ChargedFee>)> {
    let is_unread = *relaying.relay.progress() == RelayProgress::Failed(RelayError::SlowReader);
    let is_bounded = is_unread || relaying.relay.rejected_usage().is_some();
    let fees = relaying.charged_fees()?;
    let amount = usage_bounds::compute_charge(
        &relaying.pricing,
        usage.units,
        sum_of_fees(&fees)?,
        is_bounded,
        relaying.funding.held(),
    )?;
    Some((amount, fees))
}

/// Returns the sum of fees at list prices; `None` if it exceeds any balance.
fn sum_of_fees(fees: &[ChargedFee]) -> Option<Money> {
    fees.iter().try_fold(Money::ZERO, |sum, fee| sum.checked_add(fee.amount)).ok()
}

/// Logs and counts a usage report that was rejected as implausible: the vendor may bill for units
/// that no account pays.
fn log_rejected_usage(ctx: &RequestContext, relaying: &RelayedCall) {
    if let Some(reported) = relaying.relay.rejected_usage() {
        let reported = serde_json::to_string(&reported).unwrap_or_default();
        log_rejected_report(ctx, relaying, &reported);
    }
}

/// Logs and counts reports of more uses of a tool than the call allows.
fn log_rejected_fees(ctx: &RequestContext, relaying: &RelayedCall) {
    let fees = relaying.charged_fees().unwrap_or_default();
    for (fee, reported) in fees.iter().filter_map(|fee| Some((fee, fee.rejected_uses?))) {
        log_rejected_report(ctx, relaying, &format!("{reported} uses of {}", fee.name));
    }
}

fn log_rejected_report(ctx: &RequestContext, relaying: &RelayedCall, reported: &str) {
    let (vendor, route) = (&relaying.pricing.model.vendor.name, &relaying.route.name);
    METRICS.usage_rejected.with_label_values(&[vendor.as_str(), route]).inc();
    log::error!(
        event = "usage_rejected",
        request_id = ctx.id,
        account = relaying.funding.account().map_or("", AccountName::as_str),
        model = relaying.pricing.model.id.as_str(),
        vendor = vendor.as_str(),
        route = route.as_str(),
        reported;
        "vendor usage rejected"
    );
}

/// Builds the journal line for the usage of a response, with the digest by which a retry finds the
/// line; `None` for a free call, which has no line.
pub(super) fn journal_line(
    relaying: &RelayedCall,
    retry_digest: Option<String>,
    usage: Usage,
    fees: Vec<ChargedFee>,
) -> Option<JournalLine<'_>> {
    let Funding::Held { hold, key, .. } = &relaying.funding else { return None };
    let pricing = &relaying.pricing;
    let call = ServedCall {
        request_id: hold.id(),
        key_prefix: &key.prefix,
        key_id: Some(key.id),
        endpoint: pricing.endpoint.name(),
        model: &pricing.model.id,
        requested_model: pricing.requested_model.as_deref(),
        vendor: &pricing.model.vendor.name,
        route: &relaying.route.name,
        depth: relaying.fallback_depth,
        vendor_request_id: relaying.vendor_request_id.as_deref(),
        reply_id: relaying.relay.reply_id(),
        retry_digest,
    };
    let rejected = relaying.relay.rejected_usage();
    let used = PricedUsage {
        at: unix_ms(),
        usage,
        rejected,
        price_version: &pricing.price_version,
        booked: pricing.book.as_deref().and_then(|book| {
            let list = pricing.model.price.cost(usage.units, pricing.priced_at).ok()?;
            let list = list.checked_add(sum_of_fees(&fees)?).ok()?;
            Some(BookedAmount { book: &book.name, list })
        }),
        // The vendor bills what it reports, also where no account pays for it.
        cost: pricing.cost(rejected.unwrap_or(usage.units), &fees),
    };
    Some(JournalLine { fees, ..JournalLine::new(call, used) })
}

/// Voids the hold of a call that is not charged. A free call has none.
pub(super) fn void_hold(gateway: &Gateway, funding: Funding) {
    let Funding::Held { hold, lease, .. } = funding else { return };
    // A void while there is a lease comes from somebody else than the owner of the hold.
    drop(lease);
    let ledger = gateway.ledger.clone();
    let settling = gateway.settlements.begin();
    let store = gateway.store_name;
    poll_then_spawn(async move {
        let _settling = settling;
        // Without a deadline, the void is retried until it succeeds.
        let _ = end_hold(&ledger, hold, None, None, store).await;
    });
}

impl Gateway {
    /// Waits for an operation of the ledger, at most as long as the timeout `ledger`. Measures the
    /// time under the label `op`.
    pub(super) async fn with_ledger_timeout<T, E: From<Unavailable>>(
        &self,
        op: &str,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let timer = METRICS.ledger_seconds.with_label_values(&[op, self.store_name]).start_timer();
        let answered = tokio::time::timeout(self.timeouts.ledger, asked).await;
        timer.observe_duration();
        answered.unwrap_or_else(|_| Err(Unavailable("no answer in time".to_owned()).into()))
    }

    /// Voids a hold that may or may not have been made, in the background. A shutdown does not wait
    /// for this: if the hold exists, it ends when its lease expires.
    pub(super) fn void_unknown_hold(&self, account: AccountName, id: String) {
        let ledger = self.ledger.clone();
        tokio::spawn(async move {
            let mut backoff = Backoff::new(RETRY_WAIT_MIN, RETRY_WAIT_MAX);
            while ledger.submit(&account, Operation::Void { id: id.clone() }).await.is_err() {
                backoff.wait().await;
            }
        });
    }
}

fn record_charge(record: &mut AccessLogRecord, usage: Usage, charge: Money) {
    record.usage = Some(usage);
    record.charge = Some(charge);
}

/// Records a finished request in the metrics, and writes its line of the access log.
pub(super) fn log_request(ctx: &RequestContext) {
    let record = &ctx.access_log;
    let total = ctx.arrived.elapsed();
    let own = total.saturating_sub(ctx.vendor_time + ctx.client_time);
    let model = record.model.as_ref().map_or("", |m| m.id.as_str());
    count_request(record, total, own);
    if record.usage.is_some() {
        METRICS.fallback_depth.observe(f64::from(record.fallback_depth));
    }
    if !log::log_enabled!(log::Level::Info) {
        return;
    }
    let usage = record.usage.map(|u| u.tokens()).unwrap_or_default();
    let basis = record.usage.map_or("none", |u| u.basis.name());
    log::info!(
        target: "request",
        event = "request_served",
        request_id = ctx.id,
        endpoint = record.endpoint,
        client:% = ctx.client_address.map_or(String::new(), |client| client.to_string()),
        key = record.key.as_ref().map_or("", |key| key.prefix.as_str()),
        account = record.account.as_ref().map_or("", AccountName::as_str),
        model,
        requested_model = record.requested_model.as_deref().unwrap_or(""),
        route = record.route.as_ref().map_or("", |r| r.name.as_str()),
        depth = record.fallback_depth,
        status = record.status,
        code = record.error_code.as_deref().unwrap_or(""),
        prompt_tokens = usage.input,
        completion_tokens = usage.output,
        basis,
        charge_nano = record.charge.unwrap_or_default().nano(),
        client_gone = record.client_disconnected,
        repeat = record.repeat_outcome,
        vendor_us = micros(ctx.vendor_time),
        gateway_us = micros(own);
        "served"
    );
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod test_calls;
