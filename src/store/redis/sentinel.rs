//! The connection to the master that Sentinels name.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisResult, TlsMode};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::super::StoreTls;
use super::ANSWER_WAIT;
use super::connection::{Asking, CONNECT_WAIT, tcp};

/// Where Sentinels listen, unless the address says otherwise.
const PORT: u16 = 26_379;
/// Sentinels that do not lead to a master within this are asked again, by whoever needs it.
const SEARCH_WAIT: Duration = Duration::from_millis(4_500);

/// A Sentinel's master: asked for once, and again when the connection to it breaks.
pub(super) struct Watched {
    sentinel: SentinelClient,
    config: AsyncConnectionConfig,
    master: Option<MultiplexedConnection>,
    /// Since when it was asked without a word from it. Whoever asked may have stopped waiting.
    silent: Option<Instant>,
}

impl Watched {
    /// Of an address without its scheme. A user and password are the master's.
    pub(super) fn of(rest: &str, is_tls: bool, tls: &StoreTls) -> RedisResult<Watched> {
        let (hosts, master) =
            rest.split_once('/').ok_or_else(|| io::Error::other("name the master, …/NAME"))?;
        let (user, hosts) = hosts.rsplit_once('@').unwrap_or(("", hosts));
        let sentinels = hosts.split(',').map(|host| address(host, is_tls));
        let sentinels = sentinels.collect::<RedisResult<Vec<_>>>()?;
        let kind = SentinelServerType::Master;
        let mut client = SentinelClientBuilder::new(sentinels, master, kind)?
            .set_client_to_redis_tcp_settings(tcp())
            .set_client_to_sentinel_tcp_settings(tcp());
        if is_tls {
            client = client.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        if let Some(certificates) = tls.certificates().filter(|_| is_tls) {
            client = client
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
        if !user.is_empty() {
            let settings = format!("redis://{user}@sentinel").into_connection_info()?;
            let settings = settings.redis_settings();
            if let Some(name) = settings.username() {
                client = client.set_client_to_redis_username(name);
            }
            if let Some(password) = settings.password() {
                client = client.set_client_to_redis_password(password);
            }
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WAIT))
            .set_response_timeout(Some(ANSWER_WAIT));
        Ok(Watched { sentinel: client.build()?, config, master: None, silent: None })
    }

    /// The master, unless it has been silent for too long.
    fn known(&mut self) -> Option<MultiplexedConnection> {
        if self.silent.is_some_and(|since| since.elapsed() > ANSWER_WAIT) {
            self.forget();
        }
        let master = self.master.clone()?;
        self.silent.get_or_insert_with(Instant::now);
        Some(master)
    }

    /// The master said something, or is lost.
    pub(super) fn heard(&mut self, is_lost: bool) {
        self.silent = None;
        if is_lost {
            self.master = None;
        }
    }

    /// Sentinel is asked anew who the master is.
    pub(super) fn forget(&mut self) {
        (self.master, self.silent) = (None, None);
    }

    async fn master(&mut self) -> RedisResult<MultiplexedConnection> {
        if let Some(master) = self.known() {
            return Ok(master);
        }
        // Without its type: the library's future is too deep for the compiler.
        let asking: Asking<'_> =
            Box::pin(self.sentinel.get_async_connection_with_config(&self.config));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no Sentinel leads to a master");
        let master = timeout(SEARCH_WAIT, asking).await.map_err(late)??;
        Ok(self.master.insert(master).clone())
    }
}

/// The connection to the master. Looking for it goes on even if whoever asked stops waiting: a
/// Sentinel that is dark takes longer than any of them waits.
pub(super) async fn master(watched: &Arc<Mutex<Watched>>) -> RedisResult<MultiplexedConnection> {
    if let Some(master) = watched.lock().await.known() {
        return Ok(master);
    }
    let own = watched.clone();
    let looking = tokio::spawn(async move { own.lock().await.master().await });
    looking.await.unwrap_or_else(|why| Err(io::Error::other(why).into()))
}

fn address(host: &str, is_tls: bool) -> RedisResult<ConnectionAddr> {
    let scheme = if is_tls { "rediss" } else { "redis" };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let with_port = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
    Ok(format!("{scheme}://{with_port}").into_connection_info()?.addr().clone())
}
