//! What this process has written to its outbox, and what of it waits for the store.
//!
//! An entry is written with one plain `write` before its operation is sent, so that it outlives the
//! process; a thread of its own syncs what was written, many entries at a time, so that it outlives
//! the machine too. Files have their length from the beginning, with nothing in it: a write that
//! makes one longer would wait whenever a sync is under way. What acknowledges entries is written
//! with whatever comes next, and may be lost: then something is sent once more.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::record;
use super::shelf::Shelf;
use super::sync::Syncer;
use crate::ledger::{AccountName, Operation, Unavailable};
use crate::metrics::METRICS;

/// A file ends when it has about so many bytes, or after so long.
const FILE_BYTES_MAX: u64 = 16 << 20;
const FILE_TIME: Duration = Duration::from_secs(60);
/// What could not be written is tried for so long.
const UNWRITTEN_MAX: Duration = Duration::from_secs(15 * 60);
/// Written to see whether there is room again: lines that say nothing.
const TRIAL: [u8; 4_096] = [b'\n'; 4_096];
/// Acknowledgements wait for the next entry, up to so many bytes of them.
const ACKS_BYTES_MAX: usize = 64 << 10;

/// What the lines of a log have to outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    /// What was acknowledged is kept for so long, in case the store falls back to an older state.
    keep: Duration,
    /// Whether what is written has to outlive the machine's power.
    synced: bool,
}

impl Life {
    /// Before a server, which may lose what it acknowledged, and is away now and then.
    pub(super) const FOR_RUNS: Life = Life { keep: Duration::from_secs(15 * 60), synced: true };
    /// Before a file on this machine, which is synced itself a moment later.
    pub(super) const FOR_A_FILE: Life = Life { keep: Duration::ZERO, synced: false };
}

/// See the module.
pub(in crate::store) struct Log {
    pub(super) root: PathBuf,
    life: Life,
    shelf: Shelf,
    state: Mutex<State>,
    syncer: Option<Arc<Syncer>>,
    /// Whether it can be written. While it cannot, nobody should buy anything.
    sound: Arc<AtomicBool>,
}

struct State {
    file: Arc<File>,
    number: u64,
    bytes: u64,
    begun: Instant,
    seq: u64,
    acks: Vec<u8>,
    pending: HashMap<Key, Pending>,
    /// Lines that are in no file, and when they should have been written.
    unwritten: Vec<(Instant, Vec<u8>)>,
    /// Files that ended, and when.
    past: Vec<(u64, Instant)>,
}

/// An operation that ends a hold: whose, which, and whether it charges nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    account: AccountName,
    id: String,
    is_void: bool,
}

/// An entry that the store has not acknowledged.
struct Pending {
    op: Arc<Operation>,
    seq: u64,
    /// The file that it is in.
    number: u64,
    tried: Instant,
}

impl Key {
    pub(super) fn of(account: &AccountName, op: &Operation) -> Key {
        let id = op.hold_id().unwrap_or_default().to_owned();
        Key { account: account.clone(), id, is_void: matches!(op, Operation::Void { .. }) }
    }

    pub(super) fn account(&self) -> &AccountName {
        &self.account
    }
}

impl Log {
    /// A new log in a folder of the outbox.
    pub(super) fn open(
        root: &Path,
        life: Life,
        sound: Arc<AtomicBool>,
    ) -> Result<Log, Unavailable> {
        let cannot = |why| Unavailable(format!("store.outbox: {}: {why}", root.display()));
        let shelf = Shelf::make(root).map_err(cannot)?;
        let syncer = life.synced.then(|| Syncer::start(sound.clone())).transpose();
        let syncer = syncer.map_err(cannot)?;
        let file = begun(&shelf, 1, syncer.as_deref()).map_err(cannot)?;
        let state = State {
            file,
            number: 1,
            bytes: 0,
            begun: Instant::now(),
            seq: 0,
            acks: Vec::new(),
            pending: HashMap::new(),
            unwritten: Vec::new(),
            past: Vec::new(),
        };
        let (root, state) = (root.to_owned(), Mutex::new(state));
        Ok(Log { root, life, shelf, state, syncer, sound })
    }

