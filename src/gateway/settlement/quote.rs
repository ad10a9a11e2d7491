//! Computes the amounts that are held for a call, and the limit of output that a hold covers.

use crate::catalogue::{AccountPrice, Model, PriceBook, Vendor};
use crate::dialect::CallError;
use crate::dialect::Endpoint;
use crate::dialect::call::{InputSize, ModelCall, RequestKind, TextRequest};
use crate::dialect::videos::VideoRequest;
use crate::gateway::api_error::{AdmissionError, ApiError};
use crate::gateway::settlement::repeated_reads::total_input_max;
use crate::money::price::{Price, TokenPrice};
use crate::money::{BilledUnits, Money, VideoResolution};

/// The amounts to hold for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallQuote {
    /// The hold that covers the call at its largest.
    pub(crate) full: Money,
    /// The hold that covers the usual output of such a call.
    pub(crate) estimate: Money,
    /// The smallest hold with which the call is made.
    pub(crate) least: Money,
    /// The part of each of them that covers the fees of the vendor's tools.
    pub(crate) fees: Money,
    /// How the hold covers the output.
    pub(crate) coverage: OutputCoverage,
}

/// How the hold of a call covers its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputCoverage {
    /// The output passes the gateway piece by piece, and the hold grows with it. If the vendor may
    /// bill output that does not pass, it can be sent a limit too.
    Grows(Option<LimitedTokens>),
    /// The vendor can be sent a limit that the hold covers.
    Limited(LimitedTokens),
    /// Neither: the call has no output, or no limit bounds it.
    Fixed,
}

/// The tokens of a call whose output can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitedTokens {
    /// The most input tokens.
    input: u64,
    /// The number of choices.
    choices: u64,
    /// Output tokens of each choice that the limit does not count.
    beyond_limit: u64,
    /// The smallest limit that the vendor accepts.
    limit_min: u64,
    /// The limit of the call, or of the model.
    limit_max: u64,
    /// Whether the call itself has a limit.
    pub(crate) is_requested: bool,
}

/// The figures about a call that its body does not hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuoteContext<'a> {
    /// The endpoint that was called.
    pub(crate) endpoint: Endpoint,
    /// The time whose prices apply, in unix seconds.
    pub(crate) priced_at: i64,
    /// The number of input tokens of earlier responses that the vendor reads again.
    pub(crate) earlier_input_tokens: u64,
    /// The usual number of output tokens of one choice of such a call, as far as it is known.
    pub(crate) output_estimate: Option<u64>,
    /// The most tokens of the call's text, if they were counted; else a token a byte is assumed.
    pub(crate) text_tokens_max: Option<u64>,
    /// The price book of the account; `None` if it pays the list price.
    pub(crate) book: Option<&'a PriceBook>,
    /// The most that the fees of the vendor's tools can come to.
    pub(crate) fees: Money,
}

/// Whether a call costs nothing.
#[must_use]
pub(crate) fn is_free(model: &Model, call: &ModelCall) -> bool {
    matches!((&model.price, &call.kind), (Price::Free, _) | (_, RequestKind::TokenCount { .. }))
}

/// Returns the amounts to hold for a call that is not free.
///
/// # Errors
/// The cost exceeds any balance, or the model has no price for the requested video resolution.
pub(crate) fn quote_call(
    model: &Model,
    call: &ModelCall,
    context: QuoteContext<'_>,
) -> Result<CallQuote, ApiError> {
    let price = AccountPrice::new(model, context.book);
    let quote = quote_before_factor(model, price.price(), call, context)?;
    // The cost of all the units is multiplied once, as the charge is, so that it is covered too.
    quote.apply_factor(price).ok_or_else(|| field_too_large("model"))
}

