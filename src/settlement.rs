//! Ends the hold of a call or a job: the request to the store is repeated until it has answered.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use once_cell::sync::Lazy;
use prometheus::IntCounter;

use crate::backoff::Backoff;
use crate::ledger::prepaid::rate::RATE_UNITS_MAX;
use crate::ledger::{Hold, JournalLine, Ledger, Outcome, Unavailable};
use crate::metrics::{METRICS, MetricsByLabels, counter_value, record_write_off};
use crate::money::{Money, Usage};

/// The first pause before a request to the ledger is repeated. Pauses double up to
/// [`RETRY_WAIT_MAX`].
pub(crate) const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
/// The longest pause, see [`RETRY_WAIT_MIN`].
pub(crate) const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);

/// The charge of a call, and the journal line that explains it.
#[derive(Debug, Clone)]
pub(crate) struct Charge {
    /// The amount of the charge.
    pub(crate) amount: Money,
    /// The [`JournalLine`], as JSON.
    pub(crate) line: String,
    /// The tokens that the call has used, as rate limits count them, if they are known.
    pub(crate) tokens: Option<i64>,
}

impl Charge {
    /// Makes the charge of the usage that a journal line has.
    #[must_use]
    pub(crate) fn new(amount: Money, line: &JournalLine<'_>) -> Charge {
        // Whatever a vendor reports, a limit is not in debt for years.
        let limited = |units: u64| i64::try_from(units).unwrap_or(RATE_UNITS_MAX);
        let tokens = line.usage.limited_units().map(|n| limited(n).min(RATE_UNITS_MAX));
        Charge { amount, line: line.to_json(), tokens }
    }
}

/// Settles a hold with a charge, or voids it if there is none. `store` is the name of the kind of
/// the store in the metrics. Without a `deadline` the request is repeated until it succeeds.
///
/// # Errors
/// The ledger could not be reached until `deadline`. It is asked at least once.
pub(crate) async fn end_hold(
    ledger: &Arc<dyn Ledger>,
    mut hold: Hold,
    charge: Option<&Charge>,
    deadline: Option<Instant>,
    store: &'static str,
) -> Result<Outcome, Unavailable> {
    let mut backoff = Backoff::new(RETRY_WAIT_MIN, RETRY_WAIT_MAX);
    let op = if charge.is_some() { "settle" } else { "void" };
    loop {
        let timer = METRICS.ledger_seconds.with_label_values(&[op, store]).start_timer();
        let request_id = hold.id().to_owned();
        let account = hold.account().clone();
        let ended = match charge {
            Some(Charge { amount, line, tokens }) => {
                hold.settle(&**ledger, *amount, line, *tokens).await
            }
            None => hold.void(&**ledger).await,
        };
        timer.observe_duration();
        match ended {
            Ok(outcome) => {
                match &outcome {
                    Outcome::Posted { written_off, .. } => {
                        record_write_off(account.as_str(), &request_id, written_off.nano());
                    }
                    Outcome::Voided if charge.is_some() => log::error!(
                        event = "charge_lost", op, request_id;
                        "hold voided before settlement; charge lost"
                    ),
                    Outcome::Voided | Outcome::AlreadyPosted(_) => {}
                    other => log::error!(
                        event = "hold_settlement_failed", op, request_id, answer:? = other;
                        "hold settlement failed"
                    ),
                }
                return Ok(outcome);
            }
            Err((_, why)) if deadline.is_some_and(|deadline| Instant::now() > deadline) => {
                return Err(why);
            }
            Err((back, why)) => {
                log::warn!(
                    event = "ledger_retry", op, request_id, error:% = why;
                    "ledger request failed; retrying"
                );
                hold = back;
                backoff.wait().await;
            }
        }
    }
}

/// Logs and counts the hold of a call that was dropped before it was settled or voided: its task
/// has panicked, or the process was told to end at once.
///
/// The hold is left to its lease, after which the last checkpoint is charged. To void it now would
/// make the call free, and nothing here tells whether a vendor has done work for it.
pub(crate) fn report_dropped_hold(hold: &Hold) {
    METRICS.holds_dropped.inc();
    log::error!(
        event = "hold_dropped_unended",
        request_id = hold.id(),
        account = hold.account().as_str(),
        held_nano = hold.held().nano(),
        panicked = std::thread::panicking();
        "call dropped before its settlement; hold left to its lease"
    );
}

/// What a charge counts, by endpoint, model and vendor.
struct ChargeMetrics {
    charged_nanousd: IntCounter,
    /// Empty until a line had a cost.
    cost_nanousd: OnceLock<IntCounter>,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
}

static CHARGE_METRICS: Lazy<MetricsByLabels<ChargeMetrics>> = Lazy::new(MetricsByLabels::new);

/// Counts a charge, its cost if that is known, and its tokens in the metrics.
pub(crate) fn count_charge(line: &JournalLine<'_>, amount: Money) {
    let labels = [&*line.endpoint, &*line.model, &*line.vendor];
    let used = Usage { units: line.usage, basis: line.basis }.tokens();
    let make = || ChargeMetrics {
        charged_nanousd: METRICS.charged_nanousd.with_label_values(&labels),
        cost_nanousd: OnceLock::new(),
        prompt_tokens: METRICS.tokens.with_label_values(&[labels[1], "prompt"]),
        completion_tokens: METRICS.tokens.with_label_values(&[labels[1], "completion"]),
    };
    CHARGE_METRICS.record(labels, make, |metrics| {
        metrics.charged_nanousd.inc_by(counter_value(amount.nano()));
        if let Some(cost) = line.cost_nano {
            let make = || METRICS.cost_nanousd.with_label_values(&labels);
            metrics.cost_nanousd.get_or_init(make).inc_by(counter_value(cost));
        }
        metrics.prompt_tokens.inc_by(used.input);
        metrics.completion_tokens.inc_by(used.output);
    });
}
