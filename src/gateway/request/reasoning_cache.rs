//! Keeps a model's thinking from one call of a tool loop to the next.
//!
//! The saved thinking makes the answer better, but losing it costs no money. So if anything fails
//! here, the call continues without it.

use std::time::Duration;

use bytes::Bytes;

use crate::dialect::call::ModelCall;
use crate::dialect::translate::request::{RestoredThinking, Translation};
use crate::dialect::translate::thinking::SavedThinking;
use crate::gateway::context::{BodyTransform, PricedCall, ReasoningState};
use crate::gateway::settlement::quote::{CallQuote, QuoteContext, quote_call};
use crate::gateway::state::Gateway;
use crate::ledger::AccountName;
use crate::money::Money;

/// Saved thinking is kept for this time. It is lost if the client's tools take longer.
const REASONING_TTL: Duration = Duration::from_secs(60 * 60);
/// The saved thinking of at most this many turns is looked up. A longer tool loop continues without
/// its thinking.
const TURNS_MAX: usize = 256;

/// Restores the saved reasoning of the tool loop that a call continues, and extends its hold.
///
/// The lookup costs the store work, so the call must be paid for before. If the balance does not
/// cover the saved reasoning in addition, the call continues without it.
pub(crate) async fn restore_reasoning(
    gateway: &Gateway,
    priced: &mut PricedCall,
    mut translation: Translation,
) {
    let ids = translation.tool_loop_ids();
    let found =
        if ids.len() > TURNS_MAX { None } else { load_reasoning(gateway, priced, &ids).await };
    let restored = found.and_then(|kept| translation.match_saved_thinking(&kept));
    let bytes = restored.as_ref().map_or(0, RestoredThinking::saved_bytes);
    let thinking = match restored {
        Some(restored) if bytes == 0 || extend_hold(gateway, priced, bytes).await => {
            if let Some(limit) = priced.output_limit {
                translation.limit_output(limit);
            }
            translation.apply_thinking(restored);
            ReasoningState::Restored
        }
        _ => ReasoningState::Dropped,
    };
    priced.body_transform =
        BodyTransform::Translate { body: translation.build_call(), reasoning: Some(thinking) };
}

async fn load_reasoning(
    gateway: &Gateway,
    priced: &PricedCall,
    ids: &[String],
) -> Option<Vec<Option<Bytes>>> {
    let names: Vec<String> = ids.iter().map(|id| cache_key(id)).collect();
    let finding = gateway.account_cache.get_many(priced.funding.account()?, &names);
    let found = gateway.with_ledger_timeout("notes", finding).await;
    found
        .inspect_err(|why| {
            log::warn!(
                event = "cache_read_failed", error:% = why;
                "reasoning cache read failed"
            );
        })
        .ok()
}

/// Extends the hold for an input that is `bytes` longer. Returns whether enough is held for it now.
async fn extend_hold(gateway: &Gateway, priced: &mut PricedCall, bytes: u64) -> bool {
    let replace_text_bytes = |call: &mut ModelCall, text_bytes: u64| {
        let text = call.chat_text_mut();
        text.map_or(0, |text| std::mem::replace(&mut text.input_size.text_bytes, text_bytes))
    };
    let (terms, call) = (&mut priced.pricing, &mut priced.call);
    let before = replace_text_bytes(call, 0);
    replace_text_bytes(call, before.saturating_add(bytes));
    let context = QuoteContext {
        endpoint: terms.endpoint,
        priced_at: terms.priced_at,
        earlier_input_tokens: 0,
        output_estimate: terms.output_estimate.tokens(),
        text_tokens_max: None,
        book: terms.book.as_deref(),
        // A call that is translated has no tools of the vendor.
        fees: Money::ZERO,
    };
    let quoted = quote_call(&terms.model, call, context).ok();
    // What limits the call must be held in full.
    let is_limited = priced.output_limit.is_some();
    let wanted = |quote: &CallQuote| if is_limited { quote.full } else { quote.preferred() };
    let wanted = quoted.as_ref().map_or(Money::ZERO, wanted);
    let held = gateway.extend_hold(&mut priced.funding, wanted).await;
    let (Some(quote), Ok(held)) =
        (quoted.filter(|quote| priced.funding.held() >= quote.least), held)
    else {
        replace_text_bytes(call, before);
        return false;
    };
    terms.full_hold = quote.full;
    let limit = quote.limit_for(terms.account_price(), held, terms.priced_at);
    if let Some(limit) = limit.filter(|_| held < wanted) {
        call.limit_output(limit);
        (priced.output_limit, terms.full_hold) = (Some(limit), held);
    }
    terms.input_tokens = call.estimated_input_tokens();
    true
}

/// Saves the thinking that the next call of the tool loop will need. It can be read as soon as this
/// function returns, so also by a client that continues the loop as soon as it has the answer.
pub(crate) async fn save_reasoning(gateway: &Gateway, account: &AccountName, kept: SavedThinking) {
    let life_ms = u64::try_from(REASONING_TTL.as_millis()).unwrap_or(u64::MAX);
    let names = [cache_key(&kept.id)];
    let keeping = gateway.account_cache.put(account, &names, kept.record, life_ms);
    if let Err(why) = gateway.with_ledger_timeout("notes", keeping).await {
        log::warn!(event = "cache_write_failed", error:% = why; "reasoning cache write failed");
    }
}

fn cache_key(id: &str) -> String {
    format!("thinking:{id}")
}
