//! The gateways that share a Redis. Each has the first attempts of its calls in its own memory, and
//! polls the questions of the others four times a second: of which attempts they want to know.
//!
//! A gateway answers a question by writing the attempt to the store, if it has it, and then saying
//! that it has seen the question. One that has not polled for a lease has ended.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::clock::monotonic_ms;
use crate::hex::{from_hex, to_hex};
use crate::idempotency::{ATTEMPT_TTL_MS, store_all_attempts, store_attempt};
use crate::idempotency::{AttemptId, FirstAttempts, Fleet, FleetAnswer, ReplyStore};
use crate::ledger::{AccountName, Leases, Unavailable};

const KEYS: [&str; 5] = [
    "tollgate:{:fleet}:members",
    "tollgate:{:fleet}:seen",
    "tollgate:{:fleet}:questions",
    "tollgate:{:fleet}:last",
    "tollgate:{:fleet}:lost",
];
/// A poll returns at most this many questions.
const QUESTIONS_PER_POLL: usize = 256;
/// At most this many questions of all gateways wait for answers.
const QUESTIONS_MAX: usize = 4_096;

/// This process as a member of the fleet.
pub(in crate::store) struct RedisFleet {
    store: Arc<RedisStore>,
    member: String,
    pub(in crate::store) attempts: FirstAttempts,
    leases: Leases,
    reply_store: Arc<dyn ReplyStore>,
    lease_ms: u64,
    state: Mutex<MemberState>,
    /// Held during a poll, so that none is under way when this process leaves.
    polling: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct MemberState {
    /// The last question that this process has answered; `None` before its first poll.
    answered: Option<u64>,
    /// When the last poll that succeeded was sent.
    polled_ms: Option<u64>,
    /// When this process was last found to have been away.
    back_ms: u64,
    /// Whether this process keeps its attempts in the store from now on.
    has_left: bool,
}

impl RedisFleet {
    pub(in crate::store) fn new(
        store: Arc<RedisStore>,
        attempts: FirstAttempts,
        leases: Leases,
        reply_store: Arc<dyn ReplyStore>,
        lease: Duration,
    ) -> RedisFleet {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (member, state) = (uuid::Uuid::now_v7().to_string(), Mutex::default());
        let polling = tokio::sync::Mutex::default();
        RedisFleet { store, member, attempts, leases, reply_store, lease_ms, state, polling }
    }

    /// Says that this process serves, and answers the questions of the others.
    ///
    /// # Errors
    /// The store does not answer. Questions that were not answered come again.
    pub(in crate::store) async fn poll(&self) -> Result<(), Unavailable> {
        loop {
            let _polling = self.polling.lock().await;
            let sent_ms = monotonic_ms();
            let MemberState { answered, has_left, .. } = *self.lock();
            if has_left {
                return Ok(());
            }
            let (mut answered, questions) = self.fetch_questions(answered).await?;
            {
                let mut state = self.lock();
                if state.polled_ms.is_some_and(|before| self.is_long(sent_ms - before)) {
                    state.back_ms = monotonic_ms();
                }
                (state.answered, state.polled_ms) = (Some(answered), Some(sent_ms));
                self.attempts.set_in_use(!state.has_left);
            }
            if questions.is_empty() {
                return Ok(());
            }
            for (number, question) in questions {
                if let Some((account, id)) = parse_question(&question) {
                    self.store_attempt(&account, &id).await?;
                }
                answered = number;
                self.lock().answered = Some(answered);
            }
        }
    }

    /// Keeps new attempts in the store if the last poll was too long ago: the others may take this
    /// process for dead.
    pub(in crate::store) fn note_silence(&self) {
        let state = self.lock();
        if state.polled_ms.is_none_or(|at| monotonic_ms() - at > self.lease_ms / 4) {
            self.attempts.set_in_use(false);
        }
    }

    /// Writes all attempts to the store, and keeps new ones there from now on.
    ///
    /// # Errors
    /// The store does not answer.
    pub(in crate::store) async fn leave(&self) -> Result<(), Unavailable> {
        self.lock().has_left = true;
        self.attempts.set_in_use(false);
        let stores = (&*self.reply_store, &self.leases);
        store_all_attempts(&self.attempts, stores, self.lease_ms, monotonic_ms()).await?;
        let _polling = self.polling.lock().await;
        let mut call = fleet_call();
        call.arg(&self.member);
        self.store.run_script(&call, |s| &s.fleet.leave).await.map(drop)
    }

