//! The signals that end the process.

use std::sync::Arc;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::handover::ListenerSet;
use super::upgrade;
use crate::conf::{Config, ServerSection};

/// TERM stops it, INT ends it, and at QUIT it gives way to another one. Told to give way to nobody,
/// it stays; told once more while it stops, it ends.
pub(super) struct SignalHandler {
    /// Where the next process waits.
    socket: String,
    server: ServerSection,
    /// What it waits for, once this one has it.
    listeners: Arc<ListenerSet>,
    /// Told when the end is not to be waited for any longer.
    force_stop: Arc<Notify>,
}

struct SignalStreams {
    quit: Signal,
    term: Signal,
    interrupt: Signal,
}

#[async_trait]
impl ShutdownSignalWatch for SignalHandler {
    async fn recv(&self) -> ShutdownSignal {
        let of = |kind| signal(kind).ok();
        let kinds = [SignalKind::quit(), SignalKind::terminate(), SignalKind::interrupt()];
        let [Some(quit), Some(term), Some(interrupt)] = kinds.map(of) else {
            log::error!(
                event = "signal_handler_failed";
                "signal handlers failed; only SIGKILL stops the process"
            );
            return std::future::pending().await;
        };
        let mut signals = SignalStreams { quit, term, interrupt };
        let told = self.await_shutdown(&mut signals).await;
        // Who serves at them gives theirs up by itself.
        self.listeners.close();
        let hurry = self.force_stop.clone();
        // pingora does not listen any more.
        tokio::spawn(async move {
            signals.recv_stop().await;
            hurry.notify_one();
        });
        told
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
                told = signals.recv_stop() => return told,
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
                            event = "upgrade_aborted", why:% = format!("{why:#}");
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
