//! A thread that brings what was written to the disk, and what many wrote together.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::metrics::METRICS;

/// So long the disk is not asked, while what is to be synced gathers: nobody waits for it, and to
/// ask costs as much as a whole call.
const GATHER: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Default)]
pub(super) struct FsyncThread {
    waiting: Mutex<FsyncQueue>,
    bell: Condvar,
}

#[derive(Default)]
struct FsyncQueue {
    files: Vec<Arc<File>>,
    has_ended: bool,
}

impl FsyncThread {
    /// Starts the thread. It tells through `sound` if the disk fails.
    pub(super) fn start(sound: Arc<AtomicBool>) -> io::Result<Arc<FsyncThread>> {
        let syncer = Arc::new(FsyncThread::default());
        let own = syncer.clone();
        let run = move || own.run(&sound);
        thread::Builder::new().name("outbox-sync".to_owned()).spawn(run)?;
        Ok(syncer)
    }

    /// Has a file synced soon.
    pub(super) fn sync(&self, file: &Arc<File>) {
        let mut waiting = self.waiting();
        if waiting.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            return;
        }
        waiting.files.push(file.clone());
        let is_first = waiting.files.len() == 1;
        drop(waiting);
        if is_first {
            self.bell.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.waiting().has_ended = true;
        self.bell.notify_one();
    }

    fn waiting(&self) -> MutexGuard<'_, FsyncQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, sound: &AtomicBool) {
        loop {
            let mut waiting = self.waiting();
            while waiting.files.is_empty() {
                if waiting.has_ended {
                    return;
                }
                waiting = self.bell.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            drop(waiting);
            thread::sleep(GATHER);
            let files = std::mem::take(&mut self.waiting().files);
            for file in files {
                if let Err(why) = file.sync_data() {
                    log::error!(
                        event = "outbox_sync_failed", why:% = why;
                        "the outbox cannot be synced"
                    );
                    METRICS.outbox_errors.inc();
                    sound.store(false, Ordering::SeqCst);
                }
            }
        }
    }
}
