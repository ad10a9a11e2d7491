//! The gateways that share a Redis. Each has the first attempts of its calls in its own memory, and
//! polls the questions of the others four times a second: of which attempts they want to know.
//!
//! A gateway answers a question by writing the attempt to the store, if it has it, and then saying
//! that it has seen the question. One that has not polled for a lease is removed, and retries of
//! its calls go on without it. If it was only away, its next poll tells it that it was removed.
//! What it charges from then on, or while it does not know, is checked first
//! (`outbox::superseded`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::scripts::ScriptCall;
use super::shared_store::RedisStore;
use crate::clock::{monotonic_ms, unix_ms};
use crate::hex::{from_hex, to_hex};
use crate::idempotency::{
    ATTEMPT_TTL_MS, AttemptId, AttemptLookup, AttemptStore, FirstAttempts, Fleet, FleetAnswer,
    ReplyStore, store_all_attempts, store_attempt,
};
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
const QUESTIONS_MAX: usize = 16_384;
/// At most this many questions about an account are asked within [`ASK_WINDOW_MS`].
const ACCOUNT_QUESTIONS_MAX: u32 = 256;
const ASK_WINDOW_MS: u64 = 10_000;
/// At most this many questions are answered at the same time.
const ANSWERS_BATCH: usize = 64;

/// The ends of calls that this process knows, and the store perhaps not yet.
#[async_trait]
pub(in crate::store) trait PendingEnds: Send + Sync {
    /// Waits until the store has all ends of an account that this process knows now.
    ///
    /// # Errors
    /// The store does not take them in time.
    async fn tell_ends(&self, account: &AccountName) -> Result<(), Unavailable>;
}

/// This process as a member of the fleet.
pub(in crate::store) struct RedisFleet {
    store: Arc<RedisStore>,
    member: String,
    pub(in crate::store) attempts: FirstAttempts,
    leases: Leases,
    reply_store: Arc<dyn ReplyStore>,
    lease_ms: u64,
    pending: Arc<dyn PendingEnds>,
    state: Mutex<MemberState>,
    /// Until then nobody takes this process for dead.
    trusted_until_ms: AtomicU64,
    /// When this process last learned that it had been removed, in unix ms.
    removed_at: AtomicI64,
    /// When the present window of questions began, and how many were asked about each account.
    asked: Mutex<(u64, HashMap<AccountName, u32>)>,
    /// Held during a poll, so that none is under way when this process leaves.
    polling: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct MemberState {
    /// The last question that this process has answered; `None` before its first poll.
    answered: Option<u64>,
    /// When the last poll that succeeded was sent.
    polled_ms: Option<u64>,
    /// Since when polls have succeeded without a long pause.
    steady_since_ms: u64,
    /// Whether this process keeps its attempts in the store from now on.
    has_left: bool,
}

/// What a poll returned.
struct Polled {
    answered: u64,
    /// Whether the store had this process as a member before.
    was_member: bool,
    /// The questions that are to be answered, with their numbers.
    questions: Vec<(u64, String)>,
}

impl RedisFleet {
    pub(in crate::store) fn new(
        store: Arc<RedisStore>,
        attempts: FirstAttempts,
        leases: Leases,
        reply_store: Arc<dyn ReplyStore>,
        lease: Duration,
        pending: Arc<dyn PendingEnds>,
    ) -> RedisFleet {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (member, state) = (uuid::Uuid::now_v7().to_string(), Mutex::default());
        RedisFleet {
            store,
            member,
            attempts,
            leases,
            reply_store,
            lease_ms,
            pending,
            state,
            trusted_until_ms: AtomicU64::new(0),
            removed_at: AtomicI64::new(i64::MIN),
            asked: Mutex::default(),
            polling: tokio::sync::Mutex::default(),
        }
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
            let Polled { mut answered, was_member, questions } = self.fetch(answered).await?;
            self.record_poll(sent_ms, answered, was_member);
            if questions.is_empty() {
                return Ok(());
            }
            for few in questions.chunks(ANSWERS_BATCH) {
                let answering = few.iter().map(|(_, question)| self.answer(question));
                join_all(answering).await.into_iter().collect::<Result<(), _>>()?;
                answered = few.last().map_or(answered, |(number, _)| *number);
                self.lock().answered = Some(answered);
            }
        }
    }

    /// Answers a question: writes the attempt to the store if this process has it, or writes that
    /// it has forgotten attempts of the account.
    async fn answer(&self, question: &str) -> Result<(), Unavailable> {
        let Some((account, id)) = parse_question(question) else { return Ok(()) };
        let found = self.attempts.find(&account, &id, monotonic_ms());
        if found == (AttemptLookup::Unknown { forgotten: true }) {
            // Whoever asks looks for the charge in the journal.
            self.pending.tell_ends(&account).await?;
            return self.set_forgotten(&account).await;
        }
        self.store_attempt(&account, &id).await
    }

    async fn set_forgotten(&self, account: &AccountName) -> Result<(), Unavailable> {
        let mut set = redis::cmd("SET");
        set.arg(forgotten_key(account)).arg(1).arg("PX").arg(ATTEMPT_TTL_MS);
        self.store.connection().await?.query(&set).await
    }

