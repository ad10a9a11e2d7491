//! The accounts of which this process makes holds in memory, and those that have something to tell.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::busy_account::AccountAllotments;
use crate::clock::boottime_ms;
use crate::failpoints::failpoint;
use crate::fast_map::FastMap;
use crate::ledger::prepaid::local::LocalAllotment;
use crate::ledger::prepaid::local::holds::{LocalAnswer, NumberedEnd};
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::{AccountName, KeyId, Leases, RateAsk, RateId, RateReading, Unavailable};
use crate::money::Money;
use crate::store::outbox::EndLog;
use crate::store::redis::PendingEnds;

/// At most this many accounts are watched. The holds of all others are placed in the store.
const ACCOUNTS_MAX: usize = 100_000;
/// A busy account of which nothing is lent asks again after this time, in ms.
const TIGHT_REFRESH_MS: i64 = 100;
/// Who waits for the store to answer looks this often.
pub(super) const ANSWER_POLL: Duration = Duration::from_millis(2);
/// Who needs all ends in the store waits at most this long for it.
const TELL_WAIT_MAX: Duration = Duration::from_secs(1);
/// The ends of a busy account wait for more of them, at most this long, in ms. Who calls money back
/// is heard with the next update, and waits 200 ms (four fifths of `ledger_ms`) for an answer.
const TELL_DELAY_MS: i64 = 50;
/// With this many ends to tell, an account waits no longer.
const ENDS_PER_UPDATE: usize = 64;
/// The number of shards of the table of accounts.
const SHARDS: usize = 16;

/// The allotments of one account.
pub(super) struct BusyAccount {
    pub(super) name: AccountName,
    state: Mutex<AccountAllotments>,
}

impl BusyAccount {
    pub(super) fn lock(&self) -> MutexGuard<'_, AccountAllotments> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type AccountShard = FastMap<AccountName, Arc<BusyAccount>>;

/// All allotments of this process.
pub(in crate::store) struct AllotmentBook {
    pub(super) ends: EndLog,
    leases: Leases,
    pub(super) lease_ms: u64,
    shards: [Mutex<AccountShard>; SHARDS],
    accounts: AtomicU64,
    /// The accounts that have allotments.
    lenders: Mutex<AccountShard>,
    /// The accounts whose allotments have something to tell.
    due: Mutex<Vec<Arc<BusyAccount>>>,
    /// The accounts that wait for more to tell, by when they are due, in ms of [`boottime_ms`].
    delayed: Mutex<BTreeMap<i64, Vec<Arc<BusyAccount>>>>,
    pub(super) wakeup: Notify,
    next_number: AtomicU64,
    /// Whether holds are made in memory.
    is_lending: AtomicBool,
}

impl AllotmentBook {
    /// Makes a book without allotments, whose ends go to the log `ends`. A running call has one of
    /// the `leases`, each for the time `lease`. No hold is made in memory before
    /// [`AllotmentUpkeep`](super::AllotmentUpkeep) runs.
    pub(in crate::store) fn new(ends: EndLog, leases: Leases, lease: Duration) -> AllotmentBook {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        AllotmentBook {
            ends,
            leases,
            lease_ms,
            shards: Default::default(),
            lenders: Mutex::default(),
            accounts: AtomicU64::new(0),
            due: Mutex::default(),
            delayed: Mutex::default(),
            wakeup: Notify::new(),
            next_number: AtomicU64::new(1),
            is_lending: AtomicBool::new(false),
        }
    }

    /// Makes holds in memory from now on, or no more.
    pub(super) fn set_lending(&self, is_lending: bool) {
        self.is_lending.store(is_lending, Ordering::SeqCst);
    }

    pub(super) fn is_lending(&self) -> bool {
        self.is_lending.load(Ordering::SeqCst) && self.ends.is_writable()
    }

