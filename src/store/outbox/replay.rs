//! Replay: sends to a run of the store the entries that it may lack, from this process' own files
//! and from the files that ended processes left.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::call_keys::KeyedCalls;
use super::job_orders::OrderRecord;
use super::record::{self, Acknowledgements, LogRecord, SettlementEntry};
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files::{self, or_log_error};
use super::settlement_log::{HoldEndKey, SettlementLog};
use super::target::ServerRun;
use super::{call_keys, job_orders};
use crate::failpoints::failpoint;
use crate::idempotency::ReplyStore;
use crate::ledger::{AccountName, Operation, Outcome, Unavailable};
use crate::metrics::{METRICS, record_write_off};

/// In ms. What a run of the store acknowledged longer than this before its end, the next run has:
/// servers sync every second, and replicas lag by less.
const RECENT_MS: i64 = 15_000;
/// At most this many operations are sent at the same time.
const CONCURRENCY_MAX: usize = 128;
/// Entries per lookup of what the run already has. A run that lost nothing has all of them, and a
/// lookup costs a twentieth of sending an entry again.
const LOOKUP_BATCH: usize = 1_024;

/// Replays the entries of this process' own log and of the folders that it has adopted.
pub(in crate::store) struct SegmentReplay {
    log: Arc<SettlementLog>,
    reply_store: Arc<dyn ReplyStore>,
    adopted: Vec<AdoptedSegments>,
    /// Folders with entries for another store. They stay locked and are not sent.
    foreign: Vec<SegmentDir>,
    /// Whether entries of the own log are still to be sent: they were not urgent, a file could not
    /// be read, or the store did not take them.
    is_own_pending: bool,
    /// Whether entries of adopted folders that were not urgent are still to be sent.
    is_adopted_pending: bool,
}

/// A folder of segments whose owner has ended.
struct AdoptedSegments {
    dir: SegmentDir,
    /// The run of the store that has all entries of the folder, and since when; `None` if no run is
    /// known to have them.
    fully_replayed_into: Option<(Box<str>, Instant)>,
    /// Whether the keys of the calls that died with the process were expired.
    has_released_keys: bool,
}

/// Which of the entries that a run may lack are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplayPart {
    /// Only the urgent ones: entries that no run has acknowledged, the most recent ones, and the
    /// charges of calls under idempotency keys.
    Recent,
    All,
}

/// Whose entries are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryOrigin {
    /// Those of this process.
    Own,
    /// Those of a process that has ended.
    Adopted,
}

/// The counts of a replay.
#[derive(Debug, Default)]
struct ReplayOutcome {
    entries: u64,
    /// Of these, the ones that had to be sent to the store.
    delivered: u64,
    /// Of these, charges that the store did not have.
    charged: u64,
    last: u64,
    /// Lines that are damaged or cannot be parsed.
    torn: usize,
    /// Files that could not be read.
    unread: usize,
    /// Entries that are not urgent and were left for later.
    deferred: usize,
}

impl ReplayOutcome {
    fn is_complete(&self) -> bool {
        self.unread == 0 && self.deferred == 0
    }
}

impl SegmentReplay {
    /// Creates a replay of `log`. The idempotency keys of calls that died with their process are
    /// expired in `reply_store`.
    pub(in crate::store) fn new(
        log: Arc<SettlementLog>,
        reply_store: Arc<dyn ReplyStore>,
    ) -> SegmentReplay {
        let (adopted, foreign) = (Vec::new(), Vec::new());
        SegmentReplay {
            log,
            reply_store,
            adopted,
            foreign,
            is_own_pending: false,
            is_adopted_pending: false,
        }
    }

