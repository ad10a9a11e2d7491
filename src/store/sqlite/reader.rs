//! A thread and a connection beside the writer's, for what is large: the log lets readers read
//! while the writer writes, and no hold waits for them.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::schema::{self, BUSY_TIMEOUT};
use crate::ledger::Unavailable;

/// Something that somebody wants to read.
type ReadQuery = Box<dyn FnOnce(&Connection) + Send>;

/// The reading thread; it ends with this.
pub(super) struct ReadThread(mpsc::Sender<ReadQuery>);

impl ReadThread {
    pub(super) fn open(path: &Path) -> Result<ReadThread, String> {
        let connection = schema::open_read_only(path, BUSY_TIMEOUT).map_err(|e| e.to_string())?;
        let (ask, questions) = mpsc::channel::<ReadQuery>();
        let answer = move || questions.into_iter().for_each(|question| question(&connection));
        let reader = thread::Builder::new().name("notes-reader".to_owned());
        reader.spawn(answer).map_err(|e| e.to_string())?;
        Ok(ReadThread(ask))
    }

    /// Reads what was written before this is asked.
    pub(super) async fn query<T, F>(&self, question: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let question: ReadQuery = Box::new(move |c| {
            // Else nobody waits for it any more.
            if !reply.is_closed() {
                // The caller may have stopped waiting meanwhile.
                let _ = reply.send(question(c));
            }
        });
        // Only a panic of the thread closes the channel, and with it the reply's.
        let _ = self.0.send(question);
        match answer.await {
            Ok(read) => read.map_err(|why| Unavailable(why.to_string())),
            Err(_) => Err(Unavailable("the read failed".to_owned())),
        }
    }
}
