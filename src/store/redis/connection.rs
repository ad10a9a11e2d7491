//! One multiplexed connection that reconnects by itself: to a single server, to the master that
//! Sentinels name, or to a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult};
use redis::{Script, ScriptInvocation, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::super::section::{StoreSection, URL_SCHEMES};
use super::super::tls::StoreTls;
use super::client::is_master_lost;
use super::cluster::ClusterLinks;
use super::sentinel::SentinelMaster;
use super::server::SingleServer;
use super::topology::Topology;
use crate::ledger::Unavailable;

/// A connection that is not open after this time fails: the store's machine may accept connections
/// and then never send anything.
const OPEN_TIMEOUT: Duration = Duration::from_millis(4_500);

/// A multiplexed connection that reconnects by itself.
pub(super) struct RedisConnection {
    kind: ConnectionKind,
    topology: Arc<Topology>,
    /// The version of the topology for which the connection was made.
    topology_version: AtomicU64,
    reconnecting: Mutex<()>,
}

enum ConnectionKind {
    Server(Box<SingleServer>),
    Cluster(Box<ClusterLinks>),
    Sentinel(Arc<SentinelMaster>),
}

impl RedisConnection {
    /// Connects to the store that the section's address names.
    ///
    /// # Errors
    /// [`Unavailable`] with the reason and the address, whose password is redacted.
    pub(super) async fn open(
        section: &StoreSection,
        topology: Arc<Topology>,
    ) -> Result<RedisConnection, Unavailable> {
        let url = &section.url;
        let to_unavailable = |why: RedisError| Unavailable(format!("{}: {why}", redact_url(url)));
        let topology_version = AtomicU64::new(topology.version());
        let silent =
            || Unavailable(format!("{}: no answer within {OPEN_TIMEOUT:?}", redact_url(url)));
        let opening = open_kind(url, &section.tls, &topology);
        let kind = timeout(OPEN_TIMEOUT, opening).await.map_err(|_| silent())?;
        let kind = kind.map_err(to_unavailable)?.ok_or_else(|| {
            Unavailable(format!("{}: known are {}", redact_url(url), URL_SCHEMES.join(" ")))
        })?;
        Ok(RedisConnection { kind, topology, topology_version, reconnecting: Mutex::default() })
    }

    pub(super) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, Unavailable> {
        Ok(self.query_raw(cmd).await?)
    }

    pub(super) async fn query_raw<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        let answered = cmd.query_async(&mut self.handle().await?).await;
        self.note_failure(answered).await
    }

    /// Sends a command to all nodes of a cluster, or to the only server, and returns their replies.
    pub(super) async fn query_nodes(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        match &self.kind {
            ConnectionKind::Cluster(cluster) => cluster.query_all(&cluster.view().nodes, cmd).await,
            _ => Ok(vec![self.query_raw(cmd).await?]),
        }
    }

    /// Sends a command to all masters of a cluster, or to the only master, and returns their
    /// replies.
    pub(super) async fn query_masters(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        match &self.kind {
            ConnectionKind::Cluster(cluster) => {
                cluster.query_all(&cluster.view().masters, cmd).await
            }
            _ => Ok(vec![self.query_raw(cmd).await?]),
        }
    }

    /// Whether keys are spread over several servers.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, ConnectionKind::Cluster(_))
    }

    /// Looks up the current masters. If they have changed, this connection is made again at once,
    /// and all other connections of this process when they are used next.
    pub(super) async fn refresh_masters(&self) -> Result<(), Unavailable> {
        let cluster = match &self.kind {
            ConnectionKind::Cluster(cluster) => cluster,
            ConnectionKind::Sentinel(sentinel_master) => {
                if let Some(master) = sentinel_master.changed_master().await {
                    log::warn!(
                        event = "store_master_changed", master:%;
                        "store master changed (Sentinel)"
                    );
                    self.topology.replace_nodes(Vec::new());
                    self.reconnect().await;
                }
                return Ok(());
            }
            ConnectionKind::Server(_) => return Ok(()),
        };
        let known = cluster.view();
        let view = cluster.refresh_view().await?;
        if view.masters != known.masters {
            log::warn!(
                event = "store_master_changed", masters:% = view.format_masters();
                "store masters changed (cluster)"
            );
            self.topology.replace_nodes(view.nodes.clone());
            // The next command would reconnect anyway, but this connection has to reach the right
            // masters first.
            self.reconnect().await;
        } else if view.nodes != known.nodes {
            self.topology.set_nodes(view.nodes.clone());
        }
        Ok(())
    }

    pub(super) async fn query_pipeline<T: FromRedisValue>(
        &self,
        pipe: &Pipeline,
    ) -> Result<T, Unavailable> {
        let answered = pipe.query_async(&mut self.handle().await?).await;
        Ok(self.note_failure(answered).await?)
    }

    /// Sends several commands in about the time of one. In a cluster their keys may be on any node,
    /// so there each command is sent separately.
    pub(super) async fn query_each<T: FromRedisValue>(
        &self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<T>, Unavailable> {
        if self.is_cluster() {
            let replies = join_all(commands.iter().map(|command| self.query(command))).await;
            return replies.into_iter().collect();
        }
        // The library sends nothing for an empty pipeline, and reports that as an error.
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipe.add_command(command);
        }
        self.query_pipeline(&pipe).await
    }

    /// Loads scripts into the server, so that their first uses do not have to. Those that it has
    /// are passed over: all of them are some megabytes. The others are loaded at once, in about
    /// the time of one. In a cluster every master gets them.
    pub(super) async fn load_scripts(&self, scripts: &[&Script]) -> Result<(), Unavailable> {
        if let ConnectionKind::Cluster(cluster) = &self.kind {
            return Ok(cluster.load_scripts(scripts).await?);
        }
        let mut ask = redis::cmd("SCRIPT");
        let hashes: Vec<&str> = scripts.iter().map(|script| script.get_hash()).collect();
        ask.arg("EXISTS").arg(hashes);
        let known: Vec<bool> = self.query(&ask).await?;
        let missing = scripts.iter().zip(known).filter(|(_, is_known)| !is_known);
        let loading = missing.map(|(script, _)| async {
            let loaded = script.load_async(&mut self.handle().await?).await;
            self.note_failure(loaded).await.map(drop)
        });
        join_all(loading).await.into_iter().try_for_each(|loaded| loaded.map_err(Into::into))
    }

    /// Runs a script, and loads it first if the server does not have it.
    pub(super) async fn invoke_script(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<Value, Unavailable> {
        let answered = call.invoke_async(&mut self.handle().await?).await;
        Ok(self.note_failure(answered).await?)
    }

    /// Returns a handle on the connection, and reconnects first if necessary. All handles share the
    /// connection.
    async fn handle(&self) -> RedisResult<ConnectionHandle> {
        if self.needs_reconnect() {
            self.reconnect().await;
        }
        Ok(match &self.kind {
            ConnectionKind::Server(server) => ConnectionHandle(Box::new(server.handle())),
            ConnectionKind::Cluster(cluster) => ConnectionHandle(Box::new(cluster.handle()?)),
            ConnectionKind::Sentinel(sentinel_master) => ConnectionHandle(Box::new(
                super::sentinel::master_connection(sentinel_master).await?,
            )),
        })
    }

    /// Whether the connection was made for another version of the topology or, in a cluster, is in
    /// doubt or gives no answers.
    fn needs_reconnect(&self) -> bool {
        self.topology_version.load(Ordering::Relaxed) != self.topology.version()
            || matches!(&self.kind, ConnectionKind::Cluster(cluster) if cluster.needs_reconnect())
    }

    /// Makes the connection again, for the current topology. Other callers wait until this has
    /// ended.
    async fn reconnect(&self) {
        let _turn = self.reconnecting.lock().await;
        let (version, nodes) = self.topology.snapshot();
        if !self.needs_reconnect() {
            return;
        }
        match &self.kind {
            ConnectionKind::Server(server) => server.reconnect(),
            ConnectionKind::Cluster(cluster) => cluster.reconnect(&nodes).await,
            ConnectionKind::Sentinel(sentinel_master) => sentinel_master.forget_master().await,
        }
        self.topology_version.store(version, Ordering::Relaxed);
    }

    /// Reacts to a failure. With Sentinel the master is looked up again; the others reconnect by
    /// themselves, except after an authentication failure or a timeout.
    async fn note_failure<T>(&self, answered: RedisResult<T>) -> RedisResult<T> {
        match &self.kind {
            ConnectionKind::Server(server) => {
                if answered.as_ref().is_err_and(|why| is_auth_failure(why) || why.is_timeout()) {
                    server.reconnect_throttled();
                }
            }
            ConnectionKind::Sentinel(sentinel_master) => {
                sentinel_master.record_response(answered.as_ref().is_err_and(is_master_lost)).await;
            }
            ConnectionKind::Cluster(cluster) => cluster.record_response(answered.as_ref().err()),
        }
        answered
    }

    /// Forgets the known master behind Sentinels, or marks the known masters of a cluster as
    /// doubtful, because the server that was taken for a master is none any more.
    pub(super) async fn invalidate_master(&self) {
        match &self.kind {
            ConnectionKind::Sentinel(sentinel_master) => sentinel_master.forget_master().await,
            ConnectionKind::Cluster(cluster) => cluster.invalidate_view(),
            ConnectionKind::Server(_) => {}
        }
    }
}

