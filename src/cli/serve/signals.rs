//! The signals that end the process.

use std::sync::Arc;

use async_trait::async_trait;
use pingora_core::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::handover::ListenerSet;
use super::takeover;
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
    hurry: Arc<Notify>,
}

struct ReceivedSignal {
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
                "no signals; the process can only be killed"
            );
            return std::future::pending().await;
        };
        let mut heard = ReceivedSignal { quit, term, interrupt };
        let told = self.until_told(&mut heard).await;
        // Who serves at them gives theirs up by itself.
        self.listeners.close();
        let hurry = self.hurry.clone();
        // pingora does not listen any more.
        tokio::spawn(async move {
            heard.end().await;
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
        hurry: Arc<Notify>,
    ) -> SignalHandler {
        SignalHandler { socket, server: conf.server.clone(), listeners, hurry }
    }

    async fn give_way(&self) -> anyhow::Result<()> {
        takeover::give_way(&self.listeners, &self.socket, &self.server).await
    }

    async fn until_told(&self, heard: &mut ReceivedSignal) -> ShutdownSignal {
        loop {
            tokio::select! {
                _ = heard.term.recv() => return ShutdownSignal::GracefulTerminate,
                _ = heard.interrupt.recv() => return ShutdownSignal::FastShutdown,
                _ = heard.quit.recv() => {}
            }
            tokio::select! {
                told = heard.end() => return told,
                gave_way = self.give_way() => match gave_way {
                    Ok(()) => {
                        log::info!(event = "upgrade_finished"; "another process has taken over");
                        return ShutdownSignal::GracefulTerminate;
                    }
                    Err(why) => {
                        log::error!(
                            event = "upgrade_aborted", why:% = format!("{why:#}");
                            "this process stays"
                        );
                    }
                },
            }
        }
    }
}

impl ReceivedSignal {
    async fn end(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.term.recv() => ShutdownSignal::GracefulTerminate,
            _ = self.interrupt.recv() => ShutdownSignal::FastShutdown,
        }
    }
}
