//! Group commit: the caller of a short job commits it together with the jobs that others have
//! queued meanwhile. A thread commits long jobs, and short ones whose caller would have to wait for
//! the connection or for another process.
//!
//! To wake a thread for each hold would cost a call more time than all the rest of the gateway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};

use rusqlite::{Connection, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::queue::{Executor, TurnOutcome, WriteQueue};
use super::write_txn::{RowCache, WriteTxn};
use crate::ledger::Unavailable;

/// Operations in one transaction, at most.
const BATCH_MAX: usize = 256;
/// Scheduler yields for which a batch waits, at most, while each brings more operations: one
/// transaction for many costs little more than one for one.
const BATCH_YIELDS_MAX: usize = 8;
/// A batch of this size does not wait for more operations.
const BATCH_TARGET: usize = 32;

/// Tells the caller of a job whether it was committed.
pub(super) type OnCommit = Box<dyn FnOnce(bool) + Send>;

/// What a job does.
type JobBody = Box<dyn FnOnce(&mut WriteTxn<'_>) -> rusqlite::Result<OnCommit> + Send>;

/// When a job is done, and when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// At once by its caller, since it is short; acknowledged when it is committed.
    Inline,
    /// In a moment by its caller, after the replies that are ready; short, and acknowledged when it
    /// is on disk.
    DeferredDurable,
    /// At once by the thread; acknowledged when it is committed.
    Thread,
    /// At once by the thread; acknowledged when it is on disk, which a caller waits for.
    ThreadDurable,
}

impl Priority {
    /// Whether it counts only once it is on disk.
    fn is_durable(self) -> bool {
        matches!(self, Priority::DeferredDurable | Priority::ThreadDurable)
    }
}

/// Something to do inside a transaction.
struct WriteJob {
    body: JobBody,
    priority: Priority,
}

/// What a transaction has done that counts once it is on disk.
pub(super) struct CommittedBatch {
    pub(super) acknowledgements: Vec<OnCommit>,
    /// Whether somebody is kept from something until then.
    pub(super) is_awaited: bool,
}

/// What all who write share.
pub(super) struct WriteScheduler {
    queue: WriteQueue<WriteJob>,
    writer: Mutex<WriteConnection>,
    /// To those who wait for the disk.
    sync_sender: mpsc::Sender<CommittedBatch>,
    /// Why nothing is written any more: the files are no longer those of the store.
    lost_reason: OnceLock<String>,
}

/// The connection that writes, and the account rows that it remembers.
struct WriteConnection {
    connection: Connection,
    row_cache: RowCache,
    /// Whether it does not wait for other processes at the moment.
    skip_busy_wait: Arc<AtomicBool>,
}

/// Somebody's turn to write; whoever leaves without having done so leaves it to the thread.
struct CommitTurn {
    scheduler: Arc<WriteScheduler>,
    executor: Executor,
    /// Of the item that it was given for.
    item_number: u64,
    is_done: bool,
}

impl WriteScheduler {
    pub(super) fn new(
        connection: Connection,
        skip_busy_wait: Arc<AtomicBool>,
        sync_sender: mpsc::Sender<CommittedBatch>,
    ) -> Arc<WriteScheduler> {
        let writer = Mutex::new(WriteConnection {
            connection,
            row_cache: RowCache::default(),
            skip_busy_wait,
        });
        Arc::new(WriteScheduler {
            queue: WriteQueue::new(),
            writer,
            sync_sender,
            lost_reason: OnceLock::new(),
        })
    }

    /// Puts a job into the queue now; the future tells how it went.
    pub(super) fn run<T, J>(
        self: &Arc<Self>,
        priority: Priority,
        job: J,
    ) -> impl Future<Output = Result<T, Unavailable>> + use<T, J>
    where
        T: Send + 'static,
        J: FnOnce(&mut WriteTxn<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let lost = self.lost_reason.get().map(|why| Unavailable(why.clone()));
        let (reply, answer) = oneshot::channel();
        let body: JobBody = Box::new(move |txn| {
            let value = job(txn)?;
            let acknowledge: OnCommit = Box::new(move |kept| {
                if kept {
                    // The caller may have stopped waiting.
                    let _ = reply.send(value);
                }
            });
            Ok(acknowledge)
        });
        let executor = match priority {
            Priority::Inline => Executor::Caller,
            Priority::DeferredDurable => Executor::AnyCaller,
            Priority::Thread | Priority::ThreadDurable => Executor::Thread,
        };
        // What is not put into the queue tells nobody anything.
        let turn = lost
            .is_none()
            .then(|| self.queue.push(WriteJob { body, priority }, executor))
            .flatten();
        let turn = turn
            .map(|number| CommitTurn::new(self.clone(), executor, number))
            .and_then(CommitTurn::spawn_unless_inline);
        async move {
            if let Some(lost) = lost {
                return Err(lost);
            }
            if let Some(turn) = turn
                && let Some(more) = turn.gather_and_write().await
            {
                let _ = more.spawn_unless_inline();
            }
            answer.await.map_err(|_| Unavailable("the write failed".to_owned()))
        }
    }

    /// What the thread does, until nothing more will come.
    pub(super) fn run_write_loop(&self) {
        while self.queue.wait_for_work() {
            // A job that panics takes nobody's but its own batch with it.
            let written = catch_unwind(AssertUnwindSafe(|| {
                let mut writer = self.lock();
                let (waiting, _) = self.queue.backlog();
                let begun = writer.begin_txn(false);
                // What came while another process was waited for has its own time for that.
                let most = if begun.is_ok() { BATCH_MAX } else { waiting };
                self.commit_batch(writer, begun, most, Executor::Thread);
            }));
            if written.is_err() {
                log::error!(
                    event = "ledger_write_panicked";
                    "ledger write panicked"
                );
            }
        }
    }

    /// Nothing is written or read any more: whatever is would go where nobody finds it.
    pub(super) fn mark_lost(&self, why: String) {
        if self.lost_reason.set(why).is_ok() {
            let why = self.lost_reason.get().map_or("", String::as_str);
            log::error!(
                event = "ledger_file_lost", why;
                "ledger file deleted or replaced, paid calls are refused"
            );
        }
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Keeps everybody from writing, for as long as the log is brought into the file. The first
    /// write into a log that begins anew waits for the disk, so that is done here as well.
    pub(super) fn restart_wal(
        &self,
        copy: impl FnOnce() -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut writer = self.lock();
        copy()?;
        let written = writer.begin_txn(true).and_then(|()| writer.write_noop());
        if written.is_err() {
            writer.roll_back();
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
    fn try_commit_inline(&self) {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.queue.wake_thread(),
        };
        if !matches!(self.queue.backlog(), (1.., false)) {
            return;
        }
        match writer.begin_txn(true) {
            Err(why) if why.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                drop(writer);
                self.queue.wake_thread();
            }
            begun => self.commit_batch(writer, begun, BATCH_MAX, Executor::Caller),
        }
    }

    /// Does what waits in one transaction that has begun, and tells of it.
    fn commit_batch(
        &self,
        mut writer: MutexGuard<'_, WriteConnection>,
        begun: rusqlite::Result<()>,
        most: usize,
        executor: Executor,
    ) {
        let batch = self.queue.take_batch(most, executor);
        let done = begun.and_then(|()| writer.commit_jobs(batch));
        if done.is_err() {
            writer.roll_back();
        }
        drop(writer);
        match done {
            Ok(done) => {
                let (durable, volatile): (Vec<_>, Vec<_>) =
                    done.into_iter().partition(|(when, _)| when.is_durable());
                volatile.into_iter().for_each(|(_, acknowledge)| acknowledge(true));
                if !durable.is_empty() {
                    let is_awaited =
                        durable.iter().any(|(when, _)| *when == Priority::ThreadDurable);
                    let acknowledgements = durable.into_iter().map(|(_, a)| a).collect();
                    // Only a panic of the thread that syncs closes it; then nobody is told.
                    let _ = self.sync_sender.send(CommittedBatch { acknowledgements, is_awaited });
                }
            }
            // Dropping the jobs tells their callers that the store is unavailable.
            Err(why) => log::error!(
                event = "ledger_write_failed", why:% = why;
                "ledger write failed"
            ),
        }
    }
}

impl CommitTurn {
    fn new(scheduler: Arc<WriteScheduler>, executor: Executor, item_number: u64) -> CommitTurn {
        CommitTurn { scheduler, executor, item_number, is_done: false }
    }

    /// Returns the turn if the caller has to take it; a deferred one runs as a task of its own.
    fn spawn_unless_inline(self) -> Option<CommitTurn> {
        if self.executor == Executor::Caller {
            return Some(self);
        }
        // Outside of a runtime nobody has time, and the thread does it.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(self.gather_and_write().await) });
        }
        None
    }

    /// Waits as long as more comes, and writes, unless somebody else has written. If nobody will
    /// see to what came since, gives another turn, that may wait.
    async fn gather_and_write(mut self) -> Option<CommitTurn> {
        let mut seen = 0;
        for _ in 0..BATCH_YIELDS_MAX {
            let count = match self.executor {
                Executor::AnyCaller => Some(self.scheduler.queue.backlog().0),
                Executor::Caller | Executor::Thread => {
                    self.scheduler.queue.count_unless_taken(self.item_number)
                }
            };
            let Some(count) = count.filter(|&count| count > seen && count < BATCH_TARGET) else {
                break;
            };
            seen = count;
            yield_now().await;
        }
        match self.scheduler.queue.finish_turn(self.item_number, self.executor) {
            TurnOutcome::TakeBatch => {
                self.is_done = true;
                self.scheduler.try_commit_inline();
                None
            }
            TurnOutcome::NothingToDo => {
                self.is_done = true;
                None
            }
            TurnOutcome::KeepTurn => {
                self.executor = Executor::AnyCaller;
                Some(self)
            }
        }
    }
}

impl Drop for CommitTurn {
    fn drop(&mut self) {
        if !self.is_done {
            self.scheduler.queue.abandon_turn();
        }
    }
}

impl WriteConnection {
    /// Begins a transaction, and waits for other processes unless it is in a hurry.
    fn begin_txn(&mut self, skip_busy_wait: bool) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            // Whoever wrote last did not come to its end.
            self.roll_back();
        }
        self.skip_busy_wait.store(skip_busy_wait, Ordering::Relaxed);
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Runs the jobs of a batch and commits. Returns for each its priority and what to call with
    /// whether it was committed.
    fn commit_jobs(&mut self, batch: Vec<WriteJob>) -> rusqlite::Result<Vec<(Priority, OnCommit)>> {
        let conn = &self.connection;
        self.row_cache.invalidate_if_stale(conn)?;
        let mut txn = WriteTxn { conn, row_cache: &mut self.row_cache };
        let mut done = Vec::with_capacity(batch.len());
        for job in batch {
            done.push((job.priority, (job.body)(&mut txn)?));
        }
        self.row_cache.write_dirty(conn)?;
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(done)
    }

    /// Writes something that changes nothing, and ends the transaction.
    fn write_noop(&self) -> rusqlite::Result<()> {
        // Nobody uses this number, and it is written though it is the same.
        self.connection.pragma_update(None, "user_version", 0)?;
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Takes back what a transaction has done that failed.
    fn roll_back(&mut self) {
        self.row_cache = RowCache::default();
        if !self.connection.is_autocommit()
            && let Err(why) = self.connection.execute_batch("ROLLBACK")
        {
            log::error!(
                event = "ledger_rollback_failed", why:% = why;
                "ledger rollback failed"
            );
        }
    }
}
