//! The upkeep of an embedded store: what processes left that ended in the middle of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Answers, PROBE_WAIT, tidy};
use crate::ledger::{Ledger, Unavailable};
use crate::repeats::Repeats;
use crate::store::outbox::{Outbox, Replay};
use crate::store::sqlite::Sqlite;

/// An embedded store is asked how it is so often.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Alone {
    outbox: Outbox<Sqlite>,
    replay: Mutex<Replay>,
    adopted: AtomicBool,
}

impl Alone {
    pub(super) fn new(outbox: Outbox<Sqlite>, repeats: Arc<dyn Repeats>) -> Alone {
        let replay = Mutex::new(Replay::new(outbox.log.clone(), repeats));
        Alone { outbox, replay, adopted: AtomicBool::new(false) }
    }

    /// Whether the store has heard of all that processes before this one left, and has taken what
    /// it was told for so long.
    pub(super) fn has_lasted(&self, span: Duration) -> bool {
        self.has_adopted() && self.outbox.log.is_calm(span)
    }

    fn has_adopted(&self) -> bool {
        self.adopted.load(Ordering::SeqCst)
    }

    pub(super) fn writes_down(&self) -> bool {
        self.outbox.log.is_sound()
    }

    pub(super) fn leave(&self) {
        self.outbox.log.flush();
    }

    pub(super) async fn keep(&self, answers: &Answers) {
        let store: &Arc<Sqlite> = &self.outbox.store;
        let probing = async {
            loop {
                if !self.has_adopted() {
                    self.adopt().await;
                }
                match timeout(PROBE_WAIT, store.ping()).await {
                    Ok(Ok(())) => answers.answered(),
                    _ => answers.began_again(),
                }
                sleep(PROBE_EVERY).await;
            }
        };
        tokio::join!(
            probing,
            tidy(&self.outbox, &self.replay, || Some((store.clone(), Instant::now())))
        );
    }

    async fn adopt(&self) {
        match self.try_adopt().await {
            Ok(()) => self.adopted.store(true, Ordering::SeqCst),
            Err(why) => log::warn!(why:% = why; "what ended processes left waits"),
        }
    }

    async fn try_adopt(&self) -> Result<(), Unavailable> {
        let Outbox { store, log, .. } = &self.outbox;
        log.belongs_to(&store.id)?;
        let now = std::time::Instant::now();
        self.replay.lock().await.adopt(store, Some(now)).await
    }
}
