//! The limits of a client connection, and helpers of the edge for deadlines and shutdown.

use std::net::IpAddr;
use std::time::Duration;

use pingora::protocols::GetSocketDigest;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::unread_fields::ForwardCheck;
use crate::gateway::in_flight::InFlight;

/// Once the process begins to stop, a client has at most this time to complete what it has begun to
/// send: the PROXY header, the TLS handshake or the request head.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// The limits of time and size for a client connection.
pub(super) struct EdgeLimits {
    /// The time in which a request head must be complete. It counts from the connection, with PROXY
    /// header and TLS handshake, or on a reused connection from the first byte.
    pub(super) head_wait: Duration,
    pub(super) head_bytes_max: usize,
    /// The longest idle time between two requests.
    pub(super) idle_wait: Duration,
    /// The time in which the client must accept at least some of the bytes that are written.
    pub(super) write_wait: Duration,
    /// Counts new connections, and requests from the first byte of their head.
    pub(super) in_flight: InFlight,
    /// Tells whether a vendor may get a field that the gateway itself does not read.
    pub(super) is_unread_forwarded: ForwardCheck,
}

/// Awaits `future` until `deadline`, or until [`SHUTDOWN_GRACE`] after the process begins to stop,
/// whichever is earlier. `None` if it does not finish in time.
pub(super) async fn with_deadline<T>(
    future: impl Future<Output = T>,
    deadline: Instant,
    shutdown: &mut ShutdownWatch,
) -> Option<T> {
    let mut future = std::pin::pin!(future);
    tokio::select! {
        biased;
        done = &mut future => return Some(done),
        () = sleep_until(deadline) => return None,
        () = wait_for_shutdown(shutdown) => {}
    }
    timeout_at(deadline.min(Instant::now() + SHUTDOWN_GRACE), future).await.ok()
}

/// Waits until the process begins to stop.
pub(super) async fn wait_for_shutdown(shutdown: &mut ShutdownWatch) {
    // An error means that the sender was dropped, which happens only when the process ends.
    let _ = shutdown.wait_for(|stopping| *stopping).await;
}

pub(super) fn peer_ip(stream: &(impl GetSocketDigest + ?Sized)) -> Option<IpAddr> {
    let digest = stream.get_socket_digest()?;
    digest.peer_addr()?.as_inet().map(std::net::SocketAddr::ip)
}
