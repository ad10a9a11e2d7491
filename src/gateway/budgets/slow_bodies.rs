//! Tracks request bodies that arrive slowly. When memory or the number of requests reaches a limit,
//! the body that arrives slowest, or not at all, is evicted before a new request is refused.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::gateway::budgets::tenants::Resource;

/// A body that is complete within this time is not slow, so bodies that arrive at once cost nothing
/// here.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// A body that arrives at this rate or faster is not evicted.
const FAST_BYTES_PER_SECOND: u64 = 256 << 10;

/// All bodies that are being read and were not complete within a second.
#[derive(Debug, Default)]
pub(crate) struct SlowBodies {
    bodies: Mutex<HashMap<u64, Arc<SlowBody>>>,
    last_id: AtomicU64,
}

#[derive(Debug)]
struct SlowBody {
    /// The resource against which its bytes are counted.
    resource: Resource,
    since: Instant,
    bytes: AtomicUsize,
    is_evicted: AtomicBool,
    evicted: Notify,
}

impl SlowBody {
    /// Returns the average rate up to `now`, in bytes per second.
    fn bytes_per_second(&self, now: Instant) -> u64 {
        let millis = now.saturating_duration_since(self.since).as_millis().max(1);
        let bytes = self.bytes.load(Ordering::Relaxed) as u128;
        u64::try_from(bytes * 1_000 / millis).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
pub(crate) struct BodyWatch<'a> {
    registry: &'a Arc<SlowBodies>,
    resource: Resource,
    since: Instant,
    bytes: usize,
    /// The registration of the body; `None` until it is slow.
    slow: Option<WatchedBody>,
}

impl<'a> BodyWatch<'a> {
    /// Watches a body that is read from now on, and whose bytes count against `resource`.
    pub(crate) fn new(registry: &'a Arc<SlowBodies>, resource: Resource) -> BodyWatch<'a> {
        BodyWatch { registry, resource, since: Instant::now(), bytes: 0, slow: None }
    }

    /// Records the number of bytes that have arrived in total.
    pub(crate) fn record(&mut self, bytes: usize) {
        self.bytes = bytes;
        if let Some(slow) = &self.slow {
            slow.record(bytes);
        }
    }

    /// Excludes from the rate a time in which the gateway was not waiting for the client.
    pub(crate) fn pause(&mut self, paused: Duration) {
        self.since += paused;
        // The eviction of a body still counts: another request waits for what it releases.
        self.slow = self.slow.take().filter(|slow| slow.body.is_evicted.load(Ordering::Acquire));
    }

    /// Waits until this body is evicted. Registers the body as slow when it has taken too long.
    pub(crate) async fn wait_for_eviction(&mut self) {
        let slow = if let Some(slow) = self.slow.take() {
            slow
        } else {
            tokio::time::sleep_until(self.since + SLOW_AFTER).await;
            self.registry.watch(self.resource, self.since, self.bytes)
        };
        self.slow.insert(slow).wait_for_eviction().await;
    }
}

/// The registration of a slow body, until it is dropped.
#[derive(Debug)]
struct WatchedBody {
    registry: Arc<SlowBodies>,
    id: u64,
    body: Arc<SlowBody>,
}

impl SlowBodies {
    /// Registers a body that has been read since `since`, and of which `bytes` have arrived.
    fn watch(
        self: &Arc<SlowBodies>,
        resource: Resource,
        since: Instant,
        bytes: usize,
    ) -> WatchedBody {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let (bytes, is_evicted) = (AtomicUsize::new(bytes), AtomicBool::new(false));
        let body =
            Arc::new(SlowBody { resource, since, bytes, is_evicted, evicted: Notify::new() });
        self.lock().insert(id, body.clone());
        WatchedBody { registry: self.clone(), id, body }
    }

    /// Evicts the slowest body of those that would release some of the resource `wanted`. Returns
    /// `false` if no body is slow enough.
    pub(crate) fn evict_slowest(&self, wanted: Resource) -> bool {
        let now = Instant::now();
        let mut bodies = self.lock();
        let would_release = |body: &SlowBody| {
            wanted == Resource::Requests
                || (wanted == body.resource && body.bytes.load(Ordering::Relaxed) > 0)
        };
        let candidates = bodies.iter().filter(|(_, body)| would_release(body));
        let slowest = candidates.map(|(id, body)| (body.bytes_per_second(now), *id)).min();
        let Some((_, id)) = slowest.filter(|(speed, _)| *speed < FAST_BYTES_PER_SECOND) else {
            return false;
        };
        let Some(body) = bodies.remove(&id) else { return false };
        drop(bodies);
        body.is_evicted.store(true, Ordering::Release);
        body.evicted.notify_one();
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<SlowBody>>> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedBody {
    fn record(&self, bytes: usize) {
        self.body.bytes.store(bytes, Ordering::Relaxed);
    }

    async fn wait_for_eviction(&self) {
        while !self.body.is_evicted.load(Ordering::Acquire) {
            self.body.evicted.notified().await;
        }
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_evicted(body: &WatchedBody) -> bool {
        body.wait_for_eviction().now_or_never().is_some()
    }

    #[tokio::test]
    async fn the_slowest_go_first_and_fast_ones_stay() {
        let all = Arc::new(SlowBodies::default());
        let evict_slowest = || all.evict_slowest(Resource::Requests);
        assert!(!evict_slowest());
        let since = Instant::now().checked_sub(Duration::from_secs(10)).expect("a moment");
        let [nothing, little, fast] =
            [0, 100_000, 100 << 20].map(|bytes| all.watch(Resource::BodyBytes, since, bytes));
        assert!(evict_slowest());
        assert!(is_evicted(&nothing) && !is_evicted(&little));
        little.record(200_000);
        assert!(evict_slowest());
        assert!(is_evicted(&little) && !is_evicted(&fast));
        assert!(!evict_slowest(), "what is left is fast enough");
        drop((nothing, little, fast));
        assert!(all.lock().is_empty());
    }

    #[tokio::test]
    async fn bodies_that_held_nothing_were_evicted_for_want_of_bytes() {
        let all = Arc::new(SlowBodies::default());
        let since = Instant::now().checked_sub(Duration::from_secs(10)).expect("a moment");
        let _nothing = all.watch(Resource::BodyBytes, since, 0);
        let upload = all.watch(Resource::UploadBytes, since, 1);
        assert!(!all.evict_slowest(Resource::BodyBytes));
        assert!(all.evict_slowest(Resource::UploadBytes) && is_evicted(&upload));
    }

    #[tokio::test]
    async fn a_pause_forgot_that_a_body_had_to_go() {
        let all = Arc::new(SlowBodies::default());
        let since = Instant::now().checked_sub(Duration::from_secs(10)).expect("a moment");
        let slow = Some(all.watch(Resource::UploadBytes, since, 1));
        let resource = Resource::UploadBytes;
        let mut watch = BodyWatch { registry: &all, resource, since, bytes: 1, slow };
        assert!(all.evict_slowest(resource));
        watch.pause(Duration::from_secs(9));
        assert!(watch.wait_for_eviction().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_body_that_has_come_is_not_evicted() {
        let all = Arc::new(SlowBodies::default());
        drop(all.watch(Resource::BodyBytes, Instant::now(), 0));
        assert!(!all.evict_slowest(Resource::Requests));
    }
}
