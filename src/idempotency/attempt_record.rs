//! The first attempts of one account, and what is remembered of each.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::collections::VecDeque;

use tokio::sync::watch;

use super::attempt_id::{ATTEMPT_TTL_MS, AttemptId};
use super::reply_store::{ReplyParts, StoredReply};
use crate::fast_map::FastMap;
use crate::ledger::Lease;

/// The ended attempts of an account are remembered up to this many bytes.
const ACCOUNT_BYTES_MAX: usize = 16 << 20;

/// This many ends of attempts that were begun again are passed over later.
const STALE_ENDS_MAX: usize = 64;
/// What an ended attempt uses beside its reply, in bytes, about: the maps, the ids, the reply's
/// head.
const ATTEMPT_BYTES: usize = 384;

/// What is known of the first attempt of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AttemptLookup {
    /// This process does not know the call.
    Unknown {
        /// Whether the process may have known it: it has forgotten attempts of the account within
        /// the last ten minutes.
        forgotten: bool,
    },
    /// The call runs.
    Running,
    /// The call has ended with this reply.
    Replied(StoredReply),
    /// The call has ended and was paid for, but its reply is not kept.
    ReplyNotStored,
}

/// A first attempt that the store has as well. Its end must be written there, too, as soon as the
/// claim was made, which is when the receiver closes.
#[derive(Debug)]
pub(crate) struct PromotedAttempt {
    pub(super) claimed: watch::Receiver<()>,
    /// Renews the claim in the store, once it was made.
    pub(super) lease: Option<Lease>,
}

impl PromotedAttempt {
    /// Waits until the claim in the store was made, or could not be made. Returns what renews it.
    pub(crate) async fn await_claim(mut self) -> Option<Lease> {
        // The channel closes without a message.
        let _ = self.claimed.changed().await;
        self.lease
    }
}

/// The first attempts of one account.
#[derive(Debug, Default)]
pub(super) struct AccountAttempts {
    attempts: FastMap<AttemptId, (u64, Attempt)>,
    /// The ended attempts, in the order of their ends. One that was begun again has another serial
    /// number in `attempts`, and is skipped.
    ended: VecDeque<(u64, AttemptId, u64)>,
    bytes: usize,
    next_serial: u64,
    /// Until when an attempt may be missing that was forgotten early, in ms.
    forgotten_until_ms: u64,
}

/// An attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The id of the call.
    pub(super) owner: String,
    pub(super) state: AttemptState,
}

/// The states of an attempt.
#[derive(Debug)]
pub(super) enum AttemptState {
    Running(RunningAttempt),
    Ended(EndedAttempt),
}

/// An attempt that runs.
#[derive(Debug, Default)]
pub(super) struct RunningAttempt {
    /// Set if the store has the attempt as well, or is being given it.
    pub(super) promoted: Option<PromotedAttempt>,
}

/// An attempt that was charged.
#[derive(Debug)]
pub(super) struct EndedAttempt {
    pub(super) expires_ms: u64,
    pub(super) reply: Option<ReplyParts>,
    bytes: usize,
}

impl AccountAttempts {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins an attempt. Returns its serial number, and how many bytes of an earlier one were
    /// freed.
    pub(super) fn begin(&mut self, id: AttemptId, owner: &str) -> (u64, usize) {
        self.next_serial += 1;
        let serial = self.next_serial;
        let attempt = Attempt {
            owner: owner.to_owned(),
            state: AttemptState::Running(RunningAttempt::default()),
        };
        let freed = self.attempts.insert(id, (serial, attempt)).map_or(0, |(_, old)| old.bytes());
        self.bytes -= freed;
        (serial, freed)
    }

    pub(super) fn find(&self, id: &AttemptId, now_ms: u64) -> AttemptLookup {
        let unknown = AttemptLookup::Unknown { forgotten: self.was_cut(now_ms) };
        let Some((_, Attempt { owner, state })) = self.attempts.get(id) else { return unknown };
        match state {
            AttemptState::Running(_) => AttemptLookup::Running,
            AttemptState::Ended(ended) if ended.expires_ms <= now_ms => unknown,
            AttemptState::Ended(EndedAttempt { reply: None, .. }) => AttemptLookup::ReplyNotStored,
            AttemptState::Ended(EndedAttempt { reply: Some(reply), .. }) => {
                AttemptLookup::Replied(StoredReply {
                    owner: owner.clone(),
                    head: reply.head.clone(),
                    bytes: reply.body.len() as u64,
                    body: reply.head.external_body.is_none().then(|| reply.body.clone()),
                })
            }
        }
    }

    pub(super) fn get_mut(&mut self, id: &AttemptId) -> Option<(u64, &mut Attempt)> {
        self.attempts.get_mut(id).map(|(serial, attempt)| (*serial, attempt))
    }

    pub(super) fn running_mut(
        &mut self,
        id: &AttemptId,
        serial: u64,
    ) -> Option<&mut RunningAttempt> {
        match self.attempts.get_mut(id) {
            Some((now, Attempt { state: AttemptState::Running(running), .. }))
                if *now == serial =>
            {
                Some(running)
            }
            _ => None,
        }
    }

