//! The end of a call: its usage becomes a charge, its hold is settled or voided, and the request is
//! logged.
//!
//! A settlement is on its way to the ledger before the last bytes go to the client, so a client
//! that has read all of an answer finds the charge made. The wait for the disk goes on in the
//! background.

use std::sync::Arc;
use std::time::Duration;

use super::context::{AccessLogRecord, RelayedCall, RequestContext, RequestStage};
use super::spawn::poll_then_spawn;
use super::state::Gateway;
use crate::backoff::Backoff;
use crate::clock::unix_ms;
use crate::dialect::relay::{RelayError, RelayProgress, RetainedData};
use crate::gateway::request::{reasoning_cache, vendor_ids};
use crate::gateway::settlement::funding::Funding;
use crate::ledger::{
    AccountName, Hold, JournalLine, KeyRecord, Ledger, Operation, Outcome, Unavailable,
};
use crate::metrics::{METRICS, counter_value, record_write_off};
use crate::money::{Money, Usage, UsageBasis};

pub(crate) mod funding;
pub(crate) mod holds;
pub(crate) mod stream_budget;
pub(crate) mod stream_holds;
pub(crate) mod usage_bounds;

/// A ledger that cannot be reached is asked again after so long, doubling up to the most.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);

/// Ends the money side of a call whose answer has ended.
pub(super) async fn settle_call(
    gateway: &Gateway,
    exchange: &mut RequestContext,
    client_gone: bool,
) {
    let relaying = match std::mem::replace(&mut exchange.stage, RequestStage::Closed) {
        RequestStage::Relaying(relaying) => *relaying,
        other => {
            exchange.stage = other;
            return;
        }
    };
    exchange.access_log.client_disconnected = client_gone;
    log_rejected_usage(exchange, &relaying);
    let input_tokens = relaying.pricing.input_tokens;
    let cut = relaying.stream_budget.exhausted_usage(input_tokens);
    let due = || {
        relaying
            .relay
            .billable_usage(input_tokens)
            .map(|usage| relaying.stream_budget.cap_usage(usage))
    };
    let Some(usage) = cut.or_else(due) else {
        void_hold(gateway, relaying.funding).await;
        return;
    };
    let Funding::Held { key, .. } = &relaying.funding else { return };
    let line = journal_line(exchange.id.clone(), &relaying, key, usage);
    let Some(charge) = compute_charge(&relaying, usage) else {
        log::error!(
            event = "usage_unpriced", request_id = exchange.id;
            "usage pricing failed; nothing charged"
        );
        void_hold(gateway, relaying.funding).await;
        return;
    };
    let RelayedCall { funding, route, mut relay, .. } = relaying;
    let Funding::Held { hold, lease, .. } = funding else { return };
    record_charge(&mut exchange.access_log, usage, charge);
    count_charge(&line, usage, charge);
    let line = serde_json::to_string(&line).unwrap_or_default();
    let account = hold.account().clone();
    let ledger = gateway.ledger.clone();
    let settling = gateway.settlements.begin();
    let store = gateway.store_name;
    poll_then_spawn(async move {
        let _settling = settling;
        settle_with_retry(&ledger, hold, Some((charge, line)), store).await;
    })
    .await;
    drop(lease);
    match relay.take_retained() {
        Some(RetainedData::Thinking(kept)) => {
            reasoning_cache::save_reasoning(gateway, &account, kept).await;
        }
        Some(RetainedData::IssuedIds(ids)) => {
            vendor_ids::store_ids(gateway, &account, ids, (usage.tokens(), &route.name)).await;
        }
        None => {}
    }
}

/// The charge of an answer that used so much; `None` if that has no price. Where the vendor's
/// report was not believed, or an answer was given up that the client did not read, it is what was
/// held at most.
pub(super) fn compute_charge(relaying: &RelayedCall, usage: Usage) -> Option<Money> {
    let is_unread = *relaying.relay.progress() == RelayProgress::Failed(RelayError::SlowReader);
    let is_bounded = is_unread || relaying.relay.rejected_usage().is_some();
    usage_bounds::compute_charge(
        &relaying.pricing,
        usage.units,
        is_bounded,
        relaying.funding.held(),
    )
}

/// Logs a usage report that cannot be true: the vendor may bill for what no account pays.
fn log_rejected_usage(exchange: &RequestContext, relaying: &RelayedCall) {
    let Some(reported) = relaying.relay.rejected_usage() else { return };
    let (vendor, route) = (&relaying.pricing.model.vendor.name, &relaying.route.name);
    METRICS.usage_rejected.with_label_values(&[vendor.as_str(), route]).inc();
    log::error!(
        event = "usage_rejected",
        request_id = exchange.id,
        account = relaying.funding.account().map_or("", AccountName::as_str),
        model = relaying.pricing.model.id.as_str(),
        vendor = vendor.as_str(),
        route = route.as_str(),
        reported = serde_json::to_string(&reported).unwrap_or_default();
        "vendor usage rejected"
    );
}

/// The journal line of an answer that used so much.
pub(super) fn journal_line(
    request_id: String,
    relaying: &RelayedCall,
    key: &KeyRecord,
    usage: Usage,
) -> JournalLine {
    let pricing = &relaying.pricing;
    JournalLine {
        request_id,
        at: unix_ms(),
        key_prefix: key.prefix.clone(),
        endpoint: pricing.endpoint.name().to_owned(),
        model: pricing.model.id.clone(),
        vendor: pricing.model.vendor.name.clone(),
        route: relaying.route.name.clone(),
        depth: relaying.fallback_depth,
        usage: usage.units,
        basis: usage.basis,
        rejected_usage: relaying.relay.rejected_usage(),
        price_version: pricing.price_version.to_string(),
        vendor_request_id: relaying.vendor_request_id.clone(),
    }
}

