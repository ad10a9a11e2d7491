//! Finds the address of the client, also if the request came through the operator's proxies.
//!
//! Only proxies that the configuration names may state the client's address. No other peer may
//! connect then, because it could claim any address. In a forwarded header, the last hop that is
//! not such a proxy is the client. The client itself supplied all hops before that one, so they are
//! ignored.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use pingora::protocols::l4::socket::SocketAddr as Peer;
use pingora::proxy::Session;

use crate::dialect::CallError;
use crate::gateway::api_error::ApiError;

/// At most this many hops of a header are read, from its end. No chain of proxies is longer.
const HOPS_MAX: usize = 32;
/// The two headers in which proxies state the client's address.
const FORWARDED: &str = "forwarded";
const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// How a proxy states the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    /// Once per connection, with the PROXY protocol, version 1 or 2.
    Protocol,
    /// In each request, with the header `forwarded` or `x-forwarded-for`.
    Header,
}

/// The proxies that may state the client's address, and how they state it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies {
    /// How the proxies state the client's address.
    pub mode: ProxyMode,
    /// The networks to which the addresses of the proxies belong.
    pub networks: Vec<IpNet>,
}

/// Returns the address of the client that sent a request; `None` if it is not known.
///
/// # Errors
/// See [`TrustedProxies::resolve_client`].
pub(crate) fn resolve_address(
    session: &Session,
    proxies: Option<&TrustedProxies>,
) -> Result<Option<IpAddr>, ApiError> {
    let peer = session.client_addr().and_then(Peer::as_inet).map(SocketAddr::ip);
    let (Some(peer), Some(proxies)) = (peer, proxies) else { return Ok(peer) };
    if proxies.mode == ProxyMode::Protocol {
        return Ok(Some(peer));
    }
    let client = proxies.resolve_client(peer, &session.req_header().headers);
    let wanted = "absent where there is x-forwarded-for as well";
    client.map(Some).map_err(|_| CallError::invalid(FORWARDED, wanted).into())
}

/// A request has both forwarded headers, so the address of its client is ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AmbiguousForwarding;

impl TrustedProxies {
    /// Whether an address belongs to a trusted proxy. An IPv4-mapped IPv6 address counts as its
    /// IPv4 address.
    #[must_use]
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the address of the client of a request that came over a connection from `peer`. If
    /// `peer` is not a trusted proxy, it is the client itself.
    ///
    /// # Errors
    /// The request has both headers: the client itself may have sent one of them, and the gateway
    /// cannot tell which.
    pub(crate) fn resolve_client(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Result<IpAddr, AmbiguousForwarding> {
        let peer = peer.to_canonical();
        let hops = match (headers.contains_key(FORWARDED), headers.contains_key(X_FORWARDED_FOR)) {
            (true, true) => return Err(AmbiguousForwarding),
            (true, false) => parse_hops(headers, FORWARDED, parse_forwarded),
            (false, _) => parse_hops(headers, X_FORWARDED_FOR, |hop| parse_address(hop.trim())),
        };
        // A trusted proxy has recorded the hop before it, so that hop can be believed.
        let mut client = peer;
        for hop in hops.into_iter().rev() {
            if !self.contains(client) {
                break;
            }
            // An unreadable hop hides the client, so the proxy that wrote it counts as the client.
            let Some(hop) = hop else { break };
            client = hop;
        }
        Ok(client)
    }
}

/// Returns the hops on all lines of a header, the one nearest to the client first. An unreadable
/// hop is `None`.
fn parse_hops(
    headers: &HeaderMap,
    name: &str,
    parse: impl Fn(&str) -> Option<IpAddr>,
) -> Vec<Option<IpAddr>> {
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let all: Vec<&[u8]> = lines.flat_map(|line| line.split(|byte| *byte == b',')).collect();
    let last = all.len().saturating_sub(HOPS_MAX);
    // A hop that is not ASCII does not make the other hops on its line unreadable: other hosts
    // wrote those.
    let text = all[last..].iter().map(|hop| std::str::from_utf8(hop).ok().filter(|t| t.is_ascii()));
    text.map(|hop| hop.and_then(&parse)).collect()
}

/// Returns the address in the `for` parameter of one element of a `forwarded` header (RFC 7239,
/// section 4). `None` if the element does not have exactly one `for` with an address.
fn parse_forwarded(element: &str) -> Option<IpAddr> {
    let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let mut named = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case("for"));
    let (_, node) = named.next()?;
    // Two `for` parameters are ambiguous.
    if named.next().is_some() {
        return None;
    }
    let node = node.trim();
    let node = node.strip_prefix('"').and_then(|node| node.strip_suffix('"')).unwrap_or(node);
    parse_address(node)
}

