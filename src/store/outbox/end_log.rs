//! The log of the ends of calls whose holds were made out of an allotment. The store learns of
//! these ends by the next update of the allotment, after the caller has its answer; so each of them
//! is on this machine's disk before.
//!
//! An end is written with one plain `write`, so that it survives the death of the process. Where it
//! has to survive a power cut too, a separate thread calls fsync, once for many ends. The line also
//! stays in memory until the store has the end durably, and is written again if its file is lost.
//! What is durable is not written down: a successor tells such an end once more, and the store
//! passes it over by its number.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::end_files::EndFiles;
use super::end_record;
use super::fsync_thread::FsyncThread;
use super::retention::Retention;
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files;
use super::segment_writer::SegmentWriter;
use crate::fast_map::FastMap;
use crate::ledger::prepaid::records::{AllotmentId, CallEnd};
use crate::ledger::{AccountName, Unavailable};
use crate::metrics::METRICS;

/// Empty lines, which are written to test whether the disk accepts writes again.
const WRITE_PROBE: [u8; 4_096] = [b'\n'; 4_096];

/// The log of ends, in a folder of this process.
pub(in crate::store) struct EndLog {
    root: PathBuf,
    run: String,
    retention: Retention,
    state: Mutex<EndLogState>,
    syncer: Option<Arc<FsyncThread>>,
    /// Whether the log can be written. While it cannot, no hold may be made out of an allotment.
    writable: Arc<AtomicBool>,
}

struct EndLogState {
    dir: Arc<SegmentDir>,
    writer: SegmentWriter,
    /// The ends that the store has not got durably.
    allotments: LinesByAllotment,
    /// How many of these ends each segment has.
    needed: SegmentCounts,
    /// Lines that are in no segment although the store has their ends, and since when it has.
    durable_unwritten: Vec<(Instant, Vec<u8>)>,
    /// Whether all lines are to be written again, since the log cannot be written.
    is_recovering: bool,
    store_id: Option<Box<str>>,
    /// Whether the id of the store has to be written once more, since the folder was made anew.
    is_id_due: bool,
}

type LinesByAllotment = FastMap<AccountName, FastMap<AllotmentId, AllotmentLines>>;

/// The lines of an allotment that are still needed.
#[derive(Default)]
struct AllotmentLines {
    /// The store has all ends up to this number durably.
    durable_seq: u64,
    by_seq: BTreeMap<u64, KeptLine>,
}

/// The line of an end that the store has not got durably.
struct KeptLine {
    bytes: Vec<u8>,
    /// The segment that has the line; `None` if none has it.
    segment: Option<u64>,
    /// Whether the line has to be written, perhaps once more.
    is_due: bool,
}

/// The number of lines in a segment that are still needed, by the number of the segment.
#[derive(Default)]
struct SegmentCounts(BTreeMap<u64, usize>);

impl SegmentCounts {
    fn add(&mut self, segment: u64) {
        *self.0.entry(segment).or_default() += 1;
    }

    fn remove(&mut self, segment: u64) {
        let Some(count) = self.0.get_mut(&segment) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&segment);
        }
    }
}

impl EndLog {
    /// Creates a log in a new folder under `root`. A failed write or fsync sets `writable` to
    /// `false`, and the recovery sets it to `true`; so it must not be the flag of another log.
    ///
    /// # Errors
    /// [`Unavailable`] if the folder cannot be made.
    pub(in crate::store) fn open(
        root: &Path,
        retention: Retention,
        writable: Arc<AtomicBool>,
    ) -> Result<EndLog, Unavailable> {
        let to_unavailable = |why| Unavailable(format!("the outbox: {}: {why}", root.display()));
        let dir = Arc::new(SegmentDir::create(root).map_err(to_unavailable)?);
        let run = dir.name().map_err(to_unavailable)?.to_owned();
        let syncer = retention.synced.then(|| FsyncThread::start(writable.clone())).transpose();
        let syncer = syncer.map_err(to_unavailable)?;
        let state = Mutex::new(EndLogState {
            dir,
            writer: SegmentWriter::with_syncer(SegmentKind::AllotmentEnds, syncer.clone()),
            allotments: LinesByAllotment::default(),
            needed: SegmentCounts::default(),
            durable_unwritten: Vec::new(),
            is_recovering: false,
            store_id: None,
            is_id_due: false,
        });
        Ok(EndLog { root: root.to_owned(), run, retention, state, syncer, writable })
    }

