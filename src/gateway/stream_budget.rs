//! The growth of a streamed answer: while it runs, what it has cost so far stays within what is
//! held for it, and the ledger hears of it now and then.

use std::time::Duration;

use super::Gateway;
use super::context::{AdmittedCall, RelayedCall, RequestContext};
use super::holds::Funding;
use super::settlement;
use crate::dialect::call::RequestKind;
use crate::dialect::relay::RelayError;
use crate::ledger::Operation;
use crate::money::{BilledUnits, Money, TokenUsage, Usage, UsageBasis};

/// A stream's cost so far is noted in the ledger so often: a node that dies loses no more of it.
pub(super) const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

/// A vendor keeps to the output asked for. What is counted may be several times as much: a token
/// may come in many pieces, and its letters as escapes. A vendor that sends so many times what was
/// asked for, and so many tokens more, does not keep to it.
const COUNTED_OUTPUT_FACTOR: u64 = 16;
const COUNTED_OUTPUT_SLACK: u64 = 4_096;

/// How far an answer may grow.
#[derive(Debug, Default)]
pub struct StreamBudget {
    /// More must be held from this cost on; `None` if the hold covers whatever may come.
    extend_at: Option<Money>,
    /// The tokens that were asked for at most, of all choices.
    output_tokens_max: Option<u64>,
    /// The usage up to which the client got the answer, and the hold covers it.
    covered_usage: Option<Usage>,
    /// Whether it was ended since nothing covered more of it.
    is_exhausted: bool,
    /// The cost that the ledger heard of last.
    checkpointed_cost: Money,
}

impl StreamBudget {
    /// Of an answer that is about to come.
    #[must_use]
    pub fn for_call(admitted: &AdmittedCall) -> StreamBudget {
        let Funding::Held { hold, .. } = &admitted.funding else { return StreamBudget::default() };
        let (one_max, choices) = match &admitted.call.kind {
            RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
                (text.output_max, text.choices)
            }
            RequestKind::Responses(ask) => (ask.output_max, 1),
            _ => return StreamBudget::default(),
        };
        let output_tokens_max = one_max.map(|most| most.saturating_mul(choices));
        // No more is charged than was asked for, so a hold for that covers whatever comes.
        let is_covered = output_tokens_max.is_some() && hold.held() >= admitted.pricing.full_hold;
        let grows = admitted.call.stream && !is_covered;
        StreamBudget {
            extend_at: grows.then(|| extend_threshold(hold.held())),
            output_tokens_max,
            ..StreamBudget::default()
        }
    }

    /// What an answer has to be paid for with. Where that was counted, it is no more than was asked
    /// for.
    #[must_use]
    pub fn cap_usage(&self, usage: Usage) -> Usage {
        let (Some(most), BilledUnits::Tokens(tokens), UsageBasis::Counted) =
            (self.output_tokens_max, usage.units, usage.basis)
        else {
            return usage;
        };
        let output = tokens.output.min(most);
        Usage { units: BilledUnits::Tokens(TokenUsage { output, ..tokens }), ..usage }
    }

    /// Whether an answer is more than a vendor sends that keeps to what was asked for.
    fn exceeds_requested(&self, usage: Usage) -> bool {
        let (Some(most), BilledUnits::Tokens(tokens)) = (self.output_tokens_max, usage.units)
        else {
            return false;
        };
        let most = most.saturating_mul(COUNTED_OUTPUT_FACTOR).saturating_add(COUNTED_OUTPUT_SLACK);
        usage.basis == UsageBasis::Counted && tokens.output > most
    }

    /// What is charged for an answer that was ended since nothing covered more of it; `None` if it
    /// was not.
    #[must_use]
    pub fn exhausted_usage(&self, input_tokens: u64) -> Option<Usage> {
        let tokens = TokenUsage { input: input_tokens, ..TokenUsage::default() };
        let read = Usage { units: BilledUnits::Tokens(tokens), basis: UsageBasis::Counted };
        self.is_exhausted.then(|| self.covered_usage.unwrap_or(read))
    }
}

/// More is asked for at three quarters of what is held.
fn extend_threshold(held: Money) -> Money {
    held.saturating_sub(divide(held, 4))
}

/// A part of a sum, rounded down.
fn divide(sum: Money, of: i64) -> Money {
    Money::from_nano(sum.nano() / of).unwrap_or_default()
}

