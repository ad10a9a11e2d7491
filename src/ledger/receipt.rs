//! What stands for an operation that was submitted.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::{Outcome, Unavailable};

/// An operation that is on its way to the store; waiting for it tells what came of it.
///
/// It was sent, or queued to be sent, before the caller got this: operations that are submitted one
/// after another are done in that order. Dropping it does not take the operation back: it may be
/// done, or not.
#[must_use = "only who waits for it knows what came of the operation"]
pub struct Receipt<'a>(State<'a>);

type Answer = Result<Outcome, Unavailable>;

enum State<'a> {
    Answered(Option<Answer>),
    OnItsWay(Pin<Box<dyn Future<Output = Answer> + Send + 'a>>),
}

impl<'a> Receipt<'a> {
    /// Takes the first step of an operation, after which it is on its way.
    pub fn start(operation: impl Future<Output = Answer> + Send + 'a) -> Receipt<'a> {
        let mut operation = Box::pin(operation);
        // The first one that waits leaves a waker of its own.
        match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Receipt(State::Answered(Some(answer))),
            Poll::Pending => Receipt(State::OnItsWay(operation)),
        }
    }
}

impl Future for Receipt<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
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
