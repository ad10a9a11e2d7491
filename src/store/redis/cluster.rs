//! The connections to a cluster: the library's cluster connection for commands that have a key, and
//! our own connection to each node for commands that have none.
//!
//! The library learns about new masters from the redirections of commands that it sends. But no
//! command is sent until a run of the store is known to lack nothing. Therefore the probe for the
//! run looks up the masters first, by asking any node that is up. This also makes sure that no
//! master is silently left out: the library would ask only the nodes to which it happens to be
//! connected.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_ok};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redis::{RedisConnectionInfo, RedisError, RedisResult, Script, TlsMode, Value};
use tokio::time::timeout;

use super::super::tls::StoreTls;
use super::client::{
    CONNECT_TIMEOUT, NodeConnectFuture, RESPONSE_TIMEOUT, build_client, is_master_lost,
    tcp_settings,
};
use super::topology::ClusterNode;

/// The number of slots of every cluster.
const SLOT_COUNT: u64 = 16_384;
/// The node that answered last is waited for this long before all other nodes are asked.
const FIRST_NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// Retries of a command whose slot is migrating, and the pauses between them, in ms.
const RETRIES: u32 = 10;
const RETRY_MS_MIN: u64 = 20;
const RETRY_MS_MAX: u64 = 250;

type TopologyLookup<'a> = Pin<Box<dyn Future<Output = RedisResult<ClusterView>> + Send + 'a>>;

/// The nodes of a cluster and their roles, as one node reported them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClusterView {
    /// The nodes that own slots, sorted by address.
    pub(super) masters: Vec<ClusterNode>,
    /// The masters and their replicas.
    pub(super) nodes: Vec<ClusterNode>,
    /// The node that reported this view; `None` if the view is in doubt.
    reported_by: Option<ClusterNode>,
}

/// The connections to the nodes of a cluster.
pub(super) struct ClusterLinks {
    seeds: Vec<ClusterNode>,
    settings: RedisConnectionInfo,
    /// The certificates, if the cluster is reached over TLS; `None` without TLS.
    tls: Option<StoreTls>,
    /// The library's connection, which routes commands by their keys.
    key_routed: RwLock<Option<ClusterConnection>>,
    /// Since when commands are sent on `key_routed` without any answer.
    unanswered_since: Mutex<Option<Instant>>,
    is_view_stale: AtomicBool,
    node_connections: Mutex<HashMap<ClusterNode, MultiplexedConnection>>,
    view: Mutex<Arc<ClusterView>>,
}

impl ClusterLinks {
    /// Connects to the cluster that an address names. `rest` is the address without its scheme.
    pub(super) async fn open(
        rest: &str,
        is_tls: bool,
        tls: &StoreTls,
    ) -> RedisResult<ClusterLinks> {
        let (mut seeds, mut settings) = (Vec::new(), RedisConnectionInfo::default());
        for host in rest.split(',') {
            let info = format!("redis://{host}").into_connection_info()?;
            // The user and the password apply to all nodes, at whichever host of the list they are
            // written.
            if info.redis_settings().password().is_some() {
                settings = info.redis_settings().clone();
            }
            if let ConnectionAddr::Tcp(host, port) = info.addr() {
                seeds.push(ClusterNode { host: host.clone(), port: *port });
            }
        }
        let cluster = ClusterLinks {
            seeds,
            settings,
            tls: is_tls.then(|| tls.clone()),
            key_routed: RwLock::default(),
            unanswered_since: Mutex::default(),
            is_view_stale: AtomicBool::new(false),
            node_connections: Mutex::default(),
            view: Mutex::default(),
        };
        let view = cluster.refresh_view().await?;
        cluster.connect(&view.nodes).await?;
        Ok(cluster)
    }

    /// Returns a handle on the connection for commands that have a key.
    pub(super) fn handle(&self) -> RedisResult<ClusterConnection> {
        self.unanswered_since().get_or_insert_with(Instant::now);
        let keyed = self.key_routed.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(keyed.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?)
    }

    /// Whether the connection for commands with a key should be made again: the known nodes are in
    /// doubt, or nothing that was sent on it was answered for longer than `RESPONSE_TIMEOUT`. When
    /// many operations reach a node that is gone, the library may wait for itself for ever.
    pub(super) fn needs_reconnect(&self) -> bool {
        self.is_view_stale.load(Ordering::Relaxed)
            || self.unanswered_since().is_some_and(|since| since.elapsed() > RESPONSE_TIMEOUT)
    }

    /// Records that an operation has ended, with the error `why` if it failed. Every end except a
    /// timeout shows that the connection gives answers.
    pub(super) fn record_response(&self, why: Option<&RedisError>) {
        if why.is_none_or(|why| !why.is_timeout()) {
            *self.unanswered_since() = None;
        }
    }

