//! Taking over from a process that runs, and giving way to the next one.
//!
//! The new process waits at a socket of its own; told to by SIGQUIT, the old one sends its
//! listening sockets there. The way over the socket is pingora's. The new one then makes sure that
//! it can serve at all its addresses, and says so at a socket of the old one. Only when that has
//! agreed does the new one take its first connection. Both serve for some seconds more, and then
//! the old one stops as it would at SIGTERM. If either goes away in between, the other one serves.
//! Nothing is refused meanwhile, since the sockets stay open all the time.

use std::fs;
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use pingora_core::server::ListenFds;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::conf::ServerSection;
use crate::store::upkeep::Upkeep;

/// Who is told to give way waits so long for somebody to give way to.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Who takes over has to be able to sell within this.
const READY_WAIT: Duration = Duration::from_secs(30);
/// And to serve within this, from when it has the sockets.
const SERVE_WAIT: Duration = Duration::from_secs(30);
/// For so long both do: a new process that dies young does so beside the old one.
const PROBATION: Duration = Duration::from_secs(5);
/// What the system takes as the name of a socket.
const SOCKET_BYTES_MAX: usize = 107;

/// What the new process says, and what it may hear.
const READY: &[u8] = b"ready\n";
const LEAVES: &str = "leaves\n";
const STAYS: &str = "stays\n";

/// The socket at which a new process waits, by its whole name: the system tells apart what is named
/// differently, and does not tell apart what two folders have under the same name.
pub(super) fn socket(server: &ServerSection) -> anyhow::Result<String> {
    let path = std::path::absolute(&server.upgrade_sock).context("server.upgrade_sock")?;
    let name = path.display().to_string();
    ensure!(consent(&name).len() <= SOCKET_BYTES_MAX, "server.upgrade_sock is too long: {name}");
    Ok(name)
}

/// The socket at which the old process waits for the new one's word.
fn consent(socket: &str) -> String {
    format!("{socket}-old")
}

/// Waits until anything can be bought from this process: until then the other one goes on.
fn wait_until_open(upkeep: &Upkeep) -> anyhow::Result<()> {
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
pub(super) fn begin(server: &ServerSection, socket: &str, upkeep: &Upkeep) -> anyhow::Result<()> {
    wait_until_open(upkeep)?;
    if let Some(folder) = Path::new(socket).parent() {
        fs::create_dir_all(folder).context("no folder for server.upgrade_sock")?;
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

/// Writes down which process runs from now on. Whoever reads it finds all of it.
pub(super) fn sign(server: &ServerSection) {
    let Some(file) = &server.pid_file else { return };
    let folder = Path::new(file).parent().map_or(Ok(()), fs::create_dir_all);
    let number = std::process::id();
    let new = format!("{file}.{number}");
    let written = folder.and_then(|()| fs::write(&new, format!("{number}\n")));
    if let Err(why) = written.and_then(|()| fs::rename(&new, file)) {
        log::error!(file, why:% = why; "the number of this process is not written down");
    }
}

/// The process of a file, if it is one of this program's that can be told: numbers are given anew.
fn running(file: &str) -> anyhow::Result<Pid> {
    let text = fs::read_to_string(file)?;
    let number = text.trim().parse().ok().and_then(Pid::from_raw);
    let pid = number.ok_or_else(|| anyhow!("{} is no process", text.trim()))?;
    let number = pid.as_raw_nonzero();
    ensure!(number.get().cast_unsigned() != std::process::id(), "{number} is this process itself");
    let program = fs::read_to_string(format!("/proc/{number}/comm"))?;
    let own = fs::read_to_string("/proc/self/comm")?;
    ensure!(program == own, "process {number} is {}", program.trim());
    let status = fs::read_to_string(format!("/proc/{number}/status"))?;
    ensure!(hears_quit(&status), "process {number} does not listen, and QUIT would end it");
    Ok(pid)
}

/// Whether a process does something of its own at SIGQUIT, by what the system says of it.
fn hears_quit(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::QUIT.as_raw() - 1)) != 0)
}

/// What a new process says to the old one whose sockets it has.
pub(super) struct Word(Option<UnixStream>);

impl Word {
    /// Goes to the old one. As long as this is there, it knows that the new one is.
    pub(super) async fn begin(socket: &str) -> anyhow::Result<Word> {
        match UnixStream::connect(consent(socket)).await {
            Ok(stream) => Ok(Word(Some(stream))),
            // Nobody is left who could stay.
            Err(why) if matches!(why.kind(), NotFound | ConnectionRefused) => Ok(Word(None)),
            Err(why) => Err(why).context("the running process cannot be asked to leave"),
        }
    }