/// Returns the amounts to hold for a call at `price`, before the factor of a price book.
fn quote_before_factor(
    model: &Model,
    price: &Price,
    call: &ModelCall,
    context: QuoteContext<'_>,
) -> Result<CallQuote, ApiError> {
    let fixed = |amount| CallQuote {
        full: amount,
        estimate: amount,
        least: amount,
        fees: Money::ZERO,
        coverage: OutputCoverage::Fixed,
    };
    match (price, &call.kind) {
        (Price::Tokens(price), RequestKind::Chat { text: t, .. } | RequestKind::Messages(t)) => {
            let output = OutputRequest {
                limit: t
                    .output_max
                    .or_else(|| model.default_number(context.endpoint, "max_tokens")),
                choices: t.choices,
                beyond_limit: beyond_limit(t),
                limit_min: t.output_min,
                grows: call.stream,
                is_compaction: false,
            };
            quote_tokens(model, price, &t.input_size, output, context)
                .and_then(|quote| quote.with_fees(context.fees))
                .ok_or_else(|| field_too_large("max_tokens"))
        }
        (
            Price::Tokens(price),
            RequestKind::Responses(request) | RequestKind::Compaction(request),
        ) => {
            let output = OutputRequest {
                limit: request.output_max,
                choices: 1,
                beyond_limit: 0,
                limit_min: 1,
                grows: call.stream,
                is_compaction: matches!(call.kind, RequestKind::Compaction(_)),
            };
            quote_tokens(model, price, &request.input_size, output, context)
                .and_then(|quote| quote.with_fees(context.fees))
                .ok_or_else(|| field_too_large("max_output_tokens"))
        }
        (Price::Tokens(price), RequestKind::Embeddings(inputs)) => {
            let quote = price.quote(inputs.tokens_max, 0, context.priced_at);
            quote.map(|quote| fixed(quote.wanted)).map_err(|_| field_too_large("input"))
        }
        (Price::Image { reservation, .. }, RequestKind::Image { .. }) => Ok(fixed(*reservation)),
        (Price::Speech(rate), RequestKind::Speech { characters }) => {
            rate.checked_mul(*characters).map(fixed).map_err(|_| field_too_large("input"))
        }
        (price, RequestKind::Video { request, .. }) => {
            price_video(model, price, request, context.priced_at).map(fixed)
        }
        // A model is sold only on the endpoints that its kind of price is for.
        _ => Err(AdmissionError::wrong_endpoint(model).into()),
    }
}

/// Returns the cost of a video at a price, of the time `priced_at` (unix seconds).
///
/// # Errors
/// The price has no rate for the resolution.
pub(crate) fn price_video(
    model: &Model,
    price: &Price,
    request: &VideoRequest,
    priced_at: i64,
) -> Result<Money, ApiError> {
    let Price::Video(rates) = price else {
        return Err(AdmissionError::wrong_endpoint(model).into());
    };
    let VideoRequest { seconds, resolution, .. } = *request;
    let units = BilledUnits::Video { seconds, resolution, ticks: None };
    price.cost(units, priced_at).map_err(|_| {
        let sold: Vec<VideoResolution> = rates.iter().map(|(resolution, _)| *resolution).collect();
        CallError::into(request.unsupported_resolution(&model.id, &sold))
    })
}

/// Returns how many output tokens of one choice the vendor may bill beside the limit.
fn beyond_limit(text: &TextRequest) -> u64 {
    let unexpected = text.summary_output_max.saturating_sub(text.expected_summary_max);
    text.hidden_output_max.saturating_sub(unexpected)
}

/// What a call says about its output.
#[derive(Debug, Clone, Copy)]
struct OutputRequest {
    /// The most output tokens of one choice, if there is a limit.
    limit: Option<u64>,
    choices: u64,
    /// Output tokens of one choice that are billed beside the limit.
    beyond_limit: u64,
    /// The smallest limit with which the vendor takes this call.
    limit_min: u64,
    /// Whether the hold can grow with the output.
    grows: bool,
    /// Whether the output is a shorter form of the input.
    is_compaction: bool,
}

