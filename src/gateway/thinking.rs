//! A model's thinking, kept from one call of a tool loop to the next.
//!
//! It is worth a better answer, not money: whatever goes wrong here, the call goes on without.

use std::time::Duration;

use bytes::Bytes;

use super::exchange::{AdmittedCall, BodyTransform, RequestContext};
use super::{Gateway, funds};
use crate::dialect::call::ModelCall;
use crate::dialect::translate::request::{RestoredThinking, Translation};
use crate::dialect::translate::thinking::SavedThinking;
use crate::ledger::AccountName;

/// Tools that take longer than this lose their model's thinking.
const LIFE: Duration = Duration::from_secs(60 * 60);
/// Turns whose thinking is looked for, at most: longer loops go on without.
const TURNS_MAX: usize = 256;

/// What became of the thinking that belongs to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningState {
    /// All of it was put back.
    Restored,
    /// Some was not to be had, or the client changed what it belongs to; none was put back.
    Dropped,
}

impl ReasoningState {
    /// The value of the header that tells.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReasoningState::Restored => "restored",
            ReasoningState::Dropped => "dropped",
        }
    }
}

/// Puts back what was kept of the loop that an admitted call continues, and holds what it needs.
///
/// Looking for it costs the store something, so the least of the call's money is held by now. If
/// the balance lacks what comes in addition, the call goes on without; if it lacks even what the
/// call alone would take, with the least.
pub(super) async fn restore(
    gateway: &Gateway,
    exchange: &mut RequestContext,
    mut translation: Translation,
) {
    let ids = translation.tool_loop_ids();
    let Some(admitted) = exchange.admitted() else { return };
    let found = if ids.len() > TURNS_MAX { None } else { find(gateway, admitted, &ids).await };
    let restored = found.and_then(|kept| translation.match_saved_thinking(&kept));
    let bytes = restored.as_ref().map_or(0, RestoredThinking::saved_bytes);
    let thinking = match restored {
        Some(restored) if afford(gateway, admitted, bytes).await || bytes == 0 => {
            translation.apply_thinking(restored);
            ReasoningState::Restored
        }
        _ => {
            afford(gateway, admitted, 0).await;
            ReasoningState::Dropped
        }
    };
    admitted.way =
        BodyTransform::Translated { body: translation.build_call(), thinking: Some(thinking) };
}

async fn find(
    gateway: &Gateway,
    admitted: &AdmittedCall,
    ids: &[String],
) -> Option<Vec<Option<Bytes>>> {
    let names: Vec<String> = ids.iter().map(|id| name(id)).collect();
    let finding = gateway.notes.get_many(admitted.funds.account()?, &names);
    let found = gateway.in_time("notes", finding).await;
    found
        .inspect_err(|why| {
            log::warn!(
                event = "note_read_failed", why:% = why;
                "thinking is not found"
            );
        })
        .ok()
}

/// Holds money for an input that is so many bytes longer.
async fn afford(gateway: &Gateway, admitted: &mut AdmittedCall, bytes: u64) -> bool {
    let longer = |call: &mut ModelCall, text_bytes: u64| {
        let text = call.chat_text_mut();
        text.map_or(0, |text| std::mem::replace(&mut text.input_size.text_bytes, text_bytes))
    };
    let (terms, call) = (&mut admitted.terms, &mut admitted.call);
    let before = longer(call, 0);
    longer(call, before.saturating_add(bytes));
    let covered = match funds::quote(&terms.model, call, 0, terms.at) {
        Ok(Some(quote)) => {
            let extended = gateway.extend(&mut admitted.funds, quote.wanted).await;
            extended.ok().filter(|held| *held >= quote.least).map(|_| quote.wanted)
        }
        Ok(None) | Err(_) => None,
    };
    let Some(wanted) = covered else {
        longer(call, before);
        return false;
    };
    terms.wanted = wanted;
    terms.input_tokens = call.estimated_input_tokens();
    true
}

/// Keeps what the next call of the loop will need. It can be found when this returns, so a client
/// that goes on as soon as it has the answer finds it.
pub(super) async fn keep(gateway: &Gateway, account: &AccountName, kept: SavedThinking) {
    let life_ms = u64::try_from(LIFE.as_millis()).unwrap_or(u64::MAX);
    let names = [name(&kept.id)];
    let keeping = gateway.notes.put(account, &names, kept.record, life_ms);
    if let Err(why) = gateway.in_time("notes", keeping).await {
        log::warn!(event = "note_store_failed", why:% = why; "thinking is not kept");
    }
}

fn name(id: &str) -> String {
    format!("thinking:{id}")
}
