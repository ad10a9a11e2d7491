//! One multiplexed connection that mends itself: to a server, a Sentinel's master, or a cluster.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::RedisResult;
use redis::aio::{
    ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection,
};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, Pipeline};
use redis::{ErrorKind, RedisError, Script, ScriptInvocation, ServerErrorKind, TlsMode, Value};
use tokio::sync::Mutex;

use super::super::SCHEMES;
use super::ANSWER_WAIT;
use crate::ledger::Unavailable;

const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// So many operations may wait for the connection; then callers wait before they are sent.
const WAITING_MAX: usize = 4_096;
/// A broken connection is tried again after so long, in ms, doubling up to the most.
const RETRY_MS_MIN: u64 = 20;
const RETRY_MS_MAX: u64 = 250;
/// A server that does not let us in is asked again after so long.
const LOCKED_OUT_WAIT: Duration = Duration::from_millis(500);
/// A server whose machine says nothing to what was sent is gone after so long.
const UNHEARD_MAX: Duration = Duration::from_secs(5);

type Asking<'a> = Pin<Box<dyn Future<Output = RedisResult<MultiplexedConnection>> + Send + 'a>>;

/// See the module.
pub(super) enum Connection {
    Server(Box<Server>),
    Cluster(ClusterConnection),
    Sentinel(Arc<Mutex<Watched>>),
}

/// One server.
pub(super) struct Server {
    client: Client,
    config: ConnectionManagerConfig,
    /// What mends the connection, and since when it does.
    manager: RwLock<(ConnectionManager, Instant)>,
}

/// A Sentinel's master: asked for once, and again when the connection to it breaks.
pub(super) struct Watched {
    sentinel: SentinelClient,
    config: AsyncConnectionConfig,
    master: Option<MultiplexedConnection>,
    /// Since when it was asked without a word from it. Whoever asked may have stopped waiting.
    silent: Option<Instant>,
}

