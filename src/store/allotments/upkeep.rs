//! Sends the updates of allotments: in rounds while there is something to tell, and now and then to
//! renew what is held and to give back what is not needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::book::{AllotmentBook, BusyAccount};
use super::busy_account::AccountAllotments;
use super::end_replay::{self, EndReplay, ReplayError, read_blocking, unread};
use super::store::AllotmentStore;
use crate::clock::boottime_ms;
use crate::failpoints::failpoint;
use crate::ledger::Unavailable;
use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::local::LocalAllotment;
use crate::ledger::prepaid::local::messages::AllotmentLoad;
use crate::ledger::prepaid::records::AllotmentId;
use crate::ledger::prepaid::update::AllotmentUpdate;
use crate::metrics::METRICS;
use crate::store::outbox::WantedEnds;

/// Two rounds of updates begin at least this long after one another.
const ROUND_INTERVAL: Duration = Duration::from_millis(20);
/// All accounts are looked at this often.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);
/// A busy account sends an update at least this often, in ms: what it may hold rests on what it
/// has read, and on whether the store lends again.
const REFRESH_MS: i64 = 100;
/// At most this many updates are on their way at the same time.
const UPDATES_MAX: usize = 256;
/// The log of ends is maintained, and what the store has is synced, this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// Accounts without allotments are looked at this often.
const FORGET_INTERVAL: Duration = Duration::from_secs(10);
/// The store is told at most so many times what it may have lost before its recovery is tried anew.
const RECOVERY_ROUNDS_MAX: u32 = 200;
/// A process that ends waits at most this long until the store has all ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The background task of the allotments.
pub(in crate::store) struct AllotmentUpkeep<S> {
    book: Arc<AllotmentBook>,
    store: S,
    /// Held while a round of updates is on its way.
    round: Mutex<()>,
    replay: Mutex<EndReplay>,
    /// Whether no holds are made in memory any more.
    has_stopped: AtomicBool,
}

impl<S: AllotmentStore> AllotmentUpkeep<S> {
    /// `is_enabled` is whether holds are ever made in memory. If not, only the folders of ended
    /// processes are adopted.
    pub(in crate::store) fn new(
        book: Arc<AllotmentBook>,
        store: S,
        is_enabled: bool,
    ) -> AllotmentUpkeep<S> {
        let (round, replay) = Default::default();
        AllotmentUpkeep { book, store, round, replay, has_stopped: AtomicBool::new(!is_enabled) }
    }

    /// Sends updates and maintains the log of ends. It never returns.
    pub(in crate::store) async fn run(&self) {
        tokio::join!(self.send_rounds(), self.scan_accounts(), self.maintain_log());
    }

    async fn send_rounds(&self) {
        loop {
            self.book.wait_for_due().await;
            let began = Instant::now();
            self.book.end_delays(boottime_ms());
            // What has failed is sent again by the scan.
            let _ = self.send_due().await;
            sleep(ROUND_INTERVAL.saturating_sub(began.elapsed())).await;
        }
    }

    /// Sends what accounts have to tell. A failure of one account does not stop the others.
    async fn send_due(&self) -> Result<(), Unavailable> {
        let _round = self.round.lock().await;
        let (due, mut done) = (self.book.take_due(), Ok(()));
        for few in due.chunks(UPDATES_MAX) {
            let sent = join_all(few.iter().map(|busy| self.update_account(busy))).await;
            let failures = sent.iter().filter(|sent| sent.is_err()).count();
            if let Some(why) = sent.into_iter().find_map(Result::err) {
                log::warn!(
                    event = "allotment_update_failed", accounts = failures, error:% = why;
                    "allotment update failed"
                );
                done = Err(why);
            }
        }
        let must_reload = |busy: &&Arc<BusyAccount>| busy.lock().must_reload();
        let behind: Vec<_> = due.iter().filter(must_reload).collect();
        if behind.is_empty() { done } else { self.reload_ends(&behind).await.and(done) }
    }

    /// Sends what an account has to tell.
    async fn update_account(&self, busy: &Arc<BusyAccount>) -> Result<(), Unavailable> {
        let now = boottime_ms();
        let mut ids = Vec::new();
        {
            let mut state = busy.lock();
            (state.is_due, state.updated_at, state.is_refused) = (false, now, false);
            ids.extend(state.all().map(|local| local.id().clone()));
        }
        for id in ids {
            self.update_allotment(busy, &id).await?;
        }
        drop_settled(busy);
        Ok(())
    }

