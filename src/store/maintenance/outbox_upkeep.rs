//! Maintenance of an outbox, for any kind of store.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::outbox::{Outbox, OutboxTarget, SegmentReplay, ServerRun};
use crate::ledger::Unavailable;

/// The files of the outbox are maintained, and unacknowledged entries sent again, this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// The folders of ended processes are looked for this often.
const ADOPT_INTERVAL: Duration = Duration::from_secs(10);

/// Maintains an outbox, and adopts the folders of ended processes. `run` returns the run of the
/// store that lacks nothing, and when the store last answered; `None` if there is no such run. What
/// `adopt_first` does comes before an adoption: afterwards the keys of dead calls are released, so
/// all of their charges have to be in the store.
pub(super) async fn maintain_outbox<R: ServerRun, F>(
    outbox: &Outbox<impl OutboxTarget>,
    replay: &tokio::sync::Mutex<SegmentReplay>,
    run: impl Fn() -> Option<(R, Instant)>,
    adopt_first: impl Fn() -> F,
) where
    F: Future<Output = Result<(), Unavailable>>,
{
    let mut adopted = Instant::now();
    loop {
        sleep(MAINTENANCE_INTERVAL).await;
        let (log, run) = (outbox.log.clone(), run());
        let last_answer = run.as_ref().map(|(_, last_answer)| last_answer.into_std());
        // This fails only if `maintain` panics; the next round does the same work.
        let _ = tokio::task::spawn_blocking(move || log.maintain(last_answer)).await;
        let Some((run, _)) = run else { continue };
        outbox.redeliver().await;
        let mut replay = replay.lock().await;
        if adopted.elapsed() < ADOPT_INTERVAL && !replay.is_behind() {
            continue;
        }
        adopted = Instant::now();
        let adopting = async {
            adopt_first().await?;
            replay.adopt_orphans(&run, last_answer).await
        };
        if let Err(why) = adopting.await {
            log::warn!(
                event = "outbox_adoption_failed", error:% = why;
                "orphaned outbox segments pending"
            );
        }
    }
}
