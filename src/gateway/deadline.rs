//! Waits that have a deadline.

use std::pin::Pin;
use std::task::Poll;

use futures_util::poll;
use tokio::time::{Instant, timeout_at};

/// Waits for a future, at most until `deadline`; `None` if it is not ready by then. A timer is made
/// only if the future is not ready at once, and most that wait for a client are.
pub(super) async fn await_until<F: Future>(
    deadline: Instant,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    match poll!(future.as_mut()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => timeout_at(deadline, future).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_ready_at_once_is_in_time_and_what_is_not_has_until_the_deadline() {
        let past = Instant::now().checked_sub(Duration::from_secs(1)).expect("a moment");
        assert_eq!(await_until(past, pin!(ready(1))).await, Some(1));
        assert_eq!(await_until(past, pin!(pending::<u8>())).await, None);
        let soon = Instant::now() + Duration::from_millis(20);
        let later = async {
            tokio::task::yield_now().await;
            2
        };
        assert_eq!(await_until(soon, pin!(later)).await, Some(2));
        assert_eq!(await_until(soon, pin!(pending::<u8>())).await, None);
        assert!(Instant::now() >= soon);
    }
}
