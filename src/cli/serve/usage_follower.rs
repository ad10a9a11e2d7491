//! Follows the journals: folds what calls have posted into the sums of usage.

use std::time::{Duration, Instant};

use crate::notifier::changed_accounts::ChangedAccounts;
use crate::usage::UsageStore;

/// How often it is asked whether there is something to fold.
const FOLD_INTERVAL: Duration = Duration::from_secs(1);
/// The pause between two steps while there is more to fold, so that calls have the store.
const STEP_PAUSE: Duration = Duration::from_millis(10);
/// The wait after a failure of the store, and the least time between two warnings of failures.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The most lines that one step folds.
const LINES_MAX: u32 = 500;

/// Folds the journals of a store as they grow, and tells whose have. It never returns.
pub(super) async fn follow_journals(usage: &dyn UsageStore, changed: &ChangedAccounts) {
    let mut quiet_until = Instant::now();
    loop {
        let (wait, failed) = match usage.fold_next(LINES_MAX).await {
            Ok(report) => {
                changed.add(report.accounts);
                let is_behind = report.has_more && report.lines > 0;
                (if is_behind { STEP_PAUSE } else { FOLD_INTERVAL }, report.failed)
            }
            Err(why) => (RETRY_INTERVAL, vec![why.to_string()]),
        };
        // An account that cannot be folded is tried again and again. The others go on meanwhile.
        if !failed.is_empty() && Instant::now() >= quiet_until {
            quiet_until = Instant::now() + RETRY_INTERVAL;
            for why in failed {
                log::warn!(
                    event = "usage_fold_failed", error = why.as_str();
                    "usage not summed up"
                );
            }
        }
        tokio::time::sleep(wait).await;
    }
}
