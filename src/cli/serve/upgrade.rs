//! The upgrade without downtime: taking over from a running process, and handing over to the next.
//!
//! The new process waits at its own unix socket. At SIGQUIT, or at once if it has started the new
//! process itself (`successor`), the old process sends its listening sockets there (`handover`).
//! The new one then makes sure that it can listen at all its addresses, and reports that at a unix
//! socket of the old one. Only when the old one has agreed does the new one accept its first
//! connection. Both serve for some seconds more, and then the old one stops as it would at SIGTERM.
//! If either process ends in between, the other one serves. No connection is refused meanwhile,
//! since the listening sockets stay open all the time.
//!
//! A process that could impersonate either of them would get all connections of all customers. So
//! both unix sockets are in a folder that no other user can enter, and each process checks that the
//! other one runs as the same user.

use std::fs;
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::os::unix::net as system;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::handover::{self, ListenerSet, NamedSocket};
use super::successor;
use crate::conf::ServerSection;
use crate::permissions;
use crate::store::maintenance::Maintenance;

/// How long a process that is asked to hand over waits for a new process.
pub(super) const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the new process waits for the running one. It is longer than the running one waits for
/// a successor.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(10);
/// The new process must be able to sell within this time.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The new process must be able to serve within this time, from when it has the sockets.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Both processes serve for this long, so that the old one is still there if the new one crashes.
const UPGRADE_OVERLAP: Duration = Duration::from_secs(5);
/// The longest path of a unix socket, in bytes, that the system accepts.
const SOCKET_BYTES_MAX: usize = 107;

/// The messages of the handshake: the one of the new process, and the two possible replies.
const READY_MESSAGE: &[u8] = b"ready\n";
const TAKEOVER_ACCEPTED: &str = "leaves\n";
const TAKEOVER_REFUSED: &str = "stays\n";

/// Returns the absolute path of the socket at which a new process waits. With a relative path, two
/// processes that run in different working directories would use different sockets.
pub(super) fn upgrade_socket(server: &ServerSection) -> anyhow::Result<String> {
    let path = std::path::absolute(&server.upgrade_sock).context("server.upgrade_sock")?;
    let name = path.display().to_string();
    ensure!(ack_socket(&name).len() <= SOCKET_BYTES_MAX, "server.upgrade_sock is too long: {name}");
    Ok(name)
}

/// Warns if sockets in the folder of this path could not be trusted. A folder that does not exist
/// yet is fine.
pub(super) fn check_socket_folder(socket: &str) {
    let folder = socket_folder(socket);
    if folder.exists()
        && let Err(why) = permissions::check_private_folder(folder)
    {
        log::warn!(
            event = "upgrade_folder_unsafe", error:% = why;
            "this process cannot be replaced by serve --upgrade"
        );
    }
}

/// Makes the folder of a socket, which no other user may enter.
fn make_socket_folder(socket: &str) -> anyhow::Result<()> {
    let folder = socket_folder(socket);
    permissions::make_private_folder(folder)
        .context("server.upgrade_sock needs a folder of its own")
}

fn socket_folder(socket: &str) -> &Path {
    Path::new(socket).parent().unwrap_or(Path::new("/"))
}

/// Returns the path of the socket at which the old process waits for the message of the new one.
fn ack_socket(socket: &str) -> String {
    format!("{socket}-old")
}

