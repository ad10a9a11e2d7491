//! The first attempts of calls without an idempotency key, in the memory of the process that serves
//! them.
//!
//! An official client says of each call whether it is the first attempt, and nearly no call is ever
//! attempted again. So the name and the reply of a first attempt stay in memory, and only a retry
//! has them written to the store: see [`promotion`](super::promotion). What is kept is bounded for
//! an account and in all. Of what is forgotten early, the line in the journal has the digest.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::attempt_id::{ATTEMPT_TTL_MS, AttemptId};
use super::attempt_record::{
    AccountAttempts, AttemptLookup, AttemptState, PromotedAttempt, RunningAttempt,
};
use super::promotion::{PendingClaim, Promotion};
use super::reply_store::{IdempotencyKey, ReplyParts};
use crate::fast_map::{FastMap, HashKeys};
use crate::ledger::AccountName;

/// All ended attempts together are remembered up to this many bytes.
const TOTAL_BYTES_MAX: usize = 64 << 20;
/// Above this many bytes, the accounts that use most are cut.
const TOTAL_BYTES_HIGH: usize = TOTAL_BYTES_MAX / 8 * 7;
/// An account that uses fewer bytes than this is not cut because of others.
const ACCOUNT_BYTES_MIN: usize = 64 << 10;
/// The table is split by account into this many shards, each with a lock of its own.
const SHARDS: usize = 64;

/// The first attempts that this process serves or has served.
#[derive(Debug, Clone, Default)]
pub struct FirstAttempts(Arc<AttemptTable>);

type Shard = FastMap<AccountName, AccountAttempts>;

#[derive(Debug)]
struct AttemptTable {
    shards: [Mutex<Shard>; SHARDS],
    hash_keys: HashKeys,
    bytes: AtomicUsize,
    /// Whether new attempts are kept in memory. If not, the store has to keep them.
    is_in_use: AtomicBool,
}

impl Default for AttemptTable {
    fn default() -> AttemptTable {
        AttemptTable {
            shards: std::array::from_fn(|_| Mutex::default()),
            hash_keys: HashKeys::default(),
            bytes: AtomicUsize::new(0),
            is_in_use: AtomicBool::new(false),
        }
    }
}

/// A first attempt in flight. If it is dropped, it is forgotten: the call was not charged.
#[derive(Debug)]
#[must_use = "an attempt that is dropped is forgotten"]
pub(crate) struct FirstAttempt {
    attempts: FirstAttempts,
    account: AccountName,
    id: AttemptId,
    /// The id of the call.
    owner: Box<str>,
    serial: u64,
    is_ended: bool,
}

impl FirstAttempts {
    /// Sets whether new attempts are kept in memory.
    pub fn set_in_use(&self, is_in_use: bool) {
        self.0.is_in_use.store(is_in_use, Ordering::SeqCst);
    }