    async fn store_attempt(
        &self,
        account: &AccountName,
        id: &AttemptId,
    ) -> Result<(), Unavailable> {
        let stores = (&*self.reply_store, &self.leases);
        store_attempt(&self.attempts, (account, id), stores, self.lease_ms, monotonic_ms()).await
    }

    async fn fetch_questions(
        &self,
        answered: Option<u64>,
    ) -> Result<(u64, Vec<(u64, String)>), Unavailable> {
        let mut call = fleet_call();
        call.arg(&self.member).arg(answered.map_or(String::new(), |number| number.to_string()));
        call.arg(self.lease_ms).arg(self.lost_life_ms()).arg(QUESTIONS_PER_POLL);
        let reply = self.store.run_script(&call, |s| &s.fleet.poll).await?;
        let mut parts = reply.iter();
        let number = |text: Option<&String>| text.and_then(|text| text.parse::<u64>().ok());
        let answered = number(parts.next()).ok_or_else(|| unexpected_reply(&reply))?;
        let mut questions = Vec::new();
        while let Some(text) = parts.next() {
            let number = number(Some(text)).ok_or_else(|| unexpected_reply(&reply))?;
            questions.push((number, parts.next().cloned().unwrap_or_default()));
        }
        Ok((answered, questions))
    }

    fn lost_life_ms(&self) -> u64 {
        ATTEMPT_TTL_MS.saturating_add(self.lease_ms)
    }

    /// Whether a process that was silent for so long may be taken for dead.
    fn is_long(&self, silence_ms: u64) -> bool {
        silence_ms > self.lease_ms / 2
    }

    fn lock(&self) -> MutexGuard<'_, MemberState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Fleet for RedisFleet {
    async fn find_attempt(
        &self,
        account: &AccountName,
        id: &AttemptId,
        question: &mut Option<u64>,
    ) -> Result<FleetAnswer, Unavailable> {
        let mut call = fleet_call();
        call.arg(&self.member).arg(question.map_or(String::new(), |number| number.to_string()));
        call.arg(format!("{account} {} {}", id.endpoint, to_hex(&id.content)));
        call.arg(self.lease_ms).arg(self.lost_life_ms()).arg(QUESTIONS_MAX);
        let reply = self.store.run_script(&call, |s| &s.fleet.ask).await?;
        let parts: Vec<&str> = reply.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["busy"] => Ok(FleetAnswer::Busy),
            [number, "waiting", _] => {
                *question = number.parse().ok();
                Ok(FleetAnswer::Waiting)
            }
            [_, "answered", "0"] => Ok(FleetAnswer::AllAnswered),
            [_, "answered", _] => Ok(FleetAnswer::SomeLost),
            _ => Err(unexpected_reply(&reply)),
        }
    }

    fn was_away_since(&self, begun_ms: u64) -> bool {
        let state = self.lock();
        state.back_ms > begun_ms
            || state.polled_ms.is_none_or(|at| self.is_long(monotonic_ms() - at))
    }
}

fn fleet_call() -> ScriptCall {
    let mut call = ScriptCall::default();
    for key in KEYS {
        call.key(key);
    }
    call
}

fn unexpected_reply(reply: &[String]) -> Unavailable {
    Unavailable(format!("unexpected answer: {reply:?}"))
}

/// Parses a question: its number, the account, the endpoint and the digest of the content.
fn parse_question(text: &str) -> Option<(AccountName, AttemptId)> {
    let mut parts = text.split(' ').skip(1);
    let account = AccountName::parse(parts.next()?)?;
    let endpoint = Cow::Owned(parts.next()?.to_owned());
    let content = from_hex(parts.next()?)?.try_into().ok()?;
    Some((account, AttemptId { endpoint, content }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_the_account_the_endpoint_and_the_content() {
        let digits = "0a".repeat(32);
        let (account, id) = parse_question(&format!("7 ada chat {digits}")).expect("a question");
        assert_eq!((account.as_str(), &*id.endpoint, id.content), ("ada", "chat", [10; 32]));
        for bad in ["", "7", "7 ada", "7 ada chat", "7 ada chat 0a", "7 a!a chat 00", "7 ada c zz"]
        {
            assert!(parse_question(bad).is_none(), "{bad}");
        }
    }
}
