//! What this process has written to its outbox, and what of it waits for the store.
//!
//! An entry is written with one plain `write` before its operation is sent, so that it outlives the
//! process; where it has to outlive the machine's power too, a thread of its own syncs what was
//! written, many entries at a time. What acknowledges entries is written with whatever comes next,
//! and may be lost: then something is sent once more.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::calls::StartedCalls;
use super::files::{self, SegmentFiles};
use super::orders::JobOrders;
use super::record;
use super::shelf::{SegmentDir, SegmentKind};
use super::sync::FsyncThread;
use crate::ledger::{AccountName, Operation, Unavailable};
use crate::metrics::METRICS;
use crate::repeats::IdempotencyKey;

/// Written to see whether there is room again: lines that say nothing.
const TRIAL: [u8; 4_096] = [b'\n'; 4_096];
/// Acknowledgements wait for the next entry, up to so many bytes of them.
const ACKS_BYTES_MAX: usize = 64 << 10;
/// What is not acknowledged after so long waits for a store that is not well.
const WAITS: Duration = Duration::from_secs(1);
/// Whoever was refused has tried again by then.
const CALM: Duration = Duration::from_secs(10);

/// What the lines of a log have to outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retention {
    /// What was acknowledged is kept for so long while the store answers, in case it falls back to
    /// an older state.
    pub(super) keep: Duration,
    /// Whether what is written has to outlive the machine's power.
    synced: bool,
}

impl Retention {
    /// Before a server, which may lose what it acknowledged, and is away now and then.
    pub(super) const FOR_RUNS: Retention =
        Retention { keep: Duration::from_secs(15 * 60), synced: true };
    /// Before a file on this machine, which is synced itself a moment later.
    pub(super) const FOR_A_FILE: Retention = Retention { keep: Duration::ZERO, synced: false };

    /// Of jobs, which a server that comes back lacks only where they are new.
    const FOR_JOBS: Retention = Retention { keep: Duration::from_secs(60), synced: true };

    /// Whether what was acknowledged then can go: the store has answered for long enough since,
    /// as it last did at a moment.
    pub(super) fn is_over(self, acked: Instant, alive: Option<Instant>) -> bool {
        let answered = |alive: Instant| alive.saturating_duration_since(acked);
        alive.is_some_and(|alive| answered(alive) >= self.keep)
    }
}

/// See the module.
pub(in crate::store) struct SettlementLog {
    pub(super) root: PathBuf,
    pub(super) life: Retention,
    pub(super) calls: StartedCalls,
    pub(super) orders: JobOrders,
    state: Mutex<LogState>,
    syncer: Option<Arc<FsyncThread>>,
    /// Whether it can be written. While it cannot, nobody should buy anything.
    sound: Arc<AtomicBool>,
}

struct LogState {
    shelf: Arc<SegmentDir>,
    files: SegmentFiles,
    seq: u64,
    acks: Vec<u8>,
    pending: HashMap<HoldEndKey, PendingEntry>,
    /// Lines that are in no file, by their number.
    unwritten: BTreeMap<u64, UnwrittenLine>,
    /// When the store last did not take something.
    refused: Option<Instant>,
    runs: AcknowledgedRuns,
    /// Whether it is noted that all is acknowledged.
    left: bool,
    /// The shelf of which it is noted which store it is for, and which one.
    told: Option<(PathBuf, Box<str>)>,
}

/// The runs of the store that acknowledged what is in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AcknowledgedRuns {
    None,
    One(Box<str>),
    Several,
}

impl AcknowledgedRuns {
    fn note(&mut self, by: &str) {
        match self {
            AcknowledgedRuns::None => *self = AcknowledgedRuns::One(by.into()),
            AcknowledgedRuns::One(one) if **one == *by => {}
            _ => *self = AcknowledgedRuns::Several,
        }
    }
}

