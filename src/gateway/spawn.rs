//! Tasks that outlive the request that started them.

use futures_util::poll;

/// Starts a task now, so that its first step is taken, and leaves the rest to the runtime.
pub(super) async fn poll_then_spawn(task: impl Future<Output = ()> + Send + 'static) {
    let mut task = Box::pin(task);
    if poll!(&mut task).is_pending() {
        tokio::spawn(task);
    }
}
