//! Group commit: the caller of a short job commits it together with the jobs that other callers
//! have queued meanwhile. A thread commits long jobs, and short ones whose caller would have to
//! wait for the connection or for another process.
//!
//! Waking a thread for each hold would cost a call more time than the rest of the gateway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};

use rusqlite::{Connection, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::queue::{Executor, LeadOutcome, WriteQueue};
use super::write_txn::{RowCache, WriteTxn};
use crate::ledger::Unavailable;

/// At most this many jobs are committed in one transaction.
const BATCH_MAX: usize = 256;
/// A batch waits for at most this many scheduler yields, as long as each of them brings more jobs:
/// one transaction for many jobs costs little more than one for a single job.
const BATCH_YIELDS_MAX: usize = 8;
/// A batch of this many jobs does not wait for more.
const BATCH_TARGET: usize = 32;

/// Tells the caller of a job whether it was committed.
pub(super) type OnCommit = Box<dyn FnOnce(bool) + Send>;

/// The body of a job. It runs inside a transaction and returns the callback for its caller.
type JobBody = Box<dyn FnOnce(&mut WriteTxn<'_>) -> rusqlite::Result<OnCommit> + Send>;

/// When and by whom a job is done, and when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Done at once by its caller, since it is short; acknowledged when it is committed.
    Inline,
    /// Done a moment later by its caller, after the responses that are ready; short, and
    /// acknowledged when it is on disk.
    DeferredDurable,
    /// Done at once by the thread; acknowledged when it is committed.
    Thread,
    /// Done at once by the thread; acknowledged when it is on disk, for which a caller waits.
    ThreadDurable,
}

impl Priority {
    /// Whether the job is acknowledged only when it is on disk.
    fn is_durable(self) -> bool {
        matches!(self, Priority::DeferredDurable | Priority::ThreadDurable)
    }
}

/// A job that is to be done inside a transaction.
struct WriteJob {
    body: JobBody,
    priority: Priority,
}

/// The jobs of a committed transaction that are acknowledged only when they are on disk.
pub(super) struct CommittedBatch {
    pub(super) acknowledgements: Vec<OnCommit>,
    /// Whether a caller waits for one of them, so that the sync should not be delayed.
    pub(super) is_awaited: bool,
}

/// The queue of jobs and the connection that writes, which all callers share.
pub(super) struct WriteScheduler {
    queue: WriteQueue<WriteJob>,
    writer: Mutex<WriteConnection>,
    /// Sends committed batches to the thread that syncs the disk.
    sync_sender: mpsc::Sender<CommittedBatch>,
    /// Why no job is accepted any more: the files are no longer those of the store.
    lost_reason: OnceLock<String>,
}

/// The connection that writes, and its cache of account rows.
struct WriteConnection {
    connection: Connection,
    row_cache: RowCache,
    /// While this is set, the connection does not wait for locks of other processes.
    skip_busy_wait: Arc<AtomicBool>,
}

/// The leader of a group commit: a caller that commits its own job together with all others in the
/// queue. If this is dropped before that is done, the queue is left to the thread.
struct CommitLeader {
    scheduler: Arc<WriteScheduler>,
    executor: Executor,
    /// The number of the job whose caller leads.
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

    /// Puts a job into the queue at once. The future returns its result when the job is
    /// acknowledged.
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
        // After the store was lost, the job is dropped without being queued.
        let item_number = lost
            .is_none()
            .then(|| self.queue.push(WriteJob { body, priority }, executor))
            .flatten();
        let leader = item_number
            .map(|number| CommitLeader::new(self.clone(), executor, number))
            .and_then(CommitLeader::spawn_unless_inline);
        async move {
            if let Some(lost) = lost {
                return Err(lost);
            }
            if let Some(leader) = leader
                && let Some(next_leader) = leader.gather_and_write().await
            {
                let _ = next_leader.spawn_unless_inline();
            }
            answer.await.map_err(|_| Unavailable("the write failed".to_owned()))
        }
    }

    /// Runs on the writer thread: commits batches when it is woken, until the queue is closed and
    /// empty.
    pub(super) fn run_write_loop(&self) {
        while self.queue.wait_for_work() {
            // A job that panics only fails the jobs of its own batch.
            let written = catch_unwind(AssertUnwindSafe(|| {
                let mut writer = self.lock();
                let (waiting, _) = self.queue.backlog();
                let begun = writer.begin_txn(false);
                // If the wait for another process failed, only the jobs that were queued before it
                // fail. Later jobs get their own wait.
                let limit = if begun.is_ok() { BATCH_MAX } else { waiting };
                self.commit_batch(writer, begun, limit, Executor::Thread);
            }));
            if written.is_err() {
                log::error!(
                    event = "ledger_write_panicked";
                    "ledger write panicked"
                );
            }
        }
    }

    /// Marks the files as lost. No job is accepted any more: its writes would go into a file that
    /// no process opens again.
    pub(super) fn mark_lost(&self, why: String) {
        if self.lost_reason.set(why).is_ok() {
            let why = self.lost_reason.get().map_or("", String::as_str);
            log::error!(
                event = "ledger_file_lost", error = why;
                "ledger file deleted or replaced, paid calls are refused"
            );
        }
    }

    /// Closes the queue. The thread commits what is queued and ends.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// Runs `copy`, which copies the write-ahead log into the file, while this process writes
    /// nothing else. The next write begins the log anew and waits for the disk, so a write that
    /// changes nothing is done here as well.
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
            // Another process writes at the moment: it or the next writer begins the log anew.
            Err(why) if why.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(()),
            written => written,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WriteConnection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what is queued, on the calling thread. If another caller or another process is
    /// writing, wakes the thread instead; if the thread was woken already, does nothing.
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

    /// Runs at most `limit` queued jobs in the transaction of `begun` and commits it. Then
    /// acknowledges the jobs, or passes those that must be on disk to the thread that syncs.
    fn commit_batch(
        &self,
        mut writer: MutexGuard<'_, WriteConnection>,
        begun: rusqlite::Result<()>,
        limit: usize,
        executor: Executor,
    ) {
        let batch = self.queue.take_batch(limit, executor);
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
                    // The channel is closed only if the sync thread has panicked; then these jobs
                    // fail.
                    let _ = self.sync_sender.send(CommittedBatch { acknowledgements, is_awaited });
                }
            }
            // Dropping the jobs tells their callers that the store is unavailable.
            Err(why) => log::error!(
                event = "ledger_write_failed", error:% = why;
                "ledger write failed"
            ),
        }
    }
}