    async fn update_allotment(
        &self,
        busy: &Arc<BusyAccount>,
        id: &AllotmentId,
    ) -> Result<(), Unavailable> {
        let update = {
            let mut state = busy.lock();
            let load = state.load.load(boottime_ms());
            let may_lend = self.book.is_lending() && self.store.may_lend();
            let load = if may_lend { load } else { AllotmentLoad::default() };
            let Some(local) = state.all_mut().find(|local| local.id() == id) else { return Ok(()) };
            if local.has_ended() && local.is_settled() {
                return Ok(());
            }
            local.next_update(&load, boottime_ms())
        };
        let update = update.map_err(|why| Unavailable(why.to_string()))?;
        let told = update.ends.len() as u64;
        failpoint!("update_made");
        let answer = self.store.update_allotment(&busy.name, update).await?;
        failpoint!("update_committed");
        METRICS.allotment_updates.inc();
        METRICS.allotment_ends.inc_by(told);
        let mut state = busy.lock();
        let Some(local) = state.all_mut().find(|local| local.id() == id) else { return Ok(()) };
        failpoint!("allotment_lent", if local.lent_at() == 0);
        failpoint!("all_given_back", if local.lent_at() > 0 && !local.is_out());
        let is_lost = matches!(answer, None | Some(LedgerAnswer::UnknownAllotment));
        if is_lost && local.has_untold() {
            log::error!(
                event = "allotment_ends_lost", account = busy.name.as_str(), allotment = id.0,
                ends = told, answer:?;
                "ends of an allotment cannot be charged"
            );
        }
        // An account that is gone takes nothing any more.
        let gone = LedgerAnswer::AllotmentEnded { last_seq: local.last_seq() };
        let answer = answer.unwrap_or(gone);
        local.receive(&answer).map_err(|why| Unavailable(why.to_string()))?;
        if local.is_waiting() {
            log::error!(
                event = "allotment_update_refused", account = busy.name.as_str(),
                allotment = id.0, answer:? = answer;
                "allotment update refused; its ends are told without it"
            );
            let ended = LedgerAnswer::AllotmentEnded { last_seq: local.known_seq() };
            local.receive(&ended).map_err(|why| Unavailable(why.to_string()))?;
            state.is_refused = true;
            return Ok(());
        }
        let known_seq = local.known_seq();
        failpoint!("update_noted");
        failpoint!("recall_noted", if local.is_tight() && local.has_free());
        // What was kept while the money was called back goes back at once.
        let (has_ends, must_give) = (local.has_untold(), local.is_tight() && local.has_free());
        if must_give {
            self.book.mark_due(busy, &mut state);
        } else if has_ends {
            self.book.mark_due_later(busy, &mut state, boottime_ms());
        }
        state.not_durable.insert(id.clone(), known_seq);
        Ok(())
    }

    /// Takes the ends that the store has lost from the log.
    async fn reload_ends(&self, accounts: &[&Arc<BusyAccount>]) -> Result<(), Unavailable> {
        let root = self.book.ends.root();
        let mut wanted = WantedEnds::default();
        for busy in accounts {
            for local in busy.lock().all().filter(|local| local.must_reload()) {
                let key = (busy.name.clone(), local.id().clone());
                wanted.add(key, local.known_seq(), local.last_seq());
            }
        }
        let files = self.book.ends.files().map_err(|why| unread(root, &why));
        let read = match files {
            Ok(files) => read_blocking(root, move || files.read_wanted(&wanted)).await,
            Err(why) => Err(why),
        };
        let read = read.map_err(|why| Unavailable(why.to_string()))?;
        log::warn!(
            event = "allotment_ends_reloaded", accounts = accounts.len(), allotments = read.len();
            "store has lost ends of allotments; they are told again"
        );
        for busy in accounts {
            let mut state = busy.lock();
            for local in state.all_mut().filter(|local| local.must_reload()) {
                let key = (busy.name.clone(), local.id().clone());
                let ends = read.get(&key).map(|read| read.ends.clone()).unwrap_or_default();
                local.reload(&ends).map_err(|why| Unavailable(why.to_string()))?;
            }
            self.book.mark_due(busy, &mut state);
        }
        Ok(())
    }

    /// Looks at all accounts that have allotments, and forgets accounts that are not used any more.
    async fn scan_accounts(&self) {
        let abandoned_every = Duration::from_millis(self.book.lease_ms / 4);
        let (mut forgotten, mut ended) = (Instant::now(), Instant::now());
        loop {
            sleep(SCAN_INTERVAL).await;
            let now = boottime_ms();
            let (lenders, mut borrowed, mut unused) = (self.book.lenders(), 0, Vec::new());
            let may_have_abandoned = ended.elapsed() >= abandoned_every;
            for busy in &lenders {
                if may_have_abandoned {
                    self.book.end_abandoned(busy, now);
                }
                let (is_out, is_unused) = self.scan_account(busy, now);
                borrowed += i64::from(is_out);
                if is_unused && unused.len() < UPDATES_MAX {
                    unused.push(busy.clone());
                }
            }
            self.retire(unused, |state| state.is_unused(now)).await;
            METRICS.allotments.set(borrowed);
            if may_have_abandoned {
                ended = Instant::now();
            }
            if forgotten.elapsed() >= FORGET_INTERVAL {
                forgotten = Instant::now();
                drop(lenders);
                self.forget_accounts(now);
            }
        }
    }

