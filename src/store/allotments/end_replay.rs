//! Tells the store the ends that it may lack: those that ended processes have left, whose
//! allotments end then, and after the store came up again those of this process, too.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::book::AllotmentBook;
use super::store::AllotmentStore;
use crate::failpoints::failpoint;
use crate::ledger::Unavailable;
use crate::ledger::prepaid::answer::LedgerAnswer;
use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
use crate::ledger::prepaid::update::{AllotmentUpdate, CALLS_MAX};
use crate::metrics::METRICS;
use crate::store::outbox::{AllotmentKey, EndFiles, LastEnd, OrphanedEnds, WantedEnds, begun_at};

/// Tells the store the ends of logs that it lacks.
#[derive(Default)]
pub(super) struct EndReplay {
    adopted: Vec<AdoptedEnds>,
    /// The folders of processes of another store. They stay locked.
    foreign: Vec<OrphanedEnds>,
}

/// Why ends were not told.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    /// A file or folder cannot be read, which was logged.
    #[error("a log of ends cannot be read")]
    Unread,
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// The folder of a process that has ended.
struct AdoptedEnds {
    ends: OrphanedEnds,
    /// The run of the store that has all of its ends, and since when.
    told: Option<(Arc<str>, Instant)>,
    /// Whether the store has accepted all of them. If not, the folder stays.
    is_accepted: bool,
}

impl EndReplay {
    /// Takes over the folders of processes that have ended, tells the store their ends, and ends
    /// their allotments. A folder is removed when the store cannot lose its ends any more. Returns
    /// whether all folders could be read: one that could not may have charges that nobody knows.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn tell_adopted(
        &mut self,
        store: &impl AllotmentStore,
        book: &AllotmentBook,
    ) -> Result<bool, Unavailable> {
        let mut are_read = self.find_orphans(store, book);
        for adopted in &mut self.adopted {
            match adopted.tell(store).await {
                Err(ReplayError::Unread) => are_read = false,
                Err(ReplayError::Unavailable(why)) => return Err(why),
                Ok(()) => {}
            }
        }
        // A run that does not answer may be over.
        if store.sync().await.is_ok() {
            let run = store.run_id();
            let is_over = |adopted: &mut AdoptedEnds| {
                let told = adopted.told.as_ref().filter(|(told, _)| Some(told) == run.as_ref());
                adopted.is_accepted && told.is_some_and(|(_, at)| book.ends.is_retention_over(*at))
            };
            self.adopted.extract_if(.., is_over).for_each(|adopted| adopted.ends.remove());
        }
        Ok(are_read)
    }

    /// Returns whether all folders could be read.
    fn find_orphans(&mut self, store: &impl AllotmentStore, book: &AllotmentBook) -> bool {
        let (log, mut are_read) = (&book.ends, true);
        let found = OrphanedEnds::lock_all(log.root()).unwrap_or_else(|why| {
            are_read = false;
            log_unread(log.root(), &why);
            Vec::new()
        });
        // The lock of this process' own folder may have been deleted.
        for ends in found.into_iter().filter(|ends| ends.run() != log.run()) {
            match ends.store_id() {
                Err(why) => {
                    are_read = false;
                    log_unread(ends.path(), &why);
                }
                Ok(of_store) if of_store.is_some() && of_store != store.store_id() => {
                    log::error!(
                        event = "outbox_store_mismatch", place:? = ends.path();
                        "outbox has settlements for another store id; they are kept"
                    );
                    METRICS.outbox_errors.inc();
                    self.foreign.push(ends);
                }
                Ok(_) => self.adopted.push(AdoptedEnds { ends, told: None, is_accepted: true }),
            }
        }
        are_read
    }
}

