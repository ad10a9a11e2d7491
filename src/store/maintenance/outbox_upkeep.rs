//! The upkeep of an outbox, whichever store it stands before.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::outbox::{Outbox, OutboxTarget, SegmentReplay, ServerRun};

/// The outbox is put in order so often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// What ended processes left is looked for so often.
const ADOPT_INTERVAL: Duration = Duration::from_secs(10);

/// Keeps an outbox in order, and takes over what ended processes left of theirs. `run` is the run
/// of the store that lacks nothing, and when it last answered.
pub(super) async fn maintain_outbox<R: ServerRun>(
    outbox: &Outbox<impl OutboxTarget>,
    replay: &tokio::sync::Mutex<SegmentReplay>,
    run: impl Fn() -> Option<(R, Instant)>,
) {
    let mut adopted = Instant::now();
    loop {
        sleep(MAINTENANCE_INTERVAL).await;
        let (log, run) = (outbox.log.clone(), run());
        let alive = run.as_ref().map(|(_, alive)| alive.into_std());
        // Only a panic of it fails; the next does the same.
        let _ = tokio::task::spawn_blocking(move || log.maintain(alive)).await;
        let Some((run, _)) = run else { continue };
        outbox.redeliver().await;
        let mut replay = replay.lock().await;
        if adopted.elapsed() < ADOPT_INTERVAL && !replay.is_behind() {
            continue;
        }
        adopted = Instant::now();
        if let Err(why) = replay.adopt_orphans(&run, alive).await {
            log::warn!(
                event = "outbox_adoption_failed", why:% = why;
                "orphaned outbox segments pending"
            );
        }
    }
}
