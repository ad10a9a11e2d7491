//! Calls that run under an idempotency key. Each is written to the outbox before its key is
//! claimed, so that the successor of a process that died need not wait for the leases of its keys.
//!
//! A line is one plain write and is never synced: after a power cut the keys' leases expire
//! instead. The end of a call is noted with the next line; if that is missing, its successor looks
//! the key up.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_writer::SegmentWriter;
use super::{record, segment_files};
use crate::clock::unix_ms;
use crate::idempotency::IdempotencyKey;
use crate::ledger::AccountName;

/// Notes of what ended wait for the next call, at most this many bytes of them.
const END_NOTES_BYTES_MAX: usize = 64 << 10;
/// Calls beyond this number are not recorded; if they die, their leases run out.
const STARTED_CALLS_MAX: usize = 16_384;
/// No call runs for so long; one of which the end never came is left to its lease.
const CALL_DURATION_MAX: Duration = Duration::from_secs(60 * 60);

/// See the module.
pub(super) struct StartedCalls {
    state: Mutex<StartedCallsState>,
    /// How many run, so that whoever ends none of them need not look.
    running: AtomicUsize,
}

struct StartedCallsState {
    writer: SegmentWriter,
    seq: u64,
    running: HashMap<StartedCallKey, StartedCall>,
    ended_lines: Vec<u8>,
}

/// A call under its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StartedCallKey {
    account: AccountName,
    name: String,
    owner: String,
}

struct StartedCall {
    seq: u64,
    /// The file that it is in.
    segment: u64,
    since: Instant,
    line: Vec<u8>,
}

/// What a line says, as JSON has it.
#[derive(Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum StartedCallLine<'a> {
    /// A call is about to take its name.
    Begun {
        seq: u64,
        /// When, in unix ms.
        at: i64,
        account: Cow<'a, str>,
        name: Cow<'a, str>,
        owner: Cow<'a, str>,
        content: [u8; 32],
        life_ms: u64,
    },
    /// The name of the call with this number is no longer its own, or the store knows its end.
    Ended { seq: u64 },
}

impl Default for StartedCalls {
    fn default() -> StartedCalls {
        let (writer, running) = (SegmentWriter::new(SegmentKind::Calls), HashMap::new());
        let state =
            Mutex::new(StartedCallsState { writer, seq: 0, running, ended_lines: Vec::new() });
        StartedCalls { state, running: AtomicUsize::new(0) }
    }
}

