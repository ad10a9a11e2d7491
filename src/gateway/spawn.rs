//! Tasks that outlive the request that started them.

use std::task::{Context, Waker};

/// Starts a task now, so that its first step is taken, and leaves the rest to the runtime.
pub(super) fn poll_then_spawn(task: impl Future<Output = ()> + Send + 'static) {
    let mut task = Box::pin(task);
    // The runtime's waker takes the place of this one.
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(task);
    }
}
