//! Extends the hold of a stream as its cost grows, so that the cost so far stays within the hold,
//! and writes checkpoints to the ledger.

use std::time::Duration;

use crate::dialect::relay::RelayError;
use crate::gateway::context::{RelayedCall, RequestContext};
use crate::gateway::idempotency;
use crate::gateway::settlement;
use crate::gateway::settlement::funding::Funding;
use crate::gateway::settlement::stream_budget::{divide, extend_threshold};
use crate::gateway::spawn::poll_then_spawn;
use crate::gateway::state::Gateway;
use crate::ledger::Operation;
use crate::money::{BilledUnits, Money, TokenUsage};

/// How often a stream's cost so far is written to the ledger. If a gateway dies, no more than the
/// cost of this interval goes uncharged.
pub(crate) const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

/// Extends the hold if the cost of the response so far needs it. Returns the error that must end
/// the response if the hold cannot cover it; `None` if the response may go on.
pub(crate) async fn ensure_covered(
    gateway: &Gateway,
    relaying: &mut RelayedCall,
) -> Option<RelayError> {
    let usage = relaying.billable_usage()?;
    let RelayedCall { stream_budget, relay, pricing, funding, .. } = relaying;
    if stream_budget.exceeds_requested(usage) {
        return Some(if stream_budget.is_limited {
            RelayError::InsufficientCredits
        } else {
            RelayError::TooLarge
        });
    }
    if relay.has_final_report() {
        // The vendor has generated everything and bills it. What the account does not have is
        // written off at the settlement, wherever the report was cut from the end.
        return None;
    }
    let extend_at = stream_budget.extend_at?;
    let usage = stream_budget.cap_usage(usage);
    let units = if relay.has_input_report() {
        usage.units
    } else {
        raise_input(usage.units, pricing.input_tokens)
    };
    // A usage that has no price is handled at the settlement.
    let cost = pricing.account_price().amount(units, pricing.priced_at).ok()?;
    if cost < extend_at {
        stream_budget.covered_usage = Some(usage);
        return None;
    }
    // The hold grows by half: a long stream needs few extensions, and a short one holds little
    // money.
    let fees = stream_budget.fees_held;
    let base = funding.held().saturating_sub(fees).max(cost);
    let wanted = base.checked_add(divide(base, 2)).unwrap_or(base);
    let wanted = wanted.checked_add(fees).unwrap_or(wanted);
    let asked = gateway.extend_hold(funding, wanted).await;
    let held = funding.held().saturating_sub(fees);
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

/// Returns the units with at least this much input. The count of a long input is one of a part of
/// it: while a stream runs, its output must not use up what is held for the input.
fn raise_input(units: BilledUnits, input_min: u64) -> BilledUnits {
    match units {
        BilledUnits::Tokens(tokens) => {
            BilledUnits::Tokens(TokenUsage { input: tokens.input.max(input_min), ..tokens })
        }
        other => other,
    }
}

/// Returns the amount halfway from `cost` to `held`, rounded up.
pub(crate) fn halfway_to_held(cost: Money, held: Money) -> Money {
    let half = divide(held.saturating_sub(cost), 2);
    held.saturating_sub(half).max(cost)
}

/// Writes the cost of the response so far to the ledger, in the background. If this process dies,
/// that amount is charged.
pub(crate) fn write_checkpoint(
    gateway: &Gateway,
    ctx: &RequestContext,
    relaying: &mut RelayedCall,
) {
    let Some(usage) = relaying.billable_usage() else { return };
    let usage = relaying.stream_budget.cap_usage(usage);
    let Some((charge, fees)) = settlement::compute_charge(relaying, usage) else { return };
    if charge <= relaying.stream_budget.checkpointed_cost {
        return;
    }
    let Funding::Held { hold, .. } = &relaying.funding else { return };
    let to_store = idempotency::attempt_to_store(gateway, ctx);
    let line = settlement::journal_line(relaying, idempotency::retry_digest(ctx), usage, fees);
    let Some(line) = line.map(|line| line.to_json()) else { return };
    let (ledger, account, id) =
        (gateway.ledger.clone(), hold.account().clone(), hold.id().to_owned());
    relaying.stream_budget.checkpointed_cost = charge;
    poll_then_spawn(async move {
        let noted = async {
            if let Some(attempt) = to_store {
                attempt.store().await?;
            }
            ledger.submit(&account, Operation::Checkpoint { id, charge, line }).await
        };
        let noted = noted.await;
        if let Err(why) = noted {
            log::debug!(event = "checkpoint_failed", error:% = why; "checkpoint failed");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::settlement::test_calls::nano;

    #[test]
    fn more_is_asked_for_early_and_then_ever_closer_to_the_end() {
        assert_eq!(extend_threshold(nano(100)), nano(75));
        assert_eq!(extend_threshold(nano(3)), nano(3));
        assert_eq!(halfway_to_held(nano(80), nano(100)), nano(90));
        assert_eq!(halfway_to_held(nano(99), nano(100)), nano(100));
        assert_eq!(halfway_to_held(nano(100), nano(100)), nano(100));
    }
}
