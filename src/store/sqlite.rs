//! The embedded store: SQLite on disk, written by one thread.
//!
//! Operations queue up for the writer, which does all that are waiting in one transaction. It
//! commits without waiting for the disk, so a hold costs no disk wait; payments and charges are
//! acknowledged by a second thread once the log that holds them is on disk. That is what
//! `synchronous = FULL` promises, without making holds wait for the charges of others.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::ledger::account::Balances;
use crate::ledger::{
    AccountName, Answer, Entry, KeyHash, KeyRecord, Ledger, Operation, Swept, Unavailable,
};

mod accounts;
mod desk;
mod holds;
mod jobs;
mod keys;
mod notes;
mod queue;
mod reader;
mod repeats;
mod schema;

use desk::{Desk, Rows};
use queue::Queue;
use reader::Reader;

/// Operations in one transaction, at most.
const BATCH_MAX: usize = 256;
/// While several callers write at once, so long is waited for more of them to come together: one
/// transaction for many costs little more than one for one.
const GATHER: Duration = Duration::from_micros(400);
/// So long the disk is not asked to sync again, while what waits for it gathers.
const SYNC_GATHER: Duration = Duration::from_millis(2);
/// So many operations together come from several callers: one alone has two at the most, the end of
/// a call and the beginning of the next.
const CROWD: usize = 3;
/// How long to wait for another process that writes.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// Steps in which one sweep forgets holds that ended long ago, at most.
const FORGET_STEPS_MAX: u32 = 40;
/// The same for notes whose time has come. They are large, so the steps are smaller.
const NOTE_STEPS_MAX: u32 = 400;
/// The same for names of calls, and for replies.
const REPEAT_STEPS_MAX: u32 = 100;

/// Tells a caller how its job went.
type Acknowledge = Box<dyn FnOnce(bool) + Send>;

/// What a job does.
type Run = Box<dyn FnOnce(&mut Desk<'_>) -> rusqlite::Result<Acknowledge> + Send>;

/// When something is to be done, and when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Soon, and it counts as soon as it is done.
    Now,
    /// Soon, and it counts once it is on disk.
    Kept,
    /// With the next that is done soon, and it counts once it is on disk.
    Later,
}

/// Something to do inside the writer's transaction.
struct Job {
    run: Run,
    /// Whether it counts only once it is on disk.
    durable: bool,
}

/// The embedded store.
pub struct Sqlite {
    queue: queue::Sender<Job>,
    reader: Reader,
}

impl Sqlite {
    /// Opens the file, and makes it if it is not there.
    ///
    /// # Errors
    /// [`Unavailable`] with SQLite's own words.
    pub fn open(path: &Path) -> Result<Sqlite, Unavailable> {
        let cannot = |what: String| Unavailable(format!("{}: {what}", path.display()));
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| cannot(e.to_string()))?;
        }
        let connection = schema::open(path, BUSY_WAIT).map_err(|e| cannot(e.to_string()))?;
        let mut log_path = path.as_os_str().to_owned();
        log_path.push("-wal");
        let log = open_log(&PathBuf::from(log_path)).map_err(|e| cannot(e.to_string()))?;
        // Files of which the folder knows nothing after a power cut have not kept anything.
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(".".as_ref());
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| cannot(e.to_string()))?;
        let reader = Reader::open(path).map_err(&cannot)?;
        let (queue, jobs) = Queue::pair();
        let (written, to_sync) = mpsc::channel();
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(body)
        };
        spawn("ledger-writer", Box::new(move || write(connection, &jobs, &written)))
            .and_then(|_| spawn("ledger-sync", Box::new(move || sync(&log, &to_sync))))
            .map_err(|e| cannot(e.to_string()))?;
        Ok(Sqlite { queue, reader })
    }

    /// Puts a job into the queue now; the future tells how it went.
    fn run<T, J>(
        &self,
        when: When,
        job: J,
    ) -> impl Future<Output = Result<T, Unavailable>> + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce(&mut Desk<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let run: Run = Box::new(move |desk| {
            let value = job(desk)?;
            let acknowledge: Acknowledge = Box::new(move |kept| {
                if kept {
                    // The caller may have stopped waiting.
                    let _ = reply.send(value);
                }
            });
            Ok(acknowledge)
        });
        self.queue.send(Job { run, durable: when != When::Now }, when != When::Later);
        async move { answer.await.map_err(|_| Unavailable("the write failed".to_owned())) }
    }
}

