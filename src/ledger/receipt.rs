//! The receipt of an operation that was submitted to the ledger.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::{Outcome, Unavailable};

/// An operation that is on its way to the store. Awaiting it returns the outcome.
///
/// The operation was sent, or queued to be sent, before the caller got this: operations that are
/// submitted one after another are done in that order. Dropping the receipt does not cancel the
/// operation: it may be done or not.
#[must_use = "only who waits for it knows what came of the operation"]
pub struct Receipt<'a>(State<'a>);

type SubmitResult = Result<Outcome, Unavailable>;

enum State<'a> {
    Answered(Option<SubmitResult>),
    OnItsWay(Pin<Box<dyn Future<Output = SubmitResult> + Send + 'a>>),
}

impl<'a> Receipt<'a> {
    /// Makes the receipt of an operation that is done.
    pub fn ready(outcome: SubmitResult) -> Receipt<'a> {
        Receipt(State::Answered(Some(outcome)))
    }

    /// Polls the operation once, after which it is on its way.
    pub fn start(operation: impl Future<Output = SubmitResult> + Send + 'a) -> Receipt<'a> {
        let mut operation = Box::pin(operation);
        // The no-op waker is replaced by that of the task that awaits the receipt.
        match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Receipt(State::Answered(Some(answer))),
            Poll::Pending => Receipt(State::OnItsWay(operation)),
        }
    }
}

impl Future for Receipt<'_> {
    type Output = SubmitResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SubmitResult> {
        match &mut self.0 {
            State::Answered(answer) => answer.take().map_or(Poll::Pending, Poll::Ready),
            State::OnItsWay(operation) => operation.as_mut().poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn an_operation_is_on_its_way_before_anybody_waits_for_it() {
        let steps = AtomicU32::new(0);
        let operation = async {
            steps.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            steps.fetch_add(1, Ordering::Relaxed);
            Ok(Outcome::Done)
        };
        let receipt = Receipt::start(operation);
        assert_eq!(steps.load(Ordering::Relaxed), 1);
        assert_eq!(receipt.await, Ok(Outcome::Done));
        assert_eq!(steps.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn an_answer_that_was_there_at_once_is_told_to_whoever_asks_later() {
        let receipt = Receipt::start(async { Ok(Outcome::Voided) });
        assert_eq!(receipt.await, Ok(Outcome::Voided));
    }
}
