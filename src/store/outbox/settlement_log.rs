//! The log of an outbox: the hold ends that this process has written, and which of them the store
//! has not acknowledged yet.
//!
//! An entry is written with one plain `write` before its operation is sent, so that it survives the
//! death of the process. Where it has to survive a power cut too, a separate thread calls fsync,
//! once for many entries. An acknowledgement is written together with the next entry, and may be
//! lost: then an entry is sent once more.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;

use super::fsync_thread::FsyncThread;
use super::job_orders::JobOrders;
use super::record;
use super::retention::Retention;
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files::{self, SegmentFiles};
use super::started_calls::StartedCalls;
use super::superseded::SupersededCheck;
use crate::clock::unix_ms;
use crate::failpoints::failpoint;
use crate::fast_map::FastMap;
use crate::idempotency::IdempotencyKey;
use crate::ledger::{AccountName, Operation, Unavailable};
use crate::metrics::METRICS;

/// Empty lines, which are written to test whether the disk accepts writes again.
const WRITE_PROBE: [u8; 4_096] = [b'\n'; 4_096];
/// Acknowledgements wait in memory for the next entry, at most this many bytes of them.
const ACKS_BYTES_MAX: usize = 64 << 10;
/// If an entry is not acknowledged within this time, the store is not healthy.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// Within this time, a caller whose operation the store refused has retried it.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

/// The log of hold ends, in a folder of this process that also has the records of started calls and
/// of video jobs.
pub(in crate::store) struct SettlementLog {
    pub(in crate::store) root: PathBuf,
    pub(super) retention: Retention,
    pub(in crate::store) calls: StartedCalls,
    /// Set for a shared store.
    pub(in crate::store) superseded: OnceCell<SupersededCheck>,
    pub(super) orders: JobOrders,
    state: Mutex<LogState>,
    syncer: Option<Arc<FsyncThread>>,
    /// Whether the log can be written. While it cannot, no paid call may be admitted.
    writable: Arc<AtomicBool>,
}

struct LogState {
    dir: Arc<SegmentDir>,
    files: SegmentFiles,
    seq: u64,
    acks: Vec<u8>,
    pending: FastMap<HoldEndKey, PendingEntry>,
    /// Lines that could not be written to any file, by the number of their entry.
    unwritten: BTreeMap<u64, UnwrittenLine>,
    /// When the store last refused an operation, or could not be reached for it.
    last_refusal: Option<Instant>,
    acked_by: AcknowledgedRuns,
    /// Whether the folder has a note which says that all its entries are acknowledged.
    has_ack_note: bool,
    /// The folder in which the store id was written, and that id; `None` before the first write.
    written_store_id: Option<(PathBuf, Box<str>)>,
}

/// The runs of the store that have acknowledged entries of this log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AcknowledgedRuns {
    None,
    One(Box<str>),
    Several,
}

impl AcknowledgedRuns {
    fn add(&mut self, run_id: &str) {
        match self {
            AcknowledgedRuns::None => *self = AcknowledgedRuns::One(run_id.into()),
            AcknowledgedRuns::One(one) if **one == *run_id => {}
            _ => *self = AcknowledgedRuns::Several,
        }
    }
}

/// The key of an operation that ends a hold: the account, the id of the hold, and whether the
/// operation is a void.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HoldEndKey {
    account: AccountName,
    id: String,
    is_void: bool,
}

/// An entry that the store has not acknowledged.
struct PendingEntry {
    op: Arc<Operation>,
    seq: u64,
    /// The number of the file that contains the entry.
    segment: u64,
    written_at: Instant,
    last_tried: Instant,
}

/// A line that could not be written to any file.
struct UnwrittenLine {
    key: HoldEndKey,
    line: Vec<u8>,
    acked_at: Option<Instant>,
}

impl HoldEndKey {
    pub(super) fn of(account: &AccountName, op: &Operation) -> HoldEndKey {
        let id = op.hold_id().unwrap_or_default().to_owned();
        HoldEndKey { account: account.clone(), id, is_void: matches!(op, Operation::Void { .. }) }
    }

    pub(super) fn account(&self) -> &AccountName {
        &self.account
    }
}

