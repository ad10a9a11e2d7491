//! Follows the journals: folds what calls have posted into the sums of usage.

use std::time::Duration;

use crate::usage::UsageStore;

/// How often it is asked whether there is something to fold.
const FOLD_INTERVAL: Duration = Duration::from_secs(1);
/// The pause between two steps while there is more to fold, so that calls have the store.
const STEP_PAUSE: Duration = Duration::from_millis(10);
/// The wait after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The most lines that one step folds.
const LINES_MAX: u32 = 500;

/// Folds the journals of a store as they grow. It never returns.
pub(super) async fn follow_journals(usage: &dyn UsageStore) {
    loop {
        let wait = match usage.fold_next(LINES_MAX).await {
            Ok(report) if report.has_more => STEP_PAUSE,
            Ok(_) => FOLD_INTERVAL,
            Err(why) => {
                log::warn!(
                    event = "usage_fold_failed", error:% = why;
                    "usage not summed up"
                );
                RETRY_INTERVAL
            }
        };
        tokio::time::sleep(wait).await;
    }
}
