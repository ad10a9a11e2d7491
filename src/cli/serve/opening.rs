//! The moment from which this process serves: it has a socket for each of its addresses, and
//! nobody else is there who would serve in its place.

use std::net::TcpListener;
use std::os::fd::IntoRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::{ServiceReadyNotifier, ServiceWithDependents};
use tokio::time::{Instant, sleep};

use super::handover::{ListenerSet, NamedSocket};
use super::takeover::{self, ReadyHandshake, SocketReceiver};
use crate::conf::{AdminAddress, Config, ServerSection};
use crate::store::upkeep::Maintenance;

/// An address that somebody else has is waited for so long, if nobody serves in the meantime.
const FREE_WAIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the module. Whatever serves waits for it.
pub(super) struct StoreReadiness {
    /// Of those that a next process takes over: a socket of the file system is made anew.
    addresses: Vec<String>,
    http: String,
    admin: String,
    server: ServerSection,
    /// Where the sockets of the old process come, if there is one.
    upgrade: Option<UpgradeRequest>,
    upkeep: Arc<Maintenance>,
    listeners: Arc<ListenerSet>,
}

/// A running process is to be replaced.
pub(super) struct UpgradeRequest {
    /// The name of the socket at which its sockets come.
    pub(super) socket: String,
    pub(super) arrival: SocketReceiver,
}

impl StoreReadiness {
    pub(super) fn new(
        conf: &Config,
        upkeep: Arc<Maintenance>,
        listeners: Arc<ListenerSet>,
    ) -> StoreReadiness {
        let (http, admin) = (conf.listen.http.clone(), conf.listen.admin.name().to_owned());
        let mut addresses = vec![http.clone()];
        if matches!(conf.listen.admin, AdminAddress::Tcp(_)) {
            addresses.push(admin.clone());
        }
        StoreReadiness {
            addresses,
            http,
            admin,
            server: conf.server.clone(),
            upgrade: None,
            upkeep,
            listeners,
        }
    }

    /// In the place of a process that runs.
    pub(super) fn instead(self, upgrade: Option<UpgradeRequest>) -> StoreReadiness {
        StoreReadiness { upgrade, ..self }
    }

    /// A listening socket for each address: the running process', or a new one.
    async fn open(&self) -> anyhow::Result<Vec<NamedSocket>> {
        let mut listeners = Vec::new();
        let mut word = None;
        if let Some(UpgradeRequest { socket, arrival }) = &self.upgrade {
            listeners = arrival.receive(socket, &self.addresses).await?;
            word = Some(ReadyHandshake::begin(socket).await?);
        }
        let patience = if word.is_some() { Duration::ZERO } else { FREE_WAIT };
        for address in &self.addresses {
            if !listeners.iter().any(|(name, _)| name == address) {
                let made = listen(address, patience).await;
                let made = made.with_context(|| format!("cannot listen at {address}"))?;
                listeners.push((address.clone(), made));
            }
        }
        if let Some(word) = word {
            word.give().await?;
        }
        Ok(listeners)
    }

    /// Hands the sockets to what serves at them, and keeps a copy of each for the next process.
    async fn begin(&self, sockets: &ListenFds) -> anyhow::Result<()> {
        let listeners = self.open().await?;
        for (address, listener) in &listeners {
            sockets.lock().add(address.clone(), listener.try_clone()?.into_raw_fd());
        }
        self.listeners.set(listeners);
        Ok(())
    }
}

#[async_trait]
impl ServiceWithDependents for StoreReadiness {
    async fn start_service(
        &mut self,
        sockets: Option<ListenFds>,
        _shutdown: ShutdownWatch,
        _listeners_per_socket: usize,
        ready: ServiceReadyNotifier,
    ) {
        let Some(sockets) = sockets else { return };
        if let Err(why) = self.begin(&sockets).await {
            // Nothing was taken on yet.
            log::error!(
                event = "startup_failed", why:% = format!("{why:#}");
                "this process cannot serve"
            );
            self.upkeep.leave();
            std::process::exit(1);
        }
        takeover::sign(&self.server);
        let (http, admin) = (&self.http, &self.admin);
        log::info!(event = "serving", http, admin, upgrade = self.upgrade.is_some(); "serving");
        ready.notify_ready();
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

/// A socket at an address that becomes free in time.
async fn listen(address: &str, patience: Duration) -> anyhow::Result<TcpListener> {
    let end = Instant::now() + patience;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
            Err(why) if why.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < end => {
                log::warn!(
                    event = "listen_address_in_use", address;
                    "the address is in use, and will be tried again"
                );
                sleep(LOOK_EVERY).await;
            }
            Err(why) => return Err(why.into()),
        }
    }
}