impl Connection {
    pub(super) async fn open(url: &str) -> Result<Connection, Unavailable> {
        let cannot = |why: redis::RedisError| Unavailable(format!("{}: {why}", shown(url)));
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let tls = scheme.starts_with("rediss");
        let plain = if tls { "rediss" } else { "redis" };
        match scheme {
            "redis" | "rediss" => {
                let config = ConnectionManagerConfig::new()
                    .set_connection_timeout(Some(CONNECT_WAIT))
                    .set_response_timeout(Some(ANSWER_WAIT))
                    .set_min_delay(Duration::from_millis(RETRY_MS_MIN))
                    .set_max_delay(Duration::from_millis(RETRY_MS_MAX))
                    .set_pipeline_buffer_size(WAITING_MAX);
                let info = url.into_connection_info().map_err(cannot)?.set_tcp_settings(tcp());
                let client = Client::open(info).map_err(cannot)?;
                let server = Server::open(client, config).await.map_err(cannot)?;
                Ok(Connection::Server(Box::new(server)))
            }
            "redis-cluster" | "rediss-cluster" => {
                let nodes = rest.split(',').map(|host| format!("{plain}://{host}"));
                let client = ClusterClientBuilder::new(nodes)
                    .connection_timeout(CONNECT_WAIT)
                    .response_timeout(ANSWER_WAIT)
                    .tcp_settings(tcp())
                    .build()
                    .map_err(cannot)?;
                Ok(Connection::Cluster(client.get_async_connection().await.map_err(cannot)?))
            }
            "redis-sentinel" | "rediss-sentinel" => {
                let (hosts, master) = rest.split_once('/').ok_or_else(|| {
                    Unavailable(format!("{}: name the master, …/NAME", shown(url)))
                })?;
                // A user and password are the master's.
                let (user, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(u, h)| (u, h));
                let nodes = hosts.split(',').map(|host| format!("{plain}://{host}")).collect();
                let kind = SentinelServerType::Master;
                let info = node_info(user, tls).map_err(cannot)?;
                let client = SentinelClient::build(nodes, master, Some(info), kind);
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT_WAIT))
                    .set_response_timeout(Some(ANSWER_WAIT));
                let sentinel = client.map_err(cannot)?;
                let sentinel = Watched { sentinel, config, master: None, silent: None };
                let connection = Connection::Sentinel(Arc::new(Mutex::new(sentinel)));
                connection.query_raw::<Value>(&redis::cmd("PING")).await.map_err(cannot)?;
                Ok(connection)
            }
            _ => Err(Unavailable(format!("{}: known are {}", shown(url), SCHEMES.join(" ")))),
        }
    }

    pub(super) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, Unavailable> {
        Ok(self.query_raw(cmd).await?)
    }

    pub(super) async fn query_raw<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        let answered = cmd.query_async(&mut self.shared().await?).await;
        self.mind(answered).await
    }

    /// Asks every node: all of a cluster, else the one there is.
    pub(super) async fn query_nodes(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        self.query_all(cmd, MultipleNodeRoutingInfo::AllNodes).await
    }

    /// Asks every master: all of a cluster, else the one there is.
    pub(super) async fn query_masters(&self, cmd: &Cmd) -> RedisResult<Vec<Value>> {
        self.query_all(cmd, MultipleNodeRoutingInfo::AllMasters).await
    }

    async fn query_all(
        &self,
        cmd: &Cmd,
        nodes: MultipleNodeRoutingInfo,
    ) -> RedisResult<Vec<Value>> {
        let Connection::Cluster(cluster) = self else {
            return Ok(vec![self.query_raw(cmd).await?]);
        };
        let everywhere = RoutingInfo::MultiNode((nodes, None));
        let answers = cluster.clone().route_command(cmd.clone(), everywhere).await?;
        Ok(match answers {
            Value::Map(by_node) => by_node.into_iter().map(|(_, answer)| answer).collect(),
            other => vec![other],
        })
    }

    pub(super) async fn pipe<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T, Unavailable> {
        let answered = pipe.query_async(&mut self.shared().await?).await;
        Ok(self.mind(answered).await?)
    }

    /// Asks many things, in the time of one. A cluster's keys may be anywhere, so there each goes
    /// its own way.
    pub(super) async fn query_each<T: FromRedisValue>(
        &self,
        commands: Vec<Cmd>,
    ) -> Result<Vec<T>, Unavailable> {
        if let Connection::Cluster(_) = self {
            let asking = join_all(commands.iter().map(|command| self.query(command))).await;
            return asking.into_iter().collect();
        }
        // The library sends nothing then, and takes that for an error.
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipe.add_command(command);
        }
        self.pipe(&pipe).await
    }

    /// Gives the server scripts, so that their first uses do not have to: all of them at once, in
    /// the time of one.
    pub(super) async fn load(&self, scripts: &[&Script]) -> Result<(), Unavailable> {
        let loading = scripts.iter().map(|script| async {
            let loaded = script.load_async(&mut self.shared().await?).await;
            self.mind(loaded).await.map(drop)
        });
        join_all(loading).await.into_iter().try_for_each(|loaded| loaded.map_err(Into::into))
    }

    /// Runs a script, loading it first where the server does not have it.
    pub(super) async fn run(&self, call: &ScriptInvocation<'_>) -> Result<Value, Unavailable> {
        let answered = call.invoke_async(&mut self.shared().await?).await;
        Ok(self.mind(answered).await?)
    }

    /// A handle on the connection; all handles share it.
    async fn shared(&self) -> RedisResult<Handle> {
        Ok(match self {
            Connection::Server(server) => Handle(Box::new(server.manager().0.clone())),
            Connection::Cluster(cluster) => Handle(Box::new(cluster.clone())),
            Connection::Sentinel(watched) => Handle(Box::new(master(watched).await?)),
        })
    }

    /// After a failure Sentinel is asked anew who the master is; the others mend themselves, but
    /// for a server that does not let us in.
    async fn mind<T>(&self, answered: RedisResult<T>) -> RedisResult<T> {
        if let Connection::Server(server) = self
            && answered.as_ref().is_err_and(is_locked_out)
        {
            server.begin_again();
        }
        if let Connection::Sentinel(watched) = self {
            let mut watched = watched.lock().await;
            watched.silent = None;
            if answered.as_ref().is_err_and(lost_master) {
                watched.master = None;
            }
        }
        answered
    }

    /// The master that is known is none any more.
    pub(super) async fn lost_master(&self) {
        if let Connection::Sentinel(watched) = self {
            watched.lock().await.master = None;
        }
    }
}