impl CommitLeader {
    fn new(scheduler: Arc<WriteScheduler>, executor: Executor, item_number: u64) -> CommitLeader {
        CommitLeader { scheduler, executor, item_number, is_done: false }
    }

    /// Returns the leader if the caller has to commit at once; a deferred commit runs as a separate
    /// task.
    fn spawn_unless_inline(self) -> Option<CommitLeader> {
        if self.executor == Executor::Caller {
            return Some(self);
        }
        // Outside a runtime the leader is dropped, which leaves the queue to the thread.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(self.gather_and_write().await) });
        }
        None
    }

    /// Waits while more jobs arrive, and commits the queue, unless another caller has committed
    /// this job. If there is no leader for the jobs that came since, returns one for them, whose
    /// commit may be deferred.
    async fn gather_and_write(mut self) -> Option<CommitLeader> {
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
        match self.scheduler.queue.finish_lead(self.item_number, self.executor) {
            LeadOutcome::TakeBatch => {
                self.is_done = true;
                self.scheduler.try_commit_inline();
                None
            }
            LeadOutcome::NothingToDo => {
                self.is_done = true;
                None
            }
            LeadOutcome::KeepLead => {
                self.executor = Executor::AnyCaller;
                Some(self)
            }
        }
    }
}

impl Drop for CommitLeader {
    fn drop(&mut self) {
        if !self.is_done {
            self.scheduler.queue.abandon_lead();
        }
    }
}

impl WriteConnection {
    /// Begins a transaction. With `skip_busy_wait`, it fails at once if another process has the
    /// lock.
    fn begin_txn(&mut self, skip_busy_wait: bool) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            // The last writer did not end its transaction, since a job panicked.
            self.roll_back();
        }
        self.skip_busy_wait.store(skip_busy_wait, Ordering::Relaxed);
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// Runs the jobs of a batch and commits. Returns for each its priority and its callback, which
    /// has to be called with whether the job is kept.
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

    /// Writes something that changes no data, and commits.
    fn write_noop(&self) -> rusqlite::Result<()> {
        // The user version is not used, and SQLite writes it even if it stays the same.
        self.connection.pragma_update(None, "user_version", 0)?;
        self.connection.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Rolls a failed transaction back, and empties the row cache.
    fn roll_back(&mut self) {
        self.row_cache = RowCache::default();
        if !self.connection.is_autocommit()
            && let Err(why) = self.connection.execute_batch("ROLLBACK")
        {
            log::error!(
                event = "ledger_rollback_failed", error:% = why;
                "ledger rollback failed"
            );
        }
    }
}
