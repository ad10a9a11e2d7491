//! Limits of client connections: in total, and from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::METRICS;

/// Counts the open connections, in total and for each client, and limits them.
#[derive(Debug)]
pub(crate) struct ConnectionLimits {
    count: AtomicUsize,
    count_max: usize,
    by_client: Mutex<HashMap<IpAddr, usize>>,
    /// Connections of one client, at most; 0 for no limit.
    by_client_max: usize,
    /// Whether the metric of open connections includes these connections.
    is_in_metrics: bool,
}

/// Counts one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    client: Option<IpAddr>,
}

/// The limit that refuses a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitReached {
    /// There are too many connections.
    Total,
    /// There are too many connections from this client.
    Client,
}

impl ConnectionLimits {
    /// Creates limits without connections: at most `count_max` in total, and at most
    /// `by_client_max` for each client (0: no limit).
    #[must_use]
    pub(crate) fn new(count_max: usize, by_client_max: usize) -> Arc<ConnectionLimits> {
        let (count, by_client) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(ConnectionLimits {
            count,
            count_max,
            by_client,
            by_client_max,
            is_in_metrics: true,
        })
    }

    /// Creates limits without connections, as [`ConnectionLimits::new`] does. They are for a
    /// listener that serves no calls, so the metrics do not include its connections.
    #[must_use]
    pub(crate) fn without_metrics(count_max: usize, by_client_max: usize) -> Arc<ConnectionLimits> {
        let (count, by_client) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(ConnectionLimits {
            count,
            count_max,
            by_client,
            by_client_max,
            is_in_metrics: false,
        })
    }

    /// Returns the number of open connections.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts a new connection. If its address is not known yet (`None`), it counts only in total.
    ///
    /// # Errors
    /// One of the limits is reached; the connection is not counted.
    pub(crate) fn acquire(
        self: &Arc<ConnectionLimits>,
        address: Option<IpAddr>,
    ) -> Result<ConnectionPermit, LimitReached> {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        if self.is_in_metrics {
            METRICS.connections.inc();
        }
        // From here on, the drop of the permit undoes the count.
        let mut permit = ConnectionPermit { limits: self.clone(), client: None };
        if before >= self.count_max {
            return Err(LimitReached::Total);
        }
        address.map_or(Ok(()), |address| permit.assign_client(address))?;
        Ok(permit)
    }
}

impl ConnectionPermit {
    /// Counts the connection for the client with this address, once the address is known. A
    /// connection that already counts for a client is left as it is.
    ///
    /// # Errors
    /// The client has as many connections as it may have.
    pub(crate) fn assign_client(&mut self, address: IpAddr) -> Result<(), LimitReached> {
        let client_max = self.limits.by_client_max;
        if client_max == 0 || self.client.is_some() {
            return Ok(());
        }
        let client = client_network(address);
        let mut by_client = self.limits.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        let client_count = by_client.entry(client).or_default();
        if *client_count >= client_max {
            return Err(LimitReached::Client);
        }
        *client_count += 1;
        drop(by_client);
        self.client = Some(client);
        Ok(())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.count.fetch_sub(1, Ordering::Relaxed);
        if self.limits.is_in_metrics {
            METRICS.connections.dec();
        }
        let Some(client) = self.client else { return };
        let mut by_client = self.limits.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client_count) = by_client.get_mut(&client) {
            *client_count -= 1;
            if *client_count == 0 {
                by_client.remove(&client);
            }
        }
    }
}

/// Returns the network that counts as one client: the first 64 bits of an IPv6 address, or a whole
/// IPv4 address, which may also be given as an IPv4-mapped IPv6 address.
#[must_use]
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        ipv4 @ IpAddr::V4(_) => ipv4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(
        limits: &Arc<ConnectionLimits>,
        address: &str,
    ) -> Result<ConnectionPermit, LimitReached> {
        limits.acquire(Some(address.parse().expect("an address")))
    }

    #[test]
    fn places_are_counted_in_all_and_by_client_and_come_back() {
        let limits = ConnectionLimits::new(3, 2);
        let first = from(&limits, "10.0.0.1").expect("a place");
        let second = from(&limits, "::ffff:10.0.0.1").expect("a place");
        assert_eq!(from(&limits, "10.0.0.1").err(), Some(LimitReached::Client));
        let third = from(&limits, "10.0.0.2").expect("a place");
        assert_eq!(from(&limits, "10.0.0.3").err(), Some(LimitReached::Total));
        assert_eq!(limits.count(), 3);
        drop(first);
        let again = from(&limits, "10.0.0.1").expect("a place");
        drop((second, third, again));
        assert_eq!(limits.count(), 0);
        assert!(limits.by_client.lock().expect("no panic").is_empty());
    }

    #[test]
    fn neighbours_in_64_bits_are_one_client() {
        let limits = ConnectionLimits::new(9, 1);
        let _one = from(&limits, "2001:db8:1:2::1").expect("a place");
        assert_eq!(from(&limits, "2001:db8:1:2:ffff::9").err(), Some(LimitReached::Client));
        assert!(from(&limits, "2001:db8:1:3::1").is_ok());
    }

    #[test]
    fn without_a_bound_one_client_may_take_all_places() {
        let limits = ConnectionLimits::new(2, 0);
        let _permits = [from(&limits, "10.0.0.1").ok(), from(&limits, "10.0.0.1").ok()];
        assert_eq!(from(&limits, "10.0.0.1").err(), Some(LimitReached::Total));
    }
}
