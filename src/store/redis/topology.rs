//! Where the servers are, shared by all connections of one process. The connection that probes the
//! store updates it. Without it, a connection that sends no keys would never get a redirection and
//! would not notice that its master was replaced.

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

/// Where the servers are, shared by all connections of one process.
#[derive(Debug, Default)]
pub(in crate::store) struct Topology {
    version: AtomicU64,
    nodes: Mutex<Vec<ClusterNode>>,
    /// The latest failover that Sentinels told of, and when that was first heard of.
    failover: Mutex<Option<(u64, Instant)>>,
}

impl Topology {
    /// Connections that were made for another version are to be made again.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// The version, and the nodes of a cluster in it, as far as they are known.
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

    /// Other nodes are there, though the masters are the same.
    pub(super) fn set_nodes(&self, nodes: Vec<ClusterNode>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// The servers are others than before.
    pub(super) fn replace_nodes(&self, nodes: Vec<ClusterNode>) {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        *known = nodes;
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// The store answers again after an outage: all connections reconnect, since an old one may
    /// wait for a peer that is gone.
    pub(in crate::store) fn force_reconnect(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}
