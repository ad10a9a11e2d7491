//! Ends of holds that the store may have forgotten. A hold that was charged is remembered for two
//! hours; after that its line in the journal shows that the call was charged. So a script that does
//! not know an old hold changes nothing, and asks for a search of the journal first.

use redis::Value;

use super::keys::AccountKeys;
use super::operations::{operation_call, parse_outcome, reply_strings};
use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::ledger::{Operation, Outcome, Unavailable};

/// The reply of a script that asks for a search.
const SEARCH_FIRST: &str = "search_first";
/// At most this many pages of a journal are searched, of a thousand lines each: about a second of
/// the server's time. The call is then taken for one that was charged.
const PAGES_MAX: u32 = 1_000;

/// At most this many journals are searched at the same time: each page takes a millisecond of the
/// server, which other calls wait for.
pub(super) const JOURNAL_SEARCHES_MAX: usize = 2;

/// What the reply of an operation's script means.
pub(super) enum ScriptAnswer {
    /// The operation has this outcome.
    Outcome(Outcome),
    /// Nothing was done yet. The journal was searched, and this call says what was found.
    SendAgain(ScriptCall),
}

impl RedisStore {
    /// Reads the reply of an operation's script, and searches the journal if it asks for that.
    ///
    /// A charge that is added during the search is not found. Its hold is remembered, so the script
    /// that is sent next finds that.
    pub(super) async fn read_answer(
        &self,
        keys: &AccountKeys,
        op: &Operation,
        reply: &Value,
    ) -> Result<ScriptAnswer, Unavailable> {
        let reply = reply_strings(reply)?;
        if reply.first().is_none_or(|word| word != SEARCH_FIRST) {
            return parse_outcome(&reply).map(ScriptAnswer::Outcome);
        }
        let id = op.hold_id().unwrap_or_default();
        let found = self.find_charge(keys, id).await?;
        if found.is_none() {
            log::error!(
                event = "journal_search_gave_up", request_id = id;
                "journal cannot be searched for a late call; call taken for charged"
            );
        }
        let mut call = operation_call(keys, op);
        // A call that is taken for charged is remembered as one, so that nobody searches again.
        call.arg(found.as_deref().unwrap_or("0"));
        Ok(ScriptAnswer::SendAgain(call))
    }

    /// Searches the journal for the charge of a call, from its end to the first line whose hold may
    /// be forgotten. Returns the charge as digits, or an empty text if there is none; `None` if
    /// the journal is too long, or lacks lines of the last day that are in the archive.
    async fn find_charge(
        &self,
        keys: &AccountKeys,
        id: &str,
    ) -> Result<Option<String>, Unavailable> {
        // The semaphore is never closed.
        let _turn = self.journal_searches.acquire().await.ok();
        let mut left = String::new();
        for _ in 0..PAGES_MAX {
            let mut call = ScriptCall::default();
            call.key(keys.account()).key(keys.journal()).arg(id).arg(&left);
            let call = call.invocation(&self.scripts.money.search);
            let reply = reply_strings(&self.connection().await?.invoke_script(&call).await?)?;
            let words: Vec<&str> = reply.iter().map(String::as_str).collect();
            match *words {
                ["found", charge] => return Ok(Some(charge.to_owned())),
                ["gone"] => return Ok(None),
                ["none"] => return Ok(Some(String::new())),
                ["more", lines] => lines.clone_into(&mut left),
                _ => return Err(Unavailable(format!("unexpected answer: {reply:?}"))),
            }
        }
        Ok(None)
    }
}