impl SettlementLog {
    /// Creates a log in a new folder under `root`.
    pub(super) fn open(
        root: &Path,
        retention: Retention,
        writable: Arc<AtomicBool>,
    ) -> Result<SettlementLog, Unavailable> {
        let to_unavailable = |why| Unavailable(format!("store.outbox: {}: {why}", root.display()));
        let dir = Arc::new(SegmentDir::create(root).map_err(to_unavailable)?);
        let syncer = retention.synced.then(|| FsyncThread::start(writable.clone())).transpose();
        let syncer = syncer.map_err(to_unavailable)?;
        let files = SegmentFiles::new(
            segment_files::create_segment(&dir, SegmentKind::HoldEnds, 1, syncer.as_deref())
                .map_err(to_unavailable)?,
        );
        let (acks, pending, unwritten) = Default::default();
        let state = LogState {
            dir,
            files,
            seq: 0,
            acks,
            pending,
            unwritten,
            last_refusal: None,
            acked_by: AcknowledgedRuns::None,
            has_ack_note: false,
            written_store_id: None,
        };
        let (root, state) = (root.to_owned(), Mutex::new(state));
        let (calls, orders, superseded) = Default::default();
        Ok(SettlementLog { root, retention, calls, superseded, orders, state, syncer, writable })
    }

    /// Records which store the segments are for, so that they are never replayed to another store,
    /// to which these accounts and holds do not belong. Another call with the same id is cheap; it
    /// writes the id again if the folder was replaced.
    ///
    /// # Errors
    /// [`Unavailable`] if the id cannot be written.
    pub(in crate::store) fn bind_to_store(&self, id: &str) -> Result<(), Unavailable> {
        let mut state = self.lock_state();
        let binding = (state.dir.path.clone(), id.into());
        if state.written_store_id.as_ref() != Some(&binding) {
            let to_unavailable = |why| Unavailable(format!("store.outbox: {why}"));
            state.dir.write_store_id(id).map_err(to_unavailable)?;
            state.written_store_id = Some(binding);
        }
        Ok(())
    }

    /// Records that the store refused an operation, or could not be reached for it.
    pub(super) fn record_refusal(&self) {
        self.lock_state().last_refusal = Some(Instant::now());
    }

    /// Whether the store has accepted every write for the last `span`, or at least for the time in
    /// which callers retry what it refused. A store that takes no writes may still answer reads.
    pub(in crate::store) fn is_quiescent(&self, span: Duration) -> bool {
        let state = self.lock_state();
        let waits = |pending: &PendingEntry| pending.written_at.elapsed() > ACK_TIMEOUT;
        let span = span.min(QUIET_PERIOD);
        state.last_refusal.is_none_or(|refused| refused.elapsed() > span)
            && !state.pending.values().any(waits)
    }

    /// Whether the log can be written.
    pub(in crate::store) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    /// Writes an operation to the log before it is sent to the store. An operation that waits for
    /// its acknowledgement already is not written again. If the write fails, the line stays in
    /// memory until the log can be written.
    pub(super) fn append(&self, account: &AccountName, op: &Arc<Operation>) -> HoldEndKey {
        let key = HoldEndKey::of(account, op);
        let mut state = self.lock_state();
        if state.pending.get(&key).is_some_and(|known| known.op == *op) {
            return key;
        }
        if state.has_ack_note {
            let forgotten = state.dir.remove_ack_note();
            state.has_ack_note = forgotten.is_err();
            let _ = forgotten.inspect_err(|why| self.record_write_failure(why));
        }
        state.seq += 1;
        let seq = state.seq;
        let Some(line) = record::entry_line(seq, unix_ms(), account, op) else { return key };
        if let Err(unwritten_line) = self.write_line(&mut state, line) {
            let (key, line) = (key.clone(), unwritten_line);
            state.unwritten.insert(seq, UnwrittenLine { key, line, acked_at: None });
        }
        failpoint!("settlement_line_written");
        let segment = state.files.number();
        let now = Instant::now();
        let pending =
            PendingEntry { op: op.clone(), seq, segment, written_at: now, last_tried: now };
        state.pending.insert(key.clone(), pending);
        METRICS.outbox_pending.set(state.pending.len().try_into().unwrap_or(i64::MAX));
        key
    }

