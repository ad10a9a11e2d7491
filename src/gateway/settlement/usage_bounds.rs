//! Computes the most usage that a vendor can plausibly report for a call. A report above these
//! bounds is rejected.
//!
//! A report that is rejected wrongly costs the operator the difference, so each bound has slack. A
//! report that is accepted wrongly costs the account the difference.

use crate::catalogue::Model;
use crate::dialect::call::{InputSize, ModelCall, RequestKind};
use crate::dialect::meter::bounds::{UsageBounds, plausible_max};
use crate::gateway::context::PricedModel;
use crate::money::price::Price;
use crate::money::{BilledUnits, Money, Rate, TICKS_PER_NANO};

/// The context length in tokens where the rules name none; it is more than that of any model.
pub(super) const CONTEXT_TOKENS_DEFAULT: u64 = 2_000_000;
/// A limit from a price list may be exceeded by this fraction of it, one sixteenth: a list that
/// says 1000K may mean 1,048,576 tokens.
const SLACK_DIVISOR: u64 = 16;
/// A vendor's count of output may exceed the requested limit by this many tokens, which end a turn
/// or frame a tool call.
const SLACK_TOKENS: u64 = 64;
/// A vendor that runs its own (hosted) tools reads the conversation again for each step, at most
/// this many times.
const HOSTED_TOOL_STEPS_MAX: u64 = 16;
/// An image may cost at most this many times its reservation. The largest images that can be
/// requested have about five times as many pixels as the size that the reservation is for, and an
/// image to be edited is read as well.
const RESERVATION_FACTOR: u64 = 8;

/// Returns the bounds of the usage report of an admitted call.
pub(crate) fn bounds_for_call(call: &ModelCall, pricing: &PricedModel) -> UsageBounds {
    let (model, counted) = (&*pricing.model, call.estimated_input_tokens());
    let text = |content: &InputSize, output: OutputRequest| UsageBounds {
        input_max: input_tokens_max(model, content, counted, output.is_continued),
        output_max: output.tokens_max(model),
        output_is_visible: !model.hidden_reasoning
            && output.hidden_tokens_max == 0
            && output.is_readable
            && !content.has_hosted_tools(),
        ..UsageBounds::default()
    };
    match (&model.price, &call.kind) {
        (Price::Image { tokens, reservation }, _) => {
            let base = tokens.base_rates_at(pricing.priced_at);
            image_bounds(*reservation, base.input, base.output)
        }
        (_, RequestKind::Chat { text: t, .. } | RequestKind::Messages(t)) => {
            let filled_in = || model.default_number(pricing.endpoint, "max_tokens");
            let limit = t.output_max.or_else(filled_in);
            let (choices, hidden_max) = (t.choices, t.hidden_output_max);
            text(
                &t.input_size,
                OutputRequest {
                    requested_max: limit,
                    choices,
                    hidden_tokens_max: hidden_max,
                    is_readable: true,
                    is_continued: false,
                },
            )
        }
        (_, RequestKind::Responses(ask) | RequestKind::Compaction(ask)) => {
            let is_continued = !ask.references.is_empty();
            let limit = ask.output_max;
            text(
                &ask.input_size,
                OutputRequest {
                    requested_max: limit,
                    choices: 1,
                    hidden_tokens_max: 0,
                    is_readable: !ask.is_compaction,
                    is_continued,
                },
            )
        }
        (_, RequestKind::Embeddings(_)) => {
            let input_max = plausible_max(counted);
            UsageBounds { input_max, ..UsageBounds::default() }
        }
        _ => UsageBounds::default(),
    }
}

/// The parts of a call that limit its output.
struct OutputRequest {
    requested_max: Option<u64>,
    choices: u64,
    hidden_tokens_max: u64,
    /// Whether the text of the output can be read. That of a compacted conversation is encrypted.
    is_readable: bool,
    /// Whether the vendor also reads earlier responses, which it stores.
    is_continued: bool,
}

