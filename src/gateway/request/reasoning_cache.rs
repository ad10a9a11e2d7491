//! A model's thinking, kept from one call of a tool loop to the next.
//!
//! It is worth a better answer, not money: whatever goes wrong here, the call goes on without.

use std::time::Duration;

use bytes::Bytes;

use crate::dialect::call::ModelCall;
use crate::dialect::translate::request::{RestoredThinking, Translation};
use crate::dialect::translate::thinking::SavedThinking;
use crate::gateway::context::{BodyTransform, PricedCall, ReasoningState, RequestContext};
use crate::gateway::settlement::holds;
use crate::gateway::state::Gateway;
use crate::ledger::AccountName;

/// Tools that take longer than this lose their model's thinking.
const REASONING_TTL: Duration = Duration::from_secs(60 * 60);
/// Turns whose thinking is looked for, at most: longer loops go on without.
const TURNS_MAX: usize = 256;

/// Restores the saved reasoning of the tool loop that a call continues, and extends its hold.
///
/// Looking for it costs the store something, so the least of the call's money is held by now. If
/// the balance lacks what comes in addition, the call goes on without; if it lacks even what the
/// call alone would take, with the least.
pub(crate) async fn restore_reasoning(
    gateway: &Gateway,
    ctx: &mut RequestContext,
    mut translation: Translation,
) {
    let ids = translation.tool_loop_ids();
    let Some(priced) = ctx.admitted().map(|admitted| &mut admitted.priced) else { return };
    let found =
        if ids.len() > TURNS_MAX { None } else { load_reasoning(gateway, priced, &ids).await };
    let restored = found.and_then(|kept| translation.match_saved_thinking(&kept));
    let bytes = restored.as_ref().map_or(0, RestoredThinking::saved_bytes);
    let thinking = match restored {
        Some(restored) if extend_hold(gateway, priced, bytes).await || bytes == 0 => {
            translation.apply_thinking(restored);
            ReasoningState::Restored
        }
        _ => {
            extend_hold(gateway, priced, 0).await;
            ReasoningState::Dropped
        }
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
                event = "note_read_failed", why:% = why;
                "reasoning cache read failed"
            );
        })
        .ok()
}

/// Extends the hold for an input that is `bytes` longer.
async fn extend_hold(gateway: &Gateway, priced: &mut PricedCall, bytes: u64) -> bool {
    let replace_text_bytes = |call: &mut ModelCall, text_bytes: u64| {
        let text = call.chat_text_mut();
        text.map_or(0, |text| std::mem::replace(&mut text.input_size.text_bytes, text_bytes))
    };
    let (terms, call) = (&mut priced.pricing, &mut priced.call);
    let before = replace_text_bytes(call, 0);
    replace_text_bytes(call, before.saturating_add(bytes));
    let covered = match holds::quote_call(&terms.model, call, 0, terms.priced_at) {
        Ok(Some(quote)) => {
            let extended = gateway.extend_hold(&mut priced.funding, quote.wanted).await;
            extended.ok().filter(|held| *held >= quote.least).map(|_| quote.wanted)
        }
        Ok(None) | Err(_) => None,
    };
    let Some(wanted) = covered else {
        replace_text_bytes(call, before);
        return false;
    };
    terms.full_hold = wanted;
    terms.input_tokens = call.estimated_input_tokens();
    true
}

/// Keeps what the next call of the loop will need. It can be found when this returns, so a client
/// that goes on as soon as it has the answer finds it.
pub(crate) async fn save_reasoning(gateway: &Gateway, account: &AccountName, kept: SavedThinking) {
    let life_ms = u64::try_from(REASONING_TTL.as_millis()).unwrap_or(u64::MAX);
    let names = [cache_key(&kept.id)];
    let keeping = gateway.account_cache.put(account, &names, kept.record, life_ms);
    if let Err(why) = gateway.with_ledger_timeout("notes", keeping).await {
        log::warn!(event = "note_store_failed", why:% = why; "reasoning cache write failed");
    }
}

fn cache_key(id: &str) -> String {
    format!("thinking:{id}")
}
