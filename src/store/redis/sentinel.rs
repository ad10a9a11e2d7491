//! The connection to the master that Sentinels name.
//!
//! After a planned failover the old master still answers, and accepts writes that no other server
//! gets, until a Sentinel makes it a replica many seconds later. So all Sentinels are asked again
//! and again, and the report with the latest failover counts.

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

use super::super::tls::StoreTls;
use super::client::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT, build_client};
use super::topology::{ClusterNode, Topology};

/// The port of a Sentinel, unless the address names another one.
const SENTINEL_PORT: u16 = 26_379;
/// The search for the master fails after this time. The next caller that needs the master starts
/// another search.
const MASTER_SEARCH_TIMEOUT: Duration = Duration::from_millis(4_500);
/// Time limit for the answer of one Sentinel.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(1_000);
/// Time limit for each further answer, once a majority of the Sentinels has answered.
const MAJORITY_GRACE: Duration = Duration::from_millis(50);
/// After a failover is seen, reports with an older epoch are ignored for this time; after it the
/// Sentinels agree.
const STALE_EPOCH_WINDOW: Duration = Duration::from_secs(5);

/// A master, and the Sentinels that watch it.
pub(super) struct SentinelMaster {
    /// The name of the master in the Sentinels' settings.
    name: Arc<str>,
    sentinels: Vec<Arc<SentinelNode>>,
    /// The user and the password for the master.
    settings: RedisConnectionInfo,
    is_tls: bool,
    tls: StoreTls,
    /// The topology, shared by all connections of the process.
    topology: Arc<Topology>,
    known: Mutex<KnownMaster>,
}

/// The master that was found last.
#[derive(Default)]
struct KnownMaster {
    master: Option<(ClusterNode, MultiplexedConnection)>,
    /// Since when commands are sent to the master without any answer. Their callers may have
    /// stopped waiting.
    unanswered_since: Option<Instant>,
}

/// One of the Sentinels, and the connection to it, if it is open.
struct SentinelNode {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// The reply of a Sentinel about the master.
#[derive(Debug)]
struct SentinelReport {
    /// The number of the latest failover that the Sentinel knows of.
    epoch: u64,
    master: ClusterNode,
}

impl SentinelMaster {
    /// Reads an address without its scheme. The user and the password in it are for the master.
    pub(super) fn from_address(
        rest: &str,
        is_tls: bool,
        tls: &StoreTls,
        topology: &Arc<Topology>,
    ) -> RedisResult<SentinelMaster> {
        let (hosts, name) =
            rest.split_once('/').ok_or_else(|| io::Error::other("name the master, …/NAME"))?;
        let (user, hosts) = hosts.rsplit_once('@').unwrap_or(("", hosts));
        let sentinel = |host| {
            let client =
                build_client(sentinel_address(host, is_tls)?.into_connection_info()?, tls)?;
            Ok(Arc::new(SentinelNode { client, connection: Mutex::default() }))
        };
        let sentinels = hosts.split(',').map(sentinel).collect::<RedisResult<Vec<_>>>()?;
        let settings = if user.is_empty() {
            RedisConnectionInfo::default()
        } else {
            let info = format!("redis://{user}@master").into_connection_info()?;
            info.redis_settings().clone()
        };
        let (name, tls, known) = (name.into(), tls.clone(), Mutex::default());
        let topology = topology.clone();
        Ok(SentinelMaster { name, sentinels, settings, is_tls, tls, topology, known })
    }

    /// Records that the master answered or, if `is_lost`, that the connection to it is lost.
    pub(super) async fn record_response(&self, is_lost: bool) {
        let mut known = self.known.lock().await;
        known.unanswered_since = None;
        if is_lost {
            known.master = None;
        }
    }

    /// Forgets the master, so that the Sentinels are asked for it again.
    pub(super) async fn forget_master(&self) {
        *self.known.lock().await = KnownMaster::default();
    }