    /// Whether records that the store had at `told` may be deleted. See [`Retention`].
    pub(in crate::store) fn is_retention_over(&self, told: Instant) -> bool {
        self.retention.is_over(told, Some(Instant::now()))
    }

    /// Returns the folder that has the folders of all processes.
    pub(in crate::store) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the name of this process' folder under the root. The ids of its allotments contain
    /// it. A folder that has to be made anew has the same name.
    pub(in crate::store) fn run(&self) -> &str {
        &self.run
    }

    /// Whether the log can be written.
    pub(in crate::store) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::SeqCst)
    }

    /// Records which store the ends are for, so that they are never told to another store. Another
    /// call with the same id is cheap. A folder that is made anew gets the id again.
    ///
    /// # Errors
    /// [`Unavailable`] if the id cannot be written.
    pub(in crate::store) fn bind_to_store(&self, id: &str) -> Result<(), Unavailable> {
        let mut state = self.lock_state();
        if state.store_id.as_deref() != Some(id) {
            let to_unavailable = |why| Unavailable(format!("the outbox: {why}"));
            state.dir.write_store_id(id).map_err(to_unavailable)?;
            state.store_id = Some(id.into());
        }
        Ok(())
    }

    /// Writes an end before its caller's answer goes out. `lent_at` is when the allotment was lent
    /// first, in unix ms of the store. If the write fails, the line stays in memory until the log
    /// can be written.
    pub(in crate::store) fn append(
        &self,
        account: &AccountName,
        allotment: &AllotmentId,
        lent_at: i64,
        seq: u64,
        end: &CallEnd,
    ) {
        let bytes = end_record::encode_end(account, allotment, lent_at, seq, end);
        let mut state = self.lock_state();
        let EndLogState { dir, writer, allotments, needed, durable_unwritten, .. } = &mut *state;
        let segment = self.write_bytes(writer, dir, &bytes);
        let known = allotments.entry(account.clone()).or_default();
        let lines = match known.get_mut(allotment) {
            Some(lines) => lines,
            None => known.entry(allotment.clone()).or_default(),
        };
        if seq <= lines.durable_seq {
            // The update was faster than this call.
            if segment.is_none() {
                durable_unwritten.push((Instant::now(), bytes));
            }
            return;
        }
        if let Some(segment) = segment {
            needed.add(segment);
        }
        let line = KeptLine { bytes, segment, is_due: segment.is_none() };
        if let Some(KeptLine { segment: Some(earlier), .. }) = lines.by_seq.insert(seq, line) {
            needed.remove(earlier);
        }
    }

    /// Records that the store has all ends of the allotment up to `last_seq`, durably. Their lines
    /// may be removed once their retention is over.
    pub(in crate::store) fn record_durable(
        &self,
        account: &AccountName,
        allotment: &AllotmentId,
        last_seq: u64,
    ) {
        let mut state = self.lock_state();
        let lines = state.allotments.entry(account.clone()).or_default();
        let lines = lines.entry(allotment.clone()).or_default();
        lines.durable_seq = lines.durable_seq.max(last_seq);
        let durable = match last_seq.checked_add(1) {
            Some(next) => {
                let left = lines.by_seq.split_off(&next);
                std::mem::replace(&mut lines.by_seq, left)
            }
            None => std::mem::take(&mut lines.by_seq),
        };
        state.release(durable);
    }

    /// Forgets an allotment of which no end will be written any more, and whose ends the store has
    /// durably.
    pub(in crate::store) fn forget(&self, account: &AccountName, allotment: &AllotmentId) {
        let mut state = self.lock_state();
        let Some(of_account) = state.allotments.get_mut(account) else { return };
        let lines = of_account.remove(allotment).unwrap_or_default();
        if of_account.is_empty() {
            state.allotments.remove(account);
        }
        state.release(lines.by_seq);
    }

    /// Returns the segments and the lines in memory, to read ends back that the store has lost. The
    /// retention of the segments begins anew, since the store may lack what is in them.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(in crate::store) fn files(&self) -> io::Result<EndFiles> {
        let mut state = self.lock_state();
        state.writer.restart_retention();
        let dir = state.dir.clone();
        let in_memory = state.lines_in_memory();
        let unused = state.writer.unused();
        drop(state);
        let unused: Vec<PathBuf> =
            unused.map(|number| dir.segment_path(SegmentKind::AllotmentEnds, number)).collect();
        // Ends that are written into these files from now on are known to their caller.
        let mut segments = dir.list_segments(SegmentKind::AllotmentEnds)?;
        segments.retain(|file| !unused.contains(file));
        Ok(EndFiles { segments, in_memory })
    }

    /// Does the periodic work: ends a segment that is old enough, removes segments that are no
    /// longer needed, makes a folder or segment anew that was deleted or replaced, and retries
    /// failed writes. It blocks for a moment. `last_answer` is when the store last answered; `None`
    /// if it may lack ends.
    pub(in crate::store) fn maintain(&self, last_answer: Option<Instant>) {
        let (mut state, is_whole) = self.restore_files();
        // What is written again now is not synced yet, so the segments that had it stay for now.
        let is_sound = self.is_writable();
        let is_retention_over = |since| is_sound && self.retention.is_over(since, last_answer);
        state.durable_unwritten.retain(|(since, _)| !is_retention_over(*since));
        if is_whole {
            self.recover(&mut state);
        }
        let (dir, spare_number) = (state.dir.clone(), state.writer.missing_spare_number());
        drop(state);
        let spare = spare_number.and_then(|number| self.create_spare(&dir, number));
        let mut state = self.lock_state();
        let is_wanted = state.writer.missing_spare_number() == spare_number;
        let spare = spare.filter(|_| is_wanted);
        let needed: HashSet<u64> = state.needed.0.keys().copied().collect();
        let rest = state.writer.plan_cleanup(spare, &needed, is_retention_over);
        drop(state);
        rest.finish(&dir);
    }

    /// Writes what is still in memory before the process exits, and trims the file.
    pub(in crate::store) fn flush(&self) {
        let (mut state, is_whole) = self.restore_files();
        if is_whole {
            self.recover(&mut state);
        }
        state.writer.trim();
    }

    fn lock_state(&self) -> MutexGuard<'_, EndLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends bytes to the current segment and requests its fsync. Returns the number of the
    /// segment; `None` if the write failed.
    fn write_bytes(
        &self,
        writer: &mut SegmentWriter,
        dir: &Arc<SegmentDir>,
        bytes: &[u8],
    ) -> Option<u64> {
        match writer.write(bytes, || dir.clone()) {
            Ok((segment, file)) => {
                if let Some(syncer) = &self.syncer {
                    syncer.request_sync(&file);
                }
                Some(segment)
            }
            Err(why) => {
                self.record_write_failure(&why);
                None
            }
        }
    }

    /// Marks the log as not writable after a failed write.
    fn record_write_failure(&self, why: &io::Error) {
        if self.writable.swap(false, Ordering::SeqCst) {
            log::error!(
                event = "outbox_ends_write_failed", error:% = why;
                "outbox write of ends failed; nothing is held out of allotments"
            );
        }
        METRICS.outbox_errors.inc();
    }

    /// Makes the folder and the current segment anew if they were deleted or replaced. The log is
    /// then not writable until the lines are written again. Returns whether there is a segment to
    /// write them into.
    ///
    /// The folder keeps its name: whoever adopts it after this process has to find all ends of its
    /// allotments in one place.
    fn restore_files(&self) -> (MutexGuard<'_, EndLogState>, bool) {
        let state = self.lock_state();
        let (dir, intact) = (state.dir.clone(), state.writer.check_intact(&state.dir));
        let Err(why) = intact else { return (state, true) };
        drop(state);
        self.record_write_failure(&why);
        let is_locked = dir.check_lock().is_ok();
        let restored = if is_locked { Ok(dir) } else { dir.restore().map(Arc::new) };
        let mut state = self.lock_state();
        let replaced = restored.and_then(|dir| {
            state.dir = dir.clone();
            state.is_id_due = true;
            state.writer.replace_current(&dir)
        });
        // After a failure, the next periodic work tries again.
        let is_whole = replaced.inspect_err(segment_files::log_create_failure).is_ok();
        (state, is_whole)
    }

    /// If the log is not writable, tests whether the disk accepts writes again, in the spare file
    /// if there is one. If so, writes the lines that are needed, and marks the log as writable.
    ///
    /// All of them are written again, and not only those whose write failed: after a failed fsync
    /// the disk may lack any of them.
    fn recover(&self, state: &mut EndLogState) {
        if self.is_writable() {
            return;
        }
        if !std::mem::replace(&mut state.is_recovering, true) {
            state.lines_mut().for_each(|line| line.is_due = true);
        }
        if let Err(why) = state.write_due_id() {
            return self.record_write_failure(&why);
        }
        state.writer.rotate();
        let EndLogState { dir, writer, allotments, needed, durable_unwritten, .. } = state;
        if self.write_bytes(writer, dir, &WRITE_PROBE).is_none() {
            return;
        }
        for line in lines_of(allotments).filter(|line| line.is_due) {
            let Some(segment) = self.write_bytes(writer, dir, &line.bytes) else { return };
            if let Some(earlier) = line.segment.replace(segment) {
                needed.remove(earlier);
            }
            needed.add(segment);
            line.is_due = false;
        }
        while let Some((_, bytes)) = durable_unwritten.last() {
            if self.write_bytes(writer, dir, bytes).is_none() {
                return;
            }
            durable_unwritten.pop();
        }
        state.is_recovering = false;
        self.writable.store(true, Ordering::SeqCst);
        log::info!(event = "outbox_ends_write_recovered"; "outbox write of ends recovered");
    }

    fn create_spare(&self, dir: &SegmentDir, number: u64) -> Option<Arc<File>> {
        let (kind, syncer) = (SegmentKind::AllotmentEnds, self.syncer.as_deref());
        let spare = segment_files::create_segment(dir, kind, number, syncer);
        spare.inspect_err(segment_files::log_create_failure).ok()
    }
}

