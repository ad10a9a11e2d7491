//! Reads the PROXY header, with which a proxy begins a connection to state the client's address
//! (PROXY protocol, version 1 or 2, as `HAProxy` specifies it).

use std::net::SocketAddr;

use pingora::protocols::l4::stream::Stream as Socket;
use pingora::protocols::{GetSocketDigest, SocketDigest, UniqueID};
use ppp::v1::Addresses as TextAddresses;
use ppp::v2::{Addresses as BinaryAddresses, Command};
use ppp::{HeaderResult, PartialResult};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The initial capacity of the read buffer, in bytes. Nearly all headers are shorter.
const HEADER_CAPACITY_INITIAL: usize = 256;
/// A header has at most this many bytes. A longer one of version 2 would only add extension fields,
/// which the gateway does not read; it is refused.
const HEADER_BYTES_MAX: usize = 4 << 10;
/// A header of version 1 has at most this many bytes, with its CR LF.
const V1_BYTES_MAX: usize = 107;
/// The first bytes of a header of version 1 and of version 2.
const SIGNATURES: [&[u8]; 2] = [b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];

/// Why no PROXY header could be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyHeaderError {
    /// The connection ended or failed before the header was complete.
    Ended,
    /// The connection does not begin with a valid header, or the header is too long.
    Malformed,
}

/// On whose behalf a proxy opened a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionSource {
    /// On its own behalf, such as for a health check.
    Proxy,
    /// On behalf of the client with this address.
    Client(SocketAddr),
}

/// Reads the PROXY header at the start of a connection. The bytes after the header remain to be
/// read. If the header names a client, the client's address becomes the peer address of the socket.
pub(super) async fn read_header(socket: &mut Socket) -> Result<ConnectionSource, ProxyHeaderError> {
    let (source, rest) = read_source(socket).await?;
    socket.rewind(&rest);
    if let ConnectionSource::Client(address) = source {
        let digest = SocketDigest::from_raw_fd(socket.id());
        // Cannot fail: the peer address of the new digest is not set yet.
        let _ = digest.peer_addr.set(Some(address.into()));
        socket.set_socket_digest(digest);
    }
    Ok(source)
}

/// Reads the PROXY header at the start of a connection. Returns the bytes that were read after it
/// as well.
pub(crate) async fn read_source(
    socket: &mut (impl AsyncRead + Unpin),
) -> Result<(ConnectionSource, Vec<u8>), ProxyHeaderError> {
    let mut bytes: Vec<u8> = Vec::with_capacity(HEADER_CAPACITY_INITIAL);
    loop {
        let left = HEADER_BYTES_MAX - bytes.len();
        let read = (&mut *socket).take(left as u64).read_buf(&mut bytes).await;
        if !matches!(read, Ok(1..)) {
            return Err(ProxyHeaderError::Ended);
        }
        if let Some((source, length)) = parse(&bytes)? {
            return Ok((source, bytes.split_off(length)));
        }
        if bytes.len() >= HEADER_BYTES_MAX {
            return Err(ProxyHeaderError::Malformed);
        }
    }
}

/// Parses the header at the start of `bytes`. Returns its source and its length in bytes; `None` if
/// the header is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(ConnectionSource, usize)>, ProxyHeaderError> {
    use ProxyHeaderError::Malformed;
    let begins = |known: &&[u8]| {
        let length = known.len().min(bytes.len());
        known[..length] == bytes[..length]
    };
    if !SIGNATURES.iter().any(begins) {
        return Err(Malformed);
    }
    // The parser of version 1 rejects some incomplete headers as invalid, so it gets only complete
    // lines.
    let is_text = bytes[0] == b'P';
    if is_text && !bytes.windows(2).any(|two| two == b"\r\n") {
        return if bytes.len() < V1_BYTES_MAX { Ok(None) } else { Err(Malformed) };
    }
    let header = HeaderResult::parse(bytes);
    if header.is_incomplete() {
        return if is_text { Err(Malformed) } else { Ok(None) };
    }
    match header {
        HeaderResult::V1(Ok(header)) => {
            let source = match header.addresses {
                TextAddresses::Tcp4(at) => client_source(at.source_address.into(), at.source_port),
                TextAddresses::Tcp6(at) => client_source(at.source_address.into(), at.source_port),
                TextAddresses::Unknown => ConnectionSource::Proxy,
            };
            Ok(Some((source, header.header.len())))
        }
        HeaderResult::V2(Ok(header)) => {
            let source = match (&header.command, &header.addresses) {
                (Command::Proxy, BinaryAddresses::IPv4(at)) => {
                    client_source(at.source_address.into(), at.source_port)
                }
                (Command::Proxy, BinaryAddresses::IPv6(at)) => {
                    client_source(at.source_address.into(), at.source_port)
                }
                _ => ConnectionSource::Proxy,
            };
            Ok(Some((source, header.len())))
        }
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => Err(Malformed),
    }
}

fn client_source(address: std::net::IpAddr, port: u16) -> ConnectionSource {
    ConnectionSource::Client(SocketAddr::new(address.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V2: &[u8] = SIGNATURES[1];

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("short").to_be_bytes();
        [V2, &[0x20 | command, family], &length, body].concat()
    }

    fn speaks_for(bytes: &[u8]) -> Option<ConnectionSource> {
        parse(bytes).ok().flatten().map(|(speaker, _)| speaker)
    }

    fn at(text: &str) -> ConnectionSource {
        ConnectionSource::Client(text.parse().expect("an address"))
    }

    #[test]
    fn both_versions_are_read() {
        let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\nGET /";
        assert_eq!(speaks_for(line), Some(at("192.0.2.7:56324")));
        assert_eq!(parse(line).ok().flatten().map(|(_, length)| length), Some(line.len() - 5));
        assert_eq!(
            speaks_for(b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n"),
            Some(at("[2001:db8::7]:1"))
        );
        assert_eq!(speaks_for(b"PROXY UNKNOWN\r\n"), Some(ConnectionSource::Proxy));
        let four = [192, 0, 2, 7, 10, 0, 0, 1, 0, 80, 1, 187];
        assert_eq!(speaks_for(&v2(1, 0x11, &four)), Some(at("192.0.2.7:80")));
        assert_eq!(speaks_for(&v2(0, 0, &[])), Some(ConnectionSource::Proxy), "a health check");
        // Extension fields after the addresses are ignored, and count as part of the header.
        let longer = [&four[..], &[4, 0, 1, 0]].concat();
        let read = parse(&[v2(1, 0x11, &longer), b"GET".to_vec()].concat());
        assert_eq!(read.ok().flatten().map(|(_, length)| length), Some(16 + 16));
    }

    #[test]
    fn whoever_does_not_say_for_whom_it_speaks_is_not_heard() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\0", b"PROXY TCP4 x y\r\n"] {
            assert_eq!(parse(bytes), Err(ProxyHeaderError::Malformed), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_line_that_comes_in_pieces_is_the_same_line(cut in 0_usize..40) {
            let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n";
            prop_assert_eq!(parse(&line[..(cut + 1).min(line.len() - 1)]), Ok(None));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 1..600)) {
            let _ = parse(&bytes);
            let _ = parse(&[V2, &bytes].concat());
        }
    }
}
