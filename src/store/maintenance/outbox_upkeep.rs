//! Maintenance of an outbox, for any kind of store.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::outbox::{Outbox, OutboxTarget, SegmentReplay, ServerRun};

/// The files of the outbox are maintained, and unacknowledged entries sent again, this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// The folders of ended processes are looked for this often.
const ADOPT_INTERVAL: Duration = Duration::from_secs(10);

/// Maintains an outbox, and adopts the folders of ended processes. `run` returns the run of the
/// store that lacks nothing, and when the store last answered; `None` if there is no such run.
pub(super) async fn maintain_outbox<R: ServerRun>(
    outbox: &Outbox<impl OutboxTarget>,
    replay: &tokio::sync::Mutex<SegmentReplay>,
    run: impl Fn() -> Option<(R, Instant)>,
) {
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
        if let Err(why) = replay.adopt_orphans(&run, last_answer).await {
            log::warn!(
                event = "outbox_adoption_failed", error:% = why;
                "orphaned outbox segments pending"
            );
        }
    }
}