    /// Sends an update if one is needed. Returns whether the account has borrowed something, and
    /// whether its allotments are not used any more.
    fn scan_account(&self, busy: &Arc<BusyAccount>, now: i64) -> (bool, bool) {
        let mut state = busy.lock();
        if self.is_update_needed(&state, now) {
            self.book.mark_due(busy, &mut state);
        }
        (state.all().any(LocalAllotment::is_out), state.is_unused(now))
    }

    fn forget_accounts(&self, now: i64) {
        for busy in self.book.all() {
            let is_unused = busy.lock().is_unused(now);
            let name = busy.name.clone();
            drop(busy);
            if is_unused {
                self.book
                    .remove_if(&name, |state| state.is_unused(now) && state.all().next().is_none());
            }
        }
    }

    /// Ends the allotments of accounts at the store, if nothing uses them any more.
    async fn retire(
        &self,
        accounts: Vec<Arc<BusyAccount>>,
        is_unused: impl Fn(&AccountAllotments) -> bool,
    ) {
        if accounts.is_empty() {
            return;
        }
        let _round = self.round.lock().await;
        let mut last_updates = Vec::new();
        for busy in accounts {
            for local in self.book.take_allotments(&busy, &is_unused) {
                self.book.ends.forget(&busy.name, local.id());
                if local.lent_at() == 0 || local.has_ended() {
                    continue;
                }
                let (id, next_seq) = (local.id().clone(), local.known_seq().saturating_add(1));
                let last = AllotmentUpdate::replay(id, local.lent_at(), next_seq, Vec::new());
                let last = AllotmentUpdate { retires: true, ..last };
                last_updates.push((busy.name.clone(), last));
            }
        }
        let sent = last_updates.into_iter().map(async |(name, last)| {
            // If this fails, the allotment ends with its lease.
            let _ = self.store.update_allotment(&name, last).await;
        });
        join_all(sent).await;
    }

    fn is_update_needed(&self, state: &AccountAllotments, now: i64) -> bool {
        let age = now.saturating_sub(state.updated_at);
        let lease = i64::try_from(self.book.lease_ms).unwrap_or(i64::MAX);
        let is_waiting = state.all().any(LocalAllotment::is_waiting);
        if !state.is_told() || is_waiting {
            return age >= SCAN_INTERVAL.as_millis().try_into().unwrap_or(i64::MAX);
        }
        let Some(local) = &state.current else { return false };
        if state.load.is_idle(now) {
            return local.has_free() || (local.is_out() && age >= lease / 4);
        }
        age >= REFRESH_MS
    }

    /// Maintains the log of ends.
    async fn maintain_log(&self) {
        let mut has_failed = false;
        loop {
            sleep(MAINTENANCE_INTERVAL).await;
            let synced = self.record_durable().await;
            if let Err(why) = &synced
                && !std::mem::replace(&mut has_failed, true)
            {
                log::warn!(
                    event = "allotment_sync_failed", error:% = why;
                    "store not synced; the log of ends is kept"
                );
            }
            has_failed &= synced.is_err();
            let book = self.book.clone();
            let last_answer = synced.is_ok().then(std::time::Instant::now);
            // This fails only if `maintain` panics; the next round does the same work.
            let _ = tokio::task::spawn_blocking(move || book.ends.maintain(last_answer)).await;
        }
    }

    /// Syncs the store, and tells the log of ends what it has on disk.
    async fn record_durable(&self) -> Result<(), Unavailable> {
        let mut told = Vec::new();
        for busy in self.book.lenders() {
            let seqs = busy.lock().not_durable.clone();
            told.extend(seqs.into_iter().map(|(id, seq)| (busy.clone(), id, seq)));
        }
        self.store.sync().await?;
        for (busy, id, seq) in told {
            self.book.ends.record_durable(&busy.name, &id, seq);
            let mut state = busy.lock();
            if state.not_durable.get(&id) == Some(&seq) {
                state.not_durable.remove(&id);
            }
            // More may have been told meanwhile, which is not on disk yet.
            let is_open = state.all().any(|local| *local.id() == id);
            if !is_open && !state.not_durable.contains_key(&id) {
                self.book.ends.forget(&busy.name, &id);
            }
        }
        Ok(())
    }

