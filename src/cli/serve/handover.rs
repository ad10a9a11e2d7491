//! Passes listening sockets from one process to the next: over a unix socket, only between
//! processes of the same user, and only sockets that listen at an address of the configuration.
//!
//! pingora can send sockets too. But it takes them from the first process that connects, over a
//! unix socket that every user may open, and it trusts the names that come with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow, bail, ensure};
use rustix::cmsg_space;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::geteuid;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The most sockets that are sent. A process has four at most.
const SOCKETS_MAX: usize = 8;
/// The most bytes of the addresses that are sent, one per line.
const NAMES_BYTES_MAX: usize = 2_048;

/// A listening socket, with its address in the configuration.
pub(super) type NamedSocket = (String, TcpListener);

/// The listening sockets of this process while it accepts connections. A copy that stays open keeps
/// clients waiting in its queue, so all copies must be closed at the end.
#[derive(Default)]
pub(super) struct ListenerSet(Mutex<Vec<NamedSocket>>);

impl ListenerSet {
    pub(super) fn set(&self, listeners: Vec<NamedSocket>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = listeners;
    }

    /// Duplicates the socket of an address; `None` if there is none.
    pub(super) fn find(&self, address: &str) -> std::io::Result<Option<TcpListener>> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = listeners.iter().find(|(name, _)| name == address);
        found.map(|(_, listener)| listener.try_clone()).transpose()
    }

    /// Closes the sockets.
    pub(super) fn close(&self) {
        self.set(Vec::new());
    }

    /// Duplicates the sockets; empty while this process does not serve.
    fn try_clone_all(&self) -> std::io::Result<Vec<NamedSocket>> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = |(name, listener): &NamedSocket| Ok((name.clone(), listener.try_clone()?));
        listeners.iter().map(copy).collect()
    }
}

/// Checks by the credentials from the kernel that the peer is a process of this process's user or
/// of root, which could do anything anyway.
pub(super) fn check_peer(stream: &UnixStream) -> anyhow::Result<()> {
    let peer = stream.peer_cred().context("the system does not say who is there")?;
    let (uid, own) = (peer.uid(), geteuid().as_raw());
    ensure!(is_trusted(uid, own), "a process of user {uid} is there; this one is of user {own}");
    Ok(())
}

fn is_trusted(uid: u32, own: u32) -> bool {
    uid == own || uid == 0
}

/// Sends the sockets of this process.
pub(super) async fn send_listeners(
    stream: &UnixStream,
    listeners: &ListenerSet,
) -> anyhow::Result<()> {
    let listeners = listeners.try_clone_all()?;
    ensure!(!listeners.is_empty(), "this process does not serve yet");
    send_sockets(stream, &listeners, "\n").await
}

async fn send_sockets(
    stream: &UnixStream,
    listeners: &[NamedSocket],
    separator: &str,
) -> anyhow::Result<()> {
    let names: Vec<&str> = listeners.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(separator);
    let sockets: Vec<_> = listeners.iter().map(|(_, listener)| listener.as_fd()).collect();
    let fits = sockets.len() <= SOCKETS_MAX && names.len() <= NAMES_BYTES_MAX;
    ensure!(fits, "there are too many sockets to send");
    let write = || {
        let mut space = [const { MaybeUninit::uninit() }; cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
        let names = [IoSlice::new(names.as_bytes())];
        Ok(sendmsg(stream, &names, &mut ancillary, SendFlags::NOSIGNAL)?)
    };
    let sent = stream.async_io(Interest::WRITABLE, write).await?;
    // A message this small is sent completely or not at all.
    ensure!(sent == names.len(), "the sockets went in part");
    Ok(())
}

/// Receives the sockets that another process sends, and keeps those for `addresses`.
///
/// # Errors
/// Nothing was received, or what was received does not fit the configuration.
pub(super) async fn receive_listeners(
    stream: &UnixStream,
    addresses: &[String],
) -> anyhow::Result<Vec<NamedSocket>> {
    let mut names = [0; NAMES_BYTES_MAX];
    let mut sockets: Vec<OwnedFd> = Vec::new();
    let read = || {
        let mut space = [const { MaybeUninit::uninit() }; cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut names)];
        let read = recvmsg(stream, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received_fds) = message {
                sockets.extend(received_fds);
            }
        }
        Ok((read.bytes, read.flags.contains(ReturnFlags::CTRUNC)))
    };
    let (length, is_cut) = stream.async_io(Interest::READABLE, read).await?;
    ensure!(!is_cut, "more sockets came than a process has");
    let names = std::str::from_utf8(&names[..length]).context("the sockets have no names")?;
    // A version before this one separates the names by spaces.
    let names: Vec<&str> = names.split_ascii_whitespace().collect();
    ensure!(names.len() == sockets.len(), "{} sockets came for {names:?}", sockets.len());
    let received =
        names.into_iter().map(str::to_owned).zip(sockets.into_iter().map(TcpListener::from));
    select_configured(received.collect(), addresses)
}

/// Selects the sockets that listen at configured addresses. A socket for an address that is no
/// longer configured is closed.
fn select_configured(
    received: Vec<NamedSocket>,
    addresses: &[String],
) -> anyhow::Result<Vec<NamedSocket>> {
    let mut ours: Vec<NamedSocket> = Vec::new();
    for (name, listener) in received {
        if !addresses.contains(&name) {
            log::info!(
                event = "upgrade_address_skipped", address = name;
                "socket for an unconfigured address skipped"
            );
            continue;
        }
        if ours.iter().any(|(known, _)| *known == name) {
            bail!("two sockets came for {name}");
        }
        check_address(&name, &listener).with_context(|| format!("the socket for {name}"))?;
        ours.push((name, listener));
    }
    ensure!(!ours.is_empty(), "no socket came for any address of the configuration");
    Ok(ours)
}