    /// Holds an amount for a call out of the account's allotment, and takes `rates` of its limits.
    /// Returns what each limit has left; `None` if the hold has to be placed in the store. An
    /// account that is busy asks for an allotment.
    pub(super) fn hold(
        &self,
        account: &AccountName,
        call: &str,
        key: Option<KeyId>,
        amount: Money,
        rates: &[RateAsk],
    ) -> Option<Vec<RateReading>> {
        // Nothing of a small limit is lent, so money that is would lie idle.
        if !self.is_lending() || !rates.iter().all(|ask| ask.is_shadow || ask.is_lendable()) {
            return None;
        }
        let busy = self.find_or_add(account)?;
        let now = boottime_ms();
        let mut state = busy.lock();
        state.load.record(key, amount, rates, now);
        if state.current.is_none() {
            if state.load.is_busy(now) {
                lock(&self.lenders).insert(account.clone(), busy.clone());
                state.current = Some(self.new_allotment(now));
                self.mark_due(&busy, &mut state);
            }
            return None;
        }
        let (wanted, age) = (state.load.wanted_free(now), now.saturating_sub(state.updated_at));
        // An update cannot help a key for which there is no place.
        let key_wanted = key.and_then(|key| state.load.wanted_for_key(key, now));
        // A shortage of a rate limit alone is told with the next refresh.
        let is_refresh = age >= TIGHT_REFRESH_MS;
        let told = rates.iter().filter(|ask| is_refresh && ask.is_lendable());
        let rates_wanted: Vec<(RateId, i64)> =
            told.map(|ask| (ask.id, state.load.wanted_of_rate(ask.id, now))).collect();
        let local = state.current.as_mut()?;
        let held = match local.hold(call, key, amount, rates, now) {
            Ok(LocalAnswer::Held(readings)) => Some(readings),
            Ok(LocalAnswer::Direct) | Err(_) => None,
        };
        failpoint!("hold_made_in_memory", if held.is_some());
        let free = local.free(now);
        // More is asked for before there is nothing left. Where nothing is lent, that may be over.
        let is_low = |wanted: Money, free: Money| wanted.saturating_sub(free) > free;
        let of_key = key.and_then(|key| Some((key_wanted?, local.free_of_key(key, now)?)));
        let is_rate_low = |(id, wanted): &(RateId, i64)| wanted / 2 > local.free_of_rate(*id);
        let is_short =
            is_low(wanted, free) || of_key.is_some_and(|(wanted, free)| is_low(wanted, free));
        let is_new_key = key_wanted.is_some() && key.is_some_and(|key| !local.is_lent_to(key));
        // Of a budget there may be too little for lending, as of the money.
        let may_be_refused = local.is_tight() || !(is_short || is_new_key);
        let is_short = is_short || held.is_none() || rates_wanted.iter().any(is_rate_low);
        let is_update_due = is_short && (!may_be_refused || is_refresh);
        if is_update_due && state.load.is_busy(now) {
            self.mark_due(&busy, &mut state);
        }
        held
    }

    pub(super) fn new_allotment(&self, now_ms: i64) -> LocalAllotment {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let id = AllotmentId(format!("{}{}-{number:08}", AllotmentId::PREFIX, self.ends.run()));
        LocalAllotment::new(id, self.lease_ms, now_ms)
    }

    /// Adds an account to the next round of updates. `state` is that of the account.
    pub(super) fn mark_due(&self, busy: &Arc<BusyAccount>, state: &mut AccountAllotments) {
        if std::mem::replace(&mut state.is_due, true) {
            return;
        }
        let mut due = lock(&self.due);
        due.push(busy.clone());
        let is_first = due.len() == 1;
        drop(due);
        if is_first {
            self.wakeup.notify_one();
        }
    }

    /// Adds an account whose calls have ended to a later round of updates, with what ends until
    /// then; to the next one if its last update was a while ago, if many have ended, or if its
    /// money is short. `state` is that of the account.
    pub(super) fn mark_due_later(
        &self,
        busy: &Arc<BusyAccount>,
        state: &mut AccountAllotments,
        now_ms: i64,
    ) {
        let is_quiet = now_ms.saturating_sub(state.updated_at) >= TELL_DELAY_MS;
        let is_tight = state.all().any(|local| local.is_tight() && !local.has_ended());
        if is_quiet || is_tight || state.untold() >= ENDS_PER_UPDATE {
            return self.mark_due(busy, state);
        }
        if state.is_due || std::mem::replace(&mut state.is_delayed, true) {
            return;
        }
        let due_at = state.updated_at.saturating_add(TELL_DELAY_MS);
        let mut delayed = lock(&self.delayed);
        let is_first = delayed.first_key_value().is_none_or(|(first, _)| due_at < *first);
        delayed.entry(due_at).or_default().push(busy.clone());
        drop(delayed);
        if is_first {
            self.wakeup.notify_one();
        }
    }

    /// Waits until an account may have something to tell.
    pub(super) async fn wait_for_due(&self) {
        let first = lock(&self.delayed).first_key_value().map(|(due_at, _)| *due_at);
        let Some(due_at) = first else { return self.wakeup.notified().await };
        let left = u64::try_from(due_at.saturating_sub(boottime_ms())).unwrap_or(0);
        let _ = timeout(Duration::from_millis(left), self.wakeup.notified()).await;
    }

    /// Adds the accounts that have waited long enough to the next round of updates.
    pub(super) fn end_delays(&self, now_ms: i64) {
        let mut delayed = lock(&self.delayed);
        let later = delayed.split_off(&now_ms.saturating_add(1));
        let waited = std::mem::replace(&mut *delayed, later);
        drop(delayed);
        for busy in waited.into_values().flatten() {
            let mut state = busy.lock();
            state.is_delayed = false;
            if state.all().any(LocalAllotment::has_untold) {
                // It may have been told of others meanwhile, and waits from then on.
                self.mark_due_later(&busy, &mut state, now_ms);
            }
        }
    }

    /// Takes the accounts that have something to tell.
    pub(super) fn take_due(&self) -> Vec<Arc<BusyAccount>> {
        std::mem::take(&mut *lock(&self.due))
    }

