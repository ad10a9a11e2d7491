//! Sending again what a run of the store may lack: of this process' own files all that they hold,
//! and what processes left that have ended.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::Run;
use super::files;
use super::log::{Key, Log};
use super::record::{self, Acks, Entry, Record};
use super::shelf::Shelf;
use crate::ledger::{AccountName, Answer, Unavailable};
use crate::metrics::{METRICS, record_write_off};

/// What a run of the store acknowledged so long before its end, in ms, the next one has: servers
/// sync every second, and replicas lag by less.
const LATELY_MS: i64 = 15_000;
/// So many are under way at a time.
const TOGETHER: usize = 128;
/// Of so many it is asked at a time which of them the run has: one that was not set back has all
/// of the last minutes, and to be told of each costs it twenty times as much as to be asked.
const ASKED: usize = 1_024;

/// See the module.
pub(in crate::store) struct Replay {
    log: Arc<Log>,
    adopted: Vec<Adopted>,
    /// Whether some of the own files could not be read when all were sent.
    owes: bool,
}

/// A shelf whose owner has ended.
struct Adopted {
    shelf: Shelf,
    /// The run of the store that has all of it, and since when.
    has_all: Option<(Box<str>, Instant)>,
}

/// What is sent of what a run may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// What is urgent.
    Lately,
    All,
}

/// What came of it.
#[derive(Debug, Default)]
struct Sent {
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

impl Sent {
    fn is_all(&self) -> bool {
        self.unread == 0 && self.left == 0
    }
}

impl Replay {
    pub(in crate::store) fn new(log: Arc<Log>) -> Replay {
        Replay { log, adopted: Vec::new(), owes: false }
    }

    /// Sends what a run may lack that has just begun: whatever no run has acknowledged, and what
    /// was acknowledged last before the one before it ended. The rest, which it most likely has, is
    /// left to [`Replay::adopt`].
    ///
    /// # Errors
    /// The store did not take all of it. The same again sends the rest.
    pub(in crate::store) async fn lately(&mut self, run: &impl Run) -> Result<(), Unavailable> {
        self.own(run, Part::Lately).await?;
        self.find();
        for place in 0..self.adopted.len() {
            self.adopted(place, run, Part::Lately).await?;
        }
        Ok(())
    }

    /// Whether there is more to send than was sent when the run began.
    pub(in crate::store) fn is_behind(&self) -> bool {
        self.owes
    }

    async fn own(&mut self, run: &impl Run, part: Part) -> Result<(), Unavailable> {
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

    /// Takes what processes left that have ended.
    fn find(&mut self) {
        let orphans = readable(&self.log.root, Shelf::orphans(&self.log.root));
        self.adopted.extend(orphans.into_iter().map(|shelf| Adopted { shelf, has_all: None }));
    }

    /// Takes over what processes left that have ended, sends what the run may lack of it, and
    /// removes what is no longer needed, if the store last answered at that moment and lacks
    /// nothing. What cannot be read keeps nobody from the rest, and is tried again.
    ///
    /// # Errors
    /// As with [`Replay::lately`].
    pub(in crate::store) async fn adopt(
        &mut self,
        run: &impl Run,
        alive: Option<Instant>,
    ) -> Result<(), Unavailable> {
        if self.owes {
            self.own(run, Part::All).await?;
        }
        self.find();
        for place in 0..self.adopted.len() {
            self.adopted(place, run, Part::All).await?;
        }
        self.clear(alive);
        Ok(())
    }

    async fn adopted(
        &mut self,
        place: usize,
        run: &impl Run,
        part: Part,
    ) -> Result<(), Unavailable> {
        let Adopted { shelf, has_all } = &self.adopted[place];
        if has_all.as_ref().is_some_and(|(by, _)| **by == *run.name()) {
            return Ok(());
        }
        let files = readable(&shelf.folder, shelf.files().map(Some));
        let Some(files) = files else { return Ok(()) };
        files.iter().for_each(|file| trim(file));
        let sent = self.files(run, (files, Vec::new()), part).await?;
        tell(&sent, "adopted");
        if sent.is_all() {
            let Adopted { shelf, has_all } = &mut self.adopted[place];
            if sent.entries > 0 {
                // Only spares the next owner something.
                let _ = fs::write(shelf.notes(), record::all_acked(run.name(), sent.last));
            }
            *has_all = Some((run.name().into(), Instant::now()));
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
            match adopted.shelf.files() {
                Ok(files) if files.iter().filter(|file| !is_gone(file)).count() == 0 => {
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
        run: &impl Run,
        (files, unwritten): (Vec<PathBuf>, Vec<u8>),
        part: Part,
    ) -> Result<Sent, Unavailable> {
        let (mut acks, mut sent) = (Acks::default(), Sent::default());
        let (records, _) = record::read(&unwritten);
        self.send(run, acks.lacking(records, i64::MIN).0, &mut sent).await?;
        let mut since = (part == Part::All).then_some(i64::MIN);
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
        run: &impl Run,
        entries: Vec<Entry>,
        sent: &mut Sent,
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
        run: &impl Run,
        entries: &'a [Entry],
        sent: &mut Sent,
    ) -> Result<Vec<&'a Entry>, Unavailable> {
        let mut of: HashMap<&AccountName, Vec<&Entry>> = HashMap::new();
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
        let known: Vec<&Entry> = known;
        known.into_iter().for_each(|entry| self.has(run, entry, sent));
        Ok(unknown)
    }

    /// Notes that the run has an entry.
    fn has(&self, run: &impl Run, entry: &Entry, sent: &mut Sent) {
        sent.entries += 1;
        sent.last = sent.last.max(entry.seq);
        self.log.acked(&Key::of(&entry.account, &entry.op), run.name());
    }

    fn told(&self, run: &impl Run, entry: &Entry, answer: &Answer, sent: &mut Sent) {
        self.has(run, entry, sent);
        sent.told += 1;
        METRICS.outbox_replayed.inc();
        match answer {
            Answer::Posted { written_off, .. } => {
                sent.charged += 1;
                let id = entry.op.hold_id().unwrap_or_default();
                record_write_off(entry.account.as_str(), id, written_off.nano());
            }
            Answer::AlreadyPosted(_) | Answer::Voided => {}
            other => log::error!(
                account = entry.account.as_str(),
                hold = entry.op.hold_id().unwrap_or_default(),
                answer:? = other;
                "an entry of the outbox came to nothing"
            ),
        }
    }
}

/// What a file says. One that cannot be read keeps nobody from the others.
async fn read(file: &Path, sent: &mut Sent) -> Vec<Record> {
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
        log::error!(place:? = place, why:% = why; "the outbox cannot be read");
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

fn tell(sent: &Sent, whose: &str) {
    let Sent { entries, told, charged, torn, .. } = *sent;
    if entries > 0 {
        log::info!(whose, entries, told, charged, torn; "the store was told again what it lacked");
    }
}

fn cannot(why: impl std::fmt::Display) -> Unavailable {
    Unavailable(format!("store.outbox: {why}"))
}