impl OutputRequest {
    /// Returns the most output tokens that are plausible, of all choices together.
    fn tokens_max(&self, model: &Model) -> u64 {
        let own = model.output_max.or(model.context_length).unwrap_or(CONTEXT_TOKENS_DEFAULT);
        let one = match self.requested_max {
            // A requested limit above what the model can produce does not raise the bound.
            Some(limit) => limit.min(own.max(model.context_length.unwrap_or(own))),
            None => own,
        };
        let beyond = self.requested_max.is_some()
            && model.hidden_reasoning
            && !model.vendor.limit_covers_reasoning;
        let hidden = self.hidden_tokens_max.saturating_add(if beyond { own } else { 0 });
        with_slack(one.saturating_add(hidden).saturating_mul(self.choices))
            .saturating_add(SLACK_TOKENS)
    }
}

/// Returns the charge for the billed units of a call and for the `fees` of the vendor's tools at
/// list prices; `None` if they have no price. If the vendor's report was rejected, the charge is at
/// most the held amount.
pub(crate) fn compute_charge(
    pricing: &PricedModel,
    units: BilledUnits,
    fees: Money,
    is_rejected: bool,
    held: Money,
) -> Option<Money> {
    let price = pricing.account_price();
    let list = price.price().cost(units, pricing.priced_at).ok()?.checked_add(fees).ok()?;
    let charge = price.apply_factor(list).ok()?;
    Some(if is_rejected { charge.min(held) } else { charge })
}

fn with_slack(tokens: u64) -> u64 {
    tokens.saturating_add(tokens / SLACK_DIVISOR)
}

/// Returns the most input tokens that are plausible, given those counted in the body.
fn input_tokens_max(model: &Model, content: &InputSize, counted: u64, is_continued: bool) -> u64 {
    let most_context = with_slack(model.context_length.unwrap_or(CONTEXT_TOKENS_DEFAULT));
    let readings = content.vendor_reads.repeats.saturating_add(1);
    if content.has_hosted_tools() {
        return most_context.saturating_mul(readings.max(HOSTED_TOOL_STEPS_MAX));
    }
    // If the body is longer than the listed context and the vendor accepts it, the tokens that were
    // sent are plausible.
    let most = most_context.saturating_mul(readings).max(counted);
    let is_alone = content.is_bounded_by_body() && !is_continued;
    if is_alone { most.min(plausible_max(counted)) } else { most }
}