    /// Returns an account that is watched.
    pub(super) fn find(&self, account: &AccountName) -> Option<Arc<BusyAccount>> {
        lock(self.shard(account)).get(account).cloned()
    }

    fn find_or_add(&self, account: &AccountName) -> Option<Arc<BusyAccount>> {
        let mut shard = lock(self.shard(account));
        if let Some(known) = shard.get(account) {
            return Some(known.clone());
        }
        if self.accounts.load(Ordering::Relaxed) >= ACCOUNTS_MAX as u64 {
            return None;
        }
        self.accounts.fetch_add(1, Ordering::Relaxed);
        let busy = Arc::new(BusyAccount { name: account.clone(), state: Mutex::default() });
        shard.insert(account.clone(), busy.clone());
        Some(busy)
    }

    /// Whether the caller of a call still keeps its hold alive.
    pub(super) fn has_lease(&self, account: &AccountName, call: &str) -> bool {
        self.leases.contains(account, call)
    }

    /// Returns the accounts that have allotments.
    pub(super) fn lenders(&self) -> Vec<Arc<BusyAccount>> {
        lock(&self.lenders).values().cloned().collect()
    }

    /// Returns the ids of all allotments of this process that are not over.
    pub(super) fn live_ids(&self) -> HashSet<AllotmentId> {
        let ids_of = |busy: Arc<BusyAccount>| {
            busy.lock().all().map(|local| local.id().clone()).collect::<Vec<_>>()
        };
        self.lenders().into_iter().flat_map(ids_of).collect()
    }

    /// Takes the allotments of an account if `is_unused`, and forgets that it has any.
    pub(super) fn take_allotments(
        &self,
        busy: &BusyAccount,
        is_unused: impl Fn(&AccountAllotments) -> bool,
    ) -> Vec<LocalAllotment> {
        let mut state = busy.lock();
        if !is_unused(&state) {
            return Vec::new();
        }
        lock(&self.lenders).remove(&busy.name);
        let mut taken = std::mem::take(&mut state.expired);
        taken.extend(state.current.take());
        taken
    }

    /// Ends the calls of an account that have had no lease for a whole lease: whoever made them is
    /// gone without an end.
    pub(super) fn end_abandoned(&self, busy: &Arc<BusyAccount>, now_ms: i64) {
        let lease = i64::try_from(self.lease_ms).unwrap_or(i64::MAX);
        let mut state = busy.lock();
        let open: Vec<String> =
            state.all().flat_map(LocalAllotment::open_calls).map(str::to_owned).collect();
        let known = std::mem::take(&mut state.abandoned);
        for call in open.into_iter().filter(|call| !self.has_lease(&busy.name, call)) {
            let since = known.get(&call).copied().unwrap_or(now_ms);
            if now_ms.saturating_sub(since) < lease {
                state.abandoned.insert(call, since);
                continue;
            }
            let Some(local) = state.find_open(&call) else { continue };
            if let Ok(Some(NumberedEnd { seq, end })) = local.abandon(&call) {
                self.ends.append(&busy.name, local.id(), local.lent_at(), seq, &end);
            }
            log::warn!(
                event = "hold_abandoned", account = busy.name.as_str(), request_id = call;
                "call ended without settlement; hold released"
            );
            self.mark_due(busy, &mut state);
        }
    }

    /// Returns all accounts that are watched.
    pub(super) fn all(&self) -> Vec<Arc<BusyAccount>> {
        let of_shard =
            |shard: &Mutex<AccountShard>| lock(shard).values().cloned().collect::<Vec<_>>();
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Forgets an account, unless it is in use again.
    pub(super) fn remove_if(
        &self,
        account: &AccountName,
        is_unused: impl Fn(&AccountAllotments) -> bool,
    ) {
        let mut shard = lock(self.shard(account));
        // Whoever has another reference may be about to use it.
        let is_unused =
            |busy: &Arc<BusyAccount>| Arc::strong_count(busy) == 1 && is_unused(&busy.lock());
        if shard.get(account).is_some_and(is_unused) {
            shard.remove(account);
            self.accounts.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn shard(&self, account: &AccountName) -> &Mutex<AccountShard> {
        let bytes = account.as_str().bytes();
        let sum = bytes.fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        &self.shards[sum % SHARDS]
    }
}

#[async_trait]
impl PendingEnds for AllotmentBook {
    async fn tell_ends(&self, account: &AccountName) -> Result<(), Unavailable> {
        let Some(busy) = self.find(account) else { return Ok(()) };
        let wanted = busy.lock().last_seqs();
        let end = Instant::now() + TELL_WAIT_MAX;
        let is_told = || {
            let state = busy.lock();
            state.is_refused || state.has_told(&wanted)
        };
        while !is_told() {
            if Instant::now() >= end {
                return Err(Unavailable("the store did not take all ends in time".to_owned()));
            }
            self.mark_due(&busy, &mut busy.lock());
            sleep(ANSWER_POLL).await;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
