//! Usage as the vendors write it.

use super::faults::{Fault, Faults};
use super::record::Billed;
use super::vendor::Vendor;

/// Dollars times 10^10, of a token each.
const PROMPT_TICKS: u64 = 20_000;
const OUTPUT_TICKS: u64 = 100_000;

const BROKEN: &str =
    r#"{"prompt_tokens":-7,"completion_tokens":3.75,"total_tokens":99999999999999999999}"#;

/// The value of `usage`, under the faults that concern it; none when there is to be no such key.
pub(super) fn text(vendor: Vendor, billed: &Billed, faults: &Faults) -> Option<String> {
    if faults.has(Fault::NoUsage) {
        None
    } else if faults.has(Fault::NullUsage) {
        Some("null".to_owned())
    } else if faults.has(Fault::BadUsage) {
        Some(BROKEN.to_owned())
    } else {
        Some(true_text(vendor, billed))
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is always JSON")
}

fn true_text(vendor: Vendor, billed: &Billed) -> String {
    let Billed { prompt, completion, reasoning, total, .. } = *billed;
    match vendor {
        Vendor::A | Vendor::B => format!(
            "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\
             \"total_tokens\":{total},\"prompt_tokens_details\":{{\"cached_tokens\":0,\
             \"cache_write_tokens\":0,\"audio_tokens\":0}},\"completion_tokens_details\":\
             {{\"reasoning_tokens\":{reasoning},\"audio_tokens\":0,\
             \"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}}}}"
        ),
        Vendor::C => format!(
            "{{\"completion_tokens\":{completion},\"prompt_tokens\":{prompt},\
             \"total_tokens\":{total}}}"
        ),
        Vendor::D => format!(
            "{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\
             \"total_tokens\":{total},\"prompt_tokens_details\":{{\"text_tokens\":{prompt},\
             \"audio_tokens\":0,\"image_tokens\":0,\"cached_tokens\":0}},\
             \"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning},\"audio_tokens\":0,\
             \"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}},\
             \"num_sources_used\":0,\"cost_in_usd_ticks\":{}}}",
            ticks(billed)
        ),
        Vendor::E => {
            let cost = std::time::Duration::from_nanos(ticks(billed) / 10).as_secs_f64();
            format!(
                "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\
                 \"completion_tokens\":{completion},\"estimated_cost\":{cost:e},\
                 \"prompt_tokens_details\":null}}"
            )
        }
    }
}

fn ticks(billed: &Billed) -> u64 {
    let output = billed.total.saturating_sub(billed.prompt);
    let prompt = billed.prompt.saturating_mul(PROMPT_TICKS);
    prompt.saturating_add(output.saturating_mul(OUTPUT_TICKS))
}
