//! What a client is allowed before its request is read, and the waits that all of the edge share.

use std::net::IpAddr;
use std::time::Duration;

use pingora::protocols::GetSocketDigest;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::gateway::in_flight::InFlight;

/// Once the process stops, what a client has begun to say has to come within this.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// What a client is allowed.
pub(super) struct EdgeLimits {
    /// Before it has said what it wants.
    pub(super) head_wait: Duration,
    pub(super) head_bytes_max: usize,
    /// Between two requests.
    pub(super) idle_wait: Duration,
    /// To take something of what it is given.
    pub(super) write_wait: Duration,
    /// Counts those who have begun to say it.
    pub(super) in_flight: InFlight,
}

/// Does something within the time that a client has for it, which is short once the process stops.
pub(super) async fn with_deadline<T>(
    doing: impl Future<Output = T>,
    deadline: Instant,
    shutdown: &mut ShutdownWatch,
) -> Option<T> {
    let mut doing = std::pin::pin!(doing);
    tokio::select! {
        biased;
        done = &mut doing => return Some(done),
        () = sleep_until(deadline) => return None,
        () = wait_for_shutdown(shutdown) => {}
    }
    timeout_at(deadline.min(Instant::now() + SHUTDOWN_GRACE), doing).await.ok()
}

/// Waits until the process is to stop.
pub(super) async fn wait_for_shutdown(shutdown: &mut ShutdownWatch) {
    // The sender is dropped only when the process ends.
    let _ = shutdown.wait_for(|stopping| *stopping).await;
}

pub(super) fn peer_ip(stream: &(impl GetSocketDigest + ?Sized)) -> Option<IpAddr> {
    let digest = stream.get_socket_digest()?;
    digest.peer_addr()?.as_inet().map(std::net::SocketAddr::ip)
}