impl AdoptedEnds {
    /// Tells the store the ends that it lacks, unless its run has all of them, and ends the
    /// allotments.
    async fn tell(&mut self, store: &impl AllotmentStore) -> Result<(), ReplayError> {
        let no_run = || Unavailable("the run of the store is not known".to_owned());
        let run = store.run_id().ok_or_else(no_run)?;
        if self.told.as_ref().is_some_and(|(told, _)| *told == run) {
            return Ok(());
        }
        self.told = None;
        let path = self.ends.path();
        let files = self.ends.files().map_err(|why| unread(path, &why))?;
        self.is_accepted &= tell_missing(store, path, files, HashSet::new).await?;
        end_allotments(store, self.ends.run()).await?;
        let is_same_run = store.run_id().is_some_and(|now| now == run);
        self.told = is_same_run.then(|| (run, Instant::now()));
        Ok(())
    }
}

/// Tells the store the ends that it lacks of those allotments of this process that are over. What
/// is not over is told by its own updates.
///
/// # Errors
/// The store does not answer, or the log cannot be read.
pub(super) async fn tell_own(
    store: &impl AllotmentStore,
    book: &AllotmentBook,
) -> Result<(), ReplayError> {
    let root = book.ends.root();
    let files = book.ends.files().map_err(|why| unread(root, &why))?;
    tell_missing(store, root, files, || book.live_ids()).await.map(drop)
}

/// Tells the store the ends of a log that it lacks, except those of the allotments that are `live`.
/// Returns whether it has accepted all of them.
async fn tell_missing(
    store: &impl AllotmentStore,
    place: &Path,
    files: EndFiles,
    live: impl FnOnce() -> HashSet<AllotmentId>,
) -> Result<bool, ReplayError> {
    let to_index = files.clone();
    let index = read_blocking(place, move || to_index.read_index()).await?;
    // An allotment that begins after this is not in the index.
    let live = live();
    let over = index.last.into_iter().filter(|((_, id), _)| !live.contains(id));
    let (keys, last): (Vec<AllotmentKey>, Vec<LastEnd>) = over.unzip();
    let known: HashMap<_, _> = keys.iter().cloned().zip(store.last_seqs(&keys).await?).collect();
    let mut wanted = WantedEnds::default();
    for (key, last) in keys.into_iter().zip(last) {
        let known = known.get(&key).copied().unwrap_or(0);
        wanted.add(key, known, last.seq);
    }
    let (mut told, mut is_accepted) = (0, true);
    if !wanted.is_empty() {
        for (key, ends) in read_blocking(place, move || files.read_wanted(&wanted)).await? {
            let mut known = known.get(&key).copied().unwrap_or(0);
            let times = LentTimes::of(ends.lent_at, &ends.ends);
            for (first_seq, run) in consecutive(ends.ends) {
                told += run.len();
                is_accepted &= tell_run(store, &key, times, first_seq, run, &mut known).await?;
                failpoint!("ends_replayed");
            }
        }
    }
    if told > 0 || index.torn > 0 {
        log::info!(
            event = "outbox_replay_finished", source = "allotments", entries = told,
            torn = index.torn;
            "outbox replay finished"
        );
    }
    Ok(is_accepted)
}

/// When an allotment was lent, and was still in use, in unix ms.
#[derive(Clone, Copy)]
struct LentTimes {
    /// When it was lent first.
    first: i64,
    /// When the newest of its calls whose ends the store lacks began.
    last: i64,
}

impl LentTimes {
    fn of(first: i64, ends: &BTreeMap<u64, CallEnd>) -> LentTimes {
        let begun = ends.values().map(|end| begun_at(&end.call));
        LentTimes { first, last: begun.max().unwrap_or(i64::MIN) }
    }
}

/// Divides ends into runs of consecutive numbers, of at most as many as an update may have. Each
/// run has the number of its first end.
fn consecutive(ends: BTreeMap<u64, CallEnd>) -> Vec<(u64, Vec<CallEnd>)> {
    let mut runs: Vec<(u64, Vec<CallEnd>)> = Vec::new();
    for (seq, end) in ends {
        match runs.last_mut() {
            Some((first, run)) if *first + run.len() as u64 == seq && run.len() < CALLS_MAX => {
                run.push(end);
            }
            _ => runs.push((seq, vec![end])),
        }
    }
    runs
}