/// Ends whatever a refused call still holds.
pub(super) async fn void_open_hold(gateway: &Gateway, exchange: &mut RequestContext) {
    let funding = match std::mem::replace(&mut exchange.stage, RequestStage::Closed) {
        RequestStage::Admitted(admitted) => admitted.priced.funding,
        RequestStage::Relaying(relaying) => relaying.funding,
        RequestStage::Arrived | RequestStage::Closed => return,
    };
    void_hold(gateway, funding).await;
}

pub(super) async fn void_hold(gateway: &Gateway, funding: Funding) {
    let Funding::Held { hold, lease, .. } = funding else { return };
    let ledger = gateway.ledger.clone();
    let settling = gateway.settlements.begin();
    let store = gateway.store_name;
    poll_then_spawn(async move {
        let _settling = settling;
        settle_with_retry(&ledger, hold, None, store).await;
    })
    .await;
    drop(lease);
}

/// Settles or voids until the ledger has said that it did.
async fn settle_with_retry(
    ledger: &Arc<dyn Ledger>,
    mut hold: Hold,
    charge: Option<(Money, String)>,
    store: &'static str,
) {
    let mut backoff = Backoff::new(RETRY_WAIT_MIN, RETRY_WAIT_MAX);
    let op = if charge.is_some() { "settle" } else { "void" };
    let (account, id) = (hold.account().clone(), hold.id().to_owned());
    loop {
        let timer = METRICS.ledger_seconds.with_label_values(&[op, store]).start_timer();
        let done = match &charge {
            Some((amount, line)) => hold.settle(&**ledger, *amount, line).await,
            None => hold.void(&**ledger).await,
        };
        timer.observe_duration();
        match done {
            Ok(Outcome::Posted { written_off, .. }) => {
                record_write_off(account.as_str(), &id, written_off.nano());
                return;
            }
            Ok(Outcome::Voided) if charge.is_some() => {
                log::error!(
                    event = "charge_lost", op;
                    "hold voided before settlement; charge lost"
                );
                return;
            }
            Ok(Outcome::Voided | Outcome::AlreadyPosted(_)) => return,
            Ok(other) => {
                log::error!(
                    event = "hold_settlement_failed", op, answer:? = other;
                    "hold settlement failed"
                );
                return;
            }
            Err((back, why)) => {
                log::warn!(
                    event = "ledger_retry", op, why:% = why;
                    "ledger request failed; retrying"
                );
                hold = back;
                backoff.wait().await;
            }
        }
    }
}

impl Gateway {
    /// Waits for the ledger, but not longer than a client should.
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

    /// Voids a hold of which nobody knows whether it was made. A stop does not wait for that: the
    /// hold, if there is one, ends with its lease.
    pub(super) fn void_unknown_hold(&self, account: AccountName, id: String) {
        let ledger = self.ledger.clone();
        tokio::spawn(async move {
            let mut backoff = Backoff::new(RETRY_WAIT_MIN, RETRY_WAIT_MAX);
            while ledger.apply(&account, Operation::Void { id: id.clone() }).await.is_err() {
                backoff.wait().await;
            }
        });
    }
}

fn record_charge(record: &mut AccessLogRecord, usage: Usage, charge: Money) {
    record.usage = Some(usage);
    record.charge = Some(charge);
}

fn count_charge(line: &JournalLine, usage: Usage, charge: Money) {
    let labels = [line.endpoint.as_str(), line.model.as_str(), line.vendor.as_str()];
    METRICS.charged_nanousd.with_label_values(&labels).inc_by(counter_value(charge.nano()));
    let tokens = |kind, n| METRICS.tokens.with_label_values(&[line.model.as_str(), kind]).inc_by(n);
    tokens("prompt", usage.tokens().input);
    tokens("completion", usage.tokens().output);
}

/// Tells of a request that is over: one line, and the metrics.
pub(super) fn log_request(exchange: &RequestContext) {
    let record = &exchange.access_log;
    let total = exchange.arrived.elapsed();
    let own = total.saturating_sub(exchange.vendor_time + exchange.client_time);
    let model = record.model.as_ref().map_or("", |m| m.id.as_str());
    let status = record.status.to_string();
    let endpoint = [record.endpoint];
    METRICS.requests.with_label_values(&[record.endpoint, model, &status]).inc();
    METRICS.request_seconds.with_label_values(&endpoint).observe(total.as_secs_f64());
    METRICS.overhead_seconds.with_label_values(&endpoint).observe(own.as_secs_f64());
    if let Some(first) = record.time_to_first_byte {
        METRICS.first_byte_seconds.with_label_values(&endpoint).observe(first.as_secs_f64());
    }
    if record.usage.is_some() {
        METRICS.fallback_depth.observe(f64::from(record.fallback_depth));
    }
    if !log::log_enabled!(log::Level::Info) {
        return;
    }
    let usage = record.usage.map(|u| u.tokens()).unwrap_or_default();
    let basis = match record.usage.map(|u| u.basis) {
        Some(UsageBasis::Reported) => "reported",
        Some(UsageBasis::Counted) => "counted",
        Some(UsageBasis::Fixed) => "fixed",
        None => "none",
    };
    log::info!(
        target: "request",
        request_id = exchange.id,
        endpoint = record.endpoint,
        client:% = exchange.client_address.map_or(String::new(), |client| client.to_string()),
        key = record.key.as_ref().map_or("", |key| key.prefix.as_str()),
        account = record.account.as_ref().map_or("", AccountName::as_str),
        model,
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
        vendor_us = micros(exchange.vendor_time),
        gateway_us = micros(own);
        "served"
    );
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
