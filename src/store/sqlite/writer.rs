//! Who writes: whoever brings something short, with what others have brought meanwhile, in one
//! transaction; or a thread, where it takes long, or where somebody else is writing.
//!
//! A thread that has to be woken for each hold would cost a call more time than all the rest of the
//! gateway. It takes over whenever the one who brought something would have to wait: for the
//! connection, or for another process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};

use rusqlite::{Connection, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::desk::{RowCache, WriteTxn};
use super::queue::{Executor, TurnOutcome, WriteQueue};
use crate::ledger::Unavailable;

/// Operations in one transaction, at most.
const BATCH_MAX: usize = 256;
/// While each turn of whoever serves brings more operations, so many turns are waited for: one
/// transaction for many costs little more than one for one.
const TURNS_MAX: usize = 8;
/// With so many nothing more is waited for.
const ENOUGH: usize = 32;

/// Tells a caller how its job went.
pub(super) type Acknowledge = Box<dyn FnOnce(bool) + Send>;

/// What a job does.
type JobBody = Box<dyn FnOnce(&mut WriteTxn<'_>) -> rusqlite::Result<Acknowledge> + Send>;

/// When something is to be done, and when it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// At once; it is short, and counts as soon as it is committed.
    Now,
    /// In a moment, once whoever serves has passed on what it has; it is short, and counts once it
    /// is on disk.
    Later,
    /// At once, by the thread; it counts as soon as it is committed.
    Long,
    /// At once, by the thread; it counts once it is on disk, and somebody waits for that.
    Kept,
}

impl Priority {
    /// Whether it counts only once it is on disk.
    fn is_durable(self) -> bool {
        matches!(self, Priority::Later | Priority::Kept)
    }
}

/// Something to do inside a transaction.
struct WriteJob {
    run: JobBody,
    when: Priority,
}

/// What a transaction has done that counts once it is on disk.
pub(super) struct CommittedBatch {
    pub(super) acknowledge: Vec<Acknowledge>,
    /// Whether somebody is kept from something until then.
    pub(super) is_awaited: bool,
}

/// What all who write share.
pub(super) struct WriteScheduler {
    queue: WriteQueue<WriteJob>,
    writer: Mutex<WriteConnection>,
    /// To whoever waits for the disk.
    written: mpsc::Sender<CommittedBatch>,
    /// Why nothing is written any more: the files are no longer those of the store.
    lost: OnceLock<String>,
}

/// The connection that writes, and the account rows that it remembers.
struct WriteConnection {
    connection: Connection,
    rows: RowCache,
    /// Whether it does not wait for other processes at the moment.
    hurries: Arc<AtomicBool>,
}

/// Somebody's turn to write; whoever leaves without having done so leaves it to the thread.
struct CommitTurn {
    writers: Arc<WriteScheduler>,
    by: Executor,
    /// Of the item that it was given for.
    number: u64,
    is_done: bool,
}

impl WriteScheduler {
    pub(super) fn new(
        connection: Connection,
        hurries: Arc<AtomicBool>,
        written: mpsc::Sender<CommittedBatch>,
    ) -> Arc<WriteScheduler> {
        let writer = Mutex::new(WriteConnection { connection, rows: RowCache::default(), hurries });
        Arc::new(WriteScheduler {
            queue: WriteQueue::new(),
            writer,
            written,
            lost: OnceLock::new(),
        })
    }

    /// Puts a job into the queue now; the future tells how it went.
    pub(super) fn run<T, J>(
        self: &Arc<Self>,
        when: Priority,
        job: J,
    ) -> impl Future<Output = Result<T, Unavailable>> + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce(&mut WriteTxn<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let lost = self.lost.get().map(|why| Unavailable(why.clone()));
        let (reply, answer) = oneshot::channel();
        let run: JobBody = Box::new(move |desk| {
            let value = job(desk)?;
            let acknowledge: Acknowledge = Box::new(move |kept| {
                if kept {
                    // The caller may have stopped waiting.
                    let _ = reply.send(value);
                }
            });
            Ok(acknowledge)
        });
        let by = match when {
            Priority::Now => Executor::Bringer,
            Priority::Later => Executor::Anyone,
            Priority::Long | Priority::Kept => Executor::Thread,
        };
        // What is not put into the queue tells nobody anything.
        let turn = lost.is_none().then(|| self.queue.push(WriteJob { run, when }, by)).flatten();
        let turn =
            turn.map(|number| CommitTurn::new(self.clone(), by, number)).and_then(CommitTurn::wait);
        async move {
            if let Some(lost) = lost {
                return Err(lost);
            }
            if let Some(turn) = turn
                && let Some(more) = turn.take().await
            {
                let _ = more.wait();
            }
            answer.await.map_err(|_| Unavailable("the write failed".to_owned()))
        }
    }

    /// What the thread does, until nothing more will come.
    pub(super) fn serve(&self) {
        while self.queue.wait() {
            // A job that panics takes nobody's but its own batch with it.
            let written = catch_unwind(AssertUnwindSafe(|| {
                let mut writer = self.lock();
                let (waiting, _) = self.queue.look();
                let begun = writer.begin(false);
                // What came while another process was waited for has its own time for that.
                let most = if begun.is_ok() { BATCH_MAX } else { waiting };
                self.write(writer, begun, (most, Executor::Thread));
            }));
            if written.is_err() {
                log::error!(
                    event = "ledger_write_panicked";
                    "a panic while the ledger was written"
                );
            }
        }
    }

    /// Nothing is written or read any more: whatever is would go where nobody finds it.
    pub(super) fn lose(&self, why: String) {
        if self.lost.set(why).is_ok() {
            let why = self.lost.get();
            log::error!(
                event = "ledger_file_lost", why:?;
                "the ledger's file is lost; nothing is sold"
            );
        }
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Keeps everybody from writing, for as long as the log is brought into the file. The first
    /// write into a log that begins anew waits for the disk, so that is done here as well.
    pub(super) fn begin_log(
        &self,
        copy: impl FnOnce() -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut writer = self.lock();
        copy()?;
        let written = writer.begin(true).and_then(|()| writer.touch());
        if written.is_err() {
            writer.give_up();
        }
        match written {
            // Then it writes first, or whoever comes next.
            Err(why) if why.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
            written => written,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WriteConnection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what waits, unless somebody else has to be waited for, or it takes long: then the
    /// thread does it.
    fn hurry(&self) {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.queue.call(),
        };
        if !matches!(self.queue.look(), (1.., false)) {
            return;
        }
        match writer.begin(true) {
            Err(why) if why.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                drop(writer);
                self.queue.call();
            }
            begun => self.write(writer, begun, (BATCH_MAX, Executor::Bringer)),
        }
    }

    /// Does what waits in one transaction that has begun, and tells of it.
    fn write(
        &self,
        mut writer: MutexGuard<'_, WriteConnection>,
        begun: rusqlite::Result<()>,
        (most, by): (usize, Executor),
    ) {
        let batch = self.queue.take(most, by);
        let done = begun.and_then(|()| writer.commit(batch));
        if done.is_err() {
            writer.give_up();
        }
        drop(writer);
        match done {
            Ok(done) => {
                let (durable, volatile): (Vec<_>, Vec<_>) =
                    done.into_iter().partition(|(when, _)| when.is_durable());
                volatile.into_iter().for_each(|(_, acknowledge)| acknowledge(true));
                if !durable.is_empty() {
                    let is_awaited = durable.iter().any(|(when, _)| *when == Priority::Kept);
                    let acknowledge = durable.into_iter().map(|(_, a)| a).collect();
                    // Only a panic of the thread that syncs closes it; then nobody is told.
                    let _ = self.written.send(CommittedBatch { acknowledge, is_awaited });
                }
            }
            // Dropping the jobs tells their callers that the store is unavailable.
            Err(why) => log::error!(
                event = "ledger_write_failed", why:% = why;
                "the ledger could not be written"
            ),
        }
    }
}

impl CommitTurn {
    fn new(writers: Arc<WriteScheduler>, by: Executor, number: u64) -> CommitTurn {
        CommitTurn { writers, by, number, is_done: false }
    }

    /// Of what may lie a moment, the turn comes by itself; of the rest, who brought it takes it.
    fn wait(self) -> Option<CommitTurn> {
        if self.by == Executor::Bringer {
            return Some(self);
        }
        // Outside of a runtime nobody has time, and the thread does it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(self.take().await) });
        }
        None
    }

    /// Waits as long as more comes, and writes, unless somebody else has written. If nobody will
    /// see to what came since, gives another turn, that may wait.
    async fn take(mut self) -> Option<CommitTurn> {
        let mut seen = 0;
        for _ in 0..TURNS_MAX {
            let count = match self.by {
                Executor::Anyone => Some(self.writers.queue.look().0),
                Executor::Bringer | Executor::Thread => self.writers.queue.count_for(self.number),
            };
            let Some(count) = count.filter(|&count| count > seen && count < ENOUGH) else { break };
            seen = count;
            yield_now().await;
        }
        match self.writers.queue.turn_is_over(self.number, self.by) {
            TurnOutcome::Take => {
                self.is_done = true;
                self.writers.hurry();
                None
            }
            TurnOutcome::Leave => {
                self.is_done = true;
                None
            }
            TurnOutcome::Stay => {
                self.by = Executor::Anyone;
                Some(self)
            }
        }
    }
}

impl Drop for CommitTurn {
    fn drop(&mut self) {
        if !self.is_done {
            self.writers.queue.turn_is_lost();
        }
    }
}

impl WriteConnection {
    /// Begins a transaction, and waits for other processes unless it is in a hurry.
    fn begin(&mut self, in_a_hurry: bool) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            // Whoever wrote last did not come to its end.
            self.give_up();
        }
        self.hurries.store(in_a_hurry, Ordering::Relaxed);
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Does a batch in the transaction, and ends it.
    fn commit(&mut self, batch: Vec<WriteJob>) -> rusqlite::Result<Vec<(Priority, Acknowledge)>> {
        let c = &self.connection;
        self.rows.renew(c)?;
        let mut desk = WriteTxn { c, rows: &mut self.rows };
        let mut done = Vec::with_capacity(batch.len());
        for job in batch {
            done.push((job.when, (job.run)(&mut desk)?));
        }
        self.rows.save(c)?;
        c.prepare_cached("COMMIT")?.execute([])?;
        Ok(done)
    }

    /// Writes something that changes nothing, and ends the transaction.
    fn touch(&self) -> rusqlite::Result<()> {
        // Nobody uses this number, and it is written though it is the same.
        self.connection.pragma_update(None, "user_version", 0)?;
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Takes back what a transaction has done that failed.
    fn give_up(&mut self) {
        self.rows = RowCache::default();
        if !self.connection.is_autocommit()
            && let Err(why) = self.connection.execute_batch("ROLLBACK")
        {
            log::error!(
                event = "ledger_rollback_failed", why:% = why;
                "a transaction of the ledger cannot be taken back"
            );
        }
    }
}
