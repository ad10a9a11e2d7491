//! The start of service: this process binds a socket for each of its addresses, or takes the
//! sockets over from the running process, before its services start.

use std::net::TcpListener;
use std::os::fd::IntoRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::{ServiceReadyNotifier, ServiceWithDependents};
use tokio::time::{Instant, sleep};

use super::handover::{ListenerSet, NamedSocket};
use super::service_link::ServiceManager;
use super::upgrade::{self, OldProcess, ReadyHandshake, SocketReceiver};
use crate::conf::{AdminAddress, Config, ServerSection};
use crate::store::maintenance::Maintenance;

/// How long an address that is in use is tried again, if no running process serves meanwhile.
const BIND_TIMEOUT: Duration = Duration::from_secs(30);
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The gate that all services wait for: it opens the listening sockets.
pub(super) struct StartupGate {
    /// The TCP addresses, whose sockets a next process takes over. A unix socket is created anew
    /// instead.
    addresses: Vec<String>,
    http: String,
    admin: String,
    server: ServerSection,
    /// The running process that is to be replaced, if there is one.
    upgrade: Option<UpgradeRequest>,
    maintenance: Arc<Maintenance>,
    listeners: Arc<ListenerSet>,
    manager: ServiceManager,
}

/// The replacement of a running process.
pub(super) struct UpgradeRequest {
    /// The path of the socket at which the listening sockets arrive.
    pub(super) socket: String,
    pub(super) receiver: SocketReceiver,
}

impl StartupGate {
    pub(super) fn new(
        conf: &Config,
        maintenance: Arc<Maintenance>,
        listeners: Arc<ListenerSet>,
        manager: ServiceManager,
    ) -> StartupGate {
        let (http, admin) = (conf.listen.http.clone(), conf.listen.admin.name().to_owned());
        let mut addresses = vec![http.clone()];
        if matches!(conf.listen.admin, AdminAddress::Tcp(_)) {
            addresses.push(admin.clone());
        }
        addresses.extend(conf.listen.console.clone());
        addresses.extend(conf.listen.customers.clone());
        StartupGate {
            addresses,
            http,
            admin,
            server: conf.server.clone(),
            upgrade: None,
            maintenance,
            listeners,
            manager,
        }
    }

    /// Sets the running process that is to be replaced.
    pub(super) fn with_upgrade(self, upgrade: Option<UpgradeRequest>) -> StartupGate {
        StartupGate { upgrade, ..self }
    }

    /// Opens a listening socket for each address: the one of the running process, or a new one.
    /// Also returns that process, if there is one.
    async fn open_listeners(&self) -> anyhow::Result<(Vec<NamedSocket>, Option<OldProcess>)> {
        let mut listeners = Vec::new();
        let mut handshake = None;
        if let Some(UpgradeRequest { socket, receiver }) = &self.upgrade {
            listeners = receiver.receive(socket, &self.addresses).await?;
            handshake = Some(ReadyHandshake::connect(socket).await?);
        }
        let bind_timeout = if handshake.is_some() { Duration::ZERO } else { BIND_TIMEOUT };
        for address in &self.addresses {
            if !listeners.iter().any(|(name, _)| name == address) {
                let made = bind_when_free(address, bind_timeout).await;
                let made = made.with_context(|| format!("cannot listen at {address}"))?;
                listeners.push((address.clone(), made));
            }
        }
        let old = match handshake {
            Some(handshake) => Some(handshake.announce_ready().await?),
            None => None,
        };
        Ok((listeners, old))
    }

    /// Gives the sockets to the services, and keeps a copy of each for the next process. Returns
    /// the process that this one replaces, if there is one.
    async fn publish_listen_fds(&self, sockets: &ListenFds) -> anyhow::Result<Option<OldProcess>> {
        let (listeners, old) = self.open_listeners().await?;
        for (address, listener) in &listeners {
            sockets.lock().add(address.clone(), listener.try_clone()?.into_raw_fd());
        }
        self.listeners.set(listeners);
        Ok(old)
    }
}

#[async_trait]
impl ServiceWithDependents for StartupGate {
    async fn start_service(
        &mut self,
        sockets: Option<ListenFds>,
        _shutdown: ShutdownWatch,
        _listeners_per_socket: usize,
        ready: ServiceReadyNotifier,
    ) {
        let Some(sockets) = sockets else { return };
        let old = match self.publish_listen_fds(&sockets).await {
            Ok(old) => old,
            Err(why) => {
                // No request was accepted yet, so the process may exit at once.
                log::error!(
                    event = "startup_failed", error:% = format!("{why:#}");
                    "startup failed"
                );
                self.maintenance.flush();
                std::process::exit(1);
            }
        };
        upgrade::write_pid_file(&self.server);
        let (http, admin) = (&self.http, &self.admin);
        log::info!(event = "serving", http, admin, upgrade = self.upgrade.is_some(); "serving");
        ready.notify_ready();
        let manager = self.manager.clone();
        // Until the old process has left, it speaks to the service manager.
        tokio::spawn(async move {
            if let Some(old) = old {
                old.left().await;
            }
            manager.note_open();
        });
    }

    fn name(&self) -> &'static str {
        "opening"
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        Some(Vec::new())
    }
}

/// Binds a socket. While the address is in use, retries for at most `bind_timeout`.
async fn bind_when_free(address: &str, bind_timeout: Duration) -> anyhow::Result<TcpListener> {
    let deadline = Instant::now() + bind_timeout;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(why)
                if why.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline =>
            {
                log::warn!(
                    event = "listen_address_in_use", address;
                    "listen address in use; retrying"
                );
                sleep(BIND_RETRY_INTERVAL).await;
            }
            Err(why) => return Err(why.into()),
        }
    }
}