impl EndLogState {
    fn lines_mut(&mut self) -> impl Iterator<Item = &mut KeptLine> {
        lines_of(&mut self.allotments)
    }

    /// Gives up lines whose ends the store has durably.
    fn release(&mut self, durable: BTreeMap<u64, KeptLine>) {
        for line in durable.into_values() {
            match line.segment {
                Some(segment) => self.needed.remove(segment),
                None => self.durable_unwritten.push((Instant::now(), line.bytes)),
            }
        }
    }

    /// Returns all lines in memory.
    fn lines_in_memory(&self) -> Vec<u8> {
        let lines = self.allotments.values().flat_map(FastMap::values);
        let lines = lines.flat_map(|lines| lines.by_seq.values()).map(|line| &line.bytes);
        let unwritten = self.durable_unwritten.iter().map(|(_, bytes)| bytes);
        lines.chain(unwritten).flatten().copied().collect()
    }

    /// Writes the id of the store into a folder that was made anew.
    fn write_due_id(&mut self) -> io::Result<()> {
        if let Some(id) = self.store_id.as_deref().filter(|_| self.is_id_due) {
            self.dir.write_store_id(id)?;
        }
        self.is_id_due = false;
        Ok(())
    }
}

fn lines_of(allotments: &mut LinesByAllotment) -> impl Iterator<Item = &mut KeptLine> {
    let by_account = allotments.values_mut().flat_map(FastMap::values_mut);
    by_account.flat_map(|lines| lines.by_seq.values_mut())
}

impl Drop for EndLog {
    fn drop(&mut self) {
        if let Some(syncer) = &self.syncer {
            syncer.stop();
        }
    }
}

#[cfg(test)]
mod tests;
