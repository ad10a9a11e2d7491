//! The signals that end the process.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::handover::ListenerSet;
use super::upgrade;
use crate::conf::{Config, ServerSection};

/// Handles the signals that end the process: SIGTERM stops it gracefully, SIGINT ends it at once,
/// and at SIGQUIT it hands over to a new process. If no new process takes over, this one keeps
/// serving; a second stop signal while it stops ends it at once.
pub(super) struct SignalHandler {
    /// The path of the socket at which the new process waits.
    socket: String,
    server: ServerSection,
    /// The copies of the listening sockets for the new process.
    listeners: Arc<ListenerSet>,
    /// Notified when the running calls are not to be waited for any longer.
    force_stop: Arc<Notify>,
}

struct SignalStreams {
    quit: Signal,
    term: Signal,
    interrupt: Signal,
}

impl SignalStreams {
    fn open() -> io::Result<SignalStreams> {
        Ok(SignalStreams {
            quit: signal(SignalKind::quit())?,
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

#[async_trait]
impl ShutdownSignalWatch for SignalHandler {
    async fn recv(&self) -> ShutdownSignal {
        let mut signals = match SignalStreams::open() {
            Ok(signals) => signals,
            Err(why) => {
                log::error!(
                    event = "signal_handler_failed", error:% = why;
                    "signal handlers failed; only SIGKILL stops the process"
                );
                return std::future::pending().await;
            }
        };
        let shutdown = self.await_shutdown(&mut signals).await;
        // The services close their own copies of the sockets themselves.
        self.listeners.close();
        let force_stop = self.force_stop.clone();
        // From here on pingora does not watch for signals any more.
        tokio::spawn(async move {
            signals.recv_stop().await;
            force_stop.notify_one();
        });
        shutdown
    }
}

impl SignalHandler {
    pub(super) fn new(
        conf: &Config,
        socket: String,
        listeners: Arc<ListenerSet>,
        force_stop: Arc<Notify>,
    ) -> SignalHandler {
        SignalHandler { socket, server: conf.server.clone(), listeners, force_stop }
    }

    async fn hand_over(&self) -> anyhow::Result<()> {
        upgrade::hand_over(&self.listeners, &self.socket, &self.server).await
    }

    async fn await_shutdown(&self, signals: &mut SignalStreams) -> ShutdownSignal {
        loop {
            tokio::select! {
                _ = signals.term.recv() => return ShutdownSignal::GracefulTerminate,
                _ = signals.interrupt.recv() => return ShutdownSignal::FastShutdown,
                _ = signals.quit.recv() => {}
            }
            tokio::select! {
                shutdown = signals.recv_stop() => return shutdown,
                gave_way = self.hand_over() => match gave_way {
                    Ok(()) => {
                        log::info!(
                        event = "upgrade_finished";
                        "upgrade finished; another process has taken over"
                    );
                        return ShutdownSignal::GracefulTerminate;
                    }
                    Err(why) => {
                        log::error!(
                            event = "upgrade_aborted", error:% = format!("{why:#}");
                            "upgrade aborted; this process keeps serving"
                        );
                    }
                },
            }
        }
    }
}

impl SignalStreams {
    async fn recv_stop(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.term.recv() => ShutdownSignal::GracefulTerminate,
            _ = self.interrupt.recv() => ShutdownSignal::FastShutdown,
        }
    }
}