    /// Whether it can be written.
    pub(in crate::store) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::SeqCst)
    }

    /// Whether a file may yet be needed though all in it was acknowledged.
    pub(super) fn is_kept(&self, file: &Path) -> bool {
        let written = fs::metadata(file).and_then(|about| about.modified());
        let age = written.ok().and_then(|written| written.elapsed().ok());
        age.is_none_or(|age| age < self.life.keep)
    }

    /// Writes an operation down before it is sent. One that waits already is not written again.
    pub(super) fn enter(&self, account: &AccountName, op: &Arc<Operation>) -> Key {
        let key = Key::of(account, op);
        let mut state = self.state();
        if state.pending.get(&key).is_some_and(|known| known.op == *op) {
            return key;
        }
        state.seq += 1;
        let Some(line) = record::entry(state.seq, unix_ms(), account, op) else { return key };
        self.write(&mut state, line);
        let (seq, number) = (state.seq, state.number);
        let pending = Pending { op: op.clone(), seq, number, tried: Instant::now() };
        state.pending.insert(key.clone(), pending);
        METRICS.outbox_pending.set(state.pending.len().try_into().unwrap_or(i64::MAX));
        key
    }

    /// Notes that a run of the store acknowledged it.
    pub(super) fn acked(&self, key: &Key, by: &str) {
        let mut state = self.state();
        let Some(pending) = state.pending.remove(key) else { return };
        METRICS.outbox_pending.set(state.pending.len().try_into().unwrap_or(i64::MAX));
        state.acks.extend(record::acked(by, pending.seq));
        if state.acks.len() > ACKS_BYTES_MAX {
            self.write(&mut state, Vec::new());
        }
    }

    /// What the store has not acknowledged for so long, the longest first, at most so many: they
    /// are tried again now.
    pub(super) fn waiting(&self, span: Duration, most: usize) -> Vec<(Key, Arc<Operation>)> {
        let mut state = self.state();
        let waiting = state.pending.iter_mut().filter(|(_, p)| p.tried.elapsed() >= span);
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by_key(|(_, pending)| (pending.tried, pending.seq));
        waiting.truncate(most);
        let again = |(key, pending): (&Key, &mut Pending)| {
            pending.tried = Instant::now();
            (key.clone(), pending.op.clone())
        };
        waiting.into_iter().map(again).collect()
    }

    /// Its files, the number of the last entry in them, and the lines that are in none.
    pub(super) fn all(&self) -> std::io::Result<(Vec<PathBuf>, u64, Vec<u8>)> {
        let state = self.state();
        let unwritten = state.unwritten.iter().flat_map(|(_, line)| line.clone()).collect();
        let seq = state.seq;
        drop(state);
        Ok((self.shelf.files()?, seq, unwritten))
    }

    /// Notes that a run of the store acknowledged all entries up to one.
    pub(super) fn all_acked(&self, by: &str, seq: u64) {
        let mut state = self.state();
        state.acks.extend(record::all_acked(by, seq));
        self.write(&mut state, Vec::new());
    }

    /// What is to be done now and then; blocks for a moment. A file ends, old files go, what could
    /// not be written is tried again.
    pub(in crate::store) fn tidy(&self) {
        let mut state = self.state();
        state.unwritten.retain(|(since, _)| since.elapsed() < UNWRITTEN_MAX);
        if !self.is_sound() {
            self.mend(&mut state);
        }
        if state.bytes > 0 && state.begun.elapsed() > FILE_TIME {
            self.turn(&mut state);
        }
        let needed: HashSet<u64> = state.pending.values().map(|p| p.number).collect();
        let (place, keep) = (&self.shelf, self.life.keep);
        state.past.retain(|(number, ended)| {
            let is_done = ended.elapsed() >= keep && !needed.contains(number);
            !(is_done && fs::remove_file(place.file(*number)).is_ok())
        });
    }

    /// Writes what it knows before the process leaves.
    pub(in crate::store) fn flush(&self) {
        let mut state = self.state();
        self.write(&mut state, Vec::new());
        trim(&state);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line, and before it what was acknowledged.
    fn write(&self, state: &mut State, line: Vec<u8>) {
        if state.bytes + line.len() as u64 > FILE_BYTES_MAX {
            self.turn(state);
        }
        let mut bytes = std::mem::take(&mut state.acks);
        let acks = bytes.len();
        bytes.extend_from_slice(&line);
        if !bytes.is_empty() && !self.put(state, &bytes) {
            bytes.truncate(acks);
            // They spare a replay something, and no more than that.
            state.acks = if acks > ACKS_BYTES_MAX { Vec::new() } else { bytes };
            if !line.is_empty() {
                state.unwritten.push((Instant::now(), line));
            }
        }
    }

    /// Whether that could be written. A piece that was is written over by what comes next.
    fn put(&self, state: &mut State, bytes: &[u8]) -> bool {
        if let Err(why) = state.file.write_all_at(bytes, state.bytes) {
            log::error!(why:% = why; "the outbox cannot be written; no call is let in meanwhile");
            METRICS.outbox_errors.inc();
            self.sound.store(false, Ordering::SeqCst);
            return false;
        }
        state.bytes += bytes.len() as u64;
        if let Some(syncer) = &self.syncer {
            syncer.sync(&state.file);
        }
        true
    }

    /// Tries whether it can be written again, in a new file.
    fn mend(&self, state: &mut State) {
        if state.bytes > 0 {
            self.turn(state);
        }
        let missing: Vec<u8> = state.unwritten.iter().flat_map(|(_, line)| line.clone()).collect();
        if self.put(state, &[&TRIAL, &missing[..]].concat()) {
            let number = state.number;
            // Whichever file they were meant for, now they are here.
            state.pending.values_mut().for_each(|p| p.number = number);
            state.unwritten.clear();
            self.sound.store(true, Ordering::SeqCst);
            log::info!("the outbox can be written again");
        }
    }

    /// Goes on in a new file. If there is none to be had, in the old one.
    fn turn(&self, state: &mut State) {
        match begun(&self.shelf, state.number + 1, self.syncer.as_deref()) {
            Ok(file) => {
                trim(state);
                state.past.push((state.number, Instant::now()));
                state.number += 1;
                state.file = file;
                (state.bytes, state.begun) = (0, Instant::now());
            }
            Err(why) => {
                log::error!(why:% = why; "the outbox gets no new file");
                METRICS.outbox_errors.inc();
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(syncer) = &self.syncer {
            syncer.stop();
        }
    }
}

/// Takes off the file what nothing was written into.
fn trim(state: &State) {
    // It only takes up room, and not even that.
    let _ = state.file.set_len(state.bytes);
}

/// A new file of a shelf. Its name is synced with its first bytes.
fn begun(shelf: &Shelf, number: u64, syncer: Option<&Syncer>) -> std::io::Result<Arc<File>> {
    let path = shelf.file(number);
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.set_len(FILE_BYTES_MAX)?;
    if let Some(syncer) = syncer {
        syncer.sync(&Arc::new(File::open(&shelf.folder)?));
    }
    Ok(Arc::new(file))
}

/// Now, in unix ms.
pub(super) fn unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_millis()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Acks, Record};
    use super::*;
    use crate::money::Money;

    fn log(root: &Path) -> Log {
        Log::open(root, Life::FOR_RUNS, Arc::new(AtomicBool::new(true))).expect("a log")
    }

    fn account() -> AccountName {
        AccountName::parse("a").expect("a name")
    }

    fn void(id: &str) -> Arc<Operation> {
        Arc::new(Operation::Void { id: id.to_owned() })
    }

    fn written(log: &Log) -> Vec<Record> {
        let (files, _, _) = log.all().expect("files");
        files.iter().flat_map(|f| record::read(&fs::read(f).expect("a file")).0).collect()
    }

    fn lacking(log: &Log, run: &str) -> Vec<u64> {
        let mut acks = Acks::default();
        let records = written(log);
        acks.note(&records, run);
        acks.lacking(records).iter().map(|entry| entry.seq).collect()
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
    fn a_file_that_is_long_enough_is_followed_by_another_and_goes_only_when_it_may() {
        let root = tempfile::tempdir().expect("a folder");
        let log = log(root.path());
        let line = "x".repeat(1 << 20);
        let settle = |number: u32| {
            let (id, line) = (number.to_string(), line.clone());
            Arc::new(Operation::Settle { id, charge: Money::ZERO, line, origin: None })
        };
        let keys: Vec<_> = (0..20).map(|number| log.enter(&account(), &settle(number))).collect();
        assert_eq!(log.all().expect("files").0.len(), 2);
        assert_eq!(lacking(&log, "run").len(), 20);
        keys.iter().for_each(|key| log.acked(key, "run"));
        log.tidy();
        assert_eq!(log.all().expect("files").0.len(), 2, "Redis may forget it yet");
        assert!(log.all().expect("files").0.iter().all(|file| log.is_kept(file)));
    }
}
