//! Sending again what a run of the store may lack: of this process' own files all that they hold,
//! and what processes left that have ended.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::files;
use super::log::{HoldEndKey, SettlementLog};
use super::record::{self, Acknowledgements, LogRecord, SettlementEntry};
use super::shelf::{SegmentDir, SegmentKind};
use super::{ServerRun, calls, orders};
use crate::ledger::{AccountName, Outcome, Unavailable};
use crate::metrics::{METRICS, record_write_off};
use crate::repeats::{ClaimMode, ReplyStore};

/// What a run of the store acknowledged so long before its end, in ms, the next one has: servers
/// sync every second, and replicas lag by less.
const LATELY_MS: i64 = 15_000;
/// So many are under way at a time.
const TOGETHER: usize = 128;
/// Of so many it is asked at a time which of them the run has: one that was not set back has all
/// of the last minutes, and to be told of each costs it twenty times as much as to be asked.
const ASKED: usize = 1_024;

/// See the module.
pub(in crate::store) struct SegmentReplay {
    log: Arc<SettlementLog>,
    repeats: Arc<dyn ReplyStore>,
    adopted: Vec<AdoptedSegments>,
    /// What was left for another store.
    foreign: Vec<SegmentDir>,
    /// Whether some of the own files could not be read when all were sent.
    owes: bool,
    /// Whether what is not urgent of adopted files was left for later.
    left: bool,
}

/// A shelf whose owner has ended.
struct AdoptedSegments {
    shelf: SegmentDir,
    /// The run of the store that has all of it, and since when.
    has_all: Option<(Box<str>, Instant)>,
}

/// What is sent of what a run may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplayPart {
    /// What is urgent.
    Lately,
    All,
}

/// What came of it.
#[derive(Debug, Default)]
struct ReplayOutcome {
    entries: u64,
    /// Of these, those that the store had to be told.
    told: u64,
    /// Of these, charges that the store did not have.
    charged: u64,
    last: u64,
    /// Lines that were not written whole.
    torn: usize,
    /// Files that could not be read.
    unread: usize,
    /// What can wait.
    left: usize,
}

impl ReplayOutcome {
    fn is_all(&self) -> bool {
        self.unread == 0 && self.left == 0
    }
}

impl SegmentReplay {
    /// What is sent goes to a run; names are those of `repeats`.
    pub(in crate::store) fn new(
        log: Arc<SettlementLog>,
        repeats: Arc<dyn ReplyStore>,
    ) -> SegmentReplay {
        let (adopted, foreign) = (Vec::new(), Vec::new());
        SegmentReplay { log, repeats, adopted, foreign, owes: false, left: false }
    }

    /// Sends what a run may lack that has just begun: whatever no run has acknowledged, and what
    /// was acknowledged last before the one before it ended. The rest, which it most likely has, is
    /// left to [`Replay::adopt`].
    ///
    /// # Errors
    /// The store did not take all of it. The same again sends the rest.
    pub(in crate::store) async fn lately(
        &mut self,
        run: &impl ServerRun,
    ) -> Result<(), Unavailable> {
        self.own(run, ReplayPart::Lately).await?;
        let own = self.log.folder();
        self.log.orders.are_needed();
        self.jobs(run, &own).await?;
        self.find(run);
        for place in 0..self.adopted.len() {
            self.adopted(place, run, ReplayPart::Lately).await?;
        }
        Ok(())
    }

    /// Whether there is more to send than was sent when the run began.
    pub(in crate::store) fn is_behind(&self) -> bool {
        self.owes || self.left
    }

    async fn own(&mut self, run: &impl ServerRun, part: ReplayPart) -> Result<(), Unavailable> {
        self.owes = true;
        let (files, last, unwritten) = self.log.all().map_err(cannot)?;
        let sent = self.files(run, (files, unwritten), part).await?;
        if sent.is_all() {
            self.owes = false;
            self.log.all_acked(run.name(), last);
        }
        tell(&sent, "own");
        Ok(())
    }

    /// Takes what processes left that have ended. What they left for a store that had this address
    /// before is kept, and told to nobody.
    fn find(&mut self, run: &impl ServerRun) {
        let mut orphans = readable(&self.log.root, SegmentDir::orphans(&self.log.root));
        // Where it cannot be read whose one is, it is left for the next time.
        orphans.retain(|shelf| readable(&shelf.folder, shelf.store_id().map(|_| true)));
        let is_foreign = |shelf: &SegmentDir| {
            let theirs = shelf.store_id().unwrap_or_default();
            theirs.is_some() && run.store_id().is_some() && theirs.as_deref() != run.store_id()
        };
        let (foreign, own): (Vec<_>, Vec<_>) = orphans.into_iter().partition(is_foreign);
        self.adopted.extend(own.into_iter().map(|shelf| AdoptedSegments { shelf, has_all: None }));
        for shelf in foreign {
            log::error!(
                event = "outbox_store_mismatch", place:? = shelf.folder;
                "the outbox has ends of holds for the store that was here before; they are kept"
            );
            METRICS.outbox_errors.inc();
            self.foreign.push(shelf);
        }
    }