    /// Returns the master that the Sentinels name, if it is not the one that is connected.
    pub(super) async fn changed_master(&self) -> Option<ClusterNode> {
        let known = self.known.lock().await.master.as_ref().map(|(node, _)| node.clone())?;
        // If no Sentinel answers, the connected master is kept.
        let named = self.find_master(Some(&known)).await.ok()?;
        (named != known).then_some(named)
    }

    /// Returns the master that the Sentinels name. If the reports with the latest failover differ,
    /// `known` is preferred.
    async fn find_master(&self, known: Option<&ClusterNode>) -> RedisResult<ClusterNode> {
        // Each Sentinel is asked in a separate task, which waits for a late answer as well: if it
        // were cancelled, the connection to that Sentinel would be lost.
        let ask = |sentinel: &Arc<SentinelNode>| {
            let (sentinel, name) = (sentinel.clone(), self.name.clone());
            tokio::spawn(
                async move { timeout(SENTINEL_TIMEOUT, sentinel.query_master(&name)).await },
            )
        };
        let mut queries: FuturesUnordered<_> = self.sentinels.iter().map(ask).collect();
        let (mut reports, mut failure) = (Vec::new(), None);
        loop {
            let has_majority = reports.len() * 2 > self.sentinels.len();
            let wait = if has_majority { MAJORITY_GRACE } else { SENTINEL_TIMEOUT };
            match timeout(wait, queries.next()).await {
                Ok(Some(Ok(Ok(Ok(more))))) => reports.push(more),
                Ok(Some(Ok(Ok(Err(why))))) => failure = Some(why),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let none = || failure.unwrap_or_else(|| io::Error::other("no Sentinel answers").into());
        let SentinelReport { epoch, master } = latest_report(reports, known).ok_or_else(none)?;
        if !self.topology.accept_epoch(epoch, STALE_EPOCH_WINDOW) {
            return Err(io::Error::other("the Sentinels know of a later failover").into());
        }
        Ok(master)
    }

    async fn connect_master(&self) -> RedisResult<(ClusterNode, MultiplexedConnection)> {
        let node = self.find_master(None).await?;
        let (host, port) = (node.host.clone(), node.port);
        let address = if self.is_tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?.set_redis_settings(self.settings.clone());
        let client = build_client(info, &self.tls)?;
        let mut master =
            client.get_multiplexed_async_connection_with_config(&connection_config()).await?;
        // The user may not be allowed to run ROLE. Then the master is accepted unchecked.
        let role: RedisResult<Role> = redis::cmd("ROLE").query_async(&mut master).await;
        if matches!(role, Ok(Role::Replica { .. })) {
            return Err(io::Error::other(format!("{node} is no master yet")).into());
        }
        Ok((node, master))
    }
}

/// Returns the connection to the master. If the master has to be searched for, the search goes on
/// even if the caller stops waiting: a Sentinel that does not answer takes longer than any caller
/// waits.
pub(super) async fn master_connection(
    sentinel_master: &Arc<SentinelMaster>,
) -> RedisResult<MultiplexedConnection> {
    if let Some(master) = sentinel_master.known.lock().await.live_connection() {
        return Ok(master);
    }
    let own = sentinel_master.clone();
    let search = tokio::spawn(async move {
        let mut known = own.known.lock().await;
        // Another caller may have found the master in the meantime.
        if let Some(master) = known.live_connection() {
            return Ok(master);
        }
        let timeout_error =
            |_| io::Error::new(io::ErrorKind::TimedOut, "no Sentinel leads to a master");
        let found =
            timeout(MASTER_SEARCH_TIMEOUT, own.connect_master()).await.map_err(timeout_error)??;
        Ok(known.master.insert(found).1.clone())
    });
    search.await.unwrap_or_else(|why| Err(io::Error::other(why).into()))
}

impl KnownMaster {
    /// Returns the connection to the master. Forgets the master if it has not answered for longer
    /// than `RESPONSE_TIMEOUT`.
    fn live_connection(&mut self) -> Option<MultiplexedConnection> {
        if self.unanswered_since.is_some_and(|since| since.elapsed() > RESPONSE_TIMEOUT) {
            *self = KnownMaster::default();
        }
        let (_, master) = self.master.clone()?;
        self.unanswered_since.get_or_insert_with(Instant::now);
        Some(master)
    }
}

impl SentinelNode {
    async fn query_master(&self, name: &str) -> RedisResult<SentinelReport> {
        // An earlier caller still waits for this Sentinel's answer.
        let busy = |_| io::Error::new(io::ErrorKind::WouldBlock, "a Sentinel is silent");
        let mut known = self.connection.try_lock().map_err(busy)?;
        // The connection is put back only after a success, so one that fails is not used again.
        let mut connection = match known.take() {
            Some(connection) => connection,
            None => {
                self.client
                    .get_multiplexed_async_connection_with_config(&connection_config())
                    .await?
            }
        };
        let mut pipeline = redis::pipe();
        // The first command names a new master as soon as there is one, the second returns the
        // epoch.
        pipeline.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        pipeline.cmd("SENTINEL").arg("MASTER").arg(name);
        let ((host, port), about): ((String, u16), HashMap<String, String>) =
            pipeline.query_async(&mut connection).await?;
        *known = Some(connection);
        let epoch = about.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        Ok(SentinelReport { epoch: epoch.unwrap_or(0), master: ClusterNode { host, port } })
    }
}

/// Returns the report with the latest failover. Of several reports with that failover, the one that
/// names the known master is preferred, since a server may have more than one address.
fn latest_report(
    reports: Vec<SentinelReport>,
    known: Option<&ClusterNode>,
) -> Option<SentinelReport> {
    reports.into_iter().max_by_key(|report| (report.epoch, Some(&report.master) == known))
}

fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
}

fn sentinel_address(host: &str, is_tls: bool) -> RedisResult<ConnectionAddr> {
    let scheme = if is_tls { "rediss" } else { "redis" };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let with_port = if has_port { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") };
    Ok(format!("{scheme}://{with_port}").into_connection_info()?.addr().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> ClusterNode {
        ClusterNode { host: "h".to_owned(), port }
    }

    fn latest_port(reports: &[(u64, u16)], known: Option<u16>) -> Option<u16> {
        let reports = reports
            .iter()
            .map(|(epoch, port)| SentinelReport { epoch: *epoch, master: node(*port) });
        latest_report(reports.collect(), known.map(node).as_ref()).map(|latest| latest.master.port)
    }

    #[test]
    fn most_sentinels_named_the_master_of_before() {
        assert_eq!(latest_port(&[(1, 10), (2, 20), (1, 10)], Some(10)), Some(20));
        assert_eq!(latest_port(&[], Some(10)), None);
    }

    #[test]
    fn a_master_with_two_names_was_left_again_and_again() {
        for reports in [[(1, 10), (1, 11)], [(1, 11), (1, 10)]] {
            assert_eq!(latest_port(&reports, Some(10)), Some(10));
            assert_eq!(latest_port(&reports, Some(11)), Some(11));
        }
    }

    #[test]
    fn an_older_failover_is_not_believed_for_a_while() {
        let topology = Topology::default();
        assert!(
            topology.accept_epoch(7, STALE_EPOCH_WINDOW)
                && topology.accept_epoch(8, STALE_EPOCH_WINDOW)
        );
        assert!(
            !topology.accept_epoch(7, STALE_EPOCH_WINDOW)
                && topology.accept_epoch(8, STALE_EPOCH_WINDOW)
        );
        // A master that was removed from the Sentinels and added again begins with epoch 0.
        assert!(
            topology.accept_epoch(0, Duration::ZERO)
                && topology.accept_epoch(0, STALE_EPOCH_WINDOW)
        );
    }
}