/// Connects to the store that an address names; `None` if the scheme of the address is unknown.
async fn open_kind(
    url: &str,
    tls: &StoreTls,
    topology: &Arc<Topology>,
) -> RedisResult<Option<ConnectionKind>> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let is_tls = scheme.starts_with("rediss");
    Ok(Some(match scheme {
        "redis" | "rediss" => ConnectionKind::Server(Box::new(SingleServer::open(url, tls).await?)),
        "redis-cluster" | "rediss-cluster" => {
            ConnectionKind::Cluster(Box::new(ClusterLinks::open(rest, is_tls, tls).await?))
        }
        "redis-sentinel" | "rediss-sentinel" => {
            let sentinel_master =
                Arc::new(SentinelMaster::from_address(rest, is_tls, tls, topology)?);
            super::sentinel::master_connection(&sentinel_master).await?;
            ConnectionKind::Sentinel(sentinel_master)
        }
        _ => return Ok(None),
    }))
}

/// Whether an error means that the server refused our login.
fn is_auth_failure(why: &RedisError) -> bool {
    let code = why.code().unwrap_or_default();
    why.kind() == ErrorKind::AuthenticationFailed || ["NOAUTH", "WRONGPASS"].contains(&code)
}

/// A handle on a connection of any kind, as the library expects it.
struct ConnectionHandle(Box<dyn ConnectionLike + Send>);

impl ConnectionLike for ConnectionHandle {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(cmd, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// Returns an address without its user and password.
fn redact_url(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}
