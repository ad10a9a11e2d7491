//! The address of the client of a request, also if something stands between: the proxies that the
//! configuration names state it, as they do for the calls of clients.

use std::net::IpAddr;

use axum::http::HeaderMap;
use tokio::io::AsyncRead;

use crate::gateway::edge::proxy_protocol::{ConnectionSource, ProxyHeaderError, read_source};
use crate::gateway::request::client_address::{AmbiguousForwarding, ProxyMode, TrustedProxies};

/// The address of a client, which the server adds to each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientAddress {
    /// The address of the client, or of the proxy nearest to it that is known.
    pub(crate) shown: IpAddr,
    /// Whether it is that of the client itself.
    is_client: bool,
}

impl ClientAddress {
    fn of_client(address: IpAddr) -> ClientAddress {
        ClientAddress { shown: address.to_canonical(), is_client: true }
    }

    fn of_proxy(address: IpAddr) -> ClientAddress {
        ClientAddress { shown: address.to_canonical(), is_client: false }
    }

    /// Returns the address of the client itself; `None` if only that of a proxy is known.
    pub(crate) fn client(self) -> Option<IpAddr> {
        self.is_client.then_some(self.shown)
    }
}

/// Who connects to a listener, and so where the addresses of clients are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AddressSource {
    /// Clients connect by themselves.
    Peer,
    /// A proxy connects that says nothing of its clients.
    SilentProxy,
    /// These proxies state their clients' addresses. Any other peer is a client itself, and what
    /// it states means nothing.
    Proxies(TrustedProxies),
}

impl AddressSource {
    /// Returns the source of a listener whose public address is `url` if it has one: then a proxy
    /// stands before it.
    pub(crate) fn new(url: Option<&str>, proxies: Option<&TrustedProxies>) -> AddressSource {
        match (url, proxies) {
            (None, _) => AddressSource::Peer,
            (Some(_), None) => AddressSource::SilentProxy,
            (Some(_), Some(proxies)) => AddressSource::Proxies(proxies.clone()),
        }
    }

    /// Reads the PROXY header of a new connection, if its peer has to begin with one. Returns whose
    /// connection it is, as far as that is known without its requests, and the bytes that were read
    /// after the header.
    pub(super) async fn read_connection(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        peer: IpAddr,
    ) -> Result<(ClientAddress, Vec<u8>), ProxyHeaderError> {
        match self {
            AddressSource::SilentProxy => Ok((ClientAddress::of_proxy(peer), Vec::new())),
            AddressSource::Proxies(proxies)
                if proxies.mode == ProxyMode::Protocol && proxies.contains(peer) =>
            {
                let (source, rest) = read_source(stream).await?;
                let address = match source {
                    ConnectionSource::Client(client) => ClientAddress::of_client(client.ip()),
                    ConnectionSource::Proxy => ClientAddress::of_proxy(peer),
                };
                Ok((address, rest))
            }
            AddressSource::Peer | AddressSource::Proxies(_) => {
                Ok((ClientAddress::of_client(peer), Vec::new()))
            }
        }
    }

    /// Returns the address of the client whose connection it is; `None` if a proxy has opened it,
    /// which does so for many clients.
    pub(super) fn client_of(&self, connection: ClientAddress) -> Option<IpAddr> {
        let client = connection.client()?;
        let AddressSource::Proxies(proxies) = self else { return Some(client) };
        (proxies.mode != ProxyMode::Header || !proxies.contains(client)).then_some(client)
    }

    /// Returns the address of the client of a request. `connection` is that of its connection.
    ///
    /// # Errors
    /// A trusted proxy has passed on both headers, one of which the client has written.
    pub(super) fn resolve(
        &self,
        connection: ClientAddress,
        headers: &HeaderMap,
    ) -> Result<ClientAddress, AmbiguousForwarding> {
        let AddressSource::Proxies(proxies) = self else { return Ok(connection) };
        if proxies.mode != ProxyMode::Header || !proxies.contains(connection.shown) {
            return Ok(connection);
        }
        let client = proxies.resolve_client(connection.shown, headers)?;
        let is_proxy = proxies.contains(client);
        Ok(if is_proxy {
            ClientAddress::of_proxy(client)
        } else {
            ClientAddress::of_client(client)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn proxies(mode: ProxyMode) -> AddressSource {
        let networks = vec!["10.0.0.0/8".parse().expect("a network")];
        AddressSource::new(Some("https://a.example"), Some(&TrustedProxies { mode, networks }))
    }

    async fn address(
        source: &AddressSource,
        peer: &str,
        mut bytes: &[u8],
        header: Option<&'static str>,
    ) -> Option<ClientAddress> {
        let read = source.read_connection(&mut bytes, ip(peer)).await.ok()?;
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert("x-forwarded-for", header.parse().expect("a value"));
        }
        source.resolve(read.0, &headers).ok()
    }

    #[tokio::test]
    async fn only_a_trusted_proxy_speaks_for_others() {
        let line = b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n";
        let of_client = |text| Some(ClientAddress::of_client(ip(text)));
        let of_proxy = |text| Some(ClientAddress::of_proxy(ip(text)));
        let (protocol, header) = (proxies(ProxyMode::Protocol), proxies(ProxyMode::Header));
        let forged = Some("6.6.6.6, 192.0.2.7");
        assert_eq!(address(&protocol, "10.0.0.1", line, forged).await, of_client("192.0.2.7"));
        assert_eq!(address(&protocol, "10.0.0.1", b"GET / HTTP/1.1\r\n", None).await, None);
        let own = b"PROXY UNKNOWN\r\n";
        assert_eq!(address(&protocol, "10.0.0.1", own, None).await, of_proxy("10.0.0.1"));
        assert_eq!(address(&protocol, "127.0.0.1", b"", forged).await, of_client("127.0.0.1"));
        assert_eq!(address(&header, "10.0.0.1", b"", forged).await, of_client("192.0.2.7"));
        assert_eq!(address(&header, "10.0.0.1", b"", None).await, of_proxy("10.0.0.1"));
        assert_eq!(address(&header, "127.0.0.1", b"", forged).await, of_client("127.0.0.1"));
        let silent = AddressSource::new(Some("https://a.example"), None);
        assert_eq!(address(&silent, "10.0.0.1", b"", forged).await, of_proxy("10.0.0.1"));
        let direct = AddressSource::new(None, None);
        assert_eq!(address(&direct, "192.0.2.7", b"", forged).await, of_client("192.0.2.7"));
    }

    #[test]
    fn a_request_with_both_headers_has_no_address() {
        let source = proxies(ProxyMode::Header);
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "192.0.2.7".parse().expect("a value"));
        headers.insert("forwarded", "for=192.0.2.8".parse().expect("a value"));
        let connection = ClientAddress::of_client(ip("10.0.0.1"));
        assert_eq!(source.resolve(connection, &headers), Err(AmbiguousForwarding));
        let stranger = ClientAddress::of_client(ip("192.0.2.9"));
        assert_eq!(source.resolve(stranger, &headers), Ok(stranger));
    }
}