/// Returns the amounts for a call that is priced by tokens; `None` if they exceed any balance.
fn quote_tokens(
    model: &Model,
    price: &TokenPrice,
    input_size: &InputSize,
    output: OutputRequest,
    context: QuoteContext<'_>,
) -> Option<CallQuote> {
    let OutputRequest { choices, beyond_limit, grows, .. } = output;
    let by_rules = model.vendor.output_tokens_default;
    // A hold that grows may begin with what is usual. One that cannot must not cut an answer only
    // because those before it were short.
    let recent = context.output_estimate.unwrap_or(by_rules);
    let usual = if grows { recent } else { recent.max(by_rules) };
    let model_max = model.output_max.or(model.context_length).unwrap_or(usual);
    let usual = usual.min(model_max);
    let sent = input_tokens_max(input_size, &model.vendor, context.text_tokens_max);
    let sent = sent.saturating_add(context.earlier_input_tokens);
    let compacted_max = sent.max(by_rules).min(model_max);
    let limit = if output.is_compaction { Some(compacted_max) } else { output.limit };
    let limit_max = limit.unwrap_or(model_max);
    let output_max = limit_max.saturating_add(beyond_limit);
    let input = total_input_max(model, input_size, sent, output_max);
    let cost = |one: u64| {
        let quote = price.quote(input, one.saturating_mul(choices), context.priced_at);
        quote.ok().map(|quote| quote.wanted)
    };
    let cost_of_limit = |limit: u64| cost(limit.saturating_add(beyond_limit));
    // A vendor may refuse a limit that leaves no room for the input.
    let room = model.context_length.map(|most| most.saturating_sub(input)).filter(|room| *room > 0);
    let bounds_output = !model.hidden_reasoning || model.vendor.limit_covers_reasoning;
    let limited = model.output_limit(context.endpoint).map(|rule| {
        let limit_min = rule.min.max(output.limit_min).min(limit_max);
        let limit_max = match (limit, room) {
            (None, Some(room)) => limit_max.min(room).max(limit_min),
            _ => limit_max,
        };
        let is_requested = limit.is_some();
        LimitedTokens { input, choices, beyond_limit, limit_min, limit_max, is_requested }
    });
    Some(match limited {
        _ if grows && bounds_output => {
            let unseen = limited.filter(|_| model.hidden_reasoning);
            let first = price.quote(input, 1, context.priced_at).ok()?.wanted;
            CallQuote {
                full: cost(output_max)?,
                estimate: cost(usual.min(output_max))?,
                least: unseen.map_or(Some(first), |tokens| cost_of_limit(tokens.limit_min))?,
                fees: Money::ZERO,
                coverage: OutputCoverage::Grows(unseen),
            }
        }
        // No limit bounds the output, so that at least the estimate of the rules is held.
        _ if grows => CallQuote {
            full: cost_of_limit(limit_max.saturating_add(model_max))?,
            estimate: cost_of_limit(usual.max(by_rules))?,
            least: cost_of_limit(by_rules)?,
            fees: Money::ZERO,
            coverage: OutputCoverage::Grows(None),
        },
        Some(tokens) => CallQuote {
            full: cost(output_max)?,
            estimate: cost_of_limit(usual.min(limit_max).max(tokens.limit_min))?,
            least: cost_of_limit(tokens.limit_min)?,
            fees: Money::ZERO,
            coverage: OutputCoverage::Limited(tokens),
        },
        None => {
            let estimate = cost_of_limit(usual)?;
            let full = limit.map_or(Some(estimate), cost_of_limit)?.max(estimate);
            let least = cost_of_limit(by_rules.min(usual))?;
            let (fees, coverage) = (Money::ZERO, OutputCoverage::Fixed);
            CallQuote { full, estimate, least, fees, coverage }
        }
    })
}

impl CallQuote {
    /// Returns the amounts after the factor of a price; `None` if they exceed any balance.
    fn apply_factor(self, price: AccountPrice<'_>) -> Option<CallQuote> {
        if price.factor().is_none() {
            return Some(self);
        }
        let scaled = |amount| price.apply_factor(amount).ok();
        Some(CallQuote {
            full: scaled(self.full)?,
            estimate: scaled(self.estimate)?,
            least: scaled(self.least)?,
            fees: scaled(self.fees)?,
            coverage: self.coverage,
        })
    }

