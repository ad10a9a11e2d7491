//! The addresses of the servers, shared by all connections of one process. The connection that
//! probes the store updates them. Without this, a connection whose commands have no keys would
//! never be redirected, and would not notice that its master was replaced.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A server of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ClusterNode {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for ClusterNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The addresses of the servers, with a version that grows when connections must be made again.
#[derive(Debug, Default)]
pub(in crate::store) struct Topology {
    version: AtomicU64,
    nodes: Mutex<Vec<ClusterNode>>,
    /// The epoch of the latest failover that the Sentinels reported, and when it was first seen.
    failover: Mutex<Option<(u64, Instant)>>,
}

impl Topology {
    /// Returns the version. Connections that were made for another version must be made again.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Returns the version, and the known nodes of a cluster.
    pub(super) fn snapshot(&self) -> (u64, Vec<ClusterNode>) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.version(), nodes.clone())
    }

    /// Records the epoch of a failover and returns true, unless a later epoch was recorded within
    /// the last `wait`.
    pub(super) fn accept_epoch(&self, epoch: u64, wait: Duration) -> bool {
        let mut failover = self.failover.lock().unwrap_or_else(PoisonError::into_inner);
        let is_older =
            failover.is_some_and(|(latest, heard)| epoch < latest && heard.elapsed() < wait);
        if !is_older && failover.is_none_or(|(latest, _)| latest != epoch) {
            *failover = Some((epoch, Instant::now()));
        }
        !is_older
    }

    /// Sets the nodes without a new version, because the masters are the same.
    pub(super) fn set_nodes(&self, nodes: Vec<ClusterNode>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Sets the nodes after the masters have changed, with a new version: all connections
    /// reconnect.
    pub(super) fn replace_nodes(&self, nodes: Vec<ClusterNode>) {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        *known = nodes;
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes all connections reconnect when the store answers again after an outage, since an old
    /// connection may wait for a peer that is gone.
    pub(in crate::store) fn force_reconnect(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}
