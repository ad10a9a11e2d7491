//! A thread with a separate connection for large reads: the write-ahead log lets it read while the
//! writer writes, so no hold waits for a large read.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::schema::{self, BUSY_TIMEOUT};
use crate::ledger::Unavailable;

/// A query that a caller wants to run.
type ReadQuery = Box<dyn FnOnce(&Connection) + Send>;

/// The handle of the reading thread, which ends when this is dropped.
pub(super) struct ReadThread(mpsc::Sender<ReadQuery>);

impl ReadThread {
    /// Opens a file. `name` is that of the thread.
    pub(super) fn open(path: &Path, name: &str) -> Result<ReadThread, String> {
        let connection = schema::open_read_only(path, BUSY_TIMEOUT).map_err(|e| e.to_string())?;
        let (ask, questions) = mpsc::channel::<ReadQuery>();
        let answer = move || questions.into_iter().for_each(|question| question(&connection));
        let reader = thread::Builder::new().name(name.to_owned());
        reader.spawn(answer).map_err(|e| e.to_string())?;
        Ok(ReadThread(ask))
    }

    /// Runs a query on the reading thread. It finds everything that was committed before this call.
    pub(super) async fn query<T, F>(&self, question: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let question: ReadQuery = Box::new(move |c| {
            // A query whose caller has stopped waiting is skipped.
            if !reply.is_closed() {
                // The caller may have stopped waiting meanwhile.
                let _ = reply.send(question(c));
            }
        });
        // The channel is closed only if the thread has panicked. Then the reply is dropped too.
        let _ = self.0.send(question);
        match answer.await {
            Ok(read) => read.map_err(|why| Unavailable(why.to_string())),
            Err(_) => Err(Unavailable("the read failed".to_owned())),
        }
    }
}