    /// Sends the urgent entries to a run that has just begun: those that no run has acknowledged,
    /// those that were written shortly before the last run ended, which that run may have lost, and
    /// the charges of calls under idempotency keys, which may be repeated as soon as calls are
    /// admitted. The new run most likely has the rest, so the rest is left to
    /// [`SegmentReplay::adopt_orphans`].
    ///
    /// # Errors
    /// [`Unavailable`] if the store did not take all entries. Another call sends the rest.
    pub(in crate::store) async fn replay_recent(
        &mut self,
        run: &impl ServerRun,
    ) -> Result<(), Unavailable> {
        self.replay_own(run, ReplayPart::Recent).await?;
        let own_dir = self.log.segment_dir();
        self.log.orders.restart_retention();
        self.restore_jobs(run, &own_dir, EntryOrigin::Own).await?;
        self.find_orphans(run);
        for index in 0..self.adopted.len() {
            self.replay_adopted(index, run, ReplayPart::Recent).await?;
        }
        Ok(())
    }

    /// Whether entries are left that were not sent when the run began.
    pub(in crate::store) fn is_behind(&self) -> bool {
        self.is_own_pending || self.is_adopted_pending
    }

    async fn replay_own(
        &mut self,
        run: &impl ServerRun,
        part: ReplayPart,
    ) -> Result<(), Unavailable> {
        self.is_own_pending = true;
        let (files, last, unwritten) = self.log.replay_snapshot().map_err(outbox_error)?;
        self.log.calls.write_ended(|| self.log.segment_dir());
        let (dir, origin) = (self.log.segment_dir(), EntryOrigin::Own);
        let outcome = self.replay_files(run, &dir, files, unwritten, origin, part).await?;
        if outcome.is_complete() {
            self.is_own_pending = false;
            self.log.record_all_acked(run.name(), last);
        }
        log_replay(&outcome, "own");
        Ok(())
    }

    /// Takes over the folders of processes that have ended. Entries for another store, which had
    /// this address before, are kept and not sent to any store.
    fn find_orphans(&mut self, run: &impl ServerRun) {
        let mut orphans = or_log_error(&self.log.root, SegmentDir::lock_orphans(&self.log.root));
        // A folder whose store id cannot be read is left for the next time.
        orphans.retain(|dir| or_log_error(&dir.path, dir.store_id().map(|_| true)));
        let is_foreign = |dir: &SegmentDir| {
            let dir_store_id = dir.store_id().unwrap_or_default();
            dir_store_id.is_some()
                && run.store_id().is_some()
                && dir_store_id.as_deref() != run.store_id()
        };
        let (other_stores, same_store): (Vec<_>, Vec<_>) =
            orphans.into_iter().partition(is_foreign);
        self.adopted.extend(same_store.into_iter().map(|dir| AdoptedSegments {
            dir,
            fully_replayed_into: None,
            has_released_keys: false,
        }));
        for dir in other_stores {
            log::error!(
                event = "outbox_store_mismatch", place:? = dir.path;
                "outbox has settlements for another store id; they are kept"
            );
            METRICS.outbox_errors.inc();
            self.foreign.push(dir);
        }
    }

    /// Takes over the folders of processes that have ended, sends their entries that the run may
    /// lack, and removes files that are no longer needed. `last_answer` is when the store last
    /// answered; `None` if it may lack entries, and then nothing is removed. A file that cannot be
    /// read does not stop the others, and is tried again.
    ///
    /// # Errors
    /// The same as [`SegmentReplay::replay_recent`].
    pub(in crate::store) async fn adopt_orphans(
        &mut self,
        run: &impl ServerRun,
        last_answer: Option<Instant>,
    ) -> Result<(), Unavailable> {
        if self.is_own_pending {
            self.replay_own(run, ReplayPart::All).await?;
        }
        self.is_adopted_pending = false;
        self.find_orphans(run);
        for index in 0..self.adopted.len() {
            self.replay_adopted(index, run, ReplayPart::All).await?;
        }
        self.remove_finished(last_answer);
        Ok(())
    }

