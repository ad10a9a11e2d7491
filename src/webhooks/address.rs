//! The addresses of endpoints: with https, without a user, and on a host that is public, so that no
//! customer makes the gateway send requests into its own network.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;

use super::bounds::URL_BYTES_MAX;

/// The address of an endpoint, such as `https://hooks.example.com/tollgate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookUrl(String);

/// Why a text is no address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebhookUrlFault {
    /// It is not an address with https.
    #[error("it must be an address such as https://hooks.example.com/tollgate")]
    NotHttps,
    /// It is too long.
    #[error("it must have at most {URL_BYTES_MAX} bytes")]
    TooLong,
    /// It has a user, a password or a fragment.
    #[error("it must have no user, no password and no part after '#'")]
    HasExtras,
    /// It leads into a network that is not public.
    #[error("'{0}' is not a public address")]
    NotPublic(String),
}

impl WebhookUrl {
    /// Parses an address. With `allow_private` its host may be a private one.
    ///
    /// # Errors
    /// See [`WebhookUrlFault`].
    pub fn parse(text: &str, allow_private: bool) -> Result<WebhookUrl, WebhookUrlFault> {
        if text.len() > URL_BYTES_MAX {
            return Err(WebhookUrlFault::TooLong);
        }
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let uri = text.parse::<Uri>().ok().filter(|_| is_plain);
        let uri = uri.filter(|uri| uri.scheme_str() == Some("https"));
        let uri = uri.ok_or(WebhookUrlFault::NotHttps)?;
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        if authority.contains('@') || text.contains('#') {
            return Err(WebhookUrlFault::HasExtras);
        }
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || uri.port_u16() == Some(0) || has_broken_port(authority, &uri) {
            return Err(WebhookUrlFault::NotHttps);
        }
        if !allow_private && !is_public_host(host) {
            return Err(WebhookUrlFault::NotPublic(host.to_owned()));
        }
        Ok(WebhookUrl(text.to_owned()))
    }

