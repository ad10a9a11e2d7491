//! Sending again what a run of the store may lack: of this process' own files all that they hold,
//! and what processes left that have ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;

use super::Run;
use super::log::{Key, Log, unix_ms};
use super::record::{self, Acks, Entry, Record};
use super::shelf::Shelf;
use crate::ledger::{Answer, Unavailable};
use crate::metrics::{METRICS, count};

/// So many are under way at a time.
const TOGETHER: usize = 128;
/// What a shelf's new owner notes of it.
const NOTES: &str = "noted.log";

/// See the module.
pub(in crate::store) struct Replay {
    log: Arc<Log>,
    adopted: Vec<Adopted>,
}

/// A shelf whose owner has ended.
struct Adopted {
    shelf: Shelf,
    /// The run of the store that has all of it.
    has_all: Option<Box<str>>,
}

/// What came of it.
#[derive(Debug, Default)]
struct Sent {
    entries: u64,
    /// Of these, charges that the store did not have.
    charged: u64,
    last: u64,
    /// Lines that were not written whole.
    torn: usize,
    /// Files that could not be read.
    unread: usize,
}

impl Replay {
    pub(in crate::store) fn new(log: Arc<Log>) -> Replay {
        Replay { log, adopted: Vec::new() }
    }

    /// Sends everything there is that a run has not acknowledged.
    ///
    /// # Errors
    /// The store did not take all of it. The same again sends the rest.
    pub(in crate::store) async fn all(&mut self, run: &impl Run) -> Result<(), Unavailable> {
        let (files, last, unwritten) = self.log.all().map_err(cannot)?;
        let sent = self.files(run, files, unwritten).await?;
        self.log.all_acked(run.name(), last);
        tell(&sent, "own");
        self.adopt(run).await
    }

    /// Takes over what processes left that have ended, sends what the run may lack of it, and
    /// removes what is no longer needed. What cannot be read keeps nobody from the rest.
    ///
    /// # Errors
    /// As with [`Replay::all`].
    pub(in crate::store) async fn adopt(&mut self, run: &impl Run) -> Result<(), Unavailable> {
        let orphans = readable(&self.log.root, Shelf::orphans(&self.log.root));
        self.adopted.extend(orphans.into_iter().map(|shelf| Adopted { shelf, has_all: None }));
        for place in 0..self.adopted.len() {
            let Adopted { shelf, has_all } = &self.adopted[place];
            if has_all.as_deref() == Some(run.name()) {
                continue;
            }
            let Some(files) = readable(&shelf.folder, shelf.files().map(Some)) else { continue };
            files.iter().for_each(|file| trim(file));
            let sent = self.files(run, files, Vec::new()).await?;
            tell(&sent, "adopted");
            if sent.unread > 0 {
                continue;
            }
            let Adopted { shelf, has_all } = &mut self.adopted[place];
            if sent.entries > 0 {
                // Only spares the next owner something.
                let _ =
                    fs::write(shelf.folder.join(NOTES), record::all_acked(run.name(), sent.last));
            }
            *has_all = Some(run.name().into());
        }
        self.clear();
        Ok(())
    }

    /// Removes the files of ended processes that are no longer needed.
    fn clear(&mut self) {
        let (done, mut left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.adopted).into_iter().partition(|a| a.has_all.is_some());
        for adopted in done {
            let is_empty = |file: &Path| fs::metadata(file).is_ok_and(|about| about.len() == 0);
            let is_gone = |file: &PathBuf| {
                (is_empty(file) || !self.log.is_kept(file)) && fs::remove_file(file).is_ok()
            };
            match adopted.shelf.files() {
                Ok(files) if files.iter().filter(|file| !is_gone(file)).count() == 0 => {
                    adopted.shelf.remove();
                }
                _ => left.push(adopted),
            }
        }
        self.adopted = left;
    }

    /// Sends what a run may lack of some files, and of lines that are in none.
    async fn files(
        &self,
        run: &impl Run,
        files: Vec<PathBuf>,
        unwritten: Vec<u8>,
    ) -> Result<Sent, Unavailable> {
        let (mut acks, mut sent) = (Acks::default(), Sent::default());
        for file in &files {
            acks.note(&read(file, &mut sent).await, run.name());
        }
        sent = Sent::default();
        for file in files {
            let records = read(&file, &mut sent).await;
            self.send(run, acks.lacking(records), &mut sent).await?;
        }
        let (records, _) = record::read(&unwritten);
        self.send(run, acks.lacking(records), &mut sent).await?;
        Ok(sent)
    }

    async fn send(
        &self,
        run: &impl Run,
        entries: Vec<Entry>,
        sent: &mut Sent,
    ) -> Result<(), Unavailable> {
        let now = unix_ms();
        for few in entries.chunks(TOGETHER) {
            let sending = few.iter().map(|entry| async move {
                let op = entry.replayed(now);
                run.apply_in(&entry.account, &op).await
            });
            for (entry, answer) in few.iter().zip(join_all(sending).await) {
                self.note(run, entry, &answer?, sent);
            }
        }
        Ok(())
    }

    fn note(&self, run: &impl Run, entry: &Entry, answer: &Answer, sent: &mut Sent) {
        sent.entries += 1;
        sent.last = sent.last.max(entry.seq);
        METRICS.outbox_replayed.inc();
        self.log.acked(&Key::of(&entry.account, &entry.op), run.name());
        match answer {
            Answer::Posted { written_off, .. } => {
                sent.charged += 1;
                METRICS.written_off_nanousd.inc_by(count(written_off.nano()));
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
    let reading = tokio::task::spawn_blocking(move || fs::read(own).map(|f| record::read(&f)));
    let read = reading.await.unwrap_or_else(|why| Err(why.into()));
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
    let trimmed = fs::read(file).and_then(|bytes| {
        let length = record::length(&bytes);
        if length == bytes.len() {
            return Ok(());
        }
        fs::OpenOptions::new().write(true).open(file)?.set_len(length as u64)
    });
    readable(file, trimmed);
}

fn tell(sent: &Sent, whose: &str) {
    let Sent { entries, charged, torn, .. } = *sent;
    if entries > 0 {
        log::info!(whose, entries, charged, torn; "the store was told again how holds ended");
    }
}

fn cannot(why: impl std::fmt::Display) -> Unavailable {
    Unavailable(format!("store.outbox: {why}"))
}