/// An operation that ends a hold: whose, which, and whether it charges nothing.
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
    /// The file that it is in.
    number: u64,
    entered: Instant,
    tried: Instant,
}

/// A line that is in no file.
struct UnwrittenLine {
    key: HoldEndKey,
    line: Vec<u8>,
    acked: Option<Instant>,
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
    /// A new log in a folder of the outbox.
    pub(super) fn open(
        root: &Path,
        life: Retention,
        sound: Arc<AtomicBool>,
    ) -> Result<SettlementLog, Unavailable> {
        let cannot = |why| Unavailable(format!("store.outbox: {}: {why}", root.display()));
        let shelf = Arc::new(SegmentDir::make(root).map_err(cannot)?);
        let syncer = life.synced.then(|| FsyncThread::start(sound.clone())).transpose();
        let syncer = syncer.map_err(cannot)?;
        let files = SegmentFiles::new(
            files::begun(&shelf, (SegmentKind::Ends, 1), syncer.as_deref()).map_err(cannot)?,
        );
        let (acks, pending, unwritten) = (Vec::new(), HashMap::new(), BTreeMap::new());
        let (seq, refused, runs, left, told) = (0, None, AcknowledgedRuns::None, false, None);
        let state =
            LogState { shelf, files, seq, acks, pending, unwritten, refused, runs, left, told };
        let (root, state) = (root.to_owned(), Mutex::new(state));
        let (calls, orders) = (StartedCalls::default(), JobOrders::default());
        Ok(SettlementLog { root, life, calls, orders, state, syncer, sound })
    }

    /// Notes which store it is for, so that nobody tells another one what it says: whoever was
    /// given new credit there has not made those calls with it. The same again costs next to
    /// nothing, and notes it where the shelf is another one by now.
    ///
    /// # Errors
    /// [`Unavailable`] if that cannot be written.
    pub(in crate::store) fn belongs_to(&self, id: &str) -> Result<(), Unavailable> {
        let mut state = self.state();
        let told = (state.shelf.folder.clone(), id.into());
        if state.told.as_ref() != Some(&told) {
            let cannot = |why| Unavailable(format!("store.outbox: {why}"));
            state.shelf.note_store(id).map_err(cannot)?;
            state.told = Some(told);
        }
        Ok(())
    }

    /// The store did not take something.
    pub(super) fn was_refused(&self) {
        self.state().refused = Some(Instant::now());
    }

    /// Whether the store has taken everything for so long, or for a while that is enough to say
    /// again what it did not take: one that takes no writes may answer questions all the same.
    pub(in crate::store) fn is_calm(&self, span: Duration) -> bool {
        let state = self.state();
        let waits = |pending: &PendingEntry| pending.entered.elapsed() > WAITS;
        let span = span.min(CALM);
        state.refused.is_none_or(|refused| refused.elapsed() > span)
            && !state.pending.values().any(waits)
    }

