//! Runs futures side by side on one task.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

/// Runs futures until all have ended. A wake polls only the future that it is for: `join!` and
/// `select!` poll all of theirs, and a process that has nothing to do is woken often.
pub(crate) async fn run_group<F: Future<Output = ()>>(futures: impl IntoIterator<Item = F>) {
    let mut running: FuturesUnordered<F> = futures.into_iter().collect();
    while running.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::Poll;

    use futures_util::FutureExt as _;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_wake_polls_only_the_future_that_it_is_for() {
        let (polls, steps) = (Cell::new(0), Cell::new(0));
        let asleep = poll_fn(|_| {
            polls.set(polls.get() + 1);
            if polls.get() > 1 { Poll::Ready(()) } else { Poll::Pending }
        });
        let awake = async {
            for _ in 0..10 {
                steps.set(steps.get() + 1);
                yield_now().await;
            }
        };
        let group = run_group([asleep.boxed_local(), awake.boxed_local()]);
        let mut group = Box::pin(group);
        for _ in 0..20 {
            assert!(futures_util::poll!(&mut group).is_pending());
            yield_now().await;
        }
        assert_eq!((polls.get(), steps.get()), (1, 10));
    }
}
