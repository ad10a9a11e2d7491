//! A thread that syncs the files of the outbox to disk, with one fsync for the writes of many
//! callers.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::failpoints::failpoint;
use crate::metrics::METRICS;

/// Files are gathered for this long before one fsync: no caller waits for it, and an fsync costs as
/// much as a whole call.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// The thread's queue of files, through which it is also stopped.
#[derive(Default)]
pub(super) struct FsyncThread {
    queue: Mutex<FsyncQueue>,
    wakeup: Condvar,
}

#[derive(Default)]
struct FsyncQueue {
    files: Vec<Arc<File>>,
    is_stopping: bool,
}

impl FsyncThread {
    /// Starts the thread. If an fsync fails, it sets `writable` to `false`.
    pub(super) fn start(writable: Arc<AtomicBool>) -> io::Result<Arc<FsyncThread>> {
        let syncer = Arc::new(FsyncThread::default());
        let own = syncer.clone();
        let run = move || own.run(&writable);
        thread::Builder::new().name("outbox-sync".to_owned()).spawn(run)?;
        Ok(syncer)
    }

    /// Requests an fsync of a file, which the thread does within about `BATCH_DELAY`.
    pub(super) fn request_sync(&self, file: &Arc<File>) {
        let mut waiting = self.lock_queue();
        if waiting.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            return;
        }
        waiting.files.push(file.clone());
        let is_first = waiting.files.len() == 1;
        drop(waiting);
        if is_first {
            self.wakeup.notify_one();
        }
    }

    /// Ends the thread, after the fsyncs that were requested before.
    pub(super) fn stop(&self) {
        self.lock_queue().is_stopping = true;
        self.wakeup.notify_one();
    }

    fn lock_queue(&self) -> MutexGuard<'_, FsyncQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, writable: &AtomicBool) {
        loop {
            let mut waiting = self.lock_queue();
            while waiting.files.is_empty() {
                if waiting.is_stopping {
                    return;
                }
                waiting = self.wakeup.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            drop(waiting);
            thread::sleep(BATCH_DELAY);
            let files = std::mem::take(&mut self.lock_queue().files);
            for file in files {
                let synced = file.sync_data();
                failpoint!("outbox_synced", if synced.is_ok());
                if let Err(why) = synced {
                    log::error!(
                        event = "outbox_sync_failed", error:% = why;
                        "outbox fsync failed"
                    );
                    METRICS.outbox_errors.inc();
                    writable.store(false, Ordering::SeqCst);
                }
            }
        }
    }
}
