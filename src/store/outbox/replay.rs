//! Replay of what a run of the store may lack: all entries in this process' own files, and in the
//! files that ended processes left.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::record::{self, Acknowledgements, LogRecord, SettlementEntry};
use super::segment_dir::{SegmentDir, SegmentKind};
use super::segment_files;
use super::settlement_log::{HoldEndKey, SettlementLog};
use super::target::ServerRun;
use super::{job_orders, started_calls};
use crate::idempotency::{ClaimMode, ReplyStore};
use crate::ledger::{AccountName, Outcome, Unavailable};
use crate::metrics::{METRICS, record_write_off};

/// What a run of the store acknowledged so long before its end, in ms, the next one has: servers
/// sync every second, and replicas lag by less.
const RECENT_MS: i64 = 15_000;
/// So many are under way at a time.
const CONCURRENCY_MAX: usize = 128;
/// Entries per lookup of what the run already has. A run that lost nothing has all of them, and a
/// lookup costs a twentieth of sending an entry again.
const LOOKUP_BATCH: usize = 1_024;

/// See the module.
pub(in crate::store) struct SegmentReplay {
    log: Arc<SettlementLog>,
    reply_store: Arc<dyn ReplyStore>,
    adopted: Vec<AdoptedSegments>,
    /// What was left for another store.
    foreign: Vec<SegmentDir>,
    /// Whether some of the own files could not be read when all were sent.
    is_own_pending: bool,
    /// Whether what is not urgent of adopted files was left for later.
    is_adopted_pending: bool,
}

/// A folder of segments whose owner has ended.
struct AdoptedSegments {
    dir: SegmentDir,
    /// The run of the store that has all of it, and since when.
    complete_run: Option<(Box<str>, Instant)>,
}

/// What is sent of what a run may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplayPart {
    /// What is urgent.
    Recent,
    All,
}

/// What came of it.
#[derive(Debug, Default)]
struct ReplayOutcome {
    entries: u64,
    /// Of these, those that the store had to be told.
    delivered: u64,
    /// Of these, charges that the store did not have.
    charged: u64,
    last: u64,
    /// Lines that were not written whole.
    torn: usize,
    /// Files that could not be read.
    unread: usize,
    /// What can wait.
    deferred: usize,
}

impl ReplayOutcome {
    fn is_complete(&self) -> bool {
        self.unread == 0 && self.deferred == 0
    }
}

impl SegmentReplay {
    /// What is sent goes to a run; names are those of `reply_store`.
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

    /// Sends what a run may lack that has just begun: whatever no run has acknowledged, and what
    /// was acknowledged last before the one before it ended. The rest, which it most likely has, is
    /// left to [`SegmentReplay::adopt_orphans`].
    ///
    /// # Errors
    /// The store did not take all of it. The same again sends the rest.
    pub(in crate::store) async fn replay_recent(
        &mut self,
        run: &impl ServerRun,
    ) -> Result<(), Unavailable> {
        self.replay_own(run, ReplayPart::Recent).await?;
        let own = self.log.segment_dir();
        self.log.orders.restart_retention();
        self.restore_jobs(run, &own).await?;
        self.find_orphans(run);
        for place in 0..self.adopted.len() {
            self.replay_adopted(place, run, ReplayPart::Recent).await?;
        }
        Ok(())
    }