    /// Tells the store the ends of processes that have ended, and ends their allotments.
    ///
    /// # Errors
    /// The store or the disk does not answer. Another call does the rest.
    pub(in crate::store) async fn adopt_orphans(&self) -> Result<(), Unavailable> {
        if self.replay.lock().await.tell_adopted(&self.store, &self.book).await? {
            return Ok(());
        }
        Err(Unavailable(ReplayError::Unread.to_string()))
    }

    /// Tells a run of the store that has just begun what it may lack: the ends of this process and
    /// of those that have ended, and what running calls need. What cannot be read is logged, and
    /// does not keep the others waiting.
    ///
    /// # Errors
    /// The store does not answer.
    pub(in crate::store) async fn recover(&self) -> Result<(), Unavailable> {
        let lenders = self.book.lenders();
        let wanted: Vec<_> = lenders.iter().map(|busy| busy.lock().last_seqs()).collect();
        let is_behind = |(busy, wanted): (&Arc<BusyAccount>, &Vec<_>)| {
            let state = busy.lock();
            !state.is_refused && (state.is_waiting() || !state.has_told(wanted))
        };
        let mut rounds = 0;
        // The updates of a round that was under way may have reached the last run.
        while rounds < 2 || lenders.iter().zip(&wanted).any(is_behind) {
            if rounds >= RECOVERY_ROUNDS_MAX {
                return Err(Unavailable("the store did not take all ends".to_owned()));
            }
            lenders.iter().for_each(|busy| self.book.mark_due(busy, &mut busy.lock()));
            self.send_due().await?;
            rounds += 1;
        }
        let mut replay = self.replay.lock().await;
        match end_replay::tell_own(&self.store, &self.book).await {
            Err(ReplayError::Unavailable(why)) => return Err(why),
            Err(ReplayError::Unread) | Ok(()) => {}
        }
        replay.tell_adopted(&self.store, &self.book).await.map(drop)
    }

    /// Makes holds in memory from now on. The store must have all ends of earlier processes.
    pub(in crate::store) fn start_lending(&self) {
        if !self.has_stopped.load(Ordering::SeqCst) {
            self.book.set_lending(true);
        }
    }

    /// Makes no more holds in memory, and gives back what is free.
    pub(in crate::store) fn stop_lending(&self) {
        self.has_stopped.store(true, Ordering::SeqCst);
        self.book.set_lending(false);
    }

    /// Tells the store all ends, and gives everything back, before the process exits.
    pub(in crate::store) async fn finish(&self) {
        self.stop_lending();
        let telling = async {
            loop {
                let accounts = self.book.lenders();
                let is_open = |busy: &&Arc<BusyAccount>| {
                    let state = busy.lock();
                    !state.is_settled() || state.all().any(LocalAllotment::is_out)
                };
                let left: Vec<_> = accounts.iter().filter(is_open).collect();
                if left.is_empty() {
                    break;
                }
                for busy in left {
                    self.book.mark_due(busy, &mut busy.lock());
                }
                // What has failed is sent again.
                let _ = self.send_due().await;
                sleep(ROUND_INTERVAL).await;
            }
            self.record_durable().await?;
            self.retire(self.book.lenders(), AccountAllotments::is_empty).await;
            Ok::<(), Unavailable>(())
        };
        // What is not told now, the next process tells.
        let _ = timeout(FINISH_TIMEOUT, telling).await;
    }

    /// Whether the leases of all allotments were renewed lately.
    pub(in crate::store) fn is_renewed(&self) -> bool {
        let now = boottime_ms();
        let is_late = |local: &LocalAllotment| {
            local.is_out() && !local.has_ended() && local.hold_until() < now
        };
        !self.book.lenders().iter().any(|busy| busy.lock().all().any(is_late))
    }

    pub(in crate::store) fn is_writable(&self) -> bool {
        self.book.ends.is_writable()
    }

    /// Binds the log of ends to the store.
    pub(in crate::store) fn bind_to_store(&self) -> Result<(), Unavailable> {
        self.store.store_id().map_or(Ok(()), |id| self.book.ends.bind_to_store(&id))
    }

    /// Writes what the log of ends still has in memory.
    pub(in crate::store) fn flush(&self) {
        self.book.ends.flush();
    }
}

/// Puts an allotment aside that has expired, and forgets those of which nothing is left.
fn drop_settled(busy: &BusyAccount) {
    let mut state = busy.lock();
    if state.current.as_ref().is_some_and(LocalAllotment::has_ended) {
        let ended = state.current.take();
        state.expired.extend(ended);
    }
    state.expired.retain(|local| !local.is_settled());
}

#[cfg(test)]
mod tests;