    /// Returns the quote with these fees in every amount; `None` if they exceed any balance.
    fn with_fees(self, fees: Money) -> Option<CallQuote> {
        let add = |amount: Money| amount.checked_add(fees).ok();
        Some(CallQuote {
            full: add(self.full)?,
            estimate: add(self.estimate)?,
            least: add(self.least)?,
            fees,
            coverage: self.coverage,
        })
    }

    /// Whether the hold grows with the output.
    #[must_use]
    pub(crate) fn grows(&self) -> bool {
        matches!(self.coverage, OutputCoverage::Grows(_))
    }

    /// Returns the amount to hold if the balance is wide.
    #[must_use]
    pub(crate) fn preferred(&self) -> Money {
        match self.coverage {
            OutputCoverage::Grows(_) => self.estimate,
            // Nearly no answer is as long as the model could make it.
            OutputCoverage::Limited(tokens) if !tokens.is_requested => self.estimate,
            OutputCoverage::Limited(_) | OutputCoverage::Fixed => self.full,
        }
    }

    /// Returns the amount to hold if the balance is short: the estimate or, if that is more, the
    /// call's share of the balance.
    #[must_use]
    pub(crate) fn reduced(&self, share: Money) -> Money {
        match self.coverage {
            OutputCoverage::Limited(_) | OutputCoverage::Grows(Some(_)) => {
                self.estimate.max(self.least).max(share).min(self.full)
            }
            OutputCoverage::Grows(None) | OutputCoverage::Fixed => self.estimate,
        }
    }

    /// Returns the tokens of a call whose output can be limited.
    #[must_use]
    pub(crate) fn limited_tokens(&self) -> Option<LimitedTokens> {
        match self.coverage {
            OutputCoverage::Limited(tokens) => Some(tokens),
            OutputCoverage::Grows(tokens) => tokens,
            OutputCoverage::Fixed => None,
        }
    }

    /// Returns the limit of output tokens that the vendor must be sent, so that `held` covers the
    /// call; `None` if it need not be sent one.
    #[must_use]
    pub(crate) fn limit_for(
        &self,
        price: AccountPrice<'_>,
        held: Money,
        priced_at: i64,
    ) -> Option<u64> {
        let tokens = self.limited_tokens()?;
        let Price::Tokens(before_factor) = price.price() else { return None };
        let cost = |input, output| {
            let quote = before_factor.quote(input, output, priced_at).ok()?;
            price.apply_factor(quote.wanted).ok()
        };
        let for_tokens = held.saturating_sub(self.fees);
        (held < self.full).then(|| tokens.limit_covered_by(cost, for_tokens))
    }
}

impl LimitedTokens {
    /// Returns the largest limit whose cost is at most `held`, but at least the vendor's minimum.
    /// `cost` is that of tokens of input and output; `None` if it exceeds any balance.
    fn limit_covered_by(&self, cost: impl Fn(u64, u64) -> Option<Money>, held: Money) -> u64 {
        let is_covered = |limit: u64| {
            let output = limit.saturating_add(self.beyond_limit).saturating_mul(self.choices);
            cost(self.input, output).is_some_and(|cost| cost <= held)
        };
        // The cost rises with the limit, so the border is found by halving.
        let (mut covered, mut beyond) = (self.limit_min, self.limit_max.saturating_add(1));
        while beyond.saturating_sub(covered) > 1 {
            let middle = covered + (beyond - covered) / 2;
            if is_covered(middle) {
                covered = middle;
            } else {
                beyond = middle;
            }
        }
        covered
    }
}

/// Returns the error for a field that makes the call cost more than any account has.
pub(crate) fn field_too_large(field: &str) -> ApiError {
    CallError::invalid(field, "smaller: its cost exceeds any balance").into()
}