    /// Says that this process can serve; the old one then leaves before long.
    pub(super) async fn give(self) -> anyhow::Result<()> {
        let Some(mut stream) = self.0 else { return Ok(()) };
        // Whoever does not take it, or closes without a word, has gone.
        let _ = stream.write_all(READY).await;
        let (mut stream, mut heard) = (BufReader::new(stream), String::new());
        let read = timeout(SERVE_WAIT, stream.read_line(&mut heard)).await;
        let _ = read.context("the running process is silent")?;
        if heard == STAYS {
            bail!("the running process stays");
        }
        // It looks whether this is still there until it leaves.
        tokio::spawn(async move { stream.read_to_end(&mut Vec::new()).await });
        Ok(())
    }
}

/// Gives way to a new process, if one waits and can serve.
///
/// # Errors
/// Why this process stays.
pub(super) async fn give_way(
    sockets: Option<&ListenFds>,
    socket: &str,
    server: &ServerSection,
) -> anyhow::Result<()> {
    let sockets = sockets.context("this process does not serve yet")?;
    let looking = async {
        while !is_awaited(socket) {
            sleep(LOOK_EVERY).await;
        }
    };
    let there = timeout(SUCCESSOR_WAIT, looking).await;
    there.map_err(|_| anyhow!("nobody is there to give way to at {socket}"))?;
    let place = Place::at(consent(socket))?;
    let (sockets, to) = (sockets.clone(), socket.to_owned());
    let sending = move || sockets.lock().send_to_sock(to.as_str());
    tokio::task::spawn_blocking(sending).await?.context("the sockets cannot be sent")?;
    let end = tokio::time::Instant::now() + SERVE_WAIT;
    let late = "the new process is not ready in time";
    let come = tokio::time::timeout_at(end, place.listener.accept());
    let (mut stream, _) = come.await.context(late)??;
    let mut word = [0; READY.len()];
    let heard = tokio::time::timeout_at(end, stream.read_exact(&mut word)).await;
    let heard = heard.context(late).and_then(|read| read.context("the new process has ended"));
    if let Err(why) = heard {
        // Else it would think that it is alone.
        let _ = stream.write_all(STAYS.as_bytes()).await;
        return Err(why);
    }
    let gone = "the new process has ended";
    stream.write_all(LEAVES.as_bytes()).await.context(gone)?;
    // It says nothing more.
    if timeout(PROBATION, stream.read(&mut word)).await.is_ok() {
        // It may have signed in this one's place.
        sign(server);
        bail!(gone);
    }
    Ok(())
}

/// A socket that is there for as long as this is.
struct Place {
    listener: UnixListener,
    name: String,
}

impl Place {
    fn at(name: String) -> anyhow::Result<Place> {
        // What a process left that was killed.
        let _ = fs::remove_file(&name);
        let listener = UnixListener::bind(&name).with_context(|| format!("no socket {name}"))?;
        Ok(Place { listener, name })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.name);
    }
}

/// Whether another process waits at the socket. To ask it would be to be the one it waits for, so
/// the system is asked.
fn is_awaited(socket: &str) -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| listens_at(line, socket))
}

/// Whether a line of the system's list of sockets is about one that listens under this name.
fn listens_at(line: &str, name: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    words.nth(3) == Some("00010000") && line.ends_with(&format!(" {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!is_awaited(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        assert!(is_awaited(&path));
        drop(listener);
        assert!(!is_awaited(&path));
    }

    #[test]
    fn who_would_be_ended_by_the_signal_is_not_told() {
        let status = |mask: &str| format!("Name:\tx\nSigIgn:\t0000000000000004\nSigCgt:\t{mask}\n");
        assert!(hears_quit(&status("0000000000000004")));
        assert!(hears_quit(&status("0000000180004007")));
        assert!(!hears_quit(&status("0000000180004003")));
        assert!(!hears_quit(""));
        let own = fs::read_to_string("/proc/self/status").expect("the system tells");
        assert!(!hears_quit(&own));
    }

    #[test]
    fn a_number_that_is_our_own_is_nobody_to_take_over_from() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("t.pid").display().to_string();
        fs::write(&file, format!("{}\n", std::process::id())).expect("a file");
        let why = running(&file).expect_err("it is ourselves");
        assert!(why.to_string().contains("this process itself"), "{why}");
    }
}