    fn unanswered_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unanswered_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last known view of the cluster.
    pub(super) fn view(&self) -> Arc<ClusterView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Marks the known view as doubtful: next time all nodes are asked for it, and the connection
    /// for commands with a key is made again.
    pub(super) fn invalidate_view(&self) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        *view = Arc::new(ClusterView { reported_by: None, ..ClusterView::clone(&view) });
        self.is_view_stale.store(true, Ordering::Relaxed);
    }

    /// Makes the connection for commands with a key again, to `nodes` or, if that is empty, to the
    /// nodes of the known view. If connecting fails, the old connection stays.
    pub(super) async fn reconnect(&self, nodes: &[ClusterNode]) {
        let nodes = if nodes.is_empty() { &self.view().nodes } else { nodes };
        // If connecting fails, it is tried again after another `RESPONSE_TIMEOUT` without an
        // answer.
        *self.unanswered_since() = None;
        self.is_view_stale.store(false, Ordering::Relaxed);
        if let Err(why) = self.connect(nodes).await {
            log::warn!(
                event = "store_connect_failed", error:% = why;
                "cluster reconnect failed"
            );
        }
    }

    async fn connect(&self, nodes: &[ClusterNode]) -> RedisResult<()> {
        let nodes =
            nodes.iter().map(|node| self.connection_info(node)).collect::<RedisResult<Vec<_>>>()?;
        let mut builder = ClusterClientBuilder::new(nodes)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(RESPONSE_TIMEOUT)
            .retries(RETRIES)
            .min_retry_wait(RETRY_MS_MIN)
            .max_retry_wait(RETRY_MS_MAX)
            .tcp_settings(tcp_settings());
        if let Some(tls) = &self.tls {
            builder = builder.tls(TlsMode::Secure);
            if let Some(certificates) = tls.tls_certificates() {
                builder = builder.certs(certificates);
            }
        }
        let client = builder.build()?;
        let connecting = client.get_async_connection();
        let connected =
            timeout(CONNECT_TIMEOUT * 2, Box::pin(connecting)).await.map_err(timeout_error)??;
        *self.key_routed.write().unwrap_or_else(PoisonError::into_inner) = Some(connected);
        Ok(())
    }

    /// Looks up the masters: asks the node that answered last time and, if that node fails, all
    /// nodes.
    pub(super) async fn refresh_view(&self) -> RedisResult<Arc<ClusterView>> {
        let known = self.view();
        let first = match &known.reported_by {
            Some(reporter) => timeout(FIRST_NODE_TIMEOUT, self.query_view(reporter))
                .await
                .ok()
                .and_then(Result::ok),
            None => None,
        };
        let view = match first {
            Some(view) => view,
            None => self.query_view_any(&known.nodes).await?,
        };
        self.node_connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|node, _| view.nodes.contains(node) || self.seeds.contains(node));
        let view = Arc::new(view);
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view.clone();
        Ok(view)
    }

    async fn query_view_any(&self, known: &[ClusterNode]) -> RedisResult<ClusterView> {
        let mut nodes: Vec<&ClusterNode> = known.iter().chain(&self.seeds).collect();
        nodes.sort();
        nodes.dedup();
        let queries =
            nodes.into_iter().map(|node| -> TopologyLookup<'_> { Box::pin(self.query_view(node)) });
        Ok(select_ok(queries).await?.0)
    }

    /// Returns the view of one node, if the node reports that its cluster is whole. A node that was
    /// cut off reports that it is not, and its view may be out of date.
    async fn query_view(&self, node: &ClusterNode) -> RedisResult<ClusterView> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        let mut connection = self.node_connection(node).await?;
        let answered = pipeline.query_async(&mut connection).await;
        let (info, slots): (String, Value) = self.evict_on_failure(node, answered)?;
        if !info.contains("cluster_state:ok") {
            return Err(
                io::Error::other(format!("{node} says that the cluster is not whole")).into()
            );
        }
        parse_cluster_slots(node, &slots).ok_or_else(|| {
            io::Error::other(format!("{node} does not tell who has the slots")).into()
        })
    }

    /// Sends a command to `nodes`, and returns their replies. Each of the nodes has to answer.
    pub(super) async fn query_all(
        &self,
        nodes: &[ClusterNode],
        cmd: &Cmd,
    ) -> RedisResult<Vec<Value>> {
        let queries = nodes.iter().map(|node| async {
            let mut connection = self.node_connection(node).await?;
            let answered = cmd.query_async(&mut connection).await;
            self.evict_on_failure(node, answered)
        });
        join_all(queries).await.into_iter().collect()
    }

    /// Loads scripts into each master.
    pub(super) async fn load_scripts(&self, scripts: &[&Script]) -> RedisResult<()> {
        let view = self.view();
        let loading = view.masters.iter().flat_map(|node| {
            scripts.iter().map(move |script| async move {
                let mut connection = self.node_connection(node).await?;
                let loaded = script.load_async(&mut connection).await;
                self.evict_on_failure(node, loaded).map(drop)
            })
        });
        join_all(loading).await.into_iter().collect()
    }

    /// Returns our own connection to one node, which is opened on first use.
    async fn node_connection(&self, node: &ClusterNode) -> RedisResult<MultiplexedConnection> {
        let known =
            self.node_connections.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let no_tls = StoreTls::default();
        let client =
            build_client(self.connection_info(node)?, self.tls.as_ref().unwrap_or(&no_tls))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        // The future is boxed to hide its type: the library's future is nested too deeply for the
        // compiler.
        let connecting: NodeConnectFuture<'_> =
            Box::pin(client.get_multiplexed_async_connection_with_config(&config));
        let connected = connecting.await?;
        let mut single = self.node_connections.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(single.entry(node.clone()).or_insert(connected).clone())
    }

    /// Drops the connection to a node after an error that shows that the connection is lost, so
    /// that the next use connects anew. Returns `answered` unchanged.
    fn evict_on_failure<T>(&self, node: &ClusterNode, answered: RedisResult<T>) -> RedisResult<T> {
        if answered.as_ref().is_err_and(is_master_lost) {
            self.node_connections.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
        }
        answered
    }

    fn connection_info(&self, node: &ClusterNode) -> RedisResult<ConnectionInfo> {
        let (host, port) = (node.host.clone(), node.port);
        let address = match self.tls {
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            None => ConnectionAddr::Tcp(host, port),
        };
        Ok(address.into_connection_info()?.set_redis_settings(self.settings.clone()))
    }
}