/// Tells the store one of these runs. `known` is the number of the last end that the store has.
async fn tell_run(
    store: &impl AllotmentStore,
    key: &AllotmentKey,
    times: LentTimes,
    first_seq: u64,
    ends: Vec<CallEnd>,
    known: &mut u64,
) -> Result<bool, Unavailable> {
    let (account, id) = key;
    let last = first_seq.saturating_add(ends.len() as u64).saturating_sub(1);
    let mut update = AllotmentUpdate::replay(id.clone(), times.first, first_seq, ends);
    let mut answer = store.update_allotment(account, update.clone()).await?;
    if answer == Some(LedgerAnswer::UnknownAllotment) && times.last > times.first {
        // The store remembers an ended allotment for a day. One that was lent long ago, and had
        // calls in the last hours, is not forgotten: the store has lost it.
        update.lent_at = times.last;
        answer = store.update_allotment(account, update.clone()).await?;
    }
    if let Some(LedgerAnswer::MissingEnds { last_seq }) = answer {
        if last_seq < *known {
            return Err(Unavailable("the store has lost ends meanwhile".to_owned()));
        }
        // Their lines are damaged, or were removed since the store had them.
        update.earlier_lost = true;
        answer = store.update_allotment(account, update.clone()).await?;
    }
    *known = last;
    match answer {
        Some(LedgerAnswer::AllotmentEnded { .. }) => Ok(true),
        other => {
            log::error!(
                event = "allotment_ends_lost", account = account.as_str(), allotment = id.0,
                ends = update.ends.len(), answer:? = other;
                "ends of an allotment cannot be charged"
            );
            Ok(false)
        }
    }
}

/// Ends the allotments of a gateway that is gone, so that nothing stays held until the leases end.
async fn end_allotments(store: &impl AllotmentStore, run: &str) -> Result<(), Unavailable> {
    for (account, id, lent_at) in store.list_allotments(run).await? {
        let replay = AllotmentUpdate::replay(id, lent_at, 1, Vec::new());
        store.update_allotment(&account, AllotmentUpdate { retires: true, ..replay }).await?;
        failpoint!("dead_allotment_ended");
    }
    Ok(())
}

/// Reads files on a thread that may wait for a disk.
pub(super) async fn read_blocking<T: Send + 'static>(
    place: &Path,
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ReplayError> {
    let read = tokio::task::spawn_blocking(read).await.unwrap_or_else(|why| Err(why.into()));
    read.map_err(|why| unread(place, &why))
}

pub(super) fn unread(place: &Path, why: &io::Error) -> ReplayError {
    log_unread(place, why);
    ReplayError::Unread
}

fn log_unread(place: &Path, why: &io::Error) {
    log::error!(
        event = "outbox_read_failed", place:?, error:% = why;
        "outbox read failed"
    );
    METRICS.outbox_errors.inc();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_runs_without_a_gap() {
        let end = |call: u64| CallEnd::uncharged(&call.to_string());
        let (first_run, last) = (CALLS_MAX as u64, CALLS_MAX as u64 + 44);
        let numbers = (3..=last).chain([last + 2, last + 3]);
        let runs = consecutive(numbers.map(|seq| (seq, end(seq))).collect());
        let shape: Vec<_> = runs.iter().map(|(first, run)| (*first, run.len())).collect();
        assert_eq!(shape, [(3, CALLS_MAX), (3 + first_run, 42), (last + 2, 2)]);
        assert!(runs.iter().all(|(first, run)| run[0].call == first.to_string()));
        assert_eq!(consecutive(BTreeMap::new()), []);
    }
}
