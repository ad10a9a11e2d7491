//! Group commit: one thread commits the queued jobs of all callers in one transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::queue::WriteQueue;
use super::write_txn::{RowCache, WriteTxn};
use crate::failpoints::failpoint;
use crate::ledger::Unavailable;

/// At most this many jobs are committed in one transaction.
const BATCH_MAX: usize = 256;

/// Tells the caller of a job whether it was committed.
pub(super) type OnCommit = Box<dyn FnOnce(bool) + Send>;

/// The body of a job. It runs inside a transaction and returns the callback for its caller.
type JobBody = Box<dyn FnOnce(&mut WriteTxn<'_>) -> rusqlite::Result<OnCommit> + Send>;

/// When a job is done, and when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Done at once; acknowledged when it is committed.
    Now,
    /// Done at once; acknowledged when it is on disk, for which a caller waits.
    NowDurable,
    /// Done together with the next job, or a moment later; acknowledged when it is on disk, for
    /// which nobody waits.
    DeferredDurable,
}

impl Priority {
    /// Whether the job is acknowledged only when it is on disk.
    fn is_durable(self) -> bool {
        matches!(self, Priority::NowDurable | Priority::DeferredDurable)
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

/// The queue of jobs, which all callers share, and the connection that writes.
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
        &self,
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
        // After the store was lost, the job is dropped without being queued.
        if lost.is_none() {
            self.queue.push(WriteJob { body, priority }, priority == Priority::DeferredDurable);
        }
        async move {
            match lost {
                Some(lost) => Err(lost),
                None => answer.await.map_err(|_| Unavailable("the write failed".to_owned())),
            }
        }
    }

    /// Runs on the writer thread: commits what is due, until the queue is closed and empty.
    pub(super) fn run_write_loop(&self) {
        while self.queue.wait_for_work() {
            // A job that panics only fails the jobs of its own batch.
            let written = catch_unwind(AssertUnwindSafe(|| {
                let mut writer = self.lock();
                let waiting = self.queue.len();
                let begun = writer.begin_txn(false);
                // If the wait for another process failed, only the jobs that were queued before it
                // fail. Later jobs get their own wait.
                let limit = if begun.is_ok() { BATCH_MAX } else { waiting };
                self.commit_batch(writer, begun, limit);
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
        failpoint!("rest_of_log_copied");
        let written = writer.begin_txn(true).and_then(|()| writer.write_noop());
        failpoint!("log_begun_anew", if written.is_ok());
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

    /// Runs at most `limit` queued jobs in the transaction of `begun` and commits it. Then
    /// acknowledges the jobs, or passes those that must be on disk to the thread that syncs.
    fn commit_batch(
        &self,
        mut writer: MutexGuard<'_, WriteConnection>,
        begun: rusqlite::Result<()>,
        limit: usize,
    ) {
        let batch = self.queue.take_batch(limit);
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
                    let is_awaited = durable.iter().any(|(when, _)| *when == Priority::NowDurable);
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
        // SQLite writes the version of the data even if it stays the same. Another process may have
        // raised it.
        let version = "user_version";
        let found: u32 = self.connection.pragma_query_value(None, version, |row| row.get(0))?;
        self.connection.pragma_update(None, version, found)?;
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
