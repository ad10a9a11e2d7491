//! Taking over from a process that runs, and giving way to the next one.
//!
//! The new process waits at a socket of its own; told to by SIGQUIT, the old one sends its
//! listening sockets there, and stops some seconds later as it would at SIGTERM. In between both
//! take connections, so none is refused; and since the new one takes them from the first moment
//! on, it asks for them when it can sell. The way over the socket is pingora's.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use async_trait::async_trait;
use pingora_core::server::{ShutdownSignal, ShutdownSignalWatch};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::conf::ServerSection;
use crate::store::upkeep::Upkeep;

/// Who is told to give way waits so long for somebody to give way to.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Who takes over has to be able to sell within this.
const READY_WAIT: Duration = Duration::from_secs(30);
/// What the system takes as the name of a socket.
const SOCKET_BYTES_MAX: usize = 107;

/// The socket at which a new process waits, by its whole name: the system tells apart what is named
/// differently, and does not tell apart what two folders have under the same name.
pub(super) fn socket(server: &ServerSection) -> anyhow::Result<String> {
    let path = std::path::absolute(&server.upgrade_sock).context("server.upgrade_sock")?;
    let name = path.display().to_string();
    ensure!(name.len() <= SOCKET_BYTES_MAX, "server.upgrade_sock is too long: {name}");
    Ok(name)
}

/// Waits until anything can be bought from this process: until then the other one goes on.
pub(super) fn wait_until_open(upkeep: &Upkeep) -> anyhow::Result<()> {
    let end = Instant::now() + READY_WAIT;
    loop {
        match upkeep.is_open() {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > end => {
                return Err(why).context("nothing can be sold yet; the running process stays");
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Makes ready to take over, and tells the running process to give way if its number is known.
pub(super) fn begin(server: &ServerSection, socket: &str) -> anyhow::Result<()> {
    if let Some(folder) = Path::new(socket).parent() {
        std::fs::create_dir_all(folder).context("no folder for server.upgrade_sock")?;
    }
    let Some(file) = &server.pid_file else {
        log::info!(socket; "waiting for the running process; send it QUIT");
        return Ok(());
    };
    let pid = running(file).with_context(|| format!("nobody to take over from by {file}"))?;
    kill_process(pid, Signal::QUIT).context("the running process cannot be told")?;
    log::info!(pid = pid.as_raw_nonzero().get(); "the running process was told to give way");
    Ok(())
}

/// Writes down which process runs from now on.
pub(super) fn sign(server: &ServerSection) {
    let Some(file) = &server.pid_file else { return };
    let folder = Path::new(file).parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(file, format!("{}\n", std::process::id())));
    if let Err(why) = written {
        log::error!(file, why:% = why; "the number of this process is not written down");
    }
}

/// The process of a file, if it is one of this program's: numbers are given anew.
fn running(file: &str) -> anyhow::Result<Pid> {
    let text = std::fs::read_to_string(file)?;
    let number = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = number.ok_or_else(|| anyhow!("{} is no process", text.trim()))?;
    let program = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))?;
    let own = std::fs::read_to_string("/proc/self/comm")?;
    ensure!(program == own, "process {} is {}", pid.as_raw_nonzero(), program.trim());
    Ok(pid)
}

/// The signals that end the process. One that is to give way to nobody stays.
pub(super) struct Signals {
    pub(super) socket: String,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let of = |kind| signal(kind).ok();
        let kinds = [SignalKind::quit(), SignalKind::terminate(), SignalKind::interrupt()];
        let [Some(mut quit), Some(mut term), Some(mut interrupt)] = kinds.map(of) else {
            log::error!("no signals; the process can only be killed");
            return std::future::pending().await;
        };
        let mut successor = None;
        loop {
            tokio::select! {
                _ = term.recv() => return ShutdownSignal::GracefulTerminate,
                _ = interrupt.recv() => return ShutdownSignal::FastShutdown,
                _ = quit.recv() => successor = Some(Instant::now() + SUCCESSOR_WAIT),
                () = tokio::time::sleep(LOOK_EVERY), if successor.is_some() => {}
            }
            if successor.is_some() && self.is_awaited() {
                return ShutdownSignal::GracefulUpgrade;
            }
            if successor.is_some_and(|end| Instant::now() > end) {
                log::error!(socket = self.socket; "nobody is there to give way to");
                successor = None;
            }
        }
    }
}

impl Signals {
    /// Whether another process waits at the socket. To ask it would be to be the one it waits for,
    /// so the system is asked.
    fn is_awaited(&self) -> bool {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        sockets.lines().any(|line| listens_at(line, &self.socket))
    }
}

/// Whether a line of the system's list of sockets is about one that listens under this name.
fn listens_at(line: &str, name: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    words.nth(3) == Some("00010000") && line.ends_with(&format!(" {name}"))
}

#[cfg(test)]
mod tests {
    use super::listens_at;

    #[test]
    fn a_socket_that_listens_is_told_from_others() {
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 12345 var/t.sock";
        assert!(listens_at(line, "var/t.sock"));
        assert!(!listens_at(line, "t.sock"));
        let connected = line.replace("00010000", "00000000");
        assert!(!listens_at(&connected, "var/t.sock"));
        assert!(!listens_at("Num RefCount Protocol Flags Type St Inode Path", "var/t.sock"));
    }

    #[test]
    fn who_listens_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.sock").display().to_string();
        let signals = super::Signals { socket: path.clone() };
        assert!(!signals.is_awaited());
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        assert!(signals.is_awaited());
        drop(listener);
        assert!(!signals.is_awaited());
    }
}
