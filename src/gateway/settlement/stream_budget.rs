//! The budget of a streamed response: while it runs, its cost so far stays within its hold, and the
//! ledger gets checkpoints of it.

use crate::dialect::call::{ModelCall, RequestKind, TextRequest};
use crate::dialect::tokens::InputCount;
use crate::gateway::settlement::funding::Funding;
use crate::money::{BilledUnits, Money, TokenUsage, Usage, UsageBasis};

/// A vendor keeps to the requested maximum of output. The gateway's own count may be several times
/// that maximum, because a token may arrive in many pieces and its letters as escapes. If the count
/// exceeds this factor times the maximum, plus this many tokens, the vendor does not keep to it.
const COUNTED_OUTPUT_FACTOR: u64 = 16;
const COUNTED_OUTPUT_SLACK: u64 = 4_096;
/// The same for a limit that the vendor was sent because the hold covers no more: whatever comes
/// beyond it, nobody pays for.
const LIMITED_OUTPUT_FACTOR: u64 = 2;
const LIMITED_OUTPUT_SLACK: u64 = 64;

/// How far a response may grow before its hold must grow.
#[derive(Debug, Default)]
pub(crate) struct StreamBudget {
    /// The hold must be extended from this cost of tokens on; `None` if the hold covers every
    /// possible cost.
    pub(crate) extend_at: Option<Money>,
    /// The part of the hold that is for the fees of the vendor's tools, and never for tokens.
    pub(crate) fees_held: Money,
    /// The requested maximum of output tokens, of all choices together and with summaries of the
    /// conversation; `None` if there is none.
    pub(crate) output_tokens_max: Option<u64>,
    /// Whether that maximum is the gateway's, because the credit covers no more.
    pub(crate) is_limited: bool,
    /// The number of choices; 0 if the call has no text as its output.
    pub(crate) choices: u64,
    /// The usage up to which the client got the response and the hold covers it.
    pub(crate) covered_usage: Option<Usage>,
    /// Whether the response was ended because the hold could not cover more of it.
    pub(crate) is_exhausted: bool,
    /// The cost in the last checkpoint.
    pub(crate) checkpointed_cost: Money,
}

impl StreamBudget {
    /// Returns the budget of a response that is about to be relayed.
    #[must_use]
    pub(crate) fn for_call(
        call: &ModelCall,
        funding: &Funding,
        full_hold: Money,
        is_limited: bool,
        fees_held: Money,
    ) -> StreamBudget {
        let Funding::Held { hold, .. } = funding else { return StreamBudget::default() };
        // An unexpected summary is output beyond what the full hold covers.
        let (one_max, choices, may_exceed_hold) = match &call.kind {
            RequestKind::Chat { text, .. } | RequestKind::Messages(text) => {
                let TextRequest { output_max, summary_output_max: summary, .. } = *text;
                // A summary comes beside the answer, and no limit applies to it.
                let output_max = output_max.map(|most| most.saturating_add(summary));
                (output_max, text.choices, summary > text.expected_summary_max)
            }
            RequestKind::Responses(ask) => (ask.output_max, 1, false),
            _ => return StreamBudget::default(),
        };
        let output_tokens_max = one_max.map(|most| most.saturating_mul(choices));
        // The charge is capped at the requested maximum, so a hold for that covers every response.
        let is_covered =
            output_tokens_max.is_some() && hold.held() >= full_hold && !may_exceed_hold;
        let grows = call.stream && !is_covered;
        StreamBudget {
            extend_at: grows.then(|| extend_threshold(hold.held().saturating_sub(fees_held))),
            fees_held,
            output_tokens_max,
            is_limited,
            choices,
            ..StreamBudget::default()
        }
    }

    /// Returns the usage to charge. Output that the gateway counted is capped at the requested
    /// maximum; reported usage is not changed.
    #[must_use]
    pub(crate) fn cap_usage(&self, usage: Usage) -> Usage {
        let (Some(most), BilledUnits::Tokens(tokens), UsageBasis::Counted) =
            (self.output_tokens_max, usage.units, usage.basis)
        else {
            return usage;
        };
        let output = tokens.output.min(most);
        Usage { units: BilledUnits::Tokens(TokenUsage { output, ..tokens }), ..usage }
    }

    /// Whether the counted output is more than a vendor sends that keeps to the requested maximum.
    pub(crate) fn exceeds_requested(&self, usage: Usage) -> bool {
        let (Some(most), BilledUnits::Tokens(tokens)) = (self.output_tokens_max, usage.units)
        else {
            return false;
        };
        let (factor, slack) = if self.is_limited {
            (LIMITED_OUTPUT_FACTOR, LIMITED_OUTPUT_SLACK)
        } else {
            (COUNTED_OUTPUT_FACTOR, COUNTED_OUTPUT_SLACK)
        };
        let most = most.saturating_mul(factor).saturating_add(slack);
        usage.basis == UsageBasis::Counted && tokens.output > most
    }

    /// Returns the usage to charge for a response that was ended because the hold could not cover
    /// more of it: the covered usage, or only the input if there is none. `None` if it was not
    /// ended for that reason.
    #[must_use]
    pub(crate) fn exhausted_usage(&self, input: &InputCount) -> Option<Usage> {
        let read = || {
            let tokens = TokenUsage { input: input.tokens(), ..TokenUsage::default() };
            Usage { units: BilledUnits::Tokens(tokens), basis: UsageBasis::Counted }
        };
        self.is_exhausted.then(|| self.covered_usage.unwrap_or_else(read))
    }
}

/// Returns the cost from which on a hold is extended: three quarters of the held amount.
pub(crate) fn extend_threshold(held: Money) -> Money {
    held.saturating_sub(divide(held, 4))
}

/// Divides an amount and rounds down.
pub(crate) fn divide(sum: Money, of: i64) -> Money {
    Money::from_nano(sum.nano() / of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