    /// Records that a call is about to claim its idempotency key. If the write fails and this
    /// process dies, the key stays claimed until its lease expires.
    pub(super) fn record_call_start(&self, account: &AccountName, key: &IdempotencyKey) {
        let begun = self.calls.record_start(account, key, || self.segment_dir());
        if let Err(why) = begun {
            log::warn!(
                event = "outbox_call_write_failed", owner = key.owner, error:% = why;
                "started call not written to the outbox"
            );
            METRICS.outbox_errors.inc();
        }
    }

    /// Requests an fsync of a file that another part of the outbox has written. Does nothing if
    /// this outbox is not synced.
    pub(super) fn request_fsync(&self, file: &Arc<std::fs::File>) {
        if let Some(syncer) = &self.syncer {
            syncer.request_sync(file);
        }
    }

    /// Returns the folder that this log writes into.
    pub(super) fn segment_dir(&self) -> Arc<SegmentDir> {
        self.lock_state().dir.clone()
    }

    /// Whether another process lives that writes to this outbox.
    pub(in crate::store) fn has_live_peer(&self) -> std::io::Result<bool> {
        self.segment_dir().has_live_peer()
    }

    /// Records that the run `run_id` of the store has acknowledged an entry.
    pub(super) fn record_ack(&self, key: &HoldEndKey, run_id: &str) {
        let mut state = self.lock_state();
        let Some(PendingEntry { seq, .. }) = state.pending.remove(key) else { return };
        METRICS.outbox_pending.set(state.pending.len().try_into().unwrap_or(i64::MAX));
        if let Some(unwritten) = state.unwritten.get_mut(&seq) {
            unwritten.acked_at = Some(Instant::now());
        }
        state.acks.extend(record::ack_line(run_id, seq));
        state.acked_by.add(run_id);
        if state.acks.len() > ACKS_BYTES_MAX {
            // After a failure, the acknowledgements are written with the next line.
            let _ = self.write_line(&mut state, Vec::new());
        }
    }