/// Extends the hold if the response so far needs it. Gives the error that must end it if it fails.
pub(super) async fn ensure_covered(
    gateway: &Gateway,
    exchange: &mut RequestContext,
) -> Option<RelayError> {
    let RelayedCall { stream_budget, relay, pricing, funding, .. } = exchange.relaying()?;
    let usage = relay.billable_usage(pricing.input_tokens)?;
    if stream_budget.exceeds_requested(usage) {
        return Some(RelayError::TooLarge);
    }
    let extend_at = stream_budget.extend_at?;
    let usage = stream_budget.cap_usage(usage);
    // What has no price is found out at the end.
    let cost = pricing.model.price.cost(usage.units, pricing.priced_at).ok()?;
    if cost < extend_at {
        stream_budget.covered_usage = Some(usage);
        return None;
    }
    // Half as much again: few extensions for a long stream, little money held by a short one.
    let base = funding.held().max(cost);
    let wanted = base.checked_add(divide(base, 2)).unwrap_or(base);
    let asked = gateway.extend_hold(funding, wanted).await;
    let held = funding.held();
    if cost > held {
        stream_budget.is_exhausted = true;
        return Some(if asked.is_ok() {
            RelayError::InsufficientCredits
        } else {
            RelayError::LedgerUnavailable
        });
    }
    stream_budget.covered_usage = Some(usage);
    let next = extend_threshold(held);
    // If the balance has no more now, a later extension may succeed.
    stream_budget.extend_at = Some(if next > cost { next } else { halfway_to_held(cost, held) });
    None
}

/// Above the first, halfway to the second, rounded up.
fn halfway_to_held(cost: Money, held: Money) -> Money {
    let half = divide(held.saturating_sub(cost), 2);
    held.saturating_sub(half).max(cost)
}

/// Tells the ledger what the answer has cost so far: should this process die, that is what is
/// charged.
pub(super) async fn write_checkpoint(gateway: &Gateway, exchange: &mut RequestContext) {
    let request_id = exchange.id.clone();
    let Some(relaying) = exchange.relaying() else { return };
    let Some(usage) = relaying.relay.billable_usage(relaying.pricing.input_tokens) else { return };
    let usage = relaying.stream_budget.cap_usage(usage);
    let Some(charge) = settlement::compute_charge(relaying, usage) else { return };
    if charge <= relaying.stream_budget.checkpointed_cost {
        return;
    }
    let Funding::Held { hold, key, .. } = &relaying.funding else { return };
    let line = settlement::journal_line(request_id, relaying, key, usage);
    let line = serde_json::to_string(&line).unwrap_or_default();
    let (ledger, account, id) =
        (gateway.ledger.clone(), hold.account().clone(), hold.id().to_owned());
    relaying.stream_budget.checkpointed_cost = charge;
    settlement::poll_then_spawn(async move {
        let noted = ledger.apply(&account, Operation::Checkpoint { id, charge, line }).await;
        if let Err(why) = noted {
            log::debug!(event = "checkpoint_failed", why:% = why; "checkpoint failed");
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano(amount: i64) -> Money {
        Money::from_nano(amount).expect("money")
    }

    #[test]
    fn what_was_counted_is_charged_up_to_what_was_asked_for() {
        let of = |output, basis| {
            let tokens = TokenUsage { input: 7, output, ..TokenUsage::default() };
            Usage { units: BilledUnits::Tokens(tokens), basis }
        };
        let growth = StreamBudget { output_tokens_max: Some(10), ..StreamBudget::default() };
        assert_eq!(growth.cap_usage(of(9, UsageBasis::Counted)), of(9, UsageBasis::Counted));
        assert_eq!(growth.cap_usage(of(11, UsageBasis::Counted)), of(10, UsageBasis::Counted));
        assert_eq!(growth.cap_usage(of(11, UsageBasis::Reported)), of(11, UsageBasis::Reported));
        let free = StreamBudget::default();
        assert_eq!(
            free.cap_usage(of(1_000_000, UsageBasis::Counted)),
            of(1_000_000, UsageBasis::Counted)
        );
        assert!(!free.exceeds_requested(of(1_000_000, UsageBasis::Counted)));
        assert!(!growth.exceeds_requested(of(10 * 16 + 4_096, UsageBasis::Counted)));
        assert!(growth.exceeds_requested(of(10 * 16 + 4_097, UsageBasis::Counted)));
        assert!(!growth.exceeds_requested(of(1_000_000, UsageBasis::Reported)));
    }

    #[test]
    fn more_is_asked_for_early_and_then_ever_closer_to_the_end() {
        assert_eq!(extend_threshold(nano(100)), nano(75));
        assert_eq!(extend_threshold(nano(3)), nano(3));
        assert_eq!(halfway_to_held(nano(80), nano(100)), nano(90));
        assert_eq!(halfway_to_held(nano(99), nano(100)), nano(100));
        assert_eq!(halfway_to_held(nano(100), nano(100)), nano(100));
    }
}
