//! Records of calls that run under an idempotency key. Each call is recorded in the outbox before
//! its key is claimed, so that the process which adopts the outbox of a dead process need not wait
//! for the leases of its keys. The records stay for a while after the calls: a store that was
//! restored, or fell back, gets charges from the outbox that it lacks, and lacks their keys too.
//!
//! A line is one plain write and is never synced: after a power cut, the keys are free when their
//! leases expire. The end of a call is written with the next line. If that is missing, the adopting
//! process looks the key up.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::SetOnce;
use tokio::time::timeout;

use super::retention::Retention;
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_writer::SegmentWriter;
use super::{record, segment_files};
use crate::clock::unix_ms;
use crate::idempotency::IdempotencyKey;
use crate::ledger::{AccountName, Unavailable};

/// Lines about ended calls wait in memory for the next call, at most about this many bytes of them.
const END_NOTES_BYTES_MAX: usize = 64 << 10;
/// At most this many running calls are recorded. If a call beyond them dies, its key is free when
/// its lease expires.
const STARTED_CALLS_MAX: usize = 16_384;
/// No call runs longer than this. A call whose end was never recorded is forgotten after this time,
/// and its key is left to its lease.
const CALL_DURATION_MAX: Duration = Duration::from_secs(60 * 60);
/// A file is kept for this long after the last call in it has ended, and as long as the ends of
/// holds: those of an embedded store are kept for about a minute.
const ENDED_CALLS_KEPT: Duration = Retention::FOR_SERVER.keep;
/// If more calls than this were recorded within that time, files are not kept after their last call
/// has ended: repeats cost their clients nothing, and must not fill the disk.
const ENDED_CALLS_MAX: u64 = 100_000;

/// A call waits at most this long until its key may be claimed. Its caller may stop earlier.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The numbers of segments of notes in the folders of ended processes begin here, far beyond those
/// that a process makes.
const NOTE_SEGMENTS: u64 = 90_000_000;

/// The records of the calls that this process runs under an idempotency key.
pub(in crate::store) struct StartedCalls {
    state: Mutex<StartedCallsState>,
    /// The number of running calls in `state`. While it is 0, the end of a call needs no lock.
    running: AtomicUsize,
    /// Set when the store has everything that earlier processes left.
    adoption: SetOnce<()>,
}

struct StartedCallsState {
    writer: SegmentWriter,
    seq: u64,
    running: HashMap<StartedCallKey, StartedCall>,
    ended_lines: Vec<u8>,
    /// How many calls had been recorded at times of the last while, the oldest first.
    counts: VecDeque<(Instant, u64)>,
}

/// What identifies a started call: the account, the idempotency key and the id of the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StartedCallKey {
    account: AccountName,
    name: String,
    owner: String,
}

struct StartedCall {
    seq: u64,
    /// The number of the file that has the record of the call.
    segment: u64,
    since: Instant,
    line: Vec<u8>,
}

/// The JSON form of a line.
#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum StartedCallLine<'a> {
    /// A call is about to claim its idempotency key.
    Begun {
        seq: u64,
        /// When the call was recorded, in unix ms.
        at: i64,
        account: Cow<'a, str>,
        name: Cow<'a, str>,
        owner: Cow<'a, str>,
        content: [u8; 32],
        life_ms: u64,
    },
    /// The call with this number no longer owns its key, or the store has its result.
    Ended { seq: u64 },
}

impl Default for StartedCalls {
    fn default() -> StartedCalls {
        let (writer, running) = (SegmentWriter::new(SegmentKind::Calls), HashMap::new());
        let state = Mutex::new(StartedCallsState {
            writer,
            seq: 0,
            running,
            ended_lines: Vec::new(),
            counts: VecDeque::new(),
        });
        StartedCalls { state, running: AtomicUsize::new(0), adoption: SetOnce::new() }
    }
}

impl StartedCalls {
    /// Records that the store has everything that earlier processes left: the charges of their
    /// calls, and the keys of these. A server's run gate sees to that, so there it is set from the
    /// start.
    pub(in crate::store) fn set_adopted(&self) {
        // It stays set: what another process leaves later, its own keys protect until then.
        let _ = self.adoption.set(());
    }

