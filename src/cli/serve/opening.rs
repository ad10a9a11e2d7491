//! The moment from which this process serves: it has a socket for each of its addresses, and
//! nobody else is there who would serve in its place.

use std::net::TcpListener;
use std::os::fd::IntoRawFd as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::{ServiceReadyNotifier, ServiceWithDependents};
use tokio::time::{Instant, sleep};

use super::takeover::{self, Word};
use crate::conf::{Conf, ServerSection};
use crate::store::upkeep::Upkeep;

/// An address that somebody else has is waited for so long, if nobody serves in the meantime.
const FREE_WAIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// See the module. Whatever serves waits for it.
pub(super) struct Opening {
    addresses: [String; 2],
    server: ServerSection,
    /// Where the sockets of the old process come, if there is one.
    socket: Option<String>,
    upkeep: Arc<Upkeep>,
    sockets: Arc<OnceLock<ListenFds>>,
}

impl Opening {
    pub(super) fn new(conf: &Conf, socket: Option<String>, upkeep: Arc<Upkeep>) -> Opening {
        Opening {
            addresses: [conf.listen.http.clone(), conf.listen.admin.clone()],
            server: conf.server.clone(),
            socket,
            upkeep,
            sockets: Arc::default(),
        }
    }

    /// All sockets of this process, once it serves.
    pub(super) fn sockets(&self) -> Arc<OnceLock<ListenFds>> {
        self.sockets.clone()
    }

    async fn open(&self, sockets: &ListenFds) -> anyhow::Result<()> {
        let word = match &self.socket {
            Some(socket) => Some(Word::begin(socket).await?),
            None => None,
        };
        let patience = if word.is_some() { Duration::ZERO } else { FREE_WAIT };
        for address in &self.addresses {
            let is_there = sockets.lock().get(address).is_some();
            if !is_there {
                let made = listen(address, patience).await;
                let made = made.with_context(|| format!("cannot listen at {address}"))?;
                sockets.lock().add(address.clone(), made.into_raw_fd());
            }
        }
        match word {
            Some(word) => word.give().await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl ServiceWithDependents for Opening {
    async fn start_service(
        &mut self,
        sockets: Option<ListenFds>,
        _shutdown: ShutdownWatch,
        _listeners_per_socket: usize,
        ready: ServiceReadyNotifier,
    ) {
        let Some(sockets) = sockets else { return };
        if let Err(why) = self.open(&sockets).await {
            // Nothing was taken on yet.
            log::error!(why:% = format!("{why:#}"); "this process cannot serve");
            self.upkeep.leave();
            std::process::exit(1);
        }
        let _ = self.sockets.set(sockets);
        takeover::sign(&self.server);
        let [http, admin] = &self.addresses;
        log::info!(http, admin, upgrade = self.socket.is_some(); "serving");
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
                log::warn!(address; "the address is in use, and will be tried again");
                sleep(LOOK_EVERY).await;
            }
            Err(why) => return Err(why.into()),
        }
    }
}
