//! A model's thinking, kept from one call of a tool loop to the next.
//!
//! It is worth a better answer, not money: whatever goes wrong here, the call goes on without.

use std::time::Duration;

use super::Gateway;
use crate::dialect::translate::request::Translation;
use crate::dialect::translate::thinking::Kept;
use crate::ledger::AccountName;

/// Tools that take longer than this lose their model's thinking.
const LIFE: Duration = Duration::from_secs(60 * 60);
/// Turns whose thinking is looked for, at most: longer loops go on without.
const TURNS_MAX: usize = 256;

/// What became of the thinking that belongs to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// All of it was put back.
    Restored,
    /// Some was not to be had, or the client changed what it belongs to; none was put back.
    Dropped,
}

impl Thinking {
    /// The value of the header that tells.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Thinking::Restored => "restored",
            Thinking::Dropped => "dropped",
        }
    }
}

/// Puts back what was kept, if the call ends in the results of tools.
pub(super) async fn restore(
    gateway: &Gateway,
    account: &AccountName,
    translation: &mut Translation,
) -> Option<Thinking> {
    let ids = translation.loop_ids();
    if ids.is_empty() {
        return None;
    }
    if ids.len() > TURNS_MAX {
        return Some(Thinking::Dropped);
    }
    let names: Vec<String> = ids.iter().map(|id| name(id)).collect();
    let found = gateway.in_time("notes", gateway.notes.find(account, &names)).await;
    let restored = match found {
        Ok(kept) => translation.restore(&kept),
        Err(why) => {
            log::warn!(why:% = why; "thinking is not found");
            false
        }
    };
    Some(if restored { Thinking::Restored } else { Thinking::Dropped })
}

/// Keeps what the next call of the loop will need. It can be found when this returns, so a client
/// that goes on as soon as it has the answer finds it.
pub(super) async fn keep(gateway: &Gateway, account: &AccountName, kept: Kept) {
    let life_ms = u64::try_from(LIFE.as_millis()).unwrap_or(u64::MAX);
    let name = name(&kept.id);
    let keeping = gateway.notes.keep(account, &name, kept.record, life_ms);
    if let Err(why) = gateway.in_time("notes", keeping).await {
        log::warn!(why:% = why; "thinking is not kept");
    }
}

fn name(id: &str) -> String {
    format!("thinking:{id}")
}