/// Waits until this process accepts paid calls; until then the other process keeps serving.
fn wait_until_open(maintenance: &Maintenance) -> anyhow::Result<()> {
    let end = Instant::now() + READY_TIMEOUT;
    loop {
        match maintenance.check_open() {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > end => {
                return Err(why).context("nothing can be sold yet; the running process stays");
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// The socket at which the listening sockets of the running process arrive.
pub(super) struct SocketReceiver(system::UnixListener);

/// Prepares to take over, and sends SIGQUIT to the running process if its pid is known.
pub(super) fn request_handover(
    server: &ServerSection,
    socket: &str,
    maintenance: &Maintenance,
) -> anyhow::Result<SocketReceiver> {
    make_socket_folder(socket)?;
    wait_until_open(maintenance)?;
    let is_expected = successor::is_started_by_predecessor();
    let pid_file = server.pid_file.as_ref().filter(|_| !is_expected);
    let pid = pid_file.map(|file| {
        running_pid(file).with_context(|| format!("nobody to take over from by {file}"))
    });
    let pid = pid.transpose()?;
    // A killed process may have left its socket file.
    let _ = fs::remove_file(socket);
    let listener =
        system::UnixListener::bind(socket).with_context(|| format!("no socket {socket}"))?;
    listener.set_nonblocking(true)?;
    match pid {
        None if is_expected => {}
        None => log::info!(
            event = "upgrade_waiting", socket;
            "waiting for the running process; send it QUIT"
        ),
        Some(pid) => {
            kill_process(pid, Signal::QUIT).context("the running process cannot be told")?;
            let pid = pid.as_raw_nonzero().get();
            log::info!(
                event = "upgrade_requested", pid;
                "running process asked to hand over"
            );
        }
    }
    Ok(SocketReceiver(listener))
}

impl SocketReceiver {
    /// Waits for the running process, and receives those of its sockets that are for `addresses`. A
    /// peer that is not trusted is disconnected, and the next one is awaited.
    ///
    /// # Errors
    /// The running process did not connect, or what it sent does not fit the configuration.
    pub(super) async fn receive(
        &self,
        socket: &str,
        addresses: &[String],
    ) -> anyhow::Result<Vec<NamedSocket>> {
        let listener = UnixListener::from_std(self.0.try_clone()?)?;
        let end = tokio::time::Instant::now() + PREDECESSOR_TIMEOUT;
        let timeout_message = "the running process did not come";
        let stream = accept_trusted(&listener, end).await.context(timeout_message)?;
        let received = handover::receive_listeners(&stream, addresses);
        let received = tokio::time::timeout_at(end, received).await.context(timeout_message)?;
        let _ = fs::remove_file(socket);
        received.context("the sockets of the running process are refused")
    }
}

/// Accepts connections until one is from a process of the same user.
async fn accept_trusted(
    listener: &UnixListener,
    end: tokio::time::Instant,
) -> anyhow::Result<UnixStream> {
    loop {
        let (stream, _) = tokio::time::timeout_at(end, listener.accept()).await??;
        match handover::check_peer(&stream) {
            Ok(()) => return Ok(stream),
            Err(why) => log::warn!(
                event = "upgrade_peer_rejected", error:% = why;
                "untrusted peer rejected at the upgrade socket"
            ),
        }
    }
}

/// Writes the pid of this process to the pid file. The file is replaced as a whole, so that it is
/// never read in part.
pub(super) fn write_pid_file(server: &ServerSection) {
    let Some(file) = &server.pid_file else { return };
    let folder = Path::new(file).parent().map_or(Ok(()), fs::create_dir_all);
    let number = std::process::id();
    let new = format!("{file}.{number}");
    let written = folder.and_then(|()| fs::write(&new, format!("{number}\n")));
    if let Err(why) = written.and_then(|()| fs::rename(&new, file)) {
        log::error!(
            event = "pid_file_write_failed", file, error:% = why;
            "pid file write failed"
        );
    }
}

/// Returns the pid in a file. Pids are reused, so the name of the program is checked.
fn running_pid(file: &str) -> anyhow::Result<Pid> {
    let text = fs::read_to_string(file)?;
    let number = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = number.ok_or_else(|| anyhow!("{} is no process", text.trim()))?;
    let number = pid.as_raw_nonzero();
    ensure!(number.get().cast_unsigned() != std::process::id(), "{number} is this process itself");
    let program = fs::read_to_string(format!("/proc/{number}/comm"))?;
    let own = fs::read_to_string("/proc/self/comm")?;
    ensure!(program == own, "process {number} is {}", program.trim());
    let status = fs::read_to_string(format!("/proc/{number}/status"))?;
    ensure!(handles_sigquit(&status), "process {number} does not listen, and QUIT would end it");
    Ok(pid)
}

/// Whether a process has a handler for SIGQUIT, according to the text of its `/proc/PID/status`.
fn handles_sigquit(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::QUIT.as_raw() - 1)) != 0)
}

/// The connection of the new process to the old one, whose sockets it has. `None` if the old
/// process has ended.
pub(super) struct ReadyHandshake(Option<UnixStream>);

impl ReadyHandshake {
    /// Connects to the old process. As long as the connection is open, the old process knows that
    /// the new one runs.
    pub(super) async fn connect(socket: &str) -> anyhow::Result<ReadyHandshake> {
        match UnixStream::connect(ack_socket(socket)).await {
            Ok(stream) => {
                handover::check_peer(&stream)
                    .context("the running process is not to be trusted")?;
                Ok(ReadyHandshake(Some(stream)))
            }
            // The old process has ended, so it cannot stay.
            Err(why) if matches!(why.kind(), NotFound | ConnectionRefused) => {
                Ok(ReadyHandshake(None))
            }
            Err(why) => Err(why).context("the running process cannot be asked to leave"),
        }
    }

    /// Reports that this process can serve, and waits for the reply; the old process then stops
    /// soon.
    pub(super) async fn announce_ready(self) -> anyhow::Result<OldProcess> {
        let Some(mut stream) = self.0 else { return Ok(OldProcess(None)) };
        // An old process that does not read this, or closes without a reply, has ended.
        let _ = stream.write_all(READY_MESSAGE).await;
        let (mut stream, mut reply) = (BufReader::new(stream), String::new());
        let read = timeout(SERVE_TIMEOUT, stream.read_line(&mut reply)).await;
        let _ = read.context("the running process is silent")?;
        if reply == TAKEOVER_REFUSED {
            bail!("the running process stays");
        }
        Ok(OldProcess(Some(stream)))
    }
}

/// The connection to the old process, after that has agreed. The old process watches it until it
/// stops, so it must be kept open. `None` if the old process has ended.
pub(super) struct OldProcess(Option<BufReader<UnixStream>>);

impl OldProcess {
    /// Waits until the old process cannot come back any more.
    pub(super) async fn left(self) {
        if let Some(mut stream) = self.0 {
            // An error means that it has ended.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    }
}

/// The replacement of this process. The new process knows that it is final when this is dropped.
pub(super) struct HandedOver {
    /// The new process, if the system tells which it is.
    pub(super) by: Option<u32>,
    _connection: UnixStream,
}

/// The process that is waited for.
pub(super) struct NextProcess {
    /// Which it is, if this process has started it.
    pub(super) pid: Option<u32>,
    /// How long it is waited for.
    pub(super) timeout: Duration,
}

/// Hands over to a new process, if it waits in time and can serve.
///
/// # Errors
/// Why this process keeps serving.
pub(super) async fn hand_over(
    listeners: &ListenerSet,
    socket: &str,
    server: &ServerSection,
    next: NextProcess,
) -> anyhow::Result<HandedOver> {
    make_socket_folder(socket)?;
    let connected = timeout(next.timeout, connect_to_successor(socket)).await;
    let stream = connected.map_err(|_| anyhow!("nobody is there to give way to at {socket}"))??;
    handover::check_peer(&stream).context("who waits for the sockets is not to be trusted")?;
    let there = stream.peer_cred().ok().and_then(|peer| peer.pid()?.try_into().ok());
    if next.pid.is_some_and(|wanted| there.is_some_and(|there: u32| there != wanted)) {
        bail!("another process than the one that was started waits at {socket}");
    }
    let ack_socket_file = SocketFile::bind(ack_socket(socket))?;
    handover::send_listeners(&stream, listeners).await.context("the sockets cannot be sent")?;
    drop(stream);
    let end = tokio::time::Instant::now() + SERVE_TIMEOUT;
    let not_ready_message = "the new process is not ready in time";
    let mut stream =
        accept_trusted(&ack_socket_file.listener, end).await.context(not_ready_message)?;
    let mut message_buf = [0; READY_MESSAGE.len()];
    let received = tokio::time::timeout_at(end, stream.read_exact(&mut message_buf)).await;
    let received = received
        .context(not_ready_message)
        .and_then(|read| read.context("the new process has ended"));
    if let Err(why) = received {
        // Without this reply the new process would take the old one for dead.
        let _ = stream.write_all(TAKEOVER_REFUSED.as_bytes()).await;
        return Err(why);
    }
    let ended_message = "the new process has ended";
    stream.write_all(TAKEOVER_ACCEPTED.as_bytes()).await.context(ended_message)?;
    // The new process sends nothing more, so a read that returns means that it has ended.
    if timeout(UPGRADE_OVERLAP, stream.read(&mut message_buf)).await.is_ok() {
        // The new process may have written its own pid to the file.
        write_pid_file(server);
        bail!(ended_message);
    }
    let by = stream.peer_cred().ok().and_then(|peer| peer.pid()?.try_into().ok());
    Ok(HandedOver { by, _connection: stream })
}

/// Connects to the process that waits at the socket, and retries until there is one.
async fn connect_to_successor(socket: &str) -> anyhow::Result<UnixStream> {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(why) if matches!(why.kind(), NotFound | ConnectionRefused) => {
                sleep(POLL_INTERVAL).await;
            }
            Err(why) => return Err(why).context("the new process cannot be reached"),
        }
    }
}

/// A unix socket whose file is removed when this is dropped.
struct SocketFile {
    listener: UnixListener,
    name: String,
}

impl SocketFile {
    fn bind(name: String) -> anyhow::Result<SocketFile> {
        // A killed process may have left its socket file.
        let _ = fs::remove_file(&name);
        let listener = UnixListener::bind(&name).with_context(|| format!("no socket {name}"))?;
        Ok(SocketFile { listener, name })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_would_be_ended_by_the_signal_is_not_told() {
        let status = |mask: &str| format!("Name:\tx\nSigIgn:\t0000000000000004\nSigCgt:\t{mask}\n");
        assert!(handles_sigquit(&status("0000000000000004")));
        assert!(handles_sigquit(&status("0000000180004007")));
        assert!(!handles_sigquit(&status("0000000180004003")));
        assert!(!handles_sigquit(""));
        let own = fs::read_to_string("/proc/self/status").expect("the system tells");
        assert!(!handles_sigquit(&own));
    }

    #[test]
    fn a_number_that_is_our_own_is_nobody_to_take_over_from() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("t.pid").display().to_string();
        fs::write(&file, format!("{}\n", std::process::id())).expect("a file");
        let why = running_pid(&file).expect_err("it is ourselves");
        assert!(why.to_string().contains("this process itself"), "{why}");
    }
}
