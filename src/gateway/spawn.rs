//! Tasks that outlive the request that started them.

use std::task::{Context, Waker};

/// Polls the task once on the current thread, so that its first step is done at once, and spawns
/// the rest on the runtime if the task is not finished.
pub(super) fn poll_then_spawn(task: impl Future<Output = ()> + Send + 'static) {
    let mut task = Box::pin(task);
    // The task, if spawned, is polled again with the runtime's waker, so the no-op waker loses no
    // wake-up.
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(task);
    }
}