fn check_address(name: &str, listener: &TcpListener) -> anyhow::Result<()> {
    let is_listening = socket_acceptconn(listener).unwrap_or(false);
    ensure!(is_listening, "it does not listen");
    let wanted: SocketAddr = name.parse().map_err(|_| anyhow!("that is no address"))?;
    let found = listener.local_addr().context("it has no address")?;
    // With port 0 any port is as configured.
    let is_wanted =
        found.ip() == wanted.ip() && (found.port() == wanted.port() || wanted.port() == 0);
    ensure!(is_wanted, "it listens at {found}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rstest::rstest;

    use super::*;

    fn listener() -> NamedSocket {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        (listener.local_addr().expect("its address").to_string(), listener)
    }

    /// Sends sockets to a process that has these addresses, and returns the names that it accepts.
    async fn sent(
        listeners: Vec<NamedSocket>,
        addresses: &[String],
    ) -> Result<Vec<String>, String> {
        sent_with("\n", listeners, addresses).await
    }

    async fn sent_with(
        separator: &str,
        listeners: Vec<NamedSocket>,
        addresses: &[String],
    ) -> Result<Vec<String>, String> {
        let (from, to) = UnixStream::pair().expect("two ends");
        check_peer(&from).expect("it is this process");
        send_sockets(&from, &listeners, separator).await.expect("sent");
        drop(listeners);
        let received = receive_listeners(&to, addresses).await.map_err(|why| format!("{why:#}"))?;
        for (name, listener) in &received {
            assert_eq!(&listener.local_addr().expect("its address").to_string(), name);
            std::net::TcpStream::connect(name).expect("it still listens");
        }
        Ok(received.into_iter().map(|(name, _)| name).collect())
    }

    #[tokio::test]
    async fn sockets_come_as_they_were_sent_and_those_of_other_addresses_are_closed() {
        let [http, admin, other] = [listener(), listener(), listener()];
        let gone = other.0.clone();
        let addresses = [http.0.clone(), admin.0.clone()];
        let received = sent(vec![http, admin, other], &addresses).await;
        assert_eq!(received.as_deref(), Ok(&addresses[..]));
        assert!(std::net::TcpStream::connect(gone).is_err(), "nobody has it any more");
    }

    #[tokio::test]
    async fn a_version_that_separates_names_by_spaces_could_not_be_upgraded() {
        let [http, admin] = [listener(), listener()];
        let addresses = [http.0.clone(), admin.0.clone()];
        let received = sent_with(" ", vec![http, admin], &addresses).await;
        assert_eq!(received.as_deref(), Ok(&addresses[..]));
    }

    #[tokio::test]
    async fn a_socket_of_a_strangers_choice_was_taken_under_our_address() {
        let (mine, theirs) = (listener(), listener());
        let addresses = [mine.0.clone()];
        let why = sent(vec![(mine.0.clone(), theirs.1)], &addresses).await.expect_err("refused");
        assert!(why.contains(&format!("{}: it listens at {}", mine.0, theirs.0)), "{why}");
    }

    #[tokio::test]
    async fn what_does_not_listen_or_is_for_nobody_is_refused() {
        let open = listener();
        let line = std::net::TcpStream::connect(&open.0).expect("a connection");
        let (name, line) = (line.local_addr().expect("its address").to_string(), line);
        let line = TcpListener::from(OwnedFd::from(line));
        let why = sent(vec![(name.clone(), line)], &[name]).await.expect_err("a connection");
        assert!(why.contains("it does not listen"), "{why}");
        let file = TcpListener::from(OwnedFd::from(tempfile::tempfile().expect("a file")));
        let name = "127.0.0.1:1".to_owned();
        let why = sent(vec![(name.clone(), file)], &[name]).await.expect_err("a file");
        assert!(why.contains("it does not listen"), "{why}");
        let why = sent(vec![listener()], &["127.0.0.1:1".to_owned()]).await.expect_err("not ours");
        assert!(why.contains("no socket came"), "{why}");
        let twice = listener();
        let copy = (twice.0.clone(), twice.1.try_clone().expect("a copy"));
        let name = twice.0.clone();
        let why = sent(vec![twice, copy], &[name]).await.expect_err("twice");
        assert!(why.contains("two sockets came"), "{why}");
    }

    #[tokio::test]
    async fn nothing_at_all_is_refused() {
        let (from, to) = UnixStream::pair().expect("two ends");
        drop(from);
        let why =
            receive_listeners(&to, &["127.0.0.1:1".to_owned()]).await.expect_err("nothing came");
        assert!(why.to_string().contains("no socket came"), "{why}");
        let (from, _to) = UnixStream::pair().expect("two ends");
        let why = send_listeners(&from, &ListenerSet::default()).await.expect_err("there are none");
        assert!(why.to_string().contains("does not serve yet"), "{why}");
    }

    #[rstest]
    #[case(1_000, 1_000, true)]
    #[case(0, 1_000, true)]
    #[case(0, 0, true)]
    #[case(1_001, 1_000, false)]
    #[case(1_000, 0, false)]
    #[case(65_534, 0, false)]
    fn only_processes_of_the_same_user_are_heard(
        #[case] uid: u32,
        #[case] own: u32,
        #[case] is_heard: bool,
    ) {
        assert_eq!(is_trusted(uid, own), is_heard);
    }
}
