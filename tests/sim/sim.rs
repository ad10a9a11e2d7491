//! A stand-in for the vendors: their endpoints as they really behave, and the faults they
//! really have, asked for in the address of a request.
//!
//! It writes HTTP/1.1 by itself, because a fault needs control of every byte. The same port takes
//! it plain, over TLS, and translated to HTTP/2.

#![allow(dead_code, reason = "the tests and the program each use a part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

mod address;
mod answer;
mod asked;
mod authority;
mod connection;
mod control;
mod crc;
mod delivery;
mod embeddings;
mod endpoint;
mod errors;
mod fast;
mod faults;
mod http2;
mod images;
mod member;
mod messages;
mod models;
mod moderations;
mod multipart;
mod noise;
mod record;
mod refusal;
mod reply;
mod responses;
mod said;
mod script;
mod speech;
mod tls;
mod usage;
mod vendor;
mod videos;
mod wire;

#[cfg(test)]
mod roads;

#[allow(unused_imports, reason = "names of the public fields, for tests that spell them")]
pub(crate) use {
    authority::Authority,
    embeddings::vector,
    images::picture,
    record::{Billed, Seen, SentFile},
    speech::sound,
    tls::Protocol,
    videos::{Calls, Video, film, footage},
};

/// A running simulator; it stops, with all its connections, when dropped.
pub(crate) struct Sim {
    address: SocketAddr,
    authority: Authority,
    protocol: Protocol,
    record: Arc<record::Record>,
    accepting: AbortHandle,
}

impl Sim {
    /// Starts on a free port of this machine, for addresses without TLS.
    pub(crate) async fn start() -> Sim {
        Sim::start_on("127.0.0.1:0", Protocol::Plain).await
    }

    /// Starts on the given address; panics when it cannot be bound.
    pub(crate) async fn start_on(address: &str, protocol: Protocol) -> Sim {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => panic!("cannot listen on {address}: {error}"),
        };
        let record = Arc::new(record::Record::default());
        let authority = Authority::new();
        let acceptor = tls::acceptor(&authority.issue_server(), protocol);
        Sim {
            address: listener.local_addr().expect("a bound socket has an address"),
            accepting: tokio::spawn(accept(listener, Arc::clone(&record), acceptor)).abort_handle(),
            authority,
            protocol,
            record,
        }
    }

    /// The address it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate of the authority that vouches for it, PEM.
    pub(crate) fn certificate(&self) -> &str {
        self.authority.certificate()
    }

    /// The base url of a vendor with faults, such as `status=429;retry-after=2`, or none.
    pub(crate) fn base_url(&self, vendor: &str, faults: &str) -> String {
        let version = vendor::Vendor::named(vendor).map_or("v1", vendor::Vendor::version);
        let faults = if faults.is_empty() { String::new() } else { format!("{faults}/") };
        format!("{}://{}/{vendor}/{faults}{version}", self.protocol.scheme(), self.address)
    }

    /// The requests recorded so far, oldest first.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.record.seen()
    }

    /// The requests recorded so far, which are then forgotten.
    ///
    /// What is taken no longer changes: take after [`Sim::quiet`] when `completed` matters.
    pub(crate) fn take_seen(&self) -> Vec<Seen> {
        self.record.take_seen()
    }

    /// How many requests a vendor received, recorded or not.
    pub(crate) fn count(&self, vendor: &str) -> u64 {
        self.record.count(vendor)
    }

    /// How often the list of models was asked for, of whichever vendor.
    pub(crate) fn probes(&self) -> u64 {
        self.record.probes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> u64 {
        self.record.connections.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The videos ordered so far, oldest first.
    pub(crate) fn videos(&self) -> Vec<Video> {
        self.record.videos.videos()
    }

    /// How many requests there were about videos, whatever the answers.
    pub(crate) fn video_calls(&self) -> Calls {
        self.record.videos.calls()
    }

    /// Lets go of what is held, and of what comes later.
    pub(crate) fn let_go(&self) {
        self.record.let_go(true);
    }

    /// Holds again what says so, which it does from the beginning.
    pub(crate) fn hold(&self) {
        self.record.let_go(false);
    }

    /// Waits until no recorded request is being answered; false when `limit` passed first.
    pub(crate) async fn quiet(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.record.open() > 0 {
            if start.elapsed() > limit {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        true
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, record: Arc<record::Record>, acceptor: TlsAcceptor) {
    let mut connections = JoinSet::new();
    loop {
        // An accept fails for want of file descriptors, which the next moment may bring.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        connections.spawn(connection::serve(stream, Arc::clone(&record), acceptor.clone()));
        while connections.try_join_next().is_some() {}
    }
}
