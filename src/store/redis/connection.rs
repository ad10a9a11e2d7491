//! One multiplexed connection that mends itself: to a server, a Sentinel's master, or a cluster.

use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelServerType};
use redis::{Client, Cmd, FromRedisValue, Pipeline, RedisResult, ScriptInvocation, Value};
use tokio::sync::Mutex;

use super::super::SCHEMES;
use crate::ledger::Unavailable;

const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// A broken connection is tried again after so long, in ms, doubling up to the most.
const RETRY_MS_MIN: u64 = 20;
const RETRY_MS_MAX: u64 = 1_000;

/// See the module.
pub(super) enum Connection {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
    Sentinel(Box<Mutex<SentinelClient>>),
}

impl Connection {
    pub(super) async fn open(url: &str, answer_wait: Duration) -> Result<Connection, Unavailable> {
        let cannot = |why: redis::RedisError| Unavailable(format!("{}: {why}", shown(url)));
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let tls = scheme.starts_with("rediss");
        let plain = if tls { "rediss" } else { "redis" };
        match scheme {
            "redis" | "rediss" => {
                let config = ConnectionManagerConfig::new()
                    .set_connection_timeout(Some(CONNECT_WAIT))
                    .set_response_timeout(Some(answer_wait))
                    .set_min_delay(Duration::from_millis(RETRY_MS_MIN))
                    .set_max_delay(Duration::from_millis(RETRY_MS_MAX));
                let client = Client::open(url).map_err(cannot)?;
                let manager = client.get_connection_manager_with_config(config).await;
                Ok(Connection::Server(manager.map_err(cannot)?))
            }
            "redis-cluster" | "rediss-cluster" => {
                let nodes = rest.split(',').map(|host| format!("{plain}://{host}"));
                let client = ClusterClientBuilder::new(nodes)
                    .connection_timeout(CONNECT_WAIT)
                    .response_timeout(answer_wait)
                    .build()
                    .map_err(cannot)?;
                Ok(Connection::Cluster(client.get_async_connection().await.map_err(cannot)?))
            }
            "redis-sentinel" | "rediss-sentinel" => {
                let (hosts, master) = rest.split_once('/').ok_or_else(|| {
                    Unavailable(format!("{}: name the master, …/NAME", shown(url)))
                })?;
                let nodes = hosts.split(',').map(|host| format!("{plain}://{host}")).collect();
                let kind = SentinelServerType::Master;
                let client = SentinelClient::build(nodes, master.to_owned(), None, kind);
                let client = Connection::Sentinel(Box::new(Mutex::new(client.map_err(cannot)?)));
                client.query_raw::<Value>(&redis::cmd("PING")).await.map_err(cannot)?;
                Ok(client)
            }
            _ => Err(Unavailable(format!("{}: known are {}", shown(url), SCHEMES.join(" ")))),
        }
    }

    pub(super) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, Unavailable> {
        Ok(self.query_raw(cmd).await?)
    }

    pub(super) async fn query_raw<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        cmd.query_async(&mut self.shared().await?).await
    }

    pub(super) async fn pipe<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T, Unavailable> {
        Ok(pipe.query_async(&mut self.shared().await?).await?)
    }

    /// Runs a script, loading it first where the server does not have it.
    pub(super) async fn run(&self, call: &ScriptInvocation<'_>) -> Result<Value, Unavailable> {
        Ok(call.invoke_async(&mut self.shared().await?).await?)
    }

    /// A handle on the connection; all handles share it.
    async fn shared(&self) -> RedisResult<Handle> {
        Ok(match self {
            Connection::Server(manager) => Handle(Box::new(manager.clone())),
            Connection::Cluster(cluster) => Handle(Box::new(cluster.clone())),
            Connection::Sentinel(client) => {
                Handle(Box::new(client.lock().await.get_async_connection().await?))
            }
        })
    }
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
