//! Repeats requests to a store that does not answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// The pause after the first failure, the longest pause (pauses double up to it), and the time
/// after which no request is repeated.
pub(super) const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
pub(super) const RETRY_WAIT_MAX: Duration = Duration::from_millis(500);
pub(super) const RETRY_TIME_MAX: Duration = Duration::from_secs(300);

/// Repeats a request until it succeeds, or until [`RETRY_TIME_MAX`] has passed. Then the last error
/// is returned.
pub(super) async fn retry_until_done<T, E, F>(mut ask: impl FnMut() -> F) -> Result<T, E>
where
    E: std::fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    let (began, mut backoff) = (Instant::now(), Backoff::new(RETRY_WAIT_MIN, RETRY_WAIT_MAX));
    loop {
        match ask().await {
            Err(why) if began.elapsed() <= RETRY_TIME_MAX => {
                log::warn!(
                    event = "video_store_retry", error:% = why;
                    "store request failed; retrying"
                );
                backoff.wait().await;
            }
            done => return done,
        }
    }
}
