//! Estimates the tokens of a call, as rate limits count them, before it is made.

use crate::catalogue::Model;
use crate::dialect::call::{ModelCall, RequestKind};
use crate::gateway::settlement::quote::QuoteContext;
use crate::money::Money;
use crate::money::price::{Price, TokenPrice};

/// Returns the tokens that a call is expected to use: its input by the size of its text, and the
/// usual output of such calls, but not more than the call's own limit. Speech counts its
/// characters, a video its seconds, and an image as many output tokens as its reservation pays for.
/// The end of the call corrects the estimate, see
/// [`BilledUnits::limited_units`](crate::money::BilledUnits::limited_units).
#[must_use]
pub(crate) fn estimate_call_tokens(
    model: &Model,
    call: &ModelCall,
    context: QuoteContext<'_>,
) -> u64 {
    let usual = context.output_estimate.unwrap_or(model.vendor.output_tokens_default);
    let usual = model.output_max.or(model.context_length).map_or(usual, |most| usual.min(most));
    let output = |limit: Option<u64>, choices: u64| {
        limit.map_or(usual, |limit| usual.min(limit)).saturating_mul(choices)
    };
    let output = match (&call.kind, &model.price) {
        (RequestKind::Chat { text, .. } | RequestKind::Messages(text), _) => {
            output(text.output_max, text.choices)
        }
        (RequestKind::Responses(request) | RequestKind::Compaction(request), _) => {
            output(request.output_max, 1)
        }
        (RequestKind::Speech { characters }, _) => *characters,
        (RequestKind::Video { request, .. }, _) => request.seconds,
        (RequestKind::Image { .. }, Price::Image { tokens, reservation }) => {
            tokens_of_image(tokens, *reservation, context.priced_at)
        }
        _ => 0,
    };
    let input = call.estimated_input_tokens().saturating_add(context.earlier_input_tokens);
    input.saturating_add(output)
}

/// Returns how many output tokens an amount pays for; 1 where the vendor's bill is the price.
fn tokens_of_image(price: &TokenPrice, reservation: Money, priced_at: i64) -> u64 {
    let one = price.base_rates_at(priced_at).output.checked_mul(1).map_or(0, Money::nano);
    reservation.nano().checked_div(one).map_or(1, i64::unsigned_abs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::dialect::Endpoint;
    use crate::gateway::settlement::test_calls::{CATALOGUE, HI, parse_call};

    /// What is estimated beside the input, for the usual output that is known of such calls.
    #[rstest]
    #[case::unknown("lmb-5.5", Endpoint::Chat, HI, None, 4_096)]
    #[case::usual("lmb-5.5", Endpoint::Chat, HI, Some(70), 70)]
    #[case::the_limit_is_less("lmb-5.5", Endpoint::Chat, &format!(r#"{HI},"max_tokens":9"#), Some(70), 9)]
    #[case::the_limit_is_more("lmb-5.5", Endpoint::Chat, &format!(r#"{HI},"max_tokens":99"#), Some(70), 70)]
    #[case::choices("lmb-5.5", Endpoint::Chat, &format!(r#"{HI},"n":3"#), Some(70), 210)]
    #[case::image("lmb-image-2", Endpoint::Images, r#""prompt":"a dog""#, Some(70), 9_333)]
    #[case::speech("tts-1", Endpoint::Speech, r#""input":"hello","voice":"alloy""#, None, 5)]
    fn the_output_is_estimated_by_what_is_usual_and_by_the_limit(
        #[case] model: &str,
        #[case] endpoint: Endpoint,
        #[case] members: &str,
        #[case] output_estimate: Option<u64>,
        #[case] expected: u64,
    ) {
        let call = parse_call(model, endpoint, members);
        let context = QuoteContext {
            endpoint,
            priced_at: 0,
            earlier_input_tokens: 1_000,
            output_estimate,
            text_tokens_max: None,
            book: None,
            fees: Money::ZERO,
        };
        let model = CATALOGUE.find(model).expect("a model");
        let estimated = estimate_call_tokens(model, &call, context);
        assert_eq!(estimated - call.estimated_input_tokens() - 1_000, expected);
    }
}