    /// Whether new attempts are kept in memory.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.0.is_in_use.load(Ordering::SeqCst)
    }

    /// Returns how many bytes the ended attempts use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Begins an attempt of the call `owner`. A retry finds it instead of earlier ones with the
    /// same content. `None` if the store has to keep the attempt.
    pub(crate) fn begin(
        &self,
        account: &AccountName,
        id: AttemptId,
        owner: &str,
    ) -> Option<FirstAttempt> {
        let mut shard = self.lock(account);
        // Looked at under the lock: from the moment at which all attempts were written to the
        // store, none is begun in memory.
        if !self.is_in_use() {
            return None;
        }
        let attempts = match shard.get_mut(account) {
            Some(attempts) => attempts,
            None => shard.entry(account.clone()).or_default(),
        };
        let (serial, freed) = attempts.begin(id.clone(), owner);
        self.0.bytes.fetch_sub(freed, Ordering::Relaxed);
        drop(shard);
        let (attempts, account) = (self.clone(), account.clone());
        let owner = owner.into();
        Some(FirstAttempt { attempts, account, id, owner, serial, is_ended: false })
    }

    /// Looks up the first attempt of a call. `now_ms` is the time by a clock that only goes
    /// forward.
    #[must_use]
    pub(crate) fn find(&self, account: &AccountName, id: &AttemptId, now_ms: u64) -> AttemptLookup {
        let shard = self.lock(account);
        shard.get(account).map_or(AttemptLookup::Unknown { forgotten: false }, |attempts| {
            attempts.find(id, now_ms)
        })
    }

    /// Changes what is known of a running attempt.
    pub(super) fn update_running(
        &self,
        account: &AccountName,
        id: &AttemptId,
        serial: u64,
        update: impl FnOnce(&mut RunningAttempt),
    ) {
        let mut shard = self.lock(account);
        let attempts = shard.get_mut(account);
        if let Some(running) = attempts.and_then(|attempts| attempts.running_mut(id, serial)) {
            update(running);
        }
    }

    /// Returns what the store needs so that every process finds an attempt; `None` if this process
    /// does not have the attempt, or the store has its claim.
    pub(crate) fn promote(
        &self,
        account: &AccountName,
        id: &AttemptId,
        now_ms: u64,
    ) -> Option<Promotion> {
        let mut shard = self.lock(account);
        let (serial, attempt) = shard.get_mut(account)?.get_mut(id)?;
        let owner = attempt.owner.clone();
        match &mut attempt.state {
            AttemptState::Running(running) => match &running.promoted {
                None => {
                    let (sender, claimed) = watch::channel(());
                    running.promoted = Some(PromotedAttempt { claimed, lease: None });
                    Some(Promotion::Running(PendingClaim {
                        key: id.key(owner, ATTEMPT_TTL_MS),
                        attempts: self.clone(),
                        account: account.clone(),
                        id: id.clone(),
                        serial,
                        is_made: false,
                        claimed: Some(sender),
                    }))
                }
                Some(promoted) if promoted.lease.is_some() => None,
                Some(promoted) => Some(Promotion::BeingClaimed(promoted.claimed.clone())),
            },
            AttemptState::Ended(ended) if ended.expires_ms <= now_ms => None,
            AttemptState::Ended(ended) => {
                let key = id.key(owner, ended.expires_ms - now_ms);
                Some(Promotion::Ended(key, ended.reply.clone()))
            }
        }
    }

    /// Returns the accounts of which attempts were forgotten to make room.
    #[must_use]
    pub(crate) fn accounts_cut(&self, now_ms: u64) -> Vec<AccountName> {
        let cut = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            let cut = shard.iter().filter(|(_, attempts)| attempts.was_cut(now_ms));
            cut.map(|(account, _)| account.clone()).collect::<Vec<_>>()
        };
        self.0.shards.iter().flat_map(cut).collect()
    }

    /// Returns all attempts that are remembered: first those that run, then the latest to end.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<(AccountName, AttemptId)> {
        let (mut running, mut ended) = (Vec::new(), Vec::new());
        for shard in &self.0.shards {
            for (account, attempts) in &*lock(shard) {
                running.extend(attempts.running_ids().map(|id| (account.clone(), id)));
                ended.extend(attempts.ended_ids().map(|(at, id)| (at, account.clone(), id)));
            }
        }
        ended.sort_by_key(|(expires_ms, ..)| std::cmp::Reverse(*expires_ms));
        running.extend(ended.into_iter().map(|(_, account, id)| (account, id)));
        running
    }

    /// Forgets all attempts: others took this process for dead, so some may have been made again.
    pub(crate) fn forget_all(&self) {
        for shard in &self.0.shards {
            let mut shard = lock(shard);
            let freed = shard.values().map(AccountAttempts::bytes).sum();
            shard.clear();
            self.0.bytes.fetch_sub(freed, Ordering::Relaxed);
        }
    }

    /// Forgets what has expired, and cuts the accounts that use most if all use too much.
    pub fn purge(&self, now_ms: u64) {
        for shard in &self.0.shards {
            let (mut shard, mut freed) = (lock(shard), 0);
            shard.retain(|_, attempts| {
                freed += attempts.purge(now_ms);
                !attempts.is_idle(now_ms)
            });
            self.0.bytes.fetch_sub(freed, Ordering::Relaxed);
        }
        while self.bytes() > TOTAL_BYTES_HIGH && self.cut_largest(now_ms) {}
    }

    /// Forgets the older half of what the account with the most bytes has; `false` if no account
    /// has much.
    fn cut_largest(&self, now_ms: u64) -> bool {
        let sizes = self.0.shards.iter().filter_map(|shard| {
            let shard = lock(shard);
            let largest = shard.iter().max_by_key(|(_, attempts)| attempts.bytes());
            largest.map(|(account, attempts)| (attempts.bytes(), account.clone()))
        });
        let Some((bytes, account)) = sizes.max_by_key(|(bytes, _)| *bytes) else { return false };
        if bytes <= ACCOUNT_BYTES_MIN {
            return false;
        }
        let mut shard = self.lock(&account);
        let Some(attempts) = shard.get_mut(&account) else { return false };
        let freed = attempts.shrink_to(bytes / 2, now_ms);
        self.0.bytes.fetch_sub(freed, Ordering::Relaxed);
        freed > 0
    }

    fn lock(&self, account: &AccountName) -> MutexGuard<'_, Shard> {
        let hash = self.0.hash_keys.hash_one(account);
        lock(&self.0.shards[usize::try_from(hash % SHARDS as u64).unwrap_or_default()])
    }
}