    async fn replay_adopted(
        &mut self,
        index: usize,
        run: &impl ServerRun,
        part: ReplayPart,
    ) -> Result<(), Unavailable> {
        let AdoptedSegments { dir, fully_replayed_into, .. } = &self.adopted[index];
        if fully_replayed_into.as_ref().is_some_and(|(run_id, _)| **run_id == *run.name()) {
            return Ok(());
        }
        let files = or_log_error(&dir.path, dir.list_segments(SegmentKind::HoldEnds).map(Some));
        let Some(files) = files else { return Ok(()) };
        files.iter().for_each(|file| trim_segment(file));
        let origin = EntryOrigin::Adopted;
        let outcome = self.replay_files(run, dir, files, Vec::new(), origin, part).await?;
        log_replay(&outcome, "adopted");
        self.restore_jobs(run, &self.adopted[index].dir, origin).await?;
        self.is_adopted_pending |= outcome.deferred > 0;
        if outcome.is_complete() {
            self.release_keys(index).await?;
            let AdoptedSegments { dir, fully_replayed_into, .. } = &mut self.adopted[index];
            if outcome.entries > 0 {
                // The note only saves the next owner of the folder some work, so a failure is
                // ignored.
                let _ = fs::write(
                    dir.ack_note_path(),
                    record::all_acked_line(run.name(), outcome.last),
                );
            }
            *fully_replayed_into = Some((run.name().into(), Instant::now()));
        }
        Ok(())
    }

    /// Restores the video jobs that are recorded in a folder of segments and that the run lacks,
    /// each after the idempotency key of the call that has placed it.
    /// Each job that the run has costs one lookup; the folder only contains the jobs of the last
    /// minutes.
    async fn restore_jobs(
        &self,
        run: &impl ServerRun,
        dir: &SegmentDir,
        origin: EntryOrigin,
    ) -> Result<(), Unavailable> {
        let (mut applied, calls) = (0_u64, KeyedCalls::new(dir, origin == EntryOrigin::Own));
        for file in or_log_error(&dir.path, dir.list_segments(SegmentKind::Jobs)) {
            let path = file.clone();
            let reading = tokio::task::spawn_blocking(move || job_orders::read_orders(&path));
            let read = reading.await.unwrap_or_else(|why| Err(why.into()));
            // One after another, in their order: a job must be placed before its acceptance by a
            // vendor is saved.
            for record in or_log_error(&file, read) {
                // Another process may have ended the job, and so have recorded the charge.
                if let OrderRecord::Placed(order) = &record {
                    let id = std::iter::once(order.job.id.as_str());
                    calls.restore_keys(&*self.reply_store, id).await?;
                }
                applied += u64::from(run.replay_job_record(record).await?);
            }
        }
        if applied > 0 {
            log::warn!(
                event = "video_jobs_replayed", applied;
                "video jobs replayed into the store"
            );
        }
        Ok(())
    }

    /// Expires the idempotency keys of calls that died with their process. The ledger has all
    /// settlements of the process by now. This is done only once, since a key may belong to another
    /// call afterwards.
    async fn release_keys(&mut self, index: usize) -> Result<(), Unavailable> {
        let AdoptedSegments { dir, has_released_keys, .. } = &mut self.adopted[index];
        if !*has_released_keys {
            call_keys::release_dead(&*self.reply_store, dir).await?;
            *has_released_keys = true;
        }
        Ok(())
    }

    /// Removes the files of ended processes that are no longer needed.
    fn remove_finished(&mut self, last_answer: Option<Instant>) {
        let (done, mut left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.adopted)
            .into_iter()
            .partition(|a| a.fully_replayed_into.is_some());
        for adopted in done {
            let since = adopted.fully_replayed_into.as_ref().map(|(_, since)| *since);
            let is_retention_over =
                since.is_some_and(|since| self.log.retention.is_over(since, last_answer));
            let is_empty = |file: &Path| fs::metadata(file).is_ok_and(|about| about.len() == 0);
            let is_gone = |file: &PathBuf| {
                (is_retention_over || is_empty(file)) && fs::remove_file(file).is_ok()
            };
            match adopted.dir.list_segments(SegmentKind::HoldEnds) {
                Ok(files) if files.iter().filter(|file| !is_gone(file)).count() == 0 => {
                    // Without entries of hold ends, the records of jobs and of calls are no longer
                    // needed either.
                    for kind in [SegmentKind::Jobs, SegmentKind::Calls] {
                        let files = adopted.dir.list_segments(kind).unwrap_or_default();
                        files.iter().for_each(|file| drop(fs::remove_file(file)));
                    }
                    adopted.dir.remove();
                }
                _ => left.push(adopted),
            }
        }
        self.adopted = left;
    }

