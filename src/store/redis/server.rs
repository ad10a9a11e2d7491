//! The connection to one server.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, IntoConnectionInfo, RedisResult};

use super::super::tls::StoreTls;
use super::client::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT, build_client};

/// So many operations may wait for the connection; then callers wait before they are sent.
const PIPELINE_BUFFER_MAX: usize = 4_096;
/// A broken connection is tried again after so long, in ms, doubling up to the most.
const RETRY_MS_MIN: u64 = 20;
const RETRY_MS_MAX: u64 = 250;
/// A server that does not let us in, or says nothing, is connected to again after so long.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

/// A connection to one server that reconnects by itself.
pub(super) struct SingleServer {
    client: Client,
    config: ConnectionManagerConfig,
    /// What mends the connection, and since when it does.
    manager: RwLock<(ConnectionManager, Instant)>,
}

impl SingleServer {
    pub(super) async fn open(url: &str, tls: &StoreTls) -> RedisResult<SingleServer> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_min_delay(Duration::from_millis(RETRY_MS_MIN))
            .set_max_delay(Duration::from_millis(RETRY_MS_MAX))
            .set_pipeline_buffer_size(PIPELINE_BUFFER_MAX);
        let client = build_client(url.into_connection_info()?, tls)?;
        let manager = client.get_connection_manager_with_config(config.clone()).await?;
        let manager = RwLock::new((manager, Instant::now()));
        Ok(SingleServer { client, config, manager })
    }

    pub(super) fn handle(&self) -> ConnectionManager {
        self.manager().0.clone()
    }

    fn manager(&self) -> RwLockReadGuard<'_, (ConnectionManager, Instant)> {
        self.manager.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The library's manager tries again only after errors of the network: one that was locked out
    /// stays out though the password is right again, and one whose end is silent waits for it for
    /// ever. So another one takes its place.
    pub(super) fn reconnect_throttled(&self) {
        if self.manager().1.elapsed() >= RECONNECT_INTERVAL {
            self.reconnect();
        }
    }

    /// Connects anew with what is asked next.
    pub(super) fn reconnect(&self) {
        let lazy =
            ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone());
        if let Ok(manager) = lazy {
            let known = self.manager.write();
            *known.unwrap_or_else(PoisonError::into_inner) = (manager, Instant::now());
        }
    }
}