    /// Waits until the store has everything that earlier processes left. A store that was restored
    /// lacks the keys of calls that they have charged, whose repeats would be new calls.
    ///
    /// # Errors
    /// [`Unavailable`] if that takes longer than `ADOPTION_TIMEOUT`.
    pub(super) async fn wait_for_adoption(&self) -> Result<(), Unavailable> {
        let waited = timeout(ADOPTION_TIMEOUT, self.adoption.wait()).await;
        waited
            .map(drop)
            .map_err(|_| Unavailable("the store may lack what earlier processes left".to_owned()))
    }

    /// Records that a call is about to claim its idempotency key.
    ///
    /// # Errors
    /// The record could not be written, or too many calls run under keys.
    pub(super) fn record_start(
        &self,
        account: &AccountName,
        key: &IdempotencyKey,
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<()> {
        let IdempotencyKey { name, content, owner, life_ms } = key;
        let mut state = self.lock_state();
        if state.running.len() >= STARTED_CALLS_MAX {
            return Err(io::Error::other("too many calls run under idempotency keys"));
        }
        state.seq += 1;
        let seq = state.seq;
        let line = record::encode_line(
            &StartedCallLine::Begun {
                seq,
                at: unix_ms(),
                account: account.as_str().into(),
                name: name.into(),
                owner: owner.into(),
                content: *content,
                life_ms: *life_ms,
            },
            None,
        );
        let segment = state.write(&line, dir)?;
        let call_key =
            StartedCallKey { account: account.clone(), name: name.clone(), owner: owner.clone() };
        state.running.insert(call_key, StartedCall { seq, segment, since: Instant::now(), line });
        self.running.store(state.running.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Records that the key of a call is free again, or that the store has the result of the call.
    /// The line is written together with the next one.
    pub(super) fn record_end(&self, account: &AccountName, name: &str, owner: &str) {
        if self.running.load(Ordering::Relaxed) == 0 {
            return;
        }
        let key = StartedCallKey {
            account: account.clone(),
            name: name.to_owned(),
            owner: owner.to_owned(),
        };
        let mut state = self.lock_state();
        let Some(StartedCall { seq, .. }) = state.running.remove(&key) else { return };
        if state.ended_lines.len() < END_NOTES_BYTES_MAX {
            state.ended_lines.extend(record::encode_line(&StartedCallLine::Ended { seq }, None));
        }
        self.running.store(state.running.len(), Ordering::Relaxed);
    }

    /// Periodic work: rotates a full segment and removes old ones, if `is_over` says of the time
    /// since which they are not needed that the ends of holds of that time are not kept either.
    /// Files are created and removed outside the lock.
    pub(super) fn maintain(&self, dir: &SegmentDir, is_over: impl Fn(Instant) -> bool) {
        let spare_number = self.lock_state().writer.missing_spare_number();
        let spare = spare_number
            .map(|number| segment_files::create_segment(dir, SegmentKind::Calls, number, None));
        let mut state = self.lock_state();
        state.running.retain(|_, running| running.since.elapsed() < CALL_DURATION_MAX);
        self.running.store(state.running.len(), Ordering::Relaxed);
        let needed: HashSet<u64> = state.running.values().map(|r| r.segment).collect();
        let is_kept = state.count_recent() <= ENDED_CALLS_MAX;
        let is_over = |unneeded_since: Instant| {
            !is_kept || unneeded_since.elapsed() >= ENDED_CALLS_KEPT && is_over(unneeded_since)
        };
        let rest = state.writer.plan_cleanup(spare.and_then(Result::ok), &needed, is_over);
        drop(state);
        rest.finish(dir);
    }

    /// Records the running calls again in another folder, since the last one was deleted.
    pub(super) fn move_to(&self, dir: &Arc<SegmentDir>) -> io::Result<()> {
        let mut state = self.lock_state();
        state.writer.reset();
        let mut running = std::mem::take(&mut state.running);
        let written = running.values_mut().try_for_each(|running| {
            running.segment = state.write(&running.line, || dir.clone())?;
            Ok(())
        });
        state.running = running;
        written
    }

    /// Keeps all files for as long again, since the ends of holds are.
    pub(super) fn restart_retention(&self) {
        self.lock_state().writer.restart_retention();
    }

    /// Writes the pending lines about ended calls.
    pub(super) fn write_ended(&self, dir: impl FnOnce() -> Arc<SegmentDir>) {
        let mut state = self.lock_state();
        let ended_lines = std::mem::take(&mut state.ended_lines);
        if !ended_lines.is_empty() {
            // These lines only save the adopting process a lookup per call, so a failure is
            // ignored.
            let _ = state.writer.write(&ended_lines, dir);
        }
    }

    /// Writes the pending lines about ended calls before the process exits, and trims the file.
    pub(super) fn flush(&self, dir: impl FnOnce() -> Arc<SegmentDir>) {
        self.write_ended(dir);
        self.lock_state().writer.trim();
    }

    fn lock_state(&self) -> MutexGuard<'_, StartedCallsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StartedCallsState {
    /// Returns how many calls were recorded within the time for which they are kept.
    fn count_recent(&mut self) -> u64 {
        let now = Instant::now();
        self.counts.push_back((now, self.seq));
        while self.counts.front().is_some_and(|(at, _)| now - *at > ENDED_CALLS_KEPT) {
            self.counts.pop_front();
        }
        self.counts.front().map_or(0, |(_, seq)| self.seq - seq)
    }

    /// Writes a line, and before it the pending lines about ended calls. Returns the number of the
    /// file.
    fn write(&mut self, line: &[u8], dir: impl FnOnce() -> Arc<SegmentDir>) -> io::Result<u64> {
        let mut bytes = std::mem::take(&mut self.ended_lines);
        bytes.extend_from_slice(line);
        self.writer.write(&bytes, dir).map(|(number, _)| number)
    }
}

/// A call that is recorded in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedCall {
    pub(super) account: AccountName,
    pub(super) key: IdempotencyKey,
    /// Whether its end is recorded as well.
    pub(super) has_ended: bool,
    seq: u64,
}

/// Notes in a folder of an ended process that these calls have ended, since their keys were
/// expired: whoever adopts the folder next does not do so again.
///
/// # Errors
/// The note cannot be written.
pub(super) fn note_ended(dir: &SegmentDir, calls: &[&RecordedCall]) -> io::Result<()> {
    let lines = calls
        .iter()
        .map(|call| record::encode_line(&StartedCallLine::Ended { seq: call.seq }, None));
    let next = dir.list_segments(SegmentKind::Calls)?.len() as u64 + NOTE_SEGMENTS;
    fs::write(dir.segment_path(SegmentKind::Calls, next), lines.flatten().collect::<Vec<u8>>())
}

/// Returns the calls in files of a folder whose keys the store may still remember. A file that is
/// gone had nothing that is needed; one that cannot be read does not stop the others.
pub(super) fn read_calls(files: &[PathBuf]) -> Vec<RecordedCall> {
    let (now, mut begun) = (unix_ms(), HashMap::new());
    for file in files {
        let written = match segment_files::read_written(file) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
            read => segment_files::or_log_error(file, read),
        };
        for line in record::checked_lines(&written).flatten() {
            match serde_json::from_slice(line) {
                Ok(StartedCallLine::Begun { seq, at, account, name, owner, content, life_ms }) => {
                    let end = at.saturating_add(i64::try_from(life_ms).unwrap_or(i64::MAX));
                    let account = AccountName::parse(&account).filter(|_| end > now);
                    let (name, owner) = (name.into_owned(), owner.into_owned());
                    let key = IdempotencyKey { name, content, owner, life_ms };
                    let recorded = |account| RecordedCall { account, key, has_ended: false, seq };
                    begun.extend(account.map(|account| (seq, recorded(account))));
                }
                Ok(StartedCallLine::Ended { seq }) => {
                    begun.entry(seq).and_modify(|call| call.has_ended = true);
                }
                Err(_) => {}
            }
        }
    }
    begun.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> AccountName {
        AccountName::parse("a").expect("a name")
    }

    fn key(owner: &str) -> IdempotencyKey {
        let (name, owner) = (format!("key:{owner}"), owner.to_owned());
        IdempotencyKey { name, content: [7; 32], owner, life_ms: 60_000 }
    }

    fn dir_at(root: &std::path::Path) -> Arc<SegmentDir> {
        Arc::new(SegmentDir::create(root).expect("a folder"))
    }

    /// The owners of the calls in a folder that have ended, or have not.
    fn owners_of(dir: &SegmentDir, has_ended: bool) -> Vec<String> {
        let files = dir.list_segments(SegmentKind::Calls).expect("files");
        let calls = read_calls(&files);
        let calls = calls.into_iter().filter(|call| call.has_ended == has_ended);
        let mut owners: Vec<_> = calls.map(|call| call.key.owner).collect();
        owners.sort();
        owners
    }

    fn owners(dir: &SegmentDir) -> Vec<String> {
        owners_of(dir, false)
    }

    #[test]
    fn what_was_begun_and_has_not_ended_is_left() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, dir) = (StartedCalls::default(), dir_at(root.path()));
        assert_eq!(
            dir.list_segments(SegmentKind::Calls).expect("files").len(),
            0,
            "nobody pays for nothing"
        );
        for owner in ["x", "y", "z"] {
            calls.record_start(&account(), &key(owner), || dir.clone()).expect("a write");
        }
        let files = dir.list_segments(SegmentKind::Calls).expect("files");
        let found = read_calls(&files);
        assert_eq!(found.len(), 3);
        let wanted = RecordedCall { account: account(), key: key("y"), has_ended: false, seq: 2 };
        assert!(found.contains(&wanted), "all of it is there");
        calls.record_end(&account(), "key:y", "y");
        calls.record_end(&account(), "key:x", "another");
        assert_eq!(owners(&dir), ["x", "y", "z"], "it is noted with what comes next");
        calls.record_start(&account(), &key("w"), || dir.clone()).expect("a write");
        assert_eq!(owners(&dir), ["w", "x", "z"]);
        assert_eq!(owners_of(&dir, true), ["y"]);
        calls.record_end(&account(), "key:w", "w");
        calls.flush(|| dir.clone());
        assert_eq!(owners(&dir), ["x", "z"]);
        let over = IdempotencyKey { life_ms: 0, ..key("v") };
        calls.record_start(&account(), &over, || dir.clone()).expect("a write");
        assert_eq!(owners(&dir), ["x", "z"], "nobody remembers that name");
    }

    #[test]
    fn what_runs_is_written_again_where_its_folder_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, first) = (StartedCalls::default(), dir_at(root.path()));
        for owner in ["x", "y"] {
            calls.record_start(&account(), &key(owner), || first.clone()).expect("a write");
        }
        calls.record_end(&account(), "key:x", "x");
        let second = dir_at(root.path());
        calls.move_to(&second).expect("a write");
        assert_eq!(owners(&second), ["y"]);
    }

    #[test]
    fn a_file_is_there_for_as_long_as_a_call_in_it_runs_and_for_a_while_after_it() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, dir) = (StartedCalls::default(), dir_at(root.path()));
        calls.record_start(&account(), &key("x"), || dir.clone()).expect("a write");
        calls.maintain(&dir, |_| true);
        assert!(calls.lock_state().writer.rotate(), "the next one was made");
        calls.record_start(&account(), &key("y"), || dir.clone()).expect("a write");
        calls.maintain(&dir, |_| true);
        assert_eq!(owners(&dir), ["x", "y"]);
        calls.record_end(&account(), "key:x", "x");
        calls.maintain(&dir, |_| true);
        calls.flush(|| dir.clone());
        assert_eq!((owners(&dir), owners_of(&dir, true)), (vec!["y".into()], vec!["x".into()]));
        let files = dir.list_segments(SegmentKind::Calls).expect("files");
        let all = read_calls(&files);
        let dead: Vec<&RecordedCall> = all.iter().filter(|call| !call.has_ended).collect();
        note_ended(&dir, &dead).expect("a note");
        assert_eq!(owners(&dir), [""; 0], "whoever comes next expires no key again");
    }

    #[test]
    fn a_client_that_repeats_calls_without_end_keeps_no_files() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, dir) = (StartedCalls::default(), dir_at(root.path()));
        calls.maintain(&dir, |_| true);
        calls.lock_state().seq = ENDED_CALLS_MAX;
        assert_eq!(calls.lock_state().count_recent(), ENDED_CALLS_MAX);
        calls.record_start(&account(), &key("x"), || dir.clone()).expect("a write");
        calls.maintain(&dir, |_| true);
        calls.record_end(&account(), "key:x", "x");
        assert!(calls.lock_state().writer.rotate(), "the next one was made");
        calls.record_start(&account(), &key("y"), || dir.clone()).expect("a write");
        calls.maintain(&dir, |_| true);
        calls.maintain(&dir, |_| true);
        assert_eq!(owners_of(&dir, true), [""; 0], "it was not kept");
    }

    #[test]
    fn one_file_that_could_not_be_read_hid_all_keys_of_a_folder() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, dir) = (StartedCalls::default(), dir_at(root.path()));
        calls.record_start(&account(), &key("x"), || dir.clone()).expect("a write");
        fs::create_dir(dir.segment_path(SegmentKind::Calls, 99)).expect("no file");
        assert_eq!(owners(&dir), ["x"]);
    }
}