fn open_log(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// The writer: all waiting jobs in one transaction.
fn write(connection: Connection, jobs: &Queue<Job>, written: &mpsc::Sender<Vec<Acknowledge>>) {
    let mut writer = Writer { connection, rows: Rows::default() };
    let mut crowded = false;
    while jobs.wait() {
        if crowded {
            thread::sleep(GATHER);
        }
        let batch = jobs.take(BATCH_MAX);
        crowded = batch.len() >= CROWD;
        match writer.commit(batch) {
            Ok(done) => {
                let (durable, volatile): (Vec<_>, Vec<_>) = done.into_iter().partition(|d| d.0);
                volatile.into_iter().for_each(|(_, acknowledge)| acknowledge(true));
                if !durable.is_empty() {
                    let acknowledge = durable.into_iter().map(|(_, a)| a).collect();
                    // Only a panic of the sync thread closes the channel; then nobody is told.
                    let _ = written.send(acknowledge);
                }
            }
            // Dropping the jobs tells their callers that the store is unavailable.
            Err(why) => log::error!(why:% = why; "the ledger could not be written"),
        }
    }
}

/// The writer's connection, and the account rows that it remembers.
struct Writer {
    connection: Connection,
    rows: Rows,
}

impl Writer {
    /// Does a batch in one transaction, or nothing of it.
    fn commit(&mut self, batch: Vec<Job>) -> rusqlite::Result<Vec<(bool, Acknowledge)>> {
        let done = self.run(batch);
        if done.is_err() {
            self.rows = Rows::default();
            if !self.connection.is_autocommit() {
                self.connection.execute_batch("ROLLBACK")?;
            }
        }
        done
    }

    fn run(&mut self, batch: Vec<Job>) -> rusqlite::Result<Vec<(bool, Acknowledge)>> {
        let c = &self.connection;
        c.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.rows.renew(c)?;
        let mut desk = Desk { c, rows: &mut self.rows };
        let mut done = Vec::with_capacity(batch.len());
        for job in batch {
            done.push((job.durable, (job.run)(&mut desk)?));
        }
        self.rows.save(c)?;
        c.prepare_cached("COMMIT")?.execute([])?;
        Ok(done)
    }
}

/// Waits for the disk, once for all that were written meanwhile, and acknowledges them.
fn sync(log: &File, to_sync: &mpsc::Receiver<Vec<Acknowledge>>) {
    while let Ok(mut acknowledge) = to_sync.recv() {
        // Only a background task waits for the disk, and one wait does for many.
        thread::sleep(SYNC_GATHER);
        acknowledge.extend(to_sync.try_iter().flatten());
        let kept = log.sync_data();
        if let Err(why) = &kept {
            log::error!(why:% = why; "the ledger's log could not be synced");
        }
        acknowledge.into_iter().for_each(|a| a(kept.is_ok()));
    }
}

#[async_trait]
impl Ledger for Sqlite {
    async fn open(&self, account: &AccountName) -> Result<bool, Unavailable> {
        let account = account.clone();
        self.run(When::Kept, move |desk| accounts::open(desk.c, &account)).await
    }

    async fn apply(&self, account: &AccountName, op: Operation) -> Result<Answer, Unavailable> {
        let account = account.clone();
        let when = match op {
            Operation::Credit { .. } => When::Kept,
            Operation::Settle { .. } | Operation::Checkpoint { .. } => When::Later,
            Operation::Hold { .. }
            | Operation::Extend { .. }
            | Operation::Renew { .. }
            | Operation::Void { .. } => When::Now,
        };
        self.run(when, move |desk| match &op {
            Operation::Credit { tx, amount } => accounts::credit(desk, &account, tx, *amount),
            op => holds::apply(desk, &account, op),
        })
        .await
    }

    async fn balances(&self, account: &AccountName) -> Result<Option<Balances>, Unavailable> {
        let account = account.clone();
        self.run(When::Now, move |desk| desk.balances(&account)).await
    }

    async fn accounts(&self) -> Result<Vec<AccountName>, Unavailable> {
        self.run(When::Now, |desk| accounts::all(desk.c)).await
    }

    async fn journal(
        &self,
        account: &AccountName,
        seq: u64,
        limit: u32,
    ) -> Result<Vec<Entry>, Unavailable> {
        let account = account.clone();
        self.run(When::Now, move |desk| accounts::journal(desk.c, &account, seq, limit)).await
    }

    async fn expire(&self) -> Result<Swept, Unavailable> {
        let swept = self.run(When::Kept, holds::expire).await?;
        // In small steps, so that no call waits long for the writer.
        for _ in 0..FORGET_STEPS_MAX {
            if self.run(When::Now, |desk| holds::forget(desk.c)).await? == 0 {
                break;
            }
        }
        for _ in 0..NOTE_STEPS_MAX {
            if self.run(When::Now, |desk| notes::forget(desk.c)).await? == 0 {
                break;
            }
        }
        for _ in 0..REPEAT_STEPS_MAX {
            if self.run(When::Now, |desk| repeats::forget(desk.c)).await? == 0 {
                break;
            }
        }
        Ok(swept)
    }

    async fn add_key(&self, hash: KeyHash, record: KeyRecord) -> Result<(), Unavailable> {
        self.run(When::Kept, move |desk| keys::add(desk.c, hash, &record)).await?
    }

    async fn key(&self, hash: KeyHash) -> Result<Option<KeyRecord>, Unavailable> {
        self.run(When::Now, move |desk| keys::find(desk.c, hash)).await
    }

    async fn keys(&self, account: &AccountName) -> Result<Vec<KeyRecord>, Unavailable> {
        let account = account.clone();
        self.run(When::Now, move |desk| keys::of(desk.c, &account)).await
    }

    async fn revoke_key(&self, prefix: &str, at: i64) -> Result<bool, Unavailable> {
        let prefix = prefix.to_owned();
        self.run(When::Kept, move |desk| keys::revoke(desk.c, &prefix, at)).await
    }

    async fn ping(&self) -> Result<(), Unavailable> {
        self.run(When::Now, |_| Ok(())).await
    }
}

/// The clock of this store, in unix ms.
fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_millis()).ok()).unwrap_or_default()
}