/// Returns an upper estimate of the input tokens. Every token is at least one byte of text, unless
/// the tokens of the text were counted. For an image, a document of pages and the prompts that a
/// vendor adds for tools, the vendor's rules give the maximum. The bytes of the JSON around the
/// text make up for the vendor's own framing.
fn input_tokens_max(content: &InputSize, vendor: &Vendor, text_tokens_max: Option<u64>) -> u64 {
    let InputSize { images, documents, vendor_tool_prompt_count: tools, text_bytes, .. } = *content;
    let tokens = [
        text_tokens_max.unwrap_or(text_bytes),
        images.saturating_mul(vendor.image_tokens_max),
        documents.saturating_mul(vendor.document_tokens_max),
        tools.saturating_mul(vendor.tool_tokens_max),
    ];
    tokens.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::gateway::settlement::test_calls::{CATALOGUE, HI, nano, parse_call};

    fn quote(model: &str, endpoint: Endpoint, members: &str, usual: Option<u64>) -> CallQuote {
        let call = parse_call(model, endpoint, members);
        let context = QuoteContext {
            endpoint,
            priced_at: 0,
            earlier_input_tokens: 0,
            output_estimate: usual,
            // The input costs nothing, so that the amounts tell of the output alone.
            text_tokens_max: Some(0),
            book: None,
            fees: Money::ZERO,
        };
        let model = CATALOGUE.find(model).expect("a model");
        quote_call(model, &call, context).expect("a quote")
    }

    /// The output tokens that are held at least, by estimate, and at most; and at once.
    #[rstest]
    #[case::a_limit_below_the_estimate(r#","max_tokens":10"#, None, [1, 10, 10, 10])]
    #[case::a_limit_above_it(r#","max_tokens":9000"#, None, [1, 4_096, 9_000, 9_000])]
    #[case::no_limit("", None, [1, 4_096, 128_000, 4_096])]
    #[case::choices(r#","max_tokens":10,"n":3"#, None, [3, 30, 30, 30])]
    #[case::short_answers_before("", Some(7), [1, 4_096, 128_000, 4_096])]
    #[case::long_answers_before("", Some(9_000), [1, 9_000, 128_000, 9_000])]
    fn a_whole_answer_is_held_at_its_limit(
        #[case] members: &str,
        #[case] usual: Option<u64>,
        #[case] tokens: [i64; 4],
    ) {
        let quote = quote("lmb-5.5", Endpoint::Chat, &format!("{HI}{members}"), usual);
        let found = [quote.least, quote.estimate, quote.full, quote.preferred()];
        assert_eq!(found, tokens.map(|tokens| nano(tokens * 30_000)));
    }

    #[rstest]
    #[case::no_limit("", None, [1, 4_096, 32_768, 4_096])]
    #[case::a_limit(r#","max_tokens":9000"#, None, [1, 4_096, 9_000, 4_096])]
    #[case::a_limit_below(r#","max_tokens":9"#, None, [1, 9, 9, 9])]
    #[case::short_answers_before(r#","max_tokens":9000"#, Some(7), [1, 7, 9_000, 7])]
    #[case::long_answers_before("", Some(9_000), [1, 9_000, 32_768, 9_000])]
    fn a_stream_is_held_by_estimate(
        #[case] members: &str,
        #[case] usual: Option<u64>,
        #[case] tokens: [i64; 4],
    ) {
        let members = format!("{HI}{members},\"stream\":true");
        let quote = quote("lmb-4.1", Endpoint::Chat, &members, usual);
        let found = [quote.least, quote.estimate, quote.full, quote.preferred()];
        assert_eq!(found, tokens.map(|tokens| nano(tokens * 8_000)));
        assert_eq!(quote.coverage, OutputCoverage::Grows(None));
    }

    #[rstest]
    #[case::no_limit("", 4_096)]
    #[case::a_limit_above_it(r#","max_tokens":9000"#, 9_000)]
    #[case::a_limit(r#","max_tokens":10"#, 4_096)]
    fn where_no_limit_bounds_the_output_the_estimate_is_the_least(
        #[case] members: &str,
        #[case] full: i64,
    ) {
        let quote = quote("lmd-4.6", Endpoint::Chat, &format!("{HI}{members}"), Some(7));
        assert_eq!((quote.least, quote.estimate), (nano(4_096 * 6_000), nano(4_096 * 6_000)));
        assert_eq!((quote.full, quote.coverage), (nano(full * 6_000), OutputCoverage::Fixed));
    }

    #[rstest]
    #[case::chat("lmb-5.5", Endpoint::Chat, HI, 1)]
    #[case::responses("o1-pro", Endpoint::Responses, r#""input":"hi""#, 16)]
    #[case::messages(
        "lma-sonnet-4-5",
        Endpoint::Messages,
        r#""messages":[{"role":"user","content":"hi"}],"max_tokens":9000"#,
        1
    )]
    #[case::a_budget_of_thought("lma-sonnet-4-5", Endpoint::Messages, r#""messages":[{"role":"user","content":"hi"}],"max_tokens":9000,"thinking":{"type":"enabled","budget_tokens":2000}"#, 2_001)]
    fn no_limit_is_below_what_the_vendor_takes(
        #[case] model: &str,
        #[case] endpoint: Endpoint,
        #[case] members: &str,
        #[case] least: u64,
    ) {
        let quote = quote(model, endpoint, members, None);
        let model = CATALOGUE.find(model).expect("a model");
        assert_eq!(quote.limit_for(AccountPrice::list(&model.price), quote.least, 0), Some(least));
        assert_eq!(quote.limit_for(AccountPrice::list(&model.price), quote.full, 0), None);
    }

    #[test]
    fn every_amount_has_the_fees_and_no_limit_spends_them() {
        let plain = quote("lmb-5.5", Endpoint::Chat, &format!("{HI},\"max_tokens\":9000"), None);
        let quote = plain.with_fees(nano(30_000_000)).expect("it fits");
        let added = |with: Money, without: Money| with.nano() - without.nano();
        assert_eq!(added(quote.full, plain.full), 30_000_000);
        assert_eq!(added(quote.estimate, plain.estimate), 30_000_000);
        assert_eq!(added(quote.least, plain.least), 30_000_000);
        let price = AccountPrice::list(&CATALOGUE.find("lmb-5.5").expect("a model").price);
        let ten_tokens = nano(10 * 30_000 + 30_000_000);
        assert_eq!(quote.limit_for(price, ten_tokens, 0), Some(10));
        assert_eq!(plain.limit_for(price, ten_tokens, 0), Some(1_010));
        assert_eq!(plain.with_fees(nano(i64::MAX)), None);
    }

    proptest! {
        #[test]
        fn a_limit_is_the_largest_that_the_hold_covers(
            limit in 1_u64..20_000,
            choices in 1_u64..5,
            part in 0_i64..1_000,
        ) {
            let members = format!(r#"{HI},"max_tokens":{limit}"#);
            let chat = format!(r#"{members},"n":{choices}"#);
            let quotes = [
                ("lma-sonnet-4-5", 1, quote("lma-sonnet-4-5", Endpoint::Messages, &members, None)),
                ("lmb-5.5", choices, quote("lmb-5.5", Endpoint::Chat, &chat, None)),
            ];
            for (model, choices, quote) in quotes {
                let Price::Tokens(price) = &CATALOGUE.find(model).expect("a model").price else {
                    panic!("{model} is sold by tokens");
                };
                let span = quote.full.nano() - quote.least.nano();
                let held = nano(quote.least.nano() + span / 1_000 * part);
                let cost = |limit: u64| price.quote(0, limit * choices, 0).expect("fits").wanted;
                let list = Price::Tokens(price.clone());
                match quote.limit_for(AccountPrice::list(&list), held, 0) {
                    None => prop_assert!(held >= quote.full),
                    Some(sent) => {
                        prop_assert!((1..limit).contains(&sent));
                        prop_assert!(cost(sent) <= held && cost(sent + 1) > held);
                    }
                }
            }
        }
    }
}