    /// Whether there is more to send than was sent when the run began.
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
        let sent = self.replay_files(run, files, unwritten, part).await?;
        if sent.is_complete() {
            self.is_own_pending = false;
            self.log.record_all_acked(run.name(), last);
        }
        log_replay(&sent, "own");
        Ok(())
    }

    /// Takes what processes left that have ended. What they left for a store that had this address
    /// before is kept, and told to nobody.
    fn find_orphans(&mut self, run: &impl ServerRun) {
        let mut orphans = or_log_error(&self.log.root, SegmentDir::lock_orphans(&self.log.root));
        // Where it cannot be read whose one is, it is left for the next time.
        orphans.retain(|dir| or_log_error(&dir.path, dir.store_id().map(|_| true)));
        let is_foreign = |dir: &SegmentDir| {
            let theirs = dir.store_id().unwrap_or_default();
            theirs.is_some() && run.store_id().is_some() && theirs.as_deref() != run.store_id()
        };
        let (foreign, own): (Vec<_>, Vec<_>) = orphans.into_iter().partition(is_foreign);
        self.adopted.extend(own.into_iter().map(|dir| AdoptedSegments { dir, complete_run: None }));
        for dir in foreign {
            log::error!(
                event = "outbox_store_mismatch", place:? = dir.path;
                "outbox has settlements for another store id; they are kept"
            );
            METRICS.outbox_errors.inc();
            self.foreign.push(dir);
        }
    }

    /// Takes over what processes left that have ended, sends what the run may lack of it, and
    /// removes what is no longer needed, if the store last answered at that moment and lacks
    /// nothing. A file that cannot be read does not stop the others, and is tried again.
    ///
    /// # Errors
    /// As with [`SegmentReplay::replay_recent`].
    pub(in crate::store) async fn adopt_orphans(
        &mut self,
        run: &impl ServerRun,
        alive: Option<Instant>,
    ) -> Result<(), Unavailable> {
        if self.is_own_pending {
            self.replay_own(run, ReplayPart::All).await?;
        }
        self.is_adopted_pending = false;
        self.find_orphans(run);
        for place in 0..self.adopted.len() {
            self.replay_adopted(place, run, ReplayPart::All).await?;
        }
        self.remove_finished(alive);
        Ok(())
    }

    async fn replay_adopted(
        &mut self,
        place: usize,
        run: &impl ServerRun,
        part: ReplayPart,
    ) -> Result<(), Unavailable> {
        let AdoptedSegments { dir, complete_run } = &self.adopted[place];
        if complete_run.as_ref().is_some_and(|(by, _)| **by == *run.name()) {
            return Ok(());
        }
        let files = or_log_error(&dir.path, dir.list_segments(SegmentKind::HoldEnds).map(Some));
        let Some(files) = files else { return Ok(()) };
        files.iter().for_each(|file| trim_segment(file));
        let sent = self.replay_files(run, files, Vec::new(), part).await?;
        log_replay(&sent, "adopted");
        self.restore_jobs(run, &self.adopted[place].dir).await?;
        self.is_adopted_pending |= sent.deferred > 0;
        if sent.is_complete() {
            self.release_keys(place).await?;
            let AdoptedSegments { dir, complete_run } = &mut self.adopted[place];
            if sent.entries > 0 {
                // Only spares the next owner something.
                let _ =
                    fs::write(dir.ack_note_path(), record::all_acked_line(run.name(), sent.last));
            }
            *complete_run = Some((run.name().into(), Instant::now()));
        }
        Ok(())
    }

    /// Makes the video jobs again that a run lacks of those that a folder of segments knows. Jobs
    /// that it has cost a look each; they are those of the last minutes.
    async fn restore_jobs(
        &self,
        run: &impl ServerRun,
        place: &SegmentDir,
    ) -> Result<(), Unavailable> {
        let mut made = 0_u64;
        for file in or_log_error(&place.path, place.list_segments(SegmentKind::Jobs)) {
            let own = file.clone();
            let reading = tokio::task::spawn_blocking(move || job_orders::read_orders(&own));
            let read = reading.await.unwrap_or_else(|why| Err(why.into()));
            // One after the other: a job is placed before a vendor has it.
            for noted in or_log_error(&file, read) {
                made += u64::from(run.restore_job(noted).await?);
            }
        }
        if made > 0 {
            log::warn!(
                event = "video_jobs_restored", made;
                "lost video jobs restored"
            );
        }
        Ok(())
    }

    /// Expires the idempotency keys of calls that died with their process: a repeat then asks the
    /// ledger for the outcome. All settlements of the process are in the ledger before this. It
    /// runs once only, since a key may belong to another call afterwards.
    async fn release_keys(&self, place: usize) -> Result<(), Unavailable> {
        let known = &self.adopted[place].dir;
        let calls = or_log_error(&known.path, started_calls::read_unfinished(known));
        for few in calls.chunks(CONCURRENCY_MAX) {
            let lapsing = few.iter().map(|(account, naming)| {
                // It is made again, where the store has lost it.
                self.reply_store.claim_key(account, naming, &ClaimMode::IfFree, 0)
            });
            for lapsed in join_all(lapsing).await {
                lapsed?;
            }
        }
        if !calls.is_empty() {
            log::info!(
                event = "idempotency_keys_released", names = calls.len();
                "idempotency keys of dead calls released"
            );
        }
        for file in or_log_error(&known.path, known.list_segments(SegmentKind::Calls)) {
            let _ = fs::remove_file(file);
        }
        Ok(())
    }

    /// Removes the files of ended processes that are no longer needed.
    fn remove_finished(&mut self, alive: Option<Instant>) {
        let (done, mut left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.adopted).into_iter().partition(|a| a.complete_run.is_some());
        for adopted in done {
            let since = adopted.complete_run.as_ref().map(|(_, since)| *since);
            let is_over = since.is_some_and(|since| self.log.retention.is_over(since, alive));
            let is_empty = |file: &Path| fs::metadata(file).is_ok_and(|about| about.len() == 0);
            let is_gone =
                |file: &PathBuf| (is_over || is_empty(file)) && fs::remove_file(file).is_ok();
            match adopted.dir.list_segments(SegmentKind::HoldEnds) {
                Ok(files) if files.iter().filter(|file| !is_gone(file)).count() == 0 => {
                    // With the ends of their holds, what is noted of jobs is no longer needed.
                    let jobs = adopted.dir.list_segments(SegmentKind::Jobs).unwrap_or_default();
                    jobs.iter().for_each(|file| drop(fs::remove_file(file)));
                    adopted.dir.remove();
                }
                _ => left.push(adopted),
            }
        }
        self.adopted = left;
    }

    /// Sends what a run may lack of some files, and of lines that are in none: the last first,
    /// since those are what a store forgets.
    async fn replay_files(
        &self,
        run: &impl ServerRun,
        files: Vec<PathBuf>,
        unwritten: Vec<u8>,
        part: ReplayPart,
    ) -> Result<ReplayOutcome, Unavailable> {
        let (mut acks, mut sent) = (Acknowledgements::default(), ReplayOutcome::default());
        let (records, _) = record::parse_segment(&unwritten);
        self.send_missing(run, acks.missing_entries(records, i64::MIN).0, &mut sent).await?;
        let mut since = (part == ReplayPart::All).then_some(i64::MIN);
        for file in files.iter().rev() {
            let records = read_segment(file, &mut sent).await;
            acks.add_all(&records, run.name());
            if acks.has_all() {
                break;
            }
            since = since.or(record::last_entry_ms(&records).map(|last| last - RECENT_MS));
            let (lacking, left) = acks.missing_entries(records, since.unwrap_or(i64::MIN));
            sent.deferred += left.len();
            self.send_missing(run, lacking, &mut sent).await?;
        }
        Ok(sent)
    }

    async fn send_missing(
        &self,
        run: &impl ServerRun,
        entries: Vec<SettlementEntry>,
        sent: &mut ReplayOutcome,
    ) -> Result<(), Unavailable> {
        for asked in entries.rchunks(LOOKUP_BATCH) {
            let lacking = self.filter_unknown(run, asked, sent).await?;
            for few in lacking.rchunks(CONCURRENCY_MAX) {
                let sending = few.iter().map(|entry| run.apply_in(&entry.account, &entry.op));
                for (entry, answer) in few.iter().zip(join_all(sending).await) {
                    self.record_delivered(run, entry, &answer?, sent);
                }
            }
        }
        Ok(())
    }

    /// Those of which the run does not know that their holds ended.
    async fn filter_unknown<'a>(
        &self,
        run: &impl ServerRun,
        entries: &'a [SettlementEntry],
        sent: &mut ReplayOutcome,
    ) -> Result<Vec<&'a SettlementEntry>, Unavailable> {
        let mut of: HashMap<&AccountName, Vec<&SettlementEntry>> = HashMap::new();
        entries.iter().for_each(|entry| of.entry(&entry.account).or_default().push(entry));
        let asking = of.iter().map(|(account, entries)| async move {
            let ids: Vec<&str> =
                entries.iter().map(|entry| entry.op.hold_id().unwrap_or_default()).collect();
            run.which_ended(account, &ids).await
        });
        let answers = join_all(asking).await;
        let mut known = HashSet::new();
        for (entries, answer) in of.values().zip(answers) {
            let ended = entries.iter().zip(answer?).filter(|(_, ended)| *ended);
            known.extend(ended.map(|(entry, _)| entry.seq));
        }
        let (known, unknown) = entries.iter().partition(|entry| known.contains(&entry.seq));
        let known: Vec<&SettlementEntry> = known;
        known.into_iter().for_each(|entry| self.record_known(run, entry, sent));
        Ok(unknown)
    }

    /// Notes that the run has an entry.
    fn record_known(
        &self,
        run: &impl ServerRun,
        entry: &SettlementEntry,
        sent: &mut ReplayOutcome,
    ) {
        sent.entries += 1;
        sent.last = sent.last.max(entry.seq);
        self.log.record_ack(&HoldEndKey::of(&entry.account, &entry.op), run.name());
    }

    fn record_delivered(
        &self,
        run: &impl ServerRun,
        entry: &SettlementEntry,
        answer: &Outcome,
        sent: &mut ReplayOutcome,
    ) {
        self.record_known(run, entry, sent);
        sent.delivered += 1;
        METRICS.outbox_replayed.inc();
        match answer {
            Outcome::Posted { written_off, .. } => {
                sent.charged += 1;
                let id = entry.op.hold_id().unwrap_or_default();
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

/// What a file says. One that cannot be read keeps nobody from the others.
async fn read_segment(file: &Path, sent: &mut ReplayOutcome) -> Vec<LogRecord> {
    let own = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        segment_files::read_written(&own).map(|f| record::parse_segment(&f))
    });
    let read = match reading.await.unwrap_or_else(|why| Err(why.into())) {
        // Another task has replayed and removed it meanwhile.
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Default::default()),
        read => read,
    };
    sent.unread += usize::from(read.is_err());
    let (records, torn) = or_log_error(file, read);
    sent.torn += torn;
    records
}

/// What was read of a place, nothing if it could not be.
fn or_log_error<T: Default>(place: &Path, read: io::Result<T>) -> T {
    read.unwrap_or_else(|why| {
        log::error!(
            event = "outbox_read_failed", place:? = place, why:% = why;
            "outbox read failed"
        );
        METRICS.outbox_errors.inc();
        T::default()
    })
}

/// Takes off a file what its owner has written nothing into.
fn trim_segment(file: &Path) {
    let trimmed = fs::File::options().read(true).write(true).open(file).and_then(|file| {
        let length = segment_files::written_length(&file)?;
        if length == file.metadata()?.len() { Ok(()) } else { file.set_len(length) }
    });
    or_log_error(file, trimmed);
}

fn log_replay(sent: &ReplayOutcome, whose: &str) {
    let ReplayOutcome { entries, delivered: told, charged, torn, .. } = *sent;
    if entries > 0 {
        log::info!(
            event = "store_replay_finished", whose, entries, told, charged, torn;
            "outbox replay finished"
        );
    }
}

fn outbox_error(why: impl std::fmt::Display) -> Unavailable {
    Unavailable(format!("store.outbox: {why}"))
}