impl FirstAttempt {
    /// Ends the attempt: the call was charged, and this is its reply if it is to be kept. If the
    /// store has the attempt, returns what has to be written there.
    pub(crate) fn complete(
        mut self,
        reply: Option<ReplyParts>,
        now_ms: u64,
    ) -> Option<(PromotedAttempt, Option<ReplyParts>)> {
        self.is_ended = true;
        let table = &self.attempts.0;
        let room = TOTAL_BYTES_MAX.saturating_sub(table.bytes.load(Ordering::Relaxed));
        let mut shard = self.attempts.lock(&self.account);
        let attempts = shard.get_mut(&self.account)?;
        let before = attempts.bytes();
        let promoted = attempts.complete(&self.id, self.serial, reply, room, now_ms);
        let after = attempts.bytes();
        table.bytes.fetch_add(after.saturating_sub(before), Ordering::Relaxed);
        table.bytes.fetch_sub(before.saturating_sub(after), Ordering::Relaxed);
        promoted
    }

    /// Ends the attempt: the call was not charged, and its retry is a new call. Returns the part of
    /// the attempt that is in the store, if the store has it.
    pub(crate) fn release(mut self) -> Option<PromotedAttempt> {
        self.is_ended = true;
        self.forget()
    }

    /// Returns the key of the attempt in the store.
    pub(crate) fn key(&self) -> IdempotencyKey {
        self.id.key(self.owner.to_string(), ATTEMPT_TTL_MS)
    }

    /// Returns a function that makes the key of [`FirstAttempt::key`] after the attempt has ended.
    /// Most attempts are not in the store and need no key.
    pub(crate) fn key_later(&self) -> impl FnOnce() -> IdempotencyKey + use<> {
        let (id, owner) = (self.id.clone(), self.owner.clone());
        move || id.key(owner.to_string(), ATTEMPT_TTL_MS)
    }

    /// What the attempts of the call have in common.
    pub(crate) fn id(&self) -> &AttemptId {
        &self.id
    }

    fn forget(&self) -> Option<PromotedAttempt> {
        let mut shard = self.attempts.lock(&self.account);
        let attempts = shard.get_mut(&self.account)?;
        let promoted = attempts.release(&self.id, self.serial);
        if attempts.is_unused() {
            shard.remove(&self.account);
        }
        promoted
    }
}