/// Parses an IP address, alone or with a port. An IPv6 address may be in brackets.
fn parse_address(text: &str) -> Option<IpAddr> {
    let alone = || text.parse::<IpAddr>().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|a| a.ip());
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    alone().or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn proxies() -> TrustedProxies {
        let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|n| n.parse().expect("a network"));
        TrustedProxies { mode: ProxyMode::Header, networks: networks.to_vec() }
    }

    fn client(
        peer: &str,
        lines: &[(&str, impl AsRef<[u8]>)],
    ) -> Result<IpAddr, AmbiguousForwarding> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_bytes(value.as_ref()).expect("a value"));
        }
        proxies().resolve_client(ip(peer), &headers)
    }

    #[test]
    fn the_last_hop_that_is_no_proxy_is_the_client() {
        let of = |lines: &[(&str, &str)]| client("10.0.0.1", lines).expect("one header");
        let xff = |value: &'static str| of(&[("x-forwarded-for", value)]);
        assert_eq!(of(&[]), ip("10.0.0.1"), "a health check of the proxy's own");
        assert_eq!(xff("192.0.2.7"), ip("192.0.2.7"));
        assert_eq!(xff("6.6.6.6, 192.0.2.7"), ip("192.0.2.7"), "what a client says of itself");
        assert_eq!(xff("6.6.6.6, 192.0.2.7, 10.1.1.1"), ip("192.0.2.7"));
        assert_eq!(xff("10.9.9.9, 10.1.1.1"), ip("10.9.9.9"), "all are proxies");
        assert_eq!(xff("::ffff:192.0.2.7"), ip("192.0.2.7"), "the same client by two names");
        assert_eq!(xff("192.0.2.7:4711"), ip("192.0.2.7"));
        assert_eq!(xff("6.6.6.6, unknown"), ip("10.0.0.1"), "the proxy hides it");
        assert_eq!(xff("6.6.6.6, unknown, 10.1.1.1"), ip("10.1.1.1"));
        let two = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.7")];
        assert_eq!(of(&two), ip("192.0.2.7"), "lines are one list");
    }

    #[test]
    fn the_standard_header_is_read_as_well() {
        let of = |value: &'static str| client("10.0.0.1", &[("forwarded", value)]).expect("one");
        assert_eq!(of("for=192.0.2.60;proto=http;by=203.0.113.43"), ip("192.0.2.60"));
        assert_eq!(of("For=\"[2001:dead:cafe::17]:4711\""), ip("2001:dead:cafe::17"));
        assert_eq!(of("for=6.6.6.6, for=192.0.2.43;proto=https, for=10.2.2.2"), ip("192.0.2.43"));
        assert_eq!(of("for=_hidden"), ip("10.0.0.1"));
        assert_eq!(of("proto=https"), ip("10.0.0.1"));
        assert_eq!(of("for=6.6.6.6;for=192.0.2.1"), ip("10.0.0.1"));
    }

    #[test]
    fn a_client_hid_behind_the_proxy_with_a_hop_that_is_no_text() {
        let of =
            |name: &str, value: &[u8]| client("10.0.0.1", &[(name, value)]).expect("one header");
        assert_eq!(of(X_FORWARDED_FOR, b"\xff, 192.0.2.7"), ip("192.0.2.7"));
        assert_eq!(of(X_FORWARDED_FOR, b"6.6.6.6, \xff\xfe, 192.0.2.7, 10.1.1.1"), ip("192.0.2.7"));
        assert_eq!(of(FORWARDED, b"for=\xff, for=192.0.2.7;proto=https"), ip("192.0.2.7"));
        assert_eq!(of(FORWARDED, b"\xe4, for=192.0.2.7, for=10.1.1.1"), ip("192.0.2.7"));
        assert_eq!(of(X_FORWARDED_FOR, b"6.6.6.6, \xff"), ip("10.0.0.1"), "the proxy hides it");
        let space = "6.6.6.6, \u{a0}192.0.2.7".as_bytes();
        assert_eq!(of(X_FORWARDED_FOR, space), ip("10.0.0.1"), "a hop is plain text");
    }

    #[test]
    fn a_client_that_adds_the_other_header_does_not_choose_its_address() {
        let both = [("forwarded", "for=6.6.6.6"), ("x-forwarded-for", "192.0.2.7")];
        assert_eq!(client("10.0.0.1", &both), Err(AmbiguousForwarding));
    }

    #[test]
    fn a_mapped_peer_is_a_proxy_too() {
        let lines = [("x-forwarded-for", "192.0.2.7")];
        assert_eq!(client("::ffff:10.0.0.1", &lines), Ok(ip("192.0.2.7")));
        assert_eq!(client("192.0.2.9", &lines), Ok(ip("192.0.2.9")), "nobody else is believed");
    }

    proptest! {
        #[test]
        fn what_stands_before_the_last_untrusted_hop_changes_nothing(
            claimed in prop::collection::vec(prop_oneof![b' '..=b'~', 0x80..=0xFFu8], 0..80),
        ) {
            for (name, named) in [(X_FORWARDED_FOR, ""), (FORWARDED, "for=")] {
                let hops = format!(", {named}192.0.2.7, {named}10.3.3.3");
                let value = [claimed.as_slice(), hops.as_bytes()].concat();
                prop_assert_eq!(client("10.0.0.1", &[(name, value)]), Ok(ip("192.0.2.7")));
            }
        }
    }
}