/// Returns the bounds of an image: each part of its price may cost [`RESERVATION_FACTOR`] times the
/// reservation.
fn image_bounds(reservation: Money, input: Rate, output: Rate) -> UsageBounds {
    let most = u64::try_from(reservation.nano()).unwrap_or(0).saturating_mul(RESERVATION_FACTOR);
    let tokens = |rate: Rate| most.checked_div(u64::from(rate.nano())).unwrap_or(u64::MAX);
    UsageBounds {
        input_max: tokens(input),
        output_max: tokens(output),
        output_is_visible: false,
        ticks_max: most.saturating_mul(TICKS_PER_NANO),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::catalogue::fee::CallFees;
    use crate::dialect::Endpoint;
    use crate::dialect::meter::{ReportQuality, UsageMeter};
    use crate::gateway::settlement::test_calls::{CATALOGUE, HI, nano, parse_call};
    use crate::money::{TokenUsage, UsageBasis};

    fn admitted(model: &str, endpoint: Endpoint, members: &str) -> (ModelCall, PricedModel) {
        let call = parse_call(model, endpoint, members);
        let model = CATALOGUE.find(model).expect("a model").clone();
        let input_tokens = call.estimated_input_tokens();
        let (price_version, full_hold) = ("".into(), Money::ZERO);
        let pricing = PricedModel {
            model,
            book: None,
            requested_model: None,
            price_version,
            priced_at: 0,
            endpoint,
            input_tokens,
            full_hold,
            fees: CallFees::default(),
            output_estimate: Arc::default(),
        };
        (call, pricing)
    }

    fn bounds(model: &str, endpoint: Endpoint, members: &str) -> UsageBounds {
        let (call, pricing) = admitted(model, endpoint, members);
        bounds_for_call(&call, &pricing)
    }

    const PICTURE: &str = r#""messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a.test/b"}}]}]"#;

    /// The largest report of output that is accepted, for the limit that was sent and the tokens
    /// that were counted.
    #[rstest]
    #[case::limit("lmb-5.5", r#","max_tokens":5"#, 0, 5 + 64)]
    #[case::the_larger_limit("lmb-5.5", r#","max_tokens":5,"max_completion_tokens":160"#, 0, 170 + 64)]
    #[case::limit_of_all_choices("lmb-5.5", r#","max_tokens":160,"n":3"#, 0, 510 + 64)]
    #[case::no_limit("lmb-5.5", "", 0, 136_000 + 64)]
    #[case::a_limit_beyond_all("lmb-5.5", r#","max_tokens":900000000"#, 0, 425_000 + 64)]
    #[case::hidden_reasoning_beyond_the_limit("lmd-4.6", r#","max_tokens":160"#, 0, 272_170 + 64)]
    #[case::none_of_what_does_not_reason(
        "lmd-4.20-0309-non-reasoning", r#","max_tokens":160"#, 0, 170 + 64
    )]
    #[case::counted("lmb-4o", "", 10, 160 + 4_096)]
    #[case::counted_and_limited("lmb-4o", r#","max_tokens":160"#, 10_000, 170 + 64)]
    #[case::counted_up_to_the_most("lmb-4o", "", 10_000, 17_408 + 64)]
    #[case::prediction("lmb-4o", r#","max_tokens":160,"prediction":"0123456789""#, 0, 182 + 64)]
    #[case::limit_that_the_rules_fill_in("lma-opus-5", "", 0, 8_704 + 64)]
    #[case::context_where_nothing_is_named("orgA/famA-V3.1", "", 0, 174_250 + 64)]
    fn output_is_believed_up_to(
        #[case] model: &str,
        #[case] members: &str,
        #[case] counted: u64,
        #[case] most: u64,
    ) {
        let bounds = bounds(model, Endpoint::Chat, &format!("{HI}{members}"));
        let admits =
            |output| bounds.admits_tokens(TokenUsage { output, ..TokenUsage::default() }, counted);
        assert_eq!((admits(most), admits(most + 1)), (true, false), "{bounds:?}");
    }

    #[rstest]
    #[case::limit(r#""max_tokens":160"#, 170 + 64)]
    #[case::nothing(r#""max_tokens":0"#, 64)]
    #[case::thinking_within(
        r#""max_tokens":1600,"thinking":{"type":"enabled","budget_tokens":1024}"#,
        1_764
    )]
    #[case::thinking_between_calls_of_tools(
        r#""max_tokens":1600,"thinking":{"type":"enabled","budget_tokens":16000}"#, 18_700 + 64
    )]
    #[case::the_summary_of_a_compaction(
        r#""max_tokens":1600,"context_management":{"edits":[{"type":"compact_20260112"}]}"#,
        137_700 + 64
    )]
    #[case::clearing_makes_no_output(
        r#""max_tokens":1600,"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}"#,
        1_764
    )]
    fn output_of_messages_is_believed_up_to(#[case] members: &str, #[case] most: u64) {
        let bounds = bounds("lma-haiku-4-5", Endpoint::Messages, &format!("{HI},{members}"));
        assert_eq!(bounds.output_max, most);
    }

    /// What the vendor makes of a conversation is encrypted, so that its length tells nothing, and
    /// no limit applies to it.
    #[rstest]
    #[case::of_its_endpoint(Endpoint::ResponsesCompact, r#""input":"hi","max_output_tokens":16"#)]
    #[case::of_a_trigger(
        Endpoint::Responses,
        r#""input":[{"role":"user","content":"hi"},{"type":"compaction_trigger"}],"max_output_tokens":16"#
    )]
    fn the_output_of_a_compaction_is_believed_up_to_what_the_model_can_put_out(
        #[case] endpoint: Endpoint,
        #[case] members: &str,
    ) {
        let bounds = bounds("lmb-4o", endpoint, members);
        assert_eq!((bounds.output_max, bounds.output_is_visible), (17_408 + 64, false));
    }

    /// The largest report of input that is accepted.
    #[rstest]
    #[case::text("lmb-5.5", Endpoint::Chat, HI, 16 * 16 + 4_096)]
    #[case::picture("lmb-5.5", Endpoint::Chat, PICTURE, 425_000)]
    #[case::picture_without_a_context("o3", Endpoint::Chat, PICTURE, 2_125_000)]
    #[case::function("lmb-5.5", Endpoint::Chat, r#""messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}]"#, 16 * 24 + 4_096)]
    #[case::hosted("lmb-5.5", Endpoint::Chat, r#""messages":[{"role":"user","content":"hi"}],"tools":[{"type":"web"}]"#, 16 * 425_000)]
    #[case::unknown_part(
        "lmb-5.5",
        Endpoint::Chat,
        r#""messages":[{"role":"user","content":[{"type":"file","file":{"file_url":"u"}}]}]"#,
        425_000
    )]
    #[case::compressed_document(
        "lmb-5.5",
        Endpoint::Chat,
        r#""messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"data:application/vnd.openxmlformats-officedocument.wordprocessingml.document;base64,UEsDBA=="}}]}]"#,
        425_000
    )]
    #[case::text_parts("lmb-5.5", Endpoint::Chat, r#""messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]"#, 16 * 22 + 4_096)]
    #[case::response("lmb-5.5", Endpoint::Responses, r#""input":"hi""#, 16 * 8 + 4_096)]
    #[case::continued(
        "lmb-5.5",
        Endpoint::Responses,
        r#""input":"hi","previous_response_id":"r""#,
        425_000
    )]
    #[case::stored_prompt(
        "lmb-5.5",
        Endpoint::Responses,
        r#""input":"hi","prompt":{"id":"p"}"#,
        425_000
    )]
    #[case::pages_that_the_vendor_fetches(
        "lma-haiku-4-5",
        Endpoint::Messages,
        r#""max_tokens":5,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"web_fetch_20250910","name":"web_fetch","max_uses":1,"max_content_tokens":9}]"#,
        16 * 212_500
    )]
    #[case::a_summary_before_the_answer(
        "lma-haiku-4-5",
        Endpoint::Messages,
        r#""max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u"}}]}],"context_management":{"edits":[{"type":"compact_20260112"}]}"#,
        2 * 212_500
    )]
    #[case::calls_of_a_servers_tools(
        "lmb-5.5",
        Endpoint::Responses,
        r#""input":"hi","max_tool_calls":3,"tools":[{"type":"mcp","server_label":"a"}]"#,
        16 * 425_000
    )]
    #[case::many_calls_of_a_servers_tools(
        "lmb-5.5",
        Endpoint::Responses,
        r#""input":"hi","max_tool_calls":20,"tools":[{"type":"mcp","server_label":"a"}]"#,
        22 * 425_000
    )]
    #[case::compaction("lmb-5.5", Endpoint::ResponsesCompact, r#""input":"hi""#, 16 * 8 + 4_096)]
    #[case::compaction_of_what_is_stored(
        "lmb-5.5",
        Endpoint::ResponsesCompact,
        r#""previous_response_id":"r""#,
        425_000
    )]
    #[case::embedding("text-embedding-3-small", Endpoint::Embeddings, r#""input":"12345678""#, 32 + 4_096)]
    #[case::tokens("text-embedding-3-small", Endpoint::Embeddings, r#""input":[[1,2],[3]]"#, 48 + 4_096)]
    fn input_is_believed_up_to(
        #[case] model: &str,
        #[case] endpoint: Endpoint,
        #[case] members: &str,
        #[case] most: u64,
    ) {
        let bounds = bounds(model, endpoint, members);
        let admits = |input| bounds.admits_tokens(TokenUsage { input, ..TokenUsage::default() }, 0);
        assert_eq!((admits(most), admits(most + 1)), (true, false), "{bounds:?}");
    }

    #[test]
    fn a_context_in_units_of_1024_and_a_call_beyond_the_listed_one_are_honest() {
        let most = |model: &str, bytes: usize| {
            let text = "a".repeat(bytes);
            let members = format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
            bounds(model, Endpoint::Chat, &members).input_max
        };
        assert!(most("lmb-4.1", 400_000) >= 1_047_576);
        assert!(most("lmc-3.5-flash", 400_000) >= 1_048_576);
        assert!(most("orgK/famK-4", 400_000) >= 100_000);
    }

    #[rstest]
    #[case::tokens("lmb-image-2", 448_000, 74_666, u64::MAX)]
    #[case::cheap_tokens("lmb-image-1-mini", 300_000, 75_000, u64::MAX)]
    #[case::bill("lmd-imagine-image", u64::MAX, u64::MAX, 1_600_000_000)]
    fn an_image_comes_to_eight_reservations_at_most(
        #[case] model: &str,
        #[case] input: u64,
        #[case] output: u64,
        #[case] ticks: u64,
    ) {
        let bounds = bounds(model, Endpoint::Images, r#""prompt":"a dot""#);
        assert_eq!((bounds.input_max, bounds.output_max), (input, output));
        assert!(ticks == u64::MAX || bounds.ticks_max == ticks, "{bounds:?}");
    }

    proptest! {
        #[test]
        fn a_refused_report_never_takes_more_than_the_hold_and_another_is_charged_exactly(
            model in prop::sample::select(vec!["lmb-5.5", "lmb-4o", "lmd-4.6", "lma-opus-5"]),
            limit in prop::option::of(1..200_000_u64),
            text in 0..100_000_usize,
            input in prop_oneof![0..20_000_u64, 0..=1_000_000_000_u64],
            output in prop_oneof![0..20_000_u64, 0..=1_000_000_000_u64],
            held in 0..10_000_000_000_i64,
        ) {
            let limit = limit.map_or(String::new(), |most| format!(r#","max_tokens":{most}"#));
            let (call, pricing) = admitted(model, Endpoint::Chat, &format!("{HI}{limit}"));
            let mut meter = UsageMeter::default();
            meter.set_bounds(bounds_for_call(&call, &pricing));
            meter.count_unread_bytes(text);
            let reported = TokenUsage { input, output, ..TokenUsage::default() };
            meter.record_tokens(reported, ReportQuality::Final);
            let usage = meter.usage(pricing.input_tokens);
            let held = nano(held);
            let rejected = meter.rejected_report();
            let units = BilledUnits::Tokens(usage.tokens);
            let charge = compute_charge(&pricing, units, Money::ZERO, rejected.is_some(), held);
            let charge = charge.expect("a price");
            if let Some(figures) = rejected {
                prop_assert_eq!((figures, usage.basis), (reported, UsageBasis::Counted));
                prop_assert!(charge <= held);
                prop_assert_eq!(usage.tokens.input, pricing.input_tokens);
            } else {
                // A side that is reported as 0 is counted.
                let is_whole = input > 0 && (output > 0 || text == 0);
                let basis = if is_whole { UsageBasis::Reported } else { UsageBasis::Counted };
                let input = if input == 0 { pricing.input_tokens } else { input };
                let output = if output == 0 { text.div_ceil(4) as u64 } else { output };
                let expected = TokenUsage { input, output, ..TokenUsage::default() };
                let units = BilledUnits::Tokens(expected);
                let exact = pricing.model.price.cost(units, 0).expect("a price");
                prop_assert_eq!((usage.tokens, usage.basis), (expected, basis));
                prop_assert_eq!(charge, exact);
                prop_assert!(input <= 1_062_500 && output <= 2_125_064);
            }
        }
    }
}