    /// Whether it can be written.
    pub(in crate::store) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::SeqCst)
    }

    /// Writes an operation down before it is sent. One that waits already is not written again.
    pub(super) fn enter(&self, account: &AccountName, op: &Arc<Operation>) -> HoldEndKey {
        let key = HoldEndKey::of(account, op);
        let mut state = self.state();
        if state.pending.get(&key).is_some_and(|known| known.op == *op) {
            return key;
        }
        if state.left {
            let forgotten = state.shelf.forget_notes();
            state.left = forgotten.is_err();
            let _ = forgotten.inspect_err(|why| self.is_lost(why));
        }
        state.seq += 1;
        let seq = state.seq;
        let Some(line) = record::entry(seq, unix_ms(), account, op) else { return key };
        if let Err(line) = self.write(&mut state, line) {
            state.unwritten.insert(seq, UnwrittenLine { key: key.clone(), line, acked: None });
        }
        let number = state.files.number();
        let now = Instant::now();
        let pending = PendingEntry { op: op.clone(), seq, number, entered: now, tried: now };
        state.pending.insert(key.clone(), pending);
        METRICS.outbox_pending.set(state.pending.len().try_into().unwrap_or(i64::MAX));
        key
    }

    /// Writes down that a call is about to take its name. If that fails, only its lease tells that
    /// it died.
    pub(super) fn call_begins(&self, account: &AccountName, naming: &IdempotencyKey) {
        let begun = self.calls.begin(account, naming, || self.folder());
        if let Err(why) = begun {
            log::warn!(
                event = "outbox_call_write_failed", owner = naming.owner, why:% = why;
                "a call is not written down"
            );
            METRICS.outbox_errors.inc();
        }
    }

    /// Has a file synced soon that somebody else writes.
    pub(super) fn sync_soon(&self, file: &Arc<std::fs::File>) {
        if let Some(syncer) = &self.syncer {
            syncer.sync(file);
        }
    }

    /// Its folder.
    pub(super) fn folder(&self) -> Arc<SegmentDir> {
        self.state().shelf.clone()
    }

    /// Notes that a run of the store acknowledged it.
    pub(super) fn acked(&self, key: &HoldEndKey, by: &str) {
        let mut state = self.state();
        let Some(PendingEntry { seq, .. }) = state.pending.remove(key) else { return };
        METRICS.outbox_pending.set(state.pending.len().try_into().unwrap_or(i64::MAX));
        if let Some(unwritten) = state.unwritten.get_mut(&seq) {
            unwritten.acked = Some(Instant::now());
        }
        state.acks.extend(record::acked(by, seq));
        state.runs.note(by);
        if state.acks.len() > ACKS_BYTES_MAX {
            // It is tried again with what comes next.
            let _ = self.write(&mut state, Vec::new());
        }
    }

    /// What the store has not acknowledged for so long, the longest first, at most so many: they
    /// are tried again now.
    pub(super) fn waiting(&self, span: Duration, most: usize) -> Vec<(HoldEndKey, Arc<Operation>)> {
        let mut state = self.state();
        let waiting = state.pending.iter_mut().filter(|(_, p)| p.tried.elapsed() >= span);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|(_, pending)| (pending.tried, pending.seq));
        waiting.truncate(most);
        let again = |(key, pending): (&HoldEndKey, &mut PendingEntry)| {
            pending.tried = Instant::now();
            (key.clone(), pending.op.clone())
        };
        waiting.into_iter().map(again).collect()
    }

    /// Its files, the number of the last entry in them, and the lines that are in none.
    pub(super) fn all(&self) -> std::io::Result<(Vec<PathBuf>, u64, Vec<u8>)> {
        let state = self.state();
        let unwritten = state.unwritten.values().flat_map(|u| u.line.clone()).collect();
        let (seq, unused, place) = (state.seq, state.files.unused(), state.shelf.clone());
        drop(state);
        let unused: Vec<PathBuf> =
            unused.map(|number| place.file(SegmentKind::Ends, number)).collect();
        let mut files = place.files(SegmentKind::Ends)?;
        // Whatever comes into them meanwhile has a higher number.
        files.retain(|file| !unused.contains(file));
        Ok((files, seq, unwritten))
    }

    /// Notes that a run of the store acknowledged all entries up to one: it may forget them too.
    pub(super) fn all_acked(&self, by: &str, seq: u64) {
        let mut state = self.state();
        state.acks.extend(record::all_acked(by, seq));
        if seq == state.seq {
            state.runs = AcknowledgedRuns::One(by.into());
        }
        state.files.are_needed();
        let now = Instant::now();
        state.unwritten.range_mut(..=seq).for_each(|(_, unwritten)| unwritten.acked = Some(now));
        // What is not written is written with what comes next.
        let _ = self.write(&mut state, Vec::new());
    }

    /// What is to be done now and then; blocks for a moment. A file ends, old files go, what could
    /// not be written is tried again. `alive` is when the store last answered, if it lacks nothing.
    ///
    /// Whoever ends a call waits for nobody here: files are made, cut and removed beside the lock.
    pub(in crate::store) fn tidy(&self, alive: Option<Instant>) {
        let (mut state, is_whole) = self.look_after();
        if is_whole && !self.is_sound() {
            self.mend(&mut state);
        }
        if state.files.is_old() {
            state.files.turn();
        }
        let is_over = |acked| self.life.is_over(acked, alive);
        state.unwritten.retain(|_, unwritten| !unwritten.acked.is_some_and(is_over));
        let needed: HashSet<u64> = state.pending.values().map(|p| p.number).collect();
        let ended = state.files.ended();
        let (done, place) = (state.files.done(&needed, is_over), state.shelf.clone());
        drop(state);
        for (file, bytes) in ended {
            files::trim(&file, bytes);
        }
        self.calls.tidy(&place);
        self.orders.tidy(&place, |quiet| Retention::FOR_JOBS.is_over(quiet, alive));
        for number in done {
            // One that stays is found by whoever has the shelf next.
            let _ = std::fs::remove_file(place.file(SegmentKind::Ends, number));
        }
    }

    /// Looks whether its folder is still there, and makes the file that is written next. What is
    /// written where somebody has deleted the folder nobody would find; then a new one is made, for
    /// all that the store has not acknowledged, and until that is written nobody is let in. Tells
    /// whether there is a folder to write into.
    fn look_after(&self) -> (MutexGuard<'_, LogState>, bool) {
        let state = self.state();
        let (place, wanted) = (state.shelf.clone(), state.files.wants_spare());
        let is_whole = place.is_whole(&state.files);
        drop(state);
        if let Err(why) = &is_whole {
            self.is_lost(why);
            let made = SegmentDir::make(&self.root).map(Arc::new);
            let file = made.and_then(|made| Ok((self.begun(&made, 1)?, made)));
            let is_made = file.is_ok();
            if let Ok((file, made)) = file {
                self.state().move_to(made.clone(), SegmentFiles::new(file));
                // Of what fails here only a lease tells that it died.
                let _ = self.calls.move_to(&made);
                self.orders.forget();
            }
            return (self.state(), is_made);
        }
        let spare = wanted.map(|number| self.begun(&place, number));
        let mut state = self.state();
        if let Some(Ok(spare)) = spare {
            state.files.has_spare(spare);
        }
        (state, true)
    }

    /// Writes what it knows before the process leaves.
    pub(in crate::store) fn flush(&self) {
        self.calls.flush(|| self.folder());
        self.orders.trim();
        let mut state = self.state();
        if !self.is_sound() {
            self.mend(&mut state);
        }
        // What cannot be written now, nobody writes any more.
        let _ = self.write(&mut state, Vec::new());
        state.files.trim();
        if let AcknowledgedRuns::One(run) = &state.runs
            && state.pending.is_empty()
            && state.unwritten.is_empty()
        {
            // It only spares whoever comes next reading all of it.
            let noted = std::fs::write(state.shelf.notes(), record::all_acked(run, u64::MAX));
            state.left = noted.is_ok();
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line, and before it what was acknowledged. Gives the line back if that failed.
    fn write(&self, state: &mut LogState, line: Vec<u8>) -> Result<(), Vec<u8>> {
        if state.files.is_full(line.len())
            && !state.files.turn()
            && let Ok(next) = self.begun(&state.shelf, state.files.number() + 1)
        {
            state.files.has_spare(next);
            state.files.turn();
        }
        let mut bytes = std::mem::take(&mut state.acks);
        let acks = bytes.len();
        bytes.extend_from_slice(&line);
        if bytes.is_empty() || self.put(state, &bytes) {
            return Ok(());
        }
        bytes.truncate(acks);
        // They spare a replay something, and no more than that.
        state.acks = if acks > ACKS_BYTES_MAX { Vec::new() } else { bytes };
        Err(line)
    }

    /// Whether that could be written.
    fn put(&self, state: &mut LogState, bytes: &[u8]) -> bool {
        match state.files.write(bytes) {
            Ok(file) => {
                if let Some(syncer) = &self.syncer {
                    syncer.sync(file);
                }
                true
            }
            Err(why) => {
                self.is_lost(&why);
                false
            }
        }
    }

    /// It cannot be written, so nobody should buy anything.
    pub(super) fn is_lost(&self, why: &std::io::Error) {
        if self.sound.swap(false, Ordering::SeqCst) {
            log::error!(
                event = "outbox_write_failed", why:% = why;
                "the outbox cannot be written; nobody is let in"
            );
        }
        METRICS.outbox_errors.inc();
    }

    /// Tries whether it can be written again, in a new file if there is one. Whatever can be is
    /// written, line by line.
    fn mend(&self, state: &mut LogState) {
        state.files.turn();
        if !self.put(state, &TRIAL) {
            return;
        }
        while let Some((seq, UnwrittenLine { key, line, acked })) = state.unwritten.pop_first() {
            if !self.put(state, &line) {
                state.unwritten.insert(seq, UnwrittenLine { key, line, acked });
                return;
            }
            let number = state.files.number();
            if let Some(pending) = state.pending.get_mut(&key).filter(|known| known.seq == seq) {
                pending.number = number;
            }
        }
        self.sound.store(true, Ordering::SeqCst);
        log::info!(event = "outbox_write_recovered"; "the outbox can be written again");
    }

    /// A new file.
    fn begun(&self, place: &SegmentDir, number: u64) -> std::io::Result<Arc<std::fs::File>> {
        files::begun(place, (SegmentKind::Ends, number), self.syncer.as_deref()).inspect_err(
            |why| {
                log::error!(
                    event = "outbox_file_create_failed", why:% = why;
                    "the outbox gets no new file"
                );
                METRICS.outbox_errors.inc();
            },
        )
    }
}

impl LogState {
    /// Goes on in another folder, into which whatever still waits is to be written.
    fn move_to(&mut self, place: Arc<SegmentDir>, files: SegmentFiles) {
        (self.shelf, self.files, self.left) = (place, files, false);
        for (key, PendingEntry { op, seq, .. }) in &self.pending {
            if let Some(line) = record::entry(*seq, unix_ms(), key.account(), op) {
                let unwritten = UnwrittenLine { key: key.clone(), line, acked: None };
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

/// Now, in unix ms.
pub(super) fn unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_millis()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Acknowledgements, LogRecord};
    use super::*;
    use crate::money::Money;

    fn log(root: &Path) -> SettlementLog {
        SettlementLog::open(root, Retention::FOR_RUNS, Arc::new(AtomicBool::new(true)))
            .expect("a log")
    }

    fn account() -> AccountName {
        AccountName::parse("a").expect("a name")
    }

    fn void(id: &str) -> Arc<Operation> {
        Arc::new(Operation::Void { id: id.to_owned() })
    }

    fn written(log: &SettlementLog) -> Vec<LogRecord> {
        let (files, _, _) = log.all().expect("files");
        files.iter().flat_map(|f| record::read(&std::fs::read(f).expect("a file")).0).collect()
    }

    fn lacking(log: &SettlementLog, run: &str) -> Vec<u64> {
        let mut acks = Acknowledgements::default();
        let records = written(log);
        acks.note(&records, run);
        acks.lacking(records, i64::MIN).0.iter().map(|entry| entry.seq).collect()
    }

    #[test]
    fn what_waits_is_written_once_and_what_was_acknowledged_waits_no_more() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let first = log.enter(&account(), &void("x"));
        assert_eq!(log.enter(&account(), &void("x")), first);
        let second = log.enter(&account(), &void("y"));
        assert_eq!(lacking(&log, "run"), [1, 2]);
        log.acked(&first, "run");
        assert_eq!(lacking(&log, "run"), [1, 2], "that is written with the next");
        log.enter(&account(), &void("z"));
        assert_eq!((lacking(&log, "run"), lacking(&log, "other")), (vec![2, 3], vec![1, 2, 3]));
        let waiting = log.waiting(Duration::ZERO, 9);
        assert_eq!(
            waiting.iter().map(|(_, op)| op.clone()).collect::<Vec<_>>(),
            [void("y"), void("z")]
        );
        assert!(log.waiting(Duration::from_secs(1), 9).is_empty(), "they were tried just now");
        log.acked(&second, "run");
        log.flush();
        assert_eq!(lacking(&log, "run"), [3]);
    }

    #[test]
    fn who_leaves_with_all_acknowledged_by_one_run_says_so_and_takes_it_back_for_one_more() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let leaves = || {
            log.flush();
            let noted = std::fs::read(log.state().shelf.notes()).ok()?;
            let mut acks = Acknowledgements::default();
            acks.note(&record::read(&noted).0, "run");
            Some(acks.has_all())
        };
        assert_eq!(leaves(), None, "nothing is in it");
        let first = log.enter(&account(), &void("x"));
        assert_eq!(leaves(), None, "it waits");
        log.acked(&first, "run");
        assert_eq!(leaves(), Some(true));
        assert_eq!(lacking(&log, "other"), [1], "another run may lack it");
        let second = log.enter(&account(), &void("y"));
        assert_eq!((leaves(), lacking(&log, "run")), (None, vec![2]));
        log.acked(&second, "other");
        assert_eq!(leaves(), None, "neither has all");
        log.all_acked("other", 2);
        assert_eq!(leaves(), Some(false));
        log.all_acked("run", 2);
        assert_eq!(leaves(), Some(true));
    }

    #[test]
    fn a_file_that_is_long_enough_is_followed_by_another_and_goes_only_when_it_may() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let line = "x".repeat(1 << 20);
        let settle = |number: u32| {
            let (id, line) = (number.to_string(), line.clone());
            Arc::new(Operation::Settle { id, charge: Money::ZERO, line, origin: None })
        };
        let keys: Vec<_> = (0..20).map(|number| log.enter(&account(), &settle(number))).collect();
        let files = || log.state().shelf.files(SegmentKind::Ends).expect("files").len();
        assert_eq!(files(), 2);
        assert_eq!(lacking(&log, "run").len(), 20);
        let later =
            |ms| Some(Instant::now() + Retention::FOR_RUNS.keep + Duration::from_millis(ms));
        log.tidy(later(100));
        assert_eq!(files(), 3, "one waits, one is written, one is next");
        assert_eq!(log.all().expect("files").0.len(), 2, "of the next nothing is to be read");
        keys.iter().for_each(|key| log.acked(key, "run"));
        for alive in [None, Some(Instant::now())] {
            log.tidy(alive);
            assert_eq!(files(), 3, "the store may forget it yet");
        }
        log.all_acked("other", 20);
        log.tidy(later(100));
        assert_eq!(files(), 2);
    }

    #[test]
    fn what_an_old_file_has_and_waits_is_not_taken_for_written_again_elsewhere() {
        let root = tempfile::tempdir().expect("a folder");
        let log = SettlementLog::open(
            root.path(),
            Retention::FOR_A_FILE,
            Arc::new(AtomicBool::new(true)),
        );
        let log = log.expect("a log");
        log.enter(&account(), &void("x"));
        log.tidy(Some(Instant::now()));
        // As after a disk that was full for a moment.
        log.sound.store(false, Ordering::SeqCst);
        log.tidy(Some(Instant::now()));
        assert!(log.is_sound());
        log.tidy(Some(Instant::now()));
        assert_eq!(lacking(&log, "file"), [1]);
    }
}