    /// Takes over what processes left that have ended, sends what the run may lack of it, and
    /// removes what is no longer needed, if the store last answered at that moment and lacks
    /// nothing. What cannot be read keeps nobody from the rest, and is tried again.
    ///
    /// # Errors
    /// As with [`Replay::lately`].
    pub(in crate::store) async fn adopt(
        &mut self,
        run: &impl ServerRun,
        alive: Option<Instant>,
    ) -> Result<(), Unavailable> {
        if self.owes {
            self.own(run, ReplayPart::All).await?;
        }
        self.left = false;
        self.find(run);
        for place in 0..self.adopted.len() {
            self.adopted(place, run, ReplayPart::All).await?;
        }
        self.clear(alive);
        Ok(())
    }

    async fn adopted(
        &mut self,
        place: usize,
        run: &impl ServerRun,
        part: ReplayPart,
    ) -> Result<(), Unavailable> {
        let AdoptedSegments { shelf, has_all } = &self.adopted[place];
        if has_all.as_ref().is_some_and(|(by, _)| **by == *run.name()) {
            return Ok(());
        }
        let files = readable(&shelf.folder, shelf.files(SegmentKind::Ends).map(Some));
        let Some(files) = files else { return Ok(()) };
        files.iter().for_each(|file| trim(file));
        let sent = self.files(run, (files, Vec::new()), part).await?;
        tell(&sent, "adopted");
        self.jobs(run, &self.adopted[place].shelf).await?;
        self.left |= sent.left > 0;
        if sent.is_all() {
            self.let_lapse(place).await?;
            let AdoptedSegments { shelf, has_all } = &mut self.adopted[place];
            if sent.entries > 0 {
                // Only spares the next owner something.
                let _ = fs::write(shelf.notes(), record::all_acked(run.name(), sent.last));
            }
            *has_all = Some((run.name().into(), Instant::now()));
        }
        Ok(())
    }

    /// Makes the video jobs again that a run lacks of those that a shelf knows. Jobs that it has
    /// cost a look each; they are those of the last minutes.
    async fn jobs(&self, run: &impl ServerRun, place: &SegmentDir) -> Result<(), Unavailable> {
        let mut made = 0_u64;
        for file in readable(&place.folder, place.files(SegmentKind::Jobs)) {
            let own = file.clone();
            let reading = tokio::task::spawn_blocking(move || orders::read(&own));
            let read = reading.await.unwrap_or_else(|why| Err(why.into()));
            // One after the other: a job is placed before a vendor has it.
            for noted in readable(&file, read) {
                made += u64::from(run.make_again(noted).await?);
            }
        }
        if made > 0 {
            log::warn!(
                event = "video_jobs_restored", made;
                "what the store lacked of video jobs was made again"
            );
        }
        Ok(())
    }

    /// Lets the names lapse of calls that ended with their process: whoever asks for one is told by
    /// the ledger what became of its call. All that ended holds there is in the ledger before.
    /// Once only, since after that a name may be another call's.
    async fn let_lapse(&self, place: usize) -> Result<(), Unavailable> {
        let known = &self.adopted[place].shelf;
        let calls = readable(&known.folder, calls::left(known));
        for few in calls.chunks(TOGETHER) {
            let lapsing = few.iter().map(|(account, naming)| {
                // It is made again, where the store has lost it.
                self.repeats.take(account, naming, &ClaimMode::Free, 0)
            });
            for lapsed in join_all(lapsing).await {
                lapsed?;
            }
        }
        if !calls.is_empty() {
            log::info!(
                event = "idempotency_keys_released", names = calls.len();
                "names of calls that died were let lapse"
            );
        }
        for file in readable(&known.folder, known.files(SegmentKind::Calls)) {
            let _ = fs::remove_file(file);
        }
        Ok(())
    }

    /// Removes the files of ended processes that are no longer needed.
    fn clear(&mut self, alive: Option<Instant>) {
        let (done, mut left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.adopted).into_iter().partition(|a| a.has_all.is_some());
        for adopted in done {
            let since = adopted.has_all.as_ref().map(|(_, since)| *since);
            let is_over = since.is_some_and(|since| self.log.life.is_over(since, alive));
            let is_empty = |file: &Path| fs::metadata(file).is_ok_and(|about| about.len() == 0);
            let is_gone =
                |file: &PathBuf| (is_over || is_empty(file)) && fs::remove_file(file).is_ok();
            match adopted.shelf.files(SegmentKind::Ends) {
                Ok(files) if files.iter().filter(|file| !is_gone(file)).count() == 0 => {
                    // With the ends of their holds, what is noted of jobs is no longer needed.
                    let jobs = adopted.shelf.files(SegmentKind::Jobs).unwrap_or_default();
                    jobs.iter().for_each(|file| drop(fs::remove_file(file)));
                    adopted.shelf.remove();
                }
                _ => left.push(adopted),
            }
        }
        self.adopted = left;
    }