    /// Returns at most `limit` entries that the store has not acknowledged for `span`, oldest
    /// first. The caller sends them again.
    pub(super) fn take_unacked(
        &self,
        span: Duration,
        limit: usize,
    ) -> Vec<(HoldEndKey, Arc<Operation>)> {
        let mut state = self.lock_state();
        let waiting = state.pending.iter_mut().filter(|(_, p)| p.last_tried.elapsed() >= span);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|(_, pending)| (pending.last_tried, pending.seq));
        waiting.truncate(limit);
        let again = |(key, pending): (&HoldEndKey, &mut PendingEntry)| {
            pending.last_tried = Instant::now();
            (key.clone(), pending.op.clone())
        };
        waiting.into_iter().map(again).collect()
    }

    /// Returns what a replay needs: the files that contain entries, the number of the last entry in
    /// them, and the lines that could not be written to any file.
    pub(super) fn replay_snapshot(&self) -> std::io::Result<(Vec<PathBuf>, u64, Vec<u8>)> {
        let state = self.lock_state();
        let unwritten = state.unwritten.values().flat_map(|u| u.line.clone()).collect();
        let (seq, unused, dir) = (state.seq, state.files.unused(), state.dir.clone());
        drop(state);
        let unused: Vec<PathBuf> =
            unused.map(|number| dir.segment_path(SegmentKind::HoldEnds, number)).collect();
        let mut files = dir.list_segments(SegmentKind::HoldEnds)?;
        // Entries that are written into these files from now on have higher numbers than `seq`.
        files.retain(|file| !unused.contains(file));
        Ok((files, seq, unwritten))
    }

    /// Records that the run `run_id` of the store has acknowledged all entries up to the number
    /// `seq`. The retention of the files begins anew, since this run may lose the entries too.
    pub(super) fn record_all_acked(&self, run_id: &str, seq: u64) {
        let mut state = self.lock_state();
        state.acks.extend(record::all_acked_line(run_id, seq));
        if seq == state.seq {
            state.acked_by = AcknowledgedRuns::One(run_id.into());
        }
        state.files.restart_retention();
        let now = Instant::now();
        state.unwritten.range_mut(..=seq).for_each(|(_, unwritten)| unwritten.acked_at = Some(now));
        // After a failure, the acknowledgements are written with the next line.
        let _ = self.write_line(&mut state, Vec::new());
        // The calls ask for the folder while they are locked.
        drop(state);
        self.calls.restart_retention();
    }

    /// Does the periodic work: ends a file that is old enough, removes files that are no longer
    /// needed, and retries failed writes. It blocks for a moment. `last_answer` is when the store
    /// last answered; `None` if it may lack entries.
    ///
    /// It does not delay settlements: files are created, truncated and removed outside the lock.
    pub(in crate::store) fn maintain(&self, last_answer: Option<Instant>) {
        let (mut state, is_whole) = self.ensure_dir();
        if is_whole && !self.is_writable() {
            self.reopen(&mut state);
        }
        if state.files.is_old() {
            state.files.rotate();
        }
        let is_retention_over = |acked| self.retention.is_over(acked, last_answer);
        state.unwritten.retain(|_, unwritten| !unwritten.acked_at.is_some_and(is_retention_over));
        let needed: HashSet<u64> = state.pending.values().map(|p| p.segment).collect();
        let ended = state.files.take_untrimmed();
        let (done, dir) =
            (state.files.remove_expired(&needed, is_retention_over), state.dir.clone());
        drop(state);
        for (file, bytes) in ended {
            segment_files::truncate_to(&file, bytes);
        }
        self.calls
            .maintain(&dir, |unneeded_since| self.retention.is_over(unneeded_since, last_answer));
        self.orders.maintain(&dir, |unneeded_since| {
            Retention::FOR_JOBS.is_over(unneeded_since, last_answer)
        });
        for number in done {
            // A file that cannot be removed is found by the process that adopts the folder.
            let _ = std::fs::remove_file(dir.segment_path(SegmentKind::HoldEnds, number));
        }
    }

    /// Creates the spare file if there is none. If the folder was deleted, creates a new one and
    /// queues all unacknowledged entries for it; until they are written, no call is admitted.
    /// Returns whether there is a folder to write into.
    fn ensure_dir(&self) -> (MutexGuard<'_, LogState>, bool) {
        let state = self.lock_state();
        let (dir, spare_number) = (state.dir.clone(), state.files.missing_spare_number());
        let intact = dir.check_intact(SegmentKind::HoldEnds, Some(&state.files));
        drop(state);
        if let Err(why) = &intact {
            self.record_write_failure(why);
            let new_dir = SegmentDir::create(&self.root).map(Arc::new);
            let file = new_dir.and_then(|dir| Ok((self.create_segment(&dir, 1)?, dir)));
            let is_recreated = file.is_ok();
            if let Ok((file, dir)) = file {
                self.lock_state().move_to(dir.clone(), SegmentFiles::new(file));
                // If this fails, the calls' holds end when their leases expire.
                let _ = self.calls.move_to(&dir);
                self.orders.reset_files();
            }
            return (self.lock_state(), is_recreated);
        }
        let spare = spare_number.map(|number| self.create_segment(&dir, number));
        let mut state = self.lock_state();
        if let Some(Ok(spare)) = spare {
            state.files.set_spare(spare);
        }
        (state, true)
    }

    /// Writes what is still in memory before the process exits, and trims the files. If one run of
    /// the store has acknowledged all entries, writes a note that says so.
    pub(in crate::store) fn flush(&self) {
        self.calls.flush(|| self.segment_dir());
        self.orders.trim();
        let mut state = self.lock_state();
        if !self.is_writable() {
            self.reopen(&mut state);
        }
        // A failure is ignored, since the process is about to exit and cannot retry.
        let _ = self.write_line(&mut state, Vec::new());
        state.files.trim_current();
        if let AcknowledgedRuns::One(run) = &state.acked_by
            && state.pending.is_empty()
            && state.unwritten.is_empty()
        {
            // The note only saves the adopting process from reading all entries, so a failure does
            // no harm.
            let written =
                std::fs::write(state.dir.ack_note_path(), record::all_acked_line(run, u64::MAX));
            state.has_ack_note = written.is_ok();
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line, and before it the acknowledgements that wait in memory. Returns the line if
    /// the write failed.
    fn write_line(&self, state: &mut LogState, line: Vec<u8>) -> Result<(), Vec<u8>> {
        if state.files.is_full(line.len())
            && !state.files.rotate()
            && let Ok(next) = self.create_segment(&state.dir, state.files.number() + 1)
        {
            state.files.set_spare(next);
            state.files.rotate();
        }
        let mut bytes = std::mem::take(&mut state.acks);
        let acks = bytes.len();
        bytes.extend_from_slice(&line);
        if bytes.is_empty() || self.write_bytes(state, &bytes) {
            return Ok(());
        }
        bytes.truncate(acks);
        // Acknowledgements only save a replay some work, so they may be dropped when there are too
        // many.
        state.acks = if acks > ACKS_BYTES_MAX { Vec::new() } else { bytes };
        Err(line)
    }

    /// Appends bytes to the current file and requests its fsync; `false` if the write failed.
    fn write_bytes(&self, state: &mut LogState, bytes: &[u8]) -> bool {
        match state.files.write(bytes) {
            Ok(file) => {
                if let Some(syncer) = &self.syncer {
                    syncer.request_sync(file);
                }
                true
            }
            Err(why) => {
                self.record_write_failure(&why);
                false
            }
        }
    }

    /// Marks the log as not writable after a failed write, so that new calls are refused.
    pub(super) fn record_write_failure(&self, why: &std::io::Error) {
        if self.writable.swap(false, Ordering::SeqCst) {
            log::error!(
                event = "outbox_write_failed", error:% = why;
                "outbox write failed; new calls are refused"
            );
        }
        METRICS.outbox_errors.inc();
    }

    /// Tests whether the disk accepts writes again, in the spare file if there is one. If so,
    /// writes the lines that are in no file, one by one, and marks the log as writable after the
    /// last.
    fn reopen(&self, state: &mut LogState) {
        state.files.rotate();
        if !self.write_bytes(state, &WRITE_PROBE) {
            return;
        }
        while let Some((seq, UnwrittenLine { key, line, acked_at: acked })) =
            state.unwritten.pop_first()
        {
            if !self.write_bytes(state, &line) {
                state.unwritten.insert(seq, UnwrittenLine { key, line, acked_at: acked });
                return;
            }
            let number = state.files.number();
            if let Some(pending) = state.pending.get_mut(&key).filter(|known| known.seq == seq) {
                pending.segment = number;
            }
        }
        self.writable.store(true, Ordering::SeqCst);
        log::info!(event = "outbox_write_recovered"; "outbox write recovered");
    }

    /// Creates a segment in `dir`. A failure is logged and counted, unless another thread has
    /// created the segment.
    fn create_segment(&self, dir: &SegmentDir, number: u64) -> std::io::Result<Arc<std::fs::File>> {
        segment_files::create_segment(dir, SegmentKind::HoldEnds, number, self.syncer.as_deref())
            .inspect_err(segment_files::log_create_failure)
    }
}

impl LogState {
    /// Continues in another folder. All entries that are not acknowledged are queued to be written
    /// there.
    fn move_to(&mut self, place: Arc<SegmentDir>, files: SegmentFiles) {
        (self.dir, self.files, self.has_ack_note) = (place, files, false);
        for (key, PendingEntry { op, seq, .. }) in &self.pending {
            if let Some(line) = record::entry_line(*seq, unix_ms(), key.account(), op) {
                let unwritten = UnwrittenLine { key: key.clone(), line, acked_at: None };
                self.unwritten.insert(*seq, unwritten);
            }
        }
    }
}

impl Drop for SettlementLog {
    fn drop(&mut self) {
        if let Some(syncer) = &self.syncer {
            syncer.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Acknowledgements, LogRecord};
    use super::*;
    use crate::money::Money;

    fn log(root: &Path) -> SettlementLog {
        SettlementLog::open(root, Retention::FOR_SERVER, Arc::new(AtomicBool::new(true)))
            .expect("a log")
    }

    fn account() -> AccountName {
        AccountName::parse("a").expect("a name")
    }

    fn void(id: &str) -> Arc<Operation> {
        Arc::new(Operation::Void { id: id.to_owned() })
    }

    fn written(log: &SettlementLog) -> Vec<LogRecord> {
        let (files, _, _) = log.replay_snapshot().expect("files");
        files
            .iter()
            .flat_map(|f| record::parse_segment(&std::fs::read(f).expect("a file")).0)
            .collect()
    }

    fn lacking(log: &SettlementLog, run: &str) -> Vec<u64> {
        let mut acks = Acknowledgements::default();
        let records = written(log);
        acks.add_all(&records, run);
        acks.missing_entries(records, i64::MIN).0.iter().map(|entry| entry.seq).collect()
    }

    #[test]
    fn what_waits_is_written_once_and_what_was_acknowledged_waits_no_more() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let first = log.append(&account(), &void("x"));
        assert_eq!(log.append(&account(), &void("x")), first);
        let second = log.append(&account(), &void("y"));
        assert_eq!(lacking(&log, "run"), [1, 2]);
        log.record_ack(&first, "run");
        assert_eq!(lacking(&log, "run"), [1, 2], "that is written with the next");
        log.append(&account(), &void("z"));
        assert_eq!((lacking(&log, "run"), lacking(&log, "other")), (vec![2, 3], vec![1, 2, 3]));
        let waiting = log.take_unacked(Duration::ZERO, 9);
        assert_eq!(
            waiting.iter().map(|(_, op)| op.clone()).collect::<Vec<_>>(),
            [void("y"), void("z")]
        );
        assert!(log.take_unacked(Duration::from_secs(1), 9).is_empty(), "they were tried just now");
        log.record_ack(&second, "run");
        log.flush();
        assert_eq!(lacking(&log, "run"), [3]);
    }

    #[test]
    fn who_leaves_with_all_acknowledged_by_one_run_says_so_and_takes_it_back_for_one_more() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let leaves = || {
            log.flush();
            let note = std::fs::read(log.lock_state().dir.ack_note_path()).ok()?;
            let mut acks = Acknowledgements::default();
            acks.add_all(&record::parse_segment(&note).0, "run");
            Some(acks.has_all())
        };
        assert_eq!(leaves(), None, "nothing is in it");
        let first = log.append(&account(), &void("x"));
        assert_eq!(leaves(), None, "it waits");
        log.record_ack(&first, "run");
        assert_eq!(leaves(), Some(true));
        assert_eq!(lacking(&log, "other"), [1], "another run may lack it");
        let second = log.append(&account(), &void("y"));
        assert_eq!((leaves(), lacking(&log, "run")), (None, vec![2]));
        log.record_ack(&second, "other");
        assert_eq!(leaves(), None, "neither has all");
        log.record_all_acked("other", 2);
        assert_eq!(leaves(), Some(false));
        log.record_all_acked("run", 2);
        assert_eq!(leaves(), Some(true));
    }

    #[test]
    fn a_file_that_is_long_enough_is_followed_by_another_and_goes_only_when_it_may() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let line = "x".repeat(1 << 20);
        let settle = |number: u32| {
            let (id, line) = (number.to_string(), line.clone());
            Arc::new(Operation::Settle {
                id,
                charge: Money::ZERO,
                line,
                origin: None,
                tokens: None,
            })
        };
        let keys: Vec<_> = (0..20).map(|number| log.append(&account(), &settle(number))).collect();
        let files =
            || log.lock_state().dir.list_segments(SegmentKind::HoldEnds).expect("files").len();
        assert_eq!(files(), 2);
        assert_eq!(lacking(&log, "run").len(), 20);
        let later =
            |ms| Some(Instant::now() + Retention::FOR_SERVER.keep + Duration::from_millis(ms));
        log.maintain(later(100));
        assert_eq!(files(), 3, "one waits, one is written, one is next");
        assert_eq!(
            log.replay_snapshot().expect("files").0.len(),
            2,
            "of the next nothing is to be read"
        );
        keys.iter().for_each(|key| log.record_ack(key, "run"));
        for last_answer in [None, Some(Instant::now())] {
            log.maintain(last_answer);
            assert_eq!(files(), 3, "the store may forget it yet");
        }
        log.record_all_acked("other", 20);
        log.maintain(later(100));
        assert_eq!(files(), 2);
    }

    #[test]
    fn what_an_old_file_has_and_waits_is_not_taken_for_written_again_elsewhere() {
        let root = tempfile::tempdir().expect("a folder");
        let log = SettlementLog::open(
            root.path(),
            Retention::FOR_EMBEDDED,
            Arc::new(AtomicBool::new(true)),
        );
        let log = log.expect("a log");
        log.append(&account(), &void("x"));
        log.maintain(Some(Instant::now()));
        // The same state as after a disk that was full for a moment.
        log.writable.store(false, Ordering::SeqCst);
        log.maintain(Some(Instant::now()));
        assert!(log.is_writable());
        log.maintain(Some(Instant::now()));
        assert_eq!(lacking(&log, "file"), [1]);
    }
}
