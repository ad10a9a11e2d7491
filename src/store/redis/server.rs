//! The connection to a single server, without Sentinels or a cluster.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, IntoConnectionInfo, RedisResult};

use super::super::tls::StoreTls;
use super::client::{CONNECT_TIMEOUT, RESPONSE_TIMEOUT, build_client};

/// At most this many operations are queued for the connection; further callers wait before theirs
/// are queued.
const PIPELINE_BUFFER_MAX: usize = 4_096;
/// A broken connection is tried again after this time, in ms, which doubles up to the maximum.
const RETRY_MS_MIN: u64 = 20;
const RETRY_MS_MAX: u64 = 250;
/// While the server refuses our login or does not answer, the connection is replaced at most once
/// in this time.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

/// A connection to one server that reconnects by itself.
pub(super) struct SingleServer {
    client: Client,
    config: ConnectionManagerConfig,
    /// The library's manager, which restores a broken connection, and when the manager was made.
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

    /// Replaces the library's manager, unless it is younger than `RECONNECT_INTERVAL`. The manager
    /// itself tries again only after network errors: a connection whose login was refused stays
    /// refused even after the password is right again, and a connection whose peer is silent waits
    /// for that peer for ever.
    pub(super) fn reconnect_throttled(&self) {
        if self.manager().1.elapsed() >= RECONNECT_INTERVAL {
            self.reconnect();
        }
    }

    /// Replaces the library's manager by one that connects when the next command is sent.
    pub(super) fn reconnect(&self) {
        let lazy =
            ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone());
        if let Ok(manager) = lazy {
            let known = self.manager.write();
            *known.unwrap_or_else(PoisonError::into_inner) = (manager, Instant::now());
        }
    }
}