    /// Returns the text of the address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether an authority has a colon after its host and no number after it.
fn has_broken_port(authority: &str, uri: &Uri) -> bool {
    let after_host = authority.rsplit(']').next().unwrap_or_default();
    after_host.contains(':') && uri.port_u16().is_none()
}

/// Whether a host may be public: a name with a dot that is not one of a local network, or an
/// address that [`is_public`]. What a name leads to is checked when it is resolved. A number in
/// another form, such as `0x7f.1`, is refused: resolvers take it for an address.
fn is_public_host(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Ok(address) = bare.unwrap_or(host).parse::<IpAddr>() {
        return is_public(address);
    }
    // A host with `%` would be decoded before it is resolved.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !host.bytes().all(is_plain) {
        return false;
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let Some((_, last)) = name.rsplit_once('.') else { return false };
    let local = ["localhost", "local", "internal", "localdomain", "home", "lan", "arpa"];
    // No top-level domain begins with a digit.
    !last.starts_with(|first: char| first.is_ascii_digit())
        && !last.is_empty()
        && !local.contains(&last)
}

/// Whether an address is one of the public Internet, by the registries of special-purpose addresses
/// of IANA.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match a {
        // This network, private use, loopback; multicast, reserved, broadcast.
        0 | 10 | 127 | 224..=255 => true,
        // Shared by carriers.
        100 => (64..=127).contains(&b),
        // Link-local: the metadata of clouds is there.
        169 => b == 254,
        172 => (16..=31).contains(&b),
        // Protocol assignments, documentation, relays of 6to4, private use.
        192 => matches!((b, c), (0, 0 | 2) | (88, 99) | (168, _)),
        // Measurements, documentation.
        198 => matches!((b, c), (18 | 19, _) | (51, 100)),
        203 => (b, c) == (0, 113),
        _ => false,
    };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // Only 2000::/3 is given out. Of that, protocol assignments with Teredo (2001::/23),
    // documentation (2001:db8::/32, 3fff::/20) and 6to4 (2002::/16), which has IPv4 addresses.
    (0x2000..=0x3fff).contains(&a)
        && !(a == 0x2001 && (b < 0x0200 || b == 0x0db8))
        && a != 0x2002
        && !(a == 0x3fff && b < 0x1000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_public_addresses_with_https_are_taken() {
        for good in [
            "https://hooks.example.com/tollgate",
            "https://hooks.example.com",
            "https://hooks.example.com:8443/a?b=c",
            "https://93.184.216.34/",
            "https://[2606:4700::1]/x",
            "https://example.com./",
        ] {
            assert_eq!(WebhookUrl::parse(good, false).expect(good).as_str(), good);
        }
        for bad in [
            "",
            "hooks.example.com",
            "http://hooks.example.com/",
            "https://",
            "https:///path",
            "ftp://hooks.example.com",
            "https://user@hooks.example.com/",
            "https://user:secret@hooks.example.com/",
            "https://hooks.example.com@127.0.0.1/",
            "https://hooks.example.com/#part",
            "https://hooks.example.com\\@127.0.0.1/",
            "https://hooks.example.com:0/",
            "https://hooks.example.com:99999/",
            "https://hooks.example.com:/",
            "https://hooks.example.com/ä",
            "https://hooks.example.com/a b",
            "https://localhost/",
            "https://printer/",
            "https://a.localhost/",
            "https://db.internal/",
            "https://127.0.0.1/",
            "https://127.1/",
            "https://0x7f.1/",
            "https://2130706433/",
            "https://0177.0.0.1/",
            "https://%31%32%37.0.0.%31/",
            "https://[fe80::1%25eth0]/",
            "https://10.1.2.3/",
            "https://169.254.169.254/latest/meta-data",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://[64:ff9b::a00:1]/",
            "https://[fd00::1]/",
            "https://[fe80::1]/",
        ] {
            assert!(WebhookUrl::parse(bad, false).is_err(), "{bad}");
        }
        let long = format!("https://hooks.example.com/{}", "x".repeat(URL_BYTES_MAX));
        assert_eq!(WebhookUrl::parse(&long, false), Err(WebhookUrlFault::TooLong));
        assert!(WebhookUrl::parse("https://127.0.0.1:9/", true).is_ok());
        assert!(WebhookUrl::parse("http://127.0.0.1:9/", true).is_err());
    }

    #[test]
    fn special_addresses_are_not_public() {
        for (text, public) in [
            ("8.8.8.8", true),
            ("100.63.255.255", true),
            ("100.64.0.0", false),
            ("100.127.255.255", false),
            ("172.15.0.1", true),
            ("172.16.0.1", false),
            ("172.31.255.255", false),
            ("172.32.0.1", true),
            ("192.0.1.1", true),
            ("192.0.2.1", false),
            ("198.17.0.1", true),
            ("198.19.255.1", false),
            ("198.51.100.9", false),
            ("203.0.113.9", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("0.0.0.0", false),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::127.0.0.1", false),
            ("2001:200::1", true),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2002:7f00:1::", false),
            ("3fff::1", false),
            ("3fff:1000::1", true),
            ("ff02::1", false),
            ("fc00::1", false),
            ("2606:4700::1", true),
        ] {
            assert_eq!(is_public(text.parse().expect(text)), public, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_of_ipv4_is_the_same_in_ipv6(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from(bits);
            prop_assert_eq!(is_public(v4.into()), is_public(v4.to_ipv6_mapped().into()));
        }

        #[test]
        fn no_text_is_an_address_of_a_private_host(text in "https://[ -~]{0,30}") {
            if let Ok(url) = WebhookUrl::parse(&text, false) {
                let uri: Uri = url.as_str().parse().expect("an address");
                let host = uri.host().expect("a host").trim_matches(['[', ']']);
                let address = host.parse::<IpAddr>();
                prop_assert!(address.map_or(host.contains('.'), is_public), "{text}");
            }
        }
    }
}
