//! The connection to the master that Sentinels name.
//!
//! A master that was replaced as planned goes on answering, and takes what it is told for itself
//! until a Sentinel makes it a replica, many seconds later. So the Sentinels are asked again and
//! again, all of them, and the one counts that knows of the latest failover.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo};
use redis::{RedisConnectionInfo, RedisResult, Role};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::super::StoreTls;
use super::ANSWER_WAIT;
use super::connection::{CONNECT_WAIT, client};
use super::topology::Node;

/// Where Sentinels listen, unless the address says otherwise.
const PORT: u16 = 26_379;
/// Sentinels that do not lead to a master within this are asked again, by whoever needs it.
const SEARCH_WAIT: Duration = Duration::from_millis(4_500);
/// Sentinels that are dark are not waited for longer,
const DARK_WAIT: Duration = Duration::from_millis(1_000);
/// and no Sentinel once most have answered.
const REST_WAIT: Duration = Duration::from_millis(50);
/// A master that is there does not wait for them longer.
const LOOK_WAIT: Duration = Duration::from_millis(200);

/// A master, and the Sentinels that watch it.
pub(super) struct Watched {
    /// What the Sentinels call it.
    name: String,
    sentinels: Vec<Sentinel>,
    /// How it lets us in.
    settings: RedisConnectionInfo,
    is_tls: bool,
    tls: StoreTls,
    known: Mutex<Known>,
}

/// The master that was found last.
#[derive(Default)]
struct Known {
    master: Option<(Node, MultiplexedConnection)>,
    /// Since when it was asked without a word from it. Whoever asked may have stopped waiting.
    silent: Option<Instant>,
}

/// One of the Sentinels, and the connection to it once there is one.
struct Sentinel {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// What a Sentinel says.
struct Told {
    /// The number of the failover that it knows of.
    epoch: u64,
    master: Node,
}

impl Watched {
    /// Of an address without its scheme. A user and password are the master's.
    pub(super) fn of(rest: &str, is_tls: bool, tls: &StoreTls) -> RedisResult<Watched> {
        let (hosts, name) =
            rest.split_once('/').ok_or_else(|| io::Error::other("name the master, …/NAME"))?;
        let (user, hosts) = hosts.rsplit_once('@').unwrap_or(("", hosts));
        let sentinel = |host| {
            let client = client(address(host, is_tls)?.into_connection_info()?, tls)?;
            Ok(Sentinel { client, connection: Mutex::default() })
        };
        let sentinels = hosts.split(',').map(sentinel).collect::<RedisResult<Vec<_>>>()?;
        let settings = if user.is_empty() {
            RedisConnectionInfo::default()
        } else {
            let info = format!("redis://{user}@master").into_connection_info()?;
            info.redis_settings().clone()
        };
        let (name, tls, known) = (name.to_owned(), tls.clone(), Mutex::default());
        Ok(Watched { name, sentinels, settings, is_tls, tls, known })
    }

    /// The master said something, or is lost.
    pub(super) async fn heard(&self, is_lost: bool) {
        let mut known = self.known.lock().await;
        known.silent = None;
        if is_lost {
            known.master = None;
        }
    }

    /// Sentinel is asked anew who the master is.
    pub(super) async fn forget(&self) {
        *self.known.lock().await = Known::default();
    }

    /// Another master than the one that is connected, if the Sentinels name one.
    pub(super) async fn other(&self) -> Option<Node> {
        let known = self.known.lock().await.master.as_ref().map(|(node, _)| node.clone())?;
        // Without Sentinels the master stays who it was.
        let named = timeout(LOOK_WAIT, self.named()).await.ok()?.ok()?;
        (named != known).then_some(named)
    }

    /// Whom the Sentinels name.
    async fn named(&self) -> RedisResult<Node> {
        let ask = |sentinel| timeout(DARK_WAIT, Sentinel::ask(sentinel, &self.name));
        let mut asking: FuturesUnordered<_> = self.sentinels.iter().map(ask).collect();
        let (mut told, mut failure) = (Vec::new(), None);
        loop {
            let has_most = told.len() * 2 > self.sentinels.len();
            let wait = if has_most { REST_WAIT } else { DARK_WAIT };
            match timeout(wait, asking.next()).await {
                Ok(Some(Ok(Ok(more)))) => told.push(more),
                Ok(Some(Ok(Err(why)))) => failure = Some(why),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let latest = told.into_iter().max_by_key(|told| told.epoch);
        let none = || failure.unwrap_or_else(|| io::Error::other("no Sentinel answers").into());
        latest.map(|told| told.master).ok_or_else(none)
    }

    async fn connect(&self) -> RedisResult<(Node, MultiplexedConnection)> {
        let node = self.named().await?;
        let (host, port) = (node.host.clone(), node.port);
        let address = if self.is_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?.set_redis_settings(self.settings.clone());
        let client = client(info, &self.tls)?;
        let mut master = client.get_multiplexed_async_connection_with_config(&config()).await?;
        // A user may not be allowed to ask.
        let role: RedisResult<Role> = redis::cmd("ROLE").query_async(&mut master).await;
        if matches!(role, Ok(Role::Replica { .. })) {
            return Err(io::Error::other(format!("{node} is no master yet")).into());
        }
        Ok((node, master))
    }
}

/// The connection to the master. Looking for it goes on even if whoever asked stops waiting: a
/// Sentinel that is dark takes longer than any of them waits.
pub(super) async fn master(watched: &Arc<Watched>) -> RedisResult<MultiplexedConnection> {
    if let Some(master) = watched.known.lock().await.master() {
        return Ok(master);
    }
    let own = watched.clone();
    let looking = tokio::spawn(async move {
        let mut known = own.known.lock().await;
        // Somebody else may have found it meanwhile.
        if let Some(master) = known.master() {
            return Ok(master);
        }
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no Sentinel leads to a master");
        let found = timeout(SEARCH_WAIT, own.connect()).await.map_err(late)??;
        Ok(known.master.insert(found).1.clone())
    });
    looking.await.unwrap_or_else(|why| Err(io::Error::other(why).into()))
}

impl Known {
    /// The master, unless it has been silent for too long.
    fn master(&mut self) -> Option<MultiplexedConnection> {
        if self.silent.is_some_and(|since| since.elapsed() > ANSWER_WAIT) {
            *self = Known::default();
        }
        let (_, master) = self.master.clone()?;
        self.silent.get_or_insert_with(Instant::now);
        Some(master)
    }
}

impl Sentinel {
    async fn ask(&self, name: &str) -> RedisResult<Told> {
        // One that fails is not used again.
        let mut known = self.connection.lock().await;
        let mut connection = match known.take() {
            Some(connection) => connection,
            None => self.client.get_multiplexed_async_connection_with_config(&config()).await?,
        };
        let mut asked = redis::pipe();
        // The first names a new master as soon as there is one, the second tells the epoch.
        asked.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        asked.cmd("SENTINEL").arg("MASTER").arg(name);
        let ((host, port), about): ((String, u16), HashMap<String, String>) =
            asked.query_async(&mut connection).await?;
        *known = Some(connection);
        let epoch = about.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(Told { epoch: epoch.unwrap_or(0), master: Node { host, port } })
    }
}

fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WAIT))
        .set_response_timeout(Some(ANSWER_WAIT))
}

fn address(host: &str, is_tls: bool) -> RedisResult<ConnectionAddr> {
    let scheme = if is_tls { "rediss" } else { "redis" };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let with_port = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
    Ok(format!("{scheme}://{with_port}").into_connection_info()?.addr().clone())
}