    /// Sends the entries that a run may lack, from `unwritten` lines and from files. The newest
    /// file comes first, since a store loses its newest writes.
    async fn replay_files(
        &self,
        run: &impl ServerRun,
        dir: &SegmentDir,
        files: Vec<PathBuf>,
        unwritten: Vec<u8>,
        origin: EntryOrigin,
        part: ReplayPart,
    ) -> Result<ReplayOutcome, Unavailable> {
        let (mut acks, mut outcome) = (Acknowledgements::default(), ReplayOutcome::default());
        let calls = KeyedCalls::new(dir, origin == EntryOrigin::Own);
        let (records, _) = record::parse_segment(&unwritten);
        let lacking = acks.missing_entries(records, i64::MIN).0;
        self.send_missing(run, lacking, origin, &calls, &mut outcome).await?;
        let mut since = (part == ReplayPart::All).then_some(i64::MIN);
        for file in files.iter().rev() {
            let records = read_segment(file, &mut outcome).await;
            acks.add_all(&records, run.name());
            if acks.has_all() {
                break;
            }
            since = since.or(record::last_entry_ms(&records).map(|last| last - RECENT_MS));
            let (recent, older) = acks.missing_entries(records, since.unwrap_or(i64::MIN));
            // A run that lacks the charge of a call with a key would take a repeat for a new call.
            let (mut urgent, left) = calls.split_keyed(older).await;
            outcome.deferred += left.len();
            urgent.extend(recent);
            self.send_missing(run, urgent, origin, &calls, &mut outcome).await?;
        }
        Ok(outcome)
    }

    async fn send_missing(
        &self,
        run: &impl ServerRun,
        entries: Vec<SettlementEntry>,
        origin: EntryOrigin,
        calls: &KeyedCalls<'_>,
        outcome: &mut ReplayOutcome,
    ) -> Result<(), Unavailable> {
        for batch in entries.rchunks(LOOKUP_BATCH) {
            let unapplied = self.select_unapplied(run, batch, outcome).await?;
            for few in unapplied.rchunks(CONCURRENCY_MAX) {
                // A store that lacks a charge may lack the key of its call, under which a repeat
                // would be made anew. The key comes before the charge: no repeat is made between.
                let is_charge = |op: &Operation| matches!(op, Operation::Settle { .. });
                let charges = few.iter().filter(|entry| is_charge(&entry.op));
                let ids = charges.filter_map(|entry| entry.op.hold_id());
                calls.restore_keys(&*self.reply_store, ids).await?;
                let sending = few.iter().map(async |entry| {
                    let SettlementEntry { account, op, .. } = entry;
                    let void = match self.log.superseded.get() {
                        Some(check) if origin == EntryOrigin::Adopted => {
                            check.void_of(account, op).await?
                        }
                        Some(check) => check.void_of_own(account, op).await?,
                        None => None,
                    };
                    run.apply_in(account, void.as_ref().unwrap_or(op)).await
                });
                for (entry, answer) in few.iter().zip(join_all(sending).await) {
                    self.record_delivered(run, entry, &answer?, outcome);
                }
            }
        }
        Ok(())
    }

