//! Repeats an operation while the money that it needs is lent to gateways: a gateway learns within
//! a tenth of a second that its money is called back, and gives it back a round of updates later.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::ledger::{Outcome, Unavailable};

/// The pause before an operation is repeated. Pauses double up to [`RETRY_PAUSE_MAX`].
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(5);
/// See [`RETRY_PAUSE_MIN`].
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(40);

/// Returns the error for a caller that has waited in vain.
pub(super) fn still_lent() -> Unavailable {
    Unavailable("the money is lent to another gateway".to_owned())
}

/// Whether an outcome says that money which is lent would help.
pub(super) fn is_lent(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Wait | Outcome::HeldInPart(_))
}

/// Repeats `operation` while `is_lent` says so, for the time `wait` at most.
///
/// # Errors
/// Those of the operation.
pub(super) async fn retry<T, F: Future<Output = Result<T, Unavailable>>>(
    operation: impl Fn() -> F,
    is_lent: impl Fn(&T) -> bool,
    wait: Duration,
) -> Result<T, Unavailable> {
    let end = Instant::now() + wait;
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        let outcome = operation().await?;
        if !is_lent(&outcome) || Instant::now() + pause >= end {
            return Ok(outcome);
        }
        sleep(pause).await;
        pause = RETRY_PAUSE_MAX.min(pause * 2);
    }
}