    fn record_poll(&self, sent_ms: u64, answered: u64, was_member: bool) {
        let mut state = self.lock();
        if !was_member && state.answered.is_some() {
            self.removed_at.store(unix_ms(), Ordering::SeqCst);
            self.attempts.forget_all();
        }
        if state.polled_ms.is_none_or(|before| sent_ms - before > self.lease_ms / 2) {
            state.steady_since_ms = sent_ms;
        }
        (state.answered, state.polled_ms) = (Some(answered), Some(sent_ms));
        self.trusted_until_ms.store(sent_ms + self.lease_ms / 2, Ordering::SeqCst);
        self.attempts.set_in_use(!state.has_left);
    }

    /// Whether a retry may have been made as a call of its own instead of a call whose hold was
    /// placed at `begun_at` (unix ms), because this process was away. The hold may be younger than
    /// the call.
    pub(in crate::store) fn may_be_superseded(&self, begun_at: i64) -> bool {
        monotonic_ms() > self.trusted_until_ms.load(Ordering::SeqCst)
            || begun_at
                <= self.removed_at.load(Ordering::SeqCst).saturating_add_unsigned(self.lease_ms)
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
        store_all_attempts(&self.attempts, self.attempt_store(), monotonic_ms()).await?;
        let cut = self.attempts.accounts_cut(monotonic_ms());
        for few in cut.chunks(ANSWERS_BATCH) {
            let written = join_all(few.iter().map(|account| self.set_forgotten(account))).await;
            written.into_iter().collect::<Result<(), _>>()?;
        }
        let _polling = self.polling.lock().await;
        let mut call = fleet_call();
        call.arg(&self.member);
        self.store.run_script(&call, |s| &s.fleet.leave).await?;
        // From now on the claims in the store speak for this process, each with its own lease.
        self.trusted_until_ms.store(u64::MAX, Ordering::SeqCst);
        Ok(())
    }

    async fn store_attempt(
        &self,
        account: &AccountName,
        id: &AttemptId,
    ) -> Result<(), Unavailable> {
        store_attempt(&self.attempts, account, id, self.attempt_store(), monotonic_ms()).await
    }

    fn attempt_store(&self) -> AttemptStore<'_> {
        let RedisFleet { reply_store, leases, lease_ms, .. } = self;
        AttemptStore { reply_store: &**reply_store, leases, lease_ms: *lease_ms }
    }

    async fn fetch(&self, answered: Option<u64>) -> Result<Polled, Unavailable> {
        let mut call = fleet_call();
        call.arg(&self.member).arg(answered.map_or(String::new(), |number| number.to_string()));
        call.arg(self.lease_ms).arg(self.lost_life_ms()).arg(QUESTIONS_PER_POLL);
        call.arg(self.steady_flag());
        let reply = self.store.run_script(&call, |s| &s.fleet.poll).await?;
        let mut parts = reply.iter();
        let number = |text: Option<&String>| text.and_then(|text| text.parse::<u64>().ok());
        let answered = number(parts.next()).ok_or_else(|| unexpected_reply(&reply))?;
        let was_member = parts.next().is_some_and(|flag| flag == "1");
        let mut questions = Vec::new();
        while let Some(text) = parts.next() {
            let number = number(Some(text)).ok_or_else(|| unexpected_reply(&reply))?;
            questions.push((number, parts.next().cloned().unwrap_or_default()));
        }
        Ok(Polled { answered, was_member, questions })
    }

    /// Counts a question about an account; `false` if there were too many.
    fn may_ask(&self, account: &AccountName) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = monotonic_ms();
        if now_ms.saturating_sub(asked.0) > ASK_WINDOW_MS {
            *asked = (now_ms, HashMap::new());
        }
        let count = asked.1.entry(account.clone()).or_default();
        *count += 1;
        *count <= ACCOUNT_QUESTIONS_MAX
    }

    fn lost_life_ms(&self) -> u64 {
        ATTEMPT_TTL_MS.saturating_add(self.lease_ms)
    }

    /// Returns '1' if this process has polled for a whole lease, so that a member that has not is
    /// silent, and not the store.
    fn steady_flag(&self) -> u8 {
        let state = self.lock();
        let is_steady =
            state.polled_ms.is_some() && monotonic_ms() - state.steady_since_ms >= self.lease_ms;
        u8::from(is_steady)
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
        if question.is_none() && !self.may_ask(account) {
            return Ok(FleetAnswer::Busy);
        }
        let mut call = fleet_call();
        call.key(forgotten_key(account));
        call.arg(&self.member).arg(question.map_or(String::new(), |number| number.to_string()));
        call.arg(format!("{account} {} {}", id.endpoint, to_hex(&id.content)));
        call.arg(self.lease_ms).arg(self.lost_life_ms()).arg(QUESTIONS_MAX);
        call.arg(self.steady_flag());
        let reply = self.store.run_script(&call, |s| &s.fleet.ask).await?;
        let parts: Vec<&str> = reply.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["busy"] => Ok(FleetAnswer::Busy),
            [number, "waiting", _, _] => {
                *question = number.parse().ok();
                Ok(FleetAnswer::Waiting)
            }
            [_, "answered", "0", "0"] => Ok(FleetAnswer::AllAnswered),
            [_, "answered", "0", _] => Ok(FleetAnswer::SomeForgotten),
            [_, "answered", _, _] => Ok(FleetAnswer::SomeLost),
            _ => Err(unexpected_reply(&reply)),
        }
    }
}

/// Returns the key which says that a gateway has forgotten attempts of an account.
fn forgotten_key(account: &AccountName) -> String {
    format!("tollgate:{{:fleet}}:forgotten:{account}")
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