    /// Sends what a run may lack of some files, and of lines that are in none: the last first,
    /// since those are what a store forgets.
    async fn files(
        &self,
        run: &impl ServerRun,
        (files, unwritten): (Vec<PathBuf>, Vec<u8>),
        part: ReplayPart,
    ) -> Result<ReplayOutcome, Unavailable> {
        let (mut acks, mut sent) = (Acknowledgements::default(), ReplayOutcome::default());
        let (records, _) = record::read(&unwritten);
        self.send(run, acks.lacking(records, i64::MIN).0, &mut sent).await?;
        let mut since = (part == ReplayPart::All).then_some(i64::MIN);
        for file in files.iter().rev() {
            let records = read(file, &mut sent).await;
            acks.note(&records, run.name());
            if acks.has_all() {
                break;
            }
            since = since.or(record::last_at(&records).map(|last| last - LATELY_MS));
            let (lacking, left) = acks.lacking(records, since.unwrap_or(i64::MIN));
            sent.left += left.len();
            self.send(run, lacking, &mut sent).await?;
        }
        Ok(sent)
    }

    async fn send(
        &self,
        run: &impl ServerRun,
        entries: Vec<SettlementEntry>,
        sent: &mut ReplayOutcome,
    ) -> Result<(), Unavailable> {
        for asked in entries.rchunks(ASKED) {
            let lacking = self.unknown(run, asked, sent).await?;
            for few in lacking.rchunks(TOGETHER) {
                let sending = few.iter().map(|entry| run.apply_in(&entry.account, &entry.op));
                for (entry, answer) in few.iter().zip(join_all(sending).await) {
                    self.told(run, entry, &answer?, sent);
                }
            }
        }
        Ok(())
    }

    /// Those of which the run does not know that their holds ended.
    async fn unknown<'a>(
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
            run.knows_ends(account, &ids).await
        });
        let answers = join_all(asking).await;
        let mut known = HashSet::new();
        for (entries, answer) in of.values().zip(answers) {
            let ended = entries.iter().zip(answer?).filter(|(_, ended)| *ended);
            known.extend(ended.map(|(entry, _)| entry.seq));
        }
        let (known, unknown) = entries.iter().partition(|entry| known.contains(&entry.seq));
        let known: Vec<&SettlementEntry> = known;
        known.into_iter().for_each(|entry| self.has(run, entry, sent));
        Ok(unknown)
    }

    /// Notes that the run has an entry.
    fn has(&self, run: &impl ServerRun, entry: &SettlementEntry, sent: &mut ReplayOutcome) {
        sent.entries += 1;
        sent.last = sent.last.max(entry.seq);
        self.log.acked(&HoldEndKey::of(&entry.account, &entry.op), run.name());
    }

    fn told(
        &self,
        run: &impl ServerRun,
        entry: &SettlementEntry,
        answer: &Outcome,
        sent: &mut ReplayOutcome,
    ) {
        self.has(run, entry, sent);
        sent.told += 1;
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
                "an entry of the outbox came to nothing"
            ),
        }
    }
}

/// What a file says. One that cannot be read keeps nobody from the others.
async fn read(file: &Path, sent: &mut ReplayOutcome) -> Vec<LogRecord> {
    let own = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || files::read(&own).map(|f| record::read(&f)));
    let read = match reading.await.unwrap_or_else(|why| Err(why.into())) {
        // It was done with meanwhile.
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Default::default()),
        read => read,
    };
    sent.unread += usize::from(read.is_err());
    let (records, torn) = readable(file, read);
    sent.torn += torn;
    records
}

/// What was read of a place, nothing if it could not be.
fn readable<T: Default>(place: &Path, read: io::Result<T>) -> T {
    read.unwrap_or_else(|why| {
        log::error!(
            event = "outbox_read_failed", place:? = place, why:% = why;
            "the outbox cannot be read"
        );
        METRICS.outbox_errors.inc();
        T::default()
    })
}

/// Takes off a file what its owner has written nothing into.
fn trim(file: &Path) {
    let trimmed = fs::File::options().read(true).write(true).open(file).and_then(|file| {
        let length = files::written(&file)?;
        if length == file.metadata()?.len() { Ok(()) } else { file.set_len(length) }
    });
    readable(file, trimmed);
}

fn tell(sent: &ReplayOutcome, whose: &str) {
    let ReplayOutcome { entries, told, charged, torn, .. } = *sent;
    if entries > 0 {
        log::info!(
            event = "store_replay_finished", whose, entries, told, charged, torn;
            "the store was told again what it lacked"
        );
    }
}

fn cannot(why: impl std::fmt::Display) -> Unavailable {
    Unavailable(format!("store.outbox: {why}"))
}