/// The connection to the master. Looking for it goes on even if whoever asked stops waiting: a
/// Sentinel that is dark takes longer than any of them waits.
async fn master(watched: &Arc<Mutex<Watched>>) -> RedisResult<MultiplexedConnection> {
    if let Some(master) = watched.lock().await.known() {
        return Ok(master);
    }
    let own = watched.clone();
    let looking = tokio::spawn(async move { own.lock().await.master().await });
    looking.await.unwrap_or_else(|why| Err(io::Error::other(why).into()))
}

impl Server {
    async fn open(client: Client, config: ConnectionManagerConfig) -> RedisResult<Server> {
        let manager = client.get_connection_manager_with_config(config.clone()).await?;
        let manager = RwLock::new((manager, Instant::now()));
        Ok(Server { client, config, manager })
    }

    fn manager(&self) -> RwLockReadGuard<'_, (ConnectionManager, Instant)> {
        self.manager.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library's manager tries again only after errors of the network: one that was locked out
    /// stays out though the password is right again. So another one takes its place.
    fn begin_again(&self) {
        if self.manager().1.elapsed() < LOCKED_OUT_WAIT {
            return;
        }
        let lazy =
            ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone());
        if let Ok(manager) = lazy {
            let known = self.manager.write();
            *known.unwrap_or_else(PoisonError::into_inner) = (manager, Instant::now());
        }
    }
}

impl Watched {
    /// The master, unless it has been silent for too long.
    fn known(&mut self) -> Option<MultiplexedConnection> {
        if self.silent.is_some_and(|since| since.elapsed() > ANSWER_WAIT) {
            (self.master, self.silent) = (None, None);
        }
        let master = self.master.clone()?;
        self.silent.get_or_insert_with(Instant::now);
        Some(master)
    }

    async fn master(&mut self) -> RedisResult<MultiplexedConnection> {
        if let Some(master) = self.known() {
            return Ok(master);
        }
        // Without its type: the library's future is too deep for the compiler.
        let asking: Asking<'_> =
            Box::pin(self.sentinel.get_async_connection_with_config(&self.config));
        Ok(self.master.insert(asking.await?).clone())
    }
}

/// Small writes go out at once, and a machine that is gone is noticed.
fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_user_timeout(UNHEARD_MAX)
}

/// Whether an error says that the server does not let us in.
fn is_locked_out(why: &RedisError) -> bool {
    let code = why.code().unwrap_or_default();
    why.kind() == ErrorKind::AuthenticationFailed || ["NOAUTH", "WRONGPASS"].contains(&code)
}

/// Whether an error says that the connection is gone, or that its end is no master any more.
fn lost_master(why: &RedisError) -> bool {
    let read_only = ErrorKind::Server(ServerErrorKind::ReadOnly);
    why.is_io_error() || why.is_connection_dropped() || why.is_timeout() || why.kind() == read_only
}

/// How to speak to the master that Sentinel names.
fn node_info(user: &str, tls: bool) -> RedisResult<SentinelNodeConnectionInfo> {
    let info = SentinelNodeConnectionInfo::default();
    let info = info.set_tcp_settings(tcp());
    let info = if tls { info.set_tls_mode(TlsMode::Secure) } else { info };
    if user.is_empty() {
        return Ok(info);
    }
    let settings = format!("redis://{user}@sentinel").into_connection_info()?;
    Ok(info.set_redis_connection_info(settings.redis_settings().clone()))
}

/// Any of the connections, as the library wants to see one.
struct Handle(Box<dyn ConnectionLike + Send>);

impl ConnectionLike for Handle {
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

/// An address without what may be a password.
fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}