impl ClusterView {
    /// Returns the addresses of the masters, for log messages.
    pub(super) fn format_masters(&self) -> String {
        self.masters.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// Parses the reply of the node `reporter` to CLUSTER SLOTS; `None` if a slot has no master.
fn parse_cluster_slots(reporter: &ClusterNode, slots: &Value) -> Option<ClusterView> {
    let (mut masters, mut nodes, mut covered) = (Vec::new(), Vec::new(), 0u64);
    let Value::Array(ranges) = slots else { return None };
    for range in ranges {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), owners @ ..] = parts.as_slice() else {
            return None;
        };
        covered += u64::try_from(last - first + 1).ok()?;
        let owners: Vec<ClusterNode> =
            owners.iter().filter_map(|owner| parse_node(reporter, owner)).collect();
        masters.push(owners.first()?.clone());
        nodes.extend(owners);
    }
    for list in [&mut masters, &mut nodes] {
        list.sort();
        list.dedup();
    }
    (covered == SLOT_COUNT).then(|| ClusterView {
        masters,
        nodes,
        reported_by: Some(reporter.clone()),
    })
}

/// Parses a node of a slot range. If the node does not know its own host, the host of `reporter` is
/// used.
fn parse_node(reporter: &ClusterNode, owner: &Value) -> Option<ClusterNode> {
    let Value::Array(parts) = owner else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if host.is_empty() => reporter.host.clone(),
        Value::BulkString(host) => {
            String::from_utf8(host.clone()).ok().filter(|host| host != "?")?
        }
        Value::Nil => reporter.host.clone(),
        _ => return None,
    };
    Some(ClusterNode { host, port: u16::try_from(*port).ok()? })
}

fn timeout_error(_: tokio::time::error::Elapsed) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.as_bytes().to_vec());
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    fn range(first: i64, last: i64, owners: Vec<Value>) -> Value {
        let bounds = [Value::Int(first), Value::Int(last)];
        Value::Array(bounds.into_iter().chain(owners).collect())
    }

    #[test]
    fn masters_come_first_and_every_slot_has_one() {
        let reporter = ClusterNode { host: "h".to_owned(), port: 1 };
        let whole = [
            range(0, 99, vec![owner("", 1), owner("b", 2)]),
            range(100, 16_383, vec![owner("c", 3), owner("?", 4)]),
        ];
        let view =
            parse_cluster_slots(&reporter, &Value::Array(whole.to_vec())).expect("it is whole");
        assert_eq!(view.format_masters(), "c:3 h:1");
        assert_eq!(view.nodes.len(), 3);
        assert_eq!(
            parse_cluster_slots(&reporter, &Value::Array(whole[..1].to_vec())),
            None,
            "slots are missing"
        );
        let nobody = [range(0, 16_383, vec![owner("?", 4)])];
        assert_eq!(
            parse_cluster_slots(&reporter, &Value::Array(nobody.to_vec())),
            None,
            "nobody knows where it is"
        );
    }
}