    /// Ends a charged attempt, of which the reply is kept if it fits into `room` bytes. An attempt
    /// that another one has replaced changes nothing. If the store has the attempt, returns what
    /// has to be written there.
    pub(super) fn complete(
        &mut self,
        id: &AttemptId,
        serial: u64,
        reply: Option<ReplyParts>,
        room: usize,
        now_ms: u64,
    ) -> Option<(PromotedAttempt, Option<ReplyParts>)> {
        let promoted = self.running_mut(id, serial)?.promoted.take();
        let promoted = promoted.map(|promoted| (promoted, reply.clone()));
        let wanted = ATTEMPT_BYTES + reply.as_ref().map_or(0, |reply| reply.body.len());
        let max = ACCOUNT_BYTES_MAX.min(self.bytes.saturating_add(room));
        self.shrink_to(max.saturating_sub(wanted), now_ms);
        let (reply, bytes) =
            if self.bytes + wanted <= max { (reply, wanted) } else { (None, ATTEMPT_BYTES) };
        if self.bytes + bytes > max {
            self.attempts.remove(id);
            self.forgotten_until_ms = now_ms.saturating_add(ATTEMPT_TTL_MS);
            return promoted;
        }
        let expires_ms = now_ms.saturating_add(ATTEMPT_TTL_MS);
        if let Some((_, attempt)) = self.attempts.get_mut(id) {
            attempt.state = AttemptState::Ended(EndedAttempt { expires_ms, reply, bytes });
            self.bytes += bytes;
            self.ended.push_back((expires_ms, id.clone(), serial));
        }
        if self.ended.len() > 2 * self.attempts.len() + STALE_ENDS_MAX {
            let AccountAttempts { ended, attempts, .. } = self;
            ended.retain(|(_, id, serial)| attempts.get(id).is_some_and(|(now, _)| now == serial));
        }
        promoted
    }

    /// Forgets an attempt that was not charged.
    pub(super) fn release(&mut self, id: &AttemptId, serial: u64) -> Option<PromotedAttempt> {
        let promoted = self.running_mut(id, serial)?.promoted.take();
        self.attempts.remove(id);
        promoted
    }

    /// Forgets ended attempts, the oldest first, until at most `bytes` bytes are used. Returns how
    /// many bytes were freed.
    pub(super) fn shrink_to(&mut self, bytes: usize, now_ms: u64) -> usize {
        let before = self.bytes;
        while self.bytes > bytes {
            let Some((expires_ms, id, serial)) = self.ended.pop_front() else { break };
            if self.remove_ended(&id, serial) && expires_ms > now_ms {
                self.forgotten_until_ms = self.forgotten_until_ms.max(expires_ms);
            }
        }
        before - self.bytes
    }

    /// Forgets what has expired. Returns how many bytes were freed.
    pub(super) fn purge(&mut self, now_ms: u64) -> usize {
        let before = self.bytes;
        while self.ended.front().is_some_and(|(expires_ms, ..)| *expires_ms <= now_ms) {
            let Some((_, id, serial)) = self.ended.pop_front() else { break };
            self.remove_ended(&id, serial);
        }
        before - self.bytes
    }

    fn remove_ended(&mut self, id: &AttemptId, serial: u64) -> bool {
        if self.attempts.get(id).is_none_or(|(now, _)| *now != serial) {
            return false;
        }
        let removed = self.attempts.remove(id);
        self.bytes -= removed.map_or(0, |(_, attempt)| attempt.bytes());
        true
    }

    /// Whether attempts were forgotten to make room.
    pub(super) fn was_cut(&self, now_ms: u64) -> bool {
        now_ms < self.forgotten_until_ms
    }

    /// Whether nothing is remembered of the account, not even that something was forgotten.
    pub(super) fn is_idle(&self, now_ms: u64) -> bool {
        self.attempts.is_empty() && self.ended.is_empty() && self.forgotten_until_ms <= now_ms
    }

    /// Whether nothing was ever remembered of the account.
    pub(super) fn is_unused(&self) -> bool {
        self.is_idle(0)
    }

    pub(super) fn running_ids(&self) -> impl Iterator<Item = AttemptId> {
        let is_running =
            |(_, attempt): &(u64, Attempt)| matches!(attempt.state, AttemptState::Running(_));
        self.attempts.iter().filter(move |(_, entry)| is_running(entry)).map(|(id, _)| id.clone())
    }

    /// Returns the ended attempts, and when each expires.
    pub(super) fn ended_ids(&self) -> impl Iterator<Item = (u64, AttemptId)> {
        self.attempts.iter().filter_map(|(id, (_, attempt))| match &attempt.state {
            AttemptState::Ended(ended) => Some((ended.expires_ms, id.clone())),
            AttemptState::Running(_) => None,
        })
    }
}

impl Attempt {
    fn bytes(&self) -> usize {
        match &self.state {
            AttemptState::Running(_) => 0,
            AttemptState::Ended(ended) => ended.bytes,
        }
    }
}