impl StartedCalls {
    /// Writes down that a call is about to take its name.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn record_start(
        &self,
        account: &AccountName,
        naming: &IdempotencyKey,
        dir: impl FnOnce() -> Arc<SegmentDir>,
    ) -> io::Result<()> {
        let IdempotencyKey { name, content, owner, life_ms } = naming;
        let mut state = self.lock_state();
        if state.running.len() >= STARTED_CALLS_MAX {
            return Err(io::Error::other("too many calls run under names"));
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
        let key =
            StartedCallKey { account: account.clone(), name: name.clone(), owner: owner.clone() };
        state.running.insert(key, StartedCall { seq, segment, since: Instant::now(), line });
        self.running.store(state.running.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the name of a call is free again, or that the store knows how it ended.
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

    /// Periodic work: rotates a full segment and removes old ones. Files are created and removed
    /// outside the lock.
    pub(super) fn maintain(&self, dir: &SegmentDir) {
        let spare_number = self.lock_state().writer.missing_spare_number();
        let spare = spare_number
            .map(|number| segment_files::create_segment(dir, SegmentKind::Calls, number, None));
        let mut state = self.lock_state();
        state.running.retain(|_, running| running.since.elapsed() < CALL_DURATION_MAX);
        self.running.store(state.running.len(), Ordering::Relaxed);
        let needed: HashSet<u64> = state.running.values().map(|r| r.segment).collect();
        let rest = state.writer.plan_cleanup(spare.and_then(Result::ok), &needed, |_| true);
        drop(state);
        rest.finish(dir);
    }

    /// Writes what runs into another folder, since the one before is gone.
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

    /// Writes what it knows before the process leaves.
    pub(super) fn flush(&self, dir: impl FnOnce() -> Arc<SegmentDir>) {
        let mut state = self.lock_state();
        let ended_lines = std::mem::take(&mut state.ended_lines);
        if !ended_lines.is_empty() {
            // It only spares whoever comes next a look at each.
            let _ = state.writer.write(&ended_lines, dir);
        }
        state.writer.trim();
    }

    fn lock_state(&self) -> MutexGuard<'_, StartedCallsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StartedCallsState {
    /// Writes a line, and before it what ended; tells into which file.
    fn write(&mut self, line: &[u8], dir: impl FnOnce() -> Arc<SegmentDir>) -> io::Result<u64> {
        let mut bytes = std::mem::take(&mut self.ended_lines);
        bytes.extend_from_slice(line);
        self.writer.write(&bytes, dir).map(|(number, _)| number)
    }
}

/// The calls of a folder that its owner has not ended, as far as is written there, of which the
/// names may still be remembered.
pub(super) fn read_unfinished(dir: &SegmentDir) -> io::Result<Vec<(AccountName, IdempotencyKey)>> {
    let (now, mut begun) = (unix_ms(), HashMap::new());
    for file in dir.list_segments(SegmentKind::Calls)? {
        for said in record::checked_lines(&segment_files::read_written(&file)?).flatten() {
            match serde_json::from_slice(said) {
                Ok(StartedCallLine::Begun { seq, at, account, name, owner, content, life_ms }) => {
                    let end = at.saturating_add(i64::try_from(life_ms).unwrap_or(i64::MAX));
                    let account = AccountName::parse(&account).filter(|_| end > now);
                    let (name, owner) = (name.into_owned(), owner.into_owned());
                    let naming = IdempotencyKey { name, content, owner, life_ms };
                    begun.extend(account.map(|account| (seq, (account, naming))));
                }
                Ok(StartedCallLine::Ended { seq }) => drop(begun.remove(&seq)),
                Err(_) => {}
            }
        }
    }
    Ok(begun.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> AccountName {
        AccountName::parse("a").expect("a name")
    }

    fn naming(owner: &str) -> IdempotencyKey {
        let (name, owner) = (format!("key:{owner}"), owner.to_owned());
        IdempotencyKey { name, content: [7; 32], owner, life_ms: 60_000 }
    }

    fn dir_at(root: &std::path::Path) -> Arc<SegmentDir> {
        Arc::new(SegmentDir::create(root).expect("a folder"))
    }

    fn owners(dir: &SegmentDir) -> Vec<String> {
        let left = read_unfinished(dir).expect("files");
        let mut owners: Vec<_> = left.into_iter().map(|(_, naming)| naming.owner).collect();
        owners.sort();
        owners
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
            calls.record_start(&account(), &naming(owner), || dir.clone()).expect("a write");
        }
        assert_eq!(read_unfinished(&dir).expect("them").len(), 3);
        let found = read_unfinished(&dir).expect("them");
        assert!(found.contains(&(account(), naming("y"))), "all of it is there");
        calls.record_end(&account(), "key:y", "y");
        calls.record_end(&account(), "key:x", "another");
        assert_eq!(owners(&dir), ["x", "y", "z"], "it is noted with what comes next");
        calls.record_start(&account(), &naming("w"), || dir.clone()).expect("a write");
        assert_eq!(owners(&dir), ["w", "x", "z"]);
        calls.record_end(&account(), "key:w", "w");
        calls.flush(|| dir.clone());
        assert_eq!(owners(&dir), ["x", "z"]);
        let over = IdempotencyKey { life_ms: 0, ..naming("v") };
        calls.record_start(&account(), &over, || dir.clone()).expect("a write");
        assert_eq!(owners(&dir), ["x", "z"], "nobody remembers that name");
    }

    #[test]
    fn what_runs_is_written_again_where_its_folder_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, first) = (StartedCalls::default(), dir_at(root.path()));
        for owner in ["x", "y"] {
            calls.record_start(&account(), &naming(owner), || first.clone()).expect("a write");
        }
        calls.record_end(&account(), "key:x", "x");
        let second = dir_at(root.path());
        calls.move_to(&second).expect("a write");
        assert_eq!(owners(&second), ["y"]);
    }

    #[test]
    fn a_file_is_there_for_as_long_as_a_call_in_it_runs() {
        let root = tempfile::tempdir().expect("a folder");
        let (calls, dir) = (StartedCalls::default(), dir_at(root.path()));
        calls.record_start(&account(), &naming("x"), || dir.clone()).expect("a write");
        calls.maintain(&dir);
        assert!(calls.lock_state().writer.rotate(), "the next one was made");
        calls.record_start(&account(), &naming("y"), || dir.clone()).expect("a write");
        calls.maintain(&dir);
        assert_eq!(owners(&dir), ["x", "y"]);
        calls.record_end(&account(), "key:x", "x");
        calls.maintain(&dir);
        assert_eq!(owners(&dir), ["y"]);
    }
}