    /// Returns the entries whose holds have not ended in this run. The others are recorded as
    /// acknowledged.
    async fn select_unapplied<'a>(
        &self,
        run: &impl ServerRun,
        entries: &'a [SettlementEntry],
        outcome: &mut ReplayOutcome,
    ) -> Result<Vec<&'a SettlementEntry>, Unavailable> {
        let mut by_account: HashMap<&AccountName, Vec<&SettlementEntry>> = HashMap::new();
        entries.iter().for_each(|entry| by_account.entry(&entry.account).or_default().push(entry));
        let queries = by_account.iter().map(|(account, entries)| async move {
            let ids: Vec<&str> =
                entries.iter().map(|entry| entry.op.hold_id().unwrap_or_default()).collect();
            run.which_ended(account, &ids).await
        });
        let answers = join_all(queries).await;
        let mut applied_seqs = HashSet::new();
        for (entries, answer) in by_account.values().zip(answers) {
            let ended = entries.iter().zip(answer?).filter(|(_, ended)| *ended);
            applied_seqs.extend(ended.map(|(entry, _)| entry.seq));
        }
        let (applied, unapplied) =
            entries.iter().partition(|entry| applied_seqs.contains(&entry.seq));
        let applied: Vec<&SettlementEntry> = applied;
        applied.into_iter().for_each(|entry| self.record_applied(run, entry, outcome));
        Ok(unapplied)
    }

    /// Records that the run has applied an entry.
    fn record_applied(
        &self,
        run: &impl ServerRun,
        entry: &SettlementEntry,
        outcome: &mut ReplayOutcome,
    ) {
        outcome.entries += 1;
        outcome.last = outcome.last.max(entry.seq);
        self.log.record_ack(&HoldEndKey::of(&entry.account, &entry.op), run.name());
    }

    fn record_delivered(
        &self,
        run: &impl ServerRun,
        entry: &SettlementEntry,
        answer: &Outcome,
        outcome: &mut ReplayOutcome,
    ) {
        failpoint!("settlement_replayed");
        self.record_applied(run, entry, outcome);
        outcome.delivered += 1;
        METRICS.outbox_replayed.inc();
        match answer {
            Outcome::Posted { written_off, .. } => {
                let id = entry.op.hold_id().unwrap_or_default();
                outcome.charged += 1;
                record_write_off(entry.account.as_str(), id, written_off.nano());
            }
            Outcome::AlreadyPosted(_) | Outcome::Voided => {}
            other => log::error!(
                event = "outbox_entry_rejected", account = entry.account.as_str(),
                hold = entry.op.hold_id().unwrap_or_default(), answer:? = other;
                "outbox entry rejected by the store"
            ),
        }
    }
}

/// Reads the records of a file. A file that cannot be read is counted and does not stop the replay
/// of the others.
async fn read_segment(file: &Path, outcome: &mut ReplayOutcome) -> Vec<LogRecord> {
    let path = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        segment_files::read_written(&path).map(|f| record::parse_segment(&f))
    });
    let read = match reading.await.unwrap_or_else(|why| Err(why.into())) {
        // Another task has replayed and removed it meanwhile.
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Default::default()),
        read => read,
    };
    outcome.unread += usize::from(read.is_err());
    let (records, torn) = or_log_error(file, read);
    outcome.torn += torn;
    records
}

/// Cuts the preallocated zeros, into which the owner of the file has written nothing, off its end.
fn trim_segment(file: &Path) {
    let trimmed = fs::File::options().read(true).write(true).open(file).and_then(|file| {
        let length = segment_files::written_length(&file)?;
        if length == file.metadata()?.len() { Ok(()) } else { file.set_len(length) }
    });
    or_log_error(file, trimmed);
}

fn log_replay(outcome: &ReplayOutcome, source: &str) {
    let ReplayOutcome { entries, delivered, charged, torn, .. } = *outcome;
    if entries > 0 {
        log::info!(
            event = "outbox_replay_finished", source, entries, delivered, charged, torn;
            "outbox replay finished"
        );
    }
}

fn outbox_error(why: impl std::fmt::Display) -> Unavailable {
    Unavailable(format!("store.outbox: {why}"))
}