impl Drop for FirstAttempt {
    fn drop(&mut self) {
        if !self.is_ended {
            drop(self.forget());
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::idempotency::ReplyHead;

    const NOW: u64 = 1_000;

    fn in_use() -> FirstAttempts {
        let attempts = FirstAttempts::default();
        attempts.set_in_use(true);
        attempts
    }

    fn account(name: &str) -> AccountName {
        AccountName::parse(name).expect("a name")
    }

    fn id(number: u8) -> AttemptId {
        AttemptId { endpoint: "chat".into(), content: [number; 32] }
    }

    fn reply(bytes: usize) -> ReplyParts {
        let (head, body) = (ReplyHead::new(200, Vec::new()), Bytes::from(vec![b'x'; bytes]));
        ReplyParts { head, body }
    }

    fn begin(attempts: &FirstAttempts, number: u8, owner: &str) -> FirstAttempt {
        attempts.begin(&account("ada"), id(number), owner).expect("it is in use")
    }

    fn owner_of(attempts: &FirstAttempts, number: u8, now_ms: u64) -> Result<String, &'static str> {
        match attempts.find(&account("ada"), &id(number), now_ms) {
            AttemptLookup::Replied(reply) => Ok(reply.owner),
            AttemptLookup::Running => Err("running"),
            AttemptLookup::ReplyNotStored => Err("not stored"),
            AttemptLookup::Unknown { forgotten: false } => Err("unknown"),
            AttemptLookup::Unknown { forgotten: true } => Err("forgotten"),
        }
    }

    #[test]
    fn of_two_samples_the_reply_of_the_later_one_is_found() {
        let attempts = in_use();
        let (first, second) = (begin(&attempts, 1, "first"), begin(&attempts, 1, "second"));
        assert!(first.complete(Some(reply(5)), NOW).is_none());
        assert_eq!(owner_of(&attempts, 1, NOW), Err("running"));
        assert!(second.complete(Some(reply(7)), NOW).is_none());
        assert_eq!(owner_of(&attempts, 1, NOW), Ok("second".to_owned()));
        assert_eq!(owner_of(&attempts, 2, NOW), Err("unknown"));
        let other = attempts.find(&account("bob"), &id(1), NOW);
        assert_eq!(other, AttemptLookup::Unknown { forgotten: false });
    }

    #[test]
    fn what_was_not_charged_is_forgotten_and_so_is_what_has_expired() {
        let attempts = in_use();
        drop(begin(&attempts, 1, "dropped"));
        assert!(begin(&attempts, 2, "released").release().is_none());
        assert!(begin(&attempts, 3, "kept").complete(None, NOW).is_none());
        let found = [1, 2, 3].map(|number| owner_of(&attempts, number, NOW));
        assert_eq!(found, [Err("unknown"), Err("unknown"), Err("not stored")]);
        assert_eq!(owner_of(&attempts, 3, NOW + ATTEMPT_TTL_MS), Err("unknown"));
        attempts.purge(NOW + ATTEMPT_TTL_MS);
        assert_eq!((attempts.bytes(), attempts.all().len()), (0, 0));
    }

    #[test]
    fn an_attempt_that_began_when_all_were_written_to_the_store_is_not_in_memory() {
        let attempts = in_use();
        let running = begin(&attempts, 1, "a");
        attempts.set_in_use(false);
        assert!(attempts.begin(&account("ada"), id(2), "b").is_none());
        assert!(running.complete(Some(reply(1)), NOW).is_none(), "it ends where it began");
        assert_eq!(owner_of(&attempts, 1, NOW), Ok("a".to_owned()));
    }

    #[test]
    fn what_the_store_has_is_ended_there_as_well() {
        let (attempts, ada) = (in_use(), account("ada"));
        let attempt = begin(&attempts, 1, "a");
        let Some(Promotion::Running(claim)) = attempts.promote(&ada, &id(1), NOW) else {
            panic!("it runs");
        };
        assert_eq!((&claim.key, &*claim.key.owner), (&attempt.key(), "a"));
        let waiting = attempts.promote(&ada, &id(1), NOW);
        assert!(matches!(waiting, Some(Promotion::BeingClaimed(_))), "{waiting:?}");
        drop(claim);
        let Some(Promotion::Running(claim)) = attempts.promote(&ada, &id(1), NOW) else {
            panic!("it failed, so it is tried again");
        };
        let leases = crate::ledger::Leases::default();
        claim.set_made(leases.keep_alive(attempt.key().lease_entry(&ada)));
        assert!(attempts.promote(&ada, &id(1), NOW).is_none(), "the store has the claim");
        let (promoted, kept) = attempt.complete(Some(reply(3)), NOW).expect("the store has it");
        assert_eq!((kept, promoted.lease.is_some()), (Some(reply(3)), true));
        assert!(attempts.promote(&ada, &id(1), NOW).is_some(), "the store may have lost it");
        let ended = begin(&attempts, 2, "b").complete(Some(reply(4)), NOW);
        assert!(ended.is_none());
        let Some(Promotion::Ended(key, kept)) = attempts.promote(&ada, &id(2), NOW + 5) else {
            panic!("it has ended");
        };
        assert_eq!((key.life_ms, kept), (ATTEMPT_TTL_MS - 5, Some(reply(4))));
        assert!(attempts.promote(&ada, &id(2), NOW + ATTEMPT_TTL_MS).is_none());
    }

    #[test]
    fn an_account_that_keeps_much_loses_its_oldest_and_knows_it() {
        let attempts = in_use();
        let most = 16 << 20;
        for number in 0..17 {
            drop(
                begin(&attempts, number, "a")
                    .complete(Some(reply(1 << 20)), NOW + u64::from(number)),
            );
            assert!(attempts.bytes() <= most, "{}", attempts.bytes());
        }
        assert_eq!(owner_of(&attempts, 0, NOW + 20), Err("forgotten"));
        assert_eq!(owner_of(&attempts, 16, NOW + 20), Ok("a".to_owned()));
        assert_eq!(owner_of(&attempts, 99, NOW + 20), Err("forgotten"), "it cannot be told");
        assert_eq!(attempts.accounts_cut(NOW + 20), [account("ada")]);
        assert_eq!(owner_of(&attempts, 99, NOW + ATTEMPT_TTL_MS + 17), Err("unknown"));
    }

    #[test]
    fn accounts_that_keep_much_make_room_for_those_that_keep_little() {
        let attempts = in_use();
        let keep = |name: &str, number: u8, bytes: usize| {
            let attempt = attempts.begin(&account(name), id(number), "a").expect("in use");
            drop(attempt.complete(Some(reply(bytes)), NOW));
        };
        for number in 0..15 {
            ["a", "b", "c", "d", "e"].into_iter().for_each(|name| keep(name, number, 1 << 20));
        }
        assert!(attempts.bytes() <= TOTAL_BYTES_MAX, "{}", attempts.bytes());
        attempts.purge(NOW);
        assert!(attempts.bytes() <= TOTAL_BYTES_HIGH, "{}", attempts.bytes());
        keep("small", 1, 1_000);
        let found = attempts.find(&account("small"), &id(1), NOW);
        assert!(matches!(found, AttemptLookup::Replied(_)), "{found:?}");
    }

    proptest! {
        /// Each step begins, ends or releases an attempt, lets time pass, or purges.
        #[test]
        fn what_is_used_is_what_is_kept(
            steps in proptest::collection::vec((0_u8..6, 0_u8..5, 0_usize..3_000_000), 0..60),
        ) {
            let (attempts, mut now, mut running) = (in_use(), NOW, Vec::new());
            for (kind, number, size) in steps {
                match kind {
                    0 | 1 => running.push(begin(&attempts, number, "a")),
                    2 | 3 if !running.is_empty() => {
                        drop(running.swap_remove(0).complete(Some(reply(size)), now));
                    }
                    4 => drop(running.pop().map(FirstAttempt::release)),
                    5 => {
                        now += size as u64;
                        attempts.purge(now);
                    }
                    _ => {}
                }
                let used: usize = attempts.0.shards.iter().map(|shard| {
                    lock(shard).values().map(AccountAttempts::bytes).sum::<usize>()
                }).sum();
                prop_assert_eq!(attempts.bytes(), used);
                prop_assert!(used <= 16 << 20);
            }
            drop(running);
            attempts.purge(u64::MAX);
            prop_assert_eq!(attempts.bytes(), 0);
            let is_empty = |shard: &Mutex<Shard>| lock(shard).is_empty();
            prop_assert!(attempts.0.shards.iter().all(is_empty), "nothing stays");
        }
    }
}
