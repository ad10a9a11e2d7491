//! The signals that end the process, or replace it.

use std::io;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::handover::ListenerSet;
use super::service_link::ServiceManager;
use super::successor::Successor;
use super::upgrade::{self, NextProcess, READY_TIMEOUT, SUCCESSOR_TIMEOUT};
use crate::conf::{Config, ServerSection};

/// Handles the signals that end the process: SIGTERM stops it gracefully, SIGINT ends it at once,
/// at SIGQUIT it hands over to a new process, and at SIGUSR2 it starts that process itself. If no
/// new process takes over, this one keeps serving; a second stop signal while it stops ends it at
/// once.
pub(super) struct SignalHandler {
    /// The path of the socket at which the new process waits.
    socket: String,
    server: ServerSection,
    /// The copies of the listening sockets for the new process.
    listeners: Arc<ListenerSet>,
    /// Notified when the running calls are not to be waited for any longer.
    force_stop: Arc<Notify>,
    manager: ServiceManager,
}

struct SignalStreams {
    quit: Signal,
    replace: Signal,
    term: Signal,
    interrupt: Signal,
}

impl SignalStreams {
    fn open() -> io::Result<SignalStreams> {
        Ok(SignalStreams {
            quit: signal(SignalKind::quit())?,
            replace: signal(SignalKind::user_defined2())?,
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
        let (shutdown, successor) = self.await_shutdown(&mut signals).await;
        // The services close their own copies of the sockets themselves.
        self.listeners.close();
        let (force_stop, is_managed) = (self.force_stop.clone(), self.manager.is_there());
        // From here on pingora does not watch for signals any more.
        tokio::spawn(async move {
            tokio::select! {
                () = signals.recv_second_stop(successor.is_some()) => log::warn!(
                    event = "shutdown_forced";
                    "second stop signal; running calls are cut"
                ),
                // The manager learns of that end, and starts the service anew, when this process
                // has ended, too.
                why = await_failure(successor.filter(|_| is_managed)) => log::error!(
                    event = "successor_failed", error = why.as_str();
                    "the process that took over has failed; running calls are cut"
                ),
            }
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
        manager: ServiceManager,
    ) -> SignalHandler {
        SignalHandler { socket, server: conf.server.clone(), listeners, force_stop, manager }
    }

    /// Hands over to the successor that this process has started, or else to the process that
    /// waits.
    async fn hand_over(&self, successor: Option<&Successor>) -> anyhow::Result<()> {
        let (listeners, socket) = (&self.listeners, self.socket.as_str());
        let give_way = |to| upgrade::hand_over(listeners, socket, &self.server, to);
        let Some(successor) = successor else {
            let anybody = NextProcess { pid: None, timeout: SUCCESSOR_TIMEOUT };
            return give_way(anybody).await.map(drop);
        };
        let timeout = READY_TIMEOUT + SUCCESSOR_TIMEOUT;
        let replaced = tokio::select! {
            replaced = give_way(NextProcess { pid: Some(successor.pid()), timeout }) => replaced?,
            end = successor.ended() => bail!("the new process has ended: {}", end.told),
        };
        if replaced.by == Some(successor.pid()) {
            self.manager.tell_replaced(successor.pid()).await;
        }
        Ok(())
    }

    /// Waits until this process is to stop. Returns how, and the process that it has started in its
    /// place, if that has taken over.
    async fn await_shutdown(
        &self,
        signals: &mut SignalStreams,
    ) -> (ShutdownSignal, Option<Successor>) {
        loop {
            let is_to_be_started = tokio::select! {
                _ = signals.term.recv() => return (ShutdownSignal::GracefulTerminate, None),
                _ = signals.interrupt.recv() => return (ShutdownSignal::FastShutdown, None),
                _ = signals.quit.recv() => false,
                _ = signals.replace.recv() => true,
            };
            // The kernel ends all processes of a container with its first.
            if is_to_be_started && std::process::id() == 1 {
                self.note_aborted(&anyhow!("this is the first process of a container"));
                continue;
            }
            let successor = match is_to_be_started.then(Successor::start).transpose() {
                Ok(successor) => successor,
                Err(why) => {
                    self.note_aborted(&why);
                    continue;
                }
            };
            tokio::select! {
                shutdown = signals.recv_stop() => {
                    successor.into_iter().for_each(Successor::abandon);
                    return (shutdown, None);
                }
                gave_way = self.hand_over(successor.as_ref()) => match gave_way {
                    Ok(()) => {
                        log::info!(
                            event = "upgrade_finished";
                            "upgrade finished; another process has taken over"
                        );
                        return (ShutdownSignal::GracefulTerminate, successor);
                    }
                    Err(why) => {
                        self.note_aborted(&why);
                        successor.into_iter().for_each(Successor::abandon);
                    }
                },
            }
        }
    }

    fn note_aborted(&self, why: &anyhow::Error) {
        self.manager.note_upgrade(true);
        log::error!(
            event = "upgrade_aborted", error:% = format!("{why:#}");
            "upgrade aborted; this process keeps serving"
        );
    }
}

/// Waits until a process that has taken over fails, and returns how. It never returns if there is
/// none, or if that process ends in order.
async fn await_failure(successor: Option<Successor>) -> String {
    if let Some(successor) = successor {
        let end = successor.ended().await;
        if end.is_failure {
            return end.told;
        }
    }
    std::future::pending().await
}

impl SignalStreams {
    /// Waits for the signal that cuts the running calls of a process that stops. If it stops
    /// because its successor serves, the first SIGTERM is not that signal: a service manager that
    /// stops the service sends one to every process.
    async fn recv_second_stop(&mut self, has_successor: bool) {
        if matches!(self.recv_stop().await, ShutdownSignal::GracefulTerminate) && has_successor {
            self.recv_stop().await;
        }
    }

    async fn recv_stop(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.term.recv() => ShutdownSignal::GracefulTerminate,
            _ = self.interrupt.recv() => ShutdownSignal::FastShutdown,
        }
    }
}
