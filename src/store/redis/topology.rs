//! What the connections of one process know of each other: where the servers are, as whoever keeps
//! looking has found them last. A connection that no key travels on would never be told by a
//! redirection that the master it knows is none any more.

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

/// See the module.
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

    /// Whether nobody has told of a later failover, but for one that was heard of longer ago than
    /// that.
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

    /// The store was away and answers again: whoever still waits for the silent end of an old
    /// connection had better use a new one.
    pub(in crate::store) fn force_reconnect(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}
